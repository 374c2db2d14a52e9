/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/utf8.h"

static const char *const names[] = { [ROLLBOX_OK] = "ok",
#define NAME(name, number, http, python, text) [number] = #name,
    ROLLBOX_ERRORS(NAME)
#undef NAME
};

#define N_NAMES (sizeof(names) / sizeof(names[0]))

ROLLBOX_PUBLIC const char *rollbox_error_name(enum rollbox_error_code code) {
    /* Spelled in lower case once, at the first call: the table has the C spelling. Racing threads
     * write the same bytes. */
    static char lower[N_NAMES][32];

    if ((size_t)code >= N_NAMES || !names[code])
        return "unknown";
    char *name = lower[code];
    if (!name[0])
        for (size_t i = strlen(names[code]); i-- > 0;) {
            char c = names[code][i];
            name[i] = (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
        }
    return name;
}

/* Adds a hint for a limit that was reached, if the message has none. The limit is the engine's:
 * failures of child processes come with the same hint. */
static void add_hint(struct rollbox_error *error) {
    size_t length = strlen(error->message);
    char *at = error->message + length;
    struct rlimit limit;

    if (strstr(error->message, "ulimit") || strstr(error->message, "fs.file-max"))
        return;
    if (error->error_number == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        snprintf(at, sizeof error->message - length,
            "; all %llu files that a process may have open here are in use: raise the limit "
            "(ulimit -n), or close sandboxes",
            (unsigned long long)limit.rlim_cur);
    else if (error->error_number == ETOOMANYREFS && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        snprintf(at, sizeof error->message - length,
            "; as many descriptors of this user's are under way between processes as may be open "
            "in one, %llu: raise the limit (ulimit -n), or start fewer at a time",
            (unsigned long long)limit.rlim_cur);
    else if (error->error_number == ENFILE)
        snprintf(at, sizeof error->message - length,
            "; the host has no more open files for anybody: raise fs.file-max, or close sandboxes");
}

/* Names that guests chose can be in a message, which programs print unchanged, as an exception's
 * text. */
static void make_shown(struct rollbox_error *error) {
    auto_buf struct buf text = BUF_INIT;

    utf8_shown(&text, error->message, strlen(error->message), "\n\t");
    if (text.length && !buf_failed(&text))
        snprintf(error->message, sizeof error->message, "%.*s",
            (int)MIN(text.length, sizeof error->message - 1), text.data);
}

int error_set(struct rollbox_error *error, enum rollbox_error_code code, int error_number,
    const char *stage, const char *format, ...) {
    if (error) {
        va_list args;

        error->code = code;
        error->error_number = error_number;
        snprintf(error->stage, sizeof error->stage, "%s", stage);
        va_start(args, format);
        vsnprintf(error->message, sizeof error->message, format, args);
        va_end(args);
        make_shown(error);
        add_hint(error);
    }
    return error_number ? -error_number : -EINVAL;
}

enum rollbox_error_code error_code_of(int error_number, enum rollbox_error_code otherwise) {
    switch (error_number) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOSPC:
    case EAGAIN:
    case ETOOMANYREFS:
    case EDQUOT:
    case ENOBUFS:
        return ROLLBOX_ERR_RESOURCE_EXHAUSTED;
    default:
        return otherwise;
    }
}

static const char *const outcome_names[] = {
    [ROLLBOX_OUTCOME_EXIT] = "exit",
    [ROLLBOX_OUTCOME_SIGNAL] = "signal",
    [ROLLBOX_OUTCOME_TIMEOUT] = "timeout",
    [ROLLBOX_OUTCOME_OUT_OF_MEMORY] = "out_of_memory",
    [ROLLBOX_OUTCOME_OUTPUT_LIMIT] = "output_limit",
    [ROLLBOX_OUTCOME_ERROR] = "error",
};

ROLLBOX_PUBLIC const char *rollbox_outcome_name(enum rollbox_outcome outcome) {
    return (size_t)outcome < sizeof(outcome_names) / sizeof(outcome_names[0])
               ? outcome_names[outcome]
               : "unknown";
}
