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

/* A job on `fd` about one that sleeps: {"id", "layers": [fd]?, "images": [fd]?, ...}. *ret_job is the caller's. */
int sleep_job(int fd, json_t **ret_job, struct rollbox_error *error);

/* {"id", "layers": [fd], "images": [fd], "owner": fd, "detached", "record": {...}} on `fd`. The lock on what was written goes to the socket `owner`. *ret_json: {"bytes"}. */
int sleep_write(int store, int fd, json_t **ret_json, struct rollbox_error *error);

/* {"id", "layers": [fd], "images": []}: empty directories, one a layer. */
int sleep_read(int store, int fd, json_t **ret_json, struct rollbox_error *error);

/* Are all files of asleep/ID what was written? 0; DAMAGED, with the first that is not. */
int sleep_verify(int store, const char *id, struct rollbox_error *error);

/* A descriptor of its image `i`, or -errno. */
int sleep_open_image(int store, const char *id, size_t i);

#endif
