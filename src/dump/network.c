/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to the kernel that only a process in the sandbox's network namespace can ask. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "dump/internal.h"

#define GET_USERNS _IO(0xb7, 1) /* NS_GET_USERNS */
#define MAX_LIST (64u << 20)

/* A process cannot return from the namespace, so a child enters it. An ordinary user first takes
 * the rights of the user namespace that owns it. */
_Noreturn static void ask_there(int namespace, int (*ask)(int fd, struct buf *to), int fd, int to) {
    struct buf list = BUF_INIT;
    int owner = ioctl(namespace, GET_USERNS), r = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (setns(namespace, CLONE_NEWNET) < 0 &&
        (owner < 0 || setns(owner, CLONE_NEWUSER) < 0 || setns(namespace, CLONE_NEWNET) < 0))
        r = -errno;
    if (r == 0)
        r = ask(fd, &list);
    if (r == 0)
        r = fd_write_all(to, list.data, list.length);
    _exit(r < 0 ? -r : 0);
}

int network_ask(const struct dump_process *s, int (*ask)(int fd, struct buf *to), int fd,
    struct buf *ret_answer) {
    int status, r = 0;
    auto_close int to = memfd_create("rollbox-sockets", MFD_CLOEXEC);
    /* The process's namespace, because init's files cannot be opened. */
    auto_close int namespace = openat(s->proc, "ns/net", O_RDONLY | O_CLOEXEC);
    if (to < 0 || namespace < 0)
        return -errno;
    pid_t pid = fork();
    if (pid == 0)
        ask_there(namespace, ask, fd, to);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -errno;
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        return WIFEXITED(status) ? -WEXITSTATUS(status) : -ECHILD;
    if (lseek(to, 0, SEEK_SET) < 0)
        return -errno;
    r = fd_read_all(to, MAX_LIST, ret_answer);
    return r < 0 ? r : 0;
}
