/* SPDX-License-Identifier: Apache-2.0 */
/* Results of steps are images of the store, named by the key of the step. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "build/build.h"
#include "store/image_pull.h"
#include "store/layer.h"
#include "store/store.h"

void state_done(struct state *state) {
    layer_list_done(&state->layers);
    free(state->image);
    *state = (struct state){ 0 };
}

static char *step_image(const char *key) {
    char *name;

    return asprintf(&name, BUILD_PREFIX "%.*s", BUILD_KEY_DIGITS, key) < 0 ? NULL : name;
}

/* The state of an image that exists. */
static int open_image(struct build *build, const char *name, struct state *ret_state,
    struct manifest *ret_manifest, struct rollbox_error *error) {
    struct state state = { .image = strdup(name) };
    struct store_image *image;

    if (!state.image)
        return build_out_of_memory(build);
    int r = store_image(NULL, name, &image, error);
    if (r < 0) {
        free(state.image);
        return r;
    }
    r = layer_list_of(image, &state.layers);
    if (r == 0 && ret_manifest) {
        *ret_manifest = image->manifest;
        image->manifest = (struct manifest){ .n_layers = image->manifest.n_layers };
    }
    store_image_free(image);
    if (r < 0) {
        state_done(&state);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_RESOURCE_EXHAUSTED), -r, "build",
            "cannot open the layers of %s: %s", name, strerror(-r));
    }
    *ret_state = state;
    return 0;
}

/* Names that only the store has: results of steps, snapshots. */
static bool is_own(const char *name) {
    return strncmp(name, BUILD_PREFIX, strlen(BUILD_PREFIX)) == 0 || !strncmp(name, "snapshot:", 9);
}

/* Fetches an image by its name, once in a build. */
static int pull(struct build *build, const char *name, unsigned line) {
    struct rollbox_error inner = { 0 };
    auto_free char *reference = NULL;
    json_t *report = NULL;

    if (json_object_get(build->pulled, name))
        return 0;
    if (asprintf(&reference, "docker://%s", name) < 0)
        return build_out_of_memory(build);
    const struct pull_options options = { .reference = reference,
        .name = name,
        .insecure = build->options->insecure,
        .authfile = build->options->authfile,
        .stall_s = PULL_STALL_S,
        .limits = build->options->limits,
        .progress = build->progress.form == PROGRESS_TTY };
    progress_note(&build->progress, "pulling %s", reference);
    int r = image_pull(build->store, &options, &report, &inner);
    if (r == 0 && json_object_set_new(build->pulled, name, json_true()) < 0)
        r = build_out_of_memory(build);
    if (r == 0 && json_object_get(report, "digest"))
        progress_note(&build->progress, "pulled %s: %" JSON_INTEGER_FORMAT " layers fetched",
            json_string_value(json_object_get(report, "digest")),
            json_integer_value(json_object_get(report, "fetched_layers")));
    json_decref(report);
    return r < 0 && inner.code ? dockerfile_refuse(build->error, &build->file, line, inner.code,
                                     "the image %s cannot be pulled: %s", name, inner.message)
                               : r;
}

int cache_open(struct build *build, const char *name, unsigned line, struct state *ret_state,
    struct manifest *ret_manifest) {
    struct rollbox_error inner = { 0 };
    struct digest digest;
    struct manifest manifest = { 0 };
    int r =
        build->options->pull == BUILD_PULL_ALWAYS && !is_own(name) ? pull(build, name, line) : 0;

    if (r < 0)
        return r;
    r = open_image(build, name, ret_state, &manifest, &inner);
    if (r < 0 && inner.code == ROLLBOX_ERR_NOT_FOUND && !is_own(name) &&
        build->options->pull == BUILD_PULL_MISSING) {
        r = pull(build, name, line);
        if (r < 0)
            return r;
        inner = (struct rollbox_error){ 0 };
        r = open_image(build, name, ret_state, &manifest, &inner);
    }
    if (r < 0 && inner.code == ROLLBOX_ERR_NOT_FOUND)
        return dockerfile_refuse(build->error, &build->file, line, ROLLBOX_ERR_NOT_FOUND,
            "the image %s is not in the store; leave --no-pull out, or bring it there by rollbox "
            "image import",
            name);
    if (r < 0)
        return dockerfile_refuse(build->error, &build->file, line, inner.code, "%s", inner.message);
    digest_init(&digest);
    digest_add_sized(&digest, "image", 5);
    for (size_t i = 0; i < ret_state->layers.n; i++)
        digest_add(&digest, ret_state->layers.ids[i], LAYER_ID_LENGTH);
    digest_end_hex(&digest, ret_state->key);
    if (ret_manifest)
        *ret_manifest = manifest;
    else
        manifest_done(&manifest);
    return 0;
}

static void set_state(struct stage *stage, struct state *take_state, const char *key) {
    state_done(&stage->state);
    stage->state = *take_state;
    snprintf(stage->state.key, sizeof stage->state.key, "%s", key);
}

int cache_find(struct build *build, struct stage *stage, const char *key) {
    struct rollbox_error ignored = { 0 };
    auto_free char *name = step_image(key);
    struct state state;

    if (build->options->no_cache || !name)
        return 0;
    /* A result whose layers are gone or damaged is made again. */
    if (open_image(build, name, &state, NULL, &ignored) < 0)
        return 0;
    set_state(stage, &state, key);
    return 1;
}

static int fill_manifest(
    struct build *build, const struct stage *stage, struct manifest *manifest) {
    int r = config_to_manifest(&stage->config, manifest);

    if (r == -EINVAL)
        return error_set(build->error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "build",
            "the image's configuration has more than %u variables or words", MANIFEST_MAX_STRINGS);
    return r < 0 ? build_out_of_memory(build) : 0;
}

int cache_store(
    struct build *build, struct stage *stage, const char *key, struct layer_list *take_layers) {
    struct state state = { .layers = *take_layers, .image = step_image(key) };
    struct manifest manifest = { 0 };
    int r = state.image ? fill_manifest(build, stage, &manifest) : build_out_of_memory(build);

    *take_layers = (struct layer_list){ 0 };
    if (r == 0 && state.layers.n > BUILD_MAX_LAYERS)
        r = error_set(build->error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "build",
            "the image has more than %u layers; combine steps", BUILD_MAX_LAYERS);
    /* Files are none yet: FROM scratch, and steps without an effect. */
    if (r == 0 && state.layers.n)
        r = add_image(build->store, state.image, &state.layers, &manifest, build->error);
    manifest_done(&manifest);
    if (r < 0) {
        state_done(&state);
        return r;
    }
    set_state(stage, &state, key);
    return 0;
}

int cache_bind(struct build *build, const struct stage *stage, const char *key,
    struct layer_list *take_layers, char **ret_image) {
    struct layer_list layers = *take_layers;
    struct manifest manifest = { 0 };
    char *image = step_image(key);
    int r = image ? fill_manifest(build, stage, &manifest) : build_out_of_memory(build);

    *take_layers = (struct layer_list){ 0 };
    if (r == 0 && layers.n > BUILD_MAX_LAYERS)
        r = error_set(build->error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "build",
            "the image and its mounts have more than %u layers; combine steps", BUILD_MAX_LAYERS);
    if (r == 0)
        r = add_image(build->store, image, &layers, &manifest, build->error);
    manifest_done(&manifest);
    layer_list_done(&layers);
    if (r < 0) {
        free(image);
        return r;
    }
    *ret_image = image;
    return 0;
}

static bool is_same(const struct manifest *a, const struct layer_list *layers,
    struct manifest *wanted, const char *name) {
    bool same = a->n_layers == layers->n;

    for (size_t i = 0; same && i < layers->n; i++)
        same = strcmp(a->layers[i], layers->ids[i]) == 0;
    if (!same)
        return false;
    wanted->name = strdup(name);
    wanted->created_s = a->created_s;
    wanted->layers = a->layers;
    wanted->n_layers = a->n_layers;
    auto_free char *old = manifest_text(a), *new = wanted->name ? manifest_text(wanted) : NULL;
    wanted->layers = NULL;
    wanted->n_layers = 0;
    return old && new &&strcmp(old, new) == 0;
}

int cache_publish(struct build *build, const struct stage *stage, const char *name) {
    struct manifest wanted = { 0 }, there = { 0 };
    struct rollbox_error ignored;

    if (!stage->state.layers.n)
        return error_set(build->error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "build",
            "the image has no files: a stage from scratch needs at least one COPY or ADD");
    int r = fill_manifest(build, stage, &wanted);
    if (r < 0)
        return r;
    bool same = store_manifest(build->store, MANIFEST_IMAGE, name, &there, &ignored) == 0 &&
                is_same(&there, &stage->state.layers, &wanted, name);
    manifest_done(&there);
    if (!same)
        r = add_image(build->store, name, &stage->state.layers, &wanted, build->error);
    manifest_done(&wanted);
    return r;
}
