/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on a sandbox: the common part of the files above. sandbox.h has the model. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "client/client.h"
#include "client/sandbox.h"

int sandbox_check_name(const char *name, const char *what, struct rollbox_error *error) {
    size_t length = strlen(name);

    if (length < 1 || length > SANDBOX_NAME_MAX ||
        strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") != length)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%s must be 1 to %d of the characters A-Z a-z 0-9 _ . -: \"%.100s\"", what,
            SANDBOX_NAME_MAX, name);
    return 0;
}

void sandbox_begin(
    struct buf *message, const struct rollbox_sandbox *sandbox, enum protocol_verb verb) {
    wire_begin(message, PROTOCOL_SANDBOX, 0);
    wire_add_u64(message, TAG_VERB, verb);
    wire_add_text(message, TAG_SANDBOX, sandbox->name);
}

int sandbox_call(struct rollbox_sandbox *sandbox, struct buf *message, const int *fds, size_t n_fds,
    char **ret_json, struct rollbox_error *error) {
    auto_free char *json = NULL;

    int r = connection_check_owner(sandbox->owner, error);
    if (r >= 0)
        r = request_text(sandbox->engine, message, fds, n_fds, &json, error);
    if (r >= 0 && ret_json)
        *ret_json = TAKE_PTR(json);
    return r;
}

int sandbox_add_snapshot(struct buf *to, uint32_t tag, const char *snapshot, const char *what,
    struct rollbox_error *error) {
    int r = snapshot ? sandbox_check_name(snapshot, what, error) : 0;

    if (r >= 0 && snapshot)
        wire_add_text(to, tag, snapshot);
    return r;
}

int sandbox_diff(struct rollbox_sandbox *sandbox, const char *from, const char *to, bool text,
    bool digests, char **ret_json, struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    sandbox_begin(&message, sandbox, VERB_DIFF);
    int r = sandbox_add_snapshot(&message, TAG_SNAPSHOT, from, "from", error);
    if (r >= 0)
        r = sandbox_add_snapshot(&message, TAG_TO, to, "to", error);
    if (r < 0)
        return r;
    if (text)
        wire_add_u64(&message, TAG_TEXTUAL, 1);
    if (digests)
        wire_add_u64(&message, TAG_DIGESTS, 1);
    return sandbox_call(sandbox, &message, NULL, 0, ret_json, error);
}

/* ---- handles ---- */

ROLLBOX_PUBLIC struct rollbox_sandbox *rollbox_sandbox_free(struct rollbox_sandbox *sandbox) {
    if (sandbox) {
        shared_text_drop(sandbox->isolation);
        free(sandbox);
    }
    return NULL;
}

struct rollbox_sandbox *sandbox_new_handle(
    struct rollbox_engine *engine, const char *name, const char *isolation) {
    struct rollbox_sandbox *sandbox = calloc(1, sizeof *sandbox);

    if (!sandbox)
        return NULL;
    sandbox->engine = engine;
    sandbox->owner = engine->owner;
    sandbox->isolation = shared_text_new(isolation ? isolation : "{}");
    memcpy(sandbox->name, name, strlen(name) + 1);
    return sandbox->isolation ? sandbox : rollbox_sandbox_free(sandbox);
}

/* A name that the engine says: it becomes part of an array of fixed size. */
const char *sandbox_name_of(const json_t *value) {
    const char *name = json_string_value(value);

    return name && sandbox_check_name(name, "", NULL) >= 0 ? name : NULL;
}

static int check_milliseconds(int64_t ms, const char *what, struct rollbox_error *error) {
    if (ms >= 0 && ms <= REQUEST_MS_MAX)
        return 0;
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
        "%s is %lld; it must be 0 (never) or more", what, (long long)ms);
}

int sandbox_encode_create(struct buf *to, const struct rollbox_plan *plan,
    const struct rollbox_sandbox_options *options, struct rollbox_error *error) {
    const struct {
        int64_t ms;
        const char *what;
        uint32_t tag;
    } times[] = {
        { options->idle_ms, "idle_ms", TAG_IDLE },
        { options->ttl_ms, "ttl_ms", TAG_TTL },
        { options->lifetime_ms, "lifetime_ms", TAG_LIFETIME },
        { options->hibernate_ms, "hibernate_ms", TAG_HIBERNATE },
    };

    wire_begin(to, PROTOCOL_SANDBOX, 0);
    wire_add_u64(to, TAG_VERB, VERB_CREATE);
    wire_add_u64(to, TAG_PLAN, plan->id);
    int r = options->operation_id ? request_add_operation(to, options->operation_id, error) : 0;
    if (r >= 0 && options->name) {
        r = sandbox_check_name(options->name, "name", error);
        wire_add_text(to, TAG_SANDBOX, options->name);
    }
    for (size_t i = 0; r >= 0 && i < ARRAY_SIZE(times); i++) {
        r = check_milliseconds(times[i].ms, times[i].what, error);
        if (times[i].ms > 0)
            wire_add_u64(to, times[i].tag, (uint64_t)times[i].ms);
    }
    if (options->detached)
        wire_add_u64(to, TAG_DETACHED, 1);
    if (options->auto_snapshots)
        wire_add_u64(to, TAG_CHECKPOINTS, options->auto_snapshots);
    return r;
}

/* A handle from an answer that has "name". Its isolation is the plan's, or the one in the answer.
 */
static int take_handle(struct rollbox_engine *engine, const char *json, const char *isolation,
    struct rollbox_sandbox **ret_sandbox, struct rollbox_error *error) {
    json_t *answer = json_loads(json, 0, NULL);
    const char *name = sandbox_name_of(json_object_get(answer, "name"));
    auto_free char *told = NULL;
    int r = 0;

    if (!name) {
        r = request_malformed(error);
    } else {
        if (!isolation && json_is_object(json_object_get(answer, "isolation")))
            isolation = told = json_dumps(json_object_get(answer, "isolation"), JSON_COMPACT);
        *ret_sandbox = sandbox_new_handle(engine, name, isolation);
        if (!*ret_sandbox)
            r = request_out_of_memory(error);
    }
    json_decref(answer);
    return r;
}

int sandbox_of_answer(struct rollbox_engine *engine, const char *json, size_t i,
    const char *isolation, bool attached, struct rollbox_sandbox **ret_sandbox,
    struct rollbox_error *error) {
    json_t *answer = json_loads(json, 0, NULL);
    const json_t *forks = json_object_get(answer, "sandboxes");
    const char *name = sandbox_name_of(json_array_get(forks, i));
    int r = 0;

    if (!forks && i == 0) {
        r = take_handle(engine, json, isolation, ret_sandbox, error);
    } else if (!name) {
        r = request_malformed(error);
    } else {
        *ret_sandbox = sandbox_new_handle(engine, name, isolation);
        if (!*ret_sandbox)
            r = request_out_of_memory(error);
    }
    json_decref(answer);
    if (r >= 0)
        (*ret_sandbox)->lives_with_connection = attached;
    return r;
}
