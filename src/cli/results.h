/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The results of a batch: a file of rows that survives a kill at any moment.
 *
 * A row is written by one write and ends in a newline, so only the last line can be torn; it is cut
 * off when the file is opened again. A job with a row is not run again, unless the row is an error.
 * Error rows are removed at opening, because their jobs are tried again and each id has only one
 * row. A file with any line that is not a result row is refused, so that a wrong -o destroys
 * nothing. A lock keeps a second batch away.
 */
#ifndef ROLLBOX_CLI_RESULTS_H
#define ROLLBOX_CLI_RESULTS_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/id_set.h"
#include "cli/options.h"

struct results {
    const char *path; /* borrowed */
    int fd;
    int locked_fd; /* the file that was replaced at opening, still locked; -EBADF: none */
    bool regular;
    struct id_set done; /* of the rows that stay */
};

/* "-" is standard output. Only regular files are resumed. 0, or an exit status after a line on
 * standard error. */
int results_open(const struct options *options, const char *path, struct results *ret_results);

/* Appends one row, newline included. 0 or -errno. */
int results_write(struct results *results, const char *row, size_t length);

/* Has the rows on disk. 0 or -errno. */
int results_sync(struct results *results);
void results_close(struct results *results);

#endif
