/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, lists, copies and removes volumes (volume.h): commands of rollbox-store. */
#ifndef ROLLBOX_STORE_VOLUME_JOB_H
#define ROLLBOX_STORE_VOLUME_JOB_H

#include <jansson.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

/* `max_bytes` 0: no limit. Errors: INVALID_ARGUMENT (the name), CONFLICT (it exists), IO. */
int volume_create(int store, const char *name, uint64_t max_bytes, json_t **ret_json,
    struct rollbox_error *error);
/* A new volume `to` with the files of `name`, which no sandbox may be writing to. */
int volume_copy(
    int store, const char *name, const char *to, json_t **ret_json, struct rollbox_error *error);
/* Errors: NOT_FOUND, CONFLICT (a sandbox has it mounted). */
int volume_remove(int store, const char *name, struct rollbox_error *error);
/* {"volumes": [...]}, with the sizes of their files if `measures`. */
int volume_list(int store, bool measures, json_t **ret_json, struct rollbox_error *error);
int volume_inspect(int store, const char *name, json_t **ret_json, struct rollbox_error *error);
/* For store df and fsck: how many there are and their bytes; names of those that are damaged. */
int volume_measure(int store, uint64_t *ret_n, uint64_t *ret_bytes, struct rollbox_error *error);
int volume_check(int store, json_t *damaged, struct rollbox_error *error);

#endif
