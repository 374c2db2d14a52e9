/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch job: one line of JSON, checked and turned into what rollbox_start takes.
 * docs/reference/cli.md documents the fields. The job owns its JSON document; the options' strings
 * point into it.
 */
#ifndef ROLLBOX_CLI_JOB_H
#define ROLLBOX_CLI_JOB_H

#include <jansson.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "base/list.h"

struct job {
    struct list of_batch; /* waiting for a retry, or finished */
    struct list of_order; /* among all that are not written yet, in the order of the jobs */
    struct batch *batch;
    char *id;    /* JSON text of the id, as in its row; "null" if the line has none */
    bool has_id; /* the id is valid: it identifies the row */
    uint64_t line;
    json_t *root;
    const json_t *policy; /* overrides; NULL: none */
    struct rollbox_run_options options;
    const char **argv;
    char **env;
    struct rollbox_file *files;
    unsigned attempts;
    int64_t not_before_ns; /* waiting for a retry: when */
    struct rollbox_run *run;
    struct rollbox_sandbox *sandbox; /* that it runs in, if it is recorded */
    char *row;                       /* the result row with its newline, once it exists */
    size_t row_length;
};

/* The JSON text of the line's id, for the caller to free: "null" if it has none that a job may
 * have; NULL when out of memory. */
char *job_id(const char *text, size_t length);

/* Always makes a job (NULL when out of memory). If the line is not a valid one *ret_error is filled
 * and the job is only good for an error row. */
struct job *job_new(
    const char *text, size_t length, uint64_t line, struct rollbox_error *ret_error);
struct job *job_free(struct job *job);

/* Makes job->row of a result. 0 or -ENOMEM. */
int job_set_row(struct job *job, const struct rollbox_result *result);

/* The same for a job that never came to a result. */
int job_set_error_row(struct job *job, const struct rollbox_error *error);

/* True for errors of the infrastructure, which may go away: the job is worth another try. */
bool job_error_is_transient(const struct rollbox_error *error);

#endif
