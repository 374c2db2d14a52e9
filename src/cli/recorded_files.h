/* SPDX-License-Identifier: Apache-2.0 */
/* What the files have in them that a sandbox has changed: records have their digests alone. */
#ifndef ROLLBOX_CLI_CONTENTS_H
#define ROLLBOX_CLI_CONTENTS_H

#include <jansson.h>

#include <rollbox/rollbox.h>

/* A new {digest: bytes} of small files, as they are now; the caller's. What cannot be read is not
 * there, for without it a difference is still found, if not shown. NULL: out of memory. */
json_t *recorded_files_of(struct rollbox_sandbox *sandbox);

#endif
