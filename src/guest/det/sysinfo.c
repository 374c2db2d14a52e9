/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sysinfo(2) for the sandbox.
 *
 * Programs choose sizes by it: sysconf(_SC_PHYS_PAGES) is this call, so the heaps of Java and .NET
 * and the buffers of DuckDB depend on it. The kernel would report the memory, load, uptime and
 * processes of the host. So a separate seccomp filter, below the policy's, sends the call to init
 * (user notification). Init installs it in itself, once for the sandbox, and every process inherits
 * it; it costs nothing unless the call is made. Where commands have a filter with a listener anyway
 * (det/dispatch.c), that one covers this call too, because the kernel allows one listener in a
 * chain of filters.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "guest/det/det.h"
#include "guest/det/sysinfo.h"
#include "sys/syscalls.h"

#define NS 1000000000ll
#define KERNELS_BYTES 112 /* of the kernel's struct: a C library's may be longer */

int64_t sysinfo_uptime_ahead_ns;
static uint64_t total_bytes; /* memory size; looked up before the filter exists, which would send
                                init's own call to init */

int sysinfo_begin(const struct plan *plan) {
    struct sysinfo host = { 0 };

    if (sys_call1(__NR_sysinfo, &host) < 0)
        return 0;
    total_bytes = host.totalram * host.mem_unit;
    if (plan->memory_bytes && plan->memory_bytes < total_bytes)
        total_bytes = plan->memory_bytes;
#if defined(__x86_64__)
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_sysinfo, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };

    if (determinism_wanted(plan) || !(plan->flags & PLAN_SECCOMP))
        return 0;
    int listener = listeners_enter_asked(filter, sizeof filter / sizeof filter[0]);
    if (listener <
        0) /* EBUSY: the environment has a listener of its own; the host's figures do no harm */
        return listener == -EBUSY || listener == -EINVAL ? 0 : listener;
    return listeners_adopt(listener);
#else
    return 0;
#endif
}

bool sysinfo_fill(struct sysinfo *ret_info) {
    int64_t uptime_ns = clock_ns(CLOCK_BOOTTIME) + sysinfo_uptime_ahead_ns;

    *ret_info = (struct sysinfo){ .uptime = (uptime_ns + NS - 1) / NS,
        .totalram = total_bytes,
        .freeram = total_bytes,
        .procs = 1,
        .mem_unit = 1 };
    return total_bytes;
}

void sysinfo_answer(int listener, const struct seccomp_notif *question) {
    struct sysinfo info;

    if (sysinfo_fill(&info))
        sysinfo_answer_with(listener, question, &info);
    else
        answer_let_pass(listener, question->id);
}

void sysinfo_answer_with(
    int listener, const struct seccomp_notif *question, const struct sysinfo *info) {
    long r =
        process_write_memory((pid_t)question->pid, question->data.args[0], info, KERNELS_BYTES);

    answer_written(listener, question->id, r, 0);
}
