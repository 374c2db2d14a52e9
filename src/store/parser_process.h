/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child process that parses untrusted data and reports in JSON. The parent trusts the report no
 * more than the data.
 *
 * The child keeps its files open until parser_process_end, so that the parent can lock the objects
 * that it found before another process removes them.
 */
#ifndef ROLLBOX_STORE_WORKER_H
#define ROLLBOX_STORE_WORKER_H

#include <errno.h>
#include <jansson.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

struct parser_process {
    pid_t pid;
    int go;
};

#define WORKER_NONE ((struct parser_process){ .pid = -1, .go = -EBADF })

/* Runs `work` in a child until it has reported. Its error is the caller's. parser_process_end in
 * any case. */
int parser_process_start(
    int (*work)(void *context, json_t **ret_report, struct rollbox_error *error), void *context,
    struct parser_process *ret_worker, json_t **ret_report, struct rollbox_error *error);
void parser_process_end(struct parser_process *worker);

#endif
