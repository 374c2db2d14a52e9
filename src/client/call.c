/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls on sessions, encoded in one place: each is one SANDBOX message and one TEXT answer. The
 * blocking functions of rollbox.h wait for the answer (sandbox_call). rollbox_call_start does not
 * wait: the call is then a struct rollbox_run whose result is a text, so that waiting, callbacks,
 * the loss of the engine and freeing are those of runs.
 */
#include "client/call.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "client/client.h"
#include "client/sandbox.h"

#define FORKS_MAX 100000

static const enum protocol_verb verbs[] = {
    [ROLLBOX_CALL_CREATE] = VERB_CREATE,
    [ROLLBOX_CALL_OPEN] = VERB_OPEN,
    [ROLLBOX_CALL_LIST] = VERB_LIST,
    [ROLLBOX_CALL_STATS] = VERB_STATS,
    [ROLLBOX_CALL_INSPECT] = VERB_INSPECT,
    [ROLLBOX_CALL_PROCESSES] = VERB_PROCESSES,
    [ROLLBOX_CALL_TREE] = VERB_TREE,
    [ROLLBOX_CALL_EXECS] = VERB_EXECS,
    [ROLLBOX_CALL_NET_LOG] = VERB_NET_LOG,
    [ROLLBOX_CALL_CLOSE] = VERB_CLOSE,
    [ROLLBOX_CALL_PAUSE] = VERB_PAUSE,
    [ROLLBOX_CALL_RESUME] = VERB_RESUME,
    [ROLLBOX_CALL_HIBERNATE] = VERB_HIBERNATE,
    [ROLLBOX_CALL_WAKE] = VERB_WAKE,
    [ROLLBOX_CALL_SNAPSHOT] = VERB_SNAPSHOT,
    [ROLLBOX_CALL_FORK] = VERB_FORK,
    [ROLLBOX_CALL_RESET] = VERB_RESET,
    [ROLLBOX_CALL_DROP] = VERB_DROP,
    [ROLLBOX_CALL_SHOW] = VERB_SHOW,
    [ROLLBOX_CALL_VERIFY] = VERB_VERIFY,
    [ROLLBOX_CALL_DIFF] = VERB_DIFF,
    [ROLLBOX_CALL_SIGNAL] = VERB_SIGNAL,
    [ROLLBOX_CALL_RESIZE] = VERB_RESIZE,
};

int call_check_id(const char *id, struct rollbox_error *error) {
    size_t length = id ? strlen(id) : 0;

    if (length < 1 || length > 64)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "operation_id has %zu bytes; 1 to 64 are allowed", length);
    return 0;
}

uint64_t call_terminal(const struct rollbox_terminal *terminal) {
    return (uint64_t)terminal->rows << 16 | terminal->columns;
}

static int add_state(
    struct buf *to, const struct rollbox_state_options *options, struct rollbox_error *error) {
    if (!options)
        return 0;
    if (options->size != sizeof *options || options->processes < 0 ||
        options->processes > ROLLBOX_PROCESSES_DROP)
        return request_invalid(error, "options.size must be sizeof(struct rollbox_state_options), "
                                      "and processes be of enum rollbox_processes");
    if (options->processes == ROLLBOX_PROCESSES_DROP)
        wire_add_u64(to, TAG_DROPS, 1);
    return 0;
}

static int add_fork(
    struct buf *to, const struct rollbox_call_options *options, struct rollbox_error *error) {
    if (options->n < 1 || options->n > FORKS_MAX)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "n is %zu; 1 to %d sandboxes can be forked at once", options->n, FORKS_MAX);
    wire_add_u64(to, TAG_NUMBER, options->n);
    if (options->state && options->state->same_seed)
        wire_add_u64(to, TAG_SAME_SEED, 1);
    if (options->state && options->state->attached)
        wire_add_u64(to, TAG_ATTACHED, 1);
    return 0;
}

static int add_diff(
    struct buf *to, const struct rollbox_call_options *options, struct rollbox_error *error) {
    int r = sandbox_add_snapshot(to, TAG_TO, options->to, "to", error);

    if (r >= 0 && options->text)
        wire_add_u64(to, TAG_TEXTUAL, 1);
    return r;
}

static int add_signal(
    struct buf *to, const struct rollbox_call_options *options, struct rollbox_error *error) {
    int number = options->signal_number;
    int r = options->operation_id ? call_check_id(options->operation_id, error) : 0;

    if (r < 0)
        return r;
    if (number < 1 || number > SIGRTMAX)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "signal_number is %d; signals are 1 to %d", number, SIGRTMAX);
    if (!options->operation_id && number != SIGKILL)
        return request_invalid(error, "a signal for all processes of a sandbox must be SIGKILL; "
                                      "name a command (operation_id) for others");
    if (options->scope < ROLLBOX_SCOPE_MAIN || options->scope > ROLLBOX_SCOPE_GROUP)
        return request_invalid(error, "scope is not a value of enum rollbox_scope");
    if (options->operation_id)
        wire_add(to, TAG_EXEC, options->operation_id, strlen(options->operation_id));
    wire_add_u64(to, TAG_NUMBER, (uint64_t)number);
    wire_add_u64(to, TAG_SCOPE, options->scope);
    return 0;
}

static int add_resize(
    struct buf *to, const struct rollbox_call_options *options, struct rollbox_error *error) {
    int r = call_check_id(options->operation_id, error);

    if (r < 0)
        return r;
    if (!options->terminal)
        return request_invalid(error, "terminal must be given");
    wire_add(to, TAG_EXEC, options->operation_id, strlen(options->operation_id));
    wire_add_u64(to, TAG_TERMINAL, call_terminal(options->terminal));
    return 0;
}

/* The fields that depend on the call. */
static int add_fields(
    struct buf *to, const struct rollbox_call_options *options, struct rollbox_error *error) {
    bool names = options->call == ROLLBOX_CALL_SNAPSHOT;
    int r = sandbox_add_snapshot(to, names ? TAG_NAME : TAG_SNAPSHOT, options->snapshot,
        names ? "the snapshot's name" : "snapshot", error);

    if (r >= 0)
        r = add_state(to, options->state, error);
    if (r < 0)
        return r;
    switch ((int)options->call) {
    case ROLLBOX_CALL_FORK:
        return add_fork(to, options, error);
    case ROLLBOX_CALL_DIFF:
        return add_diff(to, options, error);
    case ROLLBOX_CALL_SIGNAL:
        return add_signal(to, options, error);
    case ROLLBOX_CALL_RESIZE:
        return add_resize(to, options, error);
    case ROLLBOX_CALL_DROP:
        return options->snapshot ? 0 : request_invalid(error, "snapshot must be given");
    default:
        return 0;
    }
}

int call_encode(
    struct buf *to, const struct rollbox_call_options *options, struct rollbox_error *error) {
    bool of_engine = options->call == ROLLBOX_CALL_LIST ||
                     (options->call == ROLLBOX_CALL_STATS && !options->sandbox);

    if (options->call != ROLLBOX_CALL_STATUS &&
        ((size_t)options->call >= ARRAY_SIZE(verbs) || verbs[options->call] == VERB_NONE))
        return request_invalid(error, "call is not a value of enum rollbox_call");
    if (options->call == ROLLBOX_CALL_CREATE)
        return sandbox_encode_create(to, options->plan, options->create, error);
    if (options->call == ROLLBOX_CALL_STATUS) {
        wire_begin(to, PROTOCOL_STATUS, 0);
        return 0;
    }
    wire_begin(to, PROTOCOL_SANDBOX, 0);
    wire_add_u64(to, TAG_VERB, verbs[options->call]);
    if (of_engine)
        return 0;
    if (!options->sandbox)
        return request_invalid(error, "sandbox must be given");
    int r = sandbox_check_name(options->sandbox, "sandbox", error);
    if (r < 0)
        return r;
    wire_add_text(to, TAG_SANDBOX, options->sandbox);
    return add_fields(to, options, error);
}

int call_wait(struct rollbox_sandbox *sandbox, struct rollbox_call_options *options,
    char **ret_json, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    options->size = sizeof *options;
    options->sandbox = sandbox->name;
    int r = call_encode(&message, options, error);
    return r < 0 ? r : sandbox_call(sandbox, &message, NULL, 0, ret_json, error);
}

/* ---- without waiting ---- */

static int check_create(struct rollbox_engine *engine, const struct rollbox_call_options *options,
    struct rollbox_error *error) {
    if (!options->plan || !options->create || options->create->size != sizeof *options->create)
        return request_invalid(error, "plan and create must be given, and create.size be "
                                      "sizeof(struct rollbox_sandbox_options)");
    if (options->plan->engine != engine)
        return request_invalid(error, "the plan was prepared by another engine");
    if (options->create->detached && engine->private_engine)
        return request_invalid(error,
            "a detached sandbox needs a shared engine: a private one ends with its connection");
    return 0;
}

ROLLBOX_PUBLIC int rollbox_call_start(struct rollbox_engine *engine,
    const struct rollbox_call_options *options, struct rollbox_run **ret_run,
    struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    if (!engine || !options || !ret_run || options->size != sizeof *options)
        return request_invalid(error, "engine and options must be given, and options.size be "
                                      "sizeof(struct rollbox_call_options)");
    int r = connection_check_owner(engine->owner, error);
    if (r >= 0 && options->call == ROLLBOX_CALL_CREATE)
        r = check_create(engine, options, error);
    if (r >= 0)
        r = call_encode(&message, options, error);
    if (r < 0)
        return r;
    struct rollbox_run *run = request_new_run(engine, options->callback, options->userdata);
    if (!run)
        return request_out_of_memory(error);
    run->is_call = true;
    /* Freeing it forgets the answer; there is no command to kill. */
    run->detached = true;
    run->attached_sandboxes = options->call != ROLLBOX_CALL_CREATE || !options->create->detached;
    if (options->call == ROLLBOX_CALL_CREATE)
        run->isolation = options->plan->isolation;
    r = request_send_run(run, &message, NULL, 0, NULL, 0, error);
    if (r < 0)
        request_destroy_run(run);
    else
        *ret_run = run;
    return r;
}

ROLLBOX_PUBLIC const char *rollbox_call_json(const struct rollbox_run *run) {
    return run->text;
}

ROLLBOX_PUBLIC int rollbox_call_sandbox(const struct rollbox_run *run, size_t i,
    struct rollbox_sandbox **ret_sandbox, struct rollbox_error *error) {
    if (!run->engine || !run->text)
        return request_invalid(error, "the call has no answer");
    return sandbox_of_answer(
        run->engine, run->text, i, run->isolation, run->attached_sandboxes, ret_sandbox, error);
}
