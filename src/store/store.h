/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store: layers of files, and the manifests that name them (docs/reference/store-format.md).
 *
 * Model. A store is one directory, private to its owner. A layer exists once its meta.json exists,
 * and an image or snapshot once its manifest exists. Both appear by rename and never change. A user
 * of a layer holds a shared flock on its meta.json, which the kernel releases when the process
 * dies. There are no counters that could be wrong. Removing a layer requires the exclusive lock and
 * a look through all manifests.
 *
 * This part only reads (and notes the time of an image's last use) and calls only jansson and the
 * kernel; the engine links it. Code that writes, walks trees or parses archives is in
 * rollbox-store. No function waits for another process.
 */
#ifndef ROLLBOX_STORE_STORE_H
#define ROLLBOX_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include <rollbox/rollbox.h>

#include "store/manifest.h"
#include "sys/id_range.h"

#define STORE_VERSION 1
#define LAYER_OWNED_NAME "many" /* a layer's file: "UID GID ID\n" of its copy with owners */
#define STORE_VERSION_TEXT "rollbox store 1\n"

/* Where the store is: $ROLLBOX_STORE; for root /var/lib/rollbox/store; else
 * $XDG_DATA_HOME/rollbox/store or ~/.local/share/rollbox/store (the home directory as in the
 * environment, or in /etc/passwd). The caller frees *ret_path. Errors: INVALID_ARGUMENT (not
 * absolute, or nothing says where), RESOURCE_EXHAUSTED. */
int store_default_path(char **ret_path, struct rollbox_error *error);

/* Opens a store's directory after checking that it is the caller's own, private (0700), no symbolic
 * link, and of this version. The caller owns *ret_fd. Errors: NOT_FOUND (there is none),
 * PATH_DENIED, IO. */
int store_open(const char *path, int *ret_fd, struct rollbox_error *error);

/* Takes a shared lock on a layer. *ret_lock, the caller's, is its meta.json: while it is open the
 * layer stays. -ENOENT: no such layer, or it is just being removed; no error is set then. */
int store_layer_lock(int store, const char *id, int *ret_lock);

/* The damage of a layer that fsck has marked, for the caller to free; NULL if it is not marked. */
char *store_layer_damage(int store, const char *id);

/* An image (or snapshot) in use. Everything belongs to the structure; free it with
 * store_image_free, which also gives the locks back. */
struct store_image {
    struct manifest
        manifest;  /* name, layers bottom first, env, cwd, user, entrypoint, cmd, places */
    int *fs_fds;   /* one a layer, in the same order: O_PATH descriptors of layers/ID/fs */
    int *lock_fds; /* one a layer: the shared locks */
    char *text;    /* the manifest as the store has it: with the layers that copies are of */
};

/* Looks an image up and locks its layers. `store_path` NULL: store_default_path. The caller owns
 * *ret_image. Errors: NOT_FOUND (no such store, image or layer), DAMAGED (the manifest is not
 * valid, or fsck has marked a layer; both are named), PATH_DENIED, RESOURCE_EXHAUSTED, IO. */
int store_image(const char *store_path, const char *name, struct store_image **ret_image,
    struct rollbox_error *error);

/* In a policy's `image`, before the name of a snapshot. */
#define STORE_SNAPSHOT "snapshot:"

/* The same of an image, or "snapshot:NAME", for a sandbox of many users of an ordinary user: the
 * layers are the copies in which files have owners of the user's range. Error: NOT_FOUND with
 * ESTALE: not all have been made yet (owned_layers.h). */
int store_image_owned(const char *store_path, const char *name, const struct id_range *range,
    struct store_image **ret_image, struct rollbox_error *error);

/* The id of a layer's copy for that range, if it was made. */
bool store_layer_owned(
    int store, const char *id, const struct id_range *range, char ret_id[LAYER_ID_LENGTH + 1]);

/* The same for a snapshot that was imported. */
int store_snapshot(const char *store_path, const char *name, struct store_image **ret_snapshot,
    struct rollbox_error *error);

/* Takes and returns NULL. */
struct store_image *store_image_free(struct store_image *image);

/* The file of an image's manifest. It is another file when the name means another image. */
struct store_identity {
    uint64_t device, inode;
    int64_t born_ns; /* inode numbers are used again */
};

/* The file of `name`, or of STORE_SNAPSHOT and a snapshot's name, in the store at `store_path`. All
 * zeros: there is none. */
struct store_identity store_identity_of(const char *store_path, const char *name);

/* Reads a manifest without touching its layers. *ret_manifest: manifest_done. */
int store_manifest(int store, enum manifest_kind kind, const char *name,
    struct manifest *ret_manifest, struct rollbox_error *error);

/* Locks all layers of a manifest, so that gc leaves them. *ret_locks, for store_layers_unlock.
 * Errors: DAMAGED (a layer is missing, or fsck has marked it), RESOURCE_EXHAUSTED. */
int store_layers_lock(
    int store, const struct manifest *manifest, int **ret_locks, struct rollbox_error *error);
/* Takes the locks, which may be NULL. */
void store_layers_unlock(const struct manifest *manifest, int *take_locks);

/* "images" or "snapshots". */
const char *store_manifest_directory(enum manifest_kind kind);

#endif
