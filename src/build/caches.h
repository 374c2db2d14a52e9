/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RUN --mount=type=cache: directories that outlive steps and builds, as volumes of the store.
 *
 * A build that runs a command holds a lock for each of its caches: a shared one, or with "locked"
 * an exclusive one, for which it waits. With "private" it takes the first of several caches that
 * nobody has. Locks are taken in the order of their names, so that two builds never wait for each
 * other, and end with the process.
 */
#ifndef ROLLBOX_BUILD_CACHES_H
#define ROLLBOX_BUILD_CACHES_H

#include <jansson.h>
#include <stddef.h>

#include <rollbox/rollbox.h>

#include "build/progress.h"

enum cache_sharing { CACHE_SHARED, CACHE_LOCKED, CACHE_PRIVATE };

struct cache_mount {
    char *name; /* of the volume */
    char *path; /* in the sandbox */
    enum cache_sharing sharing;
    int lock; /* -EBADF: not held */
};

struct caches {
    struct cache_mount *items;
    size_t n;
};

/* `id`: what names the cache, any text. 0 or -ENOMEM. */
int caches_add(struct caches *caches, const char *id, const char *path, enum cache_sharing sharing);
void caches_done(struct caches *caches);

/* Makes the volumes and takes the locks. *ret_volumes: the key `volumes` of a policy. */
int caches_take(struct caches *caches, int store, struct progress *progress, json_t **ret_volumes,
    struct rollbox_error *error);
void caches_give_back(struct caches *caches);

#endif
