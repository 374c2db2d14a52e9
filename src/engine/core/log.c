/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/utf8.h"

static const char *const names[] = { "nothing", "error", "warn", "info", "debug" };

enum log_level log_threshold = LOG_NOTHING;

static struct {
    int fd;               /* -EBADF: no log */
    bool is_own, is_json; /* the descriptor is ours to close */
    uint64_t lines[ARRAY_SIZE(names)], dropped;
} drain = { .fd = -EBADF };

static int parse_level(const char *name, enum log_level *ret_level) {
    for (enum log_level level = LOG_ERROR; level <= LOG_DEBUG; level++)
        if (!strcmp(name, names[level])) {
            *ret_level = level;
            return 0;
        }
    return -EINVAL;
}

int log_open(const char *path, const char *level, const char *format) {
    enum log_level threshold = LOG_INFO;
    const bool is_json = format && !strcmp(format, "json");

    if ((level && parse_level(level, &threshold) < 0) ||
        (format && !is_json && strcmp(format, "text") != 0))
        return -EINVAL;
    log_close();
    if (!path)
        return 0;
    if (strcmp(path, "-") != 0) {
        drain.fd =
            open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
        if (drain.fd < 0)
            return -errno;
        drain.is_own = true;
    } else
        drain.fd = STDERR_FILENO;
    drain.is_json = is_json;
    log_threshold = threshold;
    return 0;
}

void log_close(void) {
    if (drain.is_own)
        close(drain.fd);
    drain.fd = -EBADF;
    drain.is_own = false;
    log_threshold = LOG_NOTHING;
}

static void add_time(struct buf *to) {
    struct timespec now;
    struct tm utc;
    char text[32];

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    buf_printf(to, "%s.%06ldZ", text, now.tv_nsec / 1000);
}

static void add_member(struct buf *to, const char *key, const char *value) {
    if (!value)
        return;
    if (drain.is_json) {
        buf_printf(to, ", \"%s\": ", key);
        (void)utf8_json(to, value, strlen(value));
    } else {
        buf_printf(to, " %s=", key);
        utf8_shown(to, value, strlen(value), " ");
    }
}

void log_write(enum log_level level, const char *module, const struct log_about *about,
    const char *format, ...) {
    auto_buf struct buf line = BUF_INIT;
    va_list arguments;
    char text[2048], run[24];

    if (drain.fd < 0 || level > log_threshold)
        return;
    const int error = errno;
    drain.lines[level]++;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(run, sizeof run, "%llu", (unsigned long long)(about ? about->run : 0));
    buf_add_text(&line, drain.is_json ? "{\"ts\": \"" : "");
    add_time(&line);
    buf_printf(&line, drain.is_json ? "\", \"level\": \"%s\", \"module\": \"%s\"" : " %s %s",
        names[level], module);
    if (about) {
        add_member(&line, "sandbox", about->sandbox);
        add_member(&line, "op", about->op);
        add_member(&line, "wait", about->wait);
        add_member(&line, "run", about->run ? run : NULL);
    }
    if (drain.is_json) {
        add_member(&line, "msg", text);
        buf_add_text(&line, "}\n");
    } else {
        buf_add_text(&line, " ");
        utf8_shown(&line, text, strlen(text), "");
        buf_add_text(&line, "\n");
    }
    /* One write, so that lines of engines that share a file stay whole. */
    if (buf_failed(&line) || write(drain.fd, line.data, line.length) != (ssize_t)line.length)
        drain.dropped++;
    errno = error;
}

void log_status(struct buf *to) {
    buf_add_text(to, "\"log\": {");
    for (enum log_level level = LOG_ERROR; level <= LOG_DEBUG; level++)
        buf_printf(to, "\"%s\": %llu, ", names[level], (unsigned long long)drain.lines[level]);
    buf_printf(to, "\"dropped\": %llu}", (unsigned long long)drain.dropped);
}
