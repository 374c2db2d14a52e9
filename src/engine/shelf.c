/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two sockets lead to a shelf: one is asked and, but for DROP, answered at once, so the engine waits for it; by the other it tells which places stir. It never waits for the engine: while that has not read what it was told, what stirs next is told later.
 *
 * Taking is two steps, TAKE and DROP, as the kernel drops descriptors for which whoever receives them has no room.
 */
#include "engine/shelf.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "engine/engine.h"

#define PLACES 8192u
#define FILES_OF_SHELF 64u /* its own, and those on their way */
#define ANSWER_SECONDS 10  /* it does nothing that takes time: who is slower than this was stopped, and is of no use */
#define AT_ONCE 64
#define ASKED UINT32_MAX /* in the place of a place: the socket */

enum { SHELF_PUT, SHELF_TAKE, SHELF_DROP };

struct shelf_request {
    uint32_t what, place;
    uint32_t events[SHELF_MOST_EACH];
};

struct shelf {
    struct engine *engine;
    struct list node; /* engine->shelves */
    pid_t pid;        /* another's, perhaps, once its sockets have ended */
    int ask;          /* whoever serves it ends when this is closed; -EBADF: it is lost */
    struct loop_source told;
    uint32_t n_used, n_fds, most_fds;        /* places; descriptors in them */
    uint32_t first_free, free_after[PLACES]; /* a list of places; PLACES: its end */
    struct shelved *at[PLACES];
};

/* ---- the process -------------------------------------------------------------------------------------------------------- */

struct place {
    int fds[SHELF_MOST_EACH];
    uint32_t n;
    bool is_watched;
};

static void unwatch(int epoll, struct place *place) {
    for (uint32_t i = 0; place->is_watched && i < place->n; i++)
        (void)epoll_ctl(epoll, EPOLL_CTL_DEL, place->fds[i], NULL);
    place->is_watched = false;
}

/* Others have the same open files, and would keep what is watched in the list: so that goes first. */
static void empty(int epoll, struct place *place) {
    unwatch(epoll, place);
    while (place->n)
        close(place->fds[--place->n]);
}

static int32_t put(int epoll, struct place *place, const struct shelf_request *request, const int *fds, size_t n) {
    int32_t r = 0;

    memcpy(place->fds, fds, n * sizeof *fds);
    place->n = (uint32_t)n;
    place->is_watched = true;
    for (size_t i = 0; i < n && r == 0; i++) {
        struct epoll_event event = { .events = request->events[i], .data.u32 = request->place };

        if (request->events[i] && epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &event) < 0)
            r = -errno;
    }
    if (r < 0)
        empty(epoll, place);
    return r;
}

/* False: the engine is gone. */
static bool answer(int ask, int epoll, struct place *places) {
    struct shelf_request request;
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds = 0;
    int32_t r = 0;
    ssize_t n = fd_receive(ask, &request, sizeof request, fds, &n_fds);

    if (n == -EMFILE) {
        r = -EMFILE;
        return fd_send(ask, &r, sizeof r, NULL, 0) == 0;
    }
    if (n != sizeof request || request.place >= PLACES || n_fds > SHELF_MOST_EACH)
        return false;
    struct place *place = &places[request.place];
    if (request.what == SHELF_DROP) {
        empty(epoll, place);
        return true;
    }
    if (request.what == SHELF_TAKE)
        r = fd_send_patiently(ask, &r, sizeof r, place->fds, place->n);
    else
        r = put(epoll, place, &request, fds, n_fds);
    if (request.what == SHELF_TAKE && r != -ETOOMANYREFS)
        return r == 0;
    return fd_send(ask, &r, sizeof r, NULL, 0) == 0;
}

_Noreturn static void serve(int ask, int tell) {
    struct place *places = calloc(PLACES, sizeof *places);
    struct epoll_event events[AT_ONCE], asked = { .events = EPOLLIN, .data.u32 = ASKED };
    int epoll = epoll_create1(EPOLL_CLOEXEC);

    if (!places || epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, ask, &asked) < 0)
        _exit(1);
    for (;;) {
        int n = epoll_wait(epoll, events, AT_ONCE, -1);

        for (int i = 0; i < n; i++) {
            const uint32_t at = events[i].data.u32;

            if (at == ASKED) {
                if (!answer(ask, epoll, places))
                    _exit(0);
            } else if (places[at].is_watched) {
                if (send(tell, &at, sizeof at, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof at)
                    unwatch(epoll, &places[at]);
                else /* later; and asked meanwhile */
                    (void)poll((struct pollfd[]){ { .fd = ask, .events = POLLIN }, { .fd = tell, .events = POLLOUT } }, 2, -1);
            }
        }
    }
}

/* ---- the engine's side -------------------------------------------------------------------------------------------------- */

static void let_go(struct shelf *shelf) {
    int tell = shelf->told.fd;

    loop_remove(shelf->engine->loop, &shelf->told);
    close_fd(&tell);
    close_fd(&shelf->ask);
    list_remove(&shelf->node);
    free(shelf);
}

static void leave(struct shelved *shelved) {
    struct shelf *shelf = shelved->shelf;

    shelf->at[shelved->place] = NULL;
    shelf->free_after[shelved->place] = shelf->first_free;
    shelf->first_free = shelved->place;
    shelf->n_used--;
    shelf->n_fds -= shelved->n;
    shelved->shelf = NULL;
}

/* Whoever has something there is told, and learns that it is lost by asking for it. */
static void lose(struct shelf *shelf) {
    close_fd(&shelf->ask);
    for (uint32_t i = 0; i < PLACES; i++) {
        if (shelf->at[i])
            shelf->at[i]->stirs(shelf->at[i]);
        if (shelf->at[i])
            leave(shelf->at[i]);
    }
}

static void on_told(struct loop_source *source, uint32_t events) {
    struct shelf *shelf = container_of(source, struct shelf, told);
    uint32_t place;
    ssize_t n = recv(source->fd, &place, sizeof place, MSG_DONTWAIT);

    (void)events;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n != sizeof place) {
        lose(shelf);
        let_go(shelf);
        return;
    }
    if (place < PLACES && shelf->at[place])
        shelf->at[place]->stirs(shelf->at[place]);
}

static int shelf_new(struct engine *engine, struct shelf **ret_shelf) {
    const struct timeval most = { .tv_sec = ANSWER_SECONDS };
    int asks[2] = { -EBADF, -EBADF }, tells[2] = { -EBADF, -EBADF };
    struct shelf *shelf = calloc(1, sizeof *shelf);
    struct rlimit limit;
    int r = 0;

    if (!shelf)
        return -ENOMEM;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, asks) < 0 ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, tells) < 0 ||
        setsockopt(asks[0], SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most) < 0 ||
        setsockopt(asks[0], SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most) < 0)
        r = -errno;
    else if (limit.rlim_cur < FILES_OF_SHELF + SHELF_MOST_EACH)
        r = -EMFILE;
    pid_t pid = r < 0 ? r : spawn_fork("rollbox-shelf", (const int[]){ asks[1], tells[1] }, 2);
    if (pid == 0)
        serve(asks[1], tells[1]);
    r = pid < 0 ? pid : loop_add(engine->loop, &shelf->told, tells[0], EPOLLIN, on_told);
    close_fd(&asks[1]);
    close_fd(&tells[1]);
    if (r < 0) {
        close_fd(&asks[0]); /* which ends it */
        close_fd(&tells[0]);
        free(shelf);
        return r;
    }
    shelf->engine = engine;
    shelf->ask = asks[0];
    shelf->pid = pid;
    shelf->most_fds = (uint32_t)MIN(limit.rlim_cur, (rlim_t)1 << 30) - FILES_OF_SHELF;
    for (uint32_t i = 0; i < PLACES; i++)
        shelf->free_after[i] = i + 1;
    list_add_tail(&engine->shelves, &shelf->node);
    *ret_shelf = shelf;
    return 0;
}

static int find_shelf(struct engine *engine, size_t n, struct shelf **ret_shelf) {
    list_for_each(node, &engine->shelves) {
        struct shelf *shelf = container_of(node, struct shelf, node);

        if (shelf->ask >= 0 && shelf->first_free < PLACES && shelf->n_fds + n <= shelf->most_fds) {
            *ret_shelf = shelf;
            return 0;
        }
    }
    return shelf_new(engine, ret_shelf);
}

/* One that does not answer is lost; its end is told by its other socket. One that has said nothing for so long has its sockets still, and so its number. */
static int ask(struct shelf *shelf, const struct shelf_request *request, const int *fds, size_t n, int *ret_fds, size_t *ret_n) {
    int32_t r = 0;

    if (shelf->ask < 0)
        return -EPIPE;
    int sent = fd_send_patiently(shelf->ask, request, sizeof *request, fds, n);
    if (sent == -ETOOMANYREFS)
        return sent; /* too many of this user's are under way, and that one is not */
    ssize_t got = sent < 0 ? sent : fd_receive(shelf->ask, &r, sizeof r, ret_fds, ret_n);
    if (got == -EMFILE)
        return -EMFILE;
    if (got == sizeof r)
        return r;
    if (got == -EAGAIN)
        kill(shelf->pid, SIGKILL);
    close_fd(&shelf->ask);
    return -EPIPE;
}

int shelf_put(struct engine *engine, struct shelved *shelved, const int *fds, const uint32_t *events, size_t n,
    void (*stirs)(struct shelved *shelved)) {
    struct shelf_request request = { .what = SHELF_PUT };
    int unused[FD_MESSAGE_MAX_FDS];
    size_t n_unused = 0;
    struct shelf *shelf;
    int r = n <= SHELF_MOST_EACH ? find_shelf(engine, n, &shelf) : -E2BIG;

    if (r < 0)
        return r;
    request.place = shelf->first_free;
    memcpy(request.events, events, n * sizeof *events);
    r = ask(shelf, &request, fds, n, unused, &n_unused);
    if (r < 0)
        return r;
    shelf->first_free = shelf->free_after[request.place];
    shelf->at[request.place] = shelved;
    shelf->n_used++;
    shelf->n_fds += (uint32_t)n;
    *shelved = (struct shelved){ shelf, request.place, (uint32_t)n, stirs };
    return 0;
}

int shelf_take(struct shelved *shelved, int *fds) {
    const struct shelf_request request = { .what = SHELF_TAKE, .place = shelved->place };
    int found[FD_MESSAGE_MAX_FDS];
    size_t n = 0;
    int r = ask(shelved->shelf, &request, NULL, 0, found, &n);

    if (r == -EMFILE || r == -ETOOMANYREFS)
        return -EMFILE;
    if (r == 0 && n == shelved->n)
        memcpy(fds, found, n * sizeof *fds);
    else
        while (n)
            close(found[--n]);
    r = n && n == shelved->n ? 0 : -EPIPE;
    shelf_drop(shelved);
    return r;
}

void shelf_drop(struct shelved *shelved) {
    const struct shelf_request request = { .what = SHELF_DROP, .place = shelved->place };
    struct shelf *shelf = shelved->shelf;

    if (!shelf)
        return;
    if (shelf->ask >= 0 && fd_send(shelf->ask, &request, sizeof request, NULL, 0) < 0)
        close_fd(&shelf->ask);
    leave(shelved);
}

void shelf_tidy(struct engine *engine) {
    list_for_each(node, &engine->shelves) {
        struct shelf *shelf = container_of(node, struct shelf, node);

        if (!shelf->n_used)
            let_go(shelf);
    }
}
