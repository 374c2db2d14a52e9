/* SPDX-License-Identifier: Apache-2.0 */
/* Tells what a build does, on standard error, in the form that BuildKit's users know. */
#ifndef ROLLBOX_BUILD_PROGRESS_H
#define ROLLBOX_BUILD_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

enum progress_form {
    PROGRESS_AUTO,
    PROGRESS_PLAIN,
    PROGRESS_TTY,
    PROGRESS_JSON,
    PROGRESS_QUIET,
};

struct progress {
    enum progress_form form;
    unsigned step; /* the current one, from 1 */
    int64_t began_ns;
    char *title;
    struct buf line; /* the output that has no end of line yet */
    bool has_output;
};

void progress_init(struct progress *progress, enum progress_form form);
void progress_done(struct progress *progress);

void progress_begin(struct progress *progress, const char *title);
/* Output of the step's command, in any portions. */
void progress_output(struct progress *progress, const char *data, size_t length);
/* The end of the step: "CACHED", "DONE", "ERROR". */
void progress_end(struct progress *progress, const char *state);
__attribute__((format(printf, 2, 3))) void progress_note(
    struct progress *progress, const char *format, ...);

#endif
