/* SPDX-License-Identifier: Apache-2.0 */
/* Names of verbs and counters of their use, for logs and the engine's status. */
#ifndef ROLLBOX_ENGINE_CORE_VERB_NAMES_H
#define ROLLBOX_ENGINE_CORE_VERB_NAMES_H

#include "engine/protocol.h"

struct buf;

/* The name of a verb. Of a number that is none: "?". */
const char *verb_name(enum protocol_verb verb);

void verb_count_request(enum protocol_verb verb);
/* A request that was refused, or an operation that failed after it had been accepted. */
void verb_count_failure(enum protocol_verb verb);

/* Requests and errors of each verb since the engine's start, as a member of a JSON object. */
void verbs_status(struct buf *to);

#endif
