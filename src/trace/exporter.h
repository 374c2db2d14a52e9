/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of spans out of a process: lines that are collected, and sent over a socket to
 * rollbox-otlp, which speaks to the collector. Nothing here waits: what the socket has no room for
 * is dropped and counted, so a collector that is slow or gone costs no more than writing the lines.
 *
 * OpenTelemetry's variables configure it: see docs/reference/environment.md.
 */
#ifndef ROLLBOX_TRACE_EXPORTER_H
#define ROLLBOX_TRACE_EXPORTER_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/buf.h"
#include "trace/span.h"

/* A message is sent when it has this many bytes. The socket takes a few. */
#define TRACE_MESSAGE_BYTES ((size_t)24 << 10)

/* What rollbox-otlp tells back, in one message. */
struct trace_report {
    uint64_t exported, dropped; /* spans since its start */
};

struct trace_exporter {
    int socket;         /* -EBADF: there is none */
    struct buf pending; /* lines */
    unsigned n_pending;
    pid_t child;              /* 0: not this process's child */
    uint64_t dropped;         /* here, and with a rollbox-otlp that was killed */
    uint64_t exported_before; /* by those that have ended */
    uint64_t n_sent;          /* to the present one */
    struct trace_report report;
};

/* Whether the environment names a collector. */
bool trace_exporter_wanted(void);
/* Starts rollbox-otlp from the directory of this program, or as installed or found. 0 or -errno.
 * `exporter` is initialised either way. */
int trace_exporter_start(struct trace_exporter *exporter);
/* The same in two steps: starts the program with its end of the socket (the pid, or -errno), and
 * takes the other end. */
pid_t trace_exporter_spawn(int input);
int trace_exporter_adopt(struct trace_exporter *exporter, int take_socket);
/* The program has ended. Spans that it had and had not reported count as dropped. */
void trace_exporter_lost(struct trace_exporter *exporter);
void trace_exporter_add(struct trace_exporter *exporter, const struct trace_span *span);
/* Sends what is pending. */
void trace_exporter_flush(struct trace_exporter *exporter);
/* Reads the latest report; false: the exporter has ended. */
bool trace_exporter_read(struct trace_exporter *exporter);
/* Sends the rest, and waits at most so long until rollbox-otlp has sent it on: a service manager
 * kills that with this process. */
void trace_exporter_finish(struct trace_exporter *exporter, int wait_ms);
/* Sends the rest. rollbox-otlp ends by itself when it is sent on. */
void trace_exporter_done(struct trace_exporter *exporter);

#endif
