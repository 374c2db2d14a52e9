/* SPDX-License-Identifier: Apache-2.0 */
/* The first process of a sandbox: its setup, its loop, and how it starts commands. */
#ifndef ROLLBOX_GUEST_INIT_INIT_H
#define ROLLBOX_GUEST_INIT_INIT_H

#include "guest/internal.h"

struct wire_message;

/* setup.c: makes the calling process, just cloned, the init of a sandbox with no rights left.
 */
int box_setup(struct box *box, struct guest_fault *fault);

/* loopback.c: the loopback interface of the network namespace that the caller is in. 0 or -errno.
 */
int loopback_up(const struct plan *plan);

/* no_namespace.c: the same under isolation process, once the path of the directory for private
 * files is told. */
int process_set_home(const char *path);
int process_setup(struct box *box, struct guest_fault *fault);
/* In a command's process: from init's ids to the guest's. */
int process_become_guest(const struct box *box);
/* What init adds to the environment of commands that have it not: "HOME=..." and "TMPDIR=..."; NULL
 * after the last. */
const char *process_environment(size_t i);
/* Kills every process of the sandbox but its init, waits for them, removes the private files. */
void process_end(const struct box *box);
/* The sandbox's end. In a pid namespace the kernel kills what is left. */
_Noreturn void init_leave(const struct box *box, int status);

/* loop.c: never returns. Requests are received into `message`. */
_Noreturn void init_run(struct box *box, struct wire_message *message);

/* exec.c */
/* Of the calling process; `processes` as in the request. 0 or -errno. */
int exec_set_limits(const struct plan *plan, uint64_t processes);

/* Starts a command of the sandbox and returns its pid once it runs, or -errno and the fault when it
 * never will. */
pid_t exec_spawn(
    const struct box *box, const struct exec_request *request, struct guest_fault *fault);

#endif
