/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Putting a sandbox' files and processes on the disk, and getting them back: the work of rollbox-store for `hibernate` and `wake`.
 *
 * Both are jobs of the engine (docs/store-format.md, "Jobs"). What sleeps appears by rename when all of it has reached the disk, and is taken back only once every digest was found right.
 */
#ifndef ROLLBOX_STORE_SLEEP_H
#define ROLLBOX_STORE_SLEEP_H

#include <jansson.h>

#include <rollbox/rollbox.h>

/* {"id", "layers": [...], "images": [...], "owner": fd, "detached", "record": {...}} on `fd`; kept.h has what an element of the lists is. The lock on what was written goes to the socket `owner`.
 * *ret_json: {"bytes", "written"}: of what sleeps, and how much of that was not there already. */
int sleep_write(int store, int fd, json_t **ret_json, struct rollbox_error *error);

/* {"id", "layers": [{"fd"}], "images": [{"fd"}]}: empty directories, one a layer, and empty files, one an image that is a difference. */
int sleep_read(int store, int fd, json_t **ret_json, struct rollbox_error *error);

/* Is a file what its row ({"bytes", "sha256"}) says? *ret_reason, static: what is wrong with it; NULL: nothing. -errno if that cannot be found out. */
int sleep_check_file(int directory, const char *name, const json_t *row, const char **ret_reason);

#endif
