/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/box/disk_upper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/remove_tree.h"
#include "engine/box/box.h"
#include "engine/box/profile.h"
#include "engine/core/context.h"
#include "engine/core/disk_usage_worker.h"
#include "engine/core/janitor.h"
#include "engine/core/log.h"
#include "engine/core/spawn.h"
#include "engine/store_job/store_job.h"
#include "store/disk_uppers.h"
#include "store/store.h"

#define GONE "gone"
#define TRIES 16
#define BYTES_A_SECOND 4294967296ull /* the most that a CPU writes */
#define ENTRY_NS 1000                /* that it takes to make one at least */
#define LOOK_LEAST_NS 10000000ll
#define MAX_LOOK_NS 500000000ll
#define PAUSE_LEAST_NS 1000000000ll /* between two walks that nothing but time has asked for */
#define MAX_PAUSE_NS 64000000000ll
#define SURE_NS                                                                                    \
    10000000000ll /* so long what is known for certain counts, for others may make room meanwhile  \
                   */
#define QUIESCE_AGAIN_NS 1000000000ll /* until a box that did not freeze is asked once more */
#define REST 20                       /* of the time such walks may take one part in so many */
#define LEAST_BYTES                                                                                \
    (1ull << 20) /* that a sandbox may always have besides what it stands on: as launcher.c has it \
                    for a tmpfs */
#define LEAST_ENTRIES 256ull

struct uppers {
    struct engine *engine;
    char *path; /* of the engine's directory, without links */
    int fd;     /* it, locked */
    int gone;   /* where its janitor deletes */
    uint64_t next_number;
    int disk_usage_worker; /* -EBADF: none yet */
    struct loop_source answers;
    struct list queue;        /* struct disk_upper.in_queue */
    struct disk_upper *asked; /* a reference; NULL: none is being measured */
    struct loop_timer look;
};

/* ---- the directory ---- */

/* As rollbox-store makes it. This is the one time, in the life of a store, that the engine waits
 * for it. */
static int make_store(const struct engine *engine, char *path, struct rollbox_error *error) {
    char *argv[] = { (char *)"rollbox-store", (char *)"ls", (char *)"--json", (char *)"--store",
        path, NULL };

    return store_job_run(engine, argv, error);
}

int disk_upper_open_store(
    const struct engine *engine, char **ret_path, int *ret_fd, struct rollbox_error *error) {
    auto_free char *path = NULL;
    struct rollbox_error why = { 0 };
    int r = store_default_path(&path, &why);

    if (r == 0 && (r = store_open(path, ret_fd, &why)) < 0 && why.code == ROLLBOX_ERR_NOT_FOUND &&
        why.error_number == ENOENT) {
        r = make_store(engine, path, &why);
        if (r == 0)
            r = store_open(path, ret_fd, &why);
    }
    if (r < 0) {
        error_set(error, why.code, why.error_number, "policy", "disk_at store: %s", why.message);
        return r;
    }
    *ret_path = TAKE_PTR(path);
    return 0;
}

/* Checks the requirements of an overlay for its upper directory. */
static int check_file_system(int fd, const char *path, struct rollbox_error *error) {
    struct statfs where;
    bool is_overlay = fstatfs(fd, &where) == 0 && where.f_type == OVERLAYFS_SUPER_MAGIC;

    if (!is_overlay && fsetxattr(fd, "user.rollbox.try", "", 0, 0) == 0 &&
        fremovexattr(fd, "user.rollbox.try") == 0)
        return 0;
    int e = is_overlay ? EINVAL : errno;
    if (e == ENOSPC || e == EDQUOT)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, e, "policy",
            "disk_at store: %s: %s", path, strerror(e));
    return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, e, "policy",
        "disk_at store: the file system of %s %s; set ROLLBOX_STORE to a directory on ext4, xfs or "
        "btrfs (in a container: to a volume), or leave disk_at out",
        path,
        is_overlay ? "is an overlay, over which there can be no other"
                   : "has no user attributes, which overlays need");
}

/* A directory that was just made belongs to nobody for a moment, in which another engine may take
 * it for a leftover. */
static int make_own(struct uppers *uppers, int boxes, const char *store) {
    uint64_t random;
    struct stat ours, there;

    for (int i = 0; i < TRIES; i++) {
        char name[48];

        if (getrandom(&random, sizeof random, 0) != sizeof random)
            return -EIO;
        snprintf(name, sizeof name, "%d-%016" PRIx64, (int)getpid(), random);
        if (mkdirat(boxes, name, 0700) < 0)
            return -errno;
        auto_close int fd = openat(boxes, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0 || fstat(fd, &ours) < 0 ||
            fstatat(boxes, name, &there, AT_SYMLINK_NOFOLLOW) < 0 || ours.st_ino != there.st_ino)
            continue;
        /* The directories above are closed to others. This one lets the ids of sandboxes pass,
         * which have it among their mounts. */
        if (fchmod(fd, 0711) < 0 || mkdirat(fd, GONE, 0700) < 0)
            return -errno;
        auto_free char *whole = NULL;
        if (asprintf(&whole, "%s/" BOXES_DIRECTORY "/%s", store, name) < 0)
            return -ENOMEM;
        uppers->path = realpath(whole, NULL);
        uppers->gone = openat(fd, GONE, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (!uppers->path || uppers->gone < 0)
            return -errno;
        uppers->fd = TAKE_FD(fd);
        return 0;
    }
    return -EBUSY;
}

/* ---- the janitor ---- */

/* A directory of an engine that has ended, or is about to; the process that gets its lock removes
 * it. */
static void remove_engine(int boxes, const char *name, int lock_flags) {
    auto_close int fd = openat(boxes, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0 || flock(fd, LOCK_EX | lock_flags) < 0)
        return;
    (void)tree_empty(fd);
    (void)unlinkat(boxes, name, AT_REMOVEDIR);
}

static void sweep_boxes(int boxes) {
    int fd = openat(boxes, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;

    while (list && (entry = readdir(list)))
        if (entry->d_name[0] != '.')
            remove_engine(boxes, entry->d_name, LOCK_NB);
    if (list)
        closedir(list);
    else
        close_fd(&fd);
}

/* The directory of an engine, apart from its name. */
static int open_boxes(const char *path, const char **ret_name) {
    const char *name = strrchr(path, '/');
    auto_free char *boxes = name ? strndup(path, (size_t)(name - path)) : NULL;

    *ret_name = name ? name + 1 : "";
    return boxes ? open(boxes, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
}

static void sweep_dead_engines(struct engine *engine, const char *path) {
    const char *name;
    auto_close int boxes = open_boxes(path, &name);

    (void)engine;
    /* Without that, directories that guests have closed to others stay until their modes are
     * changed. */
    (void)disk_usage_overrule();
    if (boxes >= 0)
        sweep_boxes(boxes);
}

static void remove_own(struct engine *engine, const char *path) {
    const char *name;
    auto_close int boxes = open_boxes(path, &name);

    (void)engine;
    if (boxes >= 0)
        remove_engine(boxes, name, 0);
}

static void empty_gone(struct engine *engine, const char *path) {
    auto_close int own = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    auto_close int gone = openat(own, GONE, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    (void)engine;
    if (gone >= 0)
        (void)tree_empty(gone);
}

static const struct janitor_duty own_duty = { .now = sweep_dead_engines,
    .at_end = remove_own,
    .after_loans = true },
                                 gone_duty = { .now = empty_gone };

/* ---- all of them ---- */

static struct uppers *uppers_free(struct uppers *uppers) {
    if (!uppers)
        return NULL;
    loop_timer_clear(uppers->engine->loop, &uppers->look);
    loop_remove(uppers->engine->loop, &uppers->answers);
    close_fd(&uppers->disk_usage_worker);
    close_fd(&uppers->gone);
    close_fd(&uppers->fd);
    free(uppers->path);
    free(uppers);
    return NULL;
}

static int set_up(struct engine *engine, struct uppers *uppers, struct rollbox_error *error) {
    auto_free char *store = NULL;
    auto_close int fd = -EBADF;
    int r = disk_upper_open_store(engine, &store, &fd, error);

    if (r < 0)
        return r;
    if (mkdirat(fd, BOXES_DIRECTORY, 0700) < 0 && errno != EEXIST)
        r = -errno;
    auto_close int boxes =
        openat(fd, BOXES_DIRECTORY, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (r == 0 && (boxes < 0 || fchmod(boxes, 0700) < 0))
        r = -errno;
    if (r == 0 && (r = check_file_system(boxes, store, error)) < 0)
        return r;
    if (r == 0)
        r = make_own(uppers, boxes, store);
    if (r == 0)
        r = janitor_tell(engine, &own_duty, uppers->path);
    return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "policy",
                       "disk_at store: no directory for sandboxes can be made in %s: %s", store,
                       strerror(-r))
                 : 0;
}

int disk_upper_directory(
    struct engine *engine, const char **ret_path, struct rollbox_error *error) {
    if (!engine->uppers) {
        struct uppers *uppers = calloc(1, sizeof *uppers);

        if (!uppers)
            return error_set(
                error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
        uppers->engine = engine;
        uppers->fd = uppers->gone = uppers->disk_usage_worker = -EBADF;
        uppers->answers.fd = -1;
        list_init(&uppers->queue);
        int r = set_up(engine, uppers, error);
        if (r < 0) {
            uppers_free(uppers);
            return r;
        }
        engine->uppers = uppers;
    }
    *ret_path = engine->uppers->path;
    return 0;
}

void disk_upper_finish(struct engine *engine) {
    if (engine->uppers && engine->uppers->asked)
        disk_upper_put(TAKE_PTR(engine->uppers->asked));
    engine->uppers = uppers_free(engine->uppers);
}

int disk_upper_lend(const struct engine *engine) {
    return engine->uppers ? fcntl(engine->uppers->fd, F_DUPFD_CLOEXEC, 0) : -EBADF;
}

/* ---- one of them ---- */

struct name {
    char text[24];
};

static struct name name_of(const struct disk_upper *upper) {
    struct name name;

    snprintf(name.text, sizeof name.text, "%" PRIu64, upper->number);
    return name;
}

static int find_room(const struct uppers *uppers, uint64_t *ret_bytes, uint64_t *ret_entries) {
    struct statfs room;

    if (fstatfs(uppers->fd, &room) < 0)
        return -errno;
    *ret_bytes = (uint64_t)room.f_bfree * (uint64_t)room.f_bsize;
    *ret_entries = (uint64_t)room.f_ffree;
    return 0;
}

int disk_upper_new(struct engine *engine, uint32_t id_base, struct disk_upper **ret_upper) {
    struct uppers *uppers = engine->uppers;
    struct disk_upper *upper = calloc(1, sizeof *upper);

    if (!upper)
        return -ENOMEM;
    *upper =
        (struct disk_upper){ .engine = engine, .references = 1, .number = ++uppers->next_number };
    list_init(&upper->in_queue);
    struct name name = name_of(upper);
    if (mkdirat(uppers->fd, name.text, 0700) < 0) {
        int r = -errno;

        free(upper);
        return r;
    }
    upper->sure.at_ns = clock_now_ns();
    (void)find_room(uppers, &upper->sure.room_bytes, &upper->sure.room_entries);
    /* As the root of a tmpfs is that U0's root has mounted. */
    if ((engine->features.is_root &&
            fchownat(uppers->fd, name.text, id_base, id_base, AT_SYMLINK_NOFOLLOW) < 0) ||
        fchmodat(uppers->fd, name.text, 0755, 0) < 0) {
        int r = -errno;

        disk_upper_put(upper);
        return r;
    }
    *ret_upper = upper;
    return 0;
}

struct disk_upper *disk_upper_get(struct disk_upper *upper) {
    upper->references++;
    return upper;
}

struct disk_upper *disk_upper_put(struct disk_upper *upper) {
    struct uppers *uppers;

    if (!upper || --upper->references)
        return NULL;
    uppers = upper->engine->uppers;
    struct name name = name_of(upper);
    list_remove(&upper->in_queue);
    loop_task_cancel(&upper->hold.refused);
    /* An engine that ends has given its directory to the janitor. */
    if (uppers && renameat(uppers->fd, name.text, uppers->gone, name.text) == 0)
        (void)janitor_tell(upper->engine, &gone_duty, uppers->path);
    free(upper);
    return NULL;
}

int disk_upper_show(const struct disk_upper *upper, int map,
    int (*show)(int map, int directory, const char *path, unsigned flags)) {
    struct uppers *uppers = upper->engine->uppers;

    return uppers ? show(map, uppers->fd, name_of(upper).text, AT_SYMLINK_NOFOLLOW) : -ESTALE;
}

void upper_field(const struct disk_upper *upper, struct buf *message) {
    wire_add_text(message, GUEST_UPPER, name_of(upper).text);
}

/* ---- how much there is ---- */

static struct box *box_of(const struct disk_upper *upper) {
    list_for_each(node, &upper->engine->boxes.all)
        if (container_of(node, struct box, node)->upper == upper)
            return container_of(node, struct box, node);
    return NULL;
}

/* Without the layers below it. An upper that was over its limit once may stay as it is. */
static void limits_of(
    const struct box *box, bool tolerates, uint64_t *ret_bytes, uint64_t *ret_entries) {
    uint64_t bytes = 0, entries = 0, most = box->profile->policy->max_disk_bytes,
             max_entries = most / 16384 + 1024;

    if (box->ops->layer_usage)
        box->ops->layer_usage(box->owner, &bytes, &entries);
    *ret_bytes = MAX(most - MIN(most, bytes), MIN(LEAST_BYTES, most));
    *ret_entries = MAX(max_entries - MIN(max_entries, entries), LEAST_ENTRIES);
    if (tolerates) {
        *ret_bytes = MAX(*ret_bytes, box->upper->tolerated_bytes);
        *ret_entries = MAX(*ret_entries, box->upper->tolerated_entries);
    }
}

/* Agents of files are for those who find the sandbox so: what has been found once more is what they
 * themselves may have written. */
static void end_processes(struct box *box, bool spares_agents) {
    box_meet_limit(box, spares_agents ? BOX_LIMIT_DISK_GUESTS : BOX_LIMIT_DISK);
}

static void hold_to_limit(struct box *box) {
    struct disk_upper *upper = box->upper;
    uint64_t bytes, entries;

    if (!box->profile || box->state >= BOX_FAILED)
        return;
    limits_of(box, false, &bytes, &entries);
    if (upper->bytes <= bytes && upper->entries <= entries && !upper->is_deep) {
        upper->tolerated_bytes = upper->tolerated_entries = 0;
        upper->over = UPPER_WITHIN;
        return;
    }
    bool is_first = upper->over == UPPER_WITHIN;
    limits_of(box, true, &bytes, &entries);
    bool grew = upper->bytes > bytes || upper->entries > entries;
    /* Files that guests wrote between the walk that found them over the limit and their end are
     * found by the next walk. */
    bool is_guests = is_first || (grew && upper->over == UPPER_NEWLY_OVER);
    upper->over = is_first ? UPPER_NEWLY_OVER : UPPER_KNOWN_OVER;
    if (is_guests) {
        upper->tolerated_bytes = upper->bytes;
        upper->tolerated_entries = upper->entries;
    }
    if (is_first || grew || upper->is_deep)
        end_processes(box, is_guests);
}

/* Whether there can be more than was found, by the room that has gone since it was known for
 * certain, or the time. */
static bool may_hide(const struct box *box) {
    const struct disk_upper *upper = box->upper;
    uint64_t bytes, entries;

    if (clock_now_ns() - upper->sure.at_ns >= SURE_NS)
        return true;
    limits_of(box, true, &bytes, &entries);
    return upper->sure.bytes +
                   (upper->sure.room_bytes - MIN(upper->sure.room_bytes, upper->room_bytes)) >
               bytes ||
           upper->sure.entries +
                   (upper->sure.room_entries - MIN(upper->sure.room_entries, upper->room_entries)) >
               entries;
}

static int tell_init(struct box *box, enum guest_request what) {
    auto_buf struct buf message = BUF_INIT;

    wire_begin(&message, what, 0);
    return wire_send(box->socket, &message, NULL, 0);
}

/* An owner with other operations must know of it. One without tells init at once. */
static void hold_still(struct box *box) {
    struct disk_upper *upper = box->upper;

    if (upper->hold.state != UPPER_RUNS || upper->measured_ns < upper->hold.not_before_ns)
        return;
    if (box->ops->hold ? box->ops->hold(box->owner, box)
                       : box_is_in_use(box) && tell_init(box, GUEST_FREEZE) == 0)
        upper->hold.state = UPPER_HOLD_REQUESTED;
}

static void let_go(struct box *box) {
    box->upper->hold.state = UPPER_RUNS;
    if (box->ops->release)
        box->ops->release(box->owner, box);
    else if (tell_init(box, GUEST_THAW) == -EAGAIN)
        box->upper->hold.state = UPPER_THAW_DUE;
}

void disk_upper_is_left(struct box *box) {
    if (box->upper)
        box->upper->hold.state = UPPER_RUNS;
}

/* A slow disk may keep a process from freezing once; a box that refuses a second time has something
 * to hide. */
static void on_refused(struct loop_task *task) {
    struct disk_upper *upper = container_of(task, struct disk_upper, hold.refused);
    struct box *box = box_of(upper);

    if (!box || box->state >= BOX_FAILED || upper->hold.state != UPPER_REFUSED)
        return;
    if (upper->hold.has_refused)
        end_processes(box, false);
    upper->hold.has_refused = !upper->hold.has_refused;
    let_go(box);
}

bool disk_upper_stands(struct box *box, int error) {
    struct disk_upper *upper = box->upper;

    if (!upper || upper->hold.state != UPPER_HOLD_REQUESTED)
        return false;
    if (error) {
        /* The caller is in the middle of an operation on the sandbox. */
        upper->hold.state = UPPER_REFUSED;
        upper->hold.not_before_ns = clock_now_ns() + QUIESCE_AGAIN_NS;
        loop_defer(upper->engine->loop, &upper->hold.refused, on_refused);
        return true;
    }
    upper->hold.has_refused = false;
    upper->hold.state = UPPER_STANDS;
    upper->hold.since_ns = clock_now_ns();
    disk_upper_measure(upper);
    return true;
}

static void look_soon(struct uppers *uppers);
static void ask_next(struct uppers *uppers);

static void judge_usage(struct box *box, const struct disk_usage_reply *answer) {
    struct disk_upper *upper = box->upper;
    bool was_still = upper->hold.state == UPPER_STANDS;

    hold_to_limit(box);
    if (was_still) {
        upper->hold.not_before_ns =
            upper->measured_ns + (upper->measured_ns - upper->hold.since_ns) * REST;
        let_go(box);
    } else if (answer->has_moved && box->profile && box->state == BOX_READY && may_hide(box)) {
        hold_still(box);
    }
}

static void take_answer(struct uppers *uppers, const struct disk_usage_reply *answer) {
    struct disk_upper *upper = TAKE_PTR(uppers->asked);

    if (!upper)
        return;
    if (upper->is_outdated) {
        upper->is_outdated = false;
        disk_upper_measure(upper);
    } else {
        bool same = upper->is_measured && upper->bytes == answer->bytes &&
                    upper->entries == answer->entries;

        upper->bytes = answer->bytes;
        upper->entries = answer->entries;
        upper->is_deep = answer->is_deep;
        upper->is_measured = true;
        upper->measured_ns = clock_now_ns();
        upper->pause_ns = MIN(
            MAX(same ? upper->pause_ns * 2 : PAUSE_LEAST_NS, answer->took_ns * REST), MAX_PAUSE_NS);
        struct box *box = box_of(upper);
        if (upper->hold.state == UPPER_STANDS || (answer->was_checked && !answer->has_moved)) {
            upper->sure.at_ns = upper->measured_ns;
            upper->sure.bytes = answer->bytes;
            upper->sure.entries = answer->entries;
            upper->sure.room_bytes = upper->room_bytes;
            upper->sure.room_entries = upper->room_entries;
        }
        if (upper->layer)
            upper->measured(upper);
        else if (box)
            judge_usage(box, answer);
    }
    disk_upper_put(upper);
    ask_next(uppers);
    look_soon(uppers);
}

/* The worker was killed: its request goes to another one. */
static void lose_disk_usage_worker(struct uppers *uppers) {
    struct disk_upper *upper = TAKE_PTR(uppers->asked);

    loop_remove(uppers->engine->loop, &uppers->answers);
    close_fd(&uppers->disk_usage_worker);
    if (upper) {
        upper->is_outdated = false;
        disk_upper_measure(upper);
        disk_upper_put(upper);
    }
}

static void on_answer(struct loop_source *source, uint32_t events) {
    struct uppers *uppers = container_of(source, struct uppers, answers);
    struct disk_usage_reply answer;

    (void)events;
    ssize_t n = recv(uppers->disk_usage_worker, &answer, sizeof answer, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n != sizeof answer)
        lose_disk_usage_worker(uppers);
    else
        take_answer(uppers, &answer);
}

static int start_disk_usage_worker(struct uppers *uppers) {
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    const int fds[] = { pair[1], uppers->fd };
    pid_t pid = spawn_fork("rollbox-measure", fds, ARRAY_SIZE(fds));
    if (pid == 0)
        disk_usage_serve(pair[1], uppers->fd);
    close(pair[1]);
    int r = pid < 0 ? (int)pid
                    : loop_add(uppers->engine->loop, &uppers->answers, pair[0], EPOLLIN, on_answer);
    if (r < 0)
        close(pair[0]);
    else
        uppers->disk_usage_worker = pair[0];
    return r;
}

/* A request that cannot be made now is made at the next look. */
static void ask_next(struct uppers *uppers) {
    if (uppers->asked || list_empty(&uppers->queue) ||
        (uppers->disk_usage_worker < 0 && start_disk_usage_worker(uppers) < 0))
        return;
    struct disk_upper *upper = container_of(uppers->queue.next, struct disk_upper, in_queue);
    const struct box *box = box_of(upper);
    struct disk_usage_request request = { .number = upper->number,
        .init = box && !upper->layer ? box->pid : 0 };

    /* The walk may miss later writes: they count as room that has gone since. */
    if (find_room(uppers, &upper->room_bytes, &upper->room_entries) < 0)
        return;
    request.checks =
        request.init && box->profile && upper->hold.state != UPPER_STANDS && may_hide(box);
    if (send(uppers->disk_usage_worker, &request, sizeof request, MSG_NOSIGNAL | MSG_DONTWAIT) !=
        sizeof request)
        return;
    list_remove(&upper->in_queue);
    uppers->asked = disk_upper_get(upper);
}

void disk_upper_measure(struct disk_upper *upper) {
    struct uppers *uppers = upper->engine->uppers;

    if (upper == uppers->asked) {
        upper->is_outdated = true;
        return;
    }
    /* A box that is frozen for it does not wait for the others' walks. */
    if (upper->hold.state == UPPER_STANDS) {
        list_remove(&upper->in_queue);
        list_add_tail(uppers->queue.next, &upper->in_queue); /* before the first */
    } else if (list_empty(&upper->in_queue)) {
        list_add_tail(&uppers->queue, &upper->in_queue);
    }
    ask_next(uppers);
    if (!uppers->asked)
        look_soon(uppers);
}

/* ---- looking ---- */

/* The time before which the guest cannot reach its limit; 0: it may have reached it. */
static int64_t time_left(
    const struct box *box, uint64_t room_bytes, uint64_t room_entries, int64_t now) {
    const struct disk_upper *upper = box->upper;
    uint64_t bytes, entries;

    limits_of(box, true, &bytes, &entries);
    /* Its own size, and all space that was used by anybody since. */
    bytes -= MIN(bytes, upper->bytes + (upper->room_bytes - MIN(upper->room_bytes, room_bytes)));
    entries -= MIN(
        entries, upper->entries + (upper->room_entries - MIN(upper->room_entries, room_entries)));
    if (!upper->is_measured || !bytes || !entries || now - upper->measured_ns >= upper->pause_ns)
        return 0;
    uint64_t cpus = upper->engine->features.cpus;
    return (int64_t)MIN(
        bytes / (BYTES_A_SECOND * cpus / 1000000000ull + 1), entries * ENTRY_NS / cpus);
}

static bool is_watched(const struct box *box) {
    return box->upper && box->profile && box->state == BOX_READY && box_is_in_use(box);
}

static void on_look(struct loop_timer *timer) {
    struct uppers *uppers = container_of(timer, struct uppers, look);
    int64_t now = clock_now_ns(), next = MAX_LOOK_NS;
    uint64_t bytes = 0, entries = 0;
    bool any = !list_empty(&uppers->queue);

    if (find_room(uppers, &bytes, &entries) == 0)
        list_for_each(node, &uppers->engine->boxes.all) {
            struct box *box = container_of(node, struct box, node);

            if (!is_watched(box))
                continue;
            any = true;
            if (box->upper->hold.state == UPPER_THAW_DUE)
                let_go(box);
            int64_t left = box->upper == uppers->asked || !list_empty(&box->upper->in_queue)
                               ? MAX_LOOK_NS
                               : time_left(box, bytes, entries, now);
            if (!left)
                disk_upper_measure(box->upper);
            else
                next = MIN(next, left);
        }
    ask_next(uppers);
    if (any && !timer->position)
        (void)loop_timer_set(uppers->engine->loop, timer, now + MAX(next, LOOK_LEAST_NS), on_look);
}

static void look_soon(struct uppers *uppers) {
    if (!uppers->look.position)
        (void)loop_timer_set(
            uppers->engine->loop, &uppers->look, clock_now_ns() + LOOK_LEAST_NS, on_look);
}

void disk_upper_watch(struct box *box) {
    if (!box->upper)
        return;
    box->upper->pause_ns = MIN(box->upper->pause_ns, PAUSE_LEAST_NS);
    look_soon(box->upper->engine->uppers);
}
