/* SPDX-License-Identifier: Apache-2.0 */
/* Runs: checking the options, sending the request, and collecting or ending the run. client.h has
 * the model. */
#include "client/client.h"

#include <errno.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/protocol.h"

static int encode_run(struct buf *to, uint64_t plan, const struct rollbox_run_options *options,
    struct rollbox_error *error) {
    const struct request_command command = REQUEST_COMMAND_OF(options);

    if (options->stdin_data && options->stdio_fds)
        return request_invalid(error, "stdin_data and stdio_fds exclude each other: the first of "
                                      "stdio_fds is the standard input");
    for (size_t i = 0; options->stdio_fds && i < 3; i++) {
        int r = request_check_fd(options->stdio_fds[i], "stdio_fds", i, error);

        if (r < 0)
            return r;
    }
    wire_begin(to, PROTOCOL_RUN, 0);
    wire_add_u64(to, TAG_PLAN, plan);
    if (options->stdio_fds)
        wire_add_u64(to, TAG_STDIO, 1);
    if (options->is_code)
        wire_add_u64(to, TAG_CODE, 1);
    if (options->priority)
        wire_add_u64(to, TAG_PRIORITY, options->priority);
    return request_add_command(to, &command, error);
}

ROLLBOX_PUBLIC int rollbox_start(struct rollbox_engine *engine, struct rollbox_plan *plan,
    const struct rollbox_run_options *options, struct rollbox_run **ret_run,
    struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    if (!engine || !plan || !options || !ret_run || options->size != sizeof *options)
        return request_invalid(error, "engine, plan and options must be given, and options.size be "
                                      "sizeof(struct rollbox_run_options)");
    int r = connection_check_owner(engine->owner, error);
    if (r < 0)
        return r;
    if (plan->engine != engine)
        return request_invalid(error, "the plan was prepared by another engine");
    r = encode_run(&message, plan->id, options, error);
    if (r < 0)
        return r;
    struct rollbox_run *run = request_new_run(engine, options->callback, options->userdata);
    if (!run)
        return request_out_of_memory(error);
    run->isolation = plan->isolation;
    r = request_send_run(run, &message, options->stdin_data, options->stdin_length,
        options->stdio_fds, options->stdio_fds ? 3 : 0, error);
    if (r < 0) {
        request_destroy_run(run);
        return r;
    }
    *ret_run = run;
    return 0;
}

ROLLBOX_PUBLIC int rollbox_wait(
    struct rollbox_run *run, int64_t timeout_ms, const struct rollbox_result **ret_result) {
    int r = connection_check_owner(run->owner, NULL);

    if (r < 0)
        return r;
    struct rollbox_engine *engine = run->engine;
    if (engine) {
        pthread_mutex_lock(&engine->lock);
        r = connection_wait(engine, &run->pending, timeout_ms < 0 ? -1 : timeout_ms, true);
        pthread_mutex_unlock(&engine->lock);
    }
    if (r >= 0 && ret_result)
        *ret_result = result_public(run->result);
    return r;
}

static int send_kill(struct rollbox_engine *engine, uint64_t serial, enum rollbox_outcome as) {
    auto_buf struct buf message = BUF_INIT;

    wire_begin(&message, PROTOCOL_KILL, 0);
    wire_add_u64(&message, TAG_TARGET, serial);
    wire_add_u64(&message, TAG_OUTCOME, as);
    pthread_mutex_lock(&engine->lock);
    uint64_t own = ++engine->last_serial;
    pthread_mutex_unlock(&engine->lock);
    int r = connection_send(engine, &message, own, NULL, 0, NULL);
    /* An engine that is gone has killed it already. */
    return r == -ENOTCONN ? 0 : r;
}

ROLLBOX_PUBLIC int rollbox_kill(struct rollbox_run *run, enum rollbox_outcome as) {
    int r = connection_check_owner(run->owner, NULL);

    if (r < 0)
        return r;
    if (as != ROLLBOX_OUTCOME_OUTPUT_LIMIT && as != ROLLBOX_OUTCOME_TIMEOUT &&
        as != ROLLBOX_OUTCOME_ERROR)
        return -EINVAL;
    struct rollbox_engine *engine = run->engine;
    if (!engine)
        return 0;
    pthread_mutex_lock(&engine->lock);
    bool done = run->pending.done;
    pthread_mutex_unlock(&engine->lock);
    return done ? 0 : send_kill(engine, run->pending.serial, as);
}

ROLLBOX_PUBLIC struct rollbox_run *rollbox_run_free(struct rollbox_run *run) {
    if (!run)
        return NULL;
    struct rollbox_engine *engine = run->engine;
    if (!engine || run->owner != getpid()) {
        /* Of a closed engine, or in a forked child, where the locks mean nothing; only the lists
         * must not keep it. */
        list_remove(&run->of_ended);
        list_remove(&run->of_engine);
        if (--run->references == 0)
            request_destroy_run(run);
        return NULL;
    }
    uint64_t serial = run->pending.serial;
    pthread_mutex_lock(&engine->lock);
    bool kill = !run->pending.done && !run->detached;
    connection_forget(engine, &run->pending);
    list_remove(&run->of_ended);
    list_remove(&run->of_engine);
    /* The caller may free its userdata next: a callback in another thread must be through with it.
     */
    while (run->calling && !pthread_equal(run->caller, pthread_self()))
        pthread_cond_wait(&engine->quiet, &engine->lock);
    bool last = --run->references == 0;
    pthread_mutex_unlock(&engine->lock);
    if (last)
        request_destroy_run(run);
    if (kill)
        (void)send_kill(engine, serial, ROLLBOX_OUTCOME_ERROR);
    return NULL;
}
