/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the guest layer: sending records to the engine, and writing texts to files of
 * /proc. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "guest/internal.h"

int record_send(int socket, const struct guest_record *record, const int *fds, size_t n_fds) {
    int r;

    for (unsigned tries = 0;
         (r = fd_send(socket, record, sizeof *record, fds, n_fds)) == -ETOOMANYREFS &&
         tries < FDS_TRIES;
         tries++)
        (void)poll(NULL, 0, FDS_AGAIN_MS);
    return r;
}

void record_fault(int socket, uint32_t kind, uint64_t serial, const struct guest_fault *fault,
    int negative_errno) {
    struct guest_record record = {
        .kind = kind,
        .stage = fault->stage,
        .operation = fault->operation,
        .error = -negative_errno,
        .serial = serial,
    };

    record_send(socket, &record, NULL, 0);
}

int guest_write(int directory, const char *path, const char *text) {
    int fd = openat(directory, path, O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    int r = fd_write_all(fd, text, strlen(text));
    close(fd);
    return r;
}

int guest_open_process(int proc, pid_t pid, const char *name, int flags) {
    char path[48];
    char *at = guest_put_number(path, (uint64_t)pid);

    memcpy(at, name, strlen(name) + 1);
    int fd = openat(proc, path, flags | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

char *guest_put_number(char *at, uint64_t value) {
    char digits[20];
    int n = 0;

    do
        digits[n++] = (char)('0' + value % 10);
    while (value /= 10);
    while (n)
        *at++ = digits[--n];
    return at;
}

static int map_one(int proc_self, const char *file, uint32_t inner, uint32_t outer) {
    char line[32], *at = guest_put_number(line, inner);

    *at++ = ' ';
    at = guest_put_number(at, outer);
    memcpy(at, " 1", 3);
    return guest_write(proc_self, file, line);
}

int guest_map_one(
    int proc_self, uint32_t inner_uid, uint32_t outer_uid, uint32_t inner_gid, uint32_t outer_gid) {
    int r = guest_write(proc_self, "setgroups", "deny");

    if (r == 0)
        r = map_one(proc_self, "uid_map", inner_uid, outer_uid);
    if (r == 0)
        r = map_one(proc_self, "gid_map", inner_gid, outer_gid);
    return r;
}
