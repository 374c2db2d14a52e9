/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox engine: starts, shows and stops a shared engine. In the foreground this process becomes
 * the engine, for service managers. In the background the engine gets a session of its own, and the
 * command returns once the engine answers. No other part of rollbox starts an engine that outlives
 * its caller.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/utf8.h"
#include "cli/absolute_path.h"
#include "cli/cli.h"
#include "cli/policy.h"
#include "cli/session.h"
#include "cli/format.h"

/* How long `stop` waits for the engine to be gone. */
#define STOP_MS 10000

/* How long `start --background` waits for the engine to answer, and how often it asks. */
#define START_MS 10000
#define START_STEP_MS 5

/* ---- start ---- */

/* Executes the engine's program: $ROLLBOX_ENGINE, else beside this one (a build tree, a bundle),
 * where an installation puts it, or in the PATH. Returns only if it cannot. */
static int execute_engine(const struct options *options, const char *path) {
    const char *program = getenv("ROLLBOX_ENGINE");
    auto_buf struct buf candidate = BUF_INIT;
    char self[PATH_MAX];

    if (program && program[0]) {
        execl(program, "rollbox-engine", "--socket", path, (char *)NULL);
        return cli_fail(
            options, "cannot execute $ROLLBOX_ENGINE (%s): %s", program, strerror(errno));
    }
    ssize_t n = readlink("/proc/self/exe", self, sizeof self);
    while (n > 0 && (size_t)n < sizeof self && self[n - 1] != '/')
        n--;
    for (int i = 0; n > 0 && (size_t)n < sizeof self && i < 2; i++) {
        candidate.length = 0;
        buf_add(&candidate, self, (size_t)n);
        buf_add_text(&candidate, i == 0 ? "rollbox-engine" : "../libexec/rollbox/rollbox-engine");
        if (!buf_failed(&candidate))
            execl(candidate.data, "rollbox-engine", "--socket", path, (char *)NULL);
    }
    execlp("rollbox-engine", "rollbox-engine", "--socket", path, (char *)NULL);
    return cli_fail(
        options, "cannot find rollbox-engine: %s; set ROLLBOX_ENGINE to its path", strerror(errno));
}

/* In the child: keeps nothing of its caller except the pipe for messages of its start. */
_Noreturn static void become_engine(const struct options *options, const char *path, int errors) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (null < 0 || setsid() < 0 || chdir("/") < 0)
        _exit(CLI_EXIT_ERROR);
    if (dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(errors, 2) < 0)
        _exit(CLI_EXIT_ERROR);
    (void)close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
    _exit(execute_engine(options, path));
}

/* Prints the engine's messages. */
static void stdio_relay_errors(int errors) {
    auto_buf struct buf text = BUF_INIT;

    if (fd_read_all(errors, 65536, &text) >= 0 && text.length)
        (void)fd_write_all(STDERR_FILENO, text.data, text.length);
}

/* Waits until the engine, a child, serves the path or has ended. */
static int await_engine(
    const struct options *options, const char *path, pid_t child, int pidfd, int errors) {
    struct rollbox_engine_options engine_options = { .size = sizeof engine_options,
        .socket_path = path };
    struct pollfd gone = { .fd = pidfd, .events = POLLIN };

    for (int waited = 0; waited < START_MS; waited += START_STEP_MS) {
        struct rollbox_error error = { .code = ROLLBOX_OK };
        struct rollbox_engine *engine;
        bool ours = false;

        if (rollbox_engine_open(&engine_options, &engine, &error) >= 0) {
            ours = rollbox_engine_pid(engine) == child;
            rollbox_engine_close(engine);
        }
        if (ours) {
            if (options_has(options, OPTION_JSON)) {
                auto_buf struct buf name = BUF_INIT;

                /* A path need not be UTF-8. */
                (void)utf8_json(&name, path, strlen(path));
                if (buf_failed(&name))
                    return cli_fail(options, "out of memory");
                printf("{\"pid\":%d,\"socket\":%s}\n", (int)child, name.data);
            } else {
                printf("engine %d serves ", (int)child);
                format_line(path);
            }
            return cli_flush(options, 0);
        }
        /* The kernel does not report when a socket begins to listen, so this polls. */
        if (poll(&gone, 1, START_STEP_MS) > 0) {
            stdio_relay_errors(errors);
            return cli_fail(options,
                "the engine ended at its start; use --socket or ROLLBOX_SOCKET for another socket "
                "than %s",
                path);
        }
    }
    (void)syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
    return cli_fail(options, "the engine does not answer on %s after %d s", path, START_MS / 1000);
}

static int start_in_background(const struct options *options, const char *path) {
    auto_free char *absolute = cli_path_absolute(path);
    int fds[2];

    if (!absolute)
        return cli_fail(options, "out of memory");
    if (pipe2(fds, O_CLOEXEC) < 0)
        return cli_fail(options, "cannot make a pipe: %s", strerror(errno));
    auto_close int errors = fds[0], theirs = fds[1];
    pid_t child = fork();
    if (child < 0)
        return cli_fail(options, "cannot fork: %s", strerror(errno));
    if (child == 0)
        become_engine(options, absolute, theirs);
    close_fd(&theirs);
    auto_close int pidfd = (int)syscall(SYS_pidfd_open, child, 0);
    if (pidfd < 0)
        return cli_fail(options, "cannot watch the engine: %s", strerror(errno));
    return await_engine(options, absolute, child, pidfd, errors);
}

/* The engine reads these from its environment. A file's path is made absolute: an engine in the
 * background has another current directory. 0, or the exit status. */
static int set_log(const struct options *options) {
    static const struct {
        enum option_id option;
        const char *variable;
    } places[] = {
        { OPTION_LOG, "ROLLBOX_LOG" },
        { OPTION_LOG_LEVEL, "ROLLBOX_LOG_LEVEL" },
        { OPTION_LOG_FORMAT, "ROLLBOX_LOG_FORMAT" },
    };

    for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
        const struct option_use *use = options_last(options, places[i].option);
        auto_free char *absolute = NULL;

        if (!use)
            continue;
        if (places[i].option == OPTION_LOG && strcmp(use->value, "-") != 0) {
            absolute = cli_path_absolute(use->value);
            if (!absolute)
                return cli_fail(options, "out of memory");
        } else if (places[i].option == OPTION_LOG && options_has(options, OPTION_BACKGROUND))
            return cli_fail(
                options, "--log -: an engine in the background has no standard error; name a file");
        if (setenv(places[i].variable, absolute ? absolute : use->value, 1) < 0)
            return cli_fail(options, "out of memory");
    }
    return 0;
}

int cmd_engine_start(const struct options *options) {
    auto_free char *path = NULL;

    int status = session_socket(options, &path);
    if (!status)
        status = set_log(options);
    if (status)
        return status;
    return options_has(options, OPTION_BACKGROUND) ? start_in_background(options, path)
                                                   : execute_engine(options, path);
}

/* ---- status and end ---- */

/* The engine's object, with the rows of rollbox stats as another member. */
static void print_status(const char *status, const char *stats) {
    const char *rows = strchr(stats, '['), *end = strrchr(stats, '}'), *last = strrchr(status, '}');

    if (rows && end && last)
        printf("%.*s, \"stats\": %.*s}\n", (int)(last - status), status, (int)(end - rows), rows);
    else
        printf("%s\n", status);
}

int cmd_engine_status(const struct options *options) {
    struct rollbox_engine *engine;
    struct rollbox_error error = { 0 };
    auto_free char *json = NULL, *stats = NULL;

    int status = session_connect(options, &engine);
    if (status)
        return status;
    if (rollbox_engine_status(engine, &json, &error) < 0 ||
        rollbox_sandbox_stats(engine, &stats, &error) < 0)
        status = cli_fail_error(options, &error);
    else
        print_status(json, stats);
    rollbox_engine_close(engine);
    return cli_flush(options, status);
}

int cmd_debug_dump(const struct options *options) {
    struct rollbox_engine *engine;
    struct rollbox_error error = { 0 };
    auto_free char *json = NULL;

    int status = session_connect(options, &engine);
    if (status)
        return status;
    if (rollbox_engine_debug(engine, &json, &error) < 0)
        status = cli_fail_error(options, &error);
    else
        printf("%s\n", json);
    rollbox_engine_close(engine);
    return cli_flush(options, status);
}

int cmd_engine_stop(const struct options *options) {
    struct rollbox_engine *engine;

    int status = session_connect(options, &engine);
    if (status)
        return status;
    int pid = rollbox_engine_pid(engine);
    auto_close int pidfd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -EBADF;
    /* The connection is still open, so the number cannot have passed to another process between the
     * two calls unless the engine died by itself. */
    if (pidfd < 0 || syscall(SYS_pidfd_send_signal, pidfd, SIGTERM, NULL, 0) < 0) {
        status = cli_fail(options, "cannot stop engine %d: %s", pid, strerror(errno));
    } else {
        struct pollfd gone = { .fd = pidfd, .events = POLLIN };
        int r;

        do
            r = poll(&gone, 1, STOP_MS);
        while (r < 0 && errno == EINTR);
        if (r == 0)
            status = cli_fail(options, "engine %d has not ended after %d s", pid, STOP_MS / 1000);
    }
    rollbox_engine_close(engine);
    return cli_done(options, status);
}
