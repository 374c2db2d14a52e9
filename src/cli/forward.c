/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox forward: leads connections of this host to a server in a sandbox.
 *
 * Each connection has a child of its own, which moves the bytes and ends with it. The parent asks
 * for the connection inside, because a library handle belongs to the process that opened it.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/session.h"
#include "policy/publish.h"

#define PIECE 65536
#define BACKLOG 64

/* One direction of a connection. Bytes that were read wait here until they are written. */
struct direction {
    int from, to;
    size_t at, end;
    bool has_ended; /* `from` has ended, and everything is written */
    char bytes[PIECE];
};

/* ---- moving bytes ---- */

static void end_direction(struct direction *d) {
    d->has_ended = true;
    (void)shutdown(d->to, SHUT_WR);
}

static void move_bytes(struct direction *d) {
    ssize_t n;

    if (d->at == d->end) {
        n = read(d->from, d->bytes, sizeof d->bytes);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            end_direction(d);
            return;
        }
        d->at = 0;
        d->end = (size_t)n;
    }
    n = write(d->to, d->bytes + d->at, d->end - d->at);
    if (n > 0)
        d->at += (size_t)n;
    else if (n < 0 && errno != EAGAIN && errno != EINTR)
        end_direction(d);
}

static bool is_waiting(const struct direction *d) {
    return !d->has_ended && d->at == d->end;
}

static short wanted_events(const struct direction *in, const struct direction *out) {
    return (short)((is_waiting(in) ? POLLIN : 0) |
                   (!out->has_ended && out->at < out->end ? POLLOUT : 0));
}

/* Until both directions have ended; with `stops_early`, until the server has sent everything. */
static void relay(int outside, int outside_out, int inside, bool stops_early) {
    static struct direction up, down;

    up = (struct direction){ .from = outside, .to = inside };
    down = (struct direction){ .from = inside, .to = outside_out };
    while (!down.has_ended || (!up.has_ended && !stops_early)) {
        struct pollfd events[3] = { { inside, wanted_events(&down, &up), 0 },
            { outside, is_waiting(&up) ? POLLIN : 0, 0 },
            { outside_out, !down.has_ended && down.at < down.end ? POLLOUT : 0, 0 } };

        for (size_t i = 0; i < ARRAY_SIZE(events); i++)
            if (!events[i].events)
                events[i].fd = -1;
        if (poll(events, ARRAY_SIZE(events), -1) < 0 && errno != EINTR)
            return;
        if (!up.has_ended && (events[0].revents || events[1].revents))
            move_bytes(&up);
        if (!down.has_ended && (events[0].revents || events[2].revents))
            move_bytes(&down);
    }
}

/* ---- listening ---- */

static void print_address(
    const struct options *options, int listener, const char *name, const char *port) {
    struct publish_address address = { .length = sizeof address.local };
    char text[PUBLISH_ADDRESS_TEXT];

    (void)getsockname(listener, &address.any, &address.length);
    (void)publish_address_text(&address, text);
    if (options_has(options, OPTION_JSON))
        printf("{\"address\": \"%s\", \"sandbox\": \"%s\", \"port\": %s}\n", text, name, port);
    else
        printf("%s leads to port %s of %s\n", text, port, name);
    fflush(stdout);
}

static int open_listener(const struct options *options, const char *text, int *ret_listener) {
    struct publish_address address;
    const int on = 1;

    if (publish_parse_address(text, &address) < 0)
        return cli_fail(options,
            "--listen %s: must be PORT, ADDRESS:PORT, the path of a socket with a /, or -", text);
    auto_close int listener = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener >= 0 && address.any.sa_family != AF_UNIX)
        (void)setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    mode_t before = umask(077); /* a Unix socket is for its owner alone */
    int r = listener < 0 || bind(listener, &address.any, address.length) < 0 ||
                    listen(listener, BACKLOG) < 0
                ? -errno
                : 0;
    umask(before);
    if (r < 0)
        return cli_fail_code(
            options, ROLLBOX_ERR_IO, "--listen %s: cannot listen there: %s", text, strerror(-r));
    *ret_listener = TAKE_FD(listener);
    return 0;
}

/* ---- the command ---- */

struct forward {
    const struct options *options;
    struct rollbox_sandbox *sandbox;
    unsigned port;
};

/* A child for one connection. The parent continues. */
static void serve_connection(const struct forward *forward, int outside) {
    struct rollbox_error error;
    auto_close int inside = -EBADF;

    if (rollbox_connect(forward->sandbox, forward->port, &inside, &error) < 0) {
        (void)cli_fail_error(forward->options, &error);
        return; /* the other side sees the end */
    }
    if (fork() == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)fcntl(outside, F_SETFL, O_NONBLOCK);
        relay(outside, outside, inside, false);
        _exit(0);
    }
}

static int serve_listener(const struct forward *forward, int listener) {
    for (;;) {
        auto_close int outside = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

        if (outside >= 0)
            serve_connection(forward, outside);
        else if (errno != EINTR && errno != ECONNABORTED)
            return cli_fail_code(forward->options, ROLLBOX_ERR_IO, "cannot accept a connection: %s",
                strerror(errno));
    }
}

static int forward_standard_streams(const struct forward *forward) {
    struct rollbox_error error;
    auto_close int inside = -EBADF;

    if (rollbox_connect(forward->sandbox, forward->port, &inside, &error) < 0)
        return cli_fail_error(forward->options, &error);
    relay(STDIN_FILENO, STDOUT_FILENO, inside, true);
    return 0;
}

int cmd_forward(const struct options *options) {
    const char *listen = options_text(options, OPTION_LISTEN), *end = options->rest[1];
    struct rollbox_engine *engine = NULL;
    struct forward forward = { .options = options };
    auto_close int listener = -EBADF;
    unsigned long port = strtoul(options->rest[1], (char **)&end, 10);

    if (*end || port < 1 || port > 65535)
        return cli_fail(options, "%s: must be a port from 1 to 65535", options->rest[1]);
    forward.port = (unsigned)port;
    bool is_standard = listen && strcmp(listen, "-") == 0;
    int r = session_open(options, &engine, &forward.sandbox);
    if (r == 0 && !is_standard)
        r = open_listener(options, listen ? listen : "127.0.0.1:0", &listener);
    if (r == 0) {
        (void)signal(SIGCHLD, SIG_IGN);
        (void)signal(SIGPIPE, SIG_IGN);
        if (!is_standard)
            print_address(options, listener, options->rest[0], options->rest[1]);
        r = is_standard ? forward_standard_streams(&forward) : serve_listener(&forward, listener);
    }
    rollbox_sandbox_free(forward.sandbox);
    rollbox_engine_close(engine);
    return r;
}
