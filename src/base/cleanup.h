/* SPDX-License-Identifier: Apache-2.0 */
/* Ownership by scope: `auto_close int fd = -EBADF`, `auto_free char *p = NULL`; TAKE_FD and TAKE_PTR hand it on. */
#ifndef ROLLBOX_BASE_CLEANUP_H
#define ROLLBOX_BASE_CLEANUP_H

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_close(int *fd) {
    if (*fd >= 0) {
        int saved = errno;
        close(*fd);
        errno = saved;
    }
}

static inline void cleanup_free(void *pointer) {
    free(*(void **)pointer);
}

#define auto_close __attribute__((cleanup(cleanup_close)))
#define auto_free __attribute__((cleanup(cleanup_free)))

#define TAKE_FD(fd) ({ int *fd_ = &(fd); int taken_ = *fd_; *fd_ = -EBADF; taken_; })
#define TAKE_PTR(p) ({ __typeof__(p) *p_ = &(p); __typeof__(p) taken_ = *p_; *p_ = NULL; taken_; })

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b) ({ __typeof__(a) a_ = (a); __typeof__(b) b_ = (b); a_ < b_ ? a_ : b_; })
#define MAX(a, b) ({ __typeof__(a) a_ = (a); __typeof__(b) b_ = (b); a_ > b_ ? a_ : b_; })

/* Closes a descriptor that may be none and forgets it. */
static inline void close_fd(int *fd) {
    cleanup_close(fd);
    *fd = -EBADF;
}

#endif
