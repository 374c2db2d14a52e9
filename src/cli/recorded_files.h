/* SPDX-License-Identifier: Apache-2.0 */
/* The contents of files that a sandbox has changed: records have only their digests. */
#ifndef ROLLBOX_CLI_CONTENTS_H
#define ROLLBOX_CLI_CONTENTS_H

#include <jansson.h>

#include <rollbox/rollbox.h>

/* A new {digest: bytes} of the present small files, owned by the caller. Unreadable files are
 * missing: a difference is then found, but not shown. NULL: out of memory. */
json_t *recorded_files_of(struct rollbox_sandbox *sandbox);

#endif
