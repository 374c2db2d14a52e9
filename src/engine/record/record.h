/* SPDX-License-Identifier: Apache-2.0 */
/* Trajectories. The record observes the sessions that are recorded (session_events.h). */
#ifndef ROLLBOX_ENGINE_RECORD_RECORD_H
#define ROLLBOX_ENGINE_RECORD_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "base/wire.h"

struct engine;
struct session;

void record_init(void);
int record_begin(struct session *session, struct wire_message *from, struct buf *json,
    struct rollbox_error *error); /* VERB_RECORD */
int record_note(struct session *session, struct wire_message *from,
    struct rollbox_error *error); /* VERB_NOTE */
void record_name(struct engine *engine, uint64_t number, char *ret_id,
    size_t size); /* a session's number as an id that no other has */
void record_finish(struct engine *engine);

#endif
