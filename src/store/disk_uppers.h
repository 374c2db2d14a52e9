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

/* Moves the private files of ended engines to the trash. */
int disk_uppers_collect(int store, uint64_t *ret_removed, struct rollbox_error *error);

/* The number of engines with private files, and the size of these files. Directories that a guest
 * of an ordinary user has closed are not counted. */
int disk_uppers_measure(
    int store, uint64_t *ret_engines, uint64_t *ret_bytes, struct rollbox_error *error);

#endif
