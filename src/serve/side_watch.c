/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/side_watch.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define SECOND_NS INT64_C(1000000000)
#define WAIT_MAX_NS (64 * SECOND_NS)
#define LIVED_NS (10 * SECOND_NS) /* the next end is not of the same cause */

static void replace(struct loop_timer *timer);

static void retry(struct side_watch *watch) {
    int64_t now = clock_now_ns();

    (void)loop_timer_set(watch->server->loop, &watch->again, now + watch->wait_ns, replace);
    watch->wait_ns = watch->wait_ns ? MIN(2 * watch->wait_ns, WAIT_MAX_NS) : SECOND_NS;
}

/* The keeper and the store worker are gone, and nobody is left who can fork. A new server takes
 * up detached sandboxes and kept answers again. */
static void give_up(struct server *server) {
    if (server->exit_status)
        return;
    fprintf(stderr,
        "rollbox-serve: rollbox-keeper and rollbox-stores have ended at once, and nothing can "
        "replace them: the server drains and ends\n");
    server->exit_status = 1;
    (void)raise(SIGTERM);
}

static void replace(struct loop_timer *timer) {
    struct side_watch *watch = container_of(timer, struct side_watch, again);
    int r = side_process_replace(*watch->helper, watch->side);

    if ((r == -EPIPE || r == -ECONNRESET || r == -EBADF) && watch->side != SIDE_TRACES) {
        give_up(watch->server);
        return;
    }
    if (r >= 0) {
        watch->replaced_ns = clock_now_ns();
        r = watch->take(watch->server, r);
    }
    if (r < 0)
        retry(watch);
}

void side_watch_lost(struct side_watch *watch) {
    if (clock_now_ns() - watch->replaced_ns > LIVED_NS || !watch->replaced_ns)
        watch->wait_ns = 0;
    retry(watch);
}
