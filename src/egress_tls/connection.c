/* SPDX-License-Identifier: Apache-2.0 */
#include "egress_tls/connection.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "egress_tls/ca.h"
#include "egress_tls/h2.h"
#include "net/address.h"
#include "net/match.h"

#define SECOND_NS 1000000000ll
#define HANDSHAKE_NS (15 * SECOND_NS)
#define DRAIN_NS (2 * SECOND_NS)
#define DRAIN_BYTES (4u << 20)
#define ROUNDS 16 /* of reading and writing before other connections have their turn */

static void advance(struct connection *connection);

/* Protocols as in the extension: each with its length before it. */
static const unsigned char protocol_h2[] = { 2, 'h', '2' };
static const unsigned char protocol_http1[] = { 8, 'h', 't', 't', 'p', '/', '1', '.', '1' };

static bool lists(const unsigned char *list, size_t length, const unsigned char *protocol) {
    for (size_t at = 0; at < length; at += 1u + list[at]) {
        if (list[at] != protocol[0] || at + 1u + list[at] > length)
            continue;
        if (memcmp(list + at + 1, protocol + 1, protocol[0]) == 0)
            return true;
    }
    return false;
}

/* The guest's first message has come: pauses until the server's handshake is over. */
static int on_client_hello(SSL *ssl, int *alert, void *context) {
    struct connection *connection = SSL_get_app_data(ssl);
    const unsigned char *list;
    size_t length;

    (void)alert;
    (void)context;
    if (connection->step != CONNECTION_HELLO)
        return SSL_CLIENT_HELLO_SUCCESS;
    /* The extension's value begins with the length of the list. */
    if (SSL_client_hello_get0_ext(
            ssl, TLSEXT_TYPE_application_layer_protocol_negotiation, &list, &length) == 1 &&
        length > 2) {
        int offers = OFFERS_NOTHING;

        offers |= lists(list + 2, length - 2, protocol_h2) ? OFFERS_H2 : 0;
        offers |= lists(list + 2, length - 2, protocol_http1) ? OFFERS_HTTP1 : 0;
        /* A recording has one version of HTTP: the one that every server has. */
        if (box_is_taped(connection->box) && (offers & OFFERS_HTTP1) != 0)
            offers = OFFERS_HTTP1;
        connection->offers = (__typeof__(connection->offers))offers;
    }
    connection->step = CONNECTION_UPSTREAM;
    return SSL_CLIENT_HELLO_RETRY;
}

static int on_alpn(SSL *ssl, const unsigned char **ret, unsigned char *ret_length,
    const unsigned char *list, unsigned length, void *context) {
    struct connection *connection = SSL_get_app_data(ssl);
    const unsigned char *protocol = connection->h2 != NULL ? protocol_h2 : protocol_http1;

    (void)context;
    if (!lists(list, length, protocol))
        return connection->offers == OFFERS_NOTHING ? SSL_TLSEXT_ERR_NOACK
                                                    : SSL_TLSEXT_ERR_ALERT_FATAL;
    *ret = protocol + 1;
    *ret_length = protocol[0];
    return SSL_TLSEXT_ERR_OK;
}

static void set_modes(SSL_CTX *context) {
    (void)SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                        SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                        SSL_MODE_RELEASE_BUFFERS);
    (void)SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
}

static void setup_server(SSL_CTX *context) {
    set_modes(context);
    SSL_CTX_set_client_hello_cb(context, on_client_hello, NULL);
    SSL_CTX_set_alpn_select_cb(context, on_alpn, NULL);
    (void)SSL_CTX_set_session_id_context(context, (const unsigned char *)"rollbox", 7);
    (void)SSL_CTX_set_num_tickets(context, 1);
}

static int on_session(SSL *ssl, SSL_SESSION *session) {
    struct connection *connection = SSL_get_app_data(ssl);

    box_keep_session(connection->box, connection->place.name, connection->place.port, session);
    return 1; /* kept */
}

SSL_CTX *connection_client_context(const struct buf *roots) {
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    X509_STORE *store = context != NULL ? SSL_CTX_get_cert_store(context) : NULL;
    BIO *pem = BIO_new_mem_buf(roots->data != NULL ? roots->data : "", (int)roots->length);
    X509 *root;

    while (store != NULL && pem != NULL &&
           (root = PEM_read_bio_X509_AUX(pem, NULL, NULL, NULL)) != NULL) {
        (void)X509_STORE_add_cert(store, root); /* fails for one that is there already */
        X509_free(root);
    }
    BIO_free(pem);
    ERR_clear_error();
    if (store == NULL || SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1) {
        SSL_CTX_free(context);
        return NULL;
    }
    set_modes(context);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    (void)SSL_CTX_set_session_cache_mode(
        context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(context, on_session);
    return context;
}

static void fail_upstream(struct connection *connection, const char *why, const char *text) {
    if (connection->failure != NULL)
        return;
    connection->failure = why;
    snprintf(connection->failure_text, sizeof connection->failure_text, "rollbox: %s", text);
    events_add(&connection->gateway->events, &connection->place, "upstream_tls", NULL, 0, why);
    connection->upstream.cannot_send = true;
    connection->upstream.state = SIDE_BROKEN;
}

static void decide(
    struct http_relay *relay, const struct http_head *head, struct http_decision *decision);
static void refused(struct http_relay *relay, unsigned status, const char *why, const char *text);
static void answered(struct http_relay *relay, unsigned status, uint64_t up, uint64_t down);

static void passed(
    struct http_relay *relay, enum http_relay_part part, const char *data, size_t length);

static const struct http_relay_calls relay_calls = { decide, refused, answered, passed };

/* Of the request that is being decided about; the relay uses it until its call returns. */
static struct ruling current;

/* The guest chooses between TLS and plain HTTP at any port but 443. Without TLS everybody on the
 * way could read the secret, or take the server's place. "to" is the policy's own word. */
static bool is_secret_in_clear(const struct connection *connection, size_t number) {
    const struct net_rule *rule = &box_rules(connection->box)->items[number];

    if (connection->guest.ssl != NULL || rule->to != NULL)
        return false;
    for (size_t i = 0; i < rule->n_inject; i++)
        if (strchr(rule->inject[i].value, '{') != NULL)
            return true;
    return false;
}

static void decide(
    struct http_relay *relay, const struct http_head *head, struct http_decision *decision) {
    struct connection *connection = container_of(relay, struct connection, relay);
    const struct event_place *place = &connection->place;

    ruling_done(&current);
    box_rule_on(connection->box, place->rule, place->name, place->port, head->method, head->target,
        &current);
    exchange_set(&connection->exchange, head->method, head->target, current.rule);
    if (current.status == 0 && is_secret_in_clear(connection, (size_t)current.rule)) {
        *decision = (struct http_decision){ .status = 403,
            .why = "secret_in_clear",
            .text = "rollbox: the rule's secret is not sent without TLS; use https" };
        return;
    }
    *decision = (struct http_decision){ current.status, current.why, current.text, current.set,
        current.n_set };
    if (decision->status == 0 && connection->failure != NULL)
        *decision =
            (struct http_decision){ 502, connection->failure, connection->failure_text, NULL, 0 };
    if (decision->status == 0 && current.n_set > 0)
        events_add(&connection->gateway->events, place, "injected", &connection->exchange, 0, NULL);
    if (decision->status == 0)
        tape_begin(&connection->tape, connection->box, place, head->method, head->target);
}

static void passed(
    struct http_relay *relay, enum http_relay_part part, const char *data, size_t length) {
    struct connection *connection = container_of(relay, struct connection, relay);
    struct tape *tape = &connection->tape;

    switch (part) {
    case HTTP_RELAY_CONTENT:
        tape_content(tape, data, length);
        break;
    case HTTP_RELAY_REQUEST_END:
        tape_request_end(tape, connection->box, &connection->place);
        break;
    case HTTP_RELAY_ANSWER:
        tape_answer(tape, data, length);
        break;
    case HTTP_RELAY_TUNNEL_UP:
        tape_tunnel(tape, data, length);
        break;
    }
}

static void refused(struct http_relay *relay, unsigned status, const char *why, const char *text) {
    struct connection *connection = container_of(relay, struct connection, relay);

    (void)text;
    events_add(&connection->gateway->events, &connection->place, "http-refused",
        &connection->exchange, status, why);
    exchange_done(&connection->exchange);
    tape_end(&connection->tape, false);
}

static void answered(struct http_relay *relay, unsigned status, uint64_t up, uint64_t down) {
    struct connection *connection = container_of(relay, struct connection, relay);

    connection->exchange.up = up;
    connection->exchange.down = down;
    events_add(&connection->gateway->events, &connection->place, "http", &connection->exchange,
        status, NULL);
    exchange_done(&connection->exchange);
    tape_end(&connection->tape, true);
    if (recorder_has_lost(&connection->box->recorder))
        events_add(&connection->gateway->events, &connection->place, "unrecorded", NULL, 0, NULL);
}

struct connection *connection_free(struct connection *connection) {
    struct loop *loop = connection->gateway->loop;

    list_remove(&connection->node);
    loop_timer_clear(loop, &connection->timer);
    loop_timer_clear(loop, &connection->pause);
    loop_task_cancel(&connection->task);
    events_add_close(&connection->gateway->events, &connection->place, connection->guest.received,
        connection->guest.written);
    h2_free(connection->h2);
    /* Unsent data is dropped, and the guest sees that. */
    if (connection->step != CONNECTION_DRAIN && connection->guest.fd >= 0)
        side_set_reset(&connection->guest, true);
    side_done(loop, &connection->guest);
    side_done(loop, &connection->upstream);
    exchange_done(&connection->exchange);
    tape_end(&connection->tape, connection->relay.state == HTTP_RELAY_TUNNEL);
    free(connection->place.box);
    free(connection->place.name);
    free(connection);
    return NULL;
}

/* The deadline is looked at when the timer fires, not moved with each byte. */
static int64_t deadline(const struct connection *connection) {
    if (connection->step < CONNECTION_OPEN)
        return connection->begun_ns + HANDSHAKE_NS;
    if (connection->step == CONNECTION_DRAIN)
        return connection->active_ns + DRAIN_NS;
    return connection->active_ns + box_rules(connection->box)->idle_s * SECOND_NS;
}

static void on_timer(struct loop_timer *timer);

static void arm(struct connection *connection) {
    (void)loop_timer_set(
        connection->gateway->loop, &connection->timer, deadline(connection), on_timer);
}

static void begin_drain(struct connection *connection) {
    struct loop *loop = connection->gateway->loop;

    connection->step = CONNECTION_DRAIN;
    side_set_reset(&connection->guest, false);
    /* A server that ended without the notice may have been cut off by an attacker. The guest's
     * connection ends in the same way, and its client decides. */
    side_shutdown(&connection->guest, connection->upstream.state != SIDE_CUT);
    loop_remove(loop, &connection->upstream.source);
    close_fd(&connection->upstream.fd);
    connection->active_ns = clock_now_ns();
    arm(connection);
}

static void on_timer(struct loop_timer *timer) {
    struct connection *connection = container_of(timer, struct connection, timer);
    const struct event_place *place = &connection->place;

    if (clock_now_ns() < deadline(connection)) {
        arm(connection);
        return;
    }
    switch (connection->step) {
    case CONNECTION_UPSTREAM:
        fail_upstream(
            connection, "upstream_tls", "the server did not end its TLS handshake in time");
        connection->begun_ns = clock_now_ns();
        arm(connection);
        advance(connection);
        return;
    case CONNECTION_OPEN:
        if (connection->h2 == NULL && connection->relay.state == HTTP_RELAY_BUSY &&
            !connection->relay.has_answer) {
            http_relay_refuse(&connection->relay, 504, "limit_idle",
                "rollbox: the server has not answered within net_idle", &connection->guest.out);
            connection->active_ns = clock_now_ns();
            arm(connection);
            advance(connection);
            return;
        }
        events_add(&connection->gateway->events, place, "limit", NULL, 0, "limit_idle");
        break;
    case CONNECTION_HELLO:
    case CONNECTION_GUEST:
    case CONNECTION_DRAIN:
        break;
    }
    connection_free(connection);
}

static bool set_server_name(SSL *ssl, const char *name) {
    unsigned char address[16];

    if (inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set_tlsext_host_name(ssl, name) == 1 && SSL_set1_host(ssl, name) == 1;
}

static bool offer_protocols(struct connection *connection, SSL *ssl) {
    unsigned char list[sizeof protocol_h2 + sizeof protocol_http1];
    unsigned length = 0;

    if ((connection->offers & OFFERS_H2) != 0) {
        memcpy(list, protocol_h2, sizeof protocol_h2);
        length = sizeof protocol_h2;
    }
    if ((connection->offers & OFFERS_HTTP1) != 0) {
        memcpy(list + length, protocol_http1, sizeof protocol_http1);
        length += sizeof protocol_http1;
    }
    return length == 0 || SSL_set_alpn_protos(ssl, list, length) == 0;
}

static bool begin_upstream_tls(struct connection *connection) {
    const struct event_place *place = &connection->place;
    SSL *ssl = SSL_new(connection->gateway->client);
    SSL_SESSION *session = box_session(connection->box, place->name, place->port);

    connection->upstream.ssl = ssl;
    if (ssl == NULL || SSL_set_fd(ssl, connection->upstream.fd) != 1)
        return false;
    (void)SSL_set_app_data(ssl, connection);
    SSL_set_connect_state(ssl);
    if (session != NULL)
        (void)SSL_set_session(ssl, session);
    return set_server_name(ssl, place->name) && offer_protocols(connection, ssl);
}

static void describe_failure(struct connection *connection) {
    SSL *ssl = connection->upstream.ssl;
    long verified = SSL_get_verify_result(ssl);
    unsigned long error = ERR_peek_error();
    const char *reason = error != 0 ? ERR_reason_error_string(error) : NULL;
    char text[160];

    if (verified != X509_V_OK)
        snprintf(text, sizeof text, "the certificate of %.80s is not accepted: %s",
            connection->place.name, X509_verify_cert_error_string(verified));
    else
        snprintf(text, sizeof text, "the TLS handshake with %.80s failed: %s",
            connection->place.name, reason != NULL ? reason : "the connection was closed");
    fail_upstream(connection, "upstream_tls", text);
}

/* Both sides use the protocol that the server chose; if it chose none, the one of the guest. */
static bool choose_protocol(struct connection *connection) {
    const unsigned char *chosen = NULL;
    unsigned length = 0;
    bool is_h2 = connection->offers == OFFERS_H2;

    if (connection->upstream.ssl != NULL && connection->failure == NULL) {
        SSL_get0_alpn_selected(connection->upstream.ssl, &chosen, &length);
        is_h2 = length == 2 && memcmp(chosen, "h2", 2) == 0;
    }
    if (!is_h2)
        return true;
    /* It would pass unrecorded, or wait for a server that is not there. */
    if (box_is_taped(connection->box)) {
        events_add(&connection->gateway->events, &connection->place, "http-refused", NULL, 0,
            connection->box->recording != NULL ? "replay_miss" : "bad_request");
        return false;
    }
    connection->h2 = h2_new(connection);
    return connection->h2 != NULL;
}

/* Returns 1 when the handshake is over, 0 while it waits, -1 when it failed. */
static int handshake(struct side *side) {
    int result;

    ERR_clear_error();
    side->wants_write = false;
    result = SSL_do_handshake(side->ssl);
    if (result == 1)
        return 1;
    switch (SSL_get_error(side->ssl, result)) {
    case SSL_ERROR_WANT_WRITE:
        side->wants_write = true;
        return 0;
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_CLIENT_HELLO_CB:
        return 0;
    default:
        return -1;
    }
}

static bool advance_upstream(struct connection *connection) {
    int result = 1;

    if (connection->is_tls_upstream && connection->failure == NULL) {
        if (connection->upstream.ssl == NULL && !begin_upstream_tls(connection))
            return false;
        result = handshake(&connection->upstream);
        if (result < 0)
            describe_failure(connection);
    }
    if (result == 0)
        return true;
    if (!choose_protocol(connection))
        return false;
    connection->step = connection->guest.ssl != NULL ? CONNECTION_GUEST : CONNECTION_OPEN;
    return true;
}

static void open_connection(struct connection *connection) {
    connection->step = CONNECTION_OPEN;
    connection->active_ns = clock_now_ns();
    arm(connection);
}

/* false: the connection cannot go further. */
static bool advance_handshakes(struct connection *connection) {
    int result;

    if (connection->step == CONNECTION_HELLO) {
        result = handshake(&connection->guest);
        if (result != 0 || connection->step == CONNECTION_HELLO)
            return result == 0;
    }
    if (connection->step == CONNECTION_UPSTREAM && !advance_upstream(connection))
        return false;
    if (connection->step == CONNECTION_GUEST) {
        result = handshake(&connection->guest);
        if (result < 0)
            return false;
        if (result > 0)
            open_connection(connection);
    }
    return true;
}

/* A reset of the server's is no end of an answer that lasts until the connection closes. */
static void pass_upstream_eof(struct connection *connection) {
    struct http_relay *relay = &connection->relay;

    if (relay->state == HTTP_RELAY_BUSY || relay->state == HTTP_RELAY_TUNNEL)
        tape_server_end(&connection->tape);
    if (connection->upstream.state == SIDE_BROKEN && relay->state == HTTP_RELAY_BUSY &&
        relay->has_answer && relay->down.framing == HTTP_UNTIL_CLOSE)
        relay->state = HTTP_RELAY_CUT;
    else
        http_relay_upstream_eof(relay, &connection->guest.out);
}

/* The recording is the server. */
static bool read_tape(struct connection *connection) {
    struct side *upstream = &connection->upstream;
    struct http_relay *relay = &connection->relay;
    struct tape *tape = &connection->tape;
    bool has_ended = false, any = false;

    if (tape->state == TAPE_MISS && relay->state == HTTP_RELAY_BUSY) {
        http_relay_refuse(relay, 502, "replay_miss", REPLAY_MISS_TEXT, &connection->guest.out);
        return true;
    }
    if (tape->state == TAPE_ANSWER)
        any = tape_read(tape, &upstream->in, SIDE_IN, &has_ended);
    if (has_ended)
        upstream->state = SIDE_EOF;
    if (tape->state != TAPE_MISS)
        return any;
    events_add(&connection->gateway->events, &connection->place, "limit", NULL, 0, "replay_miss");
    relay->state = HTTP_RELAY_CUT;
    return true;
}

static bool advance_http1_guest(struct connection *connection) {
    struct side *guest = &connection->guest, *upstream = &connection->upstream;
    struct http_relay *relay = &connection->relay;
    bool any = false;
    size_t n;

    if (side_unsent(upstream) >= SIDE_OUT || relay->state >= HTTP_RELAY_ENDED)
        return false;
    any |= side_read(guest);
    n = http_relay_guest(relay, guest->in.data, guest->in.length, &upstream->out, &guest->out);
    side_consume(guest, n);
    if (guest->state == SIDE_OPEN || n > 0 || connection->guest_eof_passed)
        return any || n > 0;
    /* Bytes behind the current request are read after the request has its answer. */
    if (guest->in.length > 0 && relay->state == HTTP_RELAY_BUSY && relay->up.is_done)
        return any;
    connection->guest_eof_passed = true;
    http_relay_guest_eof(relay);
    return true;
}

static bool advance_http1_upstream(struct connection *connection) {
    struct side *guest = &connection->guest, *upstream = &connection->upstream;
    struct http_relay *relay = &connection->relay;
    bool any = false;
    size_t n;

    if (side_unsent(guest) >= SIDE_OUT || relay->state >= HTTP_RELAY_ENDED)
        return false;
    /* With a failure, each request is refused, and the relay does not ask the server. */
    if (connection->failure != NULL)
        return false;
    any |= connection->box->recording != NULL ? read_tape(connection) : side_read(upstream);
    if (relay->state >= HTTP_RELAY_ENDED)
        return any;
    n = http_relay_upstream(relay, upstream->in.data, upstream->in.length, &guest->out);
    side_consume(upstream, n);
    if (upstream->state != SIDE_OPEN && n == 0) {
        pass_upstream_eof(connection);
        return true;
    }
    return any || n > 0;
}

/* A guest's half of a tunnel may end before the server's. */
static void end_tunnel_half(struct connection *connection) {
    if (connection->relay.state == HTTP_RELAY_TUNNEL && connection->guest_eof_passed &&
        side_unsent(&connection->upstream) == 0 && !connection->upstream.cannot_send) {
        connection->upstream.cannot_send = true;
        side_shutdown(&connection->upstream, true);
    }
}

static bool is_failed(const struct side *side) {
    return buf_failed(&side->in) || buf_failed(&side->out);
}

/* The time that these bytes take at net_max_rate. */
static void pause_for(struct tls_box *box, uint64_t bytes) {
    uint64_t rate = box_rules(box)->max_bytes_per_s;
    int64_t now = clock_now_ns();

    if (rate == 0 || bytes == 0)
        return;
    box->paused_ns = MAX(box->paused_ns, now) + (int64_t)((double)bytes / (double)rate * 1e9);
}

/* Counts the bytes. Is a limit exceeded? */
static bool count_bytes(struct connection *connection) {
    struct tls_box *box = connection->box;
    const struct net_rules *rules = box_rules(box);
    uint64_t up = connection->guest.received, down = connection->guest.written;

    if (up != connection->counted_up || down != connection->counted_down)
        connection->active_ns = clock_now_ns();
    pause_for(box, up - connection->counted_up + down - connection->counted_down);
    box->up += up - connection->counted_up;
    box->down += down - connection->counted_down;
    connection->counted_up = up;
    connection->counted_down = down;
    return (rules->max_upload_bytes > 0 && box->up > rules->max_upload_bytes) ||
           (rules->max_download_bytes > 0 && box->down > rules->max_download_bytes);
}

/* Runs until nothing moves or others should have their turn. Is there more to do? */
static bool advance_open(struct connection *connection) {
    for (unsigned i = 0; i < ROUNDS; i++) {
        bool any = side_write(&connection->guest) | side_write(&connection->upstream);

        if (connection->h2 != NULL)
            any |= h2_advance(connection->h2);
        else
            any |= advance_http1_guest(connection) | advance_http1_upstream(connection);
        if (!any)
            return false;
    }
    return true;
}

static bool is_over(const struct connection *connection) {
    if (connection->h2 != NULL)
        return h2_is_over(connection->h2);
    return connection->relay.state == HTTP_RELAY_ENDED;
}

/* Everything is dropped and the guest's connection reset? */
static bool is_cut(const struct connection *connection) {
    if (is_failed(&connection->guest) || is_failed(&connection->upstream))
        return true;
    if (connection->guest.cannot_send || connection->guest.state == SIDE_BROKEN)
        return true;
    return connection->h2 == NULL && connection->relay.state == HTTP_RELAY_CUT;
}

static void on_guest(struct loop_source *source, uint32_t events) {
    (void)events;
    advance(container_of(source, struct connection, guest.source));
}

static void on_upstream(struct loop_source *source, uint32_t events) {
    (void)events;
    advance(container_of(source, struct connection, upstream.source));
}

/* A source with nothing to wait for is taken out: its end would wake the loop again and again. */
static int await(struct connection *connection, struct side *side, uint32_t events,
    void (*callback)(struct loop_source *, uint32_t)) {
    struct loop *loop = connection->gateway->loop;

    if (events == 0 || side->fd < 0) {
        loop_remove(loop, &side->source);
        return 0;
    }
    if (side->source.fd < 0)
        return loop_add(loop, &side->source, side->fd, events, callback);
    return loop_modify(loop, &side->source, events);
}

static uint32_t wanted(const struct side *side, bool reads) {
    uint32_t events = reads && side->state == SIDE_OPEN ? EPOLLIN : 0;

    if (side->wants_write || (side_unsent(side) > 0 && !side->cannot_send))
        events |= EPOLLOUT;
    return events;
}

static int await_both(struct connection *connection) {
    const struct side *guest = &connection->guest, *upstream = &connection->upstream;
    bool reads_guest = connection->step != CONNECTION_UPSTREAM, reads_upstream = false;
    int result;

    if (connection->is_paused && connection->step == CONNECTION_OPEN) {
        (void)await(connection, &connection->guest, 0, on_guest);
        return await(connection, &connection->upstream, 0, on_upstream);
    }
    if (connection->step == CONNECTION_UPSTREAM)
        reads_upstream = true;
    else if (connection->step == CONNECTION_OPEN) {
        reads_guest = guest->in.length < SIDE_IN && side_unsent(upstream) < SIDE_OUT;
        reads_upstream = upstream->in.length < SIDE_IN && side_unsent(guest) < SIDE_OUT;
    }
    result = await(connection, &connection->guest, wanted(guest, reads_guest), on_guest);
    if (result == 0)
        result =
            await(connection, &connection->upstream, wanted(upstream, reads_upstream), on_upstream);
    return result;
}

/* Reads and drops further bytes of the guest: closing with unread input would make the kernel
 * discard the unread response. */
static bool drain(struct connection *connection) {
    struct side *guest = &connection->guest;

    side_consume(guest, guest->in.length);
    while (side_read(guest) && guest->state == SIDE_OPEN)
        side_consume(guest, guest->in.length);
    return guest->state == SIDE_OPEN && guest->received < connection->counted_up + DRAIN_BYTES;
}

static void on_task(struct loop_task *task) {
    advance(container_of(task, struct connection, task));
}

/* Between requests nothing has to be cut: the next one is refused. */
static bool is_exchanging(const struct connection *connection) {
    if (connection->h2 != NULL)
        return h2_is_exchanging(connection->h2);
    return connection->relay.state == HTTP_RELAY_BUSY ||
           connection->relay.state == HTTP_RELAY_TUNNEL;
}

static void on_pause(struct loop_timer *timer) {
    struct connection *connection = container_of(timer, struct connection, pause);

    connection->active_ns = clock_now_ns();
    advance(connection);
}

/* Has the sandbox to wait for its rate? A tenth of a second is not worth a timer. */
static bool pause_connection(struct connection *connection) {
    struct tls_box *box = connection->box;

    connection->is_paused =
        box_rules(box)->max_bytes_per_s > 0 && box->paused_ns > clock_now_ns() + SECOND_NS / 10;
    if (connection->is_paused)
        (void)loop_timer_set(connection->gateway->loop, &connection->pause,
            box->paused_ns - SECOND_NS / 20, on_pause);
    return connection->is_paused;
}

/* The open step. false: the connection has to be freed. */
static bool advance_http(struct connection *connection) {
    bool has_more;

    if (pause_connection(connection))
        return true;
    has_more = advance_open(connection);

    end_tunnel_half(connection);
    if (count_bytes(connection) && is_exchanging(connection)) {
        if (connection->h2 != NULL || connection->relay.state == HTTP_RELAY_TUNNEL) {
            events_add(
                &connection->gateway->events, &connection->place, "limit", NULL, 0, "limit_bytes");
            return false;
        }
        http_relay_refuse(&connection->relay, 429, "limit_bytes",
            "rollbox: the sandbox has used up net_max_upload or net_max_download",
            &connection->guest.out);
        has_more = true;
    }
    if (is_cut(connection))
        return false;
    if (is_over(connection)) {
        (void)side_write(&connection->guest);
        if (side_unsent(&connection->guest) == 0)
            begin_drain(connection);
    } else if (has_more)
        loop_defer(connection->gateway->loop, &connection->task, on_task);
    return true;
}

static void advance(struct connection *connection) {
    bool lives = true;

    if (connection->step < CONNECTION_OPEN)
        lives = advance_handshakes(connection);
    if (lives && connection->step == CONNECTION_OPEN)
        lives = advance_http(connection);
    if (lives && connection->step == CONNECTION_DRAIN)
        lives = drain(connection);
    ruling_done(&current);
    if (!lives || await_both(connection) < 0)
        connection_free(connection);
}

static int set_non_blocking(int fd) {
    int flags = fcntl(fd, F_GETFL);

    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
}

static int begin_guest_tls(struct connection *connection) {
    SSL_CTX *context = ca_context(connection->gateway->ca, connection->place.name, setup_server);
    SSL *ssl = context != NULL ? SSL_new(context) : NULL;

    connection->guest.ssl = ssl;
    if (ssl == NULL || SSL_set_fd(ssl, connection->guest.fd) != 1)
        return -ENOMEM;
    (void)SSL_set_app_data(ssl, connection);
    SSL_set_accept_state(ssl);
    return 0;
}

/* The rule of a connection to a host's name, or to an address. */
static long find_rule(const struct net_rules *rules, const struct event_place *place) {
    struct address address;
    enum net_why why;

    if (address_parse(place->name, &address) == 0)
        return match_literal(rules, &address, place->port, false, &why);
    return match_connection(rules, place->name, place->port, false, &why);
}

/* Sets the rule from the rules that are here. rollbox-egress may have other rules for a moment, and
 * a number of theirs could mean another host's rule, with its secrets. false: none reads requests
 * to this host. */
static bool choose_rule(struct connection *connection) {
    struct event_place *place = &connection->place;
    const struct net_rules *rules = box_rules(connection->box);
    long rule = find_rule(rules, place);

    if (rule < 0 || (match_tls(rules, (size_t)rule, place->port, false) != NET_TLS_TERMINATE &&
                        !box_is_taped(connection->box)))
        return false;
    place->rule = (size_t)rule;
    return true;
}

static const struct net_rule *rule_of(const struct connection *connection) {
    return &box_rules(connection->box)->items[connection->place.rule];
}

/* rollbox-egress has checked the address that it connected to. Does the present rule lead there as
 * well? An address of the host's own is both ends of the connection. */
static bool leads_there(const struct connection *connection) {
    const struct net_rule *rule = rule_of(connection);
    struct sockaddr_storage names[2] = { 0 };
    struct address addresses[2];
    socklen_t lengths[2] = { sizeof names[0], sizeof names[1] };
    uint16_t port;

    if (!net_target_is_same(connection->has_to ? &connection->to : NULL, rule->to))
        return false;
    if (rule->to != NULL || rule->allows_private || !connection->may_be_private)
        return true;
    if (getpeername(connection->upstream.fd, (void *)&names[0], &lengths[0]) < 0)
        return errno == ENOTCONN; /* it is being opened, or has ended */
    if (getsockname(connection->upstream.fd, (void *)&names[1], &lengths[1]) < 0)
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (address_of_socket(&names[i], &addresses[i], &port) < 0)
            return false;
    return address_is_public(&addresses[0], &addresses[1], 1);
}

static int start(struct connection *connection, const struct event_place *place, bool is_tls) {
    int result;

    connection->place.box = strdup(place->box);
    connection->place.name = strdup(place->name);
    if (connection->place.box == NULL || connection->place.name == NULL)
        return -ENOMEM;
    if (!choose_rule(connection))
        return -EACCES;
    const struct net_target *to = rule_of(connection)->to;
    connection->has_to = to != NULL;
    connection->may_be_private = rule_of(connection)->allows_private;
    if (to != NULL)
        connection->to = *to;
    http_relay_init(&connection->relay, &relay_calls, connection->place.name, place->port);
    result = set_non_blocking(connection->guest.fd);
    if (result == 0 && connection->upstream.fd >= 0)
        result = set_non_blocking(connection->upstream.fd);
    if (result == 0 && is_tls)
        result = begin_guest_tls(connection);
    return result;
}

int connection_new(struct gateway *gateway, struct tls_box *box, const struct event_place *place,
    bool is_tls, bool to_is_plain, int take_guest, int take_upstream) {
    struct connection *connection = calloc(1, sizeof *connection);
    int result;

    if (connection == NULL) {
        close_fd(&take_guest);
        close_fd(&take_upstream);
        return -ENOMEM;
    }
    list_init(&connection->node);
    list_init(&connection->task.node);
    connection->gateway = gateway;
    connection->box = box;
    connection->place = *place;
    connection->exchange.rule = -1;
    connection->is_tls_upstream = is_tls && !to_is_plain && take_upstream >= 0;
    connection->step = is_tls ? CONNECTION_HELLO : CONNECTION_UPSTREAM;
    connection->begun_ns = connection->active_ns = clock_now_ns();
    side_init(&connection->guest, take_guest, NULL);
    side_init(&connection->upstream, take_upstream, NULL);
    connection->upstream.cannot_send = take_upstream < 0; /* a recording answers */
    list_add_tail(&box->connections, &connection->node);
    result = start(connection, place, is_tls);
    if (result < 0) {
        connection_free(connection);
        return result;
    }
    arm(connection);
    advance(connection);
    return 0;
}

void connection_check_rules(struct connection *connection) {
    if (!choose_rule(connection) || !leads_there(connection))
        connection_free(connection);
}
