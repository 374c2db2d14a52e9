/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors: complete reads and writes, messages with descriptors, sealed memory files. All
 * functions return -errno on failure. */
#ifndef ROLLBOX_BASE_FD_H
#define ROLLBOX_BASE_FD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

#define FD_MESSAGE_MAX_FDS                                                                         \
    200 /* the pipes of a sandbox that is restored; the kernel takes 253 (SCM_MAX_FD) */

/* The kernel counts descriptors in flight per user, over all processes. Messages that other
 * processes sent and nobody has received yet can exhaust the limit (ETOOMANYREFS). The kernel
 * signals no end of that condition, so sending is retried. */
#define FDS_AGAIN_MS 5
#define FDS_TRIES 2000 /* ten seconds */

/* Writes everything, retrying EINTR and short writes. 0 or -errno. */
int fd_write_all(int fd, const void *data, size_t length);

/* Reads up to end of file, at most `limit` bytes (-EFBIG past it). */
int fd_read_all(int fd, size_t limit, struct buf *to);

/* Reads the file again from its beginning. */
int fd_read_again(int fd, size_t limit, struct buf *to);

/* Reads a file by path; relative to the working directory. */
int fd_read_file(const char *path, size_t limit, struct buf *to);

/* Maps a file for reading; the caller unmaps it. Returns 0, or -errno with NULL and 0 (EINVAL
 * for an empty file). */
int fd_map(int fd, const char **ret_data, uint64_t *ret_length);

/* One message with descriptors (borrowed; the kernel duplicates them). Returns 0 or -errno (-EAGAIN
 * on a full non-blocking socket). Never raises SIGPIPE. */
int fd_send(int socket, const void *data, size_t length, const int *fds, size_t n_fds);
/* Does the same, but waits for room: up to a tenth of a second, and then not again for a second.
 * For callers with nothing else to do. Only one thread may call it. */
int fd_send_patiently(int socket, const void *data, size_t length, const int *fds, size_t n_fds);

/* Receives one message. Returns its length (0: the peer closed the socket) or -errno. -EMSGSIZE:
 * the message did not fit. -EMFILE: there was no room for its descriptors; `data` then has the
 * message, and the descriptors that did arrive are closed. Received descriptors are close-on-exec,
 * and the caller owns them. ret_fds has room for FD_MESSAGE_MAX_FDS. */
ssize_t fd_receive(int socket, void *data, size_t capacity, int *ret_fds, size_t *ret_n_fds);

/* Copies all of the descriptors, close-on-exec, or none. 0 or -errno. */
int fd_copy_all(int *ret_fds, const int *fds, size_t n_fds);

/* A sealed, read-only memory file with the given content, or -errno. */
int fd_memory_file(const char *name, const void *data, size_t length);

/* Maps a memory file read-only. The file must carry the seals of fd_memory_file, so that its sender
 * can neither shrink nor change it. *ret_data is NULL for an empty file. Unmap it with munmap. */
int fd_map_memory_file(int fd, size_t limit, void **ret_data, size_t *ret_length);

#endif
