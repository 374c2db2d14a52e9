/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/first_bytes.h"

#include <errno.h>
#include <string.h>

#include "egress/relay.h"

#define MAX_METHOD 20
#define MAX_LINE (16u << 10)

void first_bytes_done(struct connection *connection) {
    relay_wake_for(connection->guest.fd, &connection->guest.looked_at, 0);
}

static enum first_bytes read_hello(
    const struct connection *connection, const char *data, size_t length, enum net_why *ret_why) {
    const struct net_rules *rules = &connection->box->rules->policy->network;
    struct client_hello hello;
    int r = client_hello_read(data, length, &hello);

    if (r == -EAGAIN)
        return FIRST_BYTES_MORE;
    *ret_why = NET_WHY_NONE;
    if (r < 0)
        *ret_why = NET_WHY_BAD_REQUEST;
    else if (hello.has_ech && connection->tls == NET_TLS_CHECK &&
             !rules->items[connection->rule].allows_ech)
        *ret_why = NET_WHY_ECH;
    else if (!connection->name)
        return FIRST_BYTES_TLS; /* an address has no name to compare */
    else if (!*hello.name)
        *ret_why = NET_WHY_SNI_MISSING;
    else if (strcmp(hello.name, connection->name) != 0)
        *ret_why = NET_WHY_SNI_OTHER;
    return *ret_why ? FIRST_BYTES_REFUSED : FIRST_BYTES_TLS;
}

static bool is_method_character(char c) {
    return (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
}

/* Some line protocols look like HTTP up to the end of the first line: "USER anonymous". */
static enum first_bytes read_line(const char *data, size_t length) {
    const char *end = memchr(data, '\n', length);
    size_t word = 0;

    while (word < length && word < MAX_METHOD && is_method_character(data[word]))
        word++;
    if (word == length)
        return FIRST_BYTES_MORE;
    if (!word || data[word] != ' ')
        return FIRST_BYTES_OTHER;
    if (!end)
        return length < MAX_LINE ? FIRST_BYTES_MORE : FIRST_BYTES_HTTP;
    /* Any mention of HTTP is enough: the strict parser refuses other protocols. */
    return memmem(data, (size_t)(end - data), "HTTP/", 5) ? FIRST_BYTES_HTTP : FIRST_BYTES_OTHER;
}

/* Many servers skip empty lines before a request, and take methods of any letters. */
bool first_line_is_http(struct first_line *line, const char *data, size_t length) {
    static const char word[] = "HTTP/";

    for (size_t i = 0; i < length && line->is_watched; i++) {
        char c = data[i];

        if (c == '\n' || c == '\r') {
            line->is_watched = !line->has_begun; /* empty lines before the first are skipped */
            continue;
        }
        line->has_begun = true;
        if (c >= 'a' && c <= 'z')
            c = (char)(c & ~0x20);
        if (c != word[line->n_found])
            line->n_found = 0;
        line->n_found += c == word[line->n_found];
        if (line->n_found == sizeof word - 1)
            return true;
    }
    return false;
}

static enum first_bytes judge(
    const struct connection *connection, const char *data, size_t length, enum net_why *ret_why) {
    bool must_be_http = connection->port == 80 || connection->tls == NET_TLS_TERMINATE;

    if ((unsigned char)data[0] == CLIENT_HELLO_FIRST_BYTE)
        return read_hello(connection, data, length, ret_why);
    if (connection->port == 443) {
        *ret_why = NET_WHY_SNI_MISSING;
        return FIRST_BYTES_REFUSED;
    }
    if (must_be_http)
        return FIRST_BYTES_HTTP;
    return read_line(data, length);
}

enum first_bytes first_bytes_read(struct connection *connection, enum net_why *ret_why) {
    char *scratch = connection->box->egress->scratch;
    ssize_t n = relay_peek(connection->guest.fd, scratch, CLIENT_HELLO_WIRE);

    if (n == -EAGAIN || n == -EINTR)
        return FIRST_BYTES_MORE;
    if (n < 0)
        return FIRST_BYTES_END;
    if (n == 0) /* where the server speaks first, a guest may only listen */
        return connection->state == UPSTREAM_NONE ? FIRST_BYTES_END : FIRST_BYTES_OTHER;
    enum first_bytes found = judge(connection, scratch, (size_t)n, ret_why);
    if (found != FIRST_BYTES_MORE)
        return found;
    if (relay_has_ended(connection->guest.fd)) {
        *ret_why = NET_WHY_BAD_REQUEST;
        return FIRST_BYTES_REFUSED;
    }
    relay_wake_for(connection->guest.fd, &connection->guest.looked_at, (size_t)n);
    return FIRST_BYTES_MORE;
}
