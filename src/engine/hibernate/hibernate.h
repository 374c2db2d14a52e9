/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hibernated sessions: their data in the store, and how a session is made from it again
 * (hibernate.c has the model).
 */
#ifndef ROLLBOX_ENGINE_HIBERNATE_HIBERNATE_H
#define ROLLBOX_ENGINE_HIBERNATE_HIBERNATE_H

#include <jansson.h>

#include "engine/store_job/backing.h"
#include "store/hibernated_read.h"

struct client;
struct loop_timer;
struct buf;
struct profile;
struct snapshot_tree;
struct session;
struct snapshot;
struct op;
struct wire_message;

/* The engine's data of a session that hibernates. */
struct hibernated {
    char id[HIBERNATED_ID_LENGTH + 1]; /* of asleep/ID in the store */
    int lock;                          /* its record.json, which nobody else has */
    uint64_t disk_bytes,
        memory_bytes;       /* in the store, all of it; of that, what processes had in memory */
    uint64_t written_bytes; /* of these, new in this hibernation */
    unsigned processes;
    char snapshot[32]; /* the state that users know of, on which it stood */
};

void hibernate_on_timer(struct loop_timer *timer); /* hibernate_timer.c */

/* The layers and images for the store, in the order of the record. */
struct hibernate_parts {
    struct layer **layers;
    struct checkpoint **checkpoints;
    size_t n_layers, n_checkpoints;
};

/* hibernate_manifest.c. A session's record with all that is known of its states: those of the whole
 * family if nobody else is of it, else those that it stands on; `alone`: of snapshots, `at` alone.
 * `parts` borrows. */
json_t *hibernate_record(const struct session *session, const struct snapshot *at, bool alone,
    struct hibernate_parts *ret_parts);
void hibernate_parts_done(struct hibernate_parts *parts);

/* 0, or the error: it is not for this kernel, this processor or the policy's places as they are
 * now. */
int hibernate_check(
    const json_t *record, const struct profile *profile, struct rollbox_error *error);

/* The states of a record: a family of their own. Layers and images are in the order of the record;
 * references to layers and descriptors of images are taken; what the latter are said to come from
 * may be NULL. *ret_at is a reference. DAMAGED. */
int hibernate_family(struct engine *engine, const json_t *record, struct layer *const *layers,
    size_t n_layers, int *take_images, size_t n_images, struct backing *backing,
    struct snapshot_tree **ret_tree, struct snapshot **ret_at, struct snapshot **ret_committed,
    struct rollbox_error *error);

/* Restores the session's properties besides its states, in a session that was just made. */
void hibernate_settle(struct session *session, const json_t *record);

/* The record's entry of its layer `i`. */
void hibernate_layer_size(
    const json_t *record, size_t i, uint64_t *ret_bytes, uint64_t *ret_entries);

/* The policy and what else makes its program; *ret_environment is NULL-terminated, strings and
 * array to be freed by hibernate_environment_free. */
int hibernate_policy(
    const json_t *record, const char **ret_text, size_t *ret_length, char ***ret_environment);
void hibernate_environment_free(char **environment);

/* The id of the state that it stands on, as far as users know of it. */
const char *hibernate_visible_snapshot(const json_t *record);

/* snapshot_tree_text of one that sleeps; `whole`: as the store has it. */
void hibernate_tree_text(const json_t *whole, const char *name, struct buf *to);

/* The description of a snapshot (as describe_snapshot) by its id or name, NULL: the present one;
 * which image has its processes (null: none), and the sandbox's own places, of which the host has
 * nothing to say. NULL: no such state. All are the caller's. */
json_t *hibernate_state(struct engine *engine, const json_t *whole, const char *wanted,
    json_t **ret_image, json_t **ret_own);

void hibernate_execs_text(const json_t *record, struct buf *to, const char **between);

/* ---- hibernate.c ---- */

void hibernate_set_up(void); /* once, at the start */
/* Removes the record of a sandbox that nobody can wake any more. */
void hibernate_abandoned(struct engine *engine, const char *id);
/* The record of a hibernated sandbox, or of one that is on its way to be awake. NULL: it is awake.
 */
const struct hibernated *sleep_of(const struct session *session);
/* A request for the time when it is awake; takes what is in it. */
int wake_then(struct session *session, struct client *client, struct wire_message *message);
void hibernate_tree(const struct session *session, struct buf *to);
/* The commands that continue when it wakes. */
void hibernate_execs(const struct session *session, struct buf *to, const char **between);
/* The sandboxes that an earlier engine on this socket left hibernated. `name` NULL: all that can be
 * had. 0; 1: it cannot be had, and was removed; or the error. */
int hibernate_reattach(
    struct engine *engine, const char *name, bool removes, struct rollbox_error *error);
/* A session by its name, from the store if need be. 0, or the error. */
int hibernate_find_session(struct engine *engine, const char *name, struct session **ret_session,
    struct rollbox_error *error);

/* ---- hibernate.c, for op_hibernate.c and op_wake.c ---- */

struct wake_op {
    json_t *whole;          /* as the store has it */
    json_t *record;         /* the engine's part of it; borrowed */
    struct filling *layers; /* op_wake.c */
    size_t n_layers, n_asked, n_made, n_images;
    struct hibernated *sleep; /* while it is restored: back to that if it fails */
    struct backing *backing;  /* the recorded source of the layers and images; a reference */
    int *images;
    bool is_counted; /* among the program's n_wakers */
    bool is_kept;    /* in woken/: its processes may run */
};

int hibernate_no_memory(struct rollbox_error *error, const char *stage); /* -ENOMEM */
struct hibernated *hibernate_put(struct hibernated *sleep); /* takes and returns NULL */
/* A session without a box that stands on `beginning`, and on nothing of before. Takes both. */
void hibernate_drop_states(
    struct session *session, struct snapshot_tree *tree, struct snapshot *beginning);
/* A session that is hibernated does not count among those of its profile. */
void hibernate_leave_profile(struct session *session);
void hibernate_enter_profile(struct session *session);
/* A descriptor of rollbox-store's, and the origin of the file that it is for. */
json_t *hibernate_describe_part(size_t number, const struct backing_ref *backing_ref, bool same);

/* hibernate_job.c. The descriptors, which stay the caller's, are STORE_JOB_FIRST_FD and up there.
 * The event STORE_JOB_DONE follows. 0, or the error. */
int hibernate_job_start(struct op *op, const char *command, json_t *description, const int *fds,
    size_t n_fds, struct rollbox_error *error);
void hibernate_job_give_up(struct op *op); /* the store removes its partial files */

#endif
