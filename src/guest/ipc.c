/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When System V queues, segments and semaphores were made and used, as the clock of the sandbox has it.
 *
 * The kernel keeps whole seconds of its own time of day. init, which is in the same namespace as the same user, asks for what a guest has asked for, and tells it with other times. At the real rate that is what the clock showed then, to the second, and
 * no earlier than its start. Under virtual time it is the start: what a second of the kernel's is of that clock nobody knows, and to notice each use would be to be asked about it.
 */
#include "guest/ipc.h"

#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include "guest/determinism.h"
#include "sys/syscalls.h"

#define NS 1000000000ll
#define MAX_TIMES 3
#define MAX_WORDS 16

/* What the kernel's structs are, in words of eight bytes, and which of these are times. */
static const struct kind {
    int number;
    unsigned command, buffer;   /* arguments */
    int commands[3];
    size_t words, times[MAX_TIMES];
} kinds[] = {
    { __NR_shmctl, 1, 2, { IPC_STAT, 13 /* SHM_STAT */, 15 /* SHM_STAT_ANY */ }, 14, { 7, 8, 9 } },
    { __NR_msgctl, 1, 2, { IPC_STAT, 11 /* MSG_STAT */, 13 /* MSG_STAT_ANY */ }, 15, { 6, 7, 8 } },
    { __NR_semctl, 2, 3, { IPC_STAT, 18 /* SEM_STAT */, 20 /* SEM_STAT_ANY */ }, 13, { 6, 8 } },
};

static const struct kind *find_kind(const struct seccomp_notif *question) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        for (size_t j = 0; j < 3 && question->data.nr == kinds[i].number; j++)
            if ((int)question->data.args[kinds[i].command] == kinds[i].commands[j])
                return &kinds[i];
    return NULL;
}

static int64_t shown(const struct plan *plan, int64_t ahead_ns, int64_t kernels) {
    int64_t ahead_s = ahead_ns / NS - (ahead_ns % NS < 0), then = kernels + ahead_s;

    if (!kernels)       /* never */
        return 0;
    return plan->flags & PLAN_VIRTUAL || then < plan->clock_seconds ? plan->clock_seconds : then;
}

bool ipc_answer(const struct plan *plan, int listener, const struct seccomp_notif *question, int64_t ahead_ns) {
    const uint64_t *a = (const uint64_t *)question->data.args;
    const struct kind *kind = plan->flags & PLAN_CLOCK ? find_kind(question) : NULL;
    int64_t words[MAX_WORDS];
    uint64_t arguments[4];

    if (!kind)
        return false;
    for (size_t i = 0; i < 4; i++)
        arguments[i] = i == kind->buffer ? (uint64_t)(uintptr_t)words : a[i];
    long value = sys_call4(kind->number, arguments[0], arguments[1], arguments[2], arguments[3]), r = value;
    for (size_t i = 0; value >= 0 && i < MAX_TIMES; i++)
        if (kind->times[i])
            words[kind->times[i]] = shown(plan, ahead_ns, words[kind->times[i]]);
    if (value >= 0)
        r = determinism_write((pid_t)question->pid, a[kind->buffer], words, kind->words * sizeof words[0]);
    determinism_answer_written(listener, question->id, r, value);
    return true;
}
