/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of /v1 that are made of several others: grades, templates. Each is a POST of the same
 * client's to a sandbox; a problem of one is the problem of the whole.
 */
#ifndef ROLLBOX_SERVE_INNER_POST_H
#define ROLLBOX_SERVE_INNER_POST_H

#include "serve/server.h"

/* Starts a POST to /v1/sandboxes (`box` "") or to `rest`, such as "/fork", of a sandbox. NULL: it
 * could not be started, `done` will not be called, and the exchange has its answer. */
struct http_connection *inner_post(struct exchange *exchange, const char *box, const char *rest,
    json_t *take_body, http_inner_done *done, void *userdata);
/* The JSON of its answer. NULL: there is none, or it broke off. */
json_t *inner_answer(const struct buf *body);
/* Answers the exchange with the problem of an inner request; `whole` is what the detail begins
 * with. */
void inner_pass_on(
    struct exchange *exchange, const char *whole, int status, const struct buf *body);

#endif
