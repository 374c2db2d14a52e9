/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/copy_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/signals.h"

void copy_stream_init(struct copy_stream *pump, struct rollbox_engine *engine) {
    *pump = (struct copy_stream){ .engine = engine, .signal_fd = -EBADF };
    for (int i = 0; i < N_STREAMS; i++)
        pump->relays[i] = (struct stdio_relay){ .state = RELAY_DONE, .from = -EBADF, .to = -EBADF };
}

void copy_stream_done(struct copy_stream *pump) {
    for (int i = 0; i < N_STREAMS; i++)
        stdio_relay_done(&pump->relays[i]);
}

int copy_stream_catch_signals(struct copy_stream *pump, const struct options *options) {
    pump->signal_fd = signals_catch();
    return pump->signal_fd < 0
               ? cli_fail(options, "cannot make a pipe: %s", strerror(-pump->signal_fd))
               : 0;
}

int copy_stream_open(struct copy_stream *pump, const struct options *options, enum stream stream,
    int to, uint64_t limit, int *ret_theirs) {
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0)
        return cli_fail(options, "cannot make a pipe: %s", strerror(errno));
    if (stream == STREAM_IN)
        stdio_relay_init_input(&pump->relays[stream], STDIN_FILENO, fds[1]);
    else
        stdio_relay_init_output(&pump->relays[stream], fds[0], to, limit);
    *ret_theirs = fds[stream == STREAM_IN ? 0 : 1];
    return 0;
}

void copy_stream_on_end(struct rollbox_run *run, void *pump) {
    (void)run;
    ((struct copy_stream *)pump)->ended = true;
}

bool copy_stream_signalled(struct copy_stream *pump) {
    bool is_first = !pump->signalled && signals_caught();

    pump->signalled |= is_first;
    return is_first;
}

bool copy_stream_is_over(const struct copy_stream *pump) {
    return pump->ended && pump->relays[STREAM_OUT].state == RELAY_DONE &&
           pump->relays[STREAM_ERR].state == RELAY_DONE;
}

bool copy_stream_wait(struct copy_stream *pump, int other) {
    struct pollfd polls[N_STREAMS + 3];

    for (int i = 0; i < N_STREAMS; i++)
        stdio_relay_poll(&pump->relays[i], &polls[i]);
    /* A caught signal stays readable; only its first sight matters. */
    polls[N_STREAMS] =
        (struct pollfd){ .fd = pump->signalled ? -1 : pump->signal_fd, .events = POLLIN };
    polls[N_STREAMS + 1] =
        (struct pollfd){ .fd = pump->ended ? -1 : rollbox_engine_fd(pump->engine),
            .events = POLLIN };
    polls[N_STREAMS + 2] = (struct pollfd){ .fd = other, .events = POLLIN };
    if (poll(polls, ARRAY_SIZE(polls), -1) < 0)
        return false;
    for (int i = 0; i < N_STREAMS; i++)
        if (polls[i].revents)
            stdio_relay_ready(&pump->relays[i]);
    return polls[N_STREAMS + 2].revents;
}

/* The command saw an end of input that is not the real end. The end is real if the input was not
 * opened for reading (nohup does so), or its terminal is gone. */
static bool input_is_lost(const struct stdio_relay *input) {
    return input->error && input->error != EBADF && !(input->error == EIO && isatty(STDIN_FILENO));
}

int copy_stream_result(const struct copy_stream *pump, const struct options *options,
    struct rollbox_run *run, const struct rollbox_result **ret_result) {
    int r = rollbox_wait(run, -1, ret_result);

    if (r < 0)
        return cli_fail(options, "cannot collect the result: %s", strerror(-r));
    if (signals_caught())
        return CLI_EXIT_ERROR;
    if (input_is_lost(&pump->relays[STREAM_IN]))
        return cli_fail_code(options, ROLLBOX_ERR_IO, "cannot read standard input: %s",
            strerror(pump->relays[STREAM_IN].error));
    for (int i = STREAM_OUT; i <= STREAM_ERR; i++)
        if (pump->relays[i].error)
            return cli_fail(options, "cannot write to standard %s: %s",
                i == STREAM_OUT ? "output" : "error", strerror(pump->relays[i].error));
    return 0;
}
