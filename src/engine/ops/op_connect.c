/* SPDX-License-Identifier: Apache-2.0 */
/* CONNECT: init connects to a server in the sandbox, and sends the socket to the client's. */
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/wire.h"
#include "engine/box/box.h"
#include "engine/ops/take_snapshot.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "guest/guest.h"

static void ask_init(struct op *op) {
    auto_buf struct buf request = BUF_INIT;
    struct session *session = op->session;
    struct buf nothing = BUF_INIT;
    struct rollbox_error error;

    if (session_need_box(session, &error) < 0) {
        op_fail(op, &error);
        return;
    }
    (void)session_resume(session);
    session->origin.was_used = true;
    wire_begin(&request, GUEST_CONNECT, 0);
    wire_add_u64(&request, GUEST_NUMBER, op->port);
    int r = wire_send_patiently(session->box->socket, &request, &op->request.fd, 1);
    if (op_is_dying(r))
        op_wait(op, OP_WAIT_BOX_LOST);
    else if (r < 0)
        op_fail_with(op, error_code_of(-r, ROLLBOX_ERR_RESOURCE_EXHAUSTED), -r,
            "the sandbox's init takes no requests now; try again");
    else {
        buf_add_text(&nothing, "{}");
        op_done(op, &nothing);
    }
}

const struct op_class op_connect_class = { .verb = VERB_CONNECT, .start = ask_init };
