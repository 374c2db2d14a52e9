/* SPDX-License-Identifier: Apache-2.0 */
/* Runs rollbox-store; store_worker.h has the model. */
#include "serve/store_worker.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "serve/side_process.h"
#include "sys/proc.h"

#define MESSAGE_MAX ((size_t)16 << 10)
#define ARGUMENTS_MAX 32u
#define OUTPUT_MAX ((size_t)64 << 20)
#define N_FDS 3u /* standard input, output and error */

/* ---- the worker's own process ---- */

/* The program beside this one, or where an installation puts it. */
static int find_program(struct buf *path) {
    auto_free char *self = proc_own_program();

    if (self) {
        buf_add(path, self, (size_t)(strrchr(self, '/') + 1 - self));
        buf_add_text(path, "rollbox-store");
        if (!buf_failed(path) && access(path->data, X_OK) == 0)
            return 0;
        buf_done(path);
    }
#ifdef ROLLBOX_LIBEXECDIR
    buf_add_text(path, ROLLBOX_LIBEXECDIR "/rollbox-store");
#else
    buf_add_text(path, "rollbox-store");
#endif
    return buf_failed(path) ? -ENOMEM : 0;
}

static int execute(char *const *argv, const int fds[N_FDS]) {
    auto_buf struct buf program = BUF_INIT;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, standard;
    pid_t pid;

    int r = find_program(&program);
    if (r < 0 || posix_spawn_file_actions_init(&actions))
        return -ENOMEM;
    if (posix_spawnattr_init(&attributes)) {
        posix_spawn_file_actions_destroy(&actions);
        return -ENOMEM;
    }
    sigemptyset(&none);
    sigfillset(&standard);
    for (int i = 0; !r && i < (int)N_FDS; i++)
        r = posix_spawn_file_actions_adddup2(&actions, fds[i], i);
    if (!r)
        r = posix_spawn_file_actions_addclosefrom_np(&actions, N_FDS);
    if (!r)
        r = posix_spawnattr_setsigmask(&attributes, &none);
    if (!r)
        r = posix_spawnattr_setsigdefault(&attributes, &standard);
    if (!r)
        r = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (!r)
        r = posix_spawnp(&pid, program.data, &actions, &attributes, argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return -r;
}

/* Arguments, each with its NUL. The descriptors are above the standard ones. */
static void take_job(char *message, size_t length, const int fds[N_FDS]) {
    static char name[] = "rollbox";
    char *argv[ARGUMENTS_MAX + 2] = { name };
    size_t n = 1;

    for (size_t at = 0; at < length && n <= ARGUMENTS_MAX; at += strlen(message + at) + 1)
        argv[n++] = message + at;
    int r = execute(argv, fds);
    if (r < 0)
        dprintf(fds[2],
            "{\"error\":{\"code\":\"internal\",\"stage\":\"store\",\"message\":\"rollbox-store "
            "cannot be executed: %s\"}}\n",
            strerror(-r));
}

/* Sends a new file through the socket that came with the message. */
static void give_file(int answer) {
    const char *given = getenv("TMPDIR");
    auto_close int fd = open(given ? given : "/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    int error_number = fd < 0 ? errno : 0;

    (void)fd_send(answer, &error_number, sizeof error_number, &fd, fd < 0 ? 0 : 1);
}

static _Noreturn void work(int socket, const void *unused) {
    static char message[MESSAGE_MAX + 1];
    int fds[FD_MESSAGE_MAX_FDS];

    (void)unused;
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    (void)signal(SIGCHLD, SIG_IGN); /* the end of the output is the end of the program */
    for (;;) {
        size_t n = 0;
        ssize_t length = fd_receive(socket, message, MESSAGE_MAX, fds, &n);

        if (length == -EINTR)
            continue;
        if (length <= 0)
            _exit(0);
        message[length] = '\0';
        if (side_process_take(message, (size_t)length, fds, n))
            ; /* done */
        else if (n == N_FDS)
            take_job(message, (size_t)length, fds);
        else if (n == 1)
            give_file(fds[0]);
        while (n)
            close_fd(&fds[--n]);
    }
}

void store_worker_define(void) {
    side_process_define(SIDE_STORES, "rollbox-stores", work, NULL);
}

/* ---- the server ---- */

/* Reads both outputs to their ends. 0 or -errno. */
static int read_outputs(int fds[2], struct buf outputs[2]) {
    while (fds[0] >= 0 || fds[1] >= 0) {
        struct pollfd both[2] = { { .fd = fds[0], .events = POLLIN },
            { .fd = fds[1], .events = POLLIN } };

        if (poll(both, 2, -1) < 0 && errno != EINTR)
            return -errno;
        for (int i = 0; i < 2; i++) {
            void *room = both[i].revents ? buf_reserve(&outputs[i], 4096) : NULL;

            if (!both[i].revents)
                continue;
            if (!room || outputs[i].length > OUTPUT_MAX)
                return -ENOMEM;
            ssize_t n = read(fds[i], room, 4096);
            if (n > 0)
                outputs[i].length += (size_t)n;
            else if (n == 0 || errno != EINTR)
                close_fd(&fds[i]);
        }
    }
    return 0;
}

static int failed(struct rollbox_error *error, int error_number, const char *why) {
    return error_set(error, error_code_of(error_number, ROLLBOX_ERR_INTERNAL), error_number,
        "store", "cannot use the store: %s", why);
}

static enum rollbox_error_code code_named(const char *name) {
    for (int code = 1; name && code < 64; code++) {
        const char *known = rollbox_error_name((enum rollbox_error_code)code);

        if (known && !strcmp(known, name))
            return (enum rollbox_error_code)code;
    }
    return ROLLBOX_ERR_INTERNAL;
}

/* The error that the program has told, as one object on a line. */
static int told_error(const struct buf *text, struct rollbox_error *error) {
    json_t *line =
        json_loadb(text->data ? text->data : "", text->length, JSON_DISABLE_EOF_CHECK, NULL);
    const json_t *told = json_object_get(line, "error");
    const char *message = json_string_value(json_object_get(told, "message"));
    const char *code = json_string_value(json_object_get(told, "code"));
    int number = (int)json_integer_value(json_object_get(told, "errno"));

    int r = error_set(error, code_named(code), number ? number : EIO, "store", "%s",
        message ? message : "rollbox-store has ended without an answer");
    json_decref(line);
    return r;
}

static int start(int socket, const char *const *arguments, const int fds[N_FDS]) {
    auto_buf struct buf message = BUF_INIT;

    for (size_t i = 0; arguments[i]; i++)
        buf_add(&message, arguments[i], strlen(arguments[i]) + 1);
    if (buf_failed(&message))
        return -ENOMEM;
    if (message.length > MESSAGE_MAX)
        return -ENAMETOOLONG;
    return fd_send(socket, message.data, message.length, fds, N_FDS);
}

int store_worker_file(int socket, struct rollbox_error *error) {
    int pair[2], fds[FD_MESSAGE_MAX_FDS], error_number = EIO;
    size_t n = 0;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return failed(error, errno, strerror(errno));
    auto_close int ours = pair[0], theirs = pair[1];
    int r = fd_send(socket, "", 1, &theirs, 1);
    close_fd(&theirs);
    if (r >= 0 &&
        fd_receive(ours, &error_number, sizeof error_number, fds, &n) ==
            (ssize_t)sizeof error_number &&
        n == 1)
        return fds[0];
    while (n)
        close_fd(&fds[--n]);
    return failed(error, error_number, strerror(error_number));
}

int store_worker_run(int socket, const char *const *arguments, int input_fd, char **ret_json,
    struct rollbox_error *error) {
    auto_buf struct buf output = BUF_INIT, errors = BUF_INIT;
    int out[2] = { -EBADF, -EBADF }, err[2] = { -EBADF, -EBADF }, none[2] = { -EBADF, -EBADF };
    int r = pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0 ||
                    (input_fd < 0 && pipe2(none, O_CLOEXEC) < 0)
                ? -errno
                : 0;

    close_fd(&none[1]); /* an input at its end */
    if (r == 0)
        r = start(
            socket, arguments, (int[N_FDS]){ input_fd < 0 ? none[0] : input_fd, out[1], err[1] });
    close_fd(&none[0]);
    close_fd(&out[1]);
    close_fd(&err[1]);
    struct buf outputs[2] = { BUF_INIT, BUF_INIT };
    int ends[2] = { out[0], err[0] };
    if (r == 0)
        r = read_outputs(ends, outputs);
    close_fd(&ends[0]);
    close_fd(&ends[1]);
    output = outputs[0];
    errors = outputs[1];
    if (r < 0)
        return failed(error, -r, strerror(-r));
    if (!output.length)
        return told_error(&errors, error);
    *ret_json = buf_take(&output);
    return *ret_json ? 0 : failed(error, ENOMEM, "out of memory");
}
