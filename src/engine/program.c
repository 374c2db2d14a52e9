/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs: policies compiled for this host, found again by their text.
 *
 * A program is *warm* while it has a launcher: processes and mounts. Up to MAX_WARM idle ones stay so; then the one least recently used is cooled down, which costs its next run the time of building
 * the template again. What is left is some memory, and kept for MAX_PROGRAMS.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/session.h"
#include "engine/upper.h"
#include "store/store.h"

#define MAX_WARM 64
#define MAX_PROGRAMS 8192
#define MAX_PROGRAM_BYTES (64u << 20)   /* of their texts together; what is compiled takes a few times that */

void program_drop_spares_of(struct program *program) {
    list_for_each(node, &program->spares)
        box_kill(container_of(node, struct box, in_program));
}

static void trim_slots(struct program *program, unsigned keep) {
    list_for_each(node, &program->slots)
        if (keep)
            keep--;
        else
            slot_free(container_of(node, struct slot, node));
}

static void drop_idle(struct program *program) {
    program_drop_spares_of(program);
    trim_slots(program, 0);
    if (program->launcher)
        launcher_drop_free(program->launcher);
}

static void tidy(struct program *program) {
    trim_slots(program, program->n_running || program->n_spares ? MAX(program->n_running, program->engine->features.cpus) : 0);
}

/* Of all programs, those that interpreters have included. */
static void for_all(struct engine *engine, void (*action)(struct program *)) {
    list_for_each(node, &engine->programs) {
        struct program *program = container_of(node, struct program, node), *twin = interpreter_twin(program->interpreter);

        action(program);
        if (twin)
            action(twin);
    }
}

void program_drop_spares(struct engine *engine) {
    for_all(engine, drop_idle);
    live_drop_holders(engine);
}

void program_tidy(struct engine *engine) {
    for_all(engine, tidy);
}

static bool is_waited_for(const struct program *program) {
    return program->n_running || program->n_sessions || program->n_wakers || interpreter_is_busy(program->interpreter);
}

static void cool_down(struct program *program) {
    program->interpreter = interpreter_free(program->interpreter);
    program->n_codes = 0;
    program_drop_spares_of(program);
    if (program->launcher)
        launcher_stop(program->launcher);
    close_fd(&program->user_namespace);
    trim_slots(program, 0);
}

static void forget_idle(struct engine *engine, const struct program *newest) {
    struct program *oldest = NULL, *oldest_warm = NULL;
    unsigned n = 0, n_warm = 0;
    size_t bytes = 0;

    list_for_each(node, &engine->programs) {
        struct program *program = container_of(node, struct program, node);

        n++;
        bytes += program->key_length;
        if (is_waited_for(program) || program == newest)
            continue;
        if (!program->n_sleepers && (!oldest || program->used_ns < oldest->used_ns))
            oldest = program;
        if (!program->launcher)
            continue;
        n_warm += 1 + (program->interpreter != NULL);
        if (!oldest_warm || program->used_ns < oldest_warm->used_ns)
            oldest_warm = program;
    }
    if (n_warm > MAX_WARM)
        cool_down(oldest_warm);
    if ((n > MAX_PROGRAMS || bytes > MAX_PROGRAM_BYTES) && oldest) {
        program_free(oldest);
        forget_idle(engine, newest);
    }
}

static int parse(const char *text, size_t length, struct policy **ret_policy, struct rollbox_error *error) {
    struct policy_problems problems = { 0 };
    int r = policy_parse(text, length, ret_policy, &problems);

    if (r < 0 && problems.n)
        error_set(error, ROLLBOX_ERR_POLICY_INVALID, -r, "policy", "line %u: %s%s%s", problems.items[0].line, problems.items[0].key, problems.items[0].key[0] ? ": " : "", problems.items[0].message);
    else if (r < 0)
        error_set(error, error_code_of(-r, ROLLBOX_ERR_POLICY_INVALID), -r, "policy", "the policy cannot be read: %s", strerror(-r));
    policy_problems_done(&problems);
    return r;
}

/* What a policy cannot do without, and this kernel or user does not have. Landlock is a second layer: where it is missing the result says so. */
static int check_features(const struct features *features, const struct policy *policy, struct rollbox_error *error) {
    static const enum feature always[] = { FEATURE_USERNS, FEATURE_PIDNS, FEATURE_PROC_MOUNT, FEATURE_MOUNTNS, FEATURE_PIVOT_ROOT, FEATURE_IPCNS, FEATURE_UTSNS, FEATURE_SECCOMP, FEATURE_OPENAT2,
                                           FEATURE_CLOSE_RANGE, FEATURE_PIDFD, FEATURE_MOUNT_API };
    static const enum feature process[] = { FEATURE_LANDLOCK, FEATURE_SECCOMP, FEATURE_OPENAT2, FEATURE_CLOSE_RANGE, FEATURE_PIDFD };
    bool is_process = policy->isolation == POLICY_ISOLATION_PROCESS;
    enum feature missing = FEATURE_COUNT;

    if (is_process && !features->uid && !features->own_ids)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
                         "isolation process: own_ids is missing: root without CAP_SETUID, CAP_SETGID and CAP_CHOWN, or in a user namespace that maps few ids, cannot give sandboxes ids of their own, and they are never root; "
                         "grant these, or run rollbox as an ordinary user");
    for (size_t i = 0; is_process && i < ARRAY_SIZE(process) && missing == FEATURE_COUNT; i++)
        if (!feature_get(features, process[i]))
            missing = process[i];
    if (missing == FEATURE_COUNT && is_process && features->uid && !features->landlock_scope)
        missing = FEATURE_LANDLOCK_SCOPE;
    for (size_t i = 0; !is_process && i < ARRAY_SIZE(always) && missing == FEATURE_COUNT; i++)
        if (!feature_get(features, always[i]))
            missing = always[i];
    if (missing == FEATURE_COUNT && !is_process && policy->net != POLICY_NET_HOST && !features->netns)
        missing = FEATURE_NETNS;
    if (missing == FEATURE_COUNT && !is_process && !features->uid && !features->is_root && features->has_all_ids)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
                         "isolation namespace: root without CAP_SYS_ADMIN cannot give sandboxes ids of their own, and they are never root; "
                         "run as an ordinary user (docker run --user 1000), give the container users of its own (hostUsers: false), or "
                         "use isolation process");
    if (missing == FEATURE_COUNT && !is_process && (policy->fs_writable.n || policy->image || policy->disk_at == POLICY_DISK_STORE) && !features->overlayfs)
        missing = FEATURE_OVERLAYFS;
    if (missing == FEATURE_COUNT && !is_process && (policy->fs_writable.n || policy->image || policy->disk_at == POLICY_DISK_STORE) && !features->is_root && !features->overlay_userxattr)
        missing = FEATURE_OVERLAY_USERXATTR;
    if (missing == FEATURE_COUNT && !is_process && (policy->fs_writable.n || policy->fs_shared.n || policy->image) && features->is_root && !features->idmapped_mounts)
        missing = FEATURE_IDMAPPED_MOUNTS;
    if (missing == FEATURE_COUNT && !features->cgroup_v1 && !features->cgroup_v2 && !features->proc_children)
        missing = FEATURE_PROC_CHILDREN;
    if (missing == FEATURE_COUNT)
        return 0;
    return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy", "%s is missing (needed for %s): %s", feature_name(missing), feature_needed_for(missing), feature_hint(missing));
}

/* The store has other sandboxes' files, and memory of those that sleep: no grant of what is above it is meant for that. *ret_later: where it will be, if it is not there yet, for the caller to free; else NULL. */
static int deny_store(struct engine *engine, struct policy *policy, char **ret_later, struct rollbox_error *error) {
    auto_free char *path = NULL;
    const char *uppers;
    int r = 0;

    /* Made, where there is none yet, before it is looked for. */
    if (policy->disk_at == POLICY_DISK_STORE && policy->isolation != POLICY_ISOLATION_PROCESS)
        r = upper_directory(engine, &uppers, error);
    if (r < 0 || store_default_path(&path, NULL) < 0)
        return r;
    auto_free char *real = realpath(path, NULL);
    if (real && policy_deny(policy, real) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    *ret_later = real ? NULL : TAKE_PTR(path);
    return 0;
}

static int compile(struct engine *engine, const char *text, size_t length, struct policy **ret_policy, struct plan **ret_plan, struct image **ret_image, struct grounds *ret_grounds, char **ret_isolation,
                   struct rollbox_error *error) {
    struct policy *policy = NULL;
    struct image *image = NULL;
    struct host *host = NULL;
    struct buf isolation = BUF_INIT;
    struct grounds grounds = { 0 };
    auto_free char *later = NULL;
    int r = parse(text, length, &policy, error);

    if (r < 0)
        return r;
    policy_fit(policy, engine->features.cpus);
    r = check_features(&engine->features, policy, error);
    if (r == 0)
        r = python_grant(policy, error);
    if (r == 0)
        r = deny_store(engine, policy, &later, error);
    /* Before anything is found at these paths: what comes between is seen by the next look. */
    if (r == 0 && (r = grounds_look(policy, later, &grounds)) < 0)
        error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -r, "policy", "out of memory");
    if (r == 0 && policy->image)
        r = image_get(policy, &image, error);
    if (r == 0)
        r = host_look(engine, policy, image, &host, error);
    if (r == 0)
        r = plan_compile(policy, host_plan(host), ret_plan, error);
    if (r < 0) {
        host_free(host);
        image_free(image);
        grounds_done(&grounds);
        policy_free(policy);
        return r;
    }
    plan_isolation(*ret_plan, host_plan(host), policy, cgroup_backend_name(cgroup_root_backend(engine->cgroups)), &isolation);
    host_free(host);
    *ret_isolation = buf_take(&isolation);
    *ret_policy = policy;
    *ret_image = image;
    *ret_grounds = grounds;
    return 0;
}

static int make_key(const char *text, size_t length, const char *const *caller_environment, struct buf *to) {
    buf_add(to, text, length);
    for (; caller_environment && *caller_environment; caller_environment++)
        buf_add(to, *caller_environment, strlen(*caller_environment) + 1);
    return buf_failed(to) ? -ENOMEM : 0;
}

static struct program *program_new(struct engine *engine, char *take_key, size_t key_length, size_t text_length) {
    struct program *program = calloc(1, sizeof *program);

    if (!program) {
        free(take_key);
        return NULL;
    }
    program->engine = engine;
    program->user_namespace = -EBADF;
    list_init(&program->node);
    list_init(&program->spares);
    list_init(&program->slots);
    list_init(&program->kept);
    program->key = take_key;
    program->key_length = key_length;
    program->text_length = text_length;
    return program;
}

/* The environment that is part of the key; NULL if there is none. The array is the caller's. */
static int key_environment(const struct program *program, const char ***ret_environment) {
    const char *end = program->key + program->key_length;
    size_t n = 0;

    for (const char *at = program->key + program->text_length; at < end; at += strlen(at) + 1)
        n++;
    *ret_environment = NULL;
    if (!n)
        return 0;
    const char **environment = calloc(n + 1, sizeof *environment);
    if (!environment)
        return -ENOMEM;
    n = 0;
    for (const char *at = program->key + program->text_length; at < end; at += strlen(at) + 1)
        environment[n++] = at;
    *ret_environment = environment;
    return 0;
}

static int program_compile(struct program *program, const char *const *caller_environment, struct rollbox_error *error) {
    int r = compile(program->engine, program->key, program->text_length, &program->policy, &program->plan, &program->image, &program->grounds, &program->isolation, error);

    if (r < 0)
        return r;
    plan_environment(program->policy, caller_environment, &program->environment);
    return program->isolation && !buf_failed(&program->environment) ? 0 : error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
}

/* ---- replaced directories ----------------------------------------------------------------------------------------------- */

/* One directory, of all programs whose sandboxes see it. */
struct replaced {
    unsigned references;
    int fd;                     /* its lock: as long as it is open nobody sweeps the directory */
    char *place, *path;         /* where it was, and is */
};

struct kept {
    struct list node;
    struct replaced *replaced;  /* a reference */
};

static void replaced_put(struct engine *engine, struct replaced *replaced) {
    if (!replaced || --replaced->references)
        return;
    /* A fork of ours that was made just now may have it still. */
    if (replaced->fd >= 0)
        (void)flock(replaced->fd, LOCK_UN);
    close_fd(&replaced->fd);
    if (replaced->path && *replaced->path)
        (void)errand_sweep(engine, replaced->path);
    free(replaced->place);
    free(replaced->path);
    free(replaced);
}

static struct replaced *replaced_new(int take_fd, const char *place, const char *path) {
    auto_close int fd = take_fd;
    struct replaced *replaced = calloc(1, sizeof *replaced);

    if (!replaced)
        return NULL;
    *replaced = (struct replaced){ .references = 1, .fd = TAKE_FD(fd), .place = strdup(place), .path = strdup(path) };
    return replaced;
}

/* What a program sees at a place is what was there when it began, so of several that were replaced there it is the first. */
static bool sees_older(const struct program *program, const char *place) {
    list_for_each(node, &program->kept) {
        const struct replaced *replaced = container_of(node, struct kept, node)->replaced;

        if (replaced->place && !strcmp(replaced->place, place))
            return true;
    }
    return false;
}

static void keep(struct program *program, struct replaced *replaced) {
    struct kept *kept = malloc(sizeof *kept);

    if (!kept)
        return;                 /* the next commit sweeps it */
    list_init(&kept->node);
    kept->replaced = replaced;
    replaced->references++;
    list_add_tail(&program->kept, &kept->node);
}

static void let_go(struct program *program) {
    list_for_each(node, &program->kept) {
        struct kept *kept = container_of(node, struct kept, node);

        list_remove(node);
        replaced_put(program->engine, kept->replaced);
        free(kept);
    }
}

static bool has_below(const struct plan *plan, const char *path) {
    const struct plan_op *ops = plan_items(plan, template_ops, struct plan_op);
    size_t length = strlen(path);

    for (uint32_t i = 0; i < plan->template_ops.n; i++) {
        const char *source = plan_text(plan, ops[i].source);

        if ((ops[i].kind == PLAN_OP_BIND || ops[i].kind == PLAN_OP_BIND_ONE) && ops[i].source && !strncmp(source, path, length) && (source[length] == '/' || !source[length]))
            return true;
    }
    return false;
}

/* The same compiled anew, for the host as it is. */
static int compiled_anew(const struct program *program, struct program **ret_next, struct rollbox_error *error) {
    auto_free const char **environment = NULL;
    char *key = malloc(program->key_length + 1);

    if (key)
        memcpy(key, program->key, program->key_length + 1);
    struct program *next = key ? program_new(program->engine, key, program->key_length, program->text_length) : NULL;
    if (!next || key_environment(next, &environment) < 0) {
        if (next)
            program_free(next);
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    }
    int r = program_compile(next, environment, error);
    if (r < 0)
        program_free(next);
    else
        *ret_next = next;
    return r;
}

/* A new program (NULL: none) takes its number and its key; what runs goes on in the old one, which may be freed here. */
static void retire(struct program *program, struct program *next) {
    if (next) {
        next->number = program->number;
        next->used_ns = clock_now_ns();
        list_add_tail(&program->engine->programs, &next->node);
    }
    program->number = 0;
    program_drop_spares_of(program);
    if (!interpreter_is_busy(program->interpreter))
        program->interpreter = interpreter_free(program->interpreter);
    program_leave(program);
}

struct grounds *program_grounds(struct program *program) {
    return program->serves ? interpreter_grounds(program->serves) : &program->grounds;
}

int program_renew(struct program **program, struct rollbox_error *error) {
    struct program *next;

    if (grounds_hold(&(*program)->grounds))
        return 0;
    int r = compiled_anew(*program, &next, error);
    if (r < 0)
        return r;               /* it stays: the host may get right what is missing now */
    retire(*program, next);
    *program = next;
    return 0;
}

/* One that was retired would see other directories when it starts again. */
void program_rest(struct program *program) {
    if (program->number && !is_waited_for(program))
        cool_down(program);
}

void program_leave(struct program *program) {
    if (!program->number && !program->serves && !program->n_sessions && !program->n_sleepers && !program->n_running && !interpreter_is_busy(program->interpreter))
        program_free(program);
}

void program_retire(struct engine *engine, const char *path, int take_fd, const char *kept) {
    struct replaced *replaced = replaced_new(take_fd, path, kept);
    unsigned n = 0;

    list_for_each(node, &engine->programs) {
        struct program *program = container_of(node, struct program, node);

        n++;
        if (replaced && has_below(program->plan, path) && !sees_older(program, path))
            keep(program, replaced);
    }
    /* The new ones are added at the end. */
    list_for_each(node, &engine->programs) {
        struct program *program = container_of(node, struct program, node);

        if (!n--)
            break;
        if (program->number && has_below(program->plan, path)) {
            struct rollbox_error error;
            struct program *next;

            /* Without one, whoever uses the plan is told to prepare it again, and then why that fails. */
            retire(program, compiled_anew(program, &next, &error) < 0 ? NULL : next);
        }
    }
    replaced_put(engine, replaced);
}

int program_get(struct engine *engine, const char *text, size_t length, const char *const *caller_environment, struct program **ret_program, struct rollbox_error *error) {
    struct buf key = BUF_INIT;

    if (make_key(text, length, caller_environment, &key) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    list_for_each(node, &engine->programs) {
        struct program *known = container_of(node, struct program, node);

        if (known->number && known->key_length == key.length && !memcmp(known->key, key.data, key.length)) {
            buf_done(&key);
            int r = program_renew(&known, error);
            if (r < 0)
                return r;
            known->used_ns = clock_now_ns();
            *ret_program = known;
            return 0;
        }
    }
    size_t key_length = key.length;
    char *whole = buf_take(&key);
    struct program *program = whole ? program_new(engine, whole, key_length, length) : NULL;
    if (!program)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    int r = program_compile(program, caller_environment, error);
    /* The template is built while the client thinks of its first command; what goes wrong there is told to the runs. */
    if (r == 0)
        r = launcher_start(program, error);
    if (r < 0) {
        program_free(program);
        return r;
    }
    program->number = ++engine->next_program;
    program->used_ns = clock_now_ns();
    list_add_tail(&engine->programs, &program->node);
    forget_idle(engine, program);
    *ret_program = program;
    return 0;
}

struct program *program_twin(const struct program *of, struct rollbox_error *error) {
    auto_free const char **environment = NULL;
    struct engine *engine = of->engine;
    char *key = malloc(of->key_length + 1);

    if (key)
        memcpy(key, of->key, of->key_length + 1);
    struct program *program = key ? program_new(engine, key, of->key_length, of->text_length) : NULL;
    if (!program)
        return NULL;
    if (key_environment(program, &environment) < 0 || program_compile(program, environment, error) < 0)
        return program_free(program);
    return program;
}

int program_of_before(struct program **program, const json_t *grounds, struct rollbox_error *error) {
    if (!grounds_compare(&(*program)->grounds, grounds, false))
        return 0;
    int r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    struct program *own = program_twin(*program, error);
    if (!own)
        return r;
    (void)grounds_compare(&own->grounds, grounds, true);
    own->used_ns = clock_now_ns();
    list_add_tail(&own->engine->programs, &own->node);
    *program = own;
    return 0;
}

struct program *program_find(struct engine *engine, uint64_t number) {
    list_for_each(node, &engine->programs) {
        struct program *program = container_of(node, struct program, node);

        if (number && program->number == number) {
            program->used_ns = clock_now_ns();
            return program;
        }
    }
    return NULL;
}

int program_explain(struct engine *engine, const char *text, size_t length, struct buf *to, struct rollbox_error *error) {
    struct policy *policy = NULL;
    auto_free struct plan *plan = NULL;
    auto_free char *isolation = NULL;
    struct image *image = NULL;
    struct grounds grounds;
    int r = compile(engine, text, length, &policy, &plan, &image, &grounds, &isolation, error);

    if (r < 0)
        return r;
    policy_free(policy);
    image_free(image);
    grounds_done(&grounds);
    plan_explain(plan, to);
    return 0;
}

/* After boxes, which point here, are gone or no longer do. */
struct program *program_free(struct program *program) {
    list_for_each(node, &program->engine->boxes) {
        struct box *box = container_of(node, struct box, node);

        if (box->program == program)
            box_orphan(box);
    }
    cool_down(program);
    let_go(program);
    list_remove(&program->node);
    policy_free(program->policy);
    image_free(program->image);
    grounds_done(&program->grounds);
    free(program->plan);
    free(program->key);
    free(program->isolation);
    buf_done(&program->environment);
    free(program);
    return NULL;
}

/* A policy in use gets boxes ahead of need, as many as it has had running at once, up to the number of CPUs: a one-off run pays for none. */
int program_keep_spares(struct program *program) {
    unsigned wanted = program->n_runs < 2 ? program->n_sessions > 1 : MIN(MAX(program->n_running, 1u), program->engine->features.cpus);
    struct rollbox_error error;

    while (program->n_spares < wanted && !program->engine->stopping && !program->engine->n_queued && box_has_room(program->engine)) {
        struct box *box;
        int r = box_new(program, &(struct box_options){ 0 }, &box, &error);

        if (r < 0)
            return r;           /* the next run will meet the same and tell it */
        box_make_spare(box);
    }
    return 0;
}
