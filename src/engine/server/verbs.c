/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request is decoded by one table (tag -> place in struct verb_request) and carried out by
 * another (verb -> handler).
 *
 * A handler answers at once, through `reply`, or adds an operation to the session, which replies
 * when it is done. A request that a hibernated sandbox cannot answer from its record wakes it
 * first: the request is kept unchanged and handled again then.
 */
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/dirty_tracking.h"
#include "engine/command/command.h"
#include "engine/command/result.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/hibernate/hibernate.h"
#include "engine/server/fingerprint.h"
#include "engine/server/verbs.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/network/gateway.h"
#include "engine/core/log.h"
#include "engine/ops/auto_snapshot.h"
#include "engine/pool/owned_image.h"
#include "engine/pool/profile.h"
#include "engine/protocol.h"
#include "engine/record/record.h"
#include "engine/server/debug.h"
#include "engine/server/status_json.h"
#include "engine/session/exec.h"
#include "engine/session/op.h"
#include "engine/ops/peers.h"
#include "engine/ops/publish.h"
#include "engine/core/verb_names.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "engine/snapshot/layer.h"

#define MAX_TIMEOUT_MS (INT64_MAX / 4000000)
#define OUT_OF_MEMORY(error)                                                                       \
    error_set(                                                                                     \
        error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "the engine is out of memory")

/* ---- decoding ---- */

struct verb_request {
    uint64_t verb, plan, idle, ttl, lifetime, hibernate, auto_snapshot, number, scope, terminal;
    uint64_t detached, textual, force, digests, same_seed, drops, attached, live; /* 0 or not */
    const char *sandbox, *name, *snapshot, *to, *path;
    struct wire_field operation, exec;
};

enum field_kind { FIELD_UNKNOWN, FIELD_NUMBER, FIELD_TEXT, FIELD_BYTES };

/* `offset`: in struct verb_request; NOT_HERE: the record reads the field (record.c). */
#define NOT_HERE SIZE_MAX
#define NUMBER(member)                                                                             \
    { FIELD_NUMBER, offsetof(struct verb_request, member) }
#define TEXT(member)                                                                               \
    { FIELD_TEXT, offsetof(struct verb_request, member) }
#define BYTES(member)                                                                              \
    { FIELD_BYTES, offsetof(struct verb_request, member) }

static const struct field {
    enum field_kind kind;
    size_t offset;
} fields[] = {
    [TAG_SANDBOX] = TEXT(sandbox),
    [TAG_NAME] = TEXT(name),
    [TAG_SNAPSHOT] = TEXT(snapshot),
    [TAG_TO] = TEXT(to),
    [TAG_PATH] = TEXT(path),
    [TAG_POLICY] = TEXT(name), /* NET_SET has no name */
    [TAG_OPERATION] = BYTES(operation),
    [TAG_EXEC] = BYTES(exec),
    [TAG_VERB] = NUMBER(verb),
    [TAG_PLAN] = NUMBER(plan),
    [TAG_IDLE] = NUMBER(idle),
    [TAG_TTL] = NUMBER(ttl),
    [TAG_LIFETIME] = NUMBER(lifetime),
    [TAG_HIBERNATE] = NUMBER(hibernate),
    [TAG_CHECKPOINTS] = NUMBER(auto_snapshot),
    [TAG_NUMBER] = NUMBER(number),
    [TAG_SCOPE] = NUMBER(scope),
    [TAG_TERMINAL] = NUMBER(terminal),
    [TAG_DETACHED] = NUMBER(detached),
    [TAG_SAME_SEED] = NUMBER(same_seed),
    [TAG_TEXTUAL] = NUMBER(textual),
    [TAG_FORCE] = NUMBER(force),
    [TAG_DIGESTS] = NUMBER(digests),
    [TAG_DROPS] = NUMBER(drops),
    [TAG_ATTACHED] = NUMBER(attached),
    [TAG_LIVE] = NUMBER(live),
    [TAG_TEXT_DATA] = { FIELD_TEXT, NOT_HERE },
    [TAG_RULE_NAME] = { FIELD_TEXT, NOT_HERE },
    [TAG_RULE_PATTERN] = { FIELD_TEXT, NOT_HERE },
    [TAG_TIMEOUT] = { FIELD_NUMBER, NOT_HERE },
    [TAG_OUTPUT_LIMIT] = { FIELD_NUMBER, NOT_HERE },
    [TAG_OUTCOME] = { FIELD_NUMBER, NOT_HERE },
    [TAG_EXIT_CODE] = { FIELD_NUMBER, NOT_HERE },
    [TAG_SIGNAL] = { FIELD_NUMBER, NOT_HERE },
    [TAG_STDOUT_TRUNCATED] = { FIELD_NUMBER, NOT_HERE },
    [TAG_STDERR_TRUNCATED] = { FIELD_NUMBER, NOT_HERE },
    [TAG_WALL_NS] = { FIELD_NUMBER, NOT_HERE },
    [TAG_MAX_STREAM] = { FIELD_NUMBER, NOT_HERE },
    [TAG_MAX_FILE] = { FIELD_NUMBER, NOT_HERE },
    [TAG_ENV_VALUES] = { FIELD_NUMBER, NOT_HERE },
    [TAG_ERROR_CODE] = { FIELD_NUMBER, NOT_HERE },
    [TAG_BYTES] = { FIELD_NUMBER, NOT_HERE },
    [TAG_FILES] = { FIELD_NUMBER, NOT_HERE },
};

/* The value goes to its place in the request. 0 or -EBADMSG. */
static int decode_field(const struct wire_field *field, struct verb_request *request) {
    const struct field *known = field->tag < ARRAY_SIZE(fields) ? &fields[field->tag] : &fields[0];
    char *place = known->offset == NOT_HERE ? NULL : (char *)request + known->offset;
    const char *text = wire_text(field);
    uint64_t number;

    switch (known->kind) {
    case FIELD_NUMBER:
        if (wire_u64(field, &number) < 0)
            return -EBADMSG;
        if (place)
            memcpy(place, &number, sizeof number);
        return 0;
    case FIELD_TEXT:
        if (!text)
            return -EBADMSG;
        if (place)
            memcpy(place, &text, sizeof text);
        return 0;
    case FIELD_BYTES:
        if (field->length < 1 || field->length > 64)
            return -EBADMSG;
        memcpy(place, field, sizeof *field);
        return 0;
    case FIELD_UNKNOWN:
        break;
    }
    return -EBADMSG;
}

static int decode(const struct wire_message *message, struct verb_request *request) {
    struct wire_field field;
    size_t position = 0;
    int r = 0;

    while (r == 0 && wire_next(message->data, message->length, &position, &field) > 0)
        r = decode_field(&field, request);
    return r;
}

/* ---- handlers ---- */

/* A request while it is handled. */
struct call {
    struct client *client;
    struct wire_message *message;
    const struct verb_request *request;
    struct session *session; /* NULL: the verb is about none */
    struct buf *reply;       /* JSON */
    struct rollbox_error *error;
};

/* The result of a handler that does not fail (-errno, with `error` set). */
enum { REPLY_NOW, REPLY_LATER };

/* Copies the options of the request, by verb. 0 or -ENOMEM. */
static int set_options(struct op *op, const struct verb_request *request) {
    op->request.drops = request->drops;
    op->request.name = request->name ? strdup(request->name) : NULL;
    if (request->name && !op->request.name)
        return -ENOMEM;
    switch ((int)op->verb) {
    case VERB_FORK:
        op->fork.count = (unsigned)request->number;
        op->fork.same_seed = request->same_seed;
        op->fork.attached = request->attached;
        break;
    case VERB_DIFF:
        op->diff.textual = request->textual;
        op->diff.digests = request->digests;
        break;
    case VERB_COMMIT:
        op->commit.force = request->force;
        op->commit.path = request->path ? strdup(request->path) : NULL;
        return request->path && !op->commit.path ? -ENOMEM : 0;
    case VERB_FILES:
        op->files.alone = request->force;
        break;
    case VERB_CONNECT:
        op->port = (unsigned)request->number;
        break;
    case VERB_EXPORT:
        op->export.takes_live = request->live;
        break;
    default:
        break;
    }
    return 0;
}

static struct op *add_operation(struct call *call) {
    const struct verb_request *request = call->request;
    struct op *op = op_new(call->session, (enum protocol_verb)request->verb, call->client,
        call->message->header.serial);

    if (!op)
        return NULL;
    if (set_options(op, request) < 0)
        return op_free(op);
    return op;
}

/* A digest of a CREATE request. */
static uint64_t create_fingerprint(
    const struct verb_request *request, const struct profile *profile) {
    const uint64_t numbers[] = { request->idle, request->ttl, request->lifetime, request->hibernate,
        request->detached, request->auto_snapshot };
    const char *name = request->sandbox ? request->sandbox : "";
    uint64_t of = fingerprint_add(FINGERPRINT_BEGIN, numbers, sizeof numbers);

    of = fingerprint_add(of, name, strlen(name) + 1);
    return profile ? fingerprint_add(of, profile->key.text, profile->key.length) : of;
}

/* A retry of CREATE gets the session that the first try has made. */
static struct session *find_created(
    const struct client *client, const struct wire_field *operation) {
    struct engine *engine = client->engine;

    if (!operation->length)
        return NULL;
    list_for_each(node, &engine->sessions.all) {
        struct session *session = container_of(node, struct session, node);

        if (session->state != SESSION_CLOSING &&
            session->origin.operation_length == operation->length &&
            session->origin.operation_owner == client->uid &&
            !memcmp(session->origin.operation, operation->data, operation->length))
            return session;
    }
    return NULL;
}

static int check_create(struct call *call, struct profile **ret_profile) {
    const struct verb_request *request = call->request;
    struct engine *engine = call->client->engine;
    struct rollbox_error *error = call->error;
    struct profile *profile = profile_find(engine, request->plan);

    if (!profile)
        return error_set(error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "arguments",
            "the engine does not know that policy any more; prepare it again");
    int r = profile_renew(&profile, error);
    if (r < 0)
        return r;
    if (profile->plan->flags & PLAN_PROCESS)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "isolation process: only single runs have it; a sandbox of several commands needs "
            "isolation namespace");
    if (request->sandbox && !session_name_ok(request->sandbox))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "name: 1 to %d letters, digits, '_', '.' and '-', the first no '.' or '-'",
            SESSION_NAME_MAX);
    if (request->sandbox && !engine->stored.was_searched &&
        hibernate_reattach(engine, request->sandbox, false, error) == -EBUSY)
        return -EBUSY;
    if (request->sandbox && session_find(engine, request->sandbox))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EEXIST, "arguments",
            "name: there is a sandbox %s already; close it or take another name", request->sandbox);
    if (request->detached && engine->is_private)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "detached: a private engine ends with its one client, and all its sandboxes with it; "
            "use a shared one");
    if (!tracking_make_room(engine)) {
        profile_drop_spares(engine);
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, EMFILE, "setup",
            "%u sandboxes are all that the limit of open files bears; raise it (ulimit -n), or "
            "close some",
            engine->sessions.n);
    }
    *ret_profile = profile;
    return 0;
}

static int64_t limit_ms(uint64_t ms) {
    return (int64_t)MIN(ms, (uint64_t)MAX_TIMEOUT_MS);
}

static int handle_create(struct call *call) {
    const struct verb_request *request = call->request;
    struct session *session = find_created(call->client, &request->operation);
    struct profile *profile = profile_find(call->client->engine, request->plan);
    const uint64_t fingerprint = create_fingerprint(request, profile);

    if (session && session->origin.operation_fingerprint != fingerprint)
        return error_set(call->error, ROLLBOX_ERR_INVALID_ARGUMENT, EEXIST, "arguments",
            "operation id: it was used for another request; give this one an id of its own");
    if (session) {
        buf_printf(call->reply, "{\"name\": \"%s\"}", session->name);
        return REPLY_NOW;
    }
    int r = check_create(call, &profile);
    if (r < 0)
        return r;
    session = session_new(call->client->engine, profile, request->detached ? NULL : call->client,
        request->sandbox, NULL, NULL, call->error);
    if (!session)
        return -ENOMEM;
    memcpy(session->origin.operation, request->operation.data ? request->operation.data : "",
        request->operation.length);
    session->origin.operation_length = request->operation.length;
    session->origin.operation_fingerprint = fingerprint;
    session->origin.operation_owner = call->client->uid;
    session->timers.idle_ms = limit_ms(request->idle);
    session->timers.ttl_ms = limit_ms(request->ttl);
    session->timers.lifetime_ms = limit_ms(request->lifetime);
    session->hibernation.after_ms = limit_ms(request->hibernate);
    auto_snapshot_set(session, (unsigned)MIN(request->auto_snapshot, (uint64_t)INT32_MAX));
    session_arm(session);
    call->session = session;
    r = publish_policy(session, call->error);
    if (r == 0)
        r = peers_join(session, call->error);
    if (r < 0) {
        session_close(session);
        return r;
    }
    if (!add_operation(call)) {
        session_close(session);
        return OUT_OF_MEMORY(call->error);
    }
    session_schedule(session);
    return REPLY_LATER;
}

static int handle_list(struct call *call) {
    buf_add_text(call->reply, "{\"sandboxes\": ");
    session_text_all(call->client->engine, call->request->verb == VERB_STATS, call->reply);
    buf_add_text(call->reply, "}");
    return REPLY_NOW;
}

/* Of one sandbox; of all, where none is named. */
static int handle_stats(struct call *call) {
    if (!call->session)
        return handle_list(call);
    session_text_stats(call->session, call->reply);
    return REPLY_NOW;
}

static int handle_debug(struct call *call) {
    debug_dump(call->client->engine, call->reply);
    return REPLY_NOW;
}

static int handle_open(struct call *call) {
    buf_printf(call->reply, "{\"name\": \"%s\"}", call->session->name);
    return REPLY_NOW;
}

static int handle_inspect(struct call *call) {
    session_text(call->session, call->reply);
    return REPLY_NOW;
}

static int handle_net_log(struct call *call) {
    auto_buf struct buf lines = BUF_INIT;
    int r = gateway_log(call->session->number, &lines);

    if (r < 0 || buf_failed(&lines))
        return OUT_OF_MEMORY(call->error);
    buf_add_text(call->reply, "{\"log\": [");
    /* A line that is being written is not there yet. */
    const char *at = lines.data, *between = "";
    for (const char *end; at && (end = strchr(at, '\n')); at = end + 1) {
        buf_add_text(call->reply, between);
        buf_add(call->reply, at, (size_t)(end - at));
        between = ", ";
    }
    buf_add_text(call->reply, "]}");
    return REPLY_NOW;
}

static int handle_net_set(struct call *call) {
    const struct policy *policy = call->session->profile->policy;

    if (policy->net != POLICY_NET_ALLOW || !call->request->name)
        return error_set(call->error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "net: the rules of a sandbox can be replaced if its policy has net allow");
    int r = gateway_set_rules(&(struct gateway_session){ .engine = call->session->engine,
                                  .number = call->session->number,
                                  .box = call->session->box,
                                  .policy = policy },
        call->request->name, call->error);
    if (r < 0)
        return r;
    buf_add_text(call->reply, "{}");
    return REPLY_NOW;
}

static struct run *find_command(struct call *call) {
    struct run *run =
        call->request->exec.data ? exec_find(call->session, &call->request->exec) : NULL;

    if (run && run->session == call->session)
        return run;
    error_set(call->error, ROLLBOX_ERR_NOT_FOUND, ESRCH, "arguments",
        "no such command runs in the sandbox");
    return NULL;
}

/* Of a command without net "allow": {}. */
static int handle_net_tally(struct call *call) {
    struct run *run = find_command(call);

    if (!run)
        return -ESRCH;
    const uint64_t tally = run_tally_restart(run);
    if (tally && result_hold_reply(call->client, call->message->header.serial, tally) == 0)
        return REPLY_LATER;
    buf_add_text(call->reply, "{}");
    return REPLY_NOW;
}

static int handle_execs(struct call *call) {
    session_text_execs(call->session, call->reply);
    return REPLY_NOW;
}

static int handle_processes(struct call *call) {
    session_text_processes(call->session, call->reply);
    return REPLY_NOW;
}

static int handle_tree(struct call *call) {
    if (call->session->sleep)
        hibernate_tree(call->session, call->reply);
    else
        snapshot_tree_text(call->session->files.tree, call->reply);
    return REPLY_NOW;
}

static int handle_record(struct call *call) {
    return record_begin(call->session, call->message, call->reply, call->error);
}

static int handle_note(struct call *call) {
    return record_note(call->session, call->message, call->error);
}

static int handle_resume(struct call *call) {
    session_touch(call->session);
    int r = session_resume(call->session);
    if (r < 0)
        return error_set(call->error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -r, "run",
            "the sandbox's init takes no requests now; try again");
    session_schedule(call->session);
    return REPLY_NOW;
}

/* A running command of this session. */
static int kill_all(struct call *call) {
    struct session *session = call->session;

    if (call->request->number != SIGKILL)
        return error_set(call->error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "signal: without a command only SIGKILL can be sent, to every process of the sandbox");
    list_for_each(node, &session->commands.runs)
        (void)exec_kill(container_of(node, struct run, of_session));
    exec_kill_all(session);
    session_events_signal(session, NULL, SIGKILL, ROLLBOX_SCOPE_TREE);
    return REPLY_NOW;
}

static int handle_signal(struct call *call) {
    const struct verb_request *request = call->request;
    struct session *session = call->session;

    session_touch(session);
    if (request->number != SIGKILL)
        (void)session_resume(session);
    if (!request->exec.data)
        return kill_all(call);
    struct run *run = find_command(call);
    if (!run)
        return -ESRCH;
    if (request->number < 1 || request->number > 64 || request->scope < ROLLBOX_SCOPE_MAIN ||
        request->scope > ROLLBOX_SCOPE_GROUP)
        return error_set(call->error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "signal: a number from 1 to 64 and a scope must be given");
    int r = exec_signal(run, (int)request->number, (enum rollbox_scope)request->scope);
    if (r < 0)
        return error_set(call->error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -r, "run",
            "the sandbox's init takes no requests now: %s", strerror(-r));
    session_events_signal(session, run, (unsigned)request->number, (unsigned)request->scope);
    return REPLY_NOW;
}

static int handle_resize(struct call *call) {
    const uint64_t terminal = call->request->terminal;
    const struct winsize size = { .ws_row = (unsigned short)(terminal >> 16),
        .ws_col = (unsigned short)terminal };

    session_touch(call->session);
    struct run *run = find_command(call);
    if (!run)
        return -ESRCH;
    if (!run->terminal.is_wanted || run->outputs[0].fd < 0 ||
        ioctl(run->outputs[0].fd, TIOCSWINSZ, &size) < 0)
        return error_set(call->error, ROLLBOX_ERR_INVALID_ARGUMENT, ENOTTY, "arguments",
            "the command has no terminal");
    return REPLY_NOW;
}

/* The reply carries descriptors, so it is sent here. */
static int handle_claim(struct call *call) {
    auto_buf struct buf json = BUF_INIT;
    auto_buf struct buf reply = BUF_INIT;

    session_touch(call->session);
    struct run *run = find_command(call);
    if (!run)
        return -ESRCH;
    int fds[ARRAY_SIZE(run->fds.pipes)];
    size_t n = exec_claim(run, call->request->number, &json, fds);

    wire_begin(&reply, PROTOCOL_TEXT, call->message->header.serial);
    if (buf_failed(&json))
        reply.failed = true;
    else
        wire_add_text(&reply, TAG_TEXT_DATA, json.data);
    client_send(call->client, &reply, fds, n);
    while (n)
        close(fds[--n]);
    return REPLY_LATER;
}

/* The node of that id or name, as a reference; NULL for no id. 0 or -ENOENT. */
static int find_snapshot(struct call *call, const char *id, struct snapshot **ret_snapshot) {
    struct snapshot *snapshot = id ? snapshot_find(call->session->files.tree, id) : NULL;

    if (id && !snapshot)
        return error_set(call->error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "arguments",
            "there is no snapshot %.100s of the sandbox; `rollbox tree` lists those there are", id);
    *ret_snapshot = snapshot ? snapshot_get(snapshot) : NULL;
    return 0;
}

static int handle_drop(struct call *call) {
    struct snapshot *snapshot;

    if (find_snapshot(call, call->request->snapshot, &snapshot) < 0)
        return -ENOENT;
    if (snapshot && snapshot->checkpoint)
        snapshot->checkpoint->was_dropped = true;
    int r = snapshot ? snapshot_drop(snapshot) : -EINVAL;
    snapshot_put(snapshot);
    dirty_tracking_forget_dropped();
    return r < 0 ? error_set(call->error, ROLLBOX_ERR_INVALID_ARGUMENT, -r, "arguments",
                       "that snapshot cannot be dropped: it is the beginning")
                 : REPLY_NOW;
}

static int handle_close(struct call *call) {
    if (!add_operation(call))
        return OUT_OF_MEMORY(call->error);
    if (session_events_may_close(call->session) == OBSERVER_WAIT)
        session_schedule(call->session);
    else
        session_close(call->session);
    return REPLY_LATER;
}

static bool needs_awake(const struct verb_request *request);

static int handle_operation(struct call *call) {
    const struct verb_request *request = call->request;
    const bool is_in_store =
        call->session->sleep && !needs_awake(request); /* and so is the snapshot it names */
    struct snapshot *from, *to = NULL;

    session_touch(call->session);
    if (find_snapshot(call, is_in_store ? NULL : request->snapshot, &from) < 0)
        return -ENOENT;
    if (find_snapshot(call, request->to, &to) < 0) {
        snapshot_put(from);
        return -ENOENT;
    }
    struct op *op = add_operation(call);
    if (!op) {
        snapshot_put(from);
        snapshot_put(to);
        return OUT_OF_MEMORY(call->error);
    }
    op->from = from;
    op->to = to;
    op->pinned = snapshot_pin(from);
    if (is_in_store && request->snapshot && !op->request.name &&
        !(op->request.name = strdup(request->snapshot))) {
        op_free(op);
        return OUT_OF_MEMORY(call->error);
    }
    if (call->message->n_fds)
        op->request.fd = wire_take_fd(call->message, 0);
    session_events_op_started(op);
    session_schedule(call->session);
    return REPLY_LATER;
}

static int handle_files(struct call *call) {
    if (call->message->n_fds != 1)
        return error_set(
            call->error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "arguments", "the request has no socket");
    return handle_operation(call);
}

static int handle_connect(struct call *call) {
    const uint64_t port = call->request->number;

    if (port < 1 || port > UINT16_MAX)
        return error_set(call->error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "port: must be from 1 to 65535, not %llu", (unsigned long long)port);
    if (!(call->session->profile->plan->flags & PLAN_NET_LOOPBACK))
        return error_set(call->error, ROLLBOX_ERR_FEATURE_MISSING, ENETUNREACH, "policy",
            "sandbox %s has no network of its own; create it with net loopback or allow",
            call->session->name);
    return handle_files(call);
}

/* The sandboxes that the message names. Their number or -errno. */
static int find_group(struct call *call, struct session **ret_sessions) {
    struct wire_field field;
    size_t position = 0;
    int n = 0;

    while (wire_next(call->message->data, call->message->length, &position, &field) > 0) {
        struct session *session = NULL;

        if (field.tag != TAG_SANDBOX)
            continue;
        if (n == FORK_GROUP_MAX)
            return error_set(call->error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "arguments",
                "%d sandboxes can be forked at one moment", FORK_GROUP_MAX);
        int r =
            hibernate_find_session(call->client->engine, wire_text(&field), &session, call->error);
        if (r < 0)
            return r;
        for (int i = 0; i < n; i++)
            if (ret_sessions[i] == session)
                return error_set(call->error, ROLLBOX_ERR_INVALID_ARGUMENT, EEXIST, "arguments",
                    "sandbox %s is named twice", session->name);
        if (session_may_wait(session, call->error) < 0)
            return -ENOBUFS;
        ret_sessions[n++] = session;
    }
    return n ? n : session_not_found(call->client->engine, NULL, call->error);
}

static int handle_fork_group(struct call *call) {
    struct session *sessions[FORK_GROUP_MAX];
    struct op *ops[FORK_GROUP_MAX];
    int n = find_group(call, sessions), made = 0;
    int r = n < 0 ? n : 0;

    for (; r == 0 && made < n; made++) {
        ops[made] = op_new(sessions[made], VERB_FORK, call->client, call->message->header.serial);
        if (!ops[made]) {
            r = OUT_OF_MEMORY(call->error);
            break;
        }
        (void)set_options(ops[made], call->request);
    }
    if (r == 0 && op_fork_group(ops, (unsigned)n) < 0)
        r = OUT_OF_MEMORY(call->error);
    while (r < 0 && made > 0)
        op_free(ops[--made]);
    for (int i = 0; r == 0 && i < n; i++) {
        session_touch(sessions[i]);
        op_session_called(sessions[i]);
        session_events_op_started(ops[i]);
        session_schedule(sessions[i]);
    }
    return r < 0 ? r : REPLY_LATER;
}

/* Without a number: lists the published ports. */
static int handle_publish(struct call *call) {
    const uint64_t port = call->request->number;

    if (port > UINT16_MAX)
        return error_set(call->error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "port: must be from 1 to 65535, not %llu", (unsigned long long)port);
    int r = port ? publish_add(call->session, (uint16_t)port, call->request->path, call->error) : 0;
    if (r < 0)
        return r;
    buf_add_text(call->reply, "{\"ports\": ");
    publish_text(call->session, (uint16_t)port, call->reply);
    buf_add_text(call->reply, "}");
    return REPLY_NOW;
}

/* ---- the table ---- */

enum verb_flag {
    WITHOUT_SANDBOX = 1, /* the request names no sandbox that exists */
    NEEDS_AWAKE = 2,     /* a hibernated sandbox is woken for it */
    NEEDS_AWAKE_BUT_LIVE =
        4, /* the same, but for all of a hibernated sandbox, which the store has as it is */
    IS_NEVER_FULL = 8,  /* it is taken however many requests wait */
    MAY_BE_OF_ALL = 16, /* the request may name no sandbox, and is about all then */
};

static const struct verb {
    unsigned flags; /* enum verb_flag */
    int (*handle)(struct call *call);
} verbs[VERB_END] = {
    [VERB_CREATE] = { WITHOUT_SANDBOX, handle_create },
    [VERB_LIST] = { WITHOUT_SANDBOX, handle_list },
    [VERB_DEBUG] = { WITHOUT_SANDBOX, handle_debug },
    [VERB_OPEN] = { 0, handle_open },
    [VERB_INSPECT] = { 0, handle_inspect },
    [VERB_EXECS] = { 0, handle_execs },
    [VERB_NET_LOG] = { 0, handle_net_log },
    [VERB_NET_SET] = { NEEDS_AWAKE, handle_net_set },
    [VERB_NET_TALLY] = { 0, handle_net_tally },
    [VERB_STATS] = { MAY_BE_OF_ALL, handle_stats },
    [VERB_PROCESSES] = { 0, handle_processes },
    [VERB_TREE] = { 0, handle_tree },
    [VERB_RECORD] = { 0, handle_record },
    [VERB_NOTE] = { 0, handle_note },
    [VERB_RESUME] = { 0, handle_resume },
    [VERB_SIGNAL] = { NEEDS_AWAKE, handle_signal },
    [VERB_RESIZE] = { NEEDS_AWAKE, handle_resize },
    [VERB_CLAIM] = { NEEDS_AWAKE, handle_claim },
    [VERB_DROP] = { NEEDS_AWAKE, handle_drop },
    [VERB_CLOSE] = { IS_NEVER_FULL, handle_close },
    [VERB_PAUSE] = { 0, handle_operation },
    [VERB_HIBERNATE] = { 0, handle_operation },
    [VERB_WAKE] = { 0, handle_operation },
    [VERB_SHOW] = { 0, handle_operation },
    [VERB_VERIFY] = { 0, handle_operation },
    [VERB_SNAPSHOT] = { NEEDS_AWAKE, handle_operation },
    [VERB_FORK] = { NEEDS_AWAKE, handle_operation },
    [VERB_RESET] = { NEEDS_AWAKE, handle_operation },
    [VERB_DIFF] = { NEEDS_AWAKE, handle_operation },
    [VERB_COMMIT] = { NEEDS_AWAKE, handle_operation },
    [VERB_EXPORT] = { NEEDS_AWAKE_BUT_LIVE, handle_operation },
    [VERB_FILES] = { NEEDS_AWAKE, handle_files },
    [VERB_CONNECT] = { NEEDS_AWAKE, handle_connect },
    [VERB_PUBLISH] = { 0, handle_publish },
    [VERB_FORK_GROUP] = { WITHOUT_SANDBOX, handle_fork_group },
};

static bool needs_awake(const struct verb_request *request) {
    const unsigned flags = verbs[request->verb].flags;

    return flags & NEEDS_AWAKE ||
           (flags & NEEDS_AWAKE_BUT_LIVE && (!request->live || request->snapshot));
}

enum { FOUND, ANSWERED };

/* The session that the request names, from the store if need be. FOUND; ANSWERED: `reply` says all;
 * or -errno. */
static int find_session(struct call *call) {
    const struct verb_request *request = call->request;
    struct engine *engine = call->client->engine;

    call->session = request->sandbox ? session_find(engine, request->sandbox) : NULL;
    if (!call->session && request->sandbox && session_name_ok(request->sandbox)) {
        int r =
            hibernate_reattach(engine, request->sandbox, request->verb == VERB_CLOSE, call->error);
        if (r < 0 && request->verb == VERB_OPEN) {
            buf_printf(
                call->reply, "{\"name\": \"%s\"}", request->sandbox); /* so that it can be closed */
            return ANSWERED;
        }
        if (r)
            return r < 0 ? r : ANSWERED;
        call->session = session_find(engine, request->sandbox);
    }
    return call->session ? FOUND : session_not_found(engine, request->sandbox, call->error);
}

/* REPLY_NOW, REPLY_LATER or -errno. */
static int dispatch(struct call *call) {
    const struct verb_request *request = call->request;
    const struct verb *verb = &verbs[request->verb < VERB_END ? request->verb : VERB_NONE];

    if (!verb->handle)
        return error_set(call->error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "arguments",
            "this engine does not know the request %llu", (unsigned long long)request->verb);
    verb_count_request((enum protocol_verb)request->verb);
    if (verb->flags & WITHOUT_SANDBOX || (verb->flags & MAY_BE_OF_ALL && !request->sandbox))
        return verb->handle(call);
    int r = find_session(call);
    if (r != FOUND)
        return r < 0 ? r : REPLY_NOW;
    if (!(verb->flags & IS_NEVER_FULL) && session_may_wait(call->session, call->error) < 0)
        return -ENOBUFS;
    if (needs_awake(request) && sleep_of(call->session)) {
        session_touch(call->session);
        if (wake_then(call->session, call->client, call->message) < 0)
            return OUT_OF_MEMORY(call->error);
        return REPLY_LATER;
    }
    if (needs_awake(request))
        op_session_called(call->session);
    return verb->handle(call);
}

void verbs_request(struct client *client, struct wire_message *message) {
    struct verb_request request = { 0 };
    struct rollbox_error error;
    struct buf reply = BUF_INIT;
    struct call call = {
        .client = client, .message = message, .request = &request, .reply = &reply, .error = &error
    };
    int r = decode(message, &request);

    if (r < 0)
        error_set(&error, ROLLBOX_ERR_PROTOCOL, EBADMSG, "arguments",
            "the request has a field that this engine does not know");
    else {
        if (!client->engine->stored.was_searched)
            client->engine->stored.was_searched =
                hibernate_reattach(client->engine, NULL, false, NULL) != -EBUSY;
        r = dispatch(&call);
    }
    if (r == -EINPROGRESS && owned_image_defer(client, message)) {
        buf_done(&reply);
        return;
    }
    if (r < 0) {
        const enum protocol_verb verb =
            request.verb < VERB_END ? (enum protocol_verb)request.verb : VERB_NONE;

        verb_count_failure(verb);
        log_at(LOG_WARN, "verbs", ABOUT(.sandbox = request.sandbox, .op = verb_name(verb)),
            "refused: %s", error.message);
        client_fail(client, message->header.serial, &error);
    } else if (r == REPLY_NOW)
        client_reply(client, message->header.serial, &reply);
    buf_done(&reply);
}
