/* SPDX-License-Identifier: Apache-2.0 */
#include "store/image_make.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/text.h"
#include "store/files.h"
#include "store/image.h"
#include "store/store.h"

#define JOB_MAX (16u << 20)

static int bad_job(const char *key, struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
        "the job's \"%s\" is missing or not valid", key);
}

static int read_layers(const json_t *layers, struct image_plan *plan, struct rollbox_error *error) {
    const size_t n = json_array_size(layers);
    json_t *layer;
    size_t i;

    if (!n || n > MANIFEST_MAX_LAYERS)
        return bad_job("layers", error);
    plan->members = calloc(n + 1, sizeof *plan->members);
    plan->packed = calloc(n + 1, sizeof *plan->packed);
    plan->diff_ids = calloc(n + 1, sizeof *plan->diff_ids);
    plan->ids = calloc(n + 1, sizeof *plan->ids);
    if (!plan->members || !plan->packed || !plan->diff_ids || !plan->ids)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory");
    json_array_foreach(layers, i, layer) {
        const char *id = json_string_value(json_object_get(layer, "id")),
                   *tar = json_string_value(json_object_get(layer, "tar"));

        if (!id == !tar || (id && !layer_id_ok(id)) || (tar && (!tar[0] || strchr(tar, '/'))))
            return bad_job("layers", error);
        plan->members[i] = strdup(text_or(tar, ""));
        plan->packed[i] = strdup("");
        plan->diff_ids[i] = strdup("");
        plan->ids[i] = strdup(text_or(id, ""));
        if (!plan->members[i] || !plan->packed[i] || !plan->diff_ids[i] || !plan->ids[i])
            return error_set(
                error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory");
        plan->n_layers = i + 1;
    }
    return 0;
}

/* The layers of the new image, which were locked until its manifest was written. */
static int add_ids(int store, const char *name, json_t *json, struct rollbox_error *error) {
    struct manifest manifest = { 0 };
    json_t *ids = json_array();
    int r = store_manifest(store, MANIFEST_IMAGE, name, &manifest, error);

    for (size_t i = 0; r == 0 && i < manifest.n_layers; i++)
        json_array_append_new(ids, json_string(manifest.layers[i]));
    manifest_done(&manifest);
    json_object_set_new(json, "ids", ids);
    return r;
}

int image_make(int store, int fd, const char *name, const char *directory,
    const struct unpack_limits *limits, json_t **ret_json, struct rollbox_error *error) {
    auto_buf struct buf text = BUF_INIT;
    struct image_plan plan = { 0 };
    struct import_options options = { .name = name,
        .path = directory,
        .choice.platform = image_platform_own(),
        .plan = &plan,
        .limits = *limits,
        .archive = -EBADF,
        .turns = -EBADF };
    int r = fd_read_all(fd, JOB_MAX, &text);

    if (r < 0)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, -r, "arguments",
            "the job cannot be read from standard input: %s", strerror(-r));
    json_t *job = json_loadb(text_or(text.data, ""), text.length, JSON_REJECT_DUPLICATES, NULL);
    plan.config = json_incref(json_object_get(job, "config"));
    if (!json_is_object(job))
        r = bad_job("job", error);
    else if (!json_is_object(plan.config))
        r = bad_job("config", error);
    if (r == 0)
        r = read_layers(json_object_get(job, "layers"), &plan, error);
    if (r == 0)
        r = image_import(store, &options, ret_json, error);
    if (r == 0)
        r = add_ids(store, name, *ret_json, error);
    image_plan_done(&plan);
    json_decref(job);
    return r;
}
