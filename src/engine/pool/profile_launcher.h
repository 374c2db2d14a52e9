/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher of a profile. */
#ifndef ROLLBOX_ENGINE_POOL_PROFILE_LAUNCHER_H
#define ROLLBOX_ENGINE_POOL_PROFILE_LAUNCHER_H

#include <rollbox/rollbox.h>

#include "engine/box/box.h"
#include "engine/box/profile.h"

struct path_identities *profile_path_identities(
    struct profile *profile); /* of an interpreter's second profile: its base's */
int profile_start_launcher(struct profile *profile, struct rollbox_error *error); /* if it has none
                                                                                   */
void profile_stop_launcher(struct profile *profile); /* if it has one */

/* box_new, with a launcher and room for its open files if these can be had. */
int profile_new_box(struct profile *profile, const struct box_config *config,
    const struct box_owner_ops *ops, void *owner, struct box **ret_box,
    struct rollbox_error *error);

#endif
