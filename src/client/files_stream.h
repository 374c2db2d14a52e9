/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files and trees of sandboxes as streams of bytes, in constant memory: from and to a descriptor
 * (borrowed, blocking), such as a pipe. A tree is a tar archive. 0 or a negative value with the
 * error filled in; a reader or writer of the descriptor that is gone is CANCELLED.
 *
 * Unlike the functions on whole files, a call is not made again if the guest kills its agent in
 * the middle, because the bytes of the stream are gone.
 */
#ifndef ROLLBOX_CLIENT_FILES_STREAM_H
#define ROLLBOX_CLIENT_FILES_STREAM_H

#include <rollbox/rollbox.h>

int files_stream_read(
    struct rollbox_sandbox *sandbox, const char *path, int fd, struct rollbox_error *error);
/* Exactly `size` bytes; of `options` the mode, the user and the owner. */
int files_stream_write(struct rollbox_sandbox *sandbox, const char *path, int fd, uint64_t size,
    const struct rollbox_file_options *options, struct rollbox_error *error);
/* The directory or file. What is no file, directory or link is left out; holes become zeros. */
int files_stream_archive(
    struct rollbox_sandbox *sandbox, const char *path, int fd, struct rollbox_error *error);
/* Puts the archive's entries below the directory, which is made if it is missing. Entries whose
 * path has "..", and special files, are refused; directories that exist are merged. */
int files_stream_extract(struct rollbox_sandbox *sandbox, const char *path, int fd,
    const struct rollbox_file_options *options, struct rollbox_error *error);

#endif
