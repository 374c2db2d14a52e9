/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/control.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "egress/box.h"
#include "egress/connection.h"
#include "egress/inward.h"
#include "egress/log.h"
#include "egress/outbox.h"
#include "egress/peers.h"
#include "egress/resolve.h"
#include "egress/tally.h"
#include "net/probe.h"

#define MAX_MESSAGE (256u << 10)
#define MAX_POLICY (4u << 20)

struct message {
    json_t *body;
    const char *verb;
    struct box *box; /* NULL: none, or no such sandbox */
    const char *id;
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds;
};

static const char *text_of(const json_t *body, const char *key) {
    return json_string_value(json_object_get(body, key));
}

static void report_error(struct egress *egress, const char *id, const char *why, int error) {
    outbox_send(egress, json_pack("{s:s, s:s?, s:s, s:i}", "event", "error", "box", id, "message",
                            why, "errno", -error));
}

/* The text in the message's first descriptor, a memory file. NULL: there is none. */
static char *take_text(struct message *message) {
    auto_buf struct buf copy = BUF_INIT;
    size_t length = 0;
    void *data = NULL;

    if (!message->n_fds)
        return NULL;
    auto_close int fd = message->fds[0];
    message->n_fds--;
    memmove(message->fds, message->fds + 1, message->n_fds * sizeof *message->fds);
    if (fd_map_memory_file(fd, MAX_POLICY, &data, &length) < 0 || !data)
        return NULL;
    buf_add(&copy, data, length);
    munmap(data, length);
    return buf_take(&copy);
}

/* The policy's text: in the message, or in a descriptor. NULL: there is none. */
static char *take_policy(struct message *message) {
    const char *text = text_of(message->body, "policy");

    if (json_is_true(json_object_get(message->body, "policy_fd")))
        return take_text(message);
    return text ? strdup(text) : NULL;
}

/* The table of names, as the policy, after which its descriptor comes. Borrowed from the message.
 */
static const json_t *take_names(struct message *message) {
    if (json_is_true(json_object_get(message->body, "names_fd"))) {
        auto_free char *text = take_text(message);
        json_t *names = text ? json_loads(text, 0, NULL) : NULL;

        json_object_set_new(message->body, "names", names ? names : json_null());
    }
    return json_object_get(message->body, "names");
}

static void send_all_names(struct box *box) {
    const struct names_table *table = &box->names.exact;

    for (uint32_t i = 0; i < table->n; i++) {
        const struct address address = address_of_v4(NAMES_FIRST_EXACT + i);
        char text[ADDRESS_TEXT];

        if (table->items[i].name)
            outbox_send(box->egress,
                json_pack("{s:s, s:s, s:s, s:s}", "event", "name", "box", box->id, "name",
                    table->items[i].name, "address", address_text(&address, text)));
    }
}

static unsigned files_of(const json_t *body) {
    return (json_is_true(json_object_get(body, "log")) ? BOX_LOG : 0u) |
           (json_is_true(json_object_get(body, "log_file")) ? BOX_LOG_FILE : 0u) |
           (json_is_true(json_object_get(body, "record")) ? BOX_RECORD : 0u) |
           (json_is_true(json_object_get(body, "replay")) ? BOX_REPLAY : 0u);
}

/* The memory comes before the first sandbox. */
static int do_activity(struct egress *egress, struct message *message) {
    const size_t bytes = NET_ACTIVITY_SLOTS * sizeof *egress->activity;

    if (message->n_fds != 1 || egress->activity)
        return -EBADMSG;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, message->fds[0], 0);
    if (at == MAP_FAILED)
        return -errno;
    egress->activity = at;
    return 0;
}

/* The sandbox's place in it, or NULL. */
static struct net_activity *slot_of(const struct egress *egress, const json_t *body) {
    const json_t *slot = json_object_get(body, "slot");
    json_int_t number = json_is_integer(slot) ? json_integer_value(slot) : -1;

    if (!egress->activity || number < 0 || number >= NET_ACTIVITY_SLOTS)
        return NULL;
    return &egress->activity[number];
}

/* The parts of a sandbox besides its rules and listeners. */
static void fill_more(struct egress *egress, const struct message *message) {
    struct box *box = box_find(egress, message->id);

    box->activity = slot_of(egress, message->body);
    peers_set(box, json_object_get(message->body, "peers"));
}

static int do_open(struct egress *egress, struct message *message) {
    auto_free char *policy = take_policy(message);
    const json_t *names = take_names(message);
    const char *why = "the message has no rules";
    int r = -EBADMSG;

    if (policy)
        r = box_open(egress, message->id, policy, names, message->fds, message->n_fds,
            files_of(message->body), &why);
    if (r < 0)
        report_error(egress, message->id, why, r);
    else
        fill_more(egress, message);
    return 0;
}

static int do_peers(struct egress *egress, struct message *message) {
    (void)egress;
    peers_set(message->box, json_object_get(message->body, "peers"));
    connection_check_peers(message->box);
    return 0;
}

/* Without a descriptor: the connection cannot be made. */
static int do_peer(struct egress *egress, struct message *message) {
    int fd = message->n_fds == 1 ? message->fds[0] : -EBADF;

    (void)egress;
    message->n_fds = 0;
    if (message->box)
        connection_join_peer(message->box,
            (uint64_t)json_integer_value(json_object_get(message->body, "connection")), fd);
    else
        close_fd(&fd);
    return 0;
}

static int do_rules(struct egress *egress, struct message *message) {
    auto_free char *policy = take_policy(message);
    const char *why = "the message has no rules";
    int r = policy ? box_set_rules(message->box, policy, &why) : -EBADMSG;

    if (r < 0)
        report_error(egress, message->id, why, r);
    else
        send_all_names(message->box); /* no policy's order tells their addresses any more */
    return 0;
}

static int do_start(struct egress *egress, struct message *message) {
    (void)egress;
    box_tally(message->box);
    int r = tally_start(
        message->box, (uint64_t)json_integer_value(json_object_get(message->body, "tally")));
    return r == -EEXIST ? 0 : r;
}

static int do_end(struct egress *egress, struct message *message) {
    json_int_t id = json_integer_value(json_object_get(message->body, "tally"));
    struct tally *tally;

    box_drain(message->box);
    box_tally(message->box);
    tally = tally_find(message->box, (uint64_t)id);
    outbox_send(egress, json_pack("{s:s, s:s, s:I, s:o?}", "event", "tally", "box", message->id,
                            "tally", id, "network", tally ? tally_json(tally) : NULL));
    tally_free(tally);
    return 0;
}

static int do_close(struct egress *egress, struct message *message) {
    struct box *box = message->box;

    box_drain(box);
    box_stop(box);
    outbox_send(egress, json_pack("{s:s, s:s, s:o?}", "event", "closed", "box", message->id,
                            "network", tally_json(&box->totals)));
    box_free(box);
    return 0;
}

static json_t *probe_json(const char *text, const char *url, const char *method) {
    struct policy_problems problems = { 0 };
    struct policy *policy = NULL;
    struct probe probe = { .rule = -1 };
    int r = policy_parse(text, strlen(text), &policy, &problems);

    policy_problems_done(&problems);
    if (r == 0)
        r = probe_url(&policy->network, url, method ? method : "GET", &probe);
    policy_free(policy);
    if (r < 0)
        return json_pack("{s:s, s:s}", "event", "test", "error",
            r == -EINVAL ? "the rules or the URL cannot be read" : "out of memory");
    return json_pack("{s:s, s:b, s:o?, s:s}", "event", "test", "allowed", (int)probe.is_allowed,
        "rule", probe.rule < 0 ? NULL : json_integer(probe.rule), "why", match_why_text(probe.why));
}

/* Tests the rules of any policy against a URL, without a sandbox. */
static int do_test(struct egress *egress, struct message *message) {
    auto_free char *policy = take_policy(message);
    const char *url = text_of(message->body, "url");

    if (!policy || !url)
        return -EBADMSG;
    json_t *answer = probe_json(policy, url, text_of(message->body, "method"));
    json_object_set(answer, "serial", json_object_get(message->body, "serial"));
    outbox_send(egress, answer);
    return 0;
}

static int do_name_servers(struct egress *egress, struct message *message) {
    const char *text = text_of(message->body, "resolv_conf");

    if (!text)
        return -EBADMSG;
    resolver_set_servers(egress->resolver, text);
    return 0;
}

/* --- rollbox-egress-tls --- */

static struct connection *find_handed(struct egress *egress, uint64_t id) {
    list_for_each(node, &egress->handed) {
        struct connection *connection = container_of(node, struct connection, handed_node);

        if (connection->id == id)
            return connection;
    }
    return NULL;
}

static uint64_t number_of(const json_t *body, const char *key) {
    json_int_t value = json_integer_value(json_object_get(body, key));

    return value > 0 ? (uint64_t)value : 0;
}

static void log_tls_event(struct connection *connection, const char *event, const json_t *body) {
    log_event(connection->box, event, "{s:s, s:i, s:s?, s:s?, s:O?, s:s?}", "host",
        connection_host(connection), "port", (int)connection->port, "method",
        text_of(body, "method"), "path", text_of(body, "path"), "status",
        json_object_get(body, "status"), "why", text_of(body, "why"));
}

static void tls_event(struct connection *connection, const json_t *body) {
    const char *event = text_of(body, "event"), *why = text_of(body, "why");
    struct box *box = connection->box;

    if (!event)
        return;
    if (strcmp(event, "close") == 0) {
        connection->up = number_of(body, "up");
        connection->down = number_of(body, "down");
        box->up_bytes += connection->up;
        box->down_bytes += connection->down;
        connection_end(connection, false);
        return;
    }
    if (strcmp(event, "http") == 0) {
        box->n_requests++;
        tally_request(box);
        if (log_wants_requests(box))
            log_tls_event(connection, event, body);
        return;
    }
    /* A server's failed handshake shows as a refusal of each request as well. */
    if (strcmp(event, "http-refused") == 0 || strcmp(event, "limit") == 0)
        tally_refusal(box, connection_host(connection), connection->port,
            why && match_why_of(why) ? match_why_of(why) : NET_WHY_UPSTREAM_TLS);
    log_tls_event(connection, event, body);
}

static void end_tls(struct egress *egress) {
    loop_remove(egress->loop, &egress->tls_source);
    close_fd(&egress->tls);
    while (!list_empty(&egress->handed))
        connection_refuse(
            container_of(egress->handed.next, struct connection, handed_node), NET_WHY_GATEWAY);
}

static void on_tls(struct loop_source *source, uint32_t events) {
    struct egress *egress = container_of(source, struct egress, tls_source);
    int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds = 0;
    ssize_t n = fd_receive(egress->tls, egress->scratch, EGRESS_CHUNK, fds, &n_fds);

    (void)events;
    for (size_t i = 0; i < n_fds; i++)
        close(fds[i]);
    if (n == -EAGAIN || n == -EINTR)
        return;
    if (n <= 0) {
        end_tls(egress);
        return;
    }
    json_t *body = json_loadb(egress->scratch, (size_t)n, 0, NULL);
    struct connection *connection = find_handed(egress, number_of(body, "connection"));
    if (connection)
        tls_event(connection, body);
    json_decref(body);
}

static int do_tls(struct egress *egress, struct message *message) {
    if (message->n_fds != 1)
        return -EBADMSG;
    end_tls(egress);
    if (fcntl(message->fds[0], F_SETFL, O_RDWR | O_NONBLOCK) < 0)
        return -errno;
    egress->tls = TAKE_FD(message->fds[0]);
    return loop_add(egress->loop, &egress->tls_source, egress->tls, EPOLLIN, on_tls);
}

/* --- connections into sandboxes --- */

static uint64_t group_of(const struct message *message) {
    return (uint64_t)json_integer_value(json_object_get(message->body, "group"));
}

/* The engine's number of a connection. */
static uint64_t serial_of(const struct message *message) {
    return (uint64_t)json_integer_value(json_object_get(message->body, "serial"));
}

static int do_relay(struct egress *egress, struct message *message) {
    if (message->n_fds != 2)
        return -EBADMSG;
    message->n_fds = 0;
    inward_tell_taken(egress, group_of(message), serial_of(message));
    (void)inward_start(egress, group_of(message), message->fds[0], message->fds[1]);
    return 0;
}

static int do_unrelay(struct egress *egress, struct message *message) {
    inward_end_group(egress, group_of(message));
    return 0;
}

/* --- messages --- */

static const struct {
    const char *verb;
    enum { NEEDS_NOTHING, NEEDS_ID, NEEDS_BOX } needs;
    int (*run)(struct egress *egress, struct message *message);
} verbs[] = {
    { "open", NEEDS_ID, do_open },
    { "rules", NEEDS_BOX, do_rules },
    { "start", NEEDS_BOX, do_start },
    { "end", NEEDS_BOX, do_end },
    { "close", NEEDS_BOX, do_close },
    { "tls", NEEDS_NOTHING, do_tls },
    { "peers", NEEDS_BOX, do_peers },
    { "peer", NEEDS_ID, do_peer },
    { "relay", NEEDS_NOTHING, do_relay },
    { "unrelay", NEEDS_NOTHING, do_unrelay },
    { "test", NEEDS_NOTHING, do_test },
    { "activity", NEEDS_NOTHING, do_activity },
    { "name-servers", NEEDS_NOTHING, do_name_servers },
};

static int run(struct egress *egress, struct message *message) {
    for (size_t i = 0; i < ARRAY_SIZE(verbs); i++) {
        if (strcmp(verbs[i].verb, message->verb) != 0)
            continue;
        if (verbs[i].needs != NEEDS_NOTHING && !message->id)
            return -EBADMSG;
        if (verbs[i].needs == NEEDS_BOX && !message->box) {
            report_error(egress, message->id, "there is no such sandbox", -ENOENT);
            return 0;
        }
        return verbs[i].run(egress, message);
    }
    return -EBADMSG;
}

/* There was no room for a message's descriptors. Can the gateway do without it? */
static bool lost_relay(struct egress *egress, const char *bytes, size_t size) {
    struct message message = { .body = json_loadb(bytes, size, JSON_DISABLE_EOF_CHECK, NULL) };
    const char *verb = text_of(message.body, "do");
    const bool is_relay = verb && strcmp(verb, "relay") == 0;

    if (is_relay)
        inward_tell_end(egress, group_of(&message), serial_of(&message));
    json_decref(message.body);
    return is_relay;
}

static void on_engine(struct loop_source *source, uint32_t events) {
    static char bytes[MAX_MESSAGE];
    struct egress *egress = container_of(source, struct egress, engine_source);
    struct message message = { 0 };
    ssize_t n = fd_receive(egress->engine_fd, bytes, sizeof bytes, message.fds, &message.n_fds);
    int r = -EBADMSG;

    (void)events;
    if (n == -EAGAIN || n == -EINTR)
        return;
    if (n == -EMFILE && lost_relay(egress, bytes, sizeof bytes))
        return;
    if (n > 0)
        message.body = json_loadb(bytes, (size_t)n, 0, NULL);
    else if (n == 0)
        r = 0; /* the engine is gone */
    message.verb = text_of(message.body, "do");
    message.id = text_of(message.body, "box");
    if (message.verb) {
        message.box = message.id ? box_find(egress, message.id) : NULL;
        r = run(egress, &message);
    }
    if (n == 0 || r < 0)
        loop_stop(egress->loop);
    for (size_t i = 0; i < message.n_fds; i++)
        close_fd(&message.fds[i]);
    json_decref(message.body);
}

int control_start(struct egress *egress) {
    int r = loop_add(egress->loop, &egress->engine_source, egress->engine_fd, EPOLLIN, on_engine);

    if (r == 0)
        outbox_send(egress, json_pack("{s:s}", "event", "ready"));
    return r;
}
