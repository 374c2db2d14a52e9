/* SPDX-License-Identifier: Apache-2.0 */
#include "net/probe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "net/names.h"

static const struct {
    const char *prefix;
    uint16_t port; /* 0: none by default */
    bool is_udp, is_http;
} schemes[] = {
    { "https://", 443, false, true },
    { "http://", 80, false, true },
    { "tcp://", 0, false, false },
    { "udp://", 0, true, false },
};

struct place {
    char host[NAMES_MAX_LENGTH + 1];
    uint16_t port;
    const char *path;
};

static int read_host(const char **at, char *ret_host) {
    bool is_bracketed = **at == '[';
    const char *begin = *at + is_bracketed;
    size_t length = strcspn(begin, is_bracketed ? "]" : ":/?#");

    if (!length || length > NAMES_MAX_LENGTH || (is_bracketed && !begin[length]))
        return -EINVAL;
    for (size_t i = 0; i < length; i++) {
        char c = begin[i];

        ret_host[i] = c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
    }
    ret_host[length] = '\0';
    if (length > 1 && ret_host[length - 1] == '.')
        ret_host[length - 1] = '\0';
    *at = begin + length + is_bracketed;
    return 0;
}

static int read_place(const char *at, uint16_t port, struct place *ret_place) {
    int r = read_host(&at, ret_place->host);

    if (r < 0)
        return r;
    ret_place->port = port;
    if (*at == ':') {
        char *end;
        unsigned long number = strtoul(at + 1, &end, 10);

        if (at[1] < '0' || at[1] > '9' || number < 1 || number > 65535)
            return -EINVAL;
        ret_place->port = (uint16_t)number;
        at = end;
    }
    if (*at && *at != '/')
        return -EINVAL;
    ret_place->path = *at ? at : "/";
    return ret_place->port ? 0 : -EINVAL;
}

static void judge(const struct net_rules *rules, const struct place *place, size_t scheme,
    const char *method, struct probe *ret) {
    bool is_udp = schemes[scheme].is_udp;
    struct address address;
    bool is_literal = address_parse(place->host, &address) == 0;

    if (is_literal)
        ret->rule = match_literal(rules, &address, place->port, is_udp, &ret->why);
    else
        ret->rule = match_connection(rules, place->host, place->port, is_udp, &ret->why);
    if (ret->rule < 0)
        return;
    const struct net_rule *rule = &rules->items[ret->rule];
    if (is_literal && !rule->allows_private && !rule->to && !address_is_public(&address, NULL, 0)) {
        ret->why = NET_WHY_PRIVATE_ADDRESS;
        return;
    }
    if (schemes[scheme].is_http) {
        long found = match_request(rules, (size_t)ret->rule, place->port, method, place->path);

        if (found < 0) {
            ret->why = NET_WHY_METHOD_PATH;
            return;
        }
        ret->rule = found;
    }
    ret->is_allowed = true;
}

int probe_url(
    const struct net_rules *rules, const char *url, const char *method, struct probe *ret_probe) {
    for (size_t i = 0; i < ARRAY_SIZE(schemes); i++) {
        struct place place;
        struct probe found = { .rule = -1 };
        size_t length = strlen(schemes[i].prefix);

        if (strncmp(url, schemes[i].prefix, length) != 0)
            continue;
        int r = read_place(url + length, schemes[i].port, &place);
        if (r < 0)
            return r;
        judge(rules, &place, i, method, &found);
        *ret_probe = found;
        return 0;
    }
    return -EINVAL;
}
