/* SPDX-License-Identifier: Apache-2.0 */
/* rollbox record: one command in one sandbox, as rollbox run, with its trajectory in a file. The
 * sandbox is a session that ends with its only command, because only sessions have trajectories.
 * The command's input is read to its end before it starts: input typed while it runs could not be
 * repeated. Its output goes through pipes to our own streams as it arrives. */
#include "cli/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/recorded_files.h"
#include "cli/outcome.h"
#include "cli/policy.h"
#include "cli/private_engine.h"
#include "cli/copy_stream.h"
#include "client/client.h"
#include "policy/policy.h"

#define MAX_INPUT (256u << 20)

/* ---- the trajectory ---- */

int record_open_file(const char *path, bool force, int *ret_fd, struct rollbox_error *error) {
    if (!strcmp(path, "-"))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "-: a trajectory cannot go to standard output, which carries the command's output; "
            "name a file, or a descriptor as /dev/fd/3");
    /* Without waiting for a reader of a pipe. */
    auto_close int fd =
        open(path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return error_set(error, ROLLBOX_ERR_IO, errno, "arguments",
            "%.600s: cannot open it for a trajectory: %s", path,
            errno == ENXIO ? "the pipe has no reader" : strerror(errno));
    /* The lock belongs to this open file, so it lasts as long as the recorder writes. A file system
     * without locks has none. */
    if (S_ISREG(st.st_mode) && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EBUSY, "arguments",
            "%.600s: another sandbox is recorded to it", path);
    if (fstat(fd, &st) < 0)
        return error_set(error, ROLLBOX_ERR_IO, errno, "arguments", "%.600s: cannot examine it: %s",
            path, strerror(errno));
    if (S_ISREG(st.st_mode) && st.st_size && !force)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EEXIST, "arguments",
            "%.600s: the file is not empty; remove it, or use --force", path);
    if (S_ISREG(st.st_mode) && st.st_size && ftruncate(fd, 0) < 0)
        return error_set(error, ROLLBOX_ERR_IO, errno, "arguments", "%.600s: cannot empty it: %s",
            path, strerror(errno));
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int record_open(const struct options *options, const char *path, int *ret_fd) {
    struct rollbox_error error = { .code = ROLLBOX_OK };

    return record_open_file(path, options_has(options, OPTION_OVERWRITE), ret_fd, &error) < 0
               ? cli_fail_error(options, &error)
               : 0;
}

static const char **texts_of(const struct options *options, enum option_id id) {
    const char **texts = calloc(options->n_uses + 1, sizeof *texts);
    size_t n = 0;

    for (size_t i = 0; texts && i < options->n_uses; i++)
        if (options->uses[i].option->id == id)
            texts[n++] = options->uses[i].value;
    return texts;
}

static int read_size(const struct options *options, enum option_id id, uint64_t *ret_bytes,
    struct rollbox_error *error) {
    const struct option_use *use = options_last(options, id);

    if (!use || (policy_parse_size(use->value, ret_bytes) == 0 && *ret_bytes))
        return 0;
    error->code = ROLLBOX_ERR_INVALID_ARGUMENT;
    (void)snprintf(error->message, sizeof error->message,
        "--%s %.100s: must be a size above 0, such as 1M", use->option->name, use->value);
    return -EINVAL;
}

bool record_wants_changes(const struct options *options) {
    return options->command->bit == COMMAND_VERIFY ? !options_has(options, OPTION_NO_FILES)
                                                   : options_has(options, OPTION_RECORD_CHANGES);
}

int record_start(const struct options *options, struct rollbox_sandbox *sandbox, int fd,
    struct rollbox_error *error) {
    auto_free const char **names = texts_of(options, OPTION_REDACT_ENV);
    auto_free const char **patterns = texts_of(options, OPTION_REDACT);
    struct rollbox_record_options record = {
        .size = sizeof record,
        .fd = fd,
        .redact_names = names,
        .redact_patterns = patterns,
        .env_values = options_has(options, OPTION_ENV_VALUES),
        .files = options_has(options, OPTION_RECORD_FILES),
        .changes = record_wants_changes(options),
        .as_parent = options->command->bit & (COMMAND_FORK | COMMAND_RESTORE),
    };

    int r = read_size(options, OPTION_KEEP, &record.stream_bytes, error);
    if (r == 0)
        r = read_size(options, OPTION_MAX_RECORD, &record.file_bytes, error);
    return r < 0 ? r : rollbox_record(sandbox, &record, NULL, error);
}

int record_end(
    const struct options *options, struct rollbox_sandbox *take_sandbox, const char *what) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_free char *json = NULL;
    int status = 0;

    if (rollbox_sandbox_finish(take_sandbox, &json, &error) < 0)
        return cli_fail_error(options, &error);
    json_t *answer = json_loads(json, 0, NULL);
    const json_t *record = json_object_get(answer, "record");
    const char *problem = json_string_value(json_object_get(record, "error"));
    if (record && !json_is_true(json_object_get(record, "complete")))
        status =
            cli_fail(options, "%s: the trajectory is incomplete: it has %lld of %lld steps: %s",
                what ? what : "the record",
                (long long)json_integer_value(json_object_get(record, "written")),
                (long long)json_integer_value(json_object_get(record, "steps")),
                problem ? problem : "its end could not be written");
    json_decref(answer);
    return status;
}

/* The pattern with the name in it, or the pattern. NULL: out of memory. */
static char *name_in(const char *pattern, const char *name) {
    const char *at = strstr(pattern, "{name}");
    char *path = NULL;

    if (!at)
        return strdup(pattern);
    return asprintf(&path, "%.*s%s%s", (int)(at - pattern), pattern, name, at + strlen("{name}")) <
                   0
               ? NULL
               : path;
}

int record_kept(
    const struct options *options, struct rollbox_sandbox *sandbox, struct rollbox_error *error) {
    const char *pattern = options_text(options, OPTION_RECORD);
    auto_free char *path = pattern ? name_in(pattern, rollbox_sandbox_name(sandbox)) : NULL;
    auto_close int fd = -EBADF;

    if (!pattern)
        return 0;
    if (!path)
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
    int r = record_open_file(path, options_has(options, OPTION_OVERWRITE), &fd, error);
    return r < 0 ? r : record_start(options, sandbox, fd, error);
}

/* ---- the command ---- */

/* Until the command has ended and all that it wrote is out. */
static void move_streams(struct copy_stream *pump, struct rollbox_run *run) {
    for (;;) {
        rollbox_dispatch(pump->engine);
        if (copy_stream_is_over(pump))
            return;
        if (copy_stream_signalled(pump) && !pump->ended)
            rollbox_kill(run, ROLLBOX_OUTCOME_ERROR);
        (void)copy_stream_wait(pump, -EBADF);
    }
}

static int read_input(const struct options *options, struct buf *to) {
    int r =
        options_has(options, OPTION_RECORD_INPUT) ? fd_read_all(STDIN_FILENO, MAX_INPUT, to) : 0;

    return r < 0 ? cli_fail(options, "cannot read the command's input: %s",
                       r == -EFBIG ? "it has more than 256 MiB" : strerror(-r))
                 : 0;
}

static int conclude_record(const struct options *options, const struct copy_stream *pump,
    struct rollbox_run *run, bool streams) {
    const struct rollbox_result *result;

    int status = copy_stream_result(pump, options, run, &result);
    if (status)
        return status;
    if (!streams)
        return options_has(options, OPTION_JSON) && options->command->bit == COMMAND_RECORD
                   ? outcome_print_json(options, result, NULL)
               : result->outcome == ROLLBOX_OUTCOME_ERROR
                   ? outcome_status(options, result, UINT64_MAX)
                   : 0;
    return outcome_status(options, result, UINT64_MAX);
}

/* In a sandbox that is recorded. */
static int run_in(const struct options *options, struct rollbox_engine *engine,
    struct rollbox_sandbox *sandbox, int64_t timeout_ms, bool streams) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_buf struct buf input = BUF_INIT;
    struct rollbox_run *run = NULL;
    int theirs[2] = { -EBADF, -EBADF };
    struct copy_stream pump;

    copy_stream_init(&pump, engine);
    int status = copy_stream_catch_signals(&pump, options);
    if (!status && streams)
        status =
            copy_stream_open(&pump, options, STREAM_OUT, STDOUT_FILENO, UINT64_MAX, &theirs[0]);
    if (!status && streams)
        status =
            copy_stream_open(&pump, options, STREAM_ERR, STDERR_FILENO, UINT64_MAX, &theirs[1]);
    if (!status)
        status = read_input(options, &input);
    struct rollbox_exec_options exec = {
        .size = sizeof exec,
        .argv = options->n_rest ? (const char *const *)options->rest : NULL,
        .stdin_data = input.length ? input.data : NULL,
        .stdin_length = input.length,
        .timeout_ms = timeout_ms,
        .output_limit = -1,
        .input_fd = -1,
        .stream_fds = { theirs[0], theirs[1] },
        .callback = copy_stream_on_end,
        .userdata = &pump,
    };
    if (!status && rollbox_exec(sandbox, &exec, &run, &error) < 0)
        status = outcome_fail(options, &error);
    close_fd(&theirs[0]);
    close_fd(&theirs[1]);
    if (!status) {
        move_streams(&pump, run);
        status = conclude_record(options, &pump, run, streams);
    }
    copy_stream_done(&pump);
    rollbox_run_free(run);
    return status;
}

int record_run(const struct options *options, struct rollbox_engine *engine, const char *policy,
    size_t policy_length, int fd, const char *path, bool streams, json_t **ret_contents,
    int *ret_status) {
    const struct rollbox_sandbox_options sandbox_options = { .size = sizeof sandbox_options };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rollbox_sandbox *sandbox = NULL;
    struct rollbox_plan *plan;

    if (rollbox_prepare(engine, policy, policy_length, &plan, &error) < 0 ||
        rollbox_sandbox_create(engine, plan, &sandbox_options, &sandbox, &error) < 0 ||
        record_start(options, sandbox, fd, &error) < 0) {
        (void)rollbox_sandbox_close(sandbox, NULL);
        return outcome_fail(options, &error);
    }
    *ret_status = run_in(options, engine, sandbox, policy_api_run_timeout_ms(plan), streams);
    if (ret_contents)
        *ret_contents = record_wants_changes(options) && !options_has(options, OPTION_REDACT) &&
                                !options_has(options, OPTION_REDACT_ENV)
                            ? recorded_files_of(sandbox)
                            : NULL;
    return record_end(options, sandbox, path);
}

int cmd_record(const struct options *options) {
    const char *path = options_text(options, OPTION_RECORD_OUTPUT);
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rollbox_engine *engine;
    struct cli_policy policy;
    auto_close int fd = -EBADF;
    int command_status = 0;

    if (!path)
        return cli_fail(
            options, "the trajectory's file is missing: rollbox record -o FILE -- COMMAND");
    private_engine_start(options);
    int status = cli_policy_given(options, &policy);
    if (status)
        return status;
    status = record_open(options, path, &fd);
    if (!status && cli_engine_open(options, &engine, &error) < 0) {
        status = outcome_fail(options, &error);
    } else if (!status) {
        status = record_run(options, engine, policy.text, policy.length, fd, path,
            !options_has(options, OPTION_JSON), NULL, &command_status);
        rollbox_engine_close(engine);
    }
    cli_policy_done(&policy);
    return cli_end(status ? status : command_status);
}
