/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a session as snapshots: of a state in which nothing was called since the last one,
 * and of a box that is given up.
 */
#include <errno.h>
#include <fcntl.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "engine/box/disk_upper.h"
#include "engine/core/context.h"
#include "engine/files/box_files.h"
#include "engine/network/gateway.h"
#include "engine/session/op.h"
#include "engine/session/session_files.h"
#include "engine/session/session.h"
#include "engine/snapshot/layer.h"

void snapshot_ref_assign(struct snapshot **at, struct snapshot *snapshot) {
    snapshot_get(snapshot);
    snapshot_put(*at);
    *at = snapshot;
}

/* The state of a session in which nothing of a node's processes is: that node, or one of its files
 * alone, also where it was dropped and has no name any more. A reference, or NULL. */
struct snapshot *session_files_of(struct session *session, struct snapshot *snapshot) {
    return snapshot->checkpoint || !snapshot->tree
               ? snapshot_new(session->engine, session->files.tree, snapshot, snapshot, NULL)
               : snapshot_get(snapshot);
}

/* The present state, of which all is known, as nothing was called since, or what was has left
 * nothing. A reference, or NULL. */
struct snapshot *session_files_unchanged(struct session *session) {
    struct snapshot *snapshot = session_files_of(session, session->files.at);

    if (snapshot && snapshot != session->files.at && session->files.base == session->files.at)
        snapshot_ref_assign(&session->files.base, snapshot);
    if (snapshot) {
        snapshot_ref_assign(&session->files.at, snapshot);
        session_files_note_names(snapshot, session->box);
    }
    return snapshot;
}

void session_files_note_names(struct snapshot *snapshot, const struct box *box) {
    json_t *names = gateway_names(box);

    if (!names)
        return;
    json_decref(snapshot->net_names);
    snapshot->net_names = names;
}

/* Of a box that ends the descriptor itself is taken where there is room for no other: its files are
 * lost with the last. */
int session_files_layer(struct box *box, bool ends, struct layer **ret_layer) {
    uint64_t bytes, entries;
    int r = box_files_written(box, &bytes, &entries);

    if (r < 0)
        return r;
    auto_close int fd = fcntl(box->disk, F_DUPFD_CLOEXEC, 3);
    if (fd < 0 && !ends)
        return -errno;
    if (fd < 0)
        fd = TAKE_FD(box->disk);
    *ret_layer = layer_new(TAKE_FD(fd), bytes, entries);
    return *ret_layer ? 0 : -ENOMEM;
}

struct snapshot *session_files_seal(struct session *session, struct box *box) {
    struct layer *layer = NULL;

    if (session_files_layer(box, true, &layer) < 0)
        return NULL;
    if (box->upper)
        layer_take_upper(layer, disk_upper_get(box->upper));
    struct snapshot *snapshot = snapshot_new(
        session->engine, session->files.tree, session->files.at, session->files.base, layer);
    if (!snapshot)
        return NULL;
    session_files_note_names(snapshot, box);
    snapshot_ref_assign(&session->files.base, snapshot);
    snapshot_ref_assign(&session->files.at, snapshot);
    session->files.dirty = false;
    return snapshot;
}

/* ---- the snapshots that sessions use ---- */

static bool is_committed(const struct snapshot *snapshot) {
    list_for_each(node, &snapshot->engine->sessions.all)
        if (container_of(node, struct session, node)->files.committed == snapshot)
            return true;
    return false;
}

static void pin_tree(struct snapshot_tree *tree) {
    struct engine *engine = container_of(tree->snapshots.next, struct snapshot, in_tree)->engine;

    list_for_each(at, &engine->sessions.all) {
        const struct session *session = container_of(at, struct session, node);

        if (session->files.tree != tree)
            continue;
        session->files.at->pinned = true;
        list_for_each(node, &session->queue.ops) {
            const struct op *op = container_of(node, struct op, node);

            if (op->from)
                op->from->pinned = true;
            if (op->to)
                op->to->pinned = true;
        }
    }
}

static void list_names(struct snapshot *snapshot, struct buf *to) {
    const char *comma = "";

    list_for_each(node, &snapshot->engine->sessions.all) {
        struct session *session = container_of(node, struct session, node);

        if (session->files.tree != snapshot->tree ||
            snapshot_nearest_visible(session->files.at) != snapshot ||
            session->state == SESSION_CLOSING || session->is_dry_run)
            continue;
        buf_printf(to, "%s\"%s\"", comma, session->name);
        comma = ", ";
    }
}

const struct snapshot_sessions session_files_users = {
    .is_committed = is_committed, .pin = pin_tree, .list = list_names
};
