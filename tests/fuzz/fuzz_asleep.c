/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record of a sandbox that sleeps, as the engine reads it. It gets the digest that it must
 * have, or nothing behind that would be reached.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "engine/command/result.h"
#include "engine/core/context.h"
#include "engine/files/layer_chain.h"
#include "engine/hibernate/hibernate.h"
#include "engine/ops/auto_snapshot.h"
#include "engine/record/record.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "engine/session/session_files.h"
#include "engine/snapshot/layer.h"
#include "store/hibernated_check.h"

#define LAYERS 2
#define IMAGES 1

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every state that came of it is reached from the last. */
static void walk(struct snapshot *at) {
    struct layer *layers[4];
    struct buf text = BUF_INIT;

    (void)snapshot_chain(at, layers, ARRAY_SIZE(layers));
    for (struct snapshot *i = at; i; i = i->parent)
        if (strlen(i->id) >= sizeof i->id)
            abort();
    snapshot_tree_text(at->tree, &text);
    buf_done(&text);
}

/* Sets the state of a session and of its ended commands from a record. */
static void settle(struct engine *engine, const json_t *record) {
    struct session session = { .engine = engine };
    static bool has_observers;

    if (!has_observers) {
        record_init();
        auto_snapshot_init();
        has_observers = true;
    }
    list_init(&session.commands.ended);
    list_init(&session.observers);
    list_init(&engine->results.all);
    for (size_t i = 0; i < ARRAY_SIZE(engine->results.by_operation); i++)
        list_init(&engine->results.by_operation[i]);
    hibernate_settle(&session, record);
    list_for_each(node, &session.commands.ended) {
        struct ended *ended = container_of(node, struct ended, node);

        if (ended->operation_length <= sizeof session.number ||
            ended->operation_length > sizeof ended->operation ||
            ended->outcome >= ROLLBOX_OUTCOME_ERROR)
            abort();
        list_remove(&ended->node);
        free(ended->command);
        free(ended);
    }
    result_forget_all(engine);
    session_events_release(&session);
    free(session.files.committed_path);
}

static void read_record(const json_t *record) {
    static struct engine engine;
    struct layer *layers[LAYERS] = { calloc(1, sizeof(struct layer)),
        calloc(1, sizeof(struct layer)) };
    int images[IMAGES] = { -EBADF };
    struct rollbox_error error = { 0 };
    struct snapshot_tree *tree;
    struct snapshot *at, *committed;
    struct buf text = BUF_INIT;
    const char *policy, *between = "";
    char **environment;
    size_t length;

    snapshot_set_sessions(&session_files_users);
    list_init(&engine.sessions.all);
    for (size_t i = 0; i < LAYERS; i++)
        *layers[i] = (struct layer){ .references = 1, .fd = -EBADF };
    if (hibernate_family(&engine, record, layers, LAYERS, images, IMAGES, NULL, &tree, &at,
            &committed, &error) == 0) {
        if (at->tree)
            walk(at);
        snapshot_put(at);
        snapshot_put(committed);
        snapshot_tree_put(tree);
    } else {
        abort();
    }
    if (hibernate_policy(record, &policy, &length, &environment) < 0)
        abort();
    hibernate_environment_free(environment);
    settle(&engine, record);
    hibernate_tree_text(record, "box", &text);
    hibernate_execs_text(record, &text, &between);
    buf_done(&text);
    for (size_t i = 0; i < LAYERS; i++)
        if (layers[i]->references != 1)
            abort(); /* a state has leaked */
        else
            free(layers[i]);
}

/* What was checked as a whole is believed from then on, so nothing may be found wrong with it
 * later. */
static void read_checked(const json_t *whole) {
    struct rollbox_error error = { 0 };

    if (hibernated_check(whole, &error) < 0) {
        if (error.code != ROLLBOX_ERR_DAMAGED || !error.message[0])
            abort();
        return;
    }
    const json_t *record = json_object_get(whole, "record");
    if (json_array_size(json_object_get(record, "layers")) == LAYERS &&
        json_array_size(json_object_get(record, "lives")) == IMAGES)
        read_record(record);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct rollbox_error error = { 0 };
    json_t *whole = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL),
           *again = NULL;
    auto_free char *text = whole ? hibernated_text(whole) : NULL;

    if (text && hibernated_parse(text, strlen(text), &again, &error) == 0)
        read_checked(again);
    else if (text && !error.code)
        abort();
    json_decref(again);
    json_decref(whole);
    again = NULL;
    if (hibernated_parse((const char *)data, size, &again, &error) == 0)
        json_decref(again);
    return 0;
}
