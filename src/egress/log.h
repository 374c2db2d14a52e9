/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of a sandbox's network: one JSON object a line, with a bound.
 *
 * Texts of guests and servers are written as JSON strings of valid UTF-8. Past LOG_MAX_BYTES events
 * are only counted; the last line of a full log says how many.
 *
 * A guest can cause any number of refusals, and must not be able to hide connections behind them.
 * So refused names may fill a quarter of the log, other refusals half, and connections the rest.
 */
#ifndef ROLLBOX_EGRESS_LOG_H
#define ROLLBOX_EGRESS_LOG_H

#include "egress/egress.h"

#define LOG_MAX_BYTES (4u << 20)

/* Writes one line; `format` is json_pack's for the members after "t", "box" and "event". */
void log_event(struct box *box, const char *event, const char *format, ...);
/* Of requests: only if the policy wants them. */
bool log_wants_requests(const struct box *box);
/* Writes the last line of a full log, and closes the file. */
void log_done(struct box *box);

#endif
