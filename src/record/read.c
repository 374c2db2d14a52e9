/* SPDX-License-Identifier: Apache-2.0 */
#include "record/read.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/utf8.h"

#define CHUNK 65536
#define MAX_PENDING 4096

struct step *step_free(struct step *step) {
    if (!step)
        return NULL;
    list_remove(&step->node);
    json_decref(step->json);
    free(step);
    return NULL;
}

void reader_done(struct reader *reader) {
    list_for_each(node, &reader->pending)
        step_free(container_of(node, struct step, node));
    json_decref(reader->header);
    reader->header = NULL;
    free(reader->end_reason);
    free(reader->name);
    buf_done(&reader->buf);
}

static int fail_reader(const struct reader *reader, struct rollbox_error *error, const char *what) {
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EBADMSG, "arguments", "%s:%llu: %s",
        reader->name, (unsigned long long)reader->line, what);
}

/* ---- lines ---- */

/* 1 and a line that ends with a newline; 0 at the end (`torn`: something without one was there). */
static int next_line(
    struct reader *reader, const char **ret_line, size_t *ret_length, struct rollbox_error *error) {
    size_t seen = reader->at;

    for (;;) {
        const char *newline = reader->buf.length > seen
                                  ? memchr(reader->buf.data + seen, '\n', reader->buf.length - seen)
                                  : NULL;

        if (newline) {
            *ret_line = reader->buf.data + reader->at;
            *ret_length = (size_t)(newline - *ret_line);
            reader->at += *ret_length + 1;
            reader->line++;
            return 1;
        }
        if (reader->eof) {
            reader->torn = reader->buf.length > reader->at;
            return 0;
        }
        if (reader->at) {
            memmove(
                reader->buf.data, reader->buf.data + reader->at, reader->buf.length - reader->at);
            reader->buf.length -= reader->at;
            reader->at = 0;
        }
        seen = reader->buf.length;
        if (seen > RECORD_MAX_LINE) {
            reader->line++;
            return fail_reader(reader, error, "a line is too long for a trajectory");
        }
        char *room = buf_reserve(&reader->buf, CHUNK);
        ssize_t n = room ? read(reader->fd, room, CHUNK) : -1;
        if (!room || (n < 0 && errno != EINTR))
            return error_set(error, error_code_of(room ? errno : ENOMEM, ROLLBOX_ERR_IO),
                room ? errno : ENOMEM, "arguments", "cannot read %s: %s", reader->name,
                strerror(room ? errno : ENOMEM));
        reader->eof = n == 0;
        reader->buf.length += n > 0 ? (size_t)n : 0;
    }
}

/* Empty lists and objects take fifty times the memory that they take in the file. */
static bool has_too_many_values(const char *line, size_t length) {
    size_t n = 0;
    bool is_text = false;

    for (size_t i = 0; i < length; i++)
        if (line[i] == '"')
            is_text = !is_text;
        else if (is_text)
            i += line[i] == '\\';
        else
            n += line[i] == ',' || line[i] == '[' || line[i] == '{';
    return n > READ_MAX_VALUES;
}

static int next_object(struct reader *reader, json_t **ret_object, struct rollbox_error *error) {
    const char *line = NULL;
    size_t length = 0;
    int r = next_line(reader, &line, &length, error);

    if (r <= 0)
        return r;
    if (has_too_many_values(line, length))
        return fail_reader(reader, error, "has too many values for a trajectory");
    json_t *object = json_loadb(line, length, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(object)) {
        json_decref(object);
        return fail_reader(reader, error, "is not a JSON object");
    }
    *ret_object = object;
    return 1;
}

/* ---- contents of lines ---- */

static bool is_digest(const char *text) {
    return text && strlen(text) == RECORD_DIGEST_HEX &&
           strspn(text, "0123456789abcdef") == RECORD_DIGEST_HEX;
}

static void check_chain(struct reader *reader, const char *digest) {
    if (!strcmp(digest, reader->chain.hex))
        return;
    if (!reader->changed_line)
        reader->changed_line = reader->line;
    memcpy(reader->chain.hex, digest, RECORD_DIGEST_HEX);
}

int reader_open(struct reader *reader, int fd, const char *name, struct rollbox_error *error) {
    *reader = (struct reader){ .fd = fd, .buf = BUF_INIT, .name = strdup(name), .next_step = 1 };
    list_init(&reader->pending);
    if (!reader->name)
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
    int r = next_object(reader, &reader->header, error);
    if (r < 0)
        return r;
    const char *format = json_string_value(json_object_get(reader->header, "format")),
               *digest = json_string_value(json_object_get(reader->header, "digest"));
    const char *policy = json_string_value(json_object_get(reader->header, "policy_sha256"));
    if (r == 0 || !format ||
        strncmp(format, "rollbox-trajectory/", strlen("rollbox-trajectory/"))) {
        reader->line = MAX(reader->line, (uint64_t)1);
        return fail_reader(reader, error,
            r == 0 ? "it has no complete line: it is empty, or its first line is truncated"
                   : "is not a trajectory: its first line must have \"format\"");
    }
    if (strcmp(format, RECORD_FORMAT))
        return fail_reader(reader, error, "has another format version than " RECORD_FORMAT);
    if (!is_digest(digest) || !is_digest(policy) ||
        !json_is_object(json_object_get(reader->header, "policy")))
        return fail_reader(
            reader, error, "the header must have \"policy\", \"policy_sha256\" and \"digest\"");
    chain_begin(&reader->chain, policy,
        json_string_value(json_object_get(json_object_get(reader->header, "image"), "sha256")),
        json_string_value(json_object_get(json_object_get(reader->header, "parent"), "digest")));
    check_chain(reader, digest);
    return 0;
}

static int take_end(struct reader *reader, const json_t *object, struct rollbox_error *error) {
    const char *reason =
                   json_string_value(json_object_get(json_object_get(object, "end"), "reason")),
               *digest = json_string_value(json_object_get(object, "digest"));

    if (!reason || !is_digest(digest))
        return fail_reader(
            reader, error, "the last line must have \"end\": {\"reason\"} and \"digest\"");
    check_chain(reader, digest);
    free(reader->end_reason);
    reader->end_reason = strdup(reason);
    return reader->end_reason ? 0
                              : error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM,
                                    "arguments", "out of memory");
}

static struct step *of_object(const struct reader *reader, json_t *object) {
    const json_t *number = json_object_get(object, "step"),
                 *begun_at = json_object_get(object, "begun_at");
    struct step step = {
        .number = (uint64_t)json_integer_value(number),
        .begun_at = (uint64_t)json_integer_value(begun_at),
        .line = reader->line,
        .ended = reader->n_steps + 1,
        .json = object,
        .action = json_object_get(object, "action"),
        .observation = json_object_get(object, "observation"),
        .digest = json_string_value(json_object_get(object, "digest")),
    };
    step.kind = json_string_value(json_object_get(step.action, "kind"));
    if (json_integer_value(number) < 1 || !json_is_integer(begun_at) ||
        json_integer_value(begun_at) < 0 || !step.kind || !json_is_object(step.observation) ||
        !is_digest(step.digest) || step.begun_at >= step.ended)
        return NULL;
    struct step *made = malloc(sizeof *made);
    if (made) {
        *made = step;
        list_init(&made->node);
    }
    return made;
}

/* 1: one more is pending; 0: the end. */
static int read_step(struct reader *reader, struct rollbox_error *error) {
    json_t *object = NULL;
    int r = next_object(reader, &object, error);

    if (r <= 0)
        return r;
    if (reader->end_reason || json_object_get(object, "end")) {
        r = reader->end_reason ? fail_reader(reader, error, "comes after the end of the trajectory")
                               : take_end(reader, object, error);
        json_decref(object);
        return r < 0 ? r : read_step(reader, error);
    }
    struct step *step = of_object(reader, object);
    if (!step) {
        json_decref(object);
        return fail_reader(reader, error,
            "a step must have \"step\", \"begun_at\", \"action\": {\"kind\"}, \"observation\" and "
            "\"digest\"");
    }
    reader->n_steps++;
    chain_add(&reader->chain, step->action, step->observation);
    check_chain(reader, step->digest);
    struct list *at = reader->pending.prev;
    unsigned n = 0;
    for (; at != &reader->pending && container_of(at, struct step, node)->number > step->number;
         n++)
        at = at->prev;
    if (step->number < reader->next_step ||
        (at != &reader->pending && container_of(at, struct step, node)->number == step->number) ||
        n > MAX_PENDING) {
        step_free(step);
        return fail_reader(reader, error, "two steps have the same number");
    }
    list_add_tail(at->next, &step->node);
    return 1;
}

int reader_next(struct reader *reader, struct step **ret_step, struct rollbox_error *error) {
    for (;;) {
        struct step *first = list_empty(&reader->pending)
                                 ? NULL
                                 : container_of(reader->pending.next, struct step, node);

        /* A step that never ended is missing here: the steps after it are returned at the end of
         * the file, or when no step can wait for it any longer. */
        if (first && (first->number == reader->next_step || reader->read_all)) {
            list_remove(&first->node);
            reader->next_step = first->number + 1;
            *ret_step = first;
            return 1;
        }
        if (reader->read_all)
            return 0;
        int r = read_step(reader, error);
        if (r < 0)
            return r;
        reader->read_all = r == 0;
    }
}

/* ---- values ---- */

int read_bytes(const json_t *value, struct buf *to) {
    const json_t *text = json_is_string(value) ? value : json_object_get(value, "text"),
                 *encoded = json_object_get(value, "base64");

    if (json_is_string(text)) {
        buf_add(to, json_string_value(text), json_string_length(text));
        return buf_failed(to) ? -ENOMEM : 0;
    }
    return json_is_string(encoded)
               ? base64_decode(json_string_value(encoded), json_string_length(encoded), to)
               : -ENODATA;
}
