/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes to the store: directories of work in progress, publishing of layers and manifests,
 * cleaning up.
 *
 * Work in progress lies in tmp/NAME, which its process holds with flock. It becomes part of the
 * store by rename, after all of it has reached the disk. The file `lock` orders readers of the
 * whole store (gc: exclusive) and writers (shared). Publishing a manifest and creating a
 * directory in tmp/ take the shared lock for a short time. Layers that no manifest names yet are
 * protected by their own locks, which gc respects.
 */
#ifndef ROLLBOX_STORE_LAYER_H
#define ROLLBOX_STORE_LAYER_H

#include "store/files.h"
#include "store/store.h"

/* Opens the store at `path` (NULL: the default), made if it is not there. Raises no limits. The
 * caller owns *ret_fd. */
int layer_store_open(const char *path, bool create, int *ret_fd, struct rollbox_error *error);

struct work {
    int store; /* borrowed */
    int fd;    /* tmp/NAME, which its lock hangs on */
    char name[48];
};

#define WORK_NONE ((struct work){ .store = -EBADF, .fd = -EBADF })

/* Makes one, and sweeps those whose process is gone. work_done empties and removes it. */
int work_begin(int store, struct work *ret_work, struct rollbox_error *error);
void work_done(struct work *work);

struct layer_meta {
    char id[LAYER_ID_LENGTH + 1];
    char kind[16];                     /* "image", "snapshot" */
    char diff_id[LAYER_ID_LENGTH + 1]; /* images: of the uncompressed tar; else "" */
    int64_t created_s;
    struct tree_digest tree;
};

/* Reads a layer's meta.json. -EBADMSG if it is not valid, -ENOENT, other -errno; sets no error. */
int layer_meta_read(int store, const char *id, struct layer_meta *ret_meta);

/* Publishes tmp/WORK/DIRECTORY, which has the files in fs/, as the layer meta->id, whose tree
 * digest has been filled in. If the layer exists already, uses it. *ret_lock is a shared lock on
 * it. */
int layer_publish(const struct work *work, const char *directory, const struct layer_meta *meta,
    int *ret_lock, struct rollbox_error *error);

/* Publishes a manifest in place of one of the same name. Its layers are locked by the caller. */
int layer_publish_manifest(
    const struct work *work, const struct manifest *manifest, struct rollbox_error *error);

/* Writes a file below a directory and waits for the disk. */
int layer_write_file(
    int directory, const char *name, const char *text, struct rollbox_error *error);

/* Takes the store's lock: LOCK_SH or LOCK_EX, perhaps with LOCK_NB. Returns a descriptor or -errno.
 */
int layer_store_lock(int store, int operation);

/* Removes unlocked entries of tmp/, and all of trash/. Under the exclusive lock; *ret_removed is
 * the number of entries. */
int layer_sweep_work(int store, unsigned *ret_removed);
int layer_sweep_leftovers(
    int store); /* the same, if no other process is working; else a later one does it: -errno */
/* Moves an entry to trash/. */
int layer_to_trash(int store, const char *directory, const char *name);
/* Empties trash/; others may do the same. */
int layer_empty_trash(int store);

/* A random word of lower-case hex digits. */
void layer_random(char *ret_text, size_t digits);

#endif
