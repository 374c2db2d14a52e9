/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The launcher of a profile, and the boxes that it makes.
 *
 * A profile has at most one launcher, started when it is needed and again when it was lost. What
 * sandboxes have written outlives the launcher in their layers, and only a launcher in the same
 * user namespace can mount these again: the profile keeps that namespace.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "engine/box/box.h"
#include "engine/box/launcher.h"
#include "engine/box/own_mounts.h"
#include "engine/core/context.h"
#include "engine/core/many_ids.h"
#include "engine/pool/host_view.h"
#include "engine/pool/profile_launcher.h"
#include "engine/pool/spares.h"

struct path_identities *profile_path_identities(struct profile *profile) {
    return profile->base ? &profile->base->path_identities : &profile->path_identities;
}

static void keep_namespace(struct profile *profile, const struct launcher *launcher, int *fds) {
    if (profile->launcher != launcher || profile->user_namespace.fd >= 0)
        return;
    profile->user_namespace = (struct launcher_namespace){
        .fd = TAKE_FD(fds[0]), .id_base = launcher->id_base, .number = launcher->number
    };
}

static void on_ready(void *owner, struct launcher *launcher, const struct guest_record *record,
    int *fds, size_t n_fds) {
    struct profile *profile = owner;

    if (n_fds >= 1)
        keep_namespace(profile, launcher, fds);
    list_for_each(node, &profile->engine->boxes.all) {
        struct box *box = container_of(node, struct box, node);

        if (box->profile == profile && box->creation.launcher == launcher->number)
            own_mounts_ready(box, launcher); /* a zygote of it may make that box */
    }
    path_identities_bound(profile_path_identities(profile), profile->plan, record->value);
}

/* Files of its spares could not be copied without it. */
static void on_lost(void *owner, struct launcher *launcher) {
    struct profile *profile = owner;

    if (profile->launcher != launcher)
        return;
    profile->launcher = NULL;
    spares_drop(profile);
}

static const struct launcher_owner_ops owner_ops = { .ready = on_ready, .lost = on_lost };

/* An ordinary user's launchers with many users enter the one that has the ids. */
static int choose_namespace(struct profile *profile, struct rollbox_error *error) {
    struct engine *engine = profile->engine;

    if (!many_ids_has(profile->plan) || profile->user_namespace.fd >= 0)
        return 0;
    int fd = fcntl(many_ids_namespace(engine), F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, errno, "setup",
            "the user namespace of users many cannot be kept: %s", strerror(errno));
    profile->user_namespace =
        (struct launcher_namespace){ .fd = fd, .number = ++engine->launchers.next_number };
    return 0;
}

int profile_start_launcher(struct profile *profile, struct rollbox_error *error) {
    if (profile->launcher)
        return 0;
    path_identities_expect(profile_path_identities(profile), profile->plan);
    int r = choose_namespace(profile, error);
    if (r < 0)
        return r;
    r = launcher_start(profile->engine, profile->plan, &profile->user_namespace, &owner_ops,
        profile, &profile->launcher, error);
    if (r < 0)
        return r;
    if (profile->load_image && (r = profile->load_image(profile)) < 0) {
        profile_stop_launcher(profile);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_SETUP_FAILED), -r, "setup",
            "the interpreter's image cannot be sent: %s", strerror(-r));
    }
    return 0;
}

void profile_stop_launcher(struct profile *profile) {
    struct launcher *launcher = TAKE_PTR(profile->launcher);

    if (launcher)
        launcher_stop(launcher);
}

int profile_new_box(struct profile *profile, const struct box_config *config,
    const struct box_owner_ops *ops, void *owner, struct box **ret_box,
    struct rollbox_error *error) {
    struct engine *engine = profile->engine;

    if (!box_has_room(engine))
        engine->hooks.make_room(engine);
    int r = config->launcher ? 0 : profile_start_launcher(profile, error);
    return r < 0 ? r : box_new(profile, config, ops, owner, ret_box, error);
}
