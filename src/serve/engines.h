/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server's engines.
 *
 * A slot is one place for an engine: of --engine, of --engines N, or of one tenant
 * (--engine-per-tenant). A link is the connection to the engine that is in a slot now. When that is
 * lost, the slot gets another engine from the keeper, and requests for it wait meanwhile. Attached
 * sandboxes are gone; detached ones are looked up at the new engine, by
 * name: a shared engine that runs has them still, and another one finds those that are hibernated.
 *
 * Everything that came from an engine (a sandbox's handle, a plan, a run) holds a reference to its
 * link. A lost engine's handle is closed with the last of them.
 */
#ifndef ROLLBOX_SERVE_ENGINES_H
#define ROLLBOX_SERVE_ENGINES_H

#include "serve/config.h"
#include "serve/engine_link.h"
#include "serve/server.h"

/* Connects to the engines, before the confinement. 0, or 1 after a message. */
int engines_start(struct server *server, const struct config *config);
/* At the end of the server: engines with detached sandboxes run on, the others end. */
void engines_stop(struct server *server);

/* Calls `then` with exchange->link set to the tenant's engine with the least load, at once or when
 * an engine is there; or answers 503. */
void engines_want(struct exchange *exchange, void (*then)(struct exchange *exchange));

/* The slot of a sandbox in the journal; NULL: this server has none such. */
struct engine_link *engines_of(struct server *server, const char *owner, unsigned number);

/* The links that there are, one after the other; NULL first gives the first. */
struct engine_link *engines_next(struct server *server, const struct engine_link *link);

/* Whether a request would find an engine now. */
bool engines_ready(struct server *server);
json_t *engines_status(struct server *server);

#endif
