/* SPDX-License-Identifier: Apache-2.0 */
#include "store/image_config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"
#include "store/image.h"

int image_config_fill(
    const json_t *config, struct manifest *manifest, struct rollbox_error *error) {
    const json_t *run = json_object_get(config, "config");
    const char *cwd = json_string_value(json_object_get(run, "WorkingDir")),
               *user = json_string_value(json_object_get(run, "User")),
               *architecture = json_string_value(json_object_get(config, "architecture"));
    json_t *env = json_array(), *variable;
    size_t i;

    json_array_foreach(json_object_get(run, "Env"), i, variable) {
        const char *text = json_string_value(variable);

        if (text && text[0] != '=' && strchr(text, '='))
            json_array_append(env, variable);
    }
    int r = manifest_strings(env, &manifest->env);
    json_decref(env);
    if (r == 0)
        r = manifest_strings(json_object_get(run, "Entrypoint"), &manifest->entrypoint);
    if (r == 0)
        r = manifest_strings(json_object_get(run, "Cmd"), &manifest->cmd);
    manifest->user = strdup(user ? user : "");
    manifest->architecture = strdup(architecture ? architecture : "");
    const bool needs_slash = cwd && cwd[0] && cwd[0] != '/';
    if (asprintf(&manifest->cwd, "%s%s", text_if(needs_slash, "/"), text_or(cwd, "")) < 0)
        manifest->cwd = NULL;
    if (r == -EINVAL)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "import",
            "the image's configuration has no valid Env, Entrypoint or Cmd");
    manifest->oci = json_deep_copy(config);
    json_object_del(manifest->oci, "rootfs");
    return r < 0 || !manifest->user || !manifest->cwd || !manifest->architecture || !manifest->oci
               ? error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory")
               : 0;
}

static void set_strings(json_t *to, const char *key, char **list) {
    json_t *array = json_array();

    for (size_t i = 0; list && list[i]; i++)
        json_array_append_new(array, json_string(list[i]));
    if (json_array_size(array))
        json_object_set(to, key, array);
    json_decref(array);
}

static void set_text(json_t *to, const char *key, const char *text) {
    if (text && text[0])
        json_object_set_new(to, key, json_string(text));
}

json_t *image_config_of(const struct manifest *manifest) {
    if (manifest->oci)
        return json_deep_copy(manifest->oci);
    json_t *run = json_object();
    set_strings(run, "Env", manifest->env);
    set_strings(run, "Entrypoint", manifest->entrypoint);
    set_strings(run, "Cmd", manifest->cmd);
    set_text(run, "WorkingDir", manifest->cwd);
    set_text(run, "User", manifest->user);
    const bool known = manifest->architecture && manifest->architecture[0];
    return json_pack("{s:s, s:s, s:o}", "os", "linux", "architecture",
        known ? manifest->architecture : image_architecture(), "config", run);
}
