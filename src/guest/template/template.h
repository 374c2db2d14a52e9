/* SPDX-License-Identifier: Apache-2.0 */
/* The mounts and files that the operations of a plan make, in the launcher and in each sandbox. */
#ifndef ROLLBOX_GUEST_TEMPLATE_TEMPLATE_H
#define ROLLBOX_GUEST_TEMPLATE_TEMPLATE_H

#include "guest/internal.h"

/* mount_ops.c: carries out plan operations. `root` is "/". While the template is built, `box` is
 * NULL and `host` is the host's root; else -1. */
extern uint64_t ops_others; /* bit i: the i-th operation with an inode has found another one; the
                               last bit covers all further ones */
int ops_run(const struct plan *plan, struct box *box, struct plan_array which, int root, int host,
    struct guest_fault *fault);

/* idmap.c: a user namespace for an idmapped mount on which the files of one owner belong to U0's
 * `id`, found through the proc below the directory `host`; or -errno. Only as the host's root. */
int idmap_for_owner(int host, uint32_t id, uid_t uid, gid_t gid);
/* The same where file ids from 0 on are the PLAN_MANY_IDS ids of U0 from `id` on. */
int idmap_for_all(int host, uint32_t id);
/* The same by U0's root, for the sandbox's own files: files of the `count` ids of U0 from `stored`
 * on belong to those from `id` on. */
int idmap_for_files(int root, uint32_t stored, uint32_t id, uint32_t count);
/* The same for U0 itself, to be entered, with `count` ids. */
int idmap_for_launcher(int host, uint32_t count);
extern uint32_t idmap_base; /* the first id of the launcher's range */

/* own_mounts.c: mounts of the host for sandboxes with an id of their own. The tree of sources, for
 * the engine; -1: none. */
extern int own_mounts_sources;
/* Adds the host's object of an operation, of this type, to the sources. */
void own_mounts_keep(int source, const struct plan_op *op, mode_t type);
/* In init: waits for the engine's copy of the tree, if the sandbox is to have one. 0 or -errno. */
int own_mounts_receive(struct box *box);
/* Attaches its mounts over the template's. 0 or -errno. */
int own_mounts_attach(struct box *box);

/* urandom_file.c: starts writing the content of /dev/urandom under a seed to a file (consumed);
 * `length` is a multiple of 4096. */
void urandom_file_begin(int file, uint64_t seed, uint64_t length);
/* Waits until the file is complete, if one was started. 0 or -errno. */
int urandom_file_end(void);
/* Sets up the sandbox's own seed, once it is in its own root. 0 or -errno. */
int urandom_file_setup(const struct box *box);

#endif
