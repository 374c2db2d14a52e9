/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles of sessions: a name, and the engine handle on which it is used. A handle holds nothing
 * open; the engine has all state.
 *
 * A call is one SANDBOX message with a verb, started by sandbox_begin, and one JSON object as
 * answer. Calls block. Any number of threads may use one handle; the connection matches answers by
 * serial number. The engine handle must outlive every call except sandbox_free.
 */
#ifndef ROLLBOX_CLIENT_SANDBOX_H
#define ROLLBOX_CLIENT_SANDBOX_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "engine/protocol.h"

struct rollbox_engine;
struct rollbox_error;
struct rollbox_plan;
struct rollbox_sandbox_options;

#define SANDBOX_NAME_MAX 64

struct rollbox_sandbox {
    struct rollbox_engine *engine;
    pid_t owner;                /* the process that made the handle */
    bool lives_with_connection; /* made here and not detached: a lost connection means that it is
                                   gone */
    struct shared_text
        *isolation; /* JSON object: the isolation in results if the engine's have none */
    char name[SANDBOX_NAME_MAX + 1];
};

/* Begins a message: verb and name. */
void sandbox_begin(
    struct buf *message, const struct rollbox_sandbox *sandbox, enum protocol_verb verb);

/* Whether the name is valid for a sandbox or snapshot. `what` is for the error. */
int sandbox_check_name(const char *name, const char *what, struct rollbox_error *error);

/* Adds a snapshot's id or name; NULL adds nothing. */
int sandbox_add_snapshot(struct buf *to, uint32_t tag, const char *snapshot, const char *what,
    struct rollbox_error *error);

/* A handle; NULL when out of memory. */
struct rollbox_sandbox *sandbox_new_handle(
    struct rollbox_engine *engine, const char *name, const char *isolation);

/* A name in an answer of the engine: it becomes part of an array of fixed size. NULL: it is none.
 */
const char *sandbox_name_of(const json_t *value);

/* Begins and encodes CREATE. */
int sandbox_encode_create(struct buf *to, const struct rollbox_plan *plan,
    const struct rollbox_sandbox_options *options, struct rollbox_error *error);

/* The i-th handle of an answer to CREATE, OPEN or FORK. `isolation`: what results have if they name
 * none; NULL: the answer's. `attached`: the session ends with this connection. */
int sandbox_of_answer(struct rollbox_engine *engine, const char *json, size_t i,
    const char *isolation, bool attached, struct rollbox_sandbox **ret_sandbox,
    struct rollbox_error *error);

/* As rollbox_diff; `digests`: the changed files' "sha256", too. */
int sandbox_diff(struct rollbox_sandbox *sandbox, const char *from, const char *to, bool text,
    bool digests, char **ret_json, struct rollbox_error *error);

/* Sends it with descriptors (borrowed) and waits for the answer, a JSON object for free(); ret_json
 * may be NULL. -ECHILD in a fork of the owner. */
int sandbox_call(struct rollbox_sandbox *sandbox, struct buf *message, const int *fds, size_t n_fds,
    char **ret_json, struct rollbox_error *error);

#endif
