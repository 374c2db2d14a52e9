/* SPDX-License-Identifier: Apache-2.0 */
#include "store/image_pull.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/text.h"
#include "store/digest.h"
#include "store/downloads.h"
#include "store/fault.h"
#include "store/files.h"
#include "store/image.h"
#include "store/layer.h"
#include "store/layer_turns.h"
#include "store/manifests.h"
#include "store/pull_progress.h"
#include "store/registry_reference.h"
#include "store/skopeo.h"
#include "store/store.h"

#define LAYOUT "layout"
#define BLOBS LAYOUT "/blobs/sha256"
#define DOCKER "docker://"

struct pull {
    int store;
    const struct pull_options *options;
    const char *name;
    struct registry_reference reference;
    struct image_platform platform;
    struct skopeo skopeo;
    struct work work;
    int layout, blobs, downloads, turns;
    json_t *manifest, *config;
    char digest[DIGEST_HEX + 1]; /* of the manifest */
    size_t n_layers;
    char **diff_ids;
    struct pull_layer *layers;
    int *locks; /* of layers that the store has */
    struct rollbox_error *error;
};

static int fail_memory(struct pull *pull) {
    return error_set(pull->error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "pull", "out of memory");
}

static int fail_store(struct pull *pull, int error_number) {
    return error_set(pull->error, error_code_of(error_number, ROLLBOX_ERR_IO), error_number, "pull",
        "cannot write to the store: %s%s", strerror(error_number),
        text_if(error_number == ENOSPC || error_number == EDQUOT,
            "; make room on the store's file system, or run rollbox store gc"));
}

static int fail_image(struct pull *pull, const char *why) {
    return error_set(pull->error, ROLLBOX_ERR_DAMAGED, EBADMSG, "pull",
        "cannot pull %s: %s; nothing of it is kept", files_printable(pull->reference.text), why);
}

/* The hex digits of a descriptor's digest; NULL. */
static const char *hex_of(const json_t *descriptor) {
    const char *digest = json_string_value(json_object_get(descriptor, "digest"));

    return digest && strncmp(digest, "sha256:", 7) == 0 && layer_id_ok(digest + 7) ? digest + 7
                                                                                   : NULL;
}

static void hex_of_text(const struct buf *text, char ret_hex[DIGEST_HEX + 1]) {
    struct digest digest;

    digest_init(&digest);
    digest_add(&digest, text_or(text->data, ""), text->length);
    digest_end_hex(&digest, ret_hex);
}

/* ---- the manifest and the configuration ---- */

/* Keeps a small blob where the import finds it. */
static int keep_blob(struct pull *pull, const char *hex, const struct buf *text) {
    auto_close int fd =
        openat(pull->blobs, hex, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    int r = fd < 0 ? -errno : fd_write_all(fd, text_or(text->data, ""), text->length);

    return r < 0 ? fail_store(pull, -r) : 0;
}

/* Fetches a manifest or index by name, or by digest. */
static int fetch_manifest(struct pull *pull, const char *name, const char *expected,
    json_t **ret_json, char ret_hex[DIGEST_HEX + 1]) {
    auto_buf struct buf text = BUF_INIT;
    const char *const arguments[] = { "inspect", "--raw", name, NULL };
    int r = skopeo_run(&pull->skopeo, arguments, NULL, NULL, &text, pull->error);

    if (r < 0)
        return r;
    hex_of_text(&text, ret_hex);
    if (expected && strcmp(expected, ret_hex) != 0)
        return fail_image(pull, "the registry sent a manifest with another digest");
    json_t *json = json_loadb(text_or(text.data, ""), text.length, 0, NULL);
    if (!json_is_object(json)) {
        json_decref(json);
        return fail_image(pull, "its manifest is not JSON");
    }
    r = keep_blob(pull, ret_hex, &text);
    if (r < 0)
        json_decref(json);
    else
        *ret_json = json;
    return r;
}

/* docker://REPOSITORY@sha256:HEX */
static char *name_by_digest(const struct pull *pull, const char *hex) {
    auto_buf struct buf name = BUF_INIT;

    buf_printf(&name, DOCKER "%s@sha256:%s", pull->reference.repository, hex);
    return buf_failed(&name) ? NULL : buf_take(&name);
}

static int fail_platform(struct pull *pull, const struct buf *there) {
    const struct image_platform *platform = &pull->platform;

    return error_set(pull->error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "pull",
        "%s has no image for %s/%s%s%s; it has: %s", files_printable(pull->reference.text),
        platform->os, platform->architecture, text_if(platform->variant[0], "/"), platform->variant,
        text_or(there->data, "none"));
}

/* The platforms of an index, for a message. */
static void list_platforms(const json_t *index, struct buf *to) {
    json_t *descriptor;
    size_t i;

    json_array_foreach(json_object_get(index, "manifests"), i, descriptor) {
        if (to->length > 400)
            break;
        buf_add_text(to, text_if(to->length > 0, ", "));
        image_platform_add(to, json_object_get(descriptor, "platform"));
    }
}

/* An index names one manifest for each platform. */
static int follow_index(struct pull *pull) {
    auto_buf struct buf there = BUF_INIT;
    json_t *chosen = image_platform_choose(pull->manifest, &pull->platform), *manifest = NULL;
    const char *hex = hex_of(chosen);

    if (!chosen) {
        list_platforms(pull->manifest, &there);
        return fail_platform(pull, &there);
    }
    if (!hex)
        return fail_image(pull, "its index names a manifest without a sha256 digest");
    auto_free char *name = name_by_digest(pull, hex);
    if (!name)
        return fail_memory(pull);
    int r = fetch_manifest(pull, name, hex, &manifest, pull->digest);
    if (r == 0) {
        json_decref(pull->manifest);
        pull->manifest = manifest;
    }
    return r;
}

static int find_manifest(struct pull *pull) {
    const bool by_digest = pull->reference.digest[0];
    auto_free char *name = NULL;

    if (by_digest)
        name = name_by_digest(pull, pull->reference.digest);
    else if (asprintf(&name, DOCKER "%s", pull->reference.tagged) < 0)
        name = NULL;
    if (!name)
        return fail_memory(pull);
    int r = fetch_manifest(
        pull, name, by_digest ? pull->reference.digest : NULL, &pull->manifest, pull->digest);
    if (r == 0 && json_is_array(json_object_get(pull->manifest, "manifests")))
        r = follow_index(pull);
    if (r == 0 && !json_is_array(json_object_get(pull->manifest, "layers")))
        r = error_set(pull->error, ROLLBOX_ERR_INVALID_ARGUMENT, EPROTO, "pull",
            "%s is no image that rollbox knows: its manifest is of the old version 1, or is of "
            "something else than an image",
            files_printable(pull->reference.text));
    return r;
}

/* An image without an index has one platform. It need only fit if the caller has named one. */
static int check_platform(struct pull *pull, const json_t *config) {
    auto_buf struct buf there = BUF_INIT;

    if (!pull->options->platform || image_platform_fits(&pull->platform, config))
        return 0;
    image_platform_add(&there, config);
    return fail_platform(pull, &there);
}

static int read_config(struct pull *pull, const struct buf *text, const char *hex) {
    char got[DIGEST_HEX + 1];

    hex_of_text(text, got);
    if (strcmp(got, hex) != 0)
        return fail_image(pull, "the registry sent a configuration with another digest");
    pull->config = json_loadb(text_or(text->data, ""), text->length, 0, NULL);
    if (!json_is_object(pull->config))
        return fail_image(pull, "its configuration is not JSON");
    int r = check_platform(pull, pull->config);
    return r < 0 ? r : keep_blob(pull, hex, text);
}

/* The configuration that an earlier attempt fetched. 1: it is there. */
static int known_config(struct pull *pull, const char *hex) {
    auto_buf struct buf text = BUF_INIT;
    auto_close int fd = openat(pull->downloads, hex, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0 || fd_read_all(fd, SOURCE_MAX_TEXT, &text) < 0)
        return 0;
    struct rollbox_error *error = pull->error, ignored = { 0 };
    pull->error = &ignored;
    int r = read_config(pull, &text, hex);
    pull->error = error;
    return r < 0 ? 0 : 1;
}

static int fetch_config(struct pull *pull) {
    auto_buf struct buf text = BUF_INIT;
    const char *hex = hex_of(json_object_get(pull->manifest, "config"));
    auto_free char *name = name_by_digest(pull, pull->digest);

    if (!hex)
        return fail_image(pull, "its manifest names no configuration by a sha256 digest");
    if (!name)
        return fail_memory(pull);
    if (known_config(pull, hex))
        return 0;
    const char *const arguments[] = { "inspect", "--config", "--raw", name, NULL };
    int r = skopeo_run(&pull->skopeo, arguments, NULL, NULL, &text, pull->error);
    if (r == 0)
        r = read_config(pull, &text, hex);
    if (r == 0)
        (void)!linkat(pull->blobs, hex, pull->downloads, hex, 0);
    return r;
}

/* ---- layers ---- */

static int list_layers(struct pull *pull) {
    const json_t *layers = json_object_get(pull->manifest, "layers"),
                 *diff_ids = json_object_get(json_object_get(pull->config, "rootfs"), "diff_ids");
    const size_t n = json_array_size(layers);
    uint64_t bytes = 0;
    json_t *layer;
    size_t i;

    if (!n || n != json_array_size(diff_ids) || n > MANIFEST_MAX_LAYERS)
        return fail_image(pull, "its manifest and its configuration list different layers");
    pull->layers = calloc(n + 1, sizeof *pull->layers);
    pull->diff_ids = calloc(n + 1, sizeof *pull->diff_ids);
    pull->locks = calloc(n + 1, sizeof *pull->locks);
    if (!pull->layers || !pull->diff_ids || !pull->locks)
        return fail_memory(pull);
    json_array_foreach(layers, i, layer) {
        const char *diff_id = json_string_value(json_array_get(diff_ids, i));
        const json_int_t size = json_integer_value(json_object_get(layer, "size"));
        const bool good = diff_id && strncmp(diff_id, "sha256:", 7) == 0 && hex_of(layer) &&
                          layer_id_ok(diff_id + 7) && size >= 0;

        if (!good)
            return fail_image(pull, "its manifest or its configuration names an invalid layer");
        pull->layers[i] = (struct pull_layer){ .hex = hex_of(layer), .bytes = (uint64_t)size };
        pull->diff_ids[i] = strdup(diff_id + 7);
        if (!pull->diff_ids[i])
            return fail_memory(pull);
        pull->locks[i] = -EBADF;
        pull->n_layers = i + 1;
        bytes += (uint64_t)size;
        if ((uint64_t)size > pull->options->limits.max_bytes ||
            bytes > pull->options->limits.max_bytes)
            return error_set(pull->error, ROLLBOX_ERR_INVALID_ARGUMENT, EFBIG, "pull",
                "%s has more than %llu bytes; it is refused (--max-bytes sets the limit)",
                files_printable(pull->reference.text),
                (unsigned long long)pull->options->limits.max_bytes);
    }
    return 0;
}

/* An empty file of the layer's size, which skopeo takes for the layer. */
static int stand_in(struct pull *pull, const struct pull_layer *layer) {
    auto_close int fd =
        openat(pull->blobs, layer->hex, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);

    return fd < 0 || ftruncate(fd, (off_t)layer->bytes) < 0 ? fail_store(pull, errno) : 0;
}

/* Finds out which layers are there. Those of the store are locked, so that gc leaves them. */
static int look_at_layers(struct pull *pull, size_t *ret_missing) {
    auto_free char(*ids)[LAYER_ID_LENGTH + 1] = calloc(pull->n_layers + 1, sizeof *ids);

    if (!ids)
        return fail_memory(pull);
    (void)image_layers_known(pull->store, pull->diff_ids, pull->n_layers, ids);
    *ret_missing = 0;
    for (size_t i = 0; i < pull->n_layers; i++) {
        struct pull_layer *layer = &pull->layers[i];

        if (layer->state == PULL_KNOWN)
            continue;
        const bool locked =
            ids[i][0] && store_layer_lock(pull->store, ids[i], &pull->locks[i]) == 0;
        if (locked || image_layer_is_empty(pull->diff_ids[i])) {
            layer->state = PULL_KNOWN;
            int r = stand_in(pull, layer);
            if (r < 0)
                return r;
            continue;
        }
        if (linkat(pull->downloads, layer->hex, pull->blobs, layer->hex, 0) == 0 ||
            faccessat(pull->blobs, layer->hex, F_OK, 0) == 0)
            layer->state = PULL_KEPT;
        *ret_missing += layer->state == PULL_MISSING;
    }
    return 0;
}

static int fetch_layers(struct pull *pull, struct pull_progress *progress) {
    auto_buf struct buf text = BUF_INIT;
    auto_free char *name = name_by_digest(pull, pull->digest);

    if (!name)
        return fail_memory(pull);
    const char *const arguments[] = { "copy", "--quiet", "--remove-signatures", "--retry-times=2",
        "--dest-oci-accept-uncompressed-layers", name, "oci:" LAYOUT ":image", NULL };
    pull_progress_show(progress, false);
    int r = skopeo_run(&pull->skopeo, arguments, pull_progress_watch, progress, &text, pull->error);
    /* Reports the layers that were complete when skopeo ended. */
    struct rollbox_error ignored = { 0 };
    (void)pull_progress_watch(progress, &ignored);
    pull_progress_show(progress, true);
    fault_point(FAULT_pull_fetched);
    return r;
}

/* Layers that are in the store now, or that were found damaged. */
static void forget_downloads(const struct pull *pull) {
    const char *config = hex_of(json_object_get(pull->manifest, "config"));

    for (size_t i = 0; i < pull->n_layers; i++)
        (void)unlinkat(pull->downloads, pull->layers[i].hex, 0);
    if (config)
        (void)unlinkat(pull->downloads, config, 0);
}

static int import_layers(struct pull *pull, json_t **ret_json) {
    const struct import_options import = { .name = pull->name,
        .path = pull->reference.text,
        .choice = { .manifest = pull->digest, .platform = pull->platform },
        .limits = pull->options->limits,
        .progress = pull->options->progress,
        .reference = pull->reference.text,
        .digest = pull->digest,
        .archive = pull->layout,
        .turns = pull->turns };
    int r = image_import(pull->store, &import, ret_json, pull->error);

    if (r == 0 || (pull->error && pull->error->code == ROLLBOX_ERR_INVALID_ARGUMENT))
        forget_downloads(pull);
    return r;
}

/* ---- an image that the store has under another name ---- */

struct same {
    const char *digest;
    char *name;
};

static int find_same(
    void *context, const char *name, const struct manifest *manifest, const char *problem) {
    struct same *same = context;

    if (problem || same->name || strcmp(manifest->digest, same->digest) != 0)
        return 0;
    same->name = strdup(name);
    return same->name ? 0 : -ENOMEM;
}

/* Gives the image of the store with this manifest the name of this one. 1: done. */
static int publish_same(struct pull *pull, const char *from, json_t **ret_json) {
    struct manifest manifest = { 0 };
    int r = store_manifest(pull->store, MANIFEST_IMAGE, from, &manifest, pull->error);

    if (r < 0)
        return 0; /* removed meanwhile */
    int *locks = NULL;
    if (manifest.oci)
        r = check_platform(pull, manifest.oci);
    const bool whole = r == 0 && store_layers_lock(pull->store, &manifest, &locks, NULL) == 0;
    if (whole) {
        free(manifest.name);
        free(manifest.reference);
        manifest.name = strdup(pull->name);
        manifest.reference = strdup(pull->reference.text);
        r = manifest.name && manifest.reference
                ? layer_publish_manifest(&pull->work, &manifest, pull->error)
                : fail_memory(pull);
    }
    if (r == 0 && whole) {
        *ret_json = json_pack("{s:s, s:I, s:i, s:s, s:[]}", "name", manifest.name, "layers",
            (json_int_t)manifest.n_layers, "new_layers", 0, "architecture", manifest.architecture,
            "notes");
        r = *ret_json ? 1 : fail_memory(pull);
    }
    store_layers_unlock(&manifest, locks);
    manifest_done(&manifest);
    return r;
}

/* 1: the store has this very image. */
static int use_same(struct pull *pull, json_t **ret_json) {
    struct same same = { pull->digest, NULL };
    int r = manifests_each(pull->store, MANIFEST_IMAGE, find_same, &same, pull->error);

    if (r == 0 && same.name)
        r = publish_same(pull, same.name, ret_json);
    free(same.name);
    return r;
}

/* ---- the parts in order ---- */

static int open_directories(struct pull *pull) {
    static const char *const made[] = { LAYOUT, LAYOUT "/blobs", BLOBS };

    pull->downloads = downloads_open(pull->store);
    if (pull->downloads < 0)
        return fail_store(pull, -pull->downloads);
    for (size_t i = 0; i < ARRAY_SIZE(made); i++)
        if (mkdirat(pull->work.fd, made[i], 0700) < 0)
            return fail_store(pull, errno);
    const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    pull->layout = openat(pull->work.fd, LAYOUT, flags);
    pull->blobs = openat(pull->work.fd, BLOBS, flags);
    return pull->layout < 0 || pull->blobs < 0 ? fail_store(pull, errno) : 0;
}

static int take_turns(struct pull *pull) {
    int r = layer_turns_take(pull->turns, pull->diff_ids, pull->n_layers);

    return r < 0 ? fail_store(pull, -r) : 0;
}

static int describe_pull(struct pull *pull, const struct pull_progress *progress, json_t *json) {
    uint64_t bytes = 0;
    const size_t n = pull_progress_fetched(progress, &bytes);
    json_t *more = json_pack("{s:b, s:s, s:s+, s:I, s:I}", "pulled", 1, "reference",
        pull->reference.text, "digest", "sha256:", pull->digest, "fetched_layers", (json_int_t)n,
        "fetched_bytes", (json_int_t)bytes);
    int r = more ? json_object_update(json, more) : -1;

    json_decref(more);
    return r < 0 ? fail_memory(pull) : 0;
}

/* Fetches and imports an image whose manifest is known. */
static int pull_layers(struct pull *pull, struct pull_progress *progress, json_t **ret_json) {
    size_t missing = 0;
    int r = fetch_config(pull);

    fault_point(FAULT_pull_described);
    if (r == 0)
        r = list_layers(pull);
    if (r == 0)
        r = look_at_layers(pull, &missing);
    if (r == 0 && missing)
        r = take_turns(pull);
    /* Another process may have imported them meanwhile. */
    if (r == 0 && missing)
        r = look_at_layers(pull, &missing);
    *progress = (struct pull_progress){ .layout = pull->layout,
        .blobs = pull->blobs,
        .downloads = pull->downloads,
        .layers = pull->layers,
        .n_layers = pull->n_layers,
        .on_terminal = pull->options->progress,
        .as_events = pull->options->events };
    if (r == 0 && missing)
        r = fetch_layers(pull, progress);
    return r < 0 ? r : import_layers(pull, ret_json);
}

static int pull_image(struct pull *pull, json_t **ret_json) {
    struct pull_progress progress = { 0 };
    int r = work_begin(pull->store, &pull->work, pull->error);

    pull->skopeo.work = pull->work.fd;
    if (r == 0)
        r = open_directories(pull);
    if (r == 0)
        r = skopeo_find(&pull->skopeo, pull->error);
    if (r == 0)
        r = skopeo_authorize(&pull->skopeo, pull->options->authfile, pull->options->creds,
            pull->reference.host, pull->error);
    if (r == 0)
        r = find_manifest(pull);
    if (r == 0)
        r = use_same(pull, ret_json);
    if (r == 0)
        r = pull_layers(pull, &progress, ret_json);
    return r < 0 ? r : describe_pull(pull, &progress, *ret_json);
}

static void pull_done(struct pull *pull) {
    for (size_t i = 0; i < pull->n_layers; i++)
        close_fd(&pull->locks[i]);
    free(pull->locks);
    free(pull->layers);
    manifest_strings_free(pull->diff_ids);
    json_decref(pull->manifest);
    json_decref(pull->config);
    close_fd(&pull->layout);
    close_fd(&pull->blobs);
    close_fd(&pull->downloads);
    work_done(&pull->work);
    close_fd(&pull->turns);
    skopeo_done(&pull->skopeo);
    registry_reference_done(&pull->reference);
}

/* Whether the store has an image of this name, with all of its layers. */
static bool is_there(int store, const char *name) {
    struct manifest manifest = { 0 };
    int *locks = NULL;
    bool all = store_manifest(store, MANIFEST_IMAGE, name, &manifest, NULL) == 0 &&
               store_layers_lock(store, &manifest, &locks, NULL) == 0;

    store_layers_unlock(&manifest, locks);
    manifest_done(&manifest);
    return all;
}

static int describe_present(struct pull *pull, json_t **ret_json) {
    *ret_json = json_pack("{s:s, s:b}", "name", pull->name, "pulled", 0);
    return *ret_json ? 0 : fail_memory(pull);
}

/* A layout or an archive of this host needs no skopeo. */
static int import_file(struct pull *pull, json_t **ret_json) {
    const struct import_options import = { .name = pull->name,
        .path = pull->reference.path,
        .choice = { .tag = pull->reference.tag, .platform = pull->platform },
        .limits = pull->options->limits,
        .progress = pull->options->progress,
        .archive = -EBADF,
        .turns = pull->turns };
    int r = image_import(pull->store, &import, ret_json, pull->error);

    return r < 0 || json_object_set_new(*ret_json, "pulled", json_true()) == 0 ? r
                                                                               : fail_memory(pull);
}

static int pull_in_turn(struct pull *pull, json_t **ret_json) {
    const bool missing = pull->options->missing;

    if (!pull->name)
        return error_set(pull->error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "the image needs a name: add --name NAME");
    if (!manifest_name_ok(pull->name))
        return error_set(pull->error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%s cannot be the name of an image in the store: add --name NAME",
            files_printable(pull->name));
    if (missing && is_there(pull->store, pull->name))
        return describe_present(pull, ret_json);
    pull->turns = layer_turns_open(pull->store);
    if (pull->turns < 0)
        return fail_store(pull, -pull->turns);
    int r = layer_turns_take_name(pull->turns, pull->name);
    if (r < 0)
        return fail_store(pull, -r);
    if (missing && is_there(pull->store, pull->name))
        return describe_present(pull, ret_json);
    return pull->reference.kind == REFERENCE_REGISTRY ? pull_image(pull, ret_json)
                                                      : import_file(pull, ret_json);
}

int image_pull(
    int store, const struct pull_options *options, json_t **ret_json, struct rollbox_error *error) {
    struct pull pull = { .store = store,
        .options = options,
        .work = WORK_NONE,
        .layout = -EBADF,
        .blobs = -EBADF,
        .downloads = -EBADF,
        .turns = -EBADF,
        .error = error,
        .skopeo = { .insecure = options->insecure,
            .stall_s = options->stall_s,
            .subject = options->reference,
            .verb = "pull" } };
    int r = image_platform_parse(options->platform, &pull.platform, error);

    if (r == 0)
        r = registry_reference_parse(options->reference, &pull.reference, error);
    pull.name = options->name;
    pull.skopeo.insecure |= r == 0 && registry_reference_is_local(&pull.reference);
    if (r == 0 && !pull.name)
        pull.name = registry_reference_name(&pull.reference);
    if (r == 0)
        r = pull_in_turn(&pull, ret_json);
    pull_done(&pull);
    return r;
}
