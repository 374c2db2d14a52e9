/* SPDX-License-Identifier: Apache-2.0 */
/* What init's own files share: the commands of a sandbox, their trees of processes, their
 * terminals. */
#ifndef ROLLBOX_GUEST_INIT_COMMAND_H
#define ROLLBOX_GUEST_INIT_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/wire.h"
#include "guest/internal.h"

#define COMMAND_MAX 1024 /* that run at once */

/* command.c: the commands that run. A session has any number, all in init's own Landlock domain;
 * else there is one at a time. */
void command_start(const struct box *box, struct wire_message *message);
/* A process that was restored is the main one of a command, as if an EXEC with this serial had
 * started it. 0 or -errno. */
int command_adopt(uint64_t serial, pid_t pid);
/* Of what init itself reads, whatever it has not told is taken for a command's: so many bytes; or
 * it is not known how many. */
void command_has_read(uint64_t bytes);
void command_has_read_more(void);
/* Waits for processes that have ended and reports the ends of commands. True if there may be more.
 */
bool command_reap(const struct box *box);
/* The main process of the command that an EXEC with this serial started; 0: none runs. */
pid_t command_main(uint64_t serial);
/* GUEST_FILES: a child of init's that serves the socket. 0 or -errno. */
int command_serve_files(int socket, bool alone);

/* reaper.c: sends a signal to the processes that `scope` (enum guest_scope) means. Their number, or
 * -errno. */
int tree_signal(pid_t top, int number, uint64_t scope);
/* SIGKILL to every process but init and its agents. 0 or -errno. */
int tree_kill_guests(void);
/* Stops every process but init. How many there are, agents not counted, or -ETIMEDOUT: then all go
 * on. */
int tree_freeze(void);
void tree_thaw(void);

/* terminal.c: a new terminal of the sandbox. 0 or -errno. */
int terminal_open(uint64_t size, int *ret_master, int *ret_slave);
/* In the process that it is to control, a session's leader with the terminal as its standard input.
 * 0 or -errno. */
int terminal_control(void);

#endif
