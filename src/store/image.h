/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Imports an image: selects the image in an archive, reads its configuration, and writes its layers
 * to the store.
 *
 * A confined child process (confine.h) reads the archive and writes the unpacked files below tmp/.
 * The parent does not trust the child: it computes the trees' digests, publishes the layers and
 * writes the manifest. A child that an archive has taken over can misrepresent only that archive.
 */
#ifndef ROLLBOX_STORE_IMAGE_H
#define ROLLBOX_STORE_IMAGE_H

#include <jansson.h>
#include <stdbool.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "store/image_platform.h"
#include "store/image_source.h"
#include "store/manifest.h"
#include "store/unpack.h"

/* The description of an image in an archive. */
struct image_plan {
    size_t n_layers;
    char **members;  /* bottom first */
    char **packed;   /* the required digest of the member; "": unknown */
    char **diff_ids; /* "": unknown until it is unpacked */
    json_t *config;  /* the image's configuration */
};

/* The choice of an image in an archive. */
struct image_choice {
    const char *tag;      /* NULL: the only one, or the only one for the platform */
    const char *manifest; /* the digest of its manifest, a blob of an OCI layout; NULL: the index
                             names it */
    struct image_platform platform;
};

int oci_manifest_choose(struct image_source *source, const struct image_choice *choice,
    struct image_plan *ret_plan, struct rollbox_error *error);
void image_plan_done(struct image_plan *plan);

struct import_options {
    const char *name, *path;
    struct image_choice choice;
    struct unpack_limits limits;
    bool progress; /* a bar on standard error */
    /* Of an image from a registry, for its manifest; else NULL. */
    const char *reference, *digest;
    int archive; /* -EBADF: `path` is opened; else it only names the archive. Borrowed */
    int turns;   /* -EBADF: opened here; else the caller has turns already. Borrowed */
};

/* A layer whose tar has no entry. */
bool image_layer_is_empty(const char *diff_id);

/* Finds the undamaged layers of an image in the store: ret_ids[i] is layer i's id there, or "".
 * Returns true if all are there. */
bool image_layers_known(
    int store, char *const *diff_ids, size_t n, char (*ret_ids)[LAYER_ID_LENGTH + 1]);

/* *ret_json: {"name", "layers", "new_layers", "bytes", "files", "architecture", "notes",
 * "isolation"}. */
int image_import(int store, const struct import_options *options, json_t **ret_json,
    struct rollbox_error *error);

#endif
