/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a file in parallel to other work.
 *
 * The kernel needs time in proportion to a process's memory to produce /proc/PID/smaps, and the
 * process is paused meanwhile. A child that shares the worker's memory and descriptors reads the
 * file, on another processor if there is one. The child makes raw system calls only, because errno
 * is shared as well.
 */
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "dump/internal.h"
#include "sys/syscalls.h"

#define ROOM (1u << 20) /* a longer file is read again, without a child */

static struct {
    pid_t pid; /* 0: no child */
    const struct dump_process *of;
    int fd;
    char *memory;
    size_t length; /* 0: the file was not read completely */
    volatile bool has_begun;
    bool is_over; /* the child has ended */
    _Alignas(16) char stack[8192];
} aside = { .fd = -EBADF };

__attribute__((no_sanitize("address"))) __attribute__((no_sanitize("undefined"))) static int
read_it(void *unused) {
    size_t length = 0;
    long n;

    (void)unused;
    aside.has_begun = true;
    (void)sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    do {
        n = sys_call3(__NR_read, aside.fd, aside.memory + length, ROOM - length);
        length += n > 0 ? (size_t)n : 0;
    } while (n > 0 && length < ROOM);
    aside.length = n == 0 ? length : 0;
    sys_call1(__NR_exit, 0);
    return 0;
}

/* Binds the child to the other processors. Some schedulers prefer to keep processors idle and would
 * leave the child on this one, where it delays the worker. */
static void send_away(pid_t pid) {
    const int cpu = sched_getcpu();
    cpu_set_t others;

    if (cpu < 0 || cpu >= CPU_SETSIZE || sched_getaffinity(0, sizeof others, &others) < 0)
        return;
    CPU_CLR(cpu, &others);
    if (CPU_COUNT(&others))
        (void)sched_setaffinity(pid, sizeof others, &others);
}

/* If the child still waits for a busy processor, it is moved here, because the worker is about to
 * wait for it. */
static void call_back(pid_t pid) {
    cpu_set_t here;

    if (aside.has_begun || sched_getaffinity(0, sizeof here, &here) < 0)
        return;
    (void)sched_setaffinity(pid, sizeof here, &here);
}

void async_read_begin(const struct dump_process *s, int take_fd) {
    if (!aside.memory) {
        void *memory = mmap(
            NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        aside.memory = memory == MAP_FAILED ? NULL : memory;
    }
    if (aside.pid > 0 || !aside.memory || take_fd < 0) {
        close_fd(&take_fd);
        return;
    }
    aside.of = s;
    aside.fd = take_fd;
    aside.length = 0;
    aside.has_begun = aside.is_over = false;
    aside.pid =
        clone(read_it, aside.stack + sizeof aside.stack, CLONE_VM | CLONE_FS | CLONE_FILES, NULL);
    if (aside.pid < 0)
        close_fd(&aside.fd);
    else
        send_away(aside.pid);
}

void async_read_finish(void) {
    if (aside.pid <= 0 || aside.is_over)
        return;
    call_back(aside.pid);
    while (waitpid(aside.pid, NULL, __WALL) < 0 && errno == EINTR)
        ;
    aside.is_over = true;
}

bool async_read_take(const struct dump_process *s, struct buf *to) {
    if (aside.pid <= 0 || aside.of != s)
        return false;
    async_read_finish();
    aside.pid = 0;
    close_fd(&aside.fd);
    buf_add(to, aside.memory, aside.length);
    return aside.length && !buf_failed(to);
}

void async_read_end(void) {
    auto_buf struct buf nothing = BUF_INIT;

    if (aside.pid > 0)
        (void)async_read_take(aside.of, &nothing);
}
