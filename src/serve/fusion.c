/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests of SandboxFusion's clients: POST /run_code and /run_jupyter, and GET /v1/ping, with
 * their fields and statuses. The token comes as the password of the address
 * (http://any:TOKEN@HOST/run_code), because these clients know no header for it. Unknown members
 * are ignored, as there.
 *
 * "SandboxError" makes a client try again, so it is for what rollbox could not do.
 */
#include <math.h>
#include <nettle/base64.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "serve/ceilings.h"
#include "serve/command.h"
#include "serve/engine_link.h"
#include "serve/fusion.h"
#include "serve/traces.h"

#define RUN_TIMEOUT_S 10.0
#define CELLS_TIMEOUT_S 45.0
#define TIMEOUT_MAX_S 86400.0
#define FILES_MAX 512u

static const struct fusion_language languages[] = {
    { "python", "main.py", { NULL }, { "python3", "main.py" } },
    { "python_gpu", "main.py", { NULL }, { "python3", "main.py" } },
    { "python2", "main.py", { NULL }, { "python2", "main.py" } },
    { "pytest", "test_main.py", { NULL }, { "pytest", "test_main.py" } },
    { "bash", "main.sh", { NULL }, { "bash", "main.sh" } },
    { "nodejs", "main.js", { NULL }, { "node", "main.js" } },
    { "typescript", "main.ts", { NULL }, { "tsx", "main.ts" } },
    { "ruby", "main.rb", { NULL }, { "ruby", "main.rb" } },
    { "perl", "main.pl", { NULL }, { "perl", "main.pl" } },
    { "php", "main.php", { NULL }, { "php", "-f", "main.php" } },
    { "lua", "main.lua", { NULL }, { "lua", "main.lua" } },
    { "R", "main.R", { NULL }, { "Rscript", "main.R" } },
    { "julia", "main.jl", { NULL }, { "julia", "main.jl" } },
    { "racket", "main.rkt", { NULL }, { "racket", "main.rkt" } },
    { "lean", "main.lean", { NULL }, { "lean", "main.lean" } },
    { "sql", "main.sql", { NULL }, { "sqlite3", ":memory:", ".read main.sql" } },
    { "kotlin_script", "main.kts", { NULL }, { "kotlinc", "-script", "main.kts" } },
    { "D_ut", "main.d", { NULL }, { "rdmd", "-unittest", "main.d" } },
    { "go_test", "main_test.go", { NULL }, { "go", "test", "main_test.go" } },
    { "c", "main.c", { "gcc", "-std=c17", "-O1", "main.c", "-o", "program", "-lm" },
        { "./program" } },
    { "cpp", "main.cpp", { "g++", "-std=c++17", "-O1", "main.cpp", "-o", "program" },
        { "./program" } },
    { "gtest", "main.cpp",
        { "g++", "-std=c++17", "main.cpp", "-o", "program", "-lgtest", "-lgtest_main", "-pthread" },
        { "./program" } },
    { "go", "main.go", { "go", "build", "-o", "program", "main.go" }, { "./program" } },
    { "rust", "main.rs", { "rustc", "-O", "main.rs", "-o", "program" }, { "./program" } },
    { "java", "Main.java", { "javac", "-cp", ".", "Main.java" },
        { "java", "-ea", "-cp", ".", "Main" } },
    { "scala", "main.scala", { "scalac", "main.scala" }, { "scala", "Main" } },
    { "csharp", "main.cs", { "mcs", "-out:program.exe", "main.cs" }, { "mono", "program.exe" } },
    { "swift", "main.swift", { "swiftc", "main.swift", "-o", "program" }, { "./program" } },
    { "cuda", "main.cu", { "nvcc", "main.cu", "-o", "program" }, { "./program" } },
    { "verilog", "main.sv", { "iverilog", "-g2012", "-o", "program", "main.sv" },
        { "vvp", "-n", "program" } },
};

/* Languages that clients may name, and that need packages of their own: they are not run here. */
static const char *const others[] = { "junit", "jest", "react" };

static void free_fusion(void *data) {
    struct fusion *fusion = data;

    if (!fusion)
        return;
    for (size_t i = fusion->language ? 1 : 0; i < fusion->n_files; i++)
        free((void *)(uintptr_t)fusion->files[i].data);
    free(fusion->files);
    free(fusion->cells);
    fusion_steps_free(fusion->steps);
    free(fusion);
}

static void on_end(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    const struct rollbox_result *result;

    if (rollbox_wait(run, 0, &result) < 0)
        return;
    command_ended(exchange, NULL, result);
    if (result->outcome == ROLLBOX_OUTCOME_ERROR) {
        auto_free char *message = strdup(result->error.message);

        fusion_answer(exchange, "SandboxError", message ? message : "", NULL, NULL, NULL);
        return;
    }
    bool is_success = result->outcome == ROLLBOX_OUTCOME_EXIT && !result->exit_code;
    fusion_answer(
        exchange, is_success ? "Success" : "Failed", "", NULL, fusion_result(result), NULL);
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
        .argv = fusion->language->run,
        .stdin_data = json_string_length(input) ? json_string_value(input) : NULL,
        .stdin_length = json_string_length(input),
        .files = fusion->files,
        .n_files = fusion->n_files,
        .timeout_ms = fusion->run_ms,
        .output_limit = ceilings_lower_output(exchange, FUSION_OUTPUT_MAX),
        .callback = on_end,
        .userdata = exchange };

    traces_command_begins(exchange);
    if (rollbox_start(exchange->link->engine, plan, &options, &exchange->run, &error) < 0)
        fusion_answer(exchange, "SandboxError", error.message, NULL, NULL, NULL);
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

/* A number of seconds; "" if there is no fault. */
static const char *read_seconds(
    struct exchange *exchange, const char *key, double fallback, int64_t *ret_ms) {
    const json_t *value = json_object_get(exchange->body, key);
    double seconds = value ? json_number_value(value) : fallback;

    if ((value && !json_is_number(value)) || !(seconds > 0) || seconds > TIMEOUT_MAX_S)
        return "run_timeout, compile_timeout and total_timeout must be numbers of seconds";
    *ret_ms = (int64_t)ceil(seconds * 1000);
    return NULL;
}

static const char *read_limits(struct exchange *exchange, struct fusion *fusion) {
    const json_t *memory = json_object_get(exchange->body, "memory_limit_MB");
    const char *fault =
        fusion->language
            ? read_seconds(exchange, "run_timeout", RUN_TIMEOUT_S, &fusion->run_ms)
            : read_seconds(exchange, "total_timeout", CELLS_TIMEOUT_S, &fusion->run_ms);

    if (!fault)
        fault = read_seconds(exchange, "compile_timeout", RUN_TIMEOUT_S, &fusion->compile_ms);
    if (fault)
        return fault;
    if (memory && !json_is_number(memory))
        return "memory_limit_MB must be a number";
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
    if (fusion->language)
        fusion->files[fusion->n_files++] = (struct rollbox_file){ .path = fusion->language->file,
            .data = json_string_value(json_object_get(exchange->body, "code")),
            .length = json_string_length(json_object_get(exchange->body, "code")) };
    json_object_foreach(files, path, content) {
        if (!add_file(fusion, path, content))
            return "files must be base64 or null";
    }
    return NULL;
}

/* 1: it is run here; 0: it is not; -1: there is no such language. */
static int read_language(struct fusion *fusion, const char *language) {
    for (size_t i = 0; i < ARRAY_SIZE(languages); i++)
        if (!strcmp(languages[i].name, language)) {
            fusion->language = &languages[i];
            return 1;
        }
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        if (!strcmp(others[i], language))
            return 0;
    return -1;
}

/* NULL: the answer is given. */
static struct fusion *fusion_new(struct exchange *exchange) {
    struct fusion *fusion = calloc(1, sizeof *fusion);

    if (!fusion) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return NULL;
    }
    exchange->data = fusion;
    exchange->free_data = free_fusion;
    exchange->gone = on_gone;
    return fusion;
}

/* The cells as lines for the interpreter. */
static const char *read_cells(struct exchange *exchange, struct fusion *fusion) {
    const json_t *cells = json_object_get(exchange->body, "cells"), *cell;
    auto_buf struct buf lines = BUF_INIT;
    size_t i;

    if (!json_is_array(cells))
        return "cells must be a list of strings";
    json_array_foreach(cells, i, cell) {
        json_t *line = json_is_string(cell) ? json_pack("{s:O}", "code", cell) : NULL;
        auto_free char *text = line ? json_dumps(line, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;

        json_decref(line);
        if (!text)
            return "cells must be a list of strings";
        buf_printf(&lines, "%s\n", text);
    }
    buf_add_text(&lines, "");
    fusion->cells = lines.length ? buf_take(&lines) : strdup("");
    return fusion->cells ? NULL : "the server is out of memory";
}

static bool is_in_steps(const struct exchange *exchange, const struct fusion *fusion) {
    return fusion->language->compile[0] || !strcmp(fusion->language->run[0], "go") ||
           json_array_size(json_object_get(exchange->body, "fetch_files"));
}

void handle_fusion_cells(struct exchange *exchange) {
    const char *kernel = json_string_value(json_object_get(exchange->body, "kernel"));
    struct fusion *fusion = fusion_new(exchange);

    if (!fusion)
        return;
    const char *fault = read_cells(exchange, fusion);
    if (!fault && kernel && strcmp(kernel, "python3") != 0)
        fault = "kernel must be python3";
    if (!fault)
        fault = read_limits(exchange, fusion);
    if (!fault)
        fault = read_files(exchange, fusion);
    if (fault)
        fusion_refuse(exchange, fault);
    else if (ceilings_allow_time(exchange, fusion->run_ms))
        policies_prepare(exchange, ADMISSION_RUN, fusion_steps_start);
}

void handle_fusion_run(struct exchange *exchange) {
    const char *language = json_string_value(json_object_get(exchange->body, "language"));
    struct fusion *fusion = fusion_new(exchange);
    const char *fault = NULL;

    if (!fusion)
        return;
    int known = language ? read_language(fusion, language) : -1;
    if (known < 0)
        fault = "language is missing or not known";
    else if (!json_is_string(json_object_get(exchange->body, "code")))
        fault = "code must be a string";
    if (!fault && known > 0)
        fault = read_limits(exchange, fusion);
    if (!fault && known > 0)
        fault = read_files(exchange, fusion);
    if (fault)
        fusion_refuse(exchange, fault);
    else if (!known)
        fusion_answer(
            exchange, "SandboxError", "rollbox does not run this language", NULL, NULL, NULL);
    else if (ceilings_allow_time(exchange, fusion->run_ms) &&
             (!fusion->language->compile[0] || ceilings_allow_time(exchange, fusion->compile_ms)))
        policies_prepare(
            exchange, ADMISSION_RUN, is_in_steps(exchange, fusion) ? fusion_steps_start : start);
}

void handle_fusion_ping(struct exchange *exchange) {
    exchange_answer(exchange, 200, "\"pong\"", NULL);
}
