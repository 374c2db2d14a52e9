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

int janitor_spawn(char *const *argv, int *ret_held) {
    int ends[2];
    pid_t pid;

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    int r = spawn_clean("/proc/self/exe", argv, (int[]){ ends[0], STDOUT_FILENO, STDERR_FILENO }, 3, &pid);
    close(ends[0]);
    if (r < 0)
        close(ends[1]);
    else
        *ret_held = ends[1];
    return r;
}

static void start(struct loop_timer *timer) {
    struct engine *engine = container_of(timer, struct engine, janitor_due);
    char *argv[MAX_PATHS + 3] = { "rollbox-janitor", "--janitor" };
    const char *const *paths = cgroup_paths(engine->cgroups);

    for (int n = 0; n < MAX_PATHS && paths[n]; n++)
        argv[n + 2] = (char *)paths[n];
    /* Without one, the next engine sweeps. */
    (void)janitor_spawn(argv, &engine->janitor);
}

void janitor_start_soon(struct engine *engine) {
    if (engine->janitor < 0 && !engine->janitor_due.position)
        (void)loop_timer_set(engine->loop, &engine->janitor_due, clock_now_ns(), start);
}
