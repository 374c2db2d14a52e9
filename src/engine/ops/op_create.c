/* SPDX-License-Identifier: Apache-2.0 */
/* CREATE and CLOSE: the first and the last operation of a sandbox. */
#include "base/error.h"
#include "engine/session/op.h"
#include "engine/session/session.h"

static void start_create(struct op *op) {
    struct rollbox_error error;

    op_wait(op, OP_WAIT_BOX_READY);
    if (session_need_box(op->session, &error) < 0)
        op_fail(op, &error);
    /* else done when it is ready, which it may be already */
}

static void create_event(struct op *op, enum op_event event, const struct op_message *message) {
    struct buf json = BUF_INIT;

    if (event != OP_EVENT_BOX_READY) {
        op_lose_track(op);
    } else if (message->error) {
        op_fail(op, message->error);
    } else {
        buf_printf(&json, "{\"name\": \"%s\"}", op->session->name);
        op_done(op, &json);
    }
}

const struct op_class op_create_class = {
    .verb = VERB_CREATE, .start = start_create, .event = create_event
};

/* Answered when the session is freed. */
static void start_close(struct op *op) {
    op_wait(op, OP_WAIT_CLOSE);
    session_close(op->session);
}

const struct op_class op_close_class = {
    .verb = VERB_CLOSE, .flags = OP_LEAVES_ASLEEP, .start = start_close
};
