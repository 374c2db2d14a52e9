/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands in sessions: runs (run.c) that share a box.
 *
 * A command waits in session->commands.waiting until it can be sent to init: during an operation,
 * while there is no box, while init's socket is full. It is killed by asking init to kill its tree
 * of processes; it is over when init says so, or when its box is dead.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/box/box.h"
#include "engine/box/profile.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/command/command.h"
#include "engine/command/output.h"
#include "engine/command/result.h"
#include "engine/command/run_text.h"
#include "engine/command/stream.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/run/admission.h"
#include "engine/network/gateway.h"
#include "engine/run/run.h"
#include "engine/session/exec.h"
#include "engine/session/op.h"
#include "engine/box/disk_upper.h"
#include "engine/checkpoint/dump_job.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"

#define MAX_ENDED 256 /* of commands whose result a client has received */
#define MAX_UNTOLD 65536
#define START_NS 30000000000ll /* in which init is to have started a command */
#define DEAF_NS                                                                                    \
    10000000000ll /* an init that has not answered to a kill by then is ended itself               \
                   */
#define MAX_STRAYS 64

static const struct run_session_ops session_ops;

/* A session counts in the memory budget of runs while it has commands. */
static void count_command(struct session *session, int change) {
    struct engine *engine = session->engine;

    session->commands.n_runs += (unsigned)change;
    admission_session(engine, &session->commands.memory_reserved,
        session->commands.n_runs ? session->profile->policy->max_memory_bytes : 0);
    if (!session->commands.n_runs)
        run_schedule(engine);
}

void exec_enter(struct run *run) {
    struct session *session = run->session;
    struct rollbox_error error;

    for (unsigned i = 0; i < 2; i++)
        if (run->fds.streams[i] >= 0) {
            int r = stream_add(&run->outputs[i], TAKE_FD(run->fds.streams[i]));
            if (r < 0) {
                error_set(&error, error_code_of(-r, ROLLBOX_ERR_INVALID_ARGUMENT), -r, "arguments",
                    "stream_fds[%u] cannot be written to: %s", i, strerror(-r));
                run->session = NULL;
                run->profile = NULL; /* which counts only runs that have a box for themselves */
                run_fail(run, error.code, error.error_number, error.stage, error.message);
                return;
            }
        }
    run->session_ops = &session_ops;
    run->init.serial = ++run->engine->sessions.next_exec;
    list_add_tail(&session->commands.runs, &run->of_session);
    list_add_tail(&session->commands.waiting, &run->in_queue);
    count_command(session, 1);
    session->files.dirty = session->origin.was_used = true;
    session_events_command_started(run);
    session_touch(session);
    op_session_called(session);
    session_schedule(session);
}

static void forget_ended(struct session *session, struct ended *ended) {
    list_remove(&ended->node);
    session->commands.n_ended--;
    free(ended->command);
    free(ended);
}

struct run *exec_adopt(struct session *session, const struct checkpoint_command *command) {
    struct run *run = run_new(session->engine);

    if (!run)
        return NULL;
    run->profile = session->profile;
    run->session = session;
    run->session_ops = &session_ops;
    run->box = session->box;
    run->state = RUN_STARTING;
    run->init.main_pid = command->pid;
    run->given.is_detached = true;
    run->limits.timeout_ms = command->timeout_ms;
    run->limits.output_limit = command->output_limit;
    run->terminal.is_wanted = command->has_terminal;
    memcpy(run->operation.id, command->operation, command->operation_length);
    run->operation.length = command->operation_length;
    session_name_operation(session, run->operation.id, &run->operation.length);
    wire_begin(&run->given.message, GUEST_EXEC, 0);
    wire_add_text(&run->given.message, GUEST_ARG, command->description);
    run->init.serial = ++run->engine->sessions.next_exec;
    list_add_tail(&session->commands.runs, &run->of_session);
    count_command(session, 1);
    /* After a reset it is under way again. */
    result_forget(run->engine, run->operation.id, run->operation.length);
    list_for_each(node, &session->commands.ended) {
        struct ended *ended = container_of(node, struct ended, node);

        if (ended->operation_length == run->operation.length &&
            !memcmp(ended->operation, run->operation.id, run->operation.length))
            forget_ended(session, ended);
    }
    gateway_tally_begin(run, run->box);
    return run;
}

/* A result that nobody has got yet is not lost for others' sake. */
static void forget_oldest(struct session *session) {
    list_for_each(node, &session->commands.ended) {
        struct ended *ended = container_of(node, struct ended, node);

        if (ended->told || session->commands.n_ended > MAX_UNTOLD) {
            forget_ended(session, ended);
            return;
        }
    }
}

/* A process in the sandbox may still have them. */
static void keep_orphan_pipes(struct session *session, const struct run *run) {
    for (size_t i = 0; i < ARRAY_SIZE(run->fds.pipes); i++) {
        if (!run->fds.pipes[i].inode)
            continue;
        if (session->commands.n_orphan_pipes == MAX_STRAYS)
            memmove(session->commands.orphan_pipes, session->commands.orphan_pipes + 1,
                --session->commands.n_orphan_pipes * sizeof session->commands.orphan_pipes[0]);
        struct orphan_pipe *orphan_pipes = realloc(session->commands.orphan_pipes,
            (session->commands.n_orphan_pipes + 1) * sizeof session->commands.orphan_pipes[0]);
        if (!orphan_pipes)
            return;
        session->commands.orphan_pipes = orphan_pipes;
        orphan_pipes[session->commands.n_orphan_pipes++] =
            (struct orphan_pipe){ .inode = run->fds.pipes[i].inode,
                .is_written = run->fds.pipes[i].is_written };
    }
}

/* It is over: keeps its end for clients that ask later. */
static struct session *leave(struct run *run) {
    struct session *session = run->session;
    struct ended *ended = calloc(1, sizeof *ended);

    keep_orphan_pipes(session, run);
    list_remove(&run->of_session);
    count_command(session, -1);
    run->session = NULL;
    if (!ended)
        return session; /* it cannot be kept, but was sent at least */
    list_init(&ended->node);
    memcpy(ended->operation, run->operation.id, sizeof ended->operation);
    ended->operation_length = run->operation.length;
    ended->command = run_describe(run);
    ended->outcome = run->end.outcome;
    ended->status = run->end.status;
    ended->wall_ns = run->end.wall_ns;
    ended->cpu_ns = run->end.cpu_ns;
    ended->told = run->client || !list_empty(&run->waiters);
    list_add_tail(&session->commands.ended, &ended->node);
    if (++session->commands.n_ended > MAX_ENDED)
        forget_oldest(session);
    return session;
}

/* A time-out must be one even if init is blocked. All processes of the sandbox go; its files
 * stay. */
static void on_deaf(struct loop_timer *timer) {
    struct run *run = container_of(timer, struct run, limits.timer);

    if (run->init.serial && run->state != RUN_ENDED && run->session->box &&
        run->session->box->state != BOX_DYING)
        box_kill(run->session->box);
}

/* ---- to init ---- */

static int send_signal(struct session *session, uint64_t target, int number, unsigned scope) {
    auto_buf struct buf message = BUF_INIT;

    if (!session->box || session->box->state == BOX_DYING)
        return -ESRCH;
    wire_begin(&message, GUEST_SIGNAL, target);
    wire_add_u64(&message, GUEST_TARGET, target);
    wire_add_u64(&message, GUEST_NUMBER, (uint64_t)number);
    wire_add_u64(&message, GUEST_SCOPE, scope);
    return wire_send(session->box->socket, &message, NULL, 0);
}

int exec_signal(struct run *run, int number, enum rollbox_scope scope) {
    run->end.was_sent_kill |= number == SIGKILL;
    return run->state == RUN_QUEUED ? -EAGAIN
                                    : send_signal(run->session, run->init.serial, number, scope);
}

bool exec_kill(struct run *run) {
    struct session *session = run->session;

    if (!run->init.serial || run->state == RUN_QUEUED || session->state == SESSION_CLOSING)
        return false;
    run->end.was_sent_kill = true;
    int r = send_signal(session, run->init.serial, SIGKILL, ROLLBOX_SCOPE_TREE);
    const bool was_told = run->kill != RUN_KILL_NONE;
    session->commands.kill_due |= r == -EAGAIN;
    if (r == 0 || r == -EAGAIN || was_told)
        run->kill = r == -EAGAIN ? RUN_KILL_DUE : RUN_KILL_SENT;
    if (r != 0 && r != -EAGAIN)
        return false;
    if (!was_told)
        (void)loop_timer_set(
            session->engine->loop, &run->limits.timer, clock_now_ns() + DEAF_NS, on_deaf);
    return true;
}

void exec_kill_all(struct session *session) {
    (void)send_signal(session, 0, SIGKILL, ROLLBOX_SCOPE_TREE);
}

void exec_kill_guests(struct session *session) {
    (void)send_signal(session, 0, SIGKILL, ROLLBOX_SCOPE_CHILDREN);
}

static void note_pipe(struct run_pipe *pipe, int fd) {
    struct stat st;
    int flags = fcntl(fd, F_GETFL);

    if (flags >= 0 && fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode))
        *pipe = (struct run_pipe){
            .inode = st.st_ino, .is_written = (flags & O_ACCMODE) != O_RDONLY, .kept = -EBADF
        };
}

static int send_exec(struct session *session, struct run *run, struct rollbox_error *error) {
    int fds[3 + ARRAY_SIZE(run->fds.extra)],
        r = run->terminal.is_wanted ? 0 : run_open_streams(run);
    size_t n = 0;

    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "setup",
            "the pipes of the command cannot be made: %s", strerror(-r));
    for (size_t i = 0; i < ARRAY_SIZE(run->fds.stdio) && !run->terminal.is_wanted; i++)
        fds[n++] = run->fds.stdio[i];
    for (unsigned i = 0; i < run->fds.n_extra; i++)
        fds[n++] = run->fds.extra[i];
    ((struct wire_header *)(void *)run->given.message.data)->serial = run->init.serial;
    gateway_tally_begin(run, session->box);
    r = wire_send_patiently(session->box->socket, &run->given.message, fds, n);
    if (r == -EAGAIN)
        return r; /* its pipes are kept for the next try */
    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "setup",
            "the command cannot be handed to the sandbox: %s", strerror(-r));
    if (run->given.stdin_kind == RUN_STDIN_PIPED)
        note_pipe(&run->fds.pipes[0], run->fds.stdio[0]);
    for (unsigned i = 0; i < run->fds.n_extra; i++)
        note_pipe(&run->fds.pipes[3 + i], run->fds.extra[i]);
    for (size_t i = 0; i < ARRAY_SIZE(run->fds.stdio); i++)
        close_fd(&run->fds.stdio[i]);
    admission_handed_over(run);
    while (run->fds.n_extra)
        close(run->fds.extra[--run->fds.n_extra]);
    session_events_command_sent(run);
    run->state = RUN_STARTING;
    run->limits.begun_ns = clock_now_ns();
    run->box = session->box;
    session->files.dirty = true; /* again: a state may have been taken while it waited */
    (void)loop_timer_set(
        session->engine->loop, &run->limits.timer, clock_now_ns() + START_NS, on_deaf);
    return 0;
}

void exec_tell_again(struct session *session) {
    if (session->commands.thaw_due)
        session_thaw_soon(session);
    if (!session->commands.kill_due)
        return;
    session->commands.kill_due = false;
    list_for_each(node, &session->commands.runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->kill == RUN_KILL_DUE && !exec_kill(run))
            run->kill = RUN_KILL_SENT;
    }
}

bool exec_may_send(const struct session *session) {
    const struct op *op = session_first_op(session);

    if (list_empty(&session->commands.waiting) || (op && op->wait != OP_WAIT_COMMANDS_SENT))
        return false;
    return !session->checkpoint->pending_restore && session->state != SESSION_CLOSING;
}

bool exec_send_waiting(struct session *session, int ready, struct rollbox_error *error) {
    if (ready == 0 && session->box->state == BOX_SETUP)
        return false; /* writes before its files are marked as untouched would be overlooked */
    if (ready == 0)
        ready = session_resume(session);
    if (ready == -EAGAIN)
        return false;
    while (!list_empty(&session->commands.waiting)) {
        struct run *run = container_of(session->commands.waiting.next, struct run, in_queue);

        int r = ready == 0 ? send_exec(session, run, error) : ready;
        if (r == -EAGAIN || r == -EPIPE)
            return false; /* init's next answer, or its death, comes here again */
        list_remove(&run->in_queue);
        if (r < 0)
            run_fail(run, error->code, error->error_number, error->stage, error->message);
    }
    if (session->box)
        disk_upper_watch(session->box);
    return true;
}

/* ---- the end ---- */

/* The box stays, with the processes that the command left running. */
static void finish(struct run *run) {
    run->state = RUN_ENDED;
    for (size_t i = 0; i < ARRAY_SIZE(run->outputs); i++)
        output_hand_over(&run->outputs[i]);
    for (size_t i = 0; i < ARRAY_SIZE(run->fds.pipes) && run->session->box; i++)
        box_close(run->session->box, &run->fds.pipes[i].kept);
    session_events_command_ended(run); /* before the client knows */
    result_send(run);
    const bool has_run = run->end.outcome != ROLLBOX_OUTCOME_ERROR;
    struct session *session = leave(run);
    run_free(run);
    session_touch(session);
    session_events_command_settled(session, has_run);
    session_schedule(session);
}

static bool is_broken(const struct run *run) {
    return dump_job_has_broken(run->session->checkpoint);
}

static enum oom_cause oom_cause(struct run *run) {
    return session_oom_cause(run->session);
}

static struct run_sandbox sandbox_of(const struct run *run) {
    return (struct run_sandbox){
        .name = run->session->name, .number = run->session->number, .box = run->session->box
    };
}

static const struct run_session_ops session_ops = { .sandbox = sandbox_of,
    .kill = exec_kill,
    .finish = finish,
    .is_broken = is_broken,
    .oom_cause = oom_cause };

/* There is no init any more that would tell its end: it has failed, unless its outcome is known. */
void exec_end(struct run *run, const struct rollbox_error *error) {
    run->init.serial = 0;
    if (run->end.outcome == ROLLBOX_OUTCOME_ERROR || run->end.killed)
        run_finish(run);
    else
        run_fail(run, error->code, error->error_number, error->stage, error->message);
}

/* ---- from init ---- */

static struct run *of_serial(struct session *session, uint64_t serial) {
    list_for_each(node, &session->commands.runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->init.serial == serial)
            return run;
    }
    return NULL;
}

void exec_signalled(struct session *session, uint64_t serial) {
    struct run *run = of_serial(session, serial);

    if (run && run->kill != RUN_KILL_NONE)
        loop_timer_clear(run->engine->loop, &run->limits.timer);
}

static int take_terminal(struct run *run, int take_master) {
    auto_close int master = take_master;

    if (run->terminal.input >= 0 &&
        !(run->terminal.writer = terminal_input_new(
              run->engine, run->terminal.input_client, TAKE_FD(run->terminal.input), master)))
        return -ENOMEM;
    return output_adopt(&run->outputs[0], TAKE_FD(master));
}

void exec_answer(
    struct session *session, const struct guest_record *record, int *fds, size_t n_fds) {
    struct run *run = of_serial(session, record->serial);

    if (!run)
        return;
    if (record->kind == GUEST_EXEC_FAILED) {
        run->init.serial = 0; /* there is nothing to kill */
        if (run->end.outcome == ROLLBOX_OUTCOME_ERROR || run->end.killed)
            run_finish(run);
        else
            run_answer(run, record);
        return;
    }
    if (record->kind == GUEST_STARTED) {
        run->init.main_pid = (pid_t)record->value;
        run->end.counts.stream = record->wall_ns;
    }
    if (record->kind == GUEST_STARTED && run->terminal.is_wanted) {
        int r = n_fds ? take_terminal(run, TAKE_FD(fds[0])) : -EPROTO;
        if (r < 0)
            run_fail(run, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -r, "run",
                "the terminal of the command cannot be read");
    }
    if (record->kind == GUEST_EXITED) {
        if (run->kill == RUN_KILL_DUE)
            run->kill = RUN_KILL_SENT;
        run->init.serial = 0;
        if (run->end.outcome == ROLLBOX_OUTCOME_OUT_OF_MEMORY ||
            run->end.error.code == ROLLBOX_ERR_HOST_OUT_OF_MEMORY)
            session_oom_forget(session); /* that is counted by now, and no later kill's cause */
    }
    run_answer(run, record);
}

/* ---- attaching ---- */

struct run *exec_find(struct session *session, const struct wire_field *operation) {
    unsigned char key[sizeof((struct run *)0)->operation];
    size_t length = operation->length;

    if (length < 1 || length > 64)
        return NULL;
    memcpy(key, operation->data, length);
    session_name_operation(session, key, &length);
    return run_find(session->engine, NULL, key, length);
}

size_t exec_claim(struct run *run, uint64_t wanted, struct buf *json, int *ret_fds) {
    size_t n = 0;

    buf_add_text(json, "{\"fds\": [");
    for (size_t i = 0; i < ARRAY_SIZE(run->fds.pipes); i++) {
        if (run->fds.pipes[i].kept < 0 || !(wanted & 1ull << i))
            continue;
        buf_printf(json, "%s{\"slot\": %zu, \"mode\": \"%s\"}", n ? ", " : "", i,
            run->fds.pipes[i].is_written ? "r" : "w");
        ret_fds[n++] = TAKE_FD(run->fds.pipes[i].kept);
    }
    buf_add_text(json, "]}");
    return n;
}
