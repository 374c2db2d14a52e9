/* SPDX-License-Identifier: Apache-2.0 */
#include "store/delta.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define PROBES 8u /* blocks that look alike */

/* ---- reading ---- */

static bool run_is_sound(
    const struct delta_run *run, const struct delta_file *files, size_t n_files, uint64_t fresh) {
    if (run->file >= n_files || !run->length || run->offset % DELTA_BLOCK)
        return false;
    uint64_t most = run->file ? files[run->file].length : fresh;
    return run->offset <= most && run->length <= most - run->offset;
}

bool delta_view(const struct delta_file *files, size_t n_files, struct delta_view *ret_view) {
    const struct delta_file *own = &files[0];
    struct delta_end end;
    uint64_t covered = 0;

    if (own->length < sizeof end)
        return false;
    memcpy(&end, own->data + own->length - sizeof end, sizeof end);
    const uint64_t room = own->length - sizeof end;
    if (end.magic != DELTA_MAGIC || end.n_runs > room / sizeof(struct delta_run) ||
        end.fresh > room || (end.fresh + 7) / 8 * 8 + end.n_runs * sizeof(struct delta_run) != room)
        return false;
    const struct delta_run *runs = (const void *)(own->data + (end.fresh + 7) / 8 * 8);
    for (uint64_t i = 0; i < end.n_runs; i++) {
        if (!run_is_sound(&runs[i], files, n_files, end.fresh) ||
            runs[i].length > end.length - covered)
            return false;
        covered += runs[i].length;
        if (runs[i].length % DELTA_BLOCK && i + 1 < end.n_runs)
            return false;
    }
    if (covered != end.length)
        return false;
    *ret_view = (struct delta_view){
        .files = files, .n_files = n_files, .runs = runs, .n_runs = end.n_runs, .length = end.length
    };
    return true;
}

/* ---- finding ---- */

struct place {
    uint64_t offset;
    uint32_t file;
};

struct finding {
    const struct delta_view *base;
    struct place *places; /* of each block of the base */
    uint32_t *table;      /* 1 + the number of a block, by its looks; NULL: not needed yet */
    size_t n, mask;
};

static const char *block_at(const struct finding *finding, size_t i) {
    return finding->base->files[finding->places[i].file].data + finding->places[i].offset;
}

/* A few words of each quarter KiB: enough to distinguish most pages, by reading a quarter of the
 * memory. */
static uint64_t looks_of(const char *block) {
    uint64_t looks = 0, word;

    for (size_t i = 0; i < DELTA_BLOCK / 256; i++) {
        memcpy(&word, block + 256 * i + 8 * (7 * i % 32), sizeof word);
        looks = (looks ^ word) * 0x9e3779b97f4a7c15ull;
        looks ^= looks >> 29;
    }
    return looks;
}

static int make_places(struct finding *finding) {
    const struct delta_view *base = finding->base;

    finding->places = calloc(base->length / DELTA_BLOCK + 1, sizeof *finding->places);
    if (!finding->places)
        return -ENOMEM;
    for (size_t i = 0; i < base->n_runs; i++)
        for (uint64_t done = 0; done + DELTA_BLOCK <= base->runs[i].length; done += DELTA_BLOCK)
            finding->places[finding->n++] =
                (struct place){ .offset = base->runs[i].offset + done, .file = base->runs[i].file };
    return finding->n < UINT32_MAX ? 0 : -E2BIG;
}

static int make_table(struct finding *finding) {
    size_t room = 64;

    while (room < 2 * finding->n)
        room *= 2;
    finding->table = calloc(room, sizeof *finding->table);
    if (!finding->table)
        return -ENOMEM;
    finding->mask = room - 1;
    for (size_t i = 0; i < finding->n; i++) {
        uint64_t looks = looks_of(block_at(finding, i));

        for (size_t k = 0; k < PROBES; k++) {
            uint32_t *at = &finding->table[(looks + k) & finding->mask];

            if (!*at) {
                *at = (uint32_t)(i + 1);
                break;
            }
        }
    }
    return 0;
}

/* *found: the number of an equal block of the base; else unchanged. 1, 0, -ENOMEM. */
static int find_block(struct finding *finding, const char *block, size_t *found) {
    if (*found < finding->n && !memcmp(block_at(finding, *found), block, DELTA_BLOCK))
        return 1;
    if (!finding->table && make_table(finding) < 0)
        return -ENOMEM;
    uint64_t looks = looks_of(block);
    for (size_t k = 0; k < PROBES; k++) {
        uint32_t at = finding->table[(looks + k) & finding->mask];

        if (at && !memcmp(block_at(finding, at - 1), block, DELTA_BLOCK)) {
            *found = at - 1;
            return 1;
        }
    }
    return 0;
}

struct runs {
    struct delta_run *list;
    size_t n, room;
};

static int add_run(struct runs *runs, uint32_t file, uint64_t offset, uint64_t length) {
    struct delta_run *last = runs->n ? &runs->list[runs->n - 1] : NULL;

    if (last && last->file == file && last->offset + last->length == offset) {
        last->length += length;
        return 0;
    }
    if (runs->n == runs->room) {
        size_t room = runs->room ? 2 * runs->room : 64;
        struct delta_run *more = realloc(runs->list, room * sizeof *more);

        if (!more)
            return -ENOMEM;
        runs->list = more;
        runs->room = room;
    }
    runs->list[runs->n++] = (struct delta_run){ .length = length, .offset = offset, .file = file };
    return 0;
}

int delta_find(const struct delta_file *image, const struct delta_view *base,
    struct delta_run **ret_runs, size_t *ret_n) {
    struct finding finding = { .base = base };
    struct runs runs = { 0 };
    uint64_t fresh = 0, done = 0;
    size_t found = 0;
    int r = make_places(&finding);

    for (; r == 0 && done + DELTA_BLOCK <= image->length; done += DELTA_BLOCK) {
        int same = find_block(&finding, image->data + done, &found);

        if (same > 0) {
            r = add_run(
                &runs, finding.places[found].file + 1, finding.places[found].offset, DELTA_BLOCK);
        } else {
            r = same < 0 ? same : add_run(&runs, 0, fresh, DELTA_BLOCK);
            fresh += DELTA_BLOCK;
        }
        found++; /* changed blocks are followed by unchanged ones */
    }
    if (r == 0 && done < image->length)
        r = add_run(&runs, 0, fresh, image->length - done);
    free(finding.places);
    free(finding.table);
    if (r < 0) {
        free(runs.list);
        return r;
    }
    *ret_runs = runs.list;
    *ret_n = runs.n;
    return 0;
}

uint64_t delta_settle(struct delta_run *runs, size_t *n_runs, const bool *keeps, size_t n_files) {
    uint64_t fresh = 0;
    size_t n = 0;

    for (size_t i = 0; i < *n_runs; i++) {
        struct delta_run run = runs[i];
        uint32_t number = 0;

        for (size_t k = 0; run.file && run.file <= n_files && keeps[run.file - 1] && k < run.file;
             k++)
            number += keeps[k];
        run.file = number;
        if (!number) {
            run.offset = fresh;
            fresh += run.length;
        }
        if (n && runs[n - 1].file == run.file &&
            runs[n - 1].offset + runs[n - 1].length == run.offset)
            runs[n - 1].length += run.length;
        else
            runs[n++] = run;
    }
    *n_runs = n;
    return fresh;
}
