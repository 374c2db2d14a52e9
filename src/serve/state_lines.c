/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lines of the journal (--state) of detached sandboxes and durable leases; state.c reads them.
 *
 *   {"kind": "box", "tenant", "name", "engine_name", "owner", "engine", "number", "lease"?,
 *    "labels"?, "held"?: {"memory", "cpus", "disk"}}
 *   {"kind": "unbox", "tenant", "name"}
 *   {"kind": "lease", "tenant", "id", "ttl_s"}
 *   {"kind": "unlease", "tenant", "id"}
 *   {"kind": "starts", "tenant", "day", "n"}     (admission.c)
 *
 * A renewal of a lease is not written: after a start of the server each lease has its whole time
 * again, for its client to come back.
 */
#include "base/cleanup.h"
#include "serve/engine_link.h"
#include "serve/server.h"

/* Of a sandbox in its tenant's quotas. */
static const enum quota kept[] = { QUOTA_MEMORY, QUOTA_CPUS, QUOTA_DISK };

static json_t *held_json(const struct box *box) {
    const struct amounts limits = box_limits(box);
    json_t *held = json_object();

    for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
        json_object_set_new(
            held, quota_name(kept[i]), json_integer((json_int_t)limits.of[kept[i]]));
    return held;
}

struct amounts state_amounts(const json_t *line) {
    struct amounts held = quota_nothing();
    const json_t *json = json_object_get(line, "held");

    held.of[QUOTA_SANDBOXES] = 1;
    for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
        held.of[kept[i]] = (uint64_t)json_integer_value(json_object_get(json, quota_name(kept[i])));
    return held;
}

int state_keep_box(struct server *server, const struct box *box) {
    json_t *line = json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:I}", "kind", "box", "tenant",
        box->tenant->name, "name", box->name, "engine_name", rollbox_sandbox_name(box->handle),
        "owner", box->link->name.owner, "engine", (int)box->link->name.number, "number",
        (json_int_t)box->number);

    if (box->lease[0])
        json_object_set_new(line, "lease", json_string(box->lease));
    if (box->labels)
        json_object_set(line, "labels", box->labels);
    json_object_set_new(line, "held", held_json(box));
    return journal_add(server->journal, line);
}

void state_forget_box(struct server *server, const struct box *box) {
    if (box->is_detached)
        (void)journal_add(server->journal, json_pack("{s:s, s:s, s:s}", "kind", "unbox", "tenant",
                                               box->tenant->name, "name", box->name));
}

int state_keep_lease(
    struct server *server, const struct tenant *tenant, const char *id, int64_t ttl_s) {
    return journal_add(server->journal, json_pack("{s:s, s:s, s:s, s:I}", "kind", "lease", "tenant",
                                            tenant->name, "id", id, "ttl_s", (json_int_t)ttl_s));
}

void state_forget_lease(struct server *server, const struct tenant *tenant, const char *id) {
    (void)journal_add(server->journal,
        json_pack("{s:s, s:s, s:s}", "kind", "unlease", "tenant", tenant->name, "id", id));
}
