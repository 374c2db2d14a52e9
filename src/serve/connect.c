/* SPDX-License-Identifier: Apache-2.0 */
/* Messages and errors of the Connect protocol; connect.h has the model. */
#include "serve/connect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"

int connect_take(struct buf *in, json_t **ret_message) {
    while (in->length >= CONNECT_HEAD) {
        const uint8_t *head = (const uint8_t *)in->data;
        size_t length =
            (size_t)head[1] << 24 | (size_t)head[2] << 16 | (size_t)head[3] << 8 | (size_t)head[4];
        unsigned flags = head[0];

        if (length > CONNECT_MESSAGE_MAX || flags & ~CONNECT_END)
            return -EBADMSG;
        if (in->length - CONNECT_HEAD < length)
            return 0;
        json_t *message = length && !(flags & CONNECT_END)
                              ? json_loadb(in->data + CONNECT_HEAD, length,
                                    JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL)
                              : json_object();
        in->length -= CONNECT_HEAD + length;
        memmove(in->data, in->data + CONNECT_HEAD + length, in->length);
        if (!json_is_object(message)) {
            json_decref(message);
            return -EBADMSG;
        }
        if (!(flags & CONNECT_END)) {
            *ret_message = message;
            return 1;
        }
        json_decref(message);
    }
    return 0;
}

void connect_add(struct buf *to, unsigned flags, json_t *take_message) {
    char *text = json_dumps(take_message, JSON_COMPACT);
    size_t length = text ? strlen(text) : 0;
    const uint8_t head[CONNECT_HEAD] = { (uint8_t)flags, (uint8_t)(length >> 24),
        (uint8_t)(length >> 16), (uint8_t)(length >> 8), (uint8_t)length };

    buf_add(to, head, sizeof head);
    if (text)
        buf_add(to, text, length);
    free(text);
    json_decref(take_message);
}

const char *connect_code(const char *code, int errno_value, int *ret_status) {
    static const struct {
        const char *own, *code;
        int status;
    } rows[] = {
        { "not_found", "not_found", 404 },
        { "path_not_found", "not_found", 404 },
        { "lease_expired", "not_found", 404 },
        { "token_invalid", "unauthenticated", 401 },
        { "user_unknown", "unauthenticated", 401 },
        { "path_denied", "permission_denied", 403 },
        { "scope_missing", "permission_denied", 403 },
        { "policy_forbidden", "permission_denied", 403 },
        { "quota_exceeded", "resource_exhausted", 429 },
        { "resource_exhausted", "resource_exhausted", 429 },
        { "host_out_of_memory", "resource_exhausted", 429 },
        { "engine_lost", "unavailable", 503 },
        { "draining", "unavailable", 503 },
        { "feature_missing", "unimplemented", 501 },
        { "cancelled", "canceled", 499 },
        { "conflict", "aborted", 409 },
        { "guest_interfered", "aborted", 409 },
        { "deadline_exceeded", "deadline_exceeded", 504 },
        { "internal", "internal", 500 },
        { "protocol", "internal", 500 },
        { "setup_failed", "internal", 500 },
        { "io", "internal", 500 },
    };

    *ret_status = 400;
    if (errno_value == EEXIST) {
        *ret_status = 409;
        return "already_exists";
    }
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (!strcmp(rows[i].own, code)) {
            *ret_status = rows[i].status;
            return rows[i].code;
        }
    return "invalid_argument";
}

json_t *connect_error(const char *code, const char *message) {
    auto_buf struct buf clean = BUF_INIT;

    utf8_replace(&clean, message, strlen(message));
    return json_pack("{s:s, s:s}", "code", code, "message", clean.data ? clean.data : "");
}
