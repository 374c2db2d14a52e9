/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The features of this kernel that the current user may use.
 *
 * One table names every feature. features_quick fills it in microseconds, without starting a
 * process, from the kernel's own reports; the engine calls it at each start. features_probe also
 * tries each feature in forked children, because prohibitions by a security module, a seccomp
 * filter or a chroot show only then. The environment variable ROLLBOX_KFEAT ("-landlock,-cgroup")
 * makes features count as missing, so that fallbacks can be tested on any machine.
 */
#ifndef ROLLBOX_SYS_FEATURES_H
#define ROLLBOX_SYS_FEATURES_H

#include <stdbool.h>
#include <stdint.h>

/* Row: enum suffix, field and name in ROLLBOX_KFEAT, purpose, how to enable it. "cgroup" in
 * ROLLBOX_KFEAT stands for all cgroup_* features except cgroupns. */
/* clang-format off */
#define FEATURES(X) \
    X(USERNS, userns, "isolation namespace", \
      "allow unprivileged user namespaces: see user.max_user_namespaces, kernel.unprivileged_userns_clone and " \
      "kernel.apparmor_restrict_unprivileged_userns; without them, use isolation process") \
    X(PIDNS, pidns, "isolation namespace: processes of its own", \
      "use a kernel with CONFIG_PID_NS; without it, use isolation process") \
    X(PROC_MOUNT, proc_mount, "isolation namespace: a /proc of its own", \
      "leave the container that masks parts of /proc, or unmask it (docker and podman: --security-opt systempaths=unconfined, " \
      "--security-opt unmask=ALL); without it, use isolation process") \
    X(MOUNTNS, mountns, "isolation namespace: a file system of its own", \
      "use a kernel with namespaces and do not run in a chroot; without it, use isolation process") \
    X(PIVOT_ROOT, pivot_root, "isolation namespace: a root of its own", \
      "let the container's seccomp profile pass pivot_root, and do not run in a chroot; without it, use isolation process") \
    X(IPCNS, ipcns, "isolation namespace: System V IPC and message queues of its own", \
      "use a kernel with CONFIG_IPC_NS; without it, use isolation process") \
    X(UTSNS, utsns, "isolation namespace: a host name of its own", \
      "use a kernel with CONFIG_UTS_NS, and let the container's seccomp profile pass sethostname and setdomainname; without " \
      "them, use isolation process") \
    X(NETNS, netns, "net none and loopback", \
      "use a kernel with CONFIG_NET_NS; without it only net host works in isolation namespace") \
    X(NFT_TPROXY, nft_tproxy, "net allow: one listener for all ports", \
      "load the modules (modprobe nft_tproxy nft_reject_inet) or use a kernel with " \
      "CONFIG_NFT_TPROXY and CONFIG_NFT_REJECT_INET; without them each port of net_allow has a " \
      "listener of its own, and there are at most 64") \
    X(TIMENS, timens, "an uptime of its own, time_mode virtual", \
      "use Linux 6.3 or later with CONFIG_TIME_NS; without it a sandbox sees the host's uptime") \
    X(CGROUPNS, cgroupns, "hiding the host's cgroup paths", \
      "use a kernel with CONFIG_CGROUPS; without it /proc/self/cgroup is masked only") \
    X(OVERLAYFS, overlayfs, "fs_writable (private copy-on-write)", \
      "load the module overlay (modprobe overlay); without it fs_writable is refused, fs_readable and fs_shared work") \
    X(OVERLAY_USERXATTR, overlay_userxattr, "fs_writable as an ordinary user", \
      "use Linux 5.11 or later; without it fs_writable needs root") \
    X(OVERLAY_LAYERS, overlay_layers, "snapshots, forks, resets and sleep of changed files", \
      "use Linux 6.15 or later, whose overlays can be made of detached mounts") \
    X(LANDLOCK, landlock, "isolation process; a second layer under namespace", \
      "use a kernel with CONFIG_SECURITY_LANDLOCK and landlock in the lsm= boot parameter; without it isolation process is " \
      "refused and namespace has one layer less") \
    X(LANDLOCK_NET, landlock_net, "net none and loopback in isolation process: TCP rules", \
      "use Linux 6.7 or later (Landlock ABI 4); isolation process then blocks sockets by seccomp alone") \
    X(LANDLOCK_SCOPE, landlock_scope, "isolation process: no signals or abstract sockets to others", \
      "use Linux 6.12 or later (Landlock ABI 6); isolation namespace holds both by itself") \
    X(SECCOMP, seccomp, "every sandbox: the system call filter", \
      "use a kernel with CONFIG_SECCOMP_FILTER; nothing runs without it") \
    X(CLONE3, clone3, "starting a sandbox in its cgroup (v2) at once", \
      "let the container's seccomp profile pass clone3; without it a sandbox enters its cgroup by a slower way") \
    X(OPENAT2, openat2, "resolving paths safely", \
      "use Linux 5.6 or later, and let the container's seccomp profile pass openat2") \
    X(CLOSE_RANGE, close_range, "closing inherited descriptors", \
      "use Linux 5.9 or later, and let the container's seccomp profile pass close_range") \
    X(PIDFD, pidfd, "holding processes without races", \
      "use Linux 5.3 or later, and let the container's seccomp profile pass pidfd_open") \
    X(MOUNT_API, mount_api, "isolation namespace: open_tree, move_mount and mount_setattr", \
      "use Linux 5.12 or later, and let the container's seccomp profile pass the mount calls; without them, use isolation " \
      "process") \
    X(IDMAPPED_MOUNTS, idmapped_mounts, "fs_writable, fs_shared and images with the right owners when run by root", \
      "use Linux 5.12 or later, as root; ordinary users need none") \
    X(SUBIDS, subids, "users many as an ordinary user", \
      "needs newuidmap and newgidmap, and 65536 ids in /etc/subuid and /etc/subgid; without " \
      "them, use users one") \
    X(CGROUP_V1, cgroup_v1, "limits by cgroup (v1)", \
      "run as root with the memory, pids and cpu controllers mounted below /sys/fs/cgroup; without any cgroup, limits use the " \
      "user namespace's rlimits and a watcher") \
    X(CGROUP_V2, cgroup_v2, "limits by cgroup (v2)", \
      "delegate a cgroup: systemd-run --user --scope -p Delegate=yes, or start in a container with its own writable cgroup; " \
      "without any cgroup, limits use the user namespace's rlimits and a watcher") \
    X(CGROUP_MEMORY, cgroup_memory, "max_memory held exactly", \
      "enable the memory controller (cgroup_enable=memory at boot, +memory in cgroup.subtree_control); without it a watcher " \
      "holds max_memory") \
    X(CGROUP_PIDS, cgroup_pids, "max_processes held by cgroup", \
      "enable the pids controller (+pids in cgroup.subtree_control); without it RLIMIT_NPROC of the user namespace holds " \
      "max_processes") \
    X(CGROUP_CPU, cgroup_cpu, "max_cpu, and equal shares of the CPUs for all sandboxes", \
      "enable the cpu controller (+cpu in cgroup.subtree_control); without it max_cpu is held by affinity, and must be whole") \
    X(PROC_CHILDREN, proc_children, "the watcher that holds limits where there is no cgroup", \
      "use a kernel with CONFIG_PROC_CHILDREN, or a writable cgroup")
/* clang-format on */

enum feature {
#define FEATURE_ENUM(id, name, needed_for, hint) FEATURE_##id,
    FEATURES(FEATURE_ENUM)
#undef FEATURE_ENUM
        FEATURE_COUNT
};

struct features {
#define FEATURE_FIELD(id, name, needed_for, hint) bool name;
    FEATURES(FEATURE_FIELD)
#undef FEATURE_FIELD
    int landlock_abi; /* 0: no Landlock */

    /* Facts. */
    uint32_t uid;     /* effective */
    bool is_root;     /* uid 0 with CAP_SYS_ADMIN and all ids mapped; false in a container's user
                         namespace */
    bool has_all_ids; /* false in a user namespace that maps few ids, such as a container's */
    bool own_ids; /* uid 0 that may become other users: CAP_SETUID, CAP_SETGID, CAP_CHOWN and mapped
                     ids */
    unsigned cpus; /* CPUs on which this process may run; at least 1 */
    uint64_t memory_total_bytes, memory_available_bytes; /* of the host; 0: unknown */
    bool userns_forbidden_by_max;                        /* user.max_user_namespaces is 0 */
    int unprivileged_userns_clone; /* sysctl of Debian and Arch; -1: not in this kernel */
    int apparmor_restrict_unprivileged_userns; /* sysctl of Ubuntu; -1: not in this kernel */
    int yama_ptrace_scope;                     /* -1: no Yama */
    char release[65];                          /* uname -r */
    int release_major, release_minor;

    /* The first word of ROLLBOX_KFEAT that is not "-" and a name of the table, for an error
     * message. "" if all words are known. */
    char mask_problem[48];
};

/* Fills *features from the kernel's reports. Takes microseconds, starts no process, never fails: a
 * feature that cannot be determined counts as missing. */
void features_quick(struct features *features);

/* Fills only uid, is_root and own_ids. */
void features_identity(struct features *features);

/* Calls features_quick, then tries each feature in a forked child as the current user and corrects
 * the table. Takes some milliseconds. Leaves nothing behind: mounts are made in private namespaces,
 * and the test cgroup is removed. It forks, so a threaded program should call it rarely. Returns 0,
 * or -errno (-ENOMEM, -EAGAIN) if no child can be started. */
int features_probe(struct features *features);

/* The texts of a feature's row. `name` is that of ROLLBOX_KFEAT. */
const char *feature_name(enum feature feature);
const char *feature_needed_for(enum feature feature);
const char *feature_hint(enum feature feature);
bool feature_get(const struct features *features, enum feature feature);

/* Whether all features exist that isolation `namespaces` (or `process`) requires for the default
 * policy (so with net none). */
bool features_namespace_ok(const struct features *features);
bool features_process_ok(const struct features *features);

#endif
