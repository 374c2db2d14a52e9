/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits for kernel memory that belongs to sandboxes but that no limit counts, or none without a
 * memory cgroup (sys/hoard.h).
 *
 * While something runs, the engine reads two numbers of the host every 50 ms: its open files and
 * its kernel memory. Only when one of them has grown by a step does a fork of the engine examine
 * all sandboxes, which takes longer, and report what each has. A sandbox is ended (out_of_memory)
 * in three cases: it has more than its share of open files; the memory of its countable objects is
 * over its limit; or it shows a sign of uncountable ones (sign_of) while the host's kernel memory
 * grows by more than its limit between two looks. Of the sandboxes with a sign only the one with
 * most of it is ended: the counts of the others start again, as they may be innocent.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "engine/box/box.h"
#include "engine/box/profile.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/core/spawn.h"
#include "engine/run/hoards.h"
#include "sys/hoard.h"

#define TICK_NS 50000000ll
#define IDLE_TICK_NS 250000000ll /* while no command runs, but what commands left may */
#define STEP_BYTES (16ull << 20)
#define STEP_FILES 8192u
#define MANY_FILES                                                                                 \
    16384u /* of the whole host: the least that is too many for a sandbox of usual limits */
#define AGAIN_LOOK_NS 1000000000ll /* then there is a look at all sandboxes each second, or */
#define AGAIN_SHARE 100            /* in a hundred times as long as it takes */
#define STEP_A_BOX (64ull << 10)   /* many that start at once take as much for themselves */
#define REST 3                     /* times as long as a look took there is none */
#define SIGN_LOCKS 1024
#define FILE_BYTES 3328 /* an open file below /proc, the dearest */
#define FILTER_BYTES 2400
#define LOCK_BYTES 200
#define FILE_SHARE 10240 /* the kernel has fs.file-max for one file in 10 KiB of memory */
#define FILE_PROCESSES 4 /* as many files as so many processes may have are always granted */

struct look {
    const struct box *box; /* only to be compared */
    int64_t made_ns;
    pid_t pid;          /* of its init */
    uint64_t limit;     /* of its memory */
    uint64_t max_files; /* with more it ends, and nothing else has to be known */
    bool has_group, is_known;
    struct hoard hoard;
};

struct hoards {
    struct engine *engine;
    int file_nr, meminfo;
    struct hoard_host base;   /* the least since the last look */
    struct hoard_host floor;  /* the least since something runs */
    struct hoard_host looked; /* as of the last look */
    bool has_looked;
    struct loop_timer tick;
    struct loop_source answer;
    int pipe; /* from the fork that looks; -EBADF: none does */
    struct look *looks;
    size_t n_looks, n_read; /* how many it is about; bytes of the answer so far */
    int64_t began_ns, not_before_ns, again_ns;
};

/* ---- what a sandbox has ---- */

static bool is_used(const struct box *box) {
    return box->profile && box->pid > 0 && box->state == BOX_READY && box_is_in_use(box);
}

static int by_box(const void *a, const void *b) {
    const struct look *one = a, *other = b;

    return (one->box > other->box) - (one->box < other->box);
}

/* The last look at the box, if it is still the same box. The looks are sorted. */
static struct look *look_of(const struct hoards *hoards, const struct box *box) {
    const struct look key = { .box = box };
    struct look *look = bsearch(&key, hoards->looks, hoards->n_looks, sizeof key, by_box);

    return look && look->is_known && look->pid == box->pid &&
                   look->made_ns == box->creation.made_ns && is_used(box)
               ? look
               : NULL;
}

static void end_box(struct box *box) {
    box_meet_limit(box, BOX_LIMIT_MEMORY);
}

static uint64_t subtract_saturated(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

static uint64_t file_limit(const struct policy *policy) {
    return MAX(
        policy->max_memory_bytes / FILE_SHARE, (uint64_t)FILE_PROCESSES * policy->max_open_files);
}

static uint64_t counted_bytes(const struct hoards *hoards, const struct look *look) {
    uint64_t bytes = 0;

    if (!look->has_group)
        bytes = look->hoard.files * FILE_BYTES +
                MIN(look->hoard.mapping_bytes + look->hoard.filters * FILTER_BYTES,
                    subtract_saturated(hoards->looked.kernel_bytes, hoards->floor.kernel_bytes));
    return bytes + look->hoard.locks * LOCK_BYTES;
}

/* 0: there is none. To be compared with others'. */
static uint64_t sign_of(const struct look *look) {
    return MAX(look->hoard.list_bytes > look->limit ? look->hoard.list_bytes : 0,
        look->hoard.locks >= SIGN_LOCKS ? look->hoard.locks << 20 : 0);
}

static void record_growth(const struct hoards *hoards, int64_t growth) {
    list_for_each(node, &hoards->engine->boxes.all) {
        struct box *box = container_of(node, struct box, node);
        const struct look *look = look_of(hoards, box);

        if (!look)
            continue;
        box->memory.suspected_bytes =
            sign_of(look) ? MAX(box->memory.suspected_bytes + growth, (int64_t)0) : 0;
        box->memory.kernel_bytes = counted_bytes(hoards, look);
    }
}

static bool has_too_much(const struct box *box, const struct look *look) {
    return look->hoard.files > file_limit(box->profile->policy) ||
           box->memory.kernel_bytes > box->profile->policy->max_memory_bytes;
}

/* One that is to end, or NULL. */
static struct box *find_worst(const struct hoards *hoards, bool by_sign) {
    struct box *worst = NULL;
    uint64_t most = 0;

    list_for_each(node, &hoards->engine->boxes.all) {
        struct box *box = container_of(node, struct box, node);
        const struct look *look = look_of(hoards, box);

        if (look && !by_sign && has_too_much(box, look))
            return box;
        if (look && by_sign && sign_of(look) > most &&
            box->memory.suspected_bytes >
                (int64_t)MIN(box->profile->policy->max_memory_bytes, (uint64_t)INT64_MAX)) {
            most = sign_of(look);
            worst = box;
        }
    }
    return worst;
}

static void judge_growth(struct hoards *hoards, int64_t growth) {
    struct box *box;

    qsort(hoards->looks, hoards->n_looks, sizeof *hoards->looks, by_box);
    record_growth(hoards, growth);
    /* The end of one may be that of others: the search starts again for each. */
    while ((box = find_worst(hoards, false))) {
        look_of(hoards, box)->is_known = false;
        end_box(box);
    }
    if (!(box = find_worst(hoards, true)))
        return;
    list_for_each(node, &hoards->engine->boxes.all)
        container_of(node, struct box, node)->memory.suspected_bytes = 0;
    end_box(box);
}

/* ---- looking ---- */

_Noreturn static void look_at_boxes(struct look *looks, size_t n, int to) {
    struct hoard_locks *locks = calloc(1, sizeof *locks);
    unsigned seed;

    if (!locks || getrandom(&seed, sizeof seed, 0) != sizeof seed)
        _exit(1);
    srandom(seed);
    if (hoard_read_locks(locks) < 0)
        locks->n = 0;
    for (size_t i = 0; i < n; i++)
        looks[i].is_known = hoard_count(looks[i].pid, locks, looks[i].max_files,
                                looks[i].has_group ? 0 : looks[i].limit, &looks[i].hoard) == 0;
    _exit(fd_write_all(to, looks, n * sizeof *looks) < 0);
}

static void end_look(struct hoards *hoards) {
    const int64_t now = clock_now_ns();

    loop_remove(hoards->engine->loop, &hoards->answer);
    close_fd(&hoards->pipe);
    hoards->not_before_ns = now + REST * (now - hoards->began_ns);
    hoards->again_ns = now + MAX(AGAIN_LOOK_NS, AGAIN_SHARE * (now - hoards->began_ns));
    free(TAKE_PTR(hoards->looks));
}

static void on_answer(struct loop_source *source, uint32_t events) {
    struct hoards *hoards = container_of(source, struct hoards, answer);
    const size_t size = hoards->n_looks * sizeof *hoards->looks;
    struct hoard_host now;

    (void)events;
    ssize_t n = read(hoards->pipe, (char *)hoards->looks + hoards->n_read, size - hoards->n_read);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    hoards->n_read += n > 0 ? (size_t)n : 0;
    if (n > 0 && hoards->n_read < size)
        return;
    if (hoards->n_read == size && hoard_read_host(hoards->file_nr, hoards->meminfo, &now) == 0) {
        int64_t growth =
            hoards->has_looked
                ? (int64_t)(now.kernel_bytes - hoards->looked.kernel_bytes)
                : (int64_t)subtract_saturated(now.kernel_bytes, hoards->floor.kernel_bytes);

        hoards->has_looked = true;
        hoards->looked = hoards->base = now;
        judge_growth(hoards, growth);
    }
    end_look(hoards);
}

/* No sandbox can be over its limit while the whole host has fewer open files. */
static uint64_t max_files(const struct box *box, const struct hoard_host *now) {
    uint64_t limit = file_limit(box->profile->policy);

    return now->files > limit ? limit : UINT64_MAX;
}

static int begin_look(struct hoards *hoards, const struct hoard_host *now) {
    struct engine *engine = hoards->engine;
    int ends[2], r;

    hoards->looks = calloc(MAX(engine->boxes.n, 1u), sizeof *hoards->looks);
    if (!hoards->looks)
        return -ENOMEM;
    hoards->n_looks = hoards->n_read = 0;
    list_for_each(node, &engine->boxes.all) {
        const struct box *box = container_of(node, struct box, node);

        if (is_used(box) && hoards->n_looks < engine->boxes.n)
            hoards->looks[hoards->n_looks++] = (struct look){ .box = box,
                .made_ns = box->creation.made_ns,
                .pid = box->pid,
                .limit = box->profile->policy->max_memory_bytes,
                .max_files = max_files(box, now),
                .has_group = box->slot != NULL };
    }
    if (!hoards->n_looks || pipe2(ends, O_CLOEXEC) < 0) {
        r = hoards->n_looks ? -errno : 0;
        free(TAKE_PTR(hoards->looks));
        return r;
    }
    hoards->began_ns = clock_now_ns();
    pid_t pid = spawn_fork("rollbox-hoards", &ends[1], 1);
    if (pid == 0)
        look_at_boxes(hoards->looks, hoards->n_looks, ends[1]);
    close(ends[1]);
    hoards->pipe = ends[0];
    r = pid < 0 ? (int)pid
        : fcntl(ends[0], F_SETFL, O_NONBLOCK) < 0
            ? -errno
            : loop_add(engine->loop, &hoards->answer, ends[0], EPOLLIN, on_answer);
    if (r < 0)
        end_look(hoards);
    return r;
}

/* ---- the watch ---- */

static void lower_figures(struct hoard_host *to, const struct hoard_host *now) {
    to->files = MIN(to->files, now->files);
    to->kernel_bytes = MIN(to->kernel_bytes, now->kernel_bytes);
}

static bool has_grown(const struct hoards *hoards, const struct hoard_host *now) {
    return now->files >= hoards->base.files + STEP_FILES ||
           now->kernel_bytes >=
               hoards->base.kernel_bytes + STEP_BYTES + hoards->engine->boxes.n * STEP_A_BOX;
}

/* Growth is not seen where others give back as many at the same time. */
static bool may_have_many(
    const struct hoards *hoards, const struct hoard_host *now, int64_t now_ns) {
    return now->files >= MANY_FILES && now_ns >= hoards->again_ns;
}

static int64_t pause_of(const struct engine *engine) {
    if (!list_empty(&engine->runs.all))
        return TICK_NS;
    list_for_each(node, &engine->boxes.all)
        if (is_used(container_of(node, struct box, node)))
            return IDLE_TICK_NS;
    return 0;
}

static void on_tick(struct loop_timer *timer) {
    struct hoards *hoards = container_of(timer, struct hoards, tick);
    const int64_t now_ns = clock_now_ns(), pause_ns = pause_of(hoards->engine);
    struct hoard_host now;

    if (!pause_ns)
        return;
    if (hoards->pipe < 0 && now_ns >= hoards->not_before_ns &&
        hoard_read_host(hoards->file_nr, hoards->meminfo, &now) == 0) {
        lower_figures(&hoards->base, &now);
        lower_figures(&hoards->floor, &now);
        if (has_grown(hoards, &now) || may_have_many(hoards, &now, now_ns))
            (void)begin_look(hoards, &now); /* what could not be begun is at the next tick */
    }
    (void)loop_timer_set(hoards->engine->loop, timer, now_ns + pause_ns, on_tick);
}

static struct hoards *hoards_of(struct engine *engine) {
    struct hoards *hoards = engine->hoards;

    if (hoards)
        return hoards;
    auto_close int file_nr = open("/proc/sys/fs/file-nr", O_RDONLY | O_CLOEXEC),
                   meminfo = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    if (file_nr < 0 || meminfo < 0 || !(hoards = calloc(1, sizeof *hoards)))
        return NULL;
    *hoards = (struct hoards){ .engine = engine,
        .file_nr = TAKE_FD(file_nr),
        .meminfo = TAKE_FD(meminfo),
        .pipe = -EBADF,
        .answer = { .fd = -1 } };
    return engine->hoards = hoards;
}

void hoards_watch(struct engine *engine) {
    struct hoards *hoards = hoards_of(engine);

    if (!hoards || hoards->tick.position ||
        hoard_read_host(hoards->file_nr, hoards->meminfo, &hoards->base) < 0)
        return;
    hoards->floor = hoards->base;
    hoards->has_looked = false;
    (void)loop_timer_set(engine->loop, &hoards->tick, clock_now_ns() + TICK_NS, on_tick);
}

void hoards_finish(struct engine *engine) {
    struct hoards *hoards = engine->hoards;

    if (!hoards)
        return;
    loop_timer_clear(engine->loop, &hoards->tick);
    if (hoards->pipe >= 0)
        end_look(hoards);
    close_fd(&hoards->file_nr);
    close_fd(&hoards->meminfo);
    free(hoards);
    engine->hoards = NULL;
}
