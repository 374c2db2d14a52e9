/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/box/volume_lease.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/list.h"
#include "engine/box/box.h"
#include "engine/box/profile.h"
#include "engine/box/volume_owner.h"
#include "engine/core/context.h"
#include "engine/core/disk_usage_worker.h"
#include "engine/core/log.h"
#include "engine/core/spawn.h"
#include "store/store.h"
#include "store/volume.h"

#define LOOK_NS 10000000ll      /* between two checks of the free space near the limit, */
#define MAX_LOOK_NS 250000000ll /* and far from the limit */
/* The longest time between two measurements. Space that is freed elsewhere hides growth. */
#define MEASURE_NS 2000000000ll
/* Measurements after the processes met the limit: one may have begun before they ended, and the
 * next one finds all that they wrote. Neither may end the command that comes after them. */
#define SETTLING 2u
#define BYTES_A_SECOND 4294967296ull
#define BYTES_A_FILE 16384u /* a volume may have one file for so many bytes of its limit, ... */
#define FILES_LEAST 1024u   /* ... and these besides */

/* One volume that boxes have mounted in one mode. */
struct held_volume {
    struct list node; /* engine->boxes.volumes */
    struct engine *engine;
    char *name;
    enum policy_volume_mode mode;
    const void *owner; /* of an exclusive volume: the session whose boxes share it; NULL: one box */
    struct stat identity; /* the directory's device and inode: a name may be used again */
    int directory;
    struct volume_lock lock;
    unsigned references;
    uint64_t max_bytes; /* 0: no limit */
    /* Only of a volume with a limit that boxes write to: */
    int worker; /* -EBADF: none yet */
    struct loop_source answers;
    struct loop_timer look;
    bool is_measuring;
    uint64_t bytes, entries;                     /* as of the last measurement */
    uint64_t tolerated_bytes, tolerated_entries; /* the boxes have met their limit for these */
    unsigned
        settling; /* so many measurements may find what was written until the processes ended */
    uint64_t free_bytes; /* of the file system at the last measurement */
    int64_t measured_ns;
};

struct volume_leases {
    size_t n;
    struct held_volume *held[];
};

int volume_lease_find(const char *name, char **ret_files, struct rollbox_error *error) {
    auto_free char *store = NULL;
    auto_free char *real = NULL;
    auto_close int fd = -EBADF;
    auto_close int directory = -EBADF;
    int r = store_default_path(&store, error);

    if (r == 0 && (r = store_open(store, &fd, error)) == -ENOENT)
        r = error_set(error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "policy",
            "volumes: there is no volume %s; rollbox volume create %s makes it", name, name);
    if (r == 0)
        r = volume_open(fd, name, &directory, error);
    if (r < 0)
        return r;
    real = realpath(store, NULL);
    if (!real || asprintf(ret_files, "%s/" VOLUMES_DIRECTORY "/%s/" VOLUME_FILES, real, name) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    return 0;
}

/* ---- quotas ---- */

static uint64_t max_entries(const struct held_volume *held) {
    return held->max_bytes / BYTES_A_FILE + FILES_LEAST;
}

static bool is_limited(const struct held_volume *held) {
    return held->max_bytes &&
           (held->mode == POLICY_VOLUME_EXCLUSIVE || held->mode == POLICY_VOLUME_SHARED);
}

static bool has_lease(const struct box *box, const struct held_volume *held) {
    for (size_t i = 0; box->lower.volumes && i < box->lower.volumes->n; i++)
        if (box->lower.volumes->held[i] == held)
            return true;
    return false;
}

/* A volume over its limit may shrink, but not grow. */
static void check_limit(struct held_volume *held) {
    const bool is_over = held->bytes > held->max_bytes || held->entries > max_entries(held);
    const bool has_grown = held->bytes > MAX(held->max_bytes, held->tolerated_bytes) ||
                           held->entries > MAX(max_entries(held), held->tolerated_entries);

    if (!is_over)
        held->tolerated_bytes = held->tolerated_entries = 0;
    const bool is_settling = held->settling > 0;

    held->settling -= is_settling;
    if (!is_over || !has_grown)
        return;
    held->tolerated_bytes = MAX(held->tolerated_bytes, held->bytes);
    held->tolerated_entries = MAX(held->tolerated_entries, held->entries);
    if (is_settling)
        return;
    held->settling = SETTLING;
    log_at(LOG_INFO, "volume", ABOUT(.sandbox = NULL),
        "volume %s exceeds its limit: it has %llu bytes in %llu files", held->name,
        (unsigned long long)held->bytes, (unsigned long long)held->entries);
    list_for_each(node, &held->engine->boxes.all) {
        struct box *box = container_of(node, struct box, node);

        if (has_lease(box, held) && box_is_in_use(box))
            box_meet_limit(box, BOX_LIMIT_DISK);
    }
}

static void lose_worker(struct held_volume *held) {
    loop_remove(held->engine->loop, &held->answers);
    close_fd(&held->worker);
    held->is_measuring = false;
}

static void on_answer(struct loop_source *source, uint32_t events) {
    struct held_volume *held = container_of(source, struct held_volume, answers);
    struct disk_usage_reply answer;

    (void)events;
    ssize_t n = recv(held->worker, &answer, sizeof answer, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n != sizeof answer) {
        lose_worker(held);
        return;
    }
    held->is_measuring = false;
    held->measured_ns = clock_now_ns();
    held->bytes = answer.is_deep ? UINT64_MAX : answer.bytes;
    held->entries = answer.entries;
    check_limit(held);
}

static int start_worker(struct held_volume *held) {
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    const int fds[] = { pair[1], held->directory };
    pid_t pid = spawn_fork("rollbox-measure", fds, ARRAY_SIZE(fds));
    if (pid == 0)
        disk_usage_serve(pair[1], held->directory);
    close(pair[1]);
    int r = pid < 0 ? (int)pid
                    : loop_add(held->engine->loop, &held->answers, pair[0], EPOLLIN, on_answer);
    if (r < 0)
        close(pair[0]);
    else
        held->worker = pair[0];
    return r;
}

static void measure(struct held_volume *held, uint64_t free_bytes) {
    struct disk_usage_request request = { .number = VOLUME_FILES_NUMBER };

    if (held->is_measuring || (held->worker < 0 && start_worker(held) < 0))
        return;
    /* Removed files that processes of the box still have open take space, too. */
    list_for_each(node, &held->engine->boxes.all) {
        const struct box *box = container_of(node, struct box, node);

        if (has_lease(box, held) && box->pid > 0)
            request.init = box->pid;
    }
    if (send(held->worker, &request, sizeof request, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof request)
        return;
    held->is_measuring = true;
    held->free_bytes = free_bytes;
}

static void on_look(struct loop_timer *timer) {
    struct held_volume *held = container_of(timer, struct held_volume, look);
    const int64_t now = clock_now_ns();
    int64_t next = LOOK_NS;
    struct statvfs file_system;

    if (fstatvfs(held->directory, &file_system) == 0) {
        const uint64_t free_bytes = file_system.f_bfree * file_system.f_frsize;
        const uint64_t limit_bytes = MAX(held->max_bytes, held->tolerated_bytes);
        const uint64_t used = held->free_bytes - MIN(held->free_bytes, free_bytes);
        const uint64_t left = limit_bytes - MIN(limit_bytes, held->bytes + MIN(used, limit_bytes));

        if (!held->measured_ns || !left || now - held->measured_ns > MEASURE_NS)
            measure(held, free_bytes);
        next = (int64_t)(left / (BYTES_A_SECOND / 1000000000ull));
    }
    (void)loop_timer_set(
        held->engine->loop, timer, now + MIN(MAX(next, LOOK_NS), MAX_LOOK_NS), on_look);
}

/* ---- references ---- */

static struct held_volume *release(struct held_volume *held) {
    if (!held || --held->references)
        return NULL;
    loop_timer_clear(held->engine->loop, &held->look);
    if (held->worker >= 0)
        lose_worker(held);
    volume_lock_done(&held->lock);
    close_fd(&held->directory);
    list_remove(&held->node);
    free(held->name);
    free(held);
    return NULL;
}

/* Returns a new reference to a held volume that may be shared, or NULL. */
static struct held_volume *find_held(struct engine *engine, const struct policy_volume *volume,
    const struct stat *identity, const void *owner) {
    list_for_each(node, &engine->boxes.volumes) {
        struct held_volume *held = container_of(node, struct held_volume, node);

        if (held->mode == volume->mode && held->identity.st_dev == identity->st_dev &&
            held->identity.st_ino == identity->st_ino &&
            (held->mode != POLICY_VOLUME_EXCLUSIVE || (owner && held->owner == owner))) {
            held->references++;
            return held;
        }
    }
    return NULL;
}

static int hold_volume(const struct box *box, int store, const struct policy_volume *volume,
    const void *owner, struct held_volume **ret_held, struct rollbox_error *error) {
    struct engine *engine = box->engine;
    auto_close int directory = -EBADF;
    struct volume_meta meta = { 0 };
    struct stat identity;
    int r = volume_open(store, volume->name, &directory, error);

    if (r < 0)
        return r;
    if (fstat(directory, &identity) < 0)
        return error_set(error, ROLLBOX_ERR_IO, errno, "volume", "volume %s cannot be examined: %s",
            volume->name, strerror(errno));
    r = volume_owner_settle(engine, box->profile->plan, directory, volume->name, error);
    if (r < 0)
        return r;
    if ((*ret_held = find_held(engine, volume, &identity, owner)))
        return 0;
    if ((r = volume_read_meta(directory, &meta)) < 0)
        return error_set(error, r == -EBADMSG ? ROLLBOX_ERR_DAMAGED : ROLLBOX_ERR_IO, -r, "volume",
            "volume.json of volume %s cannot be read: %s", volume->name, strerror(-r));
    struct held_volume *held = calloc(1, sizeof *held);
    if (!held || !(held->name = strdup(volume->name))) {
        free(held);
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "volume", "out of memory");
    }
    held->lock = VOLUME_LOCK_NONE;
    r = volume_lock_take(store, directory, volume->name, volume->mode, &held->lock, error);
    if (r < 0) {
        free(held->name);
        free(held);
        return r;
    }
    held->engine = engine;
    held->mode = volume->mode;
    held->owner = owner;
    held->identity = identity;
    held->directory = TAKE_FD(directory);
    held->references = 1;
    held->max_bytes = meta.max_bytes;
    held->worker = -EBADF;
    list_add_tail(&engine->boxes.volumes, &held->node);
    if (is_limited(held))
        (void)loop_timer_set(engine->loop, &held->look, clock_now_ns(), on_look);
    *ret_held = held;
    return 0;
}

int volume_leases_take(struct box *box, const void *owner, struct rollbox_error *error) {
    const struct policy_volumes *volumes = &box->profile->policy->volumes;
    auto_free char *path = NULL;
    auto_close int store = -EBADF;

    if (!volumes->n)
        return 0;
    int r = store_default_path(&path, error);
    if (r == 0)
        r = store_open(path, &store, error);
    if (r < 0)
        return r;
    box->lower.volumes =
        calloc(1, sizeof *box->lower.volumes + volumes->n * sizeof box->lower.volumes->held[0]);
    if (!box->lower.volumes)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "volume", "out of memory");
    for (size_t i = 0; i < volumes->n; i++) {
        r = hold_volume(box, store, &volumes->items[i], owner, &box->lower.volumes->held[i], error);
        if (r < 0) {
            volume_leases_drop(box);
            return r;
        }
        box->lower.volumes->n++;
    }
    return 0;
}

void volume_leases_made(struct box *box) {
    for (size_t i = 0; box->lower.volumes && i < box->lower.volumes->n; i++)
        if (box->lower.volumes->held[i]->mode == POLICY_VOLUME_EXCLUSIVE)
            volume_lock_note(&box->lower.volumes->held[i]->lock, box->pid);
}

void volume_leases_drop(struct box *box) {
    for (size_t i = 0; box->lower.volumes && i < box->lower.volumes->n; i++)
        box->lower.volumes->held[i] = release(box->lower.volumes->held[i]);
    free(box->lower.volumes);
    box->lower.volumes = NULL;
}
