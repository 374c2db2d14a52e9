/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's side of rollbox-egress-tls: the store's certificate authority, the program's start,
 * and the sandboxes that it serves. */
#ifndef ROLLBOX_ENGINE_NETWORK_GATEWAY_TLS_H
#define ROLLBOX_ENGINE_NETWORK_GATEWAY_TLS_H

#include "engine/network/gateway_process.h"
#include "engine/network/gateway_tape.h"

struct buf;
struct rollbox_error;

/* Makes the authority of the store, if it has none, and appends the certificates that sandboxes
 * trust: the host's roots and its own, as PEM and as a file of Java's. Waits for the program, which
 * takes some milliseconds. */
int gateway_tls_bundle(struct engine *engine, const char *store, struct buf *to,
    struct buf *to_java, struct rollbox_error *error);

/* Starts the program, unless it runs, and connects it with rollbox-egress. 0 or -errno. */
int gateway_tls_start(struct gateway_process *tls, struct gateway_process *egress);
/* Makes a sandbox known, or its changed rules ("open", "rules"). `secrets` is a sealed memory file,
 * or negative. `tape` goes with "open" only. */
int gateway_tls_send(struct gateway_process *tls, const char *verb, const char *box,
    const char *policy, int secrets, const struct gateway_tape *tape);
int gateway_tls_close(struct gateway_process *tls, const char *box);

#endif
