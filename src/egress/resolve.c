/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/resolve.h"

#include <ares.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/time.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define MAX_LOOKUPS 1024 /* under way or kept; beyond it each sandbox has FEW */
#define MAX_OF_OWNER 64  /* under way for one sandbox */
#define FEW 4            /* lookups that each sandbox may always begin */
#define MAX_KEPT_S 60
#define TRY_MS 1300 /* and twice that for the second try: four seconds */
#define TRIES 2
#define MAX_SERVERS 3 /* as in resolv.conf(5) */
#define SECOND 1000000000ll

#define CLASS_IN 1
#define TYPE_A 1
#define TYPE_AAAA 28

struct server_socket {
    struct list node;
    struct loop_source source;
    struct resolver *resolver;
};

struct resolver {
    struct loop *loop;
    ares_channel channel;
    struct loop_timer timer;
    struct list sockets, lookups; /* lookups: the latest used at the end */
    bool is_changing;             /* its servers: lookups under way begin again */
    unsigned n_lookups;
};

struct lookup {
    struct list node;
    struct resolver *resolver;
    struct list waiters;
    struct loop_task task; /* notifies them */
    const void *owner;     /* only compared */
    bool is_done, is_notifying;
    int64_t until_ns;
    struct address addresses[EGRESS_ADDRESSES];
    size_t n;
    char name[NAMES_MAX_LENGTH + 1];
};

static void on_timer(struct loop_timer *timer);
static void on_v4(void *data, int status, int timeouts, unsigned char *answer, int length);

static void set_timer(struct resolver *resolver) {
    struct timeval left, *next = ares_timeout(resolver->channel, NULL, &left);

    if (!next)
        loop_timer_clear(resolver->loop, &resolver->timer);
    else
        (void)loop_timer_set(resolver->loop, &resolver->timer,
            clock_now_ns() + next->tv_sec * SECOND + next->tv_usec * 1000, on_timer);
}

static void on_timer(struct loop_timer *timer) {
    struct resolver *resolver = container_of(timer, struct resolver, timer);

    ares_process_fd(resolver->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
    set_timer(resolver);
}

static void on_socket(struct loop_source *source, uint32_t events) {
    struct server_socket *socket = container_of(source, struct server_socket, source);
    struct resolver *resolver = socket->resolver;
    ares_socket_t fd = source->fd;

    /* An error is found by reading. */
    ares_process_fd(resolver->channel, events & ~(uint32_t)EPOLLOUT ? fd : ARES_SOCKET_BAD,
        events & EPOLLOUT ? fd : ARES_SOCKET_BAD);
    set_timer(resolver);
}

/* c-ares wants to wait for the socket; for nothing: it will close it. */
static void on_interest(void *data, ares_socket_t fd, int reads, int writes) {
    struct resolver *resolver = data;
    uint32_t events = reads ? EPOLLIN : 0u;

    events |= writes ? EPOLLOUT : 0u;
    list_for_each(node, &resolver->sockets) {
        struct server_socket *socket = container_of(node, struct server_socket, node);

        if (socket->source.fd != fd)
            continue;
        if (events) {
            (void)loop_modify(resolver->loop, &socket->source, events);
            return;
        }
        loop_remove(resolver->loop, &socket->source);
        list_remove(&socket->node);
        free(socket);
        return;
    }
    struct server_socket *socket = events ? calloc(1, sizeof *socket) : NULL;
    if (!socket)
        return; /* the query ends by its time limit */
    socket->resolver = resolver;
    if (loop_add(resolver->loop, &socket->source, fd, events, on_socket) < 0) {
        free(socket);
        return;
    }
    list_add_tail(&resolver->sockets, &socket->node);
}

/* The servers of a resolv.conf as ares_set_servers_csv wants them: "192.0.2.1,[2001:db8::1]". */
static void list_servers(const char *text, struct buf *to) {
    unsigned n = 0;

    while (*text && n < MAX_SERVERS) {
        size_t length = strcspn(text, "\n"), at = strspn(text, " \t");
        static const char word[] = "nameserver";

        if (strncmp(text + at, word, sizeof word - 1) == 0) {
            struct address address;
            char server[ADDRESS_TEXT];

            at += sizeof word - 1;
            at += strspn(text + at, " \t");
            size_t end = at + strcspn(text + at, " \t\r\n%#;");
            snprintf(server, sizeof server, "%.*s", (int)MIN(end - at, (size_t)sizeof server - 1),
                text + at);
            if (address_parse(server, &address) == 0) {
                buf_add_text(to, n++ ? "," : "");
                buf_printf(to, address_is_v4(&address) ? "%s" : "[%s]", server);
            }
        }
        text += length + (text[length] == '\n');
    }
}

void resolver_set_servers(struct resolver *resolver, const char *text) {
    auto_buf struct buf servers = BUF_INIT;

    list_servers(text, &servers);
    if (!servers.length || buf_failed(&servers))
        return; /* the servers that it has may still answer */
    /* c-ares changes its servers only while it asks none. */
    resolver->is_changing = true;
    ares_cancel(resolver->channel);
    (void)ares_set_servers_csv(resolver->channel, servers.data);
    resolver->is_changing = false;
    list_for_each(node, &resolver->lookups) {
        struct lookup *lookup = container_of(node, struct lookup, node);

        if (!lookup->is_done)
            ares_query(resolver->channel, lookup->name, CLASS_IN, TYPE_A, on_v4, lookup);
    }
    set_timer(resolver);
}

int resolver_new(struct loop *loop, struct resolver **ret_resolver) {
    struct resolver *resolver = calloc(1, sizeof *resolver);
    char dns_only[] = "b";

    if (!resolver)
        return -ENOMEM;
    resolver->loop = loop;
    list_init(&resolver->sockets);
    list_init(&resolver->lookups);
    struct ares_options options = { .timeout = TRY_MS,
        .tries = TRIES,
        .lookups = dns_only,
        .sock_state_cb = on_interest,
        .sock_state_cb_data = resolver };
    int r = ares_init_options(&resolver->channel, &options,
        ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_LOOKUPS | ARES_OPT_SOCK_STATE_CB);
    if (r != ARES_SUCCESS) {
        free(resolver);
        return r == ARES_ENOMEM ? -ENOMEM : -EIO;
    }
    *ret_resolver = resolver;
    return 0;
}

static void free_lookup(struct lookup *lookup) {
    list_remove(&lookup->node);
    loop_task_cancel(&lookup->task);
    lookup->resolver->n_lookups--;
    free(lookup);
}

struct resolver *resolver_free(struct resolver *resolver) {
    if (resolver) {
        ares_destroy(resolver->channel);
        loop_timer_clear(resolver->loop, &resolver->timer);
        list_for_each(node, &resolver->lookups)
            free_lookup(container_of(node, struct lookup, node));
        free(resolver);
    }
    return NULL;
}

/* Waiters may start lookups, or cancel others, while they are called. */
static void notify(struct loop_task *task) {
    struct lookup *lookup = container_of(task, struct lookup, task);

    lookup->is_notifying = true;
    while (!list_empty(&lookup->waiters)) {
        struct lookup_waiter *waiter =
            container_of(lookup->waiters.next, struct lookup_waiter, node);

        list_remove(&waiter->node);
        waiter->done(waiter, lookup->addresses, lookup->n);
    }
    lookup->is_notifying = false;
}

static void finish(struct lookup *lookup, int ttl_s) {
    lookup->is_done = true;
    lookup->until_ns = clock_now_ns() + MAX(1, MIN(ttl_s, MAX_KEPT_S)) * SECOND;
    loop_defer(lookup->resolver->loop, &lookup->task, notify);
}

static void on_v6(void *data, int status, int timeouts, unsigned char *answer, int length) {
    struct lookup *lookup = data;
    struct ares_addr6ttl found[EGRESS_ADDRESSES];
    int n = EGRESS_ADDRESSES, ttl_s = MAX_KEPT_S;

    (void)timeouts;
    if (status == ARES_ECANCELLED && lookup->resolver->is_changing)
        return;
    if (status != ARES_SUCCESS ||
        ares_parse_aaaa_reply(answer, length, NULL, found, &n) != ARES_SUCCESS)
        n = 0;
    for (int i = 0; i < n; i++) {
        memcpy(lookup->addresses[lookup->n++].bytes, &found[i].ip6addr, 16);
        ttl_s = MIN(ttl_s, found[i].ttl);
    }
    finish(lookup, n ? ttl_s : 0);
}

static void on_v4(void *data, int status, int timeouts, unsigned char *answer, int length) {
    struct lookup *lookup = data;
    struct ares_addrttl found[EGRESS_ADDRESSES];
    int n = EGRESS_ADDRESSES, ttl_s = MAX_KEPT_S;

    (void)timeouts;
    if (status == ARES_EDESTRUCTION || (status == ARES_ECANCELLED && lookup->resolver->is_changing))
        return;
    if (status != ARES_SUCCESS ||
        ares_parse_a_reply(answer, length, NULL, found, &n) != ARES_SUCCESS)
        n = 0;
    for (int i = 0; i < n; i++) {
        lookup->addresses[lookup->n++] = address_of_v4(ntohl(found[i].ipaddr.s_addr));
        ttl_s = MIN(ttl_s, found[i].ttl);
    }
    if (n || status == ARES_ENOTFOUND || status == ARES_ETIMEOUT)
        finish(lookup, n ? ttl_s : 0);
    else
        ares_query(lookup->resolver->channel, lookup->name, CLASS_IN, TYPE_AAAA, on_v6, lookup);
}

/* Drops what is kept too long, and the oldest if there is no room. Counts the owner's queries. */
static unsigned tidy(struct resolver *resolver, const void *owner) {
    int64_t now = clock_now_ns();
    unsigned of_owner = 0;

    list_for_each(node, &resolver->lookups) {
        struct lookup *lookup = container_of(node, struct lookup, node);

        if (!lookup->is_done) {
            of_owner += lookup->owner == owner;
            continue;
        }
        if (!list_empty(&lookup->waiters) || lookup->is_notifying)
            continue;
        if (lookup->until_ns <= now || resolver->n_lookups >= MAX_LOOKUPS)
            free_lookup(lookup);
    }
    return of_owner;
}

static struct lookup *find(struct resolver *resolver, const char *name) {
    list_for_each(node, &resolver->lookups) {
        struct lookup *lookup = container_of(node, struct lookup, node);

        if (strcmp(lookup->name, name) == 0)
            return lookup;
    }
    return NULL;
}

int resolve(struct resolver *resolver, const void *owner, const char *name,
    struct lookup_waiter *waiter,
    void (*done)(struct lookup_waiter *waiter, const struct address *addresses, size_t n)) {
    unsigned of_owner = tidy(resolver, owner);
    struct lookup *lookup = find(resolver, name);
    size_t length = strlen(name);

    waiter->done = done;
    if (lookup) {
        list_add_tail(&lookup->waiters, &waiter->node);
        if (lookup->is_done)
            loop_defer(resolver->loop, &lookup->task, notify);
        return 0;
    }
    if (of_owner >= (resolver->n_lookups < MAX_LOOKUPS ? MAX_OF_OWNER : FEW) ||
        length > NAMES_MAX_LENGTH)
        return -EAGAIN;
    lookup = calloc(1, sizeof *lookup);
    if (!lookup)
        return -ENOMEM;
    memcpy(lookup->name, name, length + 1);
    lookup->resolver = resolver;
    lookup->owner = owner;
    list_init(&lookup->waiters);
    list_add_tail(&resolver->lookups, &lookup->node);
    resolver->n_lookups++;
    list_add_tail(&lookup->waiters, &waiter->node);
    ares_query(resolver->channel, lookup->name, CLASS_IN, TYPE_A, on_v4, lookup);
    set_timer(resolver);
    return 0;
}

void resolve_cancel(struct lookup_waiter *waiter) {
    if (waiter->node.next)
        list_remove(&waiter->node);
}
