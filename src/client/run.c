/* SPDX-License-Identifier: Apache-2.0 */
/* Runs: checking what the caller asks for, asking the engine, collecting or ending what came of it. client.h has the model. */
#include "client/client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/protocol.h"

/* What execve takes: a string with its NUL (MAX_ARG_STRLEN), and all strings with their pointers at the usual stack limit of 8 MiB. execve(2). */
#define STRING_MAX ((size_t)128 * 1024 - 1)
#define STRINGS_MAX ((size_t)2 * 1024 * 1024)
#define PATH_BYTES_MAX ((size_t)4095)
#define OPERATION_MAX ((size_t)64)
#define TIMEOUT_MS_MAX (INT64_MAX / 1000000)

static int invalid(struct rollbox_error *error, const char *message) {
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "%s", message);
}

static int out_of_memory(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory for the request");
}

/* ---- checking and encoding ---------------------------------------------------------------------------------------- */

static int add_strings(struct buf *to, uint32_t tag, const char *const *strings, const char *what, size_t *total, struct rollbox_error *error) {
    for (size_t i = 0; strings[i]; i++) {
        size_t length = strlen(strings[i]);

        if (length > STRING_MAX)
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "arguments",
                             "%s[%zu] has %zu bytes; the kernel takes %zu in one string: give large data as stdin or as a file", what, i, length, STRING_MAX);
        *total += length + 1 + sizeof(char *);
        if (*total > STRINGS_MAX)
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "arguments",
                             "argv and env together have more than %zu bytes: give large data as stdin or as a file", STRINGS_MAX);
        wire_add_text(to, tag, strings[i]);
    }
    return 0;
}

static int add_environment(struct buf *to, const char *const *env, size_t *total, struct rollbox_error *error) {
    for (size_t i = 0; env[i]; i++)
        if (env[i][0] == '=' || !strchr(env[i], '='))
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "env[%zu] is not of the form NAME=VALUE: \"%.200s\"", i, env[i]);
    return add_strings(to, TAG_ENV, env, "env", total, error);
}

static bool has_parent_component(const char *path) {
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, "/");

        if (n == 2 && !strncmp(p, "..", 2))
            return true;
        p += n;
        p += strspn(p, "/");
    }
    return false;
}

static int add_file(struct buf *to, const struct rollbox_file *file, size_t i, struct rollbox_error *error) {
    const char *path = file->path;
    size_t length = path ? strlen(path) : 0;

    if (!length || length > PATH_BYTES_MAX || path[length - 1] == '/' || has_parent_component(path))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                         "files[%zu].path must name a file, without \"..\", in 1 to %zu bytes: \"%.200s\"", i, PATH_BYTES_MAX, path ? path : "");
    if (file->length && !file->data)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "files[%zu] has a length but no data: \"%.200s\"", i, path);
    if (file->mode & ~0777u)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "files[%zu].mode is 0%o; only permission bits (0777) can be given: \"%.200s\"",
                         i, file->mode, path);
    if (file->length > WIRE_BODY_MAX - to->length)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "arguments", "the files together have more than %u bytes: grant a directory that holds them",
                         WIRE_BODY_MAX);
    wire_add_text(to, TAG_FILE_PATH, path);
    wire_add_u64(to, TAG_FILE_MODE, file->mode ? file->mode : 0644);
    wire_add(to, TAG_FILE_DATA, file->data, file->length);
    return 0;
}

static int add_operation(struct buf *to, const char *operation_id, struct rollbox_error *error) {
    static const char digits[] = "0123456789abcdef";
    unsigned char random[16];
    char id[sizeof random * 2];

    if (operation_id) {
        size_t length = strlen(operation_id);

        if (!length || length > OPERATION_MAX)
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "operation_id has %zu bytes; 1 to %zu are allowed", length, OPERATION_MAX);
        wire_add(to, TAG_OPERATION, operation_id, length);
        return 0;
    }
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return error_set(error, ROLLBOX_ERR_INTERNAL, errno, "arguments", "getrandom: %s", strerror(errno));
    for (size_t i = 0; i < sizeof random; i++) {
        id[2 * i] = digits[random[i] >> 4];
        id[2 * i + 1] = digits[random[i] & 15];
    }
    wire_add(to, TAG_OPERATION, id, sizeof id);
    return 0;
}

static int check_scalars(const struct rollbox_run_options *options, struct rollbox_error *error) {
    if (options->timeout_ms == 0)
        return invalid(error, "timeout_ms is 0: a run needs time; -1 means the policy's timeout");
    if (options->timeout_ms < -1 || options->timeout_ms > TIMEOUT_MS_MAX)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "timeout_ms is %lld; it must be more than 0, or -1 for the policy's",
                         (long long)options->timeout_ms);
    if (options->output_limit < -1)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "output_limit is %lld; it must be 0 or more, or -1 for the policy's",
                         (long long)options->output_limit);
    if (options->cwd && (options->cwd[0] != '/' || strlen(options->cwd) > PATH_BYTES_MAX))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "cwd must be an absolute path of at most %zu bytes: \"%.200s\"", PATH_BYTES_MAX,
                         options->cwd);
    if (options->stdin_length && !options->stdin_data)
        return invalid(error, "stdin_length is given without stdin_data");
    if (options->stdin_data && options->stdio_fds)
        return invalid(error, "stdin_data and stdio_fds exclude each other: the first of stdio_fds is the standard input");
    if (options->n_files && !options->files)
        return invalid(error, "n_files is given without files");
    if (options->stdio_fds)
        for (int i = 0; i < 3; i++)
            if (fcntl(options->stdio_fds[i], F_GETFD) < 0)
                return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EBADF, "arguments", "stdio_fds[%d] is %d, which is no open descriptor", i,
                                 options->stdio_fds[i]);
    return 0;
}

static int encode(struct buf *to, uint64_t plan, const struct rollbox_run_options *options, struct rollbox_error *error) {
    size_t total = 0;

    if (!options->argv || !options->argv[0])
        return invalid(error, "argv is empty: it must hold at least the program");
    if (!options->argv[0][0])
        return invalid(error, "argv[0] is the empty string: it must name a program");
    int r = check_scalars(options, error);
    if (r < 0)
        return r;
    wire_begin(to, PROTOCOL_RUN, 0);
    wire_add_u64(to, TAG_PLAN, plan);
    r = add_operation(to, options->operation_id, error);
    if (r >= 0)
        r = add_strings(to, TAG_ARG, options->argv, "argv", &total, error);
    if (r >= 0 && options->env)
        r = add_environment(to, options->env, &total, error);
    if (r < 0)
        return r;
    if (options->cwd)
        wire_add_text(to, TAG_CWD, options->cwd);
    if (options->timeout_ms > 0)
        wire_add_u64(to, TAG_TIMEOUT, (uint64_t)options->timeout_ms);
    if (options->output_limit >= 0)
        wire_add_u64(to, TAG_OUTPUT_LIMIT, (uint64_t)options->output_limit);
    for (size_t i = 0; i < options->n_files; i++) {
        r = add_file(to, &options->files[i], i, error);
        if (r < 0)
            return r;
    }
    if (options->stdin_length)
        wire_add_u64(to, TAG_STDIN, 1);
    if (options->stdio_fds)
        wire_add_u64(to, TAG_STDIO, 1);
    return buf_failed(to) ? out_of_memory(error) : 0;
}

/* ---- life --------------------------------------------------------------------------------------------------------- */

static struct rollbox_run *new_run(struct rollbox_engine *engine, struct rollbox_plan *plan, const struct rollbox_run_options *options) {
    struct rollbox_run *run = calloc(1, sizeof *run);

    if (!run)
        return NULL;
    run->pending.is_run = true;
    run->engine = engine;
    run->owner = engine->owner;
    run->references = 1;
    run->callback = options->callback;
    run->userdata = options->userdata;
    run->isolation = plan->isolation;
    list_init(&run->of_ended);
    list_init(&run->of_engine);
    return run;
}

static void destroy_run(struct rollbox_run *run) {
    result_done(&run->result);
    free(run);
}

static int send_run(struct rollbox_engine *engine, struct rollbox_run *run, struct buf *message, const struct rollbox_run_options *options,
                    struct rollbox_error *error) {
    auto_close int input = -EBADF;
    const int *fds = options->stdio_fds;
    size_t n_fds = fds ? 3 : 0;

    if (options->stdin_length) {
        input = fd_memory_file("rollbox-stdin", options->stdin_data, options->stdin_length);
        if (input < 0)
            return error_set(error, error_code_of(-input, ROLLBOX_ERR_INTERNAL), -input, "arguments", "cannot store %zu bytes of stdin: %s",
                             options->stdin_length, strerror(-input));
        fds = &input;
        n_fds = 1;
    }
    int r = connection_enter(engine, &run->pending, error);
    if (r < 0)
        return r;
    /* It is in the engine's list from before its result can come, so that closing the engine finds it. */
    pthread_mutex_lock(&engine->lock);
    list_add_tail(&engine->runs, &run->of_engine);
    pthread_mutex_unlock(&engine->lock);
    r = connection_send(engine, message, run->pending.serial, fds, n_fds, error);
    if (r < 0) {
        pthread_mutex_lock(&engine->lock);
        connection_forget(engine, &run->pending);
        list_remove(&run->of_ended);
        list_remove(&run->of_engine);
        pthread_mutex_unlock(&engine->lock);
    }
    return r;
}

ROLLBOX_PUBLIC int rollbox_start(struct rollbox_engine *engine, struct rollbox_plan *plan, const struct rollbox_run_options *options,
                                 struct rollbox_run **ret_run, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    if (!engine || !plan || !options || !ret_run || options->size != sizeof *options)
        return invalid(error, "engine, plan and options must be given, and options.size be sizeof(struct rollbox_run_options)");
    int r = connection_check_owner(engine->owner, error);
    if (r < 0)
        return r;
    if (plan->engine != engine)
        return invalid(error, "the plan was prepared by another engine");
    r = encode(&message, plan->id, options, error);
    if (r < 0)
        return r;
    struct rollbox_run *run = new_run(engine, plan, options);
    if (!run)
        return out_of_memory(error);
    r = send_run(engine, run, &message, options, error);
    if (r < 0) {
        destroy_run(run);
        return r;
    }
    *ret_run = run;
    return 0;
}

ROLLBOX_PUBLIC int rollbox_wait(struct rollbox_run *run, int64_t timeout_ms, const struct rollbox_result **ret_result) {
    int r = connection_check_owner(run->owner, NULL);

    if (r < 0)
        return r;
    struct rollbox_engine *engine = run->engine;
    if (engine) {
        pthread_mutex_lock(&engine->lock);
        r = connection_wait(engine, &run->pending, timeout_ms < 0 ? -1 : timeout_ms, true);
        pthread_mutex_unlock(&engine->lock);
    }
    if (r >= 0 && ret_result)
        *ret_result = &run->result.public;
    return r;
}

static int send_kill(struct rollbox_engine *engine, uint64_t serial, enum rollbox_outcome as) {
    auto_buf struct buf message = BUF_INIT;

    wire_begin(&message, PROTOCOL_KILL, 0);
    wire_add_u64(&message, TAG_TARGET, serial);
    wire_add_u64(&message, TAG_OUTCOME, as);
    pthread_mutex_lock(&engine->lock);
    uint64_t own = ++engine->last_serial;
    pthread_mutex_unlock(&engine->lock);
    int r = connection_send(engine, &message, own, NULL, 0, NULL);
    /* An engine that is gone has killed it already. */
    return r == -ENOTCONN ? 0 : r;
}

ROLLBOX_PUBLIC int rollbox_kill(struct rollbox_run *run, enum rollbox_outcome as) {
    int r = connection_check_owner(run->owner, NULL);

    if (r < 0)
        return r;
    if (as != ROLLBOX_OUTCOME_OUTPUT_LIMIT && as != ROLLBOX_OUTCOME_TIMEOUT && as != ROLLBOX_OUTCOME_ERROR)
        return -EINVAL;
    struct rollbox_engine *engine = run->engine;
    if (!engine)
        return 0;
    pthread_mutex_lock(&engine->lock);
    bool done = run->pending.done;
    pthread_mutex_unlock(&engine->lock);
    return done ? 0 : send_kill(engine, run->pending.serial, as);
}

ROLLBOX_PUBLIC struct rollbox_run *rollbox_run_free(struct rollbox_run *run) {
    if (!run)
        return NULL;
    struct rollbox_engine *engine = run->engine;
    if (!engine || run->owner != getpid()) {
        /* Of a closed engine, or in a forked child, where the locks mean nothing; only the lists must not keep it. */
        list_remove(&run->of_ended);
        list_remove(&run->of_engine);
        if (--run->references == 0)
            destroy_run(run);
        return NULL;
    }
    uint64_t serial = run->pending.serial;
    pthread_mutex_lock(&engine->lock);
    bool under_way = !run->pending.done;
    connection_forget(engine, &run->pending);
    list_remove(&run->of_ended);
    list_remove(&run->of_engine);
    /* The caller may free its userdata next: a callback in another thread must be through with it. */
    while (run->calling && !pthread_equal(run->caller, pthread_self()))
        pthread_cond_wait(&engine->quiet, &engine->lock);
    bool last = --run->references == 0;
    pthread_mutex_unlock(&engine->lock);
    if (last)
        destroy_run(run);
    if (under_way)
        (void)send_kill(engine, serial, ROLLBOX_OUTCOME_ERROR);
    return NULL;
}
