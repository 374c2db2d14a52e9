/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One exchange of HTTP that is recorded, or answered from a recording (net/recording.h).
 *
 * A request is known by its host, port, method, target and the SHA-256 of its content; of several
 * that are the same, the first gets the first recorded answer, and so on.
 */
#ifndef ROLLBOX_EGRESS_TLS_TAPE_H
#define ROLLBOX_EGRESS_TLS_TAPE_H

#include <openssl/evp.h>

#include "base/buf.h"
#include "egress_tls/box.h"
#include "egress_tls/events.h"
#include "net/http.h"

#define REPLAY_MISS_TEXT                                                                           \
    "rollbox: the recording (net_replay) has no such request that is not answered yet"

struct tape {
    struct recorded_exchange recorded;
    EVP_MD_CTX *digest; /* NULL: no exchange is under way */
    char *method, *target;
    struct replay replay; /* its stream is the answer; NULL: none yet */
    struct buf up;        /* of a tunnel: bytes that the recording does not have yet */
    enum {
        TAPE_IDLE,
        TAPE_REQUEST, /* is arriving */
        TAPE_ANSWER,  /* is recorded, or given */
        TAPE_MISS,    /* the recording has no such request */
    } state;
};

static inline bool box_is_taped(const struct tls_box *box) {
    return box->recording != NULL || recorder_is_on(&box->recorder);
}

void tape_begin(struct tape *tape, struct tls_box *box, const struct event_place *place,
    struct http_text method, struct http_text target);
void tape_content(struct tape *tape, const char *data, size_t length);
/* The request is complete: its answer is looked for, if a recording answers. */
void tape_request_end(struct tape *tape, struct tls_box *box, const struct event_place *place);
/* Bytes of the server, to be recorded. */
void tape_answer(struct tape *tape, const char *data, size_t length);
/* Bytes of a guest's tunnel. */
void tape_tunnel(struct tape *tape, const char *data, size_t length);
/* The server has ended its side. */
void tape_server_end(struct tape *tape);
/* Moves bytes of the recorded server to `in`, up to `limit` there. Has any been moved? *ret_ended:
 * the server has ended. A tunnel's guest that says something else is a miss. */
bool tape_read(struct tape *tape, struct buf *in, size_t limit, bool *ret_ended);
/* The exchange is complete, or will never be. */
void tape_end(struct tape *tape, bool is_complete);

#endif
