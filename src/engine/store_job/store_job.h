/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of rollbox-store.
 *
 * Work that walks over many files or writes to the host is done by a process of its own. A job is
 * one such process: it gets its description as JSON on its standard input, further descriptors from
 * STORE_JOB_FIRST_FD on, and answers on its standard output (docs/reference/
 * store-jobs.md). This module runs the process and reads its answer. It does not know the contents.
 */
#ifndef ROLLBOX_ENGINE_STORE_JOB_STORE_JOB_H
#define ROLLBOX_ENGINE_STORE_JOB_STORE_JOB_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"

struct engine;
struct store_job;

#define STORE_JOB_FIRST_FD 3 /* the first descriptor after the standard streams */

/* The functions of a job's user. */
struct store_job_user {
    /* The process has ended. The answer is the callee's; `error` is NULL if the job was done.
     * `was_abandoned`: store_job_free or store_job_cancel came before. */
    void (*done)(
        void *data, struct buf *take_answer, const struct rollbox_error *error, bool was_abandoned);
    /* The last call, also of a job that was killed. */
    void (*release)(void *data);
};

struct store_job_request {
    const char *words[6]; /* of the command line, after the program's name; ended by NULL */
    const json_t *job;    /* the description */
    int *take_fds;        /* from STORE_JOB_FIRST_FD on */
    size_t n_fds;
    int error_number; /* of a descriptor that could not be opened; 0: all were */
    /* A kill would leave half-written files, so the job may finish without a client. */
    bool finishes_alone;
    bool has_many_users; /* the files are of a sandbox that many_ids_has() */
    const struct store_job_user *user;
    void *data;
};

/* On failure no function of the user is called. 0 or -errno. */
int store_job_start(struct engine *engine, const struct store_job_request *request,
    struct store_job **ret_job, struct rollbox_error *error);

/* Nobody waits for the job any more. It is killed, unless it finishes alone. Returns NULL. */
struct store_job *store_job_free(struct store_job *job);

/* The same, but it is killed in any case, and `done` is called when it is dead. */
void store_job_cancel(struct store_job *take_job);

/* Makes a channel for descriptors that the job sends, and adds its end to the job's. 0 or -errno.
 */
int store_job_add_channel(int *ret_channel, int *fds, size_t *n_fds);

/* Runs rollbox-store with these words, the program's name first, and waits for its end: for what
 * happens once in the life of a store. 0, or the error that it has reported. */
int store_job_run(const struct engine *engine, char *const *argv, struct rollbox_error *error);

/* Is rollbox-store there? 0, or the error. */
int store_job_check_program(const struct engine *engine, struct rollbox_error *error);

/* Opens the store of this user. */
int store_job_open_store(const struct engine *engine, int *ret_store, struct rollbox_error *error);

/* Starts to empty the store's trash. Nobody waits for it. */
void store_job_forget(const struct engine *engine);

/* Starts to remove what commits have left beside the directory `path` and nobody has locked.
 * Returns the process, or -errno. */
pid_t store_job_sweep(const struct engine *engine, const char *path);

#endif
