/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads hibernated sandboxes in the store (docs/reference/hibernation-format.md).
 * Writes nothing.
 *
 * asleep/ID/ has `record.json`, `layer-N`, `image-N` and, if an image is a difference, `base-N`.
 * The engine that owns the sandbox holds an exclusive lock on record.json; the kernel releases it
 * if the engine dies. A woken sandbox is renamed to woken/ID, with the same lock, and stays as long
 * as later hibernations can reuse its data (dedup_write.h).
 */
#ifndef ROLLBOX_STORE_HIBERNATED_READ_H
#define ROLLBOX_STORE_HIBERNATED_READ_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include <rollbox/rollbox.h>

#define HIBERNATED_DIRECTORY "asleep"
#define WOKEN_DIRECTORY "woken" /* of the same length */
#define HIBERNATED_ID_LENGTH 32 /* lower-case hex digits */
#define HIBERNATED_DIGEST_HEX 64
#define HIBERNATED_MAX_BYTES (64u << 20) /* of a record */
#define HIBERNATED_MAX_FILES 900         /* layers and images of one sandbox; also bases */
#define HIBERNATED_MAX_OVER 8

bool hibernated_id_ok(const char *id);

enum hibernated_kind { HIBERNATED_LAYER, HIBERNATED_IMAGE, HIBERNATED_BASE };

#define HIBERNATED_FILE_NAME 32

/* "layer-0"; and "layers", the list of a record that has its row. */
void hibernated_file_name(char ret_name[HIBERNATED_FILE_NAME], enum hibernated_kind kind, size_t i);
const char *hibernated_list(enum hibernated_kind kind);

/* Reads a record's text: JSON, a line with its SHA-256. *ret_record is the caller's: {"version",
 * "id", "record": {...}, "layers": [{"bytes", "sha256"}], "images": [the same, and perhaps "over":
 * [numbers of bases]], "bases": [as layers]}. DAMAGED. */
int hibernated_parse(
    const char *text, size_t length, json_t **ret_record, struct rollbox_error *error);

/* SHA-256. */
void hibernated_digest(const void *data, size_t length, char ret_hex[HIBERNATED_DIGEST_HEX + 1]);

/* The text of such a record, for free(); NULL when out of memory. */
char *hibernated_text(const json_t *record);

/* Reads an open record.json, and checks it as a whole (hibernated_check.h). */
int hibernated_read(int fd, json_t **ret_record, struct rollbox_error *error);
/* The same without that check, for callers that only need the owner. */
int hibernated_read_unchecked(int fd, json_t **ret_record, struct rollbox_error *error);

/* The entry of a record for its i-th file, {"bytes", "sha256"}, and the file's name; NULL after the
 * last. Borrowed. */
const json_t *hibernated_file(const json_t *record, size_t i, char ret_name[HIBERNATED_FILE_NAME]);

/* `directory` is HIBERNATED_DIRECTORY or WOKEN_DIRECTORY. */

/* Opens and locks ID/record.json: *ret_lock, owned by the caller. -EBUSY: locked by another
 * process, -ENOENT: it does not exist. Sets no error. */
int hibernated_lock(int store, const char *directory, const char *id, int *ret_lock);
/* Reads ID/record.json without its lock; unchecked. */
int hibernated_scan(int store, const char *directory, const char *id, json_t **ret_record);

/* Calls with each id. 0, or the value of a call if that was not 0, or -errno. */
int hibernated_each(
    int store, const char *directory, int (*each)(void *context, const char *id), void *context);

/* Removes a sandbox for good: leftovers are in the trash. 0 or -errno. */
int hibernated_remove(int store, const char *directory, const char *id);

/* Moves a woken sandbox from asleep/ to woken/. 0 or -errno. */
int hibernated_keep(int store, const char *id);
/* Moves it back, after a failure. */
int hibernated_forget_kept(int store, const char *id);

#endif
