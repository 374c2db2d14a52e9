/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record of a hibernated session: everything except the content of its files and memory.
 *
 * Each snapshot is listed after its parent and after the one that its files are based on. So an
 * index in the list always names an earlier row, and there can be no cycles. Bytes that a guest or
 * a client has chosen need not be text, so they are written in hex.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/utf8.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/dump_worker.h"
#include "engine/command/command.h"
#include "engine/command/result.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/files/layer_chain.h"
#include "engine/hibernate/hibernate.h"
#include "engine/network/gateway.h"
#include "engine/pool/host_view.h"
#include "engine/session/op.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "engine/snapshot/layer.h"
#include "engine/store_job/backing.h"
#include "store/hibernated_check.h"
#include "store/fingerprint.h"

/* The limits that a record was checked for (hibernated_check.h) fit the arrays here. */
_Static_assert(HIBERNATED_MAX_TERMINALS == DUMP_WORKER_MAX_TERMINALS &&
                   HIBERNATED_MAX_PIPES == FD_MESSAGE_MAX_FDS - 1,
    "as many as are captured");
_Static_assert(
    HIBERNATED_MAX_SLOTS == ARRAY_SIZE(((struct run *)0)->fds.pipes), "as many as a command has");
_Static_assert(HIBERNATED_MAX_OPERATION == sizeof((struct checkpoint_command *)0)->operation,
    "it is copied there");
_Static_assert(HIBERNATED_MAX_OPERATION == sizeof((struct session *)0)->origin.operation,
    "it is copied there");
_Static_assert(HIBERNATED_MAX_OPERATION + sizeof((struct session *)0)->number ==
                   sizeof((struct ended *)0)->operation,
    "it is copied there");

/* ---- bytes ---- */

static json_t *hex_of(const void *data, size_t length) {
    auto_free char *text = malloc(2 * length + 1);
    const unsigned char *bytes = data;

    if (!text)
        return NULL;
    for (size_t i = 0; i < length; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    text[2 * length] = '\0';
    return json_string(text);
}

static json_t *text_hex(const char *text) {
    return text ? hex_of(text, strlen(text)) : json_null();
}

/* Decodes hexadecimal digits. Returns the number of bytes, or -EBADMSG. */
static ssize_t bytes_of(const json_t *value, void *to, size_t most) {
    const char *hex = json_string_value(value);
    unsigned char *bytes = to;
    size_t n = hex ? strlen(hex) / 2 : 0;

    if (!hex || strlen(hex) % 2 || n > most || strspn(hex, "0123456789abcdef") != 2 * n)
        return -EBADMSG;
    for (size_t i = 0; i < n; i++) {
        char pair[3] = { hex[2 * i], hex[2 * i + 1], '\0' };

        bytes[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    return (ssize_t)n;
}

/* A text for free(); NULL for null and for other types. */
static char *text_of(const json_t *value) {
    size_t most = json_string_length(value) / 2;
    char *text = json_is_string(value) ? malloc(most + 1) : NULL;
    ssize_t n = text ? bytes_of(value, text, most) : -1;

    if (n < 0) {
        free(text);
        return NULL;
    }
    text[n] = '\0';
    return text;
}

static int64_t get_number(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

static bool get_flag(const json_t *object, const char *key) {
    return json_is_true(json_object_get(object, key));
}

/* ---- writing ---- */

struct listing {
    const struct session *session;
    struct hibernate_parts *parts;
    struct snapshot **snapshots;
    size_t n_snapshots, room;
    json_t *rows;
    const struct snapshot *alone; /* the one that is a snapshot; of the others only its base is
                                     written. NULL: all are */
    bool failed;
};

static size_t index_of(void *const *list, size_t n, const void *item) {
    size_t i = 0;

    while (i < n && list[i] != item)
        i++;
    return i;
}

/* Null for none. */
static json_t *layer_index(struct listing *listing, struct layer *layer) {
    struct hibernate_parts *parts = listing->parts;
    size_t i = index_of((void *const *)parts->layers, parts->n_layers, layer);

    if (!layer)
        return json_null();
    if (i == parts->n_layers) {
        struct layer **more = realloc(parts->layers, (i + 1) * sizeof(struct layer *));

        if (!more)
            return NULL;
        parts->layers = more;
        parts->layers[parts->n_layers++] = layer;
    }
    return json_integer((json_int_t)i);
}

static json_t *live_index(struct listing *listing, struct checkpoint *checkpoint) {
    struct hibernate_parts *parts = listing->parts;
    size_t i = index_of((void *const *)parts->checkpoints, parts->n_checkpoints, checkpoint);

    if (!checkpoint)
        return json_null();
    if (i == parts->n_checkpoints) {
        struct checkpoint **more =
            realloc(parts->checkpoints, (i + 1) * sizeof(struct checkpoint *));

        if (!more)
            return NULL;
        parts->checkpoints = more;
        parts->checkpoints[parts->n_checkpoints++] = checkpoint;
    }
    return json_integer((json_int_t)i);
}

static json_t *snapshot_index(const struct listing *listing, const struct snapshot *snapshot) {
    size_t i = index_of((void *const *)listing->snapshots, listing->n_snapshots, snapshot);

    return snapshot && i < listing->n_snapshots ? json_integer((json_int_t)i) : json_null();
}

static void add_snapshot_row(struct listing *listing, struct snapshot *snapshot) {
    if (!snapshot || listing->failed ||
        index_of((void *const *)listing->snapshots, listing->n_snapshots, snapshot) <
            listing->n_snapshots)
        return;
    /* The first is the beginning, on which all hang then. */
    const bool is_told = !listing->alone || snapshot == listing->alone || !listing->n_snapshots;
    const struct snapshot *parent = !listing->alone                   ? snapshot->parent
                                    : is_told && listing->n_snapshots ? listing->snapshots[0]
                                                                      : NULL;
    struct checkpoint *checkpoint = is_told && snapshot->tree ? snapshot->checkpoint : NULL;

    add_snapshot_row(listing, listing->alone ? NULL : snapshot->parent);
    add_snapshot_row(listing, snapshot_nearest_owned(snapshot->lower));
    if (listing->n_snapshots == listing->room) {
        size_t room = listing->room ? 2 * listing->room : 16;
        struct snapshot **more =
            room > HIBERNATED_MAX_STATES
                ? NULL
                : realloc(listing->snapshots, room * sizeof(struct snapshot *));

        if (!more) {
            listing->failed = true;
            return;
        }
        listing->snapshots = more;
        listing->room = room;
    }
    json_t *row = json_pack(
        "{s:s, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:b, s:b, s:b, s:b, s:b}", "id",
        snapshot->id, "name", text_hex(is_told ? snapshot->name : NULL), "made_ns",
        (json_int_t)snapshot->made_ns, "generation", (json_int_t)snapshot->generation, "parent",
        snapshot_index(listing, parent), "under",
        snapshot_index(listing, snapshot_nearest_owned(snapshot->lower)), "layer",
        layer_index(listing, snapshot->layer), "merged", layer_index(listing, snapshot->compacted),
        "live", live_index(listing, checkpoint), "was_live", snapshot->is_live, "asked_for",
        snapshot->purpose != SNAPSHOT_INTERNAL, "of_fork", snapshot->purpose == SNAPSHOT_OF_FORK,
        "automatic", snapshot->automatic == listing->session->number, "hidden",
        snapshot->tree == NULL || !is_told);
    if (row && snapshot->net_names)
        listing->failed |= json_object_set(row, "net_names", snapshot->net_names) < 0;
    listing->failed |= !row || json_array_append_new(listing->rows, row) < 0;
    listing->snapshots[listing->n_snapshots++] = snapshot;
}

static json_t *live_row(const struct checkpoint *checkpoint) {
    json_t *commands = json_array(), *pipes = json_array(), *terminals = json_array();

    for (size_t i = 0; i < checkpoint->n_commands; i++) {
        const struct checkpoint_command *command = &checkpoint->commands[i];

        json_array_append_new(commands,
            json_pack("{s:o, s:b, s:i, s:o, s:I, s:I}", "operation",
                hex_of(command->operation, command->operation_length), "terminal",
                command->has_terminal, "pid", (int)command->pid, "description",
                text_hex(command->description), "timeout_ms", (json_int_t)command->timeout_ms,
                "output_limit", (json_int_t)command->output_limit));
    }
    for (size_t i = 0; i < checkpoint->n_pipes; i++)
        json_array_append_new(
            pipes, json_pack("{s:i, s:i, s:b}", "command", checkpoint->pipes[i].command, "slot",
                       (int)checkpoint->pipes[i].slot, "written", checkpoint->pipes[i].is_written));
    for (size_t i = 0; i < checkpoint->n_terminals; i++)
        json_array_append_new(terminals, json_integer(checkpoint->terminals[i]));
    if (json_array_size(commands) != checkpoint->n_commands ||
        json_array_size(pipes) != checkpoint->n_pipes ||
        json_array_size(terminals) != checkpoint->n_terminals) {
        json_decref(commands);
        json_decref(pipes);
        json_decref(terminals);
        return NULL;
    }
    return json_pack("{s:i, s:I, s:o, s:o, s:o}", "processes", (int)checkpoint->processes, "bytes",
        (json_int_t)checkpoint_memory(checkpoint), "commands", commands, "pipes", pipes,
        "terminals", terminals);
}

/* The end of a command, with its output if there is `*room` for that. */
static json_t *ended_row(const struct session *session, const struct ended *ended, size_t *room) {
    const size_t prefix = sizeof session->number;
    struct buf streams[2] = { BUF_INIT, BUF_INIT };
    bool whole =
        result_streams(session->engine, ended->operation, ended->operation_length, *room, streams);
    json_t *row = json_pack("{s:o, s:o, s:i, s:i, s:I, s:I, s:b}", "operation",
        hex_of(ended->operation + prefix, ended->operation_length - prefix), "command",
        text_hex(ended->command), "outcome", (int)ended->outcome, "status", ended->status,
        "wall_ns", (json_int_t)ended->wall_ns, "cpu_ns", (json_int_t)ended->cpu_ns, "told",
        ended->told);

    if (row && whole) {
        json_object_set_new(row, "stdout", hex_of(streams[0].data, streams[0].length));
        json_object_set_new(row, "stderr", hex_of(streams[1].data, streams[1].length));
        *room -= streams[0].length + streams[1].length;
    }
    buf_done(&streams[0]);
    buf_done(&streams[1]);
    return row;
}

/* The latest first: theirs is the room. */
static json_t *ended_of(const struct session *session) {
    size_t room =
        HIBERNATED_MAX_OUTPUT; /* of commands that are over; of others, how they ended is kept */
    json_t *list = json_array();

    for (const struct list *at = session->commands.ended.prev; at != &session->commands.ended;
         at = at->prev) {
        const struct ended *ended = container_of(at, struct ended, node);

        if (ended->outcome != ROLLBOX_OUTCOME_ERROR &&
            ended->operation_length > sizeof session->number)
            json_array_append_new(list, ended_row(session, ended, &room));
    }
    return list;
}

static json_t *places_of(const struct plan *plan) {
    const struct plan_op *ops = plan_items(plan, box_ops, struct plan_op);
    json_t *places = json_array();

    for (uint32_t i = 0; i < plan->box_ops.n; i++)
        if (ops[i].kind == PLAN_OP_PLACE)
            json_array_append_new(
                places, json_pack("{s:i, s:o}", "part", (int)plan_place_part(&ops[i]), "path",
                            text_hex(plan_text(plan, ops[i].path))));
    return places;
}

static json_t *environment_of(const struct profile *profile) {
    const char *end = profile->key.text + profile->key.length;
    json_t *list = json_array();

    for (const char *at = profile->key.text + profile->key.policy_length; at < end;
         at += strlen(at) + 1)
        json_array_append_new(list, text_hex(at));
    return list;
}

json_t *hibernate_record(const struct session *session, const struct snapshot *at, bool alone,
    struct hibernate_parts *ret_parts) {
    struct hibernate_parts parts = { 0 };
    struct listing listing = {
        .session = session, .parts = &parts, .rows = json_array(), .alone = alone ? at : NULL
    };
    struct snapshot_tree *tree = session->files.tree;
    const struct snapshot *committed = alone ? NULL : session->files.committed;
    bool is_alone = tree->references == 1;
    json_t *layers = json_array(), *checkpoints = json_array();

    list_for_each(item, &tree->snapshots) {
        struct snapshot *snapshot = container_of(item, struct snapshot, in_tree);

        if ((is_alone && !alone) || item == tree->snapshots.next)
            add_snapshot_row(&listing, snapshot);
    }
    add_snapshot_row(&listing, (struct snapshot *)at);
    add_snapshot_row(&listing, (struct snapshot *)committed);
    for (size_t i = 0; i < parts.n_layers; i++)
        listing.failed |= json_array_append_new(layers,
                              json_pack("{s:I, s:I}", "bytes", (json_int_t)parts.layers[i]->bytes,
                                  "entries", (json_int_t)parts.layers[i]->entries)) < 0;
    for (size_t i = 0; i < parts.n_checkpoints; i++)
        listing.failed |= json_array_append_new(checkpoints, live_row(parts.checkpoints[i])) < 0;
    json_t *record = json_pack("{s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "name", session->name, "detached", session->client == NULL, "socket",
        text_hex(session->engine->server.socket_path), "policy",
        json_stringn(session->profile->key.text, session->profile->key.policy_length),
        "environment", environment_of(session->profile), "fingerprint", fingerprint_now(), "places",
        places_of(session->profile->plan), "nodes", listing.rows, "layers", layers, "lives",
        checkpoints, "at", snapshot_index(&listing, at), "committed",
        snapshot_index(&listing, committed), "committed_path",
        text_hex(session->files.committed_path));
    json_t *numbers = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:b, s:b, s:o}", "next_name",
        (json_int_t)tree->next_name, "made_ns", (json_int_t)session->origin.made_ns, "since_ns",
        (json_int_t)session->origin.since_ns, "idle_ms", (json_int_t)session->timers.idle_ms,
        "ttl_ms", (json_int_t)session->timers.ttl_ms, "lifetime_ms",
        (json_int_t)session->timers.lifetime_ms, "hibernate_ms",
        (json_int_t)session->hibernation.after_ms, "seed", (json_int_t)session->origin.seed,
        "n_forked", (json_int_t)session->origin.n_forked, "clone_id",
        (json_int_t)session->origin.clone_id, "checkpoints", (int)session->auto_snapshot.keep,
        "has_own_seed", session->origin.has_own_seed, "was_used", session->origin.was_used,
        "operation", hex_of(session->origin.operation, session->origin.operation_length));
    json_t *ended = alone ? json_array() : ended_of(session);
    const struct buf *rules = session_events_saved(session);
    const char *network = gateway_rules(session->number);
    if (network && record)
        listing.failed |= json_object_set_new(record, "net_rules", json_string(network)) < 0;
    if (listing.failed || !record || !numbers || json_object_update(record, numbers) < 0 ||
        json_object_set(record, "ended", ended) < 0 ||
        json_object_set_new(record, "rules",
            rules && !alone ? hex_of(rules->data, rules->length) : hex_of("", 0)) < 0 ||
        json_object_set_new(
            record, "grounds", path_identities_record(&session->profile->path_identities)) < 0) {
        json_decref(record);
        record = NULL;
        hibernate_parts_done(&parts);
    } else
        *ret_parts = parts;
    json_decref(ended);
    json_decref(numbers);
    free(listing.snapshots);
    return record;
}

void hibernate_parts_done(struct hibernate_parts *parts) {
    free(parts->layers);
    free(parts->checkpoints);
    *parts = (struct hibernate_parts){ 0 };
}

/* ---- reading ---- */

static int fail_damaged(struct rollbox_error *error, const char *what) {
    return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "wake",
        "the record of the sleeping sandbox is not valid: its %s", what);
}

int hibernate_check(
    const json_t *record, const struct profile *profile, struct rollbox_error *error) {
    json_t *now = places_of(profile->plan);
    bool same = now && json_equal(now, json_object_get(record, "places"));

    json_decref(now);
    if (!same)
        return error_set(error, ROLLBOX_ERR_CONFLICT, ESTALE, "wake",
            "the writable places of the sandbox's policy are others on this host now than when it "
            "was hibernated; make them as they were");
    return 0;
}

void hibernate_layer_size(
    const json_t *record, size_t i, uint64_t *ret_bytes, uint64_t *ret_entries) {
    const json_t *row = json_array_get(json_object_get(record, "layers"), i);

    *ret_bytes = (uint64_t)MAX(get_number(row, "bytes"), (int64_t)0);
    *ret_entries = (uint64_t)MAX(get_number(row, "entries"), (int64_t)0);
}

static int read_commands(const json_t *rows, struct checkpoint *checkpoint) {
    const json_t *row;
    size_t i;

    checkpoint->commands = calloc(json_array_size(rows) + 1, sizeof *checkpoint->commands);
    if (!checkpoint->commands)
        return -ENOMEM;
    json_array_foreach(rows, i, row) {
        struct checkpoint_command *command = &checkpoint->commands[checkpoint->n_commands];
        ssize_t n = bytes_of(
            json_object_get(row, "operation"), command->operation, sizeof command->operation);

        if (n < 0 || get_number(row, "pid") < 2 || get_number(row, "timeout_ms") < 0 ||
            get_number(row, "output_limit") < 0 ||
            !(command->description = text_of(json_object_get(row, "description"))))
            return -EBADMSG;
        checkpoint->n_commands++;
        command->operation_length = (size_t)n;
        command->pid = (pid_t)get_number(row, "pid");
        command->timeout_ms = get_number(row, "timeout_ms");
        command->output_limit = (uint64_t)get_number(row, "output_limit");
        command->has_terminal = get_flag(row, "terminal");
    }
    return 0;
}

static int read_pipes(const json_t *rows, struct checkpoint *checkpoint) {
    const json_t *row;
    size_t i;

    checkpoint->pipes = calloc(json_array_size(rows) + 1, sizeof *checkpoint->pipes);
    if (!checkpoint->pipes || json_array_size(rows) >= FD_MESSAGE_MAX_FDS)
        return -ENOMEM;
    json_array_foreach(rows, i, row) {
        int64_t command = get_number(row, "command"), slot = get_number(row, "slot");

        if (command < -1 || command >= (int64_t)checkpoint->n_commands || slot < 0 ||
            slot >= (int64_t)ARRAY_SIZE(((struct run *)0)->fds.pipes))
            return -EBADMSG;
        checkpoint->pipes[checkpoint->n_pipes++] = (struct checkpoint_pipe){
            .command = (int)command, .slot = (unsigned)slot, .is_written = get_flag(row, "written")
        };
    }
    return 0;
}

static int read_terminals(const json_t *rows, struct checkpoint *checkpoint) {
    const json_t *row;
    size_t i;

    checkpoint->terminals = calloc(json_array_size(rows) + 1, sizeof *checkpoint->terminals);
    if (!checkpoint->terminals || json_array_size(rows) > DUMP_WORKER_MAX_TERMINALS)
        return -ENOMEM;
    json_array_foreach(rows, i, row) {
        json_int_t command = json_is_integer(row) ? json_integer_value(row) : -2;

        if (command < -1 || command >= (json_int_t)checkpoint->n_commands)
            return -EBADMSG;
        checkpoint->terminals[checkpoint->n_terminals++] = (int)command;
    }
    return 0;
}

static int read_live(
    struct engine *engine, const json_t *row, int *take_image, struct checkpoint **ret_checkpoint) {
    struct checkpoint *checkpoint = checkpoint_new(engine);
    int r = checkpoint ? read_commands(json_object_get(row, "commands"), checkpoint) : -ENOMEM;

    if (r == 0)
        r = read_pipes(json_object_get(row, "pipes"), checkpoint);
    if (r == 0)
        r = read_terminals(json_object_get(row, "terminals"), checkpoint);
    if (r < 0) {
        checkpoint_put(checkpoint);
        return r;
    }
    checkpoint->processes = (unsigned)get_number(row, "processes");
    checkpoint->bytes = (uint64_t)get_number(row, "bytes");
    checkpoint->image = TAKE_FD(*take_image);
    *ret_checkpoint = checkpoint;
    return 0;
}

/* The entry of an index below `n`; NULL for null. */
static void *item_of(
    const json_t *row, const char *key, void *const *list, size_t n, bool *is_bad) {
    const json_t *value = json_object_get(row, key);
    json_int_t i = json_integer_value(value);

    if (json_is_null(value))
        return NULL;
    *is_bad |= !json_is_integer(value) || i < 0 || (size_t)i >= n;
    return *is_bad ? NULL : list[i];
}

/* As snapshot_new makes them. */
static bool is_id(const char *id) {
    size_t digits = id[0] == 's' ? strspn(id + 1, "0123456789") : 0;

    return digits && digits < 12 && !id[1 + digits];
}

struct building {
    struct snapshot **snapshots;
    struct layer *const *layers;
    struct checkpoint **checkpoints;
    size_t n_layers, n_checkpoints;
};

/* A reference, or NULL: none, or not what gateway_names has told; the gateway checks what
 * the texts mean. */
static json_t *read_names(const json_t *names) {
    const json_t *pair;
    size_t i;

    if (!json_is_array(names))
        return NULL;
    json_array_foreach(names, i, pair) if (!json_is_string(json_array_get(pair, 0)) ||
                                           !json_is_string(json_array_get(pair, 1))) return NULL;
    return json_incref((json_t *)names);
}

static int read_node(struct snapshot_tree *tree, const json_t *row, struct building *b, size_t i) {
    const char *id = json_string_value(json_object_get(row, "id"));
    struct snapshot *snapshot = b->snapshots[i];
    bool is_bad = !id || !is_id(id);
    struct snapshot *parent = item_of(row, "parent", (void *const *)b->snapshots, i, &is_bad),
                    *lower = item_of(row, "under", (void *const *)b->snapshots, i, &is_bad);
    struct layer *layer = item_of(row, "layer", (void *const *)b->layers, b->n_layers, &is_bad),
                 *compacted =
                     item_of(row, "merged", (void *const *)b->layers, b->n_layers, &is_bad);
    struct checkpoint *checkpoint =
        item_of(row, "live", (void *const *)b->checkpoints, b->n_checkpoints, &is_bad);

    (void)tree;
    /* A state without a parent is the beginning, or hidden from the tree. */
    if (is_bad || (!parent && i && !get_flag(row, "hidden")))
        return -EBADMSG;
    snapshot->parent = parent ? snapshot_get(parent) : NULL;
    snapshot->lower = lower ? snapshot_get(lower) : NULL;
    snapshot->layer = layer ? layer_get(layer) : NULL;
    snapshot->compacted = compacted ? layer_get(compacted) : NULL;
    snapshot->checkpoint = checkpoint ? checkpoint_get(checkpoint) : NULL;
    snapshot->net_names = read_names(json_object_get(row, "net_names"));
    snapshot->name = text_of(json_object_get(row, "name"));
    snapshot->made_ns = get_number(row, "made_ns");
    snapshot->generation = (uint64_t)get_number(row, "generation");
    snapshot->is_live = get_flag(row, "was_live");
    snapshot->purpose = !get_flag(row, "asked_for") ? SNAPSHOT_INTERNAL
                        : get_flag(row, "of_fork")  ? SNAPSHOT_OF_FORK
                                                    : SNAPSHOT_ASKED_FOR;
    snapshot->automatic =
        get_flag(row, "automatic") ? UINT64_MAX : 0; /* the session learns it later */
    snprintf(snapshot->id, sizeof snapshot->id, "%s", id);
    return 0;
}

/* Dropped states are there because others lie on them. */
static void hide_snapshot(struct snapshot *snapshot) {
    list_remove(&snapshot->in_tree);
    snapshot->tree = NULL;
    snapshot_put(snapshot);
}

static int read_nodes(
    struct engine *engine, struct snapshot_tree *tree, const json_t *rows, struct building *b) {
    int r = 0;

    for (size_t i = 1; i < json_array_size(rows); i++)
        if (!(b->snapshots[i] = snapshot_new(engine, tree, NULL, NULL, NULL)))
            return -ENOMEM;
    for (size_t i = 0; r == 0 && i < json_array_size(rows); i++)
        r = read_node(tree, json_array_get(rows, i), b, i);
    for (size_t i = 1; r == 0 && i < json_array_size(rows); i++)
        if (get_flag(json_array_get(rows, i), "hidden"))
            hide_snapshot(b->snapshots[i]);
    return r;
}

int hibernate_family(struct engine *engine, const json_t *record, struct layer *const *layers,
    size_t n_layers, int *take_images, size_t n_images, struct backing *backing,
    struct snapshot_tree **ret_tree, struct snapshot **ret_at, struct snapshot **ret_committed,
    struct rollbox_error *error) {
    const json_t *rows = json_object_get(record, "nodes"),
                 *checkpoints = json_object_get(record, "lives");
    size_t n = json_array_size(rows);
    struct building b = { .snapshots = calloc(n + 1, sizeof(struct snapshot *)),
        .layers = layers,
        .n_layers = n_layers,
        .checkpoints = calloc(n_images + 1, sizeof(struct checkpoint *)) };
    struct snapshot_tree *tree = b.snapshots && b.checkpoints && n && n <= HIBERNATED_MAX_STATES
                                     ? snapshot_tree_new(engine, &b.snapshots[0])
                                     : NULL;
    int r = tree ? 0 : -ENOMEM;
    if (tree && json_array_size(checkpoints) != n_images)
        r = -EBADMSG;
    bool is_bad = false;

    for (size_t i = 0; r == 0 && i < n_images; i++) {
        r = read_live(engine, json_array_get(checkpoints, i), &take_images[i], &b.checkpoints[i]);
        if (r == 0 && backing)
            backing_ref_set(&b.checkpoints[i]->backing_ref, backing, i);
        b.n_checkpoints += r == 0;
    }
    if (r == 0)
        r = read_nodes(engine, tree, rows, &b);
    struct snapshot *at = r == 0 ? item_of(record, "at", (void *const *)b.snapshots, n, &is_bad)
                                 : NULL,
                    *committed = r == 0 ? item_of(record, "committed", (void *const *)b.snapshots,
                                              n, &is_bad)
                                        : NULL;
    if (r == 0 && (is_bad || !at))
        r = -EBADMSG;
    if (r == 0) {
        tree->next_name = (unsigned)get_number(record, "next_name");
        *ret_tree = tree;
        *ret_at = snapshot_get(at);
        *ret_committed = committed ? snapshot_get(committed) : NULL;
    }
    for (size_t i = 0; b.snapshots && i < n; i++)
        snapshot_put(b.snapshots[i]);
    for (size_t i = 0; i < b.n_checkpoints; i++)
        checkpoint_put(b.checkpoints[i]);
    free(b.snapshots);
    free(b.checkpoints);
    if (r < 0)
        snapshot_tree_put(tree);
    if (r == -EBADMSG)
        return fail_damaged(error, "states");
    return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_RESOURCE_EXHAUSTED), -r, "wake",
                       "the sandbox cannot be woken: %s", strerror(-r))
                 : 0;
}

static bool add_stream(const json_t *value, struct buf *to) {
    size_t most = json_string_length(value) / 2;
    auto_free char *bytes =
        json_is_string(value) && most <= HIBERNATED_MAX_OUTPUT ? malloc(most + 1) : NULL;
    ssize_t n = bytes ? bytes_of(value, bytes, most) : -1;

    if (n > 0)
        buf_add(to, bytes, (size_t)n);
    return n >= 0;
}

static void settle_ended(struct session *session, const json_t *row) {
    struct ended *ended = calloc(1, sizeof *ended);
    struct buf streams[2] = { BUF_INIT, BUF_INIT };
    int64_t outcome = get_number(row, "outcome");
    ssize_t n = ended ? bytes_of(json_object_get(row, "operation"), ended->operation,
                            sizeof ended->operation - sizeof session->number)
                      : -1;

    if (n < 1 || outcome < 0 || outcome >= ROLLBOX_OUTCOME_ERROR) {
        free(ended);
        return;
    }
    ended->operation_length = (size_t)n;
    session_name_operation(session, ended->operation, &ended->operation_length);
    list_init(&ended->node);
    ended->command = text_of(json_object_get(row, "command"));
    ended->outcome = (enum rollbox_outcome)outcome;
    ended->status = (int)get_number(row, "status");
    ended->wall_ns = (uint64_t)get_number(row, "wall_ns");
    ended->cpu_ns = (uint64_t)get_number(row, "cpu_ns");
    ended->told = get_flag(row, "told");
    list_add_tail(&session->commands.ended, &ended->node);
    session->commands.n_ended++;
    if (add_stream(json_object_get(row, "stdout"), &streams[0]) &&
        add_stream(json_object_get(row, "stderr"), &streams[1]))
        result_restore(session->engine, ended->operation, ended->operation_length, ended->outcome,
            ended->status, ended->wall_ns, ended->cpu_ns, streams);
    buf_done(&streams[0]);
    buf_done(&streams[1]);
}

/* By these the records of its forks are made. */
static void settle_rules(struct session *session, const json_t *text) {
    auto_buf struct buf rules = BUF_INIT;
    size_t most = json_string_length(text) / 2;
    void *to = most ? buf_reserve(&rules, most) : NULL;
    ssize_t n = to ? bytes_of(text, to, most) : 0;

    rules.length += n > 0 ? (size_t)n : 0;
    session_events_restored(session, &rules);
}

void hibernate_settle(struct session *session, const json_t *record) {
    const json_t *ended = json_object_get(record, "ended");

    ssize_t n = bytes_of(json_object_get(record, "operation"), session->origin.operation,
        sizeof session->origin.operation);

    session->origin.operation_length = n > 0 ? (size_t)n : 0;
    session->origin.made_ns = get_number(record, "made_ns");
    session->origin.since_ns = get_number(record, "since_ns");
    session->timers.idle_ms = get_number(record, "idle_ms");
    session->timers.ttl_ms = get_number(record, "ttl_ms");
    session->timers.lifetime_ms = get_number(record, "lifetime_ms");
    session->hibernation.after_ms = get_number(record, "hibernate_ms");
    session->origin.seed = (uint64_t)get_number(record, "seed");
    session->origin.n_forked = (uint64_t)get_number(record, "n_forked");
    session->origin.clone_id = json_is_integer(json_object_get(record, "clone_id"))
                                   ? get_number(record, "clone_id")
                                   : -1; /* 0.1 had none */
    session->auto_snapshot.keep = (unsigned)get_number(record, "checkpoints");
    session->origin.has_own_seed = get_flag(record, "has_own_seed");
    session->origin.was_used = true;
    settle_rules(session, json_object_get(record, "rules"));
    for (size_t i = json_array_size(ended); i--;)
        settle_ended(session, json_array_get(ended, i));
    session->files.committed_path = text_of(json_object_get(record, "committed_path"));
}

void hibernate_environment_free(char **environment) {
    for (size_t i = 0; environment && environment[i]; i++)
        free(environment[i]);
    free(environment);
}

int hibernate_policy(
    const json_t *record, const char **ret_text, size_t *ret_length, char ***ret_environment) {
    const json_t *policy = json_object_get(record, "policy"),
                 *list = json_object_get(record, "environment");
    size_t n = json_array_size(list);
    char **environment = calloc(n + 1, sizeof *environment);

    for (size_t i = 0; environment && i < n; i++)
        if (!(environment[i] = text_of(json_array_get(list, i)))) {
            hibernate_environment_free(environment);
            return -EBADMSG;
        }
    if (!environment || !json_is_string(policy)) {
        hibernate_environment_free(environment);
        return environment ? -EBADMSG : -ENOMEM;
    }
    *ret_text = json_string_value(policy);
    *ret_length = json_string_length(policy);
    *ret_environment = environment;
    return 0;
}

/* ---- in words ---- */

/* The index of its parent, which comes before it; -1: none. */
static json_int_t parent_of(const json_t *snapshots, json_int_t i) {
    const json_t *parent = json_object_get(json_array_get(snapshots, (size_t)i), "parent");

    return json_is_integer(parent) && json_integer_value(parent) >= 0 &&
                   json_integer_value(parent) < i
               ? json_integer_value(parent)
               : -1;
}

static bool is_shown(const json_t *snapshots, json_int_t i) {
    return parent_of(snapshots, i) < 0 ||
           get_flag(json_array_get(snapshots, (size_t)i), "asked_for");
}

/* As snapshot_nearest_visible: itself, or the nearest before it that users know of. */
static json_int_t visible_ancestor(const json_t *snapshots, json_int_t i) {
    while (!is_shown(snapshots, i))
        i = parent_of(snapshots, i);
    return i;
}

static const char *id_of(const json_t *snapshots, json_int_t i) {
    const char *id = json_string_value(json_object_get(json_array_get(snapshots, (size_t)i), "id"));

    return id && is_id(id) ? id : "?";
}

const char *hibernate_visible_snapshot(const json_t *record) {
    const json_t *snapshots = json_object_get(record, "nodes");

    return id_of(snapshots, visible_ancestor(snapshots, get_number(record, "at")));
}

/* The entry of a list of the record that a state names; NULL: none. */
static const json_t *find_named(
    const json_t *record, const char *list, const json_t *node, const char *key) {
    const json_t *index = json_object_get(node, key);

    return json_is_integer(index) && json_integer_value(index) >= 0
               ? json_array_get(json_object_get(record, list), (size_t)json_integer_value(index))
               : NULL;
}

/* parent: as visible_ancestor(); -1: none. *ret_name is for free(), and what the facts point to. */
static void facts_of(const json_t *whole, json_int_t i, json_int_t parent,
    struct snapshot_facts *ret_facts, char **ret_name) {
    const json_t *record = json_object_get(whole, "record");
    const json_t *snapshots = json_object_get(record, "nodes"),
                 *node = json_array_get(snapshots, (size_t)i),
                 *layer = find_named(record, "layers", node, "layer"),
                 *live = find_named(record, "lives", node, "live");

    *ret_name = text_of(json_object_get(node, "name"));
    *ret_facts = (struct snapshot_facts){
        .id = id_of(snapshots, i),
        .name = *ret_name,
        .parent = parent < 0 ? NULL : id_of(snapshots, parent),
        .bytes = (uint64_t)get_number(layer, "bytes"),
        .files = (uint64_t)get_number(layer, "entries"),
        .made_ns = get_number(node, "made_ns"),
        .is_automatic = get_flag(node, "automatic"),
        .was_live = get_flag(node, "was_live"),
        .processes = (unsigned)get_number(live, "processes"),
        .memory_bytes = (uint64_t)get_number(live, "bytes"),
        .kind = "asleep",
        .disk_bytes = (uint64_t)get_number(find_named(whole, "layers", node, "layer"), "bytes") +
                      (uint64_t)get_number(find_named(whole, "images", node, "live"), "bytes"),
    };
}

void hibernate_tree_text(const json_t *whole, const char *name, struct buf *to) {
    const json_t *record = json_object_get(whole, "record");
    const json_t *snapshots = json_object_get(record, "nodes");
    const json_int_t at = get_number(record, "at"), n = (json_int_t)json_array_size(snapshots);
    auto_free json_int_t *shows = calloc((size_t)n + 1,
        sizeof *shows); /* as visible_ancestor(), of each: a record from elsewhere may have a long
                           line of states, and many that stand on its end */
    const char *between = "";

    to->failed |= !shows;
    buf_add_text(to, "{\"snapshots\": [");
    for (json_int_t i = 0; shows && i < n; i++) {
        const json_int_t parent = parent_of(snapshots, i);
        auto_free char *own_name = NULL;
        struct snapshot_facts facts;

        shows[i] = is_shown(snapshots, i) ? i : shows[parent];

        /* A hibernated session is a snapshot, even if nobody has asked for one. */
        if (i != at && (shows[i] != i || get_flag(json_array_get(snapshots, (size_t)i), "hidden")))
            continue;
        facts_of(whole, i, parent < 0 ? -1 : shows[parent], &facts, &own_name);
        buf_printf(to, "%s{", between);
        snapshot_facts_text(&facts, to);
        buf_add_text(to, ", \"asleep\": true, \"sandboxes\": [");
        if (i == at)
            buf_printf(to, "\"%s\"", name);
        buf_add_text(to, "]}");
        between = ", ";
    }
    buf_add_text(to, "]}");
}

/* The state that users know by that id or name; NULL: the one that the sandbox stands on. -1: none.
 */
static json_int_t find_snapshot_row(const json_t *record, const char *wanted) {
    const json_t *snapshots = json_object_get(record, "nodes");

    for (json_int_t i = 0; wanted && i < (json_int_t)json_array_size(snapshots); i++) {
        const json_t *node = json_array_get(snapshots, (size_t)i);
        auto_free char *name = text_of(json_object_get(node, "name"));

        if (!get_flag(node, "hidden") &&
            (!strcmp(id_of(snapshots, i), wanted) || (name && !strcmp(name, wanted))))
            return i;
    }
    return wanted ? -1 : get_number(record, "at");
}

json_t *hibernate_state(struct engine *engine, const json_t *whole, const char *wanted,
    json_t **ret_image, json_t **ret_own) {
    const json_t *record = json_object_get(whole, "record");
    json_int_t i = find_snapshot_row(record, wanted);
    const json_t *node = i < 0 ? NULL : json_array_get(json_object_get(record, "nodes"), (size_t)i),
                 *place;
    struct checkpoint *checkpoint = node ? checkpoint_new(engine) : NULL;
    auto_buf struct buf text = BUF_INIT;
    auto_free char *name = NULL;
    const char *between = "";
    struct snapshot_facts facts;
    size_t k;

    if (!checkpoint)
        return NULL;
    const json_int_t parent = parent_of(json_object_get(record, "nodes"), i);
    facts_of(whole, i, parent < 0 ? -1 : visible_ancestor(json_object_get(record, "nodes"), parent),
        &facts, &name);
    buf_add_text(&text, "{");
    snapshot_facts_text(&facts, &text);
    buf_add_text(&text, ", \"asleep\": true, \"commands\": [");
    (void)read_commands(
        json_object_get(find_named(record, "lives", node, "live"), "commands"), checkpoint);
    for (size_t c = 0; c < checkpoint->n_commands; c++)
        checkpoint_command_text(&checkpoint->commands[c], &between, &text);
    checkpoint_put(checkpoint);
    buf_add_text(&text, "], \"processes\": [], \"changes\": null}");
    json_t *own = json_array();
    json_array_foreach(json_object_get(record, "places"), k, place) {
        auto_free char *path = text_of(json_object_get(place, "path"));

        if (path)
            json_array_append_new(own, json_string(path));
    }
    *ret_image = json_incref(json_object_get(node, "live"));
    *ret_own = own;
    return buf_failed(&text) ? NULL : json_loadb(text.data, text.length, 0, NULL);
}

void hibernate_execs_text(const json_t *record, struct buf *to, const char **between) {
    const json_t *node = json_array_get(
                     json_object_get(record, "nodes"), (size_t)get_number(record, "at")),
                 *row;
    size_t i;

    json_array_foreach(
        json_object_get(find_named(record, "lives", node, "live"), "commands"), i, row) {
        auto_free char *id = text_of(json_object_get(row, "operation"));
        auto_free char *command = text_of(json_object_get(row, "description"));

        buf_printf(to, "%s{\"id\": ", *between);
        json_add_string(to, id, id ? strlen(id) : 0);
        buf_add_text(to, ", \"command\": ");
        json_add_string(to, command, command ? strlen(command) : 0);
        buf_add_text(to, ", \"state\": \"asleep\", \"terminal\": false, \"detached\": true, "
                         "\"output_bytes\": 0}");
        *between = ", ";
    }
}
