/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the commands share that run one: its streams, relayed until it has ended, and its result.
 *
 * Each has a loop of its own, whose turns end in pump_wait.
 */
#ifndef ROLLBOX_CLI_PUMP_H
#define ROLLBOX_CLI_PUMP_H

#include <rollbox/rollbox.h>

#include "cli/relay.h"

struct options;

enum stream { STREAM_IN, STREAM_OUT, STREAM_ERR, N_STREAMS };

struct pump {
    struct rollbox_engine *engine;
    struct relay relays[N_STREAMS];
    int signal_fd;              /* of signals_catch; -EBADF: none */
    bool signalled;             /* by pump_signalled */
    bool ended;                 /* the command has: by pump_on_end */
};

/* Without streams. */
void pump_init(struct pump *pump, struct rollbox_engine *engine);
void pump_done(struct pump *pump);

/* Catches signals. 0, or an exit status after a line. */
int pump_catch_signals(struct pump *pump, const struct options *options);

/* A pipe for one of the streams, relayed from standard input, or to `to` as far as `limit` (see relay_init_output). 0 and the command's end of it, the caller's; or an exit status after a line. */
int pump_open(struct pump *pump, const struct options *options, enum stream stream, int to, uint64_t limit, int *ret_theirs);

/* The callback of the command, whose userdata is the pump. */
void pump_on_end(struct rollbox_run *run, void *pump);

/* True once: a signal was caught. */
bool pump_signalled(struct pump *pump);

/* The command has ended, and all of its output is where it belongs. */
bool pump_is_over(const struct pump *pump);

/* Waits until one of the streams can go on, which it then does, the engine has news, a signal comes that was not seen yet, or `other` (-EBADF: none) is readable: then true. */
bool pump_wait(struct pump *pump, int other);

/* What came of the command. 0, or an exit status: after a line, if the streams or the result were lost; without one, if a signal was caught. */
int pump_result(const struct pump *pump, const struct options *options, struct rollbox_run *run, const struct rollbox_result **ret_result);

#endif
