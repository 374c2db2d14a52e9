/* SPDX-License-Identifier: Apache-2.0 */
#include "store/registry_reference.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"
#include "store/files.h"

#define DOCKER "docker://"

static const struct transport {
    const char *prefix;
    enum reference_kind kind;
} transports[] = {
    { "oci:", REFERENCE_LAYOUT },
    { "oci-archive:", REFERENCE_ARCHIVE },
    { "docker-archive:", REFERENCE_ARCHIVE },
};

static int out_of_memory(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
}

static int refuse_reference(const char *text, const char *why, struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
        "%s %s; write docker://HOST/NAME:TAG, NAME:TAG, NAME@sha256:DIGEST, oci:DIRECTORY, "
        "oci-archive:FILE or docker-archive:FILE",
        files_printable(text), why);
}

/* PATH[:TAG] */
static int parse_path(
    const char *rest, struct registry_reference *reference, struct rollbox_error *error) {
    const char *colon = strchr(rest, ':');
    const size_t length = colon ? (size_t)(colon - rest) : strlen(rest);

    if (!length)
        return refuse_reference(reference->text, "has no path", error);
    reference->path = strndup(rest, length);
    if (colon && colon[1])
        reference->tag = strdup(colon + 1);
    return reference->path && (!colon || !colon[1] || reference->tag) ? 0 : out_of_memory(error);
}

static bool is_reference_text(const char *text) {
    for (const char *p = text; *p; p++) {
        const bool letter = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z');

        if (!letter && !(*p >= '0' && *p <= '9') && !strchr("._:/-", *p))
            return false;
    }
    return text[0] && !strchr("._:/-", text[0]) && !strstr(text, "//");
}

/* The host is the part before the first slash, if it looks like one. */
static char *host_of(const char *name) {
    const size_t length = strcspn(name, "/");
    const bool has_host = name[length] && (memchr(name, '.', length) || memchr(name, ':', length) ||
                                              (length == 9 && !memcmp(name, "localhost", 9)));

    return has_host ? strndup(name, length) : strdup("docker.io");
}

/* [HOST/]NAME[:TAG][@sha256:HEX] */
static int parse_registry(
    const char *rest, struct registry_reference *reference, struct rollbox_error *error) {
    const char *at = strchr(rest, '@');
    auto_free char *name = strndup(rest, at ? (size_t)(at - rest) : strlen(rest));

    if (!name)
        return out_of_memory(error);
    if (at) {
        if (strncmp(at, "@sha256:", 8) != 0 || !layer_id_ok(at + 8))
            return refuse_reference(
                reference->text, "has something else than a sha256 digest after its @", error);
        memcpy(reference->digest, at + 8, LAYER_ID_LENGTH + 1);
    }
    if (!is_reference_text(name))
        return refuse_reference(reference->text, "is not the name of an image", error);
    reference->host = host_of(name);
    reference->tagged = strdup(name);
    char *slash = strrchr(name, '/'), *colon = strchr(slash ? slash : name, ':');
    if (colon)
        *colon = '\0';
    reference->repository = TAKE_PTR(name);
    return reference->host && reference->tagged ? 0 : out_of_memory(error);
}

int registry_reference_parse(
    const char *text, struct registry_reference *ret_reference, struct rollbox_error *error) {
    struct registry_reference reference = { .text = strdup(text) };
    const size_t docker = strlen(DOCKER);
    int r = reference.text ? 1 : out_of_memory(error);

    for (size_t i = 0; r == 1 && i < ARRAY_SIZE(transports); i++) {
        const size_t length = strlen(transports[i].prefix);

        if (strncmp(text, transports[i].prefix, length) == 0) {
            reference.kind = transports[i].kind;
            r = parse_path(text + length, &reference, error);
        }
    }
    if (r == 1)
        r = parse_registry(
            strncmp(text, DOCKER, docker) == 0 ? text + docker : text, &reference, error);
    if (r < 0) {
        registry_reference_done(&reference);
        return r;
    }
    *ret_reference = reference;
    return 0;
}

void registry_reference_done(struct registry_reference *reference) {
    free(reference->text);
    free(reference->path);
    free(reference->tag);
    free(reference->host);
    free(reference->repository);
    free(reference->tagged);
    *reference = (struct registry_reference){ 0 };
}

const char *registry_reference_name(const struct registry_reference *reference) {
    if (reference->kind != REFERENCE_REGISTRY)
        return reference->tag;
    return strncmp(reference->text, DOCKER, strlen(DOCKER)) == 0 ? reference->text + strlen(DOCKER)
                                                                 : reference->text;
}

bool registry_reference_is_local(const struct registry_reference *reference) {
    const char *host = text_or(reference->host, "");
    const size_t length = strcspn(host, ":");

    const bool address = strspn(host, "0123456789.") == length && strncmp(host, "127.", 4) == 0;

    return address || (length == 9 && !memcmp(host, "localhost", 9));
}
