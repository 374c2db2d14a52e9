/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/tally.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "egress/activity.h"

int tally_start(struct box *box, uint64_t id) {
    if (tally_find(box, id))
        return -EEXIST;
    struct tally *tally = calloc(1, sizeof *tally);
    if (!tally)
        return -ENOMEM;
    tally->id = id;
    list_add_tail(&box->tallies, &tally->node);
    return 0;
}

struct tally *tally_find(struct box *box, uint64_t id) {
    list_for_each(node, &box->tallies) {
        struct tally *tally = container_of(node, struct tally, node);

        if (tally->id == id)
            return tally;
    }
    return NULL;
}

void tally_done(struct tally *tally) {
    for (size_t i = 0; i < tally->n_hosts; i++)
        free(tally->hosts[i].name);
    for (size_t i = 0; i < tally->n_refusals; i++)
        free(tally->refusals[i].name);
    free(tally->hosts);
    free(tally->refusals);
}

struct tally *tally_free(struct tally *tally) {
    if (tally) {
        list_remove(&tally->node);
        tally_done(tally);
        free(tally);
    }
    return NULL;
}

/* Room for one more at the end of a list; NULL: it is full, or memory is. */
static void *grow(void *items_pointer, size_t n, size_t size) {
    return n < TALLY_MAX ? array_add(items_pointer, n, size) : NULL;
}

static struct tally_host *host_of(struct tally *tally, const char *name, uint16_t port) {
    for (size_t i = 0; i < tally->n_hosts; i++)
        if (tally->hosts[i].port == port && strcmp(tally->hosts[i].name, name) == 0)
            return &tally->hosts[i];
    struct tally_host *host = grow(&tally->hosts, tally->n_hosts, sizeof *host);
    if (!host || !(host->name = strdup(name)))
        return NULL;
    host->port = port;
    tally->n_hosts++;
    return host;
}

static void add_connection(struct tally *tally, const char *name, uint16_t port) {
    struct tally_host *host = host_of(tally, name, port);

    tally->connections++;
    if (host)
        host->connections++;
}

static void add_bytes(
    struct tally *tally, const char *name, uint16_t port, uint64_t up, uint64_t down) {
    struct tally_host *host = host_of(tally, name, port);

    tally->up += up;
    tally->down += down;
    if (host) {
        host->up += up;
        host->down += down;
    }
}

static void add_refusal(struct tally *tally, const char *name, uint16_t port, enum net_why why) {
    size_t n_names = 0;

    if (port)
        tally->refused++;
    for (size_t i = 0; i < tally->n_refusals; i++) {
        struct tally_refusal *refusal = &tally->refusals[i];

        n_names += !refusal->port;
        if (refusal->port != port || refusal->why != why || strcmp(refusal->name, name) != 0)
            continue;
        refusal->count++;
        return;
    }
    if (!port && n_names >= TALLY_NAMES)
        return;
    struct tally_refusal *refusal = grow(&tally->refusals, tally->n_refusals, sizeof *refusal);
    if (!refusal || !(refusal->name = strdup(name)))
        return;
    refusal->port = port;
    refusal->why = why;
    refusal->count = 1;
    tally->n_refusals++;
}

#define FOR_EACH_TALLY(box, call)                                                                  \
    do {                                                                                           \
        activity_touch(box);                                                                       \
        struct tally *tally = &(box)->totals;                                                      \
        call;                                                                                      \
        list_for_each(node, &(box)->tallies) {                                                     \
            tally = container_of(node, struct tally, node);                                        \
            call;                                                                                  \
        }                                                                                          \
    } while (0)

void tally_connection(struct box *box, const char *name, uint16_t port) {
    FOR_EACH_TALLY(box, add_connection(tally, name, port));
}

void tally_bytes(struct box *box, const char *name, uint16_t port, uint64_t up, uint64_t down) {
    if (up || down)
        FOR_EACH_TALLY(box, add_bytes(tally, name, port, up, down));
}

void tally_refusal(struct box *box, const char *name, uint16_t port, enum net_why why) {
    FOR_EACH_TALLY(box, add_refusal(tally, name, port, why));
}

void tally_name(struct box *box, const char *name) {
    FOR_EACH_TALLY(box, add_refusal(tally, name, 0, NET_WHY_NAME));
}

void tally_request(struct box *box) {
    FOR_EACH_TALLY(box, tally->requests++);
}

static json_t *hosts_json(const struct tally *tally) {
    json_t *list = json_array();

    for (size_t i = 0; i < tally->n_hosts; i++) {
        const struct tally_host *host = &tally->hosts[i];

        json_array_append_new(
            list, json_pack("{s:s, s:i, s:I, s:I, s:I}", "host", host->name, "port",
                      (int)host->port, "connections", (json_int_t)host->connections, "up",
                      (json_int_t)host->up, "down", (json_int_t)host->down));
    }
    return list;
}

static json_t *refusals_json(const struct tally *tally) {
    json_t *list = json_array();

    for (size_t i = 0; i < tally->n_refusals; i++) {
        const struct tally_refusal *refusal = &tally->refusals[i];

        json_array_append_new(list,
            json_pack("{s:s, s:i, s:s, s:I}", "host", refusal->name, "port", (int)refusal->port,
                "why", match_why_text(refusal->why), "count", (json_int_t)refusal->count));
    }
    return list;
}

json_t *tally_json(const struct tally *tally) {
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "connections",
        (json_int_t)tally->connections, "refused", (json_int_t)tally->refused, "requests",
        (json_int_t)tally->requests, "up", (json_int_t)tally->up, "down", (json_int_t)tally->down,
        "hosts", hosts_json(tally), "refusals", refusals_json(tally));
}
