/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox mcp: this process becomes rollbox-http, which carries messages of the Model Context
 * Protocol between standard input and output and a server. Without the address of one it starts a
 * server of its own.
 *
 * That server listens on a Unix socket without a name: it is bound in a directory that is removed
 * at once, and reached by a descriptor of it. So a crash leaves nothing behind. The server ends
 * with this process, and all sandboxes with it.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/remote.h"

#define PASSED_FD 3 /* as service managers pass sockets */
#define BACKLOG 64

static int become_bridge(const struct options *options, const char *address) {
    char name[] = "rollbox-http", word[] = "mcp";
    char *argv[] = { name, word, (char *)(uintptr_t)address, NULL };
    auto_buf struct buf program = BUF_INIT;

    if (remote_find_program(&program) >= 0)
        execv(program.data, argv);
    return cli_fail(options,
        "cannot execute rollbox-http: %s; it is built where libcurl's headers are (Debian's "
        "libcurl4-openssl-dev), and not in the portable wheel (docs/how-to/install.md)",
        strerror(errno));
}

/* A socket that listens, and a descriptor by whose path in /proc it is reached. 0 or -errno. */
static int make_socket(int *ret_listener, int *ret_place) {
    char directory[] = "/tmp/rollbox-mcp-XXXXXX";
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    if (!mkdtemp(directory))
        return -errno;
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s/s", directory);
    auto_close int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int r = listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) < 0 ||
                    listen(listener, BACKLOG) < 0
                ? -errno
                : 0;
    /* The bridge inherits it. */
    int place = r < 0 ? -EBADF : open(address.sun_path, O_PATH);
    if (r >= 0 && place < 0)
        r = -errno;
    (void)unlink(address.sun_path);
    (void)rmdir(directory);
    if (r < 0)
        return r;
    *ret_listener = TAKE_FD(listener);
    *ret_place = place;
    return 0;
}

_Noreturn static void become_server(
    const struct options *options, pid_t parent, int listener, int output) {
    const char *engine = options_text(options, OPTION_ENGINE);
    char name[] = "rollbox-serve", drain[] = "--drain=0", word[] = "--engine", pid[24];
    char *argv[] = { name, drain, engine ? word : NULL, (char *)(uintptr_t)engine, NULL };
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    (void)snprintf(pid, sizeof pid, "%d", (int)getpid());
    /* It ends with the process that waits for it, also if that is killed. */
    if (prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0) < 0 || getppid() != parent || null < 0 ||
        dup2(null, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 ||
        (listener == PASSED_FD ? fcntl(listener, F_SETFD, 0) : dup2(listener, PASSED_FD)) < 0 ||
        setenv("LISTEN_PID", pid, 1) < 0 || setenv("LISTEN_FDS", "1", 1) < 0)
        _exit(CLI_EXIT_ERROR);
    (void)serve_execute(options, argv);
    _exit(CLI_EXIT_ERROR);
}

/* Whether the server says that it is ready. It has told why it is not. */
static bool wait_until_ready(int output) {
    auto_buf struct buf text = BUF_INIT;
    char piece[256];
    ssize_t n;

    while ((n = read(output, piece, sizeof piece)) > 0 || (n < 0 && errno == EINTR)) {
        if (n > 0)
            buf_add(&text, piece, (size_t)n);
        buf_add(&text, "", 1);
        if (buf_failed(&text))
            return false;
        text.length--;
        if (strstr(text.data, "ready\n"))
            return true;
    }
    return false;
}

static int start_server(const struct options *options, int *ret_place) {
    auto_close int listener = -EBADF;
    int pair[2], place = -EBADF;
    pid_t parent = getpid();

    int r = make_socket(&listener, &place);
    if (r < 0)
        return cli_fail(options, "cannot make a socket in /tmp: %s", strerror(-r));
    if (pipe2(pair, O_CLOEXEC) < 0)
        return cli_fail(options, "cannot make a pipe: %s", strerror(errno));
    auto_close int output = pair[0], writer = pair[1];
    pid_t child = fork();
    if (child == 0)
        become_server(options, parent, listener, writer);
    close_fd(&writer);
    if (child < 0)
        return cli_fail(options, "cannot start a process: %s", strerror(errno));
    if (!wait_until_ready(output))
        return cli_fail(options, "rollbox-serve has not started");
    *ret_place = place;
    return 0;
}

int cmd_mcp(const struct options *options) {
    const char *given = options_text(options, OPTION_ENGINE);
    const char *server = given ? given : getenv("ROLLBOX_ENGINE");
    char address[64];
    int place = -EBADF;

    if (remote_is_url(server))
        return become_bridge(options, server);
    /* A token and certificates are for a server that the user named; this one needs none. */
    (void)unsetenv("ROLLBOX_TOKEN_FILE");
    (void)unsetenv("ROLLBOX_CA");
    (void)unsetenv("ROLLBOX_CLIENT_CERT");
    (void)unsetenv("ROLLBOX_CLIENT_KEY");
    int status = start_server(options, &place);
    if (status)
        return status;
    (void)snprintf(address, sizeof address, "unix:/proc/self/fd/%d", place);
    return become_bridge(options, address);
}
