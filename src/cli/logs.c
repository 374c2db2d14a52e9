/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox logs: shows the output of a session's commands so far, without waiting for their ends.
 *
 * The engine keeps a command's output from its start. The program attaches to the command, as
 * rollbox attach does, and stops after the amount of output that the engine had at the request;
 * with --follow it stays until the command ends. For --tail the first part is kept in memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/session.h"

enum { OUT, ERR, N_LOGS };

struct logs {
    const struct options *options;
    struct rollbox_engine *engine;
    struct rollbox_sandbox *sandbox;
    const char *id;   /* of the command whose turn it is */
    bool is_terminal; /* its one stream is standard output */
    bool has_ended;
    bool is_current; /* the first part has been printed */
    int fds[N_LOGS];
    struct buf held[N_LOGS]; /* not printed yet */
    uint64_t came, expected; /* bytes of both streams */
    bool follows;
};

static void on_end(struct rollbox_run *run, void *userdata) {
    (void)run;
    ((struct logs *)userdata)->has_ended = true;
}

/* The offset of the last n lines. */
static size_t tail_start(const struct buf *text, uint64_t n) {
    size_t at = text->length;

    if (at && text->data[at - 1] == '\n')
        at--;
    for (; at; at--)
        if (text->data[at - 1] == '\n' && --n == 0)
            return at;
    return 0;
}

static int print_piece(const struct logs *logs, int stream, const char *data, size_t length) {
    if (!length)
        return 0;
    if (options_has(logs->options, OPTION_JSON)) {
        auto_buf struct buf line = BUF_INIT;

        buf_add_text(&line, "{\"id\": ");
        (void)utf8_json(&line, logs->id, strlen(logs->id));
        buf_printf(&line, ", \"stream\": \"%s\", \"text\": ", stream == OUT ? "stdout" : "stderr");
        (void)utf8_json(&line, data, length);
        buf_add_text(&line, "}\n");
        if (buf_failed(&line))
            return cli_fail(logs->options, "out of memory");
        fwrite(line.data, 1, line.length, stdout);
        return cli_flush(logs->options, 0);
    }
    int r = fd_write_all(stream == OUT ? STDOUT_FILENO : STDERR_FILENO, data, length);
    return r < 0 ? cli_fail_code(logs->options, ROLLBOX_ERR_IO, "cannot write to standard %s: %s",
                       stream == OUT ? "output" : "error", strerror(-r))
                 : 0;
}

/* Prints the kept part. As JSON, an incomplete line waits for its rest unless this is the end of
 * the stream. */
static int print_held(struct logs *logs, bool is_end) {
    const struct option_use *tail = options_last(logs->options, OPTION_TAIL);
    int status = 0;

    for (int i = 0; i < N_LOGS && !status; i++) {
        struct buf *held = &logs->held[i];
        size_t from = 0, to = held->length;

        if (tail && !logs->is_current)
            from = tail->count ? tail_start(held, tail->count) : held->length;
        while (!is_end && options_has(logs->options, OPTION_JSON) && to > from &&
               held->data[to - 1] != '\n')
            to--;
        status = print_piece(logs, i, held->data + from, to - from);
        if (to < held->length)
            memmove(held->data, held->data + to, held->length - to);
        held->length -= to;
    }
    logs->is_current = true;
    return status;
}

static int read_stream(struct logs *logs, int i) {
    char data[65536];
    ssize_t n = read(logs->fds[i], data, sizeof data);

    if (n < 0)
        return errno == EINTR || errno == EAGAIN
                   ? 0
                   : cli_fail(logs->options, "cannot read the output of %s: %s", logs->id,
                         strerror(errno));
    if (n == 0) {
        close_fd(&logs->fds[i]);
        return 0;
    }
    logs->came += (uint64_t)n;
    buf_add(&logs->held[i], data, (size_t)n);
    return buf_failed(&logs->held[i]) ? cli_fail(logs->options, "out of memory") : 0;
}

static bool is_at_end(const struct logs *logs) {
    return logs->has_ended && logs->fds[OUT] < 0 && logs->fds[ERR] < 0;
}

static int move(struct logs *logs) {
    int status = 0;

    while (!status) {
        (void)rollbox_dispatch(logs->engine);
        if (is_at_end(logs))
            return 0;
        if (!logs->is_current && logs->came >= logs->expected && !logs->has_ended) {
            if (!logs->follows)
                return 0;
            status = print_held(logs, false);
        }
        struct pollfd polls[N_LOGS + 1] = {
            { .fd = logs->fds[OUT], .events = POLLIN },
            { .fd = logs->fds[ERR], .events = POLLIN },
            { .fd = logs->has_ended ? -1 : rollbox_engine_fd(logs->engine), .events = POLLIN },
        };
        if (status || poll(polls, ARRAY_SIZE(polls), -1) < 0)
            continue;
        for (int i = 0; i < N_LOGS && !status; i++)
            if (polls[i].revents)
                status = read_stream(logs, i);
        if (!status && logs->is_current)
            status = print_held(logs, false);
    }
    return status;
}

/* Output that is not in the streams is in the result of a command that had ended before. */
static int take_result(struct logs *logs, struct rollbox_run *run) {
    const struct rollbox_result *result;
    int r = rollbox_wait(run, -1, &result);

    if (r < 0)
        return cli_fail(logs->options, "cannot collect the result: %s", strerror(-r));
    if (result->outcome == ROLLBOX_OUTCOME_ERROR)
        return cli_fail_error(logs->options, &result->error);
    if (!logs->came) {
        buf_add(&logs->held[OUT], result->stdout_data, result->stdout_length);
        buf_add(&logs->held[ERR], result->stderr_data, result->stderr_length);
    }
    if ((result->stdout_truncated || result->stderr_truncated) &&
        result->outcome != ROLLBOX_OUTCOME_OUTPUT_LIMIT)
        fprintf(stderr,
            "rollbox logs: %s: some of its output was dropped; the engine keeps the output of the "
            "latest commands\n",
            logs->id);
    else if (result->outcome == ROLLBOX_OUTCOME_OUTPUT_LIMIT)
        fprintf(stderr, "rollbox logs: %s: it was ended at its output limit; more was dropped\n",
            logs->id);
    return 0;
}

static int show(struct logs *logs, const json_t *exec) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rollbox_run *run = NULL;
    int theirs[N_LOGS] = { -EBADF, -EBADF }, status = 0;

    logs->id = json_string_value(json_object_get(exec, "id"));
    logs->is_terminal = json_is_true(json_object_get(exec, "terminal"));
    /* All output of an ended command comes with its result. */
    const json_t *bytes = json_object_get(exec, "output_bytes");
    logs->expected = json_is_integer(bytes) ? (uint64_t)json_integer_value(bytes) : UINT64_MAX;
    logs->came = 0;
    logs->has_ended = logs->is_current = false;
    for (int i = 0; i < (logs->is_terminal ? 1 : N_LOGS) && !status; i++) {
        int fds[2];

        if (pipe2(fds, O_CLOEXEC) < 0) {
            status = cli_fail(logs->options, "cannot make a pipe: %s", strerror(errno));
        } else {
            logs->fds[i] = fds[0];
            theirs[i] = fds[1];
        }
    }
    struct rollbox_attach_options attach = {
        .size = sizeof attach,
        .operation_id = logs->id,
        .input_fd = -1,
        .stream_fds = { MAX(theirs[OUT], -1), MAX(theirs[ERR], -1) },
        .callback = on_end,
        .userdata = logs,
    };
    if (!status && rollbox_attach(logs->sandbox, &attach, &run, &error) < 0)
        status = cli_fail_error(logs->options, &error);
    close_fd(&theirs[OUT]);
    close_fd(&theirs[ERR]);
    if (!status)
        status = move(logs);
    if (!status && is_at_end(logs))
        status = take_result(logs, run);
    if (!status)
        status = print_held(logs, true);
    rollbox_run_free(run);
    for (int i = 0; i < N_LOGS; i++) {
        close_fd(&logs->fds[i]);
        logs->held[i].length = 0;
    }
    return status;
}

static int show_all(struct logs *logs, const json_t *execs) {
    const char *wanted = logs->options->n_rest > 1 ? logs->options->rest[1] : NULL;
    const bool has_titles =
        !wanted && json_array_size(execs) > 1 && !options_has(logs->options, OPTION_JSON);
    bool is_found = false;
    json_t *exec;
    int status = 0;
    size_t i;

    if (logs->follows && !wanted && json_array_size(execs) > 1)
        return cli_fail(logs->options,
            "--follow: the sandbox has several commands; give the id of one (rollbox inspect %s "
            "shows them)",
            logs->options->rest[0]);
    json_array_foreach(execs, i, exec) {
        const char *id = json_string_value(json_object_get(exec, "id"));

        if (status || !id || (wanted && strcmp(wanted, id) != 0))
            continue;
        is_found = true;
        if (has_titles) {
            auto_buf struct buf title = BUF_INIT;

            buf_printf(&title, "%s==> %s <==\n", i ? "\n" : "", id);
            status = buf_failed(&title) ? cli_fail(logs->options, "out of memory")
                     : fd_write_all(STDOUT_FILENO, title.data, title.length) < 0 ? CLI_EXIT_ERROR
                                                                                 : 0;
        }
        if (!status)
            status = show(logs, exec);
    }
    if (!status && wanted && !is_found)
        status = cli_fail_code(logs->options, ROLLBOX_ERR_NOT_FOUND,
            "there is no command %s in sandbox %s; rollbox inspect %s lists them", wanted,
            logs->options->rest[0], logs->options->rest[0]);
    return status;
}

int cmd_logs(const struct options *options) {
    struct logs logs = { .options = options,
        .fds = { -EBADF, -EBADF },
        .held = { BUF_INIT, BUF_INIT },
        .follows = options_has(options, OPTION_FOLLOW) };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_free char *json = NULL;

    int status = session_open(options, &logs.engine, &logs.sandbox);
    if (status)
        return status;
    if (rollbox_sandbox_query(logs.sandbox, ROLLBOX_QUERY_EXECS, &json, &error) < 0) {
        status = cli_fail_error(options, &error);
    } else {
        json_t *answer = json_loads(json, 0, NULL);

        status = show_all(&logs, json_object_get(answer, "execs"));
        json_decref(answer);
    }
    buf_done(&logs.held[OUT]);
    buf_done(&logs.held[ERR]);
    rollbox_sandbox_free(logs.sandbox);
    rollbox_engine_close(logs.engine);
    return status;
}
