/* SPDX-License-Identifier: Apache-2.0 */
/* Restrictions of a process of a sandbox that cannot be undone: dropped rights, cgroups, and the
 * Landlock domain. */
#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "guest/internal.h"
#include "sys/syscalls.h"

/* A single thread moves itself ("0" into tasks), because for that the kernel need not wait for a
 * grace period, which takes milliseconds under a global lock. */
int box_enter_cgroups(struct box *box) {
    for (; box->n_tasks; box->n_tasks--)
        if (write(*box->tasks++, "0", 1) != 1)
            return -errno;
    return 0;
}

int guest_set_limit(int resource, uint64_t soft, uint64_t hard) {
    struct rlimit limit, ours = { soft, hard };

    if (setrlimit(resource, &ours) == 0)
        return 0;
    if (errno != EPERM || sys_call4(__NR_prlimit64, 0, resource, NULL, &limit) < 0 ||
        limit.rlim_max >= hard)
        return -EPERM;
    ours.rlim_max = limit.rlim_max;
    if (ours.rlim_cur > ours.rlim_max)
        ours.rlim_cur = ours.rlim_max;
    return setrlimit(resource, &ours) < 0 ? -errno : 0;
}

/* A new user namespace has all of them. Capabilities dropped from the bounding set are unavailable
 * to children and programs, too. */
int box_drop_bounds(const struct plan *plan) {
    const uint64_t kept = plan->capabilities;
    static bool dropped;

    for (unsigned capability = 0; !dropped; capability++)
        if (!(capability < 64 && kept >> capability & 1) &&
            prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0) {
            if (errno != EINVAL)
                return -errno;
            dropped = true;
        }
    return 0;
}

/* With many users, init is the root of the sandbox's user namespace and has, besides what root has
 * there, the right to restrict its commands: without no_new_privs, filters and Landlock domains
 * take it. Commands lose it when they are executed, because it is out of bounds.
 *
 * Init answers system calls of all users of the sandbox (det/dispatch.c, det/sysinfo.c). Without
 * CAP_SYS_PTRACE it could not write the answers to processes of other users, nor to those of
 * set-user-id programs; without CAP_SYS_RESOURCE it could not keep their random streams, which are
 * in two of their resource limits. Both reach the processes of the sandbox alone: the kernel asks
 * for them in the user namespace of the process that they are used on. */
int box_drop_privileges(const struct plan *plan, bool is_init) {
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    const bool many = plan->flags & PLAN_MANY_USERS;
    const uint64_t answers = UINT64_C(1) << CAP_SYS_PTRACE | UINT64_C(1) << CAP_SYS_RESOURCE;
    const uint64_t more = UINT64_C(1) << CAP_SYS_ADMIN | (is_init ? answers : 0);
    const uint64_t kept = many ? plan->capabilities | more : 0;
    const struct __user_cap_data_struct rest[2] = {
        { .effective = (uint32_t)kept, .permitted = (uint32_t)kept },
        { .effective = (uint32_t)(kept >> 32), .permitted = (uint32_t)(kept >> 32) },
    };

    int r = box_drop_bounds(plan);

    if (r < 0)
        return r;
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 ||
        sys_capset(&header, rest) < 0)
        return -errno;
    if ((!many && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) ||
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
        return -errno;
    /* A second safeguard: init ends when its socket closes, and by this signal even if it cannot
     * read its socket. */
    return prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 ? -errno : 0;
}

int box_install_filter(const struct plan *plan) {
    struct sock_fprog program = { .len = (unsigned short)plan->filter.n,
        .filter = (void *)(uintptr_t)((const char *)plan + plan->filter.offset) };

    return sys_seccomp(SECCOMP_SET_MODE_FILTER, 0, &program);
}

int box_enter_domain(struct box *box) {
    if (box->ruleset < 0)
        return 0;
    int r = sys_landlock_restrict_self(box->ruleset, 0);
    close(box->ruleset);
    box->ruleset = -1;
    return r;
}

/* Each change of an id clears the parent-death signal and may make init dumpable (the host's
 * fs.suid_dumpable decides): box_act_as_root sets both again. */
int box_act_as(uint32_t uid, uint32_t gid) {
    int r = sys_setresgid(-1u, gid, -1u);

    if (r == 0)
        r = sys_setresuid(-1u, uid, -1u);
    return r;
}

int box_act_as_root(void) {
    int r = sys_setresuid(-1u, 0, -1u);

    if (r == 0)
        r = sys_setresgid(-1u, 0, -1u);
    if (r == 0)
        r = sys_prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    return r < 0 ? r : sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
}
