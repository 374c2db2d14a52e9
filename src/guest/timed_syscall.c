/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls with a time limit, for calls that a guest can delay.
 *
 * PTRACE_SEIZE takes a lock that a process holds throughout an execve, which can last for as long
 * as a dead thread of it has a tracer that does not wait for it. Adding a descriptor to a process
 * waits until the process has run, which can take minutes for a process of the idle class among
 * busy ones. A signal ends both waits, so init sends itself one, by an alarm that repeats until the
 * call is over. The kernel would restart the first of the two calls even after a handler without
 * SA_RESTART. So if the instruction to be executed next is the call's own, the handler steps over
 * it.
 *
 * The alarm is unblocked only here. Process 1 has a handler for it, so guests can send it, too:
 * that makes a call fail early, which is harmless.
 */
#include "guest/timed_syscall.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>

#include "sys/syscalls.h"

#if defined(__x86_64__)

#    define AGAIN_US 1000 /* repeated, in case the first one came before the call began */
#    define INSTRUCTION_BYTES 2
#    define SEIZE_LIMIT_US 10000
#    define TICK_NS 100000

long timed_syscall_enter(long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d);
extern const char timed_syscall_instruction[];

/* clang-format off */
__asm__(".pushsection .text\n"
        ".type timed_syscall_enter, @function\n"
        "timed_syscall_enter:\n"
        "   mov %rdi, %rax\n"
        "   mov %rsi, %rdi\n"
        "   mov %rdx, %rsi\n"
        "   mov %rcx, %rdx\n"
        "   mov %r8, %r10\n"
        "timed_syscall_instruction:\n"
        "   syscall\n"
        "   ret\n"
        ".size timed_syscall_enter, . - timed_syscall_enter\n"
        ".popsection\n");
/* clang-format on */

static void on_alarm(int number, siginfo_t *info, void *data) {
    greg_t *registers = ((ucontext_t *)data)->uc_mcontext.gregs;

    (void)number, (void)info;
    if ((uint64_t)registers[REG_RIP] != (uint64_t)(uintptr_t)timed_syscall_instruction)
        return;
    registers[REG_RIP] += INSTRUCTION_BYTES;
    registers[REG_RAX] = -EINTR;
}

int timed_syscall_begin(void) {
    struct sigaction action = { .sa_sigaction = on_alarm, .sa_flags = SA_SIGINFO };

    sigemptyset(&action.sa_mask);
    return sigaction(SIGALRM, &action, NULL) < 0 ? -errno : 0;
}

long timed_syscall_call(
    long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint32_t limit_us) {
    struct itimerval alarm = { .it_interval.tv_usec = AGAIN_US, .it_value.tv_usec = limit_us },
                     never = { 0 };
    sigset_t only;

    sigemptyset(&only);
    sigaddset(&only, SIGALRM);
    (void)sys_call3(__NR_setitimer, ITIMER_REAL, &alarm, NULL);
    sigprocmask(SIG_UNBLOCK, &only, NULL);
    long r = timed_syscall_enter(number, a, b, c, d);
    sigprocmask(SIG_BLOCK, &only, NULL);
    (void)sys_call3(__NR_setitimer, ITIMER_REAL, &never, NULL);
    return r;
}

bool timed_syscall_stop(pid_t thread) {
    return timed_syscall_call(__NR_ptrace, PTRACE_SEIZE, (uint64_t)thread, 0, 0, SEIZE_LIMIT_US) >=
               0 &&
           sys_call4(__NR_ptrace, PTRACE_INTERRUPT, thread, NULL, NULL) >= 0;
}

int timed_syscall_has_stopped(pid_t thread, bool (*stopped)(pid_t thread, int status)) {
    siginfo_t info = { 0 };
    int r = (int)sys_call5(__NR_waitid, P_PID, thread, &info, WSTOPPED | WNOHANG | __WALL, NULL);

    if (r < 0 || !info.si_pid)
        return r;
    if (!stopped(thread, info.si_status << 8))
        (void)sys_call4(
            __NR_ptrace, PTRACE_DETACH, thread, NULL, info.si_status >> 8 ? 0 : info.si_status);
    return 1;
}

void timed_syscall_pause(void) {
    struct timespec tick = { .tv_nsec = TICK_NS };

    (void)sys_call5(__NR_ppoll, NULL, 0, &tick, NULL, 0);
}

#else

int timed_syscall_begin(void) {
    return -EOPNOTSUPP;
}

long timed_syscall_call(
    long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint32_t limit_us) {
    (void)number, (void)a, (void)b, (void)c, (void)d, (void)limit_us;
    return -EOPNOTSUPP;
}

bool timed_syscall_stop(pid_t thread) {
    (void)thread;
    return false;
}

int timed_syscall_has_stopped(pid_t thread, bool (*stopped)(pid_t thread, int status)) {
    (void)thread, (void)stopped;
    return -EOPNOTSUPP;
}

void timed_syscall_pause(void) {
}

#endif
