/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox-egress is started by rollbox-engine, with their socket as descriptor 3. It opens all that
 * it will ever open, confines itself, and serves until the engine closes its end.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "egress/box.h"
#include "egress/confine.h"
#include "egress/control.h"
#include "egress/inward.h"
#include "egress/outbox.h"
#include "egress/resolve.h"
#include "egress/route.h"

#define ENGINE_FD 3

/* Sockets of all sandboxes are here. */
static void raise_limit(void) {
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return;
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
}

static int prepare(struct egress *egress) {
    int r;

    egress->engine_fd = ENGINE_FD;
    egress->tls = -EBADF;
    list_init(&egress->boxes);
    list_init(&egress->rules);
    list_init(&egress->handed);
    list_init(&egress->inward);
    list_init(&egress->outbox.queue);
    if (fcntl(ENGINE_FD, F_SETFL, O_RDWR | O_NONBLOCK) < 0 ||
        fcntl(ENGINE_FD, F_SETFD, FD_CLOEXEC) < 0)
        return -errno;
    egress->outbox.fd = fcntl(ENGINE_FD, F_DUPFD_CLOEXEC, 0);
    egress->spare_fd = fcntl(ENGINE_FD, F_DUPFD_CLOEXEC, 0);
    if (egress->outbox.fd < 0 || egress->spare_fd < 0)
        return -errno;
    egress->scratch = malloc(EGRESS_CHUNK);
    if (!egress->scratch)
        return -ENOMEM;
    egress->route = route_open();
    if (egress->route < 0)
        return egress->route;
    r = loop_new(&egress->loop);
    return r < 0 ? r : resolver_new(egress->loop, &egress->resolver);
}

int main(void) {
    static struct egress egress;
    const char *step = "start";
    int type = 0;
    socklen_t length = sizeof type;

    if (getsockopt(ENGINE_FD, SOL_SOCKET, SO_TYPE, &type, &length) < 0 || type != SOCK_SEQPACKET) {
        fprintf(stderr, "rollbox-egress is started by rollbox-engine, for sandboxes with net "
                        "\"allow\"\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    raise_limit();
    int r = prepare(&egress);
    if (r < 0) {
        fprintf(stderr, "rollbox-egress: cannot start: %s\n", strerror(-r));
        return 1;
    }
    r = confine_gateway(&step);
    if (r < 0) {
        fprintf(stderr, "rollbox-egress: cannot %s: %s\n", step, strerror(-r));
        return 1;
    }
    r = control_start(&egress);
    if (r == 0)
        r = loop_run(egress.loop);
    while (!list_empty(&egress.boxes)) {
        struct box *box = container_of(egress.boxes.next, struct box, node);

        box_stop(box);
        box_free(box);
    }
    inward_end_all(&egress);
    egress.resolver = resolver_free(egress.resolver);
    outbox_done(&egress);
    egress.loop = loop_free(egress.loop);
    free(egress.scratch);
    return r < 0;
}
