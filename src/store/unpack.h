/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unpacks a layer's tar into a directory in the format of an overlay's upper directory.
 *
 * Nothing in the tar is trusted. Names are split here, and every directory is opened from the
 * layer's descriptor without following links (openat2). So neither "..", nor absolute names, nor
 * links from earlier entries lead out. Devices are skipped, setuid bits are recorded but not set,
 * and hard links may only refer to files of the same layer.
 *
 * Deletions (.wh.NAME, .wh..wh..opq) are applied after all other entries, because they concern the
 * layers below, wherever they are in the tar. A deletion of a name that no layer below has is
 * dropped; the sandbox would otherwise see a name that it cannot look up.
 */
#ifndef ROLLBOX_STORE_UNPACK_H
#define ROLLBOX_STORE_UNPACK_H

#include <stdbool.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "store/digest.h"
#include "store/job.h"
#include "store/image_source.h"

struct unpack_limits {
    uint64_t max_entries; /* of all layers together, as the next */
    uint64_t max_bytes;   /* unpacked */
    unsigned max_depth;
    unsigned max_ratio; /* unpacked to packed; past the first 256 MiB of a layer */
};

#define UNPACK_DEFAULTS                                                                            \
    ((struct unpack_limits){                                                                       \
        .max_entries = 2000000, .max_bytes = 64ull << 30, .max_depth = 1000, .max_ratio = 500 })

/* Counted over all layers of an image. */
struct unpack_totals {
    uint64_t entries, bytes;
    uint64_t devices;    /* left out */
    uint64_t setid;      /* files whose setuid or setgid bit is only noted */
    uint64_t attributes; /* extended attributes that were left out */
    uint64_t dropped;    /* deletions of missing entries */
};

struct unpacked {
    char packed[DIGEST_HEX + 1];  /* SHA-256 of the member as it is */
    char diff_id[DIGEST_HEX + 1]; /* of the tar in it */
    uint64_t entries;             /* that are in the layer */
    bool depends; /* the layer depends on the layers below it: deletions, directories without an
                     entry of their own */
};

/* Unpacks the member `name` into the empty directory `root`. `below`: the layers below, the topmost
 * first. */
int unpack_layer(struct image_source *source, const char *name, int root, const struct stack *below,
    const struct unpack_limits *limits, struct unpack_totals *totals, struct unpacked *ret_unpacked,
    struct rollbox_error *error);

/* Of the manifest of a snapshot file: are the owners those of a sandbox of many users? */
bool snapshot_has_many_users(const json_t *manifest);

/* Unpacks a snapshot file (snapshot.c) into WORK/L0/fs, WORK/L1/fs, ..., exactly as it is.
 * *ret_manifest is its manifest.json, with its format checked; the caller checks the digests.
 * `is_image`: programs keep their set-id bits and capabilities, as in an image's layer; those of a
 * snapshot of many users do, too. */
int unpack_snapshot(int archive, int work, const struct unpack_limits *limits,
    struct unpack_totals *totals, bool is_image, json_t **ret_manifest,
    struct rollbox_error *error);

/* The parts of a tar entry's name without "." and empty ones, for free(); NULL with EINVAL for one
 * that has "..", ENOMEM. "" is the root. */
char *unpack_name(const char *name);

#endif
