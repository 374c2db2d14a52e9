/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model of a record:
 *
 *     places     the directories in which the policy lets the sandbox write
 *     nodes      snapshots; `parent` and `under` name earlier nodes, so there is no cycle
 *      |- layer, merged -> layers     one row for each file layer-N
 *      '- live          -> lives      one row for each file image-N
 *                           |- commands    running commands: a process (pid) and an operation each
 *                           |- pipes       one end of a command's descriptor (slot), or of none
 *                           '- terminals   the command that owns the terminal, or none
 *     at, committed -> nodes
 *     ended      ended commands, latest first
 *
 * The check walks over the record from the top, and keeps the path of the current field for its
 * message. Fields that an earlier version did not write may be missing; all other fields must
 * exist.
 */
#include "base/text.h"
#include "store/hibernated_check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "store/hibernated_read.h"

#define MAX_NAME 64
#define MAX_FINGERPRINT 400
#define MAX_PID 4194304                          /* the kernel's own limit (PID_MAX_LIMIT) */
#define MAX_TIMEOUT_MS (INT64_MAX / 2 / 1000000) /* as the engine takes from clients */
#define MAX_SPAN_MS (INT64_MAX / 4000000)
#define MAX_TIME_NS (INT64_MAX / 2)
#define MAX_LAYER_BYTES (1ll << 50)
#define MAX_LAYER_ENTRIES (1ll << 28) /* a launcher makes no larger file system */
#define MAX_OUTCOME 4                 /* all that end a command, but `error` */

struct walk {
    struct rollbox_error *error;
    const json_t *record;
    size_t n_layers, n_lives, n_nodes;
};

/* ---- words ---- */

/* `at` is the path of the object, `key` the field in it (NULL: the object itself). */
static int refuse_value(const struct walk *walk, const char *at, const char *key,
    const json_t *value, const char *format, ...) __attribute__((format(printf, 5, 6)));

static int refuse_value(const struct walk *walk, const char *at, const char *key,
    const json_t *value, const char *format, ...) {
    auto_free char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    const bool is_long = text && strlen(text) > 60;
    char why[160];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    return error_set(walk->error, ROLLBOX_ERR_DAMAGED, EBADMSG, "wake",
        "the record of the hibernated sandbox is not valid: %s%s%s is %.60s%s: %s", at,
        text_if(*at && key, "."), text_or(key, ""), text_or(text, "missing"),
        text_if(is_long, "..."), why);
}

static int no_memory(const struct walk *walk) {
    return error_set(walk->error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "wake", "out of memory");
}

#define PATH_MAX_LENGTH 96

static const char *path_of(char to[PATH_MAX_LENGTH], const char *at, const char *list, size_t i) {
    (void)snprintf(to, PATH_MAX_LENGTH, "%.60s%s%.20s[%zu]", at, *at ? "." : "", list, i);
    return to;
}

/* ---- fields ---- */

enum presence { OPTIONAL, REQUIRED };

static int check_integer(const struct walk *walk, const char *at, const json_t *object,
    const char *key, json_int_t least, json_int_t most, enum presence presence) {
    const json_t *value = json_object_get(object, key);

    if (!value && presence == OPTIONAL)
        return 0;
    if (!json_is_integer(value))
        return refuse_value(walk, at, key, value, "it must be a whole number");
    if (json_integer_value(value) < least || json_integer_value(value) > most)
        return refuse_value(walk, at, key, value, "it must be from %lld to %lld", (long long)least,
            (long long)most);
    return 0;
}

static int check_flag(const struct walk *walk, const char *at, const json_t *object,
    const char *key, enum presence presence) {
    const json_t *value = json_object_get(object, key);

    return json_is_boolean(value) || (!value && presence == OPTIONAL)
               ? 0
               : refuse_value(walk, at, key, value, "it must be true or false");
}

static bool is_hex(const char *text, size_t length) {
    return length % 2 == 0 && strspn(text, "0123456789abcdef") == length;
}

static bool has_nul(const char *hex, size_t length) {
    for (size_t i = 0; i < length; i += 2)
        if (hex[i] == '0' && hex[i + 1] == '0')
            return true;
    return false;
}

/* Bytes in hex, at most `most` of them. */
static int check_bytes(
    const struct walk *walk, const char *at, const char *key, const json_t *value, size_t most) {
    const char *hex = json_string_value(value);
    const size_t length = json_string_length(value);

    if (!hex || !is_hex(hex, length))
        return refuse_value(walk, at, key, value, "it must be bytes in lower-case hex");
    if (length / 2 > most)
        return refuse_value(walk, at, key, value, "it must be at most %zu bytes", most);
    return 0;
}

/* A text in hex. */
static int check_text(const struct walk *walk, const char *at, const char *key, const json_t *value,
    bool may_be_null) {
    if (may_be_null && (!value || json_is_null(value)))
        return 0;
    int r = check_bytes(walk, at, key, value, HIBERNATED_MAX_BYTES);
    if (r == 0 && has_nul(json_string_value(value), json_string_length(value)))
        return refuse_value(walk, at, key, value, "a text must not contain a zero byte");
    return r;
}

static int check_list(const struct walk *walk, const char *at, const json_t *object,
    const char *key, size_t least, size_t most) {
    const json_t *value = json_object_get(object, key);

    if (!json_is_array(value))
        return refuse_value(walk, at, key, value, "it must be a list");
    if (json_array_size(value) < least || json_array_size(value) > most)
        return refuse_value(walk, at, key, value, "it has %zu items, and must have from %zu to %zu",
            json_array_size(value), least, most);
    return 0;
}

static int check_object(const struct walk *walk, const char *at, const json_t *value) {
    return json_is_object(value) ? 0 : refuse_value(walk, at, NULL, value, "it must be an object");
}

/* Null, or an index below `n`. */
static int check_index(const struct walk *walk, const char *at, const json_t *object,
    const char *key, size_t n, bool may_be_null) {
    const json_t *value = json_object_get(object, key);
    const json_int_t i = json_integer_value(value);

    if (may_be_null && json_is_null(value))
        return 0;
    if (!json_is_integer(value) || i < 0 || (size_t)i >= n)
        return refuse_value(
            walk, at, key, value, "it must name one of the %zu items that it may", n);
    return 0;
}

/* ---- unique values ---- */

/* Adds `key`; DAMAGED if `seen` has it already. `seen` maps keys to where they were found. */
static int check_once(const struct walk *walk, json_t *seen, const char *at, const char *key,
    const json_t *value, const char *noted) {
    const char *before = json_string_value(json_object_get(seen, noted));

    if (before)
        return refuse_value(walk, at, key, value, "%s has the same", before);
    return json_object_set_new(seen, noted, json_string(at)) < 0 ? no_memory(walk) : 0;
}

/* ---- lives ---- */

static int check_command(
    const struct walk *walk, const char *at, const json_t *row, json_t *pids, json_t *operations) {
    const json_t *operation = json_object_get(row, "operation"), *pid = json_object_get(row, "pid");
    char number[32];
    int r = check_object(walk, at, row);

    if (r == 0)
        r = check_bytes(walk, at, "operation", operation, HIBERNATED_MAX_OPERATION);
    if (r == 0)
        r = check_text(walk, at, "description", json_object_get(row, "description"), false);
    if (r == 0)
        r = check_integer(walk, at, row, "pid", 2, MAX_PID, REQUIRED);
    if (r == 0)
        r = check_integer(walk, at, row, "timeout_ms", 0, MAX_TIMEOUT_MS, REQUIRED);
    if (r == 0)
        r = check_integer(walk, at, row, "output_limit", 0, INT64_MAX, REQUIRED);
    if (r == 0)
        r = check_flag(walk, at, row, "terminal", OPTIONAL);
    (void)snprintf(number, sizeof number, "%lld", (long long)json_integer_value(pid));
    if (r == 0)
        r = check_once(walk, pids, at, "pid", pid, number);
    /* A command without an operation has an empty one, and several may. */
    if (r == 0 && json_string_length(operation))
        r = check_once(walk, operations, at, "operation", operation, json_string_value(operation));
    return r;
}

static bool has_terminal(const json_t *commands, json_int_t i) {
    return json_is_true(json_object_get(json_array_get(commands, (size_t)i), "terminal"));
}

/* The engine makes one new pipe for each, in the place of a descriptor that the command began with.
 */
static int check_pipe(const struct walk *walk, const char *at, const json_t *row,
    const json_t *commands, json_t *seen) {
    const json_t *written = json_object_get(row, "written");
    const json_int_t command = json_integer_value(json_object_get(row, "command"));
    const json_int_t slot = json_integer_value(json_object_get(row, "slot"));
    char noted[64];
    int r = check_object(walk, at, row);

    if (r == 0)
        r = check_integer(
            walk, at, row, "command", -1, (json_int_t)json_array_size(commands) - 1, REQUIRED);
    if (r == 0)
        r = check_integer(walk, at, row, "slot", 0, HIBERNATED_MAX_SLOTS - 1, REQUIRED);
    if (r == 0)
        r = check_flag(walk, at, row, "written", REQUIRED);
    if (r < 0 || command < 0)
        return r; /* a pipe of an ended command, which no client asks for */
    if (has_terminal(commands, command))
        return refuse_value(walk, at, "command", json_object_get(row, "command"),
            "that command has a terminal, and so no pipes");
    if (slot <= 2 && json_is_true(written) != (slot != 0))
        return refuse_value(
            walk, at, "written", written, "slot 0 is read, and slots 1 and 2 are written");
    (void)snprintf(noted, sizeof noted, "%lld %lld", (long long)command, (long long)slot);
    return check_once(walk, seen, at, "slot", json_object_get(row, "slot"), noted);
}

static int check_terminal(const struct walk *walk, const char *at, const json_t *value,
    const json_t *commands, json_t *seen) {
    const json_int_t command = json_integer_value(value);
    char noted[32];

    if (!json_is_integer(value) || command < -1 || command >= (json_int_t)json_array_size(commands))
        return refuse_value(walk, at, NULL, value, "it must be -1, or name one of the %zu commands",
            json_array_size(commands));
    if (command < 0)
        return 0;
    if (!has_terminal(commands, command))
        return refuse_value(walk, at, NULL, value, "that command has no terminal");
    (void)snprintf(noted, sizeof noted, "%lld", (long long)command);
    return check_once(walk, seen, at, NULL, value, noted);
}

/* `seen` has objects for pids, operations, pipes and terminals. */
static int check_live_items(
    const struct walk *walk, const char *at, const json_t *row, json_t *const seen[4]) {
    const json_t *commands = json_object_get(row, "commands"), *item;
    char path[PATH_MAX_LENGTH];
    size_t i;
    int r = 0;

    json_array_foreach(commands, i, item) if (r == 0) r =
        check_command(walk, path_of(path, at, "commands", i), item, seen[0], seen[1]);
    json_array_foreach(json_object_get(row, "pipes"), i, item) if (r == 0) r =
        check_pipe(walk, path_of(path, at, "pipes", i), item, commands, seen[2]);
    json_array_foreach(json_object_get(row, "terminals"), i, item) if (r == 0) r =
        check_terminal(walk, path_of(path, at, "terminals", i), item, commands, seen[3]);
    return r;
}

static int check_live(const struct walk *walk, const char *at, const json_t *row) {
    const json_int_t processes = json_integer_value(json_object_get(row, "processes"));
    json_t *seen[4] = { json_object(), json_object(), json_object(), json_object() };
    int r = check_object(walk, at, row);

    if (r == 0)
        r = check_integer(walk, at, row, "processes", 1, HIBERNATED_MAX_PROCESSES, REQUIRED);
    if (r == 0)
        r = check_integer(walk, at, row, "bytes", 1, INT64_MAX, REQUIRED);
    /* Each command is a process of its own. */
    if (r == 0)
        r = check_list(walk, at, row, "commands", 0, (size_t)processes);
    if (r == 0)
        r = check_list(walk, at, row, "pipes", 0, HIBERNATED_MAX_PIPES);
    if (r == 0 && json_object_get(row, "terminals"))
        r = check_list(walk, at, row, "terminals", 0, HIBERNATED_MAX_TERMINALS);
    if (r == 0)
        r = check_live_items(walk, at, row, seen);
    for (size_t i = 0; i < ARRAY_SIZE(seen); i++)
        json_decref(seen[i]);
    return r;
}

static int check_lives(const struct walk *walk) {
    const json_t *row;
    char path[PATH_MAX_LENGTH];
    size_t i;
    int r = check_list(walk, "", walk->record, "lives", walk->n_lives, walk->n_lives);

    json_array_foreach(json_object_get(walk->record, "lives"), i, row) if (r == 0) r =
        check_live(walk, path_of(path, "", "lives", i), row);
    return r;
}

/* ---- layers, places, nodes ---- */

static int check_layers(const struct walk *walk) {
    const json_t *row;
    char path[PATH_MAX_LENGTH];
    size_t i;
    int r = check_list(walk, "", walk->record, "layers", walk->n_layers, walk->n_layers);

    json_array_foreach(json_object_get(walk->record, "layers"), i, row) {
        path_of(path, "", "layers", i);
        if (r == 0)
            r = check_object(walk, path, row);
        if (r == 0)
            r = check_integer(walk, path, row, "bytes", 0, MAX_LAYER_BYTES, REQUIRED);
        if (r == 0)
            r = check_integer(walk, path, row, "entries", 0, MAX_LAYER_ENTRIES, REQUIRED);
    }
    return r;
}

static int check_places(const struct walk *walk) {
    const json_t *row;
    char path[PATH_MAX_LENGTH];
    size_t i;
    int r = check_list(walk, "", walk->record, "places", 0, HIBERNATED_MAX_STATES);

    json_array_foreach(json_object_get(walk->record, "places"), i, row) {
        path_of(path, "", "places", i);
        if (r == 0)
            r = check_object(walk, path, row);
        if (r == 0)
            r = check_integer(walk, path, row, "part", 0, INT32_MAX, REQUIRED);
        if (r == 0)
            r = check_text(walk, path, "path", json_object_get(row, "path"), false);
    }
    return r;
}

/* "s" and a number, as the engine makes them. */
static bool is_state_id(const char *id, json_int_t *ret_number) {
    const size_t digits = id[0] == 's' ? strspn(id + 1, "0123456789") : 0;

    if (!digits || digits >= 12 || id[1 + digits])
        return false;
    *ret_number = strtoll(id + 1, NULL, 10);
    return true;
}

static int check_node(const struct walk *walk, const char *at, const json_t *row, size_t i,
    json_t *ids, json_t *names) {
    static const char *const flags[] = { "was_live", "asked_for", "of_fork", "automatic",
        "hidden" };
    const json_t *id = json_object_get(row, "id"), *name = json_object_get(row, "name");
    json_int_t number = 0;
    int r = check_object(walk, at, row);

    if (r == 0 && (!json_is_string(id) || !is_state_id(json_string_value(id), &number)))
        return refuse_value(walk, at, "id", id, "it must be \"s\" and a number");
    if (r == 0)
        r = check_once(walk, ids, at, "id", id, json_string_value(id));
    /* The next state that is made takes next_name for its id. */
    if (r == 0 && number >= json_integer_value(json_object_get(walk->record, "next_name")))
        return refuse_value(walk, at, "id", id, "its number must be below next_name");
    if (r == 0)
        r = check_text(walk, at, "name", name, true);
    if (r == 0 && json_is_string(name))
        r = check_once(walk, names, at, "name", name, json_string_value(name));
    if (r == 0)
        r = check_integer(walk, at, row, "made_ns", 0, MAX_TIME_NS, REQUIRED);
    if (r == 0)
        r = check_integer(walk, at, row, "generation", 0, INT64_MAX / 2, OPTIONAL);
    for (size_t k = 0; r == 0 && k < ARRAY_SIZE(flags); k++)
        r = check_flag(walk, at, row, flags[k], OPTIONAL);
    if (r == 0)
        r = check_index(walk, at, row, "parent", i, true);
    if (r == 0)
        r = check_index(walk, at, row, "under", i, true);
    if (r == 0)
        r = check_index(walk, at, row, "layer", walk->n_layers, true);
    if (r == 0)
        r = check_index(walk, at, row, "merged", walk->n_layers, true);
    if (r == 0)
        r = check_index(walk, at, row, "live", walk->n_lives, true);
    if (r < 0 || !i)
        return r;
    /* The first snapshot is the root of the tree; a hidden one has no relations. */
    const json_t *parent = json_object_get(row, "parent");
    const bool is_hidden = json_is_true(json_object_get(row, "hidden"));
    if (json_is_null(parent) != is_hidden)
        return refuse_value(walk, at, "parent", parent,
            is_hidden ? "a hidden snapshot has no parent"
                      : "only the first snapshot has no parent");
    const json_t *nodes = json_object_get(walk->record, "nodes");
    const size_t p = (size_t)json_integer_value(parent);
    if (p && json_is_true(json_object_get(json_array_get(nodes, p), "hidden")))
        return refuse_value(walk, at, "parent", parent, "that snapshot is hidden");
    return 0;
}

static int check_nodes(const struct walk *walk) {
    json_t *ids = json_object(), *names = json_object();
    const json_t *row;
    char path[PATH_MAX_LENGTH];
    size_t i;
    int r = check_list(walk, "", walk->record, "nodes", 1, HIBERNATED_MAX_STATES);

    if (r == 0)
        r = check_integer(walk, "", walk->record, "next_name", 1, UINT32_MAX, REQUIRED);
    json_array_foreach(json_object_get(walk->record, "nodes"), i, row) if (r == 0) r =
        check_node(walk, path_of(path, "", "nodes", i), row, i, ids, names);
    json_decref(ids);
    json_decref(names);
    return r;
}

/* ---- the rest ---- */

/* Commands that run in the sandbox's present state cannot have ended as well. */
static int note_running(const struct walk *walk, json_t *seen) {
    const json_t *nodes = json_object_get(walk->record, "nodes"), *row;
    const json_t *at =
        json_array_get(nodes, (size_t)json_integer_value(json_object_get(walk->record, "at")));
    const json_t *live = json_object_get(at, "live"), *commands;
    char path[PATH_MAX_LENGTH], list[PATH_MAX_LENGTH];
    size_t i;

    if (!json_is_integer(live))
        return 0;
    path_of(list, "", "lives", (size_t)json_integer_value(live));
    commands = json_object_get(
        json_array_get(json_object_get(walk->record, "lives"), (size_t)json_integer_value(live)),
        "commands");
    json_array_foreach(commands, i, row) {
        const char *operation = json_string_value(json_object_get(row, "operation"));

        if (*operation && json_object_set_new(
                              seen, operation, json_string(path_of(path, list, "commands", i))) < 0)
            return no_memory(walk);
    }
    return 0;
}

static int check_ended_row(
    const struct walk *walk, const char *at, const json_t *row, json_t *seen, size_t *room) {
    static const char *const streams[] = { "stdout", "stderr" };
    const json_t *operation = json_object_get(row, "operation");
    int r = check_object(walk, at, row);

    if (r == 0)
        r = check_bytes(walk, at, "operation", operation, HIBERNATED_MAX_OPERATION);
    if (r == 0 && !json_string_length(operation))
        return refuse_value(walk, at, "operation", operation, "it must not be empty");
    if (r == 0)
        r = check_once(walk, seen, at, "operation", operation, json_string_value(operation));
    if (r == 0)
        r = check_text(walk, at, "command", json_object_get(row, "command"), true);
    if (r == 0)
        r = check_integer(walk, at, row, "outcome", 0, MAX_OUTCOME, REQUIRED);
    if (r == 0)
        r = check_integer(walk, at, row, "status", INT32_MIN, INT32_MAX, REQUIRED);
    if (r == 0)
        r = check_integer(walk, at, row, "wall_ns", 0, INT64_MAX, REQUIRED);
    if (r == 0)
        r = check_integer(walk, at, row, "cpu_ns", 0, INT64_MAX, REQUIRED);
    if (r == 0)
        r = check_flag(walk, at, row, "told", OPTIONAL);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(streams); i++) {
        const json_t *stream = json_object_get(row, streams[i]);

        if (!stream)
            continue;
        r = check_bytes(walk, at, streams[i], stream, *room);
        *room -= r == 0 ? json_string_length(stream) / 2 : 0;
    }
    return r;
}

static int check_ended(const struct walk *walk) {
    json_t *seen = json_object();
    const json_t *row;
    char path[PATH_MAX_LENGTH];
    size_t i, room = HIBERNATED_MAX_OUTPUT;
    int r = json_object_get(walk->record, "ended")
                ? check_list(walk, "", walk->record, "ended", 0, SIZE_MAX)
                : 0;

    if (r == 0)
        r = note_running(walk, seen);
    json_array_foreach(json_object_get(walk->record, "ended"), i, row) if (r == 0) r =
        check_ended_row(walk, path_of(path, "", "ended", i), row, seen, &room);
    json_decref(seen);
    return r;
}

static int check_environment(const struct walk *walk) {
    const json_t *list = json_object_get(walk->record, "environment"), *entry;
    char path[PATH_MAX_LENGTH];
    size_t i;
    int r = list ? check_list(walk, "", walk->record, "environment", 0, SIZE_MAX) : 0;

    json_array_foreach(list, i, entry) if (r == 0) r =
        check_text(walk, path_of(path, "", "environment", i), NULL, entry, false);
    return r;
}

static bool is_name(const json_t *value) {
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    const char *name = json_string_value(value);
    const size_t n = json_string_length(value);

    return n && n <= MAX_NAME && strspn(name, letters) == n && name[0] != '.' && name[0] != '-';
}

static int check_session(const struct walk *walk) {
    static const struct {
        const char *key;
        json_int_t least, most;
    } numbers[] = {
        { "made_ns", 0, MAX_TIME_NS },
        { "since_ns", 0, MAX_TIME_NS },
        { "idle_ms", 0, MAX_SPAN_MS },
        { "ttl_ms", 0, MAX_SPAN_MS },
        { "lifetime_ms", 0, MAX_SPAN_MS },
        { "hibernate_ms", 0, MAX_SPAN_MS },
        { "seed", INT64_MIN, INT64_MAX },
        { "n_forked", 0, INT64_MAX },
        { "clone_id", -1, INT64_MAX },
        { "checkpoints", 0, INT32_MAX },
    };
    static const char *const flags[] = { "detached", "has_own_seed", "was_used" };
    const json_t *record = walk->record, *name = json_object_get(record, "name");
    const json_t *policy = json_object_get(record, "policy");
    int r = 0;

    if (!is_name(name))
        return refuse_value(walk, "", "name", name,
            "1 to %d letters, digits, '_', '.' and '-', the first no '.' or '-'", MAX_NAME);
    if (!json_is_string(policy))
        return refuse_value(walk, "", "policy", policy, "it must be a text");
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(numbers); i++)
        r = check_integer(
            walk, "", record, numbers[i].key, numbers[i].least, numbers[i].most, OPTIONAL);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(flags); i++)
        r = check_flag(walk, "", record, flags[i], OPTIONAL);
    if (r == 0)
        r = check_text(walk, "", "socket", json_object_get(record, "socket"), true);
    if (r == 0)
        r = check_text(walk, "", "committed_path", json_object_get(record, "committed_path"), true);
    if (r == 0 && json_object_get(record, "net_rules") &&
        !json_is_string(json_object_get(record, "net_rules")))
        r = refuse_value(
            walk, "", "net_rules", json_object_get(record, "net_rules"), "it must be a text");
    if (r == 0 && json_object_get(record, "operation"))
        r = check_bytes(
            walk, "", "operation", json_object_get(record, "operation"), HIBERNATED_MAX_OPERATION);
    if (r == 0 && json_object_get(record, "rules"))
        r = check_bytes(walk, "", "rules", json_object_get(record, "rules"), HIBERNATED_MAX_BYTES);
    return r == 0 ? check_environment(walk) : r;
}

/* The fingerprint is used in messages. A record of earlier versions may lack parts of it. */
static int check_fingerprint(const struct walk *walk) {
    const json_t *fingerprint = json_object_get(walk->record, "fingerprint"), *value;
    const char *key;

    if (fingerprint && !json_is_object(fingerprint))
        return refuse_value(walk, "", "fingerprint", fingerprint, "it must be an object");
    json_object_foreach((json_t *)(uintptr_t)fingerprint, key, value) {
        const char *text = json_string_value(value);

        if (!text || strlen(text) > MAX_FINGERPRINT)
            return refuse_value(
                walk, "", "fingerprint", value, "each of its values must be a short text");
        for (const char *c = text; *c; c++)
            if (*c < ' ' || *c > '~')
                return refuse_value(walk, "", "fingerprint", value, "it must be printable ASCII");
    }
    return 0;
}

static int check_ends(const struct walk *walk) {
    int r = check_index(walk, "", walk->record, "at", walk->n_nodes, false);

    return r == 0 && json_object_get(walk->record, "committed")
               ? check_index(walk, "", walk->record, "committed", walk->n_nodes, true)
               : r;
}

int hibernated_check(const json_t *whole, struct rollbox_error *error) {
    const struct walk walk = {
        .error = error,
        .record = json_object_get(whole, "record"),
        .n_layers = json_array_size(json_object_get(whole, hibernated_list(HIBERNATED_LAYER))),
        .n_lives = json_array_size(json_object_get(whole, hibernated_list(HIBERNATED_IMAGE))),
        .n_nodes = json_array_size(json_object_get(json_object_get(whole, "record"), "nodes")),
    };
    static int (*const checks[])(const struct walk *) = {
        check_session,
        check_fingerprint,
        check_places,
        check_layers,
        check_lives,
        check_nodes,
        check_ends,
        check_ended,
    };
    int r = check_object(&walk, "record", walk.record);

    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(checks); i++)
        r = checks[i](&walk);
    return r;
}
