/* SPDX-License-Identifier: Apache-2.0 */
/* Answers to E2B's clients that are not the server's own form. */
#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "serve/connect.h"
#include "serve/e2b.h"

struct e2b_box *e2b_of(struct exchange *exchange) {
    if (exchange->box && exchange->box->e2b)
        return exchange->box->e2b;
    exchange_problem(exchange, 404, "not_found", "the sandbox was not found");
    return NULL;
}

void e2b_refuse(struct exchange *exchange, int status) {
    if (status == 401)
        exchange_problem(exchange, 401, "token_invalid",
            "the sandbox's access token is missing or wrong (X-Access-Token)");
    else
        exchange_problem(exchange, 502, "not_found", "the sandbox was not found");
}

static const char *text_of(const json_t *answer, const char *key) {
    const char *text = json_string_value(json_object_get(answer, key));

    return text ? text : "";
}

/* Control plane and HTTP of the sandbox: {"code": STATUS, "message"}. */
json_t *e2b_control_answer(struct exchange *exchange, int *status, json_t *take_answer) {
    json_t *answer = take_answer;

    (void)exchange;
    if (*status < 400)
        return take_answer;
    const char *code = text_of(take_answer, "code");
    if (!strcmp(code, "path_not_found"))
        *status = 404;
    answer = json_pack("{s:i, s:s}", "code", *status, "message", text_of(take_answer, "detail"));
    json_decref(take_answer);
    return answer;
}

json_t *e2b_envd_answer(struct exchange *exchange, int *status, json_t *take_answer) {
    const int64_t number = json_integer_value(json_object_get(take_answer, "errno"));

    if (*status < 400)
        return take_answer;
    if (number == ENOSPC || number == EDQUOT)
        *status = 507;
    json_t *answer =
        json_pack("{s:s?, s:i, s:s}", "sandboxId", exchange->box ? exchange->box->name : NULL,
            "code", *status, "message", text_of(take_answer, "detail"));
    json_decref(take_answer);
    return answer;
}

json_t *e2b_connect_answer(struct exchange *exchange, int *status, json_t *take_answer) {
    if (*status < 400)
        return take_answer;
    /* A proxy's answer, not the sandbox's. */
    if (*status == 502 && !exchange->box)
        return e2b_envd_answer(exchange, status, take_answer);
    const char *code = connect_code(text_of(take_answer, "code"),
        (int)json_integer_value(json_object_get(take_answer, "errno")), status);
    json_t *answer = connect_error(code, text_of(take_answer, "detail"));

    json_decref(take_answer);
    return answer;
}
