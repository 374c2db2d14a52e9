/* SPDX-License-Identifier: Apache-2.0 */
/* With the last reference the record in woken/ is removed, unless the sandbox was not woken. */
#include "engine/store_job/backing.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "engine/core/context.h"
#include "engine/store_job/store_job.h"
#include "store/hibernated_read.h"

struct backing *backing_put(struct backing *backing) {
    auto_close int store = -EBADF;

    if (!backing || --backing->references)
        return NULL;
    if (backing->lock >= 0) {
        if (store_job_open_store(backing->engine, &store, NULL) == 0 &&
            hibernated_remove(store, WOKEN_DIRECTORY, backing->id) == 0)
            store_job_forget(backing->engine);
        close_fd(&backing->lock);
        backing->engine->files.used--;
    }
    free(backing);
    return NULL;
}

void backing_ref_set(struct backing_ref *backing_ref, struct backing *backing, size_t index) {
    backing->references++;
    *backing_ref = (struct backing_ref){ backing, index };
}

struct backing_ref backing_ref_of(const struct backing_ref *backing_ref) {
    if (backing_ref->backing)
        backing_ref->backing->references++;
    return *backing_ref;
}

void backing_ref_put(struct backing_ref *backing_ref) {
    backing_ref->backing = backing_put(backing_ref->backing);
}
