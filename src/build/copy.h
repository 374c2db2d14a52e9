/* SPDX-License-Identifier: Apache-2.0 */
/*
 * COPY, ADD and WORKDIR: the files of one step, first as a digest, then as a tar.
 *
 * The digest covers what the step puts into the image, but no times, so that a fresh checkout of
 * the same files is the same step.
 */
#ifndef ROLLBOX_BUILD_COPY_H
#define ROLLBOX_BUILD_COPY_H

#include <archive.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "build/source.h"
#include "store/digest.h"
#include "store/unpack.h"

struct copy_input {
    const struct source *source; /* with `path` in it, without links; NULL: the data below */
    char *path;
    bool is_directory;
    char *name;       /* the file's name if the destination is a directory */
    const char *data; /* of a heredoc; borrowed */
    size_t length;
    int fd; /* of a downloaded file, borrowed; -EBADF: none */
};

struct copy_step {
    struct copy_input *inputs;
    size_t n_inputs;
    char *destination;        /* absolute */
    bool into_directory;      /* it is a directory, whether it is there or not */
    bool unpacks;             /* archives of files are unpacked */
    bool has_owner, has_mode; /* for all files; otherwise 0:0, and each one's own */
    uint32_t uid, gid, mode;
    struct ignore excluded;
    const char *from_key; /* of the files that the inputs are of, instead of their digest; NULL */
    const struct source *base; /* the image so far */
    struct unpack_limits limits;
};

void copy_done(struct copy_step *step);

/* Adds all that the layer depends on but the image below it. */
int copy_digest(const struct copy_step *step, struct digest *digest, struct rollbox_error *error);

/* Writes the entries of the layer. Runs in a confined process. *ret_report: {"digest": hex}, as of
 * copy_digest for what was read. */
int copy_write(const struct copy_step *step, struct archive *tar, json_t **ret_report,
    struct rollbox_error *error);

#endif
