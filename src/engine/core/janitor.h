/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The janitor: one process that outlives the engine and removes what a killed engine leaves.
 *
 * Processes, mounts and network namespaces of sandboxes vanish with the engine by themselves.
 * Cgroup directories, half-made commits and files on disk do not. The module that makes such a
 * thing gives the janitor a duty: what to do now, and what to do once the engine is gone. The
 * janitor is a fork of the engine, so a message is a pointer to a duty, and a path. It has no
 * descriptor of the engine's. If it is killed, the next message starts another one. If both are
 * killed, the next engine removes what they left.
 */
#ifndef ROLLBOX_ENGINE_CORE_JANITOR_H
#define ROLLBOX_ENGINE_CORE_JANITOR_H

#include <stdbool.h>

struct engine;

/* In the janitor. `engine` is its copy from the moment of the fork. */
struct janitor_duty {
    void (*now)(struct engine *engine, const char *path);    /* at each message; or NULL */
    void (*at_end)(struct engine *engine, const char *path); /* once for each path; or NULL */
    bool after_loans; /* at_end waits until no process has a descriptor of janitor_lend, and the
                         engine's locks are released */
};

/* Starts the janitor if there is none. The duty must be static. 0 or -errno. */
int janitor_tell(struct engine *engine, const struct janitor_duty *duty, const char *path);
/* The engine makes cgroups. Soon, when the loop has nothing better to do. */
void janitor_start_soon(struct engine *engine);
/* A descriptor for a process that may outlive the engine: see after_loans. -EBADF: no janitor. */
int janitor_lend(const struct engine *engine);
/* The engine ends. The janitor does the remaining clean-up. */
void janitor_finish(struct engine *engine);

#endif
