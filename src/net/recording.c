/* SPDX-License-Identifier: Apache-2.0 */
#include "net/recording.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/utf8.h"

/* ---- reading ---- */

static void recorded_done(struct recorded *recorded) {
    for (size_t i = 0; i < recorded->n_pieces; i++)
        free(recorded->pieces[i].data);
    free(recorded->pieces);
    free(recorded->host);
    free(recorded->method);
    free(recorded->target);
    free(recorded->digest);
}

struct recording *recording_free(struct recording *recording) {
    if (!recording)
        return NULL;
    for (size_t i = 0; i < recording->n; i++)
        recorded_done(&recording->items[i]);
    free(recording->items);
    free(recording);
    return NULL;
}

static const char *text_of(const json_t *line, const char *key) {
    return json_string_value(json_object_get(line, key));
}

/* 1: an exchange was added; 0: the line is skipped; or -ENOMEM. */
static int begin(struct recording *recording, const json_t *line) {
    const char *kind = text_of(line, "begin"), *host = text_of(line, "host");
    const char *method = text_of(line, "method"), *target = text_of(line, "target");
    json_int_t port = json_integer_value(json_object_get(line, "port"));
    bool is_http = kind && strcmp(kind, "http") == 0;

    if (!kind || (!is_http && strcmp(kind, "stream") != 0))
        return 0;
    if (!host || port < 1 || port > UINT16_MAX)
        return 0;
    if (is_http && (!method || !target))
        return 0;
    struct recorded *new = array_add(&recording->items, recording->n, sizeof *new);
    if (!new)
        return -ENOMEM;
    new->is_http = is_http;
    new->port = (uint16_t)port;
    new->host = strdup(host);
    new->method = is_http ? strdup(method) : NULL;
    new->target = is_http ? strdup(target) : NULL;
    recording->n++; /* freed with the others, also if something is missing */
    return new->host && (!is_http || (new->method &&new->target)) ? 1 : -ENOMEM;
}

static int add_piece(struct recorded *to, bool is_up, bool is_end, char *take_data, size_t length) {
    struct recorded_piece *piece = array_add(&to->pieces, to->n_pieces, sizeof *piece);

    if (!piece) {
        free(take_data);
        return -ENOMEM;
    }
    *piece = (struct recorded_piece){ take_data, length, is_up, is_end };
    to->n_pieces++;
    return 0;
}

static int add_bytes(struct recorded *to, bool is_up, const json_t *value) {
    struct buf bytes = BUF_INIT;
    int r = base64_decode(json_string_value(value), json_string_length(value), &bytes);

    if (r < 0 || bytes.length == 0) {
        buf_done(&bytes);
        return r == -ENOMEM ? r : 0;
    }
    size_t length = bytes.length;
    return add_piece(to, is_up, false, buf_take(&bytes), length);
}

static int continue_exchange(struct recorded *to, const json_t *line) {
    const json_t *up = json_object_get(line, "up"), *down = json_object_get(line, "down");
    const char *digest = text_of(line, "request");
    int r = 0;

    if (to->is_complete)
        return 0;
    if (json_is_string(up))
        r = add_bytes(to, true, up);
    else if (json_is_string(down))
        r = add_bytes(to, false, down);
    else if (json_is_true(json_object_get(line, "up_end")))
        r = add_piece(to, true, true, NULL, 0);
    else if (json_is_true(json_object_get(line, "down_end")))
        r = add_piece(to, false, true, NULL, 0);
    else if (digest && !to->digest)
        r = (to->digest = strdup(digest)) ? 0 : -ENOMEM;
    else if (json_is_true(json_object_get(line, "end")))
        to->is_complete = !to->is_http || to->digest;
    return r;
}

/* `places`: the exchanges' numbers by their ids. */
static int read_line(struct recording *recording, json_t *places, const json_t *line) {
    const char *id = text_of(line, "id");
    json_int_t place;
    int r;

    if (!id)
        return 0;
    if (!json_object_get(line, "begin")) {
        const json_t *known = json_object_get(places, id);

        place = json_integer_value(known);
        return known ? continue_exchange(&recording->items[place], line) : 0;
    }
    r = begin(recording, line);
    if (r <= 0)
        return r;
    return json_object_set_new(places, id, json_integer((json_int_t)recording->n - 1)) < 0 ? -ENOMEM
                                                                                           : 0;
}

int recording_read(const char *text, size_t length, struct recording **ret) {
    static const char first[] = RECORDING_FIRST_LINE;
    size_t at = sizeof first - 1;

    if (length < at || memcmp(text, first, at) != 0)
        return -EBADMSG;
    struct recording *recording = calloc(1, sizeof *recording);
    json_t *places = json_object();
    int r = recording && places ? 0 : -ENOMEM;

    while (r == 0 && at < length) {
        const char *end = memchr(text + at, '\n', length - at);
        size_t n = end ? (size_t)(end - text) - at : length - at;
        json_t *line = n ? json_loadb(text + at, n, JSON_REJECT_DUPLICATES, NULL) : NULL;

        r = line ? read_line(recording, places, line) : 0;
        json_decref(line);
        at += n + 1;
    }
    json_decref(places);
    if (r < 0)
        recording = recording_free(recording);
    else
        *ret = recording;
    return r;
}

/* ---- answering ---- */

struct recorded *recording_take_http(struct recording *recording, const char *host, uint16_t port,
    const char *method, const char *target, const char *digest) {
    for (size_t i = 0; i < recording->n; i++) {
        struct recorded *item = &recording->items[i];

        if (!item->is_http || !item->is_complete || item->is_used || item->port != port)
            continue;
        if (strcmp(item->host, host) != 0 || strcmp(item->method, method) != 0 ||
            strcmp(item->target, target) != 0 || strcmp(item->digest, digest) != 0)
            continue;
        item->is_used = true;
        return item;
    }
    return NULL;
}

void replay_init(
    struct replay *replay, struct recording *recording, const char *host, uint16_t port) {
    *replay = (struct replay){ .recording = recording, .host = host, .port = port };
}

void replay_continue(struct replay *replay, struct recorded *http) {
    *replay = (struct replay){ .stream = http };
}

/* The guest's next piece, or NULL. */
static const struct recorded_piece *guest_piece(struct replay *replay) {
    const struct recorded *stream = replay->stream;

    while (stream && replay->up_piece < stream->n_pieces) {
        const struct recorded_piece *piece = &stream->pieces[replay->up_piece];

        if (piece->is_up && !piece->is_end && replay->up_offset < piece->length)
            return piece;
        replay->up_piece++;
        replay->up_offset = 0;
    }
    return NULL;
}

/* The server's next piece, or its end, or NULL. */
static const struct recorded_piece *server_piece(struct replay *replay) {
    const struct recorded *stream = replay->stream;

    while (stream && replay->piece < stream->n_pieces) {
        const struct recorded_piece *piece = &stream->pieces[replay->piece];

        if (!piece->is_up && (piece->is_end || replay->offset < piece->length))
            return piece;
        replay->needs_up += piece->is_up ? piece->length : 0;
        replay->needs_end |= piece->is_up && piece->is_end;
        replay->piece++;
        replay->offset = 0;
    }
    return NULL;
}

/* The number of bytes that match the recorded ones of the guest. -ENOENT: they differ. */
static long compare(struct replay *replay, const char *data, size_t length) {
    const struct recorded_piece *piece;
    size_t taken = 0;

    while (taken < length && (piece = guest_piece(replay))) {
        size_t n = MIN(length - taken, piece->length - replay->up_offset);

        if (memcmp(piece->data + replay->up_offset, data + taken, n) != 0)
            return -ENOENT;
        replay->up_offset += n;
        replay->up += n;
        taken += n;
    }
    /* A guest that says more than it did has left the recording. */
    return taken ? (long)taken : -ENOENT;
}

/* Does the stream begin with the first `limit` bytes of that side of the other one? */
static bool begins_like(
    const struct recorded *stream, const struct recorded *other, bool is_up, uint64_t limit) {
    size_t a = 0, b = 0, a_offset = 0, b_offset = 0;

    while (limit > 0) {
        while (a < stream->n_pieces &&
               (stream->pieces[a].is_up != is_up || a_offset == stream->pieces[a].length)) {
            a++;
            a_offset = 0;
        }
        while (b < other->n_pieces &&
               (other->pieces[b].is_up != is_up || b_offset == other->pieces[b].length)) {
            b++;
            b_offset = 0;
        }
        if (a >= stream->n_pieces || b >= other->n_pieces)
            return false;
        size_t n = MIN(stream->pieces[a].length - a_offset, other->pieces[b].length - b_offset);
        n = (size_t)MIN((uint64_t)n, limit);
        if (memcmp(stream->pieces[a].data + a_offset, other->pieces[b].data + b_offset, n) != 0)
            return false;
        a_offset += n;
        b_offset += n;
        limit -= n;
    }
    return true;
}

/* Puts the replay at the place of another stream that both sides have reached. */
static void go_to(struct replay *replay, struct recorded *stream) {
    struct replay there = { replay->recording, stream, replay->host, replay->port,
        replay->guest_has_ended, 0, 0, 0, 0, 0, 0, 0, false };
    const struct recorded_piece *piece;

    while (there.up < replay->up && (piece = guest_piece(&there))) {
        size_t n = (size_t)MIN(replay->up - there.up, (uint64_t)piece->length);

        there.up += n;
        there.up_offset = n;
    }
    while (there.down < replay->down && (piece = server_piece(&there)) && !piece->is_end) {
        size_t n = (size_t)MIN(replay->down - there.down, (uint64_t)piece->length);

        there.down += n;
        there.offset = n;
    }
    *replay = there;
}

static bool may_take(const struct replay *replay, const struct recorded *stream) {
    const struct recorded *now = replay->stream;

    if (stream->is_http || !stream->is_complete || stream->is_used ||
        stream->port != replay->port || strcmp(stream->host, replay->host) != 0)
        return false;
    return !now || (begins_like(stream, now, true, replay->up) &&
                       begins_like(stream, now, false, replay->down));
}

long replay_guest(struct replay *replay, const char *data, size_t length) {
    struct replay before = *replay;
    long n = replay->stream ? compare(replay, data, length) : -ENOENT;

    if (n >= 0 || !replay->recording)
        return n;
    /* Connections of several threads arrive in any order: another one may be meant. */
    for (size_t i = 0; i < before.recording->n; i++) {
        struct recorded *stream = &before.recording->items[i];

        if (!may_take(&before, stream))
            continue;
        *replay = before;
        go_to(replay, stream);
        n = compare(replay, data, length);
        if (n < 0)
            continue;
        if (before.stream)
            before.stream->is_used = false;
        stream->is_used = true;
        return n;
    }
    *replay = before;
    return -ENOENT;
}

/* A server that speaks first: the next recorded stream of that host. */
static void choose_first(struct replay *replay) {
    for (size_t i = 0; replay->recording && i < replay->recording->n; i++) {
        struct recorded *stream = &replay->recording->items[i];

        if (!may_take(replay, stream) || !stream->n_pieces || stream->pieces[0].is_up)
            continue;
        replay->stream = stream;
        stream->is_used = true;
        return;
    }
}

/* The server's next piece, if nothing of the guest's has to come before it. */
static const struct recorded_piece *due_piece(struct replay *replay) {
    if (!replay->stream)
        choose_first(replay);
    const struct recorded_piece *piece = server_piece(replay);

    if (replay->up < replay->needs_up || (replay->needs_end && !replay->guest_has_ended))
        return NULL;
    return piece;
}

size_t replay_server(struct replay *replay, const char **ret_data) {
    const struct recorded_piece *piece = due_piece(replay);

    if (!piece || piece->is_end)
        return 0;
    *ret_data = piece->data + replay->offset;
    return piece->length - replay->offset;
}

void replay_sent(struct replay *replay, size_t length) {
    replay->offset += length;
    replay->down += length;
}

bool replay_server_ends(struct replay *replay) {
    const struct recorded_piece *piece = due_piece(replay);

    if (!piece || !piece->is_end)
        return false;
    replay->piece++;
    return true;
}

bool replay_guest_ends(struct replay *replay) {
    replay->guest_has_ended = true;
    return !guest_piece(replay);
}

bool replay_is_over(struct replay *replay) {
    return replay->stream && !server_piece(replay);
}
