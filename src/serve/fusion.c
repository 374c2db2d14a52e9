/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests of SandboxFusion's clients: POST /run_code and GET /v1/ping, with their fields and
 * statuses. The token comes as the password of the address (http://any:TOKEN@HOST/run_code),
 * because these clients know no header for it. Unknown members are ignored, as there.
 *
 * "SandboxError" makes a client try again, so it is for what rollbox could not do.
 */
#include <math.h>
#include <nettle/base64.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "serve/ceilings.h"
#include "serve/command.h"
#include "serve/engine_link.h"
#include "serve/server.h"
#include "serve/traces.h"

#define RUN_TIMEOUT_S 10.0
#define TIMEOUT_MAX_S 86400.0
#define FILES_MAX 512u
#define OUTPUT_MAX (INT64_C(64) << 20)

struct fusion {
    char *argv[3];
    struct rollbox_file *files;
    size_t n_files;
    int64_t timeout_ms;
};

static const struct {
    const char *name, *program, *file;
} languages[] = {
    { "python", "python3", "main.py" },
    { "pytest", "pytest", "test_main.py" },
    { "bash", "bash", "main.sh" },
    { "nodejs", "node", "main.js" },
    { "ruby", "ruby", "main.rb" },
    { "perl", "perl", "main.pl" },
    { "php", "php", "main.php" },
    { "lua", "lua", "main.lua" },
    { "R", "Rscript", "main.R" },
    { "julia", "julia", "main.jl" },
};

/* Languages that clients may name, and that are not run here yet. */
static const char *const others[] = { "cpp", "go", "go_test", "java", "csharp", "typescript", "sql",
    "rust", "cuda", "D_ut", "scala", "junit", "kotlin_script", "jest", "verilog", "python_gpu",
    "lean", "swift", "racket", "python2", "gtest", "react" };

static void free_fusion(void *data) {
    struct fusion *fusion = data;

    if (!fusion)
        return;
    for (size_t i = 1; i < fusion->n_files; i++)
        free((void *)(uintptr_t)fusion->files[i].data);
    free(fusion->files);
    free(fusion);
}

static void refuse(struct exchange *exchange, const char *detail) {
    exchange_answer_json(exchange, 422, json_pack("{s:[{s:s}]}", "detail", "msg", detail));
}

static void answer(
    struct exchange *exchange, const char *status, const char *message, json_t *take_run) {
    exchange_answer_json(exchange, 200,
        json_pack("{s:s, s:s, s:n, s:o, s:s, s:{}}", "status", status, "message", message,
            "compile_result", "run_result", take_run ? take_run : json_null(), "executor_pod_name",
            "rollbox", "files"));
}

static json_t *stream_of(const void *data, size_t length) {
    auto_buf struct buf text = BUF_INIT;

    utf8_replace(&text, data, length);
    return json_stringn(text.data ? text.data : "", text.length);
}

static void on_end(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    const struct rollbox_result *result;

    if (rollbox_wait(run, 0, &result) < 0)
        return;
    command_ended(exchange, NULL, result);
    if (result->outcome == ROLLBOX_OUTCOME_ERROR) {
        auto_free char *message = strdup(result->error.message);

        answer(exchange, "SandboxError", message ? message : "", NULL);
        return;
    }
    bool is_timeout = result->outcome == ROLLBOX_OUTCOME_TIMEOUT;
    int code = result->outcome == ROLLBOX_OUTCOME_EXIT     ? result->exit_code
               : result->outcome == ROLLBOX_OUTCOME_SIGNAL ? -result->signal
                                                           : -9;
    json_t *done = json_pack("{s:s, s:f, s:o, s:o, s:o}", "status",
        is_timeout ? "TimeLimitExceeded" : "Finished", "execution_time", result->wall_ms / 1000,
        "return_code", is_timeout ? json_null() : json_integer(code), "stdout",
        stream_of(result->stdout_data, result->stdout_length), "stderr",
        stream_of(result->stderr_data, result->stderr_length));
    answer(exchange, code == 0 && !is_timeout ? "Success" : "Failed", "", done);
}

static void on_gone(struct exchange *exchange) {
    if (exchange->run)
        (void)rollbox_kill(exchange->run, ROLLBOX_OUTCOME_ERROR);
    exchange_done(exchange);
}

static void start(struct exchange *exchange, struct rollbox_plan *plan) {
    const json_t *input = json_object_get(exchange->body, "stdin");
    struct fusion *fusion = exchange->data;
    struct rollbox_error error = { .code = ROLLBOX_OK };
    const struct rollbox_run_options options = { .size = sizeof options,
        .argv = (const char *const *)fusion->argv,
        .stdin_data = json_string_length(input) ? json_string_value(input) : NULL,
        .stdin_length = json_string_length(input),
        .files = fusion->files,
        .n_files = fusion->n_files,
        .timeout_ms = fusion->timeout_ms,
        .output_limit = OUTPUT_MAX,
        .callback = on_end,
        .userdata = exchange };

    traces_command_begins(exchange);
    if (rollbox_start(exchange->link->engine, plan, &options, &exchange->run, &error) < 0)
        answer(exchange, "SandboxError", error.message, NULL);
}

/* A content of null is skipped. False: it is malformed. */
static bool add_file(struct fusion *fusion, const char *path, const json_t *content) {
    struct rollbox_file *file = &fusion->files[fusion->n_files];
    struct base64_decode_ctx context;
    size_t length = json_string_length(content), n = BASE64_DECODE_LENGTH(length);
    uint8_t *bytes;

    if (json_is_null(content))
        return true;
    if (!json_is_string(content))
        return false;
    bytes = malloc(n + 1);
    if (!bytes)
        return false;
    base64_decode_init(&context);
    if (!base64_decode_update(&context, &n, bytes, length, json_string_value(content)) ||
        !base64_decode_final(&context)) {
        free(bytes);
        return false;
    }
    *file = (struct rollbox_file){ .path = path, .data = bytes, .length = n };
    fusion->n_files++;
    return true;
}

static const char *read_limits(struct exchange *exchange, struct fusion *fusion) {
    const json_t *timeout = json_object_get(exchange->body, "run_timeout");
    const json_t *memory = json_object_get(exchange->body, "memory_limit_MB");
    double seconds = timeout ? json_number_value(timeout) : RUN_TIMEOUT_S;

    if ((timeout && !json_is_number(timeout)) || !(seconds > 0) || seconds > TIMEOUT_MAX_S)
        return "run_timeout must be a number of seconds";
    if (memory && !json_is_number(memory))
        return "memory_limit_MB must be a number";
    fusion->timeout_ms = (int64_t)ceil(seconds * 1000);
    if (json_number_value(memory) > 0)
        json_object_set_new(exchange->body, "policy",
            json_pack("{s:I}", "max_memory",
                (json_int_t)(MIN(json_number_value(memory), 1e6) * (1 << 20))));
    else
        json_object_del(exchange->body, "policy");
    return NULL;
}

static const char *read_files(struct exchange *exchange, struct fusion *fusion) {
    json_t *files = json_object_get(exchange->body, "files"), *content;
    const char *path;

    if (files && !json_is_object(files) && !json_is_null(files))
        return "files must be an object";
    if (json_object_size(files) > FILES_MAX)
        return "there are too many files";
    fusion->files = calloc(json_object_size(files) + 1, sizeof *fusion->files);
    if (!fusion->files)
        return "the server is out of memory";
    fusion->files[fusion->n_files++] = (struct rollbox_file){ .path = fusion->argv[1],
        .data = json_string_value(json_object_get(exchange->body, "code")),
        .length = json_string_length(json_object_get(exchange->body, "code")) };
    json_object_foreach(files, path, content) {
        if (!add_file(fusion, path, content))
            return "files must be base64 or null";
    }
    return NULL;
}

/* 1: it is run here; 0: not yet; -1: there is no such language. */
static int read_language(struct fusion *fusion, const char *language) {
    for (size_t i = 0; i < ARRAY_SIZE(languages); i++)
        if (!strcmp(languages[i].name, language)) {
            fusion->argv[0] = (char *)(uintptr_t)languages[i].program;
            fusion->argv[1] = (char *)(uintptr_t)languages[i].file;
            return 1;
        }
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        if (!strcmp(others[i], language))
            return 0;
    return -1;
}

void handle_fusion_run(struct exchange *exchange) {
    const char *language = json_string_value(json_object_get(exchange->body, "language"));
    struct fusion *fusion = calloc(1, sizeof *fusion);
    const char *fault = NULL;

    if (!fusion) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    exchange->data = fusion;
    exchange->free_data = free_fusion;
    exchange->gone = on_gone;
    int known = language ? read_language(fusion, language) : -1;
    if (known < 0)
        fault = "language is missing or not known";
    else if (!json_is_string(json_object_get(exchange->body, "code")))
        fault = "code must be a string";
    if (!fault)
        fault = read_limits(exchange, fusion);
    if (!fault && known > 0)
        fault = read_files(exchange, fusion);
    if (fault)
        refuse(exchange, fault);
    else if (!known)
        answer(exchange, "SandboxError", "this language is not run by rollbox yet", NULL);
    else if (json_array_size(json_object_get(exchange->body, "fetch_files")))
        answer(exchange, "SandboxError", "rollbox does not fetch files yet", NULL);
    else if (ceilings_allow_time(exchange, fusion->timeout_ms))
        policies_prepare(exchange, ADMISSION_RUN, start);
}

void handle_fusion_ping(struct exchange *exchange) {
    exchange_answer(exchange, 200, "\"pong\"", NULL);
}
