/* SPDX-License-Identifier: Apache-2.0 */
/* The ports that a sandbox with net "allow" listens on for the gateway. */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "policy/compiler.h"
#include "policy/network.h"

struct port_set {
    bool has[65536];
};

/* Ranges that do not overlap. Port 53 is the gateway's own: init opens its sockets anyway. Returns
 * the number of ports. */
static unsigned add_ports(struct compiler *c, struct port_set *set, bool is_udp) {
    const struct net_rules *rules = &c->policy->network;
    unsigned n = 0;

    *set = (struct port_set){ 0 };
    for (size_t i = 0; i < rules->n; i++)
        for (size_t k = 0; k < rules->items[i].n_ports; k++) {
            const struct net_ports *ports = &rules->items[i].ports[k];

            for (unsigned port = ports->first; ports->is_udp == is_udp && port <= ports->last;
                 port++)
                set->has[port] = true;
        }
    set->has[NET_NAMESERVER_PORT] = false;
    for (unsigned port = 1; port < ARRAY_SIZE(set->has); port++) {
        struct plan_net_ports one = { (uint16_t)port, (uint16_t)port, is_udp };

        if (!set->has[port])
            continue;
        while (port + 1 < ARRAY_SIZE(set->has) && set->has[port + 1])
            one.last = (uint16_t)++port;
        buf_add(&c->net_ports, &one, sizeof one);
        n += one.last - one.first + 1u;
    }
    return n;
}

int plan_network(struct compiler *c, struct rollbox_error *error) {
    const bool is_transparent = c->host->nft_tproxy;
    auto_free struct port_set *set = NULL;

    if (c->policy->net != POLICY_NET_ALLOW)
        return 0;
    if (!(set = malloc(sizeof *set)))
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    unsigned tcp = add_ports(c, set, false), udp = add_ports(c, set, true);
    if (udp + (is_transparent ? 0 : tcp) > PLAN_NET_MAX_PORTS)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, E2BIG, "policy",
            "net_allow: the rules name %u ports of TCP and %u of UDP; at most %u %s", tcp, udp,
            PLAN_NET_MAX_PORTS,
            is_transparent ? "of UDP are possible"
                           : "together are possible, because this kernel lacks nft_tproxy "
                             "(CONFIG_NFT_TPROXY)");
    if (is_transparent)
        c->plan.flags |= PLAN_NET_TPROXY;
    return 0;
}
