/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles: found, compiled again, retired (box/profile.h has the struct). */
#ifndef ROLLBOX_ENGINE_POOL_PROFILE_H
#define ROLLBOX_ENGINE_POOL_PROFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>
#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "engine/box/profile.h"

int image_get(struct engine *engine, struct policy *policy, struct image **ret_image,
    struct rollbox_error *error);
struct image *image_free(struct image *image);
/* Whether the name still means the image that was looked up. */
bool image_is_current(const struct image *image, const char *name);

/* devices.c: finds what the policy's devices are on this host. */
int devices_resolve(struct policy *policy, struct rollbox_error *error);

/* python.c: grants what the interpreter of the policy's own needs, if it names one. */
int python_grant(struct policy *policy, struct rollbox_error *error);
int profile_get(struct engine *engine, const char *text, size_t length,
    const char *const *caller_environment, int secrets, struct profile **ret_profile,
    struct rollbox_error *error); /* `secrets`: see struct profile; borrowed */
struct profile *profile_twin(const struct profile *of,
    struct rollbox_error *error); /* another of the same policy, on no list and without a number:
                                     its owner frees it; NULL */
struct profile *profile_find(struct engine *engine, uint64_t number);
int profile_renew(struct profile **profile,
    struct rollbox_error *error); /* for what begins now: another one, if the host has something
                                     else at the policy's paths, or the store as its image */
int profile_of_before(struct profile **profile, const json_t *path_identities,
    struct rollbox_error *error); /* for what began on those (path_identities_record): another one
                                     of no number, if the host's directories are others now */
int profile_explain(struct engine *engine, const char *text, size_t length, struct buf *to,
    struct rollbox_error *error);

/* Adds the policy's environment, then which clone it is (-1: none), then the entries; of two with
 * one name the later. How many of the entries. */
size_t profile_add_environment(struct buf *to, const struct profile *profile, int64_t clone_id,
    const char *const *entries, size_t n);
struct profile *profile_free(struct profile *profile);
int profile_keep_spares(struct profile *profile);
void profile_drop_spares(struct engine *engine); /* of all programs: something has run out */

/* Of all that have something at or below `path`, which is another directory now: new sandboxes see
 * that, the present ones the old one. That is at `kept` now, locked by the descriptor (-EBADF: by
 * none), and goes with the last of them. */
void profile_retire(struct engine *engine, const char *path, int take_fd, const char *kept);
void profile_rest(
    struct profile *profile); /* nothing of it is needed but what it says, unless something is */
void profile_leave(
    struct profile *profile);             /* a session has: a retired program ends with its last */
void profile_tidy(struct engine *engine); /* free slots of a peak that is over */

#endif
