/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is the record of a sleeping sandbox valid as a whole? (docs/reference/store-format.md)
 *
 * A digest tells that a record was not changed by accident; whoever makes a file makes the digest,
 * too. So a record is checked here before anything is made of it: when a file is imported, when an
 * engine takes a sandbox from the store, and when it wakes. The engine relies on what is checked.
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
