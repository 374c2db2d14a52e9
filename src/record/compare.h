/* SPDX-License-Identifier: Apache-2.0 */
/* Where two histories part: the first step at which they differ, in what of it, at which byte, and
 * what may lie behind it. */
#ifndef ROLLBOX_RECORD_COMPARE_H
#define ROLLBOX_RECORD_COMPARE_H

#include "record/read.h"

struct divergence {
    uint64_t step;
    char kind[32];   /* of the step's action; plain characters, as in `where` */
    char where[128]; /* "stdout", "exit_code", "action.argv[1]", ... */
    struct buf path; /* of the file that differs, as JSON; empty: it is none */
    int64_t
        offset;   /* the first byte that differs; -1: it is no text, or lies beyond what was kept */
    int bytes[2]; /* what each has there, where there is one: 0 to 255; -1: it has ended */
    const json_t *header; /* borrowed, of the first; NULL: not known */
    struct buf values[2]; /* what each has there, a short excerpt, as JSON */
    const char *source;   /* "time", "randomness", "pid", "order", "network", "unknown": a guess */
    const char *why;      /* what the guess is made of */
};

/* 1: *ret_divergence is filled, for divergence_done; 0: the steps are equal; -ENOMEM. Either may be
 * NULL: it is not there. */
int compare_steps(const struct step *a, const struct step *b, struct divergence *ret_divergence);
/* Is there a content of which nothing was kept, not its digest either? Of that equal steps may
 * differ. */
bool compare_is_partial(const struct step *step);
void divergence_done(struct divergence *divergence);

#endif
