/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/side_process.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sys/syscalls.h"

int side_process_start(
    const char *name, void (*run)(int socket, const void *data), const void *data) {
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    pid_t pid = fork();
    if (pid < 0) {
        int r = -errno;

        close(pair[0]);
        close(pair[1]);
        return r;
    }
    if (pid == 0) {
        /* Nothing of the server's: it would keep its clients' connections. */
        int socket = dup2(pair[1], 3);

        (void)prctl(PR_SET_NAME, name, 0, 0, 0);
        (void)fcntl(socket, F_SETFD, FD_CLOEXEC);
        (void)sys_close_range(4, ~0u, 0);
        run(socket, data);
        _exit(1);
    }
    close(pair[1]);
    return pair[0];
}
