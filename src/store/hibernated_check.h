/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks the whole record of a hibernated sandbox (docs/reference/store-format.md).
 *
 * A digest detects accidental changes only, because an attacker who writes a file also writes its
 * digest. So a record is checked here before it is used: when a file is imported, when an engine
 * adopts a sandbox from the store, and when the sandbox wakes. The engine relies on these checks.
 */
#ifndef ROLLBOX_STORE_HIBERNATED_CHECK_H
#define ROLLBOX_STORE_HIBERNATED_CHECK_H

#include <jansson.h>
#include <stddef.h>

#include <rollbox/rollbox.h>

/* The same numbers have names in other layers; static assertions there hold them together. */
#define HIBERNATED_MAX_STATES 100000
#define HIBERNATED_MAX_PROCESSES 512     /* IMAGE_MAX_PROCESSES */
#define HIBERNATED_MAX_PIPES 199         /* FD_MESSAGE_MAX_FDS - 1 */
#define HIBERNATED_MAX_TERMINALS 64      /* IMAGE_MAX_TERMINALS */
#define HIBERNATED_MAX_SLOTS 11          /* descriptors of a command that are noted */
#define HIBERNATED_MAX_OPERATION 64      /* bytes */
#define HIBERNATED_MAX_OUTPUT (1u << 20) /* bytes of all ended commands */

/*
 * `whole` is what hibernated_parse returned. Checked: type and range of every field, that each id,
 * name, pid, operation, pipe and terminal is there once, and that what names an item of another
 * list names one that there is and that agrees. DAMAGED, with the field, its value and the reason.
 */
int hibernated_check(const json_t *whole, struct rollbox_error *error);

#endif
