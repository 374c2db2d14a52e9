/* SPDX-License-Identifier: Apache-2.0 */
/* Replays a trajectory from a file to another. */
#ifndef ROLLBOX_CLI_REPLAY_H
#define ROLLBOX_CLI_REPLAY_H

#include "cli/options.h"
#include "record/read.h"

struct rollbox_engine;

/* Opens a trajectory and reads its header. 0 and the caller's descriptor and reader; or an exit
 * status after a line. */
int replay_read(
    const struct options *options, const char *path, int *ret_fd, struct reader *ret_reader);

/* Replays all steps of `reader`, after the steps of the parents' records (--parent), and records
 * them to `fd`. 0 and their number; or an exit status after a line. `path` as of record_end. With
 * `ret_contents`, also recorded_files_of the sandbox at its end, if the record describes files and
 * no secrets were redacted (else NULL). */
int replay_all(const struct options *options, struct rollbox_engine *engine, struct reader *reader,
    int fd, const char *path, json_t **ret_contents, uint64_t *ret_steps);

/* Reports irregularities of a trajectory on standard error: changed; and, if it was read to its
 * end, truncated or incomplete. Returns the number of lines. */
unsigned replay_warn(const struct options *options, const struct reader *reader);

#endif
