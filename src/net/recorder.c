/* SPDX-License-Identifier: Apache-2.0 */
#include "net/recorder.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/utf8.h"
#include "net/recording.h"

#define LINE_BYTES (48u << 10) /* of data in one line */

void recorder_init(struct recorder *recorder, int take_fd) {
    *recorder = (struct recorder){ .fd = take_fd };
    /* The ids of two writers, and of a gateway that was started again, must not meet. */
    if (getrandom(&recorder->writer, sizeof recorder->writer, GRND_NONBLOCK) < 0)
        recorder->writer = (uintptr_t)recorder;
    recorder->is_torn = true; /* an earlier writer's last line may be */
}

void recorder_done(struct recorder *recorder) {
    close_fd(&recorder->fd);
}

static const char *next_text(const char *text) {
    return text + strlen(text) + 1;
}

void recorder_set_secrets(struct recorder *recorder, const char *secrets) {
    recorder->secrets = secrets;
    recorder->longest = 0;
    for (const char *name = secrets; name && *name; name = next_text(next_text(name)))
        recorder->longest = MAX(recorder->longest, strlen(next_text(name)));
}

/* 0, or -errno: nothing of the exchange counts then. */
static int write_line(struct recorder *recorder, struct buf *line) {
    off_t size; /* all writes append, so the place that this moves is nobody's */

    buf_add_text(line, "}\n");
    if (buf_failed(line))
        return -ENOMEM;
    size = lseek(recorder->fd, 0, SEEK_END);
    if (size < 0)
        return -errno;
    if ((uint64_t)size + line->length > RECORDING_MAX_BYTES)
        return -EFBIG;
    if (recorder->is_torn) {
        int r = fd_write_all(recorder->fd, "\n", 1);

        if (r < 0)
            return r;
    }
    int r = fd_write_all(recorder->fd, line->data, line->length);
    recorder->is_torn = r < 0;
    return r;
}

static void begin_line(const struct recorded_exchange *exchange, struct buf *line) {
    buf_printf(
        line, "{\"id\":\"%016" PRIx64 "-%" PRIu64 "\"", exchange->recorder->writer, exchange->id);
}

static void end_line(struct recorded_exchange *exchange, struct buf *line) {
    if (write_line(exchange->recorder, line) == 0)
        return;
    exchange->recorder->n_lost++;
    recorder_drop(exchange);
}

/* Masks values of secrets. A tail in which a value may begin is kept until more data comes. */
static size_t mask(const struct recorder *recorder, struct buf *waiting, bool is_last) {
    size_t kept = recorder->longest > 1 && !is_last ? recorder->longest - 1 : 0;

    for (const char *name = recorder->secrets; name && *name; name = next_text(next_text(name))) {
        const char *value = next_text(name);
        size_t length = strlen(value);
        char *at = waiting->data, *end = waiting->data + waiting->length;

        while (length && at && (at = memmem(at, (size_t)(end - at), value, length))) {
            memset(at, '*', length);
            at += length;
        }
    }
    return waiting->length - MIN(kept, waiting->length);
}

static void write_waiting(struct recorded_exchange *exchange, bool is_last) {
    struct buf *waiting = &exchange->waiting;

    if (!exchange->recorder || !waiting->length)
        return;
    if (buf_failed(waiting)) {
        exchange->recorder->n_lost++;
        recorder_drop(exchange);
        return;
    }
    size_t length = mask(exchange->recorder, waiting, is_last);
    for (size_t at = 0; at < length && exchange->recorder; at += LINE_BYTES) {
        auto_buf struct buf line = BUF_INIT;

        begin_line(exchange, &line);
        buf_printf(&line, ",\"%s\":\"", exchange->is_up ? "up" : "down");
        base64_encode(&line, waiting->data + at, MIN(length - at, (size_t)LINE_BYTES));
        buf_add_text(&line, "\"");
        end_line(exchange, &line);
    }
    if (!exchange->recorder)
        return;
    memmove(waiting->data, waiting->data + length, waiting->length - length);
    waiting->length -= length;
    if (!waiting->length)
        buf_done(waiting);
}

void recorder_begin(struct recorded_exchange *exchange, struct recorder *recorder, const char *host,
    uint16_t port, const char *method, const char *target) {
    auto_buf struct buf line = BUF_INIT;

    if (exchange->recorder || exchange->is_over || recorder->fd < 0)
        return;
    *exchange = (struct recorded_exchange){ .recorder = recorder, .id = ++recorder->next };
    begin_line(exchange, &line);
    buf_printf(&line, ",\"begin\":\"%s\",\"host\":", method ? "http" : "stream");
    utf8_json(&line, host, strlen(host));
    buf_printf(&line, ",\"port\":%u", (unsigned)port);
    if (method) {
        buf_add_text(&line, ",\"method\":");
        utf8_json(&line, method, strlen(method));
        buf_add_text(&line, ",\"target\":");
        utf8_json(&line, target, strlen(target));
    }
    end_line(exchange, &line);
}

static void write_member(struct recorded_exchange *exchange, const char *name, const char *value) {
    auto_buf struct buf line = BUF_INIT;

    write_waiting(exchange, true);
    if (!exchange->recorder)
        return;
    begin_line(exchange, &line);
    buf_printf(&line, ",\"%s\":%s", name, value);
    end_line(exchange, &line);
}

void recorder_request(struct recorded_exchange *exchange, const char *digest) {
    char value[160];

    snprintf(value, sizeof value, "\"%.150s\"", digest);
    if (exchange->recorder)
        write_member(exchange, "request", value);
}

void recorder_bytes(
    struct recorded_exchange *exchange, bool is_up, const char *data, size_t length) {
    if (!exchange->recorder || !length)
        return;
    if (is_up != exchange->is_up)
        write_waiting(exchange, true);
    if (!exchange->recorder)
        return;
    exchange->is_up = is_up;
    buf_add(&exchange->waiting, data, length);
    if (exchange->waiting.length >= LINE_BYTES + exchange->recorder->longest)
        write_waiting(exchange, false);
}

void recorder_side_end(struct recorded_exchange *exchange, bool is_up) {
    if (exchange->recorder)
        write_member(exchange, is_up ? "up_end" : "down_end", "true");
}

void recorder_end(struct recorded_exchange *exchange) {
    if (exchange->recorder)
        write_member(exchange, "end", "true");
    recorder_drop(exchange);
}

void recorder_drop(struct recorded_exchange *exchange) {
    buf_done(&exchange->waiting);
    exchange->is_over |= exchange->recorder != NULL;
    exchange->recorder = NULL;
}
