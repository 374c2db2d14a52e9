/* SPDX-License-Identifier: Apache-2.0 */
/* The first process of a sandbox: its setup, its main loop, and how it starts commands. */
#ifndef ROLLBOX_GUEST_INIT_INIT_H
#define ROLLBOX_GUEST_INIT_INIT_H

#include "guest/internal.h"

struct wire_message;

/* setup.c: turns the calling process, which was just cloned, into the init of a sandbox, and drops
 * all rights. */
int box_setup(struct box *box, struct guest_fault *fault);

/* loopback.c: sets up the loopback interface of the caller's network namespace. With many users
 * those from `outer_id` of U0 on may ping. 0 or -errno. */
int loopback_up(const struct plan *plan, uint32_t outer_id);

/* no_namespace.c: the same for isolation `process`, after the path of the directory for private
 * files is set. */
int process_set_home(const char *path);
int process_setup(struct box *box, struct guest_fault *fault);
/* In a command's process: changes init's ids to the guest's. */
int process_become_guest(const struct box *box);
/* Defaults for the environment of commands: "HOME=..." and "TMPDIR=..."; NULL after the last. */
const char *process_environment(size_t i);
/* Kills every process of the sandbox except its init, waits for them, and removes the private
 * files. */
void process_end(const struct box *box);
/* Ends the sandbox. In a pid namespace the kernel kills the remaining processes. */
/* connect.c: connects to the port that the message names, and sends the socket to that which came
 * with it. */
void connect_serve(struct wire_message *message);
_Noreturn void init_leave(const struct box *box, int status);

/* loop.c: never returns. Receives requests into `message`. */
_Noreturn void init_run(struct box *box, struct wire_message *message);

/* exec.c */
/* Sets the limits of the calling process; `processes` as in the request. 0 or -errno. */
int exec_set_limits(const struct plan *plan, uint64_t processes);
/* Sets one of them, if the plan has it. 0 or -errno. */
int exec_set_limit_of(const struct plan *plan, unsigned resource);

/* Starts a command. Returns its pid once it runs, or -errno and the fault if it cannot run. */
pid_t exec_spawn(
    const struct box *box, const struct exec_request *request, struct guest_fault *fault);

#endif
