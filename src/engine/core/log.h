/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's log: one line an event, on standard error or in a file.
 *
 *     2026-01-31T12:00:00.123456Z info session sandbox=box-3 op=fork wait=dump created, 2 commands
 *
 * A line has the time (UTC), the level, the module, what the event is about, and a message. As JSON
 * the same are the keys ts, level, module, sandbox, op, wait, run and msg. Nothing is logged by
 * default; then a call costs one comparison. The log is never a reason to fail: a line that cannot
 * be written is dropped and counted.
 *
 * Names and arguments from a policy or a guest are shown without control characters.
 */
#ifndef ROLLBOX_ENGINE_CORE_LOG_H
#define ROLLBOX_ENGINE_CORE_LOG_H

#include <stdbool.h>
#include <stdint.h>

struct buf;

enum log_level {
    LOG_NOTHING,
    LOG_ERROR, /* the engine or a sandbox failed in its task */
    LOG_WARN,  /* something was done in a worse way, or by force */
    LOG_INFO,  /* sandboxes and operations begin and end */
    LOG_DEBUG, /* each change of state */
};

/* The subject of an event. A member that is NULL or 0 is left out. */
struct log_about {
    const char *sandbox; /* its name */
    const char *op;      /* an operation's verb */
    const char *wait;    /* what that waits for */
    uint64_t run;        /* a number of this engine's */
};

/* Of this process. Read only; set by log_open. */
extern enum log_level log_threshold;

/*
 * Begins to log. `path`: a file, which is made with mode 0600 and appended to; "-": standard error;
 * NULL: nowhere. `level`: error, warn, info or debug; NULL: info. `format`: text or json; NULL:
 * text. 0, or -errno: -EINVAL for a level or format that is unknown.
 */
int log_open(const char *path, const char *level, const char *format);
void log_close(void);

void log_write(enum log_level level, const char *module, const struct log_about *about,
    const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Lines by level since the start, and how many were dropped, as members of a JSON object. */
void log_status(struct buf *to);

/* `about` is the initializer of a struct log_about, in parentheses: ABOUT(.sandbox = name). */
#define ABOUT(...) (&(const struct log_about){ __VA_ARGS__ })
#define log_at(level, module, about, ...)                                                          \
    do {                                                                                           \
        if ((level) <= log_threshold)                                                              \
            log_write(level, module, about, __VA_ARGS__);                                          \
    } while (0)

#endif
