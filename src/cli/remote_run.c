/* SPDX-License-Identifier: Apache-2.0 */
/* Commands and files on a server: run, exec, cp. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/outcome.h"
#include "cli/policy.h"
#include "cli/remote.h"

#define STDIN_MAX ((size_t)11 << 20) /* in base64 it is within the server's limit of 16 MiB */

/* ---- results ---- */

static enum rollbox_outcome outcome_of(const char *name) {
    for (int i = ROLLBOX_OUTCOME_EXIT; i < ROLLBOX_OUTCOME_ERROR; i++)
        if (name && !strcmp(name, rollbox_outcome_name((enum rollbox_outcome)i)))
            return (enum rollbox_outcome)i;
    return ROLLBOX_OUTCOME_ERROR;
}

/* The bytes of "stdout" or "stdout_base64". */
static void output_of(const json_t *row, const char *key, struct buf *to) {
    auto_buf struct buf other = BUF_INIT;
    const json_t *text = json_object_get(row, key);

    buf_printf(&other, "%s_base64", key);
    const char *encoded = other.data ? json_string_value(json_object_get(row, other.data)) : NULL;
    if (encoded)
        (void)base64_decode(encoded, strlen(encoded), to);
    else if (text)
        buf_add(to, json_string_value(text), json_string_length(text));
}

static void write_output(const json_t *row, const char *key, int fd) {
    auto_buf struct buf bytes = BUF_INIT;

    output_of(row, key, &bytes);
    if (bytes.length)
        (void)fd_write_all(fd, bytes.data, bytes.length);
}

/* A result as text: the exit status, after the output if it was not written yet. */
static int conclude(const struct options *options, const char *json, bool is_written) {
    json_t *row = json_loads(json, JSON_ALLOW_NUL, NULL);
    struct rollbox_result result = { .outcome = outcome_of(
                                         json_string_value(json_object_get(row, "outcome"))) };
    const json_t *error = json_object_get(row, "error");
    const char *message = json_string_value(json_object_get(error, "message"));

    if (options_has(options, OPTION_JSON)) {
        int status = printf("%s\n", json) < 0 ? CLI_EXIT_ERROR : cli_flush(options, 0);

        cli_notify();
        json_decref(row);
        if (result.outcome == ROLLBOX_OUTCOME_ERROR)
            status = CLI_EXIT_ERROR;
        return status;
    }
    if (!is_written) {
        write_output(row, "stdout", STDOUT_FILENO);
        write_output(row, "stderr", STDERR_FILENO);
    }
    result.exit_code = (int)json_integer_value(json_object_get(row, "exit_code"));
    result.signal = (int)json_integer_value(json_object_get(row, "signal"));
    if (result.outcome == ROLLBOX_OUTCOME_ERROR) {
        result.error.code = ROLLBOX_ERR_INTERNAL;
        const char *code = json_string_value(json_object_get(error, "code"));
#define CASE(name, number, http, python, text)                                                     \
    if (code && !strcmp(code, rollbox_error_name(ROLLBOX_ERR_##name)))                             \
        result.error.code = ROLLBOX_ERR_##name;
        ROLLBOX_ERRORS(CASE)
#undef CASE
        error_set(&result.error, result.error.code, 0, "run", "%s",
            message ? message : "the server's result is malformed");
    }
    int status = outcome_status(options, &result, UINT64_MAX);
    json_decref(row);
    return status;
}

/* The answer of a request that runs something: a result, or a problem with one. */
static int conclude_answer(const struct options *options, const struct remote_answer *answer) {
    if (answer->status && answer->status < 400)
        return conclude(options, answer->body.data, false);
    json_t *problem = answer->status
                          ? json_loadb(answer->body.data, answer->body.length, JSON_ALLOW_NUL, NULL)
                          : NULL;
    const json_t *result = json_object_get(problem, "result");
    auto_free char *text = result ? json_dumps(result, JSON_COMPACT) : NULL;
    int status = text ? conclude(options, text, false) : remote_fail(options, answer);

    json_decref(problem);
    return status;
}

/* ---- the body of a command ---- */

static int add_stdin(const struct options *options, json_t *body) {
    auto_buf struct buf bytes = BUF_INIT, encoded = BUF_INIT;

    if (cli_stdin_was_closed())
        return 0;
    for (;;) {
        void *room = buf_reserve(&bytes, 65536);
        ssize_t n = room ? read(STDIN_FILENO, room, 65536) : 0;

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        bytes.length += (size_t)n;
        if (bytes.length > STDIN_MAX)
            return cli_fail(options,
                "standard input has more than %zu MiB, which a server does "
                "not take in one request; copy it by rollbox cp",
                STDIN_MAX >> 20);
    }
    if (!bytes.length)
        return 0;
    base64_encode(&encoded, bytes.data, bytes.length);
    if (buf_failed(&encoded))
        return cli_fail(options, "out of memory");
    json_object_set_new(body, "stdin_base64", json_stringn(encoded.data, encoded.length));
    return 0;
}

static int add_argv(const struct options *options, json_t *body, int first) {
    json_t *argv = json_array();

    for (int i = first; i < options->n_rest; i++)
        json_array_append_new(argv, json_string(options->rest[i]));
    json_object_set_new(body, "argv", argv);
    for (size_t i = 0; i < json_array_size(argv); i++)
        if (!json_is_string(json_array_get(argv, i)))
            return cli_fail(options, "the arguments must be UTF-8 for a server");
    return 0;
}

static int refuse_terminal(const struct options *options) {
    return options_has(options, OPTION_TTY)
               ? cli_fail(options, "--tty: terminals on a server are not offered by the command; "
                                   "run it without one")
               : 0;
}

void remote_set_text(json_t *body, const char *key, const char *value) {
    if (value)
        json_object_set_new(body, key, json_string(value));
}

int remote_add_policy(const struct options *options, json_t *body) {
    struct cli_policy policy;

    int status = cli_policy_given(options, &policy);
    if (status)
        return status;
    json_object_set_new(body, "policy", json_loadb(policy.text, policy.length, 0, NULL));
    cli_policy_done(&policy);
    return 0;
}

void remote_add_labels(const struct options *options, json_t *body) {
    json_t *labels = json_object();

    for (size_t i = 0; i < options->n_uses; i++) {
        const char *pair = options->uses[i].value, *value;

        if (options->uses[i].option->id != OPTION_LABEL)
            continue;
        value = strchr(pair, '=') + 1;
        auto_free char *name = strndup(pair, (size_t)(value - pair) - 1);
        if (name)
            json_object_set_new(labels, name, json_string(value));
    }
    if (json_object_size(labels))
        json_object_set(body, "labels", labels);
    json_decref(labels);
    if (options_has(options, OPTION_TRACE))
        json_object_set_new(body, "trace", json_true());
}

void remote_add_turn(const struct options *options, json_t *body) {
    const struct option_use *timeout = options_last(options, OPTION_QUEUE_TIMEOUT);

    remote_set_text(body, "priority", options_text(options, OPTION_PRIORITY));
    if (timeout)
        json_object_set_new(
            body, "queue_timeout_ms", json_integer((json_int_t)ceil(timeout->number * 1000)));
}

int remote_run(const struct options *options) {
    struct remote_answer answer;
    json_t *body = json_object();

    int status = refuse_terminal(options);
    if (!status && options_has(options, OPTION_TEMPLATE))
        status = cli_fail(options, "--template is not offered by a server");
    if (!status)
        status = remote_add_policy(options, body);
    if (status) {
        json_decref(body);
        return status;
    }
    remote_add_labels(options, body);
    remote_add_turn(options, body);
    status = add_argv(options, body, 0);
    if (!status && !isatty(STDIN_FILENO))
        status = add_stdin(options, body);
    if (!status) {
        remote_ask(options, "POST", "/v1/runs", NULL, body, &answer);
        status = conclude_answer(options, &answer);
        buf_done(&answer.body);
    }
    json_decref(body);
    return status;
}

/* ---- exec ---- */

static int exec_body(const struct options *options, json_t *body) {
    const char *shell = options_text(options, OPTION_SHELL);
    const struct option_use *timeout = options_last(options, OPTION_TIMEOUT);
    const struct option_use *limit = options_last(options, OPTION_OUTPUT_LIMIT);

    int status = refuse_terminal(options);
    if (!status && shell)
        json_object_set_new(body, "argv", json_pack("[s, s, s]", "sh", "-c", shell));
    else if (!status)
        status = add_argv(options, body, 1);
    if (!status && limit)
        status = cli_fail(options, "--output-limit is not offered with a server");
    if (!status && !json_array_size(json_object_get(body, "argv")))
        status = cli_fail(options, "a command is missing");
    if (!status && timeout)
        json_object_set_new(body, "timeout_ms",
            timeout->number > 0 ? json_integer((json_int_t)(timeout->number * 1000)) : json_null());
    remote_set_text(body, "cwd", options_text(options, OPTION_CWD));
    remote_set_text(body, "user", options_text(options, OPTION_USER));
    remote_add_labels(options, body);
    json_t *env = json_object();
    for (size_t i = 0; i < options->n_uses; i++) {
        const char *pair = options->uses[i].value;

        if (options->uses[i].option->id != OPTION_ENV)
            continue;
        auto_free char *name = strndup(pair, strcspn(pair, "="));
        const char *value = strchr(pair, '=') ? strchr(pair, '=') + 1 : getenv(pair);
        if (name && value)
            json_object_set_new(env, name, json_string(value));
    }
    if (json_object_size(env))
        json_object_set(body, "env", env);
    json_decref(env);
    return status || !options_has(options, OPTION_INTERACTIVE) ? status : add_stdin(options, body);
}

static volatile sig_atomic_t caught, following;

/* The end of the process that follows the output ends the wait for it. */
static void on_signal(int number) {
    caught = number;
    if (following)
        (void)kill(following, SIGTERM);
}

/* One event of the stream. 1: it was the result. */
static int take_event(
    const struct options *options, const char *kind, const char *data, int *ret_status) {
    if (!strcmp(kind, "result")) {
        *ret_status = conclude(options, data, true);
        return 1;
    }
    json_t *piece = json_loads(data, JSON_ALLOW_NUL, NULL);
    const char *text = json_string_value(json_object_get(piece, "data"));
    const char *encoded = json_string_value(json_object_get(piece, "base64"));
    auto_buf struct buf bytes = BUF_INIT;

    if (text)
        buf_add(&bytes, text, json_string_length(json_object_get(piece, "data")));
    else if (encoded)
        (void)base64_decode(encoded, strlen(encoded), &bytes);
    if (bytes.length && !options_has(options, OPTION_JSON))
        (void)fd_write_all(
            strcmp(kind, "stderr") ? STDOUT_FILENO : STDERR_FILENO, bytes.data, bytes.length);
    json_decref(piece);
    return 0;
}

/* Follows the output until the result. */
static int follow(const struct options *options, const char *path) {
    struct remote_stream stream;
    auto_free char *line = NULL;
    char kind[16] = "";
    size_t room = 0;
    int status = CLI_EXIT_ERROR;
    bool is_over = false;

    if (!remote_stream_open(options, path, &stream))
        return CLI_EXIT_ERROR;
    following = stream.pid;
    if (caught)
        (void)kill(stream.pid, SIGTERM);
    while (!is_over && getline(&line, &room, stream.lines) > 0) {
        line[strcspn(line, "\n")] = '\0';
        if (!strncmp(line, "event: ", 7))
            (void)snprintf(kind, sizeof kind, "%s", line + 7);
        else if (!strncmp(line, "data: ", 6))
            is_over = take_event(options, kind, line + 6, &status);
    }
    following = 0;
    (void)remote_stream_close(&stream);
    if (is_over || caught)
        return status;
    return cli_fail_code(options, ROLLBOX_ERR_ENGINE_LOST,
        "the server's stream ended without a result; the command may still run: see rollbox ps");
}

/* The command and its processes are killed, as by a signal to a local client. */
static void kill_command(const struct options *options, const char *path) {
    auto_buf struct buf signal_path = BUF_INIT;
    struct remote_answer answer;
    json_t *body = json_pack("{s:s, s:s}", "signal", "KILL", "scope", "tree");

    buf_printf(&signal_path, "%s/signal", path);
    remote_ask(options, "POST", signal_path.data, NULL, body, &answer);
    json_decref(body);
    buf_done(&answer.body);
}

static void catch_signals(void) {
    const struct sigaction action = { .sa_handler = on_signal };

    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

int remote_exec(const struct options *options) {
    const char *id = options_text(options, OPTION_ID);
    auto_buf struct buf path = BUF_INIT, stream_path = BUF_INIT, made = BUF_INIT;
    struct remote_answer answer;
    struct timespec now;

    if (!id) {
        (void)clock_gettime(CLOCK_REALTIME, &now);
        buf_printf(&made, "cli-%llx-%x",
            (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec,
            (unsigned)getpid());
        id = made.data;
    }
    buf_add_text(&path, "/v1/sandboxes/");
    remote_path_add(&path, options->rest[0], false);
    buf_add_text(&path, "/execs/");
    remote_path_add(&path, id, false);
    buf_printf(&stream_path, "%s/stream", path.data);
    json_t *body = json_object();
    int status = exec_body(options, body);
    if (!status) {
        catch_signals();
        remote_ask(options, "PUT", path.data, "Prefer: respond-async", body, &answer);
        if (answer.status < 200 || answer.status > 299)
            status = conclude_answer(options, &answer);
        else if (options_has(options, OPTION_DETACH))
            status = printf("%s\n", id) < 0 ? CLI_EXIT_ERROR : cli_flush(options, 0);
        else
            status = follow(options, stream_path.data);
        if (caught) {
            kill_command(options, path.data);
            (void)signal(caught, SIG_DFL);
            (void)raise(caught);
        }
        buf_done(&answer.body);
    }
    json_decref(body);
    return status;
}

/* ---- cp ---- */

/* NAME:PATH, as the path of a request; false for a path of this machine. */
static bool guest_path(const char *operand, struct buf *to) {
    size_t length = strcspn(operand, ":/");

    if (!length || operand[length] != ':')
        return false;
    auto_free char *name = strndup(operand, length);
    const char *path = operand + length + 1;
    buf_add_text(to, "/v1/sandboxes/");
    remote_path_add(to, name ? name : "", false);
    buf_add_text(to, "/files/");
    remote_path_add(to, path + (path[0] == '/'), true);
    return true;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static int upload(const struct options *options, const char *host, struct buf *path) {
    struct stat st = { 0 };
    struct remote_answer answer;
    bool is_stream = !strcmp(host, "-");
    auto_close int fd = is_stream ? dup(STDIN_FILENO) : open(host, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &st) < 0)
        return cli_fail(options, "cannot read %s: %s", host, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return cli_fail(options, "%s is a directory: with a server cp copies one file", host);
    if (path->length && path->data[path->length - 1] == '/' && !is_stream)
        remote_path_add(path, base_name(host), false);
    if (S_ISREG(st.st_mode))
        buf_printf(path, "?mode=%o", st.st_mode & 0777 ? st.st_mode & 0777 : 0600);
    if (buf_failed(path))
        return cli_fail(options, "out of memory");
    remote_transfer(options, "PUT", path->data, fd, -1, &answer);
    int status =
        answer.status && answer.status < 400 ? cli_done(options, 0) : remote_fail(options, &answer);
    buf_done(&answer.body);
    return status;
}

static int download(
    const struct options *options, const char *path, const char *from, const char *host) {
    auto_buf struct buf place = BUF_INIT;
    struct remote_answer answer;
    struct stat st;
    bool is_stream = !strcmp(host, "-");

    buf_add_text(&place, host);
    if (!is_stream && stat(host, &st) == 0 && S_ISDIR(st.st_mode))
        buf_printf(&place, "/%s", base_name(from));
    /* Beside its place, so that a failure leaves nothing. */
    auto_buf struct buf beside = BUF_INIT;
    buf_printf(&beside, "%s.rollbox-%d", place.data, (int)getpid());
    if (buf_failed(&place) || buf_failed(&beside))
        return cli_fail(options, "out of memory");
    auto_close int fd = is_stream
                            ? dup(STDOUT_FILENO)
                            : open(beside.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return cli_fail(options, "cannot write %s: %s", place.data, strerror(errno));
    remote_transfer(options, "GET", path, -1, fd, &answer);
    int status = 0;
    if (!answer.status || answer.status >= 400)
        status = remote_fail(options, &answer);
    else if (!is_stream && rename(beside.data, place.data) < 0)
        status = cli_fail(options, "cannot write %s: %s", place.data, strerror(errno));
    if (status && !is_stream)
        (void)unlink(beside.data);
    buf_done(&answer.body);
    return is_stream ? status : cli_done(options, status);
}

int remote_cp(const struct options *options) {
    const char *from = options->rest[0], *to = options->rest[1];
    auto_buf struct buf source = BUF_INIT, target = BUF_INIT;
    bool downloads = guest_path(from, &source), uploads = guest_path(to, &target);

    if (downloads == uploads)
        return cli_fail(options, "one of the two is NAME:PATH, the other a path of this machine");
    if (buf_failed(&source) || buf_failed(&target))
        return cli_fail(options, "out of memory");
    return uploads ? upload(options, from, &target) : download(options, source.data, from, to);
}
