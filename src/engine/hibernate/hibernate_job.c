/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of rollbox-store on hibernated sessions: HIBERNATE, WAKE, an export with processes, and the
 * description of a hibernated sandbox.
 *
 * A HIBERNATE without a waiting client continues, and its files are removed afterwards.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/box/profile.h"
#include "engine/core/many_ids.h"
#include "engine/box/disk_upper.h"
#include "engine/files/layer_chain.h"
#include "engine/hibernate/hibernate.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "engine/store_job/store_job.h"
#include "store/store.h"

struct hibernate_job {
    struct op *op; /* not used once the job was abandoned */
    struct engine *engine;
    enum protocol_verb verb;
    struct layer_hold layers;
    int channel;                       /* of HIBERNATE: a socket on which the lock comes; -EBADF */
    char id[HIBERNATED_ID_LENGTH + 1]; /* of HIBERNATE: the record that it writes */
};

/* The lock on the record, or -EBADF. */
static int receive_lock(const struct hibernate_job *job) {
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds = 0;
    char byte;

    if (job->channel < 0 || fd_receive(job->channel, &byte, 1, fds, &n_fds) <= 0)
        return -EBADF;
    for (size_t i = 1; i < n_fds; i++)
        close(fds[i]);
    return n_fds ? fds[0] : -EBADF;
}

static void on_written_or_read(const struct hibernate_job *job, struct op *op,
    struct buf *take_answer, const struct rollbox_error *error) {
    auto_close int lock = receive_lock(job);
    json_t *answer = !error && take_answer->length
                         ? json_loadb(take_answer->data, take_answer->length, 0, NULL)
                         : NULL;

    buf_done(take_answer);
    if (job->verb == VERB_HIBERNATE && (error || !op))
        hibernate_abandoned(job->engine, job->id);
    if (op)
        (void)op_event(op, OP_EVENT_STORE_JOB_DONE,
            &(struct op_message){ .error = error, .answer = answer, .take_lock = TAKE_FD(lock) });
    json_decref(answer);
}

static void on_done(
    void *data, struct buf *take_answer, const struct rollbox_error *error, bool was_abandoned) {
    const struct hibernate_job *job = data;
    struct op *op = was_abandoned ? NULL : job->op;

    if (op)
        op->store_job = NULL;
    if (job->verb == VERB_HIBERNATE || job->verb == VERB_WAKE)
        on_written_or_read(job, op, take_answer, error);
    else
        op_store_job_done(op, take_answer, error);
}

static void release_job(void *data) {
    struct hibernate_job *job = data;

    close_fd(&job->channel);
    layer_hold_done(&job->layers);
    free(job);
}

static struct hibernate_job *hibernate_job_new(struct op *op, struct rollbox_error *error) {
    struct hibernate_job *job = calloc(1, sizeof *job);

    if (job) {
        *job = (struct hibernate_job){
            .op = op, .engine = op->session->engine, .verb = op->verb, .channel = -EBADF
        };
        if (op->verb == VERB_HIBERNATE)
            snprintf(job->id, sizeof job->id, "%s", op->hibernate.becoming->id);
        if (layer_hold_tree(&job->layers, op->session->files.tree) == 0)
            return job;
        release_job(job);
    }
    (void)hibernate_no_memory(error, "run");
    return NULL;
}

int hibernate_job_start(struct op *op, const char *command, json_t *description, const int *fds,
    size_t n_fds, struct rollbox_error *error) {
    static const struct store_job_user user = { on_done, release_job };
    auto_free int *all = calloc(n_fds + 2, sizeof *all);
    auto_free char *store = NULL;
    size_t n = n_fds;
    int r = store_job_check_program(op->session->engine, error);

    if (r == 0)
        r = store_default_path(&store, error);
    if (r < 0)
        return r;
    if (!all || !description ||
        json_object_set_new(
            description, "owner", json_integer((json_int_t)(STORE_JOB_FIRST_FD + n_fds))) < 0)
        return hibernate_no_memory(error, "run");
    struct hibernate_job *job = hibernate_job_new(op, error);
    if (!job)
        return -ENOMEM;
    for (size_t i = 0; i < n_fds; i++)
        all[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, STORE_JOB_FIRST_FD);
    if (op->verb == VERB_HIBERNATE)
        r = store_job_add_channel(&job->channel, all, &n);
    if ((all[n] = disk_upper_lend(job->engine)) >= 0)
        n++;
    r = store_job_start(job->engine,
        &(struct store_job_request){ .words = { command, "--json", "--store", store },
            .job = description,
            .take_fds = all,
            .n_fds = n,
            .error_number = -r,
            .finishes_alone = op->verb == VERB_HIBERNATE,
            .has_many_users = many_ids_has(op->session->profile->plan),
            .user = &user,
            .data = job },
        &op->store_job, error);
    if (r < 0)
        release_job(job);
    else
        op_wait(op, OP_WAIT_STORE_JOB);
    return r;
}

void hibernate_job_give_up(struct op *op) {
    store_job_cancel(TAKE_PTR(op->store_job));
}
