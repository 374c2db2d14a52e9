/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/log.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/utf8.h"

#define LAST_LINES 512u /* room that each part keeps for what tells that it is full */

static const char *const kind_names[LOG_KINDS] = { "names", "refusals", "connections", "requests" };

bool log_wants_requests(const struct box *box) {
    return box->rules->policy->network.log == NET_LOG_REQUESTS;
}

static bool has_log(const struct box *box) {
    return box->log.fd >= 0 || box->log.file >= 0;
}

static enum log_kind kind_of(const char *event) {
    if (strcmp(event, "dns") == 0)
        return LOG_NAMES;
    if (strcmp(event, "refused") == 0 || strcmp(event, "http-refused") == 0)
        return LOG_REFUSALS;
    return strcmp(event, "http") == 0 || strcmp(event, "injected") == 0 ? LOG_REQUESTS
                                                                        : LOG_CONNECTIONS;
}

static int write_to(int fd, bool is_torn, const struct buf *line) {
    int r = fd >= 0 && is_torn ? fd_write_all(fd, "\n", 1) : 0;

    return fd < 0 || r < 0 ? r : fd_write_all(fd, line->data, line->length);
}

/* 0, or -errno. -EFBIG: the part is full. */
static int write_line(
    struct box *box, struct log_part *part, const char *event, json_t *members, bool is_last) {
    auto_buf struct buf line = BUF_INIT;
    const char *key;
    json_t *value;

    buf_printf(&line, "{\"t\":%.6f,\"box\":", (double)clock_real_ns() / 1e9);
    utf8_json(&line, box->id, strcspn(box->id, "~")); /* the name; a number follows */
    buf_printf(&line, ",\"event\":\"%s\"", event);
    json_object_foreach(members, key, value) {
        auto_free char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);

        if (text && !json_is_null(value))
            buf_printf(&line, ",\"%s\":%s", key, text);
    }
    buf_add_text(&line, "}\n");
    if (buf_failed(&line))
        return -ENOMEM;
    if (part->bytes + line.length > LOG_KIND_BYTES - (is_last ? 0 : LAST_LINES))
        return -EFBIG;
    int r = write_to(box->log.fd, box->log.is_torn, &line);
    if (r == 0)
        r = write_to(box->log.file, box->log.is_torn, &line);
    box->log.is_torn = r < 0;
    part->bytes += r < 0 ? 0 : line.length; /* a full disk: the next events are tried again */
    return r;
}

static void tell_full(struct box *box, enum log_kind kind) {
    struct log_part *part = &box->log.parts[kind];
    json_t *members = json_pack("{s:s}", "kind", kind_names[kind]);

    part->is_full = true;
    (void)write_line(box, part, "full", members, true);
    json_decref(members);
}

void log_event(struct box *box, const char *event, const char *format, ...) {
    enum log_kind kind = kind_of(event);
    struct log_part *part = &box->log.parts[kind];
    json_t *members = NULL;
    va_list arguments;
    int r = -EFBIG;

    if (!has_log(box) || box->rules->policy->network.log == NET_LOG_NONE)
        return;
    part->events++;
    if (!part->is_full) {
        va_start(arguments, format);
        members = json_vpack_ex(NULL, 0, format, arguments);
        va_end(arguments);
        r = members ? write_line(box, part, event, members, false) : -ENOMEM;
    }
    if (r < 0)
        part->dropped++;
    if (r == -EFBIG && !part->is_full)
        tell_full(box, kind);
    json_decref(members);
}

void log_done(struct box *box) {
    for (enum log_kind kind = 0; has_log(box) && kind < LOG_KINDS; kind++) {
        struct log_part *part = &box->log.parts[kind];

        if (!part->dropped)
            continue;
        json_t *members = json_pack("{s:s, s:I, s:I}", "kind", kind_names[kind], "events",
            (json_int_t)part->events, "dropped", (json_int_t)part->dropped);
        (void)write_line(box, part, "full", members, true);
        json_decref(members);
    }
    close_fd(&box->log.fd);
    close_fd(&box->log.file);
}
