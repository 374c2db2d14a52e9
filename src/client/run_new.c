/* SPDX-License-Identifier: Apache-2.0 */
/* A run as an object: made before it is sent, and freed with its result. */
#include <stdlib.h>

#include "client/client.h"

struct rollbox_run *request_new_run(
    struct rollbox_engine *engine, rollbox_callback callback, void *userdata) {
    struct rollbox_run *run = calloc(1, sizeof *run);

    if (!run)
        return NULL;
    run->pending.is_run = true;
    run->engine = engine;
    run->owner = engine->owner;
    run->references = 1;
    run->callback = callback;
    run->userdata = userdata;
    list_init(&run->of_ended);
    list_init(&run->of_engine);
    return run;
}

void request_destroy_run(struct rollbox_run *run) {
    result_free(run->result);
    shared_text_drop(run->own_isolation);
    free(run->text);
    free(run);
}
