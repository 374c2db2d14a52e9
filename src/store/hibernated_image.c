/* SPDX-License-Identifier: Apache-2.0 */
#include "store/hibernated_image.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "store/hibernated_check.h"

_Static_assert(HIBERNATED_MAX_PROCESSES == IMAGE_MAX_PROCESSES, "an image has no more");
_Static_assert(HIBERNATED_MAX_TERMINALS == IMAGE_MAX_TERMINALS, "an image has no more");
_Static_assert(HIBERNATED_MAX_PIPES == FD_MESSAGE_MAX_FDS - 1, "one message brings them all");

struct comparison {
    const char *stage;
    size_t i; /* number of the image and of its row in `lives` */
    struct rollbox_error *error;
};

static int fail_comparison(const struct comparison *comparison, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int fail_comparison(const struct comparison *comparison, const char *format, ...) {
    char what[200];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return error_set(comparison->error, ROLLBOX_ERR_DAMAGED, EBADMSG, comparison->stage,
        "image-%zu of the hibernated sandbox and lives[%zu] of its record do not agree: %s",
        comparison->i, comparison->i, what);
}

static uint64_t get_number(const json_t *row, const char *key) {
    return (uint64_t)json_integer_value(json_object_get(row, key));
}

static uint64_t get_size(const json_t *row, const char *key) {
    return json_array_size(json_object_get(row, key));
}

/* Of a command the main process, which is init's own child. */
static bool has_command(const struct hibernated_image *image, uint64_t pid) {
    const struct image *header = image->header;
    const struct image_process *processes =
        image_table(header, image->data, processes, struct image_process);

    for (uint64_t i = 0; i < header->processes.n; i++)
        if (processes[i].pid == pid)
            return processes[i].kind == IMAGE_LIVING && !processes[i].parent;
    return false;
}

static uint64_t n_living(const struct hibernated_image *image) {
    const struct image *header = image->header;
    const struct image_process *processes =
        image_table(header, image->data, processes, struct image_process);
    uint64_t n = 0;

    for (uint64_t i = 0; i < header->processes.n; i++)
        n += processes[i].kind == IMAGE_LIVING;
    return n;
}

static int compare_row(
    const struct comparison *c, const json_t *row, const struct hibernated_image *image) {
    const json_t *command;
    size_t i;
    const struct {
        const char *field;
        uint64_t of_record, of_image;
    } counts[] = {
        { "bytes", get_number(row, "bytes"), image->length },
        { "processes", get_number(row, "processes"), n_living(image) },
        { "pipes (their number)", get_size(row, "pipes"), image->header->n_externals },
        { "terminals (their number)", get_size(row, "terminals"), image->header->n_lent },
    };

    if (image->header->is_command)
        return fail_comparison(c, "the image is of a command that has not begun");
    for (i = 0; i < ARRAY_SIZE(counts); i++)
        if (counts[i].of_record != counts[i].of_image)
            return fail_comparison(c, "%s: %llu in the record, %llu in the image", counts[i].field,
                (unsigned long long)counts[i].of_record, (unsigned long long)counts[i].of_image);
    json_array_foreach(json_object_get(row, "commands"), i,
        command) if (!has_command(image, get_number(command, "pid"))) return fail_comparison(c,
        "commands[%zu].pid is %llu, which is not a command's process in the image", i,
        (unsigned long long)get_number(command, "pid"));
    return 0;
}

int hibernated_image_open(const json_t *record, size_t i, int fd, const char *stage,
    struct hibernated_image *ret_image, struct rollbox_error *error) {
    const struct comparison comparison = { stage, i, error };
    struct hibernated_image image;
    struct stat st;

    void *data = fstat(fd, &st) == 0 && st.st_size > 0
                     ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0)
                     : MAP_FAILED;
    if (data == MAP_FAILED || !image_is_sound(data, (uint64_t)st.st_size)) {
        if (data != MAP_FAILED)
            (void)munmap(data, (size_t)st.st_size);
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, stage,
            "image-%zu is not a process image, or one of another version of rollbox; "
            "--drop-processes keeps only the files",
            i);
    }
    image = (struct hibernated_image){ data, (size_t)st.st_size,
        image_header(data, (size_t)st.st_size) };
    int r = compare_row(&comparison, json_array_get(json_object_get(record, "lives"), i), &image);
    if (r < 0)
        hibernated_image_done(&image);
    else
        *ret_image = image;
    return r;
}

void hibernated_image_done(struct hibernated_image *image) {
    (void)munmap((void *)(uintptr_t)image->data, image->length);
    *image = (struct hibernated_image){ 0 };
}

int hibernated_image_check(
    const json_t *record, size_t i, int fd, const char *stage, struct rollbox_error *error) {
    struct hibernated_image image;
    int r = hibernated_image_open(record, i, fd, stage, &image, error);

    if (r == 0)
        hibernated_image_done(&image);
    return r;
}
