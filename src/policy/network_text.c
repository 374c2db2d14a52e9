/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of net "allow" for readers: a part of `rollbox policy plan`. */
#include <arpa/inet.h>

#include "base/buf.h"
#include "policy/network.h"
#include "policy/policy.h"

static void add_address(const struct net_address *address, struct buf *to) {
    char text[INET6_ADDRSTRLEN] = "?";

    (void)inet_ntop(address->is_v6 ? AF_INET6 : AF_INET, address->bytes, text, sizeof text);
    buf_add_text(to, text);
    if (address->prefix != (address->is_v6 ? 128 : 32))
        buf_printf(to, "/%u", address->prefix);
}

static void add_ports(const struct net_rule *rule, struct buf *to) {
    for (size_t i = 0; i < rule->n_ports; i++) {
        const struct net_ports *ports = &rule->ports[i];

        buf_printf(to, "%s%u", i ? "," : " port ", ports->first);
        if (ports->last != ports->first)
            buf_printf(to, "-%u", ports->last);
        if (ports->is_udp)
            buf_add_text(to, "/udp");
    }
}

static void add_words(const struct policy_strings *words, const char *any, struct buf *to) {
    if (!words->n)
        buf_add_text(to, any);
    for (size_t i = 0; i < words->n; i++)
        buf_printf(to, "%s%s", i ? "|" : "", words->items[i]);
}

static void add_reading(const struct net_rule *rule, struct buf *to) {
    static const char *const words[] = { "the name in TLS is checked", "decrypted", "any bytes" };
    const enum net_tls tls = net_rule_terminates(rule) ? NET_TLS_TERMINATE : rule->tls;

    buf_printf(to, ", %s", words[tls]);
    for (size_t i = 0; i < rule->n_requests; i++) {
        buf_add_text(to, i ? " or " : ", requests ");
        add_words(&rule->requests[i].methods, "any method", to);
        buf_add_text(to, " ");
        add_words(&rule->requests[i].paths, "*", to);
    }
    for (size_t i = 0; i < rule->n_inject; i++)
        buf_printf(to, ", sets %s", rule->inject[i].name);
}

static void add_rule(const struct net_rule *rule, struct buf *to) {
    buf_add_text(to, "     ");
    if (rule->host)
        buf_add_text(to, rule->host);
    else
        add_address(&rule->address, to);
    add_ports(rule, to);
    add_reading(rule, to);
    if (rule->to) {
        buf_add_text(to, ", at ");
        add_address(&rule->to->address, to);
        buf_printf(to, " port %u%s", rule->to->port, rule->to->is_plain ? " without TLS" : "");
    }
    if (rule->allows_private)
        buf_add_text(to, ", private addresses as well");
    buf_add_text(to, "\n");
}

static bool passes_tls(const struct net_rules *rules) {
    for (size_t i = 0; i < rules->n; i++)
        if (!net_rule_terminates(&rules->items[i]))
            return true;
    return false;
}

void net_rules_explain(const struct policy *policy, struct buf *to) {
    const struct net_rules *rules = &policy->network;

    if (policy->net != POLICY_NET_ALLOW)
        return;
    buf_printf(to, "\n# network: connections outward, by the gateway alone; at most %u at a time\n",
        rules->max_connections);
    for (size_t i = 0; i < rules->n; i++)
        add_rule(&rules->items[i], to);
    if (!rules->n)
        buf_add_text(to, "     none\n");
    if (policy->time_start && passes_tls(rules))
        buf_add_text(to, "     Under time_start, programs check certificates of TLS that passes "
                         "through at that time: decrypt (tls terminate) if they have expired or "
                         "are not valid yet.\n");
}
