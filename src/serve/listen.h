/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sockets on which the server accepts connections: addresses, paths of Unix sockets, and
 * sockets that a service manager passes (LISTEN_FDS). With TLS every TCP socket speaks TLS, and
 * Unix sockets do not.
 */
#ifndef ROLLBOX_SERVE_LISTEN_H
#define ROLLBOX_SERVE_LISTEN_H

#include "serve/config.h"
#include "serve/server.h"

/* 0, or 1 after a message. */
int listen_start(struct server *server, const struct config *config);
/* No more connections are accepted. */
void listen_stop(void);
/* Removes the Unix sockets that listen_start has made. */
void listen_remove(void);
/* One of those, for the confinement; NULL: there is none. */
const char *listen_local_path(void);

#endif
