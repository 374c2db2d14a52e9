/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of an image's layers with their owners, for an ordinary user's sandboxes of many users
 * (store/owned_layers.h). They are made at the first use of an image, which takes as long as its
 * files take to be copied. One job of rollbox-store makes them for all requests that need the
 * image. These requests are kept and carried out when the job has ended, so that the engine serves
 * its other sandboxes meanwhile.
 */
#ifndef ROLLBOX_ENGINE_POOL_OWNED_IMAGE_H
#define ROLLBOX_ENGINE_POOL_OWNED_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

struct client;
struct engine;
struct wire_message;

/* Starts the job, unless it runs already. Returns -EINPROGRESS with an error for callers that
 * cannot wait, or another -errno. */
int owned_image_make(
    struct engine *engine, const char *store, const char *image, struct rollbox_error *error);

/* After a request has failed with -EINPROGRESS: keeps it until the job has ended, and then carries
 * it out or answers with the job's error. False: no job has caused that, or there is no memory; the
 * caller answers. */
bool owned_image_defer(struct client *client, struct wire_message *message);

/* Answers the client's command with an error, if it waits for a job. */
bool owned_image_cancel(struct client *client, uint64_t serial);

/* Drops the client's requests. A job for which no other request waits is killed. */
void owned_image_forget_client(struct client *client);

void owned_image_finish(struct engine *engine);

#endif
