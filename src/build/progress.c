/* SPDX-License-Identifier: Apache-2.0 */
#include "build/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/utf8.h"

#define MAX_LINE 65536
#define CLEAR "\r\x1b[K"

void progress_init(struct progress *progress, enum progress_form form) {
    if (form == PROGRESS_AUTO)
        form = isatty(STDERR_FILENO) ? PROGRESS_TTY : PROGRESS_PLAIN;
    *progress = (struct progress){ .form = form, .line = BUF_INIT };
}

void progress_done(struct progress *progress) {
    buf_done(&progress->line);
    free(progress->title);
}

static double seconds_since(int64_t began_ns) {
    return (double)(clock_now_ns() - began_ns) / 1e9;
}

/* One line of text, safe on a terminal. */
static void show(struct buf *to, const char *text, size_t length) {
    utf8_shown(to, text, length, "\t");
}

static void write_out(struct buf *text) {
    if (!buf_failed(text))
        (void)fwrite(text->data, 1, text->length, stderr);
    (void)fflush(stderr);
}

static void tell_json(
    const struct progress *progress, const char *state, const char *key, const char *text) {
    auto_buf struct buf out = BUF_INIT;

    buf_printf(&out, "{\"step\": %u, \"name\": ", progress->step);
    json_add_string(&out, text_or(progress->title, ""), text_size(progress->title));
    buf_printf(
        &out, ", \"state\": \"%s\", \"seconds\": %.3f", state, seconds_since(progress->began_ns));
    if (text) {
        buf_printf(&out, ", \"%s\": ", key);
        json_add_string(&out, text, strlen(text));
    }
    buf_add_text(&out, "}\n");
    write_out(&out);
}

void progress_begin(struct progress *progress, const char *title) {
    auto_buf struct buf out = BUF_INIT;

    free(progress->title);
    progress->title = strdup(title);
    progress->step++;
    progress->began_ns = clock_now_ns();
    progress->has_output = false;
    progress->line.length = 0;
    if (progress->form == PROGRESS_QUIET)
        return;
    if (progress->form == PROGRESS_JSON) {
        tell_json(progress, "started", NULL, NULL);
        return;
    }
    buf_printf(&out, "#%u ", progress->step);
    show(&out, title, strlen(title));
    buf_add_text(&out, "\n");
    write_out(&out);
}

static void tell_line(struct progress *progress) {
    auto_buf struct buf out = BUF_INIT;
    struct buf *line = &progress->line;

    while (line->length && line->data[line->length - 1] == '\r')
        line->length--;
    if (progress->form == PROGRESS_JSON) {
        buf_add(line, "", 1);
        if (!buf_failed(line))
            tell_json(progress, "output", "line", line->data);
        line->length = 0;
        return;
    }
    const bool tty = progress->form == PROGRESS_TTY;
    buf_printf(
        &out, "%s#%u %.3f ", tty ? CLEAR : "", progress->step, seconds_since(progress->began_ns));
    show(&out, line->data, tty ? MIN(line->length, (size_t)100) : line->length);
    if (!tty)
        buf_add_text(&out, "\n");
    write_out(&out);
    line->length = 0;
}

void progress_output(struct progress *progress, const char *data, size_t length) {
    if (progress->form == PROGRESS_QUIET)
        return;
    progress->has_output = true;
    while (length) {
        const char *newline = memchr(data, '\n', length);
        size_t n = newline ? (size_t)(newline - data) : length;

        buf_add(&progress->line, data, n);
        if (newline || progress->line.length > MAX_LINE)
            tell_line(progress);
        n += newline != NULL;
        data += n;
        length -= n;
    }
}

void progress_end(struct progress *progress, const char *state) {
    if (progress->line.length)
        tell_line(progress);
    if (progress->form == PROGRESS_QUIET)
        return;
    if (progress->form == PROGRESS_JSON) {
        char lower[16] = "";

        for (size_t i = 0; state[i] && i + 1 < sizeof lower; i++)
            lower[i] = (char)(state[i] + ('a' - 'A'));
        tell_json(progress, lower, NULL, NULL);
        return;
    }
    const char *clear = progress->form == PROGRESS_TTY && progress->has_output ? CLEAR : "";
    if (strcmp(state, "DONE") == 0)
        fprintf(
            stderr, "%s#%u DONE %.1fs\n", clear, progress->step, seconds_since(progress->began_ns));
    else
        fprintf(stderr, "%s#%u %s\n", clear, progress->step, state);
    (void)fflush(stderr);
}

void progress_note(struct progress *progress, const char *format, ...) {
    auto_buf struct buf out = BUF_INIT;
    char text[1000];
    va_list list;

    if (progress->form == PROGRESS_QUIET)
        return;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (progress->form == PROGRESS_JSON) {
        tell_json(progress, "note", "line", text);
        return;
    }
    show(&out, text, strlen(text));
    buf_add_text(&out, "\n");
    write_out(&out);
}
