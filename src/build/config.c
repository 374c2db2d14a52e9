/* SPDX-License-Identifier: Apache-2.0 */
#include "build/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "build/glob.h"
#include "store/image.h"

static json_t *array_of(char *const *list) {
    json_t *array = json_array();

    for (size_t i = 0; list && list[i]; i++)
        json_array_append_new(array, json_string(list[i]));
    return array;
}

int config_new(const struct manifest *manifest, struct config *ret_config) {
    json_t *whole = manifest && manifest->oci ? json_deep_copy(manifest->oci) : json_object();
    json_t *run = json_object_get(whole, "config");
    struct config config = { .env = json_object(),
        .entrypoint = array_of(manifest ? manifest->entrypoint : NULL),
        .cmd = array_of(manifest ? manifest->cmd : NULL),
        .oci = json_is_object(run) ? json_deep_copy(run) : json_object(),
        .whole = whole,
        .cwd = strdup(manifest ? manifest->cwd : ""),
        .user = strdup(manifest ? manifest->user : ""),
        .architecture = strdup(manifest && manifest->architecture[0] ? manifest->architecture
                                                                     : image_architecture()) };

    for (size_t i = 0; manifest && manifest->env[i]; i++) {
        const char *equals = strchr(manifest->env[i], '=');
        auto_free char *name = strndup(manifest->env[i], (size_t)(equals - manifest->env[i]));

        if (name)
            json_object_set_new(config.env, name, json_string(equals + 1));
    }
    const bool texts = config.cwd && config.user && config.architecture;
    if (!texts || !config.env || !config.entrypoint || !config.cmd || !config.oci || !whole) {
        config_done(&config);
        return -ENOMEM;
    }
    *ret_config = config;
    return 0;
}

int config_copy(const struct config *config, struct config *ret_config) {
    struct manifest manifest = { 0 };
    int r = config_to_manifest(config, &manifest);

    if (r == 0)
        r = config_new(&manifest, ret_config);
    manifest_done(&manifest);
    return r;
}

void config_done(struct config *config) {
    json_decref(config->env);
    json_decref(config->entrypoint);
    json_decref(config->cmd);
    json_decref(config->oci);
    json_decref(config->whole);
    free(config->cwd);
    free(config->user);
    free(config->architecture);
    *config = (struct config){ 0 };
}

static json_t *env_array(const struct config *config) {
    json_t *array = json_array(), *value;
    const char *name;

    json_object_foreach(config->env, name, value)
        json_array_append_new(array, json_sprintf("%s=%s", name, json_string_value(value)));
    return array;
}

static void set_list(json_t *run, const char *name, json_t *list) {
    if (json_array_size(list))
        json_object_set(run, name, list);
    else
        json_object_del(run, name);
}

/* The OCI configuration. It has no history: that would be about other layers. */
static json_t *oci_of(const struct config *config, json_t *env) {
    json_t *whole = json_deep_copy(config->whole), *run = json_deep_copy(config->oci);

    set_list(run, "Env", env);
    set_list(run, "Entrypoint", config->entrypoint);
    set_list(run, "Cmd", config->cmd);
    json_object_set_new(run, "WorkingDir", json_string(config->cwd));
    json_object_set_new(run, "User", json_string(config->user));
    json_object_set_new(whole, "config", run);
    json_object_set_new(whole, "architecture", json_string(config->architecture));
    json_object_set_new(whole, "os", json_string("linux"));
    json_object_del(whole, "history");
    json_object_del(whole, "created");
    json_object_del(whole, "container_config");
    return whole;
}

int config_to_manifest(const struct config *config, struct manifest *ret_manifest) {
    json_t *env = env_array(config);
    struct manifest manifest = { .kind = MANIFEST_IMAGE,
        .cwd = strdup(config->cwd),
        .user = strdup(config->user),
        .architecture = strdup(config->architecture),
        .reference = strdup(""),
        .digest = strdup(""),
        .oci = oci_of(config, env) };
    int r = manifest_strings(env, &manifest.env);

    json_decref(env);
    if (r == 0)
        r = manifest_strings(config->entrypoint, &manifest.entrypoint);
    if (r == 0)
        r = manifest_strings(config->cmd, &manifest.cmd);
    if (r == 0 && (!manifest.cwd || !manifest.user || !manifest.architecture || !manifest.oci))
        r = -ENOMEM;
    if (r < 0)
        manifest_done(&manifest);
    else
        *ret_manifest = manifest;
    return r;
}

json_t *config_shell(const struct config *config) {
    return json_object_get(config->oci, "Shell");
}

json_t *config_member(struct config *config, const char *name) {
    json_t *member = json_object_get(config->oci, name);

    if (!json_is_object(member)) {
        member = json_object();
        json_object_set_new(config->oci, name, member);
    }
    return member;
}

char *config_join(const struct config *config, const char *path) {
    auto_buf struct buf joined = BUF_INIT;

    if (path[0] != '/')
        buf_printf(&joined, "%s/", config->cwd);
    buf_add(&joined, path, strlen(path) + 1);
    auto_free char *clean = buf_failed(&joined) ? NULL : glob_clean(joined.data);
    char *absolute = NULL;
    return clean && asprintf(&absolute, "/%s", clean) >= 0 ? absolute : NULL;
}
