/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Incremental images. After any change to one, an image that is accepted as an increment of its
 * parent names no page outside of the parent and no page twice, and makes a sound image together
 * with the parent.
 *
 * The input is changes: two bytes that say where (in words of 8), eight that say what. The parent
 * and the incremental image are made here.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dump/dump.h"
#include "image/process_image.h"

#define PAGES 6

struct made {
    char pages[PAGES * IMAGE_PAGE];
    struct image_process process;
    struct image_thread thread;
    struct image_area areas[4];
    struct image_run runs[3];
    struct image_kept kept[2];
    struct image_file file;
    char texts[64];
    struct image header;
};

#define AT(page) (IMAGE_LOWEST + (page) * (uint64_t)IMAGE_PAGE)

/* A heap of three pages and one more, a file, a stack of two pages. */
static void make(struct made *m, bool is_incremental) {
    const uint64_t text = offsetof(struct made, texts);

    memset(m, 0, sizeof *m);
    m->header = (struct image){
        .processes = { offsetof(struct made, process), 1 },
        .threads = { offsetof(struct made, thread), 1 },
        .areas = { offsetof(struct made, areas), 4 },
        .runs = { offsetof(struct made, runs), 3 },
        .kept = { offsetof(struct made, kept), is_incremental ? 2 : 0 },
        .files = { offsetof(struct made, file), 1 },
        .texts = text,
        .texts_end = text + sizeof m->texts,
        .is_incremental = is_incremental,
        .length = sizeof *m,
        .magic = IMAGE_MAGIC,
    };
    m->process = (struct image_process){ .kind = IMAGE_LIVING,
        .pid = 5,
        .session = 5,
        .group = 5,
        .executable = text,
        .directory = text,
        .root = text,
        .areas = { 0, 4 },
        .threads = { 0, 1 } };
    m->thread = (struct image_thread){ .tid = 5, .xstate_length = 2696 };
    m->areas[0] = (struct image_area){ .start = AT(0),
        .end = AT(is_incremental ? 5 : 4),
        .kind = IMAGE_ANONYMOUS,
        .protection = 3,
        .runs = { 0, 1 },
        .kept = { 0, is_incremental } };
    m->areas[1] =
        (struct image_area){ .start = AT(8), .end = AT(9), .kind = IMAGE_FILE, .path = text };
    m->areas[2] = (struct image_area){ .start = AT(16), .end = AT(17), .kind = IMAGE_VDSO };
    m->areas[3] = (struct image_area){ .start = AT(is_incremental ? 29 : 30),
        .end = AT(32),
        .kind = IMAGE_STACK,
        .protection = 3,
        .runs = { 1, 1 },
        .kept = { is_incremental, is_incremental } };
    m->file = (struct image_file){
        .kind = IMAGE_FILE_MEMORY, .path = text, .length = 100, .runs = { 2, 1 }
    };
    if (is_incremental) {
        m->runs[0] = (struct image_run){ .address = AT(4), .length = IMAGE_PAGE };
        m->runs[1] =
            (struct image_run){ .address = AT(29), .length = IMAGE_PAGE, .at = IMAGE_PAGE };
        m->runs[2] = (struct image_run){ .length = IMAGE_PAGE, .at = 2 * IMAGE_PAGE };
        m->kept[0] =
            (struct image_kept){ .address = AT(1), .length = 2 * IMAGE_PAGE, .at = IMAGE_PAGE };
        m->kept[1] =
            (struct image_kept){ .address = AT(31), .length = IMAGE_PAGE, .at = 4 * IMAGE_PAGE };
    } else {
        m->runs[0] = (struct image_run){ .address = AT(0), .length = 3 * IMAGE_PAGE };
        m->runs[1] =
            (struct image_run){ .address = AT(30), .length = 2 * IMAGE_PAGE, .at = 3 * IMAGE_PAGE };
        m->runs[2] = (struct image_run){ .length = IMAGE_PAGE, .at = 5 * IMAGE_PAGE };
    }
}

static int file_of(const struct made *m) {
    int fd = memfd_create("image", MFD_CLOEXEC);

    if (fd < 0 || write(fd, m, sizeof *m) != sizeof *m)
        abort();
    return fd;
}

static void look(const struct made *base, const struct made *m) {
    const struct image *it = &m->header;
    const struct image_kept *kept = image_table(it, m, kept, struct image_kept);
    const struct image_area *areas = image_table(it, m, areas, struct image_area);

    for (uint64_t i = 0; i < it->areas.n; i++)
        for (uint32_t k = areas[i].kept.first; k < areas[i].kept.first + areas[i].kept.n; k++)
            if (kept[k].address < areas[i].start ||
                kept[k].length > areas[i].end - kept[k].address ||
                kept[k].at > sizeof base->pages || kept[k].length > sizeof base->pages - kept[k].at)
                abort();
}

static void make_whole(const struct made *base, const struct made *m) {
    int addition = file_of(m), from = file_of(base), to = memfd_create("whole", MFD_CLOEXEC);
    struct stat st;

    if (to < 0 || dump_flatten(addition, from, to) < 0 || fstat(to, &st) < 0)
        abort();
    void *whole = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, to, 0);
    if (whole == MAP_FAILED || !image_is_sound(whole, (uint64_t)st.st_size))
        abort();
    munmap(whole, (size_t)st.st_size);
    close(addition), close(from), close(to);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct made *base = aligned_alloc(64, (sizeof *base + 63) & ~(size_t)63),
                *m = aligned_alloc(64, (sizeof *m + 63) & ~(size_t)63);

    if (!base || !m)
        abort();
    make(base, false);
    make(m, true);
    if (!image_is_sound(base, sizeof *base) || image_is_sound(m, sizeof *m) ||
        !image_is_incremental(m, sizeof *m, (const char *)base, sizeof *base))
        abort();
    for (; size >= 10; data += 10, size -= 10) {
        size_t at =
            (((size_t)data[0] | (size_t)data[1] << 8) % ((sizeof *m - sizeof m->pages) / 8)) +
            sizeof m->pages / 8;

        memcpy((char *)m + at * 8, data + 2, 8);
    }
    if (image_is_incremental(m, sizeof *m, (const char *)base, sizeof *base)) {
        look(base, m);
        make_whole(base, m);
    }
    free(base);
    free(m);
    return 0;
}
