/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by init's own files: the commands of a sandbox, their process trees and terminals. */
#ifndef ROLLBOX_GUEST_INIT_COMMAND_H
#define ROLLBOX_GUEST_INIT_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/wire.h"
#include "guest/internal.h"

#define COMMAND_MAX 1024 /* at the same time */

/* command.c: the running commands. A session has any number of them, all in init's Landlock domain.
 * Other sandboxes have one at a time. */
void command_start(const struct box *box, struct wire_message *message);
/* Makes a restored process the main process of a command, as if an EXEC with this serial had
 * started it. 0 or -errno. */
int command_adopt(uint64_t serial, pid_t pid);
/* Reports what init itself reads, because all other reads are counted as a command's: a number of
 * bytes, or an unknown number. */
void command_has_read(uint64_t bytes);
void command_has_read_more(void);
/* Collects processes that have ended, and reports the ends of commands. True if there may be
 * more. */
bool command_reap(const struct box *box);
/* The main process of the command with this serial; 0: it does not run. */
pid_t command_main(uint64_t serial);
/* GUEST_FILES: a child of init's that serves the socket. 0 or -errno. */
int command_serve_files(const struct box *box, int socket, bool alone);

/* reaper.c: sends a signal to the processes of `scope` (enum guest_scope). Their number, or
 * -errno. */
int tree_signal(pid_t top, int number, uint64_t scope);
/* SIGKILL to every process but init and its agents. 0 or -errno. */
int tree_kill_guests(void);
/* Stops every process except init. The number of processes without agents, or -ETIMEDOUT: then all
 * continue. */
int tree_freeze(void);
void tree_thaw(void);

/* terminal.c: creates a terminal of the sandbox. 0 or -errno. */
int terminal_open(uint64_t size, int *ret_master, int *ret_slave);
/* Called in a session leader with the terminal as its standard input: makes that its controlling
 * terminal. 0 or -errno. */
int terminal_control(void);

#endif
