/* SPDX-License-Identifier: Apache-2.0 */
/* What SandboxFusion's clients get. */
#include <signal.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "serve/fusion.h"

void fusion_refuse(struct exchange *exchange, const char *detail) {
    exchange_answer_json(exchange, 422, json_pack("{s:[{s:s}]}", "detail", "msg", detail));
}

void fusion_answer(struct exchange *exchange, const char *status, const char *message,
    json_t *take_compiled, json_t *take_run, json_t *take_files) {
    exchange_answer_json(exchange, 200,
        json_pack("{s:s, s:s, s:o, s:o, s:s, s:o}", "status", status, "message", message,
            "compile_result", take_compiled ? take_compiled : json_null(), "run_result",
            take_run ? take_run : json_null(), "executor_pod_name", "rollbox", "files",
            take_files ? take_files : json_object()));
}

static json_t *stream_of(const void *data, size_t length) {
    auto_buf struct buf text = BUF_INIT;

    utf8_replace(&text, data, length);
    return json_stringn(text.data ? text.data : "", text.length);
}

json_t *fusion_result(const struct rollbox_result *result) {
    bool is_timeout = result->outcome == ROLLBOX_OUTCOME_TIMEOUT;
    int code = -SIGKILL;

    if (result->outcome == ROLLBOX_OUTCOME_EXIT)
        code = result->exit_code;
    else if (result->outcome == ROLLBOX_OUTCOME_SIGNAL)
        code = -result->signal;
    return json_pack("{s:s, s:f, s:o, s:o, s:o}", "status",
        is_timeout ? "TimeLimitExceeded" : "Finished", "execution_time", result->wall_ms / 1000,
        "return_code", is_timeout ? json_null() : json_integer(code), "stdout",
        stream_of(result->stdout_data, result->stdout_length), "stderr",
        stream_of(result->stderr_data, result->stderr_length));
}
