/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of E2B's clients; e2b_process.h has the model. */
#include "serve/e2b_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/admission.h"
#include "serve/command.h"
#include "serve/connect.h"
#include "serve/e2b_process_internal.h"
#include "serve/engine_link.h"
#include "serve/events.h"
#include "serve/late_call.h"
#include "serve/traces.h"

#define PIECE_BYTES ((size_t)32 << 10)
#define PROCESSES_MAX 1024u /* of a sandbox */

static void on_output(struct loop_source *source, uint32_t events);
static void on_input(struct loop_source *source, uint32_t events);

/* The standard input of a command in a fork. */
struct claim {
    struct pool_job job;
    struct process *process; /* NULL: it has ended meanwhile */
    struct box *box;
    struct rollbox_sandbox *handle;
    char id[65];
    int fds[ROLLBOX_CLAIM_FDS], r;
};

static struct loop *loop_of(const struct process *process) {
    return process->server->loop;
}

/* ---- the end ---- */

static void close_side(struct process_side *side) {
    loop_remove(loop_of(side->process), &side->source);
    close_fd(&side->fd);
}

static void close_input(struct process *process) {
    loop_remove(loop_of(process), &process->input_source);
    close_fd(&process->input);
    process->pending.length = 0;
}

/* Without its exchange, the engine's command continues. */
static void free_process(struct process *process) {
    loop_timer_clear(loop_of(process), &process->deadline);
    loop_task_cancel(&process->sweep);
    for (size_t i = 0; i < 2; i++)
        close_side(&process->sides[i]);
    close_input(process);
    buf_done(&process->pending);
    list_remove(&process->of_box);
    if (process->claim)
        process->claim->process = NULL;
    rollbox_run_free(process->run);
    if (process->watch) {
        process->server->n_exchanges++;
        exchange_done(process->watch);
    }
    json_decref(process->config);
    json_decref(process->tag);
    json_decref(process->end);
    free(process);
}

static void run_sweep(struct loop_task *task) {
    free_process(container_of(task, struct process, sweep));
}

/* Its clients get the end, and it is freed by the loop: callers up the stack may look at it. */
static void end_process(struct process *process) {
    list_remove(&process->of_box);
    process->followers->ended(process);
    if (process->user)
        process->user->ended(process);
    process->user = NULL;
    if (list_empty(&process->sweep.node))
        loop_defer(loop_of(process), &process->sweep, run_sweep);
}

static bool has_output(const struct process *process) {
    return process->sides[0].fd >= 0 || process->sides[1].fd >= 0;
}

static void give(struct process_side *side, const char *data, size_t length) {
    struct process *process = side->process;
    bool is_error = side == &process->sides[1];

    side->moved += length;
    if (process->user)
        process->user->output(process, is_error, data, length);
    else
        process->is_full = process->followers->output(process, is_error, data, length);
}

static void end_when_complete(struct process *process) {
    if (process->has_result && !has_output(process) && list_empty(&process->sweep.node))
        end_process(process);
}

void e2b_processes_end(struct e2b_box *e2b) {
    list_for_each(node, &e2b->processes) {
        struct process *process = container_of(node, struct process, of_box);

        if (!process->end)
            process->end = json_pack("{s:{s:s, s:s}}", "error", "code", "unavailable", "message",
                "the sandbox has ended; the process was not found");
        end_process(process);
        for (size_t i = 0; i < 2; i++)
            close_side(&process->sides[i]);
        close_input(process);
    }
}

/* ---- output ---- */

static void listen(struct process *process, bool on) {
    for (size_t i = 0; i < 2; i++) {
        struct process_side *side = &process->sides[i];

        if (!on)
            loop_remove(loop_of(process), &side->source);
        else if (side->fd >= 0 && side->source.fd < 0)
            (void)loop_add(loop_of(process), &side->source, side->fd, EPOLLIN, on_output);
    }
}

void process_go_on(struct process *process) {
    process->is_full = false;
    listen(process, true);
}

static void on_output(struct loop_source *source, uint32_t events) {
    struct process_side *side = container_of(source, struct process_side, source);
    struct process *process = side->process;
    static char piece[PIECE_BYTES];
    ssize_t n = read(side->fd, piece, sizeof piece);

    (void)events;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        close_side(side);
        end_when_complete(process);
        return;
    }
    give(side, piece, (size_t)n);
    if (process->is_full)
        listen(process, false);
}

/* ---- how it ended ---- */

static json_t *error_end(const char *code, const char *message) {
    return json_pack("{s:{s:s, s:s}}", "error", "code", code, "message", message);
}

static const char *code_of(const struct rollbox_error *error) {
    int status;

    /* The sandbox has ended. */
    if (error->code == ROLLBOX_ERR_NOT_FOUND)
        return "unavailable";
    return connect_code(rollbox_error_name(error->code), 0, &status);
}

static json_t *end_of(const struct rollbox_result *result) {
    char status[200] = "signal: killed";
    int code = -1;
    bool exited = false;

    switch (result->outcome) {
    case ROLLBOX_OUTCOME_ERROR:
        return error_end(code_of(&result->error), result->error.message);
    case ROLLBOX_OUTCOME_TIMEOUT:
        return error_end("deadline_exceeded", "the process ran longer than its time limit");
    case ROLLBOX_OUTCOME_EXIT:
        code = result->exit_code;
        exited = true;
        (void)snprintf(status, sizeof status, "exit status %d", code);
        break;
    case ROLLBOX_OUTCOME_SIGNAL:
        if (result->signal != SIGKILL)
            (void)snprintf(status, sizeof status, "signal: %s", strsignal(result->signal));
        break;
    case ROLLBOX_OUTCOME_OUT_OF_MEMORY:
        (void)snprintf(status, sizeof status, "signal: killed (out of memory)");
        break;
    case ROLLBOX_OUTCOME_OUTPUT_LIMIT:
        (void)snprintf(status, sizeof status, "signal: killed (too much output)");
        break;
    }
    json_t *end =
        json_pack("{s:i, s:b, s:s}", "exitCode", code, "exited", (int)exited, "status", status);
    if (code)
        json_object_set_new(end, "error", json_string(status));
    return json_pack("{s:o}", "end", end);
}

/* A command that had ended before the attachment has its output in the result alone. */
static void give_rest(struct process *process, const struct rollbox_result *result) {
    const char *data[2] = { result->stdout_data, result->stderr_data };
    const size_t length[2] = { result->stdout_length, result->stderr_length };

    for (size_t i = 0; i < 2; i++) {
        struct process_side *side = &process->sides[i];

        if (process->is_late && !side->moved && length[i]) {
            close_side(side);
            give(side, data[i], length[i]);
        }
    }
}

static void on_ended(struct rollbox_run *run, void *userdata) {
    struct process *process = userdata;
    const struct rollbox_result *result;

    /* The callback of another run, which rollbox_wait may call, may have ended the process. */
    if (rollbox_wait(run, 0, &result) < 0 || !list_empty(&process->sweep.node))
        return;
    if (result->outcome == ROLLBOX_OUTCOME_ERROR && process->e2b->is_paused &&
        result->error.code == ROLLBOX_ERR_CANCELLED) {
        process->is_asleep = true;
        if (!process->user)
            process->end = error_end("unavailable", "the sandbox is paused");
        process->followers->ended(process);
        json_decref(TAKE_PTR(process->end));
        for (size_t i = 0; i < 2; i++)
            close_side(&process->sides[i]);
        close_input(process);
        process->run = rollbox_run_free(process->run);
        return;
    }
    give_rest(process, result);
    process->has_result = true;
    if (!process->end)
        process->end = end_of(result);
    if (process->watch)
        command_ended(process->watch, process->id, result);
    end_when_complete(process);
}

/* ---- input ---- */

static void answer_writers(struct process *process) {
    list_for_each(node, &process->writers) {
        struct exchange *exchange = container_of(node, struct exchange, of_engine);

        list_remove(&exchange->of_engine);
        if (exchange->route->body == BODY_STREAM)
            http_pause(exchange->connection, false);
        else
            exchange_answer(exchange, 200, "{}", NULL);
    }
}

static void write_input(struct process *process) {
    while (process->input >= 0 && process->pending.length) {
        ssize_t n = write(process->input, process->pending.data, process->pending.length);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            close_input(process);
            break;
        }
        process->pending.length -= (size_t)n;
        memmove(process->pending.data, process->pending.data + n, process->pending.length);
    }
    if (process->input >= 0 && !process->pending.length && process->input_ends)
        close_input(process);
    if (process->input >= 0)
        (void)loop_modify(
            loop_of(process), &process->input_source, process->pending.length ? EPOLLOUT : 0);
    if (process->pending.length < HTTP_UNSENT_MAX)
        answer_writers(process);
}

static void on_input(struct loop_source *source, uint32_t events) {
    struct process *process = container_of(source, struct process, input_source);

    if (events & EPOLLOUT) {
        write_input(process);
        return;
    }
    close_input(process);
    answer_writers(process);
}

static void take_input(struct process *process, int take_fd) {
    (void)fcntl(take_fd, F_SETFL, O_WRONLY | O_NONBLOCK);
    process->input = take_fd;
    (void)loop_add(loop_of(process), &process->input_source, take_fd, 0, on_input);
    write_input(process);
}

ssize_t process_write(struct process *process, const void *data, size_t length) {
    if (process->input_ends || (process->input < 0 && !process->claim))
        return -EPIPE;
    buf_add(&process->pending, data, length);
    if (process->input >= 0)
        write_input(process);
    return (ssize_t)process->pending.length;
}

void process_close_stdin(struct process *process) {
    process->input_ends = true;
    if (process->input >= 0)
        write_input(process);
}

void process_signal(struct process *process, int signal_number, enum rollbox_scope scope) {
    const struct rollbox_call_options call = {
        .call = ROLLBOX_CALL_SIGNAL, .signal_number = signal_number, .scope = scope
    };

    (void)late_call_start(process->watch, process->id, &call);
}

/* ---- starting ---- */

static bool open_pipe(int *ret_read, int *ret_write) {
    int pair[2];

    if (pipe2(pair, O_CLOEXEC) < 0)
        return false;
    *ret_read = pair[0];
    *ret_write = pair[1];
    return true;
}

/* Its exchange, which has no client. */
static struct exchange *watch_new(struct exchange *of, struct e2b_box *e2b) {
    struct exchange *exchange = calloc(1, sizeof *exchange);

    if (!exchange)
        return NULL;
    exchange->server = e2b->server;
    exchange->tenant = e2b->box->tenant;
    exchange->box = e2b->box;
    exchange->box->references++;
    /* In a fork it continues what its sandbox has already, and holds nothing. */
    if (of)
        admission_move(of, exchange);
    /* It is not counted as an exchange: the end of the server does not wait for it. */
    list_init(&exchange->of_operation);
    list_init(&exchange->of_engine);
    return exchange;
}

static struct process *new_process(
    struct e2b_box *e2b, struct exchange *of, const char *id, uint32_t pid) {
    struct process *process = calloc(1, sizeof *process);

    if (!process)
        return NULL;
    process->e2b = e2b;
    process->followers = e2b->followers;
    process->server = e2b->server;
    process->watch = watch_new(of, e2b);
    if (!process->watch) {
        free(process);
        return NULL;
    }
    (void)snprintf(process->id, sizeof process->id, "%s", id);
    process->pid = pid;
    process->input = -EBADF;
    process->input_source.fd = -1;
    list_init(&process->sweep.node);
    list_init(&process->streams);
    list_init(&process->writers);
    for (size_t i = 0; i < 2; i++) {
        process->sides[i].process = process;
        process->sides[i].fd = -EBADF;
        process->sides[i].source.fd = -1;
    }
    list_add_tail(&e2b->processes, &process->of_box);
    return process;
}

/* Pipes for the two outputs; the write ends are the caller's. */
static bool open_sides(struct process *process, int ends[2]) {
    for (size_t i = 0; i < 2; i++) {
        struct process_side *side = &process->sides[i];

        if (!open_pipe(&side->fd, &ends[i]))
            return false;
        (void)fcntl(side->fd, F_SETFL, O_RDONLY | O_NONBLOCK);
    }
    listen(process, true);
    return true;
}

static unsigned count(const struct e2b_box *e2b) {
    unsigned n = 0;

    for (const struct list *node = e2b->processes.next; node != &e2b->processes; node = node->next)
        n++;
    return n;
}

static int start(struct process *process, const struct process_start *wanted, int input,
    const int ends[2], struct rollbox_error *error) {
    const struct rollbox_exec_options options = { .size = sizeof options,
        .argv = wanted->argv,
        .env = wanted->env,
        .cwd = wanted->cwd,
        .timeout_ms = wanted->timeout_ms,
        .output_limit = -1,
        .operation_id = process->id,
        .terminal = wanted->terminal,
        .input_fd = input,
        .stream_fds = { ends[0], ends[1] },
        .detached = true,
        .callback = on_ended,
        .userdata = process };

    if (process->watch)
        traces_command_begins(process->watch);
    return rollbox_exec(process->e2b->box->handle, &options, &process->run, error);
}

struct process *process_start(struct exchange *exchange, const struct process_start *wanted,
    json_t *take_config, const struct process_user *user, void *userdata) {
    struct e2b_box *e2b = e2b_of(exchange);
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_close int input = -EBADF, out = -EBADF, err = -EBADF;
    int ends[2] = { -EBADF, -EBADF }, write_end = -EBADF;
    char id[SERVER_NAME_MAX + 1];
    struct process *process = NULL;

    if (e2b && count(e2b) >= PROCESSES_MAX)
        exchange_problem(
            exchange, 429, "quota_exceeded", "the sandbox has %u processes already", PROCESSES_MAX);
    else if (e2b && admission_command(exchange)) {
        /* The process holds the quotas from here on, and not its request. */
        box_random_name(id);
        process = new_process(e2b, exchange, id, ++e2b->last_pid);
    } else {
        json_decref(take_config);
        return NULL;
    }
    if (!process) {
        json_decref(take_config);
        if (count(e2b) < PROCESSES_MAX)
            exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return NULL;
    }
    process->config = take_config;
    process->user = user;
    process->userdata = userdata;
    process->is_terminal = wanted->terminal != NULL;
    process->has_stdin = wanted->has_stdin || wanted->terminal;
    bool has_pipes =
        (!process->has_stdin || open_pipe(&input, &write_end)) && open_sides(process, ends);
    out = ends[0];
    err = ends[1];
    int r = has_pipes ? start(process, wanted, MAX(input, -1), ends, &error) : -EMFILE;
    if (r < 0) {
        close_fd(&write_end);
        process->user = NULL;
        free_process(process);
        if (has_pipes)
            exchange_fail(exchange, &error);
        else
            exchange_problem(
                exchange, 503, "resource_exhausted", "the server has no room for a pipe");
        return NULL;
    }
    if (write_end >= 0)
        take_input(process, write_end);
    events_of_box(e2b->box, "exec.started", json_pack("{s:s}", "exec", process->id));
    return process;
}

/* ---- after a wake or a fork ---- */

static void claim_work(struct pool_job *job) {
    struct claim *claim = container_of(job, struct claim, job);

    claim->r = rollbox_claim(claim->handle, claim->id, 1, claim->fds, NULL);
}

static void claim_done(struct pool_job *job) {
    struct claim *claim = container_of(job, struct claim, job);

    for (size_t i = 0; claim->r >= 0 && i < ROLLBOX_CLAIM_FDS; i++) {
        if (i == 0 && claim->process && claim->fds[i] >= 0) {
            claim->process->claim = NULL;
            take_input(claim->process, claim->fds[i]);
        } else {
            close_fd(&claim->fds[i]);
        }
    }
    if (claim->process)
        claim->process->claim = NULL;
    box_unref(claim->box);
    free(claim);
}

static void claim_input(struct process *process) {
    struct claim *claim = calloc(1, sizeof *claim);

    if (!claim)
        return;
    claim->job = (struct pool_job){ .work = claim_work, .done = claim_done };
    claim->process = process;
    claim->box = process->e2b->box;
    claim->box->references++;
    claim->handle = claim->box->handle;
    memcpy(claim->id, process->id, sizeof claim->id);
    for (size_t i = 0; i < ROLLBOX_CLAIM_FDS; i++)
        claim->fds[i] = -1;
    process->claim = claim;
    pool_submit(process->e2b->server->pool, &claim->job);
}

/* Follows a command that is in the sandbox already. */
static void attach(struct process *process) {
    int ends[2] = { -EBADF, -EBADF };
    bool is_open = open_sides(process, ends);
    auto_close int input = -EBADF;
    const struct rollbox_attach_options options = { .size = sizeof options,
        .operation_id = process->id,
        .input_fd = -1,
        .stream_fds = { ends[0], ends[1] },
        .callback = on_ended,
        .userdata = process };

    process->is_asleep = false;
    process->is_late = true;
    for (size_t i = 0; i < 2; i++)
        process->sides[i].moved = 0;
    int r = is_open ? rollbox_attach(process->e2b->box->handle, &options, &process->run, NULL)
                    : -EMFILE;
    close_fd(&ends[0]);
    close_fd(&ends[1]);
    if (r < 0) {
        process->end = error_end("unavailable", "the process was not found");
        for (size_t i = 0; i < 2; i++)
            close_side(&process->sides[i]);
        process->has_result = true;
        end_when_complete(process);
    } else if (process->has_stdin && !process->input_ends) {
        claim_input(process);
    }
}

void e2b_processes_woken(struct e2b_box *e2b) {
    list_for_each(node, &e2b->processes) {
        struct process *process = container_of(node, struct process, of_box);

        if (process->is_asleep)
            attach(process);
    }
}

void e2b_processes_remember(const struct e2b_box *from, struct e2b_box *to) {
    to->last_pid = from->last_pid;
    for (const struct list *node = from->processes.next; node != &from->processes;
         node = node->next) {
        const struct process *of = container_of(node, struct process, of_box);
        struct process *process = of->has_result ? NULL : new_process(to, NULL, of->id, of->pid);

        if (!process)
            continue;
        process->config = json_incref(of->config);
        process->tag = json_incref(of->tag);
        process->has_stdin = of->has_stdin;
        process->input_ends = of->input_ends;
        process->is_terminal = of->is_terminal;
        process->is_asleep = true;
    }
}

void e2b_processes_copy(const struct e2b_box *from, struct e2b_box *to) {
    e2b_processes_remember(from, to);
    e2b_processes_woken(to);
}

/* ---- small ones ---- */

void *process_userdata(const struct process *process) {
    return process->userdata;
}

void process_set_user(struct process *process, const struct process_user *user, void *userdata) {
    process->user = user;
    process->userdata = userdata;
}

uint32_t process_pid(const struct process *process) {
    return process->pid;
}

struct process *process_find(struct e2b_box *e2b, uint32_t pid) {
    list_for_each(node, &e2b->processes) {
        struct process *process = container_of(node, struct process, of_box);

        if (process->pid == pid)
            return process;
    }
    return NULL;
}
