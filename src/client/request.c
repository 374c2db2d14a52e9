/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: the common part of runs, commands in a session, and the engine's other calls. Commands
 * are checked, encoded and sent here, and so are calls whose answer is one text. client.h has the
 * model.
 */
#include "client/client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/protocol.h"

/* The limits of execve(2): a string with its NUL (MAX_ARG_STRLEN), and all strings with their
 * pointers at the usual stack limit of 8 MiB. */
#define STRING_MAX ((size_t)128 * 1024 - 1)
#define STRINGS_MAX ((size_t)2 * 1024 * 1024)
#define PATH_BYTES_MAX ((size_t)4095)
#define OPERATION_MAX ((size_t)64)

int request_invalid(struct rollbox_error *error, const char *message) {
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "%s", message);
}

int request_out_of_memory(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments",
        "out of memory for the request");
}

/* ---- checking and encoding ---- */

static int add_strings(struct buf *to, uint32_t tag, const char *const *strings, const char *what,
    size_t *total, struct rollbox_error *error) {
    for (size_t i = 0; strings[i]; i++) {
        size_t length = strlen(strings[i]);

        if (length > STRING_MAX)
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "arguments",
                "%s[%zu] has %zu bytes; the kernel takes %zu in one string: give large data as "
                "stdin or as a file",
                what, i, length, STRING_MAX);
        *total += length + 1 + sizeof(char *);
        if (*total > STRINGS_MAX)
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "arguments",
                "argv and env together have more than %zu bytes: give large data as stdin or as a "
                "file",
                STRINGS_MAX);
        wire_add_text(to, tag, strings[i]);
    }
    return 0;
}

static int add_environment(
    struct buf *to, const char *const *env, size_t *total, struct rollbox_error *error) {
    for (size_t i = 0; env[i]; i++)
        if (env[i][0] == '=' || !strchr(env[i], '='))
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                "env[%zu] is not of the form NAME=VALUE: \"%.200s\"", i, env[i]);
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

static int add_file(
    struct buf *to, const struct rollbox_file *file, size_t i, struct rollbox_error *error) {
    const char *path = file->path;
    size_t length = path ? strlen(path) : 0;

    if (!length || length > PATH_BYTES_MAX || path[length - 1] == '/' || has_parent_component(path))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "files[%zu].path must name a file, without \"..\", in 1 to %zu bytes: \"%.200s\"", i,
            PATH_BYTES_MAX, path ? path : "");
    if (file->length && !file->data)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "files[%zu] has a length but no data: \"%.200s\"", i, path);
    if (file->mode & ~0777u)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "files[%zu].mode is 0%o; only permission bits (0777) can be given: \"%.200s\"", i,
            file->mode, path);
    if (file->length > WIRE_BODY_MAX - to->length)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "arguments",
            "the files together have more than %u bytes: grant a directory that holds them",
            WIRE_BODY_MAX);
    wire_add_text(to, TAG_FILE_PATH, path);
    wire_add_u64(to, TAG_FILE_MODE, file->mode ? file->mode : 0644);
    wire_add(to, TAG_FILE_DATA, file->data, file->length);
    return 0;
}

int request_add_operation(struct buf *to, const char *operation_id, struct rollbox_error *error) {
    static const char digits[] = "0123456789abcdef";
    unsigned char random[16];
    char id[sizeof random * 2];

    if (operation_id) {
        size_t length = strlen(operation_id);

        if (!length || length > OPERATION_MAX)
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                "operation_id has %zu bytes; 1 to %zu are allowed", length, OPERATION_MAX);
        wire_add(to, TAG_OPERATION, operation_id, length);
        return 0;
    }
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return error_set(
            error, ROLLBOX_ERR_INTERNAL, errno, "arguments", "getrandom: %s", strerror(errno));
    for (size_t i = 0; i < sizeof random; i++) {
        id[2 * i] = digits[random[i] >> 4];
        id[2 * i + 1] = digits[random[i] & 15];
    }
    wire_add(to, TAG_OPERATION, id, sizeof id);
    return 0;
}

int request_check_fd(int fd, const char *what, size_t i, struct rollbox_error *error) {
    if (fcntl(fd, F_GETFD) >= 0)
        return 0;
    if (i == REQUEST_NO_INDEX)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EBADF, "arguments",
            "%s is %d, which is not an open descriptor", what, fd);
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EBADF, "arguments",
        "%s[%zu] is %d, which is not an open descriptor", what, i, fd);
}

static int check_command(const struct request_command *command, struct rollbox_error *error) {
    if (command->argv && !command->argv[0])
        return request_invalid(error, "argv is empty: it must hold at least the program");
    if (command->argv && !command->argv[0][0])
        return request_invalid(error, "argv[0] is the empty string: it must name a program");
    if (command->timeout_ms == 0)
        return request_invalid(error, "timeout_ms is 0: a run needs time; -1 means the policy's "
                                      "timeout, ROLLBOX_NO_TIMEOUT none");
    if ((command->timeout_ms < -1 && command->timeout_ms != ROLLBOX_NO_TIMEOUT) ||
        command->timeout_ms > REQUEST_MS_MAX)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "timeout_ms is %lld; it must be more than 0, -1 for the policy's, or "
            "ROLLBOX_NO_TIMEOUT",
            (long long)command->timeout_ms);
    if (command->output_limit < -1)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "output_limit is %lld; it must be 0 or more, or -1 for the policy's",
            (long long)command->output_limit);
    if (command->cwd && (command->cwd[0] != '/' || strlen(command->cwd) > PATH_BYTES_MAX))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "cwd must be an absolute path of at most %zu bytes: \"%.200s\"", PATH_BYTES_MAX,
            command->cwd);
    if (command->stdin_length && !command->stdin_data)
        return request_invalid(error, "stdin_length is given without stdin_data");
    if (command->n_files && !command->files)
        return request_invalid(error, "n_files is given without files");
    return 0;
}

int request_add_command(
    struct buf *to, const struct request_command *command, struct rollbox_error *error) {
    size_t total = 0;

    int r = check_command(command, error);
    if (r >= 0)
        r = request_add_operation(to, command->operation_id, error);
    if (r >= 0)
        r = !command->argv ? 0 : add_strings(to, TAG_ARG, command->argv, "argv", &total, error);
    if (r >= 0 && command->env)
        r = add_environment(to, command->env, &total, error);
    if (r < 0)
        return r;
    if (command->cwd)
        wire_add_text(to, TAG_CWD, command->cwd);
    if (command->timeout_ms != -1)
        wire_add_u64(to, TAG_TIMEOUT,
            command->timeout_ms == ROLLBOX_NO_TIMEOUT ? 0 : (uint64_t)command->timeout_ms);
    if (command->output_limit >= 0)
        wire_add_u64(to, TAG_OUTPUT_LIMIT, (uint64_t)command->output_limit);
    for (size_t i = 0; i < command->n_files; i++) {
        r = add_file(to, &command->files[i], i, error);
        if (r < 0)
            return r;
    }
    if (command->stdin_length)
        wire_add_u64(to, TAG_STDIN, 1);
    return buf_failed(to) ? request_out_of_memory(error) : 0;
}

/* ---- sending ---- */

static int enter_and_send(struct rollbox_run *run, struct buf *message, const int *fds,
    size_t n_fds, struct rollbox_error *error) {
    struct rollbox_engine *engine = run->engine;

    int r = connection_enter(engine, &run->pending, error);
    if (r < 0)
        return r;
    /* It is in the engine's list from before its result can come, so that closing the engine finds
     * it. */
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

int request_send_run(struct rollbox_run *run, struct buf *message, const void *stdin_data,
    size_t stdin_length, const int *fds, size_t n_fds, struct rollbox_error *error) {
    auto_close int input = -EBADF;
    int all[1 + REQUEST_FDS_MAX];
    size_t n = 0;

    if (stdin_length) {
        input = fd_memory_file("rollbox-stdin", stdin_data, stdin_length);
        if (input < 0)
            return error_set(error, error_code_of(-input, ROLLBOX_ERR_INTERNAL), -input,
                "arguments", "cannot store %zu bytes of stdin: %s", stdin_length, strerror(-input));
        all[n++] = input;
    }
    for (size_t i = 0; i < n_fds; i++)
        all[n++] = fds[i];
    return enter_and_send(run, message, all, n, error);
}

/* ---- answers of one text ---- */

int request_malformed(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_PROTOCOL, EPROTO, "result",
        "the engine's answer is malformed; are engine and library of one version?");
}

static int read_text(const struct request *request, char **ret_text, struct rollbox_error *error) {
    *ret_text = result_read_text(request->body.data, request->body.length);
    return *ret_text ? 0 : request_malformed(error);
}

int request_text(struct rollbox_engine *engine, struct buf *message, const int *fds, size_t n_fds,
    char **ret_text, struct rollbox_error *error) {
    struct request request = { .takes_fds = false };
    int r = connection_call(engine, message, fds, n_fds, PROTOCOL_TEXT, &request, error);

    if (r >= 0)
        r = read_text(&request, ret_text, error);
    buf_done(&request.body);
    return MIN(r, 0);
}

int request_text_fds(struct rollbox_engine *engine, struct buf *message, int *ret_fds,
    size_t *ret_n_fds, char **ret_text, struct rollbox_error *error) {
    struct request request = { .takes_fds = true };
    int r = connection_call(engine, message, NULL, 0, PROTOCOL_TEXT, &request, error);

    if (r >= 0)
        r = read_text(&request, ret_text, error);
    buf_done(&request.body);
    for (size_t i = 0; i < request.n_fds; i++)
        if (r >= 0)
            ret_fds[i] = request.fds[i];
        else
            close(request.fds[i]);
    if (r >= 0)
        *ret_n_fds = request.n_fds;
    return MIN(r, 0);
}
