/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/background.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

static int set_files(posix_spawn_file_actions_t *actions, int input_fd) {
    int r = input_fd >= 0 ? posix_spawn_file_actions_adddup2(actions, input_fd, 0)
                          : posix_spawn_file_actions_addopen(actions, 0, "/dev/null", O_RDONLY, 0);

    if (!r)
        r = posix_spawn_file_actions_addopen(actions, 1, "/dev/null", O_WRONLY, 0);
    return r ? r : posix_spawn_file_actions_addclosefrom_np(actions, 3);
}

static int set_signals(posix_spawnattr_t *attributes) {
    sigset_t none;

    sigemptyset(&none);
    int r = posix_spawnattr_setsigmask(attributes, &none);
    return r ? r
             : posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
}

pid_t background_spawn(const char *program, char *const *argv, int input_fd) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    pid_t pid;

    if (posix_spawn_file_actions_init(&actions))
        return -ENOMEM;
    if (posix_spawnattr_init(&attributes)) {
        posix_spawn_file_actions_destroy(&actions);
        return -ENOMEM;
    }
    int r = set_files(&actions, input_fd);
    if (!r)
        r = set_signals(&attributes);
    if (!r)
        r = posix_spawnp(&pid, program, &actions, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return r ? -r : pid;
}
