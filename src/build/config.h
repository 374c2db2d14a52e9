/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration of the image that a stage makes, and the variables of the stage. Pure.
 *
 * ENV belongs to the image. ARG belongs to the stage: it is seen by later instructions, and by
 * commands of RUN, and is gone with the stage. ENV hides ARG.
 */
#ifndef ROLLBOX_BUILD_CONFIG_H
#define ROLLBOX_BUILD_CONFIG_H

#include <jansson.h>
#include <stdbool.h>

#include "build/dockerfile.h"
#include "store/manifest.h"

struct config {
    json_t *env;        /* object: name -> value, in order */
    json_t *entrypoint; /* arrays; never NULL */
    json_t *cmd;
    json_t *oci;   /* object: Labels, ExposedPorts, ...: the "config" of the next */
    json_t *whole; /* the OCI configuration of the base image */
    char *cwd, *user, *architecture;
    bool has_cmd; /* set in this stage, so that ENTRYPOINT does not clear it */
};

/* An empty one, or that of an image. 0 or -ENOMEM. */
int config_new(const struct manifest *manifest, struct config *ret_config);
int config_copy(const struct config *config, struct config *ret_config);
void config_done(struct config *config);

/* Fills the parts of a manifest that are the configuration; manifest_done frees them. 0, -ENOMEM,
 * or -EINVAL: too many or too long. */
int config_to_manifest(const struct config *config, struct manifest *ret_manifest);

/* The shell of RUN, CMD and ENTRYPOINT, as an array; borrowed. */
json_t *config_shell(const struct config *config);

/* The member of `oci`, made as an empty object if it is missing; borrowed. */
json_t *config_member(struct config *config, const char *name);

/* The working directory with a path put to it, for free(). */
char *config_join(const struct config *config, const char *path);

#endif
