/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes: kernel sandboxes.
 *
 * A box consists of a socket to its init and, as soon as the launcher has reported it, a pidfd.
 * Closing the socket ends the box (init exits, and the kernel kills all other processes), and so
 * does SIGKILL through the pidfd. The box is freed when the pidfd reports the death of init,
 * because all processes of its pid namespace are dead then. Its reusable parts (cgroup slot,
 * network namespace without traffic) are kept for other boxes only from that moment on.
 *
 * A box knows its owner only by a table of functions (box.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/box/box.h"
#include "engine/box/cgroup_lease.h"
#include "engine/box/disk_upper.h"
#include "engine/box/launcher.h"
#include "engine/box/no_namespace.h"
#include "engine/box/profile.h"
#include "engine/core/context.h"
#include "engine/core/deferred_close.h"
#include "engine/core/log.h"
#include "engine/core/many_ids.h"
#include "engine/network/gateway.h"
#include "engine/box/own_mounts.h"
#include "engine/box/volume_lease.h"
#include "policy/determinism.h"
#include "sys/proc.h"
#include "sys/sockmem.h"
#include "sys/syscalls.h"

#define SETUP_SECONDS 60 /* far more than set-up takes on a host that is not broken */
#define FILES_OF_BOX                                                                               \
    10 /* socket, pidfd, network namespace, tmpfs, two pipes, two spools, two on their way */
#define FILES_OF_SLOT 15
#define FILES_SPARED 64u
#define FILES_OF_LIVE 3 /* socket, pidfd, tmpfs: commands add theirs for as long as they run */
#define END_SECONDS                                                                                \
    60 /* isolation process: for init to end all the others and remove their files */
#define LEAST_DISK (1u << 20)
#define LEAST_ENTRIES 256
#define ASK_AT_ONCE_NS                                                                             \
    1000000 /* about sockets: some thousand; a longer query continues beside other work */

static void set_files(struct box *box, unsigned files) {
    box->engine->files.used += files - box->files;
    box->files = files;
}

static void note_asking(struct box *box, int64_t took_ns) {
    engine_account(&box->engine->boxes.poll_cost_ns, &box->sockets.poll_cost_ns, took_ns);
}

static unsigned files_of_new(const struct engine *engine) {
    return FILES_OF_BOX + (cgroup_root_backend(engine->cgroups) != CGROUP_NONE ? FILES_OF_SLOT : 0);
}

/* Of all kinds. The kernel tells since 6.2; before, that of states is not known, nor counted. */
static unsigned open_files(void) {
    struct stat st;

    return stat("/proc/self/fd", &st) == 0 ? (unsigned)MIN(st.st_size, (off_t)UINT32_MAX / 2) : 0;
}

/* A little is left for what those that there are may want yet. */
bool box_has_room(const struct engine *engine) {
    const unsigned more = files_of_new(engine);

    return (engine->files.used + deferred_close_waiting() + more <= engine->files.most &&
               open_files() + more + MIN(engine->files.limit / 16, FILES_SPARED) <=
                   engine->files.limit) ||
           !engine->boxes.n;
}

void box_count_files(struct box *box) {
    const unsigned of_owner = box->ops->count_files ? box->ops->count_files(box->owner) : 0;

    unsigned n = of_owner + FILES_OF_LIVE + gateway_box_files(box);
    n += box->slot != NULL;
    n += box->netns >= 0;
    n += box->file_ids.fd >= 0;
    n += box->file_ids.mounts >= 0;
    n += box->sockets.sockmem.fd >= 0 ? 2 : 0;
    set_files(box, n);
}

void box_release_spare(struct box *box) {
    /* Making another takes half a millisecond: it is kept for the next sandbox where there is room.
     */
    if (box->engine->files.used > box->engine->files.most / 2) {
        close_fd(&box->netns);
        close_fd(&box->file_ids.fd);
        if (box->file_ids.mounts >= 0)
            deferred_close(TAKE_FD(box->file_ids.mounts));
    }
    if (box->slot)
        cgroup_lease_rest(box->slot);
    box_count_files(box);
}

static void close_fds_until_dead(struct box *box) {
    for (size_t i = 0; i < box->end.fds_until_dead.length / sizeof(int); i++) {
        int fd;

        memcpy(&fd, box->end.fds_until_dead.data + i * sizeof fd, sizeof fd);
        close(fd);
    }
    buf_done(&box->end.fds_until_dead);
}

/* The launcher that has what is left over for later boxes: never a zygote, which ends with its
 * checkpoint. NULL: it is gone. */
static struct launcher *pool_of(const struct box *box) {
    struct launcher *launcher = box->profile ? box->profile->launcher : NULL;

    return launcher && launcher->number == box->creation.launcher ? launcher : NULL;
}

static const struct file_ids no_ids = { .fd = -EBADF, .mounts = -EBADF, .waits = -EBADF };

static void lend_ids(struct box *box) {
    const unsigned flags = box->profile->plan->flags;
    struct launcher *pool = pool_of(box);

    box->file_ids = no_ids;
    if (!(flags & PLAN_AS_ROOT) || flags & PLAN_PROCESS)
        return;
    const bool needs_mounts = own_mounts_needed(box);
    if (needs_mounts && (!pool || !pool->plan_id_is_lent)) {
        box->file_ids.is_plans = pool;
        if (pool)
            pool->plan_id_is_lent = true;
        return;
    }
    box->file_ids = launcher_lend_ids(
        box->engine, box->lower.is_layered || needs_mounts ? pool : NULL, flags & PLAN_MANY_USERS);
}

static void take_ids(struct box *box) {
    launcher_take_ids(box->engine, pool_of(box), box->file_ids);
    box->file_ids = no_ids;
}

static void box_free(struct box *box) {
    struct engine *engine = box->engine;
    bool has_lived = box->pid > 0; /* and so held what others may be waiting for */

    loop_remove(engine->loop, &box->end.death);
    loop_remove(engine->loop, &box->answers);
    loop_timer_clear(engine->loop, &box->deadline);
    close_fd(&box->pidfd);
    close_fd(&box->socket);
    loop_remove(box->engine->loop, &box->sockets.asking);
    sockmem_close(&box->sockets.sockmem);
    note_asking(box, 0);
    gateway_box_free(box);
    close_fds_until_dead(box);
    if (box->disk >= 0 && !box->upper) /* of an upper it frees nothing */
        deferred_close(TAKE_FD(box->disk));
    close_fd(&box->disk);
    free(box->baseline.files);
    struct launcher *pool = pool_of(box);
    if (box->netns >= 0 && pool && pool->n_free_netns < ARRAY_SIZE(pool->free_netns))
        pool->free_netns[pool->n_free_netns++] = TAKE_FD(box->netns);
    close_fd(&box->netns);
    take_ids(box);
    if (box->slot)
        cgroup_lease_put(box->profile, box->slot);
    if (box->private_dir) {
        box->private_dir = private_dir_free(box->private_dir);
        process_end_strays(engine);
    }
    box->upper = disk_upper_put(box->upper);
    volume_leases_drop(box);
    if (box->lower.held)
        box->lower.release(box->lower.held);
    list_remove(&box->node);
    list_remove(&box->in_profile);
    launcher_job_cancel(&box->creation.job);
    engine->boxes.n--;
    set_files(box, 0);
    free(box);
    if (engine->stopping && !engine->boxes.n)
        loop_stop(engine->loop);
    else if (has_lived)
        engine->hooks.room_freed(engine);
}

/* ---- its owner ---- */

static const struct box_owner_ops nobody;

void box_set_owner(struct box *box, const struct box_owner_ops *ops, void *owner) {
    box->ops = ops ? ops : &nobody;
    box->owner = owner;
}

/* The owner's table for one last call. */
static const struct box_owner_ops *take_owner(struct box *box, void **ret_owner) {
    const struct box_owner_ops *ops = box->ops;

    *ret_owner = box->owner;
    box_set_owner(box, NULL, NULL);
    return ops;
}

/* Set up, and known: there are two to say so, init and the launcher, and either may be late. */
static void become_ready(struct box *box) {
    if (box->state != BOX_SETUP || !box->creation.is_set_up || box->pid <= 0)
        return;
    box->state = BOX_READY;
    disk_upper_watch(box);
    if (box->ops->ready)
        box->ops->ready(box->owner, box);
}

/* A box whose profile is gone dies: it needs no gateway. */
static int take_listeners(struct box *box, bool is_transparent, int *fds, size_t n) {
    const struct profile *profile = box->profile;

    return profile ? gateway_box_new(box->engine, box, profile->policy, profile->values.secrets,
                         is_transparent, fds, n)
                   : 0;
}

static void take_ready(struct box *box, const struct guest_record *record, int *fds, size_t n_fds) {
    size_t next = 0;

    if (record->value & GUEST_VALUE_NETNS && next < n_fds) {
        close_fd(&box->netns);
        box->netns = TAKE_FD(fds[next]);
        next++;
    }
    if (record->value & GUEST_VALUE_DISK && next < n_fds) {
        box->disk = TAKE_FD(fds[next]);
        next++;
    }
    if (record->value & GUEST_VALUE_LISTENERS) {
        if (take_listeners(box, !(record->value & GUEST_VALUE_PORTS), fds + next, n_fds - next) <
            0) {
            box_fail(
                box, &(struct guest_record){
                         .kind = GUEST_FAILED, .stage = GUEST_STAGE_NETWORK, .error = ENOMEM });
            return;
        }
        set_files(box, box->files + gateway_box_files(box));
    }
    box->creation.is_set_up = true;
    become_ready(box);
}

/* One record of init's. False when there is none, or no more to come. */
static bool handle_answer(struct box *box) {
    struct guest_record record = { 0 };
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds = 0;

    if (!box->answers.callback)
        return false;
    ssize_t n = fd_receive(box->socket, &record, sizeof record, fds, &n_fds);
    if (n == -EAGAIN)
        return false;
    /* A terminal that found no room is the failure of its command, not of a sandbox that has files.
     */
    if (n == -EMFILE && box->ops->tolerates_lost_fds && box->state == BOX_READY)
        n = sizeof record;
    if (n == -EMFILE)
        box_fail(box, &(struct guest_record){ .kind = GUEST_FAILED,
                          .stage = GUEST_STAGE_CLONE,
                          .error = EMFILE }); /* its descriptors found no room */
    else if (n != sizeof record)
        loop_remove(
            box->engine->loop, &box->answers); /* init is ending; its pidfd tells when it has */
    else if (record.kind == GUEST_BOX_READY)
        take_ready(box, &record, fds, n_fds);
    else if (record.kind == GUEST_FAILED)
        box_fail(box, &record);
    else if (box->ops->report)
        box->ops->report(box->owner, box, &record, fds, n_fds);
    for (size_t i = 0; n > 0 && i < n_fds; i++)
        close_fd(&fds[i]);
    return n == sizeof record;
}

static void on_answer(struct loop_source *source, uint32_t events) {
    (void)events;
    handle_answer(container_of(source, struct box, answers));
}

static void on_death(struct loop_source *source, uint32_t events) {
    struct box *box = container_of(source, struct box, end.death);
    siginfo_t unused;
    void *owner;

    (void)events;
    (void)waitid(P_PIDFD, (id_t)box->pidfd, &unused, WEXITED | WNOHANG);
    loop_remove(box->engine->loop, &box->end.death);
    /* Messages of an init that has died are still in the socket. */
    while (handle_answer(box))
        ;
    const struct box_owner_ops *ops = take_owner(box, &owner);
    if (ops->dead)
        ops->dead(owner, box);
    box_free(box);
}

static void on_deadline(struct loop_timer *timer) {
    struct box *box = container_of(timer, struct box, deadline);
    struct guest_record record = {
        .kind = GUEST_FAILED, .stage = GUEST_STAGE_SPAWN, .error = ETIMEDOUT
    };

    if (launcher_job_is_pending(&box->creation.job))
        launcher_kill(box->creation.job.launcher); /* and with it all that wait for it */
    else if (box->private_dir && box->state == BOX_DYING)
        sys_pidfd_send_signal(box->pidfd, SIGKILL, NULL,
            0); /* it had its time; the engine ends the processes that it leaves */
    else if (box->ops->late)
        box->ops->late(box->owner, box);
    else
        box_fail(box, &record);
}

static int listen_to_init(struct box *box) {
    return loop_add(box->engine->loop, &box->answers, box->socket, EPOLLIN, on_answer);
}

static void on_created(void *data, const struct launcher_result *result);

/* CPUs for a sandbox that is to have fewer than the host: in turn. */
static void add_affinity(struct buf *to, unsigned n) {
    static unsigned next;
    cpu_set_t all, some;

    if (sched_getaffinity(0, sizeof all, &all) < 0)
        return;
    CPU_ZERO(&some);
    for (unsigned tried = 0; tried < CPU_SETSIZE && n; tried++) {
        unsigned cpu = next++ % CPU_SETSIZE;
        if (CPU_ISSET(cpu, &all)) {
            CPU_SET(cpu, &some);
            n--;
        }
    }
    wire_add(to, GUEST_AFFINITY, &some, sizeof some);
}

/* The content of the layers below counts for the box's disk limit. A little room is left in any
 * case, because deleting a file takes room, too. */
static void add_disk(const struct box *box, const struct box_layers *layers, struct buf *message) {
    uint64_t most = box->profile->policy->max_disk_bytes, max_entries = most / 16384 + 1024;

    wire_add_u64(message, GUEST_BYTES,
        most > layers->bytes + LEAST_DISK ? most - layers->bytes : MIN((uint64_t)LEAST_DISK, most));
    wire_add_u64(message, GUEST_ENTRIES,
        max_entries > layers->entries + LEAST_ENTRIES ? max_entries - layers->entries
                                                      : LEAST_ENTRIES);
}

static void add_identity(
    const struct box *box, const struct box_config *config, struct buf *message) {
    const struct plan *plan = box->profile->plan;

    if (box->upper)
        upper_field(box->upper, message);
    if (box->private_dir)
        private_dir_fields(box->private_dir, message);
    else if (box->file_ids.id)
        wire_add_u64(message, GUEST_ID, box->file_ids.id);
    if (plan->flags & PLAN_MANY_USERS)
        wire_add_u64(message, GUEST_ACCOUNT, many_ids_next_account(box->engine));
    if (plan->affinity)
        add_affinity(message, (unsigned)plan->affinity);
    if (config->seed) {
        char uuid[SEEDED_RANDOM_UUID_BYTES];

        determinism_uuid(*config->seed, uuid);
        wire_add_u64(message, GUEST_SEED, *config->seed);
        wire_add_text(message, GUEST_UUID, uuid);
    }
    if (plan->flags & PLAN_CLOCK && config->layers) {
        wire_add_u64(message, GUEST_SINCE, (uint64_t)config->layers->since_ns);
        wire_add_u64(message, GUEST_GENERATION, config->layers->generation);
    }
    if (config->ahead_ns)
        wire_add(message, GUEST_CLOCKS, config->ahead_ns, 2 * sizeof *config->ahead_ns);
}

/* Mounts that one CREATE has, beside the descriptors of the box. */
struct create_mounts {
    int sources;
    int uppers[1 + GUEST_MAX_LAYERS];
    size_t n_uppers;
};

static void close_mounts(struct create_mounts *mounts) {
    close_fd(&mounts->sources);
    while (mounts->n_uppers)
        close(mounts->uppers[--mounts->n_uppers]);
}

/* disk_at store: mounts of the sandbox's own directory, and then of the layers that it is created
 * on, for an id of its own. 0 or -errno. */
static int show_uppers(
    struct box *box, uint32_t base, const struct box_layers *layers, struct create_mounts *mounts) {
    struct file_ids *ids = &box->file_ids;
    const size_t n = layers ? layers->n : 0;

    if (!ids->id || !own_mounts_on_disk(box))
        return 0;
    if (ids->fd < 0)
        ids->fd = MAX(own_mounts_map(base, box->profile->plan, ids->id), -EBADF);
    int r = MIN(ids->fd, 0);
    while (r >= 0 && mounts->n_uppers <= n) {
        const struct disk_upper *upper =
            mounts->n_uppers ? layers->uppers[mounts->n_uppers - 1] : box->upper;

        r = upper ? disk_upper_show(upper, ids->fd, own_mounts_show) : -ESTALE;
        if (r >= 0)
            mounts->uppers[mounts->n_uppers++] = r;
    }
    if (r < 0)
        close_mounts(mounts);
    return MIN(r, 0);
}

/* The descriptors of CREATE, in the order that the launcher expects, and the flags that say which
 * there are. */
static uint32_t collect_fds(const struct box *box, const struct box_config *config,
    const struct create_mounts *mounts, int *fds, size_t *n_fds) {
    size_t n = *n_fds;
    uint32_t flags = 0;

    if (box->netns >= 0) {
        fds[n++] = box->netns;
        flags |= GUEST_CREATE_NETNS;
    }
    if (box->slot && cgroup_slot_fd(box->slot->cgroup) >= 0) {
        fds[n++] = cgroup_slot_fd(box->slot->cgroup);
        flags |= GUEST_CREATE_CGROUP;
    }
    /* Of files in memory the launcher makes the namespace, the first time. */
    if (box->lower.is_layered && box->file_ids.id && !mounts->n_uppers)
        flags |= GUEST_CREATE_MAPS;
    if (flags & GUEST_CREATE_MAPS && box->file_ids.fd >= 0) {
        fds[n++] = box->file_ids.fd;
        flags |= GUEST_CREATE_HAS_MAP;
    }
    if (mounts->sources >= 0) {
        fds[n++] = mounts->sources;
        flags |= GUEST_CREATE_SOURCES;
    }
    if (mounts->n_uppers) {
        fds[n++] = mounts->uppers[0];
        flags |= GUEST_CREATE_UPPER;
    }
    flags |= config->tracks ? GUEST_CREATE_NOTES : 0;
    flags |= box->lower.is_layered ? GUEST_CREATE_LAYERED : 0;
    flags |= config->keeps_image ? GUEST_CREATE_KEEPS : 0;
    if (config->layers) {
        flags |= (uint32_t)config->layers->n << GUEST_CREATE_LAYERS_SHIFT;
        for (size_t i = 0; i < config->layers->n; i++)
            fds[n++] = mounts->n_uppers ? mounts->uppers[1 + i] : config->layers->fds[i];
    }
    for (int i = 0; box->slot && i < box->slot->n_entries; i++)
        fds[n++] = box->slot->entries[i];
    *n_fds = n;
    return flags;
}

static int send_create(
    struct box *box, const struct box_config *config, struct launcher *launcher, int box_socket) {
    auto_buf struct buf message = BUF_INIT;
    int fds[FD_MESSAGE_MAX_FDS] = { box_socket };
    struct create_mounts mounts = { .sources = -EBADF };
    size_t n = 1;

    if (show_uppers(box, launcher->id_base, config->layers, &mounts) < 0)
        take_ids(box);
    int r = own_mounts_promise(box, pool_of(box), &mounts.sources);
    launcher_begin(launcher, &box->creation.job, GUEST_CREATE, &message);
    add_identity(box, config, &message);
    if (config->layers && config->layers->n) {
        add_disk(box, config->layers, &message);
        wire_add(&message, GUEST_PARTS, config->layers->parts,
            config->layers->n * sizeof config->layers->parts[0]);
    }
    if (buf_failed(&message))
        r = -ENOMEM;
    if (r == 0) {
        ((struct wire_header *)(void *)message.data)->flags =
            collect_fds(box, config, &mounts, fds, &n);
        r = launcher_send(launcher, &box->creation.job, &message, fds, n, on_created, box);
    }
    close_mounts(&mounts);
    return r;
}

/* The box's own parts, before the launcher makes the rest. */
static int prepare_box(struct box *box, const struct launcher *launcher) {
    struct profile *profile = box->profile;
    struct engine *engine = box->engine;
    int r = 0;

    if (cgroup_root_backend(engine->cgroups) != CGROUP_NONE) {
        r = cgroup_lease_get(profile, box->lower.is_layered, &box->slot);
        if (r == 0)
            box->slot->box = box;
    }
    /* Only namespaces without a loopback interface are used again: nothing a guest did can have
     * left a trace in them. */
    struct launcher *pool = pool_of(box);
    if (r == 0 && profile->plan->flags & PLAN_NET_OWN &&
        !(profile->plan->flags & PLAN_NET_LOOPBACK) && pool && pool->n_free_netns)
        box->netns = pool->free_netns[--pool->n_free_netns];
    if (r == 0 && fcntl(box->socket, F_SETFL, O_NONBLOCK) < 0)
        r = -errno;
    if (r == 0)
        r = listen_to_init(box);
    if (r == 0)
        r = loop_timer_set(engine->loop, &box->deadline,
            clock_now_ns() + SETUP_SECONDS * 1000000000ll, on_deadline);
    if (r == 0 && profile->plan->flags & PLAN_PROCESS)
        r = private_dir_new(profile, launcher->id_base, &box->private_dir);
    if (r == 0 && profile->plan->flags & PLAN_ON_DISK)
        r = disk_upper_new(engine, launcher->id_base, &box->upper);
    if (r == 0)
        lend_ids(box);
    return r;
}

int box_new(struct profile *profile, const struct box_config *config,
    const struct box_owner_ops *ops, void *owner, struct box **ret_box,
    struct rollbox_error *error) {
    struct engine *engine = profile->engine;
    struct launcher *launcher = config->launcher ? config->launcher : profile->launcher;
    int pair[2] = { -EBADF, -EBADF }, r = 0;
    struct box *box = calloc(1, sizeof *box);

    if (!box)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "setup", "out of memory");
    box->engine = engine;
    box->profile = profile;
    box->creation.made_ns = clock_coarse_ns();
    box->lower.is_layered = config->is_layered || config->layers || profile->sessions.n;
    box->creation.launcher = launcher->number;
    box->lower.restored_image = config->restored_image;
    box->pidfd = box->socket = box->netns = box->disk = -EBADF;
    box->file_ids = no_ids;
    box->sockets.sockmem.fd = box->sockets.sockmem.protocols = -EBADF;
    box_set_owner(box, NULL, NULL);
    if ((r = volume_leases_take(box, owner, error)) < 0) {
        free(box);
        return r;
    }
    list_init(&box->in_profile);
    list_init(&box->creation.job.node);
    list_add_tail(&engine->boxes.all, &box->node);
    set_files(box, files_of_new(engine));
    if (!engine->boxes.n++)
        (void)loop_timer_set(
            engine->loop, &engine->boxes.tidy, clock_now_ns(), engine->boxes.tidy.callback);
    if (config->layers) {
        box->lower.held = TAKE_PTR(config->layers->held);
        box->lower.release = config->layers->release;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        r = -errno;
    box->socket = pair[0];
    if (r == 0)
        r = prepare_box(box, launcher);
    if (r == 0)
        r = send_create(box, config, launcher, pair[1]);
    close_fd(&pair[1]);
    if (r < 0) {
        box_free(box);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "setup",
            "the sandbox cannot be made: %s", strerror(-r));
    }
    box_set_owner(box, ops, owner);
    *ret_box = box;
    return 0;
}

static void be_created(struct box *box, pid_t pid, int take_pidfd) {
    box->pid = pid;
    box->pidfd = take_pidfd;
    if (loop_add(box->engine->loop, &box->end.death, box->pidfd, EPOLLIN, on_death) < 0) {
        struct guest_record record = {
            .kind = GUEST_FAILED, .stage = GUEST_STAGE_CLONE, .error = ENOMEM
        };

        sys_pidfd_send_signal(box->pidfd, SIGKILL, NULL, 0);
        box_fail(box, &record);
        box_free(box); /* nobody will tell of its death */
    } else if (box->state == BOX_DYING) {
        box_kill(box);
    } else {
        become_ready(box);
    }
}

/* The launcher's answer. */
static void on_created(void *data, const struct launcher_result *result) {
    struct box *box = data;

    if (result->record->kind != GUEST_CREATED || result->n_fds < 1) {
        box_fail(box, result->record);
        return;
    }
    if (result->n_fds > 1 && box->file_ids.id)
        box->file_ids.fd = TAKE_FD(result->fds[1]);
    be_created(box, (pid_t)result->record->value, TAKE_FD(result->fds[0]));
}

void box_fail(struct box *box, const struct guest_record *record) {
    void *owner;
    const struct box_owner_ops *ops = take_owner(box, &owner);

    /* The owner may kill it, and with the last session of a retired profile that goes, too, and
     * would end its boxes. This one ends below. */
    box->state = BOX_FAILED;
    if (ops->failed)
        ops->failed(owner, box, record);
    box->engine->hooks.room_freed(
        box->engine); /* it made others wait, perhaps, and has not lived */
    box->state = BOX_DYING;
    box_kill(box);
}

/* Before its pipes are closed: a process that found them at their end would wake up, and its slow
 * exit would take the processor that we are on. */
void box_send_kill(struct box *box) {
    if (box->pidfd >= 0 && !box->private_dir)
        box->end.kill_sent = sys_pidfd_send_signal(box->pidfd, SIGKILL, NULL, 0) == 0;
}

/* The others die of init's end, and that takes a processor, which who woke up would have for as
 * long as it liked. */
void box_close(struct box *box, int *fd) {
    if (*fd >= 0 && box->end.kill_sent) {
        buf_add(&box->end.fds_until_dead, fd, sizeof *fd);
        if (!buf_failed(&box->end.fds_until_dead))
            *fd = -EBADF;
    }
    close_fd(fd);
}

void box_kill(struct box *box) {
    loop_remove(box->engine->loop, &box->answers);
    close_fd(&box->socket);
    if (box->state == BOX_FAILED)
        return; /* box_fail ends it */
    box->state = BOX_DYING;
    /* Without a pid namespace it is init that ends the others, as soon as it sees its socket
     * closed. */
    if (box->pidfd >= 0 && box->private_dir &&
        loop_timer_set(box->engine->loop, &box->deadline,
            clock_now_ns() + END_SECONDS * 1000000000ll, on_deadline) == 0)
        return;
    if (box->pidfd >= 0)
        sys_pidfd_send_signal(box->pidfd, SIGKILL, NULL, 0);
    else if (!launcher_job_is_pending(&box->creation.job))
        box_free(box); /* the launcher said that it is not to be */
}

void box_orphan(struct box *box) {
    box_set_owner(box, NULL, NULL);
    list_remove(&box->in_profile);
    gateway_box_free(box);
    box->profile = NULL;
    box_kill(box);
}

bool box_is_dead(const struct box *box) {
    return box->pidfd >= 0 &&
           poll(&(struct pollfd){ .fd = box->pidfd, .events = POLLIN }, 1, 0) > 0;
}

/* ---- its use of memory ---- */

/* The kinds of sockets whose memory is not counted elsewhere. On a shared network a socket
 * cannot be attributed to a sandbox. A memory cgroup of version 1 counts Unix sockets only; one of
 * version 2 counts all but netlink sockets. */
static unsigned uncounted_sockets(const struct box *box) {
    const struct policy *policy = box->profile ? box->profile->policy : NULL;

    if (!policy || box->private_dir || policy->net == POLICY_NET_HOST)
        return 0;
    unsigned all =
        SOCKMEM_UNIX | (policy->net != POLICY_NET_NONE ? SOCKMEM_INET | SOCKMEM_NETLINK : 0);
    if (!box->slot)
        return all;
    return all &
           (cgroup_root_backend(box->engine->cgroups) == CGROUP_V1 ? SOCKMEM_INET | SOCKMEM_NETLINK
                                                                   : SOCKMEM_NETLINK);
}

static void stop_asking(struct box *box) {
    if (box->sockets.sockmem.fd < 0)
        return;
    loop_remove(box->engine->loop, &box->sockets.asking);
    sockmem_close(&box->sockets.sockmem);
    note_asking(box, 0);
    set_files(box, box->files - 2);
}

/* Nothing runs in it: no more is to be asked for a while. */
void box_rest(struct box *box) {
    stop_asking(box);
    box->sockets.bytes = 0;
}

static void on_more_sockets(struct loop_source *source, uint32_t events);

/* A guest can have so many that asking takes long: in parts, between which others get their turn,
 * and altogether they get ten times that. And the kernel looks through a table of all that the
 * machine has, for each: of many sandboxes all together get a fifth of our time. */
static void ask_for(struct box *box, int64_t budget_ns) {
    const uint64_t limit = box->profile->policy->max_memory_bytes;
    const int64_t begun = clock_now_ns();
    uint64_t bytes = 0;
    int r = sockmem_usage(
        &box->sockets.sockmem, uncounted_sockets(box), limit, begun + budget_ns, &bytes);
    const int64_t now = clock_now_ns();

    box->sockets.asked_ns += now - begun;
    if (r == 0 && (box->sockets.asking.callback ||
                      (r = loop_add(box->engine->loop, &box->sockets.asking,
                           box->sockets.sockmem.fd, EPOLLIN, on_more_sockets)) == 0))
        return;
    loop_remove(box->engine->loop, &box->sockets.asking);
    if (r > 0)
        box->sockets.bytes = bytes;
    if (r < 0 || bytes > limit)
        stop_asking(box); /* it may still have an answer for us: another one next time, and what it
                             said last until then */
    else
        note_asking(box, box->sockets.asked_ns);
    box->sockets.ask_again_ns =
        now + MAX(10 * box->sockets.asked_ns, 5 * box->engine->boxes.poll_cost_ns);
    box->sockets.asked_ns = 0;
}

static void on_more_sockets(struct loop_source *source, uint32_t events) {
    struct box *box = container_of(source, struct box, sockets.asking);

    (void)events;
    if (box->profile)
        ask_for(box, 0);
    else
        box_rest(box);
}

static uint64_t socket_memory(struct box *box) {
    if (!uncounted_sockets(box) || box->sockets.asking.callback ||
        clock_now_ns() < box->sockets.ask_again_ns)
        return box->sockets.bytes;
    if (box->sockets.sockmem.fd < 0 && sockmem_open(box->pid, &box->sockets.sockmem) == 0)
        set_files(box, box->files + 2);
    if (box->sockets.sockmem.fd >= 0)
        ask_for(box, ASK_AT_ONCE_NS);
    return box->sockets.bytes;
}

bool box_needs_watch(const struct box *box) {
    return !box->slot || uncounted_sockets(box);
}

/* A cgroup kills by itself at the limit of the memory that it counts. */
bool box_is_over(const struct box *box, uint64_t memory) {
    return box->profile &&
           (box->slot ? box->sockets.bytes : memory) > box->profile->policy->max_memory_bytes;
}

/* The sandbox's use of memory and processor so far. -errno if it is not known. */
int box_usage(
    struct box *box, uint64_t *ret_memory, uint64_t *ret_cpu_ns, uint32_t *ret_processes) {
    struct proc_usage usage;
    struct statfs disk;

    if (box->slot) {
        struct cgroup_usage group;
        int r = cgroup_slot_usage(box->slot->cgroup, &group);

        if (r < 0)
            return r;
        *ret_memory = group.memory_peak + (box->pid > 0 ? socket_memory(box) : 0);
        *ret_cpu_ns = group.cpu_ns                                       ? group.cpu_ns
                      : box->pid > 0 && proc_scan(box->pid, &usage) == 0 ? usage.cpu_ns
                                                                         : 0;
        *ret_processes = group.processes_now > 1 ? group.processes_now - 1 : 0;
        return 0;
    }
    if (box->pid <= 0)
        return -ESRCH;
    int r = proc_scan(box->pid, &usage);
    if (r < 0)
        return r;
    uint64_t limit = box->profile ? box->profile->policy->max_memory_bytes : UINT64_MAX;
    if (usage.anon_bytes > limit)
        (void)proc_scan_exact(box->pid, &usage);
    *ret_memory = usage.anon_bytes + box->memory.kernel_bytes + socket_memory(box);
    if (box->disk >= 0 && !box->upper && fstatfs(box->disk, &disk) == 0)
        *ret_memory += (uint64_t)(disk.f_blocks - disk.f_bfree) * (uint64_t)disk.f_bsize;
    *ret_cpu_ns = usage.cpu_ns;
    *ret_processes = usage.threads > 1 ? usage.threads - 1 : 0;
    return 0;
}

/* Until init reports the start, the time limit of the command does not run. A start that blocks (a
 * path on a file system that does not answer) ends here. */
void box_expect_start(struct box *box) {
    box_expect(box, SETUP_SECONDS * 1000000000ll);
}

void box_expect(struct box *box, int64_t ns) {
    (void)loop_timer_set(box->engine->loop, &box->deadline, clock_now_ns() + ns, on_deadline);
}

void box_expect_nothing(struct box *box) {
    loop_timer_clear(box->engine->loop, &box->deadline);
}
