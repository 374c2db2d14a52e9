/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that clients report: transfers of files, and the commands of a shell. */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/core/log.h"
#include "engine/protocol.h"
#include "engine/record/record.h"
#include "engine/network/gateway.h"
#include "engine/record/recorder.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "engine/snapshot/layer.h"
#include "record/record.h"
#include "engine/record/recording.h"

/* Notes of clients, in JSON: the changes of a snapshot are an observation, a note of their own is
 * an action. */
static void add_said(struct buf *to, const char *kind, const char *data) {
    bool is_note = !strcmp(kind, "note");

    step_open(to, "action", RECORD_OBJECT);
    step_add_word(to, "kind", kind);
    wire_add_text(to, RECORD_KEY, is_note ? "data" : "of");
    if (is_note)
        wire_add_text(to, RECORD_DATA, data);
    else
        wire_add_text(to, RECORD_WORD, "snapshot");
    step_close(to);
    step_open(to, "observation", RECORD_OBJECT);
    step_add_word(to, "outcome", "done");
    if (!is_note) {
        wire_add_text(to, RECORD_KEY, "changes");
        wire_add_text(to, RECORD_DATA, data);
    }
    step_close(to);
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
    struct recording *recording = recording_find(session);
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
    step_begin(record, &message, step, begun_at);
    step_open(&message, "action", RECORD_OBJECT);
    step_add_word(&message, "kind", "shell");
    step_add_status(&message, "exec", shell != 0, (int)shell);
    step_add_value(&message, "command", RECORD_CONTENT_FD, UINT64_MAX);
    step_add_known(&message, "timeout_ms", timeout);
    step_add_value(&message, "output_limit", RECORD_NUMBER, MIN(limit, (uint64_t)INT64_MAX));
    step_close(&message);
    step_open(&message, "observation", RECORD_OBJECT);
    step_add_word(&message, "outcome", rollbox_outcome_name((enum rollbox_outcome)outcome));
    step_add_status(&message, "exit_code", outcome == ROLLBOX_OUTCOME_EXIT, (int)exit_code);
    step_add_status(&message, "signal", outcome == ROLLBOX_OUTCOME_SIGNAL, (int)number);
    for (size_t i = 0; i < ARRAY_SIZE(cut); i++) {
        wire_add_text(&message, RECORD_KEY, i ? "stderr" : "stdout");
        if (cut[i])
            wire_add(&message, RECORD_CUT, NULL, 0);
        wire_add_u64(&message, RECORD_CONTENT_FD, UINT64_MAX);
        if (cut[i])
            step_add_value(&message, i ? "stderr_cut" : "stdout_cut", RECORD_FLAG, 1);
    }
    if (ended)
        step_add_value(&message, "ended", RECORD_FLAG, 1);
    step_close(&message);
    step_open(&message, "resources", RECORD_OBJECT);
    step_add_value(&message, "wall_ms", RECORD_MILLISECONDS, wall_ns);
    /* Of one command among those of a shell nobody knows. */
    step_add_value(&message, "cpu_ms", RECORD_MILLISECONDS, 0);
    step_add_value(&message, "peak_memory_bytes", RECORD_NUMBER, 0);
    step_add_value(&message, "processes_peak", RECORD_NUMBER, 0);
    step_close(&message);
    step_end(record, &message, from->fds, from->n_fds, 0);
    recording_tell_changes(recording, step);
    session_schedule(session);
    return 0;
}

int record_note(struct session *session, struct wire_message *from, struct rollbox_error *error) {
    static const char *const kinds[] = { "write_file", "mkdir", "remove", "upload", "files",
        "note" };
    struct record *record = recording_record(session);
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
    step_begin(record, &message, record->next_step++, record->ended);
    if (data) {
        add_said(&message, known, data);
        step_end(record, &message, NULL, 0, 0);
        return 0;
    }
    step_open(&message, "action", RECORD_OBJECT);
    step_add_word(&message, "kind", known);
    step_add_text(&message, "path", path);
    if (host)
        step_add_text(&message, "name", last_component(host));
    if (has_mode)
        step_add_value(&message, "mode", RECORD_NUMBER, mode);
    if (recursive)
        step_add_value(&message, "recursive", RECORD_FLAG, 1);
    if (from->n_fds)
        step_add_value(&message, "content", RECORD_CONTENT_FD, UINT64_MAX);
    else if (!strcmp(known, "upload"))
        step_add_value(&message, "entries", RECORD_NUMBER, files);
    if (!from->n_fds && has_bytes)
        step_add_value(&message, "bytes", RECORD_NUMBER, bytes);
    step_close(&message);
    step_open(&message, "observation", RECORD_OBJECT);
    step_add_word(&message, "outcome", code ? "error" : "done");
    if (code)
        step_add_error(&message, (enum rollbox_error_code)code);
    step_close(&message);
    if (host)
        step_add_text(&message, "host_path", host);
    step_end(record, &message, from->fds, MIN(from->n_fds, (size_t)1), bytes);
    return 0;
}
