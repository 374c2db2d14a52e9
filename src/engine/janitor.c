/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The janitor.
 *
 * Processes, mounts and network namespaces of sandboxes vanish with the engine by themselves; cgroup directories do not. So an engine that makes some has a janitor: this same
 * program, waiting for the end of a pipe that the engine holds open. However the engine ends, the janitor then removes what is left below the
 * engine's own directories, and ends. At its start it does the same for engines that are dead already.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "engine/engine.h"

#define MAX_PATHS 8
#define PATIENCE_MS 20000

/* What engines left behind that were killed together with their janitors. Here it keeps no run waiting. */
static void sweep(void) {
    struct features features;
    struct cgroup_root *root = NULL;

    features_quick(&features);
    if (cgroup_root_open(&features, CGROUP_LIMITS, &root) < 0)
        return;
    (void)cgroup_sweep(root);
    cgroup_root_free(root);
}

int janitor_main(char *const *paths) {
    sigset_t all;
    char byte;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sweep();
    while (read(STDIN_FILENO, &byte, 1) > 0 || errno == EINTR)
        ;
    return cgroup_paths_remove((const char *const *)paths, PATIENCE_MS) < 0;
}

static void start(struct loop_timer *timer) {
    struct engine *engine = container_of(timer, struct engine, janitor_due);
    char *argv[MAX_PATHS + 3] = { "rollbox-janitor", "--janitor" };
    char *envp[] = { NULL };
    const char *const *paths = cgroup_paths(engine->cgroups);
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    int ends[2], n = 2;
    pid_t pid;

    while (n < MAX_PATHS + 2 && paths[n - 2]) {
        argv[n] = (char *)paths[n - 2];
        n++;
    }
    if (pipe2(ends, O_CLOEXEC) < 0)
        return;                 /* the next engine sweeps */
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
    int r = -posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, argv, envp);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(ends[0]);
    if (r < 0)
        close(ends[1]);
    else
        engine->janitor = ends[1];
}

void janitor_start_soon(struct engine *engine) {
    if (engine->janitor < 0 && !engine->janitor_due.position)
        (void)loop_timer_set(engine->loop, &engine->janitor_due, clock_now_ns(), start);
}
