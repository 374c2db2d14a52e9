/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images for those who have no base.
 *
 * A snapshot or fork of what runs may leave a state whose image is an addition (tracking.h). Sandboxes are made of it as it is; but what is written to the store, exported or described is an image by itself, and so is what is wanted often. It is put together when that is
 * asked for, by a fork of ours, as a guest chose what is in it. The addition stays: who is being restored from it needs its base.
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
#include "engine/session.h"
#include "snapshot/capture.h"

#define MANY_FORKS 16u          /* of one addition: that each amends itself costs more than to put it together */

struct whole {
    struct work *work;          /* which waits for it, and has a reference to the state; NULL: it is the state's own (live->making) */
    struct live *live;
    struct program *program;
    int socket, image;
    struct loop_source source;
};

struct whole *whole_free(struct whole *whole) {
    if (!whole)
        return NULL;
    loop_remove(whole->live->engine->loop, &whole->source);
    close_fd(&whole->socket);
    close_fd(&whole->image);
    if (whole->work)
        live_put(whole->live);
    free(whole);
    return NULL;
}

/* 0: the work does without. */
static int refuse(struct work *work, int r) {
    struct rollbox_error error;

    work->whole = whole_free(work->whole);
    work->goes_without = work->verb == VERB_FORK;
    if (work->goes_without)
        return 0;
    if (r == -ECHILD)
        error_set(&error, ROLLBOX_ERR_SETUP_FAILED, ECHILD, "snapshot", "the process that put the image of the processes together was killed from outside; try again");
    else
        error_set(&error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "snapshot", "the image of the processes cannot be put together: %s", strerror(-r));
    work_fail(work, &error);
    return r;
}

static void on_made(struct loop_source *source, uint32_t events) {
    struct whole *whole = container_of(source, struct whole, source);
    struct live *live = whole->live;
    struct work *work = whole->work;
    int32_t said = -ECHILD;
    struct stat st;

    (void)events;
    if (recv(whole->socket, &said, sizeof said, MSG_DONTWAIT) != sizeof said)
        said = -ECHILD;
    int r = said < 0 ? said : live_seal_image(&whole->image);
    if (r < 0 && work) {
        if (refuse(work, r) == 0)
            state_start(work);
        return;
    }
    if (r == 0 && live->whole < 0 && fstat(whole->image, &st) == 0) {   /* others may have asked for the same, and have it */
        live->whole = TAKE_FD(whole->image);
        live->whole_bytes = (uint64_t)st.st_size;
    }
    if (!work) {
        live->n_uses = 0;       /* what went wrong is tried again when it is wanted again */
        if (r == 0)
            tracking_hold(live, whole->program);        /* the next one finds it */
        live->making = whole_free(whole);
        return;
    }
    work->whole = whole_free(whole);
    state_start(work);
}

static int start(struct whole **to, struct work *work, struct live *live, struct program *program) {
    struct engine *engine = live->engine;
    struct whole *whole = *to = calloc(1, sizeof *whole);
    const int base = live_image(live->base);
    int pair[2] = { -EBADF, -EBADF };

    if (!whole)
        return -ENOMEM;
    *whole = (struct whole){ .work = work, .live = work ? live_get(live) : live, .program = program, .socket = -EBADF, .image = live_new_image(program) };
    int r = MIN(whole->image, 0);
    if (r == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        r = -errno;
    if (r == 0) {
        const int fds[] = { live->image, base, whole->image, pair[1] };

        whole->socket = pair[0];
        r = spawn_fork("rollbox-whole", fds, ARRAY_SIZE(fds));
        if (r == 0) {
            const int32_t said = capture_make_whole(live->image, base, whole->image);

            close(whole->image);        /* nobody is to have a way to write to it when that is heard */
            _exit(send(pair[1], &said, sizeof said, MSG_NOSIGNAL) != sizeof said);
        }
    }
    close_fd(&pair[1]);
    return r < 0 ? r : loop_add(engine->loop, &whole->source, whole->socket, EPOLLIN, on_made);
}

static bool is_lacking(const struct live *live) {
    return live && live->base && live->whole < 0;
}

static struct live *first_lacking(const struct family *family) {
    list_for_each(at, &family->nodes) {
        struct live *live = container_of(at, struct node, in_family)->live;

        if (is_lacking(live))
            return live;
    }
    return NULL;
}

/* An image by itself is needed of what is written to the store, described or tried, and is good to have of what is for many. */
static const struct node *wanted_whole(const struct work *work) {
    const struct session *session = work->session;
    const bool is_for_many = work->verb == VERB_FORK && work->from && !work->drops && work->count >= MANY_FORKS && !work->goes_without;

    if (work->verb == VERB_SHOW || work->verb == VERB_VERIFY)
        return work->from ? work->from : node_shown(session->at);
    if (is_for_many || (work->verb == VERB_EXPORT && work->takes_live))
        return work->from ? work->from : session->at;
    return NULL;
}

/* The next that the work had better have. NULL: none. What is captured for it is one by itself. */
static struct live *next_lacking(const struct work *work) {
    if (work->session->sleep)
        return NULL;
    if (work->verb == VERB_HIBERNATE)   /* all that it stands on and comes of, and most often all there are */
        return first_lacking(work->session->family);
    const struct node *node = wanted_whole(work);
    return node && is_lacking(node->live) ? node->live : NULL;
}

bool whole_begin(struct work *work) {
    struct live *live = next_lacking(work);
    int r = live ? start(&work->whole, work, live, work->session->program) : 0;

    return live && (r == 0 || refuse(work, r) < 0);
}

void whole_make_soon(struct live *live, struct program *program) {
    if (is_lacking(live) && !live->making && start(&live->making, NULL, live, program) < 0)
        live->making = whole_free(live->making);
}
