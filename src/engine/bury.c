/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closing what takes long.
 *
 * Whoever closes the last descriptor of a detached tmpfs waits until the kernel has freed each of its files: milliseconds for a thousand, during which nobody else would be served. Where there is much, a fork of the engine that does nothing
 * has the descriptor, and its end is what frees the files. The engine does not end before all of these have.
 */
#include <linux/magic.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "engine/engine.h"

#define MANY_ENTRIES 256
#define MANY_BYTES (16u << 20)

static struct { pid_t pids[16]; size_t n; } buried;

static bool takes_long(int fd) {
    struct statfs disk;

    return fstatfs(fd, &disk) == 0 && disk.f_type == TMPFS_MAGIC && (disk.f_files - disk.f_ffree > MANY_ENTRIES || (uint64_t)(disk.f_blocks - disk.f_bfree) * (uint64_t)disk.f_bsize > MANY_BYTES);
}

void bury(int take_fd) {
    if (buried.n < ARRAY_SIZE(buried.pids) && takes_long(take_fd)) {
        pid_t pid = spawn_fork("rollbox-bury", &take_fd, 1);
        if (pid == 0)
            _exit(0);
        if (pid > 0)
            buried.pids[buried.n++] = pid;
    }
    close(take_fd);
}

void bury_ended(pid_t pid) {
    for (size_t i = 0; i < buried.n; i++)
        if (buried.pids[i] == pid) {
            buried.pids[i] = buried.pids[--buried.n];
            return;
        }
}

void bury_wait(void) {
    while (buried.n)
        (void)waitpid(buried.pids[--buried.n], NULL, 0);
}
