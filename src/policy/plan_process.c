/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans for isolation process: no namespaces, hence no template and no mounts. The plan consists of
 * Landlock rules on the host's own paths, limits and the filter.
 *
 * If root runs rollbox, each sandbox has user ids of its own, and ordinary permissions separate it
 * from the host and from other sandboxes, in addition to Landlock. An ordinary user has only one
 * id, so the scope of the Landlock domain separates sandboxes. A kernel without that scope refuses
 * such sandboxes.
 */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "policy/compiler.h"
#include "policy/expand.h"
#include "sys/uapi.h"

/* Of /proc only what says nothing of processes: rules are about files, and which directory is the
 * reader's own is not known beforehand. */
static const char *const proc_files[] = {
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/filesystems",
    "/proc/version",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/cap_last_cap",
    "/proc/sys/kernel/ngroups_max",
    "/proc/sys/kernel/random/uuid",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/max_map_count",
};

static const char *const devices[] = { "/dev/null", "/dev/zero", "/dev/full", "/dev/random",
    "/dev/urandom", "/dev/tty" };

static const char *const grant_keys[] = { "", "fs_readable", "fs_writable", "fs_shared",
    "fs_denied" };

/* Is `path` the other or below it? */
static bool is_below(const char *path, const char *other) {
    size_t n = strlen(other);

    return !strncmp(path, other, n) && (!path[n] || path[n] == '/');
}

static int fail_missing(struct rollbox_error *error, const char *what) {
    return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
        "isolation process: %s; use isolation namespace, or take it out of the policy", what);
}

static int refuse_policy(const struct compiler *c, struct rollbox_error *error) {
    const struct policy *p = c->policy;

    if (p->fs_writable.n)
        return fail_missing(error, "fs_writable (private copy-on-write) needs a mount namespace");
    if (p->net == POLICY_NET_LOOPBACK || p->net == POLICY_NET_ALLOW)
        return fail_missing(error, p->net == POLICY_NET_ALLOW
                                       ? "net allow needs a network namespace"
                                       : "net loopback needs a network namespace");
    if (p->hostname)
        return fail_missing(error, "hostname needs a uts namespace");
    if (p->user && strcmp(p->user, "box"))
        return fail_missing(error, "user needs a user namespace");
    if (!(c->plan.flags & PLAN_LANDLOCK))
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "isolation process: landlock is missing, on which it is based; `rollbox doctor` says "
            "how to enable it");
    if (!c->host->own_ids && !(c->plan.landlock_scoped & LANDLOCK_SCOPE_SIGNAL))
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "isolation process: landlock_scope is missing (Linux 6.12 or later has it), so a "
            "sandbox could signal every process of yours; run rollbox as root, which gives each "
            "sandbox a user id of its own");
    return 0;
}

/* ---- the grants ---- */

struct grants {
    struct compiler *c;
    const char **denied;
    size_t n_denied, budget;
    uint64_t access; /* of the grant being expanded */
};

static int emit_grant(void *data, const char *path, bool directory, bool whole) {
    struct grants *g = data;

    compiler_rule(g->c, path, directory ? g->access : g->access & g->c->access_file,
        whole ? PLAN_RULE_HOST : PLAN_RULE_HOST_OPTIONAL);
    return 0;
}

/* The directory with private files of sandboxes that the grant would open, for they all have the
 * caller's id; NULL: none. */
static const char *is_opened(const struct grants *g, const char *real) {
    for (const char *const *place = g->c->host->private_places; place && *place; place++) {
        bool denied = !is_below(*place, real);

        for (size_t i = 0; i < g->n_denied && !denied; i++)
            denied = is_below(*place, g->denied[i]);
        if (!denied)
            return *place;
    }
    return NULL;
}

static int add_grant(struct grants *g, const struct policy_path *grant,
    const struct plan_host_path *found, enum plan_grant kind, struct rollbox_error *error) {
    const char *key = grant_keys[kind], *path = grant->path;

    if (found->type == PLAN_PATH_MISSING || found->error) {
        int e = found->error ? found->error : ENOENT;

        if (grant->optional)
            return 0;
        if (e == EACCES || e == EPERM)
            return error_set(error, ROLLBOX_ERR_PATH_DENIED, e, "policy",
                "%s: %s: you cannot access this path yourself, so your sandboxes cannot either; "
                "grant another path",
                key, path);
        return error_set(error, ROLLBOX_ERR_PATH_NOT_FOUND, e, "policy",
            "%s: %s: %s; create it or take it out of the policy", key, path, strerror(e));
    }
    int r = compiler_denied(g->c, key, grant, found->real, error);
    if (r)
        return MIN(r, 0);
    if (!strcmp(found->real, "/") || is_below(found->real, "/proc") ||
        is_below(found->real, "/sys") || !strcmp(found->real, "/dev") ||
        is_below(found->real, "/dev/shm") || is_below(found->real, "/dev/pts"))
        return error_set(error, ROLLBOX_ERR_POLICY_INVALID, EINVAL, "policy",
            "%s: %s: under isolation process this is the host's directory, which describes every "
            "process; name the files or directories that are needed",
            key, path);
    const char *private = is_opened(g, found->real);
    if (private)
        return error_set(error, ROLLBOX_ERR_POLICY_INVALID, EINVAL, "policy",
            "%s: %s: under isolation process, run by an ordinary user, private files of all "
            "sandboxes are below %s, and this would open them to each other; grant what is needed "
            "of it, or use isolation namespace",
            key, path, private);
    if (kind == PLAN_GRANT_SHARED && g->c->host->own_ids && !found->others_write)
        return error_set(error, ROLLBOX_ERR_PATH_DENIED, EACCES, "policy",
            "fs_shared: %s: under isolation process, run by root, a sandbox has a user id of its "
            "own, and its mode does not let others write there; allow it (chmod o+rwx), use "
            "isolation namespace, or run rollbox as its owner",
            path);
    g->access = kind == PLAN_GRANT_SHARED ? g->c->access_write : g->c->access_read;
    r = expand_grant(found->real, found->type == PLAN_PATH_DIRECTORY, g->denied, g->n_denied,
        g->c->host->lister, &g->budget, emit_grant, g);
    if (r == -E2BIG)
        return error_set(error, ROLLBOX_ERR_POLICY_INVALID, E2BIG, "policy",
            "%s: %s: the directory has more than %d entries beside the denied ones, and each needs "
            "a Landlock rule; grant the needed entries instead",
            key, path, EXPAND_MAX);
    if (r < 0 && r != -ENOMEM)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_PATH_DENIED), -r, "policy",
            "%s: %s: the directory has a denied entry, and listing its other entries failed: %s",
            key, path, strerror(-r));
    return r;
}

static int add_grants(struct compiler *c, struct rollbox_error *error) {
    const struct policy *p = c->policy;
    const struct plan_host *h = c->host;
    auto_free const char **denied = calloc(p->fs_denied.n + 1, sizeof *denied);
    struct grants g = { c, denied, 0, EXPAND_MAX, 0 };
    int r = denied ? 0 : -ENOMEM;

    /* What does not exist yet is denied all the same: the directories around it get no rule, so it
     * stays out of reach when it comes. */
    for (size_t i = 0; r == 0 && i < p->fs_denied.n; i++)
        denied[g.n_denied++] = h->denied[i].real ? h->denied[i].real : p->fs_denied.items[i].path;
    for (size_t i = 0; r == 0 && i < p->fs_readable.n; i++)
        r = add_grant(&g, &p->fs_readable.items[i], &h->readable[i], PLAN_GRANT_READABLE, error);
    for (size_t i = 0; r == 0 && i < p->fs_shared.n; i++)
        r = add_grant(&g, &p->fs_shared.items[i], &h->shared[i], PLAN_GRANT_SHARED, error);
    return r;
}

int plan_process(struct compiler *c, struct rollbox_error *error) {
    int r = refuse_policy(c, error);

    if (r < 0)
        return r;
    /* The network is shared unless refused by the filter; nothing else is the sandbox's own. */
    c->plan.flags = (c->plan.flags & (PLAN_LANDLOCK | PLAN_SECCOMP)) | PLAN_PROCESS |
                    (c->host->own_ids ? PLAN_AS_ROOT : 0);
    /* With an id of its own a sandbox's processes are counted by themselves; else with all of the
     * caller's, see run.c. */
    if (c->host->own_ids)
        compiler_limit(
            c, RLIMIT_NPROC, MIN((uint64_t)c->policy->max_processes, c->host->processes_max), 0);
    compiler_limit(c, RLIMIT_FSIZE, c->policy->max_disk_bytes, 0);
    compiler_rule(c, "(private files)", c->access_write, PLAN_RULE_PRIVATE);
    for (size_t i = 0; i < ARRAY_SIZE(devices); i++)
        compiler_rule(c, devices[i], c->access_file & ~(uint64_t)LANDLOCK_ACCESS_FS_EXECUTE,
            PLAN_RULE_HOST_OPTIONAL);
    for (size_t i = 0; i < ARRAY_SIZE(proc_files); i++)
        compiler_rule(c, proc_files[i], LANDLOCK_ACCESS_FS_READ_FILE, PLAN_RULE_HOST_OPTIONAL);
    return add_grants(c, error);
}

/* ---- in words ---- */

void plan_process_explain(const struct plan *plan, struct buf *to) {
    buf_add_text(to, "# sandbox: processes of the host without namespaces; private files in a "
                     "directory that is removed with it\n");
    if (plan->flags & PLAN_AS_ROOT)
        buf_add_text(to, "\n# then: two unprivileged user ids of its own, one for its init and one "
                         "for what it runs, all capabilities dropped, no_new_privs\n");
    else
        buf_add_text(to, "\n# then: as the caller, all capabilities dropped, no_new_privs\n");
}

void plan_process_isolation(const struct plan *plan, const struct plan_host *host,
    const struct policy *policy, const char *cgroup, struct buf *to) {
    static const char *const nets[] = { "none", "loopback", "allow", "host" };
    bool own_ids = plan->flags & PLAN_AS_ROOT;

    buf_printf(to,
        "{\"level\": \"process\", \"namespaces\": [], \"landlock_abi\": %d, \"seccomp\": %s, "
        "\"no_new_privs\": true, \"capabilities\": [], ",
        host->landlock_abi, plan->flags & PLAN_SECCOMP ? "true" : "false");
    buf_printf(to, "\"net\": \"%s\", \"host_user\": \"%s\", \"signal_scope\": %s, ",
        nets[policy->net], own_ids ? "unprivileged range" : "caller",
        plan->landlock_scoped & LANDLOCK_SCOPE_SIGNAL ? "true" : "false");
    buf_add_text(
        to, "\"not_isolated\": [\"process ids\", \"file names\", \"hostname\", \"uptime\"], ");
    buf_printf(to,
        "\"limits\": {\"memory\": \"%s\", \"processes\": \"%s\", \"cpu\": \"%s\", \"disk\": "
        "\"rlimit and watcher\", \"open_files\": \"rlimit\"}}",
        host->memory_cgroup ? cgroup : "watcher",
        host->processes_cgroup ? cgroup
        : own_ids              ? "rlimit"
                               : "rlimit and watcher",
        !policy->max_cpu_milli ? "none"
        : host->cpu_cgroup     ? cgroup
                               : "affinity");
}
