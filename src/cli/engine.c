/* SPDX-License-Identifier: Apache-2.0 */
/* rollbox engine: a shared engine in the foreground, its status, its end. Nothing here daemonises: that is the service manager's work. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "cli/cli.h"

/* How long `stop` waits for the engine to be gone. */
#define STOP_MS 10000

static const char *socket_of(const struct options *options) {
    const char *path = options_text(options, OPTION_SOCKET);

    if (!path)
        cli_fail(options, "which engine? add --socket PATH");
    return path;
}

static int connect_to(const struct options *options, struct rollbox_engine **ret_engine) {
    struct rollbox_engine_options engine_options = { .size = sizeof engine_options };
    struct rollbox_error error = { 0 };

    engine_options.socket_path = socket_of(options);
    if (!engine_options.socket_path)
        return CLI_EXIT_ERROR;
    return rollbox_engine_open(&engine_options, ret_engine, &error) < 0 ? cli_fail_error(options, &error) : 0;
}

int cmd_engine_start(const struct options *options) {
    const char *path = socket_of(options), *program = getenv("ROLLBOX_ENGINE");
    auto_buf struct buf candidate = BUF_INIT;
    char self[PATH_MAX];

    if (!path)
        return CLI_EXIT_ERROR;
    if (program && program[0]) {
        execl(program, "rollbox-engine", "--socket", path, (char *)NULL);
        return cli_fail(options, "cannot execute $ROLLBOX_ENGINE (%s): %s", program, strerror(errno));
    }
    /* Beside this program (a build tree, a bundle), then where an installation puts it, then the PATH. */
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
    return cli_fail(options, "cannot find rollbox-engine: %s; set ROLLBOX_ENGINE to its path", strerror(errno));
}

int cmd_engine_status(const struct options *options) {
    struct rollbox_engine *engine;
    struct rollbox_error error = { 0 };
    auto_free char *json = NULL;

    int status = connect_to(options, &engine);
    if (status)
        return status;
    if (rollbox_engine_status(engine, &json, &error) < 0)
        status = cli_fail_error(options, &error);
    else
        printf("%s\n", json);
    rollbox_engine_close(engine);
    return cli_flush(options, status);
}

int cmd_engine_stop(const struct options *options) {
    struct rollbox_engine *engine;

    int status = connect_to(options, &engine);
    if (status)
        return status;
    int pid = rollbox_engine_pid(engine);
    auto_close int pidfd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -EBADF;
    /* The connection is still open, so the number cannot have passed to another process between the two calls unless the engine died by itself. */
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
    return status;
}
