/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lines of the journal (--state) of detached sandboxes and durable leases; state.c reads them.
 *
 *   {"kind": "box", "tenant", "name", "engine_name", "owner", "engine", "number", "lease"?,
 *    "labels"?}
 *   {"kind": "unbox", "tenant", "name"}
 *   {"kind": "lease", "tenant", "id", "ttl_s"}
 *   {"kind": "unlease", "tenant", "id"}
 *
 * A renewal of a lease is not written: after a start of the server each lease has its whole time
 * again, for its client to come back.
 */
#include "base/cleanup.h"
#include "serve/engine_link.h"
#include "serve/server.h"

void state_keep_box(struct server *server, const struct box *box) {
    json_t *line = json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:I}", "kind", "box", "tenant",
        box->tenant->name, "name", box->name, "engine_name", rollbox_sandbox_name(box->handle),
        "owner", box->link->name.owner, "engine", (int)box->link->name.number, "number",
        (json_int_t)box->number);

    if (box->lease[0])
        json_object_set_new(line, "lease", json_string(box->lease));
    if (box->labels)
        json_object_set(line, "labels", box->labels);
    (void)journal_add(server->journal, line);
}

void state_forget_box(struct server *server, const struct box *box) {
    if (box->is_detached)
        (void)journal_add(server->journal, json_pack("{s:s, s:s, s:s}", "kind", "unbox", "tenant",
                                               box->tenant->name, "name", box->name));
}

void state_keep_lease(
    struct server *server, const struct tenant *tenant, const char *id, int64_t ttl_s) {
    (void)journal_add(server->journal, json_pack("{s:s, s:s, s:s, s:I}", "kind", "lease", "tenant",
                                           tenant->name, "id", id, "ttl_s", (json_int_t)ttl_s));
}

void state_forget_lease(struct server *server, const struct tenant *tenant, const char *id) {
    (void)journal_add(server->journal,
        json_pack("{s:s, s:s, s:s}", "kind", "unlease", "tenant", tenant->name, "id", id));
}
