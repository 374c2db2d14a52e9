/* SPDX-License-Identifier: Apache-2.0 */
/* Watchers of E2B's clients; e2b_watch.h has the model. */
#include "serve/e2b_watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/connect.h"
#include "serve/digits.h"
#include "serve/e2b_entries.h"

#define WATCHERS_MAX 64u
#define LOOK_NS (INT64_C(200) * 1000000)
#define DEPTH_RECURSIVE 16
#define ENTRIES_MAX 10000u /* a watcher remembers them */
/* What the watchers of a tenant, and of all tenants, remember together. */
#define TENANT_BYTES (UINT64_C(64) << 20)
#define SERVER_BYTES (UINT64_C(512) << 20)
#define ENTRY_BYTES 160u /* besides its texts */
#define REST 4           /* times the length of a look, for each watcher of the sandbox */
#define DIRECTORY "d"    /* instead of a size */
#define STREAM_TYPE "application/connect+json"

struct watcher {
    struct pool_job job;
    struct list of_box;
    struct e2b_box *e2b; /* NULL: it has ended, and a thread has the watcher still */
    struct box *box;
    struct rollbox_sandbox *handle;
    struct loop *loop;
    struct loop_timer timer;
    struct exchange *exchange; /* the stream, or the request that waits; NULL: none */
    char id[SERVER_NAME_MAX + 1];
    char *path;
    json_t *seen, *now; /* "MODE SIZE TIME" of entries by their paths */
    uint64_t seen_bytes, now_bytes;
    struct rollbox_error error;
    int r;
    int64_t begun_ns;
    bool recursive, is_stream, is_working, has_begun, is_full;
};

static void look(struct watcher *watcher);

static uint64_t all_bytes; /* of all watchers */

/* False: `bytes` are too many, and nothing has changed. */
static bool remember(struct watcher *watcher, uint64_t bytes) {
    struct tenant *tenant = watcher->box->tenant;
    uint64_t of_tenant = tenant->watched_bytes - watcher->seen_bytes + bytes;
    uint64_t of_all = all_bytes - watcher->seen_bytes + bytes;

    if (bytes > watcher->seen_bytes && (of_tenant > TENANT_BYTES || of_all > SERVER_BYTES))
        return false;
    tenant->watched_bytes = of_tenant;
    all_bytes = of_all;
    watcher->seen_bytes = bytes;
    return true;
}

static void free_watcher(struct watcher *watcher) {
    loop_timer_clear(watcher->loop, &watcher->timer);
    if (watcher->e2b) {
        list_remove(&watcher->of_box);
        watcher->e2b->n_watchers--;
        watcher->e2b = NULL;
    }
    if (watcher->is_working)
        return;
    (void)remember(watcher, 0);
    box_unref(watcher->box);
    json_decref(watcher->seen);
    json_decref(watcher->now);
    free(watcher->path);
    free(watcher);
}

void e2b_watch_end(struct e2b_box *e2b) {
    list_for_each(node, &e2b->watchers) {
        struct watcher *watcher = container_of(node, struct watcher, of_box);
        struct exchange *exchange = TAKE_PTR(watcher->exchange);
        struct http_connection *connection = exchange ? TAKE_PTR(exchange->connection) : NULL;

        if (exchange) {
            exchange->data = NULL;
            if (connection)
                *http_data(connection) = NULL;
            exchange_done(exchange);
        }
        free_watcher(watcher);
        if (connection)
            http_abort(connection);
    }
}

/* ---- looking ---- */

static bool is_directory(const json_t *row) {
    return !strcmp(json_string_value(json_object_get(row, "type")), "FILE_TYPE_DIRECTORY");
}

/* A directory's size and time tell only what is in it, which does not count. */
static void work(struct pool_job *job) {
    struct watcher *watcher = container_of(job, struct watcher, job);
    json_t *rows = NULL, *row;
    size_t i;

    watcher->r = entries_list(watcher->handle, watcher->path,
        watcher->recursive ? DEPTH_RECURSIVE : 1, ENTRIES_MAX, &rows, &watcher->error);
    watcher->now = watcher->r < 0 ? NULL : json_object();
    watcher->now_bytes = 0;
    json_array_foreach(rows, i, row) {
        const char *path = json_string_value(json_object_get(row, "path"));
        json_t *text =
            json_sprintf("%lld %s %s", (long long)json_integer_value(json_object_get(row, "mode")),
                is_directory(row) ? DIRECTORY : json_string_value(json_object_get(row, "size")),
                is_directory(row) ? "" : json_string_value(json_object_get(row, "modifiedTime")));

        watcher->now_bytes += strlen(path) + json_string_length(text) + ENTRY_BYTES;
        json_object_set_new(watcher->now, path, text);
    }
    json_decref(rows);
}

static void add_event(
    json_t *events, const struct watcher *watcher, const char *path, const char *type) {
    size_t skip = strlen(watcher->path);

    path += skip + (path[skip] == '/' && watcher->path[1]);
    json_array_append_new(events, json_pack("{s:s, s:s}", "name", path, "type", type));
}

/* `before` NULL: the entry is new. */
static bool is_written(const char *now, const char *before) {
    return !before || strcmp(now + strcspn(now, " "), before + strcspn(before, " ")) != 0;
}

static bool has_new_mode(const char *now, const char *before) {
    return strncmp(now, before, strcspn(now, " ") + 1) != 0;
}

/* Names of new entries by what they are. Directories and empty files look all alike, and are not
 * among them. */
static json_t *fresh_names(const struct watcher *watcher) {
    json_t *names = json_object(), *entry;
    const char *path;

    json_object_foreach(watcher->now, path, entry) {
        const char *what = json_string_value(entry);

        if (!json_object_get(watcher->seen, path) && !strstr(what, " 0 ") &&
            !strstr(what, " " DIRECTORY))
            json_object_set_new(names, what, json_string(path));
    }
    return names;
}

/* An entry that is gone, while a new one is what it was, has been renamed. Returns the paths of
 * both. */
static json_t *add_renames(const struct watcher *watcher, json_t *events) {
    json_t *fresh = fresh_names(watcher), *renamed = json_object(), *entry;
    const char *path;

    json_object_foreach(watcher->seen, path, entry) {
        const char *what = json_string_value(entry);
        json_t *to = json_object_get(watcher->now, path) ? NULL : json_object_get(fresh, what);

        if (!to)
            continue;
        add_event(events, watcher, path, "EVENT_TYPE_RENAME");
        add_event(events, watcher, json_string_value(to), "EVENT_TYPE_CREATE");
        json_object_set_new(renamed, json_string_value(to), json_true());
        json_object_set_new(renamed, path, json_true());
        json_object_del(fresh, what);
    }
    json_decref(fresh);
    return renamed;
}

static json_t *events_of(const struct watcher *watcher) {
    json_t *events = json_array(), *entry;
    json_t *renamed = add_renames(watcher, events);
    const char *path;

    json_object_foreach(watcher->now, path, entry) {
        const char *before = json_string_value(json_object_get(watcher->seen, path));
        const char *after = json_string_value(entry);

        if (json_object_get(renamed, path))
            continue;
        if (!before)
            add_event(events, watcher, path, "EVENT_TYPE_CREATE");
        if (is_written(after, before) && !strstr(after, " " DIRECTORY))
            add_event(events, watcher, path, "EVENT_TYPE_WRITE");
        if (before && has_new_mode(after, before))
            add_event(events, watcher, path, "EVENT_TYPE_CHMOD");
    }
    json_object_foreach(watcher->seen, path, entry) {
        if (!json_object_get(watcher->now, path) && !json_object_get(renamed, path))
            add_event(events, watcher, path, "EVENT_TYPE_REMOVE");
    }
    json_decref(renamed);
    return events;
}

static void send_message(struct watcher *watcher, json_t *take_message) {
    auto_buf struct buf frame = BUF_INIT;

    connect_add(&frame, 0, take_message);
    if (watcher->exchange->connection && !buf_failed(&frame))
        watcher->is_full =
            http_write(watcher->exchange->connection, frame.data, frame.length) >= HTTP_UNSENT_MAX;
}

static void tell(struct watcher *watcher) {
    json_t *events = watcher->seen ? events_of(watcher) : json_array(), *event;
    size_t i;

    if (watcher->is_stream) {
        if (!watcher->has_begun) {
            watcher->has_begun = true;
            http_begin(watcher->exchange->connection, 200, STREAM_TYPE, NULL);
            send_message(watcher, json_pack("{s:{}}", "start"));
        }
        json_array_foreach(events, i, event)
            send_message(watcher, json_pack("{s:O}", "filesystem", event));
        json_decref(events);
        return;
    }
    struct exchange *exchange = TAKE_PTR(watcher->exchange);
    exchange->data = NULL;
    json_t *answer = watcher->seen ? json_pack("{s:o}", "events", events)
                                   : json_pack("{s:s}", "watcherId", watcher->id);
    if (!watcher->seen)
        json_decref(events);
    exchange_answer_json(exchange, 200, answer);
}

static void on_timer(struct loop_timer *timer) {
    look(container_of(timer, struct watcher, timer));
}

/* Large directories are looked at less often: the watchers of a sandbox must not keep the threads
 * busy that all tenants share. */
static void look_later(struct watcher *watcher) {
    int64_t now = clock_now_ns(), took = now - watcher->begun_ns;
    int64_t rest = took * REST * (int64_t)watcher->e2b->n_watchers;

    (void)loop_timer_set(watcher->loop, &watcher->timer, now + MAX(rest, LOOK_NS), on_timer);
}

/* The end of a watcher that would remember too much. */
static void give_up(struct watcher *watcher) {
    static const char why[] = "the watchers of the tenant, or of all tenants, remember too many "
                              "entries; watch fewer directories";
    struct exchange *exchange = TAKE_PTR(watcher->exchange);
    bool has_begun = watcher->has_begun;

    exchange->data = NULL;
    free_watcher(watcher);
    if (!has_begun) {
        exchange_problem(exchange, 429, "quota_exceeded", "%s", why);
        return;
    }
    auto_buf struct buf frame = BUF_INIT;
    struct http_connection *connection = TAKE_PTR(exchange->connection);
    connect_add(&frame, CONNECT_END,
        json_pack("{s:{s:s, s:s}}", "error", "code", "resource_exhausted", "message", why));
    if (connection)
        *http_data(connection) = NULL;
    exchange_done(exchange);
    if (!connection)
        return;
    (void)http_write(connection, frame.data, frame.length);
    http_end(connection);
}

static void done(struct pool_job *job) {
    struct watcher *watcher = container_of(job, struct watcher, job);

    watcher->is_working = false;
    if (!watcher->e2b || !watcher->exchange) {
        free_watcher(watcher);
        return;
    }
    if (watcher->r < 0 && !watcher->seen) {
        struct exchange *exchange = TAKE_PTR(watcher->exchange);
        struct rollbox_error error = watcher->error;

        exchange->data = NULL;
        free_watcher(watcher);
        exchange_fail(exchange, &error);
        return;
    }
    /* A directory that has gone is empty. */
    if (!watcher->now) {
        watcher->now = json_object();
        watcher->now_bytes = 0;
    }
    if (!remember(watcher, watcher->now_bytes)) {
        give_up(watcher);
        return;
    }
    tell(watcher);
    json_decref(watcher->seen);
    watcher->seen = TAKE_PTR(watcher->now);
    /* A client that does not read gets no more events until it does. */
    if (watcher->is_stream && !watcher->is_full)
        look_later(watcher);
}

static void look(struct watcher *watcher) {
    if (watcher->e2b->is_paused) {
        (void)loop_timer_set(watcher->loop, &watcher->timer, clock_now_ns() + LOOK_NS, on_timer);
        return;
    }
    watcher->is_working = true;
    watcher->begun_ns = clock_now_ns();
    watcher->job = (struct pool_job){ .work = work, .done = done };
    pool_submit(watcher->e2b->server->pool, &watcher->job);
}

/* ---- requests ---- */

static void on_refused(struct exchange *exchange, json_t *take_problem) {
    auto_buf struct buf frame = BUF_INIT;
    struct http_connection *connection = TAKE_PTR(exchange->connection);
    int status = 400;
    json_t *error = e2b_connect_answer(exchange, &status, take_problem);

    connect_add(&frame, CONNECT_END, json_pack("{s:o}", "error", error));
    if (connection)
        *http_data(connection) = NULL;
    exchange_done(exchange);
    if (connection)
        http_reply(connection, 200, STREAM_TYPE, NULL, frame.data, frame.length);
}

/* The watcher of a request for events continues without its client; a stream's does not. */
static void on_gone(struct exchange *exchange) {
    struct watcher *watcher = exchange->data;

    exchange->data = NULL;
    exchange_done(exchange);
    if (!watcher)
        return;
    watcher->exchange = NULL;
    if (watcher->is_stream && !watcher->is_working)
        free_watcher(watcher);
}

static void on_writable(struct exchange *exchange) {
    struct watcher *watcher = exchange->data;

    if (!watcher || !watcher->is_full)
        return;
    watcher->is_full = false;
    if (watcher->has_begun && !watcher->is_working)
        look_later(watcher);
}

static struct watcher *watcher_new(struct exchange *exchange, const json_t *message) {
    struct e2b_box *e2b = e2b_user_ok(exchange) ? e2b_of(exchange) : NULL;

    if (!e2b)
        return NULL;
    const char *path = json_string_value(json_object_get(message, "path"));
    struct watcher *watcher = NULL;

    if (!path)
        path = "";
    char *whole = e2b_path(exchange, path);
    if (!whole)
        return NULL;
    if (e2b->n_watchers < WATCHERS_MAX)
        watcher = calloc(1, sizeof *watcher);
    if (!watcher) {
        free(whole);
        exchange_problem(
            exchange, 429, "quota_exceeded", "a sandbox has at most %u watchers", WATCHERS_MAX);
        return NULL;
    }
    watcher->e2b = e2b;
    watcher->box = e2b->box;
    watcher->box->references++;
    watcher->handle = e2b->box->handle;
    watcher->loop = e2b->server->loop;
    watcher->path = whole;
    watcher->recursive = json_is_true(json_object_get(message, "recursive"));
    digits_random(10, watcher->id);
    list_add_tail(&e2b->watchers, &watcher->of_box);
    e2b->n_watchers++;
    return watcher;
}

static void begin(struct exchange *exchange, struct watcher *watcher) {
    watcher->exchange = exchange;
    exchange->data = watcher;
    exchange->gone = on_gone;
    exchange->writable = on_writable;
    look(watcher);
}

void handle_e2b_watch(struct exchange *exchange) {
    struct http_request *request = http_request_of(exchange->connection);
    json_t *message = NULL;

    exchange->refused = on_refused;
    if (connect_take(&request->body, &message) != 1) {
        exchange_problem(exchange, 400, "request_invalid",
            "the body is not one message of the Connect protocol with JSON, uncompressed");
        return;
    }
    struct watcher *watcher = watcher_new(exchange, message);
    json_decref(message);
    if (!watcher)
        return;
    watcher->is_stream = true;
    begin(exchange, watcher);
}

void handle_e2b_watcher_create(struct exchange *exchange) {
    struct watcher *watcher = watcher_new(exchange, exchange->body);

    if (watcher)
        begin(exchange, watcher);
}

static struct watcher *find(struct exchange *exchange) {
    const char *id = json_string_value(json_object_get(exchange->body, "watcherId"));
    struct e2b_box *e2b = e2b_of(exchange);

    if (!e2b)
        return NULL;
    list_for_each(node, &e2b->watchers) {
        struct watcher *watcher = container_of(node, struct watcher, of_box);

        if (id && !watcher->is_stream && !strcmp(watcher->id, id))
            return watcher;
    }
    exchange_problem(exchange, 404, "not_found", "there is no such watcher");
    return NULL;
}

void handle_e2b_watcher_events(struct exchange *exchange) {
    struct watcher *watcher = find(exchange);

    if (!watcher)
        return;
    if (watcher->exchange || watcher->is_working)
        exchange_problem(exchange, 409, "conflict", "another request asks this watcher");
    else
        begin(exchange, watcher);
}

void handle_e2b_watcher_remove(struct exchange *exchange) {
    struct watcher *watcher = find(exchange);

    if (!watcher)
        return;
    if (watcher->exchange) {
        exchange_problem(exchange, 409, "conflict", "another request asks this watcher");
        return;
    }
    free_watcher(watcher);
    exchange_answer(exchange, 200, "{}", NULL);
}
