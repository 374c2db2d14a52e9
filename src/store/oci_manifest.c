/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of an image archive: OCI index, manifest and configuration (opencontainers/image-spec),
 * or docker's manifest.json. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"
#include "store/files.h"
#include "store/image.h"
#include "store/manifest.h"

#define MAX_INDEXES 4 /* one in another */

static int out_of_memory(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory");
}

static int not_valid(const char *what, struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EBADMSG, "import",
        "the archive's %s is missing or not valid", what);
}

static const char *text_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

/* The hex digits of "sha256:...". */
static const char *hex_of(const char *digest) {
    return digest && strncmp(digest, "sha256:", 7) == 0 && layer_id_ok(digest + 7) ? digest + 7
                                                                                   : NULL;
}

/* Reads a member as JSON; `hex` is its required SHA-256, or NULL. */
static int read_json(struct image_source *source, const char *name, const char *hex,
    json_t **ret_json, struct rollbox_error *error) {
    auto_buf struct buf text = BUF_INIT;
    json_error_t problem;
    struct digest digest;
    char got[DIGEST_HEX + 1];
    int r = image_source_text(source, name, &text, error);

    if (r < 0)
        return r;
    digest_init(&digest);
    digest_add(&digest, text.data ? text.data : "", text.length);
    digest_end_hex(&digest, got);
    if (hex && strcmp(got, hex) != 0)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EBADMSG, "import",
            "%s has the digest %.16s..., not %.16s...: the archive is damaged",
            files_printable(name), got, hex);
    *ret_json = json_loadb(text.data ? text.data : "", text.length, 0, &problem);
    return *ret_json ? 0
                     : error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EBADMSG, "import",
                           "%s of the archive is not valid JSON: line %d: %s",
                           files_printable(name), problem.line, files_printable(problem.text));
}

static int read_blob(struct image_source *source, const json_t *descriptor, json_t **ret_json,
    struct rollbox_error *error) {
    const char *hex = hex_of(text_of(descriptor, "digest"));
    auto_buf struct buf name = BUF_INIT;

    if (!hex)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "import",
            "the archive names a blob by \"%s\"; only sha256 digests are known",
            text_of(descriptor, "digest") ? files_printable(text_of(descriptor, "digest")) : "");
    buf_printf(&name, "blobs/sha256/%s", hex);
    return buf_failed(&name) ? out_of_memory(error)
                             : read_json(source, name.data, hex, ret_json, error);
}

static int plan_init(struct image_plan *plan, size_t n) {
    plan->members = calloc(n + 1, sizeof *plan->members);
    plan->packed = calloc(n + 1, sizeof *plan->packed);
    plan->diff_ids = calloc(n + 1, sizeof *plan->diff_ids);
    return plan->members && plan->packed && plan->diff_ids ? 0 : -ENOMEM;
}

void image_plan_done(struct image_plan *plan) {
    manifest_strings_free(plan->members);
    manifest_strings_free(plan->packed);
    manifest_strings_free(plan->diff_ids);
    json_decref(plan->config);
    *plan = (struct image_plan){ 0 };
}

/* One more layer: its member and the digests that it must have. */
static int plan_add(
    struct image_plan *plan, const char *member, const char *packed, const char *diff_id) {
    size_t i = plan->n_layers;

    plan->members[i] = strdup(member);
    plan->packed[i] = strdup(packed);
    plan->diff_ids[i] = strdup(diff_id);
    if (!plan->members[i] || !plan->packed[i] || !plan->diff_ids[i])
        return -ENOMEM;
    plan->n_layers++;
    return 0;
}

/* The configuration's list of layers must fit the manifest's. */
static int check_layers(const json_t *config, const json_t *layers, struct rollbox_error *error) {
    const json_t *diff_ids = json_object_get(json_object_get(config, "rootfs"), "diff_ids");

    if (!json_is_array(layers) || !json_is_array(diff_ids) ||
        json_array_size(layers) != json_array_size(diff_ids) || !json_array_size(layers))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EBADMSG, "import",
            "the image's manifest lists %zu layers and its configuration %zu; the image is "
            "damaged, or has no files",
            json_array_size(layers), json_array_size(diff_ids));
    if (json_array_size(layers) > MANIFEST_MAX_LAYERS)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "import",
            "the image has %zu layers; an overlay takes %d at most", json_array_size(layers),
            MANIFEST_MAX_LAYERS);
    return 0;
}

static const char *diff_id_at(const json_t *config, size_t i) {
    return hex_of(json_string_value(
        json_array_get(json_object_get(json_object_get(config, "rootfs"), "diff_ids"), i)));
}

/* ---- OCI ---- */

static bool is_index(const json_t *object) {
    const char *type = text_of(object, "mediaType");

    return type && (strstr(type, "image.index") || strstr(type, "manifest.list"));
}

static bool has_tag(const json_t *descriptor, const char *tag) {
    const json_t *annotations = json_object_get(descriptor, "annotations");
    const char *ref = text_of(annotations, "org.opencontainers.image.ref.name"),
               *name = text_of(annotations, "io.containerd.image.name");

    return (ref && strcmp(ref, tag) == 0) || (name && strcmp(name, tag) == 0);
}

/* An image without a platform fits every one. Attestations are for "unknown". */
static int choose_descriptor(const json_t *index, const char *tag,
    const struct image_platform *platform, json_t **ret_descriptor, struct rollbox_error *error) {
    const json_t *manifests = json_object_get(index, "manifests");
    auto_buf struct buf there = BUF_INIT;
    json_t *descriptor, *chosen = NULL;
    size_t i, n = 0, n_tagged = 0;

    if (!json_is_array(manifests))
        return not_valid("index", error);
    json_array_foreach(manifests, i, descriptor) {
        const char *ref = text_of(
            json_object_get(descriptor, "annotations"), "org.opencontainers.image.ref.name");
        const json_t *described = json_object_get(descriptor, "platform");

        if (there.length < 400) {
            buf_add_text(&there, there.length ? ", " : "");
            buf_add_text(&there, ref ? files_printable(ref) : "untagged");
            buf_add_text(&there, described ? " for " : "");
            image_platform_add(&there, described);
        }
        if (tag && !has_tag(descriptor, tag))
            continue;
        n_tagged++;
        if (!image_platform_fits(platform, described))
            continue;
        chosen = n++ ? chosen : descriptor;
    }
    if (n == 1) {
        *ret_descriptor = chosen;
        return 0;
    }
    if (tag && !n_tagged)
        return error_set(error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "import",
            "the archive has no image tagged %s; it has: %s", files_printable(tag),
            there.data ? there.data : "none");
    if (!n)
        return error_set(error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "import",
            "the archive has no image for %s/%s%s%s; it has: %s", platform->os,
            platform->architecture, text_if(platform->variant[0], "/"), platform->variant,
            there.data ? there.data : "none");
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "import",
        "the archive has several images: %s; choose one with --tag-of-archive",
        there.data ? there.data : "?");
}

static int plan_oci_manifest(struct image_source *source, const json_t *manifest,
    struct image_plan *plan, struct rollbox_error *error) {
    const json_t *layers = json_object_get(manifest, "layers");
    json_t *layer;
    size_t i;
    int r = read_blob(source, json_object_get(manifest, "config"), &plan->config, error);

    if (r == 0)
        r = check_layers(plan->config, layers, error);
    if (r < 0)
        return r;
    if (plan_init(plan, json_array_size(layers)) < 0)
        return out_of_memory(error);
    json_array_foreach(layers, i, layer) {
        const char *hex = hex_of(text_of(layer, "digest")), *diff_id = diff_id_at(plan->config, i);
        auto_buf struct buf name = BUF_INIT;

        if (!hex || !diff_id)
            return not_valid("list of layers", error);
        buf_printf(&name, "blobs/sha256/%s", hex);
        if (buf_failed(&name) || plan_add(plan, name.data, hex, diff_id) < 0)
            return out_of_memory(error);
    }
    return 0;
}

static int plan_oci(struct image_source *source, const struct image_choice *choice,
    struct image_plan *plan, struct rollbox_error *error) {
    json_t *index = NULL;
    int r = read_json(source, "index.json", NULL, &index, error);

    for (int depth = 0; r == 0; depth++) {
        json_t *descriptor = NULL, *next = NULL;

        r = choose_descriptor(
            index, depth ? NULL : choice->tag, &choice->platform, &descriptor, error);
        if (r == 0)
            r = read_blob(source, descriptor, &next, error);
        bool more = r == 0 && (is_index(descriptor) || is_index(next) ||
                                  json_is_array(json_object_get(next, "manifests")));
        json_decref(index);
        index = next;
        if (r == 0 && more && depth >= MAX_INDEXES)
            r = not_valid("index (nested too deeply)", error);
        if (r < 0 || !more)
            break;
    }
    if (r == 0)
        r = plan_oci_manifest(source, index, plan, error);
    json_decref(index);
    return r;
}

/* ---- docker save ---- */

static int choose_docker(
    const json_t *list, const char *tag, json_t **ret_image, struct rollbox_error *error) {
    auto_buf struct buf there = BUF_INIT;
    json_t *image, *name, *chosen = NULL;
    size_t i, j, n = 0;

    json_array_foreach(list, i, image) {
        bool tagged = !tag;

        json_array_foreach(json_object_get(image, "RepoTags"), j, name) {
            const char *text = json_string_value(name);

            if (text && there.length < 400)
                buf_printf(&there, "%s%s", there.length ? ", " : "", files_printable(text));
            tagged |= text && tag && strcmp(text, tag) == 0;
        }
        if (tagged)
            chosen = n++ ? chosen : image;
    }
    if (!n && tag)
        return error_set(error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "import",
            "the archive has no image tagged %s; it has: %s", files_printable(tag),
            there.data ? there.data : "none with a tag");
    if (!n)
        return not_valid("manifest.json", error);
    if (n > 1)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "import",
            "the archive has %zu images: %s; choose one with --tag-of-archive", n,
            there.data ? there.data : "none with a tag");
    *ret_image = chosen;
    return 0;
}

/* The digest in the name of a configuration: "HEX.json", or "blobs/sha256/HEX". */
static const char *hex_in_name(const char *name, char buffer[DIGEST_HEX + 1]) {
    const char *leaf = strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
    size_t n = strspn(leaf, "0123456789abcdef");

    if (n != DIGEST_HEX || (leaf[n] && strcmp(leaf + n, ".json") != 0))
        return NULL;
    memcpy(buffer, leaf, n);
    buffer[n] = '\0';
    return buffer;
}

static int plan_docker(struct image_source *source, const char *tag, struct image_plan *plan,
    struct rollbox_error *error) {
    json_t *list = NULL, *image = NULL, *layer;
    char hex[DIGEST_HEX + 1];
    const char *config;
    size_t i;
    int r = read_json(source, "manifest.json", NULL, &list, error);

    if (r == 0)
        r = choose_docker(list, tag, &image, error);
    if (r == 0 && !(config = text_of(image, "Config")))
        r = not_valid("manifest.json (\"Config\")", error);
    if (r == 0)
        r = read_json(source, config, hex_in_name(config, hex), &plan->config, error);
    if (r == 0)
        r = check_layers(plan->config, json_object_get(image, "Layers"), error);
    if (r == 0 && plan_init(plan, json_array_size(json_object_get(image, "Layers"))) < 0)
        r = out_of_memory(error);
    if (r == 0)
        json_array_foreach(json_object_get(image, "Layers"), i, layer) {
            const char *name = json_string_value(layer), *diff_id = diff_id_at(plan->config, i);

            if (!name || !diff_id) {
                r = not_valid("list of layers", error);
                break;
            }
            if (plan_add(plan, name, "", diff_id) < 0) {
                r = out_of_memory(error);
                break;
            }
        }
    json_decref(list);
    return r;
}

/* The image of a manifest that the caller has chosen. */
static int plan_known(struct image_source *source, const char *hex, struct image_plan *plan,
    struct rollbox_error *error) {
    auto_buf struct buf name = BUF_INIT;
    json_t *manifest = NULL;

    buf_printf(&name, "blobs/sha256/%s", hex);
    int r = buf_failed(&name) ? out_of_memory(error)
                              : read_json(source, name.data, hex, &manifest, error);
    if (r == 0)
        r = plan_oci_manifest(source, manifest, plan, error);
    json_decref(manifest);
    return r;
}

int oci_manifest_choose(struct image_source *source, const struct image_choice *choice,
    struct image_plan *ret_plan, struct rollbox_error *error) {
    struct image_plan plan = { 0 };
    int r;

    if (choice->manifest)
        r = plan_known(source, choice->manifest, &plan, error);
    else if (image_source_has(source, "index.json"))
        r = plan_oci(source, choice, &plan, error);
    else if (image_source_has(source, "manifest.json"))
        r = plan_docker(source, choice->tag, &plan, error);
    else
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "import",
            "this is not an image archive: it has neither index.json (OCI layout) nor "
            "manifest.json (docker save); make one with docker save, podman save, skopeo copy or "
            "buildah push");
    const char *os = text_of(plan.config, "os");
    if (r == 0 && os && os[0] && strcmp(os, "linux") != 0)
        r = error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "import",
            "the image is for %s, not for linux", files_printable(os));
    if (r < 0) {
        image_plan_done(&plan);
        return r;
    }
    *ret_plan = plan;
    return 0;
}
