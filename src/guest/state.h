/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What init knows of the sandbox without looking: what runs, and what stands still. Plain state, below all that acts on it; who sets what
 * is said beside it. The rest of init asks by the functions that command.h and determinism.h declare.
 */
#ifndef ROLLBOX_GUEST_STATE_H
#define ROLLBOX_GUEST_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "guest/command.h"

/* command.c: how many commands run, and the agents, children of init's own program. */
extern size_t state_commands;
extern pid_t state_agents[COMMAND_MAX_AGENTS];
extern size_t state_n_agents;

/* tree.c: every process was stopped. */
extern bool state_is_frozen;

/* still.c: the socket of a capturer, while processes stand for it; -1. */
extern int state_capturer;

#endif
