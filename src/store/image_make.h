/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes an image of layers of the store, new layers in tar files, and a configuration. It is what a
 * builder of images calls for each of its steps: rollbox-store make-image.
 *
 * The job is `rollbox-store make-image --name NAME DIRECTORY`, with a JSON object on standard
 * input:
 *
 *     {"layers": [{"id": "HEX"} or {"tar": "FILE"}, ...],
 *      "config": {"architecture": "amd64", "os": "linux", "config": {"Env": [...], ...}, ...}}
 *
 * "layers" are in order, the bottom first. "id" is a layer of the store, as `image show --json`
 * lists them. "tar" is a file in DIRECTORY, a layer as the OCI image specification describes it:
 * with .wh.NAME and .wh..wh..opq for deletions, compressed or not. It is unpacked over the layers
 * below it, in the same confinement as the layers of an archive. "config" is an OCI image
 * configuration without "rootfs"; image_config.h has the keys that the store uses, and all others
 * are kept.
 *
 * The answer is that of `import`, and "ids", the image's layers, bottom first. A layer without
 * changes is left out; a layer that the store has already is not stored again. The image appears
 * whole, in place of one of the same name, and its layers stay as long as it does: a builder's
 * cache is a set of images with names of its own.
 */
#ifndef ROLLBOX_STORE_IMAGE_MAKE_H
#define ROLLBOX_STORE_IMAGE_MAKE_H

#include <jansson.h>

#include <rollbox/rollbox.h>

#include "store/unpack.h"

/* Reads the job from `fd`. Errors: INVALID_ARGUMENT, NOT_FOUND (a layer), RESOURCE_EXHAUSTED, IO.
 */
int image_make(int store, int fd, const char *name, const char *directory,
    const struct unpack_limits *limits, json_t **ret_json, struct rollbox_error *error);

#endif
