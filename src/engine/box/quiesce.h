/* SPDX-License-Identifier: Apache-2.0 */
/* With random_seed or time_start, init has a part in a dump (guest/quiesce.h). */
#ifndef ROLLBOX_ENGINE_BOX_QUIESCE_H
#define ROLLBOX_ENGINE_BOX_QUIESCE_H

struct box;

/* The end of a socket to init, the caller's; 0: init has no part in it; or -errno. */
int quiesce_begin(const struct box *box);

#endif
