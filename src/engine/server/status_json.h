/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions as JSON. */
#ifndef ROLLBOX_ENGINE_SERVER_STATUS_JSON_H
#define ROLLBOX_ENGINE_SERVER_STATUS_JSON_H

#include <stdbool.h>

#include "base/buf.h"

struct engine;
struct session;

void session_text(struct session *session, struct buf *to);

/* The same facts and the use of resources, now and at the most: null where it is not known. It
 * asks the kernel. */
void session_text_stats(struct session *session, struct buf *to);

/* An array of all sessions. Without `has_stats` the kernel is not asked. */
void session_text_all(struct engine *engine, bool has_stats, struct buf *to);
void session_text_execs(const struct session *session, struct buf *to);
void session_text_processes(struct session *session, struct buf *to);

#endif
