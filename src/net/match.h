/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rule of a policy decides about a connection or a request, and why none does.
 *
 * Rules only allow. Of the rules that fit a connection's host, those with the most specific host
 * decide: an exact name before "*.example.org", a longer pattern before a shorter one. All rules
 * with that host and port count together: the connection is decrypted if one of them needs it, and
 * a request is allowed if one of them allows it. Ties go to the policy's order.
 */
#ifndef ROLLBOX_NET_MATCH_H
#define ROLLBOX_NET_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/address.h"
#include "policy/network.h"

/* The reasons of refusals, as in results and logs. */
#define MATCH_REASONS(X)                                                                           \
    X(NONE, "")                                                                                    \
    X(LITERAL, "literal")                                                                          \
    X(PORT, "port")                                                                                \
    X(NAME, "name")                                                                                \
    X(PRIVATE_ADDRESS, "private_address")                                                          \
    X(SNI_MISSING, "sni_missing")                                                                  \
    X(SNI_OTHER, "sni_other")                                                                      \
    X(ECH, "ech")                                                                                  \
    X(HOST_OTHER, "host_other")                                                                    \
    X(METHOD_PATH, "method_path")                                                                  \
    X(BAD_REQUEST, "bad_request")                                                                  \
    X(LIMIT_CONNECTIONS, "limit_connections")                                                      \
    X(LIMIT_BYTES, "limit_bytes")                                                                  \
    X(LIMIT_REQUESTS, "limit_requests")                                                            \
    X(LIMIT_RATE, "limit_rate")                                                                    \
    X(LIMIT_IDLE, "limit_idle")                                                                    \
    X(RESOLVE, "resolve")                                                                          \
    X(UPSTREAM_REFUSED, "upstream_refused")                                                        \
    X(UPSTREAM_TLS, "upstream_tls")                                                                \
    X(SECRET_MISSING, "secret_missing")                                                            \
    X(SECRET_IN_CLEAR, "secret_in_clear")                                                          \
    X(UPSTREAM_HTTP, "upstream_http")                                                              \
    X(UPSTREAM_CLOSED, "upstream_closed")                                                          \
    X(REPLAY_MISS, "replay_miss")                                                                  \
    X(GATEWAY, "gateway")

enum net_why {
#define X(name, text) NET_WHY_##name,
    MATCH_REASONS(X)
#undef X
        NET_WHY_COUNT_,
};

const char *match_why_text(enum net_why why);
/* NET_WHY_NONE for an unknown text. */
enum net_why match_why_of(const char *text);

/* Does a rule's host ("a.org", "*.a.org", "*") fit the name? "*.a.org" does not fit "a.org". */
bool match_host(const char *host, const char *name);
/* Does any rule's host fit the name, at any port? */
bool match_name(const struct net_rules *rules, const char *name);

/* The index of the rule that decides about a connection to the name, or -1 and the reason: name or
 * port. */
long match_connection(const struct net_rules *rules, const char *name, uint16_t port, bool is_udp,
    enum net_why *ret_why);
/* The same for a connection to an address that stands for no name; reasons: literal or port. */
long match_literal(const struct net_rules *rules, const struct address *address, uint16_t port,
    bool is_udp, enum net_why *ret_why);
/* Of a connection that `rule` decided about: the index of the rule that allows this request, or -1.
 * A target whose path servers read in several ways (http_path_normal) fits no rule with paths. */
long match_request(const struct net_rules *rules, size_t rule, uint16_t port, const char *method,
    const char *target);
/* How a connection to the rule's host and this port is read: NET_TLS_TERMINATE if any rule with
 * that host and port has to read requests, else what the deciding rule says. Of rules with a
 * recording, also at ports 80 and 443 that are not "raw". */
enum net_tls match_tls(const struct net_rules *rules, size_t rule, uint16_t port, bool is_udp);

#endif
