/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that go on in another sandbox.
 *
 * What was captured (dump_job.c) is held by a *holder*, a clone of the program's launcher that has
 * the image in its memory: it is started when a state with processes is forked or reset to for the
 * first time, serves as many boxes as are wanted, and goes with the state, or when others are
 * wanted more. The one box of a fork of what runs does without: it is made while the image is
 * written, and loads that itself. In each box init is told, once, which of its processes are
 * commands, and gets a new pipe for each one that led out of the captured sandbox. From then on
 * those commands are runs like any other, only that nobody waits for them: what is to be written to
 * them and read from them, beside their output, lies ready until a client claims it.
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
#include "base/utf8.h"
#include "engine/session.h"

#define MAX_HOLDERS 32     /* each has a copy of its image */
#define DEMAND_NS 10000000 /* less than this apart is one after the other */

struct checkpoint *checkpoint_new(struct engine *engine) {
    struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);

    if (!checkpoint)
        return NULL;
    checkpoint->engine = engine;
    checkpoint->references = 1;
    checkpoint->image = checkpoint->flat_image = checkpoint->progress = -EBADF;
    list_init(&checkpoint->node);
    return checkpoint;
}

struct checkpoint *checkpoint_get(struct checkpoint *checkpoint) {
    checkpoint->references++;
    return checkpoint;
}

struct checkpoint *checkpoint_put(struct checkpoint *checkpoint) {
    if (!checkpoint || --checkpoint->references)
        return NULL;
    if (checkpoint->preforked)
        box_kill(checkpoint->preforked);
    if (checkpoint->zygote)
        launcher_stop(checkpoint->zygote);
    flatten_free(checkpoint->making);
    close_fd(&checkpoint->image);
    close_fd(&checkpoint->flat_image);
    close_fd(&checkpoint->progress);
    checkpoint_put(checkpoint->parent);
    backing_ref_put(&checkpoint->backing_ref);
    for (size_t i = 0; i < checkpoint->n_commands; i++)
        free(checkpoint->commands[i].description);
    free(checkpoint->commands);
    free(checkpoint->pipes);
    free(checkpoint->terminals);
    free(checkpoint);
    return NULL;
}

/* ---- images ---- */

/* A launcher makes the place for them, which takes rights that the engine may not have; the first
 * image does not wait for it. */
static void request_image_fs(struct engine *engine, struct profile *profile) {
    auto_buf struct buf message = BUF_INIT;

    if (engine->image_fs_requested || !profile->launcher)
        return;
    wire_begin(&message, GUEST_IMAGE_FS, 0);
    engine->image_fs_requested = wire_send(profile->launcher->socket, &message, NULL, 0) == 0;
}

/* It belongs to the launcher's range of ids, and what is in it must, too. */
static int open_in_image_fs(const struct engine *engine) {
    if (engine->image_fs < 0)
        return -1;
    if (engine->pool_id) {
        setfsgid(engine->pool_id);
        setfsuid(engine->pool_id);
    }
    int fd = openat(engine->image_fs, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (engine->pool_id) {
        setfsuid(0);
        setfsgid(0);
    }
    return fd;
}

int checkpoint_new_image(struct profile *profile) {
    struct engine *engine = profile->engine;
    int fd = open_in_image_fs(engine);

    request_image_fs(engine, profile);
    return fd < 0 ? checkpoint_new_small_image() : fd;
}

int checkpoint_new_small_image(void) {
    int fd = memfd_create("rollbox-image", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    return fd < 0 ? -errno : fd;
}

int checkpoint_image(const struct checkpoint *checkpoint) {
    return checkpoint->parent ? checkpoint->flat_image : checkpoint->image;
}

uint64_t checkpoint_memory(const struct checkpoint *checkpoint) {
    return !checkpoint->parent ? checkpoint->bytes
           : checkpoint->flat_image >= 0
               ? checkpoint->flat_bytes
               : checkpoint_memory(checkpoint->parent) + checkpoint->bytes;
}

bool checkpoint_is_incremental_on(const struct checkpoint *checkpoint, const struct box *box) {
    return checkpoint->parent && box->restored_image == checkpoint->parent;
}

struct checkpoint *checkpoint_backing_ref(struct checkpoint *checkpoint) {
    return checkpoint->parent && checkpoint->flat_image < 0 ? checkpoint->parent : checkpoint;
}

int checkpoint_open_to_read(int image) {
    char path[32];

    snprintf(path, sizeof path, "/proc/self/fd/%d", image);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* Only memory files can be sealed, and not while the kernel has one of their pages in hand; of
 * another nobody has a descriptor that could be written to, once this one is exchanged. */
int checkpoint_seal_image(int *fd) {
    if (fcntl(*fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0)
        return 0;
    if (errno != EPERM && errno != EINVAL && errno != EBUSY)
        return -errno;
    int again = checkpoint_open_to_read(*fd);
    if (again < 0)
        return again;
    close(*fd);
    *fd = again;
    return 0;
}

/* ---- in words ---- */

void checkpoint_command_text(
    const struct checkpoint_command *command, const char **between, struct buf *to) {
    buf_printf(to, "%s{\"id\": ", *between);
    json_add_string(to, command->operation, command->operation_length);
    buf_add_text(to, ", \"command\": ");
    json_add_string(
        to, command->description, command->description ? strlen(command->description) : 0);
    buf_printf(to, ", \"pid\": %d, \"timeout_ms\": ", (int)command->pid);
    if (command->timeout_ms)
        buf_printf(to, "%lld}", (long long)command->timeout_ms);
    else
        buf_add_text(to, "null}");
    *between = ", ";
}

/* ---- holders ---- */

void checkpoint_zygote_gone(struct checkpoint *checkpoint) {
    checkpoint->zygote = NULL;
    list_remove(&checkpoint->node);
    checkpoint->engine->n_zygotes--;
}

/* The longest unused, but for those that are at work. */
static void drop_zygotes(struct engine *engine, unsigned keep) {
    list_for_each(node, &engine->zygotes) {
        struct checkpoint *checkpoint = container_of(node, struct checkpoint, node);

        if (engine->n_zygotes <= keep)
            return;
        if (list_empty(&checkpoint->zygote->creating))
            launcher_stop(checkpoint->zygote);
    }
}

void checkpoint_drop_zygotes(struct engine *engine) {
    drop_zygotes(engine, 0);
}

int checkpoint_zygote(struct checkpoint *checkpoint, struct profile *profile,
    struct launcher **ret_zygote, struct rollbox_error *error) {
    struct engine *engine = checkpoint->engine;

    checkpoint = checkpoint_backing_ref(checkpoint);
    if (!checkpoint->zygote) {
        drop_zygotes(engine, MAX_HOLDERS - 1);
        int r = zygote_start(profile, checkpoint, error);
        if (r < 0)
            return r;
        engine->n_zygotes++;
    }
    list_remove(&checkpoint->node);
    list_add_tail(&engine->zygotes, &checkpoint->node);
    *ret_zygote = checkpoint->zygote;
    return 0;
}

/* From the second one on: what is done once is often not done again. With a seed or clocks of its
 * own nothing is to depend on when a box was made. An addition is put together first, where one
 * work after the other wants it. */
void checkpoint_prefork(
    struct checkpoint *checkpoint, struct profile *profile, struct snapshot *base) {
    struct engine *engine = checkpoint->engine;
    struct launcher *zygote;
    struct rollbox_error error;
    struct box *box;

    if (++checkpoint->n_restored < 2 || checkpoint->preforked || checkpoint->references < 2 ||
        engine->stopping || engine->n_queued || profile->plan->flags & (PLAN_SEED | PLAN_CLOCK) ||
        !box_has_room(engine))
        return;
    if (checkpoint_backing_ref(checkpoint) != checkpoint) {
        if (checkpoint->n_uses >= 2)
            flatten_later(checkpoint, profile);
        return;
    }
    /* What goes wrong the next one will meet and tell. */
    if (checkpoint_zygote(checkpoint, profile, &zygote, &error) == 0 &&
        box_new(profile,
            &(struct box_options){ .base = base, .zygote = zygote, .notes = checkpoint->notes },
            &box, &error) == 0)
        box_set_preforked(box, checkpoint);
}

/* Of what is taken one after the other, a box that is taken is most likely not ready yet, and the
 * next begins while it gets there; else that would only take its processors. */
bool checkpoint_is_in_demand(struct checkpoint *checkpoint) {
    const int64_t before_ns = checkpoint->taken_ns;

    checkpoint->taken_ns = clock_now_ns();
    return checkpoint->taken_ns - before_ns < DEMAND_NS;
}

void checkpoint_load_box(
    struct checkpoint *checkpoint, struct profile *profile, struct snapshot *base) {
    struct box *box;

    /* What goes wrong a holder will meet and tell. */
    if (checkpoint->preforked || !box_has_room(checkpoint->engine) ||
        box_new(profile,
            &(struct box_options){ .base = base, .loads = checkpoint, .notes = checkpoint->notes },
            &box, NULL) < 0)
        return;
    close_fd(&checkpoint->progress); /* it has the other copy */
    box_set_preforked(box, checkpoint);
}

/* A group counts what init keeps, as each page, once. Who looks without one counts it again, so the
 * first look must be late, and the limit out of reach until then. */
bool checkpoint_may_be_kept(const struct checkpoint *checkpoint, const struct box *box) {
    const uint64_t limit = box->profile->policy->max_memory_bytes,
                   bytes = checkpoint_memory(checkpoint);

    return bytes &&
           (box->slot || (bytes < limit / 3 && run_filling_ns(checkpoint->engine,
                                                   limit - 3 * bytes) >= CHECKPOINT_REST_NS));
}

/* ---- going on ---- */

/* The sandbox's end of a new pipe in the place of one that was captured; the other is ours. */
static int make_pipe(
    struct session *session, struct run *run, const struct checkpoint_pipe *pipe, int *ret_end) {
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
        run->pipes[pipe->slot] = (struct run_pipe){ .inode = fstat(ours, &st) == 0 ? st.st_ino : 0,
            .is_written = pipe->is_written,
            .kept = ours };
    } else if (pipe->is_written) {
        (void)fcntl(ours, F_SETFL, O_NONBLOCK);
        drain_add(session->engine, session->number, ours);
    } else
        close(ours);
    return 0;
}

int checkpoint_restore(struct session *session, struct rollbox_error *error) {
    const struct checkpoint *checkpoint = session->pending_restore;
    const bool applies_incremental = checkpoint_is_incremental_on(checkpoint, session->box);
    auto_free struct run **runs = calloc(checkpoint->n_commands + 1, sizeof *runs);
    auto_buf struct buf message = BUF_INIT;
    int ends[FD_MESSAGE_MAX_FDS],
        r = !runs                                                               ? -ENOMEM
            : applies_incremental || session->box->restored_image == checkpoint ? 0
                                                                                : -ESTALE;
    size_t n = 0;

    wire_begin(&message, GUEST_RESTORE, 0);
    for (size_t i = 0; i < checkpoint->n_commands && r == 0; i++) {
        runs[i] = run_adopt(session, &checkpoint->commands[i]);
        if (!runs[i]) {
            r = -ENOMEM;
            break;
        }
        wire_add_u64(&message, GUEST_TARGET, runs[i]->exec);
        wire_add_u64(&message, GUEST_PROCESS, (uint64_t)checkpoint->commands[i].pid);
    }
    for (size_t i = 0; i < checkpoint->n_pipes && r == 0; i++) {
        const struct checkpoint_pipe *pipe = &checkpoint->pipes[i];

        r = make_pipe(session, pipe->command < 0 ? NULL : runs[pipe->command], pipe, &ends[n]);
        n += r == 0;
    }
    if (r == 0 && !buf_failed(&message))
        ((struct wire_header *)(void *)message.data)->flags |=
            (session->is_dry_run ? GUEST_RESTORE_TRIAL : 0) |
            (applies_incremental ? GUEST_RESTORE_INCREMENTAL : 0);
    if (r == 0 && applies_incremental) {
        r = MIN(ends[n] = checkpoint_open_to_read(checkpoint->image), 0);
        n += r == 0;
    }
    if (r == 0)
        r = wire_send_patiently(session->box->socket, &message, ends, n);
    while (n)
        close(ends[--n]);
    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "restore",
            "the processes of the snapshot cannot be handed to the sandbox: %s", strerror(-r));
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

int checkpoint_take_terminals(struct session *session, int *fds, size_t n_fds) {
    const struct checkpoint *checkpoint = session->pending_restore;
    int r = 0;

    if (!checkpoint || n_fds != checkpoint->n_terminals)
        return checkpoint ? -EPROTO : 0;
    for (size_t i = 0; i < n_fds && r == 0; i++) {
        int command = checkpoint->terminals[i], master = TAKE_FD(fds[i]);
        struct run *run = command < 0 ? NULL : run_of(session, checkpoint->commands[command].pid);

        if (run)
            r = output_adopt(&run->outputs[0], master);
        else if (fcntl(master, F_SETFL, O_NONBLOCK) == 0)
            drain_add(session->engine, session->number, master);
        else
            close(master);
    }
    return r;
}

void checkpoint_restored(struct session *session) {
    struct guest_record started = { .kind = GUEST_STARTED };
    const uint64_t bytes = checkpoint_memory(session->pending_restore);

    loop_timer_clear(session->engine->loop, &session->box->deadline);
    if (session->pending_restore->backing_ref.backing) {
        backing_ref_put(&session->backing_ref);
        session->backing_ref = backing_ref_of(&session->pending_restore->backing_ref);
    }
    if (session->pending_restore->wants_zygote)
        dirty_tracking_start_zygote(session->pending_restore, session->profile);
    session->pending_restore = checkpoint_put(session->pending_restore);
    session->restores_again = false;
    session->dirty = true;
    list_for_each(node, &session->runs) {
        struct run *run = container_of(node, struct run, of_session);

        if (run->state == RUN_STARTING)
            run_answer(run, &started);
    }
    session_watch_restored(session, bytes);
}
