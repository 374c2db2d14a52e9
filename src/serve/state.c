/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What outlives the server (--state): the journal's lines of detached sandboxes and of durable
 * leases are read, and written again. state_lines.c has the lines; operations.c those of requests.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "serve/admission.h"
#include "serve/engines.h"

#define MEND_MS 1000

/* Lines of the journal whose sandboxes are looked up when all are read: "TENANT NAME" to the
 * line. */
struct reading {
    struct server *server;
    json_t *boxes, *leases;
    bool is_open;
};

static struct reading reading;

static const char *text_of(const json_t *line, const char *key) {
    const char *text = json_string_value(json_object_get(line, key));

    return text ? text : "";
}

static void replay(void *data, const json_t *line) {
    struct reading *to = data;
    const char *kind = text_of(line, "kind");
    bool is_box = !strcmp(kind, "box") || !strcmp(kind, "unbox");
    auto_buf struct buf key = BUF_INIT;

    if (operations_replay(to->server, kind, line) || admission_replay(to->server, kind, line))
        return;
    buf_printf(&key, "%s %s", text_of(line, "tenant"), text_of(line, is_box ? "name" : "id"));
    if (buf_failed(&key))
        return;
    json_t *rows = is_box ? to->boxes : to->leases;
    if (!strncmp(kind, "un", 2))
        json_object_del(rows, key.data);
    else
        json_object_set(rows, key.data, (json_t *)(uintptr_t)line);
}

/* ---- writing ---- */

static void dump_rows(struct journal *journal, json_t *rows) {
    const char *key;
    json_t *line;

    json_object_foreach(rows, key, line)(void) journal_add(journal, json_incref(line));
}

static void keep_lease(
    struct server *server, const struct tenant *tenant, const char *id, int64_t ttl_s) {
    (void)state_keep_lease(server, tenant, id, ttl_s);
}

static void dump(void *data, struct journal *journal) {
    struct reading *from = data;
    struct server *server = from->server;
    struct journal *before = server->journal;

    operations_dump(server, journal);
    admission_dump(server, journal);
    if (!from->is_open) {
        dump_rows(journal, from->boxes);
        dump_rows(journal, from->leases);
        return;
    }
    server->journal = journal;
    leases_dump(server, keep_lease);
    for (size_t i = 0; i < SERVER_BUCKETS; i++)
        list_for_each(node, &server->boxes[i]) {
            const struct box *box = container_of(node, struct box, of_names);

            if (box->is_detached)
                (void)state_keep_box(server, box);
        }
    server->journal = before;
}

/* ---- to the disk ---- */

/* One synchronisation at a time. */
struct syncing {
    struct pool_job job;
    struct loop_timer timer;
    struct server *server;
    int fd;
    bool is_under_way, is_due;
};

static struct syncing syncing = { .fd = -EBADF };

static void sync_work(struct pool_job *job) {
    (void)fsync(container_of(job, struct syncing, job)->fd);
}

static void sync_later(void);

static void sync_done(struct pool_job *job) {
    (void)job;
    close_fd(&syncing.fd);
    syncing.is_under_way = false;
    if (syncing.is_due)
        sync_later();
}

static void on_due(struct loop_timer *timer) {
    (void)timer;
    syncing.is_due = false;
    syncing.fd = journal_file(syncing.server->journal);
    if (syncing.fd < 0)
        return;
    syncing.is_under_way = true;
    syncing.job = (struct pool_job){ .work = sync_work, .done = sync_done };
    pool_submit(syncing.server->pool, &syncing.job);
}

static void sync_later(void) {
    if (loop_timer_set(syncing.server->loop, &syncing.timer,
            clock_now_ns() + (int64_t)JOURNAL_SYNC_MS * 1000000, on_due) >= 0)
        syncing.is_due = true;
}

static void changed(void *data) {
    const struct reading *of = data;

    syncing.server = of->server;
    if (syncing.is_under_way)
        syncing.is_due = true;
    else if (!syncing.is_due)
        sync_later();
}

/* ---- a full disk ---- */

static struct loop_timer mend_timer;

static void mend_later(void);

static void on_mend(struct loop_timer *timer) {
    (void)timer;
    if (journal_mend(reading.server->journal) < 0)
        mend_later();
}

static void mend_later(void) {
    (void)loop_timer_set(
        reading.server->loop, &mend_timer, clock_now_ns() + (int64_t)MEND_MS * 1000000, on_mend);
}

static void troubled(void *data, int error) {
    (void)data;
    if (error >= 0) {
        fprintf(stderr, "rollbox-serve: the journal is written again\n");
        return;
    }
    fprintf(stderr,
        "rollbox-serve: cannot write the journal in --state: %s; until it can be written, requests "
        "with an Idempotency-Key, detached sandboxes and durable leases are refused\n",
        strerror(-error));
    mend_later();
}

/* ---- reading ---- */

static void restore_lease(struct server *server, const json_t *line) {
    struct tenant *tenant = tenant_of(server, text_of(line, "tenant"));
    int64_t ttl_s = json_integer_value(json_object_get(line, "ttl_s"));

    if (tenant && ttl_s > 0)
        (void)lease_restore(server, tenant, text_of(line, "id"), ttl_s);
}

/* 0, or the sandbox is not there any more. */
static int restore_box(struct server *server, const json_t *line) {
    struct engine_link *link = engines_of(server, text_of(line, "owner"),
        (unsigned)json_integer_value(json_object_get(line, "engine")));
    struct tenant *tenant = tenant_of(server, text_of(line, "tenant"));
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rollbox_sandbox *handle = NULL;

    if (!link || !tenant || !box_name_ok(text_of(line, "name")) ||
        rollbox_sandbox_open(link->engine, text_of(line, "engine_name"), &handle, &error) < 0)
        return -ENOENT;
    struct amounts held = state_amounts(line);
    struct box *box = box_restore(server, tenant, text_of(line, "name"), link, handle, &held);
    if (box)
        box->measure.cpu_ms = -1; /* the server before has counted it */
    if (!box)
        return -ENOMEM;
    box->number = (uint64_t)json_integer_value(json_object_get(line, "number"));
    box->is_detached = true;
    box->labels = json_incref(json_object_get(line, "labels"));
    (void)snprintf(box->lease, sizeof box->lease, "%s", text_of(line, "lease"));
    /* Its lease has ended, and the server ended before the sandbox did. */
    if (box->lease[0] && !lease_exists(server, tenant, box->lease))
        box_close(server, box);
    return 0;
}

int state_open(struct server *server, const char *directory) {
    const struct journal_user user = {
        .replay = replay, .dump = dump, .changed = changed, .troubled = troubled, .data = &reading
    };
    const char *key;
    json_t *line;
    void *next;

    reading = (struct reading){ .server = server, .boxes = json_object(), .leases = json_object() };
    int r = journal_open(directory, &user, &server->journal);
    if (r < 0) {
        fprintf(stderr, "rollbox-serve: cannot use --state %s: %s\n", directory,
            r == -EWOULDBLOCK ? "another server uses it" : strerror(-r));
        return 1;
    }
    json_object_foreach(reading.leases, key, line) restore_lease(server, line);
    json_object_foreach_safe(reading.boxes, next, key, line) {
        if (restore_box(server, line) < 0)
            (void)journal_add(
                server->journal, json_pack("{s:s, s:s, s:s}", "kind", "unbox", "tenant",
                                     text_of(line, "tenant"), "name", text_of(line, "name")));
    }
    reading.is_open = true;
    json_decref(reading.boxes);
    json_decref(reading.leases);
    return 0;
}
