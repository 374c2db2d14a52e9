/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces side processes that end while the server runs (side_process.h). */
#ifndef ROLLBOX_SERVE_SIDE_WATCH_H
#define ROLLBOX_SERVE_SIDE_WATCH_H

#include "serve/server.h"
#include "serve/side_process.h"

struct side_watch {
    struct server *server;
    enum side side;
    const int *helper; /* the socket of the one that forks the replacement */
    /* Takes the socket of the replacement: 0, or -errno, and there is another attempt. */
    int (*take)(struct server *server, int take_socket);
    struct loop_timer again;
    int64_t replaced_ns, wait_ns;
};

/* It has ended. The first replacement comes at once; one that ends soon is replaced later and
 * later. */
void side_watch_lost(struct side_watch *watch);

#endif
