/* SPDX-License-Identifier: Apache-2.0 */
/* What a session has of dumps and checkpoints. */
#include <stdlib.h>

#include "engine/session.h"

struct session_checkpoint *session_checkpoint_new(struct profile *profile) {
    struct session_checkpoint *of = calloc(1, sizeof *of);

    if (of)
        of->profile = profile;
    return of;
}

struct session_checkpoint *session_checkpoint_free(struct session_checkpoint *of) {
    if (!of)
        return NULL;
    if (of->releasing)
        of->cancel_release(of);
    dirty_tracking_forget(&of->tracking);
    checkpoint_put(of->pending_restore);
    backing_ref_put(&of->backing_ref);
    free(of);
    return NULL;
}
