/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recording: the requests to a session and their results go to the recorder (recorder.c), which
 * writes them to the descriptor that a client gave.
 *
 * Steps are numbered in the order of their requests, which the client controls, and sent as they
 * end, before the waiting client gets the result. So a step is recorded even if a process is killed
 * then. A record that cannot keep up ends at that step, and reports it (INSPECT, CLOSE). Recording
 * never delays a command and never makes it fail.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/utf8.h"
#include "engine/box/profile.h"
#include "engine/command/command.h"
#include "engine/command/output.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/files/box_files.h"
#include "engine/ops/auto_snapshot.h"
#include "engine/protocol.h"
#include "engine/record/record.h"
#include "engine/session/op.h"
#include "engine/network/gateway.h"
#include "engine/record/network_step.h"
#include "engine/record/recorder.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "engine/snapshot/layer.h"
#include "record/record.h"
#include "store/manifest.h"

#define STEP_FDS 3u
#define EARLY_BYTES                                                                                \
    16384u /* of a request whose part of its step is made before its end is known: it is in memory \
              twice then */
#define CLOSE_PATIENCE_NS                                                                          \
    2000000000ll /* without a word of the recorder's: a reader that does not read must not keep a  \
                    CLOSE waiting */
#define MAX_CLOSE_PATIENCE_NS 30000000000ll

#define MAX_ENDED_STEPS 1024 /* commands that have ended and that a note may name */

/* A command that is a step. */
struct command_step {
    struct list node;      /* recording->commands */
    const struct run *run; /* NULL: it has ended */
    unsigned char operation[sizeof((struct run *)0)->operation];
    size_t operation_length;
    uint64_t step, begun_at;
    uint64_t end_sequence; /* it was the n-th to end */
    int stdin_copy;        /* -EBADF: its input is not data */
    struct buf action;     /* once it has been sent; empty: it is made at its end */
};

/* An operation that is a step. */
struct op_step {
    struct list node; /* recording->ops */
    const struct op *op;
    uint64_t step, begun_at;
    uint64_t after; /* automatic: the step of the command that ended; 0: it was none */
    char asked[sizeof((struct snapshot *)0)->id], name[SESSION_NAME_MAX + 1];
};

/* The observer of a session that is recorded, or has rules for the records of its forks. */
struct recording {
    struct session_observer observer;
    struct session *session;
    struct record *record; /* NULL: it is not recorded */
    struct buf rules;      /* by which its record is made, or that of the nearest it was forked from
                              which is recorded: fields as of RECORD */
    uint64_t parent_step;  /* of a fork: the step of its parent; 0 */
    uint64_t ancestor;     /* the nearest recorded session that it was forked from; 0 */
    uint64_t after;        /* the step of the command that ended last; 0: it was none */
    struct list commands;  /* struct command_step: those that have not ended */
    struct list ended;     /* likewise: those that have, the latest last */
    unsigned n_ended;
    struct list ops; /* struct op_step */
};

static const struct session_observer_ops observer_ops;

static struct recording *recording_of(const struct session_observer *observer) {
    return container_of(observer, struct recording, observer);
}

/* NULL: the session has none. */
static struct recording *find_recording(const struct session *session) {
    list_for_each(node, &session->observers) {
        struct session_observer *observer = container_of(node, struct session_observer, node);

        if (observer->ops == &observer_ops)
            return recording_of(observer);
    }
    return NULL;
}

static struct record *find_record(const struct session *session) {
    const struct recording *recording = find_recording(session);

    return recording ? recording->record : NULL;
}

/* NULL: out of memory. */
static struct recording *recording_new(struct session *session) {
    struct recording *recording = calloc(1, sizeof *recording);

    if (!recording)
        return NULL;
    recording->session = session;
    list_init(&recording->commands);
    list_init(&recording->ended);
    list_init(&recording->ops);
    /* Before others, whose operations follow from a command's end, too. */
    session_observe(session, &recording->observer, &observer_ops, true);
    return recording;
}

/* ---- records ---- */

static void state_text(const struct record *record, struct buf *to) {
    const bool is_complete = record->phase == RECORD_IS_DONE && !record->error;

    buf_printf(to,
        "{\"id\": \"%s\", \"steps\": %llu, \"written\": %llu, \"complete\": %s, \"error\": ",
        record->id, (unsigned long long)(record->next_step - 1),
        (unsigned long long)record->written, is_complete ? "true" : "false");
    json_add_string(to, record->error ? record->message : NULL, strlen(record->message));
    buf_add_text(to, "}");
}

static void record_free(struct record *record) {
    network_step_flush(record);
    loop_timer_clear(record->engine->loop, &record->patience);
    list_remove(&record->node);
    if (record->recording)
        record->recording->record = NULL;
    free(record);
}

/* Nothing of it will be written any more. */
static void on_over(struct record *record) {
    if (record->recording)
        session_close_continue(record->recording->session);
    else
        record_free(record);
}

static void send_end(struct record *record, const char *reason) {
    auto_buf struct buf message = BUF_INIT;

    network_step_flush(record);
    wire_begin(&message, RECORD_END, record->number);
    wire_add_text(&message, RECORD_REASON, record->error ? "lost" : reason);
    recorder_post(record, &message, NULL, 0, 0);
    if (record->phase == RECORD_IS_OPEN)
        record->phase = RECORD_IS_ENDING;
}

/* ---- lines ---- */

static void add_word(struct buf *to, const char *key, const char *word) {
    wire_add_text(to, RECORD_KEY, key);
    if (word)
        wire_add_text(to, RECORD_WORD, word);
    else
        wire_add(to, RECORD_NONE, NULL, 0);
}

static void add_text(struct buf *to, const char *key, const char *text) {
    wire_add_text(to, RECORD_KEY, key);
    if (text)
        wire_add(to, RECORD_TEXT, text, strlen(text));
    else
        wire_add(to, RECORD_NONE, NULL, 0);
}

static void add_value(struct buf *to, const char *key, enum record_tag tag, uint64_t value) {
    wire_add_text(to, RECORD_KEY, key);
    wire_add_u64(to, tag, value);
}

static void add_none(struct buf *to, const char *key) {
    add_word(to, key, NULL);
}

/* From 2^63 on as policies have it, for JSON's integers may end there. */
static void add_seed_as(struct buf *to, const char *key, uint64_t seed) {
    char digits[24];

    snprintf(digits, sizeof digits, "%llu", (unsigned long long)seed);
    if (seed > INT64_MAX)
        add_word(to, key, digits);
    else
        add_value(to, key, RECORD_NUMBER, seed);
}

static void open_part(struct buf *to, const char *key, enum record_tag tag) {
    if (key)
        wire_add_text(to, RECORD_KEY, key);
    wire_add(to, tag, NULL, 0);
}

static void close_part(struct buf *to) {
    wire_add(to, RECORD_UP, NULL, 0);
}

static void begin_step(
    const struct record *record, struct buf *to, uint64_t step, uint64_t begun_at) {
    wire_begin(to, RECORD_STEP, record->number);
    add_value(to, "step", RECORD_NUMBER, step);
    add_value(to, "begun_at", RECORD_NUMBER, begun_at);
    add_value(to, "time_ns", RECORD_NUMBER, (uint64_t)clock_real_ns());
}

static void add_error(struct buf *to, enum rollbox_error_code code) {
    open_part(to, "error", RECORD_OBJECT);
    add_word(to, "code", rollbox_error_name(code));
    close_part(to);
}

/* The observation of a step without a result of its own. */
static void add_done(struct buf *to, const struct rollbox_error *error) {
    open_part(to, "observation", RECORD_OBJECT);
    add_word(to, "outcome", error ? "error" : "done");
    if (error)
        add_error(to, error->code);
    close_part(to);
    if (error)
        add_text(to, "message", error->message);
}

static void end_step(
    struct record *record, struct buf *message, const int *fds, size_t n_fds, uint64_t bytes) {
    record->ended++;
    if (network_step_waits(record) && network_step_hold(record, 0, message, fds, n_fds, bytes))
        return;
    recorder_post(record, message, fds, n_fds, bytes);
}

/* ---- commands ---- */

static struct command_step *find_command(const struct recording *recording, const struct run *run) {
    list_for_each(node, &recording->commands)
        if (container_of(node, struct command_step, node)->run == run)
            return container_of(node, struct command_step, node);
    return NULL;
}

static void command_free(struct command_step *command) {
    list_remove(&command->node);
    close_fd(&command->stdin_copy);
    buf_done(&command->action);
    free(command);
}

static void command_started(struct session_observer *observer, struct run *run) {
    struct recording *recording = recording_of(observer);
    struct record *record = recording->record;
    struct command_step *command = record ? calloc(1, sizeof *command) : NULL;

    if (record && !command)
        recorder_fail(record, ENOMEM, "out of memory for a step");
    if (!command)
        return;
    command->run = run;
    memcpy(command->operation, run->operation, sizeof command->operation);
    command->operation_length = run->operation_length;
    command->step = record->next_step++;
    command->begun_at = record->ended;
    ((struct wire_header *)(void *)run->request.data)->flags |= GUEST_EXEC_COUNTED;
    command->stdin_copy = run->stdin_is_data ? fcntl(run->stdio[0], F_DUPFD_CLOEXEC, 3) : -EBADF;
    list_add_tail(&recording->commands, &command->node);
}

static bool next_of(const struct run *run, size_t *position, struct wire_field *field) {
    return run->request.length > sizeof(struct wire_header) &&
           wire_next(run->request.data + sizeof(struct wire_header),
               run->request.length - sizeof(struct wire_header), position, field) > 0;
}

static void add_environment(const struct record *record, const struct run *run, struct buf *to) {
    struct wire_field field;
    size_t position = 0, n = 0, at = 0;

    while (next_of(run, &position, &field))
        n += field.tag == GUEST_ENV;
    open_part(to, "env", record->env_values ? RECORD_OBJECT : RECORD_LIST);
    /* The request's own come last. */
    for (position = 0; next_of(run, &position, &field);) {
        const char *text = field.tag == GUEST_ENV ? wire_text(&field) : NULL;

        if (field.tag == GUEST_ENV && at++ < n - MIN(n, run->n_env))
            continue;
        size_t length = text ? strcspn(text, "=") : 0;
        auto_free char *name = text ? strndup(text, length) : NULL;
        if (!name)
            continue;
        if (record->env_values)
            add_text(to, name, text[length] ? text + length + 1 : "");
        else
            wire_add(to, RECORD_TEXT, name, length);
    }
    close_part(to);
}

static void add_secrets(const struct run *run, struct buf *to) {
    struct wire_field field;
    size_t position = 0;

    while (next_of(run, &position, &field))
        if (field.tag == GUEST_ENV)
            wire_add(to, RECORD_SECRET, field.data, field.length);
}

static void add_files(const struct run *run, struct buf *to) {
    struct wire_field field;
    size_t position = 0;
    uint64_t mode = 0;
    bool any = false;

    while (next_of(run, &position, &field)) {
        if (field.tag == GUEST_FILE_PATH) {
            if (!any)
                open_part(to, "files", RECORD_LIST);
            any = true;
            open_part(to, NULL, RECORD_OBJECT);
            add_text(to, "path", wire_text(&field));
        } else if (field.tag == GUEST_FILE_MODE && any && wire_u64(&field, &mode) == 0) {
            add_value(to, "mode", RECORD_NUMBER, mode);
        } else if (field.tag == GUEST_FILE_DATA && any) {
            wire_add_text(to, RECORD_KEY, "content");
            wire_add(to, RECORD_CONTENT, field.data, field.length);
            close_part(to);
        }
    }
    if (any)
        close_part(to);
}

static void add_input(
    const struct run *run, int stdin_copy, struct buf *to, int *fds, size_t *n_fds) {
    if (stdin_copy >= 0) {
        add_value(to, "stdin", RECORD_CONTENT_FD, UINT64_MAX);
        fds[(*n_fds)++] = stdin_copy;
    } else if (run->stdin_is_data || run->stdin_is_piped) {
        open_part(to, "stdin", RECORD_OBJECT);
        add_value(to, "unrecorded", RECORD_FLAG, 1);
        close_part(to);
    } else {
        add_none(to, "stdin");
    }
}

static void add_action(const struct record *record, const struct command_step *command,
    const struct run *run, struct buf *to, int *fds, size_t *n_fds) {
    struct wire_field field;
    size_t position = 0;

    open_part(to, "action", RECORD_OBJECT);
    add_word(to, "kind", "exec");
    open_part(to, "argv", RECORD_LIST);
    while (next_of(run, &position, &field))
        if (field.tag == GUEST_ARG)
            wire_add(to, RECORD_TEXT, field.data, field.length ? field.length - 1 : 0);
    close_part(to);
    for (position = 0; next_of(run, &position, &field);)
        if (field.tag == GUEST_CWD)
            add_text(to, "cwd", wire_text(&field));
    add_environment(record, run, to);
    add_input(run, command->stdin_copy, to, fds, n_fds);
    add_files(run, to);
    if (run->timeout_ms > 0)
        add_value(to, "timeout_ms", RECORD_NUMBER, (uint64_t)run->timeout_ms);
    else
        add_none(to, "timeout_ms");
    add_value(to, "output_limit", RECORD_NUMBER, MIN(run->output_limit, (uint64_t)INT64_MAX));
    if (run->has_terminal)
        add_value(to, "terminal", RECORD_FLAG, 1);
    if (run->n_extra_given)
        add_value(to, "extra_fds", RECORD_NUMBER, run->n_extra_given);
    close_part(to);
}

/* Now, so that the client does not wait for this part at the end of the command. */
static void command_sent(struct session_observer *observer, struct run *run) {
    const struct recording *recording = recording_of(observer);
    struct command_step *command = find_command(recording, run);

    if (recording->record && command && !command->action.length && command->stdin_copy < 0 &&
        run->request.length <= EARLY_BYTES)
        add_action(recording->record, command, run, &command->action, NULL, NULL);
}

static void add_stream(struct output *output, const char *key, const char *key_cut, struct buf *to,
    int *fds, size_t *n_fds, uint64_t *bytes) {
    wire_add_text(to, RECORD_KEY, key);
    if (output->truncated)
        wire_add(to, RECORD_CUT, NULL, 0);
    if (output->spool < 0) {
        wire_add(to, RECORD_CONTENT, output->head.data, output->head.length);
    } else {
        to->failed |= output_seal(output) < 0;
        wire_add_u64(to, RECORD_CONTENT_FD, output->total);
        fds[(*n_fds)++] = output->spool;
        *bytes += output->total;
    }
    if (output->truncated)
        add_value(to, key_cut, RECORD_FLAG, 1);
}

static void add_status(struct buf *to, const char *key, bool has, int status) {
    if (has)
        add_value(to, key, RECORD_NUMBER, (uint64_t)status);
    else
        add_none(to, key);
}

static void add_known(struct buf *to, const char *key, uint64_t value) {
    if (value == UINT64_MAX)
        add_none(to, key);
    else
        add_value(to, key, RECORD_NUMBER, value);
}

/* It may be named by notes that come later. */
static void keep_ended(struct recording *recording, struct command_step *command) {
    close_fd(&command->stdin_copy);
    buf_done(&command->action);
    command->run = NULL;
    list_remove(&command->node);
    list_add_tail(&recording->ended, &command->node);
    if (++recording->n_ended <= MAX_ENDED_STEPS)
        return;
    command_free(container_of(recording->ended.next, struct command_step, node));
    recording->n_ended--;
}

static void tell_command(struct record *record, struct command_step *command, struct run *run) {
    auto_buf struct buf message = BUF_INIT;
    int fds[STEP_FDS];
    size_t n_fds = 0;
    uint64_t bytes = 0;

    begin_step(record, &message, command->step, command->begun_at);
    if (record->wants_secrets)
        add_secrets(run, &message);
    if (command->action.length) {
        buf_add(&message, command->action.data, command->action.length);
        message.failed |= command->action.failed;
    } else {
        add_action(record, command, run, &message, fds, &n_fds);
    }
    open_part(&message, "observation", RECORD_OBJECT);
    add_word(&message, "outcome", rollbox_outcome_name(run->outcome));
    add_status(
        &message, "exit_code", run->outcome == ROLLBOX_OUTCOME_EXIT, WEXITSTATUS(run->status));
    add_status(&message, "signal", run->outcome == ROLLBOX_OUTCOME_SIGNAL, WTERMSIG(run->status));
    add_stream(&run->outputs[0], "stdout", "stdout_cut", &message, fds, &n_fds, &bytes);
    add_stream(&run->outputs[1], "stderr", "stderr_cut", &message, fds, &n_fds, &bytes);
    if (run->outcome == ROLLBOX_OUTCOME_ERROR)
        add_error(&message, run->error.code);
    close_part(&message);
    if (run->outcome == ROLLBOX_OUTCOME_ERROR)
        add_text(&message, "message", run->error.message);
    open_part(&message, "resources", RECORD_OBJECT);
    add_value(&message, "wall_ms", RECORD_MILLISECONDS, run->wall_ns);
    add_value(&message, "cpu_ms", RECORD_MILLISECONDS, run->cpu_ns);
    add_value(&message, "peak_memory_bytes", RECORD_NUMBER, run->peak_memory);
    add_value(&message, "processes_peak", RECORD_NUMBER, run->processes_peak);
    add_known(&message, "read_bytes", run->counts.read_bytes);
    add_known(&message, "written_bytes", run->counts.written_bytes);
    close_part(&message);
    if (run->profile->policy->have_seed) {
        open_part(&message, "chance", RECORD_OBJECT);
        add_seed_as(&message, "seed", run->session->origin.seed);
        add_known(&message, "stream", run->counts.stream);
        close_part(&message);
    }
    const uint64_t tally = gateway_run_ends(run);
    if (tally && network_step_hold(record, tally, &message, fds, n_fds, bytes))
        record->ended++; /* its line comes later */
    else
        end_step(record, &message, fds, n_fds, bytes);
    command->end_sequence = record->ended;
}

static void command_ended(struct session_observer *observer, struct run *run) {
    struct recording *recording = recording_of(observer);
    struct command_step *command = find_command(recording, run);

    recording->after = command ? command->step : 0;
    if (!command)
        return; /* one that had begun before is none of its steps */
    if (recording->record)
        tell_command(recording->record, command, run);
    keep_ended(recording, command);
}

/* ---- what is done with the sandbox ---- */

static const char *kind_of(const struct op *op) {
    switch ((int)op->verb) {
    case VERB_SNAPSHOT:
        return "snapshot";
    case VERB_FORK:
        return "fork";
    case VERB_RESET:
        return "reset";
    case VERB_COMMIT:
        return "commit";
    default:
        return NULL; /* changes nothing, or is recorded where its details are known */
    }
}

static struct op_step *find_op(const struct recording *recording, const struct op *op) {
    list_for_each(node, &recording->ops)
        if (container_of(node, struct op_step, node)->op == op)
            return container_of(node, struct op_step, node);
    return NULL;
}

static void op_step_free(struct op_step *step) {
    list_remove(&step->node);
    free(step);
}

static struct op_step *number_op(struct recording *recording, const struct op *op) {
    struct record *record = recording->record;
    struct op_step *step = calloc(1, sizeof *step);

    if (!step) {
        recorder_fail(record, ENOMEM, "out of memory for a step");
        return NULL;
    }
    step->op = op;
    step->step = record->next_step++;
    step->begun_at = record->ended;
    list_add_tail(&recording->ops, &step->node);
    return step;
}

static void op_started(struct session_observer *observer, struct op *op) {
    struct recording *recording = recording_of(observer);
    struct op_step *step = recording->record && kind_of(op) ? number_op(recording, op) : NULL;

    if (!step)
        return;
    if (op->verb == VERB_SNAPSHOT && op->snapshot.is_automatic)
        step->after = recording->after;
    /* Taking the state may make it, or drop it. */
    snprintf(step->asked, sizeof step->asked, "%s", op->from ? op->from->id : "");
    snprintf(step->name, sizeof step->name, "%s", op->name ? op->name : "");
}

static void add_op(const struct op *op, const struct op_step *step, struct buf *to) {
    open_part(to, "action", RECORD_OBJECT);
    add_word(to, "kind", kind_of(op));
    if (op->verb != VERB_SNAPSHOT && op->verb != VERB_COMMIT)
        add_word(to, "snapshot", step->asked[0] ? step->asked : NULL);
    if (op->verb == VERB_SNAPSHOT)
        add_text(to, "name", step->name[0] ? step->name : NULL);
    if (op->drops && op->verb != VERB_COMMIT)
        add_word(to, "processes", "drop");
    if (op->verb == VERB_FORK)
        add_value(to, "count", RECORD_NUMBER, op->fork.count);
    if (op->verb == VERB_FORK && op->session->profile->policy->have_seed)
        add_word(to, "seed", op->fork.same_seed ? "same" : "derived");
    if (op->verb == VERB_COMMIT) {
        add_text(to, "path", op->commit.path);
        add_value(to, "force", RECORD_FLAG, op->commit.force);
    }
    close_part(to);
}

/* ---- changed files ---- */

/* A command has ended: the files that it has changed are a step, too, if that is wanted. */
static void tell_changes_after(struct recording *recording, uint64_t after) {
    struct session *session = recording->session;
    const struct record *record = recording->record;

    if (!record || !record->wants_changes || record->phase == RECORD_IS_DONE || record->error ||
        !auto_snapshot_is_due(session) || op_files_are_pristine(session->box))
        return;
    struct op *op = op_add(session, VERB_DIFF, false);
    if (!op)
        return;
    op->diff.is_recorded = op->diff.digests = true;
    struct op_step *step = number_op(recording, op);
    if (step)
        step->after = after;
}

static void command_settled(
    struct session_observer *observer, struct session *session, bool has_run) {
    struct recording *recording = recording_of(observer);

    (void)session;
    if (has_run)
        tell_changes_after(recording, recording->after);
}

/* The record is to have the files that the last command has changed. */
static enum observer_answer may_close(struct session_observer *observer) {
    list_for_each(node, &recording_of(observer)->session->queue.ops)
        if (op_is_recorded_diff(container_of(node, struct op, node)))
            return OBSERVER_WAIT;
    return OBSERVER_CONTINUE;
}

/* The changes in the answer of a diff. */
static void add_changes(const struct op *op, struct buf *to) {
    json_t *answer = json_loadb(op->diff.answer->data ? op->diff.answer->data : "",
        op->diff.answer->length, JSON_ALLOW_NUL, NULL);
    auto_free char *changes = json_dumps(json_object_get(answer, "changes"), JSON_COMPACT);
    json_int_t omitted = json_integer_value(json_object_get(answer, "omitted"));

    json_decref(answer);
    to->failed |= !changes;
    wire_add_text(to, RECORD_KEY, "changes");
    wire_add_text(to, RECORD_DATA, changes ? changes : "null");
    if (omitted)
        add_value(to, "omitted", RECORD_NUMBER, (uint64_t)omitted);
    /* Of a box in which something runs there is only all that was written in it. */
    if (op->from != op->to &&
        snapshot_nearest_owned(op->to->lower) != snapshot_nearest_owned(op->from))
        add_value(to, "cumulative", RECORD_FLAG, 1);
}

static void add_changed_files(const struct op *op, const struct op_step *step,
    const struct rollbox_error *error, struct buf *to) {
    open_part(to, "action", RECORD_OBJECT);
    add_word(to, "kind", "files");
    add_word(to, "of", "exec");
    close_part(to);
    if (error) {
        add_done(to, error);
    } else {
        open_part(to, "observation", RECORD_OBJECT);
        add_word(to, "outcome", "done");
        add_changes(op, to);
        close_part(to);
    }
    add_status(to, "after", step->after != 0, (int)step->after);
}

static void add_seed(const struct session *session, struct buf *to) {
    if (session->profile->policy->have_seed)
        add_seed_as(to, "random_seed", session->origin.seed);
    else
        add_none(to, "random_seed");
}

static void add_children(const struct op *op, struct buf *to) {
    char id[48];

    open_part(to, "children", RECORD_LIST);
    for (unsigned i = 0; i < op->fork.n_made; i++) {
        open_part(to, NULL, RECORD_OBJECT);
        record_name(op->fork.made[i]->engine, op->fork.made[i]->number, id, sizeof id);
        add_word(to, "id", id);
        add_word(to, "name", op->fork.made[i]->name);
        add_seed(op->fork.made[i], to);
        close_part(to);
    }
    close_part(to);
}

static void tell_op(struct record *record, const struct op_step *step, const struct op *op,
    const struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    begin_step(record, &message, step->step, step->begun_at);
    if (op_is_recorded_diff(op)) {
        add_changed_files(op, step, error, &message);
        end_step(record, &message, NULL, 0, 0);
        return;
    }
    add_op(op, step, &message);
    if (!error && op->verb == VERB_SNAPSHOT && op->to) {
        open_part(&message, "observation", RECORD_OBJECT);
        add_word(&message, "outcome", "done");
        add_word(&message, "snapshot", op->to->id);
        close_part(&message);
    } else {
        add_done(&message, error);
    }
    if (!error && op->verb == VERB_FORK)
        add_children(op, &message);
    if (op->verb == VERB_SNAPSHOT && op->snapshot.is_automatic)
        add_status(&message, "after", step->after != 0, (int)step->after);
    end_step(record, &message, NULL, 0, 0);
}

static void op_ended(
    struct session_observer *observer, struct op *op, const struct rollbox_error *error) {
    struct recording *recording = recording_of(observer);
    struct op_step *step = find_op(recording, op);

    if (!step)
        return;
    if (recording->record)
        tell_op(recording->record, step, op, error);
    op_step_free(step);
}

/* One that takes commands through pipes. Their time-outs and limits signal it, and have steps of
 * their own. */
static bool is_shell(const struct run *run) {
    static const char *const words[] = { NULL, "-l", "-s" };
    struct wire_field field;
    size_t position = 0, n = 0;

    while (next_of(run, &position, &field))
        if (field.tag == GUEST_ARG &&
            (n >= ARRAY_SIZE(words) ||
                (words[n] && (!wire_text(&field) || strcmp(wire_text(&field), words[n])))))
            return false;
        else if (field.tag == GUEST_ARG)
            n++;
    return n == ARRAY_SIZE(words) && run->n_extra_given == 3;
}

static void signalled(
    struct session_observer *observer, const struct run *run, unsigned number, unsigned scope) {
    const struct recording *recording = recording_of(observer);
    struct record *record = recording->record;
    const struct command_step *command = run ? find_command(recording, run) : NULL;
    auto_buf struct buf message = BUF_INIT;

    if (!record || (run && is_shell(run)))
        return;
    begin_step(record, &message, record->next_step++, record->ended);
    open_part(&message, "action", RECORD_OBJECT);
    add_word(&message, "kind", "signal");
    add_status(&message, "exec", run != NULL, command ? (int)command->step : 0);
    add_value(&message, "number", RECORD_NUMBER, number);
    add_value(&message, "scope", RECORD_NUMBER, scope);
    close_part(&message);
    add_done(&message, NULL);
    end_step(record, &message, NULL, 0, 0);
}

/* Notes of clients, in JSON: the changes of a snapshot are an observation, a note of their own is
 * an action. */
static void add_said(struct buf *to, const char *kind, const char *data) {
    bool is_note = !strcmp(kind, "note");

    open_part(to, "action", RECORD_OBJECT);
    add_word(to, "kind", kind);
    wire_add_text(to, RECORD_KEY, is_note ? "data" : "of");
    if (is_note)
        wire_add_text(to, RECORD_DATA, data);
    else
        wire_add_text(to, RECORD_WORD, "snapshot");
    close_part(to);
    open_part(to, "observation", RECORD_OBJECT);
    add_word(to, "outcome", "done");
    if (!is_note) {
        wire_add_text(to, RECORD_KEY, "changes");
        wire_add_text(to, RECORD_DATA, data);
    }
    close_part(to);
}

/* The part of a host's path that the sandbox may see. */
static const char *last_component(const char *path) {
    size_t end = strlen(path);

    while (end && path[end - 1] == '/')
        end--;
    while (end && path[end - 1] != '/')
        end--;
    return path + end;
}

/* The step of that command; 0: none, as for a command that was restored with a snapshot. The
 * commands that a shell was given began before its end. */
static uint64_t step_of(
    const struct recording *recording, const struct wire_field *operation, uint64_t *begun_at) {
    const struct list *lists[] = { &recording->commands, &recording->ended };
    const size_t prefix = sizeof recording->session->number;

    for (size_t i = 0; i < ARRAY_SIZE(lists) && operation->data; i++)
        list_for_each(node, lists[i]) {
            const struct command_step *command = container_of(node, struct command_step, node);

            if (command->operation_length != prefix + operation->length ||
                memcmp(command->operation + prefix, operation->data, operation->length) != 0)
                continue;
            if (command->end_sequence)
                *begun_at = MIN(*begun_at, command->end_sequence - 1);
            return command->step;
        }
    return 0;
}

/* A command that a client gave to a shell; the engine sees only the shell. */
static int record_shell(
    struct session *session, struct wire_message *from, struct rollbox_error *error) {
    struct recording *recording = find_recording(session);
    struct record *record = recording ? recording->record : NULL;
    uint64_t timeout = UINT64_MAX, limit = 0, outcome = 0, exit_code = 0, number = 0,
             cut[2] = { 0 }, ended = 0, wall_ns = 0;
    struct wire_field field, exec = { 0 };
    auto_buf struct buf message = BUF_INIT;
    size_t position = 0;

    while (wire_next(from->data, from->length, &position, &field) > 0)
        switch (field.tag) {
        case TAG_EXEC:
            exec = field;
            break;
        case TAG_TIMEOUT:
            (void)wire_u64(&field, &timeout);
            break;
        case TAG_OUTPUT_LIMIT:
            (void)wire_u64(&field, &limit);
            break;
        case TAG_OUTCOME:
            (void)wire_u64(&field, &outcome);
            break;
        case TAG_EXIT_CODE:
            (void)wire_u64(&field, &exit_code);
            break;
        case TAG_SIGNAL:
            (void)wire_u64(&field, &number);
            break;
        case TAG_STDOUT_TRUNCATED:
            (void)wire_u64(&field, &cut[0]);
            break;
        case TAG_STDERR_TRUNCATED:
            (void)wire_u64(&field, &cut[1]);
            break;
        case TAG_FORCE:
            (void)wire_u64(&field, &ended);
            break;
        case TAG_WALL_NS:
            (void)wire_u64(&field, &wall_ns);
            break;
        default:
            break;
        }
    if (from->n_fds != 3 || outcome > ROLLBOX_OUTCOME_ERROR)
        return error_set(error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "arguments",
            "a note of a shell must have its command, its streams and its outcome");
    if (!record)
        return 0;
    uint64_t begun_at = record->ended;
    const uint64_t shell = step_of(recording, &exec, &begun_at), step = record->next_step++;
    begin_step(record, &message, step, begun_at);
    open_part(&message, "action", RECORD_OBJECT);
    add_word(&message, "kind", "shell");
    add_status(&message, "exec", shell != 0, (int)shell);
    add_value(&message, "command", RECORD_CONTENT_FD, UINT64_MAX);
    add_known(&message, "timeout_ms", timeout);
    add_value(&message, "output_limit", RECORD_NUMBER, MIN(limit, (uint64_t)INT64_MAX));
    close_part(&message);
    open_part(&message, "observation", RECORD_OBJECT);
    add_word(&message, "outcome", rollbox_outcome_name((enum rollbox_outcome)outcome));
    add_status(&message, "exit_code", outcome == ROLLBOX_OUTCOME_EXIT, (int)exit_code);
    add_status(&message, "signal", outcome == ROLLBOX_OUTCOME_SIGNAL, (int)number);
    for (size_t i = 0; i < ARRAY_SIZE(cut); i++) {
        wire_add_text(&message, RECORD_KEY, i ? "stderr" : "stdout");
        if (cut[i])
            wire_add(&message, RECORD_CUT, NULL, 0);
        wire_add_u64(&message, RECORD_CONTENT_FD, UINT64_MAX);
        if (cut[i])
            add_value(&message, i ? "stderr_cut" : "stdout_cut", RECORD_FLAG, 1);
    }
    if (ended)
        add_value(&message, "ended", RECORD_FLAG, 1);
    close_part(&message);
    open_part(&message, "resources", RECORD_OBJECT);
    add_value(&message, "wall_ms", RECORD_MILLISECONDS, wall_ns);
    /* Of one command among those of a shell nobody knows. */
    add_value(&message, "cpu_ms", RECORD_MILLISECONDS, 0);
    add_value(&message, "peak_memory_bytes", RECORD_NUMBER, 0);
    add_value(&message, "processes_peak", RECORD_NUMBER, 0);
    close_part(&message);
    end_step(record, &message, from->fds, from->n_fds, 0);
    tell_changes_after(recording, step);
    session_schedule(session);
    return 0;
}

int record_note(struct session *session, struct wire_message *from, struct rollbox_error *error) {
    static const char *const kinds[] = { "write_file", "mkdir", "remove", "upload", "files",
        "note" };
    struct record *record = find_record(session);
    const char *kind = NULL, *path = NULL, *host = NULL, *data = NULL, *known = NULL;
    uint64_t mode = 0, recursive = 0, code = 0, bytes = 0, files = 0;
    auto_buf struct buf message = BUF_INIT;
    bool has_mode = false, has_bytes = false;
    struct wire_field field;
    size_t position = 0;

    while (wire_next(from->data, from->length, &position, &field) > 0)
        switch (field.tag) {
        case TAG_NAME:
            kind = wire_text(&field);
            break;
        case TAG_PATH:
            path = wire_text(&field);
            break;
        case TAG_TO:
            host = wire_text(&field);
            break;
        case TAG_NUMBER:
            has_mode = wire_u64(&field, &mode) == 0;
            break;
        case TAG_FORCE:
            (void)wire_u64(&field, &recursive);
            break;
        case TAG_ERROR_CODE:
            (void)wire_u64(&field, &code);
            break;
        case TAG_BYTES:
            has_bytes = wire_u64(&field, &bytes) == 0;
            break;
        case TAG_FILES:
            (void)wire_u64(&field, &files);
            break;
        case TAG_TEXT_DATA:
            data = wire_text(&field);
            break;
        default:
            break;
        }
    for (size_t i = 0; i < ARRAY_SIZE(kinds) && kind; i++)
        if (!strcmp(kinds[i], kind))
            known = kinds[i];
    if (kind && !strcmp(kind, "shell"))
        return record_shell(session, from, error);
    if (!known || (!path && !data))
        return error_set(error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "arguments",
            "a note must say what was done, and where");
    if (!record)
        return 0;
    begin_step(record, &message, record->next_step++, record->ended);
    if (data) {
        add_said(&message, known, data);
        end_step(record, &message, NULL, 0, 0);
        return 0;
    }
    open_part(&message, "action", RECORD_OBJECT);
    add_word(&message, "kind", known);
    add_text(&message, "path", path);
    if (host)
        add_text(&message, "name", last_component(host));
    if (has_mode)
        add_value(&message, "mode", RECORD_NUMBER, mode);
    if (recursive)
        add_value(&message, "recursive", RECORD_FLAG, 1);
    if (from->n_fds)
        add_value(&message, "content", RECORD_CONTENT_FD, UINT64_MAX);
    else if (!strcmp(known, "upload"))
        add_value(&message, "entries", RECORD_NUMBER, files);
    if (!from->n_fds && has_bytes)
        add_value(&message, "bytes", RECORD_NUMBER, bytes);
    close_part(&message);
    open_part(&message, "observation", RECORD_OBJECT);
    add_word(&message, "outcome", code ? "error" : "done");
    if (code)
        add_error(&message, (enum rollbox_error_code)code);
    close_part(&message);
    if (host)
        add_text(&message, "host_path", host);
    end_step(record, &message, from->fds, MIN(from->n_fds, (size_t)1), bytes);
    return 0;
}

/* ---- beginning and end ---- */

void record_name(struct engine *engine, uint64_t number, char *ret_id, size_t size) {
    /* So that sandboxes of several engines, or of one that was started again, are not mistaken for
     * each other. */
    while (!engine->identity &&
           getrandom(&engine->identity, sizeof engine->identity, 0) != sizeof engine->identity)
        ;
    snprintf(ret_id, size, "%016llx-%llu", (unsigned long long)engine->identity,
        (unsigned long long)number);
}

/* Of its layers, whose names are the digests of what is in them. */
static void add_image_digest(const struct image *image, struct buf *to) {
    const struct manifest *manifest = &image->stored->manifest;
    auto_buf struct buf layers = BUF_INIT;
    char hex[RECORD_DIGEST_HEX + 1];

    for (size_t i = 0; i < manifest->n_layers; i++)
        buf_printf(&layers, "%s\n", manifest->layers[i]);
    to->failed |= buf_failed(&layers);
    digest_hex(layers.length ? layers.data : "", layers.length, hex);
    add_word(to, "sha256", hex);
}

static void add_header(
    const struct recording *recording, const struct record *record, struct buf *to) {
    const struct session *session = recording->session;
    const struct profile *profile = session->profile;
    const struct policy *policy = profile->policy;
    char id[48];

    add_word(to, "format", RECORD_FORMAT);
    add_word(to, "rollbox", ROLLBOX_VERSION);
    open_part(to, "sandbox", RECORD_OBJECT);
    add_word(to, "id", record->id);
    add_word(to, "name", session->name);
    close_part(to);
    if (session->origin.parent) {
        record_name(session->engine, session->origin.parent, id, sizeof id);
        open_part(to, "parent", RECORD_OBJECT);
        add_word(to, "id", id);
        add_status(to, "step", recording->parent_step != 0, (int)recording->parent_step);
        add_value(to, "index", RECORD_NUMBER, (uint64_t)session->origin.clone_id);
        add_word(to, "snapshot", session->origin.snapshot[0] ? session->origin.snapshot : NULL);
        close_part(to);
    } else {
        add_none(to, "parent");
    }
    /* Of one that was used before, a replay would begin elsewhere. */
    add_value(to, "from_beginning", RECORD_FLAG, !session->origin.was_used);
    add_value(to, "time_ns", RECORD_NUMBER, (uint64_t)clock_real_ns());
    add_seed(session, to);
    add_word(to, "time_start", policy->time_start);
    const char *mode = policy->time_mode == POLICY_TIME_VIRTUAL ? "virtual" : "offset";
    add_word(to, "time_mode", policy->time_start ? mode : NULL);
    if (profile->image) {
        open_part(to, "image", RECORD_OBJECT);
        add_word(to, "name", profile->image->stored->manifest.name);
        add_image_digest(profile->image, to);
        close_part(to);
    } else {
        add_none(to, "image");
    }
    wire_add_text(to, RECORD_KEY, "isolation");
    wire_add_text(to, RECORD_JSON, profile->isolation);
}

/* ---- rules ---- */

static bool is_redaction(const struct wire_field *field) {
    return field->tag == TAG_RULE_NAME || field->tag == TAG_RULE_PATTERN;
}

static bool has_field(const struct buf *rules, const struct wire_field *wanted) {
    struct wire_field field;

    for (size_t position = 0; wire_next(rules->data, rules->length, &position, &field) > 0;)
        if (field.tag == wanted->tag && field.length == wanted->length &&
            !memcmp(field.data, wanted->data, field.length))
            return true;
    return false;
}

/* Of numbers the last one holds; what is to be taken out is all that was ever said, once each, or
 * more than there may be. */
static void add_fields(struct buf *rules, const void *data, size_t length) {
    struct wire_field field;
    unsigned n = 0;

    for (size_t position = 0; wire_next(data, length, &position, &field) > 0;)
        if (is_redaction(&field) ? n++ > 2 * RECORD_MAX_RULES || !has_field(rules, &field)
                                 : field.tag == TAG_MAX_STREAM || field.tag == TAG_MAX_FILE ||
                                       field.tag == TAG_ENV_VALUES || field.tag == TAG_FILES)
            wire_add(rules, field.tag, field.data, field.length);
}

static void add_rules_of(struct buf *rules, const struct buf *from) {
    buf_add(rules, from->data, from->length);
    rules->failed |= from->failed;
}

static void forked(struct session_observer *observer, const struct op *op, struct session *child) {
    const struct recording *parent = recording_of(observer);
    struct recording *recording = recording_new(child);
    const struct op_step *step = find_op(parent, op);

    if (!recording) {
        if (parent->record)
            recorder_fail(parent->record, ENOMEM, "out of memory for the rules of a fork");
        return;
    }
    recording->parent_step = parent->record && step ? step->step : 0;
    recording->ancestor = parent->record ? parent->session->number : parent->ancestor;
    add_rules_of(&recording->rules, &parent->rules);
}

static const struct buf *saved(const struct session_observer *observer) {
    return &recording_of(observer)->rules;
}

/* Its own record ended with the engine that wrote it. */
static void restore(struct session *session, const struct buf *rules) {
    struct recording *recording = find_recording(session);

    if (!recording && rules->length)
        recording = recording_new(session);
    if (recording && !recording->rules.length)
        add_rules_of(&recording->rules, rules);
}

/* By which a record is made that is asked for. */
static void find_rules(
    const struct recording *recording, const struct wire_message *from, struct buf *rules) {
    struct wire_field field;
    uint64_t files = 0;

    for (size_t position = 0; wire_next(from->data, from->length, &position, &field) > 0;)
        if (field.tag == TAG_FILES)
            (void)wire_u64(&field, &files);
    if (files & 4) {
        add_fields(rules, recording->rules.data, recording->rules.length);
        rules->failed |= recording->rules.failed;
    }
    add_fields(rules, from->data, from->length);
}

/* The rules are in the header, so that a replay can be recorded by the same. */
static int add_rules(const struct buf *from, struct record *record, struct buf *to) {
    const struct {
        uint32_t from, to;
        const char *key;
    } lists[] = { { TAG_RULE_NAME, RECORD_RULE_NAME, "names" },
        { TAG_RULE_PATTERN, RECORD_RULE_PATTERN, "patterns" } };
    struct wire_field field;

    open_part(to, "redact", RECORD_OBJECT);
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
        unsigned n = 0;

        open_part(to, lists[i].key, RECORD_LIST);
        for (size_t position = 0; wire_next(from->data, from->length, &position, &field) > 0;) {
            if (field.tag != lists[i].from)
                continue;
            if (!wire_text(&field) || field.length > RECORD_MAX_RULE + 1 || ++n > RECORD_MAX_RULES)
                return -E2BIG;
            record->wants_secrets |= field.tag == TAG_RULE_NAME;
            wire_add(to, RECORD_TEXT, field.data, field.length - 1);
        }
        close_part(to);
    }
    close_part(to);
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        for (size_t position = 0; wire_next(from->data, from->length, &position, &field) > 0;)
            if (field.tag == lists[i].from)
                wire_add(to, lists[i].to, field.data, field.length);
    return 0;
}

static int begin_record(const struct recording *recording, const struct buf *rules, int fd,
    struct record *record, struct rollbox_error *error) {
    const struct session *session = recording->session;
    uint64_t most = RECORD_STREAM_BYTES, max_file = RECORD_FILE_BYTES, env_values = 0, files = 0,
             number;
    auto_buf struct buf message = BUF_INIT;
    auto_free char *policy = strndup(session->profile->key, session->profile->text_length);
    struct wire_field field;
    size_t position = 0;

    while (wire_next(rules->data, rules->length, &position, &field) > 0)
        switch (field.tag) {
        case TAG_MAX_STREAM:
            (void)wire_u64(&field, &most);
            break;
        case TAG_MAX_FILE:
            (void)wire_u64(&field, &max_file);
            break;
        case TAG_ENV_VALUES:
            (void)wire_u64(&field, &env_values);
            break;
        case TAG_FILES:
            files |= wire_u64(&field, &number) == 0 ? number : 0;
            break;
        default:
            break;
        }
    record->env_values = env_values;
    record->wants_files = files & 1;
    record->wants_changes = files & 2;
    most = MIN(most, (uint64_t)RECORD_MAX_STREAM);
    wire_begin(&message, RECORD_BEGIN, record->number);
    wire_add_text(&message, RECORD_POLICY, policy ? policy : "{}");
    message.failed |= !policy || rules->failed;
    wire_add_u64(&message, MAX_RECORD, most);
    wire_add_u64(&message, RECORD_MAX_FILE, max_file);
    wire_add_u64(&message, RECORD_ENV_VALUES, env_values);
    if (session->origin.parent) {
        wire_add_u64(&message, RECORD_PARENT, session->origin.parent);
        wire_add_u64(&message, RECORD_PARENT_STEP, recording->parent_step);
        wire_add_u64(&message, RECORD_KIN, recording->ancestor);
    }
    add_header(recording, record, &message);
    open_part(&message, "limits", RECORD_OBJECT);
    add_value(&message, "stream_bytes", RECORD_NUMBER, most);
    add_value(&message, "file_bytes", RECORD_NUMBER, MIN(max_file, (uint64_t)INT64_MAX));
    close_part(&message);
    add_value(&message, "env_values", RECORD_FLAG, env_values);
    add_value(&message, "files", RECORD_FLAG, record->wants_files);
    if (record->wants_changes)
        add_value(&message, "changes", RECORD_FLAG, 1);
    if (add_rules(rules, record, &message) < 0)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "arguments",
            "redaction: at most %d names and as many patterns, of %d bytes", RECORD_MAX_RULES,
            RECORD_MAX_RULE);
    if (buf_failed(&message))
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
    recorder_post(record, &message, &fd, 1, 0);
    return record->error ? error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, record->error, "run",
                               "%s", record->message)
                         : 0;
}

int record_begin(struct session *session, struct wire_message *from, struct buf *json,
    struct rollbox_error *error) {
    struct engine *engine = session->engine;
    int flags = from->n_fds == 1 ? fcntl(from->fds[0], F_GETFL) : -1;
    auto_buf struct buf rules = BUF_INIT;

    if (from->n_fds != 1)
        return error_set(error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "arguments",
            "the request has no descriptor to record to");
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY || flags & O_PATH)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EBADF, "arguments",
            "what is to be recorded to cannot be written to");
    if (find_record(session))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EEXIST, "arguments",
            "sandbox %s is recorded already", session->name);
    if (!engine->recorder && recorder_start(engine, error) < 0)
        return -EAGAIN;
    struct recording *recording = find_recording(session);
    if (!recording)
        recording = recording_new(session);
    struct record *record = recording ? calloc(1, sizeof *record) : NULL;
    if (!record)
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
    record->engine = engine;
    record->over = on_over;
    record->number = session->number;
    record->next_step = 1;
    record_name(engine, session->number, record->id, sizeof record->id);
    list_init(&record->node);
    list_add_tail(&engine->recorder->records, &record->node);
    find_rules(recording, from, &rules);
    int r = begin_record(recording, &rules, from->fds[0], record, error);
    if (r < 0) {
        record_free(record);
        return r;
    }
    record->recording = recording;
    recording->record = record;
    buf_done(&recording->rules);
    recording->rules = rules;
    rules = BUF_INIT;
    buf_printf(json, "{\"id\": \"%s\"}", record->id);
    return 0;
}

static void closing(struct session_observer *observer) {
    struct record *record = recording_of(observer)->record;

    if (record)
        send_end(record, "closed");
}

static void on_patience(struct loop_timer *timer);

static void wait_for_end(struct record *record) {
    record->heard_before = record->engine->recorder ? record->engine->recorder->heard : 0;
    (void)loop_timer_set(
        record->engine->loop, &record->patience, clock_now_ns() + CLOSE_PATIENCE_NS, on_patience);
}

static void on_patience(struct loop_timer *timer) {
    struct record *record = container_of(timer, struct record, patience);
    const struct recorder *recorder = record->engine->recorder;

    if (recorder && recorder->heard > record->heard_before &&
        record->patient_until > clock_now_ns()) {
        wait_for_end(record);
        return;
    }
    recorder_fail(record, ETIMEDOUT,
        "the record's end has not been written yet: what it is written to is slow, or nobody reads "
        "it");
    record->is_given_up = true;
    if (record->recording)
        session_close_continue(record->recording->session);
}

/* CLOSE is answered when the record is written, or soon. */
static enum observer_answer closed(struct session_observer *observer, bool is_waited_for) {
    struct record *record = recording_of(observer)->record;

    if (!record || !is_waited_for || record->is_given_up || record->phase == RECORD_IS_DONE ||
        !record->engine->recorder)
        return OBSERVER_CONTINUE;
    if (!record->patient_until) {
        record->patient_until = clock_now_ns() + MAX_CLOSE_PATIENCE_NS;
        wait_for_end(record);
    }
    return OBSERVER_WAIT;
}

static unsigned wants(const struct session_observer *observer) {
    const struct record *record = recording_of(observer)->record;
    const bool wants_files = record && record->wants_files && record->phase != RECORD_IS_DONE;

    return (record ? OBSERVER_WANTS_NOTES : 0) |
           (wants_files && !record->error ? OBSERVER_WANTS_SNAPSHOT_FILES : 0);
}

static void record_text(const struct session_observer *observer, struct buf *to) {
    const struct record *record = recording_of(observer)->record;

    if (record)
        state_text(record, to);
}

/* The record continues without its session until it is written. */
static void leave_record(struct record *record) {
    record->recording = NULL;
    loop_timer_clear(record->engine->loop, &record->patience);
    if (record->phase == RECORD_IS_DONE || !record->engine->recorder)
        record_free(record);
}

static void release(struct session_observer *observer) {
    struct recording *recording = recording_of(observer);

    if (recording->record)
        leave_record(recording->record);
    list_for_each(node, &recording->commands)
        command_free(container_of(node, struct command_step, node));
    list_for_each(node, &recording->ended)
        command_free(container_of(node, struct command_step, node));
    list_for_each(node, &recording->ops)
        op_step_free(container_of(node, struct op_step, node));
    buf_done(&recording->rules);
    free(recording);
}

static const struct session_observer_ops observer_ops = {
    .command_started = command_started,
    .command_sent = command_sent,
    .command_ended = command_ended,
    .command_settled = command_settled,
    .signal = signalled,
    .op_started = op_started,
    .op_ended = op_ended,
    .forked = forked,
    .wants = wants,
    .record_text = record_text,
    .saved = saved,
    .may_close = may_close,
    .closing = closing,
    .closed = closed,
    .release = release,
};

void record_init(void) {
    session_events_add_restorer(restore);
}

void record_finish(struct engine *engine) {
    network_step_flush(NULL);
    if (engine->recorder)
        recorder_leave(engine->recorder);
}
