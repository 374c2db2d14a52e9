/* SPDX-License-Identifier: Apache-2.0 */
#include "store/dedup_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "store/digest.h"
#include "store/fault.h"
#include "store/pack.h"

#define LEAST_GAIN (64u << 10) /* for a small image a file more is not worth it */
#define PORTION (256u << 10)
#define WRITEBACK (8u << 20) /* start writing to disk after this many bytes */
#define MAX_WASTE 2u         /* a file may be this many times as long as its needed part */

static int io_error(struct rollbox_error *error, int error_number, const char *doing) {
    return error_set(error, error_code_of(error_number, ROLLBOX_ERR_IO), error_number, "hibernate",
        "%s: %s%s", doing, strerror(error_number),
        error_number == ENOSPC || error_number == EDQUOT ? "; make room on the store's file system"
                                                         : "");
}

static int no_memory(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "hibernate", "out of memory");
}

int stage_init(struct stage *stage, int store, int fd, struct rollbox_error *error) {
    *stage = (struct stage){ .store = store,
        .fd = fd,
        .layers = json_array(),
        .images = json_array(),
        .bases = json_array() };
    return stage->layers && stage->images && stage->bases ? 0 : no_memory(error);
}

void stage_done(struct stage *stage) {
    for (size_t i = 0; i < stage->n_kept; i++) {
        close_fd(&stage->kept[i].directory);
        json_decref(stage->kept[i].record);
    }
    json_decref(stage->layers);
    json_decref(stage->images);
    json_decref(stage->bases);
    free(stage->linked);
}

/* ---- images in parts ---- */

/* An image of a directory and its record, mapped, with its parents. */
struct stored_image {
    struct delta_file *files;
    size_t n_files;
};

static void image_done(struct stored_image *image) {
    for (size_t i = 0; i < image->n_files; i++)
        munmap((void *)(uintptr_t)image->files[i].data, image->files[i].length);
    free(image->files);
    *image = (struct stored_image){ 0 };
}

static int map_file(int fd, struct delta_file *ret_file) {
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size <= 0)
        return -EBADMSG;
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
        return -errno;
    *ret_file = (struct delta_file){ .data = data, .length = (uint64_t)st.st_size };
    return 0;
}

static int image_open(
    int directory, const json_t *record, size_t i, struct stored_image *ret_image) {
    const json_t *over =
        json_object_get(json_array_get(json_object_get(record, "images"), i), "over");
    size_t n = 1 + json_array_size(over);
    struct stored_image image = { .files = calloc(n, sizeof *image.files) };
    int r = image.files ? 0 : -ENOMEM;

    for (; r == 0 && image.n_files < n; image.n_files += r == 0) {
        char name[HIBERNATED_FILE_NAME];

        hibernated_file_name(name, image.n_files ? HIBERNATED_BASE : HIBERNATED_IMAGE,
            image.n_files ? (size_t)json_integer_value(json_array_get(over, image.n_files - 1))
                          : i);
        auto_close int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        r = map_file(fd, &image.files[image.n_files]);
    }
    if (r < 0)
        image_done(&image);
    else
        *ret_image = image;
    return r;
}

/* `whole` is for an image that is one file. */
static int image_view(
    const struct stored_image *image, struct delta_run *whole, struct delta_view *ret_view) {
    if (image->n_files > 1)
        return delta_view(image->files, image->n_files, ret_view) ? 0 : -EBADMSG;
    *whole = (struct delta_run){ .length = image->files[0].length };
    *ret_view = (struct delta_view){
        .files = image->files, .n_files = 1, .runs = whole, .n_runs = 1, .length = whole->length
    };
    return 0;
}

int stored_image_each(int directory, const json_t *record, size_t i,
    int (*call)(void *context, const char *data, uint64_t length), void *context) {
    struct stored_image image = { 0 };
    struct delta_view view;
    struct delta_run whole;
    int r = image_open(directory, record, i, &image);

    if (r == 0)
        r = image_view(&image, &whole, &view);
    for (size_t k = 0; r == 0 && k < view.n_runs; k++)
        r = call(
            context, view.files[view.runs[k].file].data + view.runs[k].offset, view.runs[k].length);
    image_done(&image);
    return r;
}

static int write_part(void *context, const char *data, uint64_t length) {
    const int *to = context;

    return fd_write_all(*to, data, length);
}

int stored_image_write(
    int directory, const json_t *record, size_t i, int to, struct rollbox_error *error) {
    int r = stored_image_each(directory, record, i, write_part, &to);

    if (r == -EBADMSG)
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "wake",
            "image-%zu of the hibernated sandbox is damaged: it does not fit its parent image", i);
    return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "wake",
                       "the process image cannot be put together: %s", strerror(-r))
                 : 0;
}

/* ---- existing data ---- */

/* NULL: it cannot be used, and nothing depends on it. */
static const struct kept *kept_of(struct stage *stage, const json_t *from) {
    const char *id = json_string_value(json_object_get(from, "kept"));
    char path[sizeof WOKEN_DIRECTORY + HIBERNATED_ID_LENGTH + 1];

    if (!id || !hibernated_id_ok(id))
        return NULL;
    for (size_t i = 0; i < stage->n_kept; i++)
        if (!strcmp(stage->kept[i].id, id))
            return &stage->kept[i];
    if (stage->n_kept == STAGE_MAX_KEPT)
        return NULL;
    snprintf(path, sizeof path, WOKEN_DIRECTORY "/%s", id);
    auto_close int directory =
        openat(stage->store, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    auto_close int file = directory < 0
                              ? -EBADF
                              : openat(directory, "record.json", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    json_t *record;
    if (file < 0 || hibernated_read(file, &record, NULL) < 0)
        return NULL;
    struct kept *kept = &stage->kept[stage->n_kept++];
    *kept = (struct kept){ .directory = TAKE_FD(directory), .record = record };
    snprintf(kept->id, sizeof kept->id, "%s", id);
    return kept;
}

static int index_of(const json_t *from, size_t n) {
    json_int_t i = json_integer_value(json_object_get(from, "index"));

    return json_is_integer(json_object_get(from, "index")) && i >= 0 && (size_t)i < n ? (int)i : -1;
}

/* A file of an earlier sleep becomes this one's base-N, unless it is that already. Its number, or
 * -errno. */
static int link_base(
    struct stage *stage, const struct kept *kept, enum hibernated_kind kind, size_t i) {
    const json_t *row = json_array_get(json_object_get(kept->record, hibernated_list(kind)), i);
    size_t n = json_array_size(stage->bases);
    char from[HIBERNATED_FILE_NAME], to[HIBERNATED_FILE_NAME];
    struct stat st;

    hibernated_file_name(from, kind, i);
    hibernated_file_name(to, HIBERNATED_BASE, n);
    if (fstatat(kept->directory, from, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    for (size_t k = 0; k < n; k++)
        if (stage->linked[k].inode == st.st_ino)
            return (int)k;
    struct stage_base *more = realloc(stage->linked, (n + 1) * sizeof *more);
    if (!more)
        return -ENOMEM;
    stage->linked = more;
    stage->linked[n].inode = st.st_ino;
    if (linkat(kept->directory, from, stage->fd, to, 0) < 0)
        return -errno;
    json_t *copy = json_pack("{s:O, s:O}", "bytes", json_object_get(row, "bytes"), "sha256",
        json_object_get(row, "sha256"));
    if (!copy || json_array_append_new(stage->bases, copy) < 0)
        return -ENOMEM;
    stage->bytes += (uint64_t)st.st_size;
    return (int)n;
}

/* Links an image with all of its parents, or nothing. Superfluous links are harmless. */
static int link_same(struct stage *stage, const struct kept *kept, enum hibernated_kind kind,
    const json_t *from, json_t *rows) {
    const json_t *all = json_object_get(kept->record, hibernated_list(kind)), *number;
    int i = index_of(from, json_array_size(all)), r = i < 0 ? -EINVAL : 0;
    json_t *row = r == 0 ? json_deep_copy(json_array_get(all, (size_t)i)) : NULL;
    json_t *over = json_is_array(json_object_get(row, "over")) ? json_array() : NULL;
    char there[HIBERNATED_FILE_NAME], here[HIBERNATED_FILE_NAME];
    size_t k;

    json_array_foreach(json_object_get(row, "over"), k, number) {
        int base =
            r < 0 ? r : link_base(stage, kept, HIBERNATED_BASE, (size_t)json_integer_value(number));

        r = MIN(base, 0);
        if (r == 0)
            json_array_append_new(over, json_integer(base));
    }
    if (r == 0) {
        hibernated_file_name(there, kind, (size_t)i);
        hibernated_file_name(here, kind, json_array_size(rows));
        r = linkat(kept->directory, there, stage->fd, here, 0) < 0 ? -errno : 0;
    }
    if (r == 0 &&
        ((over && json_object_set(row, "over", over) < 0) || json_array_append(rows, row) < 0))
        r = -ENOMEM;
    if (r == 0)
        stage->bytes += (uint64_t)json_integer_value(json_object_get(row, "bytes"));
    json_decref(over);
    json_decref(row);
    fault_point(FAULT_sleep_linked);
    return r;
}

/* ---- new data ---- */

static int make_file(
    struct stage *stage, enum hibernated_kind kind, size_t i, struct rollbox_error *error) {
    char name[HIBERNATED_FILE_NAME];

    hibernated_file_name(name, kind, i);
    int fd = openat(stage->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? io_error(error, errno, "a file cannot be made in the store") : fd;
}

/* Consumes `over` (NULL: none). */
static int add_row(struct stage *stage, json_t *rows, int fd, uint64_t bytes, const char *digest,
    json_t *over, struct rollbox_error *error) {
    json_t *row =
        json_pack("{s:I, s:s, s:o*}", "bytes", (json_int_t)bytes, "sha256", digest, "over", over);

    fault_point(FAULT_sleep_packed);
    stage->bytes += bytes;
    stage->written += bytes;
    /* The disk begins with it while the next is made; hibernate_publish waits for all of them
     * together. */
    (void)sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    return row && json_array_append_new(rows, row) == 0 ? 0 : no_memory(error);
}

struct hashing {
    int to;
    struct digest digest;
    uint64_t bytes;
};

/* In portions that stay in the processor's cache from the one to the other. */
static int hash_data(struct hashing *out, const void *data, size_t length) {
    int r = 0;

    for (const char *at = data; r == 0 && length;) {
        size_t n = MIN(length, (size_t)PORTION);

        digest_add(&out->digest, at, n);
        r = fd_write_all(out->to, at, n);
        out->bytes += n;
        at += n;
        length -= n;
        if (out->bytes % WRITEBACK < n)
            (void)sync_file_range(out->to, 0, 0, SYNC_FILE_RANGE_WRITE);
    }
    return r;
}

static int write_whole(
    struct stage *stage, const struct delta_file *image, struct rollbox_error *error) {
    auto_close int to = make_file(stage, HIBERNATED_IMAGE, json_array_size(stage->images), error);
    struct hashing out = { .to = to };
    char digest[DIGEST_HEX + 1];

    if (to < 0)
        return to;
    digest_init(&out.digest);
    int r = hash_data(&out, image->data, image->length);
    digest_end_hex(&out.digest, digest);
    return r < 0 ? io_error(error, -r, "the processes cannot be written to the store")
                 : add_row(stage, stage->images, to, out.bytes, digest, NULL, error);
}

static int put_difference(struct hashing *out, const struct delta_file *image,
    const struct delta_run *runs, size_t n_runs, uint64_t fresh) {
    const struct delta_end end = {
        .n_runs = n_runs, .fresh = fresh, .length = image->length, .magic = DELTA_MAGIC
    };
    const char zeros[8] = { 0 };
    uint64_t at = 0;
    int r = 0;

    for (size_t i = 0; r == 0 && i < n_runs; at += runs[i++].length)
        if (!runs[i].file)
            r = hash_data(out, image->data + at, runs[i].length);
    if (r == 0)
        r = hash_data(out, zeros, (fresh + 7) / 8 * 8 - fresh);
    if (r == 0)
        r = hash_data(out, runs, n_runs * sizeof *runs);
    return r == 0 ? hash_data(out, &end, sizeof end) : r;
}

/* Chooses the files of the base that are worth referring to. If there are too many, only the one
 * that is used most is kept. False: none. */
static bool choose_runs(const struct delta_run *runs, size_t n_runs,
    const struct stored_image *base, uint64_t length, bool *keeps) {
    auto_free uint64_t *used = calloc(base->n_files, sizeof *used);
    uint64_t kept = 0, files = 0;
    size_t n = 0, best = 0;

    if (!used)
        return false;
    for (size_t i = 0; i < n_runs; i++)
        if (runs[i].file)
            used[runs[i].file - 1] += runs[i].length;
    for (size_t i = 0; i < base->n_files; i++) {
        n += keeps[i] = used[i] > 0;
        best = used[i] > used[best] ? i : best;
    }
    for (size_t i = 0; i < base->n_files; i++) {
        keeps[i] &= n <= DELTA_MAX_FILES || i == best;
        kept += keeps[i] ? used[i] : 0;
        files += keeps[i] ? base->files[i].length : 0;
    }
    return kept >= length / 2 && kept >= LEAST_GAIN &&
           files + (length - kept) <= MAX_WASTE * length;
}

/* 1: written; 0: it is to be written whole; -errno with the error. */
static int write_difference(struct stage *stage, const struct kept *kept, size_t i,
    const struct delta_file *image, struct rollbox_error *error) {
    const json_t *before =
        json_object_get(json_array_get(json_object_get(kept->record, "images"), i), "over");
    struct stored_image base = { 0 };
    struct delta_run whole, *runs = NULL;
    struct delta_view view;
    size_t n_runs = 0;
    json_t *over = json_array();
    int r = image_open(kept->directory, kept->record, i, &base);
    auto_free bool *keeps = calloc(base.n_files + 1, sizeof *keeps);

    if (r == 0)
        r = over && keeps ? image_view(&base, &whole, &view) : -ENOMEM;
    if (r == 0)
        r = delta_find(image, &view, &runs, &n_runs);
    if (r == 0)
        r = choose_runs(runs, n_runs, &base, image->length, keeps);
    for (size_t k = 0; r == 1 && k < base.n_files; k++) {
        int number = !keeps[k]
                         ? 0
                         : link_base(stage, kept, k ? HIBERNATED_BASE : HIBERNATED_IMAGE,
                               k ? (size_t)json_integer_value(json_array_get(before, k - 1)) : i);

        r = number < 0 ? number : 1;
        if (r == 1 && keeps[k])
            json_array_append_new(over, json_integer(number));
    }
    if (r == 1) {
        auto_close int to =
            make_file(stage, HIBERNATED_IMAGE, json_array_size(stage->images), error);
        struct hashing out = { .to = to };
        char digest[DIGEST_HEX + 1];

        fault_point(FAULT_sleep_linked);
        digest_init(&out.digest);
        uint64_t fresh = delta_settle(runs, &n_runs, keeps, base.n_files);
        r = to < 0 ? to : put_difference(&out, image, runs, n_runs, fresh);
        if (to >= 0 && r < 0)
            io_error(error, -r, "the processes cannot be written to the store");
        digest_end_hex(&out.digest, digest);
        if (r == 0)
            r = add_row(stage, stage->images, to, out.bytes, digest, TAKE_PTR(over), error);
        r = r < 0 ? r : 1;
    } else {
        r = 0; /* unusable images are ignored */
    }
    json_decref(over);
    free(runs);
    image_done(&base);
    return r;
}

int stage_image(struct stage *stage, const json_t *from, struct rollbox_error *error) {
    const struct kept *kept = kept_of(stage, from);
    struct stored_image image = { .files = calloc(1, sizeof *image.files) };
    int i = kept ? index_of(from, json_array_size(json_object_get(kept->record, "images"))) : -1,
        r = 0;

    if (!image.files)
        return no_memory(error);
    if (i >= 0 && json_is_true(json_object_get(from, "same")) &&
        link_same(stage, kept, HIBERNATED_IMAGE, from, stage->images) == 0) {
        free(image.files);
        return 0;
    }
    r = map_file((int)json_integer_value(json_object_get(from, "fd")), image.files);
    if (r < 0) {
        free(image.files);
        return io_error(error, -r, "the process image cannot be read");
    }
    image.n_files = 1;
    r = i < 0 ? 0 : write_difference(stage, kept, (size_t)i, image.files, error);
    if (r == 0)
        r = write_whole(stage, image.files, error);
    image_done(&image);
    return MIN(r, 0);
}

int stage_layer(struct stage *stage, const json_t *from, struct rollbox_error *error) {
    const struct kept *kept = kept_of(stage, from);
    char digest[DIGEST_HEX + 1];
    uint64_t bytes = 0;

    if (kept && json_is_true(json_object_get(from, "same")) &&
        link_same(stage, kept, HIBERNATED_LAYER, from, stage->layers) == 0)
        return 0;
    auto_close int to = make_file(stage, HIBERNATED_LAYER, json_array_size(stage->layers), error);
    if (to < 0)
        return to;
    int r =
        pack_write((int)json_integer_value(json_object_get(from, "fd")), to, digest, &bytes, error);
    return r < 0 ? r : add_row(stage, stage->layers, to, bytes, digest, NULL, error);
}
