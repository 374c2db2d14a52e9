/* SPDX-License-Identifier: Apache-2.0 */
/* Token buckets. A new bucket, all zero, is full. */
#ifndef ROLLBOX_EGRESS_BUCKET_H
#define ROLLBOX_EGRESS_BUCKET_H

#include "base/clock.h"
#include "egress/egress.h"

/* Counts the tokens that were gained since the last call. */
static inline void bucket_refill(struct bucket *bucket, uint64_t per_second, uint64_t limit) {
    int64_t now = clock_now_ns(), most = (int64_t)limit * 1000;
    int64_t passed = now - bucket->at_ns;

    /* An hour fills any bucket, and does not overflow. */
    if (!bucket->at_ns || passed > 3600ll * 1000000000)
        bucket->tokens_milli = most;
    else
        bucket->tokens_milli += (int64_t)((unsigned __int128)passed * per_second / 1000000);
    if (bucket->tokens_milli > most)
        bucket->tokens_milli = most;
    bucket->at_ns = now;
}

/* Takes tokens; the bucket may be overdrawn once. False: there are none. */
static inline bool bucket_take(
    struct bucket *bucket, uint64_t per_second, uint64_t limit, uint64_t n) {
    bucket_refill(bucket, per_second, limit);
    if (bucket->tokens_milli < 1000)
        return false;
    bucket->tokens_milli -= (int64_t)n * 1000;
    return true;
}

#endif
