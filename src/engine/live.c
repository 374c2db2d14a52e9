/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that go on in another sandbox.
 *
 * What was captured (capturing.c) is held by a *holder*, a clone of the program's launcher that has the image in its memory: it is started when a state with processes is forked or reset to for the first time, serves as many boxes
 * as are wanted, and goes with the state, or when others are wanted more. The one box of a fork of what runs does without: it is made while the image is written, and loads that itself. In each box init is told, once, which of its processes are commands, and gets a new pipe for each one that led out of the captured sandbox. From then on those
 * commands are runs like any other, only that nobody waits for them: what is to be written to them and read from them, beside their output, lies ready until a client claims it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/session.h"

#define MAX_HOLDERS 32          /* each has a copy of its image */
#define DEMAND_NS 10000000      /* less than this apart is one after the other */

struct live *live_new(struct engine *engine) {
    struct live *live = calloc(1, sizeof *live);

    if (!live)
        return NULL;
    live->engine = engine;
    live->references = 1;
    live->image = live->whole = live->progress = -EBADF;
    list_init(&live->node);
    return live;
}

struct live *live_get(struct live *live) {
    live->references++;
    return live;
}

struct live *live_put(struct live *live) {
    if (!live || --live->references)
        return NULL;
    if (live->ahead)
        box_kill(live->ahead);
    if (live->holder)
        launcher_stop(live->holder);
    whole_free(live->making);
    close_fd(&live->image);
    close_fd(&live->whole);
    close_fd(&live->progress);
    live_put(live->base);
    origin_put(&live->origin);
    for (size_t i = 0; i < live->n_commands; i++)
        free(live->commands[i].description);
    free(live->commands);
    free(live->pipes);
    free(live->terminals);
    free(live);
    return NULL;
}

/* ---- images ------------------------------------------------------------------------------------------------------------- */

/* A launcher makes the place for them, which takes rights that the engine may not have; the first image does not wait for it. */
static void ask_for_pool(struct engine *engine, struct program *program) {
    auto_buf struct buf message = BUF_INIT;

    if (engine->pool_asked || !program->launcher)
        return;
    wire_begin(&message, GUEST_POOL, 0);
    engine->pool_asked = wire_send(program->launcher->socket, &message, NULL, 0) == 0;
}

/* It belongs to the launcher's range of ids, and what is in it must, too. */
static int open_in_pool(const struct engine *engine) {
    if (engine->pool < 0)
        return -1;
    if (engine->pool_id) {
        setfsgid(engine->pool_id);
        setfsuid(engine->pool_id);
    }
    int fd = openat(engine->pool, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (engine->pool_id) {
        setfsuid(0);
        setfsgid(0);
    }
    return fd;
}

int live_new_image(struct program *program) {
    struct engine *engine = program->engine;
    int fd = open_in_pool(engine);

    ask_for_pool(engine, program);
    return fd < 0 ? live_new_small_image() : fd;
}

int live_new_small_image(void) {
    int fd = memfd_create("rollbox-image", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    return fd < 0 ? -errno : fd;
}

int live_image(const struct live *live) {
    return live->base ? live->whole : live->image;
}

uint64_t live_memory(const struct live *live) {
    return !live->base ? live->bytes : live->whole >= 0 ? live->whole_bytes : live_memory(live->base) + live->bytes;
}

bool live_amends(const struct live *live, const struct box *box) {
    return live->base && box->prepared_from == live->base;
}

struct live *live_source(struct live *live) {
    return live->base && live->whole < 0 ? live->base : live;
}

int live_open_to_read(int image) {
    char path[32];

    snprintf(path, sizeof path, "/proc/self/fd/%d", image);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* Only memory files can be sealed, and not while the kernel has one of their pages in hand; of another nobody has a descriptor that could be written to, once this one is exchanged. */
int live_seal_image(int *fd) {
    if (fcntl(*fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0)
        return 0;
    if (errno != EPERM && errno != EINVAL && errno != EBUSY)
        return -errno;
    int again = live_open_to_read(*fd);
    if (again < 0)
        return again;
    close(*fd);
    *fd = again;
    return 0;
}

/* ---- holders ------------------------------------------------------------------------------------------------------------ */

void live_holder_gone(struct live *live) {
    live->holder = NULL;
    list_remove(&live->node);
    live->engine->n_holders--;
}

/* The longest unused, but for those that are at work. */
static void drop_holders(struct engine *engine, unsigned keep) {
    list_for_each(node, &engine->holders) {
        struct live *live = container_of(node, struct live, node);

        if (engine->n_holders <= keep)
            return;
        if (list_empty(&live->holder->creating))
            launcher_stop(live->holder);
    }
}

void live_drop_holders(struct engine *engine) {
    drop_holders(engine, 0);
}

int live_holder(struct live *live, struct program *program, struct launcher **ret_holder, struct rollbox_error *error) {
    struct engine *engine = live->engine;

    live = live_source(live);
    if (!live->holder) {
        drop_holders(engine, MAX_HOLDERS - 1);
        int r = launcher_hold(program, live, error);
        if (r < 0)
            return r;
        engine->n_holders++;
    }
    list_remove(&live->node);
    list_add_tail(&engine->holders, &live->node);
    *ret_holder = live->holder;
    return 0;
}

/* From the second one on: what is done once is often not done again. With a seed or clocks of its own nothing is to depend on when a box was made. An addition is put together first, where one work after the other wants it. */
void live_make_ahead(struct live *live, struct program *program, struct node *base) {
    struct engine *engine = live->engine;
    struct launcher *holder;
    struct rollbox_error error;
    struct box *box;

    if (++live->n_restored < 2 || live->ahead || live->references < 2 || engine->stopping || engine->n_queued || program->plan->flags & (PLAN_SEED | PLAN_CLOCK) || !box_has_room(engine))
        return;
    if (live_source(live) != live) {
        if (live->n_uses >= 2)
            whole_make_soon(live, program);
        return;
    }
    /* What goes wrong the next one will meet and tell. */
    if (live_holder(live, program, &holder, &error) == 0 && box_new(program, &(struct box_options){ .base = base, .holder = holder, .notes = live->notes }, &box, &error) == 0)
        box_make_ahead(box, live);
}

/* Of what is taken one after the other, a box that is taken is most likely not ready yet, and the next begins while it gets there; else that would only take its processors. */
bool live_is_in_demand(struct live *live) {
    const int64_t before_ns = live->taken_ns;

    live->taken_ns = clock_now_ns();
    return live->taken_ns - before_ns < DEMAND_NS;
}

void live_load_box(struct live *live, struct program *program, struct node *base) {
    struct box *box;

    /* What goes wrong a holder will meet and tell. */
    if (live->ahead || !box_has_room(live->engine) || box_new(program, &(struct box_options){ .base = base, .loads = live, .notes = live->notes }, &box, NULL) < 0)
        return;
    close_fd(&live->progress);          /* it has the other copy */
    box_make_ahead(box, live);
}

/* A group counts what init keeps, as each page, once. Who looks without one counts it again, so the first look must be late, and the limit out of reach until then. */
bool live_may_be_kept(const struct live *live, const struct box *box) {
    const uint64_t limit = box->program->policy->max_memory_bytes, bytes = live_memory(live);

    return bytes && (box->slot || (bytes < limit / 3 && run_filling_ns(live->engine, limit - 3 * bytes) >= LIVE_REST_NS));
}

/* ---- going on ----------------------------------------------------------------------------------------------------------- */

/* The sandbox' end of a new pipe in the place of one that was captured; the other is ours. */
static int make_pipe(struct session *session, struct run *run, const struct live_pipe *pipe, int *ret_end) {
    int ends[2];
    struct stat st;

    if (run && (pipe->slot == 1 || pipe->slot == 2))
        return output_open(&run->outputs[pipe->slot - 1], run, ret_end);
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    *ret_end = ends[pipe->is_written];
    stream_let_open(session->engine, *ret_end);
    int ours = ends[!pipe->is_written];
    if (run) {
        run->pipes[pipe->slot] = (struct run_pipe){ .inode = fstat(ours, &st) == 0 ? st.st_ino : 0, .is_written = pipe->is_written, .kept = ours };
    } else if (pipe->is_written) {
        (void)fcntl(ours, F_SETFL, O_NONBLOCK);
        sink_add(session->engine, session->number, ours);
    } else
        close(ours);
    return 0;
}

int live_restore(struct session *session, struct rollbox_error *error) {
    const struct live *live = session->restores;
    const bool amends = live_amends(live, session->box);
    auto_free struct run **runs = calloc(live->n_commands + 1, sizeof *runs);
    auto_buf struct buf message = BUF_INIT;
    int ends[FD_MESSAGE_MAX_FDS], r = !runs ? -ENOMEM : amends || session->box->prepared_from == live ? 0 : -ESTALE;
    size_t n = 0;

    wire_begin(&message, GUEST_RESTORE, 0);
    for (size_t i = 0; i < live->n_commands && r == 0; i++) {
        runs[i] = run_adopt(session, &live->commands[i]);
        if (!runs[i]) {
            r = -ENOMEM;
            break;
        }
        wire_add_u64(&message, GUEST_TARGET, runs[i]->exec);
        wire_add_u64(&message, GUEST_PROCESS, (uint64_t)live->commands[i].pid);
    }
    for (size_t i = 0; i < live->n_pipes && r == 0; i++) {
        const struct live_pipe *pipe = &live->pipes[i];

        r = make_pipe(session, pipe->command < 0 ? NULL : runs[pipe->command], pipe, &ends[n]);
        n += r == 0;
    }
    if (r == 0 && !buf_failed(&message))
        ((struct wire_header *)(void *)message.data)->flags |= (session->is_trial ? GUEST_RESTORE_TRIAL : 0) | (amends ? GUEST_RESTORE_AMENDS : 0);
    if (r == 0 && amends) {
        r = MIN(ends[n] = live_open_to_read(live->image), 0);
        n += r == 0;
    }
    const int consumed = r == 0 ? sleep_consume(session, error) : 0;
    if (r == 0 && consumed == 0)
        r = wire_send_patiently(session->box->socket, &message, ends, n);
    while (n)
        close(ends[--n]);
    if (consumed < 0)
        return consumed;
    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "restore", "the processes of the snapshot cannot be handed to the sandbox: %s", strerror(-r));
    box_count_files(session->box);
    box_expect_start(session->box);
    return 0;
}

static struct run *run_of(struct session *session, pid_t pid) {
    list_for_each(node, &session->runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->main_pid == pid && run->state == RUN_STARTING)
            return run;
    }
    return NULL;
}

int live_take_terminals(struct session *session, int *fds, size_t n_fds) {
    const struct live *live = session->restores;
    int r = 0;

    if (!live || n_fds != live->n_terminals)
        return live ? -EPROTO : 0;
    for (size_t i = 0; i < n_fds && r == 0; i++) {
        int command = live->terminals[i], master = TAKE_FD(fds[i]);
        struct run *run = command < 0 ? NULL : run_of(session, live->commands[command].pid);

        if (run)
            r = output_adopt(&run->outputs[0], master);
        else if (fcntl(master, F_SETFL, O_NONBLOCK) == 0)
            sink_add(session->engine, session->number, master);
        else
            close(master);
    }
    return r;
}

void live_restored(struct session *session) {
    struct guest_record started = { .kind = GUEST_STARTED };
    const uint64_t bytes = live_memory(session->restores);

    loop_timer_clear(session->engine->loop, &session->box->deadline);
    if (session->restores->origin.woken) {
        origin_put(&session->origin);
        session->origin = origin_of(&session->restores->origin);
    }
    if (session->restores->wants_holder)
        tracking_hold(session->restores, session->program);
    session->restores = live_put(session->restores);
    session->restores_again = false;
    session->dirty = true;
    list_for_each(node, &session->runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->state == RUN_STARTING)
            run_answer(run, &started);
    }
    session_watch_restored(session, bytes);
}
