/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ceiling of an exchange's tenant (ceiling.h), for requests: what exceeds it is answered with
 * 403 `policy_forbidden`. Each returns false if the answer is given.
 */
#ifndef ROLLBOX_SERVE_CEILINGS_H
#define ROLLBOX_SERVE_CEILINGS_H

#include "serve/server.h"

/* Fills the defaults into the policy of the exchange's body, and compares it. */
bool ceilings_apply(struct exchange *exchange);
/* Of a fork: its sandbox may have been made under another ceiling. */
bool ceilings_allow_fork(struct exchange *exchange);
/* Of a command: its time; 0: no limit. */
bool ceilings_allow_time(struct exchange *exchange, int64_t timeout_ms);
/* The longest time of a command in ms, for clients that name none. */
int64_t ceilings_time(struct exchange *exchange);
/* The limit of each stream of a command's output: what was asked for, or the ceiling if that is
 * lower. */
int64_t ceilings_lower_output(struct exchange *exchange, int64_t bytes);

#endif
