/* SPDX-License-Identifier: Apache-2.0 */
/* Spans to rollbox-otlp; exporter.h has the model. */
#include "trace/exporter.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"

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

static int spawn_as(const char *program, int input) {
    char name[] = "rollbox-otlp", *argv[] = { name, NULL };
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    pid_t pid;

    sigemptyset(&none);
    if (posix_spawn_file_actions_init(&actions))
        return -ENOMEM;
    if (posix_spawnattr_init(&attributes)) {
        posix_spawn_file_actions_destroy(&actions);
        return -ENOMEM;
    }
    int r = posix_spawn_file_actions_adddup2(&actions, input, 0);
    if (!r)
        r = posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    if (!r)
        r = posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    if (!r)
        r = posix_spawnattr_setsigmask(&attributes, &none);
    /* No signal of a terminal reaches it, and it outlives this process by its last spans. */
    if (!r)
        r = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
    if (!r)
        r = strchr(program, '/')
                ? posix_spawn(&pid, program, &actions, &attributes, argv, environ)
                : posix_spawnp(&pid, program, &actions, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return -r;
}

static int spawn(int input) {
    static const char *const places[] = { "rollbox-otlp", "../libexec/rollbox/rollbox-otlp" };
    const char *named = getenv("ROLLBOX_OTLP");
    char self[PATH_MAX];
    int r = -ENOENT;

    if (named && *named)
        return spawn_as(named, input);
    ssize_t n = readlink("/proc/self/exe", self, sizeof self);
    while (n > 0 && self[n - 1] != '/')
        n--;
    for (size_t i = 0; n > 0 && r == -ENOENT && i < ARRAY_SIZE(places); i++) {
        auto_buf struct buf path = BUF_INIT;

        buf_add(&path, self, (size_t)n);
        buf_add_text(&path, places[i]);
        if (!buf_failed(&path))
            r = spawn_as(path.data, input);
    }
    return r == -ENOENT ? spawn_as("rollbox-otlp", input) : r;
}

int trace_exporter_start(struct trace_exporter *exporter) {
    int pair[2], bytes = SOCKET_BYTES;

    *exporter = (struct trace_exporter){ .socket = -EBADF };
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    auto_close int ours = pair[0], theirs = pair[1];
    if (setsockopt(ours, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) < 0)
        (void)setsockopt(ours, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    int r = spawn(theirs);
    if (r >= 0 && fcntl(ours, F_SETFL, O_NONBLOCK) < 0)
        r = -errno;
    if (r >= 0)
        exporter->socket = TAKE_FD(ours);
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

void trace_exporter_done(struct trace_exporter *exporter) {
    trace_exporter_flush(exporter);
    close_fd(&exporter->socket);
    buf_done(&exporter->pending);
}
