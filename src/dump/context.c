/* SPDX-License-Identifier: Apache-2.0 */
/* The basis of a dump: refusals with a reason, reading of /proc, and adding to the tables and pages
 * of the image. */
#include "dump/context.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"

/* Buffered pages; a larger buffer costs page faults of its own. */
#define MAX_KEPT_BACK (64u << 10)

int dump_refuse(struct dump *c, int error_number, const char *format, ...) {
    enum rollbox_error_code code = error_number == ENOTSUP
                                       ? ROLLBOX_ERR_FEATURE_MISSING
                                       : error_code_of(error_number, ROLLBOX_ERR_SETUP_FAILED);
    const struct dump_process *s = c->current;
    char what[400], who[64] = "the processes";
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (s) {
        const unsigned pid = s->inner_pid ? s->inner_pid : (unsigned)s->pid;
        snprintf(who, sizeof who, "process %u (%.15s)", pid, s->name[0] ? s->name : "?");
    }
    return error_set(
        c->error, code, error_number, "snapshot", "%s cannot be checkpointed: %s", who, what);
}

int dump_fail(struct dump *c, const char *what, int negative_errno) {
    return dump_refuse(c, -negative_errno, "%s: %s", what, strerror(-negative_errno));
}

int dump_read(struct dump *c, const struct dump_process *s, const char *name, struct buf *to) {
    auto_close int fd = openat(s->proc, name, O_RDONLY | O_CLOEXEC);

    (void)c;
    return fd < 0 ? -errno : fd_read_all(fd, DUMP_MAX_TEXT, to);
}

bool dump_has_other_root(const struct dump_process *s) {
    char target[2];

    return readlinkat(s->proc, "root", target, sizeof target) > 1;
}

const char *dump_field(const char *text, const char *name) {
    const char *at = strstr(text, name);

    return at ? at + strlen(name) : "";
}

uint32_t dump_innermost(const char *text, const char *name) {
    const char *line = dump_field(text, name), *end = line + strcspn(line, "\n");

    while (end > line && end[-1] != '\t')
        end--;
    return (uint32_t)strtoul(end, NULL, 10);
}

uint64_t dump_text(struct dump *c, const char *text) {
    const char *end = c->texts.data + c->texts.length;

    for (const char *known = c->texts.data; known < end; known += strlen(known) + 1)
        if (!strcmp(known, text))
            return (uint64_t)(known - c->texts.data);
    uint64_t at = c->texts.length;
    buf_add(&c->texts, text, strlen(text) + 1);
    return at;
}

uint64_t dump_blob(struct dump *c, const void *data, size_t length) {
    static const char nothing[64];
    uint64_t at = c->blobs.length;

    buf_add(&c->blobs, data, length);
    buf_add(&c->blobs, nothing, (64 - length % 64) % 64);
    return at;
}

struct image_range dump_range(const struct buf *table, size_t before, size_t entry_size) {
    return (
        struct image_range){ (uint32_t)before, (uint32_t)(table->length / entry_size - before) };
}

int dump_flush(struct dump *c) {
    int r = fd_write_all(c->fd, c->written.data, c->written.length);

    c->written.length = 0;
    return r;
}

/* Many are a page or two. */
int dump_put(struct dump *c, const void *pages, size_t length) {
    int r = c->written.length + length > MAX_KEPT_BACK ? dump_flush(c) : 0;

    if (r < 0)
        return r;
    c->saved += length;
    if (length > MAX_KEPT_BACK)
        return fd_write_all(c->fd, pages, length);
    buf_add(&c->written, pages, length);
    return buf_failed(&c->written) ? -ENOMEM : 0;
}
