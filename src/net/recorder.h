/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a recording (net/recording.h). Both gateways append to one file, which the engine opened:
 * whole lines, so that neither cuts the other's.
 *
 * The file never contains a secret. Headers of requests are not recorded at all. In an answer, each
 * byte of a secret's value is replaced by '*'. So the recorder holds the last bytes of an answer
 * back as long as they may be the beginning of a value.
 */
#ifndef ROLLBOX_NET_RECORDER_H
#define ROLLBOX_NET_RECORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct recorder {
    int fd; /* owned; -EBADF: nothing is recorded */
    uint64_t writer, next;
    uint64_t n_lost; /* exchanges that did not fit, or that the disk did not take */
    uint64_t n_told; /* of them, of which the log has heard */
    bool is_torn;    /* the last line may be cut short */
    /* Texts to be masked: each with a NUL, and an empty one at the end. NULL: none. Borrowed. */
    const char *secrets;
    size_t longest; /* of them */
};

struct recorded_exchange {
    struct recorder *recorder; /* NULL: not recorded */
    uint64_t id;
    struct buf waiting;
    bool is_up;   /* whose bytes wait */
    bool is_over; /* no other one begins here */
};

void recorder_init(struct recorder *recorder, int take_fd);
void recorder_done(struct recorder *recorder);
/* `secrets`: names and values in turn, each with a NUL; an empty name ends them. */
void recorder_set_secrets(struct recorder *recorder, const char *secrets);

/* Has anything been lost since the last call? */
static inline bool recorder_has_lost(struct recorder *recorder) {
    bool has_lost = recorder->n_lost > recorder->n_told;

    recorder->n_told = recorder->n_lost;
    return has_lost;
}

static inline bool recorder_is_on(const struct recorder *recorder) {
    return recorder->fd >= 0;
}

/* Begins an exchange, unless one has begun or is over. `method` and `target` are NULL for a stream.
 */
void recorder_begin(struct recorded_exchange *exchange, struct recorder *recorder, const char *host,
    uint16_t port, const char *method, const char *target);
static inline bool recorder_has_begun(const struct recorded_exchange *exchange) {
    return exchange->recorder != NULL;
}
/* The request is complete. */
void recorder_request(struct recorded_exchange *exchange, const char *digest);
void recorder_bytes(
    struct recorded_exchange *exchange, bool is_up, const char *data, size_t length);
void recorder_side_end(struct recorded_exchange *exchange, bool is_up);
/* The exchange is complete. */
void recorder_end(struct recorded_exchange *exchange);
/* It is not, and does not count. */
void recorder_drop(struct recorded_exchange *exchange);

#endif
