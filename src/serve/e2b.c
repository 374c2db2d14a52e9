/* SPDX-License-Identifier: Apache-2.0 */
/* Sandboxes of E2B's clients, and the way of a request to one; e2b.h has the model. */
#include "serve/e2b.h"

#include <nettle/base64.h>
#include <nettle/memops.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/digits.h"
#include "serve/e2b_code.h"
#include "serve/e2b_process.h"
#include "serve/e2b_stream.h"
#include "serve/e2b_watch.h"
#include "serve/engine_link.h"

#define SECOND_NS INT64_C(1000000000)

/* ---- the sandbox's part ---- */

static void on_forgotten(struct box *box) {
    struct e2b_box *e2b = TAKE_PTR(box->e2b);

    if (!e2b)
        return;
    loop_timer_clear(e2b->server->loop, &e2b->timer);
    list_remove(&e2b->of_server);
    e2b_code_end(e2b);
    e2b_processes_end(e2b);
    e2b_watch_end(e2b);
    json_decref(e2b->metadata);
    json_decref(e2b->file_metadata);
    free(e2b->bearer);
    free(e2b->template_id);
    free(e2b->snapshot);
    free(e2b->origin);
    free(e2b);
}

/* The tenant's token as a request to the control plane has it. */
static char *bearer_of(const struct http_request *request) {
    const char *key = http_header(request, "x-api-key");
    const char *header = http_header(request, "authorization");
    char *bearer = NULL;

    if (!key)
        return strdup(header ? header : "");
    return asprintf(&bearer, "Bearer %s", key) < 0 ? NULL : bearer;
}

struct e2b_box *e2b_box_new(struct exchange *exchange, struct box *box, int64_t timeout_s) {
    struct e2b_box *e2b = calloc(1, sizeof *e2b);

    if (!e2b)
        return NULL;
    e2b->server = exchange->server;
    e2b->box = box;
    digits_random(E2B_TOKEN_BYTES, e2b->token);
    if (exchange->connection)
        e2b->bearer = bearer_of(http_request_of(exchange->connection));
    e2b->home = e2b->root_home = "/tmp";
    e2b->followers = &e2b_streams;
    e2b->started_s = time(NULL);
    list_init(&e2b->processes);
    list_init(&e2b->contexts);
    list_init(&e2b->watchers);
    list_add_tail(&exchange->server->e2b_boxes, &e2b->of_server);
    box->e2b = e2b;
    box->forgotten = on_forgotten;
    e2b_box_end_at(e2b, timeout_s);
    return e2b;
}

void e2b_box_connected(struct exchange *exchange, struct e2b_box *e2b) {
    char *bearer = exchange->connection ? bearer_of(http_request_of(exchange->connection)) : NULL;

    if (!bearer)
        return;
    free(e2b->bearer);
    e2b->bearer = bearer;
}

/* The end of the sandbox's time. */
static void on_end(struct loop_timer *timer) {
    struct e2b_box *e2b = container_of(timer, struct e2b_box, timer);
    const struct rollbox_call_options call = { .size = sizeof call,
        .call = ROLLBOX_CALL_HIBERNATE,
        .sandbox = rollbox_sandbox_name(e2b->box->handle) };
    struct rollbox_run *run;

    if (!e2b->auto_pause) {
        box_close(e2b->server, e2b->box);
        return;
    }
    e2b->is_paused = true;
    if (rollbox_call_start(e2b->box->link->engine, &call, &run, NULL) >= 0)
        rollbox_run_free(run);
}

void e2b_box_end_at(struct e2b_box *e2b, int64_t timeout_s) {
    e2b->ends_s = time(NULL) + timeout_s;
    (void)loop_timer_set(
        e2b->server->loop, &e2b->timer, clock_now_ns() + timeout_s * SECOND_NS, on_end);
}

/* ---- requests to a sandbox ---- */

bool e2b_is_for_sandbox(const struct http_request *request, unsigned *ret_port, struct buf *id) {
    const char *name = http_header(request, "e2b-sandbox-id");
    const char *port = http_header(request, "e2b-sandbox-port");
    const char *host = http_header(request, "host");

    if (!name || !port)
        return host && http_sandbox_host(host, ret_port, id);
    *ret_port = strspn(port, "0123456789") == strlen(port) && strlen(port) <= 5
                    ? (unsigned)strtoul(port, NULL, 10)
                    : 0;
    buf_add_text(id, name);
    return !buf_failed(id);
}

static bool equals(const char *a, const char *b) {
    size_t length = strlen(b);

    return strlen(a) == length && memeql_sec(a, b, length);
}

/* A signature is of "PATH:read|write:USER:TOKEN[:EXPIRY]". */
static bool is_signed(const struct e2b_box *e2b, const struct http_request *request) {
    auto_buf struct buf path = BUF_INIT, user = BUF_INIT, signature = BUF_INIT, expiry = BUF_INIT,
                        text = BUF_INIT;
    char encoded[4 + BASE64_ENCODE_RAW_LENGTH(SHA256_DIGEST_SIZE) + 1] = "v1_";
    uint8_t digest[SHA256_DIGEST_SIZE];
    struct sha256_ctx context;

    if (strcmp(request->path, "/files") != 0 || !http_query(request, "signature", &signature))
        return false;
    (void)http_query(request, "path", &path);
    (void)http_query(request, "username", &user);
    buf_add_text(&text, path.data ? path.data : "");
    buf_add_text(&text, strcmp(request->method, "GET") ? ":write:" : ":read:");
    buf_add_text(&text, user.data ? user.data : "");
    buf_printf(&text, ":%s", e2b->token);
    if (http_query(request, "signature_expiration", &expiry)) {
        if (!expiry.data || strtoll(expiry.data, NULL, 10) < time(NULL))
            return false;
        buf_printf(&text, ":%s", expiry.data);
    }
    if (buf_failed(&text))
        return false;
    sha256_init(&context);
    sha256_update(&context, text.length, (const uint8_t *)text.data);
    sha256_digest(&context, sizeof digest, digest);
    base64_encode_raw(encoded + 3, sizeof digest, digest);
    encoded[strcspn(encoded, "=")] = '\0';
    return equals(signature.data ? signature.data : "", encoded);
}

static bool has_token(const struct e2b_box *e2b, const struct http_request *request) {
    const char *token = http_header(request, "x-access-token");

    if (!token)
        token = http_header(request, "e2b-traffic-access-token");
    return token ? equals(token, e2b->token) : is_signed(e2b, request);
}

int e2b_find(struct exchange *exchange, unsigned port, const char *id, const char **ret_header) {
    const struct http_request *request = http_request_of(exchange->connection);
    const bool is_own = port == E2B_ENVD_PORT || port == E2B_CODE_PORT;
    struct e2b_box *found = NULL, *any = NULL;

    list_for_each(node, &exchange->server->e2b_boxes) {
        struct e2b_box *e2b = container_of(node, struct e2b_box, of_server);

        if (strcasecmp(e2b->box->name, id) || e2b->snapshot)
            continue;
        any = e2b;
        if (has_token(e2b, request) || (!is_own && e2b->is_public))
            found = e2b;
    }
    if (!any || (found && found->is_paused))
        return 502;
    if (!found)
        return 401;
    exchange->box = found->box;
    exchange->box->references++;
    exchange->link = engine_link_ref(found->box->link);
    *ret_header = found->bearer ? found->bearer : "";
    return 0;
}
