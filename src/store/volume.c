/* SPDX-License-Identifier: Apache-2.0 */
#include "store/volume.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "sys/proc.h"

#define META_MAX_BYTES 4096
#define NOTE_MAX_BYTES 64

static int io_error(struct rollbox_error *error, int error_number, const char *name) {
    return error_set(error, error_code_of(error_number, ROLLBOX_ERR_IO), error_number, "store",
        "volume %s cannot be used: %s", name, strerror(error_number));
}

static int open_directory(int store, const char *name) {
    char path[sizeof VOLUMES_DIRECTORY + VOLUME_NAME_MAX + 2];

    if (!policy_is_volume_name(name))
        return -ENOENT;
    snprintf(path, sizeof path, VOLUMES_DIRECTORY "/%s", name);
    int fd = openat(store, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int not_found(struct rollbox_error *error, const char *name) {
    return error_set(error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "store",
        "there is no volume %.64s; rollbox volume create %.64s makes it", name, name);
}

int volume_open(int store, const char *name, int *ret_directory, struct rollbox_error *error) {
    int fd = open_directory(store, name);

    if (fd == -ENOENT)
        return not_found(error, name);
    if (fd < 0)
        return io_error(error, -fd, name);
    *ret_directory = fd;
    return 0;
}

int volume_read_meta(int directory, struct volume_meta *ret_meta) {
    auto_buf struct buf text = BUF_INIT;
    auto_close int fd = openat(directory, "volume.json", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    int r = fd < 0 ? -errno : fd_read_all(fd, META_MAX_BYTES, &text);

    if (r < 0)
        return r == -EFBIG ? -EBADMSG : r;
    json_t *meta =
        json_loadb(text.data ? text.data : "", text.length, JSON_REJECT_DUPLICATES, NULL);
    const json_t *bytes = json_object_get(meta, "max_bytes");
    const bool good = json_integer_value(json_object_get(meta, "version")) == 1 &&
                      json_is_integer(bytes) && json_integer_value(bytes) >= 0;
    if (good)
        *ret_meta =
            (struct volume_meta){ .created_s = json_integer_value(json_object_get(meta, "created")),
                .max_bytes = (uint64_t)json_integer_value(bytes) };
    json_decref(meta);
    return good ? 0 : -EBADMSG;
}

/* ---- locks ---- */

/* Locks one of the two files. 0: somebody else has it. */
static int lock_file(int directory, const char *file, int operation, int *ret_fd) {
    auto_close int fd = openat(directory, file, O_RDWR | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    while (flock(fd, operation | LOCK_NB) < 0)
        if (errno == EWOULDBLOCK)
            return 0;
        else if (errno != EINTR)
            return -errno;
    *ret_fd = TAKE_FD(fd);
    return 1;
}

static void unlock_file(int *fd) {
    if (*fd >= 0)
        (void)flock(*fd, LOCK_UN);
    close_fd(fd);
}

/* Whether the sandbox that had the volume alone still has processes. */
static bool has_old_writer(int writers) {
    char text[NOTE_MAX_BYTES + 1];
    int pid = 0;
    int64_t start = 0;
    ssize_t n = pread(writers, text, NOTE_MAX_BYTES, 0);

    if (n <= 0)
        return false;
    text[n] = '\0';
    return sscanf(text, "%d %" SCNd64, &pid, &start) == 2 && pid > 0 &&
           proc_start_time(pid) == start;
}

static bool is_current(int store, int directory, const char *name) {
    struct stat held, there;
    auto_close int fd = open_directory(store, name);

    return fd >= 0 && fstat(directory, &held) == 0 && fstat(fd, &there) == 0 &&
           held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

static int in_use(const char *name, enum policy_volume_mode mode, struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_CONFLICT, EBUSY, "volume",
        "volume %s is in use by a sandbox that writes to it%s; end that sandbox, or use mode "
        "%s",
        name, mode == POLICY_VOLUME_SHARED ? " alone" : "",
        mode == POLICY_VOLUME_SHARED ? "shared there, too" : "read-only, private or shared");
}

int volume_lock_take(int store, int directory, const char *name, enum policy_volume_mode mode,
    struct volume_lock *ret_lock, struct rollbox_error *error) {
    const bool writes = mode == POLICY_VOLUME_EXCLUSIVE || mode == POLICY_VOLUME_SHARED;
    struct volume_lock lock = VOLUME_LOCK_NONE;
    int r = lock_file(directory, "users", LOCK_SH, &lock.users);

    if (r == 0 || (r > 0 && !is_current(store, directory, name))) {
        volume_lock_done(&lock);
        return not_found(error, name);
    }
    if (r > 0 && writes)
        r = lock_file(
            directory, "writers", mode == POLICY_VOLUME_SHARED ? LOCK_SH : LOCK_EX, &lock.writers);
    if (r > 0 && writes && has_old_writer(lock.writers))
        r = 0;
    if (r == 0)
        r = in_use(name, mode, error);
    else if (r < 0)
        r = io_error(error, -r, name);
    if (r < 0) {
        volume_lock_done(&lock);
        return r;
    }
    if (mode == POLICY_VOLUME_EXCLUSIVE)
        (void)!ftruncate(lock.writers, 0);
    *ret_lock = lock;
    return 0;
}

void volume_lock_done(struct volume_lock *lock) {
    unlock_file(&lock->writers);
    unlock_file(&lock->users);
}

void volume_lock_note(const struct volume_lock *lock, pid_t init) {
    char text[NOTE_MAX_BYTES];
    int n = snprintf(text, sizeof text, "%d %" PRId64 "\n", (int)init, proc_start_time(init));

    if (lock->writers >= 0 && ftruncate(lock->writers, 0) == 0)
        (void)!pwrite(lock->writers, text, (size_t)n, 0);
}
