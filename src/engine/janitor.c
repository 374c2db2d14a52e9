/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Janitors.
 *
 * Processes, mounts and network namespaces of sandboxes vanish with the engine by themselves;
 * cgroup directories do not. So an engine that makes some has a janitor: a fork of it with nothing
 * but the end of a pipe that the engine holds open. However the engine ends, the janitor then
 * removes what is left below the engine's own directories, and ends. At its start it does the same
 * for engines that are dead already. The engine of a command that runs is a child which that
 * command waits for: there the parent is the janitor, unless there is something to sweep.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "engine/engine.h"

#define PATIENCE_MS 20000

int janitor_fork(int (*body)(void *), void *argument, int *ret_held) {
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0) {
        if (dup2(ends[0], STDIN_FILENO) < 0 || spawn_shed("rollbox-janitor", NULL, 0) < 0)
            _exit(1);
        _exit(body(argument));
    }
    int r = pid < 0 ? -errno : 0;
    close(ends[0]);
    if (r < 0)
        close(ends[1]);
    else
        *ret_held = ends[1];
    return r;
}

void janitor_wait(void) {
    char byte;
    ssize_t n;

    do
        n = read(STDIN_FILENO, &byte, 1);
    while (n > 0 || (n < 0 && errno == EINTR));
}

static int look_after(void *argument) {
    const struct cgroup_root *cgroups = argument;

    /* What engines left behind that were killed together with their janitors. Here it keeps no run
     * waiting. */
    (void)cgroup_sweep(cgroups);
    janitor_wait();
    return cgroup_paths_remove(cgroup_paths(cgroups), PATIENCE_MS) < 0;
}

static void start_janitor(struct loop_timer *timer) {
    struct engine *engine = container_of(timer, struct engine, janitor_due);

    if (engine->leftovers && engine->leftovers[0] && !cgroup_any_leftover(engine->cgroups))
        return;
    /* Without one, the next engine sweeps. */
    (void)janitor_fork(look_after, engine->cgroups, &engine->janitor);
}

/* Tells the parent what to remove, should we be killed. That may be now, and half a path is another
 * directory's: its first letter comes last. */
static void bequeath_paths(struct engine *engine) {
    const char *const *paths = cgroup_paths(engine->cgroups);
    size_t at = 0;

    for (size_t i = 0; paths[i]; i++) {
        size_t length = strlen(paths[i]) + 1;

        if (at + length + 1 > engine->leftovers_size)
            return;
        memcpy(engine->leftovers + at + (i == 0), paths[i] + (i == 0), length - (i == 0));
        at += length;
    }
    if (at)
        __atomic_store_n(engine->leftovers, paths[0][0], __ATOMIC_RELEASE);
}

void janitor_start_soon(struct engine *engine) {
    if (engine->leftovers && !engine->leftovers[0])
        bequeath_paths(engine);
    if (engine->janitor < 0 && !engine->janitor_due.position)
        (void)loop_timer_set(engine->loop, &engine->janitor_due, clock_now_ns(), start_janitor);
}
