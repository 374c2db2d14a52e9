/* SPDX-License-Identifier: Apache-2.0 */
/* Recording of sandboxes, from the client's side. record.h has the model of notes. */
#include "client/record.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/pattern.h"
#include "client/client.h"
#include "client/sandbox.h"

#define MAX_STREAM (16u << 20)

/* ---- recording ---- */

static int add_names(struct buf *to, const char *const *names, struct rollbox_error *error) {
    for (; names && *names; names++) {
        if (!**names || strchr(*names, '='))
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                "redact_names: \"%.100s\" is not a variable name", *names);
        wire_add_text(to, TAG_RULE_NAME, *names);
    }
    return 0;
}

/* The engine's recorder checks and compiles them again. They are checked here, because only here
 * the caller gets the error. */
static int add_patterns(struct buf *to, const char *const *patterns, struct rollbox_error *error) {
    char why[PATTERN_WHY];

    for (; patterns && *patterns; patterns++) {
        if (pattern_check(*patterns, why) < 0)
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                "redact_patterns: \"%.100s\" %s", *patterns, why);
        wire_add_text(to, TAG_RULE_PATTERN, *patterns);
    }
    return 0;
}

ROLLBOX_PUBLIC int rollbox_record(struct rollbox_sandbox *sandbox,
    const struct rollbox_record_options *options, char **ret_json, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    if (!sandbox || !options || options->size != sizeof *options)
        return request_invalid(error, "sandbox and options must be given, and options.size be "
                                      "sizeof(struct rollbox_record_options)");
    if (options->stream_bytes > MAX_STREAM)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "stream_bytes is %llu; a trajectory keeps at most %u of each stream",
            (unsigned long long)options->stream_bytes, MAX_STREAM);
    int r = request_check_fd(options->fd, "fd", REQUEST_NO_INDEX, error);
    if (r < 0)
        return r;
    sandbox_begin(&message, sandbox, VERB_RECORD);
    if (options->stream_bytes)
        wire_add_u64(&message, TAG_MAX_STREAM, options->stream_bytes);
    if (options->file_bytes)
        wire_add_u64(&message, TAG_MAX_FILE, options->file_bytes);
    if (options->env_values)
        wire_add_u64(&message, TAG_ENV_VALUES, 1);
    uint64_t files = options->files ? 1 : 0;
    files |= options->changes ? 2 : 0;
    files |= options->as_parent ? 4 : 0;
    if (files)
        wire_add_u64(&message, TAG_FILES, files);
    r = add_names(&message, options->redact_names, error);
    if (r >= 0)
        r = add_patterns(&message, options->redact_patterns, error);
    return r < 0 ? r : sandbox_call(sandbox, &message, &options->fd, 1, ret_json, error);
}

/* ---- notes ---- */

static void begin_note(struct buf *message, const struct rollbox_sandbox *sandbox, const char *kind,
    const char *path, enum rollbox_error_code code) {
    sandbox_begin(message, sandbox, VERB_NOTE);
    wire_add_text(message, TAG_NAME, kind);
    wire_add_text(message, TAG_PATH, path);
    if (code)
        wire_add_u64(message, TAG_ERROR_CODE, code);
}

/* `content` is borrowed; -EBADF: none. */
static void send_note(struct rollbox_sandbox *sandbox, struct buf *message, int content) {
    (void)sandbox_call(sandbox, message, &content, content >= 0, NULL, NULL);
}

void record_note_write(struct rollbox_sandbox *sandbox, const char *path, const void *data,
    size_t length, unsigned mode, enum rollbox_error_code code) {
    auto_close int content = fd_memory_file("rollbox-note", length ? data : "", length);
    auto_buf struct buf message = BUF_INIT;

    begin_note(&message, sandbox, "write_file", path, code);
    wire_add_u64(&message, TAG_NUMBER, mode);
    wire_add_u64(&message, TAG_BYTES, length);
    send_note(sandbox, &message, content);
}

void record_note_mkdir(struct rollbox_sandbox *sandbox, const char *path, unsigned mode,
    enum rollbox_error_code code) {
    auto_buf struct buf message = BUF_INIT;

    begin_note(&message, sandbox, "mkdir", path, code);
    wire_add_u64(&message, TAG_NUMBER, mode);
    send_note(sandbox, &message, -EBADF);
}

void record_note_remove(struct rollbox_sandbox *sandbox, const char *path, bool recursive,
    enum rollbox_error_code code) {
    auto_buf struct buf message = BUF_INIT;

    begin_note(&message, sandbox, "remove", path, code);
    if (recursive)
        wire_add_u64(&message, TAG_FORCE, 1);
    send_note(sandbox, &message, -EBADF);
}

/* Of a tree only its size: it was read once, and may have changed since. */
void record_note_upload(struct rollbox_sandbox *sandbox, const char *host_path, const char *name,
    const char *path, uint64_t bytes, uint64_t files, enum rollbox_error_code code) {
    auto_close int content = open(host_path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    auto_buf struct buf message = BUF_INIT;
    struct stat st;

    if (content >= 0 && (fstat(content, &st) < 0 || !S_ISREG(st.st_mode)))
        close_fd(&content);
    begin_note(&message, sandbox, "upload", path, code);
    wire_add_text(&message, TAG_TO, name ? name : host_path);
    if (content >= 0)
        wire_add_u64(&message, TAG_NUMBER, st.st_mode & 07777);
    wire_add_u64(&message, TAG_BYTES, bytes);
    wire_add_u64(&message, TAG_FILES, files);
    send_note(sandbox, &message, content);
}

void record_note_files(struct rollbox_sandbox *sandbox, const char *snapshot) {
    json_t *made = json_loads(snapshot, 0, NULL);
    const char *id = json_string_value(json_object_get(made, "id"));
    auto_buf struct buf message = BUF_INIT;
    auto_free char *json = NULL;

    json_t *answer = id && sandbox_diff(sandbox, NULL, id, false, true, &json, NULL) >= 0
                         ? json_loads(json, JSON_ALLOW_NUL, NULL)
                         : NULL;
    auto_free char *changes = json_dumps(json_object_get(answer, "changes"), JSON_COMPACT);
    sandbox_begin(&message, sandbox, VERB_NOTE);
    wire_add_text(&message, TAG_NAME, "files");
    /* That it could not be found out is a step, too. */
    wire_add_text(&message, TAG_TEXT_DATA, changes ? changes : "null");
    send_note(sandbox, &message, -EBADF);
    json_decref(answer);
    json_decref(made);
}

ROLLBOX_PUBLIC int rollbox_note(
    struct rollbox_sandbox *sandbox, const char *json, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;
    json_error_t problem;

    if (!sandbox || !json)
        return request_invalid(error, "sandbox and json must be given");
    json_t *value = json_loads(json, JSON_DECODE_ANY | JSON_ALLOW_NUL, &problem);
    if (!value)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "the note is not JSON: %s", problem.text);
    json_decref(value);
    sandbox_begin(&message, sandbox, VERB_NOTE);
    wire_add_text(&message, TAG_NAME, "note");
    wire_add_text(&message, TAG_TEXT_DATA, json);
    return sandbox_call(sandbox, &message, NULL, 0, NULL, error);
}

ROLLBOX_PUBLIC int rollbox_note_shell(struct rollbox_sandbox *sandbox,
    const struct rollbox_shell_note *note, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    if (!sandbox || !note || note->size != sizeof *note || !note->operation_id ||
        (note->command_length && !note->command) || (note->stdout_length && !note->stdout_data) ||
        (note->stderr_length && !note->stderr_data))
        return request_invalid(error, "sandbox and note must be given, note.size be sizeof(struct "
                                      "rollbox_shell_note), and what has a length must be there");
    auto_close int command = fd_memory_file(
        "rollbox-note", note->command_length ? note->command : "", note->command_length);
    auto_close int out = fd_memory_file(
        "rollbox-note", note->stdout_length ? note->stdout_data : "", note->stdout_length);
    auto_close int err = fd_memory_file(
        "rollbox-note", note->stderr_length ? note->stderr_data : "", note->stderr_length);
    const int fds[] = { command, out, err };
    if (command < 0 || out < 0 || err < 0)
        return request_out_of_memory(error);
    sandbox_begin(&message, sandbox, VERB_NOTE);
    wire_add_text(&message, TAG_NAME, "shell");
    wire_add(&message, TAG_EXEC, note->operation_id, strnlen(note->operation_id, 64));
    if (note->timeout_ms > 0)
        wire_add_u64(&message, TAG_TIMEOUT, (uint64_t)note->timeout_ms);
    wire_add_u64(&message, TAG_OUTPUT_LIMIT, note->output_limit);
    wire_add_u64(&message, TAG_OUTCOME, note->outcome);
    wire_add_u64(&message, TAG_EXIT_CODE, (uint64_t)note->exit_code);
    wire_add_u64(&message, TAG_SIGNAL, (uint64_t)note->signal);
    wire_add_u64(&message, TAG_STDOUT_TRUNCATED, note->stdout_truncated);
    wire_add_u64(&message, TAG_STDERR_TRUNCATED, note->stderr_truncated);
    wire_add_u64(&message, TAG_FORCE, note->ended);
    wire_add_u64(&message, TAG_WALL_NS, note->wall_ms > 0 ? (uint64_t)(note->wall_ms * 1e6) : 0);
    return sandbox_call(sandbox, &message, fds, ARRAY_SIZE(fds), NULL, error);
}

int record_pass(int r, const struct rollbox_error *own, struct rollbox_error *error) {
    if (r < 0 && error)
        *error = *own;
    return r;
}
