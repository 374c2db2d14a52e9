/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's side of a launcher (src/guest/launcher/launcher.c): starts it, requests boxes. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/core/context.h"
#include "engine/core/deferred_close.h"
#include "engine/core/log.h"
#include "engine/core/spawn.h"
#include "sys/cgroup.h"
#include "engine/box/launcher.h"

/* Host ids far above those that distributions and container tools hand out (subuids end below
 * 2^30). */
#define FIRST_ID_BASE 0x60000000u
#define N_ID_BASES 4096u
#define N_MANY_BASES 63u /* from GUEST_FIRST_MANY_BASE up to the last id there is */

/* ---- jobs ---- */

void launcher_begin(
    struct launcher *launcher, struct launcher_job *job, uint32_t type, struct buf *message) {
    job->type = type;
    job->serial = ++launcher->next_serial;
    wire_begin(message, type, job->serial);
}

static void add_job(struct launcher *launcher, struct launcher_job *job,
    void (*done)(void *, const struct launcher_result *), void *data) {
    job->launcher = launcher;
    job->done = done;
    job->data = data;
    list_add_tail(&launcher->jobs, &job->node);
}

int launcher_send(struct launcher *launcher, struct launcher_job *job, struct buf *message,
    const int *fds, size_t n_fds, void (*done)(void *, const struct launcher_result *),
    void *data) {
    int r = wire_send_patiently(launcher->socket, message, fds, n_fds);

    /* It has ended. If it has said why, that is in its socket, and fails this sandbox with all
     * others that it was to make. */
    if ((r == -EPIPE || r == -ECONNRESET) && job->type == GUEST_CREATE &&
        recv(launcher->socket, &(char){ 0 }, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
        r = 0;
    if (r == 0)
        add_job(launcher, job, done, data);
    return r;
}

int launcher_try_send(struct launcher *launcher, struct launcher_job *job, struct buf *message,
    void (*done)(void *, const struct launcher_result *), void *data) {
    int r = wire_send(launcher->socket, message, NULL, 0);

    if (r == 0)
        add_job(launcher, job, done, data);
    return r;
}

bool launcher_job_is_pending(const struct launcher_job *job) {
    return !list_empty(&job->node);
}

void launcher_job_cancel(struct launcher_job *job) {
    list_remove(&job->node);
}

bool launcher_is_creating(const struct launcher *launcher) {
    list_for_each(node, &launcher->jobs)
        if (container_of(node, struct launcher_job, node)->type == GUEST_CREATE)
            return true;
    return false;
}

static void finish_job(
    struct launcher_job *job, const struct guest_record *record, int *fds, size_t n_fds) {
    const struct launcher_result result = { .record = record, .fds = fds, .n_fds = n_fds };

    launcher_job_cancel(job);
    job->done(job->data, &result);
}

static void answer_job(
    struct launcher *launcher, const struct guest_record *record, int *fds, size_t n_fds) {
    list_for_each(node, &launcher->jobs) {
        struct launcher_job *job = container_of(node, struct launcher_job, node);

        if (job->serial == record->serial) {
            finish_job(job, record, fds, n_fds);
            return;
        }
    }
}

/* ---- the end of a launcher ---- */

static void on_end(struct loop_task *task) {
    struct launcher *launcher = container_of(task, struct launcher, end);

    while (!list_empty(&launcher->jobs))
        finish_job(
            container_of(launcher->jobs.next, struct launcher_job, node), &launcher->why, NULL, 0);
    launcher_drop_free(launcher);
    free(launcher);
}

/* Nobody has it any more, but for its jobs. */
static void end_launcher(struct launcher *launcher, const struct guest_record *why) {
    launcher->state = LAUNCHER_LOST;
    launcher->why = *why;
    loop_remove(launcher->engine->loop, &launcher->source);
    launcher_drop_free(launcher);
    if (launcher->sources >= 0)
        deferred_close(TAKE_FD(launcher->sources));
    close_fd(&launcher->socket); /* it ends when it notices */
    loop_defer(launcher->engine->loop, &launcher->end, on_end);
}

/* The launcher has gone or is of no use: the jobs that wait for it fail, with its reason. Running
 * boxes are not concerned. */
static void handle_loss(struct launcher *launcher, const struct guest_record *why) {
    if (launcher->state == LAUNCHER_LOST)
        return;
    end_launcher(launcher, why);
    launcher->ops->lost(launcher->owner, launcher);
}

static const struct guest_record unknown = {
    .kind = GUEST_FAILED, .stage = GUEST_STAGE_CLONE, .error = ECHILD
};

void launcher_stop(struct launcher *launcher) {
    end_launcher(launcher, &unknown);
}

void launcher_drop(struct launcher *launcher) {
    handle_loss(launcher, &unknown);
}

void launcher_kill(struct launcher *launcher) {
    static const struct guest_record late = {
        .kind = GUEST_FAILED, .stage = GUEST_STAGE_CLONE, .error = ETIMEDOUT
    };

    if (launcher->state != LAUNCHER_LOST && launcher->pid > 0)
        (void)kill(launcher->pid, SIGKILL);
    handle_loss(launcher, &late);
}

/* ---- its messages ---- */

static void handle_record(
    struct launcher *launcher, const struct guest_record *record, int *fds, size_t n_fds) {
    switch (record->kind) {
    case GUEST_TEMPLATE_READY:
        launcher->state = LAUNCHER_READY;
        if (n_fds == 2)
            launcher->sources = TAKE_FD(fds[1]);
        if (launcher->ops->ready)
            launcher->ops->ready(launcher->owner, launcher, record, fds, n_fds);
        break;
    case GUEST_IMAGE_LOADED:
        if (!launcher->is_zygote)
            answer_job(launcher, record, fds, n_fds);
        else if (record->error)
            handle_loss(launcher, record);
        else
            launcher->pid = (pid_t)record->value;
        break;
    case GUEST_CREATED:
        answer_job(launcher, record, fds, n_fds);
        launcher->engine->hooks.room_freed(launcher->engine); /* its socket may have been full */
        break;
    case GUEST_CREATE_FAILED:
    case GUEST_IMAGE_FS_MADE:
    case GUEST_COPIED:
        answer_job(launcher, record, fds, n_fds);
        break;
    case GUEST_FAILED:
        handle_loss(launcher, record);
        break;
    default:
        break;
    }
}

static void on_message(struct loop_source *source, uint32_t events) {
    struct launcher *launcher = container_of(source, struct launcher, source);
    struct guest_record record = { 0 };
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds = 0;
    ssize_t n = fd_receive(launcher->socket, &record, sizeof record, fds, &n_fds);

    (void)events;
    if (n == -EAGAIN)
        return;
    /* There was no room for the record's descriptors, so its box, copy or pool fails. Other jobs
     * are not affected. */
    if (n == -EMFILE && (record.kind == GUEST_CREATED || record.kind == GUEST_COPIED ||
                            record.kind == GUEST_IMAGE_FS_MADE)) {
        record = (struct guest_record){ .kind = record.kind == GUEST_CREATED ? GUEST_CREATE_FAILED
                                                                             : record.kind,
            .serial = record.serial,
            .stage = GUEST_STAGE_CLONE,
            .error = EMFILE };
        n = sizeof record;
    }
    /* Its files cannot be mounted again, then, should it be killed. */
    if (n == -EMFILE && record.kind == GUEST_TEMPLATE_READY)
        n = sizeof record;
    if (n == sizeof record)
        handle_record(launcher, &record, fds, n_fds); /* which may end the launcher */
    for (size_t i = 0; n > 0 && i < n_fds; i++)
        close_fd(&fds[i]);
    if (n != sizeof record)
        handle_loss(launcher, &unknown);
}

int launcher_own(struct launcher *launcher, const struct launcher_owner_ops *ops, void *owner) {
    launcher->ops = ops;
    launcher->owner = owner;
    return loop_add(
        launcher->engine->loop, &launcher->source, launcher->socket, EPOLLIN, on_message);
}

/* ---- ids ---- */

/* One that nobody has: what the kernel counts by user is counted for each sandbox by itself. (Two
 * share one only where all sixty thousand are in use.) */
static uint32_t new_guest_id(struct engine *engine) {
    for (uint32_t tried = 2; tried < GUEST_ID_OTHERS; tried++) {
        uint32_t id = engine->launchers.guest_ids.next =
            MAX((engine->launchers.guest_ids.next + 1) % GUEST_ID_OTHERS, 2u);

        if (!(engine->launchers.guest_ids.ids[id / 64] >> id % 64 & 1))
            break;
    }
    engine->launchers.guest_ids.ids[engine->launchers.guest_ids.next / 64] |=
        1ull << engine->launchers.guest_ids.next % 64;
    return engine->launchers.guest_ids.next;
}

/* The same of PLAN_MANY_IDS ids. The first slot is the plans' own, which is shared once all others
 * are in use. */
static uint32_t new_guest_slot(struct engine *engine) {
    for (uint32_t slot = 1; slot < GUEST_MANY_SLOTS; slot++)
        if (!(engine->launchers.guest_ids.slots[slot / 64] >> slot % 64 & 1)) {
            engine->launchers.guest_ids.slots[slot / 64] |= 1ull << slot % 64;
            return PLAN_MANY_FIRST + slot * PLAN_MANY_IDS;
        }
    return 0;
}

static void end_guest_id(struct engine *engine, uint32_t id) {
    const uint32_t slot = id < PLAN_MANY_FIRST ? 0 : (id - PLAN_MANY_FIRST) / PLAN_MANY_IDS;

    if (slot)
        engine->launchers.guest_ids.slots[slot / 64] &= ~(1ull << slot % 64);
    else
        engine->launchers.guest_ids.ids[id / 64] &= ~(1ull << id % 64);
}

struct file_ids launcher_lend_ids(struct engine *engine, struct launcher *pool, bool many_users) {
    if (pool && pool->n_free_file_ids)
        return pool->free_file_ids[--pool->n_free_file_ids];
    return (struct file_ids){ .id = many_users ? new_guest_slot(engine) : new_guest_id(engine),
        .fd = -EBADF,
        .mounts = -EBADF,
        .waits = -EBADF };
}

static void drop_ids(struct engine *engine, struct file_ids *ids) {
    close_fd(&ids->fd);
    /* The kernel takes long to end mounts that are attached nowhere. */
    if (ids->mounts >= 0)
        deferred_close(TAKE_FD(ids->mounts));
    end_guest_id(engine, ids->id);
}

void launcher_take_ids(struct engine *engine, struct launcher *pool, struct file_ids ids) {
    close_fd(&ids.waits);
    if (pool && ids.is_plans)
        pool->plan_id_is_lent = false;
    if (pool && (ids.fd >= 0 || ids.mounts >= 0) &&
        pool->n_free_file_ids < ARRAY_SIZE(pool->free_file_ids))
        pool->free_file_ids[pool->n_free_file_ids++] = ids;
    else if (ids.id)
        drop_ids(engine, &ids);
}

void launcher_drop_free(struct launcher *launcher) {
    while (launcher->n_free_netns)
        close(launcher->free_netns[--launcher->n_free_netns]);
    while (launcher->n_free_file_ids)
        drop_ids(launcher->engine, &launcher->free_file_ids[--launcher->n_free_file_ids]);
}

/* ---- its start ---- */

/* `within`: the user namespace of an ordinary user's sandboxes with many users; -EBADF. */
static int spawn_init(struct engine *engine, uint32_t id_base, bool early, bool fixed, int within,
    int socket, pid_t *ret_pid) {
    int fds[] = { engine->null_fd, engine->null_fd,
        engine->null_fd, [GUEST_LAUNCHER_SOCKET] = socket };
    char base[16];
    char *argv[] = { "rollbox-init", base,
        !early                     ? "late"
        : engine->features.is_root ? "root"
                                   : "user",
        NULL };

    snprintf(base, sizeof base, "%010u", id_base); /* of one length: guests see how long it was */
    /* It does not inherit a personality of ours, which setarch(8) may have set. */
    int before = personality(fixed ? ADDR_NO_RANDOMIZE : PER_LINUX);
    int r = before < 0 ? -errno
            : within >= 0
                ? spawn_within(engine->programs.init, argv, fds, ARRAY_SIZE(fds), within, ret_pid)
                : (early ? spawn_soon : spawn_clean)(
                      engine->programs.init, argv, fds, ARRAY_SIZE(fds), ret_pid);
    if (before >= 0)
        (void)personality((unsigned long)before);
    return r;
}

int launcher_new(
    struct engine *engine, uint64_t number, struct launcher **ret_launcher, int *ret_other) {
    struct launcher *launcher = calloc(1, sizeof *launcher);
    int pair[2];

    if (!launcher)
        return -ENOMEM;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        free(launcher);
        return -errno;
    }
    list_init(&launcher->jobs);
    launcher->engine = engine;
    launcher->socket = pair[0];
    launcher->sources = -EBADF;
    launcher->number = number;
    (void)fcntl(launcher->socket, F_SETFL, O_NONBLOCK);
    *ret_launcher = launcher;
    *ret_other = pair[1];
    return 0;
}

struct launcher_start {
    const struct launcher_namespace *in; /* of the one that it replaces; NULL */
    bool early; /* it enters its namespaces before it has a plan, which has some and not many users
                 */
    bool fixed, many_users;
    int within; /* a user namespace to begin in; -EBADF */
};

/* Plans that run at once should have different ids. */
static uint32_t next_id_base(struct engine *engine, bool many_users) {
    const uint32_t n = engine->launchers.next_id_base++;

    return many_users ? GUEST_FIRST_MANY_BASE + n % N_MANY_BASES * GUEST_MANY_RANGE
                      : FIRST_ID_BASE + n % N_ID_BASES * GUEST_ID_RANGE;
}

/* A launcher without a plan yet. One that replaces another has its number and ids. 0 or -errno. */
static int start_process(
    struct engine *engine, const struct launcher_start *start, struct launcher **ret_launcher) {
    const struct launcher_namespace *in = start->in;
    struct launcher *launcher = NULL;
    auto_close int high = -EBADF;
    int other, r = launcher_new(
                   engine, in ? in->number : ++engine->launchers.next_number, &launcher, &other);

    if (r < 0)
        return r;
    /* Out of the way of the descriptor that it becomes. */
    high = fcntl(other, F_DUPFD_CLOEXEC, 10);
    r = high < 0 ? -errno : 0;
    close(other);
    launcher->fixed = start->fixed;
    if (in) { /* a sandbox of that one's may still have the plan's id */
        launcher->id_base = in->id_base;
        launcher->plan_id_is_lent = true;
    } else if (engine->features.is_root || engine->features.own_ids)
        launcher->id_base = next_id_base(engine, start->many_users);
    if (r == 0)
        r = spawn_init(engine, launcher->id_base, start->early, start->fixed, start->within, high,
            &launcher->pid);
    if (r == 0 && engine->cgroups)
        r = cgroup_launcher_attach(engine->cgroups, launcher->pid);
    if (r < 0) {
        close(launcher->socket);
        free(launcher);
        return r;
    }
    *ret_launcher = launcher;
    return 0;
}

void launcher_prestart(struct engine *engine, bool fixed) {
    const struct launcher_start start = { .early = true, .fixed = fixed, .within = -EBADF };
    int mounts = open("/proc/self/mounts", O_RDONLY | O_CLOEXEC);

    /* An error is reported when one is needed. */
    if (mounts < 0 || access(engine->programs.init, X_OK) < 0 ||
        start_process(engine, &start, &engine->launchers.idle) < 0)
        close_fd(&mounts);
    else
        engine->launchers.idle->mounts = mounts;
}

void launcher_drop_idle(struct engine *engine) {
    struct launcher *launcher = TAKE_PTR(engine->launchers.idle);

    if (launcher) {
        close(launcher->mounts);
        close(launcher->socket);
    }
    free(launcher);
}

/* The one that waits for a plan. It entered a mount namespace when it was started: of no use if the
 * host's mounts are others by now. NULL: none. */
static struct launcher *take_idle(struct engine *engine, bool fixed) {
    struct pollfd changed = { .events = POLLPRI };

    if (!engine->launchers.idle || engine->launchers.idle->fixed != fixed)
        return NULL;
    changed.fd = engine->launchers.idle->mounts;
    if (poll(&changed, 1, 0) != 0 ||
        cgroup_launcher_attach(engine->cgroups, engine->launchers.idle->pid) < 0) {
        launcher_drop_idle(engine);
        return NULL;
    }
    close(engine->launchers.idle->mounts);
    return TAKE_PTR(engine->launchers.idle);
}

static int send_plan(const struct launcher *launcher, const int *fds, size_t n_fds) {
    auto_buf struct buf message = BUF_INIT;

    wire_begin(&message, GUEST_PLAN, 0);
    return wire_send_patiently(launcher->socket, &message, fds, n_fds);
}

int launcher_start(struct engine *engine, const struct plan *plan,
    const struct launcher_namespace *in, const struct launcher_owner_ops *ops, void *owner,
    struct launcher **ret_launcher, struct rollbox_error *error) {
    const bool fixed = plan->flags & (PLAN_SEED | PLAN_CLOCK), replaces = in->fd >= 0;
    struct launcher_start start = {
        .in = replaces ? in : NULL,
        .fixed = fixed,
        .many_users = plan->flags & PLAN_MANY_USERS,
        .within = replaces && (plan->flags & (PLAN_MANY_USERS | PLAN_AS_ROOT)) == PLAN_MANY_USERS
                      ? in->fd
                      : -EBADF,
    };
    struct launcher *launcher = plan->flags & (PLAN_PROCESS | PLAN_MANY_USERS) || replaces
                                    ? NULL
                                    : take_idle(engine, fixed);
    auto_close int file = fd_memory_file("rollbox-plan", plan, plan->length);
    const int given[2] = { file, in->fd };
    const size_t n_given = replaces ? 2 : 1;
    const bool was_idle = launcher;
    int r = MIN(file, 0);

    if (r == 0 && !launcher)
        r = start_process(engine, &start, &launcher);
    if (r == 0)
        r = send_plan(launcher, given, n_given);
    if ((r == -EPIPE || r == -ECONNRESET) &&
        was_idle) { /* it was killed while it waited, which nobody looked for */
        close(launcher->socket);
        free(TAKE_PTR(launcher));
        r = start_process(engine, &start, &launcher);
        if (r == 0)
            r = send_plan(launcher, given, n_given);
    }
    if (r == 0)
        r = launcher_own(launcher, ops, owner);
    if (r < 0) {
        if (launcher)
            close(launcher->socket);
        free(launcher);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "setup",
            "%s cannot be started: %s%s", engine->programs.init, strerror(-r),
            r == -ENOENT ? "; it belongs beside the engine" : "");
    }
    *ret_launcher = launcher;
    return 0;
}

int zygote_start(struct launcher *launcher, int image, int progress,
    const struct launcher_owner_ops *ops, void *owner, struct launcher **ret_zygote) {
    auto_buf struct buf message = BUF_INIT;
    struct launcher *zygote = NULL;
    auto_close int other = -EBADF;
    int r = launcher_new(launcher->engine, launcher->number, &zygote, &other);

    wire_begin(&message, GUEST_ZYGOTE, 0);
    if (r == 0)
        r = wire_send_patiently(launcher->socket, &message, (const int[]){ other, image, progress },
            progress < 0 ? 2 : 3);
    if (r == 0) {
        zygote->is_zygote = true;
        zygote->id_base = launcher->id_base;
        r = launcher_own(zygote, ops, owner);
    }
    if (r < 0) {
        if (zygote)
            close(zygote->socket);
        free(zygote);
        return r;
    }
    *ret_zygote = zygote;
    return 0;
}
