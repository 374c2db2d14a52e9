/* SPDX-License-Identifier: Apache-2.0 */
#include "build/caches.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "store/digest.h"
#include "store/volume_job.h"

#define LOCKS "build-locks"
#define MAX_PRIVATE 64 /* builds at once that have a private cache of one name */

int caches_add(
    struct caches *caches, const char *id, const char *path, enum cache_sharing sharing) {
    char hex[DIGEST_HEX + 1];
    struct digest digest;
    struct cache_mount *cache = array_add(&caches->items, caches->n, sizeof *cache);

    if (!cache)
        return -ENOMEM;
    digest_init(&digest);
    digest_add_sized(&digest, id, strlen(id));
    digest_end_hex(&digest, hex);
    caches->n++;
    *cache = (struct cache_mount){ .path = strdup(path), .sharing = sharing, .lock = -EBADF };
    if (asprintf(&cache->name, "build-cache-%.24s", hex) < 0)
        cache->name = NULL;
    return cache->name && cache->path ? 0 : -ENOMEM;
}

void caches_give_back(struct caches *caches) {
    for (size_t i = 0; i < caches->n; i++)
        close_fd(&caches->items[i].lock);
}

void caches_done(struct caches *caches) {
    caches_give_back(caches);
    for (size_t i = 0; i < caches->n; i++) {
        free(caches->items[i].name);
        free(caches->items[i].path);
    }
    free(caches->items);
    *caches = (struct caches){ NULL, 0 };
}

static int by_name(const void *left, const void *right) {
    return strcmp(
        ((const struct cache_mount *)left)->name, ((const struct cache_mount *)right)->name);
}

static int open_lock(int store, const char *name) {
    char path[128];

    if (mkdirat(store, LOCKS, 0700) < 0 && errno != EEXIST)
        return -errno;
    snprintf(path, sizeof path, LOCKS "/%s", name);
    int fd = openat(store, path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : fd;
}

static int lock(int fd, int operation) {
    while (flock(fd, operation) < 0)
        if (errno != EINTR)
            return -errno;
    return 0;
}

/* The first of the names NAME, NAME-2, NAME-3 that nobody has. */
static int take_private(struct cache_mount *cache, int store) {
    const size_t length = strlen(cache->name);

    for (unsigned i = 1; i <= MAX_PRIVATE; i++) {
        char *name = NULL;

        if (asprintf(&name, i > 1 ? "%.*s-%u" : "%.*s", (int)length, cache->name, i) < 0)
            return -ENOMEM;
        int fd = open_lock(store, name), r = fd < 0 ? fd : lock(fd, LOCK_EX | LOCK_NB);
        if (r == 0) {
            free(cache->name);
            cache->name = name;
            cache->lock = fd;
            return 0;
        }
        free(name);
        close_fd(&fd);
        if (r != -EWOULDBLOCK)
            return r;
    }
    return -EWOULDBLOCK;
}

static int take(struct cache_mount *cache, int store, struct progress *progress) {
    const int operation = cache->sharing == CACHE_LOCKED ? LOCK_EX : LOCK_SH;

    if (cache->sharing == CACHE_PRIVATE)
        return take_private(cache, store);
    int fd = open_lock(store, cache->name), r = fd < 0 ? fd : lock(fd, operation | LOCK_NB);
    if (r == -EWOULDBLOCK) {
        progress_note(progress, "waiting for the cache %s, which another build has", cache->path);
        r = lock(fd, operation);
    }
    if (r < 0)
        close_fd(&fd);
    else
        cache->lock = fd;
    return r;
}

static int take_one(struct cache_mount *cache, int store, struct progress *progress,
    json_t *volumes, struct rollbox_error *error) {
    struct rollbox_error inner = { 0 };
    json_t *ignored = NULL;
    int r = take(cache, store, progress);

    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "build",
            "the cache %s cannot be locked: %s", cache->path, strerror(-r));
    r = volume_create(store, cache->name, 0, &ignored, &inner);
    json_decref(ignored);
    if (r < 0 && inner.code != ROLLBOX_ERR_CONFLICT) {
        *error = inner;
        return r;
    }
    json_t *volume = json_pack("{s:s, s:s}", "path", cache->path, "mode", "shared");
    return json_object_set_new(volumes, cache->name, volume) < 0
               ? error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "build", "out of memory")
               : 0;
}

int caches_take(struct caches *caches, int store, struct progress *progress, json_t **ret_volumes,
    struct rollbox_error *error) {
    json_t *volumes = json_object();
    int r = 0;

    if (caches->n)
        qsort(caches->items, caches->n, sizeof *caches->items, by_name);
    for (size_t i = 0; r == 0 && i < caches->n; i++) {
        if (i && strcmp(caches->items[i].name, caches->items[i - 1].name) == 0)
            r = error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "build",
                "two --mount=type=cache have the same id, for %s and %s", caches->items[i - 1].path,
                caches->items[i].path);
        else
            r = take_one(&caches->items[i], store, progress, volumes, error);
    }
    if (r < 0) {
        caches_give_back(caches);
        json_decref(volumes);
        return r;
    }
    *ret_volumes = volumes;
    return 0;
}
