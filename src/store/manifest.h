/* SPDX-License-Identifier: Apache-2.0 */
/* A manifest: the JSON text that makes an image or a snapshot out of layers. Pure: text in, text
 * out. */
#ifndef ROLLBOX_STORE_MANIFEST_H
#define ROLLBOX_STORE_MANIFEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#define MANIFEST_MAX_BYTES (4u << 20)
#define MANIFEST_MAX_LAYERS 500 /* as many as an overlay mount takes */
#define MANIFEST_MAX_STRINGS 4096
#define MANIFEST_MAX_NAME 200
#define LAYER_ID_LENGTH 64 /* hex digits */

enum manifest_kind {
    MANIFEST_IMAGE,
    MANIFEST_SNAPSHOT,
};

struct manifest {
    enum manifest_kind kind;
    char *name;
    int64_t created_s; /* seconds since 1970 */
    size_t n_layers;
    char **layers; /* ids, bottom first */
    /* Images; lists are NULL-terminated and never NULL, texts may be empty. */
    char **env; /* K=V */
    char *cwd, *user, *architecture;
    char **entrypoint, **cmd;
    json_t
        *oci; /* images: the OCI configuration that these are of, without rootfs; NULL: unknown */
    char *reference, *digest; /* of an image from a registry: its name there, and the digest of its
                                 manifest (64 hex digits); else empty */
    /* Snapshots: the array of {"part", "path", "kind"}; NULL for images. */
    json_t *places;
};

/* True for a valid name of an image or snapshot: 1 to MANIFEST_MAX_NAME of A-Z a-z 0-9 . _ : @ / +
 * -, beginning with a letter or digit, with no empty or dotted part between slashes. */
bool manifest_name_ok(const char *name);

/* The manifest's file, "python%3.12.json" (a slash is a percent sign there), for the caller to
 * free; NULL when out of memory. */
char *manifest_file_name(const char *name);

/* The name that a file is of, for the caller to free; NULL if it is no manifest's file. */
char *manifest_name_of_file(const char *file);

/* True for 64 lower-case hex digits. */
bool layer_id_ok(const char *id);

/* Reads the text. Errors: DAMAGED with the problem, RESOURCE_EXHAUSTED. */
int manifest_parse(const char *text, size_t length, enum manifest_kind kind,
    struct manifest *ret_manifest, struct rollbox_error *error);

/* The text, for the caller to free; NULL when out of memory. */
char *manifest_text(const struct manifest *manifest);

void manifest_done(struct manifest *manifest);

/* NULL-terminated copies of a JSON array of strings; NULL or json null gives an empty list. -EINVAL
 * if it is something else or too long, -ENOMEM. */
int manifest_strings(const json_t *array, char ***ret_list);
void manifest_strings_free(char **list);

#endif
