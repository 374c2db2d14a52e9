/* SPDX-License-Identifier: Apache-2.0 */
/* Starting a program of ours with nothing of the engine's but the descriptors that it is meant to have. */
#include <signal.h>
#include <spawn.h>

#include "engine/engine.h"

int spawn_clean(const char *path, char *const *argv, const int *fds, int n_fds, pid_t *ret_pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    char *envp[] = { NULL };
    sigset_t none;

    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    for (int i = 0; i < n_fds; i++)
        posix_spawn_file_actions_adddup2(&actions, fds[i], i);
    posix_spawn_file_actions_addclosefrom_np(&actions, n_fds);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
    int r = -posix_spawn(ret_pid, path, &actions, &attributes, argv, envp);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return r;
}
