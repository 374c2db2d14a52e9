/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of each record, and the recorder that writes them all. record.c fills the records, and
 * recorder.c sends them.
 */
#ifndef ROLLBOX_ENGINE_RECORD_RECORDER_H
#define ROLLBOX_ENGINE_RECORD_RECORDER_H

#include "engine/command/command.h"

struct rollbox_error;
struct recording;

struct recorder {
    struct engine *engine;
    struct loop_source source;
    struct sender sender; /* of struct posted */
    int fd, bell;
    struct loop_timer ring; /* the bell, after all other present work: a client that waits for a
                               command's end does not wait for the recorder to wake */
    struct list records;
    uint64_t posted_bytes;
    unsigned posted_fds;
    uint64_t heard; /* the number of its messages, which shows that it works */
};

enum record_phase {
    RECORD_IS_OPEN,
    RECORD_IS_ENDING, /* no step follows; the recorder has not written all yet */
    RECORD_IS_DONE,   /* nothing of it will be written any more */
};

/* The parts of a record besides its steps. */
enum record_wants {
    RECORD_WANTS_SECRETS = 1 << 0, /* the names of the redaction rules */
    RECORD_WANTS_FILES = 1 << 1,
    RECORD_WANTS_CHANGES = 1 << 2,
    RECORD_WANTS_ENV_VALUES = 1 << 3,
};

struct record {
    struct list node; /* recorder->records */
    struct engine *engine;
    struct recording *recording;         /* of its session (record.c); NULL: that is gone */
    void (*over)(struct record *record); /* it is done; may free it. Or NULL */
    uint64_t number, next_step, ended, written;
    uint64_t heard_before;
    uint64_t posted_bytes; /* of the messages that wait for the recorder */
    unsigned posted_fds;
    int64_t patient_until;
    char id[48];
    enum record_phase phase;
    unsigned wants;   /* enum record_wants */
    bool is_given_up; /* its end is not waited for any longer */
    int error;
    char message[160];
    struct loop_timer patience;
};

int recorder_start(struct engine *engine, struct rollbox_error *error);
void recorder_post(struct record *record, struct buf *message, const int *fds, size_t n_fds,
    uint64_t bytes); /* bytes: of the files behind the descriptors */
void recorder_leave(struct recorder
        *recorder); /* it continues alone; it gets the remaining steps now, if it takes them soon */
void recorder_fail(struct record *record, int error_number,
    const char *message); /* unless it has failed already */

#endif
