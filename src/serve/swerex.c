/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests of SWE-ReX's clients (RemoteRuntime). One of their servers is one sandbox: the
 * client's host is http://HOST:PORT/swerex/NAME, or without a path the sandbox "swerex" of the
 * tenant. A sandbox that is not there is created by the first request that needs it, and ended by
 * POST /close; one that was created by /v1/sandboxes stays. X-API-Key is the token, and a request
 * with the X-Request-ID of one before gets its answer (operations.c).
 *
 * Exceptions of their server are answers with status 511, which name a class that the client
 * imports. Commands and files are inner requests to /v1.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/text.h"
#include "base/utf8.h"
#include "serve/digits.h"
#include "serve/python_text.h"
#include "serve/swerex_session.h"
#include "serve/upload_form.h"

#define DEFAULT_SANDBOX "swerex"
#define IDLE_S 3600
#define OUTPUT_MAX ((json_int_t)64 << 20)
#define TIMEOUT_MAX_S 1e9
#define STARTUP_TIMEOUT_S 1.0
#define INTERRUPT_TIMEOUT_S 0.2
#define INTERRUPT_RETRIES 3
#define RETRIES_MAX 100
#define QUIT_TIMEOUT_S 5.0
#define LABEL "swerex"
#define CLASS(name) "swerex.exceptions." name

struct rex {
    struct exchange *exchange;
    struct http_connection *inner; /* NULL: none */
    void (*then)(struct rex *rex, int status, const char *type, struct buf *body);
    void (*begin)(struct rex *rex); /* once the sandbox is there */
    char sandbox[SERVER_NAME_MAX + 1];
    const char *command; /* for messages; of the body */
    struct rex_session *session;
    /* Of an upload. */
    struct buf content;
    char *target, *archive;
    bool is_archive;
};

static struct rex *rex_of(const struct exchange *exchange) {
    return exchange->data;
}

static void free_rex(void *data) {
    struct rex *rex = data;

    if (rex->inner)
        http_inner_cancel(TAKE_PTR(rex->inner));
    rex_session_leave(rex->exchange->server, rex->exchange);
    buf_done(&rex->content);
    free(rex->target);
    free(rex->archive);
    free(rex);
}

/* ---- answers ---- */

static void raise_with(
    struct exchange *exchange, const char *class, const char *message, json_t *take_info) {
    auto_buf struct buf text = BUF_INIT;

    utf8_replace(&text, message, strlen(message));
    exchange_answer_json(exchange, 511,
        json_pack("{s:{s:s, s:s, s:s, s:o}}", "swerexception", "message",
            text.data ? text.data : "", "class_path", class, "traceback", "", "extra_info",
            take_info ? take_info : json_object()));
}

static void raise_error(struct exchange *exchange, const char *class, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void raise_error(struct exchange *exchange, const char *class, const char *format, ...) {
    char *text = NULL;
    va_list list;

    va_start(list, format);
    int n = vasprintf(&text, format, list);
    va_end(list);
    raise_with(exchange, class, n < 0 ? "the server is out of memory" : text, NULL);
    if (n >= 0)
        free(text);
}

/* 422, as their server words it. */
static void refuse(struct exchange *exchange, const char *member, const char *message) {
    exchange_answer_json(exchange, 422,
        json_pack("{s:[{s:[s, s], s:s, s:s}]}", "detail", "loc", "body", member, "msg", message,
            "type", "value_error"));
}

static const char *text_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    const char *text = json_string_value(value);

    return text && strlen(text) == json_string_length(value) ? text : NULL;
}

/* A problem of /v1 as an exception. `missing`: the class if a file or program is not there. */
static void raise_problem(
    struct exchange *exchange, int status, const struct buf *body, const char *missing) {
    json_t *problem = json_loadb(body->data ? body->data : "", body->length, 0, NULL);
    const char *code = text_of(problem, "code"), *detail = text_of(problem, "detail");
    const char *class = CLASS("SwerexException");
    json_int_t number = json_integer_value(json_object_get(problem, "errno"));

    if (code && missing && (!strcmp(code, "not_found") || !strcmp(code, "command_not_found")))
        class = missing;
    else if (code && !strcmp(code, "path_denied"))
        class = "builtins.PermissionError";
    else if (number == EISDIR)
        class = "builtins.IsADirectoryError";
    if (detail)
        raise_error(exchange, class, "%s: %s", code ? code : "error", detail);
    else
        raise_error(exchange, class, "rollbox could not do this (status %d)", status);
    json_decref(problem);
}

/* ---- inner requests ---- */

static void on_inner(void *userdata, int status, const char *type, struct buf *body) {
    struct rex *rex = userdata;

    rex->inner = NULL;
    rex->then(rex, status, type, body);
}

static void ask(struct rex *rex, const char *method, const char *path, const char *query,
    const void *body, size_t length,
    void (*then)(struct rex *rex, int status, const char *type, struct buf *body)) {
    const struct inner_request request = {
        .method = method, .path = path, .query = query, .body = body, .length = length
    };

    rex->then = then;
    rex->inner =
        rex->exchange->server->inner(rex->exchange, TOKEN_EVERYTHING, &request, on_inner, rex);
    if (!rex->inner)
        raise_error(rex->exchange, CLASS("SwerexException"), "the server is out of memory");
}

static void ask_json(struct rex *rex, const char *method, const char *path, json_t *take_body,
    void (*then)(struct rex *rex, int status, const char *type, struct buf *body)) {
    auto_free char *text = json_dumps(take_body, JSON_COMPACT);

    json_decref(take_body);
    ask(rex, method, path, NULL, text, text ? strlen(text) : 0, then);
}

/* The path of the sandbox; its name needs no encoding. */
static void add_path(const struct rex *rex, struct buf *to, const char *rest) {
    buf_printf(to, "/v1/sandboxes/%s%s", rex->sandbox, rest);
}

static void add_file_path(const struct rex *rex, struct buf *to, const char *file) {
    add_path(rex, to, "/files");
    if (file[0] != '/')
        buf_add_text(to, "/");
    for (; *file; file++) {
        if (strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/", *file))
            buf_add(to, file, 1);
        else
            buf_printf(to, "%%%02X", (unsigned char)*file);
    }
}

/* ---- the sandbox ---- */

static struct box *box_of(const struct rex *rex) {
    return box_find(rex->exchange->server, rex->exchange->tenant, rex->sandbox);
}

static void on_created(struct rex *rex, int status, const char *type, struct buf *body) {
    (void)type;
    /* Another request may have been first. */
    if (status == 201 || (status == 409 && box_of(rex)))
        rex->begin(rex);
    else
        raise_problem(rex->exchange, status, body, NULL);
}

static void need_sandbox(struct rex *rex, void (*begin)(struct rex *rex)) {
    rex->begin = begin;
    if (box_of(rex))
        begin(rex);
    else
        ask_json(rex, "POST", "/v1/sandboxes",
            json_pack("{s:s, s:i, s:{s:s}}", "name", rex->sandbox, "idle_s", IDLE_S, "labels",
                LABEL, "1"),
            on_created);
}

static void on_gone(struct exchange *exchange) {
    if (!exchange->operation)
        exchange_done(exchange);
}

/* NULL: the answer is given. */
static struct rex *rex_new(struct exchange *exchange) {
    const char *name = exchange->parameters[0] ? exchange->parameters[0] : DEFAULT_SANDBOX;
    struct rex *rex = box_name_ok(name) ? calloc(1, sizeof *rex) : NULL;

    if (!rex) {
        exchange_answer_json(
            exchange, 404, json_pack("{s:s}", "detail", "the path names no possible sandbox"));
        return NULL;
    }
    rex->exchange = exchange;
    (void)snprintf(rex->sandbox, sizeof rex->sandbox, "%s", name);
    exchange->data = rex;
    exchange->free_data = free_rex;
    exchange->gone = on_gone;
    return rex;
}

void handle_rex_alive(struct exchange *exchange) {
    exchange_answer(exchange, 200, "{\"is_alive\":true,\"message\":\"\"}", NULL);
}

/* ---- commands ---- */

/* Bytes of a stream, with \xNN for what is not UTF-8. */
static json_t *stream_of(const json_t *result, const char *name, const char *encoded_name) {
    const json_t *encoded = json_object_get(result, encoded_name);
    auto_buf struct buf bytes = BUF_INIT, text = BUF_INIT;

    if (!encoded)
        return json_incref(json_object_get(result, name));
    (void)base64_decode(json_string_value(encoded), json_string_length(encoded), &bytes);
    (void)python_text_decode(
        &text, bytes.data ? bytes.data : "", bytes.length, "utf-8", "backslashreplace");
    return json_stringn(text.data ? text.data : "", text.length);
}

static void raise_nonzero(struct exchange *exchange, const char *told, const char *command,
    int code, const char *output) {
    raise_error(exchange, CLASS("NonZeroExitCodeError"),
        "%s%sCommand '%.2000s' failed with exit code %d. Output:\n%s", told ? told : "",
        told && *told ? ": " : "", command, code, output);
}

static void on_executed(struct rex *rex, int status, const char *type, struct buf *body) {
    struct exchange *exchange = rex->exchange;
    const json_t *asked = exchange->body, *timeout = json_object_get(asked, "timeout");

    (void)type;
    if (status != 200) {
        raise_problem(exchange, status, body, "builtins.FileNotFoundError");
        return;
    }
    json_t *result = json_loadb(body->data, body->length, JSON_ALLOW_NUL, NULL);
    const char *outcome = text_of(result, "outcome");
    if (!outcome || !strcmp(outcome, "timeout")) {
        raise_error(exchange, CLASS("CommandTimeoutError"),
            "Timeout (%gs) exceeded while running command; output so far:\n%s",
            json_number_value(timeout), text_of(result, "stdout") ? text_of(result, "stdout") : "");
        json_decref(result);
        return;
    }
    int code =
        !strcmp(outcome, "exit")     ? (int)json_integer_value(json_object_get(result, "exit_code"))
        : !strcmp(outcome, "signal") ? -(int)json_integer_value(json_object_get(result, "signal"))
                                     : -9;
    json_t *answer =
        json_pack("{s:o, s:o, s:i}", "stdout", stream_of(result, "stdout", "stdout_base64"),
            "stderr", stream_of(result, "stderr", "stderr_base64"), "exit_code", code);
    json_decref(result);
    if (code && json_is_true(json_object_get(asked, "check"))) {
        auto_buf struct buf output = BUF_INIT;
        const char *errors = json_string_value(json_object_get(answer, "stderr"));

        buf_add_text(&output, json_string_value(json_object_get(answer, "stdout")));
        buf_printf(&output, "\n%s", errors ? errors : "");
        auto_free char *command =
            json_dumps(json_object_get(asked, "command"), JSON_ENCODE_ANY | JSON_COMPACT);
        raise_nonzero(exchange, text_of(asked, "error_msg"), command ? command : "", code,
            output.data ? output.data : "");
        json_decref(answer);
        return;
    }
    exchange_answer_json(exchange, 200, answer);
}

static void add_word(json_t *argv, const char *word) {
    json_array_append_new(argv, json_string(word));
}

/* The program with its arguments: with env -i for an environment of its own, and with a shell for
 * one stream. */
static json_t *argv_of(const json_t *body) {
    json_t *command = json_object_get(body, "command"), *env = json_object_get(body, "env");
    json_t *argv = json_array(), *value;
    const char *name;

    if (json_is_true(json_object_get(body, "merge_output_streams"))) {
        add_word(argv, "/bin/sh");
        add_word(argv, "-c");
        add_word(argv, "exec \"$@\" 2>&1");
        add_word(argv, "sh");
    }
    if (json_is_object(env)) {
        add_word(argv, "/usr/bin/env");
        add_word(argv, "-i");
        json_object_foreach(env, name, value) {
            json_array_append_new(argv, json_sprintf("%s=%s", name, json_string_value(value)));
        }
    }
    if (json_is_true(json_object_get(body, "shell"))) {
        add_word(argv, "/bin/sh");
        add_word(argv, "-c");
    }
    if (json_is_array(command))
        json_array_extend(argv, command);
    else
        json_array_append(argv, command);
    return argv;
}

static void execute(struct rex *rex) {
    const json_t *body = rex->exchange->body, *timeout = json_object_get(body, "timeout");
    json_t *exec = json_pack("{s:o, s:o, s:I}", "argv", argv_of(body), "timeout_ms",
        json_is_number(timeout)
            ? json_integer(MAX((json_int_t)(json_number_value(timeout) * 1000), 1))
            : json_null(),
        "output_limit", OUTPUT_MAX);
    auto_buf struct buf path = BUF_INIT;

    if (text_of(body, "cwd"))
        json_object_set(exec, "cwd", json_object_get(body, "cwd"));
    add_path(rex, &path, "/execs");
    ask_json(rex, "POST", path.data, exec, on_executed);
}

static bool are_texts(const json_t *list) {
    json_t *one;
    size_t i;

    json_array_foreach((json_t *)list, i, one) {
        if (!json_is_string(one) || strlen(json_string_value(one)) != json_string_length(one))
            return false;
    }
    return json_array_size(list) > 0;
}

static bool is_environment(const json_t *env) {
    const char *name;
    json_t *value;

    json_object_foreach((json_t *)env, name, value) {
        if (!json_is_string(value) || !*name || strchr(name, '='))
            return false;
    }
    return true;
}

/* A number of seconds, or null. */
static bool is_time(const json_t *value) {
    return !value || json_is_null(value) ||
           (json_is_number(value) && json_number_value(value) >= 0 &&
               json_number_value(value) <= TIMEOUT_MAX_S);
}

void handle_rex_execute(struct exchange *exchange) {
    const json_t *body = exchange->body, *command = json_object_get(body, "command");
    struct rex *rex = rex_new(exchange);

    if (!rex)
        return;
    if (!text_of(body, "command") && !are_texts(command))
        refuse(exchange, "command", "Field required: a string or a list of strings");
    else if (!is_time(json_object_get(body, "timeout")))
        refuse(exchange, "timeout", "must be a number of seconds");
    else if (!is_environment(json_object_get(body, "env")))
        refuse(exchange, "env", "must be an object of strings");
    else
        need_sandbox(rex, execute);
}

/* ---- files ---- */

static void on_read(struct rex *rex, int status, const char *type, struct buf *body) {
    struct exchange *exchange = rex->exchange;
    const char *given = text_of(exchange->body, "encoding");
    const char *encoding = given ? given : "utf-8";
    const char *errors = text_of(exchange->body, "errors");
    auto_buf struct buf text = BUF_INIT;

    (void)type;
    if (status != 200) {
        raise_problem(exchange, status, body, "builtins.FileNotFoundError");
        return;
    }
    if (!errors)
        errors = "strict";
    switch (
        python_text_decode(&text, body->data ? body->data : "", body->length, encoding, errors)) {
    case PYTHON_TEXT_OK:
        exchange_answer_json(exchange, 200,
            json_pack("{s:o}", "content", json_stringn(text.data ? text.data : "", text.length)));
        break;
    case PYTHON_TEXT_UNKNOWN:
        raise_error(exchange, "builtins.LookupError",
            "encoding must be utf-8, ascii or latin-1, and errors strict, replace, ignore or "
            "backslashreplace");
        break;
    case PYTHON_TEXT_INVALID:
        raise_error(
            exchange, "builtins.ValueError", "the file is not valid in the encoding %s", encoding);
        break;
    }
}

static void read_file(struct rex *rex) {
    auto_buf struct buf path = BUF_INIT;

    add_file_path(rex, &path, text_of(rex->exchange->body, "path"));
    ask(rex, "GET", path.data, NULL, NULL, 0, on_read);
}

void handle_rex_read(struct exchange *exchange) {
    const char *path = text_of(exchange->body, "path");
    struct rex *rex = rex_new(exchange);

    if (!rex)
        return;
    if (!path || !*path)
        refuse(exchange, "path", "Field required");
    else
        need_sandbox(rex, read_file);
}

static void on_written(struct rex *rex, int status, const char *type, struct buf *body) {
    (void)type;
    if (status >= 300 || !status)
        raise_problem(rex->exchange, status, body, "builtins.FileNotFoundError");
    else
        exchange_answer(rex->exchange, 200, "{}", NULL);
}

static void write_file(struct rex *rex) {
    const json_t *content = json_object_get(rex->exchange->body, "content");
    auto_buf struct buf path = BUF_INIT;

    add_file_path(rex, &path, text_of(rex->exchange->body, "path"));
    ask(rex, "PUT", path.data, NULL, json_string_value(content), json_string_length(content),
        on_written);
}

void handle_rex_write(struct exchange *exchange) {
    const char *path = text_of(exchange->body, "path");
    struct rex *rex = rex_new(exchange);

    if (!rex)
        return;
    if (!path || !*path)
        refuse(exchange, "path", "Field required");
    else if (!json_is_string(json_object_get(exchange->body, "content")))
        refuse(exchange, "content", "Field required");
    else
        need_sandbox(rex, write_file);
}

/* ---- uploads ---- */

static void on_unpacked(struct rex *rex, int status, const char *type, struct buf *body) {
    json_t *result = status == 200 ? json_loadb(body->data, body->length, 0, NULL) : NULL;
    const json_t *code = json_object_get(result, "exit_code");

    (void)type;
    if (status != 200)
        raise_problem(rex->exchange, status, body, "builtins.FileNotFoundError");
    else if (!json_is_integer(code) || json_integer_value(code))
        raise_error(rex->exchange, CLASS("SwerexException"),
            "the archive cannot be unpacked in the sandbox, which needs python3 or unzip: %s",
            text_of(result, "stderr") ? text_of(result, "stderr") : "");
    else
        exchange_answer(rex->exchange, 200, "{}", NULL);
    json_decref(result);
}

static void on_uploaded(struct rex *rex, int status, const char *type, struct buf *body) {
    static const char script[] =
        "mkdir -p \"$2\" && if command -v python3 >/dev/null; then python3 -m zipfile -e \"$1\" "
        "\"$2\"; else unzip -q -o \"$1\" -d \"$2\"; fi; s=$?; rm -f \"$1\"; exit $s";
    auto_buf struct buf path = BUF_INIT;

    if (!rex->is_archive || status >= 300 || !status) {
        on_written(rex, status, type, body);
        return;
    }
    add_path(rex, &path, "/execs");
    ask_json(rex, "POST", path.data,
        json_pack("{s:[s, s, s, s, s, s]}", "argv", "/bin/sh", "-c", script, "sh", rex->archive,
            rex->target),
        on_unpacked);
}

static void upload(struct rex *rex) {
    auto_buf struct buf path = BUF_INIT, content = rex->content;

    rex->content = BUF_INIT;
    add_file_path(rex, &path, rex->is_archive ? rex->archive : rex->target);
    ask(rex, "PUT", path.data, NULL, content.data, content.length, on_uploaded);
}

void handle_rex_upload(struct exchange *exchange) {
    const struct http_request *request = http_request_of(exchange->connection);
    struct rex *rex = rex_new(exchange);
    struct form form;
    struct form_part part;
    char digits[17];
    int r;

    if (!rex)
        return;
    const char *body = request->body.data ? request->body.data : "";
    if (!form_open(&form, http_header(request, "content-type"), body, request->body.length)) {
        refuse(exchange, "file", "the body is not multipart/form-data");
        form_done(&form);
        return;
    }
    while ((r = form_next(&form, &part)) == 1) {
        const char *name = part.name.data ? part.name.data : "";

        if (!strcmp(name, "file")) {
            rex->content.length = 0;
            buf_add(&rex->content, part.data, part.length);
        } else if (!strcmp(name, "target_path") && !rex->target) {
            rex->target = text_copy(part.data, part.length);
        } else if (!strcmp(name, "unzip")) {
            rex->is_archive = part.length == 4 && !strncasecmp(part.data, "true", 4);
        }
        form_part_done(&part);
    }
    form_part_done(&part);
    form_done(&form);
    if (r < 0) {
        refuse(exchange, "file", "the form is malformed or incomplete");
        return;
    }
    digits_random(8, digits);
    if (asprintf(&rex->archive, "/tmp/.swerex-upload-%s.zip", digits) < 0)
        rex->archive = NULL;
    if (!rex->target || !*rex->target || !rex->archive || buf_failed(&rex->content))
        refuse(exchange, "target_path", "Field required");
    else
        need_sandbox(rex, upload);
}

/* ---- sessions ---- */

static const char *session_name(const struct exchange *exchange) {
    const char *name = text_of(exchange->body, "session");

    return name ? name : "default";
}

/* NULL: the answer is given. */
static struct rex_session *find_session(struct rex *rex) {
    const struct box *box = box_of(rex);
    struct rex_session *session =
        box ? rex_session_find(rex->exchange->server, box, session_name(rex->exchange)) : NULL;

    if (!session)
        raise_error(rex->exchange, CLASS("SessionDoesNotExistError"), "session '%s' does not exist",
            session_name(rex->exchange));
    return session;
}

static void raise_ended(struct exchange *exchange, const struct rex_outcome *outcome) {
    raise_error(exchange, "pexpect.exceptions.EOF", "the session's shell has ended; output:\n%s",
        outcome->output);
}

static void raise_timeout(struct exchange *exchange, const struct rex_outcome *outcome) {
    const struct rex *rex = rex_of(exchange);

    raise_error(exchange, CLASS("CommandTimeoutError"),
        "timeout after %g seconds while running command '%.2000s'; output so far:\n%s",
        json_number_value(json_object_get(exchange->body, "timeout")),
        rex->command ? rex->command : "", outcome->output);
}

/* False: an exception is raised. */
static bool is_well(struct exchange *exchange, const struct rex_outcome *outcome) {
    if (outcome->end == REX_GONE)
        raise_ended(exchange, outcome);
    else if (outcome->end == REX_TIMEOUT)
        raise_timeout(exchange, outcome);
    return outcome->end == REX_DONE || outcome->end == REX_EXPECTED;
}

static void observe(
    struct exchange *exchange, const char *output, json_t *take_code, const char *expected) {
    exchange_answer_json(exchange, 200,
        json_pack("{s:s, s:o, s:s, s:s, s:s}", "output", output, "exit_code", take_code,
            "failure_reason", "", "expect_string", expected ? expected : "", "session_type",
            "bash"));
}

static void on_sourced(struct exchange *exchange, const struct rex_outcome *outcome) {
    if (is_well(exchange, outcome))
        exchange_answer_json(exchange, 200,
            json_pack("{s:s, s:s}", "output", outcome->output, "session_type", "bash"));
}

static double seconds_of(const struct exchange *exchange, const char *key, double otherwise) {
    const json_t *value = json_object_get(exchange->body, key);

    return json_is_number(value) ? json_number_value(value) : otherwise;
}

/* The shell has its first prompt: the files that the client wants are read. */
static void on_begun(struct exchange *exchange, const struct rex_outcome *outcome) {
    const json_t *files = json_object_get(exchange->body, "startup_source");
    const struct rex_wish wish = {
        .timeout_s = seconds_of(exchange, "startup_timeout", STARTUP_TIMEOUT_S), .done = on_sourced
    };
    struct rex_session *session = rex_of(exchange)->session;
    auto_buf struct buf command = BUF_INIT;
    json_t *file;
    size_t i;

    if (!is_well(exchange, outcome)) {
        if (outcome->end != REX_GONE)
            rex_session_close(session);
        return;
    }
    json_array_foreach((json_t *)files, i, file) {
        buf_printf(&command, "%ssource %s", i ? " ; " : "", json_string_value(file));
    }
    if (command.length)
        rex_session_run(session, exchange, command.data, &wish);
    else
        on_sourced(exchange, outcome);
}

static void create_session(struct rex *rex) {
    struct exchange *exchange = rex->exchange;
    struct box *box = box_of(rex);
    /* The start of a process is not the files' time. */
    const struct rex_wish wish = { .timeout_s = 30 + seconds_of(exchange, "startup_timeout",
                                                         STARTUP_TIMEOUT_S),
        .done = on_begun };

    /* Another request may have ended the sandbox meanwhile. */
    if (!box) {
        raise_error(exchange, CLASS("SwerexException"), "the sandbox has ended");
        return;
    }
    if (rex_session_find(exchange->server, box, session_name(exchange))) {
        raise_error(exchange, CLASS("SessionExistsError"), "session %s already exists",
            session_name(exchange));
        return;
    }
    /* Without one the answer is given, and `rex` is freed. */
    struct rex_session *session = rex_session_new(exchange, box, session_name(exchange));
    if (!session)
        return;
    rex->session = session;
    rex_session_begin(session, exchange, &wish);
}

static void raise_refusal(struct exchange *exchange, json_t *take_problem) {
    const char *detail = text_of(take_problem, "detail");

    exchange->refused = NULL;
    raise_error(exchange, CLASS("SwerexException"), "%s", detail ? detail : "");
    json_decref(take_problem);
}

void handle_rex_create(struct exchange *exchange) {
    const json_t *files = json_object_get(exchange->body, "startup_source");
    struct rex *rex = rex_new(exchange);

    if (!rex)
        return;
    if (strlen(session_name(exchange)) > REX_NAME_MAX) {
        refuse(exchange, "session", "is too long");
    } else if (files && json_array_size(files) && !are_texts(files)) {
        refuse(exchange, "startup_source", "must be a list of strings");
    } else if (!is_time(json_object_get(exchange->body, "startup_timeout"))) {
        refuse(exchange, "startup_timeout", "must be a number of seconds");
    } else {
        exchange->refused = raise_refusal;
        need_sandbox(rex, create_session);
    }
}

/* ---- actions in sessions ---- */

static void on_done(struct exchange *exchange, const struct rex_outcome *outcome) {
    const json_t *body = exchange->body;
    const char *check = text_of(body, "check");

    if (!is_well(exchange, outcome))
        return;
    bool is_ignored = check && !strcmp(check, "ignore");
    if (outcome->end == REX_DONE && outcome->status && (!check || !strcmp(check, "raise")))
        raise_nonzero(exchange, text_of(body, "error_msg"), rex_of(exchange)->command,
            outcome->status, outcome->output);
    else
        observe(exchange, outcome->output,
            outcome->end == REX_DONE && !is_ignored ? json_integer(outcome->status) : json_null(),
            outcome->expected);
}

/* The output without the echo of what was typed, and without space around it. */
static void on_interacted(struct exchange *exchange, const struct rex_outcome *outcome) {
    const char *command = rex_of(exchange)->command, *text = outcome->output;

    if (!is_well(exchange, outcome))
        return;
    text += strspn(text, " \t\r\n");
    if (!strncmp(text, command, strlen(command)))
        text += strlen(command);
    text += strspn(text, " \t\r\n");
    auto_free char *plain = strdup(text);
    size_t n = plain ? strlen(plain) : 0;
    while (n && strchr(" \t\r\n", plain[n - 1]))
        plain[--n] = '\0';
    observe(exchange, plain ? plain : "", json_integer(0), outcome->expected);
}

static void on_interrupted(struct exchange *exchange, const struct rex_outcome *outcome) {
    if (outcome->end == REX_TIMEOUT)
        raise_error(exchange, CLASS("CommandTimeoutError"), "Failed to interrupt session: %s",
            outcome->output);
    else if (is_well(exchange, outcome))
        observe(exchange, outcome->output, json_integer(0), outcome->expected);
}

static void start_command(struct rex *rex) {
    struct exchange *exchange = rex->exchange;
    const json_t *body = exchange->body;
    bool is_interactive = json_is_true(json_object_get(body, "is_interactive_command")) ||
                          json_is_true(json_object_get(body, "is_interactive_quit"));
    const struct rex_wish wish = { .expect = json_object_get(body, "expect"),
        .timeout_s = seconds_of(exchange, "timeout", -1),
        .done = is_interactive ? on_interacted : on_done };

    /* A program that has the terminal gets the text. */
    if (is_interactive && !rex_session_is_idle(rex->session))
        rex_session_type(rex->session, exchange, rex->command, &wish);
    else
        rex_session_run(rex->session, exchange, rex->command, &wish);
}

static void on_checked(struct rex *rex, int status, const char *type, struct buf *body) {
    struct exchange *exchange = rex->exchange;
    json_t *result = status == 200 ? json_loadb(body->data, body->length, 0, NULL) : NULL;
    const json_t *code = json_object_get(result, "exit_code");

    (void)type;
    if (status != 200) {
        raise_problem(exchange, status, body, NULL);
        return;
    }
    if (json_integer_value(code)) {
        const char *errors = text_of(result, "stderr");

        auto_buf struct buf text = BUF_INIT;
        buf_printf(&text, "Error (exit code %d) while checking bash command '%.2000s'\n%s",
            (int)json_integer_value(code), rex->command, errors ? errors : "");
        raise_with(exchange, CLASS("BashIncorrectSyntaxError"), text.data ? text.data : "",
            json_pack("{s:s, s:s}", "bash_stdout", "", "bash_stderr", errors ? errors : ""));
    } else {
        /* The session may have ended meanwhile. */
        struct rex_session *session = find_session(rex);
        if (session && rex_session_is_busy(session)) {
            raise_error(exchange, CLASS("SwerexException"),
                "another request waits for this session's command");
        } else if (session) {
            rex->session = session;
            start_command(rex);
        }
    }
    json_decref(result);
}

static void check_syntax(struct rex *rex) {
    auto_buf struct buf path = BUF_INIT;

    add_path(rex, &path, "/execs");
    ask_json(rex, "POST", path.data,
        json_pack(
            "{s:[s, s, s], s:s}", "argv", "/usr/bin/env", "bash", "-n", "stdin", rex->command),
        on_checked);
}

static void interrupt(struct rex *rex) {
    const json_t *body = rex->exchange->body, *retries = json_object_get(body, "n_retry");
    json_int_t n = json_is_integer(retries) ? json_integer_value(retries) : INTERRUPT_RETRIES;
    const struct rex_wish wish = { .expect = json_object_get(body, "expect"),
        .timeout_s = seconds_of(rex->exchange, "timeout", INTERRUPT_TIMEOUT_S),
        .done = on_interrupted };

    rex_session_interrupt(
        rex->session, rex->exchange, (unsigned)MAX(MIN(n, RETRIES_MAX), 1), &wish);
}

static void act(struct rex *rex, bool is_interrupt) {
    struct exchange *exchange = rex->exchange;
    const json_t *body = exchange->body;
    /* Without one the answer is given, and `rex` is freed. */
    struct rex_session *session = find_session(rex);

    if (!session)
        return;
    rex->session = session;
    if (rex_session_is_busy(session))
        raise_error(
            exchange, CLASS("SwerexException"), "another request waits for this session's command");
    else if (is_interrupt)
        interrupt(rex);
    else if (json_is_true(json_object_get(body, "is_interactive_command")) ||
             json_is_true(json_object_get(body, "is_interactive_quit")))
        start_command(rex);
    else
        check_syntax(rex);
}

void handle_rex_run(struct exchange *exchange) {
    const json_t *body = exchange->body, *expect = json_object_get(body, "expect");
    const char *type = text_of(body, "action_type");
    bool is_interrupt = type && !strcmp(type, "bash_interrupt");
    struct rex *rex = rex_new(exchange);

    if (!rex)
        return;
    rex->command = text_of(body, "command");
    const char *fault =
        expect && !json_is_array(expect) ? "must be a list of strings" : rex_expect_fault(expect);
    if (!is_interrupt && !rex->command)
        refuse(exchange, "command", "Field required");
    else if (fault)
        refuse(exchange, "expect", fault);
    else if (!is_time(json_object_get(body, "timeout")))
        refuse(exchange, "timeout", "must be a number of seconds");
    else
        act(rex, is_interrupt);
}

void handle_rex_close_session(struct exchange *exchange) {
    struct rex *rex = rex_new(exchange);
    struct rex_session *session = rex ? find_session(rex) : NULL;

    if (!session)
        return;
    rex_session_close(session);
    exchange_answer(exchange, 200, "{\"session_type\":\"bash\"}", NULL);
}

/* ---- the end ---- */

static void on_closed(struct rex *rex, int status, const char *type, struct buf *body) {
    (void)type;
    (void)body;
    (void)status;
    exchange_answer(rex->exchange, 200, "{}", NULL);
}

void handle_rex_close(struct exchange *exchange) {
    struct rex *rex = rex_new(exchange);
    const struct box *box = rex ? box_of(rex) : NULL;
    auto_buf struct buf path = BUF_INIT;

    if (!rex)
        return;
    if (box)
        rex_sessions_close(exchange->server, box);
    if (!box || !json_object_get(box->labels, LABEL)) {
        exchange_answer(exchange, 200, "{}", NULL);
        return;
    }
    add_path(rex, &path, "");
    ask(rex, "DELETE", path.data, NULL, NULL, 0, on_closed);
}
