/* SPDX-License-Identifier: Apache-2.0 */
/* A relay between a guest and a server of any bytes: the first byte of the input says how long the
 * pieces are, and a line "\n--\n" changes the sender. The pieces' length changes nothing about the
 * outcome, no request leaves without the one Host, and nothing is read beyond the input. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "net/http_relay.h"

static void expect(bool holds) {
    if (!holds)
        abort();
}

static void decide(
    struct http_relay *relay, const struct http_head *head, struct http_decision *decision) {
    auto_free char *path = NULL;

    (void)relay;
    expect(http_host_is(head->host, "a", 80));
    if (http_path_normal(head->target, &path) < 0)
        *decision = (struct http_decision){ .status = 403, .why = "method_path", .text = "no" };
    else
        expect(*path == '/' && strstr(path, "//") == NULL && strstr(path, "/../") == NULL);
}

static void refused(struct http_relay *relay, unsigned status, const char *why, const char *text) {
    (void)relay;
    (void)status;
    expect(*why != 0 && *text != 0 && strchr(text, '\n') == NULL);
}

static void answered(struct http_relay *relay, unsigned status, uint64_t up, uint64_t down) {
    (void)relay;
    expect(status >= 101 && up > 0 && down > 0);
}

static const struct http_relay_calls calls = { decide, refused, answered, NULL };

struct outcome {
    struct http_relay relay;
    struct buf up, down;
};

/* Gives a sender's bytes in pieces, each with those that were left. */
static void give(struct outcome *to, bool is_guest, const char *data, size_t length, size_t piece) {
    size_t taken = 0, end = 0;

    while (end < length) {
        auto_free char *copy = NULL;
        size_t n;

        end = MIN(length, end + piece);
        copy = malloc(end - taken + 1);
        expect(copy != NULL);
        memcpy(copy, data + taken, end - taken);
        n = is_guest ? http_relay_guest(&to->relay, copy, end - taken, &to->up, &to->down)
                     : http_relay_upstream(&to->relay, copy, end - taken, &to->down);
        expect(n <= end - taken);
        taken += n;
    }
}

static void run(struct outcome *to, const char *data, size_t length, size_t piece) {
    bool is_guest = true;

    memset(to, 0, sizeof *to);
    http_relay_init(&to->relay, &calls, "a", 80);
    while (length > 0) {
        const char *mark = memmem(data, length, "\n--\n", 4);
        size_t n = mark != NULL ? (size_t)(mark - data) : length;

        give(to, is_guest, data, n, piece);
        is_guest = !is_guest;
        n += mark != NULL ? 4 : 0;
        data += n;
        length -= n;
    }
    http_relay_guest_eof(&to->relay);
    http_relay_upstream_eof(&to->relay, &to->down);
}

/* Bytes of a body before an error in it have passed if they came by themselves. */
static void check_begins(const struct buf *whole, const struct buf *parts) {
    expect(whole->length <= parts->length);
    expect(whole->length == 0 || memcmp(whole->data, parts->data, whole->length) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct outcome whole, parts;

    if (size == 0 || size > 100000)
        return 0;
    run(&whole, (const char *)data + 1, size - 1, size);
    run(&parts, (const char *)data + 1, size - 1, 1 + data[0] % 64);
    expect(whole.relay.state == parts.relay.state);
    check_begins(&whole.up, &parts.up);
    check_begins(&whole.down, &parts.down);
    buf_done(&whole.up);
    buf_done(&whole.down);
    buf_done(&parts.up);
    buf_done(&parts.down);
    return 0;
}
