/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Brings an image from where it is into the store.
 *
 * Model. The manifest and the configuration are small and come first. The digest of the manifest is
 * compared with the reference's, and the configuration's with the manifest's. They say which layers
 * the image has, and the store says which of them it has. skopeo fetches the others, and the import
 * (image.h) unpacks them, after comparing the digests of each layer, packed and unpacked. skopeo is
 * never asked for a layer that the store has: an empty file of the layer's size stands where skopeo
 * would put it.
 *
 * Nothing appears in the store before the import has ended. Fetched layers stay in downloads/ until
 * then, so that the next pull can use them; gc removes them after a day.
 */
#ifndef ROLLBOX_STORE_IMAGE_PULL_H
#define ROLLBOX_STORE_IMAGE_PULL_H

#include <jansson.h>
#include <stdbool.h>

#include <rollbox/rollbox.h>

#include "store/unpack.h"

#define PULL_STALL_S 60 /* without progress, by default */

struct pull_options {
    const char *reference;        /* registry_reference.h */
    const char *name;             /* in the store; NULL: the reference's own */
    const char *platform;         /* "linux/arm64"; NULL: this machine's */
    const char *authfile, *creds; /* skopeo.h; NULL: none */
    bool insecure;
    bool missing; /* only if the store has no image of this name */
    unsigned stall_s;
    struct unpack_limits limits;
    bool progress; /* on standard error, which is a terminal */
    bool events;   /* JSON lines on standard output */
};

/* *ret_json is that of image_import, and "pulled" (false: the store had it), "reference", "digest",
 * "fetched_layers", "fetched_bytes". Errors, besides those of image_import and skopeo_run:
 * NOT_FOUND (no image for the platform), DAMAGED (a wrong digest). */
int image_pull(
    int store, const struct pull_options *options, json_t **ret_json, struct rollbox_error *error);

#endif
