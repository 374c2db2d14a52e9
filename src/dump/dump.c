/* SPDX-License-Identifier: Apache-2.0 */
/* Dumping the processes of a sandbox into a process image (dump.h): the order of the steps, and the
 * layout of the file that they write. */
#include "dump/dump.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "dump/internal.h"

#define MAX_TRIES 2000
#define TRY_AGAIN_NS 500000
#define PROGRESS_STEP(length)                                                                      \
    MAX((length) / 64, (uint64_t)1 << 20) /* a socket buffer has room for all reports */

/* ---- the file ---- */

static struct image_part place_table(const struct buf *table, size_t entry_size, uint64_t *at) {
    struct image_part part = { *at, table->length / entry_size };

    *at = image_up_to(*at + table->length, IMAGE_TABLE);
    return part;
}

#define for_table(c, buf, type, entry)                                                             \
    for (type *entry = (void *)(c)->buf.data, *end_ = (void *)((c)->buf.data + (c)->buf.length);   \
         entry < end_; entry++)

/* Offsets into the blobs and texts become offsets into the file. */
static void relocate_tables(struct dump *c, uint64_t blobs, uint64_t texts) {
    for_table(c, processes, struct image_process, p) {
        p->auxv += blobs;
        p->executable += texts;
        p->directory += texts;
        p->root += texts;
    }
    for_table(c, threads, struct image_thread, t) t->xstate += blobs;
    for_table(c, areas, struct image_area, a) if (a->kind == IMAGE_FILE) a->path += texts;
    for_table(c, pipes, struct image_pipe, p) p->data += blobs;
    for_table(c, watches, struct image_watch, w) w->path += texts;
    for_table(c, terminals, struct image_terminal, t) {
        t->output += blobs;
        t->input += blobs;
    }
    for_table(c, files, struct image_file, f) {
        f->path += texts;
        f->data += blobs;
        f->name += blobs;
        f->remote += blobs;
    }
}

/* Appends one part after the pages, with padding up to its offset. */
static void add_table(struct buf *to, const void *data, size_t length, uint64_t at) {
    static const char nothing[64];

    buf_add(to, nothing, (size_t)at - to->length);
    buf_add(to, data, length);
}

/* Restore refuses an image with more entries than this (image/process_image.c). The other tables
 * are checked where entries are added. */
static int refuse_large(struct dump *c) {
    const struct {
        const char *what;
        size_t n, most;
    } counts[] = {
        { "threads", dump_count(&c->threads, struct image_thread), IMAGE_MAX_THREADS },
        { "signal handlers", dump_count(&c->actions, struct image_action), IMAGE_MAX_ACTIONS },
        { "pending signals", dump_count(&c->pending, struct image_pending), IMAGE_MAX_PENDING },
        { "timers", dump_count(&c->timers, struct image_timer), IMAGE_MAX_TIMERS },
        { "file locks", dump_count(&c->locks, struct image_lock), IMAGE_MAX_LOCKS },
        { "entries of epoll descriptors", dump_count(&c->targets, struct image_target),
            IMAGE_MAX_TARGETS },
        { "inotify watches", dump_count(&c->watches, struct image_watch), IMAGE_MAX_WATCHES },
        { "memory ranges", dump_count(&c->runs, struct image_run), IMAGE_MAX_RUNS },
        { "supplementary groups", dump_count(&c->groups, uint32_t), IMAGE_MAX_GROUPS },
        { "waits for the virtual clock", dump_count(&c->waits, struct image_wait),
            IMAGE_MAX_WAITS },
    };

    for (size_t i = 0; i < ARRAY_SIZE(counts); i++)
        if (counts[i].n > counts[i].most) {
            c->current = NULL;
            return dump_refuse(c, ENOTSUP, "together they have %zu %s; at most %zu can be restored",
                counts[i].n, counts[i].what, counts[i].most);
        }
    return 0;
}

/* The file begins with the pages, which are written already. The tables follow, and the header
 * comes last. */
static int finish_dump(struct dump *c) {
    struct image *image = &c->image;
    struct utsname name;
    uint64_t at = image_up_to(c->saved, IMAGE_TABLE);
    const uint64_t blobs = at;
    const struct {
        const struct buf *buf;
        struct image_part *part;
        size_t size;
    } tables[] = {
        { &c->processes, &image->processes, sizeof(struct image_process) },
        { &c->threads, &image->threads, sizeof(struct image_thread) },
        { &c->areas, &image->areas, sizeof(struct image_area) },
        { &c->runs, &image->runs, sizeof(struct image_run) },
        { &c->actions, &image->actions, sizeof(struct image_action) },
        { &c->pending, &image->pending, sizeof(struct image_pending) },
        { &c->timers, &image->timers, sizeof(struct image_timer) },
        { &c->locks, &image->locks, sizeof(struct image_lock) },
        { &c->files, &image->files, sizeof(struct image_file) },
        { &c->pipes, &image->pipes, sizeof(struct image_pipe) },
        { &c->targets, &image->targets, sizeof(struct image_target) },
        { &c->fds, &image->fds, sizeof(struct image_fd) },
        { &c->terminals, &image->terminals, sizeof(struct image_terminal) },
        { &c->watches, &image->watches, sizeof(struct image_watch) },
        { &c->waits, &image->waits, sizeof(struct image_wait) },
        { &c->alarms, &image->alarms, sizeof(struct image_alarm) },
        { &c->guards, &image->guards, sizeof(struct image_guard) },
        { &c->kept, &image->kept, sizeof(struct image_kept) },
        { &c->credentials, &image->credentials, sizeof(struct image_credentials) },
        { &c->groups, &image->groups, sizeof(uint32_t) },
        { &c->segments, &image->segments, sizeof(struct image_segment) },
    };
    int r = refuse_large(c);

    if (r < 0)
        return r;
    at += image_up_to(c->blobs.length, IMAGE_TABLE);
    for (size_t i = 0; i < ARRAY_SIZE(tables); i++) {
        if (buf_failed(tables[i].buf))
            return dump_fail(c, "its image", -ENOMEM);
        *tables[i].part = place_table(tables[i].buf, tables[i].size, &at);
    }
    image->texts = at;
    image->texts_end = at + c->texts.length;
    at = image_up_to(image->texts_end, IMAGE_TABLE);
    image->length = at + sizeof *image;
    image->magic = IMAGE_MAGIC;
    image->n_externals = c->options->n_externals;
    image->n_lent = c->options->n_masters;
    image->is_command = c->options->is_command;
    image->is_incremental = c->base != NULL;
    if (uname(&name) == 0)
        snprintf(image->release, sizeof image->release, "%.63s", name.release);
    if (buf_failed(&c->texts) || buf_failed(&c->blobs))
        return dump_fail(c, "its image", -ENOMEM);
    relocate_tables(c, blobs, image->texts);
    struct buf *rest = &c->scratch;
    rest->length = 0;
    add_table(rest, c->blobs.data, c->blobs.length, 0);
    for (size_t i = 0; i < ARRAY_SIZE(tables); i++)
        add_table(rest, tables[i].buf->data, tables[i].buf->length, tables[i].part->at - blobs);
    add_table(rest, c->texts.data, c->texts.length, image->texts - blobs);
    add_table(rest, image, sizeof *image, at - blobs);
    r = buf_failed(rest) ? -ENOMEM : dump_flush(c);
    if (r == 0 && lseek(c->fd, (off_t)blobs, SEEK_SET) < 0)
        r = -errno;
    if (r == 0)
        r = fd_write_all(c->fd, rest->data, rest->length);
    return r < 0 ? dump_fail(c, "its image", r) : 0;
}

static bool is_dumped(const struct dump_process *s) {
    return !s->is_apart && !s->is_zombie;
}

/* ---- the work ---- */

static uint64_t own_ipc; /* never changes; 0: unknown */

void dump_prepare(void) {
    struct stat st;

    trace_prepare();
    if (!own_ipc && stat("/proc/self/ns/ipc", &st) == 0)
        own_ipc = st.st_ino;
}

static int look_at_init(struct dump *c) {
    auto_buf struct buf status = BUF_INIT;
    char path[32];
    struct stat st;

    snprintf(path, sizeof path, "/proc/%d/status", (int)c->options->init);
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    int r = fd < 0 ? -errno : fd_read_all(fd, DUMP_MAX_TEXT, &status);
    if (r < 0)
        return dump_fail(c, "the sandbox's init", r);
    dump_prepare();
    if (!own_ipc)
        return dump_fail(c, "/proc", -ENOENT);
    c->own_ipc = own_ipc;
    c->n_filters =
        strtoul(dump_field(status.data, "\nSeccomp_filters:"), NULL, 10) + (c->options->still > 0);
    if (fstat(fd, &st) < 0)
        return dump_fail(c, "the sandbox's init", -errno);
    c->profile_owner = st.st_uid;
    snprintf(path, sizeof path, "/proc/%d/exe", (int)c->options->init);
    if (stat(path, &st) < 0)
        return errno == EACCES ? 0
                               : dump_fail(c, "the sandbox's init",
                                     -errno); /* an ordinary user's; is_called_agent() */
    c->program_device = st.st_dev;
    c->program_inode = st.st_ino;
    return 0;
}

static unsigned highest_fd(const struct dump_process *s) {
    int fd = openat(s->proc, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd < 0 ? NULL : fdopendir(fd);
    unsigned highest = 0;

    for (const struct dirent *entry; list && (entry = readdir(list));)
        highest = MAX(highest, (unsigned)strtoul(entry->d_name, NULL, 10));
    if (list)
        closedir(list);
    return highest;
}

/* The clocks as the sandbox reads them: it may have a time namespace. */
static int look_at_clocks(struct dump *c) {
    static const clockid_t clocks[] = { CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_REALTIME };
    auto_buf struct buf text = BUF_INIT;
    const struct dump_process *s = NULL;

    for (size_t i = 0; i < c->n_dump_processes && !s; i++)
        if (is_dumped(c->dump_processes[i]))
            s = c->dump_processes[i];
    if (!s)
        return 0;
    buf_add(&text, "\n", 1);
    int r = dump_read(c, s, "timens_offsets", &text);
    if (r < 0 && r != -ENOENT)
        return dump_fail(c, "its clocks", r);
    for (size_t i = 0; i < ARRAY_SIZE(clocks); i++) {
        long long seconds = 0, ns = 0;
        struct timespec now;

        if (clocks[i] == CLOCK_REALTIME)
            ns = c->image.determinism.ahead_ns;
        else
            (void)sscanf(dump_field(text.data, i ? "\nboottime" : "\nmonotonic"), "%lld %lld",
                &seconds, &ns);
        clock_gettime(clocks[i], &now);
        c->image.clocks[i] = (now.tv_sec + seconds) * 1000000000ll + now.tv_nsec + ns;
    }
    return 0;
}

/* Is there exactly one process with one thread, at the expected place? 0; -EAGAIN: not yet. */
static int check_command(struct dump *c) {
    const struct dump_process *s = NULL;
    unsigned n = 0;

    for (size_t i = 0; i < c->n_dump_processes; i++)
        if (!c->dump_processes[i]->is_apart) {
            s = c->dump_processes[i];
            n++;
        }
    if (n != 1)
        return dump_refuse(c, ENOTSUP, "there are %u processes, and there must be only one", n);
    c->current = s;
    const struct task *task = tree_main(c, s);
    if (!task || c->n_tasks != 1)
        return dump_refuse(c, ENOTSUP, "it has %zu threads, and must have only one", c->n_tasks);
    if (task->trace.call != c->options->call)
        return -EAGAIN;
    unsigned highest = highest_fd(s);
    if (highest > c->options->highest_fd)
        return dump_refuse(c, ENOTSUP, "it has descriptor %u open; close it first", highest);
    return 0;
}

static int stop_command(struct dump *c) {
    for (unsigned tries = 0;; tries++) {
        int r = tree_stop(c);

        if (r == 0)
            r = check_command(c);
        if (r != -EAGAIN)
            return r;
        tree_release(c);
        if (tries == MAX_TRIES)
            return dump_refuse(c, ENOTSUP, "it does not wait in the expected system call");
        nanosleep(&(struct timespec){ .tv_nsec = TRY_AGAIN_NS }, NULL);
    }
}

/* Saves the memory of the processes with copy-on-write forks, or of the others. */
static int save_memory(struct dump *c, bool of_cow_forks) {
    int r = 0;

    for (size_t i = 0; i < c->n_dump_processes && r == 0; i++) {
        struct dump_process *s = c->dump_processes[i];

        if (!is_dumped(s) || (s->cow_fork.pid > 0) != of_cow_forks)
            continue;
        r = of_cow_forks ? process_dump_cow_fork(c, s) : 0;
        if (r == 0)
            r = memory_dump(c, s);
        /* A guest can kill the fork. Reads of its memory return nothing from then on. */
        if (of_cow_forks && (r == -ESRCH || !cow_fork_stands(s)))
            r = dump_refuse(c, EAGAIN, COW_FORK_GONE);
    }
    return r;
}

/* Dumps the resources that processes share. Any process can be asked for them. */
static int dump_shared(struct dump *c) {
    for (size_t i = 0; i < c->n_dump_processes; i++)
        if (is_dumped(c->dump_processes[i]))
            return process_dump_shared(c, c->dump_processes[i]);
    return 0;
}

/* While all processes are paused. If the image cannot be incremental, the memory is saved in
 * full. */
static int save_standing(struct dump *c) {
    const size_t runs = c->runs.length;
    const uint64_t saved = c->saved;
    int r = c->base ? dump_flush(c) : 0;

    if (r < 0)
        return dump_fail(c, "its image", r);
    r = save_memory(c, false);

    if (r < 0 || !c->base || dirty_pages_resumes(c))
        return r;
    dirty_pages_forget(c);
    c->areas.length = c->guards.length = 0;
    c->runs.length = runs;
    c->saved = saved;
    c->written.length = 0;
    return lseek(c->fd, (off_t)saved, SEEK_SET) < 0 ? dump_fail(c, "its image", -errno)
                                                    : save_memory(c, false);
}

/* Starts before any call is made in the first process: making calls occupies both processors. */
static void begin_reading(struct dump *c) {
    for (size_t i = 0; i < c->n_dump_processes && c->base; i++)
        if (is_dumped(c->dump_processes[i])) {
            memory_begin(c->dump_processes[i]);
            return;
        }
}

static int dump_all(struct dump *c) {
    int r = credentials_begin(c); /* first: ids are seen as there from then on */

    if (r == 0)
        r = look_at_init(c);
    buf_add(&c->texts, "", 1); /* offset 0: no path */
    if (r == 0)
        r = dirty_pages_begin(c);
    if (r == 0)
        r = c->options->is_command ? stop_command(c) : tree_stop(c);
    if (r == 0)
        r = quiesce_pass(c);
    if (r == 0)
        r = tree_describe(c);
    if (r == 0 && c->base && !dirty_pages_has_same_tree(c)) {
        dirty_pages_forget(c);
        cow_fork_plan(c);
    }
    if (r == 0)
        begin_reading(c);
    if (r == 0)
        r = look_at_clocks(c);
    for (size_t i = 0; i < c->n_dump_processes && r == 0; i++)
        if (is_dumped(c->dump_processes[i]))
            r = process_dump(c, c->dump_processes[i]);
    if (r == 0)
        r = sockets_connect(c);
    if (r == 0)
        r = inotify_connect(c);
    if (r == 0)
        r = dump_shared(c);
    if (r == 0)
        r = quiesce_release(c);
    if (r < 0)
        return r;
    quiesce_finish(c);
    r = save_standing(c);
    if (r == 0 && c->options->tracks && !c->base)
        dirty_pages_start(c);
    if (r == 0)
        r = terminals_connect(c);
    if (r < 0 || c->cow_fork_used_bytes)
        return r;
    c->is_complete = true;
    return finish_dump(c);
}

static void free_tables(struct dump *c) {
    async_read_end();
    terminals_forget(c);
    dirty_pages_end(c);
    struct buf *all[] = { &c->processes, &c->threads, &c->areas, &c->runs, &c->actions, &c->pending,
        &c->timers, &c->locks, &c->files, &c->pipes, &c->targets, &c->fds, &c->terminals,
        &c->watches, &c->texts, &c->waits, &c->alarms, &c->guards, &c->guarded, &c->blobs,
        &c->known, &c->pipe_inodes, &c->sockets, &c->ends, &c->watched, &c->promised, &c->reached,
        &c->scratch, &c->smaps, &c->written, &c->credentials, &c->groups, &c->segments };

    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        buf_done(all[i]);
}

/* The reader of a verdict takes a verdict without an error for success, so each failure has an
 * error. */
static void say_it_failed(struct dump *c, int r) {
    if (!c->error->code)
        dump_fail(c, "its state", r);
}

int dump_begin(const struct dump_options *options, int fd, struct dump **ret_dump,
    struct rollbox_error *error) {
    struct dump *c = calloc(1, sizeof *c);

    error->code = 0;
    if (!c)
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "snapshot", "out of memory");
    c->options = options;
    c->error = error;
    c->fd = fd;
    c->cow_fork_max_bytes = options->cow_fork_bytes;
    trace_count_at(options->in_calls);
    int r = dump_all(c);
    if (r < 0) {
        say_it_failed(c, r);
        dump_end(c);
        return r;
    }
    *ret_dump = c;
    return 0;
}

void dump_release(struct dump *c) {
    async_read_end(); /* a later read would see the memory of a later moment */
    tree_let_go(c);
}

bool dump_is_complete(const struct dump *c) {
    return c->is_complete;
}

bool dump_is_incremental(const struct dump *c) {
    return c->is_complete && c->base;
}

void dump_clocks(const struct dump *c, int64_t ret_clocks[2]) {
    memcpy(ret_clocks, c->image.clocks, 2 * sizeof *ret_clocks);
}

size_t dump_trackers(const struct dump *c, const struct dirty_tracker **ret_trackers) {
    *ret_trackers = c->trackers;
    return c->n_trackers;
}

/* A reader that has gone does not matter. */
static bool tell_written(const struct dump *c, uint64_t end, int flags) {
    struct image_progress progress = { end };
    ssize_t n;

    do
        n = send(c->options->progress, &progress, sizeof progress, MSG_NOSIGNAL | flags);
    while (n < 0 && errno == EINTR);
    return n == sizeof progress;
}

/* If the socket is full, the next report covers this one. Only the last report is sent blocking. */
static void tell_progress(struct dump *c, uint64_t end) {
    if (end - c->told >= PROGRESS_STEP(c->saved) && tell_written(c, end, MSG_DONTWAIT))
        c->told = end;
}

/* The tables come first, so that the image can be loaded while its pages are written. */
static int write_for_loader(struct dump *c) {
    c->promises = true;
    int r = save_memory(c, true);
    if (r == 0)
        r = finish_dump(c);
    if (r == 0)
        (void)tell_written(c, 0, MSG_DONTWAIT);
    if (r == 0)
        r = memory_keep_promises(c, tell_progress);
    if (r == 0)
        (void)tell_written(c, UINT64_MAX, 0);
    return r;
}

int dump_resume(struct dump *c, struct rollbox_error *error) {
    int r;

    error->code = 0;
    c->error = error;
    dump_release(c);
    if (c->options->progress > 0) {
        r = write_for_loader(c);
    } else {
        r = save_memory(c, true);
        if (r == 0)
            r = finish_dump(c);
    }
    if (r < 0)
        say_it_failed(c, r);
    c->is_complete = r == 0;
    return r;
}

struct dump_summary dump_summary(const struct dump *c) {
    struct dump_summary summary = { .threads = c->n_threads, .bytes = c->image.length };

    for (size_t i = 0; i < c->n_dump_processes; i++)
        summary.processes += is_dumped(c->dump_processes[i]);
    return summary;
}

size_t dump_mains(const struct dump *c, uint32_t *pids, size_t most) {
    size_t n = 0;

    for (size_t i = 0; i < dump_count(&c->processes, struct image_process) && n < most; i++) {
        const struct image_process *p = dump_entry(&c->processes, i, struct image_process);

        if (p->kind == IMAGE_LIVING && !p->parent)
            pids[n++] = p->pid;
    }
    return n;
}

const struct inode_numbers *dump_numbers(const struct dump *c) {
    return &c->numbers;
}

void dump_end(struct dump *c) {
    if (!c)
        return;
    free_tables(c); /* first: the next steps need some memory, and the dump may have failed for lack
                       of it */
    for (size_t i = 0; i < c->n_dump_processes; i++)
        cow_fork_end(c, c->dump_processes[i]);
    tree_release(c);
    quiesce_end(c); /* last: init must not take a paused process for an idle one */
    if (c->options->in_calls)
        *c->options->in_calls = 0; /* all processes continue with their own registers */
    free(c);
}
