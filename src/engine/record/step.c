/* SPDX-License-Identifier: Apache-2.0 */
/* The fields of a step, as the recorder reads them. */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "engine/command/command.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/record/record.h"
#include "engine/network/gateway.h"
#include "engine/record/network_step.h"
#include "engine/record/recorder.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "engine/snapshot/layer.h"
#include "record/record.h"
#include "engine/record/recording.h"

void step_add_word(struct buf *to, const char *key, const char *word) {
    wire_add_text(to, RECORD_KEY, key);
    if (word)
        wire_add_text(to, RECORD_WORD, word);
    else
        wire_add(to, RECORD_NONE, NULL, 0);
}

void step_add_text(struct buf *to, const char *key, const char *text) {
    wire_add_text(to, RECORD_KEY, key);
    if (text)
        wire_add(to, RECORD_TEXT, text, strlen(text));
    else
        wire_add(to, RECORD_NONE, NULL, 0);
}

void step_add_value(struct buf *to, const char *key, enum record_tag tag, uint64_t value) {
    wire_add_text(to, RECORD_KEY, key);
    wire_add_u64(to, tag, value);
}

void step_add_none(struct buf *to, const char *key) {
    step_add_word(to, key, NULL);
}

/* From 2^63 on as policies have it, for JSON's integers may end there. */
void step_add_seed_as(struct buf *to, const char *key, uint64_t seed) {
    char digits[24];

    snprintf(digits, sizeof digits, "%llu", (unsigned long long)seed);
    if (seed > INT64_MAX)
        step_add_word(to, key, digits);
    else
        step_add_value(to, key, RECORD_NUMBER, seed);
}

void step_open(struct buf *to, const char *key, enum record_tag tag) {
    if (key)
        wire_add_text(to, RECORD_KEY, key);
    wire_add(to, tag, NULL, 0);
}

void step_close(struct buf *to) {
    wire_add(to, RECORD_UP, NULL, 0);
}

void step_begin(const struct record *record, struct buf *to, uint64_t step, uint64_t begun_at) {
    wire_begin(to, RECORD_STEP, record->number);
    step_add_value(to, "step", RECORD_NUMBER, step);
    step_add_value(to, "begun_at", RECORD_NUMBER, begun_at);
    step_add_value(to, "time_ns", RECORD_NUMBER, (uint64_t)clock_real_ns());
}

void step_add_error(struct buf *to, enum rollbox_error_code code) {
    step_open(to, "error", RECORD_OBJECT);
    step_add_word(to, "code", rollbox_error_name(code));
    step_close(to);
}

/* The observation of a step without a result of its own. */
void step_add_done(struct buf *to, const struct rollbox_error *error) {
    step_open(to, "observation", RECORD_OBJECT);
    step_add_word(to, "outcome", error ? "error" : "done");
    if (error)
        step_add_error(to, error->code);
    step_close(to);
    if (error)
        step_add_text(to, "message", error->message);
}

void step_end(
    struct record *record, struct buf *message, const int *fds, size_t n_fds, uint64_t bytes) {
    record->ended++;
    if (network_step_waits(record) && network_step_hold(record, 0, message, fds, n_fds, bytes))
        return;
    recorder_post(record, message, fds, n_fds, bytes);
}

bool step_next_field(const struct run *run, size_t *position, struct wire_field *field) {
    return run->given.message.length > sizeof(struct wire_header) &&
           wire_next(run->given.message.data + sizeof(struct wire_header),
               run->given.message.length - sizeof(struct wire_header), position, field) > 0;
}

void step_add_status(struct buf *to, const char *key, bool has, int status) {
    if (has)
        step_add_value(to, key, RECORD_NUMBER, (uint64_t)status);
    else
        step_add_none(to, key);
}

void step_add_known(struct buf *to, const char *key, uint64_t value) {
    if (value == UINT64_MAX)
        step_add_none(to, key);
    else
        step_add_value(to, key, RECORD_NUMBER, value);
}

void record_name(struct engine *engine, uint64_t number, char *ret_id, size_t size) {
    /* So that sandboxes of several engines, or of one that was started again, are not mistaken for
     * each other. */
    while (!engine->record.identity &&
           getrandom(&engine->record.identity, sizeof engine->record.identity, 0) !=
               sizeof engine->record.identity)
        ;
    snprintf(ret_id, size, "%016llx-%llu", (unsigned long long)engine->record.identity,
        (unsigned long long)number);
}
