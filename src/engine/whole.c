/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images for those who have no base.
 *
 * A fork of what runs may leave a state whose image is an addition (tracking.h). Sandboxes are made of it as it is; but what is written to the store, exported or described is an image by itself. It is put together when that is asked for, by a fork of ours, as a guest chose
 * what is in it. The addition stays: who is being restored from it needs its base.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/session.h"
#include "snapshot/capture.h"

struct whole {
    struct work *work;
    struct live *live;          /* a reference */
    int socket, image;
    struct loop_source source;
};

struct whole *whole_free(struct whole *whole) {
    if (!whole)
        return NULL;
    loop_remove(whole->live->engine->loop, &whole->source);
    close_fd(&whole->socket);
    close_fd(&whole->image);
    live_put(whole->live);
    free(whole);
    return NULL;
}

static int refuse(struct work *work, int r) {
    struct rollbox_error error;

    work->whole = whole_free(work->whole);
    if (r == -ECHILD)
        error_set(&error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "snapshot", "the process that put the image of the processes together was killed from outside; try again");
    else
        error_set(&error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "snapshot", "the image of the processes cannot be put together: %s", strerror(-r));
    work_fail(work, &error);
    return r;
}

static void on_made(struct loop_source *source, uint32_t events) {
    struct whole *whole = container_of(source, struct whole, source);
    struct work *work = whole->work;
    int32_t said = -ECHILD;

    (void)events;
    if (recv(whole->socket, &said, sizeof said, MSG_DONTWAIT) != sizeof said)
        said = -ECHILD;
    int r = said < 0 ? said : live_seal_image(&whole->image);
    if (r < 0) {
        refuse(work, r);
        return;
    }
    if (whole->live->whole < 0)         /* another sandbox of the family may have asked for the same, and has it */
        whole->live->whole = TAKE_FD(whole->image);
    work->whole = whole_free(whole);
    state_start(work);
}

static int start(struct work *work, struct live *live) {
    struct engine *engine = live->engine;
    int pair[2] = { -EBADF, -EBADF };

    work->whole = calloc(1, sizeof *work->whole);
    if (!work->whole)
        return -ENOMEM;
    *work->whole = (struct whole){ .work = work, .live = live_get(live), .socket = -EBADF, .image = live_new_image(work->session->program) };
    int r = MIN(work->whole->image, 0);
    if (r == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        r = -errno;
    if (r == 0) {
        const int fds[] = { live->image, live->base->image, work->whole->image, pair[1] };

        work->whole->socket = pair[0];
        r = spawn_fork("rollbox-whole", fds, ARRAY_SIZE(fds));
        if (r == 0) {
            const int32_t said = capture_make_whole(live->image, live->base->image, work->whole->image);

            close(work->whole->image);  /* nobody is to have a way to write to it when that is heard */
            _exit(send(pair[1], &said, sizeof said, MSG_NOSIGNAL) != sizeof said);
        }
    }
    close_fd(&pair[1]);
    return r < 0 ? r : loop_add(engine->loop, &work->whole->source, work->whole->socket, EPOLLIN, on_made);
}

/* What runs is told of its files alone, too. */
static bool wants_whole(const struct work *work) {
    return work->verb == VERB_HIBERNATE || work->verb == VERB_EXPORT || work->verb == VERB_SHOW || work->verb == VERB_VERIFY;
}

bool whole_begin(struct work *work) {
    if (!wants_whole(work) || work->session->sleep)
        return false;
    list_for_each(at, &work->session->family->nodes) {
        struct live *live = container_of(at, struct node, in_family)->live;

        if (!live || !live->base || live->whole >= 0)
            continue;
        int r = start(work, live);
        if (r < 0)
            refuse(work, r);
        return true;
    }
    return false;
}
