/* SPDX-License-Identifier: Apache-2.0 */
/* Calls for commands that are on their way; late_call.h has the model. */
#include "serve/late_call.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/engine_link.h"

#define LATE_NS 5000000
#define LATE_TRIES 1000u
#define LATE_MAX 256u /* of a sandbox */

struct late_call {
    struct loop_timer timer;
    struct server *server;
    struct box *box;
    struct rollbox_call_options options;
    struct rollbox_terminal terminal;
    struct rollbox_run *run;
    struct exchange *answers; /* once the call is done; NULL: none */
    char id[65];
    unsigned tries;
};

static void try_call(struct loop_timer *timer);

static void free_call(struct late_call *call) {
    struct exchange *answers = call->answers;

    rollbox_run_free(call->run);
    call->box->n_late_calls--;
    box_unref(call->box);
    free(call);
    if (answers)
        exchange_answer(answers, 200, "{}", NULL);
}

static void on_called(struct rollbox_run *run, void *userdata) {
    struct late_call *call = userdata;
    const struct rollbox_result *result;
    bool is_early = rollbox_wait(run, 0, &result) >= 0 &&
                    result->outcome == ROLLBOX_OUTCOME_ERROR &&
                    (result->error.error_number == EAGAIN || result->error.error_number == ENOTTY);

    call->run = rollbox_run_free(call->run);
    if (!is_early || call->tries++ == LATE_TRIES ||
        loop_timer_set(call->server->loop, &call->timer, clock_now_ns() + LATE_NS, try_call) < 0)
        free_call(call);
}

static void try_call(struct loop_timer *timer) {
    struct late_call *call = container_of(timer, struct late_call, timer);

    if (rollbox_call_start(call->box->link->engine, &call->options, &call->run, NULL) < 0)
        free_call(call);
}

static bool start(struct exchange *exchange, const char *id,
    const struct rollbox_call_options *options, bool answers) {
    struct late_call *call =
        exchange->box->n_late_calls < LATE_MAX ? calloc(1, sizeof *call) : NULL;

    if (!call)
        return false;
    call->server = exchange->server;
    call->box = exchange->box;
    call->box->references++;
    call->box->n_late_calls++;
    call->options = *options;
    (void)snprintf(call->id, sizeof call->id, "%s", id);
    if (options->terminal)
        call->terminal = *options->terminal;
    call->options.size = sizeof call->options;
    call->options.terminal = options->terminal ? &call->terminal : NULL;
    call->options.sandbox = rollbox_sandbox_name(call->box->handle);
    call->options.operation_id = call->id;
    call->options.callback = on_called;
    call->options.userdata = call;
    call->answers = answers ? exchange : NULL;
    try_call(&call->timer);
    return true;
}

bool late_call_start(
    struct exchange *exchange, const char *id, const struct rollbox_call_options *options) {
    return start(exchange, id, options, false);
}

void late_call_answer(
    struct exchange *exchange, const char *id, const struct rollbox_call_options *options) {
    if (!start(exchange, id, options, true))
        exchange_problem(exchange, 503, "resource_exhausted",
            "too many calls of this sandbox are on their way; try again");
}
