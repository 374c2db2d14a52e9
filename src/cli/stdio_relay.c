/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/stdio_relay.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cli/keys.h"

#define COPY_SIZE 65536u
#define SPLICE_SIZE (1u << 20)

/* How many pieces one stream may move before the others get their turn. */
#define TURN 16

static bool is_type(int fd, mode_t type) {
    struct stat st;

    return fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) == type;
}

static void set_nonblocking(int fd) {
    int flags = fcntl(fd, F_GETFL);

    if (flags >= 0)
        fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

static void end_relay(struct stdio_relay *relay) {
    relay->state = RELAY_DONE;
    if (relay->own_from)
        close_fd(&relay->from);
    if (relay->own_to)
        close_fd(&relay->to);
    free(TAKE_PTR(relay->copy));
    relay->copy_at = relay->copy_end = 0;
}

void stdio_relay_init_input(struct stdio_relay *relay, int from, int take_to) {
    /* Copied, not spliced: the guest must not be handed pages of the host's page cache. */
    *relay = (struct stdio_relay){
        .from = from, .to = take_to, .own_to = true, .piece = COPY_SIZE, .limit = UINT64_MAX
    };
    set_nonblocking(take_to);
}

void stdio_relay_init_output(struct stdio_relay *relay, int take_from, int to, uint64_t limit) {
    *relay = (struct stdio_relay){ .from = take_from, .to = to, .own_from = true, .limit = limit };
    set_nonblocking(take_from);
    relay->splice = to >= 0 && is_type(to, S_IFIFO);
    /* Poll promises room for PIPE_BUF bytes at most places that can block; a regular file never
     * blocks for long. */
    relay->piece = to >= 0 && !is_type(to, S_IFREG) ? PIPE_BUF : COPY_SIZE;
}

void stdio_relay_poll(const struct stdio_relay *relay, struct pollfd *ret_poll) {
    switch (relay->state) {
    case RELAY_WAIT_INPUT:
        *ret_poll = (struct pollfd){ .fd = relay->from, .events = POLLIN };
        break;
    case RELAY_WAIT_OUTPUT:
        *ret_poll = (struct pollfd){ .fd = relay->to, .events = POLLOUT };
        break;
    case RELAY_DONE:
        *ret_poll = (struct pollfd){ .fd = -1 };
        break;
    }
}

/* After a failed call: true if it may be tried again later. Else the stream has ended (EPIPE: its
 * reader is gone). */
static bool can_wait(struct stdio_relay *relay) {
    if (errno == EAGAIN || errno == EINTR)
        return true;
    if (errno == EPIPE)
        relay->broken = true;
    else
        relay->error = errno;
    end_relay(relay);
    return false;
}

/* The limit is reached: anything more is too much. */
static void at_limit(struct stdio_relay *relay) {
    int waiting = 0;

    if (ioctl(relay->from, FIONREAD, &waiting) == 0 && waiting > 0) {
        relay->over = true;
        end_relay(relay);
        return;
    }
    char byte;
    ssize_t n = read(relay->from, &byte, 1);
    if (n > 0)
        relay->over = true;
    if (n >= 0 || !(errno == EAGAIN || errno == EINTR))
        end_relay(relay);
    else
        relay->state = RELAY_WAIT_INPUT;
}

/* Reads from a terminal, and puts the command's part into `copy`. As read(). */
static ssize_t read_keys(struct stdio_relay *relay, size_t want) {
    char typed[1024];
    ssize_t n = read(relay->from, typed, MIN(want, sizeof typed));

    relay->copy_end = n > 0 ? keys_filter(relay->keys, typed, (size_t)n, relay->copy) : 0;
    return n;
}

static void keep_tail(struct stdio_relay *relay, const char *data, size_t length) {
    size_t new = MIN(length, sizeof relay->tail),
           old = MIN(relay->tail_length, sizeof relay->tail - new);

    memmove(relay->tail, relay->tail + relay->tail_length - old, old);
    memcpy(relay->tail + old, data + length - new, new);
    relay->tail_length = old + new;
}

/* Reads as much as fits; true if there is data to write now. */
static bool fill_buffer(struct stdio_relay *relay) {
    size_t want = (size_t)MIN((uint64_t)relay->piece, relay->limit - relay->passed);
    ssize_t n;

    if (relay->to < 0) {
        void *at = buf_reserve(&relay->collected, want);

        if (!at) {
            errno = ENOMEM;
            can_wait(relay);
            return false;
        }
        n = read(relay->from, at, want);
    } else {
        if (!relay->copy && !(relay->copy = malloc(relay->piece + MAX_KEYS))) {
            errno = ENOMEM;
            can_wait(relay);
            return false;
        }
        n = relay->keys ? read_keys(relay, want) : read(relay->from, relay->copy, want);
        if (n > 0 && !relay->keys)
            keep_tail(relay, relay->copy, (size_t)n);
    }
    if (n < 0) {
        if (can_wait(relay))
            relay->state = RELAY_WAIT_INPUT;
        return false;
    }
    if (n == 0) {
        end_relay(relay);
        return false;
    }
    relay->passed += (uint64_t)n;
    if (relay->keys && !relay->copy_end)
        return false; /* every key of it was held back */
    if (relay->to < 0) {
        relay->collected.length += (size_t)n;
        return false;
    }
    relay->copy_at = 0;
    if (!relay->keys)
        relay->copy_end = (size_t)n;
    return true;
}

/* Writes the data in one piece. */
static void drain_buffer(struct stdio_relay *relay) {
    ssize_t n = write(relay->to, relay->copy + relay->copy_at, relay->copy_end - relay->copy_at);

    if (n < 0) {
        can_wait(relay);
        return;
    }
    relay->copy_at += (size_t)n;
    if (relay->copy_at == relay->copy_end)
        relay->state = RELAY_WAIT_INPUT;
}

static void splice_turn(struct stdio_relay *relay) {
    for (int i = 0; i < TURN; i++) {
        if (relay->passed == relay->limit) {
            at_limit(relay);
            return;
        }
        ssize_t n = splice(relay->from, NULL, relay->to, NULL,
            (size_t)MIN((uint64_t)SPLICE_SIZE, relay->limit - relay->passed),
            SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
        if (n == 0) {
            end_relay(relay);
            return;
        }
        if (n < 0) {
            /* Either side may be the one that is not ready, so begin with the input again. */
            if (can_wait(relay))
                relay->state = RELAY_WAIT_INPUT;
            return;
        }
        relay->passed += (uint64_t)n;
    }
    relay->state = RELAY_WAIT_INPUT;
}

void stdio_relay_ready(struct stdio_relay *relay) {
    if (relay->state == RELAY_WAIT_INPUT) {
        if (relay->passed == relay->limit)
            at_limit(relay);
        else if (relay->to < 0)
            fill_buffer(relay);
        else if (relay->splice)
            relay->state = RELAY_WAIT_OUTPUT;
        else if (fill_buffer(relay))
            relay->state = RELAY_WAIT_OUTPUT;
    } else if (relay->state == RELAY_WAIT_OUTPUT) {
        if (relay->splice)
            splice_turn(relay);
        else
            drain_buffer(relay);
    }
}

void stdio_relay_writers_gone(struct stdio_relay *relay) {
    int waiting = 0;

    if (relay->state == RELAY_WAIT_INPUT &&
        (ioctl(relay->from, FIONREAD, &waiting) < 0 || waiting == 0))
        end_relay(relay);
}

void stdio_relay_done(struct stdio_relay *relay) {
    end_relay(relay);
    buf_done(&relay->collected);
}
