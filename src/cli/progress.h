/* SPDX-License-Identifier: Apache-2.0 */
/* The progress of a batch: always counted, drawn as a bar on standard error if that is a terminal,
 * and summarised in one line (or JSON) at the end. */
#ifndef ROLLBOX_CLI_PROGRESS_H
#define ROLLBOX_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#define PROGRESS_OUTCOMES (ROLLBOX_OUTCOME_ERROR + 1)
#define PROGRESS_TICK_MS 100

struct progress {
    bool bar;
    bool drawn; /* a bar is on the terminal's current line */
    int64_t started_ns, drawn_ns;
    uint64_t total;   /* jobs in all; 0: not known */
    uint64_t skipped; /* their rows were there already */
    uint64_t retried;
    uint64_t outcomes[PROGRESS_OUTCOMES];
};

void progress_init(struct progress *progress, bool bar);
uint64_t progress_done(const struct progress *progress);

/* Draws, at most once a tick. */
void progress_draw(struct progress *progress);

/* Takes the bar away, so that something else can be printed. */
void progress_clear(struct progress *progress);

/* The summary: a line on standard error, or JSON on the given stream. */
void progress_summary(struct progress *progress, bool interrupted);
void progress_json(const struct progress *progress, bool interrupted, int fd);

#endif
