/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps for a sandbox's record that the engine cannot see. Files are transferred between the
 * library and an agent in the sandbox. If the sandbox is recorded, the library reports each
 * transfer to the engine and passes the content, which the recorder hashes. A failure to report
 * damages the record and never the call.
 */
#ifndef ROLLBOX_CLIENT_RECORD_H
#define ROLLBOX_CLIENT_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

void record_note_write(struct rollbox_sandbox *sandbox, const char *path, const void *data,
    size_t length, unsigned mode, enum rollbox_error_code code);
void record_note_mkdir(
    struct rollbox_sandbox *sandbox, const char *path, unsigned mode, enum rollbox_error_code code);
void record_note_remove(struct rollbox_sandbox *sandbox, const char *path, bool recursive,
    enum rollbox_error_code code);
/* `name`: that it went by instead of host_path's; NULL. */
void record_note_upload(struct rollbox_sandbox *sandbox, const char *host_path, const char *name,
    const char *path, uint64_t bytes, uint64_t files, enum rollbox_error_code code);

/* `snapshot` is the answer that requested them. */
void record_note_files(struct rollbox_sandbox *sandbox, const char *snapshot);

/* The error to the caller's, which may be NULL. Returns r. */
int record_pass(int r, const struct rollbox_error *own, struct rollbox_error *error);

#endif
