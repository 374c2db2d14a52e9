/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's side of the recorder (src/record/recorder.c), which is a fork of the engine: it
 * starts the recorder, sends it steps, and receives the progress of the records.
 *
 * Nothing here waits. If the recorder's socket is full, messages are kept, within a limit for all
 * records together. A record that cannot keep up ends at that step.
 */
#include "engine/record/recorder.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/core/sender.h"
#include "engine/core/spawn.h"
#include "record/record.h"

#define SOCKET_BYTES (1 << 20)
#define QUEUE_BYTES (64u << 20) /* of lines, and of the streams that they hold on to */
#define QUEUE_FDS 64u
#define TOO_SLOW "the recorder does not keep up: it is written to slowly, or there is too much"
#define END_PATIENCE_MS 1000

struct posted {
    struct outgoing outgoing;
    uint64_t record; /* its number */
    uint64_t bytes;
};

static struct record *find_record(const struct recorder *recorder, uint64_t number) {
    list_for_each(node, &recorder->records)
        if (container_of(node, struct record, node)->number == number)
            return container_of(node, struct record, node);
    return NULL;
}

void recorder_fail(struct record *record, int error_number, const char *message) {
    if (record->error)
        return;
    record->error = error_number;
    snprintf(record->message, sizeof record->message, "%s", message);
}

/* ---- what waits ---- */

static struct posted *posted_of(struct list *node) {
    return container_of(container_of(node, struct outgoing, node), struct posted, outgoing);
}

static void posted_free(struct recorder *recorder, struct posted *posted) {
    struct record *record = find_record(recorder, posted->record);
    unsigned n_fds = (unsigned)posted->outgoing.n_fds;

    recorder->posted_bytes -= posted->bytes;
    recorder->posted_fds -= n_fds;
    if (record) {
        record->posted_bytes -= posted->bytes;
        record->posted_fds -= n_fds;
    }
    outgoing_done(&posted->outgoing);
    free(posted);
}

static bool is_step(const struct buf *message) {
    return ((const struct wire_header *)(const void *)message->data)->type == RECORD_STEP;
}

/* Steps that are still unsent are dropped, too, so that a record has no gaps. Its beginning is
 * kept. */
static void give_up(
    struct recorder *recorder, struct record *record, int error_number, const char *message) {
    recorder_fail(record, error_number, message);
    list_for_each(node, &recorder->sender.waiting) {
        struct posted *posted = posted_of(node);

        if (posted->record == record->number && is_step(&posted->outgoing.message))
            posted_free(recorder, posted);
    }
}

/* It can never be sent. That the recorder is gone is seen by reading. */
static void lose_step(struct recorder *recorder, uint64_t number, int r) {
    struct record *record = find_record(recorder, number);

    if (record && r != -EPIPE && r != -ECONNRESET)
        give_up(recorder, record, -r, "a step could not be sent to the recorder");
}

static void on_ring(struct loop_timer *timer) {
    (void)eventfd_write(container_of(timer, struct recorder, ring)->bell, 1);
}

/* Something was sent. Once the engine is dead, the recorder wakes of itself. */
static void ring_soon(struct recorder *recorder) {
    if (!recorder->ring.position &&
        loop_timer_set(recorder->engine->loop, &recorder->ring, 0, on_ring) < 0)
        on_ring(&recorder->ring);
}

static void on_posted(struct sender *sender, struct outgoing *outgoing, int r) {
    struct recorder *recorder = container_of(sender, struct recorder, sender);
    struct posted *posted = container_of(outgoing, struct posted, outgoing);
    uint64_t number = posted->record;

    posted_free(recorder, posted);
    if (r < 0)
        lose_step(recorder, number, r);
    else
        ring_soon(recorder);
}

/* Guests that write much must not end others' records: the record that holds most of the scarce
 * resource ends first. 0, or -ENOBUFS: that is the record itself. */
static int make_room(
    struct recorder *recorder, const struct record *record, uint64_t bytes, size_t n_fds) {
    for (bool freed = true;;) {
        bool many_bytes = recorder->posted_bytes + bytes > QUEUE_BYTES,
             many_fds = recorder->posted_fds + n_fds > QUEUE_FDS;
        struct record *greediest = NULL;

        if (!many_bytes && !many_fds)
            return 0;
        list_for_each(node, &recorder->records) {
            struct record *other = container_of(node, struct record, node);

            if (!greediest || (many_bytes ? other->posted_bytes > greediest->posted_bytes
                                          : other->posted_fds > greediest->posted_fds))
                greediest = other;
        }
        if (!freed || !greediest || greediest == record ||
            (many_bytes ? record->posted_bytes + bytes >= greediest->posted_bytes
                        : record->posted_fds + n_fds >= greediest->posted_fds))
            return -ENOBUFS;
        uint64_t had_bytes = recorder->posted_bytes;
        give_up(recorder, greediest, ENOBUFS, TOO_SLOW);
        freed = recorder->posted_bytes < had_bytes;
    }
}

static int keep_message(struct recorder *recorder, struct record *record, struct buf *message,
    const int *fds, size_t n_fds, uint64_t bytes) {
    bytes += message->length;
    /* Beginnings and ends are few and small. */
    if (is_step(message) && make_room(recorder, record, bytes, n_fds) < 0)
        return -ENOBUFS;
    struct posted *posted = calloc(1, sizeof *posted);
    if (!posted)
        return -ENOMEM;
    posted->record = record->number;
    posted->bytes = bytes;
    int r = sender_keep(&recorder->sender, &posted->outgoing, message, fds, n_fds);
    if (r < 0) {
        free(posted);
        return r;
    }
    recorder->posted_bytes += bytes;
    recorder->posted_fds += (unsigned)n_fds;
    record->posted_bytes += bytes;
    record->posted_fds += (unsigned)n_fds;
    return 0;
}

void recorder_post(
    struct record *record, struct buf *message, const int *fds, size_t n_fds, uint64_t bytes) {
    struct recorder *recorder = record->engine->record.recorder;

    if (record->phase != RECORD_IS_OPEN || !recorder)
        return;
    if (buf_failed(message)) {
        give_up(recorder, record, ENOMEM, "out of memory for a step");
        return;
    }
    if (record->error && is_step(message))
        return;
    int r = sender_send(&recorder->sender, message, fds, n_fds);
    if (r < 0)
        lose_step(recorder, record->number, r);
    else if (r == 0)
        ring_soon(recorder);
    else if (keep_message(recorder, record, message, fds, n_fds, bytes) < 0)
        give_up(recorder, record, ENOBUFS, TOO_SLOW);
}

/* ---- messages of the recorder ---- */

static void end_record(struct record *record) {
    record->phase = RECORD_IS_DONE;
    if (record->over)
        record->over(record);
}

static void lose_recorder(struct recorder *recorder) {
    struct engine *engine = recorder->engine;

    loop_remove(engine->loop, &recorder->source);
    loop_timer_clear(engine->loop, &recorder->sender.retry);
    loop_timer_clear(engine->loop, &recorder->ring);
    close_fd(&recorder->fd);
    close_fd(&recorder->bell);
    engine->record.recorder = NULL;
    while (!list_empty(&recorder->sender.waiting))
        posted_free(recorder, posted_of(recorder->sender.waiting.next));
    list_for_each(node, &recorder->records) {
        struct record *record = container_of(node, struct record, node);

        if (record->phase != RECORD_IS_DONE)
            recorder_fail(record, EPIPE, "the recorder was killed");
        list_remove(&record->node);
        end_record(record);
    }
    free(recorder);
}

static void take_state(struct record *record, const struct wire_message *message) {
    const char *text = NULL;
    uint64_t error_number = 0, done = 0;
    struct wire_field field;
    size_t position = 0;

    while (wire_next(message->data, message->length, &position, &field) > 0)
        switch (field.tag) {
        case RECORD_STEPS:
            (void)wire_u64(&field, &record->written);
            break;
        case RECORD_ERROR:
            (void)wire_u64(&field, &error_number);
            break;
        case RECORD_MESSAGE:
            text = wire_text(&field);
            break;
        case RECORD_DONE:
            (void)wire_u64(&field, &done);
            break;
        default:
            break;
        }
    if (error_number)
        recorder_fail(record, (int)error_number, text ? text : "the record cannot be written");
    if (done || record->phase == RECORD_IS_DONE)
        end_record(record);
}

static void on_recorder(struct loop_source *source, uint32_t events) {
    struct recorder *recorder = container_of(source, struct recorder, source);
    static struct wire_message message;
    int r;

    if (events & EPOLLOUT)
        sender_flush(&recorder->sender);
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        return;
    while ((r = wire_receive(recorder->fd, &message)) == 1) {
        struct record *record = find_record(recorder, message.header.serial);

        recorder->heard++;
        if (record)
            take_state(record, &message);
        wire_message_done(&message);
    }
    if (r != -EAGAIN && r != -EINTR)
        lose_recorder(recorder);
}

/* ---- its start and end ---- */

static void become_recorder(int socket, int bell, int null) {
    /* The standard streams may be pipes of other processes. */
    if (dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0 ||
        spawn_shed("rollbox-record", (int[]){ socket, bell }, 2) < 0)
        _exit(1);
    _exit(recorder_run(socket, bell));
}

int recorder_start(struct engine *engine, struct rollbox_error *error) {
    struct recorder *recorder = calloc(1, sizeof *recorder);
    int ends[2] = { -EBADF, -EBADF }, size = SOCKET_BYTES, r = recorder ? 0 : -ENOMEM;

    if (r == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
        r = -errno;
    auto_close int theirs = ends[1], ours = ends[0],
                   bell = r == 0 ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -EBADF;
    if (r == 0 && bell < 0)
        r = -errno;
    if (r == 0) {
        (void)setsockopt(ours, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        pid_t pid = fork();
        if (pid == 0)
            become_recorder(theirs, bell, engine->null_fd);
        r = pid < 0 ? -errno
                    : loop_add(engine->loop, &recorder->source, ours, EPOLLIN, on_recorder);
    }
    if (r < 0) {
        free(recorder);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "setup",
            "the recorder cannot be started: %s", strerror(-r));
    }
    recorder->engine = engine;
    recorder->fd = TAKE_FD(ours);
    recorder->bell = TAKE_FD(bell);
    sender_init(&recorder->sender, engine->loop, &recorder->source, on_posted);
    list_init(&recorder->records);
    engine->record.recorder = recorder;
    return 0;
}

void recorder_leave(struct recorder *recorder) {
    int64_t until = clock_now_ns() + END_PATIENCE_MS * 1000000ll;

    while (!list_empty(&recorder->sender.waiting) && clock_now_ns() < until) {
        struct pollfd room = { .fd = recorder->fd, .events = POLLOUT };

        on_ring(&recorder->ring); /* no loop does it any more, and who sleeps makes no room */
        (void)poll(&room, 1, 10);
        sender_flush(&recorder->sender);
    }
    lose_recorder(recorder);
}
