/* SPDX-License-Identifier: Apache-2.0 */
/* Commands as steps of a record. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/box/profile.h"
#include "engine/command/command.h"
#include "engine/command/output.h"
#include "engine/core/log.h"
#include "engine/command/result.h"
#include "engine/record/network_step.h"
#include "engine/record/recorder.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "engine/snapshot/layer.h"
#include "record/record.h"
#include "engine/record/recording.h"

struct command_step *command_step_find(const struct recording *recording, const struct run *run) {
    list_for_each(node, &recording->commands)
        if (container_of(node, struct command_step, node)->run == run)
            return container_of(node, struct command_step, node);
    return NULL;
}

void command_step_free(struct command_step *command) {
    list_remove(&command->node);
    close_fd(&command->stdin_copy);
    buf_done(&command->action);
    free(command);
}

void command_step_started(struct session_observer *observer, struct run *run) {
    struct recording *recording = recording_of(observer);
    struct record *record = recording->record;
    struct command_step *command = record ? calloc(1, sizeof *command) : NULL;

    if (record && !command)
        recorder_fail(record, ENOMEM, "out of memory for a step");
    if (!command)
        return;
    command->run = run;
    memcpy(command->operation, run->operation.id, sizeof command->operation);
    command->operation_length = run->operation.length;
    command->step = record->next_step++;
    command->begun_at = record->ended;
    ((struct wire_header *)(void *)run->given.message.data)->flags |= GUEST_EXEC_COUNTED;
    command->stdin_copy = run->given.stdin_kind == RUN_STDIN_DATA
                              ? fcntl(run->fds.stdio[0], F_DUPFD_CLOEXEC, 3)
                              : -EBADF;
    list_add_tail(&recording->commands, &command->node);
}

static void add_environment(const struct record *record, const struct run *run, struct buf *to) {
    struct wire_field field;
    size_t position = 0, n = 0, at = 0;

    while (step_next_field(run, &position, &field))
        n += field.tag == GUEST_ENV;
    step_open(to, "env", record->wants & RECORD_WANTS_ENV_VALUES ? RECORD_OBJECT : RECORD_LIST);
    /* The request's own come last. */
    for (position = 0; step_next_field(run, &position, &field);) {
        const char *text = field.tag == GUEST_ENV ? wire_text(&field) : NULL;

        if (field.tag == GUEST_ENV && at++ < n - MIN(n, run->given.n_env))
            continue;
        size_t length = text ? strcspn(text, "=") : 0;
        auto_free char *name = text ? strndup(text, length) : NULL;
        if (!name)
            continue;
        if (record->wants & RECORD_WANTS_ENV_VALUES)
            step_add_text(to, name, text[length] ? text + length + 1 : "");
        else
            wire_add(to, RECORD_TEXT, name, length);
    }
    step_close(to);
}

static void add_secrets(const struct run *run, struct buf *to) {
    struct wire_field field;
    size_t position = 0;

    while (step_next_field(run, &position, &field))
        if (field.tag == GUEST_ENV)
            wire_add(to, RECORD_SECRET, field.data, field.length);
}

static void add_files(const struct run *run, struct buf *to) {
    struct wire_field field;
    size_t position = 0;
    uint64_t mode = 0;
    bool any = false;

    while (step_next_field(run, &position, &field)) {
        if (field.tag == GUEST_FILE_PATH) {
            if (!any)
                step_open(to, "files", RECORD_LIST);
            any = true;
            step_open(to, NULL, RECORD_OBJECT);
            step_add_text(to, "path", wire_text(&field));
        } else if (field.tag == GUEST_FILE_MODE && any && wire_u64(&field, &mode) == 0) {
            step_add_value(to, "mode", RECORD_NUMBER, mode);
        } else if (field.tag == GUEST_FILE_DATA && any) {
            wire_add_text(to, RECORD_KEY, "content");
            wire_add(to, RECORD_CONTENT, field.data, field.length);
            step_close(to);
        }
    }
    if (any)
        step_close(to);
}

static void add_input(
    const struct run *run, int stdin_copy, struct buf *to, int *fds, size_t *n_fds) {
    if (stdin_copy >= 0) {
        step_add_value(to, "stdin", RECORD_CONTENT_FD, UINT64_MAX);
        fds[(*n_fds)++] = stdin_copy;
    } else if (run->given.stdin_kind != RUN_STDIN_FILE) {
        step_open(to, "stdin", RECORD_OBJECT);
        step_add_value(to, "unrecorded", RECORD_FLAG, 1);
        step_close(to);
    } else {
        step_add_none(to, "stdin");
    }
}

static void add_action(const struct record *record, const struct command_step *command,
    const struct run *run, struct buf *to, int *fds, size_t *n_fds) {
    struct wire_field field;
    size_t position = 0;

    step_open(to, "action", RECORD_OBJECT);
    step_add_word(to, "kind", "exec");
    step_open(to, "argv", RECORD_LIST);
    while (step_next_field(run, &position, &field))
        if (field.tag == GUEST_ARG)
            wire_add(to, RECORD_TEXT, field.data, field.length ? field.length - 1 : 0);
    step_close(to);
    for (position = 0; step_next_field(run, &position, &field);)
        if (field.tag == GUEST_CWD)
            step_add_text(to, "cwd", wire_text(&field));
    add_environment(record, run, to);
    add_input(run, command->stdin_copy, to, fds, n_fds);
    add_files(run, to);
    if (run->limits.timeout_ms > 0)
        step_add_value(to, "timeout_ms", RECORD_NUMBER, (uint64_t)run->limits.timeout_ms);
    else
        step_add_none(to, "timeout_ms");
    step_add_value(
        to, "output_limit", RECORD_NUMBER, MIN(run->limits.output_limit, (uint64_t)INT64_MAX));
    if (run->terminal.is_wanted)
        step_add_value(to, "terminal", RECORD_FLAG, 1);
    if (run->given.n_extra_given)
        step_add_value(to, "extra_fds", RECORD_NUMBER, run->given.n_extra_given);
    step_close(to);
}

/* Now, so that the client does not wait for this part at the end of the command. */
void command_step_sent(struct session_observer *observer, struct run *run) {
    const struct recording *recording = recording_of(observer);
    struct command_step *command = command_step_find(recording, run);

    if (recording->record && command && !command->action.length && command->stdin_copy < 0 &&
        run->given.message.length <= EARLY_BYTES)
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
        step_add_value(to, key_cut, RECORD_FLAG, 1);
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
    command_step_free(container_of(recording->ended.next, struct command_step, node));
    recording->n_ended--;
}

static void tell_command(struct record *record, struct command_step *command, struct run *run) {
    auto_buf struct buf message = BUF_INIT;
    int fds[STEP_FDS];
    size_t n_fds = 0;
    uint64_t bytes = 0;

    step_begin(record, &message, command->step, command->begun_at);
    if (record->wants & RECORD_WANTS_SECRETS)
        add_secrets(run, &message);
    if (command->action.length) {
        buf_add(&message, command->action.data, command->action.length);
        message.failed |= command->action.failed;
    } else {
        add_action(record, command, run, &message, fds, &n_fds);
    }
    step_open(&message, "observation", RECORD_OBJECT);
    step_add_word(&message, "outcome", rollbox_outcome_name(run->end.outcome));
    step_add_status(&message, "exit_code", run->end.outcome == ROLLBOX_OUTCOME_EXIT,
        WEXITSTATUS(run->end.status));
    step_add_status(
        &message, "signal", run->end.outcome == ROLLBOX_OUTCOME_SIGNAL, WTERMSIG(run->end.status));
    add_stream(&run->outputs[0], "stdout", "stdout_cut", &message, fds, &n_fds, &bytes);
    add_stream(&run->outputs[1], "stderr", "stderr_cut", &message, fds, &n_fds, &bytes);
    if (run->end.outcome == ROLLBOX_OUTCOME_ERROR)
        step_add_error(&message, run->end.error.code);
    step_close(&message);
    if (run->end.outcome == ROLLBOX_OUTCOME_ERROR)
        step_add_text(&message, "message", run->end.error.message);
    step_open(&message, "resources", RECORD_OBJECT);
    step_add_value(&message, "wall_ms", RECORD_MILLISECONDS, run->end.wall_ns);
    step_add_value(&message, "cpu_ms", RECORD_MILLISECONDS, run->end.cpu_ns);
    step_add_value(&message, "peak_memory_bytes", RECORD_NUMBER, run->end.peak_memory);
    step_add_value(&message, "processes_peak", RECORD_NUMBER, run->end.processes_peak);
    step_add_known(&message, "read_bytes", run->end.counts.read_bytes);
    step_add_known(&message, "written_bytes", run->end.counts.written_bytes);
    step_close(&message);
    if (run->profile->policy->have_seed) {
        step_open(&message, "chance", RECORD_OBJECT);
        step_add_seed_as(&message, "seed", run->session->origin.seed);
        step_add_known(&message, "stream", run->end.counts.stream);
        step_close(&message);
    }
    const uint64_t tally = run_tally_end(run);
    if (tally && network_step_hold(record, tally, &message, fds, n_fds, bytes))
        record->ended++; /* its line comes later */
    else
        step_end(record, &message, fds, n_fds, bytes);
    command->end_sequence = record->ended;
}

void command_step_ended(struct session_observer *observer, struct run *run) {
    struct recording *recording = recording_of(observer);
    struct command_step *command = command_step_find(recording, run);

    recording->after = command ? command->step : 0;
    if (!command)
        return; /* one that had begun before is none of its steps */
    if (recording->record)
        tell_command(recording->record, command, run);
    keep_ended(recording, command);
}

/* One that takes commands through pipes. Their time-outs and limits signal it, and have steps of
 * their own. */
bool command_step_is_shell(const struct run *run) {
    static const char *const words[] = { NULL, "-l", "-s" };
    struct wire_field field;
    size_t position = 0, n = 0;

    while (step_next_field(run, &position, &field))
        if (field.tag == GUEST_ARG &&
            (n >= ARRAY_SIZE(words) ||
                (words[n] && (!wire_text(&field) || strcmp(wire_text(&field), words[n])))))
            return false;
        else if (field.tag == GUEST_ARG)
            n++;
    return n == ARRAY_SIZE(words) && run->given.n_extra_given == 3;
}
