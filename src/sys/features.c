/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Feature detection: see features.h for the model.
 *
 * The quick part calls each system call with arguments that it must refuse. -ENOSYS means that the
 * call does not exist; so does -EPERM from a container's seccomp filter, where the kernel itself
 * would answer differently. The thorough part is a table of probes. Each runs in a child of its
 * own, whose exit status is the answer.
 */
#include "sys/features.h"
#include "sys/id_range.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "sys/cgroup.h"
#include "sys/nft_probe.h"
#include "sys/proc.h"
#include "sys/syscalls.h"

#define MIN_OWN_IDS 64 /* so that sandboxes of isolation process can have one each */

static const struct feature_row {
    const char *name, *needed_for, *hint;
    size_t offset;
} rows[FEATURE_COUNT] = {
#define FEATURE_ROW(id, field, for_what, how)                                                      \
    [FEATURE_##id] = { #field, for_what, how, offsetof(struct features, field) },
    FEATURES(FEATURE_ROW)
#undef FEATURE_ROW
};

const char *feature_name(enum feature feature) {
    return rows[feature].name;
}

const char *feature_needed_for(enum feature feature) {
    return rows[feature].needed_for;
}

const char *feature_hint(enum feature feature) {
    return rows[feature].hint;
}

bool feature_get(const struct features *features, enum feature feature) {
    return *(const bool *)((const char *)features + rows[feature].offset);
}

static void feature_set(struct features *features, enum feature feature, bool available) {
    *(bool *)((char *)features + rows[feature].offset) = available;
}

/* Whether the processes of a sandbox can be counted in any way. */
static bool can_count(const struct features *f) {
    return f->cgroup_v1 || f->cgroup_v2 || f->proc_children;
}

static bool are_all(const bool *needed, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!needed[i])
            return false;
    return true;
}

bool features_namespace_ok(const struct features *f) {
    /* If the host's root cannot become another user, guests would run as root. */
    if (f->uid == 0 && !f->is_root && f->has_all_ids)
        return false;
    const bool needed[] = { f->userns, f->pidns, f->proc_mount, f->mountns, f->pivot_root, f->ipcns,
        f->utsns, f->netns, f->seccomp, f->openat2, f->close_range, f->pidfd, f->mount_api,
        can_count(f) };
    return are_all(needed, ARRAY_SIZE(needed));
}

bool features_process_ok(const struct features *f) {
    /* If uid 0 cannot become another user, guests would run as root. An ordinary user's sandboxes
     * are separated by Landlock alone. */
    const bool needed[] = { f->landlock, f->seccomp, f->openat2, f->close_range, f->pidfd,
        can_count(f), f->uid == 0 ? f->own_ids : f->landlock_scope };
    return are_all(needed, ARRAY_SIZE(needed));
}

/* ---- masking ---- */

/* The consequences of a feature's absence. */
static void settle_features(struct features *f) {
    if (!f->landlock)
        f->landlock_abi = 0;
    if (!f->landlock_net)
        f->landlock_abi = MIN(f->landlock_abi, 3);
    if (!f->landlock_scope)
        f->landlock_abi = MIN(f->landlock_abi, 5);
    f->landlock = f->landlock_abi >= 1;
    f->landlock_net = f->landlock_abi >= 4;
    f->landlock_scope = f->landlock_abi >= 6;
    if (!f->overlayfs)
        f->overlay_userxattr = f->overlay_layers = false;
    if (!f->cgroup_v1 && !f->cgroup_v2)
        f->cgroup_memory = f->cgroup_pids = f->cgroup_cpu = false;
}

static bool mask_one(struct features *f, const char *word, size_t length) {
    if (length < 2 || word[0] != '-')
        return false;
    word++;
    length--;
    if (length == strlen("cgroup") && memcmp(word, "cgroup", length) == 0) {
        f->cgroup_v1 = f->cgroup_v2 = false;
        return true;
    }
    for (enum feature i = 0; i < FEATURE_COUNT; i++)
        if (length == strlen(rows[i].name) && memcmp(word, rows[i].name, length) == 0) {
            feature_set(f, i, false);
            return true;
        }
    return false;
}

static void mask_features(struct features *f) {
    const char *text = getenv("ROLLBOX_KFEAT");

    f->mask_problem[0] = '\0';
    for (const char *word = text != NULL ? text : ""; *word != '\0';) {
        size_t length = strcspn(word, ", ");

        if (length > 0 && !mask_one(f, word, length) && f->mask_problem[0] == '\0')
            snprintf(f->mask_problem, sizeof(f->mask_problem), "%.*s",
                (int)MIN(length, sizeof(f->mask_problem)), word);
        word += length + (word[length] != '\0');
    }
    settle_features(f);
}

/* ---- quick ---- */

/* The number in a small file, or `otherwise`. */
static int64_t number_in(const char *path, int64_t otherwise) {
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    char text[32], *end;
    int64_t value;
    ssize_t n;

    if (fd < 0)
        return otherwise;
    n = read(fd, text, sizeof(text) - 1);
    if (n <= 0)
        return otherwise;
    text[n] = '\0';
    value = strtoll(text, &end, 10);
    return end == text ? otherwise : value;
}

static bool path_exists(const char *path) {
    return access(path, F_OK) == 0;
}

static bool has_capabilities(uint32_t wanted) {
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { 0 };

    return sys_capget(&header, data) == 0 && (data[0].effective & wanted) == wanted;
}

/* The ids mapped here. A user namespace, such as a container's, may have mapped few. */
struct mapped_ids {
    uint64_t n;
    bool has_all; /* all that the kernel knows, in one range: so also those that sandboxes of root's
                     get */
};

static struct mapped_ids mapped_ids(const char *map) {
    auto_close int fd = open(map, O_RDONLY | O_CLOEXEC);
    struct mapped_ids ids = { 0 };
    char text[4096], *at = text;
    uint64_t first, count;
    int length;
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    text[MAX(size, (ssize_t)0)] = '\0';
    for (; sscanf(at, "%" SCNu64 " %*u %" SCNu64 "%n", &first, &count, &length) == 2;
         at += length) {
        ids.n += count;
        ids.has_all |= first == 0 && count >= INT32_MAX;
    }
    return ids;
}

void features_identity(struct features *f) {
    struct mapped_ids uids = mapped_ids("/proc/self/uid_map"),
                      gids = mapped_ids("/proc/self/gid_map");

    f->uid = geteuid();
    f->has_all_ids = uids.has_all && gids.has_all;
    f->is_root = f->uid == 0 && has_capabilities(1U << CAP_SYS_ADMIN) && f->has_all_ids;
    f->own_ids = f->uid == 0 &&
                 has_capabilities(1U << CAP_SETUID | 1U << CAP_SETGID | 1U << CAP_CHOWN) &&
                 MIN(uids.n, gids.n) >= MIN_OWN_IDS;
}

static void find_facts(struct features *f) {
    struct utsname name;
    cpu_set_t cpus;
    char *dot;

    features_identity(f);
    f->cpus = sched_getaffinity(0, sizeof(cpus), &cpus) == 0
                  ? (unsigned)CPU_COUNT(&cpus)
                  : (unsigned)MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L);
    if (proc_memory_available(&f->memory_available_bytes, &f->memory_total_bytes) < 0)
        f->memory_available_bytes = f->memory_total_bytes = 0;
    f->userns_forbidden_by_max = number_in("/proc/sys/user/max_user_namespaces", 1) == 0;
    f->unprivileged_userns_clone = (int)number_in("/proc/sys/kernel/unprivileged_userns_clone", -1);
    f->apparmor_restrict_unprivileged_userns =
        (int)number_in("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", -1);
    f->yama_ptrace_scope = (int)number_in("/proc/sys/kernel/yama/ptrace_scope", -1);
    if (uname(&name) == 0) {
        snprintf(f->release, sizeof(f->release), "%s", name.release);
        f->release_major = (int)strtol(name.release, &dot, 10);
        f->release_minor = *dot == '.' ? (int)strtol(dot + 1, NULL, 10) : 0;
    }
}

static bool release_at_least(const struct features *f, int major, int minor) {
    return f->release_major > major || (f->release_major == major && f->release_minor >= minor);
}

/* Registered, or a module that mounting it would load. */
static bool has_overlay(const struct features *f) {
    auto_close int fd = open("/proc/filesystems", O_RDONLY | O_CLOEXEC);
    char text[4096], path[160];
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;

    if (n > 0) {
        text[n] = '\0';
        if (strstr(text, "\toverlay\n") != NULL)
            return true;
    }
    snprintf(path, sizeof(path), "/lib/modules/%s/kernel/fs/overlayfs", f->release);
    return path_exists(path);
}

static bool is_type(const char *path, long magic) {
    struct statfs fs;

    return statfs(path, &fs) == 0 && fs.f_type == magic;
}

/* What is mounted at the usual places. Whether a group can be made there is found by
 * cgroup_root_open. */
static void find_cgroups(struct features *f) {
    if (is_type("/sys/fs/cgroup", CGROUP2_SUPER_MAGIC)) {
        f->cgroup_v2 = f->cgroup_memory = f->cgroup_pids = f->cgroup_cpu = true;
        return;
    }
    f->cgroup_memory = is_type("/sys/fs/cgroup/memory", CGROUP_SUPER_MAGIC) &&
                       access("/sys/fs/cgroup/memory", W_OK) == 0;
    f->cgroup_pids = is_type("/sys/fs/cgroup/pids", CGROUP_SUPER_MAGIC);
    f->cgroup_cpu = is_type("/sys/fs/cgroup/cpu", CGROUP_SUPER_MAGIC);
    f->cgroup_v1 = f->cgroup_memory && f->cgroup_pids;
}

static void quick_unmasked(struct features *f) {
    struct mount_attr attr = { 0 };
    bool may_userns;
    int abi;

    memset(f, 0, sizeof(*f));
    find_facts(f);

    may_userns = !f->userns_forbidden_by_max &&
                 (f->is_root || (f->unprivileged_userns_clone != 0 &&
                                    f->apparmor_restrict_unprivileged_userns < 1));
    f->userns = may_userns && path_exists("/proc/self/ns/user");
    f->pidns = path_exists("/proc/self/ns/pid");
    f->proc_mount = true; /* only trying tells */
    f->mountns = f->pivot_root = path_exists("/proc/self/ns/mnt");
    f->ipcns = path_exists("/proc/self/ns/ipc");
    f->utsns = path_exists("/proc/self/ns/uts");
    f->netns = path_exists("/proc/self/ns/net");
    f->nft_tproxy = f->netns; /* a sandbox that finds otherwise makes do without */
    /* Before 6.3 a process with a time namespace for its children can start none that shares its
     * memory, as init does. */
    f->timens = path_exists("/proc/self/ns/time") && release_at_least(f, 6, 3);
    f->cgroupns = path_exists("/proc/self/ns/cgroup");

    f->overlayfs = has_overlay(f);
    f->overlay_userxattr = f->overlayfs && release_at_least(f, 5, 11);
    f->overlay_layers = f->overlayfs && release_at_least(f, 6, 15);

    abi = sys_landlock_create_ruleset(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    f->landlock_abi = MAX(abi, 0);
    f->landlock = f->landlock_net = f->landlock_scope =
        true; /* settle_features() goes by the ABI */

    f->seccomp = sys_seccomp(SECCOMP_GET_ACTION_AVAIL, 0, &(uint32_t){ SECCOMP_RET_ERRNO }) == 0;
    f->clone3 = sys_clone3(NULL, 0) == -EINVAL;
    f->openat2 = sys_call4(__NR_openat2, AT_FDCWD, NULL, NULL, 0) == -EINVAL;
    f->close_range = sys_close_range(1, 0, 0) == -EINVAL;
    f->pidfd = sys_pidfd_open(0, 0) == -EINVAL;
    f->mount_api = sys_open_tree(-1, NULL, ~0U) == -EINVAL &&
                   sys_mount_setattr(-1, NULL, ~0U, &attr) == -EINVAL;
    f->idmapped_mounts = f->mount_api && f->is_root;
    f->subids = f->is_root || f->userns; /* looked for when they are needed */

    find_cgroups(f);
    f->proc_children = path_exists("/proc/thread-self/children");
}

void features_quick(struct features *features) {
    quick_unmasked(features);
    mask_features(features);
}

/* ---- thorough: the tests in child processes ---- */

static bool write_text(const char *path, const char *text) {
    auto_close int fd = open(path, O_WRONLY | O_CLOEXEC);

    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
}

/* Into a user namespace in which we are root, as every sandbox gets one. */
static bool enter_userns(void) {
    unsigned uid = geteuid(), gid = getegid();
    char text[48];

    if (sys_unshare(CLONE_NEWUSER) < 0)
        return false;
    (void)write_text("/proc/self/setgroups", "deny");
    snprintf(text, sizeof(text), "0 %u 1\n", gid);
    if (!write_text("/proc/self/gid_map", text))
        return false;
    snprintf(text, sizeof(text), "0 %u 1\n", uid);
    return write_text("/proc/self/uid_map", text);
}

static bool enter_namespaces(unsigned long namespaces) {
    return enter_userns() && sys_unshare(namespaces) == 0;
}

/* Mounts of its own, of which nothing gets out, and an empty tmpfs as the working directory. */
static bool enter_mounts(bool userns) {
    if (userns ? !enter_namespaces(CLONE_NEWNS) : sys_unshare(CLONE_NEWNS) < 0)
        return false;
    return sys_mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           sys_mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, NULL) == 0 &&
           chdir("/tmp") == 0;
}

/* A capability inside it must count, too: AppArmor on Ubuntu lets the namespace be made and then
 * refuses each use. */
static bool try_userns(void) {
    return enter_namespaces(CLONE_NEWUTS) && sethostname("probe", 5) == 0;
}

static bool try_pidns(void) {
    return enter_namespaces(CLONE_NEWPID);
}

/* A child in the new pid namespace mounts its /proc; the kernel refuses that where the /proc that
 * is visible has parts covered. */
static bool try_proc_mount(void) {
    int status;
    pid_t pid;

    if (!enter_namespaces(CLONE_NEWPID | CLONE_NEWNS))
        return false;
    pid = fork();
    if (pid == 0)
        _exit(
            sys_mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                    sys_mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0
                ? 0
                : 1);
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

static bool try_mountns(void) {
    return enter_mounts(true);
}

static bool try_ipcns(void) {
    return enter_namespaces(CLONE_NEWIPC);
}

static bool try_utsns(void) {
    return enter_namespaces(CLONE_NEWUTS) && sethostname("probe", 5) == 0 &&
           setdomainname("", 0) == 0;
}

static bool try_pivot_root(void) {
    return enter_mounts(true) && mkdir("old", 0700) == 0 && sys_pivot_root(".", "old") == 0;
}

static bool try_netns(void) {
    return enter_namespaces(CLONE_NEWNET);
}

static bool try_nft_tproxy(void) {
    return enter_namespaces(CLONE_NEWNET) && nft_probe();
}

static bool try_timens(void) {
    return enter_namespaces(CLONE_NEWTIME) &&
           write_text("/proc/self/timens_offsets", "boottime 10 0\n");
}

static bool try_cgroupns(void) {
    return enter_namespaces(CLONE_NEWCGROUP);
}

/* A file of the lower layer is deleted: that takes more (a whiteout) than mounting. */
static bool try_overlay(bool userns, const char *options) {
    int fd;

    if (!enter_mounts(userns) || mkdir("lower", 0755) < 0 || mkdir("upper", 0755) < 0 ||
        mkdir("work", 0755) < 0 || mkdir("merged", 0755) < 0)
        return false;
    fd = open("lower/file", O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0 || close(fd) < 0)
        return false;
    return sys_mount("overlay", "merged", "overlay", 0, options) == 0 &&
           unlink("merged/file") == 0 && !path_exists("merged/file") && path_exists("lower/file");
}

static bool try_overlay_as_root(void) {
    return try_overlay(false, "lowerdir=lower,upperdir=upper,workdir=work");
}

static bool try_overlay_userxattr(void) {
    return try_overlay(true, "lowerdir=lower,upperdir=upper,workdir=work,userxattr");
}

/* A domain that allows nothing must keep us from opening a file. */
static bool try_landlock(void) {
    struct uapi_landlock_ruleset ruleset = { .handled_access_fs = LANDLOCK_ACCESS_FS_READ_FILE };
    int fd = sys_landlock_create_ruleset(&ruleset, sizeof(ruleset.handled_access_fs), 0);

    return fd >= 0 && sys_prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           sys_landlock_restrict_self(fd, 0) == 0 && open("/proc/self/stat", O_RDONLY) < 0 &&
           errno == EACCES;
}

static bool try_seccomp(void) {
    struct sock_filter code[] = {
        BPF_STMT(
            BPF_LD | BPF_W | BPF_ABS, 0), /* the number: the first field of struct seccomp_data */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { ARRAY_SIZE(code), code };

    return sys_prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           sys_seccomp(SECCOMP_SET_MODE_FILTER, 0, &program) == 0 &&
           sys_call0(__NR_getppid) == -ENOSYS;
}

static bool try_clone3(void) {
    struct clone_args args = { .exit_signal = SIGCHLD };
    long pid = sys_clone3(&args, sizeof(args));

    if (pid == 0)
        sys_exit_group(0);
    return pid > 0;
}

static bool try_openat2(void) {
    return sys_openat2(AT_FDCWD, "/",
               &(struct open_how){ .flags = O_PATH | O_CLOEXEC,
                   .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS }) >= 0;
}

static bool try_close_range(void) {
    return sys_close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) == 0;
}

static bool try_pidfd(void) {
    int fd = sys_pidfd_open(getpid(), 0);

    return fd >= 0 && sys_pidfd_send_signal(fd, 0, NULL, 0) == 0;
}

static bool try_mount_api(void) {
    struct mount_attr attr = { .attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID };
    int tree;

    if (!enter_mounts(true) || mkdir("at", 0755) < 0)
        return false;
    tree = sys_open_tree(AT_FDCWD, "/usr", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    return tree >= 0 && sys_mount_setattr(tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr) == 0 &&
           sys_move_mount(tree, "", AT_FDCWD, "at", MOVE_MOUNT_F_EMPTY_PATH) == 0;
}

/* Needs the root of the file system's own user namespace. */
/* Root has ids of its own to give. */
static bool try_subids(void) {
    char problem[ID_RANGE_TEXT];
    struct features self = { 0 };
    struct id_range range;

    features_identity(&self);
    if (self.is_root)
        return true;
    return self.uid && id_range_find(&range, problem) == 0 &&
           id_range_namespace(&range, 1, problem) >= 0;
}

static bool try_idmapped_mounts(void) {
    struct mount_attr attr = { .attr_set = MOUNT_ATTR_IDMAP };
    int ready[2], done[2], tree;
    char path[48], byte;
    bool ok = false;
    pid_t pid;

    if (pipe2(ready, O_CLOEXEC) < 0 || pipe2(done, O_CLOEXEC) < 0)
        return false;
    pid = fork();
    if (pid < 0)
        return false;
    if (pid == 0) {
        close(done[1]);
        if (sys_unshare(CLONE_NEWUSER) == 0 && write(ready[1], "", 1) == 1)
            (void)!read(done[0], &byte, 1);
        _exit(0);
    }
    close(ready[1]);
    if (read(ready[0], &byte, 1) == 1) {
        snprintf(path, sizeof(path), "/proc/%d/uid_map", (int)pid);
        ok = write_text(path, "0 100000 65536\n");
        snprintf(path, sizeof(path), "/proc/%d/gid_map", (int)pid);
        ok = ok && write_text(path, "0 100000 65536\n");
        snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
        attr.userns_fd = (uint64_t)open(path, O_RDONLY | O_CLOEXEC);
        tree = sys_open_tree(AT_FDCWD, "/usr", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        ok = ok && (int)attr.userns_fd >= 0 && tree >= 0 &&
             sys_mount_setattr(tree, "", AT_EMPTY_PATH, &attr) == 0;
    }
    close(done[1]);
    (void)waitpid(pid, NULL, 0);
    return ok;
}

/* ---- thorough: the table ---- */

static const struct probe {
    enum feature feature;
    bool (*try)(void);
} probes[] = {
    { FEATURE_USERNS, try_userns },
    { FEATURE_PIDNS, try_pidns },
    { FEATURE_PROC_MOUNT, try_proc_mount },
    { FEATURE_MOUNTNS, try_mountns },
    { FEATURE_PIVOT_ROOT, try_pivot_root },
    { FEATURE_IPCNS, try_ipcns },
    { FEATURE_UTSNS, try_utsns },
    { FEATURE_NETNS, try_netns },
    { FEATURE_NFT_TPROXY, try_nft_tproxy },
    { FEATURE_TIMENS, try_timens },
    { FEATURE_CGROUPNS, try_cgroupns },
    { FEATURE_OVERLAY_USERXATTR, try_overlay_userxattr },
    { FEATURE_LANDLOCK, try_landlock },
    { FEATURE_SECCOMP, try_seccomp },
    { FEATURE_CLONE3, try_clone3 },
    { FEATURE_OPENAT2, try_openat2 },
    { FEATURE_CLOSE_RANGE, try_close_range },
    { FEATURE_PIDFD, try_pidfd },
    { FEATURE_MOUNT_API, try_mount_api },
    { FEATURE_IDMAPPED_MOUNTS, try_idmapped_mounts },
    { FEATURE_SUBIDS, try_subids },
};

/* 1 if the child could do it, 0 if not (a signal, SIGSYS from a filter above all, is a no), -errno
 * if there is no child. */
static int in_child(bool (*try)(void)) {
    pid_t pid = fork();
    int status;

    if (pid < 0)
        return -errno;
    if (pid == 0)
        _exit(try() ? 0 : 1);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Makes a group with limits and removes it again. */
static int probe_cgroup(struct features *f) {
    const struct cgroup_limits limits = { .memory_bytes = 64 << 20, .processes = 16 };
    struct cgroup_root *root = NULL;
    struct cgroup_slot *slot = NULL;
    enum cgroup_backend backend;
    int r = cgroup_root_open(f, CGROUP_LIMITS_CPU_TIME_AND_FREEZER, &root);

    if (r < 0)
        return r == -ENOMEM ? r : 0;
    backend = cgroup_root_backend(root);
    if (backend != CGROUP_NONE && cgroup_slot_new(root, 0, &limits, false, &slot) < 0)
        backend = CGROUP_NONE;
    f->cgroup_v1 = backend == CGROUP_V1;
    f->cgroup_v2 = backend == CGROUP_V2;
    f->cgroup_cpu = f->cgroup_cpu && backend != CGROUP_NONE && cgroup_root_has_cpu(root);
    slot = cgroup_slot_free(slot);
    root = cgroup_root_free(root);
    return 0;
}

int features_probe(struct features *features) {
    struct features f;
    int r;

    quick_unmasked(&f);
    for (size_t i = 0; i < ARRAY_SIZE(probes); i++) {
        if (!feature_get(&f, probes[i].feature) && probes[i].feature != FEATURE_USERNS)
            continue;
        r = in_child(probes[i].try);
        if (r < 0)
            return r;
        feature_set(&f, probes[i].feature, r == 1);
    }
    if (f.is_root && !f.overlay_userxattr) {
        r = in_child(try_overlay_as_root);
        if (r < 0)
            return r;
        f.overlayfs = r == 1;
    } else
        f.overlayfs = f.overlay_userxattr;
    mask_features(&f);
    r = probe_cgroup(&f);
    if (r < 0)
        return r;
    settle_features(&f);
    *features = f;
    return 0;
}
