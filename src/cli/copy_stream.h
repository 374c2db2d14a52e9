/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the commands that run a guest's command: relays its streams until it ends, then takes
 * its result.
 *
 * Each caller has a loop of its own and ends each turn with copy_stream_wait.
 */
#ifndef ROLLBOX_CLI_PUMP_H
#define ROLLBOX_CLI_PUMP_H

#include <rollbox/rollbox.h>

#include "cli/stdio_relay.h"

struct options;

enum stream { STREAM_IN, STREAM_OUT, STREAM_ERR, N_STREAMS };

struct copy_stream {
    struct rollbox_engine *engine;
    struct stdio_relay relays[N_STREAMS];
    int signal_fd;  /* from signals_catch; -EBADF: none */
    bool signalled; /* by copy_stream_signalled */
    bool ended;     /* the command has: by copy_stream_on_end */
};

/* Without streams. */
void copy_stream_init(struct copy_stream *pump, struct rollbox_engine *engine);
void copy_stream_done(struct copy_stream *pump);

/* Catches signals. 0, or an exit status after a line. */
int copy_stream_catch_signals(struct copy_stream *pump, const struct options *options);

/* A pipe for one of the streams, relayed from standard input, or to `to` as far as `limit` (see
 * stdio_relay_init_output). 0 and the command's end of it, the caller's; or an exit status after a
 * line. */
int copy_stream_open(struct copy_stream *pump, const struct options *options, enum stream stream,
    int to, uint64_t limit, int *ret_theirs);

/* The callback of the command, whose userdata is the pump. */
void copy_stream_on_end(struct rollbox_run *run, void *pump);

/* True once: a signal was caught. */
bool copy_stream_signalled(struct copy_stream *pump);

/* The command has ended, and all of its output is where it belongs. */
bool copy_stream_is_over(const struct copy_stream *pump);

/* Waits until one of the streams makes progress, the engine has news, a new signal arrives, or
 * `other` (-EBADF: none) is readable: then true. */
bool copy_stream_wait(struct copy_stream *pump, int other);

/* Collects the command's result. 0, or an exit status: after a line, if the streams or the result
 * were lost; without one, if a signal was caught. */
int copy_stream_result(const struct copy_stream *pump, const struct options *options,
    struct rollbox_run *run, const struct rollbox_result **ret_result);

#endif
