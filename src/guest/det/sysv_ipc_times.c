/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times of System V queues, segments and semaphores by the sandbox's clock, and a limit for
 * segments.
 *
 * The kernel stores whole seconds of its own time of day. Init, which is in the same namespace and
 * has the same user (or takes the caller's, det/caller.h), makes the guest's call itself and
 * returns the result with other times. At the real rate these are the sandbox's time of that
 * second, and not before its start. Under virtual time they are the start, because a second of the
 * kernel's corresponds to no definite virtual time, and noticing each use would mean intercepting
 * it.
 *
 * A segment of shared memory outlives the processes that mapped it, and then only a memory cgroup
 * counts it. Without one, init limits the segments of the whole sandbox by kernel.shmall of its IPC
 * namespace. Newer kernels let the root of the owning user namespace write that (6.18 does, 6.1
 * does not). The guest may not: its /proc is read-only, with /proc/sys covered. If init cannot
 * write it, a filter refuses the calls, as on a kernel without System V IPC.
 */
#include "guest/det/sysv_ipc_times.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "guest/det/caller.h"
#include "guest/det/det.h"
#include "sys/syscalls.h"

#define NS 1000000000ll
#define MAX_TIMES 3
#define MAX_WORDS 16

/* The kernel's structs in words of eight bytes, and which of these are times. */
static const struct kind {
    int number;
    unsigned command, buffer; /* arguments */
    int commands[3];
    size_t words, times[MAX_TIMES];
} kinds[] = {
    { __NR_shmctl, 1, 2, { IPC_STAT, 13 /* SHM_STAT */, 15 /* SHM_STAT_ANY */ }, 14, { 7, 8, 9 } },
    { __NR_msgctl, 1, 2, { IPC_STAT, 11 /* MSG_STAT */, 13 /* MSG_STAT_ANY */ }, 15, { 6, 7, 8 } },
    { __NR_semctl, 2, 3, { IPC_STAT, 18 /* SEM_STAT */, 20 /* SEM_STAT_ANY */ }, 13, { 6, 8 } },
};

bool sysv_ipc_bound_segments(const struct plan *plan, int proc_sys) {
    char wanted[32], found[sizeof wanted];
    char *end = guest_put_number(wanted, plan->segment_bytes / getauxval(AT_PAGESZ));

    if (!plan->segment_bytes)
        return true;
    *end++ = '\n';
    *end = '\0';
    int file = proc_sys < 0 || guest_write(proc_sys, "kernel/shmall", wanted) < 0
                   ? -1
                   : openat(proc_sys, "kernel/shmall", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t n = read(file, found, sizeof found);
    close(file);
    return n == end - wanted && memcmp(found, wanted, (size_t)n) == 0;
}

int sysv_ipc_refuse_segments(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_shmget, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_shmat, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_shmctl, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_shmdt, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { .len = sizeof filter / sizeof filter[0], .filter = filter };

    return sys_seccomp(SECCOMP_SET_MODE_FILTER, 0, &program);
}

static const struct kind *find_kind(const struct seccomp_notif *question) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        for (size_t j = 0; j < 3 && question->data.nr == kinds[i].number; j++)
            if ((int)question->data.args[kinds[i].command] == kinds[i].commands[j])
                return &kinds[i];
    return NULL;
}

static int64_t shown_time(const struct plan *plan, int64_t ahead_ns, int64_t kernels) {
    int64_t ahead_s = ahead_ns / NS - (ahead_ns % NS < 0), then = kernels + ahead_s;

    if (!kernels) /* never */
        return 0;
    return plan->flags & PLAN_VIRTUAL || then < plan->clock_seconds ? plan->clock_seconds : then;
}

bool sysv_ipc_answer(
    const struct plan *plan, int listener, const struct seccomp_notif *question, int64_t ahead_ns) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    const struct kind *kind = plan->flags & PLAN_CLOCK ? find_kind(question) : NULL;
    int64_t words[MAX_WORDS];
    uint64_t arguments[4];

    if (!kind)
        return false;
    for (size_t i = 0; i < 4; i++)
        arguments[i] = i == kind->buffer ? (uint64_t)(uintptr_t)words : a[i];
    /* The kernel checks the rights of the one who makes the call. */
    if (caller_begin(plan, listener, question) < 0)
        return false;
    long value = sys_call4(kind->number, arguments[0], arguments[1], arguments[2], arguments[3]),
         r = value;
    caller_end(plan);
    for (size_t i = 0; value >= 0 && i < MAX_TIMES; i++)
        if (kind->times[i])
            words[kind->times[i]] = shown_time(plan, ahead_ns, words[kind->times[i]]);
    if (value >= 0)
        r = process_write_memory(
            (pid_t)question->pid, a[kind->buffer], words, kind->words * sizeof words[0]);
    answer_written(listener, question->id, r, value);
    return true;
}
