/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images for those who have no base.
 *
 * A snapshot or fork of what runs may leave a state whose image is an addition (dirty_tracking.h).
 * Sandboxes are made of it as it is; but what is written to the store, exported or described is an
 * image by itself, and so is what is wanted often. It is put together when that is asked for, by a
 * fork of ours, as a guest chose what is in it. The addition stays: who is being restored from it
 * needs its base.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/op.h"
#include "dump/dump.h"

#define MANY_FORKS                                                                                 \
    16u /* of one addition: that each amends itself costs more than to put it together */

struct flatten_job {
    struct op *op; /* which waits for it, and has a reference to the state; NULL: it is the state's
                      own (live->making) */
    struct checkpoint *checkpoint;
    struct profile *profile;
    int socket, image;
    struct loop_source source;
};

struct flatten_job *flatten_free(struct flatten_job *flatten_job) {
    if (!flatten_job)
        return NULL;
    loop_remove(flatten_job->checkpoint->engine->loop, &flatten_job->source);
    close_fd(&flatten_job->socket);
    close_fd(&flatten_job->image);
    if (flatten_job->op)
        checkpoint_put(flatten_job->checkpoint);
    free(flatten_job);
    return NULL;
}

/* 0: the work does without. */
static int refuse_flatten(struct op *op, int r) {
    struct rollbox_error error;

    op->flatten_job = flatten_free(op->flatten_job);
    if (op->verb == VERB_FORK) {
        op->fork.was_not_flattened = true;
        return 0;
    }
    if (r == -ECHILD)
        error_set(&error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "snapshot",
            "the process that put the image of the processes together was killed from outside; try "
            "again");
    else
        error_set(&error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "snapshot",
            "the image of the processes cannot be put together: %s", strerror(-r));
    op_fail(op, &error);
    return r;
}

static void on_made(struct loop_source *source, uint32_t events) {
    struct flatten_job *flatten_job = container_of(source, struct flatten_job, source);
    struct checkpoint *checkpoint = flatten_job->checkpoint;
    struct op *op = flatten_job->op;
    int32_t said = -ECHILD;
    struct stat st;

    (void)events;
    if (recv(flatten_job->socket, &said, sizeof said, MSG_DONTWAIT) != sizeof said)
        said = -ECHILD;
    int r = said < 0 ? said : checkpoint_seal_image(&flatten_job->image);
    if (r < 0 && op) {
        if (refuse_flatten(op, r) == 0)
            (void)op_event(op, OP_EVENT_FLATTENED, NULL);
        return;
    }
    if (r == 0 && checkpoint->flat_image < 0 &&
        fstat(flatten_job->image, &st) == 0) { /* others may have asked for the same, and have it */
        checkpoint->flat_image = TAKE_FD(flatten_job->image);
        checkpoint->flat_bytes = (uint64_t)st.st_size;
    }
    if (!op) {
        checkpoint->n_uses = 0; /* what went wrong is tried again when it is wanted again */
        if (r == 0)
            dirty_tracking_start_zygote(
                checkpoint, flatten_job->profile); /* the next one finds it */
        checkpoint->making = flatten_free(flatten_job);
        return;
    }
    op->flatten_job = flatten_free(flatten_job);
    (void)op_event(op, OP_EVENT_FLATTENED, NULL);
}

static int start_flatten(struct flatten_job **to, struct op *op, struct checkpoint *checkpoint,
    struct profile *profile) {
    struct engine *engine = checkpoint->engine;
    struct flatten_job *flatten_job = *to = calloc(1, sizeof *flatten_job);
    const int base = checkpoint_image(checkpoint->parent);
    int pair[2] = { -EBADF, -EBADF };

    if (!flatten_job)
        return -ENOMEM;
    *flatten_job = (struct flatten_job){ .op = op,
        .checkpoint = op ? checkpoint_get(checkpoint) : checkpoint,
        .profile = profile,
        .socket = -EBADF,
        .image = checkpoint_new_image(profile) };
    int r = MIN(flatten_job->image, 0);
    if (r == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        r = -errno;
    if (r == 0) {
        const int fds[] = { checkpoint->image, base, flatten_job->image, pair[1] };

        flatten_job->socket = pair[0];
        r = spawn_fork("rollbox-whole", fds, ARRAY_SIZE(fds));
        if (r == 0) {
            const int32_t said = dump_flatten(checkpoint->image, base, flatten_job->image);

            close(
                flatten_job->image); /* nobody is to have a way to write to it when that is heard */
            _exit(send(pair[1], &said, sizeof said, MSG_NOSIGNAL) != sizeof said);
        }
    }
    close_fd(&pair[1]);
    return r < 0 ? r
                 : loop_add(
                       engine->loop, &flatten_job->source, flatten_job->socket, EPOLLIN, on_made);
}

static bool is_lacking(const struct checkpoint *checkpoint) {
    return checkpoint && checkpoint->parent && checkpoint->flat_image < 0;
}

static struct checkpoint *first_lacking(const struct snapshot_tree *tree) {
    list_for_each(at, &tree->snapshots) {
        struct checkpoint *checkpoint = container_of(at, struct snapshot, in_tree)->checkpoint;

        if (is_lacking(checkpoint))
            return checkpoint;
    }
    return NULL;
}

/* An image by itself is needed of what is written to the store, described or tried, and is good to
 * have of what is for many. */
static const struct snapshot *wanted_whole(const struct op *op) {
    const struct session *session = op->session;
    const bool is_for_many = op->verb == VERB_FORK && op->from && !op->drops &&
                             op->fork.count >= MANY_FORKS && !op->fork.was_not_flattened;

    if (op->verb == VERB_SHOW || op->verb == VERB_VERIFY)
        return op->from ? op->from : snapshot_nearest_visible(session->at);
    if (is_for_many || op_is_live_export(op))
        return op->from ? op->from : session->at;
    return NULL;
}

/* The next that the work had better have. NULL: none. What is captured for it is one by itself. */
static struct checkpoint *next_lacking(const struct op *op) {
    if (op->session->sleep)
        return NULL;
    if (op->verb ==
        VERB_HIBERNATE) /* all that it stands on and comes of, and most often all there are */
        return first_lacking(op->session->tree);
    const struct snapshot *snapshot = wanted_whole(op);
    return snapshot && is_lacking(snapshot->checkpoint) ? snapshot->checkpoint : NULL;
}

bool flatten_begin(struct op *op) {
    struct checkpoint *checkpoint = next_lacking(op);
    int r = checkpoint ? start_flatten(&op->flatten_job, op, checkpoint, op->session->profile) : 0;

    if (checkpoint && r == 0)
        op_wait(op, OP_WAIT_FLATTEN);
    return checkpoint && (r == 0 || refuse_flatten(op, r) < 0);
}

void flatten_later(struct checkpoint *checkpoint, struct profile *profile) {
    if (is_lacking(checkpoint) && !checkpoint->making &&
        start_flatten(&checkpoint->making, NULL, checkpoint, profile) < 0)
        checkpoint->making = flatten_free(checkpoint->making);
}
