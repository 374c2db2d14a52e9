/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Process images. After any change to a sound one, an image that is accepted as sound can be walked
 * through without leaving it.
 *
 * The input is changes: two bytes that say where (in words of 8), eight that say what. The image is
 * made here, with one entry at least in each table.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "image/process_image.h"
#include "store/describe.h"

struct made {
    char pages[3 * IMAGE_PAGE];
    struct image_process processes[2];
    struct image_thread thread;
    struct image_area areas[4];
    struct image_run runs[3];
    struct image_action action;
    struct image_pending pending;
    struct image_timer timer;
    struct image_lock lock;
    struct image_file files[5];
    struct image_pipe pipe;
    struct image_target target;
    struct image_fd fds[2];
    struct image_terminal terminal;
    struct image_watch watch;
    struct image_wait wait;
    struct image_alarm alarm;
    struct image_guard guard;
    struct image_credentials credentials;
    uint32_t groups[2];
    struct image_segment segment;
    char texts[64];
    struct image header;
};

#define PART(member)                                                                               \
    ((struct image_part){ offsetof(struct made, member),                                           \
        sizeof(((struct made *)0)->member) / sizeof(one_of(((struct made *)0)->member)) })
#define one_of(member)                                                                             \
    _Generic(&(member), struct image_process(*)[2]                                                 \
             : ((struct made *)0)->processes[0], struct image_area(*)[4]                           \
             : ((struct made *)0)->areas[0], struct image_run(*)[3]                                \
             : ((struct made *)0)->runs[0], struct image_file(*)[5]                                \
             : ((struct made *)0)->files[0], struct image_fd(*)[2]                                 \
             : ((struct made *)0)->fds[0], uint32_t(*)[2]                                          \
             : ((struct made *)0)->groups[0], default                                              \
             : (member))

static void make(struct made *m) {
    const uint64_t text = offsetof(struct made, texts);

    memset(m, 0, sizeof *m);
    m->header = (struct image){
        .processes = PART(processes),
        .threads = PART(thread),
        .areas = PART(areas),
        .runs = PART(runs),
        .actions = PART(action),
        .pending = PART(pending),
        .timers = PART(timer),
        .locks = PART(lock),
        .files = PART(files),
        .pipes = PART(pipe),
        .targets = PART(target),
        .fds = PART(fds),
        .terminals = PART(terminal),
        .watches = PART(watch),
        .waits = PART(wait),
        .alarms = PART(alarm),
        .guards = PART(guard),
        .credentials = PART(credentials),
        .groups = PART(groups),
        .segments = PART(segment),
        .determinism = { .is_there = 1, .flags = IMAGE_VIRTUAL, .ticks = 1000 },
        .n_lent = 1,
        .texts = text,
        .texts_end = text + sizeof m->texts,
        .n_externals = 1,
        .length = sizeof *m,
        .magic = IMAGE_MAGIC,
    };
    m->processes[0] = (struct image_process){
        .kind = IMAGE_LIVING,
        .pid = 5,
        .session = 5,
        .group = 5,
        .executable = text,
        .directory = text,
        .root = text,
        .areas = { 0, 4 },
        .threads = { 0, 1 },
        .actions = { 0, 1 },
        .pending = { 0, 1 },
        .posix_timers = { 0, 1 },
        .locks = { 0, 1 },
        .fds = { 0, 2 },
        .terminal = 1,
    };
    m->processes[1] = (struct image_process){
        .kind = IMAGE_ZOMBIE, .pid = 6, .session = 5, .group = 5, .parent = 1
    };
    m->thread = (struct image_thread){
        .tid = 5, .xstate = 0, .xstate_length = 2696, .pending = { 0, 1 }, .credentials = 1
    };
    m->credentials = (struct image_credentials){ .groups = { 0, 2 }, .permitted = 1, .bounds = 1 };
    m->areas[0] = (struct image_area){ .start = IMAGE_LOWEST,
        .end = IMAGE_LOWEST + IMAGE_PAGE,
        .kind = IMAGE_ANONYMOUS,
        .runs = { 0, 1 },
        .guards = { 0, 1 } };
    m->areas[1] = (struct image_area){ .start = IMAGE_LOWEST + IMAGE_PAGE,
        .end = IMAGE_LOWEST + 2 * IMAGE_PAGE,
        .kind = IMAGE_FILE,
        .path = text };
    m->areas[2] = (struct image_area){ .start = IMAGE_LOWEST + 4 * IMAGE_PAGE,
        .end = IMAGE_LOWEST + 5 * IMAGE_PAGE,
        .kind = IMAGE_MEMORY,
        .path = 1 };
    m->areas[3] = (struct image_area){ .start = IMAGE_LOWEST + 6 * IMAGE_PAGE,
        .end = IMAGE_LOWEST + 7 * IMAGE_PAGE,
        .kind = IMAGE_SEGMENT,
        .offset = IMAGE_PAGE };
    m->segment = (struct image_segment){
        .id = 5, .key = 7, .size = IMAGE_PAGE + 1, .mode = 0600, .runs = { 2, 1 }
    };
    m->guard = (struct image_guard){ .address = IMAGE_LOWEST, .length = IMAGE_PAGE };
    m->runs[0] = (struct image_run){ .address = IMAGE_LOWEST, .length = IMAGE_PAGE };
    m->runs[1] = (struct image_run){ .length = IMAGE_PAGE, .at = IMAGE_PAGE };
    m->runs[2] =
        (struct image_run){ .address = IMAGE_PAGE, .length = IMAGE_PAGE, .at = 2 * IMAGE_PAGE };
    m->files[0] = (struct image_file){ .kind = IMAGE_FILE_PIPE, .path = text };
    m->files[1] = (struct image_file){
        .kind = IMAGE_FILE_MEMORY, .path = text, .length = 100, .runs = { 1, 1 }
    };
    m->files[2] =
        (struct image_file){ .kind = IMAGE_FILE_EPOLL, .path = text, .targets = { 0, 1 } };
    m->files[3] = (struct image_file){ .kind = IMAGE_FILE_TERMINAL, .path = text };
    m->files[4] =
        (struct image_file){ .kind = IMAGE_FILE_NOTIFY, .path = text, .targets = { 0, 1 } };
    m->watch = (struct image_watch){ .number = 9, .path = text };
    m->terminal =
        (struct image_terminal){ .number = 7, .lent = 1, .output_length = 20, .input_length = 30 };
    m->pipe = (struct image_pipe){ .length = 10 };
    m->fds[1].file = 2;
    m->wait = (struct image_wait){ .thread = 5, .deadline = 1000 };
    m->alarm = (struct image_alarm){ .kind = IMAGE_ALARM_INTERVAL, .pid = 5, .deadline = 1000 };
}

static uint64_t sum;

static void look(const char *at, uint64_t length) {
    for (uint64_t i = 0; i < length; i++)
        sum += (unsigned char)at[i];
}

/* A loader counts each area once by the table, loads each once by the processes, and makes pages
 * from bytes of the image. This holds with any processes. */
static void take(const struct image *it, const char *base) {
    const struct image_area *areas = image_table(it, base, areas, struct image_area);
    const struct image_file *files = image_table(it, base, files, struct image_file);
    const struct image_segment *segments = image_table(it, base, segments, struct image_segment);
    const struct image_run *runs = image_table(it, base, runs, struct image_run);
    unsigned char *taken = calloc(it->areas.n + 1, 1);
    uint64_t n = 0, bytes = 0;

    for (uint64_t i = 0; taken && i < it->processes.n; i++) {
        const struct image_process *p = image_table(it, base, processes, struct image_process) + i;

        if (p->kind != IMAGE_LIVING && (p->areas.n || p->threads.n))
            abort();
        for (uint32_t k = p->areas.first; k < p->areas.first + p->areas.n; k++, n++)
            if (k >= it->areas.n || taken[k]++)
                abort();
    }
    const uint64_t n_before = it->areas.n + it->files.n;
    for (uint64_t i = 0; i < n_before + it->segments.n; i++) {
        struct image_range range = i < it->areas.n ? areas[i].runs
                                   : i < n_before  ? files[i - it->areas.n].runs
                                                   : segments[i - n_before].runs;

        for (uint32_t k = range.first; k < range.first + range.n; k++)
            bytes += (runs[k].length + IMAGE_PAGE - 1) & ~(uint64_t)(IMAGE_PAGE - 1);
    }
    if (!taken || n != it->areas.n || bytes > it->length)
        abort();
    free(taken);
}

/* Reads everything that a loader would. `base` has no byte more than the image. */
static void walk(const struct image *it, const char *base) {
    const struct image_area *areas = image_table(it, base, areas, struct image_area);
    const struct image_thread *threads = image_table(it, base, threads, struct image_thread);
    const struct image_run *runs = image_table(it, base, runs, struct image_run);
    const struct image_guard *guards = image_table(it, base, guards, struct image_guard);
    const struct image_file *files = image_table(it, base, files, struct image_file);
    const struct image_fd *fds = image_table(it, base, fds, struct image_fd);

    for (uint64_t i = 0; i < it->processes.n; i++) {
        const struct image_process *p = image_table(it, base, processes, struct image_process) + i;

        if (p->parent > i || p->terminal > it->terminals.n || it->terminals.n > IMAGE_MAX_TERMINALS)
            abort();
        if (p->kind != IMAGE_LIVING)
            continue;
        look(base + p->executable, strlen(base + p->executable) + 1);
        look(base + p->directory, strlen(base + p->directory) + 1);
        look(base + p->root, strlen(base + p->root) + 1);
        look(base + p->auxv, p->auxv_length);
        for (uint32_t k = p->threads.first; k < p->threads.first + p->threads.n; k++)
            look(base + threads[k].xstate, threads[k].xstate_length);
        for (uint32_t k = p->fds.first; k < p->fds.first + p->fds.n; k++)
            sum += files[fds[k].file].kind;
        for (uint32_t k = p->areas.first; k < p->areas.first + p->areas.n; k++) {
            if (areas[k].start < IMAGE_LOWEST || areas[k].end > IMAGE_HIGHEST ||
                areas[k].start >= areas[k].end ||
                (k > p->areas.first && areas[k].start < areas[k - 1].end))
                abort();
            if (areas[k].kind == IMAGE_FILE)
                look(base + areas[k].path, strlen(base + areas[k].path) + 1);
            if (areas[k].kind == IMAGE_MEMORY)
                sum += files[areas[k].path].kind;
            for (uint32_t g = areas[k].guards.first; g < areas[k].guards.first + areas[k].guards.n;
                 g++)
                if (guards[g].address < areas[k].start ||
                    guards[g].length > areas[k].end - guards[g].address)
                    abort();
            for (uint32_t r = areas[k].runs.first;
                 areas[k].kind <= IMAGE_STACK && r < areas[k].runs.first + areas[k].runs.n; r++) {
                if (runs[r].address < areas[k].start ||
                    runs[r].length > areas[k].end - runs[r].address)
                    abort();
                look(base + runs[r].at, runs[r].length);
            }
        }
    }
    for (uint64_t i = 0; i < it->terminals.n; i++) {
        const struct image_terminal *t =
            image_table(it, base, terminals, struct image_terminal) + i;

        if (t->number >= IMAGE_MAX_TERMINALS || t->lent > IMAGE_MAX_TERMINALS)
            abort();
        look(base + t->output, t->output_length);
        look(base + t->input, t->input_length);
    }
    for (uint64_t i = 0; i < it->files.n; i++) {
        look(base + files[i].path, strlen(base + files[i].path) + 1);
        look(base + files[i].data, files[i].data_length);
        look(base + files[i].name, files[i].name_length);
        look(base + files[i].remote, files[i].remote_length);
        for (uint32_t r = files[i].runs.first; r < files[i].runs.first + files[i].runs.n; r++)
            look(base + runs[r].at, runs[r].length);
        if (files[i].kind == IMAGE_FILE_TERMINAL || files[i].kind == IMAGE_FILE_MASTER)
            sum += image_table(it, base, terminals, struct image_terminal)[files[i].value].number;
        for (uint32_t k = files[i].targets.first;
             files[i].kind == IMAGE_FILE_NOTIFY && k < files[i].targets.first + files[i].targets.n;
             k++) {
            const struct image_watch *watch =
                image_table(it, base, watches, struct image_watch) + k;

            if (watch->number < 1 || watch->number > IMAGE_MAX_WATCHES)
                abort();
            look(base + watch->path, strlen(base + watch->path) + 1);
        }
        if (files[i].kind == IMAGE_FILE_PIPE) {
            const struct image_pipe *pipe =
                image_table(it, base, pipes, struct image_pipe) + files[i].value;
            look(base + pipe->data, pipe->length);
        }
    }
}

/* Init makes each segment, fills it, and attaches parts of it. */
static void walk_segments(const struct image *it, const char *base) {
    const struct image_segment *segments = image_table(it, base, segments, struct image_segment);
    const struct image_area *areas = image_table(it, base, areas, struct image_area);
    const struct image_run *runs = image_table(it, base, runs, struct image_run);

    for (uint64_t i = 0; i < it->segments.n; i++) {
        const struct image_segment *s = &segments[i];
        const uint64_t whole = image_up_to(s->size, IMAGE_PAGE);

        if (s->id > INT32_MAX || !whole || s->mode > 0777 || s->owner >= IMAGE_IDS ||
            s->group >= IMAGE_IDS || s->creator >= IMAGE_IDS || s->creator_group >= IMAGE_IDS)
            abort();
        for (uint32_t k = s->runs.first; k < s->runs.first + s->runs.n; k++) {
            if (runs[k].address > whole || runs[k].length > whole - runs[k].address)
                abort();
            look(base + runs[k].at, runs[k].length);
        }
    }
    for (uint64_t i = 0; i < it->areas.n; i++) {
        const struct image_area *area = &areas[i];

        if (area->kind != IMAGE_SEGMENT)
            continue;
        const uint64_t whole = image_up_to(segments[area->path].size, IMAGE_PAGE);
        if (area->offset > area->start || area->offset > whole ||
            area->end - area->start > whole - area->offset)
            abort();
    }
}

/* The rights of each thread are some that a sandbox has. */
static void walk_rights(const struct image *it, const char *base) {
    const struct image_thread *threads = image_table(it, base, threads, struct image_thread);
    const struct image_credentials *credentials =
        image_table(it, base, credentials, struct image_credentials);
    const uint32_t *groups = image_table(it, base, groups, uint32_t);

    for (uint64_t i = 0; i < it->threads.n; i++) {
        const struct image_credentials *own =
            threads[i].credentials ? &credentials[threads[i].credentials - 1] : NULL;

        if (!own)
            continue;
        if ((own->permitted | own->effective | own->inheritable | own->ambient | own->bounds) &
            ~IMAGE_CAPABILITIES)
            abort();
        for (size_t k = 0; k < 4; k++)
            if (own->uids[k] >= IMAGE_IDS || own->gids[k] >= IMAGE_IDS)
                abort();
        for (uint32_t k = own->groups.first; k < own->groups.first + own->groups.n; k++)
            if (groups[k] >= IMAGE_IDS)
                abort();
    }
}

/* What another init begins with: times that are some, and timers that it has a place for. */
static void walk_clock(const struct image *it, const char *base) {
    const struct image_wait *waits = image_table(it, base, waits, struct image_wait);
    const struct image_alarm *alarms = image_table(it, base, alarms, struct image_alarm);
    const struct image_file *files = image_table(it, base, files, struct image_file);

    for (uint64_t i = 0; i < it->waits.n; i++)
        if (waits[i].deadline > IMAGE_NEVER || waits[i].deadline < -IMAGE_NEVER)
            abort();
    for (uint64_t i = 0; i < it->alarms.n; i++) {
        if (alarms[i].number >= IMAGE_MAX_ALARMS || alarms[i].signal > IMAGE_SIGNALS ||
            alarms[i].interval < 0 || alarms[i].deadline > IMAGE_NEVER)
            abort();
        if (alarms[i].kind == IMAGE_ALARM_DESCRIPTOR)
            sum += files[alarms[i].file - 1].kind;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct made *m = aligned_alloc(64, (sizeof *m + 63) & ~(size_t)63), *exact = malloc(sizeof *m);

    if (!m || !exact)
        abort();
    make(m);
    if (!image_is_sound(m, sizeof *m))
        abort();
    for (; size >= 10; data += 10, size -= 10) {
        size_t at = ((size_t)data[0] | (size_t)data[1] << 8) % (sizeof *m / 8);

        memcpy((char *)m + at * 8, data + 2, 8);
    }
    memcpy(exact, m, sizeof *m);
    if (image_is_sound(exact, sizeof *m)) {
        walk(&exact->header, (const char *)exact);
        take(&exact->header, (const char *)exact);
        json_decref(describe_processes(exact, sizeof *m));
        walk_clock(&exact->header, (const char *)exact);
        walk_rights(&exact->header, (const char *)exact);
        walk_segments(&exact->header, (const char *)exact);
    }
    free(exact);
    free(m);
    return 0;
}
