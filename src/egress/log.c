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

#define LAST_LINE 256u /* room that is kept for it */

bool log_wants_requests(const struct box *box) {
    return box->rules->policy->network.log == NET_LOG_REQUESTS;
}

/* The bytes of the log up to which this kind of event is written. */
static uint64_t limit_of(const char *event) {
    if (strcmp(event, "dns") == 0)
        return LOG_MAX_BYTES / 4;
    if (strcmp(event, "refused") == 0 || strcmp(event, "http-refused") == 0)
        return LOG_MAX_BYTES / 2;
    return LOG_MAX_BYTES - LAST_LINE;
}

static void write_line(struct box *box, const char *event, json_t *members, bool is_last) {
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
        return;
    if (!is_last && box->log.bytes + line.length > limit_of(event)) {
        box->log.dropped++;
        return;
    }
    if (fd_write_all(box->log.fd, line.data, line.length) < 0) {
        box->log.dropped++; /* a full disk: the next events are tried again */
        return;
    }
    box->log.bytes += line.length;
}

void log_event(struct box *box, const char *event, const char *format, ...) {
    va_list arguments;

    if (box->log.fd < 0 || box->rules->policy->network.log == NET_LOG_NONE)
        return;
    if (box->log.bytes >= limit_of(event)) {
        box->log.dropped++;
        return;
    }
    va_start(arguments, format);
    json_t *members = json_vpack_ex(NULL, 0, format, arguments);
    va_end(arguments);
    if (members)
        write_line(box, event, members, false);
    else
        box->log.dropped++;
    json_decref(members);
}

void log_done(struct box *box) {
    if (box->log.fd < 0)
        return;
    if (box->log.dropped) {
        json_t *members = json_pack("{s:I}", "dropped", (json_int_t)box->log.dropped);

        write_line(box, "full", members, true);
        json_decref(members);
    }
    close_fd(&box->log.fd);
}
