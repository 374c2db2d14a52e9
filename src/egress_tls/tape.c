/* SPDX-License-Identifier: Apache-2.0 */
#include "egress_tls/tape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/text.h"

void tape_end(struct tape *tape, bool is_complete) {
    if (is_complete)
        recorder_end(&tape->recorded);
    else
        recorder_drop(&tape->recorded);
    EVP_MD_CTX_free(tape->digest);
    free(tape->method);
    free(tape->target);
    buf_done(&tape->up);
    *tape = (struct tape){ .state = TAPE_IDLE };
}

void tape_begin(struct tape *tape, struct tls_box *box, const struct event_place *place,
    struct http_text method, struct http_text target) {
    tape_end(tape, false);
    if (!box_is_taped(box))
        return;
    tape->state = TAPE_REQUEST;
    tape->method = text_copy(method.text, method.length);
    tape->target = text_copy(target.text, target.length);
    tape->digest = EVP_MD_CTX_new();
    if (tape->method == NULL || tape->target == NULL || tape->digest == NULL ||
        EVP_DigestInit_ex(tape->digest, EVP_sha256(), NULL) != 1) {
        tape->state = TAPE_MISS;
        return;
    }
    if (box->recording == NULL)
        recorder_begin(
            &tape->recorded, &box->recorder, place->name, place->port, tape->method, tape->target);
}

void tape_content(struct tape *tape, const char *data, size_t length) {
    if (tape->state == TAPE_REQUEST)
        (void)EVP_DigestUpdate(tape->digest, data, length);
}

void tape_request_end(struct tape *tape, struct tls_box *box, const struct event_place *place) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    char text[2 * EVP_MAX_MD_SIZE + 16] = "sha256:";

    if (tape->state != TAPE_REQUEST)
        return;
    (void)EVP_DigestFinal_ex(tape->digest, digest, &length);
    for (unsigned i = 0; i < length; i++)
        snprintf(text + 7 + 2 * (size_t)i, 3, "%02x", digest[i]);
    tape->state = TAPE_ANSWER;
    if (box->recording == NULL) {
        recorder_request(&tape->recorded, text);
        return;
    }
    struct recorded *found = recording_take_http(
        box->recording, place->name, place->port, tape->method, tape->target, text);
    if (found == NULL)
        tape->state = TAPE_MISS;
    else
        replay_continue(&tape->replay, found);
}

void tape_answer(struct tape *tape, const char *data, size_t length) {
    recorder_bytes(&tape->recorded, false, data, length);
}

void tape_server_end(struct tape *tape) {
    recorder_side_end(&tape->recorded, false);
}

void tape_tunnel(struct tape *tape, const char *data, size_t length) {
    recorder_bytes(&tape->recorded, true, data, length);
    if (tape->replay.stream != NULL)
        buf_add(&tape->up, data, length);
}

/* Compares what the guest has said. Has any of it been found? */
static bool listen_to(struct tape *tape) {
    long n = tape->up.length > 0 ? replay_guest(&tape->replay, tape->up.data, tape->up.length) : 0;

    if (n < 0)
        tape->state = TAPE_MISS;
    if (n <= 0)
        return n < 0;
    memmove(tape->up.data, tape->up.data + n, tape->up.length - (size_t)n);
    tape->up.length -= (size_t)n;
    return true;
}

bool tape_read(struct tape *tape, struct buf *in, size_t limit, bool *ret_ended) {
    const char *data;
    bool any = false;

    *ret_ended = false;
    while (tape->state == TAPE_ANSWER && tape->replay.stream != NULL && in->length < limit) {
        size_t length = replay_server(&tape->replay, &data);

        if (length > 0) {
            length = MIN(length, limit - in->length);
            buf_add(in, data, length);
            replay_sent(&tape->replay, length);
        } else if (replay_server_ends(&tape->replay)) {
            *ret_ended = true;
            return true;
        } else if (!listen_to(tape))
            break;
        any = true;
    }
    return any;
}
