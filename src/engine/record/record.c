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
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/utf8.h"
#include "engine/box/profile.h"
#include "engine/command/command.h"
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
#include "engine/record/recording.h"

#define CLOSE_PATIENCE_NS                                                                          \
    2000000000ll /* without a word of the recorder's: a reader that does not read must not keep a  \
                    CLOSE waiting */

#define MAX_CLOSE_PATIENCE_NS 30000000000ll

static const struct session_observer_ops observer_ops;

/* NULL: the session has none. */
struct recording *recording_find(const struct session *session) {
    list_for_each(node, &session->observers) {
        struct session_observer *observer = container_of(node, struct session_observer, node);

        if (observer->ops == &observer_ops)
            return recording_of(observer);
    }
    return NULL;
}

struct record *recording_record(const struct session *session) {
    const struct recording *recording = recording_find(session);

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

/* ---- changed files ---- */

/* A command has ended: the files that it has changed are a step, too, if that is wanted. */
void recording_tell_changes(struct recording *recording, uint64_t after) {
    struct session *session = recording->session;
    const struct record *record = recording->record;

    if (!record || !(record->wants & RECORD_WANTS_CHANGES) || record->phase == RECORD_IS_DONE ||
        record->error || !auto_snapshot_is_due(session) || op_files_are_pristine(session->box))
        return;
    struct op *op = op_add(session, VERB_DIFF, false);
    if (!op)
        return;
    op->diff.is_recorded = op->diff.digests = true;
    struct op_step *step = op_step_number(recording, op);
    if (step)
        step->after = after;
}

static void command_settled(
    struct session_observer *observer, struct session *session, bool has_run) {
    struct recording *recording = recording_of(observer);

    (void)session;
    if (has_run)
        recording_tell_changes(recording, recording->after);
}

/* The record is to have the files that the last command has changed. */
static enum observer_answer may_close(struct session_observer *observer) {
    list_for_each(node, &recording_of(observer)->session->queue.ops)
        if (op_is_recorded_diff(container_of(node, struct op, node)))
            return OBSERVER_WAIT;
    return OBSERVER_CONTINUE;
}

static void op_ended(
    struct session_observer *observer, struct op *op, const struct rollbox_error *error) {
    struct recording *recording = recording_of(observer);
    struct op_step *step = op_step_find(recording, op);

    if (!step)
        return;
    if (recording->record)
        op_step_tell(recording->record, step, op, error);
    op_step_free(step);
}

static void signalled(
    struct session_observer *observer, const struct run *run, unsigned number, unsigned scope) {
    const struct recording *recording = recording_of(observer);
    struct record *record = recording->record;
    const struct command_step *command = run ? command_step_find(recording, run) : NULL;
    auto_buf struct buf message = BUF_INIT;

    if (!record || (run && command_step_is_shell(run)))
        return;
    step_begin(record, &message, record->next_step++, record->ended);
    step_open(&message, "action", RECORD_OBJECT);
    step_add_word(&message, "kind", "signal");
    step_add_status(&message, "exec", run != NULL, command ? (int)command->step : 0);
    step_add_value(&message, "number", RECORD_NUMBER, number);
    step_add_value(&message, "scope", RECORD_NUMBER, scope);
    step_close(&message);
    step_add_done(&message, NULL);
    step_end(record, &message, NULL, 0, 0);
}

/* The digest of its layers, whose names are the digests of their contents. */
static void add_image_digest(const struct image *image, struct buf *to) {
    const struct manifest *manifest = &image->stored->manifest;
    auto_buf struct buf layers = BUF_INIT;
    char hex[RECORD_DIGEST_HEX + 1];

    for (size_t i = 0; i < manifest->n_layers; i++)
        buf_printf(&layers, "%s\n", manifest->layers[i]);
    to->failed |= buf_failed(&layers);
    digest_hex(layers.length ? layers.data : "", layers.length, hex);
    step_add_word(to, "sha256", hex);
}

static void add_header(
    const struct recording *recording, const struct record *record, struct buf *to) {
    const struct session *session = recording->session;
    const struct profile *profile = session->profile;
    const struct policy *policy = profile->policy;
    char id[48];

    step_add_word(to, "format", RECORD_FORMAT);
    step_add_word(to, "rollbox", ROLLBOX_VERSION);
    step_open(to, "sandbox", RECORD_OBJECT);
    step_add_word(to, "id", record->id);
    step_add_word(to, "name", session->name);
    step_close(to);
    if (session->origin.parent) {
        record_name(session->engine, session->origin.parent, id, sizeof id);
        step_open(to, "parent", RECORD_OBJECT);
        step_add_word(to, "id", id);
        step_add_status(to, "step", recording->parent_step != 0, (int)recording->parent_step);
        step_add_value(to, "index", RECORD_NUMBER, (uint64_t)session->origin.clone_id);
        step_add_word(
            to, "snapshot", session->origin.snapshot[0] ? session->origin.snapshot : NULL);
        step_close(to);
    } else {
        step_add_none(to, "parent");
    }
    /* Of one that was used before, a replay would begin elsewhere. */
    step_add_value(to, "from_beginning", RECORD_FLAG, !session->origin.was_used);
    step_add_value(to, "time_ns", RECORD_NUMBER, (uint64_t)clock_real_ns());
    op_step_add_seed(session, to);
    step_add_word(to, "time_start", policy->time_start);
    const char *mode = policy->time_mode == POLICY_TIME_VIRTUAL ? "virtual" : "offset";
    step_add_word(to, "time_mode", policy->time_start ? mode : NULL);
    if (profile->image) {
        step_open(to, "image", RECORD_OBJECT);
        step_add_word(to, "name", profile->image->stored->manifest.name);
        add_image_digest(profile->image, to);
        step_close(to);
    } else {
        step_add_none(to, "image");
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
    const struct op_step *step = op_step_find(parent, op);

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
    struct recording *recording = recording_find(session);

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

    step_open(to, "redact", RECORD_OBJECT);
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
        unsigned n = 0;

        step_open(to, lists[i].key, RECORD_LIST);
        for (size_t position = 0; wire_next(from->data, from->length, &position, &field) > 0;) {
            if (field.tag != lists[i].from)
                continue;
            if (!wire_text(&field) || field.length > RECORD_MAX_RULE + 1 || ++n > RECORD_MAX_RULES)
                return -E2BIG;
            record->wants |= field.tag == TAG_RULE_NAME ? RECORD_WANTS_SECRETS : 0;
            wire_add(to, RECORD_TEXT, field.data, field.length - 1);
        }
        step_close(to);
    }
    step_close(to);
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
    auto_free char *policy =
        strndup(session->profile->key.text, session->profile->key.policy_length);
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
    record->wants |= env_values ? RECORD_WANTS_ENV_VALUES : 0;
    record->wants |= files & 1 ? RECORD_WANTS_FILES : 0;
    record->wants |= files & 2 ? RECORD_WANTS_CHANGES : 0;
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
    step_open(&message, "limits", RECORD_OBJECT);
    step_add_value(&message, "stream_bytes", RECORD_NUMBER, most);
    step_add_value(&message, "file_bytes", RECORD_NUMBER, MIN(max_file, (uint64_t)INT64_MAX));
    step_close(&message);
    step_add_value(&message, "env_values", RECORD_FLAG, env_values);
    step_add_value(&message, "files", RECORD_FLAG, !!(record->wants & RECORD_WANTS_FILES));
    if (record->wants & RECORD_WANTS_CHANGES)
        step_add_value(&message, "changes", RECORD_FLAG, 1);
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
            "the descriptor of the record is not writable");
    if (recording_record(session))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EEXIST, "arguments",
            "sandbox %s is recorded already", session->name);
    if (!engine->record.recorder && recorder_start(engine, error) < 0)
        return -EAGAIN;
    struct recording *recording = recording_find(session);
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
    list_add_tail(&engine->record.recorder->records, &record->node);
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
    record->heard_before =
        record->engine->record.recorder ? record->engine->record.recorder->heard : 0;
    (void)loop_timer_set(
        record->engine->loop, &record->patience, clock_now_ns() + CLOSE_PATIENCE_NS, on_patience);
}

static void on_patience(struct loop_timer *timer) {
    struct record *record = container_of(timer, struct record, patience);
    const struct recorder *recorder = record->engine->record.recorder;

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
        !record->engine->record.recorder)
        return OBSERVER_CONTINUE;
    if (!record->patient_until) {
        record->patient_until = clock_now_ns() + MAX_CLOSE_PATIENCE_NS;
        wait_for_end(record);
    }
    return OBSERVER_WAIT;
}

static unsigned wants(const struct session_observer *observer) {
    const struct record *record = recording_of(observer)->record;
    const bool wants_files =
        record && record->wants & RECORD_WANTS_FILES && record->phase != RECORD_IS_DONE;

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
    if (record->phase == RECORD_IS_DONE || !record->engine->record.recorder)
        record_free(record);
}

static void release(struct session_observer *observer) {
    struct recording *recording = recording_of(observer);

    if (recording->record)
        leave_record(recording->record);
    list_for_each(node, &recording->commands)
        command_step_free(container_of(node, struct command_step, node));
    list_for_each(node, &recording->ended)
        command_step_free(container_of(node, struct command_step, node));
    list_for_each(node, &recording->ops)
        op_step_free(container_of(node, struct op_step, node));
    buf_done(&recording->rules);
    free(recording);
}

static const struct session_observer_ops observer_ops = {
    .command_started = command_step_started,
    .command_sent = command_step_sent,
    .command_ended = command_step_ended,
    .command_settled = command_settled,
    .signal = signalled,
    .op_started = op_step_started,
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
    if (engine->record.recorder)
        recorder_leave(engine->record.recorder);
}
