/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of a record that the files of this directory share: the observer of a session, and the
 * steps that are not complete yet. step.c writes the fields of a step, command_steps.c and
 * op_steps.c the steps of commands and operations, notes.c those that clients report; record.c
 * observes the session.
 */
#ifndef ROLLBOX_ENGINE_RECORD_RECORDING_H
#define ROLLBOX_ENGINE_RECORD_RECORDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/list.h"
#include "base/wire.h"
#include "engine/command/command.h"
#include "engine/files/layer_chain.h"
#include "engine/record/recorder.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "record/record.h"

#define STEP_FDS 3u

#define EARLY_BYTES                                                                                \
    16384u /* of a request whose part of its step is made before its end is known: it is in memory \
              twice then */

#define MAX_ENDED_STEPS 1024 /* commands that have ended and that a note may name */

/* A command that is a step. */
struct command_step {
    struct list node;      /* recording->commands */
    const struct run *run; /* NULL: it has ended */
    unsigned char operation[sizeof((struct run *)0)->operation];
    size_t operation_length;
    uint64_t step, begun_at;
    uint64_t end_sequence; /* it was the n-th to end */
    int stdin_copy;        /* -EBADF: its input is not data */
    struct buf action;     /* once it has been sent; empty: it is made at its end */
};

/* An operation that is a step. */
struct op_step {
    struct list node; /* recording->ops */
    const struct op *op;
    uint64_t step, begun_at;
    uint64_t after; /* automatic: the step of the command that ended; 0: it was none */
    char asked[sizeof((struct snapshot *)0)->id], name[SESSION_NAME_MAX + 1];
};

/* The observer of a session that is recorded, or has rules for the records of its forks. */
struct recording {
    struct session_observer observer;
    struct session *session;
    struct record *record; /* NULL: it is not recorded */
    struct buf rules;      /* by which its record is made, or that of the nearest it was forked from
                              which is recorded: fields as of RECORD */
    uint64_t parent_step;  /* of a fork: the step of its parent; 0 */
    uint64_t ancestor;     /* the nearest recorded session that it was forked from; 0 */
    uint64_t after;        /* the step of the command that ended last; 0: it was none */
    struct list commands;  /* struct command_step: those that have not ended */
    struct list ended;     /* likewise: those that have, the latest last */
    unsigned n_ended;
    struct list ops; /* struct op_step */
};

static inline struct recording *recording_of(const struct session_observer *observer) {
    return container_of(observer, struct recording, observer);
}

/* step.c */
void step_add_word(struct buf *to, const char *key, const char *word);
void step_add_text(struct buf *to, const char *key, const char *text);
void step_add_value(struct buf *to, const char *key, enum record_tag tag, uint64_t value);
void step_add_none(struct buf *to, const char *key);
void step_add_seed_as(struct buf *to, const char *key, uint64_t seed);
void step_open(struct buf *to, const char *key, enum record_tag tag);
void step_close(struct buf *to);
void step_begin(const struct record *record, struct buf *to, uint64_t step, uint64_t begun_at);
void step_add_error(struct buf *to, enum rollbox_error_code code);
void step_add_done(struct buf *to, const struct rollbox_error *error);
void step_end(
    struct record *record, struct buf *message, const int *fds, size_t n_fds, uint64_t bytes);
bool step_next_field(const struct run *run, size_t *position, struct wire_field *field);
void step_add_status(struct buf *to, const char *key, bool has, int status);
void step_add_known(struct buf *to, const char *key, uint64_t value);

/* command_steps.c */
struct command_step *command_step_find(const struct recording *recording, const struct run *run);
void command_step_free(struct command_step *command);
void command_step_started(struct session_observer *observer, struct run *run);
void command_step_sent(struct session_observer *observer, struct run *run);
void command_step_ended(struct session_observer *observer, struct run *run);
bool command_step_is_shell(const struct run *run);

/* op_steps.c */
struct op_step *op_step_find(const struct recording *recording, const struct op *op);
void op_step_free(struct op_step *step);
struct op_step *op_step_number(struct recording *recording, const struct op *op);
void op_step_started(struct session_observer *observer, struct op *op);
void op_step_add_seed(const struct session *session, struct buf *to);
void op_step_tell(struct record *record, const struct op_step *step, const struct op *op,
    const struct rollbox_error *error);

/* record.c */
struct recording *recording_find(const struct session *session);
struct record *recording_record(const struct session *session);
void recording_tell_changes(struct recording *recording, uint64_t after);

#endif
