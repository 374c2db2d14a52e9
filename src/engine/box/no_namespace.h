/* SPDX-License-Identifier: Apache-2.0 */
/* isolation process: private files, ids, processes. */
#ifndef ROLLBOX_ENGINE_BOX_NO_NAMESPACE_H
#define ROLLBOX_ENGINE_BOX_NO_NAMESPACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

struct engine;
struct private_dir;
struct profile;

int private_dir_new(
    struct profile *profile, uint32_t id_base, struct private_dir **ret_private_dir);

/* Where an engine's directory for them may be, in the order of preference; NULL-terminated, static.
 */
const char *const *process_places(void);
void private_dir_fields(const struct private_dir *private_dir, struct buf *message); /* of CREATE */
bool private_dir_is_over(struct private_dir *private_dir,
    uint64_t limit_bytes); /* now and then looks, so that looking costs little */
struct private_dir *private_dir_free(struct private_dir *private_dir); /* the sandbox is dead */
/* RLIMIT_NPROC of a command; 0: the plan's. `others`: what the commands of other sandboxes may come
 * to. */
uint64_t process_limit(struct profile *profile, uint64_t others);
void process_end_strays(struct engine *engine); /* kills what a killed init left */
void process_finish(struct engine *engine);

#endif
