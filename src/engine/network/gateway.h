/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gateway of sandboxes with net "allow".
 *
 * One process, rollbox-egress, carries the connections of all such sandboxes of an engine; a second
 * one, rollbox-egress-tls, decrypts those whose rules ask for it. The engine starts each when the
 * first sandbox needs it, and ends them with the last.
 *
 * A sandbox's init opens the sockets where its connections arrive (guest/init/network.c) and sends
 * them with BOX_READY. They are kept here until the box is gone, so that a gateway that dies is
 * replaced: it gets duplicates of all sockets, the rules and the names again. Connections under way
 * are reset then. A sandbox is registered when a run or a session takes its box. Connections of a
 * command before that wait in the sockets; none bypasses them.
 *
 * The gateway counts for each run, between "start" and "end" (a *tally*). A result waits for its
 * tally (result.c).
 */
#ifndef ROLLBOX_ENGINE_NETWORK_GATEWAY_H
#define ROLLBOX_ENGINE_NETWORK_GATEWAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <jansson.h>

struct engine;
struct buf;
struct policy;
struct rollbox_error;

/* Only their addresses are used here. */
struct box;
struct run;

#define SESSION_ID_MAX 96 /* bytes: a session's name, and a number */

/* Of BOX_READY: takes fds[0..n-1] (set to -EBADF). The policy and `secrets`, a memory file with the
 * values of its secrets or -EBADF, are borrowed until gateway_box_free. 0 or -ENOMEM. */
int gateway_box_new(struct engine *engine, const struct box *box, const struct policy *policy,
    int secrets, bool is_transparent, int *fds, size_t n);
/* The box or its policy is gone: its connections are reset. */
void gateway_box_free(const struct box *box);
/* The number of descriptors that are kept for the box. */
unsigned gateway_box_files(const struct box *box);

/* Before a box is made for a run or a session: starts rollbox-egress if the policy needs it. 0, or
 * -errno and the error. */
int gateway_prepare(
    struct engine *engine, const struct policy *policy, struct rollbox_error *error);

/* The user of a box: a session, or (all of it 0) a run. */
struct gateway_user {
    uint64_t session; /* its number */
    const char *name; /* of the session */
    json_t *names;    /* borrowed: the session's names, as gateway_names tells; NULL: none */
};

/* A run or a session has taken the box. 1: its sandbox has been registered, and the caller begins
 * the tallies of the commands that it has been handed. 0: it had been registered before, or the box
 * has no net "allow". Or -errno and the error. */
int gateway_use(
    const struct box *box, const struct gateway_user *user, struct rollbox_error *error);
/* With which a box fails whose sandbox cannot be registered. */
extern const struct guest_record gateway_failure;

/* A command is handed to its box, which may be in setup yet: a tally begins. */
void gateway_tally_begin(const struct run *run, const struct box *box);
/* The receiver of the tallies, as JSON: set before any other call. */
void gateway_on_tally(void (*callback)(uint64_t tally, const char *network));
/* The command is over: asks for its tally, once. `box`: the one that it is in now, or NULL. Its
 * number; 0: there is none, or *ret_quiet has it already, as text to free. */
uint64_t gateway_tally_end(const struct run *run, const struct box *box, char **ret_quiet);
/* The same for a command that continues, as a shell between two lines: another tally begins. */
uint64_t gateway_tally_restart(const struct run *run, const struct box *box);

/* A session whose rules are replaced. */
struct gateway_session {
    struct engine *engine;
    uint64_t number;
    const struct box *box; /* NULL: none now */
    const struct policy *policy;
};

/* Replaces the rules of a session, for the rest of its life, by those of a policy's text. 0, or
 * -errno and the error. */
int gateway_set_rules(
    const struct gateway_session *session, const char *text, struct rollbox_error *error);
/* The changed rules of a session, by its number, as text. NULL: the policy's rules apply. */
const char *gateway_rules(uint64_t session);
/* Of a fork's origin, or of a record: a session begins with rules that gateway_rules has told
 * (NULL: none). With a text that is not valid it reaches no host. 0 or -ENOMEM. */
int gateway_inherit_rules(struct engine *engine, uint64_t session, const char *rules);

/* The log of a session, as lines of JSON; appended. */
int gateway_log(uint64_t session, struct buf *to);
void gateway_forget_session(uint64_t session);

/* Names and their addresses in the sandbox, [["198.18.128.1", "a.example.org"], ...]: part of each
 * state of a sandbox, as programs remember addresses (snapshot->net_names). An array is never
 * changed once it is there. A reference for the caller; NULL: there are none. */
json_t *gateway_names(const struct box *box);

/* Connections into sandboxes: rollbox-egress passes the bytes. It stays while a session publishes
 * ports, though it is started by the first connection. */
void gateway_hold(struct engine *engine);
void gateway_release(struct engine *engine);
/* Hands over two sockets (borrowed) as a connection of that group: that is a session's number.
 * rollbox-egress has them when `taken` is called with the same serial, which is not 0. 0 or -errno.
 */
int gateway_relay(struct engine *engine, uint64_t group, uint64_t serial, int outside, int inside);
/* Resets all connections of a group. */
void gateway_end_relays(uint64_t group);
struct gateway_relays {
    void (*taken)(uint64_t group, uint64_t serial);
    /* A connection has ended. A serial other than 0: its sockets have not arrived. */
    void (*ended)(uint64_t group, uint64_t serial);
    void (*lost)(void); /* rollbox-egress has ended, and all of them with it */
};
/* Before anything else is called. */
void gateway_on_relays(const struct gateway_relays *relays);

/* Private networks. A connection of a sandbox to another one, as the gateway knows it. */
struct gateway_peer {
    char box[SESSION_ID_MAX];
    uint64_t connection;
    pid_t gateway;
};

struct gateway_peers {
    /* The names that a session can connect to: a JSON array, which the caller owns; NULL: it is in
     * no private network. */
    json_t *(*names)(uint64_t session);
    /* A session connects to a port of another one. gateway_answer_peer follows, also at once. */
    void (*connect)(
        uint64_t session, const struct gateway_peer *peer, const char *name, uint16_t port);
};

/* Before anything else is called. */
void gateway_on_peers(const struct gateway_peers *peers);
/* The names have changed. */
void gateway_set_peers(const struct box *box);
/* The socket in the other sandbox (borrowed), or -errno: the connection is reset. */
void gateway_answer_peer(const struct gateway_peer *peer, int fd);

/* For the engine's status: a member of its JSON object and a comma, or nothing. */
void gateway_status(struct buf *to);
/* The engine ends. */
void gateway_finish(struct engine *engine);

#endif
