/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define PATIENT_MS 1
#define PATIENT_TRIES 100
#define TIRED_NS 1000000000ll
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

int fd_write_all(int fd, const void *data, size_t length) {
    const char *p = data;

    while (length) {
        ssize_t n = write(fd, p, length);

        if (n < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        p += n;
        length -= (size_t)n;
    }
    return 0;
}

/* Most files are small, and untouched memory costs nothing. */
int fd_read_all(int fd, size_t limit, struct buf *to) {
    size_t total = 0;

    for (size_t step = 4096;; step = MIN(2 * step, (size_t)65536)) {
        char *at = buf_reserve(to, step);
        if (!at)
            return -ENOMEM;
        ssize_t n = read(fd, at, step);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        if (n == 0) {
            buf_add(to, "", 0);
            return 0;
        }
        total += (size_t)n;
        if (total > limit)
            return -EFBIG;
        to->length += (size_t)n;
    }
}

int fd_read_again(int fd, size_t limit, struct buf *to) {
    return lseek(fd, 0, SEEK_SET) < 0 ? -errno : fd_read_all(fd, limit, to);
}

int fd_read_file(const char *path, size_t limit, struct buf *to) {
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);

    return fd < 0 ? -errno : fd_read_all(fd, limit, to);
}

int fd_map(int fd, const char **ret_data, uint64_t *ret_length) {
    struct stat st;
    void *data = fstat(fd, &st) < 0 ? MAP_FAILED
                                    : mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);

    *ret_data = data == MAP_FAILED ? NULL : data;
    *ret_length = data == MAP_FAILED ? 0 : (uint64_t)st.st_size;
    return data == MAP_FAILED ? -errno : 0;
}

int fd_send(int socket, const void *data, size_t length, const int *fds, size_t n_fds) {
    union {
        char bytes[CMSG_SPACE(sizeof(int) * FD_MESSAGE_MAX_FDS)];
        struct cmsghdr align;
    } control = { 0 };
    struct iovec iov = { (void *)data, length };
    struct msghdr message = { .msg_iov = &iov, .msg_iovlen = 1 };

    if (n_fds > FD_MESSAGE_MAX_FDS)
        return -EMSGSIZE;
    if (n_fds) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(header), fds, sizeof(int) * n_fds);
    }
    for (;;) {
        if (sendmsg(socket, &message, MSG_NOSIGNAL) >= 0)
            return 0;
        if (errno != EINTR)
            return -errno;
    }
}

int fd_send_patiently(int socket, const void *data, size_t length, const int *fds, size_t n_fds) {
    static int64_t tired_until; /* a process that keeps the limit exhausted must not delay us for
                                   each message */
    int r;

    for (unsigned tries = 0; (r = fd_send(socket, data, length, fds, n_fds)) == -ETOOMANYREFS &&
                             tries < PATIENT_TRIES && clock_now_ns() >= tired_until;
         tries++)
        (void)poll(NULL, 0, PATIENT_MS);
    if (r == -ETOOMANYREFS && clock_now_ns() >= tired_until)
        tired_until = clock_now_ns() + TIRED_NS;
    return r;
}

ssize_t fd_receive(int socket, void *data, size_t capacity, int *ret_fds, size_t *ret_n_fds) {
    union {
        char bytes[CMSG_SPACE(sizeof(int) * FD_MESSAGE_MAX_FDS)];
        struct cmsghdr align;
    } control;
    struct iovec iov = { data, capacity };
    struct msghdr message = { .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof control.bytes };
    bool was_reset = false;
    ssize_t n;
    size_t n_fds = 0;

    /* After a peer has closed with unread messages, the first call reports that once. The messages
     * that the peer had sent follow. */
    do
        n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (n < 0 && (errno == EINTR || (errno == ECONNRESET && !was_reset && (was_reset = true))));
    if (n < 0)
        return -errno;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header;
         header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        memcpy(ret_fds + n_fds, CMSG_DATA(header), count * sizeof(int));
        n_fds += count;
    }
    if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        for (size_t i = 0; i < n_fds; i++)
            close(ret_fds[i]);
        return message.msg_flags & MSG_TRUNC ? -EMSGSIZE : -EMFILE;
    }
    *ret_n_fds = n_fds;
    return n;
}

int fd_memory_file(const char *name, const void *data, size_t length) {
    auto_close int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return -errno;
    int r = fd_write_all(fd, data, length);
    if (r < 0)
        return r;
    if (lseek(fd, 0, SEEK_SET) < 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0)
        return -errno;
    return TAKE_FD(fd);
}

int fd_map_memory_file(int fd, size_t limit, void **ret_data, size_t *ret_length) {
    int seals = fcntl(fd, F_GET_SEALS);
    off_t size;

    if (seals < 0)
        return -errno;
    if ((seals & SEALS) != SEALS)
        return -EPERM;
    /* glibc's fstat is newfstatat, which takes paths: programs that may not name files lack it. */
    size = lseek(fd, 0, SEEK_END);
    if (size < 0)
        return -errno;
    if ((uint64_t)size > limit)
        return -EFBIG;
    void *data = NULL;
    if (size > 0) {
        data = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            return -errno;
    }
    *ret_data = data;
    *ret_length = (size_t)size;
    return 0;
}

int fd_copy_all(int *ret_fds, const int *fds, size_t n_fds) {
    for (size_t i = 0; i < n_fds; i++) {
        int r;

        ret_fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
        if (ret_fds[i] >= 0)
            continue;
        r = -errno;
        while (i > 0)
            close_fd(&ret_fds[--i]);
        return r;
    }
    return 0;
}
