/* SPDX-License-Identifier: Apache-2.0 */
/* Ownership by scope: `auto_close int fd = -EBADF` and `auto_free char *p = NULL` release at the
 * end of the scope. TAKE_FD and TAKE_PTR pass ownership on. */
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

#define TAKE_FD(fd)                                                                                \
    ({                                                                                             \
        int *fd_ = &(fd);                                                                          \
        int taken_ = *fd_;                                                                         \
        *fd_ = -EBADF;                                                                             \
        taken_;                                                                                    \
    })
#define TAKE_PTR(p)                                                                                \
    ({                                                                                             \
        __typeof__(p) *p_ = &(p);                                                                  \
        __typeof__(p) taken_ = *p_;                                                                \
        *p_ = NULL;                                                                                \
        taken_;                                                                                    \
    })

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
/* Evaluates each operand once. The unique names allow nested use without shadowing. */
#define CLEANUP_JOIN_(a, b) a##b
#define CLEANUP_JOIN(a, b) CLEANUP_JOIN_(a, b)
#define CLEANUP_PICK(a, relation, b, x, y)                                                         \
    ({                                                                                             \
        __typeof__(a) x = (a);                                                                     \
        __typeof__(b) y = (b);                                                                     \
        x relation y ? x : y;                                                                      \
    })
#define MIN(a, b)                                                                                  \
    CLEANUP_PICK(a, <, b, CLEANUP_JOIN(a_, __COUNTER__), CLEANUP_JOIN(b_, __COUNTER__))
#define MAX(a, b)                                                                                  \
    CLEANUP_PICK(a, >, b, CLEANUP_JOIN(a_, __COUNTER__), CLEANUP_JOIN(b_, __COUNTER__))

/* Closes a descriptor, which may be negative, and sets the variable to -EBADF. */
static inline void close_fd(int *fd) {
    cleanup_close(fd);
    *fd = -EBADF;
}

#endif
