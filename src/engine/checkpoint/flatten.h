/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Full images from incremental ones.
 *
 * A snapshot or a fork may leave a checkpoint with an incremental image (dirty_tracking.h).
 * Sandboxes are restored from that as it is. But the store, an export and a description need an
 * image that is complete in itself, and so does a checkpoint that is forked often. The incremental
 * image stays, because a restore from it may be under way.
 */
#ifndef ROLLBOX_ENGINE_CHECKPOINT_FLATTEN_H
#define ROLLBOX_ENGINE_CHECKPOINT_FLATTEN_H

#include <stdbool.h>

struct checkpoint;
struct flatten_job;
struct profile;

/* A job as its checkpoint knows it. */
struct flatten_handle {
    void (*cancel)(struct checkpoint *checkpoint); /* which is being freed */
};

/* The image is there (0), or will not be (-errno). The job is gone. */
typedef void (*flatten_done)(void *data, int error);

int flatten_start(struct checkpoint *checkpoint, struct profile *profile, flatten_done done,
    void *data, struct flatten_job **ret_job);
struct flatten_job *flatten_free(struct flatten_job *job); /* takes and returns NULL */
/* The checkpoint has no full image. NULL: false. */
bool flatten_is_lacking(const struct checkpoint *checkpoint);
/* Nobody waits for it: for the next fork. */
void flatten_later(struct checkpoint *checkpoint, struct profile *profile);

#endif
