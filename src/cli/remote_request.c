/* SPDX-License-Identifier: Apache-2.0 */
/* The requests of remote.h, each a process of rollbox-http. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/remote.h"

#define ANSWER_MAX ((size_t)256 << 20)
#define STATUS_LINE_MAX ((size_t)256)

#define PLAIN "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"

void remote_path_add(struct buf *to, const char *text, bool slashes) {
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (strchr(slashes ? PLAIN "/" : PLAIN, c))
            buf_add(to, text, 1);
        else
            buf_printf(to, "%%%02X", c);
    }
}

/* The program beside this one, or where an installation puts it. */
int remote_find_program(struct buf *path) {
    static const char *const places[] = { "rollbox-http", "../libexec/rollbox/rollbox-http" };
    auto_free char *self = realpath("/proc/self/exe", NULL);

    for (size_t i = 0; self && i < ARRAY_SIZE(places); i++) {
        buf_done(path);
        buf_add(path, self, (size_t)(strrchr(self, '/') + 1 - self));
        buf_add_text(path, places[i]);
        if (!buf_failed(path) && access(path->data, X_OK) == 0)
            return 0;
    }
    return -ENOENT;
}

/* The engine's address and the path of the request in one. */
static int address_of(const char *path, struct buf *to) {
    const char *engine = getenv("ROLLBOX_ENGINE");
    size_t length = strlen(engine);

    while (length && strncmp(engine, "unix:", 5) && engine[length - 1] == '/')
        length--;
    buf_printf(to, "%.*s%s%s", (int)length, engine, strncmp(engine, "unix:", 5) ? "" : "#", path);
    return buf_failed(to) ? -ENOMEM : 0;
}

/* Starts one; `body_fd` -1: none. Its standard output is the pipe *ret_out, and its message goes to
 * `messages`. The pid or -errno. */
static int start(const char *method, const char *path, const char *header, int body_fd,
    int messages, int *ret_out) {
    char name[] = "rollbox-http", option[] = "--header";
    auto_buf struct buf program = BUF_INIT, url = BUF_INIT;
    posix_spawn_file_actions_t actions;
    int pair[2];
    pid_t pid;

    int r = remote_find_program(&program);
    if (r >= 0)
        r = address_of(path, &url);
    if (r >= 0 && pipe2(pair, O_CLOEXEC) < 0)
        r = -errno;
    if (r < 0)
        return r;
    char *argv[] = { name, option,
        (char *)(uintptr_t)(header ? header : "Accept: application/json"),
        (char *)(uintptr_t)method, url.data, NULL };
    r = -posix_spawn_file_actions_init(&actions);
    if (r == 0) {
        r = body_fd >= 0 ? -posix_spawn_file_actions_adddup2(&actions, body_fd, 0)
                         : -posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
        if (!r)
            r = -posix_spawn_file_actions_adddup2(&actions, pair[1], 1);
        if (!r)
            r = -posix_spawn_file_actions_adddup2(&actions, messages, 2);
        if (!r)
            r = -posix_spawn(&pid, program.data, &actions, NULL, argv, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    close(pair[1]);
    if (r < 0) {
        close(pair[0]);
        return r;
    }
    *ret_out = pair[0];
    return pid;
}

/* Whether it has succeeded. If not, it has written a message. */
static bool wait_for(int pid) {
    int status;

    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return false;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* The first line of an answer: the status. */
static int read_status(int fd) {
    char line[STATUS_LINE_MAX];

    for (size_t n = 0; n < sizeof line; n++) {
        ssize_t got = read(fd, line + n, 1);

        if (got < 0 && errno == EINTR)
            n--;
        else if (got != 1)
            return 0;
        else if (line[n] == '\n')
            return (int)strtol(line, NULL, 10);
    }
    return 0;
}

/* The message begins with the request's address, or with a file of this machine. */
static void tell_no_answer(const struct options *options, int messages) {
    char text[1024];
    ssize_t n = pread(messages, text, sizeof text, 0);
    size_t length = n > 0 ? (size_t)n : 0;

    while (length && text[length - 1] == '\n')
        length--;
    if (length)
        cli_fail_code(
            options, ROLLBOX_ERR_ENGINE_LOST, "cannot ask the server: %.*s", (int)length, text);
    else
        cli_fail_code(options, ROLLBOX_ERR_ENGINE_LOST, "the server %s did not answer",
            getenv("ROLLBOX_ENGINE"));
}

static void ask_fd(const struct options *options, const char *method, const char *path,
    const char *header, int body_fd, int to_fd, struct remote_answer *answer) {
    auto_close int out = -EBADF;

    *answer = (struct remote_answer){ .body = BUF_INIT };
    auto_close int messages = memfd_create("messages", MFD_CLOEXEC);
    int pid = messages < 0 ? -errno : start(method, path, header, body_fd, messages, &out);
    if (pid < 0) {
        cli_fail_code(options, ROLLBOX_ERR_ENGINE_LOST,
            "rollbox-http cannot be started: %s; it is built where libcurl's headers are, but "
            "not in the portable wheel (docs/how-to/install.md), and "
            "belongs beside rollbox or into its libexec directory",
            strerror(-pid));
        return;
    }
    int status = read_status(out), r = 0;
    bool keeps = to_fd < 0 || status >= 400;
    for (;;) {
        char piece[65536];
        ssize_t n = read(out, piece, sizeof piece);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        if (keeps && answer->body.length + (size_t)n <= ANSWER_MAX)
            buf_add(&answer->body, piece, (size_t)n);
        else if (keeps)
            r = -EFBIG;
        else if (r >= 0)
            r = fd_write_all(to_fd, piece, (size_t)n);
    }
    buf_add(&answer->body, "", 1);
    bool ok = wait_for(pid);
    if (buf_failed(&answer->body))
        r = -ENOMEM;
    else
        answer->body.length--;
    if (ok && status && r >= 0)
        answer->status = status;
    else if (r < 0)
        cli_fail(options, "cannot take the server's answer: %s", strerror(-r));
    else
        tell_no_answer(options, messages);
}

/* A file in memory with the JSON; negative when out of memory. */
static int body_file(const json_t *body) {
    auto_free char *text = json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(15));
    auto_close int fd = text ? memfd_create("request", MFD_CLOEXEC) : -ENOMEM;

    if (fd < 0 || fd_write_all(fd, text, strlen(text)) < 0 || lseek(fd, 0, SEEK_SET) < 0)
        return -ENOMEM;
    return TAKE_FD(fd);
}

void remote_ask(const struct options *options, const char *method, const char *path,
    const char *header, const json_t *body, struct remote_answer *ret_answer) {
    auto_close int fd = body ? body_file(body) : -EBADF;

    ask_fd(options, method, path, header, fd, -1, ret_answer);
}

void remote_transfer(const struct options *options, const char *method, const char *path,
    int body_fd, int to_fd, struct remote_answer *ret_answer) {
    ask_fd(options, method, path, NULL, body_fd, to_fd, ret_answer);
}

bool remote_stream_open(
    const struct options *options, const char *path, struct remote_stream *ret_stream) {
    int out;

    *ret_stream = (struct remote_stream){
        .pid = start("GET", path, "Accept: text/event-stream", -1, STDERR_FILENO, &out),
    };
    if (ret_stream->pid < 0) {
        cli_fail_code(options, ROLLBOX_ERR_ENGINE_LOST, "rollbox-http cannot be started: %s",
            strerror(-ret_stream->pid));
        return false;
    }
    ret_stream->status = read_status(out);
    ret_stream->lines = fdopen(out, "r");
    return ret_stream->lines != NULL;
}

bool remote_stream_close(struct remote_stream *stream) {
    if (stream->lines)
        (void)fclose(stream->lines);
    return wait_for(stream->pid);
}

int remote_fail(const struct options *options, const struct remote_answer *answer) {
    struct rollbox_error error = { .code = ROLLBOX_ERR_INTERNAL };

    if (!answer->status)
        return CLI_EXIT_ERROR; /* it has been told */
    json_t *problem = json_loadb(answer->body.data, answer->body.length, 0, NULL);
    const char *code = json_string_value(json_object_get(problem, "code"));
    const char *detail = json_string_value(json_object_get(problem, "detail"));
    const char *stage = json_string_value(json_object_get(problem, "stage"));
#define CASE(name, number, http, python, text)                                                     \
    if (code && !strcmp(code, rollbox_error_name(ROLLBOX_ERR_##name)))                             \
        error.code = ROLLBOX_ERR_##name;
    ROLLBOX_ERRORS(CASE)
#undef CASE
    error_set(&error, error.code, 0, stage ? stage : "request", "%s%s%s%s",
        detail ? detail : "the server refused the request",
        error.code == ROLLBOX_ERR_INTERNAL && code ? " (" : "",
        error.code == ROLLBOX_ERR_INTERNAL && code ? code : "",
        error.code == ROLLBOX_ERR_INTERNAL && code ? ")" : "");
    json_decref(problem);
    return cli_fail_error(options, &error);
}
