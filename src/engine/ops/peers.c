/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/peers.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/box/profile.h"
#include "engine/core/log.h"
#include "engine/network/gateway.h"
#include "engine/ops/inside.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "policy/policy.h"

struct member {
    struct list node; /* members */
    struct session *session;
    struct session_observer observer;
    struct list requests;
    char network[SESSION_NAME_MAX + 48];
    char name[SESSION_NAME_MAX + 1]; /* in the network */
};

/* A connection of a member that waits for its other end. */
struct request {
    struct list node; /* member->requests: of who connects */
    struct inside inside;
    struct gateway_peer peer;
};

static struct list members = { &members, &members };

static struct member *member_of(uint64_t session) {
    list_for_each(node, &members) {
        struct member *member = container_of(node, struct member, node);

        if (member->session->number == session)
            return member;
    }
    return NULL;
}

static struct member *find_member(const char *network, const char *name) {
    list_for_each(node, &members) {
        struct member *member = container_of(node, struct member, node);

        if (!strcmp(member->network, network) && !strcasecmp(member->name, name))
            return member;
    }
    return NULL;
}

/* ---- for the gateway ---- */

static json_t *names_for(uint64_t session) {
    const struct member *member = member_of(session);
    json_t *names = member ? json_array() : NULL;

    if (!names)
        return NULL;
    list_for_each(node, &members) {
        const struct member *other = container_of(node, struct member, node);

        if (!strcmp(other->network, member->network))
            (void)json_array_append_new(names, json_string(other->name));
    }
    return names;
}

/* All members of a network get the names that there are now. */
static void tell_network(const char *network) {
    list_for_each(node, &members) {
        const struct member *member = container_of(node, struct member, node);

        if (!strcmp(member->network, network))
            gateway_set_peers(member->session->box);
    }
}

static void request_free(struct request *request) {
    inside_cancel(&request->inside);
    list_remove(&request->node);
    free(request);
}

static void on_inside(struct inside *inside, int fd) {
    struct request *request = container_of(inside, struct request, inside);

    gateway_answer_peer(&request->peer, fd);
    request_free(request);
}

static void connect_peer(
    uint64_t session, const struct gateway_peer *peer, const char *name, uint16_t port) {
    struct member *member = member_of(session);
    struct member *other = member ? find_member(member->network, name) : NULL;
    struct request *request = other ? calloc(1, sizeof *request) : NULL;
    int r = -ENOENT;

    if (request) {
        request->peer = *peer;
        r = inside_ask(&request->inside, other->session, port, on_inside);
    }
    if (r == 0) {
        list_add_tail(&member->requests, &request->node);
        return;
    }
    free(request);
    gateway_answer_peer(peer, r);
}

/* ---- membership ---- */

static void leave(struct member *member) {
    char network[sizeof member->network];

    while (!list_empty(&member->requests))
        request_free(container_of(member->requests.next, struct request, node));
    if (list_empty(&member->node))
        return;
    list_remove(&member->node);
    memcpy(network, member->network, sizeof network);
    tell_network(network);
}

static void on_closing(struct session_observer *observer) {
    leave(container_of(observer, struct member, observer));
}

static void on_release(struct session_observer *observer) {
    struct member *member = container_of(observer, struct member, observer);

    leave(member);
    free(member);
}

static const struct session_observer_ops observer_ops = { .closing = on_closing,
    .release = on_release };

static int join(
    struct session *session, const char *network, const char *name, struct rollbox_error *error) {
    struct member *member = calloc(1, sizeof *member);

    if (!member)
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "setup", "network: out of memory");
    member->session = session;
    snprintf(member->network, sizeof member->network, "%s", network);
    snprintf(member->name, sizeof member->name, "%s", name);
    list_init(&member->requests);
    list_add_tail(&members, &member->node);
    session_observe(session, &member->observer, &observer_ops, false);
    log_at(LOG_INFO, "network", ABOUT(.sandbox = session->name), "joins %s as %s", network, name);
    tell_network(network);
    return 0;
}

int peers_join(struct session *session, struct rollbox_error *error) {
    const char *network = session->profile->policy->network_name;

    return network ? join(session, network, session->name, error) : 0;
}

int peers_fork(const struct session *parent, struct session *child, uint64_t group, unsigned index,
    struct rollbox_error *error) {
    const struct member *of_parent = member_of(parent->number);
    char network[sizeof of_parent->network];

    if (!of_parent)
        return 0;
    /* No policy can have a '#'. */
    if (group)
        snprintf(network, sizeof network, "%.64s#g%" PRIu64 ".%u",
            child->profile->policy->network_name, group, index);
    else
        snprintf(network, sizeof network, "%.64s#s%" PRIu64, child->profile->policy->network_name,
            child->number);
    return join(child, network, of_parent->name, error);
}

void peers_text(const struct session *session, struct buf *to) {
    const struct member *member = member_of(session->number);
    auto_free char *names = NULL;

    if (!member) {
        buf_add_text(to, "null");
        return;
    }
    json_t *list = names_for(session->number);
    names = list ? json_dumps(list, JSON_COMPACT) : NULL;
    json_decref(list);
    buf_printf(to, "{\"network\": \"%s\", \"name\": \"%s\", \"members\": %s}", member->network,
        member->name, names ? names : "[]");
}

/* Of an earlier engine. A fork's siblings are not known any more, and it must not join those of its
 * origin. */
static void restore(struct session *session, const struct buf *saved) {
    struct rollbox_error error;
    char network[SESSION_NAME_MAX + 48];
    const char *name = session->profile->policy->network_name;

    (void)saved;
    if (!name || member_of(session->number))
        return;
    snprintf(network, sizeof network, "%.64s#s%" PRIu64, name, session->number);
    (void)join(session, session->origin.clone_id < 0 ? name : network, session->name, &error);
}

void peers_init(void) {
    static const struct gateway_peers peers = { names_for, connect_peer };

    gateway_on_peers(&peers);
    session_events_add_restorer(restore);
}
