/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/peers.h"

#include <strings.h>

void peers_set(struct box *box, json_t *names) {
    json_decref(box->peers);
    box->peers = json_is_array(names) ? json_incref(names) : NULL;
}

const char *peers_find(const struct box *box, const char *name) {
    for (size_t i = 0; i < json_array_size(box->peers); i++) {
        const char *peer = json_string_value(json_array_get(box->peers, i));

        if (peer && strcasecmp(peer, name) == 0)
            return peer;
    }
    return NULL;
}
