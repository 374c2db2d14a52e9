/* SPDX-License-Identifier: Apache-2.0 */
/* A text that several objects hold, of any threads: the last to drop it frees it. */
#ifndef ROLLBOX_BASE_SHARED_TEXT_H
#define ROLLBOX_BASE_SHARED_TEXT_H

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct shared_text {
    atomic_uint holders;
    char text[];
};

/* NULL without memory. */
static inline struct shared_text *shared_text_new(const char *text) {
    const size_t n = strlen(text) + 1;
    struct shared_text *shared = malloc(sizeof *shared + n);

    if (shared) {
        atomic_init(&shared->holders, 1);
        memcpy(shared->text, text, n);
    }
    return shared;
}

static inline struct shared_text *shared_text_hold(struct shared_text *shared) {
    atomic_fetch_add_explicit(&shared->holders, 1, memory_order_relaxed);
    return shared;
}

/* NULL: none. */
static inline void shared_text_drop(struct shared_text *shared) {
    if (shared && atomic_fetch_sub_explicit(&shared->holders, 1, memory_order_acq_rel) == 1)
        free(shared);
}

#endif
