/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes an image or a snapshot of the store as an OCI image: a layout in a directory, an archive
 * of one, or, through skopeo, an image of a registry.
 */
#ifndef ROLLBOX_STORE_IMAGE_EXPORT_H
#define ROLLBOX_STORE_IMAGE_EXPORT_H

#include <jansson.h>
#include <stdbool.h>

#include <rollbox/rollbox.h>

#include "store/oci_layer.h"

struct export_options {
    const char *name; /* of the image, or "snapshot:" and a snapshot's */
    const char *to;   /* export: oci:DIRECTORY[:TAG], oci-archive:FILE[:TAG], or a path, which is an
                         archive unless it ends in a slash or is a directory. push: a reference of a
                         registry; NULL: the name itself */
    const char *config_of; /* an image whose configuration is used; NULL: the image's own */
    enum oci_compression compression;
    /* push */
    const char *authfile, *creds;
    bool insecure;
    unsigned stall_s;
};

/* *ret_json: {"name", "to", "digest" (of the manifest), "layers", "bytes"}. The file or directory
 * appears when it is complete; a file of the same name is replaced, and a directory must be empty
 * or not exist. */
int image_export(int store, const struct export_options *options, json_t **ret_json,
    struct rollbox_error *error);

/* The same, to a registry. The digest is that of the registry's manifest. */
int image_push(int store, const struct export_options *options, json_t **ret_json,
    struct rollbox_error *error);

#endif
