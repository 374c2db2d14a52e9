/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a hibernated sandbox without writing data again that the store already has.
 *
 * If the sandbox was hibernated before, woken/ID still has its files (hibernated_read.h). An
 * unchanged layer or image is hard-linked. A changed image is written as a difference against the
 * earlier image's files (delta.h), which are linked as well. So each directory is complete, the
 * link counts record shared files, and either directory can be removed without affecting the other.
 *
 * A difference refers to at most DELTA_MAX_FILES files. Above that, files with little needed data
 * are merged into the new file. If most data is new, or the old files hold more unneeded than
 * needed data, the image is written in full.
 */
#ifndef ROLLBOX_STORE_KEPT_H
#define ROLLBOX_STORE_KEPT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "store/hibernated_read.h"
#include "store/delta.h"

#define STAGE_MAX_KEPT 16 /* directories that are searched; data of others is written again */

/* The directory of a sandbox that is being hibernated. */
struct stage {
    int store, fd;                   /* both borrowed */
    json_t *layers, *images, *bases; /* of its record */
    uint64_t bytes, written;         /* of all files; of those that were not linked */
    struct kept {
        char id[HIBERNATED_ID_LENGTH + 1];
        int directory;
        json_t *record;
    } kept[STAGE_MAX_KEPT];
    size_t n_kept;
    struct stage_base {
        uint64_t inode;
    } * linked; /* bases, in order */
};

int stage_init(struct stage *stage, int store, int fd, struct rollbox_error *error);
void stage_done(struct stage *stage);

/* `from`: {"fd"}, or {"fd", "kept": ID, "index": N, "same": bool}: the next layer or image; if
 * `same`, it is layer-N or image-N of woken/ID, else an image that has come of that. */
int stage_layer(struct stage *stage, const json_t *from, struct rollbox_error *error);
int stage_image(struct stage *stage, const json_t *from, struct rollbox_error *error);

/* Calls for each part of image `i` of a directory and its record, parents included, as long as the
 * call returns 0. Returns the value of the last call, or -errno; -EBADMSG: it is damaged. Sets no
 * error. */
int stored_image_each(int directory, const json_t *record, size_t i,
    int (*call)(void *context, const char *data, uint64_t length), void *context);

/* Writes such an image, whole, to an empty file. DAMAGED, IO. */
int stored_image_write(
    int directory, const json_t *record, size_t i, int to, struct rollbox_error *error);

#endif
