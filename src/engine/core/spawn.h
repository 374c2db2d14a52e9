/* SPDX-License-Identifier: Apache-2.0 */
/* Starts programs, and forks of the engine. */
#ifndef ROLLBOX_ENGINE_CORE_SPAWN_H
#define ROLLBOX_ENGINE_CORE_SPAWN_H

#include <stddef.h>
#include <sys/types.h>

/* The path of a program of ours, for the caller to free; `variable` of the environment overrides
 * it, unless NULL. NULL: out of memory. */
char *spawn_find_program(const char *variable, const char *program);

/* A program in a session of its own, without environment, whose descriptors 0 to n_fds - 1
 * are fds[] (each its own number, or above all of them). 0 or -errno. */
int spawn_clean(const char *path, char *const *argv, const int *fds, int n_fds, pid_t *ret_pid);

/* The same in a user namespace (borrowed), so that the program's memory belongs to that: what it
 * forks can be traced by those with rights there, also when it is not dumpable. */
int spawn_within(
    const char *path, char *const *argv, const int *fds, int n_fds, int namespace, pid_t *ret_pid);

/* The same once in the life of a process (later it is spawn_clean), without waiting until it is
 * executed, so the path is to stay. A failure of that shows as its end, with 127. */
int spawn_soon(const char *path, char *const *argv, const int *fds, int n_fds, pid_t *ret_pid);

/* In a fork of the engine, which continues as `name`, in a session of its own and with all signals
 * blocked: closes its descriptors, which are what keeps sandboxes alive and clients waiting, but
 * the standard streams and fds[], in any order (negative: none). 0 or -errno. */
int spawn_shed(const char *name, const int *fds, size_t n_fds);

/* A fork of the engine that looks at guests, and so has nothing of it but these descriptors
 * (-EBADF: none). It ends with the engine. 0 in it, its pid in the engine, or -errno. */
pid_t spawn_fork(const char *name, const int *fds, size_t n_fds);

#endif
