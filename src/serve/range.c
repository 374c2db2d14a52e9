/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of output; range.h has the model. */
#include "serve/range.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool number_of(struct exchange *exchange, const struct http_request *request,
    const char *name, uint64_t *ret) {
    auto_buf struct buf text = BUF_INIT;
    unsigned long long number;
    char rest;

    if (!http_query(request, name, &text))
        return true;
    /* sscanf takes white space and a sign, too. */
    if (!text.data || !is_digit(text.data[0]) || sscanf(text.data, "%llu%c", &number, &rest) != 1) {
        exchange_problem(exchange, 400, "invalid_argument", "%s must be a number of bytes", name);
        return false;
    }
    *ret = number;
    return true;
}

/* One range; more of them, and other units, are ignored as RFC 9110 has it. */
static void read_header(const char *text, struct range *range) {
    unsigned long long from, to;
    char rest;

    if (strncasecmp(text, "bytes=", 6) != 0)
        return;
    text += 6;
    if (text[strspn(text, "0123456789-")] || strstr(text, "--"))
        return;
    if (text[0] == '-') {
        range->is_header = range->is_suffix =
            is_digit(text[1]) && sscanf(text + 1, "%llu%c", &to, &rest) == 1;
        if (range->is_suffix)
            range->length = to;
    } else if (sscanf(text, "%llu-%llu%c", &from, &to, &rest) == 2 && from <= to) {
        range->is_header = true;
        range->offset = from;
        range->length = to - from == UINT64_MAX ? UINT64_MAX : to - from + 1;
    } else if (sscanf(text, "%llu-%c", &from, &rest) == 1) {
        range->is_header = true;
        range->offset = from;
    }
}

bool range_read(struct exchange *exchange, struct range *ret_range) {
    const struct http_request *request = http_request_of(exchange->connection);
    const char *header = http_header(request, "range");
    auto_buf struct buf stream = BUF_INIT;

    *ret_range = (struct range){ .length = UINT64_MAX };
    if (http_query(request, "stream", &stream)) {
        const char *name = stream.data ? stream.data : "";

        ret_range->is_stderr = !strcmp(name, "stderr");
        if (!ret_range->is_stderr && strcmp(name, "stdout") != 0) {
            exchange_problem(exchange, 400, "invalid_argument", "stream must be stdout or stderr");
            return false;
        }
    }
    if (header)
        read_header(header, ret_range);
    return ret_range->is_header || (number_of(exchange, request, "offset", &ret_range->offset) &&
                                       number_of(exchange, request, "length", &ret_range->length));
}

const char *range_stream_name(const struct range *range) {
    if (range->name)
        return range->name;
    return range->is_stderr ? "stderr" : "stdout";
}

bool range_bounds(struct exchange *exchange, const struct range *range, uint64_t total,
    uint64_t *ret_from, uint64_t *ret_to, int *ret_status, struct buf *headers) {
    uint64_t from = range->offset, length = range->length;

    if (range->is_suffix)
        from = total - MIN(total, length);
    if (from > total || (range->is_header && from == total)) {
        exchange_problem(exchange, 416, "request_invalid",
            "the %s has %llu bytes until now, and the part would begin at %llu",
            range_stream_name(range), (unsigned long long)total, (unsigned long long)from);
        return false;
    }
    *ret_from = from;
    *ret_to = from + MIN(length, total - from);
    *ret_status = range->is_header ? 206 : 200;
    buf_printf(headers, "Rollbox-Offset: %llu\r\nRollbox-Next-Offset: %llu\r\n",
        (unsigned long long)from, (unsigned long long)*ret_to);
    if (range->is_header)
        buf_printf(headers, "Content-Range: bytes %llu-%llu/%llu\r\n", (unsigned long long)from,
            (unsigned long long)*ret_to - 1, (unsigned long long)total);
    return true;
}

void range_answer(
    struct exchange *exchange, const struct range *range, const char *data, size_t length) {
    auto_buf struct buf lines = BUF_INIT;
    uint64_t from, to;
    int status;

    buf_printf(&lines, "Request-Id: %s\r\nRollbox-State: ended\r\n", exchange->id);
    if (!range_bounds(exchange, range, length, &from, &to, &status, &lines))
        return;
    struct http_connection *connection = TAKE_PTR(exchange->connection);
    exchange->seen.status = status;
    if (connection)
        *http_data(connection) = NULL;
    exchange_done(exchange);
    if (connection)
        http_reply(connection, status, "application/octet-stream", lines.data, data + from,
            (size_t)(to - from));
}
