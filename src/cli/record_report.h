/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recorded jobs of a batch. Each is the only command of a session of its own, because only sessions
 * have trajectories. Creating such a session and ending its record each block for a millisecond or
 * two.
 */
#ifndef ROLLBOX_CLI_RECORDED_H
#define ROLLBOX_CLI_RECORDED_H

#include "cli/job.h"
#include "cli/options.h"

/* Is --record, with the place of an id in it, as it must be? 0, or an exit status after a line. */
int record_report_check(const struct options *options);

/* Starts the job as --record says: job->run and job->sandbox. 0; or negative with *error filled. */
int record_report_start(const struct options *options, struct rollbox_engine *engine,
    struct rollbox_plan *plan, struct job *job, struct rollbox_error *error);

/* The job's run has ended: ends its sandbox, if it has one. 0, or an exit status after a line if
 * the trajectory is not whole. */
int record_report_end(const struct options *options, struct job *job);

#endif
