/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values of a policy's secrets, which the client alone can read: its environment, its files,
 * its descriptors.
 *
 * They go to the engine in a sealed memory file beside the request, so that no policy text, plan,
 * log or result has them. The file is a JSON object of names and texts.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/utf8.h"
#include "client/client.h"
#include "policy/policy.h"

#define MAX_SECRET (64u << 10)

static int bad_secret(
    struct rollbox_error *error, const struct net_secret *secret, int number, const char *problem) {
    return error_set(error, ROLLBOX_ERR_POLICY_INVALID, number, "policy", "net_secrets.%s: %s %s",
        secret->name, secret->from, problem);
}

static int read_variable(const char *name, struct buf *to) {
    const char *value = getenv(name);

    if (value == NULL)
        return -ENOENT;
    buf_add_text(to, value);
    return 0;
}

/* From the beginning if it is a file, so that each call gives the same. */
static int read_descriptor(const char *number, struct buf *to) {
    char *end;
    long fd = strtol(number, &end, 10);

    if (*end != 0 || fd < 0 || fd > 1 << 20)
        return -EBADF;
    return lseek((int)fd, 0, SEEK_SET) == 0 ? fd_read_again((int)fd, MAX_SECRET, to)
                                            : fd_read_all((int)fd, MAX_SECRET, to);
}

static int read_source(const char *from, struct buf *to) {
    if (strncmp(from, "env:", 4) == 0)
        return read_variable(from + 4, to);
    if (strncmp(from, "file:", 5) == 0)
        return fd_read_file(from + 5, MAX_SECRET, to);
    return strncmp(from, "fd:", 3) == 0 ? read_descriptor(from + 3, to) : -EINVAL;
}

/* The line end that editors put behind the only line is not part of the secret. */
static void strip_line_end(struct buf *value) {
    if (value->length > 0 && value->data[value->length - 1] == '\n')
        value->length--;
    if (value->length > 0 && value->data[value->length - 1] == '\r')
        value->length--;
}

static bool is_header_value(const struct buf *value) {
    for (size_t i = 0; i < value->length; i++)
        if ((unsigned char)value->data[i] < ' ' || value->data[i] == 0x7f)
            return false;
    return utf8_valid(value->data, value->length);
}

static int add_secret(json_t *to, const struct net_secret *secret, struct rollbox_error *error) {
    auto_buf struct buf value = BUF_INIT;
    int result = read_source(secret->from, &value);

    if (result == -ENOENT && strncmp(secret->from, "env:", 4) == 0)
        return bad_secret(error, secret, ENOENT, "is not set");
    if (result == 0 && buf_failed(&value))
        result = -ENOMEM;
    if (result < 0)
        return bad_secret(error, secret, -result, strerror(-result));
    strip_line_end(&value);
    if (value.length == 0)
        result = bad_secret(error, secret, EINVAL, "is empty");
    else if (!is_header_value(&value))
        result = bad_secret(error, secret, EINVAL, "is not one line of UTF-8 text");
    else if (json_object_set_new(to, secret->name, json_stringn(value.data, value.length)) < 0)
        result =
            error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    explicit_bzero(value.data, value.capacity);
    return result;
}

int secrets_read(const struct policy *policy, char **ret_json, struct rollbox_error *error) {
    const struct net_rules *rules = &policy->network;
    json_t *values;
    int result = 0;

    *ret_json = NULL;
    if (rules->n_secrets == 0)
        return 0;
    values = json_object();
    for (size_t i = 0; i < rules->n_secrets && result == 0; i++)
        result = add_secret(values, &rules->secrets[i], error);
    if (result == 0) {
        *ret_json = json_dumps(values, JSON_COMPACT | JSON_SORT_KEYS);
        if (*ret_json == NULL)
            result =
                error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    }
    json_decref(values);
    return result;
}

char *secrets_free(char *json) {
    if (json != NULL)
        explicit_bzero(json, strlen(json));
    free(json);
    return NULL;
}
