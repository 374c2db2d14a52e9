/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sandboxes that sleep: what the store has of a session, and what it is from that again (sleep.c has the model).
 */
#ifndef ROLLBOX_ENGINE_SLEEP_H
#define ROLLBOX_ENGINE_SLEEP_H

#include <jansson.h>

#include "engine/session.h"
#include "store/asleep.h"

/* What the engine keeps of a session that sleeps. */
struct sleep {
    char id[ASLEEP_ID_LENGTH + 1];      /* of asleep/ID in the store */
    int lock;                   /* its record.json, which nobody else has */
    uint64_t disk_bytes, memory_bytes;  /* in the store, all of it; of that, what processes had in memory */
    uint64_t written_bytes;     /* what was not there already, from the sleep before */
    unsigned processes;
    char snapshot[32];          /* the state that users know of, on which it stood */
};

/* What goes to the store, in the order in which the record names them. */
struct sleep_parts {
    struct layer **layers;
    struct live **lives;
    size_t n_layers, n_lives;
};

/* sleep_record.c. A session's record with all that is known of its states: those of the whole family if nobody else is of it, else those that it stands on; `alone`: of snapshots, `at` alone. `parts`
 * borrows. */
json_t *sleep_record(const struct session *session, const struct node *at, bool alone, struct sleep_parts *ret_parts);
void sleep_parts_done(struct sleep_parts *parts);

/* 0, or the error: it is not for this kernel, this processor or the policy's places as they are now. */
int sleep_check(const json_t *record, const struct program *program, struct rollbox_error *error);

/* The states of a record: a family of their own. Layers and images are in the order of the record; references to layers and descriptors of images are taken; what the latter are said to come from may be NULL.
 * *ret_at is a reference. DAMAGED. */
int sleep_family(struct engine *engine, const json_t *record, struct layer *const *layers, size_t n_layers, int *take_images, size_t n_images, struct woken *woken, struct family **ret_family, struct node **ret_at,
                 struct node **ret_committed, struct rollbox_error *error);

/* What a session is beside its states, into one that was just made. */
void sleep_settle(struct session *session, const json_t *record);

/* What a record says of its layer `i`. */
void sleep_layer_size(const json_t *record, size_t i, uint64_t *ret_bytes, uint64_t *ret_entries);

/* The policy and what else makes its program; *ret_environment is NULL-terminated, strings and array to be freed by sleep_environment_free. */
int sleep_policy(const json_t *record, const char **ret_text, size_t *ret_length, char ***ret_environment);
void sleep_environment_free(char **environment);

/* The id of the state that it stands on, as far as users know of it. */
const char *sleep_shown(const json_t *record);

/* family_text of one that sleeps; `whole`: as the store has it. */
void sleep_tree_text(const json_t *whole, const char *name, struct buf *to);

/* What users are told of a state (as show_state) by its id or name, NULL: the one that it stands on; which image has its processes (null: none), and the sandbox' own places, of which the host has nothing to say. NULL: no such state. All are the caller's. */
json_t *sleep_state(struct engine *engine, const json_t *whole, const char *wanted, json_t **ret_image, json_t **ret_own);

void sleep_execs_text(const json_t *record, struct buf *to, const char **between);

#endif
