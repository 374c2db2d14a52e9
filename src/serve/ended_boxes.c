/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sandboxes that have ended by themselves: idle for too long, at the end of their time, or removed
 * by another client of their engine. Their engine tells nobody, so the server asks for those that
 * are missing among what it measures. Otherwise they would count in their tenant's quotas for ever.
 */
#include "serve/ended_boxes.h"

#include "serve/engine_link.h"

static struct server *the_server;

static void on_inspected(struct rollbox_run *run, void *userdata) {
    struct box *box = userdata;
    const struct rollbox_result *result;

    if (rollbox_wait(run, 0, &result) >= 0 && result->outcome == ROLLBOX_OUTCOME_ERROR &&
        result->error.code == ROLLBOX_ERR_NOT_FOUND)
        box_forget(the_server, box);
    box_unref(box);
    rollbox_run_free(run);
}

void ended_boxes_ask(struct server *server, struct box *box) {
    const struct rollbox_call_options call = { .size = sizeof call,
        .call = ROLLBOX_CALL_INSPECT,
        .sandbox = rollbox_sandbox_name(box->handle),
        .callback = on_inspected,
        .userdata = box };
    struct rollbox_run *run;

    the_server = server;
    box->references++;
    if (rollbox_call_start(box->link->engine, &call, &run, NULL) < 0)
        box_unref(box);
}
