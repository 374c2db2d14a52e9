/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/box/quiesce.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/wire.h"
#include "engine/box/box.h"
#include "engine/box/profile.h"

int quiesce_begin(const struct box *box) {
    auto_buf struct buf message = BUF_INIT;
    auto_close int theirs = -EBADF;
    int pair[2];

    if (!(box->profile->plan->flags & (PLAN_SEED | PLAN_CLOCK)))
        return 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    theirs = pair[1];
    wire_begin(&message, GUEST_QUIESCE, 0);
    int r = wire_send_patiently(box->socket, &message, &theirs, 1);
    if (r < 0)
        close(pair[0]);
    return r < 0 ? r : pair[0];
}
