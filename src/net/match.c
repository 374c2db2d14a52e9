/* SPDX-License-Identifier: Apache-2.0 */
#include "net/match.h"

#include <string.h>

#include "base/cleanup.h"
#include "net/http.h"

bool match_host(const char *host, const char *name) {
    size_t length = strlen(name);

    if (*host != '*')
        return strcmp(host, name) == 0;
    if (!host[1])
        return true;
    size_t suffix = strlen(host + 1); /* ".a.org" */
    return length > suffix && strcmp(name + length - suffix, host + 1) == 0;
}

bool match_name(const struct net_rules *rules, const char *name) {
    for (size_t i = 0; i < rules->n; i++)
        if (rules->items[i].host && match_host(rules->items[i].host, name))
            return true;
    return false;
}

static bool has_port(const struct net_rule *rule, uint16_t port, bool is_udp) {
    for (size_t i = 0; i < rule->n_ports; i++) {
        const struct net_ports *ports = &rule->ports[i];

        if (ports->is_udp == is_udp && port >= ports->first && port <= ports->last)
            return true;
    }
    return false;
}

/* A higher number is more specific. */
static size_t specificity(const char *host) {
    return *host == '*' ? strlen(host) : SIZE_MAX;
}

long match_connection(const struct net_rules *rules, const char *name, uint16_t port, bool is_udp,
    enum net_why *ret_why) {
    long best = -1;

    *ret_why = NET_WHY_NAME;
    for (size_t i = 0; i < rules->n; i++) {
        const struct net_rule *rule = &rules->items[i];

        if (!rule->host || !match_host(rule->host, name))
            continue;
        if (!has_port(rule, port, is_udp)) {
            if (best < 0)
                *ret_why = NET_WHY_PORT;
            continue;
        }
        if (best < 0 || specificity(rule->host) > specificity(rules->items[best].host))
            best = (long)i;
        *ret_why = NET_WHY_NONE;
    }
    if (best < 0)
        return -1;
    /* Of rules with one host, that which reads requests is the one to hand to their reader. */
    for (size_t i = (size_t)best; i < rules->n; i++) {
        const struct net_rule *rule = &rules->items[i];

        if (!rule->host || strcmp(rule->host, rules->items[best].host) != 0)
            continue;
        if (has_port(rule, port, is_udp) && net_rule_terminates(rule))
            return (long)i;
    }
    return best;
}

long match_literal(const struct net_rules *rules, const struct address *address, uint16_t port,
    bool is_udp, enum net_why *ret_why) {
    long best = -1;

    *ret_why = NET_WHY_LITERAL;
    for (size_t i = 0; i < rules->n; i++) {
        const struct net_rule *rule = &rules->items[i];

        if (rule->host || !rule->n_ports || !address_matches(address, &rule->address))
            continue;
        if (!has_port(rule, port, is_udp)) {
            if (best < 0)
                *ret_why = NET_WHY_PORT;
            continue;
        }
        if (best < 0 || rule->address.prefix > rules->items[best].address.prefix)
            best = (long)i;
        *ret_why = NET_WHY_NONE;
    }
    return best;
}

static bool has_method(const struct policy_strings *methods, const char *method) {
    for (size_t i = 0; i < methods->n; i++)
        if (strcmp(methods->items[i], method) == 0)
            return true;
    return !methods->n;
}

/* `path`: in its normal form, or NULL if it has none. */
static bool has_path(const struct policy_strings *paths, const char *path) {
    for (size_t i = 0; path && i < paths->n; i++)
        if (http_path_matches(paths->items[i], path))
            return true;
    return !paths->n;
}

static bool allows_request(const struct net_rule *rule, const char *method, const char *path) {
    for (size_t i = 0; i < rule->n_requests; i++) {
        const struct net_request *request = &rule->requests[i];

        if (has_method(&request->methods, method) && has_path(&request->paths, path))
            return true;
    }
    return !rule->n_requests;
}

/* Do two rules decide about the same connections? */
static bool same_host(const struct net_rule *a, const struct net_rule *b) {
    if (!a->host || !b->host)
        return a == b;
    return strcmp(a->host, b->host) == 0;
}

long match_request(const struct net_rules *rules, size_t rule, uint16_t port, const char *method,
    const char *target) {
    const struct http_text text = { target, strlen(target) };
    auto_free char *path = NULL;

    if (http_path_normal(text, &path) == -ENOMEM)
        return -1;
    for (size_t i = 0; i < rules->n; i++) {
        const struct net_rule *other = &rules->items[i];

        if (!same_host(other, &rules->items[rule]) || !has_port(other, port, false))
            continue;
        if (allows_request(other, method, path))
            return (long)i;
    }
    return -1;
}

enum net_tls match_tls(const struct net_rules *rules, size_t rule, uint16_t port, bool is_udp) {
    for (size_t i = 0; i < rules->n; i++) {
        const struct net_rule *other = &rules->items[i];

        if (!same_host(other, &rules->items[rule]) || !has_port(other, port, is_udp))
            continue;
        if (net_rule_terminates(other))
            return NET_TLS_TERMINATE;
    }
    /* TLS that is passed through would be other bytes in a replay. */
    if ((rules->record || rules->replay) && rules->items[rule].tls == NET_TLS_CHECK &&
        (port == 80 || port == 443) && !is_udp)
        return NET_TLS_TERMINATE;
    return rules->items[rule].tls;
}

const char *match_why_text(enum net_why why) {
    static const char *const texts[] = {
#define X(name, text) text,
        MATCH_REASONS(X)
#undef X
    };

    return texts[why];
}

enum net_why match_why_of(const char *text) {
    for (enum net_why why = NET_WHY_NONE; why < NET_WHY_COUNT_; why++)
        if (strcmp(match_why_text(why), text) == 0)
            return why;
    return NET_WHY_NONE;
}
