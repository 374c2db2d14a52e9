/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small files of control groups: reading, writing and parsing.
 */
#include "sys/cgroup_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"

static int write_fd(int fd, const char *text) {
    ssize_t n = write(fd, text, strlen(text));

    return n < 0 ? -errno : 0;
}

int cgroup_write_at(int dir_fd, const char *path, const char *text) {
    auto_close int fd = openat(dir_fd, path, O_WRONLY | O_CLOEXEC);

    return fd < 0 ? -errno : write_fd(fd, text);
}

ssize_t cgroup_read_fd(int fd, char *text, size_t size) {
    ssize_t n = pread(fd, text, size - 1, 0);

    if (n < 0)
        return -errno;
    text[n] = '\0';
    return n;
}

ssize_t cgroup_read_at(int dir_fd, const char *path, char *text, size_t size) {
    auto_close int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);

    return fd < 0 ? -errno : cgroup_read_fd(fd, text, size);
}

int cgroup_read_u64(int fd, uint64_t *ret) {
    char text[32], *end;
    ssize_t n = cgroup_read_fd(fd, text, sizeof(text));
    uint64_t value;

    if (n < 0)
        return (int)n;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno != 0 || end == text)
        return -EBADMSG;
    *ret = value;
    return 0;
}

uint64_t cgroup_keyed_value(const char *text, const char *key) {
    size_t length = strlen(key);

    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, key, length) == 0 && line[length] == ' ')
            return strtoull(line + length + 1, NULL, 10);
        line = strchr(line, '\n');
        if (line != NULL)
            line++;
    }
    return 0;
}

bool cgroup_has_word(const char *list, const char *word, char separator, char end) {
    size_t length = strlen(word);

    for (const char *p = list;;) {
        size_t n = 0;

        while (p[n] != '\0' && p[n] != '\n' && p[n] != separator && p[n] != end)
            n++;
        if (n == length && memcmp(p, word, n) == 0)
            return true;
        if (p[n] != separator)
            return false;
        p += n + 1;
    }
}

void cgroup_sleep_ns(long ns) {
    nanosleep(&(struct timespec){ .tv_nsec = ns }, NULL);
}
