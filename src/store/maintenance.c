/* SPDX-License-Identifier: Apache-2.0 */
#include "store/maintenance.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "store/disk_uppers.h"
#include "store/downloads.h"
#include "store/fault.h"
#include "store/files.h"
#include "store/layer.h"
#include "store/manifests.h"
#include "store/owned_layers.h"
#include "store/hibernated_gc.h"
#include "store/store.h"
#include "store/volume_job.h"

static int out_of_memory(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
}

static int fail_maintenance(struct rollbox_error *error, int r, const char *what) {
    return error_set(
        error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "store", "cannot %s: %s", what, strerror(-r));
}

static int names_in(
    int store, const char *directory, struct names *ret_names, struct rollbox_error *error) {
    auto_close int fd = openat(store, directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int r = fd < 0 ? -errno : names_read(fd, ret_names);

    return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "store",
                       "cannot read %s of the store: %s", directory, strerror(-r))
                 : 0;
}

/* ---- ls, show, rm ---- */

struct listing {
    int store;
    json_t *list;
};

static char *layer_problem(int store, const char *id, struct layer_meta *ret_meta) {
    char *text = store_layer_damage(store, id);
    int r = layer_meta_read(store, id, ret_meta);

    if (!text && r < 0 &&
        asprintf(&text, "%s", r == -ENOENT ? "missing" : "meta.json is not valid") < 0)
        text = NULL;
    return text;
}

static int list_one(
    void *context, const char *name, const struct manifest *manifest, const char *problem) {
    struct listing *listing = context;
    auto_free char *found = NULL;
    uint64_t bytes = 0, files = 0;

    for (size_t i = 0; manifest && i < manifest->n_layers; i++) {
        struct layer_meta meta = { 0 };
        auto_free char *wrong = layer_problem(listing->store, manifest->layers[i], &meta);

        if (wrong && !found && asprintf(&found, "layer %.12s: %s", manifest->layers[i], wrong) < 0)
            return -ENOMEM;
        bytes += meta.tree.bytes;
        files += meta.tree.files;
    }
    problem = problem ? problem : found;
    json_t *row = json_pack("{s:s, s:I, s:I, s:I, s:I}", "name", name, "layers",
        (json_int_t)(manifest ? manifest->n_layers : 0), "bytes", (json_int_t)bytes, "files",
        (json_int_t)files, "created", (json_int_t)(manifest ? manifest->created_s : 0));
    if (row && problem)
        json_object_set_new(row, "problem", json_string(files_printable(problem)));
    return row && json_array_append_new(listing->list, row) == 0 ? 0 : -ENOMEM;
}

int maintenance_list(int store, json_t **ret_json, struct rollbox_error *error) {
    struct listing images = { store, json_array() }, snapshots = { store, json_array() };
    int r = manifests_each(store, MANIFEST_IMAGE, list_one, &images, error);

    if (r == 0)
        r = manifests_each(store, MANIFEST_SNAPSHOT, list_one, &snapshots, error);
    json_t *both = json_pack("{s:o, s:o}", "images", images.list, "snapshots", snapshots.list);
    if (r < 0) {
        json_decref(both);
        return r;
    }
    *ret_json = both;
    return both ? 0 : out_of_memory(error);
}

enum manifest_kind maintenance_kind_of(const char **name) {
    if (strncmp(*name, KEEP_SNAPSHOT_PREFIX, strlen(KEEP_SNAPSHOT_PREFIX)) != 0)
        return MANIFEST_IMAGE;
    *name += strlen(KEEP_SNAPSHOT_PREFIX);
    return MANIFEST_SNAPSHOT;
}

int maintenance_show(int store, const char *name, json_t **ret_json, struct rollbox_error *error) {
    enum manifest_kind kind = maintenance_kind_of(&name);
    struct manifest manifest;
    int r = store_manifest(store, kind, name, &manifest, error);

    if (r < 0)
        return r;
    auto_free char *text = manifest_text(&manifest);
    json_t *root = text ? json_loads(text, 0, NULL) : NULL, *layers = json_array();
    for (size_t i = 0; root && i < manifest.n_layers; i++) {
        struct layer_meta meta = { 0 };
        auto_free char *problem = layer_problem(store, manifest.layers[i], &meta);
        json_t *row = json_pack("{s:s, s:I, s:I}", "id", manifest.layers[i], "bytes",
            (json_int_t)meta.tree.bytes, "files", (json_int_t)meta.tree.files);

        if (meta.diff_id[0])
            json_object_set_new(row, "diff_id", json_string(meta.diff_id));
        if (problem)
            json_object_set_new(row, "problem", json_string(files_printable(problem)));
        json_array_append_new(layers, row);
    }
    manifest_done(&manifest);
    if (!root || json_object_set_new(root, "layers", layers) < 0) {
        json_decref(root);
        return out_of_memory(error);
    }
    *ret_json = root;
    return 0;
}

int maintenance_remove(
    int store, const char *name, json_t **ret_json, struct rollbox_error *error) {
    enum manifest_kind kind = maintenance_kind_of(&name);
    auto_free char *file = NULL;
    auto_free char *path = NULL;

    if (!manifest_name_ok(name))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "store",
            "%.200s is not an image name", files_printable(name));
    file = manifest_file_name(name);
    if (!file || asprintf(&path, "%s/%s", store_manifest_directory(kind), file) < 0)
        return out_of_memory(error);
    if (unlinkat(store, path, 0) < 0)
        return errno == ENOENT ? error_set(error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "store",
                                     "there is no %s %s; rollbox image ls lists them",
                                     kind == MANIFEST_IMAGE ? "image" : "snapshot", name)
                               : fail_maintenance(error, -errno, "remove the manifest");
    auto_close int directory =
        openat(store, store_manifest_directory(kind), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory >= 0)
        (void)fsync(directory);
    fault_point(FAULT_manifest_removed);
    *ret_json = json_pack("{s:s}", "removed", name);
    return *ret_json ? 0 : out_of_memory(error);
}

/* ---- gc ---- */

struct references {
    int store;
    json_t *ids;   /* an object used as a set */
    char *problem; /* a manifest whose references are not known */
    uint64_t images;
};

static int add_reference(
    const struct references *references, const char *id, const struct manifest *manifest) {
    json_t *users = json_object_get(references->ids, id);

    if (!users && json_object_set_new(references->ids, id, users = json_array()) < 0)
        return -ENOMEM;
    return json_array_append_new(users,
               json_sprintf("%s%s", manifest->kind == MANIFEST_SNAPSHOT ? KEEP_SNAPSHOT_PREFIX : "",
                   manifest->name)) < 0
               ? -ENOMEM
               : 0;
}

/* A layer's copy with owners is kept with it. */
static int add_references(
    void *context, const char *name, const struct manifest *manifest, const char *problem) {
    struct references *references = context;

    references->images++;
    if (problem && !references->problem &&
        asprintf(&references->problem, "%s: %s", name, problem) < 0)
        return -ENOMEM;
    for (size_t i = 0; manifest && i < manifest->n_layers; i++) {
        char owned[LAYER_ID_LENGTH + 1];
        int r = add_reference(references, manifest->layers[i], manifest);

        if (r == 0 && owned_layers_find(references->store, manifest->layers[i], owned))
            r = add_reference(references, owned, manifest);
        if (r < 0)
            return r;
    }
    return 0;
}

static int find_references(int store, struct references *ret_references, uint64_t *ret_images,
    struct rollbox_error *error) {
    struct references references = { .store = store, .ids = json_object() };
    int r = references.ids
                ? manifests_each(store, MANIFEST_IMAGE, add_references, &references, error)
                : out_of_memory(error);

    if (ret_images)
        *ret_images = references.images;
    if (r == 0)
        r = manifests_each(store, MANIFEST_SNAPSHOT, add_references, &references, error);
    if (r < 0) {
        json_decref(references.ids);
        free(references.problem);
        return r;
    }
    *ret_references = references;
    return 0;
}

static void references_done(struct references *references) {
    json_decref(references->ids);
    free(references->problem);
}

/* 1: moved to trash/; 0: in use. */
static int collect_layer(int store, const char *id, uint64_t *freed) {
    struct layer_meta meta = { 0 };
    auto_free char *path = NULL;
    auto_close int fd = -EBADF;
    int r;

    if (asprintf(&path, "layers/%s/meta.json", id) < 0)
        return -ENOMEM;
    (void)layer_meta_read(store, id, &meta);
    fd = openat(store, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT)
        return -errno; /* whether it is in use is unknown */
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? 0 : -errno;
    r = layer_to_trash(store, "layers", id);
    if (r < 0)
        return r;
    *freed += meta.tree.bytes;
    fault_point(FAULT_gc_trashed);
    return 1;
}

static int collect_garbage(
    int store, json_t *kept, json_t **ret_json, struct rollbox_error *error) {
    struct references references;
    unsigned removed_work = 0;
    uint64_t freed = 0, removed = 0, in_use = 0, sleepers = 0, boxes = 0;
    struct names names;

    auto_close int lock = layer_store_lock(store, LOCK_EX);
    if (lock < 0)
        return fail_maintenance(error, lock, "lock the store");
    int r = find_references(store, &references, NULL, error);
    if (r < 0)
        return r;
    if (references.problem) {
        r = error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "store",
            "the layers in use cannot be determined: %s; remove it with rollbox image rm, or "
            "import it again",
            references.problem);
        references_done(&references);
        return r;
    }
    r = names_in(store, "layers", &names, error);
    for (size_t i = 0; r == 0 && i < names.n; i++) {
        if (json_object_get(references.ids, names.list[i]))
            continue;
        if (!layer_id_ok(
                names.list[i])) { /* of a newer version, perhaps, whose manifests we cannot see */
            json_array_append_new(
                kept, json_pack("{s:s, s:s}", "layer", files_printable(names.list[i]), "reason",
                          "it does not name its layer"));
            continue;
        }
        int gone = collect_layer(store, names.list[i], &freed);
        if (gone < 0)
            r = fail_maintenance(error, gone, "move a layer to the trash");
        removed += gone == 1;
        in_use += gone == 0;
    }
    if (r == 0)
        names_done(&names);
    references_done(&references);
    if (r == 0)
        r = hibernated_gc_collect(store, kept, &sleepers, &freed, error);
    if (r == 0)
        r = disk_uppers_collect(store, &boxes, error);
    if (r == 0)
        r = layer_sweep_work(store, &removed_work) < 0 ? fail_maintenance(error, -EIO, "sweep tmp")
                                                       : 0;
    if (r == 0) {
        int swept = downloads_sweep(store, &freed);

        r = swept < 0 ? fail_maintenance(error, swept, "remove interrupted pulls") : 0;
    }
    close_fd(&lock);
    if (r < 0)
        return r;
    /* Deleting takes long, and no process needs to wait for it. */
    r = layer_empty_trash(store);
    if (r < 0)
        return fail_maintenance(error, r, "empty the trash");
    *ret_json = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:O*}", "removed_layers",
        (json_int_t)removed, "freed_bytes", (json_int_t)freed, "in_use", (json_int_t)in_use,
        "removed_work", (json_int_t)removed_work, "removed_asleep", (json_int_t)sleepers,
        "removed_boxes", (json_int_t)boxes, "damaged", json_array_size(kept) ? kept : NULL);
    return *ret_json ? 0 : out_of_memory(error);
}

int maintenance_collect(int store, const struct prune_options *options, json_t **ret_json,
    struct rollbox_error *error) {
    json_t *kept = json_array(), *removed = json_array();
    int r =
        kept && removed ? image_rows_prune(store, options, removed, error) : out_of_memory(error);

    if (r == 0)
        r = collect_garbage(store, kept, ret_json, error);
    if (r == 0 && json_object_set(*ret_json, "removed_images", removed) < 0)
        r = out_of_memory(error);
    json_decref(removed);
    json_decref(kept);
    return r;
}

/* ---- fsck ---- */

/* The damage of a layer, for free(); NULL: none, or it is unknown for lack of memory or
 * descriptors: then the error is set. */
static char *examine_snapshot(int store, const char *id, struct rollbox_error *error) {
    struct layer_meta meta;
    struct tree_digest found;
    struct rollbox_error inner = { 0 };
    auto_free char *path = NULL;
    char *reason = NULL;
    int r = layer_meta_read(store, id, &meta);

    if (r < 0)
        return strdup("meta.json is not valid");
    if (asprintf(&path, "layers/%s/fs", id) < 0)
        return strdup("out of memory");
    auto_close int fd = openat(store, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return asprintf(&reason, "its files cannot be opened: %s", strerror(errno)) < 0
                   ? strdup("?")
                   : reason;
    if (tree_digest(fd, &found, &inner) < 0) {
        if (inner.code != ROLLBOX_ERR_RESOURCE_EXHAUSTED)
            return strdup(inner.message);
        *error = inner;
        return NULL;
    }
    if (strcmp(found.hex, meta.tree.hex) != 0)
        return asprintf(&reason,
                   "its files were changed: %llu files and %llu bytes instead of %llu and %llu, "
                   "digest %.12s instead of %.12s",
                   (unsigned long long)found.files, (unsigned long long)found.bytes,
                   (unsigned long long)meta.tree.files, (unsigned long long)meta.tree.bytes,
                   found.hex, meta.tree.hex) < 0
                   ? strdup("?")
                   : reason;
    return NULL;
}

static int mark_damaged(
    int store, const char *id, const char *reason, struct rollbox_error *error) {
    auto_free char *path = NULL;
    struct work work = WORK_NONE;

    if (asprintf(&path, "layers/%s/damaged", id) < 0)
        return out_of_memory(error);
    if (!reason)
        return unlinkat(store, path, 0) < 0 && errno != ENOENT
                   ? fail_maintenance(error, -errno, "remove the mark of a layer")
                   : 0;
    int r = work_begin(store, &work, error);
    if (r == 0)
        r = layer_write_file(work.fd, "damaged", reason, error);
    if (r == 0 && renameat(work.fd, "damaged", store, path) < 0)
        r = fail_maintenance(error, -errno, "mark a layer");
    fault_point(FAULT_damage_marked);
    work_done(&work);
    return r;
}

struct manifests {
    json_t *list;
};

static int check_manifest(
    void *context, const char *name, const struct manifest *manifest, const char *problem) {
    struct manifests *manifests = context;

    (void)manifest;
    if (!problem)
        return 0;
    return json_array_append_new(
        manifests->list, json_pack("{s:s, s:s}", "name", files_printable(name), "problem",
                             files_printable(problem)));
}

static int check_layers(int store, const struct references *references, json_t *damaged,
    uint64_t *ret_layers, struct rollbox_error *error) {
    struct names names;
    int r = names_in(store, "layers", &names, error);

    for (size_t i = 0; r == 0 && i < names.n; i++) {
        const char *id = names.list[i];
        auto_close int lock = -EBADF;
        json_t *users = json_object_get(references->ids, id);

        if (!layer_id_ok(id) || store_layer_lock(store, id, &lock) == -ENOENT)
            continue; /* missing, or being removed by gc */
        ++*ret_layers;
        struct rollbox_error unknown = { 0 };
        auto_free char *reason = examine_snapshot(store, id, &unknown);
        r = unknown.code ? error_set(error, unknown.code, unknown.error_number, unknown.stage, "%s",
                               unknown.message)
                         : mark_damaged(store, id, reason, error);
        if (r == 0 && reason) {
            json_t *row = json_pack("{s:s, s:s, s:o}", "layer", id, "reason", reason, "used_by",
                users ? json_incref(users) : json_array());
            if (!row || json_array_append_new(damaged, row) < 0)
                r = out_of_memory(error);
        }
    }
    names_done(&names);
    return r;
}

int maintenance_check(int store, json_t **ret_json, struct rollbox_error *error) {
    struct manifests manifests = { json_array() };
    json_t *damaged = json_array();
    struct references references = { 0 };
    uint64_t layers = 0, sleepers = 0;
    const char *id;
    json_t *users;
    int r = find_references(store, &references, NULL, error);

    if (r == 0)
        r = check_layers(store, &references, damaged, &layers, error);
    if (r == 0)
        r = manifests_each(store, MANIFEST_IMAGE, check_manifest, &manifests, error);
    if (r == 0)
        r = manifests_each(store, MANIFEST_SNAPSHOT, check_manifest, &manifests, error);
    if (r == 0)
        json_object_foreach(references.ids, id, users) {
            struct layer_meta meta;

            if (layer_meta_read(store, id, &meta) == -ENOENT)
                json_array_append_new(damaged, json_pack("{s:s, s:s, s:O}", "layer", id, "reason",
                                                   "it is missing", "used_by", users));
        }
    references_done(&references);
    if (r == 0)
        r = hibernated_gc_check(store, damaged, &sleepers, error);
    if (r == 0)
        r = volume_check(store, damaged, error);
    json_t *both = json_pack("{s:I, s:I, s:o, s:o}", "layers", (json_int_t)layers, "asleep",
        (json_int_t)sleepers, "damaged", damaged, "manifests", manifests.list);
    if (r < 0) {
        json_decref(both);
        return r;
    }
    *ret_json = both;
    return both ? 0 : out_of_memory(error);
}

/* ---- df ---- */

static int list_by_image(int store, json_t **ret_json, struct rollbox_error *error) {
    struct image_rows rows;
    int r = image_rows_read(store, &rows, error);

    if (r < 0)
        return r;
    *ret_json = image_rows_json(&rows);
    image_rows_done(&rows);
    return *ret_json ? 0 : out_of_memory(error);
}

int maintenance_usage(int store, json_t **ret_json, struct rollbox_error *error) {
    struct references references;
    uint64_t bytes = 0, unused_bytes = 0, layers = 0, unused = 0, images = 0;
    struct hibernated_usage asleep = { 0 }, woken = { 0 };
    uint64_t engines = 0, box_bytes = 0, volumes = 0, volume_bytes = 0;
    struct statvfs room;
    struct names names;
    int r = find_references(store, &references, &images, error);

    if (r < 0)
        return r;
    r = names_in(store, "layers", &names, error);
    for (size_t i = 0; r == 0 && i < names.n; i++) {
        struct layer_meta meta = { 0 };

        if (!layer_id_ok(names.list[i]) || layer_meta_read(store, names.list[i], &meta) < 0)
            continue;
        layers++;
        bytes += meta.tree.bytes;
        if (!json_object_get(references.ids, names.list[i])) {
            unused++;
            unused_bytes += meta.tree.bytes;
        }
    }
    if (r == 0)
        names_done(&names);
    uint64_t snapshots = references.images - images;
    references_done(&references);
    if (r == 0)
        r = hibernated_gc_measure(store, &asleep, &woken, error);
    if (r == 0)
        r = disk_uppers_measure(store, &engines, &box_bytes, error);
    if (r == 0)
        r = volume_measure(store, &volumes, &volume_bytes, error);
    if (r == 0 && fstatvfs(store, &room) < 0)
        r = fail_maintenance(error, -errno, "query the store's file system");
    if (r < 0)
        return r;
    json_t *by_image = NULL;
    r = list_by_image(store, &by_image, error);
    if (r < 0)
        return r;
    *ret_json = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}",
        "images", (json_int_t)images, "snapshots", (json_int_t)snapshots, "layers",
        (json_int_t)layers, "bytes", (json_int_t)bytes, "unused_layers", (json_int_t)unused,
        "unused_bytes", (json_int_t)unused_bytes, "asleep", (json_int_t)asleep.n, "asleep_bytes",
        (json_int_t)asleep.bytes, "woken", (json_int_t)woken.n, "woken_bytes",
        (json_int_t)woken.bytes, "engines", (json_int_t)engines, "boxes_bytes",
        (json_int_t)box_bytes, "volumes", (json_int_t)volumes, "volume_bytes",
        (json_int_t)volume_bytes, "free_bytes", (json_int_t)(room.f_bavail * room.f_frsize),
        "by_image", by_image);
    return *ret_json ? 0 : out_of_memory(error);
}
