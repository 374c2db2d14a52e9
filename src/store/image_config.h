/* SPDX-License-Identifier: Apache-2.0 */
/* An image's OCI configuration, and what a manifest of the store has of it. */
#ifndef ROLLBOX_STORE_IMAGE_CONFIG_H
#define ROLLBOX_STORE_IMAGE_CONFIG_H

#include <jansson.h>

#include <rollbox/rollbox.h>

#include "store/manifest.h"

/* Fills the manifest's env, cwd, user, entrypoint, cmd, architecture and oci from an OCI image
 * configuration: {"architecture", "os", "config": {"Env", "WorkingDir", "User", "Entrypoint",
 * "Cmd", "Labels", "ExposedPorts", "Volumes", "Healthcheck", "StopSignal", "Shell"}, "history"}.
 * Variables without a name are left out. Errors: INVALID_ARGUMENT, RESOURCE_EXHAUSTED. */
int image_config_fill(const json_t *config, struct manifest *manifest, struct rollbox_error *error);

/* The OCI configuration of an image of the store, without rootfs; of an image that was imported by
 * an older version, made from what the manifest has. The caller's; NULL when out of memory. */
json_t *image_config_of(const struct manifest *manifest);

#endif
