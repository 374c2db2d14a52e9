/* SPDX-License-Identifier: Apache-2.0 */
/* The host as plan_compile must know it, and whether the paths of a policy are the same still. */
#ifndef ROLLBOX_ENGINE_POOL_HOST_VIEW_H
#define ROLLBOX_ENGINE_POOL_HOST_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>
#include <rollbox/rollbox.h>

#include "engine/box/profile.h"

struct commit_exchange;
struct host;

int host_look(struct engine *engine, const struct policy *policy, const struct image *image,
    struct host **ret_host, struct rollbox_error *error);
const struct plan_host *host_plan(const struct host *host);
struct host *host_free(struct host *host);
int path_identities_scan(const struct policy *policy, const char *later,
    struct path_identities *ret_path_identities); /* `later`: where something will be denied once it
                                                     is there, or NULL */
bool path_identities_hold(const struct path_identities *path_identities);
bool path_identities_base(const struct path_identities *path_identities, const char *path,
    uint64_t *ret_device, uint64_t *ret_inode);
void path_identities_published(struct engine *engine, struct profile *by, const char *place,
    const struct commit_exchange *exchange);
json_t *path_identities_record(
    const struct path_identities *path_identities); /* the bases, for when this engine is gone */
size_t path_identities_compare(struct path_identities *path_identities, const json_t *record,
    bool marks); /* how many are others than the record's bases; `marks`: nothing is committed to
                    these unless it is forced */
void path_identities_expect(
    const struct path_identities *path_identities, struct plan *plan); /* tells the launcher */
void path_identities_bound(struct path_identities *path_identities, const struct plan *plan,
    uint64_t others); /* which has answered (ops_others) */
void path_identities_done(struct path_identities *path_identities);

#endif
