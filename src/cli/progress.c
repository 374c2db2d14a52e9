/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

#define BAR_WIDTH 24

void progress_init(struct progress *progress, bool bar) {
    *progress = (struct progress){ .bar = bar, .started_ns = clock_now_ns() };
}

uint64_t progress_done(const struct progress *progress) {
    uint64_t done = 0;

    for (int i = 0; i < PROGRESS_OUTCOMES; i++)
        done += progress->outcomes[i];
    return done;
}

static double seconds_of(const struct progress *progress) {
    return (double)(clock_now_ns() - progress->started_ns) / 1e9;
}

static double rate_of(const struct progress *progress) {
    double seconds = seconds_of(progress);

    return seconds > 0 ? (double)progress_done(progress) / seconds : 0;
}

static void add_outcomes(const struct progress *progress, struct buf *to) {
    bool first = true;

    for (int i = 0; i < PROGRESS_OUTCOMES; i++)
        if (progress->outcomes[i]) {
            buf_printf(to, "%s%s %" PRIu64, first ? "" : ", ",
                rollbox_outcome_name((enum rollbox_outcome)i), progress->outcomes[i]);
            first = false;
        }
}

void progress_draw(struct progress *progress) {
    int64_t now = clock_now_ns();
    auto_buf struct buf line = BUF_INIT;
    struct winsize size = { 0 };

    if (!progress->bar ||
        (progress->drawn && now - progress->drawn_ns < (int64_t)PROGRESS_TICK_MS * 1000000))
        return;
    uint64_t done = progress_done(progress) + progress->skipped;
    double rate = rate_of(progress);
    if (progress->total) {
        int filled = (int)(MIN(done, progress->total) * BAR_WIDTH / progress->total);

        buf_printf(&line, "[%.*s%.*s] %" PRIu64 "/%" PRIu64, filled, "########################",
            BAR_WIDTH - filled, "........................", done, progress->total);
    } else {
        buf_printf(&line, "%" PRIu64 " done", done);
    }
    buf_printf(&line, "  %.1f/s", rate);
    if (progress->total > done && rate > 0) {
        uint64_t left = (uint64_t)((double)(progress->total - done) / rate + 0.5);

        if (left >= 3600)
            buf_printf(&line, "  ETA %" PRIu64 ":%02u:%02u", left / 3600,
                (unsigned)(left / 60 % 60), (unsigned)(left % 60));
        else
            buf_printf(&line, "  ETA %u:%02u", (unsigned)(left / 60), (unsigned)(left % 60));
    }
    buf_add_text(&line, "  ");
    add_outcomes(progress, &line);
    if (buf_failed(&line))
        return;
    /* A line that wraps could not be drawn over. */
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 &&
        line.length >= size.ws_col)
        line.length = size.ws_col - 1u;
    fprintf(stderr, "\r%.*s\033[K", (int)line.length, line.data);
    progress->drawn = true;
    progress->drawn_ns = now;
}

void progress_clear(struct progress *progress) {
    if (progress->drawn)
        fputs("\r\033[K", stderr);
    progress->drawn = false;
}

void progress_summary(struct progress *progress, bool interrupted) {
    auto_buf struct buf line = BUF_INIT;
    uint64_t done = progress_done(progress);

    progress_clear(progress);
    buf_printf(&line, "rollbox batch: %s%" PRIu64 " done in %.1f s (%.1f/s)",
        interrupted ? "interrupted: " : "", done, seconds_of(progress), rate_of(progress));
    if (done)
        buf_add_text(&line, ": ");
    add_outcomes(progress, &line);
    if (progress->skipped)
        buf_printf(&line, "; %" PRIu64 " done before", progress->skipped);
    if (progress->retried)
        buf_printf(&line, "; %" PRIu64 " retries", progress->retried);
    if (!buf_failed(&line))
        fprintf(stderr, "%s\n", line.data);
}

void progress_json(const struct progress *progress, bool interrupted, int fd) {
    auto_buf struct buf line = BUF_INIT;

    buf_printf(&line,
        "{\"done\":%" PRIu64 ",\"skipped\":%" PRIu64 ",\"retried\":%" PRIu64
        ",\"seconds\":%.3f,\"rate\":%.3f,\"interrupted\":%s,\"outcomes\":{",
        progress_done(progress), progress->skipped, progress->retried, seconds_of(progress),
        rate_of(progress), interrupted ? "true" : "false");
    for (int i = 0; i < PROGRESS_OUTCOMES; i++)
        buf_printf(&line, "%s\"%s\":%" PRIu64, i ? "," : "",
            rollbox_outcome_name((enum rollbox_outcome)i), progress->outcomes[i]);
    buf_add_text(&line, "}}\n");
    if (!buf_failed(&line))
        fd_write_all(fd, line.data, line.length);
}
