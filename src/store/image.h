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
#include "store/image_source.h"
#include "store/unpack.h"

/* The description of an image in an archive. */
struct image_plan {
    size_t n_layers;
    char **members; /* bottom first */
    char **packed;  /* the required digest of the member; "": unknown */
    char **diff_ids;
    json_t *config; /* the image's configuration */
};

/* `tag` NULL: the only one, or the only one for this machine. */
int oci_manifest_choose(struct image_source *source, const char *tag, struct image_plan *ret_plan,
    struct rollbox_error *error);
void image_plan_done(struct image_plan *plan);

/* "amd64", "arm64": this machine in the words of images. */
const char *image_architecture(void);

struct import_options {
    const char *name, *path, *tag;
    struct unpack_limits limits;
    bool progress; /* a bar on standard error */
};

/* *ret_json: {"name", "layers", "new_layers", "bytes", "files", "architecture", "notes",
 * "isolation"}. */
int image_import(int store, const struct import_options *options, json_t **ret_json,
    struct rollbox_error *error);

#endif
