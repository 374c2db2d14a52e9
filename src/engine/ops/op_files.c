/* SPDX-License-Identifier: Apache-2.0 */
/* FILES: an agent in the sandbox serves a socket (guest/files). */
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/wire.h"
#include "engine/box/box.h"
#include "engine/ops/take_snapshot.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "guest/guest.h"

/* A socket that an agent in the sandbox serves from now on. */
static void hand_socket(struct op *op) {
    auto_buf struct buf request = BUF_INIT;
    struct session *session = op->session;
    struct buf nothing = BUF_INIT;
    struct rollbox_error error;

    /* A call is repeated with `alone` when the guest has killed its agent. At a limit it was us. */
    const bool met_limit = op->files.alone && session->agents.met_limit;
    session->agents.met_limit = false;
    if (met_limit) {
        op_fail_with(op, ROLLBOX_ERR_RESOURCE_EXHAUSTED, 0,
            "the sandbox met its limit of memory or disk, which ended the call");
        return;
    }
    if (session_need_box(session, &error) < 0) {
        op_fail(op, &error);
        return;
    }
    (void)session_resume(session);
    session->files.dirty = session->origin.was_used = true;
    wire_begin(&request, GUEST_FILES, 0);
    if (op->files.alone && !buf_failed(&request))
        ((struct wire_header *)(void *)request.data)->flags |= GUEST_FILES_ALONE;
    int r = wire_send_patiently(session->box->socket, &request, &op->request.fd, 1);
    /* It may be served before we hear that the box is ready. */
    session->box->baseline.was_missed |= !session->box->baseline.files;
    if (op_is_dying(r))
        op_wait(op, OP_WAIT_BOX_LOST);
    else if (r < 0)
        op_fail_with(op, error_code_of(-r, ROLLBOX_ERR_RESOURCE_EXHAUSTED), -r,
            "the sandbox cannot receive requests now");
    else {
        session->agents.n++;
        /* The client knows the transfer, and notes it for the observers. */
        buf_add_text(&nothing,
            session_events_wants(session) & OBSERVER_WANTS_NOTES ? "{\"recorded\": true}" : "{}");
        op_done(op, &nothing);
    }
}

const struct op_class op_files_class = { .verb = VERB_FILES, .start = hand_socket };
