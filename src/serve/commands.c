/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands in sandboxes, and what they have in common with runs (runs.c).
 *
 * A run or command whose client waits is killed when the client leaves, unless the request has an
 * Idempotency-Key (then a retry will ask) or asks for less than the end ("Prefer: respond-async" or
 * "wait=N"). The engine keeps what a command wrote and how it ended, so an attachment made at any
 * time gives all of it again; a stream that is resumed only skips what the client has.
 */
#include <errno.h>
#include <fcntl.h>
#include <nettle/base64.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "serve/admission.h"
#include "serve/ceilings.h"
#include "serve/command.h"
#include "serve/engine_link.h"
#include "serve/events.h"
#include "serve/metrics.h"
#include "serve/traces.h"
#include "serve/usage.h"

#define OUTPUT_MAX (INT64_C(1) << 30) /* of a stream; the engine keeps it in memory */
#define WAIT_MAX_S 3600
#define WAIT_DEFAULT_S 30
#define COMMENT_NS (INT64_C(10) * 1000000000)
#define PIECE_BYTES ((size_t)64 << 10)
#define PIECES_A_TURN 4u /* then other clients have theirs */
#define TIME_MAX_MS INT64_C(1000000000000000)

const char *const exec_keys[] = { "argv", "code", "language", "env", "cwd", "user", "stdin",
    "stdin_base64", "files", "timeout_ms", "output_limit", "tty", "stdin_open", "trace", NULL };

/* ---- the command of a body ---- */

void command_free(struct command *command) {
    for (size_t i = 0; i < command->n_owned; i++)
        free(command->owned[i]);
    free(command->argv);
    free(command->env);
    free(command->files);
    free(command);
}

static bool own(struct command *command, void *memory) {
    if (!memory || command->n_owned == ARRAY_SIZE(command->owned)) {
        free(memory);
        return false;
    }
    command->owned[command->n_owned++] = memory;
    return true;
}

static bool invalid(struct exchange *exchange, const char *detail) {
    exchange_problem(exchange, 400, "invalid_argument", "%s", detail);
    return false;
}

static bool is_text(const json_t *value) {
    return json_is_string(value) && strlen(json_string_value(value)) == json_string_length(value);
}

static bool decode_base64(
    struct command *command, const json_t *value, const void **ret, size_t *ret_length) {
    size_t length = json_string_length(value);
    uint8_t *bytes = malloc(BASE64_DECODE_LENGTH(length) + 1);
    struct base64_decode_ctx context;
    size_t n = BASE64_DECODE_LENGTH(length);

    base64_decode_init(&context);
    if (!own(command, bytes) ||
        !base64_decode_update(&context, &n, bytes, length, json_string_value(value)) ||
        !base64_decode_final(&context))
        return false;
    *ret = bytes;
    *ret_length = n;
    return true;
}

static bool take_argv(struct exchange *exchange, struct command *command) {
    const json_t *argv = json_object_get(exchange->body, "argv");
    const char *code = NULL, *language = "python";
    json_t *word;
    size_t i;

    if (!exchange_string(exchange, "code", &code) ||
        !exchange_string(exchange, "language", &language))
        return false;
    if (!code == !argv)
        return invalid(exchange, "give either argv or code");
    if (!code && (!json_is_array(argv) || !json_array_size(argv)))
        return invalid(exchange, "argv must be a list of strings with at least the program");
    command->argv = calloc(code ? 4 : json_array_size(argv) + 1, sizeof(char *));
    if (!command->argv)
        return invalid(exchange, "the server is out of memory");
    if (code) {
        bool is_python = !strcmp(language, "python");

        if (!is_python && strcmp(language, "bash") != 0 && strcmp(language, "sh") != 0)
            return invalid(exchange, "language must be python, bash or sh");
        command->is_code = is_python;
        command->argv[0] = is_python ? "python3" : language;
        command->argv[1] = "-c";
        command->argv[2] = code;
        return true;
    }
    json_array_foreach((json_t *)argv, i, word) {
        if (!is_text(word))
            return invalid(exchange, "argv must be a list of strings without NUL");
        command->argv[i] = json_string_value(word);
    }
    return true;
}

/* Labels are for usage and traces. With "trace", TRACEPARENT of the command's span becomes one of
 * its variables. */
static bool take_trace(struct exchange *exchange) {
    char text[TRACE_TEXT + 1];
    struct trace_context context;
    bool is_asked = false;

    traces_command_begins(exchange);
    if (!usage_labels_ok(exchange) || !exchange_boolean(exchange, "trace", &is_asked))
        return false;
    if (!is_asked || !traces_for_guest(exchange, &context))
        return true;
    trace_context_write(&context, text);
    if (!json_object_get(exchange->body, "env"))
        json_object_set_new(exchange->body, "env", json_object());
    json_t *env = json_object_get(exchange->body, "env");
    if (json_is_object(env) && !json_object_get(env, "TRACEPARENT"))
        json_object_set_new(env, "TRACEPARENT", json_string(text));
    return true;
}

static bool take_env(struct exchange *exchange, struct command *command) {
    json_t *env = json_object_get(exchange->body, "env"), *value;
    const char *name;
    size_t n = 0;

    if (!env)
        return true;
    if (!json_is_object(env) || json_object_size(env) > ARRAY_SIZE(command->owned) / 2)
        return invalid(exchange, "env must be an object of at most 512 strings");
    command->env = calloc(json_object_size(env) + 1, sizeof(char *));
    if (!command->env)
        return invalid(exchange, "the server is out of memory");
    json_object_foreach(env, name, value) {
        char *pair = NULL;

        if (!is_text(value) || !*name || strchr(name, '='))
            return invalid(exchange, "env must be an object of strings without NUL");
        if (asprintf(&pair, "%s=%s", name, json_string_value(value)) < 0 || !own(command, pair))
            return invalid(exchange, "the server is out of memory");
        command->env[n++] = pair;
    }
    return true;
}

static bool take_files(struct exchange *exchange, struct command *command) {
    json_t *files = json_object_get(exchange->body, "files"), *value;
    const char *path;

    if (!files)
        return true;
    if (!json_is_object(files) || json_object_size(files) > ARRAY_SIZE(command->owned) / 2)
        return invalid(
            exchange, "files must be an object of at most 512 paths with a text or {\"base64\"}");
    command->files = calloc(json_object_size(files) + 1, sizeof *command->files);
    if (!command->files)
        return invalid(exchange, "the server is out of memory");
    json_object_foreach(files, path, value) {
        struct rollbox_file *file = &command->files[command->n_files++];
        const json_t *base64 = json_object_get(value, "base64");

        file->path = path;
        if (json_is_string(value)) {
            file->data = json_string_value(value);
            file->length = json_string_length(value);
        } else if (!json_is_string(base64) ||
                   !decode_base64(command, base64, &file->data, &file->length)) {
            return invalid(exchange, "files: a value is a text or {\"base64\": TEXT}");
        }
    }
    return true;
}

static bool take_stdin(struct exchange *exchange, struct command *command) {
    const json_t *text = json_object_get(exchange->body, "stdin");
    const json_t *base64 = json_object_get(exchange->body, "stdin_base64");

    if (text && base64)
        return invalid(exchange, "stdin and stdin_base64 exclude each other");
    if (text && !json_is_string(text))
        return invalid(exchange, "stdin must be a string");
    if (text) {
        command->stdin_data = json_string_value(text);
        command->stdin_length = json_string_length(text);
    }
    if (base64 && (!json_is_string(base64) || !decode_base64(command, base64, &command->stdin_data,
                                                  &command->stdin_length)))
        return invalid(exchange, "stdin_base64 must be base64");
    /* An empty standard input is none. */
    if (!command->stdin_length)
        command->stdin_data = NULL;
    return true;
}

/* null is no time limit at all. */
static bool take_timeout(struct exchange *exchange, struct command *command) {
    if (json_is_null(json_object_get(exchange->body, "timeout_ms"))) {
        command->timeout_ms = ROLLBOX_NO_TIMEOUT;
        return ceilings_allow_time(exchange, 0);
    }
    return exchange_integer(exchange, "timeout_ms", 1, TIME_MAX_MS, &command->timeout_ms) &&
           (command->timeout_ms < 0 || ceilings_allow_time(exchange, command->timeout_ms));
}

struct command *command_read(struct exchange *exchange) {
    struct command *command = calloc(1, sizeof *command);

    if (!command) {
        invalid(exchange, "the server is out of memory");
        return NULL;
    }
    command->timeout_ms = command->output_limit = -1;
    if (take_argv(exchange, command) && take_trace(exchange) && take_env(exchange, command) &&
        take_files(exchange, command) && take_stdin(exchange, command) &&
        exchange_string(exchange, "cwd", &command->cwd) &&
        exchange_string(exchange, "user", &command->user) && take_timeout(exchange, command) &&
        exchange_integer(exchange, "output_limit", 0, OUTPUT_MAX, &command->output_limit)) {
        if (command->output_limit >= 0)
            command->output_limit = ceilings_lower_output(exchange, command->output_limit);
        return command;
    }
    command_free(command);
    return NULL;
}

struct rollbox_run_options command_run_options(const struct command *command) {
    return (struct rollbox_run_options){ .size = sizeof(struct rollbox_run_options),
        .argv = command->argv,
        .env = command->env,
        .cwd = command->cwd,
        .stdin_data = command->stdin_data,
        .stdin_length = command->stdin_length,
        .files = command->files,
        .n_files = command->n_files,
        .timeout_ms = command->timeout_ms,
        .output_limit = command->output_limit,
        .is_code = command->is_code };
}

struct rollbox_exec_options command_exec_options(const struct command *command) {
    return (struct rollbox_exec_options){ .size = sizeof(struct rollbox_exec_options),
        .argv = command->argv,
        .env = command->env,
        .cwd = command->cwd,
        .user = command->user,
        .stdin_data = command->stdin_data,
        .stdin_length = command->stdin_length,
        .files = command->files,
        .n_files = command->n_files,
        .timeout_ms = command->timeout_ms,
        .output_limit = command->output_limit,
        .input_fd = -1,
        .stream_fds = { -1, -1 } };
}

bool command_terminal(
    struct exchange *exchange, const json_t *value, struct rollbox_terminal *ret) {
    json_int_t rows = json_integer_value(json_object_get(value, "rows"));
    json_int_t columns = json_integer_value(json_object_get(value, "columns"));

    if (rows < 1 || columns < 1 || rows > UINT16_MAX || columns > UINT16_MAX)
        return invalid(exchange, "a terminal has rows and columns, each 1 to 65535");
    *ret = (struct rollbox_terminal){ (unsigned short)rows, (unsigned short)columns };
    return true;
}

/* ---- waiting for results ---- */

void command_ended(struct exchange *exchange, const char *id, const struct rollbox_result *result) {
    usage_ended(exchange, result);
    metrics_command(exchange, result);
    traces_command_ended(exchange, id, result);
    if (exchange->box)
        events_of_box(exchange->box, "exec.ended",
            json_pack("{s:s?, s:s, s:o}", "exec", id, "outcome",
                rollbox_outcome_name(result->outcome), "exit_code",
                result->exit_code < 0 ? json_null() : json_integer(result->exit_code)));
}

void command_on_end(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    const struct rollbox_result *result;

    if (rollbox_wait(run, 0, &result) < 0)
        return;
    /* Others attached to the command of a request before. */
    if (exchange->counts_running)
        command_ended(exchange, exchange->command_id, result);
    exchange_result(exchange, result, NULL);
}

/* Waits for the end of a command for which no client waits any more. */
static void on_watched(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    const struct rollbox_result *result;

    if (rollbox_wait(run, 0, &result) >= 0)
        command_ended(exchange, exchange->command_id, result);
    exchange_done(exchange);
}

static void watch(struct exchange *first, const char *id) {
    struct exchange *exchange = calloc(1, sizeof *exchange);
    const struct rollbox_attach_options options = { .size = sizeof options,
        .operation_id = id,
        .input_fd = -1,
        .stream_fds = { -1, -1 },
        .callback = on_watched,
        .userdata = exchange };

    if (!exchange)
        return;
    exchange->server = first->server;
    exchange->tenant = first->tenant;
    exchange->box = first->box;
    exchange->box->references++;
    /* The command may still be about to wake the sandbox. */
    exchange->may_wake = first->may_wake;
    exchange->box->n_wakers += first->may_wake;
    exchange->seen = first->seen;
    exchange->seen.is_request = false;
    exchange->body = json_incref(first->body);
    admission_move(first, exchange);
    exchange->server->n_exchanges++;
    list_init(&exchange->of_operation);
    list_init(&exchange->of_engine);
    (void)snprintf(exchange->command_id, sizeof exchange->command_id, "%s", id);
    if (rollbox_attach(exchange->box->handle, &options, &exchange->run, NULL) < 0)
        exchange_done(exchange);
}

/* The client has left: its command is killed, unless a client may ask for it again. */
void command_on_gone(struct exchange *exchange) {
    if (exchange->operation)
        return;
    if (exchange->run)
        (void)rollbox_kill(exchange->run, ROLLBOX_OUTCOME_ERROR);
    exchange_done(exchange);
}

/* ---- commands in sandboxes ---- */

int64_t command_preference(const struct http_request *request) {
    const char *prefer = http_header(request, "prefer");

    if (!prefer)
        return -1;
    if (strcasestr(prefer, "respond-async"))
        return 0;
    const char *wait = strcasestr(prefer, "wait=");
    long seconds = wait ? strtol(wait + 5, NULL, 10) : -1;
    return seconds < 0 ? -1 : MIN(seconds, (long)WAIT_MAX_S);
}

/* Waits for a limited time. */
struct patience {
    struct exchange *exchange;
    struct loop_timer timer;
    char id[65];
};

static void answer_running(struct exchange *exchange, const char *id) {
    if (exchange->counts_running)
        watch(exchange, id);
    exchange->run = rollbox_run_free(exchange->run);
    exchange_answer_json(exchange, 202, json_pack("{s:s, s:s}", "id", id, "state", "running"));
}

static void on_patience(struct loop_timer *timer) {
    struct patience *patience = container_of(timer, struct patience, timer);
    char id[65];

    memcpy(id, patience->id, sizeof id);
    answer_running(patience->exchange, id);
}

static void free_patience(void *data) {
    struct patience *patience = data;

    loop_timer_clear(patience->exchange->server->loop, &patience->timer);
    free(patience);
}

static void on_patient_gone(struct exchange *exchange) {
    if (!exchange->operation)
        exchange_done(exchange);
}

static bool wait_patiently(struct exchange *exchange, const char *id, int64_t seconds) {
    struct patience *patience = calloc(1, sizeof *patience);

    if (!patience)
        return false;
    patience->exchange = exchange;
    (void)snprintf(patience->id, sizeof patience->id, "%s", id);
    exchange->data = patience;
    exchange->free_data = free_patience;
    exchange->gone = on_patient_gone;
    return loop_timer_set(exchange->server->loop, &patience->timer,
               clock_now_ns() + seconds * 1000000000, on_patience) >= 0;
}

static void start_exec(struct exchange *exchange, const char *id) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    int64_t seconds = command_preference(http_request_of(exchange->connection));
    struct command *command = command_read(exchange);
    char made[SERVER_NAME_MAX + 1];

    if (!command)
        return;
    if (!id) {
        box_random_name(made);
        id = made;
    }
    struct rollbox_exec_options options = command_exec_options(command);
    const json_t *tty = json_object_get(exchange->body, "tty");
    struct rollbox_terminal terminal;

    if (tty && !command_terminal(exchange, tty, &terminal)) {
        command_free(command);
        return;
    }
    bool is_open = false;
    if (!exchange_boolean(exchange, "stdin_open", &is_open)) {
        command_free(command);
        return;
    }
    auto_close int input = -EBADF;
    if (is_open && input_open(exchange, id, &input) < 0) {
        command_free(command);
        exchange_problem(exchange, 503, "resource_exhausted", "the server has no room for a pipe");
        return;
    }
    options.input_fd = input < 0 ? -1 : input;
    options.terminal = tty ? &terminal : NULL;
    options.operation_id = id;
    options.detached = true;
    options.callback = command_on_end;
    options.userdata = exchange;
    usage_before_command(exchange->box);
    int r = rollbox_exec(exchange->box->handle, &options, &exchange->run, &error);
    command_free(command);
    (void)snprintf(exchange->command_id, sizeof exchange->command_id, "%s", id);
    if (r >= 0)
        events_of_box(exchange->box, "exec.started", json_pack("{s:s}", "exec", id));
    if (r < 0) {
        exchange_fail(exchange, &error);
    } else if (seconds == 0) {
        answer_running(exchange, id);
    } else if (seconds > 0) {
        if (!wait_patiently(exchange, id, seconds))
            answer_running(exchange, id);
    } else {
        exchange->gone = command_on_gone;
    }
}

void handle_exec(struct exchange *exchange) {
    if (admission_command(exchange))
        start_exec(exchange, NULL);
}

static bool id_ok(struct exchange *exchange, const char *id) {
    return (*id && strlen(id) <= 64) || invalid(exchange, "the id of a command has 1 to 64 bytes");
}

void handle_exec_put(struct exchange *exchange) {
    if (id_ok(exchange, exchange->parameters[1]) && admission_command(exchange))
        start_exec(exchange, exchange->parameters[1]);
}

static int attach(struct exchange *exchange, const int streams[2], rollbox_callback callback,
    struct rollbox_error *error) {
    const struct rollbox_attach_options options = { .size = sizeof options,
        .operation_id = exchange->parameters[1],
        .input_fd = -1,
        .stream_fds = { streams[0], streams[1] },
        .callback = callback,
        .userdata = exchange };

    return rollbox_attach(exchange->box->handle, &options, &exchange->run, error);
}

/* ?wait=SECONDS; false: the answer is given. */
bool command_wait_of(struct exchange *exchange, int64_t *ret_seconds) {
    auto_buf struct buf wait = BUF_INIT;
    long seconds = WAIT_DEFAULT_S;

    if (http_query(http_request_of(exchange->connection), "wait", &wait))
        seconds = strtol(wait.data ? wait.data : "", NULL, 10);
    *ret_seconds = seconds;
    return (seconds >= 0 && seconds <= WAIT_MAX_S) ||
           invalid(exchange, "wait must be 0 to 3600 seconds");
}

void handle_exec_get(struct exchange *exchange) {
    static const int none[2] = { -1, -1 };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    int64_t seconds;

    if (!id_ok(exchange, exchange->parameters[1]) || !command_wait_of(exchange, &seconds))
        return;
    exchange->gone = on_patient_gone;
    if (attach(exchange, none, command_on_end, &error) < 0)
        exchange_fail(exchange, &error);
    else if (!wait_patiently(exchange, exchange->parameters[1], seconds))
        answer_running(exchange, exchange->parameters[1]);
}

/* ---- streams ---- */

struct stream {
    struct exchange *exchange;
    struct loop_timer timer;
    char *result; /* JSON, once it is there */
    struct loop_task more;
    /* Of a command that had ended before the attachment, the result alone has the output. It is the
     * run's, which is not freed before the stream. */
    const char *rest[2];
    size_t rest_length[2];
    bool is_paused;
    struct side {
        struct stream *stream;
        struct loop_source source;
        int fd; /* -EBADF at its end */
        uint64_t offset, skip, received;
    } sides[2];
};

static void on_comment(struct loop_timer *timer);
static void on_output(struct loop_source *source, uint32_t events);

static void free_stream(void *data) {
    struct stream *stream = data;
    struct loop *loop = stream->exchange->server->loop;

    loop_timer_clear(loop, &stream->timer);
    for (size_t i = 0; i < 2; i++) {
        loop_remove(loop, &stream->sides[i].source);
        close_fd(&stream->sides[i].fd);
    }
    free(stream->result);
    loop_task_cancel(&stream->more);
    free(stream);
}

static size_t write_event(struct stream *stream, const struct buf *event) {
    /* One more comment is due ten seconds after the latest event. */
    (void)loop_timer_set(
        stream->exchange->server->loop, &stream->timer, clock_now_ns() + COMMENT_NS, on_comment);
    return http_write(stream->exchange->connection, event->data, event->length);
}

static void on_comment(struct loop_timer *timer) {
    struct stream *stream = container_of(timer, struct stream, timer);
    struct buf comment = { .data = (char *)(uintptr_t) ": \n\n", .length = 4 };

    (void)write_event(stream, &comment);
}

static void take_output(struct side *side, const char *data, size_t n);

static void end_when_complete(struct stream *stream);

static void run_more(struct loop_task *task) {
    end_when_complete(container_of(task, struct stream, more));
}

/* False: some is left, for when the client has read, or for the loop's next turn. */
static bool write_rest(struct stream *stream) {
    unsigned n = 0;

    for (size_t i = 0; i < 2; i++) {
        struct side *side = &stream->sides[i];

        while (side->received < stream->rest_length[i]) {
            if (stream->is_paused)
                return false;
            if (n++ == PIECES_A_TURN) {
                loop_defer(stream->exchange->server->loop, &stream->more, run_more);
                return false;
            }
            take_output(side, stream->rest[i] + side->received,
                (size_t)MIN((uint64_t)PIECE_BYTES, stream->rest_length[i] - side->received));
        }
    }
    return true;
}

/* The result comes after all output. */
static void end_when_complete(struct stream *stream) {
    struct exchange *exchange = stream->exchange;
    struct http_connection *connection = exchange->connection;
    auto_buf struct buf event = BUF_INIT;

    if (!stream->result || stream->sides[0].fd >= 0 || stream->sides[1].fd >= 0)
        return;
    if (!write_rest(stream))
        return;
    buf_printf(&event, "event: result\ndata: %s\n\n", stream->result);
    (void)write_event(stream, &event);
    connection = exchange->connection;
    exchange->connection = NULL;
    if (connection)
        *http_data(connection) = NULL;
    exchange_done(exchange);
    if (connection)
        http_end(connection);
}

static void write_piece(struct side *side, const char *data, size_t length) {
    struct stream *stream = side->stream;
    auto_buf struct buf event = BUF_INIT;

    buf_printf(&event,
        "event: %s\nid: %llu.%llu\ndata: ", side == &stream->sides[0] ? "stdout" : "stderr",
        (unsigned long long)stream->sides[0].offset, (unsigned long long)stream->sides[1].offset);
    if (utf8_valid(data, length)) {
        buf_add_text(&event, "{\"data\":");
        (void)utf8_json(&event, data, length);
    } else {
        buf_add_text(&event, "{\"base64\":\"");
        base64_encode(&event, data, length);
        buf_add_text(&event, "\"");
    }
    buf_add_text(&event, "}\n\n");
    if (write_event(stream, &event) >= HTTP_UNSENT_MAX) {
        stream->is_paused = true;
        for (size_t i = 0; i < 2; i++)
            loop_remove(stream->exchange->server->loop, &stream->sides[i].source);
    }
}

static void take_output(struct side *side, const char *data, size_t n) {
    size_t skipped = (size_t)MIN(side->skip, (uint64_t)n);

    side->received += n;
    side->skip -= skipped;
    if (n > skipped) {
        side->offset += n - skipped;
        write_piece(side, data + skipped, n - skipped);
    }
}

static void on_output(struct loop_source *source, uint32_t events) {
    struct side *side = container_of(source, struct side, source);
    struct stream *stream = side->stream;
    static char piece[PIECE_BYTES];
    ssize_t n = read(side->fd, piece, sizeof piece);

    (void)events;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        loop_remove(stream->exchange->server->loop, &side->source);
        close_fd(&side->fd);
        end_when_complete(stream);
        return;
    }
    take_output(side, piece, (size_t)n);
}

void stream_writable(struct exchange *exchange) {
    struct stream *stream = exchange->data;

    if (exchange->free_data != free_stream || !stream->is_paused)
        return;
    stream->is_paused = false;
    for (size_t i = 0; i < 2; i++)
        if (stream->sides[i].fd >= 0)
            (void)loop_add(exchange->server->loop, &stream->sides[i].source, stream->sides[i].fd,
                EPOLLIN, on_output);
    /* Not within the write that has found room. */
    loop_defer(exchange->server->loop, &stream->more, run_more);
}

static void on_stream_end(struct rollbox_run *run, void *userdata) {
    struct exchange *exchange = userdata;
    struct stream *stream = exchange->data;
    const struct rollbox_result *result;

    struct rollbox_result bare = { .outcome = ROLLBOX_OUTCOME_ERROR };
    int r = rollbox_wait(run, 0, &result);
    if (r >= 0) {
        /* The output has events of its own. */
        bare = *result;
        bare.stdout_length = bare.stderr_length = 0;
        r = rollbox_result_json(&bare, NULL, &stream->result);
    }
    if (r < 0) {
        /* Without a result the client knows that the end is unknown. */
        struct http_connection *connection = TAKE_PTR(exchange->connection);

        if (connection)
            *http_data(connection) = NULL;
        exchange_done(exchange);
        if (connection)
            http_abort(connection);
        return;
    }
    stream->rest[0] = result->stdout_data;
    stream->rest_length[0] = result->stdout_length;
    stream->rest[1] = result->stderr_data;
    stream->rest_length[1] = result->stderr_length;
    end_when_complete(stream);
}

static bool read_offsets(struct exchange *exchange, struct stream *stream) {
    const struct http_request *request = http_request_of(exchange->connection);
    const char *last = http_header(request, "last-event-id");
    unsigned long long offsets[2] = { 0, 0 };
    char rest;

    if (last && sscanf(last, "%llu.%llu%c", &offsets[0], &offsets[1], &rest) != 2)
        return invalid(exchange, "Last-Event-ID must be STDOUT.STDERR, two offsets");
    for (size_t i = 0; i < 2; i++) {
        auto_buf struct buf text = BUF_INIT;

        if (http_query(request, i ? "stderr" : "stdout", &text) &&
            sscanf(text.data ? text.data : "", "%llu%c", &offsets[i], &rest) != 1)
            return invalid(exchange, "stdout and stderr must be offsets");
        stream->sides[i].offset = stream->sides[i].skip = offsets[i];
    }
    return true;
}

void handle_exec_stream(struct exchange *exchange) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct stream *stream = calloc(1, sizeof *stream);
    int ends[2] = { -EBADF, -EBADF };
    int r = stream ? 0 : -ENOMEM;

    if (!stream) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    stream->exchange = exchange;
    list_init(&stream->more.node);
    for (size_t i = 0; i < 2; i++) {
        stream->sides[i].stream = stream;
        stream->sides[i].fd = -EBADF;
        stream->sides[i].source.fd = -1;
    }
    exchange->data = stream;
    exchange->free_data = free_stream;
    exchange->gone = exchange_done;
    if (!id_ok(exchange, exchange->parameters[1]) || !read_offsets(exchange, stream))
        return;
    for (size_t i = 0; r >= 0 && i < 2; i++) {
        int pair[2];

        r = pipe2(pair, O_CLOEXEC | O_NONBLOCK) < 0 ? -errno : 0;
        if (r < 0)
            break;
        ends[i] = pair[1];
        stream->sides[i].fd = pair[0];
        r = loop_add(exchange->server->loop, &stream->sides[i].source, pair[0], EPOLLIN, on_output);
    }
    if (r >= 0)
        r = attach(exchange, ends, on_stream_end, &error);
    else
        error = (struct rollbox_error){ .code = ROLLBOX_ERR_RESOURCE_EXHAUSTED,
            .stage = "stream",
            .message = "the server has no room for another stream" };
    close_fd(&ends[0]);
    close_fd(&ends[1]);
    if (r < 0) {
        exchange_fail(exchange, &error);
        return;
    }
    (void)loop_timer_set(
        exchange->server->loop, &stream->timer, clock_now_ns() + COMMENT_NS, on_comment);
    http_begin(exchange->connection, 200, "text/event-stream", "X-Accel-Buffering: no\r\n");
    /* It had no members, and the stream may last for hours. */
    json_decref(TAKE_PTR(exchange->body));
}
