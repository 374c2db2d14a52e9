/* SPDX-License-Identifier: Apache-2.0 */
/* File systems in memory, as detached mounts that live as long as their descriptor. */
#include <errno.h>
#include <unistd.h>

#include "guest/internal.h"
#include "sys/syscalls.h"

static int set(int fs, const char *key, const char *value) {
    return value ? sys_fsconfig(fs, FSCONFIG_SET_STRING, key, value, 0) : 0;
}

int guest_new_tmpfs(const struct guest_tmpfs *options) {
    int mount = -EBADF, fs = sys_fsopen("tmpfs", FSOPEN_CLOEXEC), r = fs;

    if (r >= 0)
        r = set(fs, "size", options->size);
    if (r >= 0)
        r = set(fs, "nr_inodes", options->entries);
    if (r >= 0)
        r = set(fs, "huge", options->huge);
    if (r >= 0)
        r = set(fs, "mode", options->mode);
    if (r >= 0)
        r = sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0);
    if (r >= 0)
        r = mount = sys_fsmount(fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | options->attributes);
    if (fs >= 0)
        close(fs);
    return r < 0 ? r : mount;
}
