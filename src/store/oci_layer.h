/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a layer of the store as a layer of an OCI image: a tar with .wh.NAME for deletions and
 * .wh..wh..opq for opaque directories, compressed.
 *
 * The same layer always becomes the same bytes, so that a registry that has it need not get it
 * again. Owners, modes, times of change, hard links, attributes user.* and capabilities of programs
 * are kept; holes become zeros, and sockets and devices are left out, as in an import.
 */
#ifndef ROLLBOX_STORE_OCI_LAYER_H
#define ROLLBOX_STORE_OCI_LAYER_H

#include <stdbool.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "store/digest.h"

enum oci_compression {
    OCI_GZIP,
    OCI_ZSTD,
    OCI_UNCOMPRESSED,
};

/* A tree that the layer has at a path: "" is the root, and "repo/data" is below it. */
struct oci_tree {
    int root;
    const char *path;
};

struct oci_layer {
    char diff_id[DIGEST_HEX + 1]; /* of the tar */
    char digest[DIGEST_HEX + 1];  /* as it is compressed */
    uint64_t bytes;
};

/* Writes the trees to the file `to`. Errors: INVALID_ARGUMENT (a file that is almost all holes),
 * RESOURCE_EXHAUSTED, IO. */
int oci_layer_write(const struct oci_tree *trees, size_t n, enum oci_compression compression,
    int to, struct oci_layer *ret_layer, struct rollbox_error *error);

/* "application/vnd.oci.image.layer.v1.tar+gzip" */
const char *oci_layer_media_type(enum oci_compression compression);

/* Reads gzip, zstd or none; NULL is gzip. Errors: INVALID_ARGUMENT. */
int oci_compression_parse(
    const char *text, enum oci_compression *ret_compression, struct rollbox_error *error);

#endif
