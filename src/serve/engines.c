/* SPDX-License-Identifier: Apache-2.0 */
/* The server's engines; engines.h has the model. */
#include "serve/engines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "serve/keeper.h"
#include "serve/side_watch.h"

#define AGAIN_NS (INT64_C(1000) * 1000000) /* between two attempts to get an engine */
#define WAIT_ATTEMPTS 5u                   /* after so many, requests that wait are answered */

struct engine_slot {
    struct list of_server;
    struct server *server;
    struct keeper_engine name;
    struct engine_link *link; /* NULL: lost, and asked for */
    struct loop_source source;
    struct loop_timer again;
    unsigned attempts, restarts;
    struct list waiting; /* struct exchange.of_engine */
};

static struct {
    struct loop_source source;
    struct side_watch watch;
    struct server *server;
    bool per_tenant, runs_on;
} keeper;

/* ---- asking for an engine ---- */

static void ask_again(struct loop_timer *timer);

static void ask(struct engine_slot *slot) {
    int r = keeper_ask(slot->server->keeper_socket, &slot->name);

    if (r < 0)
        (void)loop_timer_set(
            slot->server->loop, &slot->again, clock_now_ns() + AGAIN_NS, ask_again);
}

static void ask_again(struct loop_timer *timer) {
    ask(container_of(timer, struct engine_slot, again));
}

/* ---- loss ---- */

/* Attached sandboxes are gone. */
static void forget_boxes(struct server *server, const struct engine_link *link) {
    for (size_t i = 0; i < SERVER_BUCKETS; i++)
        list_for_each(node, &server->boxes[i]) {
            struct box *box = container_of(node, struct box, of_names);

            if (box->link == link && !box->is_detached)
                box_forget(server, box);
        }
}

static void lose(struct engine_slot *slot) {
    struct engine_link *link = TAKE_PTR(slot->link);

    fprintf(stderr, "rollbox-serve: engine %u%s%s is lost; another one is started\n",
        slot->name.number, *slot->name.owner ? " of " : "", slot->name.owner);
    slot->restarts++;
    loop_remove(slot->server->loop, &slot->source);
    forget_boxes(slot->server, link);
    engine_link_unref(link);
    ask(slot);
}

static void on_engine(struct loop_source *source, uint32_t events) {
    struct engine_slot *slot = container_of(source, struct engine_slot, source);

    (void)events;
    if (rollbox_dispatch(slot->link->engine) == -ENOTCONN)
        lose(slot);
}

/* ---- a new engine ---- */

/* The detached sandboxes of the engine before. */
struct return_job {
    struct pool_job job;
    struct engine_slot *slot;
    struct engine_link *link;
    struct returning {
        struct box *box;
        char *name; /* at the engine */
        struct rollbox_sandbox *handle;
        bool is_gone;
    } * boxes;
    size_t n;
};

static void look_up(struct pool_job *pool_job) {
    struct return_job *job = container_of(pool_job, struct return_job, job);

    for (size_t i = 0; i < job->n; i++) {
        struct rollbox_error error = { .code = ROLLBOX_OK };

        if (job->boxes[i].name && rollbox_sandbox_open(job->link->engine, job->boxes[i].name,
                                      &job->boxes[i].handle, &error) < 0)
            job->boxes[i].is_gone = error.code == ROLLBOX_ERR_NOT_FOUND;
    }
}

static void resume_waiting(struct engine_slot *slot) {
    while (slot->link && !list_empty(&slot->waiting)) {
        struct exchange *exchange = container_of(slot->waiting.next, struct exchange, of_engine);

        list_remove(&exchange->of_engine);
        exchange->link = engine_link_ref(slot->link);
        exchange->then(exchange);
    }
}

static void looked_up(struct pool_job *pool_job) {
    struct return_job *job = container_of(pool_job, struct return_job, job);

    for (size_t i = 0; i < job->n; i++) {
        struct returning *one = &job->boxes[i];

        if (one->handle && !one->box->is_gone)
            box_move(one->box, job->link, TAKE_PTR(one->handle));
        else if (one->is_gone)
            box_forget(job->slot->server, one->box);
        rollbox_sandbox_free(one->handle);
        free(one->name);
        box_unref(one->box);
    }
    struct engine_slot *slot = job->slot;
    engine_link_unref(job->link);
    free(job->boxes);
    free(job);
    resume_waiting(slot);
}

static size_t collect(struct engine_slot *slot, struct returning *to) {
    size_t n = 0;

    for (size_t i = 0; i < SERVER_BUCKETS; i++)
        list_for_each(node, &slot->server->boxes[i]) {
            struct box *box = container_of(node, struct box, of_names);

            if (!box->is_detached || box->link->slot != slot || box->link == slot->link)
                continue;
            if (to) {
                box->references++;
                to[n].box = box;
                to[n].name = strdup(rollbox_sandbox_name(box->handle));
            }
            n++;
        }
    return n;
}

static void return_boxes(struct engine_slot *slot) {
    size_t n = collect(slot, NULL);
    struct return_job *job = n ? calloc(1, sizeof *job) : NULL;

    if (job)
        job->boxes = calloc(n, sizeof *job->boxes);
    if (!job || !job->boxes) {
        free(job);
        resume_waiting(slot);
        return;
    }
    job->job = (struct pool_job){ .work = look_up, .done = looked_up };
    job->slot = slot;
    job->link = engine_link_ref(slot->link);
    job->n = collect(slot, job->boxes);
    pool_submit(slot->server->pool, &job->job);
}

static int link_new(
    struct engine_slot *slot, struct spawned *take_spawned, struct rollbox_error *error) {
    struct rollbox_engine *engine;
    int r = handle_adopt(take_spawned, &engine, error);

    if (r < 0)
        return r;
    struct engine_link *link = engine_link_new(slot, &slot->name, engine);
    r = link ? loop_add(
                   slot->server->loop, &slot->source, rollbox_engine_fd(engine), EPOLLIN, on_engine)
             : -ENOMEM;
    if (r < 0) {
        engine_link_unref(link);
        return r;
    }
    slot->link = link;
    slot->attempts = 0;
    return 0;
}

/* No engine can be had: the requests that wait get an error. */
static void give_up_waiting(struct engine_slot *slot, const char *why) {
    while (!list_empty(&slot->waiting)) {
        struct exchange *exchange = container_of(slot->waiting.next, struct exchange, of_engine);

        list_remove(&exchange->of_engine);
        exchange_problem(exchange, 503, "engine_start", "there is no engine: %s", why);
    }
}

static struct engine_slot *find_slot(struct server *server, const char *owner, unsigned number) {
    list_for_each(node, &server->engines) {
        struct engine_slot *slot = container_of(node, struct engine_slot, of_server);

        if (slot->name.number == number && !strcmp(slot->name.owner, owner))
            return slot;
    }
    return NULL;
}

static void take_answer(const struct keeper_answer *answer, struct spawned *spawned) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct engine_slot *slot =
        find_slot(keeper.server, answer->engine.owner, answer->engine.number);
    const char *why = answer->message;

    if (!slot || slot->link) {
        close_fd(&spawned->socket);
        close_fd(&spawned->pidfd);
        return;
    }
    if (!answer->error_number && link_new(slot, spawned, &error) >= 0) {
        return_boxes(slot);
        return;
    }
    if (!answer->error_number)
        why = error.message;
    fprintf(stderr, "rollbox-serve: %s\n", why);
    if (++slot->attempts >= WAIT_ATTEMPTS)
        give_up_waiting(slot, why);
    (void)loop_timer_set(slot->server->loop, &slot->again, clock_now_ns() + AGAIN_NS, ask_again);
}

static void on_keeper(struct loop_source *source, uint32_t events) {
    struct keeper_answer answer;
    struct spawned spawned;
    int r;

    (void)events;
    while ((r = keeper_answer(source->fd, &answer, &spawned)) > 0)
        take_answer(&answer, &spawned);
    if (r < 0) {
        fprintf(stderr, "rollbox-serve: rollbox-keeper has ended; another one is started\n");
        loop_remove(keeper.server->loop, source);
        close_fd(&keeper.server->keeper_socket);
        side_watch_lost(&keeper.watch);
    }
}

static int watch_keeper(struct server *server, int take_socket) {
    auto_close int socket = take_socket;
    int r = fcntl(socket, F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;

    if (r >= 0)
        r = loop_add(server->loop, &keeper.source, socket, EPOLLIN, on_keeper);
    if (r >= 0)
        server->keeper_socket = TAKE_FD(socket);
    return r;
}

/* Its predecessor may have got requests without an answer. */
static int take_keeper(struct server *server, int take_socket) {
    int r = watch_keeper(server, take_socket);

    list_for_each(node, &server->engines) {
        struct engine_slot *slot = container_of(node, struct engine_slot, of_server);

        if (r >= 0 && !slot->link)
            ask(slot);
    }
    return r;
}

/* ---- choice ---- */

static struct engine_slot *slot_new(struct server *server, unsigned number, const char *owner) {
    struct engine_slot *slot = calloc(1, sizeof *slot);

    if (!slot)
        return NULL;
    slot->server = server;
    slot->source.fd = -1;
    slot->name.number = number;
    (void)snprintf(slot->name.owner, sizeof slot->name.owner, "%s", owner);
    list_init(&slot->waiting);
    list_add_tail(&server->engines, &slot->of_server);
    return slot;
}

/* The one with the least load among those that are there; else any. */
static struct engine_slot *least_loaded(struct server *server) {
    struct engine_slot *best = NULL;

    list_for_each(node, &server->engines) {
        struct engine_slot *slot = container_of(node, struct engine_slot, of_server);
        bool is_better = !best || (slot->link && !best->link);

        if (best && best->link && slot->link)
            is_better = slot->link->references < best->link->references;
        if (is_better)
            best = slot;
    }
    return best;
}

static struct engine_slot *slot_for(struct server *server, const struct tenant *tenant) {
    struct engine_slot *slot;

    if (!keeper.per_tenant)
        return least_loaded(server);
    slot = find_slot(server, tenant->name, 0);
    if (slot)
        return slot;
    slot = slot_new(server, 0, tenant->name);
    if (slot)
        ask(slot);
    return slot;
}

void engines_want(struct exchange *exchange, void (*then)(struct exchange *exchange)) {
    struct engine_slot *slot = slot_for(exchange->server, exchange->tenant);

    if (slot && slot->link) {
        exchange->link = engine_link_ref(slot->link);
        then(exchange);
        return;
    }
    if (!slot) {
        exchange_problem(exchange, 503, "resource_exhausted", "the server is out of memory");
        return;
    }
    exchange->then = then;
    list_add_tail(&slot->waiting, &exchange->of_engine);
}

struct engine_link *engines_of(struct server *server, const char *owner, unsigned number) {
    struct engine_slot *slot = find_slot(server, owner, number);

    return slot ? slot->link : NULL;
}

struct engine_link *engines_next(struct server *server, const struct engine_link *link) {
    bool is_after = !link;

    list_for_each(node, &server->engines) {
        struct engine_slot *slot = container_of(node, struct engine_slot, of_server);

        if (is_after && slot->link)
            return slot->link;
        if (link && slot == link->slot)
            is_after = true;
    }
    return NULL;
}

bool engines_ready(struct server *server) {
    return keeper.per_tenant || engines_next(server, NULL);
}

json_t *engines_status(struct server *server) {
    json_t *rows = json_array();

    list_for_each(node, &server->engines) {
        const struct engine_slot *slot = container_of(node, struct engine_slot, of_server);
        json_t *row = json_pack("{s:i, s:b, s:i, s:i}", "engine", (int)slot->name.number,
            "connected", slot->link != NULL, "load",
            slot->link ? (int)slot->link->references - 1 : 0, "restarts", (int)slot->restarts);

        if (*slot->name.owner)
            json_object_set_new(row, "tenant", json_string(slot->name.owner));
        if (slot->link)
            json_object_set_new(row, "pid", json_integer(rollbox_engine_pid(slot->link->engine)));
        json_array_append_new(rows, row);
    }
    return rows;
}

/* ---- start and end ---- */

int engines_start(struct server *server, const struct config *config) {
    size_t n = config->engines ? (size_t)config->engines : MAX(config->engine.n, (size_t)1);

    keeper.server = server;
    keeper.per_tenant = config->engine_per_tenant;
    keeper.runs_on = config->state && !config->engine.n;
    list_init(&server->engines);
    keeper.watch = (struct side_watch){
        .server = server, .side = SIDE_KEEPER, .helper = &server->store_socket, .take = take_keeper
    };
    int r = side_process_start(SIDE_KEEPER);
    if (r >= 0)
        r = watch_keeper(server, r);
    if (r < 0) {
        fprintf(stderr, "rollbox-serve: cannot start the keeper of engines: %s\n", strerror(-r));
        return 1;
    }
    for (size_t i = 0; i < n && !keeper.per_tenant; i++) {
        struct engine_slot *slot = slot_new(server, (unsigned)i, "");
        struct rollbox_error error = { .code = ROLLBOX_OK, .message = "out of memory" };
        struct spawned spawned;

        if (!slot || keeper_open(config, &slot->name, &spawned, &error) < 0 ||
            link_new(slot, &spawned, &error) < 0) {
            fprintf(stderr, "rollbox-serve: %s\n", error.message);
            return 1;
        }
    }
    return 0;
}

static bool has_detached(const struct server *server, const struct engine_link *link) {
    for (size_t i = 0; i < SERVER_BUCKETS; i++)
        list_for_each(node, &server->boxes[i]) {
            const struct box *box = container_of(node, struct box, of_names);

            if (box->link == link && box->is_detached)
                return true;
        }
    return false;
}

void engines_stop(struct server *server) {
    list_for_each(node, &server->engines) {
        struct engine_slot *slot = container_of(node, struct engine_slot, of_server);

        if (!keeper.runs_on || !slot->link || has_detached(server, slot->link))
            continue;
        struct keeper_engine request = slot->name;
        request.stops = true;
        (void)keeper_ask(server->keeper_socket, &request);
    }
}
