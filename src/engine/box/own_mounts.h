/* SPDX-License-Identifier: Apache-2.0 */
/* Mounts on which files of the host are those of one sandbox's id. Only as root. */
#ifndef ROLLBOX_ENGINE_BOX_OWN_MOUNTS_H
#define ROLLBOX_ENGINE_BOX_OWN_MOUNTS_H

#include <stdbool.h>
#include <stdint.h>

struct launcher;
struct plan;
struct box;

/* Has it any such files? */
bool own_mounts_needed(const struct box *box);

/* The socket to go with CREATE, on which init gets what its template shows; -EBADF: it has nothing
 * of that, or the plan's id. `pool` is the launcher of its template, or NULL. 0 or -errno. */
int own_mounts_promise(struct box *box, const struct launcher *pool, int *ret_socket);
/* Keeps the promise: the template is ready, or never will be. */
void own_mounts_ready(struct box *box, const struct launcher *pool);

/* Are its own files, and the layers that it is created on, in directories of the store? */
bool own_mounts_on_disk(const struct box *box);
/* A namespace for mounts of these that shows files of the plan's ids as those from `id` on, both of
 * the range from `base` on; the caller's, or -errno. */
int own_mounts_map(uint32_t base, const struct plan *plan, uint32_t id);
/* A copy of a mount, or of a directory, with such a map, attached nowhere; the caller's, or -errno.
 * `flags`: AT_RECURSIVE, AT_SYMLINK_NOFOLLOW. */
int own_mounts_show(int namespace, int directory, const char *path, unsigned flags);

#endif
