/* SPDX-License-Identifier: Apache-2.0 */
/* rollbox image commit: makes an image of a sandbox that has an image. */
#ifndef ROLLBOX_BUILD_COMMIT_H
#define ROLLBOX_BUILD_COMMIT_H

#include <jansson.h>

#include <rollbox/rollbox.h>

/* The layers of the sandbox's image and its changes become the image `name` of the store, with the
 * configuration of the sandbox's image. `snapshot` NULL: as the sandbox is now. *ret_json: as of
 * add_committed_image. */
int commit_image(const char *socket, const char *sandbox, const char *snapshot, const char *name,
    json_t **ret_json, struct rollbox_error *error);

#endif
