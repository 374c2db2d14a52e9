/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that resume in another sandbox.
 *
 * A checkpoint (dump_job.c) is held by a *zygote*, a clone of the profile's launcher that has the
 * image in its memory. The first fork of a snapshot with processes, or reset to it, starts the
 * zygote. It serves any number of boxes, and ends with the snapshot, or when others need its place.
 *
 * In each box init learns once which of its processes are commands, and gets a new pipe for each
 * one that led out of the dumped sandbox. From then on those commands are runs like any other, but
 * no client waits for them: the other ends of their pipes are kept until a client claims them.
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
#include "engine/box/box.h"
#include "engine/box/launcher.h"
#include "engine/box/profile.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/flatten.h"
#include "engine/core/context.h"
#include "engine/pool/profile_launcher.h"
#include "engine/pool/spares.h"
#include "engine/store_job/backing.h"
#include "guest/guest.h"

#define MAX_HOLDERS 32 /* each has a copy of its image */

struct checkpoint *checkpoint_new(struct engine *engine) {
    struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);

    if (!checkpoint)
        return NULL;
    checkpoint->engine = engine;
    checkpoint->references = 1;
    checkpoint->image = checkpoint->flat.image = checkpoint->progress = -EBADF;
    list_init(&checkpoint->node);
    return checkpoint;
}

struct checkpoint *checkpoint_get(struct checkpoint *checkpoint) {
    checkpoint->references++;
    return checkpoint;
}

static void forget_zygote(struct checkpoint *checkpoint) {
    checkpoint->zygote = NULL;
    list_remove(&checkpoint->node);
    checkpoint->engine->zygotes.n--;
}

static void stop_zygote(struct checkpoint *checkpoint) {
    struct launcher *zygote = checkpoint->zygote;

    forget_zygote(checkpoint);
    launcher_stop(zygote);
}

struct checkpoint *checkpoint_put(struct checkpoint *checkpoint) {
    if (!checkpoint || --checkpoint->references)
        return NULL;
    preforked_drop(checkpoint);
    if (checkpoint->zygote)
        stop_zygote(checkpoint);
    if (checkpoint->flat.job)
        checkpoint->flat.job->cancel(checkpoint);
    close_fd(&checkpoint->image);
    close_fd(&checkpoint->flat.image);
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

/* The file system for images of processes. */
static struct {
    int fd; /* -EBADF: none yet */
    bool requested;
    uint32_t id; /* its owner; 0: the engine's own */
    struct launcher_job job;
} image_fs = { .fd = -EBADF };

/* A launcher makes the place for them, which takes rights that the engine may not have; the first
 * image does not wait for it. */
static void on_image_fs(void *data, const struct launcher_result *result) {
    (void)data;
    const bool is_made = result->record->kind == GUEST_IMAGE_FS_MADE && !result->record->error;

    if (is_made && result->n_fds == 1) {
        image_fs.fd = TAKE_FD(result->fds[0]);
        image_fs.id = image_fs.job.launcher->id_base;
    }
    image_fs.requested = result->record->error != EMFILE; /* there may be room for the next */
}

static void request_image_fs(struct profile *profile) {
    auto_buf struct buf message = BUF_INIT;

    if (image_fs.requested || !profile->launcher)
        return;
    list_init(&image_fs.job.node);
    launcher_begin(profile->launcher, &image_fs.job, GUEST_IMAGE_FS, &message);
    image_fs.requested =
        launcher_try_send(profile->launcher, &image_fs.job, &message, on_image_fs, NULL) == 0;
}

/* The file system and its files must belong to the launcher's range of ids. */
static int open_in_image_fs(void) {
    if (image_fs.fd < 0)
        return -1;
    if (image_fs.id) {
        setfsgid(image_fs.id);
        setfsuid(image_fs.id);
    }
    int fd = openat(image_fs.fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (image_fs.id) {
        setfsuid(0);
        setfsgid(0);
    }
    return fd;
}

int checkpoint_new_image(struct profile *profile) {
    int fd = open_in_image_fs();

    request_image_fs(profile);
    return fd < 0 ? checkpoint_new_small_image() : fd;
}

int checkpoint_new_small_image(void) {
    int fd = memfd_create("rollbox-image", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    return fd < 0 ? -errno : fd;
}

int checkpoint_image(const struct checkpoint *checkpoint) {
    return checkpoint->parent ? checkpoint->flat.image : checkpoint->image;
}

uint64_t checkpoint_memory(const struct checkpoint *checkpoint) {
    return !checkpoint->parent ? checkpoint->bytes
           : checkpoint->flat.image >= 0
               ? checkpoint->flat.bytes
               : checkpoint_memory(checkpoint->parent) + checkpoint->bytes;
}

bool checkpoint_is_incremental_on(const struct checkpoint *checkpoint, const struct box *box) {
    return checkpoint->parent && box->lower.restored_image == checkpoint->parent;
}

struct checkpoint *checkpoint_backing_ref(struct checkpoint *checkpoint) {
    return checkpoint->parent && checkpoint->flat.image < 0 ? checkpoint->parent : checkpoint;
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

/* ---- zygotes ---- */

static void on_zygote_lost(void *owner, struct launcher *zygote) {
    struct checkpoint *checkpoint = owner;

    if (checkpoint->zygote == zygote)
        forget_zygote(checkpoint);
}

static const struct launcher_owner_ops zygote_owner_ops = { .lost = on_zygote_lost };

static int start_zygote(
    struct checkpoint *checkpoint, struct profile *profile, struct rollbox_error *error) {
    int r = profile_start_launcher(profile, error);

    if (r < 0)
        return r;
    /* The image may be written yet, but not by a process that reads what a guest chose. */
    auto_close int image = checkpoint_open_to_read(checkpoint_image(checkpoint));
    r = image < 0 ? image
                  : zygote_start(profile->launcher, image, checkpoint->progress, &zygote_owner_ops,
                        checkpoint, &checkpoint->zygote);
    close_fd(&checkpoint->progress); /* there is one to listen, or none */
    return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "restore",
                       "the snapshot cannot be held in memory: %s", strerror(-r))
                 : 0;
}

/* The longest unused, but for those that are at work. */
static void drop_zygotes(struct engine *engine, unsigned keep) {
    list_for_each(node, &engine->zygotes.all) {
        struct checkpoint *checkpoint = container_of(node, struct checkpoint, node);

        if (engine->zygotes.n <= keep)
            return;
        if (!launcher_is_creating(checkpoint->zygote))
            stop_zygote(checkpoint);
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
        int r = start_zygote(checkpoint, profile, error);
        if (r < 0)
            return r;
        engine->zygotes.n++;
    }
    list_remove(&checkpoint->node);
    list_add_tail(&engine->zygotes.all, &checkpoint->node);
    *ret_zygote = checkpoint->zygote;
    return 0;
}

/* A memory cgroup counts the pages that init keeps once. Polling without a cgroup counts them
 * again, so the first poll must be late, and the limit out of reach until then. */
static bool may_be_kept(const struct checkpoint *checkpoint, const struct profile *profile) {
    const bool has_group = cgroup_root_backend(checkpoint->engine->cgroups) != CGROUP_NONE;
    const uint64_t limit = profile->policy->max_memory_bytes, bytes = checkpoint_memory(checkpoint);

    return bytes &&
           (has_group || (bytes < limit / 3 && run_filling_ns(checkpoint->engine,
                                                   limit - 3 * bytes) >= CHECKPOINT_REST_NS));
}

void checkpoint_zygote_config(
    const struct checkpoint *checkpoint, const struct profile *profile, struct box_config *config) {
    config->launcher = checkpoint->zygote;
    config->restored_image = checkpoint;
    config->keeps_image = may_be_kept(checkpoint, profile);
}
