/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/tls.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fd.h"

int tls_hand_over(struct connection *connection) {
    struct egress *egress = connection->box->egress;
    const struct net_rules *rules = &connection->box->rules->policy->network;
    const struct net_target *to = rules->items[connection->rule].to;
    const int fds[] = { connection->guest.fd, connection->upstream.fd };
    size_t n_fds = connection->upstream.fd >= 0 ? 2 : 1; /* 1: a recording answers */

    if (egress->tls < 0)
        return -ENOTCONN;
    json_t *message = json_pack("{s:s, s:I, s:s, s:i, s:I, s:b, s:b}", "box", connection->box->id,
        "connection", (json_int_t)connection->id, "name", connection_host(connection), "port",
        (int)connection->port, "rule", (json_int_t)connection->rule, "is_tls",
        (int)connection->is_tls, "to_is_plain", (int)(to && to->is_plain));
    auto_free char *text = message ? json_dumps(message, JSON_COMPACT) : NULL;
    json_decref(message);
    return text ? fd_send(egress->tls, text, strlen(text), fds, n_fds) : -ENOMEM;
}
