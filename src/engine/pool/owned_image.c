/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A killed job leaves nothing half: a layer's copy is published when it is complete, and the store
 * sweeps the rest (store/layer.c). The next job continues with the layers that are missing.
 *
 * A request is carried out again once. If its image lacks copies even then, because its name was
 * given to another image meanwhile, the request fails instead of waiting for ever.
 */
#include "engine/pool/owned_image.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/wire.h"
#include "engine/command/result.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/protocol.h"
#include "engine/store_job/store_job.h"

struct image_copy {
    struct list node; /* engine->profiles.copies */
    struct engine *engine;
    struct store_job *job;
    char *image;
    struct list requests; /* struct kept_request.node */
};

struct kept_request {
    struct list node;
    struct client *client;
    struct wire_message *message;
};

static void free_request(struct kept_request *request) {
    list_remove(&request->node);
    client_free_request(request->message);
    free(request);
}

static bool is_command(const struct kept_request *request) {
    const uint32_t type = request->message->header.type;

    return type == PROTOCOL_RUN || type == PROTOCOL_EXEC;
}

static void fail_request(
    const struct kept_request *request, const char *image, const struct rollbox_error *why) {
    struct rollbox_error error;

    error_set(&error, why->code, why->error_number, "policy",
        "image: %s: its files cannot be copied for sandboxes of many users: %s", image,
        why->message);
    if (is_command(request))
        result_send_error(request->client, request->message->header.serial, &error);
    else
        client_fail(request->client, request->message->header.serial, &error);
}

static void retry_request(struct engine *engine, struct kept_request *request) {
    struct client *client = request->client;

    engine->profiles.is_second_try = true;
    if (engine->server.handle_request(client, request->message) < 0)
        (void)shutdown(client->fd, SHUT_RDWR); /* its end is noticed by reading it */
    engine->profiles.is_second_try = false;
}

static void on_done(
    void *data, struct buf *take_answer, const struct rollbox_error *error, bool was_abandoned) {
    struct image_copy *copy = data;

    (void)was_abandoned;
    buf_done(take_answer);
    copy->job = NULL; /* its process has ended */
    log_at(error ? LOG_WARN : LOG_INFO, "image", NULL, "%s: copies with owners: %s", copy->image,
        error ? error->message : "made");
    while (!list_empty(&copy->requests)) {
        struct kept_request *request = container_of(copy->requests.next, struct kept_request, node);

        list_remove(&request->node);
        if (error)
            fail_request(request, copy->image, error);
        else
            retry_request(copy->engine, request);
        free_request(request);
    }
}

static void release_copy(void *data) {
    struct image_copy *copy = data;
    struct engine_profiles *profiles = &copy->engine->profiles;

    while (!list_empty(&copy->requests))
        free_request(container_of(copy->requests.next, struct kept_request, node));
    if (profiles->wanted_copy == copy)
        profiles->wanted_copy = NULL;
    list_remove(&copy->node);
    free(copy->image);
    free(copy);
}

static struct image_copy *find_copy(struct engine *engine, const char *image) {
    list_for_each(node, &engine->profiles.copies) {
        struct image_copy *copy = container_of(node, struct image_copy, node);

        if (copy->job && strcmp(copy->image, image) == 0)
            return copy;
    }
    return NULL;
}

static struct image_copy *start_copy(
    struct engine *engine, const char *store, const char *image, struct rollbox_error *error) {
    static const struct store_job_user user = { .done = on_done, .release = release_copy };
    struct image_copy *copy = calloc(1, sizeof *copy);
    json_t *nothing = json_object();
    int r = store_job_check_program(engine, error);

    if (copy) {
        copy->engine = engine;
        copy->image = strdup(image);
        list_init(&copy->node);
        list_init(&copy->requests);
    }
    const struct store_job_request request = {
        .words = { "own", "--json", "--store", store, "--", image },
        .job = nothing,
        .user = &user,
        .data = copy,
    };
    if (r == 0 && (!copy || !copy->image || !nothing))
        r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    if (r == 0)
        r = store_job_start(engine, &request, &copy->job, error);
    json_decref(nothing);
    if (r < 0) {
        if (copy)
            free(copy->image);
        free(copy);
        return NULL;
    }
    list_add_tail(&engine->profiles.copies, &copy->node);
    log_at(LOG_INFO, "image", NULL, "%s is copied with its owners", image);
    return copy;
}

int owned_image_make(
    struct engine *engine, const char *store, const char *image, struct rollbox_error *error) {
    if (engine->profiles.is_second_try)
        return error_set(error, ROLLBOX_ERR_ENGINE_BUSY, EBUSY, "policy",
            "%s was replaced by another image while its files were copied; try again", image);
    struct image_copy *copy = find_copy(engine, image);
    if (!copy)
        copy = start_copy(engine, store, image, error);
    if (!copy)
        return -EIO;
    engine->profiles.wanted_copy = copy;
    return error_set(error, ROLLBOX_ERR_ENGINE_BUSY, EINPROGRESS, "policy",
        "%s is being copied with its owners, for sandboxes of many users; try again", image);
}

bool owned_image_defer(struct client *client, struct wire_message *message) {
    struct image_copy *copy = TAKE_PTR(client->engine->profiles.wanted_copy);
    struct kept_request *request = copy ? calloc(1, sizeof *request) : NULL;

    if (!request || !(request->message = client_keep_request(message))) {
        free(request);
        return false;
    }
    request->client = client;
    list_init(&request->node);
    list_add_tail(&copy->requests, &request->node);
    return true;
}

/* Its last request is gone. */
static void end_unwanted(struct image_copy *copy) {
    if (!list_empty(&copy->requests) || !copy->job)
        return;
    log_at(LOG_INFO, "image", NULL, "%s: nobody waits for its copies", copy->image);
    (void)store_job_free(copy->job); /* frees the copy, too */
}

static struct kept_request *find_request(
    const struct image_copy *copy, const struct client *client, uint64_t serial) {
    list_for_each(item, &copy->requests) {
        struct kept_request *request = container_of(item, struct kept_request, node);

        if (request->client == client && request->message->header.serial == serial)
            return request;
    }
    return NULL;
}

bool owned_image_cancel(struct client *client, uint64_t serial) {
    list_for_each(node, &client->engine->profiles.copies) {
        struct image_copy *copy = container_of(node, struct image_copy, node);
        struct kept_request *request = find_request(copy, client, serial);
        struct rollbox_error error;

        if (!request || !is_command(request))
            continue;
        error_set(&error, ROLLBOX_ERR_CANCELLED, ECANCELED, "run",
            "cancelled while the files of %s were copied", copy->image);
        result_send_error(client, serial, &error);
        free_request(request);
        end_unwanted(copy);
        return true;
    }
    return false;
}

void owned_image_forget_client(struct client *client) {
    list_for_each(node, &client->engine->profiles.copies) {
        struct image_copy *copy = container_of(node, struct image_copy, node);
        bool had = false;

        list_for_each(item, &copy->requests) {
            struct kept_request *request = container_of(item, struct kept_request, node);

            if (request->client == client) {
                free_request(request);
                had = true;
            }
        }
        if (had)
            end_unwanted(copy);
    }
}

void owned_image_finish(struct engine *engine) {
    list_for_each(node, &engine->profiles.copies) {
        struct image_copy *copy = container_of(node, struct image_copy, node);

        if (copy->job)
            (void)store_job_free(copy->job);
    }
}
