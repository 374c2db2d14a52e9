/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of rollbox-store: what walks over files at length, or writes to the host, is done by a
 * process of its own.
 *
 * It gets the layers as descriptors, the description on its standard input, and answers on its
 * standard output; all three are memory files (docs/reference/store-format.md, "Jobs"). It is
 * waited for by its pidfd and killed with the session's end, except while it publishes: half a
 * commit is nobody's wish.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/hibernate.h"
#include "engine/op.h"
#include "engine/disk_upper.h"
#include "store/commit.h"
#include "sys/syscalls.h"

#define MAX_LAYERS 256
#define MAX_ANSWER (512u << 20)
#define RECORDED_CHANGES 10000     /* of one command, as a record has them */
#define RECORDED_BYTES (256 << 20) /* of files read for their digests */
#define HIGH_FD STORE_JOB_FIRST_FD /* the first after the standard streams */

struct store_job {
    struct op *op; /* NULL: it is let finish alone */
    struct layer_hold layers;
    struct engine *engine;
    struct loop_source source;
    pid_t pid;
    int pidfd, output, errors;
    int kept; /* of COMMIT: a socket on which the replaced directories come; of HIBERNATE: the lock
                 on what sleeps; -EBADF */
    char sleeper[HIBERNATED_ID_LENGTH + 1]; /* of HIBERNATE: what it writes */
    enum protocol_verb verb;
    struct buf published; /* of COMMIT: the paths, each with its zero */
};

/* What plan.c calls an image's root until it is entered. */
#define IMAGE_ROOT PLAN_HIDDEN "/root"

static const char *stored_part(const struct image *image, const char *path) {
    json_t *item;
    size_t i;

    json_array_foreach(image->stored->manifest.places, i,
        item) if (json_string_value(json_object_get(item, "path")) &&
                  !strcmp(json_string_value(json_object_get(item, "path")),
                      path)) return json_string_value(json_object_get(item, "part"));
    return NULL;
}

/* ---- the description ---- */

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

/* Can it be committed to, and is it to be (only; NULL: all)? */
static bool is_published(const struct plan_op *op, const char *path, const char *only) {
    return op->kind == PLAN_OP_PLACE && op->source && op->grant && (!only || !strcmp(path, only));
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
        json_t *place = json_pack("{s:s, s:s, s:s?, s:s}", "part", part, "path",
            strcmp(path, IMAGE_ROOT) ? path : "/", "base", has_base ? path : NULL, "kind",
            ops[i].value & PLAN_PLACE_FILE ? "file" : "directory");
        uint64_t device, inode;
        if (place && with_base && has_base && !(ops[i].value & PLAN_PLACE_FILE) &&
            path_identities_base(&profile->path_identities, path, &device, &inode)) {
            json_object_set_new(place, "base_dev", json_integer((json_int_t)device));
            json_object_set_new(place, "base_ino", json_integer((json_int_t)inode));
        }
        json_t *lower = place && with_stored ? under_place(profile, path) : NULL;
        if (lower)
            json_object_set_new(place, "under", lower);
        json_array_append_new(places, place);
    }
    if (!found) {
        json_decref(places);
        error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%.200s is no fs_writable path of the policy: only these can be published", only);
        return NULL;
    }
    return places;
}

/* How the layers of a job are divided, bottom first. */
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

/* Where neither stands on the other, as states that were taken while something ran: the layers of
 * what both stand on, those of `from` besides, those of `to` besides. False: there are too many. */
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

/* What is to be compared: what `to` shows with what `from` shows. */
static int split_layers(const struct op *op, struct layer **layers, struct parts *ret_parts,
    struct rollbox_error *error) {
    const struct session *session = op->session;
    struct snapshot *from = op->verb == VERB_DIFF ? op->from
                            : is_describe(op) && op->to->parent
                                ? snapshot_nearest_visible(op->to->parent)
                                : NULL;

    /* What was committed is on the host now, and no conflict. */
    if (op->verb == VERB_COMMIT && session->committed &&
        !strcmp(session->committed_path ? session->committed_path : "",
            op->commit.path ? op->commit.path : ""))
        from = session->committed;
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

static int describe_parts(
    const struct op *op, const struct parts *parts, struct rollbox_error *error) {
    struct session *session = op->session;
    const bool is_diff = op->verb == VERB_DIFF;
    json_t *places = places_of(session->profile, op->verb == VERB_COMMIT ? op->commit.path : NULL,
        op->verb == VERB_DIFF || is_describe(op), op->verb == VERB_COMMIT, error);

    if (!places)
        return -EINVAL;
    json_t *lower = json_array(), *upper = json_array();
    for (size_t i = 0; i < parts->n; i++)
        json_array_append_new(
            i < parts->n_lower ? lower : upper, json_integer((json_int_t)(HIGH_FD + i)));
    json_t *job = json_pack("{s:o, s:o, s:o, s:b, s:b, s:b, s:I}", "places", places, "lower", lower,
        "upper", upper, "text", is_diff && op->diff.textual, "digests", is_diff && op->diff.digests,
        "force", op->verb == VERB_COMMIT && op->commit.force, "since_ns",
        (json_int_t)session->since_ns);
    if (job && parts->beside)
        json_object_set_new(job, "shared", json_integer((json_int_t)parts->n_shared));
    if (job && op->verb == VERB_COMMIT)
        json_object_set_new(job, "kept", json_integer((json_int_t)(HIGH_FD + parts->n)));
    if (job && op_is_recorded_diff(op)) {
        json_object_set_new(job, "most_changes", json_integer(RECORDED_CHANGES));
        json_object_set_new(job, "most_digested", json_integer(RECORDED_BYTES));
    }
    if (job && is_describe(op) && op->to->checkpoint)
        json_object_set_new(job, "image", json_integer((json_int_t)(HIGH_FD + parts->n)));
    if (job && is_describe(op))
        json_object_set_new(job, "state", describe_snapshot(op));
    char *text = job ? json_dumps(job, JSON_COMPACT) : NULL;
    json_decref(job);
    int fd = text ? fd_memory_file("rollbox-job", text, strlen(text)) : -ENOMEM;
    free(text);
    return fd < 0 ? error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -fd, "run",
                        "the job cannot be described: %s", strerror(-fd))
                  : fd;
}

/* An export or a commit is of all that lies in the sandbox's places but the host's own: what came
 * from a stored snapshot, too. Puts that before the other layers; how many, or -errno. */
static int add_stored(const struct op *op, int *fds, size_t most, struct rollbox_error *error) {
    const struct profile *profile = op->session->profile;
    const struct plan_op *ops = plan_items(profile->plan, box_ops, struct plan_op);
    const struct image *image = profile->image;

    if (op->verb == VERB_DIFF || is_describe(op) || !image ||
        (op->verb == VERB_COMMIT && !image->plan.places))
        return 0;
    if (!image->plan.places)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "arguments",
            "the files of a sandbox with an image cannot be exported by themselves: rollbox export "
            "--live writes the sandbox with what runs in it, rollbox cp copies files");
    for (uint32_t i = 0; i < profile->plan->box_ops.n; i++) {
        const char *part = ops[i].kind == PLAN_OP_PLACE
                               ? stored_part(image, plan_text(profile->plan, ops[i].path))
                               : NULL;
        char own[16];

        snprintf(
            own, sizeof own, "p%u", ops[i].kind == PLAN_OP_PLACE ? plan_place_part(&ops[i]) : 0);
        if (part && strcmp(part, own))
            return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "arguments",
                "the sandbox' writable places are others than those of the snapshot that it began "
                "with; use the policy of that one");
    }
    if (image->plan.n > most)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, E2BIG, "arguments",
            "the snapshot has too many layers to be exported again");
    for (size_t i = 0; i < image->plan.n; i++)
        fds[i] = image->stored->fs_fds[i];
    return (int)image->plan.n;
}

/* ---- its end ---- */

struct store_job *store_job_free(struct store_job *store_job) {
    if (!store_job)
        return NULL;
    /* Half a commit is nobody's wish; and what was put into the store for nobody is to be taken out
     * once it is there. */
    if (store_job->pidfd >= 0 &&
        (store_job->verb == VERB_COMMIT || store_job->verb == VERB_HIBERNATE)) {
        store_job->op = NULL; /* it ends by itself, and frees itself then */
        return NULL;
    }
    loop_remove(store_job->engine->loop, &store_job->source);
    if (store_job->pidfd >= 0)
        sys_pidfd_send_signal(store_job->pidfd, SIGKILL, NULL, 0);
    close_fd(&store_job->pidfd);
    close_fd(&store_job->output);
    close_fd(&store_job->errors);
    close_fd(&store_job->kept);
    layer_hold_done(&store_job->layers);
    buf_done(&store_job->published);
    free(store_job);
    return NULL;
}

void store_job_give_up(struct op *op) {
    struct store_job *store_job = TAKE_PTR(op->store_job);

    store_job->op = NULL;
    sys_pidfd_send_signal(
        store_job->pidfd, SIGKILL, NULL, 0); /* end_of_sleep removes what there is of it */
}

static enum rollbox_error_code code_of(const char *name) {
    for (int code = 1; code < 64 && name; code++)
        if (!strcmp(rollbox_error_name((enum rollbox_error_code)code), name))
            return (enum rollbox_error_code)code;
    return ROLLBOX_ERR_INTERNAL;
}

/* Its last line of errors is the JSON of one. */
static void read_error(struct store_job *store_job, struct rollbox_error *error) {
    auto_buf struct buf text = BUF_INIT;
    json_t *root = NULL;

    if (fd_read_again(store_job->errors, MAX_ANSWER, &text) == 0 && text.length) {
        const char *line = text.data, *end = text.data + text.length;

        while (end > line && end[-1] == '\n')
            end--;
        const char *last = memrchr(line, '\n', (size_t)(end - line));
        last = last ? last + 1 : line;
        root = json_loadb(last, (size_t)(end - last), 0, NULL);
    }
    const json_t *object = json_object_get(root, "error");
    const char *message = json_string_value(json_object_get(object, "message")),
               *stage = json_string_value(json_object_get(object, "stage"));
    error_set(error,
        message ? code_of(json_string_value(json_object_get(object, "code")))
                : ROLLBOX_ERR_SETUP_FAILED,
        0, stage ? stage : "run", "%s",
        message ? message : "rollbox-store was killed, or has failed without a word");
    json_decref(root);
}

/* Each replaced directory, with its lock, by the path of the place. Those who see it go on to do
 * so; it goes when they are gone. */
static void take_kept(struct store_job *store_job) {
    int fds[FD_MESSAGE_MAX_FDS];
    struct {
        struct commit_exchange exchange;
        char text[2 * PATH_MAX];
    } message;
    size_t n_fds = 0;
    ssize_t n;

    while ((n = fd_receive(store_job->kept, &message, sizeof message - 1, fds, &n_fds)) >
           (ssize_t)sizeof message.exchange) {
        const char *end = (const char *)&message + n, *place = message.text;

        *(char *)end = '\0';
        const char *kept = place + strlen(place) + 1;
        path_identities_published(store_job->engine,
            store_job->op ? store_job->op->session->profile : NULL, place, &message.exchange);
        profile_retire(
            store_job->engine, place, n_fds ? TAKE_FD(fds[0]) : -EBADF, kept < end ? kept : "");
        for (size_t i = 0; i < n_fds; i++)
            close_fd(&fds[i]);
    }
}

static void note_commit(struct op *op) {
    struct session *session = op->session;

    session->since_ns = clock_real_ns();
    snapshot_put(session->committed);
    session->committed = snapshot_get(op->to);
    free(session->committed_path);
    session->committed_path = TAKE_PTR(op->commit.path);
}

/* op_hibernate.c or op_wake.c continues. */
static void end_of_sleep(
    struct store_job *store_job, struct buf *answer, const struct rollbox_error *error) {
    struct op *op = store_job->op;
    struct engine *engine = store_job->engine;
    auto_close int lock = -EBADF;
    char sleeper[sizeof store_job->sleeper];
    bool writes = store_job->verb == VERB_HIBERNATE;
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds = 0;
    char byte;

    if (store_job->kept >= 0 && fd_receive(store_job->kept, &byte, 1, fds, &n_fds) > 0) {
        lock = n_fds ? fds[0] : -EBADF;
        for (size_t i = 1; i < n_fds; i++)
            close(fds[i]);
    }
    memcpy(sleeper, store_job->sleeper, sizeof sleeper);
    json_t *root =
        !error && answer->length ? json_loadb(answer->data, answer->length, 0, NULL) : NULL;
    buf_done(answer);
    store_job_free(store_job);
    if (writes && (error || !op))
        hibernate_abandoned(engine, sleeper);
    if (op)
        (void)op_event(op, OP_EVENT_STORE_JOB_DONE,
            &(struct op_message){ .error = error, .answer = root, .take_lock = TAKE_FD(lock) });
    json_decref(root);
}

static void on_end(struct loop_source *source, uint32_t events) {
    struct store_job *store_job = container_of(source, struct store_job, source);
    struct op *op = store_job->op;
    struct buf answer = BUF_INIT;
    struct rollbox_error error;
    siginfo_t info = { 0 };

    (void)events;
    bool ok = waitid(P_PIDFD, (id_t)store_job->pidfd, &info, WEXITED | WNOHANG) == 0
                  ? info.si_code == CLD_EXITED && info.si_status == 0
                  : errno == ECHILD && fd_read_again(store_job->output, MAX_ANSWER, &answer) == 0 &&
                        answer.length;
    buf_done(&answer);
    loop_remove(store_job->engine->loop, &store_job->source);
    close_fd(&store_job->pidfd);
    int r = ok ? fd_read_again(store_job->output, MAX_ANSWER, &answer) : 0;
    if (!ok)
        read_error(store_job, &error);
    else if (r < 0)
        error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -r, "run",
            "the answer of rollbox-store cannot be read: %s", strerror(-r));
    if (op)
        op->store_job = NULL;
    if (store_job->verb == VERB_HIBERNATE || store_job->verb == VERB_WAKE) {
        end_of_sleep(store_job, &answer, ok && r == 0 ? NULL : &error);
        return;
    }
    if (store_job->verb == VERB_COMMIT)
        take_kept(store_job);
    /* One that was killed has left what it was at. */
    for (const char *path = store_job->published.data;
         !ok && path && path < store_job->published.data + store_job->published.length;
         path += strlen(path) + 1)
        (void)store_job_sweep(store_job->engine, path);
    if (op && ok && r == 0 && store_job->verb == VERB_COMMIT)
        note_commit(op);
    store_job_free(store_job);
    if (!op)
        buf_done(&answer);
    else
        (void)op_event(op, OP_EVENT_STORE_JOB_DONE,
            &(struct op_message){ .error = !ok || r < 0 ? &error : NULL, .take_text = &answer });
}

/* ---- its start ---- */

static int memory_file(void) {
    int fd = memfd_create("rollbox-answer", MFD_CLOEXEC);

    return fd < 0 ? -errno : fd;
}

static struct store_job *store_job_new(struct op *op, struct rollbox_error *error) {
    struct store_job *store_job = calloc(1, sizeof *store_job);

    if (!store_job) {
        error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "run", "out of memory");
        return NULL;
    }
    *store_job = (struct store_job){ .op = op,
        .engine = op->session->engine,
        .pidfd = -EBADF,
        .output = memory_file(),
        .errors = memory_file(),
        .kept = -EBADF,
        .verb = op->verb,
        .published = BUF_INIT };
    if (layer_hold_tree(&store_job->layers, op->session->tree) < 0) {
        error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "run", "out of memory");
        return store_job_free(store_job);
    }
    return store_job;
}

/* Whoever is to sweep, should it be killed, is told. */
static int note_published(struct store_job *store_job) {
    const struct profile *profile = store_job->op->session->profile;
    const struct plan_op *ops = plan_items(profile->plan, box_ops, struct plan_op);

    for (uint32_t i = 0; i < profile->plan->box_ops.n; i++) {
        const char *path = plan_text(profile->plan, ops[i].path);

        if (!is_published(&ops[i], path, store_job->op->commit.path))
            continue;
        buf_add(&store_job->published, path, strlen(path) + 1);
        commit_janitor_begin(store_job->engine, path);
    }
    return buf_failed(&store_job->published) ? -ENOMEM : 0;
}

/* With its end of `errand->kept`, for the program the last of the descriptors. */
static int add_socket(struct store_job *store_job, int *fds, size_t *n_fds) {
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return -errno;
    store_job->kept = pair[0];
    fds[(*n_fds)++] = pair[1];
    return 0;
}

/* The descriptors, from HIGH_FD on, are consumed. `r`: how it went until here. On failure the
 * errand is freed. */
static int launch_store(struct store_job *store_job, int r, int input, const char *const *words,
    int *take_fds, size_t n_fds, struct rollbox_error *error) {
    struct engine *engine = store_job->engine;
    char *argv[8] = { (char *)"rollbox-store" };

    for (size_t i = 0; words[i] && i + 2 < ARRAY_SIZE(argv); i++)
        argv[i + 1] = (char *)words[i];
    r = MIN(r, MIN(store_job->output, store_job->errors));
    const int standard[HIGH_FD] = { input, store_job->output, store_job->errors };
    /* Out of the way of the numbers that they get. */
    for (size_t i = 0; i < n_fds; i++) {
        int high = fcntl(i < HIGH_FD ? standard[i] : take_fds[i], F_DUPFD_CLOEXEC, (int)n_fds);

        if (high < 0 && r >= 0)
            r = errno == EINVAL ? -EMFILE : -errno; /* the numbers wanted are above the limit */
        if (i >= HIGH_FD)
            close_fd(&take_fds[i]);
        take_fds[i] = high;
    }
    r = r < 0 ? r : spawn_clean(engine->store_path, argv, take_fds, (int)n_fds, &store_job->pid);
    for (size_t i = 0; i < n_fds; i++)
        close_fd(&take_fds[i]);
    if (r >= 0 && (store_job->pidfd = sys_pidfd_open(store_job->pid, 0)) < 0)
        r = store_job->pidfd;
    if (r >= 0)
        r = loop_add(engine->loop, &store_job->source, store_job->pidfd, EPOLLIN, on_end);
    if (r < 0) {
        store_job->verb = VERB_DIFF;
        store_job_free(store_job);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_ENGINE_START), -r, "run",
            "%s cannot be started: %s", engine->store_path, strerror(-r));
    }
    store_job->op->store_job = store_job;
    op_wait(store_job->op, OP_WAIT_STORE_JOB);
    return 0;
}

static int check_store_program(const struct engine *engine, struct rollbox_error *error) {
    return engine->store_path ? 0
                              : error_set(error, ROLLBOX_ERR_ENGINE_START, ENOENT, "run",
                                    "rollbox-store cannot be found beside the engine; is the "
                                    "installation complete?");
}

int store_job_start(struct op *op, struct rollbox_error *error) {
    static const char *const commands[] = { [VERB_DIFF] = "diff",
        [VERB_COMMIT] = "commit",
        [VERB_EXPORT] = "export",
        [VERB_SHOW] = "describe",
        [VERB_VERIFY] = "describe" };
    struct layer *layers[MAX_LAYERS];
    int fds[HIGH_FD + MAX_LAYERS + 3], stored[MAX_LAYERS];
    struct parts parts = { 0 };
    size_t n_fds = HIGH_FD;
    const int to = op->verb == VERB_EXPORT ? op->export.fd : -EBADF;
    char file[32];
    int r = check_store_program(op->session->engine, error);

    if (r == 0)
        r = split_layers(op, layers, &parts, error);
    if (r < 0)
        return r;
    int n_stored = parts.n_lower ? 0 : add_stored(op, stored, MAX_LAYERS - parts.n, error);
    if (n_stored < 0)
        return n_stored;
    parts.n += (size_t)n_stored;
    auto_close int input = describe_parts(op, &parts, error);
    if (input < 0)
        return input;
    struct store_job *store_job = store_job_new(op, error);
    if (!store_job)
        return -ENOMEM;
    /* What is held of a layer only names the directory. */
    for (size_t i = 0; i < parts.n; i++) {
        int at = i < (size_t)n_stored ? stored[i] : layers[i - (size_t)n_stored]->fd;

        fds[n_fds] = openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fds[n_fds++] < 0 && r == 0)
            r = -errno;
    }
    snprintf(file, sizeof file, "/proc/self/fd/%zu", n_fds);
    if (to >= 0)
        fds[n_fds++] = fcntl(to, F_DUPFD_CLOEXEC, HIGH_FD);
    if (r == 0 && op->verb == VERB_COMMIT)
        r = add_socket(store_job, fds, &n_fds);
    if (r == 0 && op->verb == VERB_COMMIT)
        r = note_published(store_job);
    if (op->verb == VERB_COMMIT && (fds[n_fds] = commit_janitor_lend(store_job->engine)) >= 0)
        n_fds++;
    if (is_describe(op) && op->to->checkpoint)
        fds[n_fds++] = fcntl(checkpoint_image(op->to->checkpoint), F_DUPFD_CLOEXEC, HIGH_FD);
    if ((fds[n_fds] = disk_upper_lend(store_job->engine)) >= 0)
        n_fds++;
    const char *words[] = { commands[op->verb], "--json", to >= 0 ? file : NULL, NULL };
    return launch_store(store_job, r, input, words, fds, n_fds, error);
}

int store_job_hibernate(struct op *op, const char *command, const json_t *job, const int *fds,
    size_t n_fds, struct rollbox_error *error) {
    auto_free int *all = calloc(HIGH_FD + n_fds + 2, sizeof *all);
    auto_free char *store = NULL;
    size_t n = HIGH_FD + n_fds;
    int r = check_store_program(op->session->engine, error);

    if (r == 0)
        r = store_default_path(&store, error);
    if (r < 0)
        return r;
    auto_free char *text =
        job && json_object_set_new((json_t *)job, "owner", json_integer((json_int_t)n)) == 0
            ? json_dumps(job, JSON_COMPACT)
            : NULL;
    auto_close int input = text ? fd_memory_file("rollbox-job", text, strlen(text)) : -ENOMEM;
    struct store_job *store_job = all ? store_job_new(op, error) : NULL;
    if (!store_job)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "run", "out of memory");
    for (size_t i = 0; i < n_fds; i++)
        all[HIGH_FD + i] = fcntl(fds[i], F_DUPFD_CLOEXEC, HIGH_FD);
    if (op->verb == VERB_HIBERNATE) {
        snprintf(store_job->sleeper, sizeof store_job->sleeper, "%s", op->hibernate.becoming->id);
        r = add_socket(store_job, all, &n);
    }
    if ((all[n] = disk_upper_lend(store_job->engine)) >= 0)
        n++;
    const char *words[] = { command, "--json", "--store", store, NULL };
    return launch_store(store_job, MIN(r, MIN(input, 0)), input, words, all, n, error);
}

/* Its id or -errno. */
static pid_t start_alone(const struct engine *engine, char *const *argv) {
    int fds[HIGH_FD] = { engine->null_fd, engine->null_fd, engine->null_fd };
    pid_t pid;
    int r =
        engine->store_path ? spawn_clean(engine->store_path, argv, fds, HIGH_FD, &pid) : -ENOENT;

    return r < 0 ? r : pid;
}

void store_job_forget(struct engine *engine) {
    auto_free char *store = NULL;

    if (store_default_path(&store, NULL) < 0)
        return;
    char *argv[] = { (char *)"rollbox-store", (char *)"forget", (char *)"--json", (char *)"--store",
        store, NULL };
    (void)start_alone(engine, argv);
}

/* What it cannot do, the next commit there does. */
pid_t store_job_sweep(const struct engine *engine, const char *path) {
    char *argv[] = { (char *)"rollbox-store", (char *)"sweep", (char *)path, NULL };

    return start_alone(engine, argv);
}
