/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/ops/publish.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/utf8.h"
#include "engine/box/profile.h"
#include "engine/core/context.h"
#include "engine/network/gateway.h"
#include "engine/core/janitor.h"
#include "engine/core/log.h"
#include "engine/ops/inside.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"
#include "policy/plan.h"

#define BACKLOG 256
#define MAX_CONNECTIONS 1024 /* of a sandbox at one time */
#define MAX_ARRIVING 64      /* of a sandbox, of these: without a connection inside yet */
#define FILES_OF_RELAY 4     /* two sockets here for a moment, and two in rollbox-egress */

/* A port of a sandbox and where it is published. */
struct published {
    struct list node; /* publisher->ports */
    struct publisher *publisher;
    struct publish_address address; /* as bound */
    struct stat file;               /* of a Unix socket */
    uint16_t port;
    bool is_fixed;
    int listener;
    struct loop_source source; /* in the loop unless there are too many connections */
};

/* The published ports of a session. */
struct publisher {
    struct list node; /* publishers */
    struct session *session;
    struct session_observer observer;
    struct list ports;
    struct list arrivals;
    unsigned n_arrivals, n_relayed;
    struct loop_timer rest; /* after an accept that failed without a free descriptor */
};

/* A connection that waits for its other end, and then for rollbox-egress. That may be killed before
 * it has read the message with the sockets; the next one gets them once more. */
struct arrival {
    struct list node; /* publisher->arrivals */
    struct publisher *publisher;
    int outside, inside_fd;
    struct inside inside;
    uint64_t serial; /* 0: not handed over */
    bool was_lost;
};

static struct list publishers = { &publishers, &publishers };
static unsigned n_connections; /* of all */

static struct publisher *publisher_of(const struct session *session) {
    list_for_each(node, &publishers) {
        struct publisher *publisher = container_of(node, struct publisher, node);

        if (publisher->session == session)
            return publisher;
    }
    return NULL;
}

/* ---- listening ---- */

static void on_listener(struct loop_source *source, uint32_t events);

static bool engine_is_full(const struct engine *engine) {
    return n_connections >= engine->files.limit / FILES_OF_RELAY;
}

static bool may_accept(const struct publisher *publisher) {
    return publisher->n_arrivals < MAX_ARRIVING &&
           publisher->n_arrivals + publisher->n_relayed < MAX_CONNECTIONS &&
           !engine_is_full(publisher->session->engine) && !publisher->rest.position;
}

/* Accepts connections, or leaves them in the kernel's queue. */
static void update_listeners(struct publisher *publisher) {
    struct loop *loop = publisher->session->engine->loop;
    const bool accepts = may_accept(publisher);

    list_for_each(node, &publisher->ports) {
        struct published *published = container_of(node, struct published, node);

        if (accepts && published->source.fd < 0)
            (void)loop_add(loop, &published->source, published->listener, EPOLLIN, on_listener);
        else if (!accepts)
            loop_remove(loop, &published->source);
    }
}

static void count_connection(struct engine *engine, int more) {
    const bool was_full = engine_is_full(engine);

    n_connections += (unsigned)more;
    if (was_full != engine_is_full(engine))
        list_for_each(node, &publishers)
            update_listeners(container_of(node, struct publisher, node));
}

/* ---- a connection ---- */

static void arrival_free(struct arrival *arrival) {
    struct publisher *publisher = arrival->publisher;
    struct engine *engine = publisher->session->engine;

    inside_cancel(&arrival->inside);
    close_fd(&arrival->outside); /* reset, unless rollbox-egress has it */
    close_fd(&arrival->inside_fd);
    list_remove(&arrival->node);
    free(arrival);
    publisher->n_arrivals--;
    count_connection(engine, -1);
}

static void set_option(int fd, int level, int name) {
    const int on = 1;

    (void)setsockopt(fd, level, name, &on, sizeof on);
}

static void hand_over(struct arrival *arrival) {
    static uint64_t last_serial;
    struct publisher *publisher = arrival->publisher;
    struct session *session = publisher->session;

    arrival->serial = ++last_serial;
    int r = arrival->inside_fd < 0 ? arrival->inside_fd
                                   : gateway_relay(session->engine, session->number,
                                         arrival->serial, arrival->outside, arrival->inside_fd);
    if (r == 0)
        return;
    log_at(LOG_INFO, "publish", ABOUT(.sandbox = session->name),
        "a connection is reset, as there is none inside: %s", strerror(-r));
    arrival_free(arrival);
    update_listeners(publisher);
}

static void on_inside(struct inside *inside, int fd) {
    struct arrival *arrival = container_of(inside, struct arrival, inside);
    int copy = fd < 0 ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 0);

    arrival->inside_fd = fd >= 0 && copy < 0 ? -errno : copy;
    hand_over(arrival);
}

static void end_rest(struct loop_timer *timer) {
    update_listeners(container_of(timer, struct publisher, rest));
}

static void on_listener(struct loop_source *source, uint32_t events) {
    struct published *published = container_of(source, struct published, source);
    struct publisher *publisher = published->publisher;
    struct engine *engine = publisher->session->engine;
    const struct linger reset = { .l_onoff = 1, .l_linger = 0 };
    auto_close int fd = accept4(published->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct arrival *arrival = fd >= 0 ? calloc(1, sizeof *arrival) : NULL;

    (void)events;
    if (!arrival && (fd >= 0 || errno == EMFILE || errno == ENFILE || errno == ENOMEM))
        (void)loop_timer_set(engine->loop, &publisher->rest, clock_now_ns() + AGAIN_NS, end_rest);
    if (arrival) {
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        set_option(fd, IPPROTO_TCP, TCP_NODELAY);
        set_option(fd, SOL_SOCKET, SO_KEEPALIVE);
        arrival->publisher = publisher;
        arrival->outside = TAKE_FD(fd);
        arrival->inside_fd = -EBADF;
        list_add_tail(&publisher->arrivals, &arrival->node);
        publisher->n_arrivals++;
        count_connection(engine, 1);
        if (inside_ask(&arrival->inside, publisher->session, published->port, on_inside) < 0)
            arrival_free(arrival);
    }
    update_listeners(publisher);
}

/* ---- of rollbox-egress ---- */

static struct publisher *publisher_of_group(uint64_t group) {
    list_for_each(node, &publishers) {
        struct publisher *publisher = container_of(node, struct publisher, node);

        if (publisher->session->number == group)
            return publisher;
    }
    return NULL;
}

/* The connection is rollbox-egress's alone, if it has arrived there. */
static void end_arrival(struct publisher *publisher, uint64_t serial, bool is_relayed) {
    list_for_each(node, &publisher->arrivals) {
        struct arrival *arrival = container_of(node, struct arrival, node);

        if (arrival->serial != serial)
            continue;
        if (is_relayed) {
            publisher->n_relayed++;
            count_connection(publisher->session->engine, 1);
        }
        arrival_free(arrival);
        update_listeners(publisher);
        return;
    }
}

static void on_relay_taken(uint64_t group, uint64_t serial) {
    struct publisher *publisher = publisher_of_group(group);

    if (publisher && serial)
        end_arrival(publisher, serial, true);
}

static void on_relay_ended(uint64_t group, uint64_t serial) {
    struct publisher *publisher = publisher_of_group(group);

    if (publisher && serial) {
        end_arrival(publisher, serial, false);
    } else if (publisher && publisher->n_relayed) {
        publisher->n_relayed--;
        session_touch(publisher->session);
        count_connection(publisher->session->engine, -1);
        update_listeners(publisher);
    }
}

static void forget_relayed(struct publisher *publisher) {
    const int n = (int)publisher->n_relayed;

    publisher->n_relayed = 0;
    count_connection(publisher->session->engine, -n);
}

/* Once: a connection that two gateways have not taken is reset. */
static void hand_over_again(struct loop_task *task) {
    (void)task;
    list_for_each(node, &publishers) {
        struct publisher *publisher = container_of(node, struct publisher, node);

        list_for_each(at, &publisher->arrivals) {
            struct arrival *arrival = container_of(at, struct arrival, node);

            if (!arrival->serial)
                continue;
            if (arrival->was_lost) {
                arrival_free(arrival);
                continue;
            }
            arrival->was_lost = true;
            hand_over(arrival);
        }
        update_listeners(publisher);
    }
}

static void on_relays_lost(void) {
    static struct loop_task again;

    list_for_each(node, &publishers) {
        struct publisher *publisher = container_of(node, struct publisher, node);

        forget_relayed(publisher);
        update_listeners(publisher);
    }
    if (!list_empty(&publishers))
        loop_defer(container_of(publishers.next, struct publisher, node)->session->engine->loop,
            &again, hand_over_again);
}

/* ---- addresses ---- */

/* A socket file whose listener is gone. */
static bool is_stale(const struct sockaddr_un *address) {
    struct stat st;

    if (lstat(address->sun_path, &st) < 0 || !S_ISSOCK(st.st_mode))
        return false;
    auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd >= 0 && connect(fd, (const void *)address, sizeof *address) < 0 &&
           errno == ECONNREFUSED;
}

/* In the janitor. The engine was killed, and its listeners are closed. */
static void remove_socket(struct engine *engine, const char *path) {
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    (void)engine;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (is_stale(&address))
        (void)unlink(path);
}

/* After the loans, because only then is the engine certain to have closed its listeners. */
static const struct janitor_duty socket_duty = { .at_end = remove_socket, .after_loans = true };

/* A Unix socket is for its owner alone. */
static int bind_address(int listener, const struct publish_address *address) {
    mode_t before = umask(0177);
    int r = bind(listener, &address->any, address->length) < 0 ? -errno : 0;

    if (r == -EADDRINUSE && address->any.sa_family == AF_UNIX && is_stale(&address->local)) {
        (void)unlink(address->local.sun_path);
        r = bind(listener, &address->any, address->length) < 0 ? -errno : 0;
    }
    (void)umask(before);
    return r;
}

static int refuse_address(
    const struct publish_address *address, int number, struct rollbox_error *error) {
    char text[PUBLISH_ADDRESS_TEXT];

    (void)publish_address_text(address, text);
    if (number == EADDRINUSE)
        return error_set(error, ROLLBOX_ERR_CONFLICT, number, "setup",
            "publish: %s is in use already; choose another address, or none for any free port",
            text);
    return error_set(error, error_code_of(number, ROLLBOX_ERR_IO), number, "setup",
        "publish: cannot listen on %s: %s", text, strerror(number));
}

static struct published *published_free(struct published *published) {
    struct stat st;

    loop_remove(published->publisher->session->engine->loop, &published->source);
    if (published->address.any.sa_family == AF_UNIX && published->listener >= 0 &&
        lstat(published->address.local.sun_path, &st) == 0 && st.st_ino == published->file.st_ino &&
        st.st_dev == published->file.st_dev)
        (void)unlink(published->address.local.sun_path);
    if (published->listener >= 0) {
        published->publisher->session->engine->files.used--;
        gateway_release(published->publisher->session->engine);
    }
    close_fd(&published->listener);
    list_remove(&published->node);
    free(published);
    return NULL;
}

static int listen_on(struct published *published, const struct publish_address *address) {
    struct engine *engine = published->publisher->session->engine;
    auto_close int listener =
        socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (listener < 0)
        return -errno;
    if (address->any.sa_family != AF_UNIX)
        set_option(listener, SOL_SOCKET, SO_REUSEADDR);
    int r = bind_address(listener, address);
    if (r < 0)
        return r;
    published->address = *address;
    published->is_fixed = publish_is_fixed(address);
    if (address->any.sa_family == AF_UNIX)
        (void)lstat(address->local.sun_path, &published->file);
    else if (getsockname(listener, &published->address.any, &(socklen_t){ sizeof address->local }) <
             0)
        return -errno;
    published->listener = TAKE_FD(listener);
    engine->files.used++;
    gateway_hold(engine);
    if (address->any.sa_family == AF_UNIX)
        (void)janitor_tell(engine, &socket_duty, address->local.sun_path);
    return listen(published->listener, BACKLOG) < 0 ? -errno : 0;
}

static int publish(struct publisher *publisher, uint16_t port,
    const struct publish_address *address, struct rollbox_error *error) {
    struct published *published = calloc(1, sizeof *published);

    if (!published)
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "setup", "publish: out of memory");
    published->publisher = publisher;
    published->port = port;
    published->listener = -EBADF;
    published->source.fd = -1;
    list_init(&published->node);
    int r = listen_on(published, address);
    if (r < 0) {
        published_free(published);
        return refuse_address(address, -r, error);
    }
    list_add_tail(&publisher->ports, &published->node);
    update_listeners(publisher);
    return 0;
}

/* ---- of a session ---- */

static void close_all(struct publisher *publisher) {
    gateway_end_relays(publisher->session->number);
    forget_relayed(publisher);
    while (!list_empty(&publisher->arrivals))
        arrival_free(container_of(publisher->arrivals.next, struct arrival, node));
    while (!list_empty(&publisher->ports))
        published_free(container_of(publisher->ports.next, struct published, node));
    loop_timer_clear(publisher->session->engine->loop, &publisher->rest);
}

static void on_closing(struct session_observer *observer) {
    close_all(container_of(observer, struct publisher, observer));
}

static void on_release(struct session_observer *observer) {
    struct publisher *publisher = container_of(observer, struct publisher, observer);

    close_all(publisher);
    list_remove(&publisher->node);
    free(publisher);
}

static const struct session_observer_ops observer_ops = { .closing = on_closing,
    .release = on_release };

static struct publisher *get_publisher(struct session *session, struct rollbox_error *error) {
    struct publisher *publisher = publisher_of(session);

    if (publisher)
        return publisher;
    publisher = calloc(1, sizeof *publisher);
    if (!publisher) {
        error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "setup", "publish: out of memory");
        return NULL;
    }
    publisher->session = session;
    list_init(&publisher->ports);
    list_init(&publisher->arrivals);
    list_add_tail(&publishers, &publisher->node);
    session_observe(session, &publisher->observer, &observer_ops, false);
    return publisher;
}

int publish_policy(struct session *session, struct rollbox_error *error) {
    const struct publish_ports *ports = &session->profile->policy->publish;
    struct publisher *publisher = ports->n ? get_publisher(session, error) : NULL;
    int r = !ports->n || publisher ? 0 : -ENOMEM;

    for (size_t i = 0; r == 0 && i < ports->n; i++)
        r = publish(publisher, ports->items[i].port, &ports->items[i].address, error);
    if (r < 0 && publisher)
        close_all(publisher);
    return r;
}

int publish_fork(const struct session *parent, struct session *child, struct rollbox_error *error) {
    const struct publisher *of_parent = publisher_of(parent);
    struct publish_address any;
    int r = 0;

    if (!of_parent || publish_parse_address("0", &any) < 0)
        return 0;
    list_for_each(node, &of_parent->ports) {
        const struct published *published = container_of(node, struct published, node);
        struct publisher *publisher =
            r < 0 || published->is_fixed ? NULL : get_publisher(child, error);
        struct publish_address address = published->address;

        if (!publisher)
            continue;
        if (address.any.sa_family == AF_INET6)
            address.v6.sin6_port = 0;
        else
            address.v4.sin_port = 0;
        r = publish(publisher, published->port, &address, error);
    }
    return r;
}

static struct published *find_port(const struct publisher *publisher, uint16_t port) {
    if (publisher)
        list_for_each(node, &publisher->ports) {
            struct published *published = container_of(node, struct published, node);

            if (published->port == port)
                return published;
        }
    return NULL;
}

static unsigned count_ports(const struct publisher *publisher) {
    unsigned n = 0;

    list_for_each(node, &publisher->ports)
        n++;
    return n;
}

int publish_add(
    struct session *session, uint16_t port, const char *text, struct rollbox_error *error) {
    struct published *before = find_port(publisher_of(session), port);
    struct publish_address address;

    if (publish_parse_address(text ? text : "0", &address) < 0 ||
        (address.any.sa_family == AF_UNIX && address.local.sun_path[0] != '/'))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%.120s: must be PORT, ADDRESS:PORT, or the whole path of a Unix socket", text);
    if (before && (!text || (publish_is_fixed(&address) &&
                                memcmp(&before->address, &address, sizeof address) == 0)))
        return 0;
    if (!(session->profile->plan->flags & PLAN_NET_LOOPBACK))
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENETUNREACH, "policy",
            "sandbox %s has no network of its own; create it with net loopback or allow, or with "
            "the policy's key \"publish\"",
            session->name);
    struct publisher *publisher = get_publisher(session, error);
    if (!publisher)
        return -ENOMEM;
    if (!before && count_ports(publisher) >= PUBLISH_MAX)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "arguments",
            "sandbox %s has %d published ports, which is the most", session->name, PUBLISH_MAX);
    int r = publish(publisher, port, &address, error);
    if (r == 0 && before)
        published_free(before); /* connections that it has accepted stay */
    return r;
}

static void add_published(const struct published *published, struct buf *to) {
    char text[PUBLISH_ADDRESS_TEXT];
    const bool is_local = published->address.any.sa_family == AF_UNIX;

    (void)publish_address_text(&published->address, text);
    buf_printf(to, "{\"port\": %u, \"address\": ", published->port);
    json_add_string(to, text, strlen(text));
    if (is_local) {
        buf_add_text(to, ", \"url\": null}");
        return;
    }
    buf_printf(to, ", \"url\": \"http://%s\"}", text);
}

void publish_text(const struct session *session, uint16_t port, struct buf *to) {
    const struct publisher *publisher = publisher_of(session);
    const char *between = "";

    buf_add_text(to, "[");
    if (publisher)
        list_for_each(node, &publisher->ports) {
            const struct published *published = container_of(node, struct published, node);

            if (port && published->port != port)
                continue;
            buf_add_text(to, between);
            add_published(published, to);
            between = ", ";
        }
    buf_add_text(to, "]");
}

/* Of an earlier engine. It is hibernated, and wakes also if another process has its address
 * meanwhile. */
static void restore(struct session *session, const struct buf *saved) {
    struct rollbox_error error;

    (void)saved;
    if (!publisher_of(session) && publish_policy(session, &error) < 0)
        log_at(LOG_WARN, "publish", ABOUT(.sandbox = session->name), "%s", error.message);
}

void publish_init(void) {
    session_events_add_restorer(restore);
    static const struct gateway_relays relays = {
        .taken = on_relay_taken, .ended = on_relay_ended, .lost = on_relays_lost
    };

    gateway_on_relays(&relays);
}
