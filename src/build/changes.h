/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the changes of a sandbox to its image. */
#ifndef ROLLBOX_BUILD_CHANGES_H
#define ROLLBOX_BUILD_CHANGES_H

#include <rollbox/rollbox.h>

/* Exports the sandbox (NULL: as it is now; else one of its snapshots) to a pipe, while `take` reads
 * the other end. Blocks. 0, or the error of the side that failed first. */
int changes_read(struct rollbox_sandbox *sandbox, const char *snapshot,
    int (*take)(void *context, int archive, struct rollbox_error *error), void *context,
    struct rollbox_error *error);

#endif
