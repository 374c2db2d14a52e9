/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program's part of a sandbox: its rules, its secrets, the counts that limits are compared
 * with, and TLS sessions with servers for its next connections.
 */
#ifndef ROLLBOX_EGRESS_TLS_BOX_H
#define ROLLBOX_EGRESS_TLS_BOX_H

#include <jansson.h>
#include <openssl/ssl.h>

#include "base/list.h"
#include "net/http.h"
#include "net/recorder.h"
#include "net/recording.h"
#include "policy/policy.h"

#define BOX_MAX_SESSIONS 64 /* hosts whose TLS session is kept */
#define BOX_MAX_HEADERS 32  /* of a rule */

struct tls_box {
    struct list node;
    char *id;
    struct policy *policy;
    /* Names and values in turn, each with a NUL; an empty name ends them. No core dump has them. */
    char *secrets;
    size_t secrets_bytes;
    struct list sessions; /* struct session; the last used first */
    size_t n_sessions;
    struct list connections;
    uint64_t n_requests, up, down;
    struct recorder recorder;
    struct recording *recording; /* from which it is answered; NULL: by the hosts */
    int64_t paused_ns;           /* until then its bytes of before fill net_max_rate */
};

/* 0, -ENOMEM or -EINVAL for a policy that does not parse. */
int box_new(const char *id, const char *policy, size_t length, struct tls_box **ret);
/* The connections must have ended. */
struct tls_box *box_free(struct tls_box *box);
int box_set_rules(struct tls_box *box, const char *policy, size_t length);
/* Takes the values from a sealed memory file: a JSON object. Values that are no header's value are
 * left out. 0 or -errno. */
int box_set_secrets(struct tls_box *box, int fd);
/* From now on answers come from the recording in a sealed memory file. 0 or -errno. */
int box_set_recording(struct tls_box *box, int fd);

static inline const struct net_rules *box_rules(const struct tls_box *box) {
    return &box->policy->network;
}

/* The decision of the rules about a request. */
struct ruling {
    unsigned status; /* 0: allowed */
    const char *why;
    char text[256];
    long rule; /* the rule that allows the request, or -1 */
    struct http_header set[BOX_MAX_HEADERS];
    size_t n_set;
    struct buf values; /* of `set` */
};

/* `rule` is the rule of the connection. */
void box_rule_on(struct tls_box *box, size_t rule, const char *name, uint16_t port,
    struct http_text method, struct http_text target, struct ruling *ret);
void ruling_done(struct ruling *ruling);

/* The session to resume with a server, or NULL; borrowed. */
SSL_SESSION *box_session(struct tls_box *box, const char *name, uint16_t port);
void box_keep_session(
    struct tls_box *box, const char *name, uint16_t port, SSL_SESSION *take_session);

#endif
