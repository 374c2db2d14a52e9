/* SPDX-License-Identifier: Apache-2.0 */
/* A fork of the engine reads both images, as a guest chose their contents. */
#include "engine/checkpoint/flatten.h"

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
#include "dump/dump.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/dirty_tracking.h"
#include "engine/core/context.h"
#include "engine/core/spawn.h"
#include "loop/loop.h"

struct flatten_job {
    struct flatten_handle handle;
    flatten_done
        done; /* of the caller, which has a reference; NULL: the job is the checkpoint's own */
    void *data;
    struct checkpoint *checkpoint; /* a reference for `done` */
    struct profile *profile;
    int socket, image;
    struct loop_source source;
};

struct flatten_job *flatten_free(struct flatten_job *job) {
    if (!job)
        return NULL;
    loop_remove(job->checkpoint->engine->loop, &job->source);
    close_fd(&job->socket);
    close_fd(&job->image);
    if (job->done)
        checkpoint_put(job->checkpoint);
    free(job);
    return NULL;
}

/* Another job may have made the same image meanwhile. */
static void keep_image(struct flatten_job *job) {
    struct checkpoint *checkpoint = job->checkpoint;
    struct stat st;

    if (checkpoint->flat.image >= 0 || fstat(job->image, &st) < 0)
        return;
    checkpoint->flat.image = TAKE_FD(job->image);
    checkpoint->flat.bytes = (uint64_t)st.st_size;
}

static void on_made(struct loop_source *source, uint32_t events) {
    struct flatten_job *job = container_of(source, struct flatten_job, source);
    struct checkpoint *checkpoint = job->checkpoint;
    const flatten_done done = job->done;
    void *data = job->data;
    int32_t said = -ECHILD;

    (void)events;
    if (recv(job->socket, &said, sizeof said, MSG_DONTWAIT) != sizeof said)
        said = -ECHILD;
    int r = said < 0 ? said : checkpoint_seal_image(&job->image);
    if (r == 0)
        keep_image(job);
    if (done) {
        flatten_free(job);
        done(data, r);
        return;
    }
    checkpoint->demand.n_uses = 0; /* an error is tried again when the image is wanted again */
    checkpoint->flat.job = NULL;
    if (r == 0)
        dirty_tracking_start_zygote(checkpoint, job->profile); /* the next fork finds it */
    flatten_free(job);
}

int flatten_start(struct checkpoint *checkpoint, struct profile *profile, flatten_done done,
    void *data, struct flatten_job **ret_job) {
    const int base = checkpoint_image(checkpoint->parent);
    struct flatten_job *job = calloc(1, sizeof *job);
    int pair[2] = { -EBADF, -EBADF };

    if (!job)
        return -ENOMEM;
    *job = (struct flatten_job){ .done = done,
        .data = data,
        .checkpoint = done ? checkpoint_get(checkpoint) : checkpoint,
        .profile = profile,
        .socket = -EBADF,
        .image = checkpoint_new_image(profile) };
    int r = MIN(job->image, 0);
    if (r == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        r = -errno;
    if (r == 0) {
        const int fds[] = { checkpoint->image, base, job->image, pair[1] };

        job->socket = pair[0];
        r = spawn_fork("rollbox-whole", fds, ARRAY_SIZE(fds));
        if (r == 0) {
            const int32_t said = dump_flatten(checkpoint->image, base, job->image);

            close(job->image); /* the engine may seal the image when it reads the message */
            _exit(send(pair[1], &said, sizeof said, MSG_NOSIGNAL) != sizeof said);
        }
    }
    close_fd(&pair[1]);
    if (r >= 0)
        r = loop_add(checkpoint->engine->loop, &job->source, job->socket, EPOLLIN, on_made);
    if (r < 0) {
        flatten_free(job);
        return r;
    }
    *ret_job = job;
    return 0;
}

bool flatten_is_lacking(const struct checkpoint *checkpoint) {
    return checkpoint && checkpoint->parent && checkpoint->flat.image < 0;
}

static void cancel_own(struct checkpoint *checkpoint) {
    flatten_free(container_of(checkpoint->flat.job, struct flatten_job, handle));
    checkpoint->flat.job = NULL;
}

void flatten_later(struct checkpoint *checkpoint, struct profile *profile) {
    struct flatten_job *job;

    if (!flatten_is_lacking(checkpoint) || checkpoint->flat.job ||
        flatten_start(checkpoint, profile, NULL, NULL, &job) < 0)
        return;
    job->handle.cancel = cancel_own;
    checkpoint->flat.job = &job->handle;
}
