/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/inner_post.h"

#include <string.h>

#include "base/cleanup.h"

struct http_connection *inner_post(struct exchange *exchange, const char *box, const char *rest,
    json_t *take_body, http_inner_done *done, void *userdata) {
    auto_free char *text = json_dumps(take_body, JSON_COMPACT);
    auto_buf struct buf path = BUF_INIT;
    struct http_connection *inner = NULL;

    json_decref(take_body);
    buf_printf(&path, "/v1/sandboxes%s%s%s", *box ? "/" : "", box, rest);
    const struct inner_request request = {
        .method = "POST", .path = path.data, .body = text, .length = text ? strlen(text) : 0
    };
    if (text && !buf_failed(&path))
        inner = exchange->server->inner(exchange, TOKEN_EVERYTHING, &request, done, userdata);
    if (!inner)
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
    return inner;
}

json_t *inner_answer(const struct buf *body) {
    return json_loadb(body->data ? body->data : "", body->length, JSON_ALLOW_NUL, NULL);
}

void inner_pass_on(
    struct exchange *exchange, const char *whole, int status, const struct buf *body) {
    json_t *problem = inner_answer(body);
    const char *code = json_string_value(json_object_get(problem, "code"));
    const char *detail = json_string_value(json_object_get(problem, "detail"));

    if (status < 400) /* the answer broke off */
        status = 502;
    if (!code)
        code = "internal";
    exchange_problem(
        exchange, status, code, "%s: %s", whole, detail ? detail : "the answer broke off");
    json_decref(problem);
}
