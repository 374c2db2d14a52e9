/* SPDX-License-Identifier: Apache-2.0 */
/* Tests rules against a URL without a connection, for authors of rules. */
#ifndef ROLLBOX_NET_PROBE_H
#define ROLLBOX_NET_PROBE_H

#include "net/match.h"

struct probe {
    bool is_allowed;
    long rule; /* the index of the rule that decides; -1: none */
    enum net_why why;
};

/* http://, https://, tcp:// or udp://; the latter two need a port. `method` counts for the former
 * two. 0 or -EINVAL: that is no such URL. */
int probe_url(
    const struct net_rules *rules, const char *url, const char *method, struct probe *ret_probe);

#endif
