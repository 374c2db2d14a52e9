/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The name of an image where it is: docker://HOST/NAME:TAG, NAME:TAG, NAME@sha256:HEX,
 * oci:DIRECTORY[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME]. Pure: text in, text out.
 */
#ifndef ROLLBOX_STORE_REGISTRY_REFERENCE_H
#define ROLLBOX_STORE_REGISTRY_REFERENCE_H

#include <stdbool.h>

#include <rollbox/rollbox.h>

#include "store/manifest.h"

enum reference_kind {
    REFERENCE_REGISTRY,
    REFERENCE_LAYOUT,  /* a directory in OCI layout */
    REFERENCE_ARCHIVE, /* a file: a tar of a layout, or of docker save */
};

struct registry_reference {
    enum reference_kind kind;
    char *text;       /* as it was given */
    char *path;       /* of a layout or archive */
    char *tag;        /* in a layout or archive; NULL: none was given */
    char *host;       /* of a registry, "docker.io" where none was given */
    char *repository; /* of a registry: HOST/NAME as it was given, without a tag */
    char *tagged;     /* of a registry: the repository with its tag, if it has one */
    char digest[LAYER_ID_LENGTH + 1]; /* of NAME@sha256:HEX; else "" */
};

/* Reads a reference. Free it with registry_reference_done. Errors: INVALID_ARGUMENT,
 * RESOURCE_EXHAUSTED. */
int registry_reference_parse(
    const char *text, struct registry_reference *ret_reference, struct rollbox_error *error);
void registry_reference_done(struct registry_reference *reference);

/* The name in the store that a pulled image gets by itself: the reference without "docker://", or
 * the tag of an archive. NULL: a name must be given. Belongs to the reference. */
const char *registry_reference_name(const struct registry_reference *reference);

/* Whether the registry is on this host, where TLS is not expected. */
bool registry_reference_is_local(const struct registry_reference *reference);

#endif
