/* SPDX-License-Identifier: Apache-2.0 */
#include "egress_tls/h2.h"

#include <ctype.h>
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/text.h"

#define MAX_STREAMS 100
#define STREAM_WINDOW (256u << 10)
#define CONNECTION_WINDOW (1u << 20)
#define MAX_FIELDS 200
/* A few bytes on the wire can stand for a head of 64 KiB (RFC 7541), and heads are copied into the
 * queue of the other side. So the heads of all streams of a connection are bounded together, and so
 * are the streams that the guest has given up while the server has not. */
#define MAX_HEAD_BYTES (1u << 20)
#define MAX_LIVE_STREAMS (2 * MAX_STREAMS)
#define MAX_INTERIM 8
#define MAX_INTERIM_BYTES 8192u

/* Header fields as they arrive: their texts in one buffer, since that moves while it grows. */
struct fields {
    struct buf text;
    struct field {
        uint32_t name, value; /* places in `text`; each text ends with a NUL */
        uint32_t name_length, value_length;
        bool is_secret; /* must not stay in the tables of header compression */
    } items[MAX_FIELDS];
    size_t n;
};

struct stream {
    struct list node;
    struct h2 *h2;
    int32_t guest_id, upstream_id; /* -1: closed, or not begun */
    struct fields *arriving;       /* a head that is not complete */
    struct fields *trailers;       /* of the answer */
    struct buf up, down;           /* content that waits */
    size_t up_sent, down_sent;
    bool up_eof, down_eof, has_answer;
    unsigned status, n_interim;
    size_t head_bytes; /* of its heads that were passed on */
    struct exchange exchange;
};

struct h2 {
    struct connection *connection;
    nghttp2_session *guest, *upstream;
    struct list streams;
    size_t n_streams, head_bytes; /* the latter of all streams */
    bool is_failed;               /* a session cannot continue */
    bool upstream_is_gone;        /* no stream can begin */
};

static void fields_reset(struct fields **fields) {
    if (*fields == NULL)
        return;
    if ((*fields)->text.data != NULL)
        explicit_bzero((*fields)->text.data, (*fields)->text.capacity);
    buf_done(&(*fields)->text);
    free(*fields);
    *fields = NULL;
}

/* -1: too many, or out of memory. */
static int fields_add(
    struct fields **to, struct http_text name, struct http_text value, bool is_secret) {
    struct fields *fields = *to;
    struct field *field;

    if (fields == NULL)
        fields = *to = calloc(1, sizeof *fields);
    if (fields == NULL || fields->n == MAX_FIELDS)
        return -1;
    if (fields->text.length + name.length + value.length + 2 > HTTP_MAX_HEAD)
        return -1;
    field = &fields->items[fields->n++];
    *field = (struct field){ .name = (uint32_t)fields->text.length,
        .value = (uint32_t)(fields->text.length + name.length + 1),
        .name_length = (uint32_t)name.length,
        .value_length = (uint32_t)value.length,
        .is_secret = is_secret };
    buf_add(&fields->text, name.text, name.length);
    buf_add(&fields->text, "", 1);
    buf_add(&fields->text, value.text, value.length);
    buf_add(&fields->text, "", 1);
    return buf_failed(&fields->text) ? -1 : 0;
}

static int add_text(struct fields **to, const char *name, const char *value) {
    return fields_add(to, (struct http_text){ name, strlen(name) },
        (struct http_text){ value, strlen(value) }, false);
}

static struct http_text field_name(const struct fields *fields, size_t i) {
    return (struct http_text){ fields->text.data + fields->items[i].name,
        fields->items[i].name_length };
}

static struct http_text field_value(const struct fields *fields, size_t i) {
    return (struct http_text){ fields->text.data + fields->items[i].value,
        fields->items[i].value_length };
}

/* The one field of that name; an empty text: none. `ret_n` counts them. */
static struct http_text find(const struct fields *fields, const char *name, size_t *ret_n) {
    struct http_text found = { "", 0 };

    *ret_n = 0;
    for (size_t i = 0; i < fields->n; i++) {
        if (!http_text_is(field_name(fields, i), name))
            continue;
        found = field_value(fields, i);
        (*ret_n)++;
    }
    return found;
}

static size_t make_nv(const struct fields *fields, nghttp2_nv *to) {
    for (size_t i = 0; i < fields->n; i++)
        to[i] = (nghttp2_nv){ (uint8_t *)(uintptr_t)field_name(fields, i).text,
            (uint8_t *)(uintptr_t)field_value(fields, i).text, fields->items[i].name_length,
            fields->items[i].value_length,
            fields->items[i].is_secret ? NGHTTP2_NV_FLAG_NO_INDEX : NGHTTP2_NV_FLAG_NONE };
    return fields->n;
}

static struct stream *stream_of(nghttp2_session *session, int32_t id) {
    return nghttp2_session_get_stream_user_data(session, id);
}

/* Opens the window again, for bytes that were passed on or dropped. */
static void consume(nghttp2_session *session, int32_t id, size_t length) {
    if (length == 0)
        return;
    if (id > 0)
        (void)nghttp2_session_consume(session, id, length);
    else
        (void)nghttp2_session_consume_connection(session, length);
}

static void stream_free(struct stream *stream) {
    struct h2 *h2 = stream->h2;

    if (h2->guest != NULL)
        consume(h2->guest, -1, stream->up.length - stream->up_sent);
    if (h2->upstream != NULL)
        consume(h2->upstream, -1,
            stream->upstream_id != 0 ? stream->down.length - stream->down_sent : 0);
    list_remove(&stream->node);
    h2->n_streams--;
    h2->head_bytes -= stream->head_bytes;
    fields_reset(&stream->arriving);
    fields_reset(&stream->trailers);
    buf_done(&stream->up);
    buf_done(&stream->down);
    exchange_done(&stream->exchange);
    free(stream);
}

static void drop_up(struct stream *stream) {
    consume(stream->h2->guest, stream->guest_id, stream->up.length - stream->up_sent);
    stream->up.length = stream->up_sent = 0;
}

static void add_event(struct stream *stream, const char *event, unsigned status, const char *why) {
    struct connection *connection = stream->h2->connection;

    events_add(
        &connection->gateway->events, &connection->place, event, &stream->exchange, status, why);
}

/* Takes what waits in `from`, for the other session. */
static ssize_t take(struct buf *from, size_t *sent, uint8_t *to, size_t length) {
    size_t n = MIN(length, from->length - *sent);

    if (n == 0)
        return 0;
    memcpy(to, from->data + *sent, n);
    *sent += n;
    if (*sent == from->length)
        *sent = from->length = 0;
    return (ssize_t)n;
}

static ssize_t read_up(nghttp2_session *session, int32_t id, uint8_t *to, size_t length,
    uint32_t *flags, nghttp2_data_source *source, void *context) {
    struct stream *stream = source->ptr;
    ssize_t n = take(&stream->up, &stream->up_sent, to, length);

    (void)session;
    (void)id;
    (void)context;
    consume(stream->h2->guest, stream->guest_id, (size_t)n);
    if (stream->up.length == 0 && stream->up_eof)
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    else if (n == 0)
        return NGHTTP2_ERR_DEFERRED;
    return n;
}

static ssize_t read_down(nghttp2_session *session, int32_t id, uint8_t *to, size_t length,
    uint32_t *flags, nghttp2_data_source *source, void *context) {
    struct stream *stream = source->ptr;
    ssize_t n = take(&stream->down, &stream->down_sent, to, length);

    (void)context;
    stream->exchange.down += (size_t)n;
    if (stream->upstream_id != 0 && stream->h2->upstream != NULL)
        consume(stream->h2->upstream, stream->upstream_id, (size_t)n);
    if (stream->down.length > 0 || !stream->down_eof)
        return n > 0 ? n : NGHTTP2_ERR_DEFERRED;
    *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (stream->trailers != NULL) {
        nghttp2_nv nv[MAX_FIELDS];
        size_t n_nv = make_nv(stream->trailers, nv);

        *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
        if (nghttp2_submit_trailer(session, id, nv, n_nv) != 0)
            return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        fields_reset(&stream->trailers);
    }
    return n;
}

/* False: the connection holds as much of heads as it may. */
static bool count_head(struct stream *stream, const struct fields *fields) {
    struct h2 *h2 = stream->h2;
    size_t bytes = fields->text.length;

    if (h2->head_bytes + bytes > MAX_HEAD_BYTES)
        return false;
    h2->head_bytes += bytes;
    stream->head_bytes += bytes;
    return true;
}

static void reset_guest(struct stream *stream, uint32_t error) {
    if (stream->guest_id > 0)
        (void)nghttp2_submit_rst_stream(
            stream->h2->guest, NGHTTP2_FLAG_NONE, stream->guest_id, error);
}

static void reset_upstream(struct stream *stream) {
    if (stream->upstream_id > 0)
        (void)nghttp2_submit_rst_stream(
            stream->h2->upstream, NGHTTP2_FLAG_NONE, stream->upstream_id, NGHTTP2_CANCEL);
}

static int submit_answer(struct stream *stream, const struct fields *fields, bool has_body) {
    nghttp2_data_provider provider = { .source.ptr = stream, .read_callback = read_down };
    nghttp2_nv nv[MAX_FIELDS];
    size_t n = make_nv(fields, nv);

    stream->has_answer = true;
    return nghttp2_submit_response(
        stream->h2->guest, stream->guest_id, nv, n, has_body ? &provider : NULL);
}

/* A complete answer of the gateway. */
static void refuse(struct stream *stream, unsigned status, const char *why, const char *text) {
    struct fields *fields = NULL;
    char number[12], length[24];

    if (stream->guest_id <= 0)
        return;
    add_event(stream, "http-refused", status, why);
    if (stream->has_answer) {
        reset_guest(stream, NGHTTP2_INTERNAL_ERROR);
        return;
    }
    drop_up(stream);
    snprintf(number, sizeof number, "%u", status);
    snprintf(length, sizeof length, "%zu", strlen(text) + 1);
    stream->status = 0;
    stream->down_eof = true;
    buf_printf(&stream->down, "%s\n", text);
    if (add_text(&fields, ":status", number) < 0 ||
        add_text(&fields, "content-type", "text/plain; charset=utf-8") < 0 ||
        add_text(&fields, "content-length", length) < 0 ||
        add_text(&fields, "rollbox-refused", why) < 0 || submit_answer(stream, fields, true) != 0)
        reset_guest(stream, NGHTTP2_INTERNAL_ERROR);
    fields_reset(&fields);
}

/* Why the request's form is refused, or NULL. nghttp2 has checked the fields' syntax. */
static const char *check_form(const struct fields *fields, struct http_text *ret_host) {
    size_t n_authority, n_host, n;
    struct http_text authority = find(fields, ":authority", &n_authority);
    struct http_text host = find(fields, "host", &n_host), path = find(fields, ":path", &n);
    struct http_text method = find(fields, ":method", &n);

    if (http_text_is(method, "CONNECT"))
        return "the gateway is not a proxy: CONNECT is refused";
    if (path.length > HTTP_MAX_TARGET)
        return "its path is too long";
    if (path.length == 0 || (*path.text != '/' && !http_text_is(path, "*")))
        return "its path does not begin with '/'";
    for (size_t i = 0; i < path.length; i++)
        if (path.text[i] <= ' ' || path.text[i] > '~' || path.text[i] == '#')
            return "its path has a character that is not allowed";
    if (n_host > 1 || n_host + n_authority == 0)
        return "it has not exactly one host";
    if (n_host == 1 && n_authority == 1 &&
        (host.length != authority.length || memcmp(host.text, authority.text, host.length) != 0))
        return "its Host is not its authority";
    *ret_host = n_authority == 1 ? authority : host;
    return NULL;
}

static bool is_replaced(const struct ruling *ruling, struct http_text name) {
    for (size_t i = 0; i < ruling->n_set; i++)
        if (ruling->set[i].name.length == name.length &&
            strncasecmp(ruling->set[i].name.text, name.text, name.length) == 0)
            return true;
    return false;
}

/* The guest's fields for the server, with those that the rule sets. */
static int change_fields(
    const struct fields *from, const struct ruling *ruling, struct fields **ret) {
    for (size_t i = 0; i < from->n; i++)
        if (!is_replaced(ruling, field_name(from, i)) &&
            fields_add(ret, field_name(from, i), field_value(from, i), false) < 0)
            return -1;
    for (size_t i = 0; i < ruling->n_set; i++) {
        auto_free char *name = text_copy(ruling->set[i].name.text, ruling->set[i].name.length);

        for (char *c = name; c != NULL && *c != 0; c++)
            *c = (char)tolower((unsigned char)*c);
        if (name == NULL || fields_add(ret, (struct http_text){ name, strlen(name) },
                                ruling->set[i].value, true) < 0)
            return -1;
    }
    return 0;
}

static int submit_request(struct stream *stream, const struct ruling *ruling) {
    struct h2 *h2 = stream->h2;
    nghttp2_data_provider provider = { .source.ptr = stream, .read_callback = read_up };
    nghttp2_nv nv[MAX_FIELDS];
    struct fields *fields = NULL;
    int32_t id = -1;

    if (change_fields(stream->arriving, ruling, &fields) == 0)
        id = nghttp2_submit_request(
            h2->upstream, NULL, nv, make_nv(fields, nv), stream->up_eof ? NULL : &provider, stream);
    fields_reset(&fields);
    if (id <= 0)
        return -1;
    stream->upstream_id = id;
    if (ruling->n_set > 0)
        add_event(stream, "injected", 0, NULL);
    return 0;
}

static void decide(struct stream *stream) {
    struct connection *connection = stream->h2->connection;
    const struct event_place *place = &connection->place;
    const struct fields *fields = stream->arriving;
    struct http_text host = { "", 0 };
    struct ruling ruling;
    const char *bad;
    char text[160];
    size_t n;

    bad = fields != NULL ? check_form(fields, &host) : "it has no headers";
    if (bad != NULL) {
        snprintf(text, sizeof text, "rollbox: the request is refused: %s", bad);
        refuse(stream, 400, "bad_request", text);
        return;
    }
    exchange_set(&stream->exchange, find(fields, ":method", &n), find(fields, ":path", &n), -1);
    if (!http_host_is(host, place->name, place->port)) {
        refuse(stream, 403, "host_other",
            "rollbox: the request's host is not the host of its connection");
        return;
    }
    box_rule_on(connection->box, place->rule, place->name, place->port, find(fields, ":method", &n),
        find(fields, ":path", &n), &ruling);
    stream->exchange.rule = ruling.rule;
    if (ruling.status != 0)
        refuse(stream, ruling.status, ruling.why, ruling.text);
    else if (!count_head(stream, fields))
        refuse(stream, 431, "bad_request",
            "rollbox: the headers of this connection's requests are too large together");
    else if (connection->failure != NULL)
        refuse(stream, 502, connection->failure, connection->failure_text);
    else if (stream->h2->upstream_is_gone || submit_request(stream, &ruling) < 0)
        refuse(stream, 502, "upstream_closed", "rollbox: the server takes no more requests");
    ruling_done(&ruling);
}

static void end_request(struct stream *stream) {
    stream->up_eof = true;
    if (stream->upstream_id > 0)
        (void)nghttp2_session_resume_data(stream->h2->upstream, stream->upstream_id);
}

static int guest_begin_headers(
    nghttp2_session *session, const nghttp2_frame *frame, void *context) {
    struct h2 *h2 = context;
    struct stream *stream;

    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    if (h2->n_streams == MAX_LIVE_STREAMS)
        return NGHTTP2_ERR_CALLBACK_FAILURE; /* the connection ends */
    stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    stream->h2 = h2;
    stream->guest_id = frame->hd.stream_id;
    stream->exchange.rule = -1;
    list_init(&stream->node);
    list_add_tail(&h2->streams, &stream->node);
    h2->n_streams++;
    return nghttp2_session_set_stream_user_data(session, stream->guest_id, stream);
}

static int guest_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
    size_t name_length, const uint8_t *value, size_t value_length, uint8_t flags, void *context) {
    struct stream *stream = stream_of(session, frame->hd.stream_id);

    (void)flags;
    (void)context;
    /* Trailers of requests are dropped: no rule has seen them. */
    if (stream == NULL || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    if (fields_add(&stream->arriving, (struct http_text){ (const char *)name, name_length },
            (struct http_text){ (const char *)value, value_length }, false) < 0)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    return 0;
}

static int guest_frame(nghttp2_session *session, const nghttp2_frame *frame, void *context) {
    struct stream *stream = stream_of(session, frame->hd.stream_id);
    bool ends = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;

    (void)context;
    if (stream == NULL)
        return 0;
    if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
        stream->up_eof = ends;
        decide(stream);
        fields_reset(&stream->arriving);
    } else if (ends && (frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS))
        end_request(stream);
    return 0;
}

static int guest_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
    size_t length, void *context) {
    struct stream *stream = stream_of(session, id);

    (void)flags;
    (void)context;
    if (stream == NULL || stream->upstream_id <= 0) {
        consume(session, id, length);
        return 0;
    }
    stream->exchange.up += length;
    buf_add(&stream->up, data, length);
    if (buf_failed(&stream->up))
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    (void)nghttp2_session_resume_data(stream->h2->upstream, stream->upstream_id);
    return 0;
}

static int guest_close(nghttp2_session *session, int32_t id, uint32_t error, void *context) {
    struct stream *stream = stream_of(session, id);

    (void)error;
    (void)context;
    if (stream == NULL)
        return 0;
    stream->guest_id = -1;
    if (stream->status > 0)
        add_event(stream, "http", stream->status, NULL);
    if (stream->upstream_id > 0)
        reset_upstream(stream);
    else
        stream_free(stream);
    return 0;
}

static int upstream_header(nghttp2_session *session, const nghttp2_frame *frame,
    const uint8_t *name, size_t name_length, const uint8_t *value, size_t value_length,
    uint8_t flags, void *context) {
    struct stream *stream = stream_of(session, frame->hd.stream_id);

    (void)flags;
    (void)context;
    if (stream == NULL || frame->hd.type != NGHTTP2_HEADERS)
        return 0;
    if (fields_add(&stream->arriving, (struct http_text){ (const char *)name, name_length },
            (struct http_text){ (const char *)value, value_length }, false) < 0)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    return 0;
}

/* Answers such as 103 come before the final one. Too many of them are dropped. */
static void pass_interim(struct stream *stream) {
    nghttp2_nv nv[MAX_FIELDS];

    if (stream->n_interim == MAX_INTERIM || stream->arriving->text.length > MAX_INTERIM_BYTES)
        return;
    stream->n_interim++;
    if (count_head(stream, stream->arriving))
        (void)nghttp2_submit_headers(stream->h2->guest, NGHTTP2_FLAG_NONE, stream->guest_id, NULL,
            nv, make_nv(stream->arriving, nv), NULL);
}

/* The server's heads are too large together: the stream ends. */
static void give_up(struct stream *stream) {
    fields_reset(&stream->arriving);
    reset_guest(stream, NGHTTP2_ENHANCE_YOUR_CALM);
}

static void pass_head(struct stream *stream, bool ends) {
    size_t n;
    struct http_text status;

    if (stream->arriving == NULL || stream->guest_id <= 0)
        return;
    if (stream->has_answer) {
        fields_reset(&stream->trailers);
        if (!count_head(stream, stream->arriving))
            give_up(stream);
        else
            stream->trailers = TAKE_PTR(stream->arriving);
        return;
    }
    status = find(stream->arriving, ":status", &n);
    if (status.length == 3 && *status.text == '1')
        pass_interim(stream);
    else if (!count_head(stream, stream->arriving))
        give_up(stream);
    else {
        stream->status = (unsigned)strtoul(status.text, NULL, 10);
        if (submit_answer(stream, stream->arriving, !ends) != 0)
            reset_guest(stream, NGHTTP2_INTERNAL_ERROR);
    }
    fields_reset(&stream->arriving);
}

static void end_answer(struct stream *stream) {
    stream->down_eof = true;
    if (stream->guest_id > 0)
        (void)nghttp2_session_resume_data(stream->h2->guest, stream->guest_id);
}

/* The server begins no more streams: the guest has to open another connection. */
static void end_guest(struct h2 *h2) {
    if (h2->upstream_is_gone)
        return;
    h2->upstream_is_gone = true;
    (void)nghttp2_submit_goaway(h2->guest, NGHTTP2_FLAG_NONE,
        nghttp2_session_get_last_proc_stream_id(h2->guest), NGHTTP2_NO_ERROR, NULL, 0);
}

static int upstream_frame(nghttp2_session *session, const nghttp2_frame *frame, void *context) {
    struct stream *stream = stream_of(session, frame->hd.stream_id);
    bool ends = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;

    if (frame->hd.type == NGHTTP2_GOAWAY)
        end_guest(context);
    if (stream == NULL || (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA))
        return 0;
    if (frame->hd.type == NGHTTP2_HEADERS)
        pass_head(stream, ends);
    if (ends)
        end_answer(stream);
    return 0;
}

static int upstream_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
    size_t length, void *context) {
    struct stream *stream = stream_of(session, id);

    (void)flags;
    (void)context;
    if (stream == NULL || stream->guest_id <= 0) {
        consume(session, id, length);
        return 0;
    }
    buf_add(&stream->down, data, length);
    if (buf_failed(&stream->down))
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    (void)nghttp2_session_resume_data(stream->h2->guest, stream->guest_id);
    return 0;
}

static int upstream_close(nghttp2_session *session, int32_t id, uint32_t error, void *context) {
    struct stream *stream = stream_of(session, id);

    (void)context;
    if (stream == NULL)
        return 0;
    stream->upstream_id = -1;
    fields_reset(&stream->arriving);
    if (stream->guest_id <= 0) {
        stream_free(stream);
        return 0;
    }
    drop_up(stream);
    if (stream->down_eof)
        return 0;
    if (stream->has_answer)
        reset_guest(stream, error != NGHTTP2_NO_ERROR ? error : NGHTTP2_INTERNAL_ERROR);
    else
        refuse(stream, 502, "upstream_closed", "rollbox: the server ended the request");
    return 0;
}

/* nghttp2's own limits of control frames hold besides. */
static int make_session(struct h2 *h2, bool is_server, nghttp2_session **ret) {
    nghttp2_session_callbacks *calls = NULL;
    nghttp2_option *option = NULL;
    nghttp2_settings_entry settings[] = {
        { NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW },
        { NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HTTP_MAX_HEAD },
        { NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, MAX_STREAMS },
    };
    int result = -1;

    if (!is_server)
        settings[2] = (nghttp2_settings_entry){ NGHTTP2_SETTINGS_ENABLE_PUSH, 0 };
    if (nghttp2_session_callbacks_new(&calls) == 0 && nghttp2_option_new(&option) == 0) {
        nghttp2_option_set_no_auto_window_update(option, 1);
        if (is_server) {
            nghttp2_session_callbacks_set_on_begin_headers_callback(calls, guest_begin_headers);
            nghttp2_session_callbacks_set_on_header_callback(calls, guest_header);
            nghttp2_session_callbacks_set_on_frame_recv_callback(calls, guest_frame);
            nghttp2_session_callbacks_set_on_data_chunk_recv_callback(calls, guest_data);
            nghttp2_session_callbacks_set_on_stream_close_callback(calls, guest_close);
            result = nghttp2_session_server_new2(ret, calls, h2, option);
        } else {
            nghttp2_session_callbacks_set_on_header_callback(calls, upstream_header);
            nghttp2_session_callbacks_set_on_frame_recv_callback(calls, upstream_frame);
            nghttp2_session_callbacks_set_on_data_chunk_recv_callback(calls, upstream_data);
            nghttp2_session_callbacks_set_on_stream_close_callback(calls, upstream_close);
            result = nghttp2_session_client_new2(ret, calls, h2, option);
        }
    }
    nghttp2_session_callbacks_del(calls);
    nghttp2_option_del(option);
    if (result == 0)
        result = nghttp2_submit_settings(*ret, NGHTTP2_FLAG_NONE, settings, ARRAY_SIZE(settings));
    if (result == 0)
        result =
            nghttp2_session_set_local_window_size(*ret, NGHTTP2_FLAG_NONE, 0, CONNECTION_WINDOW);
    return result;
}

struct h2 *h2_new(struct connection *connection) {
    struct h2 *h2 = calloc(1, sizeof *h2);

    if (h2 == NULL)
        return NULL;
    h2->connection = connection;
    list_init(&h2->streams);
    if (make_session(h2, true, &h2->guest) != 0 || make_session(h2, false, &h2->upstream) != 0)
        return h2_free(h2);
    return h2;
}

struct h2 *h2_free(struct h2 *h2) {
    if (h2 == NULL)
        return NULL;
    /* Callbacks find no streams then. */
    nghttp2_session_del(h2->guest);
    nghttp2_session_del(h2->upstream);
    h2->guest = h2->upstream = NULL;
    while (!list_empty(&h2->streams))
        stream_free(container_of(h2->streams.next, struct stream, node));
    free(h2);
    return NULL;
}

static bool send_frames(nghttp2_session *session, struct side *side) {
    bool any = false;

    while (side_unsent(side) < SIDE_OUT) {
        const uint8_t *data;
        ssize_t n = nghttp2_session_mem_send(session, &data);

        if (n <= 0)
            break;
        buf_add(&side->out, data, (size_t)n);
        any = true;
    }
    return any;
}

/* -1: the session cannot continue. */
static int take_frames(nghttp2_session *session, struct side *side, bool *any) {
    ssize_t n;

    *any |= side_read(side);
    if (side->in.length == 0)
        return 0;
    n = nghttp2_session_mem_recv(session, (const uint8_t *)side->in.data, side->in.length);
    if (n < 0)
        return -1;
    side_consume(side, (size_t)n);
    *any |= n > 0;
    return 0;
}

/* The server's connection is over: streams get an answer that says so, or are reset. */
static void lose_upstream(struct h2 *h2) {
    end_guest(h2);
    list_for_each(node, &h2->streams) {
        struct stream *stream = container_of(node, struct stream, node);

        if (stream->upstream_id <= 0)
            continue;
        (void)nghttp2_session_set_stream_user_data(h2->upstream, stream->upstream_id, NULL);
        stream->upstream_id = -1;
        if (stream->guest_id <= 0)
            stream_free(stream);
        else if (!stream->down_eof)
            refuse(stream, 502, "upstream_closed", "rollbox: the server closed the connection");
    }
    nghttp2_session_del(h2->upstream);
    h2->upstream = NULL;
}

static void advance_upstream(struct h2 *h2, bool *any) {
    struct connection *connection = h2->connection;
    struct side *guest = &connection->guest, *upstream = &connection->upstream;

    if (h2->upstream == NULL || connection->failure != NULL)
        return;
    *any |= send_frames(h2->upstream, upstream);
    if (side_unsent(guest) < SIDE_OUT && side_unsent(upstream) < SIDE_OUT &&
        take_frames(h2->upstream, upstream, any) < 0)
        upstream->state = SIDE_BROKEN;
    if (upstream->state == SIDE_OPEN || (upstream->in.length > 0 && *any))
        return;
    lose_upstream(h2);
    *any = true;
}

bool h2_advance(struct h2 *h2) {
    struct connection *connection = h2->connection;
    struct side *guest = &connection->guest, *upstream = &connection->upstream;
    bool any = false;

    if (h2->is_failed)
        return false;
    if (side_unsent(guest) < SIDE_OUT && side_unsent(upstream) < SIDE_OUT &&
        take_frames(h2->guest, guest, &any) < 0)
        h2->is_failed = true;
    advance_upstream(h2, &any);
    any |= send_frames(h2->guest, guest);
    return any;
}

bool h2_is_over(const struct h2 *h2) {
    if (h2->is_failed || h2->connection->guest.state != SIDE_OPEN)
        return true;
    if (nghttp2_session_want_read(h2->guest) == 0 && nghttp2_session_want_write(h2->guest) == 0)
        return true;
    return h2->upstream_is_gone && list_empty(&h2->streams) &&
           nghttp2_session_want_write(h2->guest) == 0;
}

bool h2_is_exchanging(const struct h2 *h2) {
    list_for_each(node, &h2->streams)
        if (container_of(node, struct stream, node)->upstream_id > 0)
            return true;
    return false;
}
