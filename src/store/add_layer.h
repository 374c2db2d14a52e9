/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adds layers to images of the store, as a build does, and publishes the images.
 *
 * The new layer's files come from a callback that writes a tar, or from an export of a sandbox.
 * Both are read in a confined child process (confine.h), which is trusted no more than their
 * authors: the parent computes the digests and publishes the layer.
 */
#ifndef ROLLBOX_STORE_ADD_LAYER_H
#define ROLLBOX_STORE_ADD_LAYER_H

#include <archive.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include <rollbox/rollbox.h>

#include "store/job.h"
#include "store/layer.h"
#include "store/manifest.h"
#include "store/store.h"
#include "store/unpack.h"

/* Layers of the store, bottom first, each locked. */
struct layer_list {
    size_t n;
    char **ids;
    int *fs_fds; /* O_PATH descriptors of layers/ID/fs */
    int *locks;
};

/* Lists the layers of an image. -ENOMEM or another -errno. */
int layer_list_of(const struct store_image *image, struct layer_list *ret_list);
int layer_list_copy(const struct layer_list *list, struct layer_list *ret_list);
void layer_list_done(struct layer_list *list);

/* The merged view of the layers: the top directory. stack_done frees it. -ENOMEM or -errno. */
int layer_list_stack(const struct layer_list *list, struct stack *ret_stack);

/* Writes the entries of a layer, in the child. *ret_report may be a JSON object for the caller. */
struct layer_writer {
    int (*write)(
        void *context, struct archive *tar, json_t **ret_report, struct rollbox_error *error);
    void *context;
    const int *readable; /* descriptors of the layers that it reads */
    size_t n_readable;
    struct unpack_limits limits;
};

/* Adds the layer to the list, unless it has no entries. *ret_report (may be NULL): the writer's. */
int add_written_layer(int store, struct layer_list *list, const struct layer_writer *writer,
    json_t **ret_report, struct rollbox_error *error);

/* Paths of an export that the layer does not have. */
struct layer_exclusions {
    const char *const *if_empty; /* empty files or directories, as places to mount something */
    size_t n_if_empty;
    const char *const *dropped; /* with all that is in them, and their deletions */
    size_t n_dropped;
};

/* The same for an export of a sandbox whose root is made of these layers (VERB_EXPORT), read from
 * `archive`. */
int add_exported_layers(int store, struct layer_list *list, int archive,
    const struct layer_exclusions *exclusions, struct rollbox_error *error);

/* Places at which the engine mounts something. It makes those that an image lacks, and the layers
 * of a sandbox must not have them. Relative to the root; NULL at the end. */
extern const char *const layer_mount_points[];

/* Publishes the image that an unpacked export of a sandbox with an image is: `work` has its layers
 * as L0/fs, L1/fs and so on, and `manifest` says which image the sandbox has. The configuration is
 * that of the image. Layers of the image that the export does not have are those of the store.
 * *ret_json: {"name", "kind", "layers", "new_layers", "bytes", "files"}. Errors: NOT_FOUND (the
 * store does not have the image's layers), DAMAGED. */
int add_exported_image(const struct work *work, const json_t *manifest, const char *name,
    json_t **ret_json, struct rollbox_error *error);

/* The same, read from `archive`, a pipe to which the sandbox is exported (VERB_EXPORT). */
int add_committed_image(
    int store, int archive, const char *name, json_t **ret_json, struct rollbox_error *error);

/* Publishes an image of these layers in place of one of the same name. Borrows the manifest, whose
 * name and layers are filled in. */
int add_image(int store, const char *name, const struct layer_list *list, struct manifest *manifest,
    struct rollbox_error *error);

#endif
