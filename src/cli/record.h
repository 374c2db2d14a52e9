/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of the commands about trajectories: the destination, the rules, and the final
 * state. */
#ifndef ROLLBOX_CLI_RECORD_H
#define ROLLBOX_CLI_RECORD_H

#include <jansson.h>

#include <rollbox/rollbox.h>

#include <jansson.h>

#include "cli/options.h"

/* Opens a file for a new trajectory: a new or empty one (with force, its content is lost), or a
 * pipe with a reader. 0 and the caller's descriptor; or negative with *error filled. */
int record_open_file(const char *path, bool force, int *ret_fd, struct rollbox_error *error);

/* The same as --force says; or an exit status after a line. */
int record_open(const struct options *options, const char *path, int *ret_fd);

/* Records the sandbox as --record says, if it does: in that file, "{name}" replaced by the
 * sandbox's name. 0; or negative with *error filled. */
int record_kept(
    const struct options *options, struct rollbox_sandbox *sandbox, struct rollbox_error *error);

/* Whether a trajectory under these options describes changed files: with --record-changes; with
 * verify --twice always, except with --no-files. */
bool record_wants_changes(const struct options *options);

/* Records the sandbox to `fd` as --keep, --max-record, --redact, --redact-env and --env-values say.
 */
int record_start(const struct options *options, struct rollbox_sandbox *sandbox, int fd,
    struct rollbox_error *error);

/* Ends the sandbox (consumed) and its record, if it has one: 0, or an exit status after a line if
 * the record is incomplete. `what` names the record in the message; it may be NULL. */
int record_end(
    const struct options *options, struct rollbox_sandbox *take_sandbox, const char *what);

/* Runs the guest's command of the options in a recorded sandbox of its own, with our streams if
 * `streams`. 0 and its exit status; or an exit status after a message. With `ret_contents`, also
 * recorded_files_of the sandbox at its end, if its files are compared and no secrets are redacted
 * (else NULL). */
int record_run(const struct options *options, struct rollbox_engine *engine, const char *policy,
    size_t policy_length, int fd, const char *path, bool streams, json_t **ret_contents,
    int *ret_status);

#endif
