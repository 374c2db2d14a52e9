/* SPDX-License-Identifier: Apache-2.0 */
/* The connection to the engine: sending, receiving, waiting, losing it. client.h has the model. */
#include "client/client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/protocol.h"
#include "sys/syscalls.h"

#define WELCOME_TIMEOUT_MS 10000
#define LOSS_TIMEOUT_MS 50
#define FIRST_BUCKETS 64

int connection_check_owner(pid_t owner, struct rollbox_error *error) {
    if (owner == getpid())
        return 0;
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, ECHILD, "arguments",
        "this handle belongs to process %d, from which this process was forked; open an engine in "
        "this process",
        (int)owner);
}

/* ---- the table of requests under way ---- */

/* Serials count up, so their low bits spread perfectly. */
static struct pending **bucket_of(struct rollbox_engine *engine, uint64_t serial) {
    return &engine->buckets[serial & (engine->n_buckets - 1)];
}

static int grow_table(struct rollbox_engine *engine) {
    size_t old_n = engine->n_buckets;
    struct pending **old = engine->buckets;
    struct pending **buckets = calloc(old_n ? old_n * 2 : FIRST_BUCKETS, sizeof(struct pending *));

    if (!buckets)
        return -ENOMEM;
    engine->buckets = buckets;
    engine->n_buckets = old_n ? old_n * 2 : FIRST_BUCKETS;
    for (size_t i = 0; i < old_n; i++)
        for (struct pending *p = old[i], *next; p; p = next) {
            struct pending **bucket = bucket_of(engine, p->serial);

            next = p->next;
            p->next = *bucket;
            *bucket = p;
        }
    free(old);
    return 0;
}

static struct pending *take_pending(struct rollbox_engine *engine, uint64_t serial) {
    for (struct pending **p = bucket_of(engine, serial); *p; p = &(*p)->next)
        if ((*p)->serial == serial) {
            struct pending *found = *p;

            *p = found->next;
            engine->n_pending--;
            return found;
        }
    return NULL;
}

int connection_enter(
    struct rollbox_engine *engine, struct pending *pending, struct rollbox_error *error) {
    int r = 0;

    pending->done = false;
    list_init(&pending->waiters);
    pthread_mutex_lock(&engine->lock);
    if (engine->lost) {
        if (error)
            *error = engine->lost_error;
        r = -ENOTCONN;
    } else if (engine->n_pending >= engine->n_buckets) {
        r = grow_table(engine);
        if (r < 0)
            error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "run", "out of memory");
    }
    if (!r) {
        pending->serial = ++engine->last_serial;
        pending->next = *bucket_of(engine, pending->serial);
        *bucket_of(engine, pending->serial) = pending;
        engine->n_pending++;
    }
    pthread_mutex_unlock(&engine->lock);
    return r;
}

void connection_forget(struct rollbox_engine *engine, struct pending *pending) {
    if (!pending->done)
        (void)take_pending(engine, pending->serial);
}

static void finish_pending(struct rollbox_engine *engine, struct pending *pending) {
    pending->done = true;
    list_for_each(node, &pending->waiters)
        pthread_cond_signal(&container_of(node, struct waiter, of_pending)->wake);
    if (pending->is_run)
        list_add_tail(
            &engine->ended, &container_of(pending, struct rollbox_run, pending)->of_ended);
}

static void finish_with_error(
    struct rollbox_engine *engine, struct pending *pending, const struct rollbox_error *error) {
    if (pending->is_run) {
        struct rollbox_run *run = container_of(pending, struct rollbox_run, pending);

        run->result = result_new_failed(run->isolation, error);
    } else if (pending != &engine->hello) {
        container_of(pending, struct request, pending)->error = *error;
    }
    finish_pending(engine, pending);
}

/* ---- loss ---- */

/* How a private engine ended, in words, without reaping it: the host program may do that too. Its
 * socket closes a moment before it is a zombie. */
static void describe_end(const struct rollbox_engine *engine, char words[64]) {
    struct pollfd poller = { .fd = engine->pidfd, .events = POLLIN };
    siginfo_t info = { 0 };

    (void)snprintf(words, 64, "ended");
    if (engine->pidfd < 0) {
        (void)snprintf(words, 64, "closed the connection");
        return;
    }
    if (poll(&poller, 1, LOSS_TIMEOUT_MS) <= 0)
        (void)snprintf(words, 64, "closed the connection");
    else if (waitid(P_PIDFD, (id_t)engine->pidfd, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
             info.si_pid)
        (void)snprintf(words, 64,
            info.si_code == CLD_EXITED ? "ended with status %d" : "was killed by signal %d",
            info.si_status);
}

void connection_lose(struct rollbox_engine *engine, const struct rollbox_error *error) {
    if (engine->lost)
        return;
    engine->lost = true;
    engine->lost_error = *error;
    shutdown(engine->socket, SHUT_RDWR);
    for (size_t i = 0; i < engine->n_buckets; i++)
        while (engine->buckets[i]) {
            struct pending *pending = engine->buckets[i];

            engine->buckets[i] = pending->next;
            engine->n_pending--;
            finish_with_error(engine, pending, error);
        }
}

static void lose_ended(struct rollbox_engine *engine, int error_number) {
    struct rollbox_error error;
    char words[64];

    describe_end(engine, words);
    if (!engine->welcomed && engine->private_engine)
        error_set(&error, ROLLBOX_ERR_ENGINE_START, error_number, "connect",
            "the engine %s (pid %d) %s before it answered; its standard error may say why",
            engine->path, (int)engine->pid, words);
    else
        error_set(&error, ROLLBOX_ERR_ENGINE_LOST, error_number, "run",
            "the engine (pid %d) %s; the sandboxes that ran on it are gone", (int)engine->pid,
            words);
    connection_lose(engine, &error);
}

static void lose_protocol(struct rollbox_engine *engine, const char *what) {
    struct rollbox_error error;

    error_set(&error, ROLLBOX_ERR_PROTOCOL, EPROTO, "connect",
        "the engine (pid %d) at %s: %s; are engine and library of one version?", (int)engine->pid,
        engine->path, what);
    connection_lose(engine, &error);
}

/* ---- receiving ---- */

static void handle_welcome(struct rollbox_engine *engine) {
    struct wire_message *message = &engine->message;
    uint64_t version = 0, pid = 0;
    struct rollbox_error error;
    struct wire_field field;
    size_t position = 0;
    int r;

    if (message->header.type == PROTOCOL_FAILED) {
        if (result_read_error(message->data, message->length, &error) < 0)
            lose_protocol(engine, "it refused the connection");
        else
            connection_lose(engine, &error);
        return;
    }
    while ((r = wire_next(message->data, message->length, &position, &field)) > 0) {
        if (field.tag == TAG_VERSION)
            r = wire_u64(&field, &version);
        else if (field.tag == TAG_PID)
            r = wire_u64(&field, &pid);
        if (r < 0)
            break;
    }
    if (r < 0 || message->header.type != PROTOCOL_WELCOME || pid > INT32_MAX) {
        lose_protocol(engine, "its first message is not a welcome");
    } else if (version != PROTOCOL_VERSION) {
        lose_protocol(engine, "it speaks another version of the protocol");
    } else {
        engine->welcomed = true;
        /* The kernel's word of it, where the engine is in a pid namespace that we can see: it may
         * be sent signals. */
        if (pid && !engine->private_engine && engine->pid <= 0)
            engine->pid = (pid_t)pid;
    }
}

static void handle_request(struct rollbox_engine *engine, struct request *request) {
    struct wire_message *message = &engine->message;

    request->type = message->header.type;
    if (request->type == PROTOCOL_FAILED) {
        if (result_read_error(message->data, message->length, &request->error) < 0)
            error_set(&request->error, ROLLBOX_ERR_PROTOCOL, EPROTO, "connect",
                "the engine's answer is malformed");
    } else {
        buf_add(&request->body, message->data, message->length);
        if (buf_failed(&request->body))
            error_set(&request->error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "connect",
                "out of memory for the engine's answer");
        while (
            request->takes_fds && request->n_fds < MIN(message->n_fds, (size_t)REQUEST_FDS_MAX)) {
            request->fds[request->n_fds] = wire_take_fd(message, request->n_fds);
            request->n_fds++;
        }
    }
    finish_pending(engine, &request->pending);
}

/* A call's answer, or a run's result. */
static int read_result(struct wire_message *message, struct rollbox_run *run) {
    if (run->is_call && message->header.type == PROTOCOL_TEXT) {
        run->text = result_read_text(message->data, message->length);
        return run->text ? 0 : -EBADMSG;
    }
    return !run->is_call && message->header.type == PROTOCOL_RESULT
               ? result_read_new(message, run->isolation, &run->result)
               : -EBADMSG;
}

static void handle_run(struct rollbox_engine *engine, struct rollbox_run *run) {
    struct wire_message *message = &engine->message;
    struct rollbox_error error;
    int r = read_result(message, run);

    if (message->header.type == PROTOCOL_FAILED &&
        result_read_error(message->data, message->length, &error) == 0) {
        /* The descriptors of the reply found no room. */
        run->result = result_new_failed(run->isolation, &error);
    } else if (r == -EBADMSG) {
        error_set(&error, ROLLBOX_ERR_PROTOCOL, EPROTO, "result",
            "the engine's result is malformed; are engine and library of one version?");
        run->result = result_new_failed(run->isolation, &error);
    } else if (r < 0) {
        error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -r, "result",
            "cannot receive the run's output: %s", strerror(-r));
        run->result = result_new_failed(run->isolation, &error);
    }
    finish_pending(engine, &run->pending);
}

static void handle_message(struct rollbox_engine *engine) {
    uint64_t serial = engine->message.header.serial;

    /* Nobody waits for the result of a run that was freed. */
    struct pending *pending = take_pending(engine, serial);
    if (!pending)
        return;
    if (pending == &engine->hello) {
        handle_welcome(engine);
        finish_pending(engine, pending);
    } else if (pending->is_run) {
        handle_run(engine, container_of(pending, struct rollbox_run, pending));
    } else {
        handle_request(engine, container_of(pending, struct request, pending));
    }
}

/* A message came but could not be received completely: its descriptors found no room in this
 * process, or it is malformed. The kernel has delivered its first bytes in both cases, so the
 * request that waits for it can be failed. If the request cannot be identified, a reply is missing
 * for good and the connection is useless. */
static void handle_damaged(struct rollbox_engine *engine, int error_number) {
    struct rollbox_error error;
    struct wire_header header;

    memcpy(&header, engine->message.bytes, sizeof header);
    struct pending *pending = take_pending(engine, header.serial);
    if (!pending || pending == &engine->hello) {
        lose_protocol(engine, "it sent a malformed message");
        return;
    }
    if (error_number != EBADMSG)
        error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, error_number, "result",
            "cannot receive the engine's answer: %s", strerror(error_number));
    else
        error_set(&error, ROLLBOX_ERR_PROTOCOL, EPROTO, "result",
            "the engine's answer is malformed; are engine and library of one version?");
    finish_with_error(engine, pending, &error);
}

void connection_receive(struct rollbox_engine *engine, const bool *enough) {
    while (!engine->lost && !(enough && *enough)) {
        memset(engine->message.bytes, 0, sizeof engine->message.header);
        int r = wire_receive(engine->socket, &engine->message);

        if (r == 1) {
            handle_message(engine);
            wire_message_done(&engine->message);
        } else if (r == -EAGAIN) {
            return;
        } else if (r == -EBADMSG || r == -ENOMEM || r == -EMFILE) {
            handle_damaged(engine, -r);
        } else {
            lose_ended(engine, -r);
        }
    }
}

/* ---- sending ---- */

/* The engine's end of the socket can outlive the engine for a moment, in a child that was just
 * forked: a message sent then would be lost. */
static bool has_died(const struct rollbox_engine *engine) {
    struct pollfd poller = { .fd = engine->pidfd, .events = POLLIN };

    return engine->pidfd >= 0 && poll(&poller, 1, 0) > 0;
}

int connection_send(struct rollbox_engine *engine, struct buf *message, uint64_t serial,
    const int *fds, size_t n_fds, struct rollbox_error *error) {
    unsigned tries = 0;
    int r;

    if (buf_failed(message))
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments",
            "out of memory for the request");
    memcpy(message->data + offsetof(struct wire_header, serial), &serial, sizeof serial);
    while ((r = has_died(engine) ? -EPIPE : wire_send(engine->socket, message, fds, n_fds)) ==
               -EAGAIN ||
           (r == -ETOOMANYREFS && tries++ < FDS_TRIES)) {
        /* The engine may be blocked because no thread receives its answers: receive them while
         * waiting for room. */
        struct pollfd poller = { .fd = engine->socket,
            .events = r == -EAGAIN ? POLLIN | POLLOUT : POLLIN };

        (void)poll(&poller, 1, r == -EAGAIN ? -1 : FDS_AGAIN_MS);
        if (poller.revents & POLLIN) {
            pthread_mutex_lock(&engine->lock);
            connection_receive(engine, NULL);
            connection_announce(engine);
            pthread_mutex_unlock(&engine->lock);
        }
    }
    switch (r) {
    case 0:
        return 0;
    case -EPIPE:
    case -ECONNRESET:
    case -ENOTCONN:
        /* Messages that it sent before its end still count. */
        pthread_mutex_lock(&engine->lock);
        connection_receive(engine, NULL);
        if (!engine->lost)
            lose_ended(engine, -r);
        connection_announce(engine);
        if (error)
            *error = engine->lost_error;
        pthread_mutex_unlock(&engine->lock);
        return -ENOTCONN;
    case -EMSGSIZE:
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "arguments",
            "the request has more than %u bytes; give large data as stdin or grant a path",
            WIRE_BODY_MAX);
    case -ETOOMANYREFS:
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -r, "connect",
            "this user's processes have more descriptors in flight over sockets than one process "
            "may have open; raise the limit of open files (ulimit -n), or try again later");
    default:
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "connect",
            "cannot send to the engine: %s", strerror(-r));
    }
}

/* ---- waiting ---- */

static void signal_eventfd(int fd) {
    eventfd_write(fd, 1);
}

void connection_announce(struct rollbox_engine *engine) {
    if (engine->poller)
        signal_eventfd(engine->wake);
    if (list_empty(&engine->ended))
        return;
    if (engine->notify >= 0)
        signal_eventfd(engine->notify);
    list_for_each(node, &engine->waiters) {
        struct waiter *waiter = container_of(node, struct waiter, of_engine);

        if (waiter->calls_back) {
            pthread_cond_signal(&waiter->wake);
            return;
        }
    }
}

int connection_call_back(struct rollbox_engine *engine) {
    int n = 0;

    while (!list_empty(&engine->ended)) {
        struct rollbox_run *run = container_of(engine->ended.next, struct rollbox_run, of_ended);

        list_remove(&run->of_ended);
        n++;
        if (!run->callback)
            continue;
        if (run->callback == rollbox_queued) {
            list_add_tail(&engine->queued, &run->of_ended);
            continue;
        }
        run->references++;
        run->calling = true;
        run->caller = pthread_self();
        pthread_mutex_unlock(&engine->lock);
        run->callback(run, run->userdata);
        pthread_mutex_lock(&engine->lock);
        run->calling = false;
        pthread_cond_broadcast(&engine->quiet);
        if (--run->references == 0) {
            /* Freed by its own callback, which left the memory to us. */
            request_destroy_run(run);
        }
    }
    if (!list_empty(&engine->queued) && engine->notify >= 0)
        signal_eventfd(engine->notify);
    return n;
}

/* The poller has left: another waiting thread must take over. */
static void hand_over(struct rollbox_engine *engine) {
    if (!engine->poller && !list_empty(&engine->waiters))
        pthread_cond_signal(&container_of(engine->waiters.next, struct waiter, of_engine)->wake);
}

static struct timespec timespec_of(int64_t ns) {
    return (struct timespec){ .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
}

static void poll_for_all(struct rollbox_engine *engine, int64_t left_ns) {
    struct pollfd pollers[2] = { { .fd = engine->socket, .events = POLLIN },
        { .fd = engine->wake, .events = POLLIN } };
    struct timespec left = timespec_of(MAX(left_ns, (int64_t)0));

    engine->poller = true;
    pthread_mutex_unlock(&engine->lock);
    int n = ppoll(pollers, 2, left_ns < 0 ? NULL : &left, NULL);
    pthread_mutex_lock(&engine->lock);
    engine->poller = false;
    if (n > 0 && pollers[1].revents) {
        eventfd_t count;

        (void)eventfd_read(engine->wake, &count);
    }
}

static void wait_for_poller(struct rollbox_engine *engine, struct waiter *waiter,
    struct pending *pending, int64_t deadline) {
    list_add_tail(&engine->waiters, &waiter->of_engine);
    list_add_tail(&pending->waiters, &waiter->of_pending);
    if (deadline < 0) {
        pthread_cond_wait(&waiter->wake, &engine->lock);
    } else {
        struct timespec until = timespec_of(deadline);

        (void)pthread_cond_timedwait(&waiter->wake, &engine->lock, &until);
    }
    list_remove(&waiter->of_engine);
    list_remove(&waiter->of_pending);
}

static void waiter_init(struct waiter *waiter, bool calls_back) {
    pthread_condattr_t attributes;

    /* None of these can fail for these arguments with glibc or musl. */
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&waiter->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    list_init(&waiter->of_engine);
    list_init(&waiter->of_pending);
    waiter->calls_back = calls_back;
}

int connection_wait(
    struct rollbox_engine *engine, struct pending *pending, int64_t timeout_ms, bool calls_back) {
    int64_t deadline = -1;
    struct waiter waiter;
    int r = 0;

    if (timeout_ms == 0 && !pending->done)
        connection_receive(engine, &pending->done);
    if (timeout_ms > 0)
        deadline = clock_now_ns() + MIN(timeout_ms, INT64_MAX / 4000000) * 1000000;
    waiter_init(&waiter, calls_back);
    for (;;) {
        if (calls_back && !list_empty(&engine->ended)) {
            hand_over(engine);
            (void)connection_call_back(engine);
        }
        if (pending->done)
            break;
        int64_t left = deadline < 0 ? -1 : deadline - clock_now_ns();
        if (timeout_ms == 0 || (deadline >= 0 && left <= 0)) {
            r = -ETIMEDOUT;
            break;
        }
        if (engine->poller) {
            wait_for_poller(engine, &waiter, pending, deadline);
        } else {
            poll_for_all(engine, left);
            connection_receive(engine, &pending->done);
        }
    }
    if (!calls_back || timeout_ms == 0)
        connection_announce(engine);
    hand_over(engine);
    pthread_cond_destroy(&waiter.wake);
    return r;
}

int connection_await_welcome(struct rollbox_engine *engine, struct rollbox_error *error) {
    struct rollbox_error silent;
    int r = 0;

    pthread_mutex_lock(&engine->lock);
    if (!engine->welcomed &&
        connection_wait(engine, &engine->hello, WELCOME_TIMEOUT_MS, false) == -ETIMEDOUT) {
        error_set(&silent, engine->private_engine ? ROLLBOX_ERR_ENGINE_START : ROLLBOX_ERR_PROTOCOL,
            ETIMEDOUT, "connect", "%s did not answer as a rollbox-engine within %d s", engine->path,
            WELCOME_TIMEOUT_MS / 1000);
        connection_lose(engine, &silent);
        /* Closing the handle must not wait for this process. */
        if (engine->private_engine)
            (void)sys_pidfd_send_signal(engine->pidfd, SIGKILL, NULL, 0);
    }
    if (engine->lost) {
        if (error)
            *error = engine->lost_error;
        r = -ENOTCONN;
    }
    pthread_mutex_unlock(&engine->lock);
    return r;
}

int connection_call(struct rollbox_engine *engine, struct buf *message, const int *fds,
    size_t n_fds, uint32_t expected, struct request *ret_request, struct rollbox_error *error) {
    struct request *request = ret_request;

    *request = (struct request){ .body = BUF_INIT, .takes_fds = request->takes_fds };
    int r = connection_enter(engine, &request->pending, error);
    if (r < 0)
        return r;
    r = connection_send(engine, message, request->pending.serial, fds, n_fds, error);
    if (r >= 0)
        r = connection_await_welcome(engine, error);
    pthread_mutex_lock(&engine->lock);
    if (r < 0)
        connection_forget(engine, &request->pending);
    else
        (void)connection_wait(engine, &request->pending, -1, false);
    pthread_mutex_unlock(&engine->lock);
    if (r < 0)
        return r;
    if (request->error.code != ROLLBOX_OK) {
        if (error)
            *error = request->error;
        return request->error.error_number ? -request->error.error_number : -EINVAL;
    }
    if (request->type != expected)
        return error_set(error, ROLLBOX_ERR_PROTOCOL, EPROTO, "connect",
            "the engine's answer has type %u instead of %u", request->type, expected);
    return 0;
}

/* ---- for event loops ---- */

static int add_to_epoll(int epoll, int fd) {
    struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

static int make_epoll(struct rollbox_engine *engine) {
    auto_close int notify = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (notify < 0)
        return -errno;
    auto_close int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        return -errno;
    int r = add_to_epoll(epoll, engine->socket);
    if (r >= 0)
        r = add_to_epoll(epoll, notify);
    if (r < 0)
        return r;
    if (!list_empty(&engine->ended) || !list_empty(&engine->queued))
        signal_eventfd(notify);
    engine->notify = TAKE_FD(notify);
    engine->epoll = TAKE_FD(epoll);
    return 0;
}

ROLLBOX_PUBLIC int rollbox_engine_fd(struct rollbox_engine *engine) {
    int r = connection_check_owner(engine->owner, NULL);

    if (r < 0)
        return r;
    pthread_mutex_lock(&engine->lock);
    if (engine->epoll < 0)
        r = make_epoll(engine);
    if (r >= 0)
        r = engine->epoll;
    pthread_mutex_unlock(&engine->lock);
    return r;
}

ROLLBOX_PUBLIC void rollbox_queued(struct rollbox_run *run, void *userdata) {
    (void)run, (void)userdata;
}

ROLLBOX_PUBLIC void *rollbox_next_ended(struct rollbox_engine *engine) {
    void *userdata = NULL;
    eventfd_t count;

    if (connection_check_owner(engine->owner, NULL) < 0)
        return NULL;
    pthread_mutex_lock(&engine->lock);
    if (!list_empty(&engine->queued))
        userdata = container_of(engine->queued.next, struct rollbox_run, of_ended)->userdata;
    else if (list_empty(&engine->ended) && engine->notify >= 0)
        (void)eventfd_read(engine->notify, &count);
    pthread_mutex_unlock(&engine->lock);
    return userdata;
}

ROLLBOX_PUBLIC void rollbox_told(struct rollbox_engine *engine, void *userdata) {
    if (connection_check_owner(engine->owner, NULL) < 0)
        return;
    pthread_mutex_lock(&engine->lock);
    list_for_each(node, &engine->queued)
        if (container_of(node, struct rollbox_run, of_ended)->userdata == userdata) {
            list_remove(node);
            break;
        }
    pthread_mutex_unlock(&engine->lock);
}

ROLLBOX_PUBLIC int rollbox_dispatch(struct rollbox_engine *engine) {
    int r = connection_check_owner(engine->owner, NULL);
    eventfd_t count;

    if (r < 0)
        return r;
    pthread_mutex_lock(&engine->lock);
    if (engine->notify >= 0)
        (void)eventfd_read(engine->notify, &count);
    connection_receive(engine, NULL);
    /* A thread in poll() whose reply was among these would not see it. */
    if (engine->poller)
        signal_eventfd(engine->wake);
    r = connection_call_back(engine);
    if (!r && engine->lost)
        r = -ENOTCONN;
    pthread_mutex_unlock(&engine->lock);
    return r;
}
