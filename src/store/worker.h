/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child process that reads what nobody vouches for and reports in JSON; its parent believes it no more than its archive.
 *
 * The child stays, with what it has open, until worker_end: so that what it found can be locked before anybody removes it.
 */
#ifndef ROLLBOX_STORE_WORKER_H
#define ROLLBOX_STORE_WORKER_H

#include <errno.h>
#include <jansson.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

struct worker {
    pid_t pid;
    int go;
};

#define WORKER_NONE ((struct worker){ .pid = -1, .go = -EBADF })

/* Runs `work` in a child until it has reported. Its error is the caller's. worker_end in any case. */
int worker_start(int (*work)(void *context, json_t **ret_report, struct rollbox_error *error), void *context, struct worker *ret_worker, json_t **ret_report, struct rollbox_error *error);
void worker_end(struct worker *worker);

#endif
