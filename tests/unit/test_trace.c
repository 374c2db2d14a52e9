/* SPDX-License-Identifier: Apache-2.0 */
/* Threads in timed waits that were interrupted before: the kernel continues them with
 * restart_syscall. */
#include <elf.h>
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dump/syscall_restart.h"
#include "dump/ptrace.h"
#include "test.h"

static const long waits[] = { SYS_poll, SYS_nanosleep, SYS_clock_nanosleep, SYS_futex };

static void wait_in(long number) {
    const struct timespec hour = { 3600, 0 };
    int word = 0;

    switch (number) {
    case SYS_poll:
        (void)syscall(SYS_poll, NULL, 0, 3600000);
        break;
    case SYS_futex:
        (void)syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &hour, NULL, 0);
        break;
    case SYS_nanosleep:
        (void)syscall(SYS_nanosleep, &hour, NULL);
        break;
    default:
        (void)syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &hour, NULL);
    }
}

static long call_of(pid_t pid) {
    char path[32], text[32] = "";

    snprintf(path, sizeof path, "/proc/%d/syscall", (int)pid);
    FILE *file = fopen(path, "re");
    if (file) {
        (void)fgets(text, sizeof text, file);
        fclose(file);
    }
    return *text >= '0' && *text <= '9' ? strtol(text, NULL, 10) : -1;
}

static void await_call(pid_t pid, long number) {
    while (call_of(pid) != number)
        ;
}

static pid_t waiting_in(long number) {
    pid_t pid = fork();

    ASSERT_TRUE(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        wait_in(number);
        _exit(1);
    }
    await_call(pid, number);
    return pid;
}

static void ends(pid_t pid) {
    int status;

    ASSERT_EQ(waitpid(pid, &status, WNOHANG), 0);
    kill(pid, SIGKILL);
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
}

static void await_stop(struct trace *trace) {
    int r;

    while ((r = trace_await(trace)) == -EAGAIN)
        ;
    ASSERT_OK(r);
}

static void stand(struct trace *trace, pid_t pid) {
    int r = trace_seize(trace, pid);

    if (r == -EPERM || r == -EACCES)
        SKIP("ptrace", "this process may not trace its children here");
    ASSERT_OK(r);
    await_stop(trace);
}

/* In a copy it is made by its number, with the same arguments, and a handler ends it. */
static void check(const struct trace *trace, long number) {
    ASSERT_EQ(trace->call, number);
    ASSERT_EQ((long)trace->elsewhere.rax, number);
    ASSERT_EQ(trace->interruption, IMAGE_ENDS);
    if (number == SYS_futex)
        ASSERT_EQ(trace->elsewhere.rsi, FUTEX_WAIT_PRIVATE);
}

TEST(wait_is_known_after_repeated_interruptions) {
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
        struct trace trace;
        pid_t pid = waiting_in(waits[i]);

        for (int n = 0; n < 300; n++) {
            stand(&trace, pid);
            check(&trace, waits[i]);
            trace_release(&trace);
            if (n % 2)
                await_call(pid, SYS_restart_syscall);
        }
        ends(pid);
    }
}

TEST(wait_interrupted_by_another_process_is_known) {
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
        struct trace trace;
        pid_t pid = waiting_in(waits[i]);
        int status;

        for (int n = 0; n < 10; n++) {
            kill(pid, SIGSTOP);
            ASSERT_EQ(waitpid(pid, &status, WUNTRACED), pid);
            kill(pid, SIGCONT);
            if (n % 2)
                await_call(pid, SYS_restart_syscall);
            stand(&trace, pid);
            check(&trace, waits[i]);
            trace_release(&trace);
        }
        ends(pid);
    }
}

/* Stopped again before it has come to make the call: what the kernel leaves a thread with. */
TEST(restarted_wait_is_recognised) {
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
        struct trace trace;
        pid_t pid = waiting_in(waits[i]);

        for (int n = 0; n < 3; n++) {
            stand(&trace, pid);
            struct image_registers registers = trace.stopped;
            struct iovec area = { &registers, sizeof registers };
            registers.rip -= 2;
            registers.rax = registers.orig_rax;
            registers.orig_rax = (uint64_t)-1;
            ASSERT_OK(ptrace(PTRACE_SETREGSET, pid, NT_PRSTATUS, &area));
            ASSERT_OK(ptrace(PTRACE_INTERRUPT, pid, 0, 0));
            ASSERT_OK(ptrace(PTRACE_CONT, pid, 0, 0));
            trace.stands = false;
            await_stop(&trace);
            ASSERT_TRUE(trace.stopped.rip == registers.rip);
            check(&trace, waits[i]);
            trace_release(&trace);
            await_call(pid, SYS_restart_syscall);
        }
        ends(pid);
    }
}

/* It is nothing that could be gone on with, and says so at once. */
TEST(restart_syscall_of_nothing_is_left_alone) {
    pid_t pid = fork();
    struct trace trace;

    ASSERT_TRUE(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (syscall(SYS_restart_syscall) == -1 && errno == EINTR)
            ;
        _exit(1);
    }
    for (int n = 0; n < 20; n++) {
        stand(&trace, pid);
        ASSERT_TRUE(trace.call == -1);
        trace_release(&trace);
    }
    ends(pid);
}

TEST(restarted_call_number_stays_in_orig_rax) {
    struct image_registers registers = {
        .rax = (uint64_t)RESTART_BLOCK, .orig_rax = SYS_poll, .rdi = 5
    };

    ASSERT_FALSE(syscall_restart_leave(&registers, 0));
    ASSERT_FALSE(syscall_restart_leave(&registers, SYS_restart_syscall));
    ASSERT_FALSE(syscall_restart_leave(&registers, 1 << 30));
    ASSERT_TRUE((int64_t)registers.rax == RESTART_BLOCK && registers.orig_rax == SYS_poll);
    if (!syscall_restart_leave(&registers, SYS_poll))
        SKIP("kernel", "before 5.13 there is one call for all of rax");
    ASSERT_TRUE((int64_t)registers.rax == RESTART_NO_HANDLER &&
                syscall_restart_is(registers.orig_rax) && registers.rdi == 5);
    ASSERT_EQ(syscall_restart_known(registers.orig_rax), SYS_poll);
    ASSERT_EQ(syscall_restart_known(SYS_restart_syscall), 0);
    ASSERT_EQ(syscall_restart_known(SYS_poll), 0);
    ASSERT_EQ(syscall_restart_known((uint64_t)-1), 0);
    ASSERT_EQ(syscall_restart_known((uint64_t)SYS_restart_syscall << 32 | SYS_restart_syscall), 0);
}
