/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/publish.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "policy/network_read.h"

/* A port without a sign or spaces. */
static int read_port(const char *text, size_t length, unsigned min, uint16_t *ret) {
    unsigned long value = 0;

    if (length < 1 || length > 5)
        return -EINVAL;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -EINVAL;
        value = value * 10 + (unsigned long)(text[i] - '0');
    }
    if (value < min || value > UINT16_MAX)
        return -EINVAL;
    *ret = (uint16_t)value;
    return 0;
}

static int read_path_address(const char *text, size_t length, struct publish_address *ret) {
    if (length >= sizeof ret->local.sun_path)
        return -EINVAL;
    ret->local.sun_family = AF_UNIX;
    memcpy(ret->local.sun_path, text, length);
    ret->length = sizeof ret->local;
    return 0;
}

static int read_host(const char *host, uint16_t port, struct publish_address *ret) {
    size_t length = strlen(host);
    char inner[INET6_ADDRSTRLEN];

    if (length > 2 && host[0] == '[' && host[length - 1] == ']' && length - 2 < sizeof inner) {
        memcpy(inner, host + 1, length - 2);
        inner[length - 2] = '\0';
        ret->v6.sin6_family = AF_INET6;
        ret->v6.sin6_port = htons(port);
        ret->length = sizeof ret->v6;
        return inet_pton(AF_INET6, inner, &ret->v6.sin6_addr) == 1 ? 0 : -EINVAL;
    }
    ret->v4.sin_family = AF_INET;
    ret->v4.sin_port = htons(port);
    ret->length = sizeof ret->v4;
    return inet_pton(AF_INET, host, &ret->v4.sin_addr) == 1 ? 0 : -EINVAL;
}

static int parse_address(const char *text, size_t length, struct publish_address *ret) {
    const char *colon = memrchr(text, ':', length);
    const char *digits = colon ? colon + 1 : text;
    char host[INET6_ADDRSTRLEN + 2] = "127.0.0.1";
    size_t host_length = colon ? (size_t)(colon - text) : 0;
    uint16_t port;

    memset(ret, 0, sizeof *ret);
    if (memchr(text, '/', length))
        return read_path_address(text, length, ret);
    if (read_port(digits, (size_t)(text + length - digits), 0, &port) < 0 ||
        host_length >= sizeof host)
        return -EINVAL;
    if (host_length) {
        memcpy(host, text, host_length);
        host[host_length] = '\0';
    }
    return read_host(host, port, ret);
}

int publish_parse_address(const char *text, struct publish_address *ret) {
    return parse_address(text, strlen(text), ret);
}

int publish_parse(const char *text, struct publish_port *ret) {
    const char *colon = strrchr(text, ':'), *port = colon ? colon + 1 : text;
    int r = read_port(port, strlen(port), 1, &ret->port);

    if (r < 0)
        return r;
    return colon ? parse_address(text, (size_t)(colon - text), &ret->address)
                 : publish_parse_address("0", &ret->address);
}

bool publish_is_fixed(const struct publish_address *address) {
    if (address->any.sa_family == AF_INET)
        return address->v4.sin_port;
    return address->any.sa_family != AF_INET6 || address->v6.sin6_port;
}

const char *publish_address_text(
    const struct publish_address *address, char text[PUBLISH_ADDRESS_TEXT]) {
    char host[INET6_ADDRSTRLEN] = "";

    if (address->any.sa_family == AF_UNIX)
        snprintf(text, PUBLISH_ADDRESS_TEXT, "%.107s", address->local.sun_path);
    else if (address->any.sa_family == AF_INET6)
        snprintf(text, PUBLISH_ADDRESS_TEXT, "[%s]:%u",
            inet_ntop(AF_INET6, &address->v6.sin6_addr, host, sizeof host),
            ntohs(address->v6.sin6_port));
    else
        snprintf(text, PUBLISH_ADDRESS_TEXT, "%s:%u",
            inet_ntop(AF_INET, &address->v4.sin_addr, host, sizeof host),
            ntohs(address->v4.sin_port));
    return text;
}

/* ---- the policy's key ---- */

static const char publish_hint[] =
    "write \"8080\", \"127.0.0.1:5000:8080\" or \"/path/of/a/socket:8080\"; the last number is the "
    "port inside";

static bool is_same_place(const struct publish_address *one, const struct publish_address *other) {
    return publish_is_fixed(one) && one->length == other->length &&
           memcmp(&one->local, &other->local, one->length) == 0;
}

static void add_port(struct reader *r, const struct publish_port *port) {
    struct publish_ports *ports = &r->policy->publish;

    if (ports->n == PUBLISH_MAX) {
        read_bad(r, "publish fewer", "has more than %d ports", PUBLISH_MAX);
        return;
    }
    for (size_t i = 0; i < ports->n; i++)
        if (ports->items[i].port == port->port) {
            read_bad(r, "a port has one address", "port %u is there already", port->port);
            return;
        } else if (is_same_place(&ports->items[i].address, &port->address)) {
            char text[PUBLISH_ADDRESS_TEXT];

            read_bad(r, "an address leads to one port", "%s leads to port %u already",
                publish_address_text(&port->address, text), ports->items[i].port);
            return;
        }
    struct publish_port *more = reallocarray(ports->items, ports->n + 1, sizeof *more);
    if (!more) {
        r->out_of_memory = true;
        return;
    }
    ports->items = more;
    more[ports->n++] = *port;
}

void key_publish(struct reader *r, json_t *value) {
    json_t *item;
    size_t i;

    if (!json_is_array(value)) {
        read_bad(r, publish_hint, "must be a list of ports, not %s", read_type(value));
        return;
    }
    json_array_foreach(value, i, item) {
        struct publish_port port = { 0 };
        char number[32];

        r->index = (long)i;
        if (json_is_integer(item))
            snprintf(number, sizeof number, "%lld", (long long)json_integer_value(item));
        const char *text = json_is_integer(item) ? number : read_text(r, item, "a port");
        if (!text)
            continue;
        if (publish_parse(text, &port) < 0)
            read_bad(r, publish_hint, "\"%.120s\" is not a port to publish", text);
        else if (port.address.any.sa_family == AF_UNIX && port.address.local.sun_path[0] != '/')
            read_bad(r, "write the whole path", "the path of a socket must begin with a '/'");
        else
            add_port(r, &port);
    }
    r->index = -1;
}

void key_network(struct reader *r, json_t *value) {
    const char *text = read_text(r, value, "a name");
    size_t length = text ? strlen(text) : 0;

    if (!text)
        return;
    if (length > NETWORK_NAME_MAX || text[0] == '.' || text[0] == '-' ||
        text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")])
        read_bad(r, "use 1 to 64 letters, digits, '_', '.' and '-', the first no '.' or '-'",
            "\"%.64s\" is no name for a network", text);
    else
        r->policy->network_name = read_copy(r, text);
}

/* The members are reached by the same way as hosts of net "allow", which may be none. */
static void check_network(struct reader *r) {
    struct policy *policy = r->policy;

    if (!policy->network_name)
        return;
    r->key = "network";
    if (policy->net == POLICY_NET_HOST)
        read_bad(r, "leave \"net\" out", "net \"host\" has no private network");
    else if (policy->isolation == POLICY_ISOLATION_PROCESS)
        read_bad(r, "use isolation \"namespace\"", "isolation \"process\" has no private network");
    else if (policy->network.record || policy->network.replay)
        read_bad(r, "leave one of them out",
            "connections to other sandboxes are neither recorded nor replayed (net_record, "
            "net_replay)");
    else
        policy->net = POLICY_NET_ALLOW;
}

/* Servers need an interface to listen on, and a published port is the only way in: with a network
 * of the sandbox's own nothing else is reachable. */
void publish_check(struct reader *r) {
    struct policy *policy = r->policy;

    r->index = -1;
    r->member = NULL;
    check_network(r);
    if (!policy->publish.n)
        return;
    r->key = "publish";
    if (policy->net == POLICY_NET_HOST)
        read_bad(r, "leave \"publish\" out: servers in the sandbox are in the host's network",
            "net \"host\" has no ports inside to publish");
    else if (policy->isolation == POLICY_ISOLATION_PROCESS)
        read_bad(r, "use isolation \"namespace\"",
            "isolation \"process\" has no network inside to publish ports of");
    else if (policy->net == POLICY_NET_NONE)
        policy->net = POLICY_NET_LOOPBACK;
}
