/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RUN --mount=type=ssh: a socket in the sandbox that leads to the caller's SSH agent.
 *
 * The agent accepts connections of its own user alone, and its socket would let a sandbox reach
 * nothing else of the host. So this process listens at a socket of its own, whose directory the
 * sandbox may read, and a thread passes bytes on to the agent. The directory lies in one that only
 * this user may enter, so that no other user of the host can use the agent. It ends with the step.
 */
#ifndef ROLLBOX_BUILD_SSH_AGENT_H
#define ROLLBOX_BUILD_SSH_AGENT_H

#include <rollbox/rollbox.h>

struct ssh_agent;

/* `agent`: the path of the agent's socket. */
int ssh_agent_start(const char *agent, struct ssh_agent **ret_agent, struct rollbox_error *error);
struct ssh_agent *ssh_agent_stop(struct ssh_agent *agent);
/* The directory that the sandbox is to see, at the same path. */
const char *ssh_agent_directory(const struct ssh_agent *agent);
/* "SSH_AUTH_SOCK=PATH". */
const char *ssh_agent_variable(const struct ssh_agent *agent);

#endif
