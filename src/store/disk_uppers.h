/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private files of running sandboxes (disk_at store), as gc and df treat them: boxes/ has one
 * directory per engine, which that engine holds with flock. Their contents are not part of the
 * store, and fsck ignores them: they are removed with their engine.
 */
#ifndef ROLLBOX_STORE_BOXES_H
#define ROLLBOX_STORE_BOXES_H

#include <stdint.h>

#include <rollbox/rollbox.h>

#define BOXES_DIRECTORY "boxes"

/* Moves to the trash what is nobody's any more. */
int disk_uppers_collect(int store, uint64_t *ret_removed, struct rollbox_error *error);

/* How many engines have some, and how much they take; what a guest of an ordinary user's has shut
 * is not seen. */
int disk_uppers_measure(
    int store, uint64_t *ret_engines, uint64_t *ret_bytes, struct rollbox_error *error);

#endif
