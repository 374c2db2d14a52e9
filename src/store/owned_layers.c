/* SPDX-License-Identifier: Apache-2.0 */
#include "store/owned_layers.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "policy/plan.h"
#include "store/digest.h"
#include "store/files.h"
#include "store/layer.h"
#include "store/layer_turns.h"
#include "store/store.h"
#include "store/tree_copy.h"
#include "sys/id_range.h"

#define LAST_OWNER 65534u

static struct id_range range; /* the entered one; uid_first 0: none */

/* ---- the namespace ---- */

int owned_layers_enter(struct rollbox_error *error) {
    char problem[ID_RANGE_TEXT];

    if (geteuid() == 0 || id_range_enter(&range, PLAN_MANY_FIRST, problem) == 0)
        return 0;
    return error_set(
        error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "store", "users many: %s", problem);
}

bool owned_layers_find(int store, const char *id, char ret_id[LAYER_ID_LENGTH + 1]) {
    return range.uid_first && store_layer_owned(store, id, &range, ret_id);
}

/* ---- a copy ---- */

/* Translates the owner into the entered namespace, where the sandbox's ids begin at
 * PLAN_MANY_FIRST. An owner above LAST_OWNER becomes nobody without set-id bits, as in a layer of
 * root's. Returns true in that case. */
static bool translate_owner(struct owner *owner) {
    const bool is_unmapped = owner->uid > LAST_OWNER || owner->gid > LAST_OWNER;

    if (is_unmapped)
        owner->mode &= 01777;
    owner->uid = PLAN_MANY_FIRST + MIN(owner->uid, LAST_OWNER);
    owner->gid = PLAN_MANY_FIRST + MIN(owner->gid, LAST_OWNER);
    return is_unmapped;
}

/* Copies the file capabilities of a program. Version 3 of the attribute names the root user of the
 * namespace in which they apply. */
static int copy_capability(int from, int to) {
    uint8_t value[CAPABILITY_IN_NAMESPACE_BYTES] = { 0 };
    const uint32_t root = PLAN_MANY_FIRST;
    ssize_t n = fgetxattr(from, XATTR_KEPT_CAPABILITY, value, CAPABILITY_OF_HOST_BYTES);

    if (n != CAPABILITY_OF_HOST_BYTES || value[3] != 2)
        return 0;
    value[3] = 3;
    memcpy(value + CAPABILITY_OF_HOST_BYTES, &root, sizeof root);
    return fsetxattr(to, XATTR_CAPABILITY, value, sizeof value, 0) < 0 && errno != EOPNOTSUPP
               ? -errno
               : 0;
}

struct attributes {
    int to;
    bool keeps_owner; /* the attribute is copied, because the file cannot have that owner */
};

static int copy_attribute(void *context, const char *name, const void *value, size_t length) {
    const struct attributes *attributes = context;

    if (!attributes->keeps_owner && strcmp(name, XATTR_OWNER) == 0)
        return 0;
    return fsetxattr(attributes->to, name, value, length, 0) < 0 && errno != EOPNOTSUPP ? -errno
                                                                                        : 0;
}

static int copy_metadata(const struct files_entry *entry, int from, int to) {
    struct attributes attributes = { .to = to };
    struct owner owner;

    files_owner(from, &entry->st, &owner);
    attributes.keeps_owner = translate_owner(&owner);
    if (fchown(to, owner.uid, owner.gid) < 0 || fchmod(to, owner.mode) < 0)
        return -errno;
    int r = files_xattrs(from, copy_attribute, &attributes);
    return r < 0 ? r : copy_capability(from, to);
}

/* Symbolic links, FIFOs and whiteouts have no attribute that names an owner. They belong to the
 * sandbox's root. */
static int give_name(const struct files_entry *entry, int parent, const char *name) {
    (void)entry;
    return fchownat(parent, name, PLAN_MANY_FIRST, PLAN_MANY_FIRST, AT_SYMLINK_NOFOLLOW) < 0
               ? -errno
               : 0;
}

static const struct tree_copy_rules rules = { .give = copy_metadata, .give_name = give_name };

/* ---- the layers ---- */

static void derive_copy_id(const char *id, char ret_id[LAYER_ID_LENGTH + 1]) {
    struct digest digest;

    digest_init(&digest);
    digest_add_sized(&digest, "rollbox layer with owners 1", 27);
    digest_add_sized(&digest, id, strlen(id));
    digest_add_u64(&digest, range.uid_first);
    digest_add_u64(&digest, range.gid_first);
    digest_end_hex(&digest, ret_id);
}

/* Writes the reference by which the engine finds the copy: "UID GID ID\n". It is written last, when
 * the copy is complete. */
static int write_reference(
    const struct work *work, const char *id, const char *copy, struct rollbox_error *error) {
    char text[LAYER_ID_LENGTH + 32];
    auto_free char *path = NULL;

    snprintf(
        text, sizeof text, "%" PRIu32 " %" PRIu32 " %s\n", range.uid_first, range.gid_first, copy);
    if (asprintf(&path, "layers/%s/" LAYER_OWNED_NAME, id) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
    int r = layer_write_file(work->fd, LAYER_OWNED_NAME, text, error);
    if (r == 0 && renameat(work->fd, LAYER_OWNED_NAME, work->store, path) < 0)
        r = error_set(error, error_code_of(errno, ROLLBOX_ERR_IO), errno, "store",
            "cannot write %s: %s", path, strerror(errno));
    return r;
}

static int make_copy(const struct work *work, const char *id, int from, bool *ret_is_new,
    struct rollbox_error *error) {
    struct layer_meta meta = { 0 };
    auto_close int lock = -EBADF;
    char copy[LAYER_ID_LENGTH + 1];

    derive_copy_id(id, copy);
    auto_free char *damage = store_layer_damage(work->store, copy);
    if (!damage && store_layer_lock(work->store, copy, &lock) == 0)
        return write_reference(work, id, copy, error);
    if (layer_meta_read(work->store, id, &meta) < 0 || mkdirat(work->fd, "L", 0700) < 0 ||
        mkdirat(work->fd, "L/fs", 0700) < 0)
        return error_set(error, error_code_of(errno, ROLLBOX_ERR_IO), errno, "store",
            "cannot copy layer %.12s: %s", id, strerror(errno));
    auto_close int to = openat(work->fd, "L/fs", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct tree_digest before = meta.tree;
    int r = to < 0 ? -errno : tree_copy(from, to, &rules, error);
    if (r == 0)
        r = tree_digest(to, &meta.tree, error);
    /* A tree's digest leaves out the owners, so the copy has the original's digest. */
    if (r == 0 && strcmp(before.hex, meta.tree.hex) != 0)
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "store",
            "layer %.12s is damaged: its files differ from the imported files; remove the image "
            "and import it again",
            id);
    memcpy(meta.id, copy, sizeof meta.id);
    if (r == 0)
        r = layer_publish(work, "L", &meta, &lock, error);
    *ret_is_new = true;
    return r < 0 ? r : write_reference(work, id, copy, error);
}

/* Of processes that copy the same layer at the same time, one does it and the others wait. The
 * turns end with the descriptor. */
static int take_turns(
    int store, const struct manifest *manifest, int *ret_turns, struct rollbox_error *error) {
    const size_t n = manifest->n_layers;
    auto_free char(*copies)[LAYER_ID_LENGTH + 1] = calloc(n + 1, sizeof *copies);
    auto_free char **ids = calloc(n + 1, sizeof *ids);
    auto_close int turns = layer_turns_open(store);
    int r = copies && ids ? MIN(turns, 0) : -ENOMEM;

    for (size_t i = 0; r == 0 && i < n; i++) {
        derive_copy_id(manifest->layers[i], copies[i]);
        ids[i] = copies[i];
    }
    if (r == 0)
        r = layer_turns_take(turns, ids, n);
    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "store",
            "cannot lock the image's layers: %s", strerror(-r));
    *ret_turns = TAKE_FD(turns);
    return 0;
}

int owned_layers_make(
    int store, const char *path, const char *name, json_t **ret_json, struct rollbox_error *error) {
    struct store_image *image = NULL;
    auto_close int turns = -EBADF;
    json_int_t n_new = 0;
    const size_t prefix = strlen(STORE_SNAPSHOT);
    int r = strncmp(name, STORE_SNAPSHOT, prefix) == 0
                ? store_snapshot(path, name + prefix, &image, error)
                : store_image(path, name, &image, error);

    if (r == 0)
        r = take_turns(store, &image->manifest, &turns, error);
    for (size_t i = 0; r == 0 && i < image->manifest.n_layers; i++) {
        struct work work = WORK_NONE;
        bool is_new = false;
        auto_close int from =
            openat(image->fs_fds[i], ".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

        r = from < 0 ? error_set(error, ROLLBOX_ERR_IO, errno, "store", "cannot open a layer: %s",
                           strerror(errno))
                     : work_begin(store, &work, error);
        if (r == 0)
            r = make_copy(&work, image->manifest.layers[i], from, &is_new, error);
        work_done(&work);
        n_new += is_new;
    }
    if (r == 0)
        *ret_json =
            json_pack("{s:I, s:I}", "layers", (json_int_t)image->manifest.n_layers, "new", n_new);
    store_image_free(image);
    return r;
}
