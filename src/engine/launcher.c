/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's side of a launcher (src/guest/launcher/launcher.c): starts it, requests boxes. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
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
#include "engine/session.h"
#include "engine/disk_upper.h"
#include "engine/own_mounts.h"
#include "policy/determinism.h"

/* Host ids far above those that distributions and container tools hand out (subuids end below
 * 2^30). */
#define FIRST_ID_BASE 0x60000000u
#define N_ID_BASES 4096u
#define LEAST_DISK (1u << 20)
#define LEAST_ENTRIES 256

static void handle_loss(struct launcher *launcher, const struct guest_record *why);

static struct box *take_creating(struct launcher *launcher, uint64_t serial) {
    list_for_each(node, &launcher->creating) {
        struct box *box = container_of(node, struct box, in_launcher);

        if (box->serial == serial) {
            list_remove(node);
            return box;
        }
    }
    return NULL;
}

/* What sandboxes have written outlives the launcher in their layers, which only a launcher in the
 * same user namespace can mount again. */
static void keep_user_namespace(struct launcher *launcher, int *fds, size_t n_fds) {
    struct profile *profile = launcher->profile;

    if (n_fds < 1 || profile->launcher != launcher || profile->user_namespace >= 0)
        return;
    profile->user_namespace = TAKE_FD(fds[0]);
    profile->id_base = launcher->id_base;
    profile->launcher_number = launcher->number;
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
    /* What came with it found no room: that box, or copy, or pool, is not to be; the others are not
     * concerned. */
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
    if (n != sizeof record) {
        for (size_t i = 0; n > 0 && i < n_fds; i++)
            close(fds[i]);
        handle_loss(launcher, NULL);
        return;
    }
    struct engine *engine = launcher->profile->engine;
    struct box *box;
    switch (record.kind) { /* each may end the launcher */
    case GUEST_TEMPLATE_READY:
        launcher->ready = true;
        keep_user_namespace(launcher, fds, n_fds);
        if (n_fds == 2)
            launcher->sources = TAKE_FD(fds[1]);
        list_for_each(node, &launcher->creating)
            own_mounts_ready(container_of(node, struct box, in_launcher), launcher);
        path_identities_bound(
            profile_path_identities(launcher->profile), launcher->profile->plan, record.value);
        break;
    case GUEST_CREATED:
        box = take_creating(launcher, record.serial);
        if (box && n_fds >= 1) {
            if (n_fds > 1 && box->file_ids.id)
                box->file_ids.fd = TAKE_FD(fds[1]);
            box_created(box, (pid_t)record.value, TAKE_FD(fds[0]));
            run_schedule(engine); /* its socket may have been full */
        }
        break;
    case GUEST_CREATE_FAILED:
        box = take_creating(launcher, record.serial);
        if (box)
            box_failed(box, &record);
        break;
    case GUEST_IMAGE_LOADED:
        if (launcher->checkpoint) {
            launcher->pid = (pid_t)record.value;
            if (record.error)
                handle_loss(launcher, &record);
        } else if (launcher->profile->serves)
            interpreter_loaded(launcher->profile->serves, record.error);
        break;
    case GUEST_IMAGE_FS_MADE:
        if (!record.error && n_fds == 1 && engine->image_fs < 0) {
            engine->image_fs = TAKE_FD(fds[0]);
            engine->pool_id = launcher->id_base;
        }
        engine->image_fs_requested = record.error != EMFILE; /* there may be room for the next */
        break;
    case GUEST_COPIED:
        copy_answer(launcher, &record, fds, n_fds);
        break;
    case GUEST_FAILED:
        handle_loss(launcher, &record);
        break;
    default:
        break;
    }
    for (size_t i = 0; i < n_fds; i++)
        close_fd(&fds[i]);
}

/* The launcher is gone or no use: the boxes that wait for it fail, with its reason; those that live
 * are not concerned. */
static void handle_loss(struct launcher *launcher, const struct guest_record *why) {
    struct guest_record unknown = {
        .kind = GUEST_FAILED, .stage = GUEST_STAGE_CLONE, .error = ECHILD
    };
    struct list waiting;

    list_init(&waiting);
    list_for_each(node, &launcher->creating) {
        list_remove(node);
        list_add_tail(&waiting, node);
        container_of(node, struct box, in_launcher)->state =
            BOX_DYING; /* no spare for a run that starts as another one fails */
    }
    /* Runs that fail may be the last that a retired program was kept for, and what it has with it.
     */
    struct profile *profile = launcher->profile->serves ? launcher->profile : NULL;
    if (profile)
        profile->n_running++;
    if (launcher->profile->launcher == launcher)
        profile_drop_spares_of(launcher->profile); /* files of what it has made nobody can copy */
    launcher_stop(launcher);                       /* and tells who waits for copies */
    list_for_each(node, &waiting) {
        list_remove(node);
        box_failed(container_of(node, struct box, in_launcher), why ? why : &unknown);
    }
    if (profile)
        interpreter_launcher_lost(profile);
}

void launcher_drop(struct launcher *launcher) {
    handle_loss(launcher, NULL);
}

void launcher_kill(struct launcher *launcher) {
    struct guest_record late = {
        .kind = GUEST_FAILED, .stage = GUEST_STAGE_CLONE, .error = ETIMEDOUT
    };

    if (launcher->pid > 0)
        (void)kill(launcher->pid, SIGKILL);
    handle_loss(launcher, &late);
}

/* ---- ids ---- */

/* One that nobody has: what the kernel counts by user is counted for each sandbox by itself. (Two
 * share one only where all sixty thousand are in use.) */
static uint32_t new_guest_id(struct engine *engine) {
    for (uint32_t tried = 2; tried < GUEST_ID_OTHERS; tried++) {
        uint32_t id = engine->next_guest_id =
            MAX((engine->next_guest_id + 1) % GUEST_ID_OTHERS, 2u);

        if (!(engine->guest_ids[id / 64] >> id % 64 & 1))
            break;
    }
    engine->guest_ids[engine->next_guest_id / 64] |= 1ull << engine->next_guest_id % 64;
    return engine->next_guest_id;
}

static void end_guest_id(struct engine *engine, uint32_t id) {
    engine->guest_ids[id / 64] &= ~(1ull << id % 64);
}

static void drop_ids(struct engine *engine, struct file_ids *ids) {
    close_fd(&ids->fd);
    /* The kernel takes long to end mounts that are attached nowhere. */
    if (ids->mounts >= 0)
        deferred_close(TAKE_FD(ids->mounts));
    end_guest_id(engine, ids->id);
}

/* The launcher that has what is left over for the next: never a holder, which ends with its state.
 */
static struct launcher *pool_of(const struct box *box) {
    struct launcher *launcher = box->profile ? box->profile->launcher : NULL;

    return launcher && launcher->number == box->launcher ? launcher : NULL;
}

void launcher_lend_ids(struct box *box) {
    struct launcher *pool = pool_of(box);
    const unsigned flags = box->profile->plan->flags;

    box->file_ids = (struct file_ids){ .fd = -EBADF, .mounts = -EBADF, .waits = -EBADF };
    if (!(flags & PLAN_AS_ROOT) || flags & PLAN_PROCESS)
        return;
    bool needs_mounts = own_mounts_needed(box);
    if (needs_mounts && (!pool || !pool->plan_id_is_lent)) {
        box->file_ids.is_plans = pool;
        if (pool)
            pool->plan_id_is_lent = true;
        return;
    }
    if ((box->is_layered || needs_mounts) && pool && pool->n_free_file_ids)
        box->file_ids = pool->free_file_ids[--pool->n_free_file_ids];
    else
        box->file_ids.id = new_guest_id(box->engine);
}

void launcher_take_ids(struct box *box) {
    struct launcher *pool = pool_of(box);

    close_fd(&box->file_ids.waits);
    if (pool && box->file_ids.is_plans)
        pool->plan_id_is_lent = false;
    if (pool && (box->file_ids.fd >= 0 || box->file_ids.mounts >= 0) &&
        pool->n_free_file_ids < ARRAY_SIZE(pool->free_file_ids))
        pool->free_file_ids[pool->n_free_file_ids++] = box->file_ids;
    else if (box->file_ids.id)
        drop_ids(box->engine, &box->file_ids);
    box->file_ids = (struct file_ids){ .fd = -EBADF, .mounts = -EBADF, .waits = -EBADF };
}

void launcher_drop_free(struct launcher *launcher) {
    while (launcher->n_free_netns)
        close(launcher->free_netns[--launcher->n_free_netns]);
    while (launcher->n_free_file_ids)
        drop_ids(launcher->profile->engine, &launcher->free_file_ids[--launcher->n_free_file_ids]);
}

void launcher_stop(struct launcher *launcher) {
    struct engine *engine = launcher->profile->engine;

    if (launcher->profile->launcher == launcher)
        launcher->profile->launcher = NULL;
    if (launcher->checkpoint)
        checkpoint_zygote_gone(launcher->checkpoint);
    list_for_each(node, &launcher->creating) {
        list_remove(node);
        box_kill(container_of(node, struct box, in_launcher));
    }
    copy_lost(launcher);
    loop_remove(engine->loop, &launcher->source);
    launcher_drop_free(launcher);
    if (launcher->sources >= 0)
        deferred_close(TAKE_FD(launcher->sources));
    close(launcher->socket); /* it ends when it notices */
    free(launcher);
}

static int spawn_init(
    struct engine *engine, uint32_t id_base, bool early, bool fixed, int socket, pid_t *ret_pid) {
    int fds[] = { engine->null_fd, engine->null_fd,
        engine->null_fd, [GUEST_LAUNCHER_SOCKET] = socket };
    char base[16];
    char *argv[] = { "rollbox-init", base,
        !early                     ? "late"
        : engine->features.is_root ? "root"
                                   : "user",
        NULL };

    snprintf(base, sizeof base, "%010u", id_base); /* of one length: guests see how long it was */
    /* Nor has it what somebody's setarch(8) has left us with. */
    int before = personality(fixed ? ADDR_NO_RANDOMIZE : PER_LINUX);
    int r = before < 0 ? -errno
                       : (early ? spawn_soon : spawn_clean)(
                             engine->init_path, argv, fds, ARRAY_SIZE(fds), ret_pid);
    if (before >= 0)
        (void)personality((unsigned long)before);
    return r;
}

/* What is ours of one, and the descriptor that it is to serve. 0 or -errno. */
static int make_launcher(uint64_t number, struct launcher **ret_launcher, int *ret_other) {
    struct launcher *launcher = calloc(1, sizeof *launcher);
    int pair[2];

    if (!launcher)
        return -ENOMEM;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        free(launcher);
        return -errno;
    }
    list_init(&launcher->creating);
    launcher->socket = pair[0];
    launcher->sources = -EBADF;
    launcher->number = number;
    (void)fcntl(launcher->socket, F_SETFL, O_NONBLOCK);
    *ret_launcher = launcher;
    *ret_other = pair[1];
    return 0;
}

/* A launcher without a plan yet; an early one enters its namespaces meanwhile, so it is for a plan
 * that has some. One that replaces another (`after`, or NULL) has its number and ids. 0 or -errno.
 */
static int start_process(struct engine *engine, const struct profile *after, bool early, bool fixed,
    struct launcher **ret_launcher) {
    struct launcher *launcher = NULL;
    auto_close int high = -EBADF;
    int other, r = make_launcher(
                   after ? after->launcher_number : ++engine->next_launcher, &launcher, &other);

    if (r < 0)
        return r;
    /* Out of the way of the descriptor that it becomes. */
    high = fcntl(other, F_DUPFD_CLOEXEC, 10);
    r = high < 0 ? -errno : 0;
    close(other);
    launcher->fixed = fixed;
    if (after) { /* a sandbox of that one's may still have the plan's id */
        launcher->id_base = after->id_base;
        launcher->plan_id_is_lent = true;
    } else if (engine->features.is_root || engine->features.own_ids)
        launcher->id_base = FIRST_ID_BASE + engine->next_id_base++ % N_ID_BASES * GUEST_ID_RANGE;
    if (r == 0)
        r = spawn_init(engine, launcher->id_base, early, fixed, high, &launcher->pid);
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
    int mounts = open("/proc/self/mounts", O_RDONLY | O_CLOEXEC);

    /* What goes wrong is told when one is needed. */
    if (mounts < 0 || access(engine->init_path, X_OK) < 0 ||
        start_process(engine, NULL, true, fixed, &engine->idle_launcher) < 0)
        close_fd(&mounts);
    else
        engine->idle_launcher->mounts = mounts;
}

void launcher_drop_idle(struct engine *engine) {
    struct launcher *launcher = TAKE_PTR(engine->idle_launcher);

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

    if (!engine->idle_launcher || engine->idle_launcher->fixed != fixed)
        return NULL;
    changed.fd = engine->idle_launcher->mounts;
    if (poll(&changed, 1, 0) != 0 ||
        cgroup_launcher_attach(engine->cgroups, engine->idle_launcher->pid) < 0) {
        launcher_drop_idle(engine);
        return NULL;
    }
    close(engine->idle_launcher->mounts);
    return TAKE_PTR(engine->idle_launcher);
}

int launcher_start(struct profile *profile, struct rollbox_error *error) {
    struct engine *engine = profile->engine;
    auto_buf struct buf message = BUF_INIT;
    bool process = profile->plan->flags & PLAN_PROCESS;
    bool fixed = profile->plan->flags & (PLAN_SEED | PLAN_CLOCK);

    path_identities_expect(profile_path_identities(profile), profile->plan);
    const struct profile *after = profile->user_namespace >= 0 ? profile : NULL;
    struct launcher *launcher = process || after ? NULL : take_idle(engine, fixed);
    auto_close int plan = fd_memory_file("rollbox-plan", profile->plan, profile->plan->length);
    const int given[2] = { plan, profile->user_namespace };
    const size_t n_given = after ? 2 : 1;
    bool was_idle = launcher;
    int r = MIN(plan, 0);

    if (r == 0 && !launcher)
        r = start_process(engine, after, false, fixed, &launcher);
    wire_begin(&message, GUEST_PLAN, 0);
    if (r == 0)
        r = wire_send_patiently(launcher->socket, &message, given, n_given);
    if ((r == -EPIPE || r == -ECONNRESET) &&
        was_idle) { /* it was killed while it waited, which nobody looked for */
        close(launcher->socket);
        free(TAKE_PTR(launcher));
        r = start_process(engine, after, false, fixed, &launcher);
        if (r == 0)
            r = wire_send_patiently(launcher->socket, &message, given, n_given);
    }
    if (r == 0)
        r = loop_add(engine->loop, &launcher->source, launcher->socket, EPOLLIN, on_message);
    if (r < 0) {
        if (launcher)
            close(launcher->socket);
        free(launcher);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "setup",
            "%s cannot be started: %s%s", engine->init_path, strerror(-r),
            r == -ENOENT ? "; it belongs beside the engine" : "");
    }
    launcher->profile = profile;
    profile->launcher = launcher;
    if (interpreter_has_image(profile) && (r = interpreter_load(profile)) < 0) {
        launcher_stop(launcher);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "setup",
            "the interpreter's image cannot be sent: %s", strerror(-r));
    }
    return 0;
}

/* A clone of the program's launcher, which serves a socket of its own. What it is asked for may be
 * sent before it has the image. */
int zygote_start(
    struct profile *profile, struct checkpoint *checkpoint, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;
    struct launcher *zygote = NULL;
    auto_close int other = -EBADF, image = -EBADF;
    int r = profile->launcher ? 0 : launcher_start(profile, error);

    if (r < 0)
        return r;
    wire_begin(&message, GUEST_ZYGOTE, 0);
    /* It may be written yet, but not by who reads what a guest chose. */
    r = MIN(image = checkpoint_open_to_read(checkpoint_image(checkpoint)), 0);
    if (r == 0)
        r = make_launcher(profile->launcher->number, &zygote, &other);
    if (r == 0)
        r = wire_send_patiently(profile->launcher->socket, &message,
            (const int[]){ other, image, checkpoint->progress }, checkpoint->progress < 0 ? 2 : 3);
    close_fd(&checkpoint->progress); /* there is one to listen, or none */
    if (r == 0)
        r = loop_add(profile->engine->loop, &zygote->source, zygote->socket, EPOLLIN, on_message);
    if (r < 0) {
        if (zygote)
            close(zygote->socket);
        free(zygote);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "restore",
            "the snapshot cannot be held in memory: %s", strerror(-r));
    }
    zygote->id_base = profile->launcher->id_base;
    zygote->profile = profile;
    zygote->checkpoint = checkpoint;
    checkpoint->zygote = zygote;
    return 0;
}

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

/* What the layers under it hold is part of its disk; a little is left in any case, for deleting
 * takes room, too. */
static void add_disk(const struct box *box, struct snapshot *base, struct buf *message) {
    uint64_t bytes, entries, most = box->profile->policy->max_disk_bytes,
                             max_entries = most / 16384 + 1024;

    snapshot_usage(base, &bytes, &entries);
    wire_add_u64(message, GUEST_BYTES,
        most > bytes + LEAST_DISK ? most - bytes : MIN((uint64_t)LEAST_DISK, most));
    wire_add_u64(message, GUEST_ENTRIES,
        max_entries > entries + LEAST_ENTRIES ? max_entries - entries : LEAST_ENTRIES);
}

static void close_all(const int *fds, size_t n) {
    while (n)
        close(fds[--n]);
}

/* disk_at store: mounts of the sandbox's own directory, and then of the layers that it is created
 * on, for an id of its own. Returns how many, 0: none are needed; or -errno. */
static int show_uppers(struct box *box, uint32_t base, struct layer *const *layers, size_t n,
    int ret_mounts[1 + GUEST_MAX_LAYERS]) {
    if (!box->file_ids.id || !own_mounts_on_disk(box))
        return 0;
    struct file_ids *ids = &box->file_ids;
    if (ids->fd < 0)
        ids->fd = MAX(own_mounts_map(base, box->profile->plan->outer_uid, ids->id), -EBADF);
    size_t shown = 0;
    int r = MIN(ids->fd, 0);

    while (r >= 0 && shown <= n) {
        const struct disk_upper *upper = shown ? layers[shown - 1]->upper : box->upper;

        r = upper ? disk_upper_show(upper, ids->fd, own_mounts_show) : -ESTALE;
        if (r >= 0)
            ret_mounts[shown++] = r;
    }
    close_all(ret_mounts, r < 0 ? shown : 0);
    return r < 0 ? r : (int)shown;
}

int launcher_create(
    struct launcher *launcher, struct box *box, const struct box_options *options, int box_socket) {
    struct snapshot *base = options->base;
    auto_buf struct buf message = BUF_INIT;
    struct layer *layers[GUEST_MAX_LAYERS];
    int fds[FD_MESSAGE_MAX_FDS];
    auto_close int image = options->loads ? checkpoint_open_to_read(options->loads->image)
                                          : -EBADF; /* as for a holder */
    size_t n = 0, n_layers = base ? snapshot_chain(base, layers, GUEST_MAX_LAYERS) : 0;
    int uppers[1 + GUEST_MAX_LAYERS];
    auto_close int sources = -EBADF;
    uint32_t flags = 0;

    if (options->loads && image < 0)
        return image;
    int n_uppers = show_uppers(box, launcher->id_base, layers, n_layers, uppers);
    if (n_uppers < 0) {
        launcher_take_ids(box);
        n_uppers = 0;
    }
    int r = own_mounts_promise(box, pool_of(box), &sources);
    box->serial = ++launcher->next_serial;
    wire_begin(&message, GUEST_CREATE, box->serial);
    if (box->upper)
        upper_field(box->upper, &message);
    if (box->private_dir)
        private_dir_fields(box->private_dir, &message);
    else if (box->file_ids.id)
        wire_add_u64(&message, GUEST_ID, box->file_ids.id);
    if (launcher->profile->plan->affinity)
        add_affinity(&message, (unsigned)launcher->profile->plan->affinity);
    if (box->session && box->session->origin.has_own_seed) {
        char uuid[SEEDED_RANDOM_UUID_BYTES];

        determinism_uuid(box->session->origin.seed, uuid);
        wire_add_u64(&message, GUEST_SEED, box->session->origin.seed);
        wire_add_text(&message, GUEST_UUID, uuid);
    }
    if (launcher->profile->plan->flags & PLAN_CLOCK && base) {
        wire_add_u64(&message, GUEST_SINCE, (uint64_t)snapshot_since_ns(base));
        wire_add_u64(&message, GUEST_GENERATION, base->generation);
    }
    if (options->ahead_ns)
        wire_add(&message, GUEST_CLOCKS, options->ahead_ns, 2 * sizeof *options->ahead_ns);
    fds[n++] = box_socket;
    if (box->netns >= 0) {
        fds[n++] = box->netns;
        flags |= GUEST_CREATE_NETNS;
    }
    if (box->slot && cgroup_slot_fd(box->slot->cgroup) >= 0) {
        fds[n++] = cgroup_slot_fd(box->slot->cgroup);
        flags |= GUEST_CREATE_CGROUP;
    }
    /* Of files in memory the launcher makes the namespace, the first time. */
    if (box->is_layered && box->file_ids.id && !n_uppers)
        flags |= GUEST_CREATE_MAPS;
    if (flags & GUEST_CREATE_MAPS && box->file_ids.fd >= 0) {
        fds[n++] = box->file_ids.fd;
        flags |= GUEST_CREATE_HAS_MAP;
    }
    if (sources >= 0) {
        fds[n++] = sources;
        flags |= GUEST_CREATE_SOURCES;
    }
    if (n_uppers) {
        fds[n++] = uppers[0];
        flags |= GUEST_CREATE_UPPER;
    }
    if (options->loads) {
        fds[n++] = image;
        fds[n++] = options->loads->progress;
        flags |= GUEST_CREATE_LOADS;
    }
    if (options->notes)
        flags |= GUEST_CREATE_NOTES;
    if (box->is_layered)
        flags |= GUEST_CREATE_LAYERED;
    if (launcher->checkpoint && checkpoint_may_be_kept(launcher->checkpoint, box))
        flags |= GUEST_CREATE_KEEPS;
    if (n_layers) {
        add_disk(box, base, &message);
        flags |= (uint32_t)n_layers << GUEST_CREATE_LAYERS_SHIFT;
        uint64_t parts[GUEST_MAX_LAYERS];

        box->stands_on = box->upper ? calloc(1, sizeof *box->stands_on) : NULL;
        if (box->upper && (!box->stands_on || layer_hold(box->stands_on, layers, n_layers) < 0))
            r = -ENOMEM;

        for (size_t i = 0; i < n_layers; i++) {
            fds[n++] = n_uppers ? uppers[1 + i] : layers[i]->fd;
            parts[i] = layers[i]->parts;
        }
        wire_add(&message, GUEST_PARTS, parts, n_layers * sizeof parts[0]);
    }
    for (int i = 0; box->slot && i < box->slot->n_entries; i++)
        fds[n++] = box->slot->entries[i];
    if (buf_failed(&message))
        r = -ENOMEM;
    if (r == 0) {
        ((struct wire_header *)(void *)message.data)->flags = flags;
        r = wire_send_patiently(launcher->socket, &message, fds, n);
    }
    close_all(uppers, (size_t)n_uppers);
    /* It has ended. If it has said why, that is in its socket, and fails this one with all others
     * that it was to make. */
    if ((r == -EPIPE || r == -ECONNRESET) &&
        recv(launcher->socket, &(char){ 0 }, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
        r = 0;
    if (r == 0) {
        box->maker = launcher;
        list_add_tail(&launcher->creating, &box->in_launcher);
    }
    return r;
}
