/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the first difference of two histories: the step, the part of the step, the byte, and a
 * guess at the cause. */
#ifndef ROLLBOX_RECORD_COMPARE_H
#define ROLLBOX_RECORD_COMPARE_H

#include "record/read.h"

struct divergence {
    uint64_t step;
    char kind[32];   /* of the step's action; plain characters, as in `where` */
    char where[128]; /* "stdout", "exit_code", "action.argv[1]", ... */
    struct buf path; /* the file that differs, as JSON; empty: none */
    int64_t offset;  /* the first different byte; -1: the content is not text, or differs after the
                        part that was kept */
    int bytes[2];    /* the byte of each there, 0 to 255; -1: the content has ended */
    const json_t *header; /* borrowed, of the first; NULL: not known */
    struct buf values[2]; /* a short excerpt of each there, as JSON */
    const char *source;   /* "time", "randomness", "pid", "order", "network", "unknown": a guess */
    const char *why;      /* the data for the guess */
};

/* 1: *ret_divergence is filled, for divergence_done; 0: the steps are equal; -ENOMEM. Either may be
 * NULL: it is not there. */
int compare_steps(const struct step *a, const struct step *b, struct divergence *ret_divergence);
/* Is there a content of which nothing was kept, not its digest either? Of that equal steps may
 * differ. */
bool compare_is_partial(const struct step *step);
void divergence_done(struct divergence *divergence);

#endif
