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
#include "engine/flatten.h"
#include "engine/session.h"

#define MAX_HOLDERS 32 /* each has a copy of its image */

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
    if (checkpoint->flattening)
        checkpoint->flattening->cancel(checkpoint);
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

/* A group counts what init keeps, as each page, once. Who looks without one counts it again, so the
 * first look must be late, and the limit out of reach until then. */
bool checkpoint_may_be_kept(const struct checkpoint *checkpoint, const struct box *box) {
    const uint64_t limit = box->profile->policy->max_memory_bytes,
                   bytes = checkpoint_memory(checkpoint);

    return bytes &&
           (box->slot || (bytes < limit / 3 && run_filling_ns(checkpoint->engine,
                                                   limit - 3 * bytes) >= CHECKPOINT_REST_NS));
}
