/* SPDX-License-Identifier: Apache-2.0 */
/* File systems in memory, as detached mounts that exist as long as their descriptor. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "guest/internal.h"
#include "sys/syscalls.h"

static int set_option(int fs, const char *key, const char *value) {
    return value ? sys_fsconfig(fs, FSCONFIG_SET_STRING, key, value, 0) : 0;
}

static int create_mount(int fs, unsigned attributes) {
    int r = sys_fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0);

    return r < 0 ? r
                 : sys_fsmount(
                       fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | attributes);
}

int guest_new_tmpfs_of(const char *options) {
    int fs = sys_fsopen("tmpfs", FSOPEN_CLOEXEC), r = fs;
    char text[128];

    if (r >= 0 && strlen(options) >= sizeof text)
        r = -ENAMETOOLONG;
    if (r >= 0)
        memcpy(text, options, strlen(options) + 1);
    for (char *key = text, *next; r >= 0 && key && *key; key = next) {
        next = strchr(key, ',');
        if (next)
            *next++ = '\0';
        char *value = strchr(key, '=');
        if (value)
            *value++ = '\0';
        r = value ? set_option(fs, key, value) : -EINVAL;
    }
    if (r >= 0)
        r = set_option(fs, "source", "rollbox");
    if (r >= 0)
        r = create_mount(fs, 0);
    if (fs >= 0)
        close(fs);
    return r;
}

int guest_new_tmpfs(const struct guest_tmpfs *options) {
    int fs = sys_fsopen("tmpfs", FSOPEN_CLOEXEC), r = fs;

    if (r >= 0)
        r = set_option(fs, "size", options->size);
    if (r >= 0)
        r = set_option(fs, "nr_inodes", options->entries);
    if (r >= 0)
        r = set_option(fs, "huge", options->huge);
    if (r >= 0)
        r = set_option(fs, "mode", options->mode);
    if (r >= 0)
        r = create_mount(fs, options->attributes);
    if (fs >= 0)
        close(fs);
    return r;
}
