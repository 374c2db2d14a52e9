/* SPDX-License-Identifier: Apache-2.0 */
/* Is an image well-formed? Each reader of an image calls this first, and does not read past its end
 * afterwards. */
#include "image/process_image.h"

#include <stddef.h>

#define XSTATE_LEAST 576u /* the legacy area and the header */

static bool is_memory(const struct image_area *area) {
    return area->kind == IMAGE_ANONYMOUS || area->kind == IMAGE_STACK;
}

static bool is_within(uint64_t at, uint64_t length, uint64_t whole) {
    return at <= whole && length <= whole - at;
}

static bool is_range(struct image_range range, struct image_part table) {
    return is_within(range.first, range.n, table.n);
}

static bool is_table(struct image_part part, uint64_t size, uint64_t most, uint64_t whole) {
    return part.n <= most && part.at % 8 == 0 && is_within(part.at, part.n * size, whole);
}

static bool are_tables(const struct image *it) {
    const struct {
        struct image_part part;
        uint64_t size, most;
    } tables[] = {
        { it->processes, sizeof(struct image_process), IMAGE_MAX_PROCESSES },
        { it->threads, sizeof(struct image_thread), IMAGE_MAX_THREADS },
        { it->areas, sizeof(struct image_area), IMAGE_MAX_AREAS },
        { it->runs, sizeof(struct image_run), IMAGE_MAX_RUNS },
        { it->actions, sizeof(struct image_action), IMAGE_MAX_ACTIONS },
        { it->pending, sizeof(struct image_pending), IMAGE_MAX_PENDING },
        { it->timers, sizeof(struct image_timer), IMAGE_MAX_TIMERS },
        { it->locks, sizeof(struct image_lock), IMAGE_MAX_LOCKS },
        { it->files, sizeof(struct image_file), IMAGE_MAX_FILES },
        { it->pipes, sizeof(struct image_pipe), IMAGE_MAX_FILES },
        { it->targets, sizeof(struct image_target), IMAGE_MAX_TARGETS },
        { it->fds, sizeof(struct image_fd), IMAGE_MAX_FDS },
        { it->terminals, sizeof(struct image_terminal), IMAGE_MAX_TERMINALS },
        { it->watches, sizeof(struct image_watch), IMAGE_MAX_WATCHES },
        { it->waits, sizeof(struct image_wait), IMAGE_MAX_WAITS },
        { it->alarms, sizeof(struct image_alarm), IMAGE_MAX_ALARMS },
        { it->guards, sizeof(struct image_guard), IMAGE_MAX_GUARDS },
        { it->kept, sizeof(struct image_kept), IMAGE_MAX_KEPT },
        { it->credentials, sizeof(struct image_credentials), IMAGE_MAX_THREADS },
        { it->groups, sizeof(uint32_t), IMAGE_MAX_GROUPS },
        { it->segments, sizeof(struct image_segment), IMAGE_MAX_SEGMENTS },
    };

    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if (!is_table(tables[i].part, tables[i].size, tables[i].most, it->length))
            return false;
    return it->texts < it->texts_end && it->texts_end <= it->length;
}

/* Every text is terminated, because the last byte of the texts is a NUL. */
static bool is_text(const struct image *it, uint64_t at) {
    return at >= it->texts && at < it->texts_end;
}

/* An area maps no more than the segment has, and the whole would begin at an address. */
static bool is_attached(const struct image *it, const char *base, const struct image_area *area) {
    const struct image_segment *segments = image_table(it, base, segments, struct image_segment);

    return area->path < it->segments.n && area->offset <= area->start &&
           is_within(area->offset, area->end - area->start,
               image_up_to(segments[area->path].size, IMAGE_PAGE));
}

static bool is_area(const struct image *it, const char *base, const struct image_area *area) {
    const struct image_run *runs = image_table(it, base, runs, struct image_run);
    const struct image_guard *guards = image_table(it, base, guards, struct image_guard);

    if (area->start < IMAGE_LOWEST || area->end <= area->start || area->end > IMAGE_HIGHEST ||
        (area->start | area->end | area->offset) % IMAGE_PAGE || area->kind < IMAGE_ANONYMOUS ||
        area->kind > IMAGE_SEGMENT)
        return false;
    if ((area->kind == IMAGE_FILE && !is_text(it, area->path)) ||
        (area->kind == IMAGE_MEMORY && area->path >= it->files.n) ||
        (area->kind == IMAGE_SEGMENT && !is_attached(it, base, area)) ||
        !is_range(area->runs, it->runs) || !is_range(area->guards, it->guards))
        return false;
    for (uint32_t i = area->guards.first; i < area->guards.first + area->guards.n; i++)
        if (guards[i].address < area->start || guards[i].address > area->end ||
            guards[i].length > area->end - guards[i].address ||
            (guards[i].address | guards[i].length) % IMAGE_PAGE)
            return false;
    for (uint32_t i = 0; is_memory(area) && i < area->runs.n; i++) {
        const struct image_run *run = &runs[area->runs.first + i];

        if (run->address < area->start || run->address > area->end ||
            run->length > area->end - run->address)
            return false;
    }
    return true;
}

/* True for credentials that a process of a sandbox with many users can have. */
static bool is_credentials(
    const struct image *it, const char *base, const struct image_credentials *c) {
    const uint32_t *groups = image_table(it, base, groups, uint32_t);
    const uint64_t all = c->permitted | c->effective | c->inheritable | c->ambient | c->bounds;

    for (size_t i = 0; i < sizeof c->uids / sizeof c->uids[0]; i++)
        if (c->uids[i] >= IMAGE_IDS || c->gids[i] >= IMAGE_IDS)
            return false;
    if (!is_range(c->groups, it->groups) || all & ~IMAGE_CAPABILITIES ||
        c->effective & ~c->permitted || c->ambient & ~(c->permitted & c->inheritable))
        return false;
    for (uint32_t i = c->groups.first; i < c->groups.first + c->groups.n; i++)
        if (groups[i] >= IMAGE_IDS)
            return false;
    return true;
}

/* All threads have credentials, or none has. The groups of all together are at most those of the
 * table, so checking them takes no longer. */
static bool are_credentials(const struct image *it, const char *base) {
    const struct image_credentials *credentials =
        image_table(it, base, credentials, struct image_credentials);
    const struct image_thread *threads = image_table(it, base, threads, struct image_thread);
    uint64_t n_groups = 0;

    for (uint64_t i = 0; i < it->credentials.n; i++) {
        n_groups += credentials[i].groups.n;
        if (n_groups > it->groups.n || !is_credentials(it, base, &credentials[i]))
            return false;
    }
    for (uint64_t i = 0; i < it->threads.n; i++)
        if (!threads[i].credentials != !it->credentials.n ||
            threads[i].credentials > it->credentials.n)
            return false;
    return !it->credentials.n || !it->is_command;
}

static bool are_threads(const struct image *it, const char *base, const struct image_process *p) {
    const struct image_thread *threads = image_table(it, base, threads, struct image_thread);

    if (!is_range(p->threads, it->threads) || p->threads.n < 1 ||
        p->threads.n > IMAGE_MAX_OWN_THREADS || threads[p->threads.first].tid != p->pid)
        return false;
    for (uint32_t i = p->threads.first; i < p->threads.first + p->threads.n; i++)
        if (threads[i].xstate_length < XSTATE_LEAST ||
            threads[i].xstate_length > IMAGE_MAX_XSTATE ||
            !is_within(threads[i].xstate, threads[i].xstate_length, it->length) ||
            !is_range(threads[i].pending, it->pending) ||
            (threads[i].rseq &&
                (threads[i].rseq_length < 24 || threads[i].rseq % 8 ||
                    threads[i].rseq < IMAGE_LOWEST || threads[i].rseq >= IMAGE_HIGHEST)))
            return false;
    return true;
}

static bool is_process(const struct image *it, const char *base, uint32_t index) {
    const struct image_process *p = image_table(it, base, processes, struct image_process) + index;
    uint64_t above = IMAGE_LOWEST;

    if (p->parent > index || p->pid < 2 || p->terminal > it->terminals.n)
        return false;
    /* A dead process has nothing of these: a loader visits the tables of all processes. */
    if (p->kind == IMAGE_DEAD_LEADER || p->kind == IMAGE_ZOMBIE)
        return !p->areas.n && !p->threads.n && !p->actions.n && !p->pending.n &&
               !p->posix_timers.n && !p->locks.n && !p->fds.n;
    if (p->kind != IMAGE_LIVING || !is_range(p->areas, it->areas) || !are_threads(it, base, p) ||
        !is_range(p->actions, it->actions) || !is_range(p->posix_timers, it->timers) ||
        !is_range(p->locks, it->locks) || !is_range(p->pending, it->pending) ||
        !is_range(p->fds, it->fds) || !is_within(p->auxv, p->auxv_length, it->length) ||
        p->auxv_length > 4096 || !is_text(it, p->executable) || !is_text(it, p->directory) ||
        !is_text(it, p->root))
        return false;
    for (uint32_t i = p->areas.first; i < p->areas.first + p->areas.n; i++) {
        const struct image_area *area = image_table(it, base, areas, struct image_area) + i;

        if (area->start < above)
            return false;
        above = area->end;
    }
    return true;
}

static bool are_watches(const struct image *it, const char *base) {
    const struct image_watch *watches = image_table(it, base, watches, struct image_watch);

    for (uint64_t i = 0; i < it->watches.n; i++)
        if (watches[i].number < 1 || watches[i].number > IMAGE_MAX_WATCHES ||
            !is_text(it, watches[i].path))
            return false;
    return true;
}

static bool are_files(const struct image *it, const char *base) {
    const struct image_file *files = image_table(it, base, files, struct image_file);
    const struct image_pipe *pipes = image_table(it, base, pipes, struct image_pipe);
    const struct image_watch *watches = image_table(it, base, watches, struct image_watch);
    const struct image_fd *fds = image_table(it, base, fds, struct image_fd);

    for (uint64_t i = 0; i < it->files.n; i++) {
        const struct image_file *f = &files[i];

        if (!is_text(it, f->path) || !is_range(f->runs, it->runs) ||
            !is_range(f->targets, f->kind == IMAGE_FILE_NOTIFY ? it->watches : it->targets) ||
            !is_within(f->data, f->data_length, it->length) ||
            !is_within(f->name, f->name_length, it->length) || f->name_length > 128 ||
            !is_within(f->remote, f->remote_length, it->length) || f->remote_length > 128 ||
            f->peer > it->files.n || f->signaller > it->processes.n || f->signal > IMAGE_SIGNALS ||
            f->failure > IMAGE_REFUSED || f->owner >= IMAGE_IDS || f->group >= IMAGE_IDS ||
            f->sender >= IMAGE_IDS || f->sender_group >= IMAGE_IDS ||
            (f->kind == IMAGE_FILE_PIPE && f->value >= it->pipes.n) ||
            (f->kind == IMAGE_FILE_EXTERNAL && f->value >= it->n_externals) ||
            ((f->kind == IMAGE_FILE_MASTER || f->kind == IMAGE_FILE_TERMINAL) &&
                f->value >= it->terminals.n))
            return false;
        for (uint32_t k = f->targets.first + 1;
             f->kind == IMAGE_FILE_NOTIFY && k < f->targets.first + f->targets.n; k++)
            if (watches[k].number <= watches[k - 1].number)
                return false;
    }
    for (uint64_t i = 0; i < it->pipes.n; i++)
        if (!is_within(pipes[i].data, pipes[i].length, it->length))
            return false;
    for (uint64_t i = 0; i < it->fds.n; i++)
        if (fds[i].file >= it->files.n)
            return false;
    return true;
}

/* Ids and permissions that a sandbox can have, and pages within the segment. */
static bool is_segment(const struct image *it, const char *base, const struct image_segment *s) {
    const struct image_run *runs = image_table(it, base, runs, struct image_run);
    const uint32_t owners[] = { s->owner, s->group, s->creator, s->creator_group };

    if (s->id > INT32_MAX || !s->size || s->size > IMAGE_HIGHEST || s->mode > 0777 ||
        !is_range(s->runs, it->runs))
        return false;
    for (size_t i = 0; i < sizeof owners / sizeof owners[0]; i++)
        if (owners[i] >= IMAGE_IDS)
            return false;
    for (uint32_t i = s->runs.first; i < s->runs.first + s->runs.n; i++)
        if (!is_within(runs[i].address, runs[i].length, image_up_to(s->size, IMAGE_PAGE)))
            return false;
    return true;
}

/* Ids ascend. The start of a command shares no memory. */
static bool are_segments(const struct image *it, const char *base) {
    const struct image_segment *segments = image_table(it, base, segments, struct image_segment);

    for (uint64_t i = 0; i < it->segments.n; i++)
        if ((i && segments[i].id <= segments[i - 1].id) || !is_segment(it, base, &segments[i]))
            return false;
    return !it->segments.n || !it->is_command;
}

/* Numbers ascend, and each command has at most one. */
static bool are_terminals(const struct image *it, const char *base) {
    const struct image_terminal *terminals =
        image_table(it, base, terminals, struct image_terminal);
    uint64_t lent = 0;

    for (uint64_t i = 0; i < it->terminals.n && it->n_lent <= it->terminals.n; i++) {
        const struct image_terminal *t = &terminals[i];

        if (t->number >= IMAGE_MAX_TERMINALS || (i && t->number <= t[-1].number) ||
            t->lent > it->n_lent || t->owner >= IMAGE_IDS || t->group >= IMAGE_IDS ||
            t->mode > 0777 || !is_within(t->output, t->output_length, it->length) ||
            !is_within(t->input, t->input_length, it->length) ||
            (t->lent && lent >> (t->lent - 1) & 1))
            return false;
        lent |= t->lent ? 1ull << (t->lent - 1) : 0;
    }
    return it->n_lent <= it->terminals.n &&
           lent == (it->n_lent < 64 ? (1ull << it->n_lent) - 1 : ~0ull);
}

/* Times of a virtual clock are at most IMAGE_NEVER. */
static bool is_time(int64_t time, bool may_be_past) {
    return time <= IMAGE_NEVER && (time >= 0 || (may_be_past && time >= -IMAGE_NEVER));
}

static bool is_alarm(const struct image *it, const char *base, const struct image_alarm *alarm) {
    const struct image_file *files = image_table(it, base, files, struct image_file);

    if (alarm->kind < IMAGE_ALARM_INTERVAL || alarm->kind > IMAGE_ALARM_DESCRIPTOR ||
        alarm->number >= IMAGE_MAX_ALARMS || alarm->signal > IMAGE_SIGNALS ||
        !is_time(alarm->deadline, true) || !is_time(alarm->interval, false))
        return false;
    return alarm->kind != IMAGE_ALARM_DESCRIPTOR
               ? alarm->pid > 1
               : alarm->file && alarm->file <= it->files.n &&
                     files[alarm->file - 1].kind == IMAGE_FILE_TIMER;
}

static bool is_determinism(const struct image *it, const char *base) {
    const struct image_wait *waits = image_table(it, base, waits, struct image_wait);
    const struct image_alarm *alarms = image_table(it, base, alarms, struct image_alarm);

    if (it->determinism.ticks > IMAGE_NEVER || it->determinism.jumped > IMAGE_NEVER ||
        it->determinism.last_pid > INT32_MAX)
        return false;
    for (uint64_t i = 0; i < it->waits.n; i++)
        if (!is_time(waits[i].deadline, true))
            return false;
    for (uint64_t i = 0; i < it->alarms.n; i++)
        if (!is_alarm(it, base, &alarms[i]))
            return false;
    return true;
}

static bool are_apart(struct image_range a, struct image_range b) {
    return !a.n || !b.n || a.first + a.n <= b.first || b.first + b.n <= a.first;
}

/* No two processes share an area, and each area belongs to a process: memory is counted by area and
 * used by process, and the other way round. */
static bool are_own(const struct image *it, const char *base) {
    const struct image_process *processes = image_table(it, base, processes, struct image_process);
    uint64_t n_areas = 0;

    for (uint64_t i = 0; i < it->processes.n; i++) {
        n_areas += processes[i].areas.n;
        for (uint64_t k = 0; k < i; k++)
            if (!are_apart(processes[i].areas, processes[k].areas) ||
                !are_apart(processes[i].threads, processes[k].threads))
                return false;
    }
    return n_areas == it->areas.n;
}

/* The length of a range of whole pages in bytes, or UINT64_MAX. */
static uint64_t bytes_of(const struct image_run *runs, struct image_range range) {
    uint64_t bytes = 0;

    for (uint32_t i = range.first; i < range.first + range.n; i++) {
        if (!runs[i].length || (runs[i].address | runs[i].length) % IMAGE_PAGE)
            return UINT64_MAX;
        bytes += runs[i].length;
    }
    return bytes;
}

/* The pages of an area, a file or a segment: they are numbered through, in this order. */
static struct image_range runs_of(const struct image *it, const char *base, uint64_t i) {
    if (i < it->areas.n)
        return image_table(it, base, areas, struct image_area)[i].runs;
    i -= it->areas.n;
    return i < it->files.n
               ? image_table(it, base, files, struct image_file)[i].runs
               : image_table(it, base, segments, struct image_segment)[i - it->files.n].runs;
}

/* No byte of the image belongs to two runs, and the runs of everything together have at most as
 * many bytes as the image. So a loaded image has no more pages than its file, and checking it takes
 * no longer. */
static bool are_once(const struct image *it, const char *base) {
    const struct image_run *runs = image_table(it, base, runs, struct image_run);
    const struct image_area *areas = image_table(it, base, areas, struct image_area);
    uint64_t end = 0, n_runs = 0, n_guards = 0, bytes = 0;

    for (uint64_t i = 0; i < it->runs.n; i++) {
        if (runs[i].at < end || !is_within(runs[i].at, runs[i].length, it->length))
            return false;
        end = runs[i].at + runs[i].length;
    }
    for (uint64_t i = 0; i < it->areas.n + it->files.n + it->segments.n; i++) {
        struct image_range range = runs_of(it, base, i);

        n_runs += range.n;
        n_guards += i < it->areas.n ? areas[i].guards.n : 0;
        if (n_runs > it->runs.n || n_guards > it->guards.n || !is_range(range, it->runs))
            return false;
        uint64_t more = bytes_of(runs, range);
        if (more > it->length || (bytes += more) > it->length)
            return false;
    }
    return true;
}

static bool is_consistent(const void *base, uint64_t length) {
    const struct image *it = image_header(base, length);
    const char *bytes = base;

    if (length < sizeof *it || length % 8 || it->magic != IMAGE_MAGIC || it->length != length ||
        !are_tables(it) || bytes[it->texts_end - 1] || !are_once(it, base) ||
        !are_credentials(it, base) || !are_terminals(it, base) || !are_watches(it, base) ||
        !are_files(it, base) || !are_segments(it, base) || !is_determinism(it, base) ||
        !it->processes.n || (it->is_command && it->processes.n != 1))
        return false;
    for (uint64_t i = 0; i < it->areas.n; i++)
        if (!is_area(it, base, image_table(it, base, areas, struct image_area) + i))
            return false;
    for (uint64_t i = 0; i < it->processes.n; i++)
        if (!is_process(it, base, (uint32_t)i))
            return false;
    return are_own(it, base);
}

bool image_is_sound(const void *base, uint64_t length) {
    const struct image *it = image_header(base, length);

    return is_consistent(base, length) && !it->is_incremental && !it->kept.n;
}

/* ---- incremental images ---- */

static bool is_same_text(const char *a, const char *b) {
    for (; *a && *a == *b; a++, b++)
        ;
    return *a == *b;
}

static bool is_same_file(const struct image_area *was, const char *base,
    const struct image_area *now, const char *found) {
    return was->end == now->end && was->protection == now->protection &&
           was->offset == now->offset && was->is_shared == now->is_shared &&
           was->is_written == now->is_written && was->inode == now->inode &&
           was->size == now->size && was->mtime_s == now->mtime_s &&
           was->mtime_ns == now->mtime_ns && is_same_text(base + was->path, found + now->path);
}

/* The area with the same start or, for an area that grows downwards, the same end. */
const struct image_area *image_area_before(const struct image_area *areas, uint32_t n,
    const char *base, const struct image_area *area, const char *found) {
    uint32_t low = 0, high = n;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (areas[middle].start < area->start)
            low = middle + 1;
        else
            high = middle;
    }
    const struct image_area *was = &areas[low];
    if (low == n || was->kind != area->kind || was->flags != area->flags || was->forgets ||
        area->forgets)
        return NULL;
    bool resumes =
        was->start == area->start || (area->kind == IMAGE_STACK && was->end == area->end);
    return resumes && (is_memory(area) ||
                          (area->kind == IMAGE_FILE && is_same_file(was, base, area, found)))
               ? was
               : NULL;
}

static const struct image_area *next_part(
    const struct image_area **at, const struct image_area *end) {
    while (*at < end && (*at)->kind != IMAGE_VVAR && (*at)->kind != IMAGE_VDSO)
        (*at)++;
    return *at < end ? (*at)++ : NULL;
}

bool image_has_same_parts(
    const struct image_area *was, uint32_t n, const struct image_area *now, uint32_t n_now) {
    const struct image_area *end = was + n, *now_end = now + n_now;

    for (;;) {
        const struct image_area *a = next_part(&was, end), *b = next_part(&now, now_end);

        if (!a || !b)
            return !a && !b;
        if (a->start != b->start || a->end != b->end || a->kind != b->kind)
            return false;
    }
}

bool image_has_same_tree(
    const struct image *was, const char *base, const struct image_process *processes, uint64_t n) {
    const struct image_process *before = image_table(was, base, processes, struct image_process);

    for (uint64_t i = 0; i < n && n == was->processes.n; i++) {
        const struct image_process *a = &before[i], *b = &processes[i];

        if (a->kind != b->kind || a->pid != b->pid || a->session != b->session ||
            a->group != b->group || a->parent != b->parent || a->status != b->status)
            return false;
    }
    return n == was->processes.n;
}

/* There are this many initial stacks for new threads. */
static uint32_t max_threads(const struct image *it, const struct image_process *processes) {
    uint32_t most = 0;

    for (uint64_t i = 0; i < it->processes.n; i++)
        most = processes[i].threads.n > most ? processes[i].threads.n : most;
    return most;
}

bool image_is_of_same(const struct image *was, const char *base, const struct image *now,
    const struct image_process *processes, const char *texts) {
    const struct image_process *before = image_table(was, base, processes, struct image_process);
    bool is_alone = was->processes.n == 1 && was->threads.n == 1;

    if (!image_has_same_tree(was, base, processes, now->processes.n) || was->is_command ||
        now->is_command || was->terminals.n || now->terminals.n || was->determinism.is_there ||
        now->determinism.is_there || was->n_externals != now->n_externals ||
        !was->credentials.n != !now->credentials.n || (!was->segments.n && now->segments.n) ||
        (is_alone && now->threads.n != 1) || max_threads(now, processes) > max_threads(was, before))
        return false;
    for (uint64_t i = 0; i < was->processes.n; i++) {
        const struct image_process *a = &before[i], *b = &processes[i];

        if (a->kind == IMAGE_LIVING &&
            (a->goodbye != b->goodbye || a->is_subreaper != b->is_subreaper ||
                a->barriers != b->barriers ||
                !is_same_text(base + a->executable, texts + b->executable)))
            return false;
    }
    return true;
}

/* Each page is described once. Kept pages lie in an area that continues, and among the pages that
 * the parent image has for the same process and address. */
static bool is_kept(const struct image *it, const char *found, const struct image_area *area,
    const struct image *was, const char *base, const struct image_area *before) {
    const struct image_kept *kept =
        image_table(it, found, kept, struct image_kept) + area->kept.first;
    const struct image_run *runs = image_table(was, base, runs, struct image_run);
    uint64_t end = area->start;
    uint32_t k = 0;

    if (area->kept.n && !before)
        return false;
    for (uint32_t i = 0; i < area->kept.n; i++) {
        if (!kept[i].length || (kept[i].address | kept[i].length) % IMAGE_PAGE ||
            kept[i].address < end || kept[i].length > area->end - kept[i].address ||
            kept[i].address > area->end)
            return false;
        end = kept[i].address + kept[i].length;
        while (k < before->runs.n &&
               runs[before->runs.first + k].address + runs[before->runs.first + k].length < end)
            k++;
        const struct image_run *run = &runs[before->runs.first + k];
        if (k == before->runs.n || run->address > kept[i].address ||
            kept[i].at != run->at + (kept[i].address - run->address))
            return false;
    }
    return true;
}

bool image_is_incremental(
    const void *found, uint64_t length, const void *base, uint64_t base_length) {
    const struct image *it = image_header(found, length), *was = image_header(base, base_length);
    uint64_t n_kept = 0;

    if (!is_consistent(found, length) || !it->is_incremental ||
        !image_is_of_same(was, base, it,
            image_table(it, (const char *)found, processes, struct image_process), found))
        return false;
    for (uint64_t i = 0; i < it->processes.n; i++) {
        const struct image_process *p = image_table(it, found, processes, struct image_process) + i,
                                   *q = image_table(was, base, processes, struct image_process) + i;

        if (!image_has_same_parts(image_table(was, base, areas, struct image_area) + q->areas.first,
                q->areas.n, image_table(it, found, areas, struct image_area) + p->areas.first,
                p->areas.n))
            return false;
        for (uint32_t k = p->areas.first; k < p->areas.first + p->areas.n; k++) {
            const struct image_area *area = image_table(it, found, areas, struct image_area) + k;

            n_kept += area->kept.n;
            if (n_kept > it->kept.n || !is_range(area->kept, it->kept) ||
                (area->kept.n && !is_memory(area)) ||
                !is_kept(it, found, area, was, base,
                    image_area_before(
                        image_table(was, base, areas, struct image_area) + q->areas.first,
                        q->areas.n, base, area, found)))
                return false;
        }
    }
    return true;
}
