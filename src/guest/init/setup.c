/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a fresh clone of the launcher to the init of a sandbox.
 *
 * The order matters:
 *
 * - First the namespaces for network and time, while /proc is still the launcher's.
 * - Then the mounts, with the rights of U0, the user namespace that owns the mount namespace.
 * - Then the sandbox's own user namespace. From here on no process can change a mount.
 * - Last the seccomp filter, after which the remaining capabilities are dropped. Those are in the
 *   new user namespace, but would still reach much kernel code.
 *
 * The Landlock ruleset is built here, but each command enters it by itself: init stays outside of
 * the domain, out of reach of ptrace from within.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/id_map.h"
#include "guest/det/det.h"
#include "guest/det/file_times.h"
#include "guest/det/sysinfo.h"
#include "guest/det/sysv_ipc_times.h"
#include "guest/init/init.h"
#include "guest/init/network.h"
#include "guest/restore/restore.h"
#include "guest/template/template.h"
#include "sys/syscalls.h"

/* A guest without network has Unix sockets only (seccomp), so no counter or flow label of the
 * namespace can carry information to the next guest. But a Unix socket that was sent over itself
 * outlives its process until the kernel's collector runs, so the namespace is checked. The first
 * line counts the sockets of all families; reading the table of Unix sockets would take ten times
 * as long. */
static bool is_unused(int proc_self) {
    static const char none[] = "sockets: used 0\n";
    char text[sizeof none - 1];
    int fd = openat(proc_self, "net/sockstat", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof text);
    close(fd);
    return n == (ssize_t)sizeof text && memcmp(text, none, sizeof text) == 0;
}

static int enter_network(struct box *box, int proc_self) {
    if (!(box->plan->flags & PLAN_NET_OWN))
        return 0;
    if (box->netns >= 0) {
        if (setns(box->netns, CLONE_NEWNET) < 0)
            return -errno;
        if (box->netns_is_new || is_unused(proc_self))
            return 0;
        close(box->netns);
        box->netns = -1; /* the engine receives the new namespace instead */
    }
    if (unshare(CLONE_NEWNET) < 0)
        return -errno;
    int r = box->plan->flags & PLAN_NET_LOOPBACK ? loopback_up(box->plan, box->outer_id) : 0;
    return r == 0 && box->network ? network_open(box->plan, box->network) : r;
}

static char *put_offset(char *at, const char *clock, int64_t ns) {
    int64_t seconds = ns / 1000000000, rest = ns % 1000000000;

    if (rest < 0) {
        seconds--;
        rest += 1000000000;
    }
    for (size_t i = 0; clock[i]; i++)
        *at++ = clock[i];
    *at++ = ' ';
    if (seconds < 0)
        *at++ = '-';
    at = guest_put_number(at, (uint64_t)(seconds < 0 ? -seconds : seconds));
    *at++ = ' ';
    at = guest_put_number(at, (uint64_t)rest);
    *at++ = '\n';
    *at = '\0';
    return at;
}

/* The sandbox's uptime counts from its birth, in whole seconds. With restored processes, the clocks
 * continue from the dump. Children enter the new time namespace; init stays outside. */
static int start_clocks(struct box *box, int proc_self) {
    int64_t uptime_s = box->plan->flags & PLAN_VIRTUAL ? PLAN_VIRTUAL_UPTIME_S : 0;
    int64_t monotonic, boottime, now = clock_now_ns(), boot_now = clock_ns(CLOCK_BOOTTIME);
    char text[128];

    if (unshare(CLONE_NEWTIME) < 0)
        return -errno;
    if (box->clocks) {
        int64_t ahead[2];

        memcpy(ahead, box->clocks, sizeof ahead);
        monotonic = now + ahead[0];
        boottime = boot_now + ahead[1];
    } else if (!restore_clocks(&monotonic, &boottime)) {
        monotonic = now % 1000000000;
        boottime = boot_now % 1000000000 + uptime_s * 1000000000;
    }
    determinism_uptime_ahead_ns = monotonic - now;
    sysinfo_uptime_ahead_ns = boottime - boot_now;
    put_offset(put_offset(text, "monotonic", monotonic - now), "boottime", boottime - boot_now);
    return guest_write(proc_self, "timens_offsets", text);
}

static int build_ruleset(struct box *box, struct guest_fault *fault) {
    const struct plan *plan = box->plan;
    const struct plan_rule *rules = plan_items(plan, rules, struct plan_rule);
    /* A kernel accepts a longer structure than its own only if the rest is zero, and always accepts
     * a shorter one. */
    struct uapi_landlock_ruleset attributes = { plan->landlock_fs, plan->landlock_net,
        plan->landlock_scoped };

    box->ruleset =
        sys_landlock_create_ruleset(&attributes, uapi_landlock_used_size(&attributes), 0);
    if (box->ruleset < 0)
        return guest_fault(fault, GUEST_STAGE_LANDLOCK, 0, box->ruleset);
    for (uint32_t i = 0; i < plan->rules.n; i++) {
        struct landlock_path_beneath_attr rule = { .allowed_access = rules[i].access,
            .parent_fd = box->static_rules[i] };

        if (rules[i].kind != PLAN_RULE_STATIC)
            rule.parent_fd = openat(AT_FDCWD, plan_text(plan, rules[i].path), O_PATH | O_CLOEXEC);
        if (rule.parent_fd < 0)
            return guest_fault(fault, GUEST_STAGE_LANDLOCK, i, -errno);
        int r = sys_landlock_add_rule(box->ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
        if (rules[i].kind != PLAN_RULE_STATIC)
            close(rule.parent_fd);
        if (r < 0)
            return guest_fault(fault, GUEST_STAGE_LANDLOCK, i, r);
    }
    return 0;
}

/* Limits of kernel objects that are counted per user over all namespaces. Without these, one
 * sandbox could use up what other sandboxes and the caller need. A namespace can lower them for
 * itself. */
static int limit_user_counts(int proc_sys) {
    int user = proc_sys < 0 ? -1 : openat(proc_sys, "user", O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (user < 0)
        return proc_sys < 0 || errno == ENOENT ? 0 : -errno;
    int r = guest_write(user, "max_inotify_instances", "16");
    if (r == 0)
        r = guest_write(user, "max_inotify_watches", "8192");
    close(user);
    return r == -ENOENT ? 0 : r;
}

/* Changing from U0's root to another id drops the rights there and makes the process undumpable, so
 * that /proc/self would belong to another user. */
static int become_owner(uint32_t outer_id) {
    int r = outer_id ? sys_setresgid(outer_id, outer_id, outer_id) : 0;

    if (r == 0 && outer_id)
        r = sys_setresuid(outer_id, outer_id, outer_id);
    if (r < 0)
        return r;
    return (outer_id && prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0) || unshare(CLONE_NEWUSER) < 0
               ? -errno
               : 0;
}

/* A child that stays U0's root: no process inside the new namespace may map more ids than one. It
 * writes the maps when init has entered the namespace, and its exit status is the errno. */
static int write_maps(int proc_self, int entered, uint32_t outer_id) {
    char map[ID_MAP_TEXT], byte;

    (void)id_map_line(map, 0, outer_id, PLAN_MANY_IDS);
    if (read(entered, &byte, 1) != 1)
        return ECANCELED;
    int r = guest_write(proc_self, "uid_map", map);
    if (r == 0)
        r = guest_write(proc_self, "gid_map", map);
    return -r;
}

/* The kernel charges its counts by user also to the user that made the user namespace, up to that
 * user's limits. So these limits bound all users of the sandbox together. An ordinary user's
 * sandboxes have the same ids, and so do some of root's. So each namespace is made by another one
 * of them (`account`): else the limits would bound these sandboxes together. It gives no rights:
 * those of an owner are for processes of U0. */
static int bound_all_users(const struct box *box) {
    static const unsigned together[] = { RLIMIT_NPROC, RLIMIT_MSGQUEUE, RLIMIT_SIGPENDING,
        RLIMIT_MEMLOCK };
    int r = limit_user_counts(box->proc_sys); /* of U0, which serves plans of many users alone */

    for (size_t i = 0; r == 0 && i < sizeof together / sizeof together[0]; i++)
        r = exec_set_limit_of(box->plan, together[i]);
    return r;
}

/* From the id that made the namespace to its root. Changing ids makes the process undumpable. */
static int become_root(void) {
    int r = sys_setresgid(0, 0, 0);

    if (r == 0)
        r = sys_setresuid(0, 0, 0);
    if (r < 0)
        return r;
    return prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0 ? -errno : 0;
}

static int enter_many_users(const struct box *box, int proc_self) {
    int ready[2], status, r = (int)sys_call2(__NR_pipe2, ready, O_CLOEXEC);

    if (r < 0)
        return r;
    pid_t pid = (pid_t)sys_call5(__NR_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0) {
        close(ready[1]);
        _exit(write_maps(proc_self, ready[0], box->outer_id));
    }
    close(ready[0]);
    /* After the fork: all that are being set up are U0's root, so together may exceed the limit. */
    r = pid < 0 ? pid : bound_all_users(box);
    if (r == 0)
        r = become_owner(box->outer_id + box->account);
    if (r == 0 && write(ready[1], "", 1) != 1)
        r = -EPIPE;
    close(ready[1]);
    if (pid < 0)
        return pid;
    if (waitpid(pid, &status, __WALL) != pid)
        return -errno;
    if (r == 0 && status)
        r = WIFEXITED(status) ? -WEXITSTATUS(status) : -ECANCELED;
    /* An ordinary user's launcher has the groups of its caller. */
    if (r == 0)
        r = sys_setgroups(0, NULL);
    if (r == 0 && box->account)
        r = become_root();
    return r < 0 ? r : limit_user_counts(box->proc_sys);
}

static int enter_user_namespace(const struct box *box, int proc_self) {
    const struct plan *plan = box->plan;

    if (plan->flags & PLAN_MANY_USERS)
        return enter_many_users(box, proc_self);
    int r = become_owner(box->outer_id);
    if (r == 0)
        r = guest_map_one(
            proc_self, plan->inner_uid, box->outer_id, plan->inner_gid, box->outer_id);
    return r < 0 ? r : limit_user_counts(box->proc_sys);
}

/* Cgroup paths are relative to the cgroups of the namespace's creator. Higher paths would name the
 * engine or the caller's session. */
static int enter_cgroups(struct box *box) {
    int r = box_enter_cgroups(box);

    return r == 0 && box->plan->flags & PLAN_CGROUPNS && unshare(CLONE_NEWCGROUP) < 0 ? -errno : r;
}

static void report_ready(struct box *box) {
    struct guest_record record = { .kind = GUEST_BOX_READY };
    int fds[2 + NETWORK_MAX_SOCKETS], n_fds = 0, netns = -1;

    if (box->netns_is_new)
        netns = box->netns;
    else if (box->plan->flags & PLAN_NET_OWN && box->netns < 0 &&
             !(box->plan->flags & PLAN_NET_LOOPBACK))
        netns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (netns >= 0) {
        record.value |= GUEST_VALUE_NETNS;
        fds[n_fds++] = netns;
    }
    if (box->disk >= 0) {
        record.value |= GUEST_VALUE_DISK;
        fds[n_fds++] = box->disk;
    }
    if (box->network) {
        record.value |=
            GUEST_VALUE_LISTENERS | (box->network->is_transparent ? 0 : GUEST_VALUE_PORTS);
        for (size_t i = 0; i < box->network->n; i++)
            fds[n_fds++] = box->network->fds[i];
    }
    record_send(box->socket, &record, fds, (size_t)n_fds);
    if (netns >= 0 && netns != box->netns)
        close(netns);
    if (box->disk >= 0)
        close(box->disk);
    if (box->network)
        network_close(box->network);
}

/* With an image: detaches the old root, which lies above the sandbox's own. */
static int leave_template(struct box *box) {
    if (box->template <0)
        return 0;
    if (fchdir(box->template) < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        return -errno;
    close(box->root);
    return close(box->template) < 0 ? -errno : 0;
}

int box_setup(struct box *box, struct guest_fault *fault) {
    const struct plan *plan = box->plan;
    struct network network = { .n = 0 };
    int r, proc_self = openat(AT_FDCWD, "/proc/self",
               O_PATH | O_DIRECTORY | O_CLOEXEC); /* musl sets the flag once more after open() */
    /* Kernel objects that each sandbox has need not be counted individually as the sandbox's. */
    bool is_counted_late = ops_begin_empty(plan) && !box->n_layers;

    umask(0);
    if (plan->flags & PLAN_CLOCK)
        file_times_prepare(box);
    if (proc_self < 0)
        return guest_fault(fault, GUEST_STAGE_TIME, 0, -errno);
    if (!is_counted_late && (r = enter_cgroups(box)) < 0)
        return guest_fault(fault, GUEST_STAGE_CGROUP, 0, r);
    if (plan->flags & PLAN_NET_ALLOW)
        box->network = &network;
    r = enter_network(box, proc_self);
    if (r < 0)
        return guest_fault(fault, GUEST_STAGE_NETWORK, 0, r);
    if (plan->flags & PLAN_TIMENS && (r = start_clocks(box, proc_self)) < 0)
        return guest_fault(fault, GUEST_STAGE_TIME, 0, r);
    if ((r = own_mounts_receive(box)) < 0)
        return guest_fault(fault, GUEST_STAGE_BOX, 0, r);
    fault->stage = GUEST_STAGE_BOX;
    int root = openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return -errno;
    r = ops_run(plan, box, plan->box_ops, root, -1, fault);
    close(root);
    if (r < 0)
        return r;
    if (box->layered)
        box->disk = box->layer;
    if (plan->flags & PLAN_LANDLOCK && (r = build_ruleset(box, fault)) < 0)
        return r;
    if ((r = leave_template(box)) < 0)
        return guest_fault(fault, GUEST_STAGE_PIVOT, 4, r);
    if (is_counted_late && (r = enter_cgroups(box)) < 0)
        return guest_fault(fault, GUEST_STAGE_CGROUP, 0, r);
    if (box->uuid && (r = urandom_file_setup(box)) < 0)
        return guest_fault(fault, GUEST_STAGE_BOX, 0, r);
    if (restore_is_tree() && (r = restore_keep_pids(plan, box->proc_sys)) < 0)
        return guest_fault(fault, GUEST_STAGE_RESTORE, 0, r);
    const bool has_bounds = sysv_ipc_bound_segments(plan, box->proc_sys);
    box->io =
        openat(proc_self, "io", O_RDONLY | O_CLOEXEC); /* on failure that usage is not reported */
    r = enter_user_namespace(box, proc_self);
    close(proc_self);
    if (box->proc_sys >= 0)
        close(box->proc_sys);
    if (r < 0)
        return guest_fault(fault, GUEST_STAGE_USER, 0, r);
    report_ready(box);
    box->network = NULL;
    /* This makes forty calls, and the filter would inspect each. Restored processes inherit the
     * bounding set, and drop the rights that they still need themselves. */
    if ((r = box_drop_bounds(plan)) < 0)
        return guest_fault(fault, GUEST_STAGE_PRIVILEGE, 0, r);
    if (!has_bounds && (r = sysv_ipc_refuse_segments()) < 0)
        return guest_fault(fault, GUEST_STAGE_SECCOMP, 0, r);
    if ((r = sysinfo_begin(plan)) < 0)
        return guest_fault(fault, GUEST_STAGE_SECCOMP, 0, r);
    const bool are_noted = restore_are_noted(box);
    if (plan->flags & PLAN_SECCOMP && !are_noted && (r = box_install_filter(plan)) < 0)
        return guest_fault(fault, GUEST_STAGE_SECCOMP, 0, r);
    /* Restored processes are in the session's domain from their birth. */
    if (restore_is_tree() && (r = box_enter_domain(box)) < 0)
        return guest_fault(fault, GUEST_STAGE_RESTRICT, 0, r);
    if ((r = restore_fork(box)) < 0)
        return guest_fault(fault, GUEST_STAGE_RESTORE, 0, r);
    if (plan->flags & PLAN_SECCOMP && are_noted && (r = box_install_filter(plan)) < 0)
        return guest_fault(fault, GUEST_STAGE_SECCOMP, 0, r);
    r = box_drop_privileges(plan, true);
    if (r < 0)
        return guest_fault(fault, GUEST_STAGE_PRIVILEGE, 0, r);
    umask(022);
    if (plan->flags & PLAN_CLOCK)
        file_times_find_mounts(plan);
    return 0;
}
