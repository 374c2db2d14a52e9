/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a state holds, and whether it is sound.
 *
 * The engine tells what it knows of the state; rollbox-store reads what guests have chosen: the image of the processes, the layers. To verify a state its processes are restored, too, in a sandbox of their own that nobody knows of, up to
 * the moment in which they would go on: whatever would refuse them then does now. What sleeps is looked at where it is, and not woken: there the digests are taken anew, and what the processes are for is compared.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/sleep.h"
#include "store/fingerprint.h"

static json_t *check_of(const char *what, bool was_made, const char *why) {
    return json_pack("{s:s, s:o, s:s?}", "what", what, "ok", was_made ? json_boolean(why == NULL) : json_null(), "why", why);
}

static void fail_memory(struct work *work) {
    struct rollbox_error error;

    error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "run", "out of memory");
    work_fail(work, &error);
}

void show_command_text(const struct live_command *command, const char **between, struct buf *to) {
    buf_printf(to, "%s{\"id\": ", *between);
    text_json(to, command->operation, command->operation_length);
    buf_add_text(to, ", \"command\": ");
    text_json(to, command->description, command->description ? strlen(command->description) : 0);
    buf_printf(to, ", \"pid\": %d, \"timeout_ms\": ", (int)command->pid);
    if (command->timeout_ms)
        buf_printf(to, "%lld}", (long long)command->timeout_ms);
    else
        buf_add_text(to, "null}");
    *between = ", ";
}

json_t *show_state(const struct work *work) {
    const struct live *live = work->to->live;
    auto_buf struct buf text = BUF_INIT;
    const char *between = "";
    struct node_facts facts;

    node_facts(work->to, &facts);
    buf_add_text(&text, "{");
    node_facts_text(&facts, &text);
    buf_add_text(&text, ", \"asleep\": false, \"commands\": [");
    for (size_t i = 0; live && i < live->n_commands; i++)
        show_command_text(&live->commands[i], &between, &text);
    buf_add_text(&text, "]}");
    json_t *state = buf_failed(&text) ? NULL : json_loadb(text.data, text.length, 0, NULL);
    /* The image says which there are. */
    json_object_set_new(state, "processes", json_array());
    if (work->verb == VERB_VERIFY)
        json_object_set_new(state, "checks", work->was_tried ? json_pack("[o]", check_of("restoring", true, work->refusal)) : json_array());
    return state;
}

static void look(struct work *work) {
    struct rollbox_error error;

    if (errand_start(work, &error) < 0)
        work_fail(work, &error);
}

/* ---- a trial ---------------------------------------------------------------------------------------------------------- */

void show_tried(struct work *work, const struct rollbox_error *error) {
    struct session *made = work->made[0];

    work->n_made = 0;
    work->was_tried = true;
    work->refusal = error ? strdup(error->message) : NULL;
    made->fork = NULL;
    session_close(made);
    if (error && !work->refusal)
        fail_memory(work);
    else
        look(work);
}

/* It has a name that no sandbox can have, and that none is found by. */
static void try_processes(struct work *work) {
    struct session *session = work->session, *made;
    struct rollbox_error error;
    char name[32];

    work->made = calloc(1, sizeof(struct session *));
    if (!work->made) {
        fail_memory(work);
        return;
    }
    snprintf(name, sizeof name, ".%llu", (unsigned long long)session->engine->next_session);
    made = session_new(session->engine, session->program, NULL, name, session->family, work->to, &error);
    if (!made) {
        work_fail(work, &error);
        return;
    }
    made->is_trial = true;
    made->seed = session->seed;
    made->restores = live_get(work->to->live);
    made->fork = work;
    work->made[0] = made;
    work->n_made = 1;
    if (session_need_box(made, &error) < 0)
        show_tried(work, &error);
}

static json_t *paths_of(const struct policy_paths *paths, const struct policy_paths *more) {
    json_t *list = json_array();

    for (size_t i = 0; i < paths->n + more->n; i++)
        json_array_append_new(list, json_string(i < paths->n ? paths->items[i].path : more->items[i - paths->n].path));
    return list;
}

/* ---- what sleeps ------------------------------------------------------------------------------------------------------ */

static json_t *checks_of(const struct work *work, const json_t *record, bool has_processes) {
    json_t *checks = json_array();
    struct rollbox_error error;

    json_array_append_new(checks, check_of("writable places", true, sleep_check(record, work->session->program, &error) < 0 ? error.message : NULL));
    if (has_processes) {
        json_array_append_new(checks, check_of("kernel and processor", true, fingerprint_check(json_object_get(record, "fingerprint"), "wake", "rollbox wake --drop-processes wakes its files alone", &error) < 0 ? error.message : NULL));
        json_array_append_new(checks, check_of("restoring", false, "not tried while the sandbox sleeps"));
    }
    return checks;
}

static void look_asleep(struct work *work) {
    const struct session *session = work->session;
    json_t *whole = NULL, *image = NULL, *own = NULL;
    struct rollbox_error error;
    int r = asleep_read(session->sleep->lock, &whole, &error);
    const json_t *record = json_object_get(whole, "record");
    json_t *state = r == 0 ? sleep_state(session->engine, whole, work->name, &image, &own) : NULL;

    if (r == 0 && !state)
        r = error_set(&error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "arguments", "there is no snapshot %.100s of sandbox %s; `rollbox tree` lists those there are", work->name ? work->name : "", session->name);
    if (r == 0 && work->verb == VERB_VERIFY)
        json_object_set_new(state, "checks", checks_of(work, record, json_is_integer(image)));
    if (r == 0) {
        json_t *job = json_pack("{s:s, s:O, s:O}", "id", session->sleep->id, "state", state, "image", image);

        /* Under an image what a path means is another thing. */
        if (!session->program->image)
            json_object_set_new(job, "places", json_pack("{s:O, s:o}", "own", own, "granted", paths_of(&session->program->policy->fs_readable, &session->program->policy->fs_shared)));
        r = errand_sleep(work, "describe-asleep", job, NULL, 0, &error);
        json_decref(job);
    }
    json_decref(state);
    json_decref(image);
    json_decref(own);
    json_decref(whole);
    if (r < 0)
        work_fail(work, &error);
}

void show_start(struct work *work) {
    struct node *node = work->from ? work->from : node_shown(work->session->at);

    if (work->session->sleep) {
        look_asleep(work);
        return;
    }
    work->to = node_get(node);
    if (work->verb == VERB_VERIFY && work->to->live)
        try_processes(work);
    else
        look(work);
}
