/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The description of a job names the sandbox's places and divides the layers of the state into
 * lower ones, which are compared with, and upper ones. The layers' descriptors come first, then
 * those that only some verbs have. A commit continues when its sandbox is closed, so that it is
 * never half done.
 */
#include "engine/ops/files_job.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/box/disk_upper.h"
#include "engine/box/volume_lease.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/core/context.h"
#include "engine/core/janitor.h"
#include "engine/core/log.h"
#include "engine/core/many_ids.h"
#include "engine/files/layer_chain.h"
#include "engine/pool/host_view.h"
#include "engine/pool/profile.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "engine/snapshot/layer.h"
#include "engine/store_job/store_job.h"
#include "policy/volumes.h"
#include "store/commit.h"

#define MAX_LAYERS 256
#define RECORDED_CHANGES 10000     /* of one command, as a record has them */
#define RECORDED_BYTES (256 << 20) /* of files read for their digests */

struct files_job {
    struct op *op; /* not used once the job was abandoned */
    struct engine *engine;
    enum protocol_verb verb;
    struct layer_hold layers;
    int kept;             /* of COMMIT: a socket on which the replaced directories come; -EBADF */
    struct buf published; /* of COMMIT: the paths, each with its zero */
};

/* The name of an image's root in plan.c, before the root is entered. */
#define IMAGE_ROOT PLAN_HIDDEN "/root"

/* ---- the description ---- */

static const char *stored_part(const struct image *image, const char *path) {
    json_t *item;
    size_t i;

    json_array_foreach(image->stored->manifest.places, i,
        item) if (json_string_value(json_object_get(item, "path")) &&
                  !strcmp(json_string_value(json_object_get(item, "path")),
                      path)) return json_string_value(json_object_get(item, "part"));
    return NULL;
}

/* Host paths of what lies under a place without being a host's directory: an image's layers, or a
 * stored snapshot's parts. */
static json_t *under_place(const struct profile *profile, const char *path) {
    const struct image *image = profile->image;
    bool is_root = !strcmp(path, IMAGE_ROOT);
    json_t *lower = image && (is_root || image->plan.places) ? json_array() : NULL;

    for (size_t i = 0; lower && i < image->plan.n; i++) {
        const char *part = is_root ? "" : stored_part(image, path);

        if (part)
            json_array_append_new(lower, json_sprintf("%s/%s/fs%s%s", image->directory,
                                             image->plan.ids[i], *part ? "/" : "", part));
    }
    return lower;
}

/* The same of a private volume: its files. */
static json_t *under_volume(const struct profile *profile, const struct plan_op *op) {
    const struct policy_volume *volume = &profile->policy->volumes.items[op->grant & 0xfff];
    auto_free char *files = NULL;

    return volume_lease_find(volume->name, &files, NULL) < 0 ? NULL : json_pack("[s]", files);
}

/* Can it be committed to, and is it to be (only; NULL: all)? */
static bool is_published(const struct plan_op *op, const char *path, const char *only) {
    return op->kind == PLAN_OP_PLACE && op->source && op->grant &&
           op->grant >> 12 != PLAN_GRANT_VOLUME && op->grant >> 12 != PLAN_GRANT_TMPFS &&
           (!only || !strcmp(path, only));
}

static json_t *places_of(const struct profile *profile, const char *only, bool with_stored,
    bool with_base, struct rollbox_error *error) {
    const struct plan *plan = profile->plan;
    const struct plan_op *ops = plan_items(plan, box_ops, struct plan_op);
    json_t *places = json_array();
    bool found = !only;

    for (uint32_t i = 0; i < plan->box_ops.n; i++) {
        const char *path = plan_text(plan, ops[i].path);
        bool has_base = is_published(&ops[i], path, only);
        char part[16];

        if (ops[i].kind != PLAN_OP_PLACE || (only && strcmp(path, only)))
            continue;
        found |= has_base;
        snprintf(part, sizeof part, "p%u", plan_place_part(&ops[i]));
        const char *base = has_base ? path : NULL;
        json_t *place = json_pack("{s:s, s:s, s:s?, s:s}", "part", part, "path",
            strcmp(path, IMAGE_ROOT) ? path : "/", "base", base, "kind",
            ops[i].value & PLAN_PLACE_FILE ? "file" : "directory");
        uint64_t device, inode;
        if (place && with_base && has_base && !(ops[i].value & PLAN_PLACE_FILE) &&
            path_identities_base(&profile->path_identities, path, &device, &inode)) {
            json_object_set_new(place, "base_dev", json_integer((json_int_t)device));
            json_object_set_new(place, "base_ino", json_integer((json_int_t)inode));
        }
        json_t *lower = !place || !with_stored                    ? NULL
                        : ops[i].grant >> 12 == PLAN_GRANT_VOLUME ? under_volume(profile, &ops[i])
                                                                  : under_place(profile, path);
        if (lower)
            json_object_set_new(place, "under", lower);
        json_array_append_new(places, place);
    }
    if (!found) {
        json_decref(places);
        error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%.200s is not an fs_writable path of the policy: only these can be published", only);
        return NULL;
    }
    return places;
}

/* The division of a job's layers, bottom first. */
struct parts {
    size_t n_lower, n; /* the rest are the upper ones */
    bool beside;       /* these do not lie on the lower ones, but on the first n_shared of them */
    size_t n_shared;
};

static bool stands_on(const struct snapshot *snapshot, const struct snapshot *on) {
    while (snapshot && snapshot != on)
        snapshot = snapshot->lower;
    return snapshot;
}

/* The layers of a node that another one under it has not. False: there are too many. */
static bool add_above(
    struct snapshot *snapshot, const struct snapshot *on, struct layer **layers, size_t *n) {
    struct snapshot *above[MAX_LAYERS], *at = snapshot;
    size_t n_above = 0;

    for (; at && at != on && n_above < MAX_LAYERS; at = at->lower)
        above[n_above++] = at;
    if (at != on || *n + n_above > MAX_LAYERS)
        return false;
    while (n_above--)
        if (above[n_above]->layer)
            layers[(*n)++] = above[n_above]->layer;
    return true;
}

/* The layers of `from`, then those that `to` has besides. False if it does not stand on it. */
static bool split_at(
    struct snapshot *from, struct snapshot *to, struct layer **layers, struct parts *ret_parts) {
    if (!stands_on(to, from))
        return false;
    struct parts parts = { .n_lower = snapshot_chain(from, layers, MAX_LAYERS) };
    parts.n = parts.n_lower;
    *ret_parts = parts;
    return parts.n_lower <= MAX_LAYERS && add_above(to, from, layers, &ret_parts->n);
}

/* Divides the layers of two states of which neither is based on the other, such as states that were
 * taken while a command ran. The parts are the shared layers, those of `from`, and those of `to`.
 * Returns false if there are too many layers. */
static bool split_beside(
    struct snapshot *from, struct snapshot *to, struct layer **layers, struct parts *ret_parts) {
    struct snapshot *shared = from;

    while (shared && !stands_on(to, shared))
        shared = shared->lower;
    struct parts parts = { .beside = true,
        .n_shared = shared ? snapshot_chain(shared, layers, MAX_LAYERS) : 0 };
    size_t n = parts.n_shared;
    bool fits = n <= MAX_LAYERS && add_above(from, shared, layers, &n);
    parts.n_lower = n;
    fits = fits && add_above(to, shared, layers, &n);
    parts.n = n;
    *ret_parts = parts;
    return fits;
}

/* SHOW, VERIFY: of a state, what it has that the one before it, as users know them, has not. */
static bool is_describe(const struct op *op) {
    return op->verb == VERB_SHOW || op->verb == VERB_VERIFY;
}

/* The two trees to compare: the files of `to` and those of `from`. */
static int split_layers(const struct op *op, struct layer **layers, struct parts *ret_parts,
    struct rollbox_error *error) {
    const struct session *session = op->session;
    struct snapshot *from = op->verb == VERB_DIFF ? op->from
                            : is_describe(op) && op->to->parent
                                ? snapshot_nearest_visible(op->to->parent)
                                : NULL;

    /* Committed files are on the host now, and are no conflict. */
    if (op->verb == VERB_COMMIT && session->files.committed &&
        !strcmp(session->files.committed_path ? session->files.committed_path : "",
            op->commit.path ? op->commit.path : ""))
        from = session->files.committed;
    if (from && from->parent && split_at(from, op->to, layers, ret_parts))
        return 0;
    /* Nobody knows of what a box with processes stands on, so it may be out of the tree; but it is
     * there. */
    if (op_is_recorded_diff(op) && from->parent && op->to->lower && op->to->lower->lower &&
        split_at(op->to->lower, op->to, layers, ret_parts))
        return 0;
    if ((op->verb == VERB_DIFF || is_describe(op)) && from && from->parent &&
        !op_is_recorded_diff(op)) {
        if (split_beside(from, op->to, layers, ret_parts))
            return 0;
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, E2BIG, "arguments",
            "%s and %s have more layers than can be compared: compare with one that it was made "
            "from, or with the beginning",
            op->to->id, from->id);
    }
    *ret_parts = (struct parts){ .n = snapshot_chain(op->to, layers, MAX_LAYERS) };
    return 0;
}

/* `n_stored`: of the parts, the first ones that are layers of the store. Takes `take_state`, the
 * engine's part of a description; NULL: none. */
static json_t *describe_parts(const struct op *op, const struct parts *parts, size_t n_stored,
    json_t *take_state, struct rollbox_error *error) {
    struct session *session = op->session;
    const bool is_diff = op->verb == VERB_DIFF;
    json_t *places = places_of(session->profile, op->verb == VERB_COMMIT ? op->commit.path : NULL,
        op->verb == VERB_DIFF || is_describe(op), op->verb == VERB_COMMIT, error);

    if (!places) {
        json_decref(take_state);
        return NULL;
    }
    json_t *lower = json_array(), *upper = json_array();
    for (size_t i = 0; i < parts->n; i++)
        json_array_append_new(
            i < parts->n_lower ? lower : upper, json_integer((json_int_t)(STORE_JOB_FIRST_FD + i)));
    json_t *job = json_pack("{s:o, s:o, s:o, s:b, s:b, s:b, s:I}", "places", places, "lower", lower,
        "upper", upper, "text", is_diff && op->diff.textual, "digests", is_diff && op->diff.digests,
        "force", op->verb == VERB_COMMIT && op->commit.force, "since_ns",
        (json_int_t)session->origin.since_ns);
    const json_int_t next = (json_int_t)(STORE_JOB_FIRST_FD + parts->n);
    if (op->verb == VERB_EXPORT && session->profile->plan->flags & PLAN_MANY_USERS) {
        json_object_set_new(job, "many", json_true());
        /* Root's stored layers have the ids of the sandbox, an ordinary user's those of U0. */
        const bool as_root = session->profile->plan->flags & PLAN_AS_ROOT;
        json_object_set_new(job, "stored", json_integer((json_int_t)n_stored));
        json_object_set_new(job, "stored_ids", json_integer(as_root ? 0 : PLAN_MANY_FIRST));
    }
    if (op->verb == VERB_EXPORT && session->profile->image &&
        !session->profile->image->plan.places) {
        const struct profile *profile = session->profile;

        /* The image belongs to the export, and so do its layers, except in a pipe (add_stored). */
        json_object_set_new(job, "image", json_loads(profile->image->stored->text, 0, NULL));
        json_object_set_new(job, "root_layers", json_integer((json_int_t)n_stored));
        json_object_set_new(job, "owner", json_integer((json_int_t)profile->plan->inner_uid));
    }
    if (parts->beside)
        json_object_set_new(job, "shared", json_integer((json_int_t)parts->n_shared));
    if (op->verb == VERB_COMMIT)
        json_object_set_new(job, "kept", json_integer(next));
    if (op_is_recorded_diff(op)) {
        json_object_set_new(job, "max_changes", json_integer(RECORDED_CHANGES));
        json_object_set_new(job, "max_digested", json_integer(RECORDED_BYTES));
    }
    if (is_describe(op) && op->to->checkpoint)
        json_object_set_new(job, "image", json_integer(next));
    if (take_state)
        json_object_set_new(job, "state", take_state);
    if (!job)
        error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "run",
            "the job cannot be described: %s", strerror(ENOMEM));
    return job;
}

static bool is_pipe(int fd) {
    struct stat st;

    return fd >= 0 && fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode);
}

/* An export or a commit is of all that lies in the sandbox's places but the host's own: what came
 * from a stored snapshot, too. Puts that before the other layers; how many, or -errno. */
static int add_stored(const struct op *op, int *fds, size_t most, struct rollbox_error *error) {
    const struct profile *profile = op->session->profile;
    const struct plan_op *ops = plan_items(profile->plan, box_ops, struct plan_op);
    const struct image *image = profile->image;

    /* A build or a commit reads the changes of a sandbox to its image from a pipe, and adds them to
     * the image as a layer. A file has the layers of the image, too. */
    if (op->verb == VERB_EXPORT && image && !image->plan.places && is_pipe(op->request.fd))
        return 0;
    if (op->verb == VERB_DIFF || is_describe(op) || !image ||
        (op->verb == VERB_COMMIT && !image->plan.places))
        return 0;
    for (uint32_t i = 0; image->plan.places && i < profile->plan->box_ops.n; i++) {
        const char *part = ops[i].kind == PLAN_OP_PLACE
                               ? stored_part(image, plan_text(profile->plan, ops[i].path))
                               : NULL;
        char own[16];

        snprintf(
            own, sizeof own, "p%u", ops[i].kind == PLAN_OP_PLACE ? plan_place_part(&ops[i]) : 0);
        if (part && strcmp(part, own))
            return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "arguments",
                "the sandbox's writable places are others than those of the snapshot that it began "
                "with; use the policy of that one");
    }
    if (image->plan.n > most)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, E2BIG, "arguments",
            "the sandbox has too many layers to be exported: %zu of its image, and room for %zu",
            image->plan.n, most);
    for (size_t i = 0; i < image->plan.n; i++)
        fds[i] = image->stored->fs_fds[i];
    return (int)image->plan.n;
}

/* ---- its end ---- */

/* Each replaced directory, with its lock, by the path of the place. Processes that see it still do;
 * it is removed when they have ended. */
static void take_kept(const struct files_job *job, const struct op *op) {
    int fds[FD_MESSAGE_MAX_FDS];
    struct {
        struct commit_exchange exchange;
        char text[2 * PATH_MAX];
    } message;
    size_t n_fds = 0;
    ssize_t n;

    while ((n = fd_receive(job->kept, &message, sizeof message - 1, fds, &n_fds)) >
           (ssize_t)sizeof message.exchange) {
        const char *end = (const char *)&message + n, *place = message.text;

        *(char *)end = '\0';
        const char *kept = place + strlen(place) + 1;
        path_identities_published(
            job->engine, op ? op->session->profile : NULL, place, &message.exchange);
        const char *new_name = kept < end ? kept : "";
        profile_retire(job->engine, place, n_fds ? TAKE_FD(fds[0]) : -EBADF, new_name);
        for (size_t i = 0; i < n_fds; i++)
            close_fd(&fds[i]);
    }
}

static void note_commit(struct op *op) {
    struct session *session = op->session;

    session->origin.since_ns = clock_real_ns();
    snapshot_put(session->files.committed);
    session->files.committed = snapshot_get(op->to);
    free(session->files.committed_path);
    session->files.committed_path = TAKE_PTR(op->commit.path);
}

/* A rollbox-store that was killed has left its half of a commit. */
static void sweep_published(const struct files_job *job) {
    const char *end = job->published.data + job->published.length;

    for (const char *path = job->published.data; path && path < end; path += strlen(path) + 1)
        (void)store_job_sweep(job->engine, path);
}

static void on_done(
    void *data, struct buf *take_answer, const struct rollbox_error *error, bool was_abandoned) {
    const struct files_job *job = data;
    struct op *op = was_abandoned ? NULL : job->op;

    if (op)
        op->store_job = NULL;
    if (job->verb == VERB_COMMIT)
        take_kept(job, op);
    if (error)
        sweep_published(job);
    if (op && !error && job->verb == VERB_COMMIT)
        note_commit(op);
    op_store_job_done(op, take_answer, error);
}

static void release_job(void *data) {
    struct files_job *job = data;

    close_fd(&job->kept);
    layer_hold_done(&job->layers);
    buf_done(&job->published);
    free(job);
}

/* ---- its start ---- */

static struct files_job *files_job_new(struct op *op, struct rollbox_error *error) {
    struct files_job *job = calloc(1, sizeof *job);

    if (job) {
        *job = (struct files_job){ .op = op,
            .engine = op->session->engine,
            .verb = op->verb,
            .kept = -EBADF,
            .published = BUF_INIT };
        if (layer_hold_tree(&job->layers, op->session->files.tree) == 0)
            return job;
        release_job(job);
    }
    error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "run", "out of memory");
    return NULL;
}

/* rollbox-store removes what it has made beside the published directory, and the engine has
 * replaced directories removed when no sandbox shows them any more. If the engine is killed, with
 * or without rollbox-store, the janitor does this. A rollbox-store that commits may finish alone,
 * so it has a loan of the janitor's. If the janitor is killed as well, the next commit there
 * sweeps.
 */
static void sweep(struct engine *engine, const char *path) {
    pid_t pid = store_job_sweep(engine, path);

    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

static const struct janitor_duty sweep_duty = { .at_end = sweep, .after_loans = true };

/* Before rollbox-store begins: it may be killed together with the engine. */
static int note_published(struct files_job *job, const struct op *op) {
    const struct profile *profile = op->session->profile;
    const struct plan_op *ops = plan_items(profile->plan, box_ops, struct plan_op);

    for (uint32_t i = 0; i < profile->plan->box_ops.n; i++) {
        const char *path = plan_text(profile->plan, ops[i].path);

        if (!is_published(&ops[i], path, op->commit.path))
            continue;
        buf_add(&job->published, path, strlen(path) + 1);
        (void)janitor_tell(job->engine, &sweep_duty, path);
    }
    return buf_failed(&job->published) ? -ENOMEM : 0;
}

/* The engine's descriptor of a layer only names the directory. */
static int open_layers(
    const int *stored, size_t n_stored, struct layer *const *layers, size_t n, int *fds) {
    int r = 0;

    for (size_t i = 0; i < n; i++) {
        int at = i < n_stored ? stored[i] : layers[i - n_stored]->fd;

        fds[i] = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fds[i] < 0 && r == 0)
            r = -errno;
    }
    return r;
}

static int launch_job(struct op *op, const json_t *description, int *fds, size_t n_fds, int r,
    struct rollbox_error *error) {
    static const char *const commands[] = { [VERB_DIFF] = "diff",
        [VERB_COMMIT] = "commit",
        [VERB_EXPORT] = "export",
        [VERB_SHOW] = "describe",
        [VERB_VERIFY] = "describe" };
    static const struct store_job_user user = { on_done, release_job };
    struct files_job *job = files_job_new(op, error);
    const int to = op->verb == VERB_EXPORT ? op->request.fd : -EBADF;
    char file[32];

    if (!job) {
        while (n_fds)
            close_fd(&fds[--n_fds]);
        return -ENOMEM;
    }
    snprintf(file, sizeof file, "/proc/self/fd/%zu", STORE_JOB_FIRST_FD + n_fds);
    if (to >= 0)
        fds[n_fds++] = fcntl(to, F_DUPFD_CLOEXEC, STORE_JOB_FIRST_FD);
    if (r == 0 && op->verb == VERB_COMMIT)
        r = store_job_add_channel(&job->kept, fds, &n_fds);
    if (r == 0 && op->verb == VERB_COMMIT)
        r = note_published(job, op);
    if (op->verb == VERB_COMMIT && (fds[n_fds] = janitor_lend(job->engine)) >= 0)
        n_fds++;
    if (is_describe(op) && op->to->checkpoint)
        fds[n_fds++] =
            fcntl(checkpoint_image(op->to->checkpoint), F_DUPFD_CLOEXEC, STORE_JOB_FIRST_FD);
    if ((fds[n_fds] = disk_upper_lend(job->engine)) >= 0)
        n_fds++;
    r = store_job_start(job->engine,
        &(struct store_job_request){
            .words = { commands[op->verb], "--json", to >= 0 ? file : NULL },
            .job = description,
            .take_fds = fds,
            .n_fds = n_fds,
            .error_number = -r,
            .finishes_alone = op->verb == VERB_COMMIT,
            .has_many_users = many_ids_has(op->session->profile->plan),
            .user = &user,
            .data = job },
        &op->store_job, error);
    if (r < 0)
        release_job(job);
    else
        op_wait(op, OP_WAIT_STORE_JOB);
    return r;
}

int files_job_start(struct op *op, json_t *take_state, struct rollbox_error *error) {
    struct layer *layers[MAX_LAYERS];
    int fds[MAX_LAYERS + 4], stored[MAX_LAYERS], n_stored = 0;
    struct parts parts = { 0 };
    int r = store_job_check_program(op->session->engine, error);

    if (r == 0)
        r = split_layers(op, layers, &parts, error);
    if (r == 0 && !parts.n_lower)
        r = n_stored = add_stored(op, stored, MAX_LAYERS - parts.n, error);
    if (r < 0) {
        json_decref(take_state);
        return r;
    }
    parts.n += (size_t)n_stored;
    json_t *description = describe_parts(op, &parts, (size_t)n_stored, take_state, error);
    if (!description)
        return -EINVAL;
    r = open_layers(stored, (size_t)n_stored, layers, parts.n, fds);
    r = launch_job(op, description, fds, parts.n, r, error);
    json_decref(description);
    return r;
}
