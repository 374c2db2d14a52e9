/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What init knows of the sandbox without looking: what runs, and what stands still. Plain state,
 * below all that acts on it; the file that sets it is named beside it. Other files ask by the
 * functions.
 */
#ifndef ROLLBOX_GUEST_STATE_H
#define ROLLBOX_GUEST_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define COMMAND_MAX_AGENTS 64

/* command.c: how many commands run, and the agents, children of init's own program. */
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

/* reaper.c: every process was stopped. */
extern bool state_is_frozen;
bool tree_is_frozen(void);

/* init.c: the engine has sent GUEST_FREEZE, and no GUEST_THAW since. A tree that is frozen without
 * that is frozen for an agent: requests are served all the same. */
extern bool state_is_held;

/* quiesce.c: the socket of a capturer, while processes stand for it; -1. */
extern int state_capturer;
bool quiesce_is(void);
int quiesce_socket(void); /* -1: there is none */

/* Calls back for each entry of a directory, one of /proc, whose name is a number, until that
 * returns false. 0 (1 if it did) or -errno. */
int tree_each_number(int directory, bool (*call)(void *data, pid_t number), void *data);

#endif
