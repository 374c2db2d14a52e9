/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/network/gateway_tape.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "net/recording.h"

static const char first_line[] = RECORDING_FIRST_LINE;

/* Does the file begin as a recording? 0, -EBADMSG or -errno. */
static int check_begin(int fd) {
    char begin[sizeof first_line];
    ssize_t n = pread(fd, begin, sizeof first_line - 1, 0);

    if (n < 0)
        return -errno;
    return n == sizeof first_line - 1 && !memcmp(begin, first_line, (size_t)n) ? 0 : -EBADMSG;
}

static int open_regular(const char *path, int flags) {
    auto_close int fd = open(path, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
    struct stat status;

    if (fd < 0 || fstat(fd, &status) < 0)
        return -errno;
    return S_ISREG(status.st_mode) ? TAKE_FD(fd) : -EINVAL;
}

/* Two sandboxes may begin at one moment: the file appears with its first line, or not at all. */
static int create(const char *path) {
    auto_close int fd = open_regular(path, O_RDWR | O_CREAT | O_EXCL | O_APPEND);

    if (fd < 0)
        return fd;
    int r = fd_write_all(fd, first_line, sizeof first_line - 1);
    if (r == 0)
        return TAKE_FD(fd);
    (void)unlink(path);
    return r;
}

static int open_record(const char *path) {
    int r = create(path);

    if (r != -EEXIST)
        return r;
    auto_close int fd = open_regular(path, O_RDWR | O_APPEND);
    if (fd < 0)
        return fd;
    r = check_begin(fd);
    return r < 0 ? r : TAKE_FD(fd);
}

/* The gateways get a copy that nobody changes while they read it. */
static int open_replay(const char *path) {
    auto_close int fd = open_regular(path, O_RDONLY);
    auto_buf struct buf content = BUF_INIT;

    if (fd < 0)
        return fd;
    int r = check_begin(fd);
    if (r == 0)
        r = fd_read_again(fd, RECORDING_MAX_BYTES, &content);
    return r < 0 ? r : fd_memory_file("rollbox-recording", content.data, content.length);
}

static int open_log(const char *path) {
    return open_regular(path, O_WRONLY | O_CREAT | O_APPEND);
}

static int fail(const char *key, const char *path, int r, struct rollbox_error *error) {
    const char *why = r == -EBADMSG  ? "it is not a recording (net_record makes them)"
                      : r == -EINVAL ? "it is not a regular file"
                      : r == -EFBIG  ? "it is larger than 64 MiB"
                                     : strerror(-r);

    return error_set(error,
        r == -EBADMSG || r == -EINVAL || r == -ENOENT ? ROLLBOX_ERR_POLICY_INVALID
                                                      : error_code_of(-r, ROLLBOX_ERR_IO),
        -r, "policy", "%s: %s: %s", key, path, why);
}

int gateway_tape_open(
    const struct net_rules *rules, struct gateway_tape *ret, struct rollbox_error *error) {
    *ret = GATEWAY_TAPE_NONE;
    if (rules->log_file) {
        ret->log = open_log(rules->log_file);
        if (ret->log < 0)
            return fail("net_log_file", rules->log_file, ret->log, error);
    }
    if (rules->record) {
        ret->record = open_record(rules->record);
        if (ret->record < 0)
            return fail("net_record", rules->record, ret->record, error);
    }
    if (rules->replay) {
        ret->replay = open_replay(rules->replay);
        if (ret->replay < 0)
            return fail("net_replay", rules->replay, ret->replay, error);
    }
    return 0;
}

int gateway_tape_check(const struct net_rules *rules, struct rollbox_error *error) {
    if (rules->log_file) {
        auto_close int fd = open_log(rules->log_file);

        if (fd < 0)
            return fail("net_log_file", rules->log_file, fd, error);
    }
    if (rules->record) {
        auto_close int fd = open_record(rules->record);

        if (fd < 0)
            return fail("net_record", rules->record, fd, error);
    }
    if (rules->replay) {
        auto_close int fd = open_regular(rules->replay, O_RDONLY);
        int r = fd < 0 ? fd : check_begin(fd);

        if (r < 0)
            return fail("net_replay", rules->replay, r, error);
    }
    return 0;
}

void gateway_tape_close(struct gateway_tape *tape) {
    close_fd(&tape->log);
    close_fd(&tape->record);
    close_fd(&tape->replay);
}
