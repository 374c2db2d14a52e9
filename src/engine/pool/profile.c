/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Profiles: policies compiled for this host, found again by their text.
 *
 * A profile is *warm* while it has a launcher: processes and mounts. Up to MAX_WARM idle profiles
 * stay warm. Beyond that the one least recently used is cooled down: its next run takes the time to
 * build the template again. A cold profile is only some memory, and MAX_PROGRAMS of them are kept.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/wire.h"
#include "engine/box/box.h"
#include "engine/box/cgroup_lease.h"
#include "engine/box/launcher.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/core/many_ids.h"
#include "engine/pool/host_view.h"
#include "engine/pool/profile.h"
#include "engine/pool/profile_launcher.h"
#include "engine/store_job/store_job.h"
#include "engine/pool/spares.h"
#include "engine/box/disk_upper.h"
#include "store/store.h"

#define MAX_WARM 64
#define MAX_SECRETS (1u << 20) /* bytes, of a policy */
#define MAX_PROGRAMS 8192
#define MAX_PROGRAM_BYTES                                                                          \
    (64u << 20) /* of their texts together; the plans take a few times that                        \
                 */

static void trim_slots(struct profile *profile, unsigned keep) {
    list_for_each(node, &profile->slots)
        if (keep)
            keep--;
        else
            cgroup_lease_free(container_of(node, struct cgroup_lease, node));
}

static void drop_idle(struct profile *profile) {
    spares_drop(profile);
    trim_slots(profile, 0);
    if (profile->launcher)
        launcher_drop_free(profile->launcher);
}

static void tidy_profile(struct profile *profile) {
    trim_slots(profile, profile->n_running || profile->n_spares
                            ? MAX(profile->n_running, profile->engine->features.cpus)
                            : 0);
}

/* Of all programs, those that interpreters have included. */
static void for_all(struct engine *engine, void (*action)(struct profile *)) {
    list_for_each(node, &engine->profiles.all) {
        struct profile *profile = container_of(node, struct profile, node),
                       *twin = profile->code.twin;

        action(profile);
        if (twin)
            action(twin);
    }
}

void profile_drop_spares(struct engine *engine) {
    for_all(engine, drop_idle);
    engine->hooks.drop_zygotes(engine);
}

void profile_tidy(struct engine *engine) {
    for_all(engine, tidy_profile);
}

static bool has_busy_interpreter(const struct profile *profile) {
    return profile->code.twin && profile->code.twin->n_running;
}

static void drop_interpreter(struct profile *profile) {
    if (profile->code.interpreter)
        profile->code.free_interpreter(profile->code.interpreter);
}

static bool is_waited_for(const struct profile *profile) {
    return profile->n_running || profile->sessions.n || profile->sessions.n_wakers ||
           has_busy_interpreter(profile);
}

static void cool_down(struct profile *profile) {
    drop_interpreter(profile);
    profile->code.n_runs = 0;
    spares_drop(profile);
    profile_stop_launcher(profile);
    close_fd(&profile->user_namespace.fd);
    trim_slots(profile, 0);
}

static void forget_idle(struct engine *engine, const struct profile *newest) {
    struct profile *oldest = NULL, *oldest_warm = NULL;
    unsigned n = 0, n_warm = 0;
    size_t bytes = 0;

    list_for_each(node, &engine->profiles.all) {
        struct profile *profile = container_of(node, struct profile, node);

        n++;
        bytes += profile->key.length;
        if (is_waited_for(profile) || profile == newest)
            continue;
        if (!profile->sessions.n_sleepers && (!oldest || profile->used_ns < oldest->used_ns))
            oldest = profile;
        if (!profile->launcher)
            continue;
        n_warm += 1 + (profile->code.interpreter != NULL);
        if (!oldest_warm || profile->used_ns < oldest_warm->used_ns)
            oldest_warm = profile;
    }
    if (n_warm > MAX_WARM)
        cool_down(oldest_warm);
    if ((n > MAX_PROGRAMS || bytes > MAX_PROGRAM_BYTES) && oldest) {
        profile_free(oldest);
        forget_idle(engine, newest);
    }
}

static int parse_policy(
    const char *text, size_t length, struct policy **ret_policy, struct rollbox_error *error) {
    struct policy_problems problems = { 0 };
    int r = policy_parse(text, length, ret_policy, &problems);

    if (r < 0 && problems.n)
        error_set(error, ROLLBOX_ERR_POLICY_INVALID, -r, "policy", "line %u: %s%s%s",
            problems.items[0].line, problems.items[0].key, problems.items[0].key[0] ? ": " : "",
            problems.items[0].message);
    else if (r < 0)
        error_set(error, error_code_of(-r, ROLLBOX_ERR_POLICY_INVALID), -r, "policy",
            "the policy cannot be read: %s", strerror(-r));
    policy_problems_done(&problems);
    return r;
}

/* Refuses a policy that needs a feature which this kernel or user lacks. Landlock is a second
 * layer: if it is missing, the result tells it. */
static int check_features(
    const struct features *features, const struct policy *policy, struct rollbox_error *error) {
    static const enum feature always[] = { FEATURE_USERNS, FEATURE_PIDNS, FEATURE_PROC_MOUNT,
        FEATURE_MOUNTNS, FEATURE_PIVOT_ROOT, FEATURE_IPCNS, FEATURE_UTSNS, FEATURE_SECCOMP,
        FEATURE_OPENAT2, FEATURE_CLOSE_RANGE, FEATURE_PIDFD, FEATURE_MOUNT_API };
    static const enum feature process[] = { FEATURE_LANDLOCK, FEATURE_SECCOMP, FEATURE_OPENAT2,
        FEATURE_CLOSE_RANGE, FEATURE_PIDFD };
    bool is_process = policy->isolation == POLICY_ISOLATION_PROCESS;
    enum feature missing = FEATURE_COUNT;

    if (is_process && !features->uid && !features->own_ids)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "isolation process: own_ids is missing: root without CAP_SETUID, CAP_SETGID and "
            "CAP_CHOWN, or in a user namespace that maps few ids, cannot give sandboxes ids of "
            "their own, and they are never root; "
            "grant these, or run rollbox as an ordinary user");
    for (size_t i = 0; is_process && i < ARRAY_SIZE(process) && missing == FEATURE_COUNT; i++)
        if (!feature_get(features, process[i]))
            missing = process[i];
    if (missing == FEATURE_COUNT && is_process && features->uid && !features->landlock_scope)
        missing = FEATURE_LANDLOCK_SCOPE;
    for (size_t i = 0; !is_process && i < ARRAY_SIZE(always) && missing == FEATURE_COUNT; i++)
        if (!feature_get(features, always[i]))
            missing = always[i];
    if (missing == FEATURE_COUNT && !is_process && policy->net != POLICY_NET_HOST &&
        !features->netns)
        missing = FEATURE_NETNS;
    if (missing == FEATURE_COUNT && !is_process && !features->uid && !features->is_root &&
        features->has_all_ids)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "isolation namespace: root without CAP_SYS_ADMIN cannot give sandboxes ids of their "
            "own, and they are never root; "
            "run as an ordinary user (docker run --user 1000), give the container users of its own "
            "(hostUsers: false), or "
            "use isolation process");
    if (missing == FEATURE_COUNT && !is_process &&
        (policy->fs_writable.n || policy->image || policy->disk_at == POLICY_DISK_STORE) &&
        !features->overlayfs)
        missing = FEATURE_OVERLAYFS;
    if (missing == FEATURE_COUNT && !is_process &&
        (policy->fs_writable.n || policy->image || policy->disk_at == POLICY_DISK_STORE) &&
        !features->is_root && !features->overlay_userxattr)
        missing = FEATURE_OVERLAY_USERXATTR;
    if (missing == FEATURE_COUNT && !is_process &&
        (policy->fs_writable.n || policy->fs_shared.n || policy->image || policy->volumes.n) &&
        features->is_root && !features->idmapped_mounts)
        missing = FEATURE_IDMAPPED_MOUNTS;
    if (missing == FEATURE_COUNT && !features->cgroup_v1 && !features->cgroup_v2 &&
        !features->proc_children)
        missing = FEATURE_PROC_CHILDREN;
    if (missing == FEATURE_COUNT)
        return 0;
    return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
        "%s is missing (needed for %s): %s", feature_name(missing), feature_needed_for(missing),
        feature_hint(missing));
}

static int ensure_many_ids(
    struct engine *engine, const struct policy *policy, struct rollbox_error *error) {
    const bool is_process = policy->isolation == POLICY_ISOLATION_PROCESS;

    if (!policy->many_users || is_process || engine->features.is_root)
        return 0;
    if (!engine->features.uid)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "users many: root without CAP_SYS_ADMIN, or in a user namespace that maps few ids, has "
            "no ids to give; grant these, or run rollbox as an ordinary user");
    if (!engine->features.subids)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "users many: %s is missing: %s", feature_name(FEATURE_SUBIDS),
            feature_hint(FEATURE_SUBIDS));
    return many_ids_make(engine, error);
}

/* The store has other sandboxes' files, and memory of those that sleep: no grant of what is above
 * it is meant for that. *ret_later: where it will be, if it is not there yet, for the caller to
 * free; else NULL. */
static int deny_store(
    struct engine *engine, struct policy *policy, char **ret_later, struct rollbox_error *error) {
    auto_free char *path = NULL;
    const char *uppers;
    int r = 0;

    /* Made, where there is none yet, before it is looked for. */
    if (policy->disk_at == POLICY_DISK_STORE && policy->isolation != POLICY_ISOLATION_PROCESS)
        r = disk_upper_directory(engine, &uppers, error);
    if (r < 0 || store_default_path(&path, NULL) < 0)
        return r;
    auto_free char *real = realpath(path, NULL);
    if (real && policy_deny(policy, real) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    *ret_later = real ? NULL : TAKE_PTR(path);
    return 0;
}

static int compile_policy(struct engine *engine, const char *text, size_t length,
    struct policy **ret_policy, struct plan **ret_plan, struct image **ret_image,
    struct path_identities *ret_path_identities, char **ret_isolation,
    struct rollbox_error *error) {
    struct policy *policy = NULL;
    struct image *image = NULL;
    struct host *host = NULL;
    struct buf isolation = BUF_INIT;
    struct path_identities path_identities = { 0 };
    auto_free char *later = NULL;
    int r = parse_policy(text, length, &policy, error);

    if (r < 0)
        return r;
    policy_fit(policy, engine->features.cpus);
    r = check_features(&engine->features, policy, error);
    if (r == 0)
        r = ensure_many_ids(engine, policy, error);
    if (r == 0)
        r = python_grant(policy, error);
    if (r == 0)
        r = devices_resolve(policy, error);
    if (r == 0)
        r = deny_store(engine, policy, &later, error);
    /* Before anything is found at these paths: what comes between is seen by the next look. */
    if (r == 0 && (r = path_identities_scan(policy, later, &path_identities)) < 0)
        error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -r, "policy", "out of memory");
    if (r == 0 && policy->image)
        r = image_get(engine, policy, &image, error);
    if (r == 0)
        r = host_look(engine, policy, image, &host, error);
    if (r == 0)
        r = plan_compile(policy, host_plan(host), ret_plan, error);
    if (r < 0) {
        host_free(host);
        image_free(image);
        path_identities_done(&path_identities);
        policy_free(policy);
        return r;
    }
    plan_isolation(*ret_plan, host_plan(host), policy,
        cgroup_backend_name(cgroup_root_backend(engine->cgroups)), &isolation);
    host_free(host);
    *ret_isolation = buf_take(&isolation);
    *ret_policy = policy;
    *ret_image = image;
    *ret_path_identities = path_identities;
    return 0;
}

static int make_key(
    const char *text, size_t length, const char *const *caller_environment, struct buf *to) {
    buf_add(to, text, length);
    for (; caller_environment && *caller_environment; caller_environment++)
        buf_add(to, *caller_environment, strlen(*caller_environment) + 1);
    return buf_failed(to) ? -ENOMEM : 0;
}

static struct profile *profile_new(
    struct engine *engine, char *take_key, size_t key_length, size_t text_length) {
    struct profile *profile = calloc(1, sizeof *profile);

    if (!profile) {
        free(take_key);
        return NULL;
    }
    profile->engine = engine;
    profile->user_namespace.fd = -EBADF;
    profile->values.secrets = -EBADF;
    list_init(&profile->node);
    list_init(&profile->spares);
    list_init(&profile->slots);
    list_init(&profile->kept);
    profile->key.text = take_key;
    profile->key.length = key_length;
    profile->key.policy_length = text_length;
    return profile;
}

/* The environment that is part of the key; NULL if there is none. The array is the caller's. */
static int key_environment(const struct profile *profile, const char ***ret_environment) {
    const char *end = profile->key.text + profile->key.length;
    size_t n = 0;

    for (const char *at = profile->key.text + profile->key.policy_length; at < end;
         at += strlen(at) + 1)
        n++;
    *ret_environment = NULL;
    if (!n)
        return 0;
    const char **environment = calloc(n + 1, sizeof *environment);
    if (!environment)
        return -ENOMEM;
    n = 0;
    for (const char *at = profile->key.text + profile->key.policy_length; at < end;
         at += strlen(at) + 1)
        environment[n++] = at;
    *ret_environment = environment;
    return 0;
}

static int profile_compile(
    struct profile *profile, const char *const *caller_environment, struct rollbox_error *error) {
    int r = compile_policy(profile->engine, profile->key.text, profile->key.policy_length,
        &profile->policy, &profile->plan, &profile->image, &profile->path_identities,
        &profile->isolation, error);

    if (r < 0)
        return r;
    plan_environment(profile->policy, caller_environment, &profile->values.environment);
    return profile->isolation && !buf_failed(&profile->values.environment)
               ? 0
               : error_set(
                     error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
}

/* ---- secrets ---- */

/* Clients with the same policy and other secrets have profiles of their own: a sandbox must not
 * use another client's. */
static bool same_secrets(int a, int b) {
    void *data[2] = { NULL, NULL };
    size_t length[2] = { 0, 0 };
    bool same = false;

    if (a < 0 || b < 0)
        return a < 0 && b < 0;
    if (fd_map_memory_file(a, MAX_SECRETS, &data[0], &length[0]) == 0 &&
        fd_map_memory_file(b, MAX_SECRETS, &data[1], &length[1]) == 0)
        same = length[0] == length[1] && length[0] > 0 && !memcmp(data[0], data[1], length[0]);
    for (size_t i = 0; i < 2; i++)
        if (data[i])
            munmap(data[i], length[i]);
    return same;
}

static int keep_secrets(struct profile *profile, int secrets, struct rollbox_error *error) {
    if (secrets < 0)
        return 0;
    profile->values.secrets = fcntl(secrets, F_DUPFD_CLOEXEC, 3);
    return profile->values.secrets < 0
               ? error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, errno, "policy",
                     "the secrets cannot be kept: %s", strerror(errno))
               : 0;
}

/* ---- replaced directories ---- */

/* One directory, of all programs whose sandboxes see it. */
struct replaced {
    unsigned references;
    int fd;             /* its lock: as long as it is open nobody sweeps the directory */
    char *place, *path; /* where it was, and is */
};

struct kept {
    struct list node;
    struct replaced *replaced; /* a reference */
};

static void replaced_put(struct engine *engine, struct replaced *replaced) {
    if (!replaced || --replaced->references)
        return;
    /* A fork of ours that was made just now may have it still. */
    if (replaced->fd >= 0)
        (void)flock(replaced->fd, LOCK_UN);
    close_fd(&replaced->fd);
    if (replaced->path && *replaced->path)
        (void)store_job_sweep(engine, replaced->path);
    free(replaced->place);
    free(replaced->path);
    free(replaced);
}

static struct replaced *replaced_new(int take_fd, const char *place, const char *path) {
    auto_close int fd = take_fd;
    struct replaced *replaced = calloc(1, sizeof *replaced);

    if (!replaced)
        return NULL;
    *replaced = (struct replaced){
        .references = 1, .fd = TAKE_FD(fd), .place = strdup(place), .path = strdup(path)
    };
    return replaced;
}

/* A running program sees the file that was at a place when the program began. If the file was
 * replaced several times, that is the first one. */
static bool sees_older(const struct profile *profile, const char *place) {
    list_for_each(node, &profile->kept) {
        const struct replaced *replaced = container_of(node, struct kept, node)->replaced;

        if (replaced->place && !strcmp(replaced->place, place))
            return true;
    }
    return false;
}

static void keep_replaced(struct profile *profile, struct replaced *replaced) {
    struct kept *kept = malloc(sizeof *kept);

    if (!kept)
        return; /* the next commit sweeps it */
    list_init(&kept->node);
    kept->replaced = replaced;
    replaced->references++;
    list_add_tail(&profile->kept, &kept->node);
}

static void let_go(struct profile *profile) {
    list_for_each(node, &profile->kept) {
        struct kept *kept = container_of(node, struct kept, node);

        list_remove(node);
        replaced_put(profile->engine, kept->replaced);
        free(kept);
    }
}

static bool has_below(const struct plan *plan, const char *path) {
    const struct plan_op *ops = plan_items(plan, template_ops, struct plan_op);
    size_t length = strlen(path);

    for (uint32_t i = 0; i < plan->template_ops.n; i++) {
        const char *source = plan_text(plan, ops[i].source);

        if ((ops[i].kind == PLAN_OP_BIND || ops[i].kind == PLAN_OP_BIND_ONE) && ops[i].source &&
            !strncmp(source, path, length) && (source[length] == '/' || !source[length]))
            return true;
    }
    return false;
}

/* The same compiled again, for the host as it is. */
static int compile_again(
    const struct profile *profile, struct profile **ret_next, struct rollbox_error *error) {
    auto_free const char **environment = NULL;
    char *key = malloc(profile->key.length + 1);

    if (key)
        memcpy(key, profile->key.text, profile->key.length + 1);
    struct profile *next =
        key ? profile_new(profile->engine, key, profile->key.length, profile->key.policy_length)
            : NULL;
    if (!next || key_environment(next, &environment) < 0) {
        if (next)
            profile_free(next);
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    }
    int r = keep_secrets(next, profile->values.secrets, error);
    if (r == 0)
        r = profile_compile(next, environment, error);
    if (r < 0)
        profile_free(next);
    else
        *ret_next = next;
    return r;
}

/* A new profile (NULL: none) takes its number and its key; running boxes stay with the old one,
 * which may be freed here. */
static void retire_profile(struct profile *profile, struct profile *next) {
    if (next) {
        next->number = profile->number;
        next->used_ns = clock_now_ns();
        list_add_tail(&profile->engine->profiles.all, &next->node);
    }
    profile->number = 0;
    spares_drop(profile);
    if (!has_busy_interpreter(profile))
        drop_interpreter(profile);
    profile_leave(profile);
}

int profile_renew(struct profile **profile, struct rollbox_error *error) {
    struct profile *next;

    const struct image *image = (*profile)->image;
    if (path_identities_hold(&(*profile)->path_identities) &&
        (!image || image_is_current(image, (*profile)->policy->image)))
        return 0;
    int r = compile_again(*profile, &next, error);
    if (r < 0)
        return r; /* it stays, because the host may get the missing part later */
    retire_profile(*profile, next);
    *profile = next;
    return 0;
}

/* One that was retired would see other directories when it starts again. */
void profile_rest(struct profile *profile) {
    if (profile->number && !is_waited_for(profile))
        cool_down(profile);
}

void profile_leave(struct profile *profile) {
    if (!profile->number && !profile->serves && !profile->sessions.n &&
        !profile->sessions.n_sleepers && !profile->n_running && !has_busy_interpreter(profile))
        profile_free(profile);
}

void profile_retire(struct engine *engine, const char *path, int take_fd, const char *kept) {
    struct replaced *replaced = replaced_new(take_fd, path, kept);
    unsigned n = 0;

    list_for_each(node, &engine->profiles.all) {
        struct profile *profile = container_of(node, struct profile, node);

        n++;
        if (replaced && has_below(profile->plan, path) && !sees_older(profile, path))
            keep_replaced(profile, replaced);
    }
    /* The new ones are added at the end. */
    list_for_each(node, &engine->profiles.all) {
        struct profile *profile = container_of(node, struct profile, node);

        if (!n--)
            break;
        if (profile->number && has_below(profile->plan, path)) {
            struct rollbox_error error;
            struct profile *next;

            /* Without one, clients that use the plan have to prepare it again, and then get the
             * reason of the failure. */
            retire_profile(profile, compile_again(profile, &next, &error) < 0 ? NULL : next);
        }
    }
    replaced_put(engine, replaced);
}

int profile_get(struct engine *engine, const char *text, size_t length,
    const char *const *caller_environment, int secrets, struct profile **ret_profile,
    struct rollbox_error *error) {
    struct buf key = BUF_INIT;

    if (make_key(text, length, caller_environment, &key) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    list_for_each(node, &engine->profiles.all) {
        struct profile *known = container_of(node, struct profile, node);

        if (known->number && known->key.length == key.length &&
            !memcmp(known->key.text, key.data, key.length) &&
            same_secrets(known->values.secrets, secrets)) {
            buf_done(&key);
            int r = profile_renew(&known, error);
            if (r < 0)
                return r;
            known->used_ns = clock_now_ns();
            *ret_profile = known;
            return 0;
        }
    }
    size_t key_length = key.length;
    char *whole = buf_take(&key);
    struct profile *profile = whole ? profile_new(engine, whole, key_length, length) : NULL;
    if (!profile)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    int r = keep_secrets(profile, secrets, error);
    if (r == 0)
        r = profile_compile(profile, caller_environment, error);
    /* The template is built before the first command of the client arrives; the runs report an
     * error of it. */
    if (r == 0)
        r = profile_start_launcher(profile, error);
    if (r < 0) {
        profile_free(profile);
        return r;
    }
    profile->number = ++engine->profiles.next_number;
    profile->used_ns = clock_now_ns();
    list_add_tail(&engine->profiles.all, &profile->node);
    forget_idle(engine, profile);
    *ret_profile = profile;
    return 0;
}

struct profile *profile_twin(const struct profile *of, struct rollbox_error *error) {
    auto_free const char **environment = NULL;
    struct engine *engine = of->engine;
    char *key = malloc(of->key.length + 1);

    if (key)
        memcpy(key, of->key.text, of->key.length + 1);
    struct profile *profile =
        key ? profile_new(engine, key, of->key.length, of->key.policy_length) : NULL;
    if (!profile)
        return NULL;
    if (key_environment(profile, &environment) < 0 ||
        keep_secrets(profile, of->values.secrets, error) < 0 ||
        profile_compile(profile, environment, error) < 0)
        return profile_free(profile);
    return profile;
}

int profile_of_before(
    struct profile **profile, const json_t *path_identities, struct rollbox_error *error) {
    if (!path_identities_compare(&(*profile)->path_identities, path_identities, false))
        return 0;
    int r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    struct profile *own = profile_twin(*profile, error);
    if (!own)
        return r;
    (void)path_identities_compare(&own->path_identities, path_identities, true);
    own->used_ns = clock_now_ns();
    list_add_tail(&own->engine->profiles.all, &own->node);
    *profile = own;
    return 0;
}

struct profile *profile_find(struct engine *engine, uint64_t number) {
    list_for_each(node, &engine->profiles.all) {
        struct profile *profile = container_of(node, struct profile, node);

        if (number && profile->number == number) {
            profile->used_ns = clock_now_ns();
            return profile;
        }
    }
    return NULL;
}

int profile_explain(struct engine *engine, const char *text, size_t length, struct buf *to,
    struct rollbox_error *error) {
    struct policy *policy = NULL;
    auto_free struct plan *plan = NULL;
    auto_free char *isolation = NULL;
    struct image *image = NULL;
    struct path_identities path_identities;
    int r = compile_policy(
        engine, text, length, &policy, &plan, &image, &path_identities, &isolation, error);

    if (r < 0)
        return r;
    image_free(image);
    path_identities_done(&path_identities);
    plan_explain(plan, policy, to);
    net_rules_explain(policy, to);
    policy_free(policy);
    return 0;
}

/* After boxes, which point here, are gone or no longer do. */
struct profile *profile_free(struct profile *profile) {
    list_for_each(node, &profile->engine->boxes.all) {
        struct box *box = container_of(node, struct box, node);

        if (box->profile == profile)
            box_orphan(box);
    }
    cool_down(profile);
    let_go(profile);
    list_remove(&profile->node);
    close_fd(&profile->values.secrets);
    policy_free(profile->policy);
    image_free(profile->image);
    path_identities_done(&profile->path_identities);
    free(profile->plan);
    free(profile->key.text);
    free(profile->isolation);
    buf_done(&profile->values.environment);
    free(profile);
    return NULL;
}

/* A policy in use gets boxes ahead of need: one for the next of its sessions, and for its runs as
 * many as it has had running at once, up to the number of CPUs. A one-off run or session pays for
 * none. */
int profile_keep_spares(struct profile *profile) {
    unsigned wanted = profile->n_runs < 2
                          ? profile->sessions.n_created > 1
                          : MIN(MAX(profile->n_running, 1u), profile->engine->features.cpus);
    struct rollbox_error error;

    /* A spare would have the volumes mounted, and the first one of two would have them alone. */
    if (profile->policy->volumes.n)
        return 0;
    while (profile->n_spares < wanted && !profile->engine->stopping &&
           !profile->engine->runs.n_queued && box_has_room(profile->engine)) {
        struct box *box;
        int r = profile_new_box(profile, &(struct box_config){ 0 }, NULL, NULL, &box, &error);

        if (r < 0)
            return r; /* the next run will meet the same and tell it */
        spares_add(box);
    }
    return 0;
}

/* "NAME" of "NAME=value" is the same. */
static bool same_name(const char *a, const char *b) {
    size_t n = strcspn(a, "=");

    return !strncmp(a, b, n) && b[n] == '=';
}

static bool named_in(const char *entry, const char *const *entries, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (same_name(entry, entries[i]))
            return true;
    return false;
}

/* The policy's environment, then which clone it is, then the request's; of two with one name the
 * later. How many are the request's. */
size_t profile_add_environment(struct buf *to, const struct profile *profile, int64_t clone_id,
    const char *const *entries, size_t n) {
    char clone[40] = "";
    const char *end = profile->values.environment.data + profile->values.environment.length;

    if (clone_id >= 0)
        snprintf(clone, sizeof clone, "CLONE_ID=%lld", (long long)clone_id);
    for (const char *entry = profile->values.environment.data; entry < end;
         entry += strlen(entry) + 1) {
        bool replaced = named_in(entry, entries, n) || same_name(entry, clone);

        for (const char *later = entry + strlen(entry) + 1; !replaced && later < end;
             later += strlen(later) + 1)
            replaced = same_name(entry, later);
        if (!replaced)
            wire_add_text(to, GUEST_ENV, entry);
    }
    if (clone[0] && !named_in(clone, entries, n))
        wire_add_text(to, GUEST_ENV, clone);
    size_t own = 0;
    for (size_t i = 0; i < n; i++)
        if (!named_in(entries[i], entries + i + 1, n - i - 1)) {
            wire_add_text(to, GUEST_ENV, entries[i]);
            own++;
        }
    return own;
}
