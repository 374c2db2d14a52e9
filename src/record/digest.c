/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests of lines. A value is hashed as its kind, its length and its content, and objects by
 * sorted keys, so spacing and escaping do not matter. Of a content (an object with "sha256") the
 * kept part is left out: how much is kept depends on limits and not on what happened.
 */
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/text.h"
#include "record/record.h"

void digest_end(struct sha256_ctx *context, char ret_hex[RECORD_DIGEST_HEX + 1]) {
    uint8_t digest[SHA256_DIGEST_SIZE];

    sha256_digest(context, sizeof digest, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        (void)snprintf(ret_hex + 2 * i, 3, "%02x", digest[i]);
}

void digest_hex(const void *data, size_t length, char ret_hex[RECORD_DIGEST_HEX + 1]) {
    struct sha256_ctx context;

    sha256_init(&context);
    sha256_update(&context, length, data);
    digest_end(&context, ret_hex);
}

static void add_mark(struct sha256_ctx *context, char kind, long long number) {
    char mark[32];
    int n = snprintf(mark, sizeof mark, "%c%lld;", kind, number);

    sha256_update(context, (size_t)n, (const uint8_t *)mark);
}

static void add_real(struct sha256_ctx *context, double number) {
    char mark[64];
    int n = snprintf(mark, sizeof mark, "r%.*g;", RECORD_REAL_DIGITS, number);

    sha256_update(context, (size_t)n, (const uint8_t *)mark);
}

static void add_string(struct sha256_ctx *context, const char *text, size_t length) {
    add_mark(context, 's', (long long)length);
    sha256_update(context, length, (const uint8_t *)text);
}

static int compare_keys(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool is_kept_part(const char *key) {
    return !strcmp(key, "text") || !strcmp(key, "base64") || !strcmp(key, "truncated");
}

static void add_value(struct sha256_ctx *context, const json_t *value);

static void add_object(struct sha256_ctx *context, const json_t *object) {
    bool is_content = json_object_get(object, "sha256");
    auto_free const char **keys = calloc(json_object_size(object) + 1, sizeof *keys);
    json_t *value;
    const char *key;
    size_t n = 0;

    if (!keys) { /* a failed digest is the digest of nothing */
        add_mark(context, '?', 0);
        return;
    }
    json_object_foreach((json_t *)object, key, value) if (!is_content || !is_kept_part(key))
        keys[n++] = key;
    qsort(keys, n, sizeof *keys, compare_keys);
    add_mark(context, 'o', (long long)n);
    for (size_t i = 0; i < n; i++) {
        add_string(context, keys[i], strlen(keys[i]));
        add_value(context, json_object_get(object, keys[i]));
    }
}

static void add_value(struct sha256_ctx *context, const json_t *value) {
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_NULL:
        add_mark(context, 'n', 0);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        add_mark(context, 'b', json_is_true(value));
        break;
    case JSON_INTEGER:
        add_mark(context, 'i', json_integer_value(value));
        break;
    case JSON_REAL:
        add_real(context, json_real_value(value));
        break;
    case JSON_STRING:
        add_string(context, json_string_value(value), json_string_length(value));
        break;
    case JSON_ARRAY:
        add_mark(context, 'a', (long long)json_array_size(value));
        for (size_t i = 0; i < json_array_size(value); i++)
            add_value(context, json_array_get(value, i));
        break;
    case JSON_OBJECT:
        add_object(context, value);
        break;
    }
}

void chain_begin(struct chain *chain, const char *policy_digest, const char *image_digest,
    const char *parent_digest) {
    struct sha256_ctx context;

    sha256_init(&context);
    add_string(&context, RECORD_FORMAT, strlen(RECORD_FORMAT));
    add_string(&context, policy_digest, strlen(policy_digest));
    add_string(&context, text_or(image_digest, ""), text_size(image_digest));
    add_string(&context, text_or(parent_digest, ""), text_size(parent_digest));
    digest_end(&context, chain->hex);
}

void chain_add(struct chain *chain, const json_t *action, const json_t *observation) {
    struct sha256_ctx context;

    sha256_init(&context);
    add_string(&context, chain->hex, RECORD_DIGEST_HEX);
    add_value(&context, action);
    add_value(&context, observation);
    digest_end(&context, chain->hex);
}
