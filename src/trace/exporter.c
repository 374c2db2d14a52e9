/* SPDX-License-Identifier: Apache-2.0 */
/* Spans to rollbox-otlp; exporter.h has the model. */
#include "trace/exporter.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "sys/background.h"

#define SOCKET_BYTES (4 << 20) /* the kernel gives what it allows */

static bool is_set(const char *name) {
    const char *value = getenv(name);

    return value && *value;
}

bool trace_exporter_wanted(void) {
    const char *disabled = getenv("OTEL_SDK_DISABLED"), *kind = getenv("OTEL_TRACES_EXPORTER");

    if ((disabled && !strcasecmp(disabled, "true")) || (kind && !strcmp(kind, "none")))
        return false;
    return is_set("OTEL_EXPORTER_OTLP_ENDPOINT") || is_set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
}

/* ---- the program ---- */

static pid_t spawn_as(const char *program, int input) {
    char name[] = "rollbox-otlp", *argv[] = { name, NULL };

    return background_spawn(program, argv, input);
}

/* It outlives this process by its last spans. */
pid_t trace_exporter_spawn(int input) {
    static const char *const places[] = { "rollbox-otlp", "../libexec/rollbox/rollbox-otlp" };
    const char *named = getenv("ROLLBOX_OTLP");
    char self[PATH_MAX];
    pid_t pid = -ENOENT;

    if (named && *named)
        return spawn_as(named, input);
    ssize_t n = readlink("/proc/self/exe", self, sizeof self);
    while (n > 0 && self[n - 1] != '/')
        n--;
    for (size_t i = 0; n > 0 && pid == -ENOENT && i < ARRAY_SIZE(places); i++) {
        auto_buf struct buf path = BUF_INIT;

        buf_add(&path, self, (size_t)n);
        buf_add_text(&path, places[i]);
        if (!buf_failed(&path))
            pid = spawn_as(path.data, input);
    }
    return pid == -ENOENT ? spawn_as("rollbox-otlp", input) : pid;
}

/* At its loss it may not have ended altogether. */
static void collect_child(struct trace_exporter *exporter) {
    if (exporter->child > 0 && waitpid(exporter->child, NULL, WNOHANG) != 0)
        exporter->child = 0;
}

int trace_exporter_adopt(struct trace_exporter *exporter, int take_socket) {
    auto_close int socket = take_socket;
    int bytes = SOCKET_BYTES;

    if (setsockopt(socket, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) < 0)
        (void)setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    if (fcntl(socket, F_SETFL, O_NONBLOCK) < 0)
        return -errno;
    collect_child(exporter);
    exporter->socket = TAKE_FD(socket);
    return 0;
}

int trace_exporter_start(struct trace_exporter *exporter) {
    int pair[2];

    *exporter = (struct trace_exporter){ .socket = -EBADF };
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    auto_close int ours = pair[0], theirs = pair[1];
    pid_t pid = trace_exporter_spawn(theirs);
    int r = pid < 0 ? pid : trace_exporter_adopt(exporter, TAKE_FD(ours));
    if (r >= 0)
        exporter->child = pid;
    return r;
}

/* ---- spans ---- */

void trace_exporter_add(struct trace_exporter *exporter, const struct trace_span *span) {
    if (!span->context.is_sampled)
        return;
    if (exporter->socket < 0) {
        exporter->dropped++;
        return;
    }
    trace_span_write(&exporter->pending, span);
    exporter->n_pending++;
    if (exporter->pending.length >= TRACE_MESSAGE_BYTES)
        trace_exporter_flush(exporter);
}

void trace_exporter_flush(struct trace_exporter *exporter) {
    struct buf *pending = &exporter->pending;

    if (!exporter->n_pending)
        return;
    if (buf_failed(pending) || exporter->socket < 0 ||
        send(exporter->socket, pending->data, pending->length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        exporter->dropped += exporter->n_pending;
    else
        exporter->n_sent += exporter->n_pending;
    exporter->n_pending = 0;
    pending->length = 0;
    pending->failed = false;
}

bool trace_exporter_read(struct trace_exporter *exporter) {
    struct trace_report report;
    ssize_t n;

    while ((n = recv(exporter->socket, &report, sizeof report, MSG_DONTWAIT)) ==
           (ssize_t)sizeof report)
        exporter->report = report;
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

void trace_exporter_lost(struct trace_exporter *exporter) {
    uint64_t exported = MIN(exporter->report.exported, exporter->n_sent);

    exporter->exported_before += exported;
    exporter->dropped += exporter->n_sent - exported;
    exporter->report = (struct trace_report){ .exported = 0 };
    exporter->n_sent = 0;
    collect_child(exporter);
    close_fd(&exporter->socket);
}

void trace_exporter_finish(struct trace_exporter *exporter, int wait_ms) {
    int64_t end_ns = clock_now_ns() + (int64_t)wait_ms * 1000000;
    struct pollfd end = { .fd = exporter->socket, .events = POLLIN };

    trace_exporter_flush(exporter);
    if (exporter->socket >= 0 && shutdown(exporter->socket, SHUT_WR) >= 0)
        for (int64_t left; (left = end_ns - clock_now_ns()) > 0;)
            if (poll(&end, 1, (int)(left / 1000000) + 1) > 0 && !trace_exporter_read(exporter))
                break;
    trace_exporter_done(exporter);
}

void trace_exporter_done(struct trace_exporter *exporter) {
    trace_exporter_flush(exporter);
    close_fd(&exporter->socket);
    buf_done(&exporter->pending);
}
