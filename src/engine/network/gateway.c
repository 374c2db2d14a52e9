/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/network/gateway.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/core/context.h"
#include "engine/network/gateway_activity.h"
#include "engine/network/gateway_process.h"
#include "engine/network/gateway_tape.h"
#include "engine/network/gateway_tls.h"
#include "engine/core/log.h"
#include "engine/core/spawn.h"
#include "guest/guest.h"
#include "policy/plan.h"
#include "policy/policy.h"

#define INLINE_TEXT (32u << 10) /* bytes: a longer text goes in a memory file */
#define NAME_SERVERS "/etc/resolv.conf"
#define MAX_NAME_SERVERS (64u << 10)
#define LOG_BYTES (8u << 20) /* of a session's log; the gateway writes half of that */
#define MAX_NAMES 16384
/* A program that ends at once is not started again and again for the sandboxes that there are. */
#define LIFE_NS 1000000000ll
#define RESTART_NS 1000000000ll

struct tally {
    struct list node; /* gateway_box->tallies */
    const struct run *run;
    uint64_t number;
    uint64_t turns;     /* of the box' activity, when it began */
    bool is_ending;     /* the gateway has been asked for it */
    bool is_incomplete; /* a gateway that died knew the rest */
};

/* A box as the gateway knows it, with the sockets of its connections. */
struct gateway_box {
    struct gateway *gateway;
    struct list node;            /* gateway->boxes, once it is registered */
    struct list in_hash;         /* gateway->by_box, until it is closed */
    const struct box *box;       /* NULL: closed */
    const struct policy *policy; /* of the box */
    int secrets; /* a memory file with the values of its policy's secrets; -EBADF: none */
    char id[SESSION_ID_MAX];
    uint64_t session; /* its number; 0: of a run */
    char *text;       /* rules that replace the policy's; NULL: none */
    json_t *names;    /* see gateway_names; never NULL once it is registered */
    bool is_transparent, is_registered;
    pid_t decrypter; /* the rollbox-egress-tls that has it; 0: none */
    bool is_closed;  /* its box is gone; results wait for their tallies */
    int log;         /* -EBADF: none */
    int slot;        /* of gateway->activity; -1: none */
    struct gateway_tape tape;
    struct list tallies;
    size_t n;
    int fds[];
};

/* The network state of a session, for all its boxes. */
struct session_network {
    struct list node; /* gateway->sessions */
    uint64_t session; /* its number */
    int log;          /* a memory file with its network log; -EBADF: none */
    char *rules;      /* that replace the policy's, of every box from now on; NULL: none */
};

struct gateway {
    struct engine *engine;
    struct gateway_process egress, tls;
    struct gateway_activity activity;
    struct list boxes, sessions;
    struct list by_box[256]; /* struct gateway_box.in_hash */
    struct loop_timer restart;
    struct loop_task starting;
    int64_t started_ns;
    struct stat name_servers; /* of the file, as the gateway knows it */
    uint64_t next_tally, next_id, n_restarts;
    unsigned n_boxes, n_holds;
};

static const char no_rules[] = "{\"net\": \"allow\"}"; /* and no host */

static struct gateway *the_gateway; /* of this engine; NULL: not needed yet */

static void (*on_tally)(uint64_t tally, const char *network);
static const struct gateway_relays *relays;
static const struct gateway_peers *peers;

void gateway_on_tally(void (*callback)(uint64_t tally, const char *network)) {
    on_tally = callback;
}

static struct list *bucket_of(const struct box *box) {
    return &the_gateway->by_box[((uintptr_t)box >> 6) % ARRAY_SIZE(the_gateway->by_box)];
}

static struct gateway_box *of_box(const struct box *box) {
    if (!the_gateway || !box)
        return NULL;
    list_for_each(node, bucket_of(box)) {
        struct gateway_box *b = container_of(node, struct gateway_box, in_hash);

        if (b->box == box)
            return b;
    }
    return NULL;
}

/* ---- messages ---- */

/* The rules of the box as the gateway reads them. */
static char *rules_of(const struct gateway_box *b) {
    return b->text ? strdup(b->text) : net_rules_text(b->policy);
}

/* Adds a member to a message; of a long `text`, that there is a memory file with it. */
static int add_member(
    json_t *message, const char *key, const char *text, json_t *take_value, int *ret_fd) {
    auto_free char *flag = NULL;

    *ret_fd = -EBADF;
    if (!text || strlen(text) <= INLINE_TEXT)
        return text && json_object_set_new(message, key, take_value) == 0 ? 0 : -ENOMEM;
    json_decref(take_value);
    int fd = fd_memory_file("rollbox-text", text, strlen(text));
    if (fd < 0)
        return fd;
    *ret_fd = fd;
    return asprintf(&flag, "%s_fd", key) < 0 || json_object_set_new(message, flag, json_true()) < 0
               ? -ENOMEM
               : 0;
}

static int add_rules(const struct gateway_box *b, json_t *message, int *ret_fd) {
    auto_free char *text = rules_of(b);

    return add_member(message, "policy", text, text ? json_string(text) : NULL, ret_fd);
}

static int add_names(const struct gateway_box *b, json_t *message, int *ret_fd) {
    auto_free char *text = json_dumps(b->names, JSON_COMPACT);

    return add_member(message, "names", text, json_incref(b->names), ret_fd);
}

static int send_tally(struct gateway_box *b, const char *what, uint64_t number) {
    return gateway_process_send(&b->gateway->egress,
        json_pack("{s:s, s:s, s:I}", "do", what, "box", b->id, "tally", (json_int_t)number), NULL,
        0);
}

static bool text_terminates(const char *text) {
    struct policy_problems problems = { 0 };
    struct policy *policy = NULL;
    bool terminates = policy_parse(text, strlen(text), &policy, &problems) == 0 &&
                      net_rules_terminate(&policy->network);

    policy_problems_done(&problems);
    if (policy)
        policy_free(policy);
    return terminates;
}

/* Before rollbox-egress, which may hand over a connection at once. */
static int open_tls(struct gateway_box *b) {
    struct gateway *gateway = b->gateway;
    auto_free char *text = NULL;

    /* Rules that came later may terminate TLS where those of the policy do not. If they do not any
     * more, connections that were decrypted so far end. */
    const bool terminates =
        b->text ? text_terminates(b->text) : net_rules_terminate(&b->policy->network);
    if (!terminates && !b->decrypter)
        return 0;
    text = rules_of(b);
    if (!text)
        return -ENOMEM;
    int r = gateway_tls_start(&gateway->tls, &gateway->egress);
    if (r == 0)
        r = gateway_tls_send(&gateway->tls, b->decrypter == gateway->tls.pid ? "rules" : "open",
            b->id, text, b->secrets, &b->tape);
    if (r == 0)
        b->decrypter = gateway->tls.pid;
    return r;
}

static int send_open(struct gateway_box *b) {
    json_t *message = json_pack("{s:s, s:s, s:s, s:b, s:b, s:b, s:b}", "do", "open", "box", b->id,
        "mode", b->is_transparent ? "tproxy" : "ports", "log", b->log >= 0, "log_file",
        b->tape.log >= 0, "record", b->tape.record >= 0, "replay", b->tape.replay >= 0);
    auto_close int rules = -EBADF, names = -EBADF;
    auto_free int *fds = malloc((b->n + 6) * sizeof *fds);
    size_t n = 0;
    int r = message && fds ? add_rules(b, message, &rules) : -ENOMEM;
    json_t *others = b->session ? peers->names(b->session) : NULL;

    if (others)
        (void)json_object_set_new(message, "peers", others);
    if (r == 0)
        r = add_names(b, message, &names);
    if (r == 0)
        r = open_tls(b);
    if (r < 0) {
        json_decref(message);
        return r;
    }
    if (b->slot >= 0)
        (void)json_object_set_new(message, "slot", json_integer(b->slot));
    if (rules >= 0)
        fds[n++] = rules;
    if (names >= 0)
        fds[n++] = names;
    memcpy(fds + n, b->fds, b->n * sizeof *fds);
    n += b->n;
    if (b->log >= 0)
        fds[n++] = b->log;
    if (b->tape.log >= 0)
        fds[n++] = b->tape.log;
    if (b->tape.record >= 0)
        fds[n++] = b->tape.record;
    if (b->tape.replay >= 0)
        fds[n++] = b->tape.replay;
    r = gateway_process_send(&b->gateway->egress, message, fds, n);
    list_for_each(node, &b->tallies) {
        const struct tally *tally = container_of(node, struct tally, node);

        if (r == 0)
            r = send_tally(b, "start", tally->number);
        if (r == 0 && tally->is_ending)
            r = send_tally(b, "end", tally->number);
    }
    return r;
}

/* The gateway cannot open the file: the host's resolvers may change while it runs. */
static void watch_name_servers(struct gateway *gateway) {
    const struct stat *old = &gateway->name_servers;
    auto_buf struct buf text = BUF_INIT;
    struct stat new;

    if (!gateway->egress.pid || stat(NAME_SERVERS, &new) < 0)
        return;
    if (new.st_ino == old->st_ino &&new.st_size == old->st_size &&new.st_mtim.tv_sec ==
        old->st_mtim.tv_sec &&new.st_mtim.tv_nsec == old->st_mtim.tv_nsec)
        return;
    gateway->name_servers = new;
    if (fd_read_file(NAME_SERVERS, MAX_NAME_SERVERS, &text) < 0 || !text.length)
        return;
    json_t *content = json_stringn(text.data, text.length);
    if (content) /* valid UTF-8 */
        (void)gateway_process_send(&gateway->egress,
            json_pack("{s:s, s:o}", "do", "name-servers", "resolv_conf", content), NULL, 0);
}

/* ---- the programs ---- */

static void on_restart(struct loop_timer *timer);

static void restart_later(struct gateway *gateway) {
    if (gateway->n_boxes)
        (void)loop_timer_set(
            gateway->engine->loop, &gateway->restart, clock_now_ns() + RESTART_NS, on_restart);
}

/* All sandboxes that there are get the new process. */
static int start(struct gateway *gateway) {
    if (gateway->egress.pid)
        return 0;
    loop_timer_clear(gateway->engine->loop, &gateway->restart);
    if (stat(NAME_SERVERS, &gateway->name_servers) < 0)
        gateway->name_servers = (struct stat){ 0 };
    int r = gateway_process_start(&gateway->egress);
    if (r < 0)
        return r;
    gateway->started_ns = clock_now_ns();
    gateway_activity_reset(&gateway->activity);
    if (gateway->activity.fd >= 0)
        r = gateway_process_send(
            &gateway->egress, json_pack("{s:s}", "do", "activity"), &gateway->activity.fd, 1);
    list_for_each(node, &gateway->boxes) {
        struct gateway_box *b = container_of(node, struct gateway_box, node);

        if (r == 0 && !b->is_closed)
            r = send_open(b);
    }
    if (r < 0)
        gateway_process_stop(&gateway->egress);
    return r;
}

/* Sandboxes whose rollbox-egress-tls has ended get another one. 0 or -errno. */
static int reopen_tls(struct gateway *gateway) {
    int r = 0;

    list_for_each(node, &gateway->boxes) {
        struct gateway_box *b = container_of(node, struct gateway_box, node);

        if (r == 0 && !b->is_closed && !b->decrypter)
            r = open_tls(b);
    }
    return r;
}

static void on_restart(struct loop_timer *timer) {
    struct gateway *gateway = container_of(timer, struct gateway, restart);

    if (gateway->n_boxes && (start(gateway) < 0 || reopen_tls(gateway) < 0))
        restart_later(gateway);
}

static void tally_free(struct tally *tally) {
    list_remove(&tally->node);
    free(tally);
}

/* The result that waits for a tally gets the counts that are known. */
static void give_up_tally(struct gateway_box *b, struct tally *tally) {
    char text[128];

    snprintf(text, sizeof text, "{\"mode\": \"%s\", \"incomplete\": true}",
        b->is_transparent ? "tproxy" : "ports");
    if (tally->is_ending)
        on_tally(tally->number, text);
    tally_free(tally);
}

static void stop_if_unused(struct gateway *gateway) {
    if (gateway->n_boxes)
        return;
    loop_timer_clear(gateway->engine->loop, &gateway->restart);
    gateway_process_stop(&gateway->tls);
    if (!gateway->n_holds)
        gateway_process_stop(&gateway->egress);
}

static void forget(struct gateway_box *b) {
    struct gateway *gateway = b->gateway;

    list_remove(&b->node);
    if (b->is_registered) {
        gateway->n_boxes--;
        stop_if_unused(gateway);
    }
    json_decref(b->names);
    free(b->text);
    free(b);
}

static void forget_if_done(struct gateway_box *b) {
    if (b->is_closed && list_empty(&b->tallies))
        forget(b);
}

/* Its connections are reset. rollbox-egress refuses new ones until it is there again. */
static void on_tls_end(struct gateway_process *process) {
    struct gateway *gateway = container_of(process, struct gateway, tls);
    bool lived = clock_now_ns() - gateway->started_ns >= LIFE_NS;

    gateway->n_restarts++;
    list_for_each(node, &gateway->boxes) {
        struct gateway_box *b = container_of(node, struct gateway_box, node);

        b->decrypter = 0;
    }
    if (!gateway->egress.pid)
        return; /* both are started together */
    if (!lived || reopen_tls(gateway) < 0)
        restart_later(gateway);
}

static void on_egress_end(struct gateway_process *process) {
    struct gateway *gateway = container_of(process, struct gateway, egress);

    gateway->n_restarts++;
    relays->lost();
    gateway_process_stop(&gateway->tls); /* it ends with the other as well */
    list_for_each(node, &gateway->boxes) {
        struct gateway_box *b = container_of(node, struct gateway_box, node);

        b->decrypter = 0;
        list_for_each(at, &b->tallies) {
            struct tally *tally = container_of(at, struct tally, node);

            tally->is_incomplete = true;
            if (tally->is_ending)
                give_up_tally(b, tally);
        }
        forget_if_done(b);
    }
    if (!gateway->n_boxes)
        return;
    if (clock_now_ns() - gateway->started_ns < LIFE_NS || start(gateway) < 0)
        restart_later(gateway);
}

static struct gateway_box *find_box(const struct gateway *gateway, const json_t *message) {
    const char *id = json_string_value(json_object_get(message, "box"));

    list_for_each(node, &gateway->boxes) {
        struct gateway_box *b = container_of(node, struct gateway_box, node);

        if (id && !strcmp(b->id, id))
            return b;
    }
    return NULL;
}

/* The array is a part of snapshots already, so it is another one. */
static void note_name(struct gateway_box *b, const json_t *message) {
    const char *name = json_string_value(json_object_get(message, "name")),
               *address = json_string_value(json_object_get(message, "address"));
    json_t *more =
        name && address && json_array_size(b->names) < MAX_NAMES ? json_copy(b->names) : NULL;

    if (!more || json_array_append_new(more, json_pack("[s, s]", address, name)) < 0) {
        json_decref(more);
        return;
    }
    json_decref(b->names);
    b->names = more;
}

static void end_tally(struct gateway_box *b, const json_t *message) {
    json_int_t number = json_integer_value(json_object_get(message, "tally"));
    json_t *network = json_object_get(message, "network");

    list_for_each(node, &b->tallies) {
        struct tally *tally = container_of(node, struct tally, node);

        if (!tally->is_ending || (json_int_t)tally->number != number)
            continue;
        (void)json_object_set_new(
            network, "mode", json_string(b->is_transparent ? "tproxy" : "ports"));
        if (tally->is_incomplete)
            (void)json_object_set_new(network, "incomplete", json_true());
        auto_free char *text = json_is_object(network) ? json_dumps(network, 0) : NULL;
        if (text) {
            on_tally(tally->number, text);
            tally_free(tally);
        } else {
            give_up_tally(b, tally);
        }
        forget_if_done(b);
        return;
    }
}

static void connect_peer(const struct gateway_box *b, const json_t *message) {
    struct gateway_peer peer = { .gateway = b->gateway->egress.pid,
        .connection = (uint64_t)json_integer_value(json_object_get(message, "connection")) };
    const char *name = json_string_value(json_object_get(message, "name"));
    json_int_t port = json_integer_value(json_object_get(message, "port"));

    memcpy(peer.box, b->id, sizeof peer.box);
    if (name && port > 0 && port <= UINT16_MAX)
        peers->connect(b->session, &peer, name, (uint16_t)port);
}

static uint64_t number_of(const json_t *message, const char *key) {
    return (uint64_t)json_integer_value(json_object_get(message, key));
}

static void on_egress_message(struct gateway_process *process, const json_t *message) {
    struct gateway *gateway = container_of(process, struct gateway, egress);
    const char *event = json_string_value(json_object_get(message, "event")),
               *what = json_string_value(json_object_get(message, "message"));
    struct gateway_box *b = event ? find_box(gateway, message) : NULL;

    if (event && !strcmp(event, "error"))
        log_at(LOG_ERROR, "gateway", ABOUT(.sandbox = b ? b->id : NULL), "rollbox-egress: %.500s",
            what ? what : "?");
    else if (event && !strcmp(event, "taken"))
        relays->taken(number_of(message, "group"), number_of(message, "serial"));
    else if (event && !strcmp(event, "relayed"))
        relays->ended(number_of(message, "group"), number_of(message, "serial"));
    else if (b && !strcmp(event, "peer"))
        connect_peer(b, message);
    else if (b && !strcmp(event, "tally"))
        end_tally(b, message);
    else if (b && !strcmp(event, "name"))
        note_name(b, message);
}

static void on_tls_message(struct gateway_process *process, const json_t *message) {
    const char *event = json_string_value(json_object_get(message, "event")),
               *id = json_string_value(json_object_get(message, "box")),
               *text = json_string_value(json_object_get(message, "message"));

    (void)process;
    if (event && !strcmp(event, "error"))
        log_at(LOG_ERROR, "gateway", ABOUT(.sandbox = id), "rollbox-egress-tls: %.500s",
            text ? text : "?");
}

static struct gateway *get_gateway(struct engine *engine) {
    struct gateway *gateway = the_gateway;

    if (gateway || !(gateway = calloc(1, sizeof *gateway)))
        return gateway;
    gateway->engine = engine;
    list_init(&gateway->boxes);
    list_init(&gateway->sessions);
    list_init(&gateway->starting.node);
    for (size_t i = 0; i < ARRAY_SIZE(gateway->by_box); i++)
        list_init(&gateway->by_box[i]);
    gateway_activity_init(&gateway->activity);
    gateway_process_init(&gateway->egress, engine, "rollbox-egress");
    gateway_process_init(&gateway->tls, engine, "rollbox-egress-tls");
    gateway->egress.on_message = on_egress_message;
    gateway->egress.on_end = on_egress_end;
    gateway->tls.on_message = on_tls_message;
    gateway->tls.on_end = on_tls_end;
    return the_gateway = gateway;
}

/* ---- connections into sandboxes ---- */

void gateway_on_relays(const struct gateway_relays *given) {
    relays = given;
}

void gateway_hold(struct engine *engine) {
    struct gateway *gateway = get_gateway(engine);

    if (gateway)
        gateway->n_holds++;
}

void gateway_release(struct engine *engine) {
    struct gateway *gateway = get_gateway(engine);

    if (!gateway || !gateway->n_holds)
        return;
    gateway->n_holds--;
    stop_if_unused(gateway);
}

int gateway_relay(struct engine *engine, uint64_t group, uint64_t serial, int outside, int inside) {
    struct gateway *gateway = get_gateway(engine);
    const int fds[] = { outside, inside };
    int r = gateway ? start(gateway) : -ENOMEM;

    return r < 0 ? r
                 : gateway_process_send(&gateway->egress,
                       json_pack("{s:s, s:I, s:I}", "do", "relay", "group", (json_int_t)group,
                           "serial", (json_int_t)serial),
                       fds, ARRAY_SIZE(fds));
}

void gateway_end_relays(uint64_t group) {
    if (the_gateway)
        (void)gateway_process_send(&the_gateway->egress,
            json_pack("{s:s, s:I}", "do", "unrelay", "group", (json_int_t)group), NULL, 0);
}

/* ---- private networks ---- */

void gateway_on_peers(const struct gateway_peers *given) {
    peers = given;
}

void gateway_set_peers(const struct box *box) {
    struct gateway_box *b = of_box(box);
    json_t *names = b && b->is_registered ? peers->names(b->session) : NULL;

    if (names)
        (void)gateway_process_send(&b->gateway->egress,
            json_pack("{s:s, s:s, s:o}", "do", "peers", "box", b->id, "peers", names), NULL, 0);
}

void gateway_answer_peer(const struct gateway_peer *peer, int fd) {
    /* Another gateway numbers other connections. */
    if (the_gateway && the_gateway->egress.pid == peer->gateway)
        (void)gateway_process_send(&the_gateway->egress,
            json_pack("{s:s, s:s, s:I}", "do", "peer", "box", peer->box, "connection",
                (json_int_t)peer->connection),
            &fd, fd >= 0);
}

/* ---- boxes ---- */

int gateway_box_new(struct engine *engine, const struct box *box, const struct policy *policy,
    int secrets, bool is_transparent, int *fds, size_t n) {
    struct gateway *gateway = get_gateway(engine);
    struct gateway_box *b = gateway ? calloc(1, sizeof *b + n * sizeof b->fds[0]) : NULL;

    if (!b)
        return -ENOMEM;
    b->gateway = gateway;
    b->box = box;
    b->policy = policy;
    b->secrets = secrets;
    b->is_transparent = is_transparent;
    b->log = -EBADF;
    b->slot = -1;
    b->tape = GATEWAY_TAPE_NONE;
    list_init(&b->node);
    list_init(&b->in_hash);
    list_init(&b->tallies);
    for (size_t i = 0; i < n; i++)
        b->fds[b->n++] = TAKE_FD(fds[i]);
    list_add_tail(bucket_of(box), &b->in_hash);
    return 0;
}

void gateway_box_free(const struct box *box) {
    struct gateway_box *b = of_box(box);

    if (!b)
        return;
    list_remove(&b->in_hash);
    for (size_t i = 0; i < b->n; i++)
        close_fd(&b->fds[i]);
    close_fd(&b->log);
    gateway_tape_close(&b->tape);
    b->box = NULL;
    b->policy = NULL;
    b->secrets = -EBADF;
    b->is_closed = true;
    list_for_each(node, &b->tallies) {
        struct tally *tally = container_of(node, struct tally, node);

        if (!tally->is_ending)
            tally_free(tally);
    }
    if (b->is_registered)
        (void)gateway_process_send(
            &b->gateway->egress, json_pack("{s:s, s:s}", "do", "close", "box", b->id), NULL, 0);
    if (b->decrypter)
        (void)gateway_tls_close(&b->gateway->tls, b->id);
    gateway_activity_release(&b->gateway->activity, b->slot);
    b->slot = -1;
    forget_if_done(b);
}

unsigned gateway_box_files(const struct box *box) {
    const struct gateway_box *b = of_box(box);

    return b ? (unsigned)b->n + (b->log >= 0) + gateway_tape_files(&b->tape) : 0;
}

/* No id is used twice: the two gateways hear of a sandbox over sockets of their own, so one may
 * still speak of an earlier sandbox when the other knows the later one. */
static void choose_id(struct gateway_box *b, const struct gateway_user *user) {
    struct gateway *gateway = b->gateway;

    gateway->next_id++;
    if (user->session)
        snprintf(b->id, sizeof b->id, "%s~%" PRIu64, user->name, gateway->next_id);
    else
        snprintf(b->id, sizeof b->id, "run-%" PRIu64, gateway->next_id);
}

static struct session_network *find_network(uint64_t session) {
    if (!the_gateway)
        return NULL;
    list_for_each(node, &the_gateway->sessions) {
        struct session_network *network = container_of(node, struct session_network, node);

        if (network->session == session)
            return network;
    }
    return NULL;
}

/* The same, made if need be. NULL: out of memory. */
static struct session_network *network_of(struct engine *engine, uint64_t session) {
    struct gateway *gateway = get_gateway(engine);
    struct session_network *network = gateway ? find_network(session) : NULL;

    if (network || !gateway || !(network = calloc(1, sizeof *network)))
        return network;
    network->session = session;
    network->log = -EBADF;
    list_add_tail(&gateway->sessions, &network->node);
    return network;
}

static void network_free(struct session_network *network) {
    list_remove(&network->node);
    close_fd(&network->log);
    free(network->rules);
    free(network);
}

/* A descriptor of the session's log, or -EBADF: it has none then. */
static int open_log(struct engine *engine, uint64_t session) {
    struct session_network *network = network_of(engine, session);

    if (network && network->log < 0) {
        network->log = memfd_create("rollbox-net-log", MFD_CLOEXEC);
        if (network->log >= 0)
            (void)fcntl(network->log, F_SETFL, O_APPEND | O_RDWR);
    }
    int fd = network && network->log >= 0 ? fcntl(network->log, F_DUPFD_CLOEXEC, 3) : -1;
    return fd < 0 ? -EBADF : fd;
}

void gateway_forget_session(uint64_t session) {
    struct session_network *network = find_network(session);

    if (network)
        network_free(network);
}

/* 0, or -errno and the error. */
static int check_start(int r, struct rollbox_error *error) {
    return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "setup",
                       "net allow: rollbox-egress cannot be started: %s%s", strerror(-r),
                       r == -ENOENT ? " (it is installed beside rollbox-engine)" : "")
                 : 0;
}

static void on_start(struct loop_task *task) {
    (void)start(container_of(task, struct gateway, starting)); /* gateway_use tells of a failure */
}

/* The sandbox is made while the program starts: nobody waits for that. */
static int start_soon(struct engine *engine) {
    struct gateway *gateway = get_gateway(engine);

    if (!gateway)
        return -ENOMEM;
    if (gateway->egress.pid)
        return 0;
    auto_free char *path = spawn_find_program(NULL, gateway->egress.program);
    if (!path || access(path, X_OK) < 0)
        return path ? -ENOENT : -ENOMEM;
    loop_defer(engine->loop, &gateway->starting, on_start);
    return 0;
}

int gateway_prepare(
    struct engine *engine, const struct policy *policy, struct rollbox_error *error) {
    if (policy->net != POLICY_NET_ALLOW)
        return 0;
    int r = gateway_tape_check(&policy->network, error);

    return r < 0 ? r : check_start(start_soon(engine), error);
}

const struct guest_record gateway_failure = {
    .kind = GUEST_FAILED, .stage = GUEST_STAGE_NETWORK, .error = ENOMEM
};

int gateway_use(
    const struct box *box, const struct gateway_user *user, struct rollbox_error *error) {
    struct gateway_box *b = of_box(box);

    if (!b || b->is_registered)
        return 0;
    struct gateway *gateway = b->gateway;

    int r = check_start(start(gateway), error);
    if (r == 0)
        r = gateway_tape_open(&b->policy->network, &b->tape, error);
    if (r < 0)
        return r;
    b->names = user->names ? json_incref(user->names) : json_array();
    choose_id(b, user);
    struct session_network *network = user->session ? find_network(user->session) : NULL;
    if (network && network->rules && !(b->text = strdup(network->rules)))
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "setup", "out of memory");
    b->session = user->session;
    if (user->session && b->policy->network.log != NET_LOG_NONE)
        b->log = open_log(gateway->engine, user->session);
    watch_name_servers(gateway);
    b->is_registered = true;
    b->slot = gateway_activity_take(&gateway->activity);
    list_for_each(node, &b->tallies)
        container_of(node, struct tally, node)->turns =
            gateway_activity_turns(&gateway->activity, b->slot);
    list_add_tail(&gateway->boxes, &b->node);
    gateway->n_boxes++;
    r = b->names ? send_open(b) : -ENOMEM;
    return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "setup",
                       "net allow: the sandbox cannot be made known to rollbox-egress: %s",
                       strerror(-r))
                 : 1;
}

/* ---- tallies ---- */

void gateway_tally_begin(const struct run *run, const struct box *box) {
    struct gateway_box *b = of_box(box);
    struct tally *tally;

    if (!b)
        return;
    list_for_each(node, &b->tallies)
        if (container_of(node, struct tally, node)->run == run)
            return;
    if (!(tally = calloc(1, sizeof *tally)))
        return;
    list_init(&tally->node);
    tally->run = run;
    tally->number = ++b->gateway->next_tally;
    list_add_tail(&b->tallies, &tally->node);
    if (!b->is_registered)
        return;
    watch_name_servers(b->gateway);
    tally->turns = gateway_activity_turns(&b->gateway->activity, b->slot);
    (void)send_tally(b, "start", tally->number);
}

/* Most commands do nothing in the network: no answer is waited for. The gateway, which may not even
 * have begun, drops its tally. */
static char *end_quiet_tally(struct gateway_box *b, struct tally *tally) {
    char *text = NULL;

    if (tally->is_incomplete || b->is_closed || !b->is_registered ||
        !gateway_activity_is_quiet(&b->gateway->activity, b->slot, tally->turns, b->fds, b->n))
        return NULL;
    if (asprintf(&text,
            "{\"connections\": 0, \"refused\": 0, \"requests\": 0, \"up\": 0, \"down\": 0, "
            "\"hosts\": [], \"refusals\": [], \"mode\": \"%s\"}",
            b->is_transparent ? "tproxy" : "ports") < 0)
        return NULL;
    (void)send_tally(b, "end", tally->number);
    tally_free(tally);
    return text;
}

/* `ret_quiet`, which may be NULL, may get the tally at once. */
static uint64_t end_of(struct gateway_box *b, const struct run *run, char **ret_quiet) {
    list_for_each(node, &b->tallies) {
        struct tally *tally = container_of(node, struct tally, node);

        if (tally->run != run || tally->is_ending)
            continue;
        if (ret_quiet && (*ret_quiet = end_quiet_tally(b, tally)))
            return 0;
        tally->run = NULL; /* it is freed soon */
        tally->is_ending = true;
        if (send_tally(b, "end", tally->number) < 0 || !b->gateway->egress.pid) {
            tally_free(tally);
            return 0;
        }
        return tally->number;
    }
    return 0;
}

uint64_t gateway_tally_end(const struct run *run, const struct box *box, char **ret_quiet) {
    struct gateway_box *b = of_box(box);
    uint64_t number = b ? end_of(b, run, ret_quiet) : 0;

    if (number || *ret_quiet || !the_gateway)
        return number;
    /* The run has left its box already. */
    list_for_each(node, &the_gateway->boxes) {
        number = end_of(container_of(node, struct gateway_box, node), run, ret_quiet);
        if (number || *ret_quiet)
            return number;
    }
    return 0;
}

uint64_t gateway_tally_restart(const struct run *run, const struct box *box) {
    struct gateway_box *b = of_box(box);
    uint64_t number = b ? end_of(b, run, NULL) : 0;

    if (number)
        gateway_tally_begin(run, box);
    return number;
}

/* ---- of sessions ---- */

static int parse_rules(const char *text, struct policy **ret, struct rollbox_error *error) {
    struct policy_problems problems = { 0 };
    int r = policy_parse(text, strlen(text), ret, &problems);

    if (r < 0)
        error_set(error, ROLLBOX_ERR_POLICY_INVALID, -r, "policy", "%s: %s",
            problems.n ? problems.items[0].key : "net_allow",
            problems.n ? problems.items[0].message : strerror(-r));
    policy_problems_done(&problems);
    return r;
}

static int copy_path(char **to, const char *from) {
    free(*to);
    *to = from ? strdup(from) : NULL;
    return from && !*to ? -ENOMEM : 0;
}

/* Can the rules replace those of the session's policy? */
static int check_rules(
    const struct policy *policy, const struct net_rules *now, struct rollbox_error *error) {
    if (policy->net != POLICY_NET_ALLOW && policy->net != POLICY_NET_LOOPBACK)
        return error_set(error, ROLLBOX_ERR_POLICY_INVALID, EINVAL, "policy",
            "net_allow: name the hosts that the sandbox may reach from now on");
    /* Neither the store nor the sandbox may have the certificates then. */
    if (net_rules_terminate(&policy->network) && !net_rules_terminate(now))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "policy",
            "net_allow: the new rules decrypt TLS, and the programs of this sandbox would not "
            "trust the gateway's certificates, because it was created without such a rule; create "
            "it with one, or leave out requests, inject and tls terminate");
    return 0;
}

/* The text that the gateway reads, of a policy of a user's. What is recorded, and whether a
 * recording answers, stays as it is `now`. NULL: it has an error. */
static char *read_rules(
    const char *text, const struct net_rules *now, struct rollbox_error *error) {
    struct policy *policy = NULL, *again = NULL;
    char *rules = NULL;

    if (parse_rules(text, &policy, error) < 0)
        return NULL;
    if (check_rules(policy, now, error) == 0 &&
        copy_path(&policy->network.record, now->record) == 0 &&
        copy_path(&policy->network.replay, now->replay) == 0) {
        policy->net = POLICY_NET_ALLOW; /* of loopback: with no host */
        rules = net_rules_text(policy);
    }
    if (rules && parse_rules(rules, &again, error) < 0) { /* some rules cannot be recorded */
        free(rules);
        rules = NULL;
    }
    policy_free(again);
    policy_free(policy);
    return rules;
}

static int keep_rules(struct engine *engine, uint64_t session, const char *text) {
    struct session_network *network = network_of(engine, session);
    char *copy = network ? strdup(text) : NULL;

    if (!copy)
        return -ENOMEM;
    free(network->rules);
    network->rules = copy;
    return 0;
}

/* To the gateway, which has the sandbox already. */
static int send_rules(struct gateway_box *b) {
    json_t *message = json_pack("{s:s, s:s}", "do", "rules", "box", b->id);
    auto_close int rules = -EBADF;
    int r = message ? open_tls(b) : -ENOMEM;

    if (r == 0)
        r = add_rules(b, message, &rules);
    if (r < 0) {
        json_decref(message);
        return r;
    }
    return gateway_process_send(&b->gateway->egress, message, &rules, rules >= 0);
}

int gateway_set_rules(
    const struct gateway_session *session, const char *text, struct rollbox_error *error) {
    auto_free char *given = read_rules(text, &session->policy->network, error);
    struct gateway_box *b = of_box(session->box);
    int r = given ? keep_rules(session->engine, session->number, given) : -EINVAL;

    if (!given)
        return r;
    if (r == 0 && b && b->is_registered) { /* else its box begins with them */
        free(b->text);
        b->text = TAKE_PTR(given);
        r = send_rules(b);
    }
    return r < 0 ? error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -r, "request",
                       "net: the gateway did not get the rules: %s", strerror(-r))
                 : 0;
}

const char *gateway_rules(uint64_t session) {
    const struct session_network *network = find_network(session);

    return network ? network->rules : NULL;
}

int gateway_inherit_rules(struct engine *engine, uint64_t session, const char *rules) {
    struct policy_problems problems = { 0 };
    struct policy *policy = NULL;

    if (!rules)
        return 0;
    int r = policy_parse(rules, strlen(rules), &policy, &problems);
    policy_problems_done(&problems);
    const bool is_usable = r == 0 && policy->net == POLICY_NET_ALLOW;
    policy_free(policy);
    return keep_rules(engine, session, is_usable ? rules : no_rules);
}

int gateway_log(uint64_t session, struct buf *to) {
    const struct session_network *network = find_network(session);

    return network && network->log >= 0 ? fd_read_again(network->log, LOG_BYTES, to) : 0;
}

json_t *gateway_names(const struct box *box) {
    const struct gateway_box *b = of_box(box);

    return b ? json_incref(b->names) : NULL;
}

void gateway_status(struct buf *to) {
    const struct gateway *gateway = the_gateway;

    if (gateway)
        buf_printf(to, "\"gateway\": {\"sandboxes\": %u, \"pid\": %d, \"restarts\": %" PRIu64 "}, ",
            gateway->n_boxes, (int)gateway->egress.pid, gateway->n_restarts);
}

void gateway_finish(struct engine *engine) {
    struct gateway *gateway = the_gateway;

    if (!gateway)
        return;
    loop_timer_clear(engine->loop, &gateway->restart);
    loop_task_cancel(&gateway->starting);
    gateway_process_stop(&gateway->egress);
    gateway_process_stop(&gateway->tls);
    while (!list_empty(&gateway->boxes)) { /* closed, but for a tally that nobody waits for */
        struct gateway_box *b = container_of(gateway->boxes.next, struct gateway_box, node);

        while (!list_empty(&b->tallies))
            tally_free(container_of(b->tallies.next, struct tally, node));
        forget(b);
    }
    while (!list_empty(&gateway->sessions))
        network_free(container_of(gateway->sessions.next, struct session_network, node));
    gateway_activity_done(&gateway->activity);
    the_gateway = NULL;
    free(gateway);
}
