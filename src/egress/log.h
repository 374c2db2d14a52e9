/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log of a sandbox's network: one JSON object a line, with a bound.
 *
 * Texts of guests and servers are written as JSON strings of valid UTF-8.
 *
 * A guest can cause any number of events, and must not be able to hide some behind others. So each
 * kind has a part of LOG_MAX_BYTES of its own: refused names, refusals, connections, requests. Past
 * that, events of the kind are only counted. A line "full" tells when that begins, and at the end a
 * line for each such kind tells how many there were in all.
 */
#ifndef ROLLBOX_EGRESS_LOG_H
#define ROLLBOX_EGRESS_LOG_H

#include "egress/egress.h"

#define LOG_MAX_BYTES (4u << 20)
#define LOG_KIND_BYTES (LOG_MAX_BYTES / LOG_KINDS)

/* Writes one line; `format` is json_pack's for the members after "t", "box" and "event". */
void log_event(struct box *box, const char *event, const char *format, ...);
/* Of requests: only if the policy wants them. */
bool log_wants_requests(const struct box *box);
/* Writes the last line of a full log, and closes the file. */
void log_done(struct box *box);

#endif
