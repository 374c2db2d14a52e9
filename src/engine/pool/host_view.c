/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the host for plan_compile, which does no I/O: where granted paths lead, and the content of
 * the faked files of /proc.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/box/disk_upper.h"
#include "engine/box/no_namespace.h"
#include "engine/box/volume_lease.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/network/gateway_tls.h"
#include "engine/pool/host_view.h"
#include "policy/tmpfs.h"
#include "policy/volumes.h"
#include "store/commit.h"
#include "sys/cgroup.h"
#include "sys/proc.h"
#include "sys/syscalls.h"

#define MAX_SMALL_FILE (1u << 20)

struct host {
    struct plan_host plan;
    struct plan_host_path *paths;
    size_t n_paths;
    struct buf ca_bundle, ca_java, cpuinfo, stat, meminfo, loadavg, vmstat;
    char **sysctls;
    size_t n_sysctls;
    bool *proc_exists;
    const char *links[16];
    char link_texts[8][2][64];
    char *places[4]; /* private_places, NULL-terminated */
    struct plan_host_volume *volumes;
    size_t n_volumes;
    struct plan_host_path *tmpfs;
    size_t n_tmpfs;
    struct buf mount_texts;
    const char **mounts;
};

struct host *host_free(struct host *host) {
    if (!host)
        return NULL;
    for (size_t i = 0; i < host->n_paths; i++)
        free((char *)host->paths[i].real);
    free(host->paths);
    for (size_t i = 0; i < host->n_sysctls; i++)
        free(host->sysctls[i]);
    free(host->sysctls);
    free(host->proc_exists);
    for (size_t i = 0; i < ARRAY_SIZE(host->places); i++)
        free(host->places[i]);
    buf_done(&host->mount_texts);
    free(host->mounts);
    for (size_t i = 0; i < host->n_volumes; i++) {
        free((char *)host->volumes[i].files);
        free((char *)host->volumes[i].at.real);
    }
    free(host->volumes);
    for (size_t i = 0; i < host->n_tmpfs; i++)
        free((char *)host->tmpfs[i].real);
    free(host->tmpfs);
    buf_done(&host->ca_bundle);
    buf_done(&host->ca_java);
    buf_done(&host->cpuinfo);
    buf_done(&host->stat);
    buf_done(&host->meminfo);
    buf_done(&host->loadavg);
    buf_done(&host->vmstat);
    free(host);
    return NULL;
}

const struct plan_host *host_plan(const struct host *host) {
    return &host->plan;
}

/* The path with all links resolved by the kernel itself. 0 or -ENOMEM; what is wrong with the path
 * is in *found. `mere_name`: it need not be readable. */
static int look_up(const char *path, bool mere_name, struct plan_host_path *found) {
    struct open_how how = { .flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS };
    char link[64], real[4096];
    const char *resolved = path;
    struct stat st;

    /* Most paths denied by default do not exist; access() costs less than open(). */
    if (mere_name && faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT) {
        found->error = ENOENT;
        return 0;
    }
    auto_close int fd = sys_openat2(AT_FDCWD, path, &how);

    if (fd == -ELOOP) {
        fd = open(path, O_PATH | O_CLOEXEC);
        resolved = NULL;
        if (fd < 0)
            fd = -errno;
    }
    if (fd < 0 || fstat(fd, &st) < 0) {
        found->error = fd < 0 ? -fd : errno;
        return 0;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (!resolved) {
        ssize_t n = readlink(link, real, sizeof real - 1);
        if (n < 0 || n == sizeof real - 1) {
            found->error = n < 0 ? errno : ENAMETOOLONG;
            return 0;
        }
        real[n] = '\0';
        resolved = real;
    }
    found->real = strdup(resolved);
    if (!found->real)
        return -ENOMEM;
    found->type = S_ISDIR(st.st_mode) ? PLAN_PATH_DIRECTORY : PLAN_PATH_OTHER;
    mode_t wanted = S_ISDIR(st.st_mode) ? S_IROTH | S_IWOTH | S_IXOTH : S_IROTH | S_IWOTH;
    found->others_write = (st.st_mode & wanted) == wanted;
    /* Merely naming a file takes no right to it; a sandbox can have no more than its owner. */
    if (!mere_name &&
        faccessat(AT_FDCWD, link, S_ISDIR(st.st_mode) ? R_OK | X_OK : R_OK, AT_EACCESS) < 0 &&
        errno == EACCES)
        found->error = errno;
    return 0;
}

static int look_up_all(const struct policy_paths *paths, bool mere_names, struct host *host,
    struct plan_host_path **ret_first) {
    *ret_first = host->paths + host->n_paths;
    for (size_t i = 0; i < paths->n; i++) {
        int r = look_up(paths->items[i].path, mere_names, &host->paths[host->n_paths++]);
        if (r < 0)
            return r;
    }
    return 0;
}

static void find_root_links(struct host *host) {
    static const char *const names[] = { "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32" };
    size_t n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        ssize_t length =
            readlink(names[i], host->link_texts[i][1], sizeof host->link_texts[i][1] - 1);
        if (length <= 0)
            continue;
        host->link_texts[i][1][length] = '\0';
        host->links[n++] = names[i];
        host->links[n++] = host->link_texts[i][1];
    }
    host->links[n] = NULL;
    host->plan.root_links = host->links;
}

/* The fifth word of each line, in which blanks and the like are three octal digits each. */
static int find_mounts(struct host *host) {
    struct buf *text = &host->mount_texts;
    size_t n = 0, lines = 0;

    if (fd_read_file("/proc/self/mountinfo", MAX_SMALL_FILE, text) < 0 ||
        (buf_add(text, "", 1), buf_failed(text)))
        return -ENOMEM;
    for (const char *at = text->data; (at = strchr(at, '\n')); at++)
        lines++;
    host->mounts = calloc(lines + 1, sizeof *host->mounts);
    if (!host->mounts)
        return -ENOMEM;
    for (char *line = text->data, *end; (end = strchr(line, '\n')); line = end + 1) {
        char *point = line, *to;

        *end = '\0';
        for (unsigned i = 0; i < 4 && point; i++)
            point = (point = strchr(point, ' ')) ? point + 1 : NULL;
        if (!point || point[strcspn(point, " ")] != ' ')
            continue;
        point[strcspn(point, " ")] = '\0';
        host->mounts[n++] = to = point;
        for (const char *from = point; *from; to++)
            if (*from == '\\' && strspn(from + 1, "01234567") >= 3) {
                *to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
                from += 4;
            } else {
                *to = *from++;
            }
        *to = '\0';
    }
    host->plan.mounts = host->mounts;
    return 0;
}

static int fake_files(struct host *host, const struct policy *policy, unsigned cpus) {
    auto_buf struct buf text = BUF_INIT;
    struct timespec now, up;

    if (fd_read_file("/proc/cpuinfo", MAX_SMALL_FILE, &text) < 0)
        text.length = 0;
    int r = proc_fake_cpuinfo(text.data ? text.data : "", text.length, cpus, &host->cpuinfo);
    text.length = 0;
    if (fd_read_file("/proc/meminfo", MAX_SMALL_FILE, &text) < 0)
        text.length = 0;
    if (r >= 0)
        r = proc_fake_meminfo(
            text.data ? text.data : "", text.length, policy->max_memory_bytes, &host->meminfo);
    clock_gettime(CLOCK_REALTIME, &now);
    clock_gettime(CLOCK_BOOTTIME, &up);
    if (r >= 0)
        r = proc_fake_stat(
            cpus, host->plan.timens ? now.tv_sec : now.tv_sec - up.tv_sec, &host->stat);
    if (r >= 0)
        r = proc_fake_loadavg(&host->loadavg);
    if (r >= 0)
        r = proc_fake_vmstat(policy->max_memory_bytes, &host->vmstat);
    host->plan.cpuinfo = host->cpuinfo.data ? host->cpuinfo.data : "";
    host->plan.meminfo = host->meminfo.data ? host->meminfo.data : "";
    host->plan.stat = host->stat.data ? host->stat.data : "";
    host->plan.vmstat = host->vmstat.data ? host->vmstat.data : "";
    host->plan.loadavg = host->loadavg.data ? host->loadavg.data : "";
    return r;
}

static int read_sysctls(struct host *host) {
    size_t n = 0;

    while (plan_sysctl_names[n])
        n++;
    host->sysctls = calloc(n + 1, sizeof *host->sysctls);
    if (!host->sysctls)
        return -ENOMEM;
    host->n_sysctls = n;
    auto_close int directory = open("/proc/sys", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < n; i++) {
        char value[512];
        auto_close int fd = openat(directory, plan_sysctl_names[i], O_RDONLY | O_CLOEXEC);
        ssize_t length = fd < 0 ? -1 : read(fd, value, sizeof value);

        if (length >= 0 && !(host->sysctls[i] = strndup(value, (size_t)length)))
            return -ENOMEM;
    }
    host->plan.sysctls = (const char *const *)host->sysctls;
    return 0;
}

static int find_masked(struct host *host) {
    size_t n = 0;

    while (plan_proc_masked[n])
        n++;
    host->proc_exists = calloc(n + 1, sizeof *host->proc_exists);
    if (!host->proc_exists)
        return -ENOMEM;
    auto_close int directory = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < n; i++)
        host->proc_exists[i] = faccessat(directory, plan_proc_masked[i], F_OK, 0) == 0;
    host->plan.proc_exists = host->proc_exists;
    return 0;
}

/* For isolation process: the entries beside a denied path. */
static int list_directory(void *data, const char *path, struct expand_entries *to) {
    DIR *directory = opendir(path);
    struct dirent *entry;
    int r = directory ? 0 : -errno;

    (void)data;
    while (r == 0 && (entry = readdir(directory))) {
        struct stat st;

        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") ||
            fstatat(dirfd(directory), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            S_ISLNK(st.st_mode))
            continue;
        r = expand_entries_add(to, entry->d_name, S_ISDIR(st.st_mode));
    }
    if (directory)
        closedir(directory);
    return r;
}

static const struct expand_lister lister = { list_directory, NULL };

/* The path of a denied file that does not exist yet, with the links of its directories resolved.
 * NULL: there is none, or out of memory. Then the policy's own path counts. */
static char *where_missing(const char *path) {
    char parent[4096], real[PATH_MAX], *whole = NULL;
    size_t length = strlen(path);

    while (length && length < sizeof parent) {
        memcpy(parent, path, length);
        parent[length] = '\0';
        if (realpath(parent, real))
            return asprintf(&whole, "%s%s", strcmp(real, "/") ? real : "", path + length) < 0
                       ? NULL
                       : whole;
        while (length && path[--length] != '/')
            ;
    }
    return NULL;
}

/* Finds the private directories, also of other engines of this user. Missing ones are left out. */
static void find_private_places(struct host *host) {
    size_t n = 0;

    for (const char *const *place = process_places(); *place && n + 1 < ARRAY_SIZE(host->places);
         place++)
        if ((host->places[n] = realpath(*place, NULL)))
            n++;
    host->plan.private_places = (const char *const *)host->places;
}

static int scan_host(struct host *host, struct engine *engine, const struct policy *policy,
    const struct image *image) {
    struct plan_host *h = &host->plan;
    struct rlimit limit;
    int r;

    h->image = image && !image->plan.places ? &image->plan : NULL;
    h->snapshot = image && image->plan.places ? &image->plan : NULL;
    h->is_root = engine->features.is_root;
    h->own_ids = engine->features.own_ids;
    h->overlay = engine->features.overlayfs && (h->is_root || engine->features.overlay_userxattr);
    h->lister = &lister;
    h->landlock_abi = engine->features.landlock ? engine->features.landlock_abi : 0;
    h->seccomp = engine->features.seccomp;
    h->timens = engine->features.timens;
    h->cgroupns = engine->features.cgroupns;
    h->nft_tproxy = engine->features.nft_tproxy;
    h->cpus = engine->features.cpus;
    bool cgroups = cgroup_root_backend(engine->cgroups) != CGROUP_NONE;
    h->memory_cgroup = h->processes_cgroup = cgroups;
    h->cpu_cgroup = cgroups && cgroup_root_has_cpu(engine->cgroups);
    /* Descriptors on their way in sockets are counted for a user as a whole, and refused to
     * processes with a smaller limit than that count: the engine's must be larger than its guests'.
     */
    h->open_files_max = getrlimit(RLIMIT_NOFILE, &limit) < 0 ? 1024 : limit.rlim_max;
    h->open_files_max -= MIN(h->open_files_max / 2, 512u);
    h->processes_max = getrlimit(RLIMIT_NPROC, &limit) < 0 ? RLIM_INFINITY : limit.rlim_max;
    host->paths = calloc(policy->fs_readable.n + policy->fs_writable.n + policy->fs_shared.n +
                             policy->fs_denied.n + 1,
        sizeof *host->paths);
    if (!host->paths)
        return -ENOMEM;
    if ((r = look_up_all(&policy->fs_readable, false, host, &h->readable)) < 0 ||
        (r = look_up_all(&policy->fs_writable, false, host, &h->writable)) < 0 ||
        (r = look_up_all(&policy->fs_shared, false, host, &h->shared)) < 0 ||
        (r = look_up_all(&policy->fs_denied, true, host, &h->denied)) < 0)
        return r;
    for (size_t i = 0; policy->isolation == POLICY_ISOLATION_PROCESS && i < policy->fs_denied.n;
         i++)
        if (!h->denied[i].real)
            h->denied[i].real = where_missing(policy->fs_denied.items[i].path);
    if (policy->isolation == POLICY_ISOLATION_PROCESS && !h->own_ids)
        find_private_places(host);
    find_root_links(host);
    if (h->overlay && h->is_root && (r = find_mounts(host)) < 0)
        return r;
    unsigned cpus = h->cpus;
    if (policy->max_cpu_milli)
        cpus = MIN(cpus, (policy->max_cpu_milli + 999) / 1000);
    if ((r = fake_files(host, policy, cpus)) < 0 || (r = read_sysctls(host)) < 0)
        return r;
    return find_masked(host);
}

static int find_volumes(
    struct host *host, const struct policy *policy, struct rollbox_error *error) {
    int r = 0;

    host->volumes = calloc(policy->volumes.n + 1, sizeof *host->volumes);
    host->plan.volumes = host->volumes;
    if (!host->volumes)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    for (size_t i = 0; r == 0 && i < policy->volumes.n; i++) {
        struct plan_host_volume *found = &host->volumes[host->n_volumes++];
        char *files = NULL;

        r = volume_lease_find(policy->volumes.items[i].name, &files, error);
        found->files = files;
        if (r == 0 && look_up(policy->volumes.items[i].path, true, &found->at) < 0)
            r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    }
    return r;
}

static int find_tmpfs(struct host *host, const struct policy *policy, struct rollbox_error *error) {
    int r = (host->tmpfs = calloc(policy->tmpfs.n + 1, sizeof *host->tmpfs)) ? 0 : -ENOMEM;

    host->plan.tmpfs = host->tmpfs;
    for (size_t i = 0; r == 0 && i < policy->tmpfs.n; i++)
        r = look_up(policy->tmpfs.items[i].path, true, &host->tmpfs[host->n_tmpfs++]);
    return r < 0
               ? error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory")
               : 0;
}

/* The store's authority is made with the first policy that needs it, and the store, too. */
static int read_certificates(
    struct engine *engine, struct buf *to, struct buf *to_java, struct rollbox_error *error) {
    auto_free char *store = NULL;
    auto_close int fd = -EBADF;
    int r = disk_upper_open_store(engine, &store, &fd, error);

    return r < 0 ? r : gateway_tls_bundle(engine, store, to, to_java, error);
}

int host_look(struct engine *engine, const struct policy *policy, const struct image *image,
    struct host **ret_host, struct rollbox_error *error) {
    struct host *host = calloc(1, sizeof *host);
    int r = host ? scan_host(host, engine, policy, image) : -ENOMEM;

    if (r == 0 && policy->disk_at == POLICY_DISK_STORE &&
        policy->isolation != POLICY_ISOLATION_PROCESS &&
        (r = disk_upper_directory(engine, &host->plan.uppers, error)) < 0) {
        host_free(host);
        return r;
    }
    if (r == 0 && ((r = find_tmpfs(host, policy, error)) < 0 ||
                      (r = find_volumes(host, policy, error)) < 0)) {
        host_free(host);
        return r;
    }
    if (r == 0 && policy->net == POLICY_NET_ALLOW && net_rules_terminate(&policy->network)) {
        r = read_certificates(engine, &host->ca_bundle, &host->ca_java, error);
        if (r < 0) {
            host_free(host);
            return r;
        }
        host->plan.ca_bundle = host->ca_bundle.data;
        host->plan.ca_java = host->ca_java.data;
        host->plan.ca_java_bytes = host->ca_java.length;
    }
    if (r < 0) {
        host_free(host);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "policy",
            "looking at the host failed: %s", strerror(-r));
    }
    *ret_host = host;
    return 0;
}

/* ---- later ---- */

/* A file or directory of the host's. A number alone may be given to another one when nobody holds
 * the first. */
struct identity {
    uint64_t device, inode;
    uint64_t born_ns; /* 0: the file system does not tell */
};

struct path_identity {
    char *path;
    char *real; /* without links, as places of the plan are named; NULL: nothing was there */
    struct identity is;
    struct identity base; /* its identity after the latest commit from here */
    size_t writable;      /* which of the policy's fs_writable it is; SIZE_MAX: none */
    int error;
};

/* No valid digest: a base to which no commit goes. */
static const struct identity nothing = { UINT64_MAX, 0, 0 };

static void look_at(struct path_identity *path_identity) {
    struct statx st;

    path_identity->is = (struct identity){ 0 };
    path_identity->error =
        statx(AT_FDCWD, path_identity->path, AT_NO_AUTOMOUNT, STATX_INO | STATX_BTIME, &st) < 0
            ? errno
            : 0;
    if (!path_identity->error)
        path_identity->is =
            (struct identity){ makedev(st.stx_dev_major, st.stx_dev_minor), st.stx_ino,
                st.stx_mask & STATX_BTIME
                    ? (uint64_t)st.stx_btime.tv_sec * 1000000000 + st.stx_btime.tv_nsec
                    : 0 };
}

static bool is_in_shared(const struct policy *policy, const char *directory) {
    for (size_t i = 0; i < policy->fs_shared.n; i++) {
        auto_free char *shared = realpath(policy->fs_shared.items[i].path, NULL);
        size_t length = shared ? strlen(shared) : 0;

        if (shared && !strncmp(directory, shared, length) &&
            (!directory[length] || directory[length] == '/'))
            return true;
    }
    return false;
}

/* Can a guest have made the present file? It can, if a part of the path lies in a shared directory,
 * also behind links. */
static int is_guests(const struct policy *policy, const char *path) {
    auto_free char *directory = policy->fs_shared.n ? strdup(path) : NULL;
    char *slash;

    if (!policy->fs_shared.n)
        return 0;
    if (!directory)
        return -ENOMEM;
    while ((slash = strrchr(directory, '/')) && slash != directory) {
        *slash = '\0';
        auto_free char *real = realpath(directory, NULL);
        if (is_in_shared(policy, directory) || (real && is_in_shared(policy, real)))
            return 1;
    }
    return 0;
}

/* A path at which there is nothing yet, if a grant has it below itself. 0 or -ENOMEM. */
static int look_for_later(
    const struct policy *policy, const char *path, struct path_identities *path_identities) {
    const struct policy_paths *granted[] = { &policy->fs_readable, &policy->fs_writable,
        &policy->fs_shared };
    auto_free char *place = where_missing(path);

    if (!place)
        place = strdup(path);
    for (size_t i = 0; place && i < ARRAY_SIZE(granted); i++)
        for (size_t k = 0; k < granted[i]->n; k++) {
            auto_free char *real = realpath(granted[i]->items[k].path, NULL);
            size_t length = real ? strlen(real) : 0;

            if (!real || strncmp(place, real, length) || place[length] != '/')
                continue;
            struct path_identity *path_identity = &path_identities->items[path_identities->n++];
            *path_identity =
                (struct path_identity){ .path = TAKE_PTR(place), .writable = SIZE_MAX };
            look_at(path_identity);
            /* Made since it was looked for: that is a change, too. */
            path_identity->error = path_identity->error ? path_identity->error : ENOENT;
            path_identity->base = path_identity->is = (struct identity){ 0 };
            return 0;
        }
    return place ? 0 : -ENOMEM;
}

/* When the host last changed a name in /etc, whose overlay remembers those that were looked up; 0:
 * there is none. */
static int64_t etc_changed(void) {
    struct stat st;

    return stat("/etc", &st) < 0 ? 0 : (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
}

/* Not the defaults, which are many and stay, and nothing that a guest could put something else in
 * the place of. */
int path_identities_scan(
    const struct policy *policy, const char *later, struct path_identities *ret_path_identities) {
    const struct policy_paths *lists[] = { &policy->fs_readable, &policy->fs_writable,
        &policy->fs_shared, &policy->fs_denied };
    struct path_identities path_identities = { 0 };
    size_t n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        n += lists[i]->n;
    path_identities.etc_changed_ns = etc_changed();
    path_identities.items = calloc(n + policy->volumes.n + 2, sizeof *path_identities.items);
    if (!path_identities.items)
        return -ENOMEM;
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        for (size_t k = 0; k < lists[i]->n; k++) {
            const struct policy_path *item = &lists[i]->items[k];

            int guests = item->optional ? 1 : is_guests(policy, item->path);
            if (guests > 0)
                continue;
            struct path_identity *path_identity = &path_identities.items[path_identities.n];
            path_identity->path = strdup(item->path);
            if (guests < 0 || !path_identity->path) {
                free(path_identity->path);
                path_identities_done(&path_identities);
                return -ENOMEM;
            }
            look_at(path_identity);
            path_identity->real = path_identity->error ? NULL : realpath(item->path, NULL);
            path_identity->base = path_identity->is;
            path_identity->writable = lists[i] == &policy->fs_writable ? k : SIZE_MAX;
            path_identities.n++;
        }
    for (size_t i = 0; i < policy->volumes.n; i++) {
        struct path_identity *item = &path_identities.items[path_identities.n];

        /* host_look says that there is none. */
        if (volume_lease_find(policy->volumes.items[i].name, &item->path, NULL) < 0)
            continue;
        look_at(item);
        item->base = item->is;
        item->writable = SIZE_MAX;
        path_identities.n++;
    }
    if (later && look_for_later(policy, later, &path_identities) < 0) {
        path_identities_done(&path_identities);
        return -ENOMEM;
    }
    *ret_path_identities = path_identities;
    return 0;
}

bool path_identities_hold(const struct path_identities *path_identities) {
    if (path_identities->is_mixed || etc_changed() != path_identities->etc_changed_ns)
        return false;
    for (size_t i = 0; i < path_identities->n; i++) {
        const struct path_identity *was = &path_identities->items[i];
        struct path_identity is = { .path = was->path };

        look_at(&is);
        if (is.error != was->error || is.is.device != was->is.device ||
            is.is.inode != was->is.inode)
            return false;
    }
    return true;
}

bool path_identities_base(const struct path_identities *path_identities, const char *path,
    uint64_t *ret_device, uint64_t *ret_inode) {
    for (size_t i = 0; i < path_identities->n; i++)
        if (path_identities->items[i].real && !strcmp(path_identities->items[i].real, path)) {
            *ret_device = path_identities->items[i].base.device;
            *ret_inode = path_identities->items[i].base.inode;
            return true;
        }
    return false;
}

/* For all profiles that see the old directory, the published one replaces it: they may commit to
 * that, too, as far as their changes do not meet. For the publisher (NULL: gone) it does in any
 * case, because the commit may have been forced. The directory that is there now is not examined:
 * it may be another one already. */
void path_identities_published(struct engine *engine, struct profile *by, const char *place,
    const struct commit_exchange *exchange) {
    struct path_identity now = { .path = (char *)place };

    look_at(&now);
    const bool is_there = now.is.device == exchange->device && now.is.inode == exchange->inode;
    const struct identity published = { exchange->device, exchange->inode,
        is_there ? now.is.born_ns : 0 };
    for (size_t i = 0; by && i < by->path_identities.n; i++) {
        auto_free char *real = by->path_identities.items[i].real
                                   ? realpath(by->path_identities.items[i].real, NULL)
                                   : NULL;

        if (real && !strcmp(real, place))
            by->path_identities.items[i].base = published;
    }
    list_for_each(node, &engine->profiles.all) {
        struct path_identities *path_identities =
            &container_of(node, struct profile, node)->path_identities;

        for (size_t i = 0; i < path_identities->n; i++)
            if (path_identities->items[i].base.device == exchange->old_device &&
                path_identities->items[i].base.inode == exchange->old_inode)
                path_identities->items[i].base = published;
    }
}

/* Numbers of devices are not the same after the next boot. */
static json_t *this_boot(void) {
    auto_buf struct buf id = BUF_INIT;
    int r = fd_read_file("/proc/sys/kernel/random/boot_id", 64, &id);

    buf_add(&id, "", 1);
    return r < 0 || buf_failed(&id) ? json_string("")
                                    : json_stringn(id.data, strcspn(id.data, "\n"));
}

/* Only of places that a commit can write to. */
json_t *path_identities_record(const struct path_identities *path_identities) {
    json_t *bases = json_array();

    for (size_t i = 0; i < path_identities->n; i++) {
        const struct path_identity *path_identity = &path_identities->items[i];

        if (path_identity->writable != SIZE_MAX &&
            json_array_append_new(bases,
                json_pack("{s:I, s:I, s:I, s:I}", "writable", (json_int_t)path_identity->writable,
                    "device", (json_int_t)path_identity->base.device, "inode",
                    (json_int_t)path_identity->base.inode, "born_ns",
                    (json_int_t)path_identity->base.born_ns)) < 0) {
            json_decref(bases);
            return NULL;
        }
    }
    return json_pack("{s:o, s:o}", "boot", this_boot(), "bases", bases);
}

/* A record that says nothing of it, as those of earlier versions, tells of no other. */
static bool is_another(
    const struct path_identity *path_identity, const json_t *record, bool same_boot) {
    const json_t *was;
    size_t i;

    json_array_foreach(json_object_get(record, "bases"), i, was) {
        const struct identity then = { (uint64_t)json_integer_value(json_object_get(was, "device")),
            (uint64_t)json_integer_value(json_object_get(was, "inode")),
            (uint64_t)json_integer_value(json_object_get(was, "born_ns")) };

        if (json_integer_value(json_object_get(was, "writable")) ==
            (json_int_t)path_identity->writable)
            return then.inode != path_identity->base.inode ||
                   (same_boot && then.device != path_identity->base.device) ||
                   (then.born_ns && path_identity->base.born_ns &&
                       then.born_ns != path_identity->base.born_ns);
    }
    return false;
}

size_t path_identities_compare(
    struct path_identities *path_identities, const json_t *record, bool marks) {
    json_t *boot = this_boot();
    const bool same_boot = boot && json_equal(boot, json_object_get(record, "boot"));
    size_t n = 0;

    for (size_t i = 0; i < path_identities->n; i++) {
        struct path_identity *path_identity = &path_identities->items[i];

        if (path_identity->writable == SIZE_MAX || !is_another(path_identity, record, same_boot))
            continue;
        n++;
        if (marks)
            path_identity->base = nothing;
    }
    json_decref(boot);
    return n;
}

static struct path_identity *path_identity_of(const struct path_identities *path_identities,
    const struct plan *plan, const struct plan_op *op) {
    if ((op->kind != PLAN_OP_BIND && op->kind != PLAN_OP_BIND_ONE) || !op->grant)
        return NULL;
    for (size_t i = 0; i < path_identities->n; i++)
        if (path_identities->items[i].real &&
            !strcmp(path_identities->items[i].real, plan_text(plan, op->source)))
            return &path_identities->items[i];
    return NULL;
}

/* The base, not what was there at first: of a retired program a commit may have put that there. */
void path_identities_expect(const struct path_identities *path_identities, struct plan *plan) {
    struct plan_op *ops = (void *)((char *)plan + plan->template_ops.offset);

    for (uint32_t i = 0; i < plan->template_ops.n; i++) {
        const struct path_identity *path_identity =
            path_identity_of(path_identities, plan, &ops[i]);

        if (path_identity) {
            ops[i].device = path_identity->base.device;
            ops[i].inode = path_identity->base.inode;
        }
    }
}

void path_identities_bound(
    struct path_identities *path_identities, const struct plan *plan, uint64_t others) {
    const struct plan_op *ops = plan_items(plan, template_ops, struct plan_op);
    unsigned n = 0;

    path_identities->is_mixed |= others != 0;
    for (uint32_t i = 0; others && i < plan->template_ops.n; i++) {
        if (!ops[i].inode)
            continue;
        struct path_identity *path_identity =
            others >> MIN(n, 63u) & 1 ? path_identity_of(path_identities, plan, &ops[i]) : NULL;
        if (path_identity)
            path_identity->base = nothing;
        n++;
    }
}

void path_identities_done(struct path_identities *path_identities) {
    for (size_t i = 0; i < path_identities->n; i++) {
        free(path_identities->items[i].path);
        free(path_identities->items[i].real);
    }
    free(path_identities->items);
    *path_identities = (struct path_identities){ 0 };
}
