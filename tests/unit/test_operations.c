/* SPDX-License-Identifier: Apache-2.0 */
/* The answers that are kept for retries: which tenant loses what when there are too many. They come
 * from lines of a journal, and are seen in the lines of the next one; no request is made. */
#include "test.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "serve/server.h"

static struct server server;
static struct tenant quiet, loud;
static unsigned n_keys[2], n_answers[2]; /* of quiet and loud, in the journal that was dumped */

/* ---- what operations.c calls of the server ---- */

struct tenant *tenant_of(struct server *of, const char *name) {
    (void)of;
    return strcmp(name, "quiet") ? &loud : &quiet;
}

bool token_tenant_ok(const char *tenant) {
    (void)tenant;
    return true;
}

int journal_add(struct journal *journal, json_t *take_line) {
    static size_t of;
    const char *tenant = json_string_value(json_object_get(take_line, "tenant"));

    (void)journal;
    if (tenant)
        of = strcmp(tenant, "quiet") != 0;
    if (tenant)
        n_keys[of]++;
    else if (json_object_get(take_line, "body"))
        n_answers[of]++;
    json_decref(take_line);
    return 0;
}

struct http_request *http_request_of(struct http_connection *connection) {
    (void)connection;
    return NULL;
}

void **http_data(struct http_connection *connection) {
    (void)connection;
    return NULL;
}

void http_reply(struct http_connection *connection, int status, const char *type,
    const char *headers, const void *body, size_t length) {
    (void)connection, (void)status, (void)type, (void)headers, (void)body, (void)length;
}

void exchange_done(struct exchange *exchange) {
    (void)exchange;
}

void exchange_problem(
    struct exchange *exchange, int status, const char *code, const char *format, ...) {
    (void)exchange, (void)status, (void)code, (void)format;
}

/* ---- the tests ---- */

static void begin_tenant(struct tenant *tenant, const char *name) {
    snprintf(tenant->name, sizeof tenant->name, "%s", name);
    list_init(&tenant->operations);
    list_init(&tenant->answers);
    list_add_tail(&server.tenants, &tenant->of_server);
}

static void begin(unsigned keys_max, size_t bytes_max) {
    list_init(&server.tenants);
    list_init(&server.operations);
    for (size_t i = 0; i < ARRAY_SIZE(server.operations_by); i++)
        list_init(&server.operations_by[i]);
    server.operations_max = keys_max;
    server.answer_bytes_max = bytes_max;
    begin_tenant(&quiet, "quiet");
    begin_tenant(&loud, "loud");
}

static void replay(const char *kind, json_t *take_line) {
    ASSERT_TRUE(operations_replay(&server, kind, take_line));
    json_decref(take_line);
}

/* A request of the tenant, with an answer of 10 bytes. */
static void answer(const char *tenant, unsigned number, time_t made) {
    char key[65], request[65];

    snprintf(key, sizeof key, "%08x%056u", number, tenant[0] == 'q');
    snprintf(request, sizeof request, "%064x", number);
    replay("begin", json_pack("{s:s, s:s, s:s, s:I}", "tenant", tenant, "key", key, "request",
                        request, "made", (json_int_t)made));
    replay("end", json_pack("{s:s, s:i, s:s, s:s, s:s}", "key", key, "status", 200, "type", "a/b",
                      "headers", "", "body", "0123456789"));
}

static void dump(void) {
    memset(n_keys, 0, sizeof n_keys);
    memset(n_answers, 0, sizeof n_answers);
    operations_dump(&server, NULL);
}

TEST(a_tenant_with_many_keys_loses_its_own) {
    begin(10, 1000000);
    for (unsigned i = 0; i < 3; i++)
        answer("quiet", i, time(NULL));
    for (unsigned i = 0; i < 50; i++)
        answer("loud", i, time(NULL));
    dump();
    ASSERT_EQ(n_keys[0], 3u);
    ASSERT_EQ(n_answers[0], 3u);
    ASSERT_EQ(n_keys[1], 7u);
    ASSERT_EQ(n_answers[1], 7u);
}

TEST(a_tenant_with_large_answers_loses_its_own_and_keeps_their_keys) {
    begin(1000, 100);
    for (unsigned i = 0; i < 3; i++)
        answer("quiet", i, time(NULL));
    for (unsigned i = 0; i < 50; i++)
        answer("loud", i, time(NULL));
    dump();
    ASSERT_EQ(n_keys[0], 3u);
    ASSERT_EQ(n_answers[0], 3u);
    ASSERT_EQ(n_keys[1], 50u);
    ASSERT_EQ(n_answers[1], 7u);
}

TEST(answers_expire_after_a_day) {
    begin(1000, 1000);
    answer("quiet", 1, time(NULL) - 86400 - 10);
    answer("quiet", 2, time(NULL));
    dump();
    ASSERT_EQ(n_keys[0], 1u);
    ASSERT_EQ(server.n_operations, 1u);
    ASSERT_EQ(server.answer_bytes, (size_t)10);
}
