/* SPDX-License-Identifier: Apache-2.0 */
#include "store/manifest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"

#define SHA256 "sha256:"

static bool name_character(char c) {
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return true;
    return (c >= '0' && c <= '9') || (c && strchr("._:@/+-", c));
}

bool manifest_name_ok(const char *name) {
    size_t length = strlen(name);

    /* "snapshot:NAME" is how a snapshot is named where images are meant, too. */
    if (strncmp(name, "snapshot:", 9) == 0)
        return false;
    if (!length || length > MANIFEST_MAX_NAME || strchr("._:@/+-", name[0]))
        return false;
    for (size_t i = 0; i < length; i++) {
        if (!name_character(name[i]))
            return false;
        if (name[i] == '/' && (name[i + 1] == '/' || name[i + 1] == '.' || !name[i + 1]))
            return false;
    }
    return true;
}

char *manifest_file_name(const char *name) {
    size_t length = strlen(name);
    char *file = malloc(length + sizeof ".json");

    if (!file)
        return NULL;
    for (size_t i = 0; i < length; i++)
        file[i] = name[i] == '/' ? '%' : name[i];
    memcpy(file + length, ".json", sizeof ".json");
    return file;
}

char *manifest_name_of_file(const char *file) {
    size_t length = strlen(file);

    if (length <= 5 || strcmp(file + length - 5, ".json") != 0)
        return NULL;
    char *name = strndup(file, length - 5);
    for (char *p = name; p && *p; p++)
        if (*p == '%')
            *p = '/';
    if (name && !manifest_name_ok(name)) {
        free(name);
        return NULL;
    }
    return name;
}

bool layer_id_ok(const char *id) {
    return strlen(id) == LAYER_ID_LENGTH && strspn(id, "0123456789abcdef") == LAYER_ID_LENGTH;
}

void manifest_strings_free(char **list) {
    for (size_t i = 0; list && list[i]; i++)
        free(list[i]);
    free(list);
}

int manifest_strings(const json_t *array, char ***ret_list) {
    size_t n = json_array_size(array);

    if (array && !json_is_null(array) && !json_is_array(array))
        return -EINVAL;
    if (n > MANIFEST_MAX_STRINGS)
        return -EINVAL;
    char **list = calloc(n + 1, sizeof *list);
    if (!list)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_array_get(array, i));

        list[i] = text ? strdup(text) : NULL;
        if (!list[i]) {
            manifest_strings_free(list);
            return text ? -ENOMEM : -EINVAL;
        }
    }
    *ret_list = list;
    return 0;
}

/* A text that may be missing. */
static int text_of(const json_t *object, const char *key, char **ret_text) {
    const json_t *value = json_object_get(object, key);

    if (value && !json_is_string(value))
        return -EINVAL;
    *ret_text = strdup(value ? json_string_value(value) : "");
    return *ret_text ? 0 : -ENOMEM;
}

/* The hex digits of a source's digest; "" without one. */
static int digest_of(const json_t *source, char **ret_hex) {
    const char *text = json_string_value(json_object_get(source, "digest"));
    const size_t prefix = strlen(SHA256);

    if (text && (strncmp(text, SHA256, prefix) != 0 || !layer_id_ok(text + prefix)))
        return -EINVAL;
    *ret_hex = strdup(text ? text + prefix : "");
    return *ret_hex ? 0 : -ENOMEM;
}

static int places_check(const json_t *places) {
    json_t *place;
    size_t i;

    if (!json_is_array(places) || json_array_size(places) > MANIFEST_MAX_STRINGS)
        return -EINVAL;
    json_array_foreach(places, i, place) {
        const char *path = json_string_value(json_object_get(place, "path")),
                   *kind = json_string_value(json_object_get(place, "kind")),
                   *part = json_string_value(json_object_get(place, "part"));

        /* It becomes a file name: a snapshot's file may come from anybody. */
        if (!part || part[0] != 'p' || !part[1] || strlen(part) > 11 ||
            strspn(part + 1, "0123456789") != strlen(part + 1) || !path || path[0] != '/' ||
            !kind || (strcmp(kind, "directory") != 0 && strcmp(kind, "file") != 0))
            return -EINVAL;
    }
    return 0;
}

/* Fills the manifest; *ret_bad is the key that is wrong after -EINVAL. */
static int read_keys(const json_t *root, struct manifest *manifest, const char **ret_bad) {
    const char *kind = manifest->kind == MANIFEST_IMAGE ? "image" : "snapshot";
    const char *said = json_string_value(json_object_get(root, "kind"));
    const json_t *config = json_object_get(root, "config"),
                 *source = json_object_get(root, "source");
    json_t *places = json_object_get(root, "places");
    int r;

    *ret_bad = "version";
    if (json_integer_value(json_object_get(root, "version")) != 1)
        return -EINVAL;
    *ret_bad = "kind";
    if (!said || strcmp(said, kind) != 0)
        return -EINVAL;
    *ret_bad = "name";
    r = text_of(root, "name", &manifest->name);
    if (r == 0 && !manifest_name_ok(manifest->name))
        r = -EINVAL;
    if (r < 0)
        return r;
    manifest->created_s = json_integer_value(json_object_get(root, "created"));
    *ret_bad = "layers";
    if (!json_is_array(json_object_get(root, "layers")))
        return -EINVAL;
    r = manifest_strings(json_object_get(root, "layers"), &manifest->layers);
    if (r < 0)
        return r;
    for (; manifest->layers[manifest->n_layers]; manifest->n_layers++)
        if (!layer_id_ok(manifest->layers[manifest->n_layers]))
            return -EINVAL;
    if (manifest->n_layers > MANIFEST_MAX_LAYERS ||
        (manifest->kind == MANIFEST_IMAGE && !manifest->n_layers))
        return -EINVAL;
    *ret_bad = "config";
    if (config && !json_is_object(config))
        return -EINVAL;
    r = manifest_strings(json_object_get(config, "env"), &manifest->env);
    for (size_t i = 0; r == 0 && manifest->env[i]; i++)
        if (manifest->env[i][0] == '=' || !strchr(manifest->env[i], '='))
            r = -EINVAL;
    if (r == 0)
        r = manifest_strings(json_object_get(config, "entrypoint"), &manifest->entrypoint);
    if (r == 0)
        r = manifest_strings(json_object_get(config, "cmd"), &manifest->cmd);
    if (r == 0)
        r = text_of(config, "cwd", &manifest->cwd);
    if (r == 0 && manifest->cwd[0] && manifest->cwd[0] != '/')
        r = -EINVAL;
    if (r == 0)
        r = text_of(config, "user", &manifest->user);
    if (r == 0)
        r = text_of(config, "architecture", &manifest->architecture);
    if (r < 0)
        return r;
    *ret_bad = "oci";
    json_t *oci = json_object_get(root, "oci");
    if (oci && !json_is_object(oci))
        return -EINVAL;
    manifest->oci = json_incref(oci);
    *ret_bad = "source";
    r = text_of(source, "reference", &manifest->reference);
    if (r == 0)
        r = digest_of(source, &manifest->digest);
    if (r < 0)
        return r;
    *ret_bad = "places";
    if (manifest->kind == MANIFEST_SNAPSHOT) {
        r = places_check(places);
        if (r < 0)
            return r;
        manifest->places = json_incref(places);
    }
    return 0;
}

int manifest_parse(const char *text, size_t length, enum manifest_kind kind,
    struct manifest *ret_manifest, struct rollbox_error *error) {
    struct manifest manifest = { .kind = kind };
    const char *bad = NULL;
    json_error_t problem;

    if (length > MANIFEST_MAX_BYTES)
        return error_set(error, ROLLBOX_ERR_DAMAGED, EFBIG, "store",
            "the manifest has more than %u bytes", MANIFEST_MAX_BYTES);
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &problem);
    if (!root)
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "store",
            "the manifest is not valid JSON (line %d: %s)", problem.line, problem.text);
    int r = read_keys(root, &manifest, &bad);
    json_decref(root);
    if (r == -ENOMEM)
        error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
    else if (r < 0)
        r = error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "store",
            "the manifest's \"%s\" is missing or not valid", bad);
    if (r < 0) {
        manifest_done(&manifest);
        return r;
    }
    *ret_manifest = manifest;
    return 0;
}

static json_t *array_of(char **list) {
    json_t *array = json_array();

    for (size_t i = 0; list && list[i]; i++)
        if (json_array_append_new(array, json_string(list[i])) < 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

char *manifest_text(const struct manifest *manifest) {
    bool image = manifest->kind == MANIFEST_IMAGE;
    json_t *root = json_pack("{s:i, s:s, s:s, s:I, s:o}", "version", 1, "kind",
        image ? "image" : "snapshot", "name", manifest->name, "created",
        (json_int_t)manifest->created_s, "layers", array_of(manifest->layers));
    json_t *more = !root ? NULL
                   : image
                       ? json_pack("{s:{s:o, s:s, s:s, s:o, s:o, s:s}}", "config", "env",
                             array_of(manifest->env), "cwd", manifest->cwd ? manifest->cwd : "",
                             "user", manifest->user ? manifest->user : "", "entrypoint",
                             array_of(manifest->entrypoint), "cmd", array_of(manifest->cmd),
                             "architecture", manifest->architecture ? manifest->architecture : "")
                       : json_pack("{s:O}", "places", manifest->places);
    if (more && manifest->oci)
        json_object_set(more, "oci", manifest->oci);
    if (more && manifest->digest && manifest->digest[0])
        json_object_set_new(more, "source",
            json_pack("{s:s, s:s+}", "reference", manifest->reference, "digest", SHA256,
                manifest->digest));
    char *text =
        more && json_object_update(root, more) == 0 ? json_dumps(root, JSON_COMPACT) : NULL;

    json_decref(more);
    json_decref(root);
    return text;
}

void manifest_done(struct manifest *manifest) {
    free(manifest->name);
    manifest_strings_free(manifest->layers);
    manifest_strings_free(manifest->env);
    manifest_strings_free(manifest->entrypoint);
    manifest_strings_free(manifest->cmd);
    free(manifest->cwd);
    free(manifest->user);
    free(manifest->architecture);
    free(manifest->reference);
    free(manifest->digest);
    json_decref(manifest->oci);
    json_decref(manifest->places);
    *manifest = (struct manifest){ 0 };
}
