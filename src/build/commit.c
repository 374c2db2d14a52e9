/* SPDX-License-Identifier: Apache-2.0 */
#include "build/commit.h"

#include <errno.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "build/changes.h"
#include "store/add_layer.h"
#include "store/layer.h"
#include "store/manifest.h"

struct taking {
    int store;
    const char *name;
    json_t *json;
};

static int take_image(void *context, int archive, struct rollbox_error *error) {
    struct taking *taking = context;

    return add_committed_image(taking->store, archive, taking->name, &taking->json, error);
}

int commit_image(const char *socket, const char *sandbox, const char *snapshot, const char *name,
    json_t **ret_json, struct rollbox_error *error) {
    const struct rollbox_engine_options options = { .size = sizeof options, .socket_path = socket };
    struct rollbox_engine *engine = NULL;
    struct rollbox_sandbox *handle = NULL;
    auto_close int store = -EBADF;
    struct taking taking = { .name = name };

    if (!manifest_name_ok(name))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%.200s is not a name of an image: use letters, digits and . _ : @ / + -, and begin "
            "with a letter or digit",
            name);
    int r = layer_store_open(NULL, true, &store, error);
    if (r == 0)
        r = rollbox_engine_open(&options, &engine, error);
    if (r == 0)
        r = rollbox_sandbox_open(engine, sandbox, &handle, error);
    taking.store = store;
    if (r == 0)
        r = changes_read(handle, snapshot, take_image, &taking, error);
    if (r < 0)
        json_decref(taking.json);
    else
        *ret_json = taking.json;
    if (handle)
        rollbox_sandbox_free(handle);
    if (engine)
        rollbox_engine_close(engine);
    return r < 0 ? r : 0;
}
