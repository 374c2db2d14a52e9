/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Differences: a process image stored as one file with the new blocks, plus earlier files with the
 * rest (docs/reference/hibernation-format.md).
 *
 * Blocks of one page are compared byte for byte with blocks of the image that the processes came
 * from: first with the block after the last match, then with a few similar blocks. So moved pages
 * are found, too, and no digest decides whether blocks are equal. A guest that makes pages look
 * alike only causes more blocks to be written.
 *
 * A file consists of the new blocks, the runs in the image's order, and a final struct delta_end.
 */
#ifndef ROLLBOX_STORE_DELTA_H
#define ROLLBOX_STORE_DELTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DELTA_BLOCK 4096u
#define DELTA_MAX_FILES 8u /* parents of a difference, as in hibernated_read.h */
#define DELTA_MAGIC 0x316574656c646252ull

/* Bytes that follow each other in the image and in a file. */
struct delta_run {
    uint64_t length, offset; /* multiples of DELTA_BLOCK, but for the last run's length */
    uint32_t file;           /* 0: the difference itself, else 1 + the index of a parent */
    uint32_t unused;
};

struct delta_end {
    uint64_t n_runs;
    uint64_t fresh;  /* bytes of new blocks, at the beginning */
    uint64_t length; /* of the image */
    uint64_t magic;  /* the last thing */
};

/* A file that is mapped. */
struct delta_file {
    const char *data;
    uint64_t length;
};

/* An image in parts: `runs` are in its order, and name `files`, from 0 on. */
struct delta_view {
    const struct delta_file *files;
    size_t n_files;
    const struct delta_run *runs;
    size_t n_runs;
    uint64_t length;
};

/* The runs of a difference, where file 0 is the difference itself, if each lies within its file.
 * files[0] is the difference; the view borrows all. */
bool delta_view(const struct delta_file *files, size_t n_files, struct delta_view *ret_view);

/* The runs of `image`: in file 0 the new data, in its order, and in 1 + n the data of file n of
 * `base`. *ret_runs: for free(). -ENOMEM. */
int delta_find(const struct delta_file *image, const struct delta_view *base,
    struct delta_run **ret_runs, size_t *ret_n);

/* New data, and data of files that `keeps` (of base->n_files) does not have, go to file 0; the
 * other files get the numbers 1, 2, ... in order. In place; returns the bytes of file 0. */
uint64_t delta_settle(struct delta_run *runs, size_t *n_runs, const bool *keeps, size_t n_files);

#endif
