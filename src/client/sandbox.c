/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: creating and naming them, their commands, their snapshots. sandbox.h has the model. */
#include "client/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "client/call.h"
#include "client/client.h"
#include "client/net_sets.h"
#include "client/record.h"

#define EXTRA_FDS_MAX 8
#define USER_MAX 256

/* ---- calls ---- */

/* A verb without fields beside the name. */
static int plain_call(struct rollbox_sandbox *sandbox, enum protocol_verb verb, char **ret_json,
    struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    sandbox_begin(&message, sandbox, verb);
    return sandbox_call(sandbox, &message, NULL, 0, ret_json, error);
}

/* ---- handles ---- */

ROLLBOX_PUBLIC int rollbox_sandbox_create(struct rollbox_engine *engine, struct rollbox_plan *plan,
    const struct rollbox_sandbox_options *options, struct rollbox_sandbox **ret_sandbox,
    struct rollbox_error *error) {
    const struct rollbox_sandbox_options plain = { .size = sizeof plain };
    auto_buf struct buf message = BUF_INIT;
    auto_free char *json = NULL;

    if (!engine || !plan || !ret_sandbox || (options && options->size != sizeof *options))
        return request_invalid(error, "engine and plan must be given, and options.size be "
                                      "sizeof(struct rollbox_sandbox_options)");
    if (!options)
        options = &plain;
    int r = connection_check_owner(engine->owner, error);
    if (r < 0)
        return r;
    if (plan->engine != engine)
        return request_invalid(error, "the plan was prepared by another engine");
    if (options->detached && engine->private_engine)
        return request_invalid(error,
            "a detached sandbox needs a shared engine: a private one ends with its connection");
    r = sandbox_encode_create(&message, plan, options, error);
    if (r >= 0)
        r = request_text(engine, &message, NULL, 0, &json, error);
    if (r >= 0)
        r = sandbox_of_answer(
            engine, json, 0, plan->isolation, !options->detached, ret_sandbox, error);
    return r;
}

ROLLBOX_PUBLIC int rollbox_sandbox_open(struct rollbox_engine *engine, const char *name,
    struct rollbox_sandbox **ret_sandbox, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;
    auto_free char *json = NULL;

    if (!engine || !name || !ret_sandbox)
        return request_invalid(error, "engine and name must be given");
    int r = connection_check_owner(engine->owner, error);
    if (r >= 0)
        r = sandbox_check_name(name, "name", error);
    if (r < 0)
        return r;
    wire_begin(&message, PROTOCOL_SANDBOX, 0);
    wire_add_u64(&message, TAG_VERB, VERB_OPEN);
    wire_add_text(&message, TAG_SANDBOX, name);
    r = request_text(engine, &message, NULL, 0, &json, error);
    return r < 0 ? r : sandbox_of_answer(engine, json, 0, NULL, false, ret_sandbox, error);
}

ROLLBOX_PUBLIC const char *rollbox_sandbox_name(const struct rollbox_sandbox *sandbox) {
    return sandbox->name;
}

ROLLBOX_PUBLIC int rollbox_sandbox_close(
    struct rollbox_sandbox *sandbox, struct rollbox_error *error) {
    return !sandbox ? 0 : rollbox_sandbox_finish(sandbox, NULL, error);
}

ROLLBOX_PUBLIC int rollbox_sandbox_finish(
    struct rollbox_sandbox *sandbox, char **ret_json, struct rollbox_error *error) {
    struct rollbox_error own = { .code = ROLLBOX_OK };
    auto_free char *json = NULL;

    if (!sandbox)
        return request_invalid(error, "a sandbox must be given");
    int r = plain_call(sandbox, VERB_CLOSE, &json, &own);
    bool lost = r < 0 && own.code == ROLLBOX_ERR_ENGINE_LOST && sandbox->lives_with_connection;
    if (lost || (r < 0 && own.code == ROLLBOX_ERR_NOT_FOUND))
        r = 0;
    if (r < 0 && error)
        *error = own;
    rollbox_sandbox_free(sandbox);
    if (r < 0 || !ret_json)
        return r;
    if (!json)
        json = strdup(lost ? "{\"lost\": true}" : "{}");
    *ret_json = TAKE_PTR(json);
    return *ret_json ? r : request_out_of_memory(error);
}

static int list(struct rollbox_engine *engine, enum protocol_verb verb, char **ret_json,
    struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    if (!engine || !ret_json)
        return request_invalid(error, "engine and ret_json must be given");
    int r = connection_check_owner(engine->owner, error);
    if (r < 0)
        return r;
    wire_begin(&message, PROTOCOL_SANDBOX, 0);
    wire_add_u64(&message, TAG_VERB, verb);
    return request_text(engine, &message, NULL, 0, ret_json, error);
}

ROLLBOX_PUBLIC int rollbox_sandbox_list(
    struct rollbox_engine *engine, char **ret_json, struct rollbox_error *error) {
    return list(engine, VERB_LIST, ret_json, error);
}

ROLLBOX_PUBLIC int rollbox_sandbox_stats(
    struct rollbox_engine *engine, char **ret_json, struct rollbox_error *error) {
    return list(engine, VERB_STATS, ret_json, error);
}

ROLLBOX_PUBLIC int rollbox_engine_debug(
    struct rollbox_engine *engine, char **ret_json, struct rollbox_error *error) {
    return list(engine, VERB_DEBUG, ret_json, error);
}

ROLLBOX_PUBLIC int rollbox_sandbox_query(struct rollbox_sandbox *sandbox, enum rollbox_query query,
    char **ret_json, struct rollbox_error *error) {
    switch (query) {
    case ROLLBOX_QUERY_INSPECT:
        return plain_call(sandbox, VERB_INSPECT, ret_json, error);
    case ROLLBOX_QUERY_PROCESSES:
        return plain_call(sandbox, VERB_PROCESSES, ret_json, error);
    case ROLLBOX_QUERY_TREE:
        return plain_call(sandbox, VERB_TREE, ret_json, error);
    case ROLLBOX_QUERY_EXECS:
        return plain_call(sandbox, VERB_EXECS, ret_json, error);
    case ROLLBOX_QUERY_STATS:
        return plain_call(sandbox, VERB_STATS, ret_json, error);
    case ROLLBOX_QUERY_NET_LOG:
        return plain_call(sandbox, VERB_NET_LOG, ret_json, error);
    }
    return request_invalid(error, "query is not a value of enum rollbox_query");
}

ROLLBOX_PUBLIC int rollbox_net_set(
    struct rollbox_sandbox *sandbox, const char *policy, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;
    auto_free char *filled = NULL;

    if (!policy)
        return request_invalid(error, "policy must be given");
    int r = net_sets_fill(policy, strlen(policy), &filled, error);
    if (r < 0)
        return r;
    sandbox_begin(&message, sandbox, VERB_NET_SET);
    wire_add_text(&message, TAG_POLICY, filled ? filled : policy);
    return sandbox_call(sandbox, &message, NULL, 0, NULL, error);
}

ROLLBOX_PUBLIC int rollbox_pause(struct rollbox_sandbox *sandbox, struct rollbox_error *error) {
    return plain_call(sandbox, VERB_PAUSE, NULL, error);
}

ROLLBOX_PUBLIC int rollbox_resume(struct rollbox_sandbox *sandbox, struct rollbox_error *error) {
    return plain_call(sandbox, VERB_RESUME, NULL, error);
}

/* ---- commands ---- */

/* The descriptors of a command, in the order of the protocol. */
struct descriptors {
    int fds[REQUEST_FDS_MAX];
    size_t n;
};

/* INPUT and STREAM with their descriptors. */
static int add_streams(struct buf *to, struct descriptors *descriptors, int input_fd,
    const int stream_fds[2], struct rollbox_error *error) {
    uint64_t streams = 0;
    int r = 0;

    if (input_fd >= 0) {
        r = request_check_fd(input_fd, "input_fd", REQUEST_NO_INDEX, error);
        descriptors->fds[descriptors->n++] = input_fd;
        wire_add_u64(to, TAG_INPUT, 1);
    }
    for (size_t i = 0; r >= 0 && i < 2; i++)
        if (stream_fds[i] >= 0) {
            r = request_check_fd(stream_fds[i], "stream_fds", i, error);
            descriptors->fds[descriptors->n++] = stream_fds[i];
            streams |= 1u << i;
        }
    if (streams)
        wire_add_u64(to, TAG_STREAM, streams);
    return r;
}

static int encode_exec(struct buf *to, struct descriptors *descriptors,
    const struct rollbox_sandbox *sandbox, const struct rollbox_exec_options *options,
    struct rollbox_error *error) {
    const struct request_command command = REQUEST_COMMAND_OF(options);

    if (options->stdin_data && options->input_fd >= 0)
        return request_invalid(
            error, "stdin_data and input_fd exclude each other: set input_fd to -1 to give data");
    if (options->stdin_data && options->terminal)
        return request_invalid(error,
            "stdin_data cannot be typed into a terminal: give the read end of a pipe as input_fd");
    if (options->user && (!options->user[0] || strlen(options->user) > USER_MAX))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "user must be a name or number of 1 to %d bytes: \"%.100s\"", USER_MAX, options->user);
    if (options->n_extra_fds > EXTRA_FDS_MAX || (options->n_extra_fds && !options->extra_fds))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "n_extra_fds is %zu; extra_fds has room for at most %d descriptors",
            options->n_extra_fds, EXTRA_FDS_MAX);
    wire_begin(to, PROTOCOL_EXEC, 0);
    wire_add_text(to, TAG_SANDBOX, sandbox->name);
    int r = request_add_command(to, &command, error);
    if (r >= 0)
        r = add_streams(to, descriptors, options->input_fd, options->stream_fds, error);
    for (size_t i = 0; r >= 0 && i < options->n_extra_fds; i++) {
        r = request_check_fd(options->extra_fds[i], "extra_fds", i, error);
        descriptors->fds[descriptors->n++] = options->extra_fds[i];
    }
    if (r < 0)
        return r;
    if (options->user)
        wire_add_text(to, TAG_USER, options->user);
    if (options->terminal)
        wire_add_u64(to, TAG_TERMINAL, call_terminal(options->terminal));
    if (options->n_extra_fds)
        wire_add_u64(to, TAG_EXTRA, options->n_extra_fds);
    if (options->detached)
        wire_add_u64(to, TAG_DETACHED, 1);
    if (options->no_trace)
        wire_add_u64(to, TAG_NO_TRACE, 1);
    return 0;
}

/* Sends the request of a run. A handle may be freed while its commands run, so the run has its own
 * copy of the isolation. */
static int start_exec(struct rollbox_sandbox *sandbox, struct buf *message, const void *stdin_data,
    size_t stdin_length, const struct descriptors *descriptors, struct rollbox_run *prepared,
    struct rollbox_run **ret_run, struct rollbox_error *error) {
    int r;

    if (!prepared)
        return request_out_of_memory(error);
    prepared->own_isolation = shared_text_hold(sandbox->isolation);
    prepared->isolation = prepared->own_isolation->text;
    r = request_send_run(
        prepared, message, stdin_data, stdin_length, descriptors->fds, descriptors->n, error);
    if (r < 0)
        request_destroy_run(prepared);
    else
        *ret_run = prepared;
    return r;
}

ROLLBOX_PUBLIC int rollbox_exec(struct rollbox_sandbox *sandbox,
    const struct rollbox_exec_options *options, struct rollbox_run **ret_run,
    struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;
    struct descriptors descriptors = { .n = 0 };

    if (!sandbox || !options || !ret_run || options->size != sizeof *options)
        return request_invalid(error, "sandbox and options must be given, and options.size be "
                                      "sizeof(struct rollbox_exec_options)");
    int r = connection_check_owner(sandbox->owner, error);
    if (r >= 0)
        r = encode_exec(&message, &descriptors, sandbox, options, error);
    if (r < 0)
        return r;
    struct rollbox_run *run =
        request_new_run(sandbox->engine, options->callback, options->userdata);
    if (run)
        run->detached = options->detached;
    return start_exec(sandbox, &message, options->stdin_data, options->stdin_length, &descriptors,
        run, ret_run, error);
}

ROLLBOX_PUBLIC int rollbox_attach(struct rollbox_sandbox *sandbox,
    const struct rollbox_attach_options *options, struct rollbox_run **ret_run,
    struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;
    struct descriptors descriptors = { .n = 0 };

    if (!sandbox || !options || !ret_run || options->size != sizeof *options)
        return request_invalid(error, "sandbox and options must be given, and options.size be "
                                      "sizeof(struct rollbox_attach_options)");
    int r = connection_check_owner(sandbox->owner, error);
    if (r >= 0)
        r = call_check_id(options->operation_id, error);
    if (r < 0)
        return r;
    wire_begin(&message, PROTOCOL_ATTACH, 0);
    wire_add_text(&message, TAG_SANDBOX, sandbox->name);
    wire_add(&message, TAG_EXEC, options->operation_id, strlen(options->operation_id));
    r = add_streams(&message, &descriptors, options->input_fd, options->stream_fds, error);
    if (r < 0)
        return r;
    struct rollbox_run *run =
        request_new_run(sandbox->engine, options->callback, options->userdata);
    /* Closing an attachment does not end the command. */
    if (run)
        run->detached = true;
    return start_exec(sandbox, &message, NULL, 0, &descriptors, run, ret_run, error);
}

ROLLBOX_PUBLIC int rollbox_signal(struct rollbox_sandbox *sandbox, const char *operation_id,
    int signal_number, enum rollbox_scope scope, struct rollbox_error *error) {
    struct rollbox_call_options call = { .call = ROLLBOX_CALL_SIGNAL,
        .operation_id = operation_id,
        .signal_number = signal_number,
        .scope = scope };

    return call_wait(sandbox, &call, NULL, error);
}

ROLLBOX_PUBLIC int rollbox_net_tally(struct rollbox_sandbox *sandbox, const char *operation_id,
    char **ret_json, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;
    int r = call_check_id(operation_id, error);

    if (r < 0)
        return r;
    sandbox_begin(&message, sandbox, VERB_NET_TALLY);
    wire_add(&message, TAG_EXEC, operation_id, strlen(operation_id));
    return sandbox_call(sandbox, &message, NULL, 0, ret_json, error);
}

ROLLBOX_PUBLIC int rollbox_resize(struct rollbox_sandbox *sandbox, const char *operation_id,
    const struct rollbox_terminal *terminal, struct rollbox_error *error) {
    struct rollbox_call_options call = {
        .call = ROLLBOX_CALL_RESIZE, .operation_id = operation_id, .terminal = terminal
    };

    return call_wait(sandbox, &call, NULL, error);
}

/* ---- snapshots ---- */

ROLLBOX_PUBLIC int rollbox_snapshot(struct rollbox_sandbox *sandbox, const char *name,
    const struct rollbox_state_options *options, char **ret_json, struct rollbox_error *error) {
    struct rollbox_call_options call = {
        .call = ROLLBOX_CALL_SNAPSHOT, .snapshot = name, .state = options
    };
    auto_free char *json = NULL;

    int r = call_wait(sandbox, &call, &json, error);
    if (r >= 0 && strstr(json, "\"recorded_files\""))
        record_note_files(sandbox, json);
    if (r >= 0 && ret_json)
        *ret_json = TAKE_PTR(json);
    return r;
}

/* Handles of the sandboxes that an answer names. */
static int take_forks(struct rollbox_sandbox *sandbox, const json_t *names, size_t n,
    struct rollbox_sandbox **ret_sandboxes, struct rollbox_error *error) {
    size_t made = 0;
    int r = 0;

    if (json_array_size(names) != n)
        return request_malformed(error);
    for (; r >= 0 && made < n; made++) {
        const char *name = sandbox_name_of(json_array_get(names, made));

        if (!name) {
            r = request_malformed(error);
            break;
        }
        ret_sandboxes[made] = sandbox_new_handle(sandbox->engine, name, sandbox->isolation->text);
        if (!ret_sandboxes[made]) {
            r = request_out_of_memory(error);
            break;
        }
        ret_sandboxes[made]->lives_with_connection = sandbox->lives_with_connection;
    }
    while (r < 0 && made > 0)
        (void)rollbox_sandbox_close(TAKE_PTR(ret_sandboxes[--made]), NULL);
    return r;
}

ROLLBOX_PUBLIC int rollbox_fork(struct rollbox_sandbox *sandbox, const char *snapshot, size_t n,
    const struct rollbox_state_options *options, struct rollbox_sandbox **ret_sandboxes,
    struct rollbox_error *error) {
    struct rollbox_call_options call = {
        .call = ROLLBOX_CALL_FORK, .snapshot = snapshot, .n = n, .state = options
    };
    auto_free char *json = NULL;

    if (!ret_sandboxes)
        return request_invalid(error, "ret_sandboxes must be given");
    int r = call_wait(sandbox, &call, &json, error);
    if (r < 0)
        return r;
    json_t *answer = json_loads(json, 0, NULL);
    r = take_forks(sandbox, json_object_get(answer, "sandboxes"), n, ret_sandboxes, error);
    json_decref(answer);
    for (size_t i = 0; r >= 0 && options && options->attached && i < n; i++)
        ret_sandboxes[i]->lives_with_connection = true;
    return r;
}

static int add_group(struct buf *to, struct rollbox_sandbox *const *sandboxes, size_t n_sandboxes,
    size_t n, const struct rollbox_state_options *options, struct rollbox_error *error) {
    if (!sandboxes || n_sandboxes < 1 || n < 1 || (options && options->size != sizeof *options))
        return request_invalid(error, "sandboxes and how many forks of each must be given");
    sandbox_begin(to, sandboxes[0], VERB_FORK_GROUP);
    for (size_t i = 1; i < n_sandboxes; i++) {
        if (sandboxes[i]->engine != sandboxes[0]->engine)
            return request_invalid(error, "all sandboxes must be of one engine");
        wire_add_text(to, TAG_SANDBOX, sandboxes[i]->name);
    }
    wire_add_u64(to, TAG_NUMBER, n);
    if (options && options->processes == ROLLBOX_PROCESSES_DROP)
        wire_add_u64(to, TAG_DROPS, 1);
    if (options && options->same_seed)
        wire_add_u64(to, TAG_SAME_SEED, 1);
    if (options && options->attached)
        wire_add_u64(to, TAG_ATTACHED, 1);
    return 0;
}

ROLLBOX_PUBLIC int rollbox_fork_group(struct rollbox_sandbox *const *sandboxes, size_t n_sandboxes,
    size_t n, const struct rollbox_state_options *options, struct rollbox_sandbox **ret_sandboxes,
    struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;
    auto_free char *json = NULL;
    size_t made = 0;

    if (!ret_sandboxes)
        return request_invalid(error, "ret_sandboxes must be given");
    int r = add_group(&message, sandboxes, n_sandboxes, n, options, error);
    if (r >= 0)
        r = sandbox_call(sandboxes[0], &message, NULL, 0, &json, error);
    if (r < 0)
        return r;
    json_t *answer = json_loads(json, 0, NULL), *lists = json_object_get(answer, "sandboxes");
    if (json_array_size(lists) != n_sandboxes)
        r = request_malformed(error);
    for (; r >= 0 && made < n_sandboxes; made++) {
        r = take_forks(
            sandboxes[made], json_array_get(lists, made), n, ret_sandboxes + made * n, error);
        for (size_t i = 0; r >= 0 && options && options->attached && i < n; i++)
            ret_sandboxes[made * n + i]->lives_with_connection = true;
    }
    for (size_t i = 0; r < 0 && made > 0 && i < (made - 1) * n; i++)
        (void)rollbox_sandbox_close(TAKE_PTR(ret_sandboxes[i]), NULL);
    json_decref(answer);
    return r;
}

ROLLBOX_PUBLIC int rollbox_reset(struct rollbox_sandbox *sandbox, const char *snapshot,
    const struct rollbox_state_options *options, struct rollbox_error *error) {
    struct rollbox_call_options call = {
        .call = ROLLBOX_CALL_RESET, .snapshot = snapshot, .state = options
    };

    return call_wait(sandbox, &call, NULL, error);
}

ROLLBOX_PUBLIC int rollbox_hibernate(struct rollbox_sandbox *sandbox,
    const struct rollbox_state_options *options, struct rollbox_error *error) {
    struct rollbox_call_options call = { .call = ROLLBOX_CALL_HIBERNATE, .state = options };

    return call_wait(sandbox, &call, NULL, error);
}

ROLLBOX_PUBLIC int rollbox_wake(struct rollbox_sandbox *sandbox,
    const struct rollbox_state_options *options, struct rollbox_error *error) {
    struct rollbox_call_options call = { .call = ROLLBOX_CALL_WAKE, .state = options };

    return call_wait(sandbox, &call, NULL, error);
}

/* Each of the descriptors in the place that the answer names. */
static int take_claimed(
    const json_t *rows, const int *fds, size_t n_fds, int *ret_fds, struct rollbox_error *error) {
    for (size_t i = 0; i < ROLLBOX_CLAIM_FDS; i++)
        ret_fds[i] = -1;
    for (size_t i = 0; i < n_fds; i++) {
        json_int_t slot = json_integer_value(json_object_get(json_array_get(rows, i), "slot"));

        if (json_array_size(rows) != n_fds || slot < 0 || slot >= ROLLBOX_CLAIM_FDS ||
            ret_fds[slot] >= 0)
            return request_malformed(error);
        ret_fds[slot] = fds[i];
    }
    return 0;
}

ROLLBOX_PUBLIC int rollbox_claim(struct rollbox_sandbox *sandbox, const char *operation_id,
    unsigned wanted, int ret_fds[ROLLBOX_CLAIM_FDS], struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;
    auto_free char *json = NULL;
    int fds[REQUEST_FDS_MAX];
    size_t n_fds = 0;

    if (!sandbox || !ret_fds)
        return request_invalid(error, "sandbox and ret_fds must be given");
    int r = connection_check_owner(sandbox->owner, error);
    if (r >= 0)
        r = call_check_id(operation_id, error);
    if (r < 0)
        return r;
    sandbox_begin(&message, sandbox, VERB_CLAIM);
    wire_add(&message, TAG_EXEC, operation_id, strlen(operation_id));
    wire_add_u64(&message, TAG_NUMBER, wanted);
    r = request_text_fds(sandbox->engine, &message, fds, &n_fds, &json, error);
    if (r < 0)
        return r;
    json_t *answer = json_loads(json, 0, NULL);
    r = take_claimed(json_object_get(answer, "fds"), fds, n_fds, ret_fds, error);
    json_decref(answer);
    while (r < 0 && n_fds)
        close(fds[--n_fds]);
    return r;
}

ROLLBOX_PUBLIC int rollbox_snapshot_drop(
    struct rollbox_sandbox *sandbox, const char *snapshot, struct rollbox_error *error) {
    struct rollbox_call_options call = { .call = ROLLBOX_CALL_DROP, .snapshot = snapshot };

    return call_wait(sandbox, &call, NULL, error);
}

ROLLBOX_PUBLIC int rollbox_snapshot_show(struct rollbox_sandbox *sandbox, const char *snapshot,
    char **ret_json, struct rollbox_error *error) {
    struct rollbox_call_options call = { .call = ROLLBOX_CALL_SHOW, .snapshot = snapshot };

    return call_wait(sandbox, &call, ret_json, error);
}

ROLLBOX_PUBLIC int rollbox_snapshot_verify(struct rollbox_sandbox *sandbox, const char *snapshot,
    char **ret_json, struct rollbox_error *error) {
    struct rollbox_call_options call = { .call = ROLLBOX_CALL_VERIFY, .snapshot = snapshot };

    return call_wait(sandbox, &call, ret_json, error);
}

ROLLBOX_PUBLIC int rollbox_diff(struct rollbox_sandbox *sandbox, const char *from, const char *to,
    bool text, char **ret_json, struct rollbox_error *error) {
    return sandbox_diff(sandbox, from, to, text, false, ret_json, error);
}

ROLLBOX_PUBLIC int rollbox_commit(struct rollbox_sandbox *sandbox, const char *path, bool force,
    char **ret_json, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    if (path && (path[0] != '/' || strlen(path) > 4095))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "path must be an absolute path of at most 4095 bytes: \"%.200s\"", path);
    sandbox_begin(&message, sandbox, VERB_COMMIT);
    if (path)
        wire_add_text(&message, TAG_PATH, path);
    if (force)
        wire_add_u64(&message, TAG_FORCE, 1);
    return sandbox_call(sandbox, &message, NULL, 0, ret_json, error);
}

static int cannot_write(const char *path, int error_number, struct rollbox_error *error) {
    return error_set(error, error_code_of(error_number, ROLLBOX_ERR_IO), error_number, "arguments",
        "cannot write %.300s: %s", path, strerror(error_number));
}

/* Has the engine write a snapshot to a descriptor. */
static int export_to(struct rollbox_sandbox *sandbox, const char *snapshot, bool live, int fd,
    struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    sandbox_begin(&message, sandbox, VERB_EXPORT);
    if (live)
        wire_add_u64(&message, TAG_LIVE, 1);
    int r = sandbox_add_snapshot(&message, TAG_SNAPSHOT, snapshot, "snapshot", error);
    return r < 0 ? r : sandbox_call(sandbox, &message, &fd, 1, NULL, error);
}

static int export_file(struct rollbox_sandbox *sandbox, const char *snapshot, bool live,
    const char *host_path, struct rollbox_error *error) {
    auto_buf struct buf beside = BUF_INIT;
    struct stat st;

    if (!host_path || !host_path[0])
        return request_invalid(error, "host_path must be given");
    int r = connection_check_owner(sandbox->owner, error);
    if (r < 0)
        return r;
    if (stat(host_path, &st) == 0 && !S_ISREG(st.st_mode)) {
        auto_close int fd = open(host_path, O_WRONLY | O_CLOEXEC);

        return fd < 0 ? cannot_write(host_path, errno, error)
                      : export_to(sandbox, snapshot, live, fd, error);
    }
    /* Written beside the destination and renamed when complete: the name always refers to the old
     * file or to a complete snapshot. */
    buf_printf(&beside, "%s.rollbox-%d-%zx", host_path, (int)getpid(), (size_t)(uintptr_t)&beside);
    if (buf_failed(&beside))
        return request_out_of_memory(error);
    auto_close int fd = open(beside.data, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return cannot_write(host_path, errno, error);
    r = export_to(sandbox, snapshot, live, fd, error);
    if (r >= 0 && (fsync(fd) < 0 || rename(beside.data, host_path) < 0))
        r = cannot_write(host_path, errno, error);
    if (r < 0)
        (void)unlink(beside.data);
    return r;
}

ROLLBOX_PUBLIC int rollbox_export(struct rollbox_sandbox *sandbox, const char *snapshot,
    const char *host_path, struct rollbox_error *error) {
    return export_file(sandbox, snapshot, false, host_path, error);
}

ROLLBOX_PUBLIC int rollbox_export_live(struct rollbox_sandbox *sandbox, const char *snapshot,
    const char *host_path, struct rollbox_error *error) {
    return export_file(sandbox, snapshot, true, host_path, error);
}
