/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"
#include "cli/replay_step.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/play_shell.h"
#include "cli/policy.h"
#include "cli/signals.h"
#include "client/files.h"
#include "store/policy_excess.h"

/* A command that was started. */
struct played {
    struct rollbox_run *run; /* NULL: waited for, or cancelled */
    uint64_t ended;          /* it was the n-th step to end, in the record */
    bool cancelled;          /* it ended there because a client asked for it */
};

__attribute__((format(printf, 4, 5))) static int refuse_step(const struct play *play,
    const struct step *step, struct rollbox_error *error, const char *format, ...) {
    char what[400];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, ENOTSUP, "arguments",
        "%s:%llu: step %llu cannot be replayed: %s", play->name, (unsigned long long)step->line,
        (unsigned long long)step->number, what);
}

static int no_memory(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
}

/* ---- variables ---- */

/* "NAME=value" that --env gives; NULL: it does not. */
static const char *given_option(const struct options *options, const char *name) {
    size_t length = strlen(name);
    const char *found = NULL;

    for (size_t i = 0; i < options->n_uses; i++)
        if (options->uses[i].option->id == OPTION_ENV &&
            strncmp(options->uses[i].value, name, length) == 0 &&
            options->uses[i].value[length] == '=')
            found = options->uses[i].value;
    return found;
}

/* The policy with the values that were not recorded. */
static json_t *whole_policy(
    const struct play *play, const struct reader *reader, struct rollbox_error *error) {
    json_t *policy = json_deep_copy(json_object_get(reader->header, "policy")), *value;
    const char *key;
    void *next;

    json_object_foreach_safe(json_object_get(policy, "env"), next, key, value) {
        const char *variable = given_option(play->options, key);

        /* A redacted secret has no value either. */
        if (!json_is_null(value) && !(play->redacted && json_is_string(value) &&
                                        strstr(json_string_value(value), "[redacted")))
            continue;
        if (!variable) {
            error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, ENODATA, "arguments",
                "%s: the policy sets %.100s, whose value was not recorded; give it: --env "
                "%.100s=VALUE",
                play->name, key, key);
            json_decref(policy);
            return NULL;
        }
        json_object_set_new(
            json_object_get(policy, "env"), key, json_string(strchr(variable, '=') + 1));
    }
    if (!policy)
        (void)no_memory(error);
    return policy;
}

/* Uses the caller's policy, or the record's if that grants no more than the default or is trusted.
 */
static int check_reach(const struct play *play, const char *policy, struct rollbox_error *error) {
    auto_buf struct buf beyond = BUF_INIT;

    if (options_has(play->options, OPTION_TRUST))
        return 0;
    if (policy_excess_text(policy, strlen(policy), &beyond) < 0)
        return no_memory(error);
    return beyond.length ? error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EPERM, "policy",
                               "%.200s: its policy grants more than the default policy: %.500s; "
                               "use --trust to accept it, or --policy FILE to replace it",
                               play->name, beyond.data)
                         : 0;
}

static int choose_policy(const struct play *play, const struct reader *reader, char **ret_text,
    struct rollbox_error *error) {
    const char *own = options_text(play->options, OPTION_POLICY);
    struct cli_policy given;

    if (own) {
        if (cli_policy_make(play->options, own, &given, error))
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "policy",
                "%.600s cannot be used", own);
        *ret_text = TAKE_PTR(given.text);
        cli_policy_done(&given);
        return 0;
    }
    json_t *policy = whole_policy(play, reader, error);
    auto_free char *text = policy ? json_dumps(policy, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    int r = -EINVAL;
    if (policy)
        r = text ? check_reach(play, text, error) : no_memory(error);
    json_decref(policy);
    if (r == 0)
        *ret_text = TAKE_PTR(text);
    return r;
}

int play_begin(struct play *play, const struct options *options, struct rollbox_engine *engine,
    const struct reader *reader, struct rollbox_error *error) {
    const struct rollbox_sandbox_options sandbox_options = { .size = sizeof sandbox_options };
    const json_t *redact = json_object_get(reader->header, "redact");
    struct rollbox_plan *plan;

    *play = (struct play){
        .options = options, .engine = engine, .name = reader->name, .snapshots = json_object()
    };
    play->redacted = json_array_size(json_object_get(redact, "names")) ||
                     json_array_size(json_object_get(redact, "patterns"));
    if (json_is_false(json_object_get(reader->header, "from_beginning")) &&
        !json_is_object(json_object_get(reader->header, "parent")))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, ENOTSUP, "arguments",
            "%s: recording began after the sandbox was first used, so its earlier steps are "
            "missing",
            play->name);
    auto_free char *text = NULL;
    int r = play->snapshots ? choose_policy(play, reader, &text, error) : no_memory(error);
    if (r < 0)
        return r;
    r = rollbox_prepare(engine, text, strlen(text), &plan, error);
    return r < 0 ? r
                 : rollbox_sandbox_create(engine, plan, &sandbox_options, &play->sandbox, error);
}

static const char **strings_of(const json_t *array) {
    const char **strings = calloc(json_array_size(array) + 1, sizeof *strings);

    for (size_t i = 0; strings && i < json_array_size(array); i++)
        strings[i] = json_string_value(json_array_get(array, i))
                         ? json_string_value(json_array_get(array, i))
                         : "";
    return strings;
}

int play_record(
    struct play *play, const struct reader *reader, int fd, struct rollbox_error *error) {
    const json_t *limits = json_object_get(reader->header, "limits"),
                 *redact = json_object_get(reader->header, "redact");
    auto_free const char **names = strings_of(json_object_get(redact, "names"));
    auto_free const char **patterns = strings_of(json_object_get(redact, "patterns"));
    const json_int_t stream_bytes = json_integer_value(json_object_get(limits, "stream_bytes")),
                     file_bytes = json_integer_value(json_object_get(limits, "file_bytes"));
    struct stat st;
    /* verify keeps it in memory. It is as large as the record, about, if it says the same. */
    const uint64_t most = MAX(RECORD_FILE_BYTES,
        fstat(reader->fd, &st) == 0 && S_ISREG(st.st_mode) ? 2 * (uint64_t)st.st_size : 0);
    const struct rollbox_record_options options = {
        .size = sizeof options,
        .fd = fd,
        .stream_bytes = stream_bytes > 0 ? (uint64_t)stream_bytes : 0,
        .file_bytes = file_bytes > 0 ? MIN((uint64_t)file_bytes, most) : 0,
        .redact_names = names,
        .redact_patterns = patterns,
        .env_values = json_is_true(json_object_get(reader->header, "env_values")),
        .files = json_is_true(json_object_get(reader->header, "files")),
        .changes = json_is_true(json_object_get(reader->header, "changes")),
    };

    return !names || !patterns ? no_memory(error)
                               : rollbox_record(play->sandbox, &options, NULL, error);
}

/* ---- data of a step ---- */

/* A text as it was recorded; NULL if it was redacted or has a NUL. */
static int take_text(const struct play *play, const struct step *step, const json_t *value,
    const char *what, char **ret_text, struct rollbox_error *error) {
    auto_buf struct buf bytes = BUF_INIT;
    int r = read_bytes(value, &bytes);

    if (r < 0 || (bytes.length && memchr(bytes.data, '\0', bytes.length)))
        return refuse_step(play, step, error, "%s is not text", what);
    if (play->redacted && bytes.data && bytes.length &&
        (memmem(bytes.data, bytes.length, "[redacted", 9) ||
            memmem(bytes.data, bytes.length, "[withheld", 9)))
        return refuse_step(play, step, error, "a secret was redacted from %s", what);
    buf_add(&bytes, "", 0);
    *ret_text = bytes.data ? buf_take(&bytes) : strdup("");
    return *ret_text ? 0 : no_memory(error);
}

static int take_content(const struct play *play, const struct step *step, const json_t *content,
    const char *what, struct buf *to, struct rollbox_error *error) {
    if (json_is_true(json_object_get(content, "unrecorded")))
        return refuse_step(
            play, step, error, "%s came through a pipe or a terminal and was not recorded", what);
    if (json_is_true(json_object_get(content, "truncated")) ||
        json_is_true(json_object_get(content, "withheld")))
        return refuse_step(play, step, error,
            "%s has %lld bytes, and only a part was kept; record with a larger --keep", what,
            (long long)json_integer_value(json_object_get(content, "bytes")));
    if (read_bytes(content, to) < 0)
        return refuse_step(play, step, error, "%s is not in the record", what);
    if (play->redacted && to->length && memmem(to->data, to->length, "[redacted", 9))
        return refuse_step(play, step, error, "a secret was redacted from %s", what);
    return 0;
}

static char **new_texts(size_t n) {
    return calloc(n + 1, sizeof(char *));
}

static void free_texts(char ***texts) {
    for (size_t i = 0; *texts && (*texts)[i]; i++)
        free((*texts)[i]);
    free(*texts);
}

static int take_argv(const struct play *play, const struct step *step, char ***ret_argv,
    struct rollbox_error *error) {
    const json_t *argv = json_object_get(step->action, "argv");

    *ret_argv = new_texts(json_array_size(argv));
    if (!*ret_argv)
        return no_memory(error);
    for (size_t i = 0; i < json_array_size(argv); i++) {
        int r =
            take_text(play, step, json_array_get(argv, i), "an argument", &(*ret_argv)[i], error);
        if (r < 0)
            return r;
    }
    return json_array_size(argv) ? 0 : refuse_step(play, step, error, "it has no argv");
}

static int add_variable(const struct play *play, const struct step *step, const char *name,
    const json_t *value, char **ret_variable, struct rollbox_error *error) {
    const char *found = given_option(play->options, name);
    auto_free char *text = NULL;

    if (found || !value) {
        if (!found)
            return refuse_step(play, step, error,
                "the value of its variable %.100s was not recorded; give it: --env %.100s=VALUE",
                name, name);
        *ret_variable = strdup(found);
        return *ret_variable ? 0 : no_memory(error);
    }
    int r = take_text(play, step, value, "a variable", &text, error);
    if (r == 0 && asprintf(ret_variable, "%s=%s", name, text) < 0) {
        *ret_variable = NULL;
        r = no_memory(error);
    }
    return r;
}

/* Names, or names and values. */
static int take_env(const struct play *play, const struct step *step, char ***ret_env,
    struct rollbox_error *error) {
    json_t *env = json_object_get(step->action, "env"), *value;
    size_t n = json_is_array(env) ? json_array_size(env) : json_object_size(env), at = 0;
    const char *key;
    int r = 0;

    *ret_env = new_texts(n);
    if (!*ret_env)
        return no_memory(error);
    for (size_t i = 0; r == 0 && i < json_array_size(env); i++)
        r = add_variable(play, step,
            json_string_value(json_array_get(env, i)) ? json_string_value(json_array_get(env, i))
                                                      : "?",
            NULL, &(*ret_env)[at++], error);
    if (json_is_object(env))
        json_object_foreach(env, key, value) if (r == 0) r =
            add_variable(play, step, key, value, &(*ret_env)[at++], error);
    return r;
}

struct put_files {
    struct rollbox_file *files;
    struct buf *contents;
    size_t n;
};

static void put_files_done(struct put_files *put) {
    for (size_t i = 0; i < put->n; i++) {
        free((char *)put->files[i].path);
        buf_done(&put->contents[i]);
    }
    free(put->files);
    free(put->contents);
}

static int take_files(const struct play *play, const struct step *step, struct put_files *put,
    struct rollbox_error *error) {
    const json_t *files = json_object_get(step->action, "files");
    size_t n = json_array_size(files);

    put->files = calloc(n + 1, sizeof *put->files);
    put->contents = calloc(n + 1, sizeof *put->contents);
    if (!put->files || !put->contents)
        return no_memory(error);
    for (; put->n < n; put->n++) {
        const json_t *file = json_array_get(files, put->n);
        struct buf *content = &put->contents[put->n];
        char *path = NULL;

        int r = take_text(
            play, step, json_object_get(file, "path"), "the path of a file", &path, error);
        if (r == 0)
            r = take_content(
                play, step, json_object_get(file, "content"), "a file", content, error);
        put->files[put->n] = (struct rollbox_file){ .path = path,
            .data = content->length ? content->data : "",
            .length = content->length,
            .mode = (unsigned)json_integer_value(json_object_get(file, "mode")) };
        if (r < 0) {
            put->n++;
            return r;
        }
    }
    return 0;
}

/* ---- commands ---- */

static int start_exec(struct play *play, const struct step *step, struct rollbox_exec_options *exec,
    struct rollbox_error *error) {
    struct played *grown = realloc(play->runs, (play->n_runs + 1) * sizeof *grown);

    if (!grown)
        return no_memory(error);
    play->runs = grown;
    int r = rollbox_exec(play->sandbox, exec, &grown[play->n_runs].run, error);
    if (r < 0)
        return r;
    const char *code =
        json_string_value(json_object_get(json_object_get(step->observation, "error"), "code"));
    grown[play->n_runs].ended = step->ended;
    grown[play->n_runs++].cancelled = code && !strcmp(code, "cancelled");
    return 0;
}

/* A shell that receives commands: these are steps of their own. */
static int start_shell(struct play *play, const struct step *step,
    struct rollbox_exec_options *exec, struct rollbox_error *error) {
    struct play_shell **grown =
        realloc(play->shells, (play->n_shells + 1) * sizeof(struct play_shell *));
    struct play_shell *shell = calloc(1, sizeof *shell);
    int theirs[PLAY_SHELL_FDS];

    if (grown)
        play->shells = grown;
    if (!grown || !shell) {
        free(shell);
        return no_memory(error);
    }
    int r = play_shell_open(shell, step->action, step->number, theirs);
    play->shells[play->n_shells++] = shell;
    if (r < 0)
        error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "run",
            "pipes for a shell cannot be made: %s", strerror(-r));
    exec->operation_id = shell->id;
    exec->input_fd = theirs[0];
    exec->extra_fds = theirs + 1;
    exec->n_extra_fds = PLAY_SHELL_FDS - 1;
    if (r == 0)
        r = start_exec(play, step, exec, error);
    for (size_t i = 0; i < PLAY_SHELL_FDS; i++)
        close_fd(&theirs[i]);
    if (r == 0)
        shell->run = play->runs[play->n_runs - 1].run;
    return r;
}

/* The events that its end waits for. */
static void close_shell_of(struct play *play, const struct rollbox_run *run) {
    for (size_t i = 0; i < play->n_shells; i++)
        if (play->shells[i]->run == run) {
            play_shell_close(play->shells[i]);
            play->shells[i]->run = NULL;
        }
}

static int play_exec(struct play *play, const struct step *step, struct rollbox_error *error) {
    __attribute__((cleanup(free_texts))) char **argv = NULL;
    __attribute__((cleanup(free_texts))) char **env = NULL;
    __attribute__((cleanup(put_files_done))) struct put_files put = { 0 };
    const json_t *action = step->action, *input = json_object_get(action, "stdin"),
                 *timeout = json_object_get(action, "timeout_ms"),
                 *limit = json_object_get(action, "output_limit");
    auto_buf struct buf stdin_data = BUF_INIT;
    auto_free char *cwd = NULL;

    if (json_is_true(json_object_get(action, "terminal")))
        return refuse_step(
            play, step, error, "the command had a terminal, whose input is not recorded");
    const bool is_shell = play_shell_is(action);
    if (json_object_get(action, "extra_fds") && !is_shell)
        return refuse_step(play, step, error, "the command had descriptors of its caller");
    int r = take_argv(play, step, &argv, error);
    if (r == 0)
        r = take_env(play, step, &env, error);
    if (r == 0)
        r = take_files(play, step, &put, error);
    if (r == 0 && json_object_get(action, "cwd"))
        r = take_text(play, step, json_object_get(action, "cwd"), "its directory", &cwd, error);
    if (r == 0 && json_is_object(input) && !is_shell)
        r = take_content(play, step, input, "its standard input", &stdin_data, error);
    if (r < 0)
        return r;
    struct rollbox_exec_options exec = {
        .size = sizeof exec,
        .argv = (const char *const *)argv,
        .env = (const char *const *)env,
        .cwd = cwd,
        .stdin_data = json_is_object(input) && !is_shell ? text_or(stdin_data.data, "") : NULL,
        .stdin_length = stdin_data.length,
        .files = put.n ? put.files : NULL,
        .n_files = put.n,
        .timeout_ms = json_integer_value(timeout) > 0 ? json_integer_value(timeout) : -1,
        .output_limit = json_is_integer(limit) ? json_integer_value(limit) : -1,
        .input_fd = -1,
        .stream_fds = { -1, -1 },
    };
    return is_shell ? start_shell(play, step, &exec, error) : start_exec(play, step, &exec, error);
}

/* As rollbox_wait, but a signal ends it: a record may have a command that never ends. */
static int wait_for(const struct play *play, struct rollbox_run *run,
    const struct rollbox_result **ret_result, struct rollbox_error *error) {
    for (;;) {
        struct pollfd polls[] = { { .fd = rollbox_engine_fd(play->engine), .events = POLLIN },
            { .fd = signals_fd(), .events = POLLIN } };

        rollbox_dispatch(play->engine);
        int r = rollbox_wait(run, 0, ret_result);
        if (r < 0 && r != -ETIMEDOUT)
            return error_set(error, ROLLBOX_ERR_INTERNAL, -r, "run", "cannot collect a result: %s",
                strerror(-r));
        if (r == 0)
            return 0;
        if (signals_caught())
            return signals_interrupted(error);
        (void)poll(polls, ARRAY_SIZE(polls), -1);
    }
}

int play_settle(struct play *play, uint64_t n_ended, struct rollbox_error *error) {
    const struct rollbox_result *result;

    for (size_t i = 0; i < play->n_runs; i++) {
        struct played *played = &play->runs[i];

        if (!played->run || played->ended > n_ended)
            continue;
        /* By a reset before this, or by its caller, of whose mind the record knows nothing. */
        if (played->cancelled && n_ended == UINT64_MAX)
            continue; /* the sandbox's end cuts it short, as it did */
        if (played->cancelled)
            (void)rollbox_kill(played->run, ROLLBOX_OUTCOME_ERROR);
        close_shell_of(play, played->run);
        int r = wait_for(play, played->run, &result, error);
        if (r < 0)
            return r;
        if (result->outcome == ROLLBOX_OUTCOME_ERROR &&
            result->error.code == ROLLBOX_ERR_ENGINE_LOST) {
            if (error)
                *error = result->error;
            return -ENOTCONN;
        }
        played->run = rollbox_run_free(played->run);
    }
    return 0;
}

/* ---- the other kinds ---- */

static const char *own_snapshot(const struct play *play, const char *snapshot) {
    const char *found =
        snapshot ? json_string_value(json_object_get(play->snapshots, snapshot)) : NULL;

    return found ? found : snapshot;
}

static struct rollbox_state_options options_of(const struct step *step) {
    const char *processes = json_string_value(json_object_get(step->action, "processes"));
    bool drops = processes && !strcmp(processes, "drop");

    return (struct rollbox_state_options){ .size = sizeof(struct rollbox_state_options),
        .processes = drops ? ROLLBOX_PROCESSES_DROP : ROLLBOX_PROCESSES_KEEP };
}

static int play_snapshot(struct play *play, const struct step *step, struct rollbox_error *error) {
    const char *theirs = json_string_value(json_object_get(step->observation, "snapshot"));
    struct rollbox_state_options options = options_of(step);
    auto_free char *json = NULL;

    int r = rollbox_snapshot(play->sandbox,
        json_string_value(json_object_get(step->action, "name")), &options, &json, error);
    json_t *answer = r < 0 ? NULL : json_loads(json, 0, NULL);
    if (answer && theirs)
        json_object_set(play->snapshots, theirs, json_object_get(answer, "id"));
    json_decref(answer);
    return r;
}

/* The records of the children describe their own steps. */
static int play_children(struct play *play, const struct step *step, size_t kept,
    struct rollbox_sandbox **ret_kept, struct rollbox_error *error) {
    const json_int_t count = json_integer_value(json_object_get(step->action, "count"));
    const char *seed = json_string_value(json_object_get(step->action, "seed"));
    const size_t n = count > 0 ? (size_t)count : 0;
    auto_free struct rollbox_sandbox **made =
        calloc(MAX(n, (size_t)1), sizeof(struct rollbox_sandbox *));
    struct rollbox_state_options options = options_of(step);

    if (n < 1 || n > 10000)
        return refuse_step(play, step, error, "a fork makes 1 to 10000 sandboxes");
    if (!made)
        return no_memory(error);
    if (ret_kept && kept >= n)
        return refuse_step(play, step, error,
            "the sandbox to replay is not among the %zu sandboxes that it made", n);
    options.same_seed = !seed || strcmp(seed, "derived"); /* a record without this field comes from
                                                             a version in which shells were kept */
    int r = rollbox_fork(play->sandbox,
        own_snapshot(play, json_string_value(json_object_get(step->action, "snapshot"))), n,
        &options, made, error);
    for (size_t i = 0; r >= 0 && i < n; i++)
        if (i != kept || !ret_kept)
            (void)rollbox_sandbox_close(made[i], NULL);
    if (r >= 0 && ret_kept)
        *ret_kept = made[kept];
    return r;
}

static int play_reset(
    struct play *play, const struct step *step, const char *snapshot, struct rollbox_error *error) {
    struct rollbox_state_options options = options_of(step);

    return rollbox_reset(play->sandbox, own_snapshot(play, snapshot), &options, error);
}

static int play_write(
    struct play *play, const struct step *step, const char *path, struct rollbox_error *error) {
    const json_t *content = json_object_get(step->action, "content");
    auto_buf struct buf data = BUF_INIT;

    if (!content)
        return refuse_step(play, step, error, "the written content is not in the record");
    int r = take_content(play, step, content, "the file", &data, error);
    return r < 0
               ? r
               : rollbox_file_write(play->sandbox, path, data.length ? data.data : "", data.length,
                     (unsigned)json_integer_value(json_object_get(step->action, "mode")) & 01777,
                     error);
}

/* By its name: an upload into a directory uses that name. */
static int play_upload(
    struct play *play, const struct step *step, const char *path, struct rollbox_error *error) {
    auto_buf struct buf data = BUF_INIT;
    auto_free char *name = NULL;

    if (!json_object_get(step->action, "content"))
        return refuse_step(play, step, error, "the uploaded tree is not in the record");
    int r = take_content(
        play, step, json_object_get(step->action, "content"), "the file", &data, error);
    if (r == 0)
        r = take_text(
            play, step, json_object_get(step->action, "name"), "the file's name", &name, error);
    if (r < 0)
        return r;
    if (!name[0] || strchr(name, '/') || !strcmp(name, ".") || !strcmp(name, ".."))
        return refuse_step(play, step, error, "the file's name is not valid");
    auto_close int fd = fd_memory_file("rollbox-replay", data.length ? data.data : "", data.length);
    r = fd < 0 ? fd
        : fchmod(fd, (mode_t)json_integer_value(json_object_get(step->action, "mode")) & 07777) < 0
            ? -errno
            : 0;
    if (r < 0)
        return error_set(error, ROLLBOX_ERR_IO, -r, "files",
            "the file cannot be kept in memory: %s", strerror(-r));
    return files_upload_descriptor(play->sandbox, fd, name, path, error);
}

static int play_file(struct play *play, const struct step *step, struct rollbox_error *error) {
    auto_free char *path = NULL;
    int r = take_text(play, step, json_object_get(step->action, "path"), "the path", &path, error);

    if (r < 0)
        return r;
    if (!strcmp(step->kind, "mkdir"))
        return rollbox_file_mkdir(play->sandbox, path,
            (unsigned)json_integer_value(json_object_get(step->action, "mode")) & 01777, error);
    if (!strcmp(step->kind, "remove"))
        return rollbox_file_remove(
            play->sandbox, path, json_is_true(json_object_get(step->action, "recursive")), error);
    return !strcmp(step->kind, "upload") ? play_upload(play, step, path, error)
                                         : play_write(play, step, path, error);
}

/* The record has the shell, its command, and its output. */
static int play_shell(struct play *play, const struct step *step, struct rollbox_error *error) {
    const json_t *timeout = json_object_get(step->action, "timeout_ms");
    const uint64_t of = (uint64_t)json_integer_value(json_object_get(step->action, "exec")),
                   limit =
                       (uint64_t)json_integer_value(json_object_get(step->action, "output_limit"));
    struct play_shell_result result;
    auto_buf struct buf command = BUF_INIT;
    struct play_shell *shell = NULL;

    for (size_t i = 0; i < play->n_shells; i++)
        if (of && play->shells[i]->step == of && play->shells[i]->run)
            shell = play->shells[i];
    if (!shell)
        return refuse_step(play, step, error, "the record has not started its shell");
    int r = take_content(
        play, step, json_object_get(step->action, "command"), "its command", &command, error);
    if (r < 0)
        return r;
    r = play_shell_run(shell, play->engine, play->sandbox, &command,
        json_integer_value(timeout) > 0 ? json_integer_value(timeout) : -1, limit, &result, error);
    const struct rollbox_shell_note note = {
        .size = sizeof note,
        .operation_id = shell->id,
        .command = command.data,
        .command_length = command.length,
        .timeout_ms = json_integer_value(timeout) > 0 ? json_integer_value(timeout) : -1,
        .output_limit = limit,
        .outcome = result.outcome,
        .exit_code = result.exit_code,
        .signal = result.signal,
        .stdout_data = result.streams[0].data,
        .stdout_length = result.streams[0].length,
        .stderr_data = result.streams[1].data,
        .stderr_length = result.streams[1].length,
        .stdout_truncated = result.truncated[0],
        .stderr_truncated = result.truncated[1],
        .ended = result.ended,
        .wall_ms = result.wall_ms,
    };
    if (r == 0)
        r = rollbox_note_shell(play->sandbox, &note, error);
    play_shell_result_done(&result);
    return r;
}

static int play_note(struct play *play, const struct step *step, struct rollbox_error *error) {
    auto_free char *text = json_dumps(json_object_get(step->action, "data"),
        JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(RECORD_REAL_DIGITS));

    return text ? rollbox_note(play->sandbox, text, error)
                : refuse_step(play, step, error, "the note is empty");
}

int play_step(struct play *play, const struct step *step, struct rollbox_error *error) {
    static const char *const files[] = { "write_file", "mkdir", "remove", "upload" };
    const char *snapshot = json_string_value(json_object_get(step->action, "snapshot"));
    struct rollbox_error own = { .code = ROLLBOX_OK };
    bool failed = json_object_get(step->observation, "error"), is_file = false;

    int r = play_settle(play, step->begun_at, error);
    if (r < 0)
        return r;
    for (size_t i = 0; i < ARRAY_SIZE(files); i++)
        is_file |= !strcmp(step->kind, files[i]);
    if (!strcmp(step->kind, "exec"))
        r = play_exec(play, step, &own);
    else if (is_file)
        r = play_file(play, step, &own);
    else if (!strcmp(step->kind, "files"))
        r = 0; /* comes with the snapshot or command before it */
    else if (!strcmp(step->kind, "shell"))
        r = play_shell(play, step, &own);
    else if (!strcmp(step->kind, "note"))
        r = play_note(play, step, &own);
    else if (!strcmp(step->kind, "snapshot"))
        r = play_snapshot(play, step, &own);
    else if (!strcmp(step->kind, "reset"))
        r = play_reset(play, step, snapshot, &own);
    else if (!strcmp(step->kind, "fork"))
        r = play_children(play, step, 0, NULL, &own);
    else
        r = refuse_step(play, step, &own, "a %.30s %s", step->kind,
            !strcmp(step->kind, "commit")   ? "changes the host"
            : !strcmp(step->kind, "signal") ? "comes at a moment that is not recorded"
                                            : "is unknown to this version");
    bool is_ours = own.code == ROLLBOX_ERR_ENGINE_LOST || own.error_number == ENOTSUP ||
                   own.error_number == ENODATA;
    if (r < 0 && failed && !is_ours)
        return 0; /* as in the record: comparing the records shows whether it is the same */
    if (r < 0 && error)
        *error = own;
    return r;
}

int play_fork(
    struct play *play, const struct step *step, uint64_t index, struct rollbox_error *error) {
    struct rollbox_sandbox *child = NULL;

    if (strcmp(step->kind, "fork"))
        return refuse_step(play, step, error,
            "the record to replay begins with a fork at this step, and this step is not a fork");
    int r = play_settle(play, step->begun_at, error);
    if (r == 0)
        r = play_children(play, step, (size_t)index, &child, error);
    if (r < 0)
        return r;
    for (size_t i = 0; i < play->n_runs; i++) {
        close_shell_of(play, play->runs[i].run);
        play->runs[i].run = rollbox_run_free(play->runs[i].run);
    }
    play->n_runs = 0;
    (void)rollbox_sandbox_close(play->sandbox, NULL);
    play->sandbox = child;
    return 0;
}

struct rollbox_sandbox *play_take_sandbox(struct play *play) {
    return TAKE_PTR(play->sandbox);
}

void play_done(struct play *play) {
    for (size_t i = 0; i < play->n_runs; i++)
        (void)rollbox_run_free(play->runs[i].run);
    free(play->runs);
    for (size_t i = 0; i < play->n_shells; i++) {
        play_shell_close(play->shells[i]);
        free(play->shells[i]);
    }
    free(play->shells);
    json_decref(play->snapshots);
    rollbox_sandbox_free(play->sandbox);
}
