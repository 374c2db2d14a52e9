/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/side_process.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "sys/syscalls.h"

/* No other message of theirs has this length and a descriptor. */
struct request {
    char word[SIDE_REQUEST_BYTES - 1];
    unsigned char side;
};

_Static_assert(sizeof(struct request) == SIDE_REQUEST_BYTES, "the message's length");

static const char word[sizeof((struct request){ 0 }).word] = "\0side process";

static struct {
    const char *name;
    side_run *run;
    const void *data;
    pid_t pid; /* of the server's own child; 0: none */
} sides[SIDE_N];

void side_process_define(enum side side, const char *name, side_run *run, const void *data) {
    sides[side].name = name;
    sides[side].run = run;
    sides[side].data = data;
}

/* The child has nothing of its parent's, which would keep clients' connections open. */
static pid_t fork_side(enum side side, int socket_fd) {
    pid_t pid = fork();

    if (pid)
        return pid < 0 ? -errno : pid;
    int socket = socket_fd == 3 ? 3 : dup2(socket_fd, 3);
    (void)prctl(PR_SET_NAME, sides[side].name, 0, 0, 0);
    (void)fcntl(socket, F_SETFD, FD_CLOEXEC);
    (void)sys_close_range(4, ~0u, 0);
    sides[side].run(socket, sides[side].data);
    _exit(1);
}

int side_process_start(enum side side) {
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    auto_close int ours = pair[0], theirs = pair[1];
    pid_t pid = fork_side(side, theirs);
    if (pid < 0)
        return pid;
    sides[side].pid = pid;
    return TAKE_FD(ours);
}

bool side_process_take(const void *message, size_t length, const int *fds, size_t n_fds) {
    struct request request;

    if (length != sizeof request || n_fds != 1 || memcmp(message, word, sizeof word) != 0)
        return false;
    memcpy(&request, message, sizeof request);
    if (request.side < SIDE_N && sides[request.side].run)
        (void)fork_side(request.side, fds[0]);
    return true;
}

int side_process_replace(int helper, enum side side) {
    struct request request = { .side = (unsigned char)side };
    int pair[2];

    /* Its socket is closed, so it ends at this moment. */
    if (sides[side].pid > 0)
        (void)waitpid(sides[side].pid, NULL, 0);
    sides[side].pid = 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    auto_close int ours = pair[0], theirs = pair[1];
    memcpy(request.word, word, sizeof word);
    int r = fd_send(helper, &request, sizeof request, &theirs, 1);
    return r < 0 ? r : TAKE_FD(ours);
}
