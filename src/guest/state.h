/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Init's state of the sandbox: running commands, and whether processes are paused. It is plain data
 * below all code that acts on it. The file that sets each variable is named beside it; other files
 * use the functions.
 */
#ifndef ROLLBOX_GUEST_STATE_H
#define ROLLBOX_GUEST_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define COMMAND_MAX_AGENTS 64

/* command.c: the number of running commands, and the agents, children that run init's own
 * program. */
extern size_t state_commands;
extern struct state_agent {
    pid_t pid;
    bool alone; /* everything but agents was stopped for it (GUEST_FILES_ALONE) */
} state_agents[COMMAND_MAX_AGENTS];
extern size_t state_n_agents, state_n_alone;
size_t command_count(void);
bool command_is_agent(pid_t pid);
void command_agents_resume(void);
extern bool command_in_session;

/* reaper.c: all processes are paused. */
extern bool state_is_frozen;
bool tree_is_frozen(void);

/* init.c: the engine has sent GUEST_FREEZE, and no GUEST_THAW since. A tree that is frozen without
 * that is frozen for an agent: requests are served all the same. */
extern bool state_is_held;

/* quiesce.c: the socket of the dump worker, while processes are paused for it; else -1. */
extern int state_capturer;
bool quiesce_is(void);
int quiesce_socket(void); /* -1: there is none */

/* Calls back for each entry with a numeric name in a directory of /proc, until that returns false.
 * 0 (1 if it did) or -errno. */
int tree_each_number(int directory, bool (*call)(void *data, pid_t number), void *data);

#endif
