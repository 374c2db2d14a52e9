/* SPDX-License-Identifier: Apache-2.0 */
#include "store/hibernate.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "store/hibernated_read.h"
#include "store/hibernated_check.h"
#include "store/hibernated_image.h"
#include "store/digest.h"
#include "store/fault.h"
#include "store/dedup_write.h"
#include "store/layer.h"
#include "store/pack.h"

#define CHUNK (256u << 10)

void hibernate_job_done(struct hibernate_job *job) {
    json_decref(job->root);
}

static bool are_descriptors(const json_t *list) {
    const json_t *row;
    size_t i;

    json_array_foreach(list, i, row) {
        json_int_t number = json_integer_value(json_object_get(row, "fd"));

        if (number <= STDERR_FILENO || number > INT_MAX || fcntl((int)number, F_GETFD) < 0)
            return false;
    }
    return json_array_size(list) <= HIBERNATED_MAX_FILES;
}

static int descriptor_of(const json_t *list, size_t i) {
    return (int)json_integer_value(json_object_get(json_array_get(list, i), "fd"));
}

int hibernate_job_read(int fd, struct hibernate_job *ret_job, struct rollbox_error *error) {
    auto_buf struct buf text = BUF_INIT;
    int r = fd_read_all(fd, HIBERNATED_MAX_BYTES, &text);
    json_t *root =
        r < 0 ? NULL
              : json_loadb(text.data ? text.data : "", text.length, JSON_REJECT_DUPLICATES, NULL);
    struct hibernate_job job = { .root = root,
        .id = json_string_value(json_object_get(root, "id")),
        .layers = json_object_get(root, "layers"),
        .images = json_object_get(root, "images") };

    if (!job.id || !hibernated_id_ok(job.id) || !are_descriptors(job.layers) ||
        !are_descriptors(job.images)) {
        json_decref(root);
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "the job on standard input is not valid");
    }
    *ret_job = job;
    return 0;
}

static int io_error(
    struct rollbox_error *error, int error_number, const char *stage, const char *doing) {
    return error_set(error, error_code_of(error_number, ROLLBOX_ERR_IO), error_number, stage,
        "%s: %s%s", doing, strerror(error_number),
        error_number == ENOSPC || error_number == EDQUOT ? "; make room on the store's file system"
                                                         : "");
}

/* ---- to sleep ---- */

int hibernate_stage(
    const struct hibernate_job *job, struct stage *stage, struct rollbox_error *error) {
    const json_t *from;
    size_t i;
    int r = 0;

    json_array_foreach(job->layers, i, from) r = r < 0 ? r : stage_layer(stage, from, error);
    json_array_foreach(job->images, i, from) r = r < 0 ? r : stage_image(stage, from, error);
    if (r == 0 && json_array_size(stage->bases) > HIBERNATED_MAX_FILES)
        r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, E2BIG, "hibernate",
            "the sandbox's process images have too many parent images: drop snapshots");
    return r;
}

static int sync_fd(int fd) {
    return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

int hibernate_check_record(
    const struct hibernate_job *job, const json_t *whole, struct rollbox_error *error) {
    int r = hibernated_check(whole, error);

    for (size_t i = 0; r == 0 && i < json_array_size(job->images); i++)
        r = hibernated_image_check(
            json_object_get(whole, "record"), i, descriptor_of(job->images, i), "hibernate", error);
    return r;
}

json_t *hibernate_whole(
    const char *id, json_t *record, json_t *layers, json_t *images, json_t *bases) {
    return json_pack("{s:i, s:s, s:I, s:O, s:O, s:O, s:O}", "version", 1, "id", id, "created",
        (json_int_t)time(NULL), "record", record, "layers", layers, "images", images, "bases",
        bases);
}

static int write_record(int stage, const char *text) {
    auto_close int fd =
        openat(stage, "record.json", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

    return fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
}

/* Everything is written by now, so the first sync does most of the work of the others. Linked data
 * is on disk already, and costs nothing. */
static int sync_files(int stage, const json_t *record) {
    char name[HIBERNATED_FILE_NAME];

    for (size_t i = 0; hibernated_file(record, i, name); i++) {
        auto_close int fd = openat(stage, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

        if (fd < 0 || fdatasync(fd) < 0)
            return -errno;
    }
    return 0;
}

/* The rename makes the sandbox hibernated. Its owner has the lock before another process can find
 * it. */
int hibernate_publish(const struct work *work, int stage, const json_t *record, int owner,
    struct rollbox_error *error) {
    auto_free char *text = hibernated_text(record);
    char target[sizeof HIBERNATED_DIRECTORY + HIBERNATED_ID_LENGTH + 1];
    const char *id = json_string_value(json_object_get(record, "id"));
    int r = text ? write_record(stage, text) : -ENOMEM;

    if (r == 0)
        r = sync_files(stage, record);
    if (r < 0)
        return io_error(error, -r, "hibernate", "the sandbox cannot be written to the store");
    auto_close int lock = openat(stage, "record.json", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (lock < 0 || flock(lock, LOCK_EX | LOCK_NB) < 0 || fdatasync(lock) < 0 || fsync(stage) < 0)
        return io_error(error, errno, "hibernate", "the store cannot be synced");
    fault_point(FAULT_sleep_written);
    r = owner < 0 ? 0 : fd_send(owner, "", 1, &lock, 1);
    /* One that outlives its engine can be woken by the next. */
    if (r < 0 && !json_is_true(json_object_get(json_object_get(record, "record"), "detached")))
        return io_error(error, -r, "hibernate", "the engine is gone");
    auto_close int held = layer_store_lock(work->store, LOCK_SH);
    if (held < 0)
        return io_error(error, -held, "hibernate", "the store cannot be locked");
    bool is_new = mkdirat(work->store, HIBERNATED_DIRECTORY, 0700) == 0;
    if (!is_new && errno != EEXIST)
        return io_error(error, errno, "hibernate", "a directory cannot be made in the store");
    snprintf(target, sizeof target, HIBERNATED_DIRECTORY "/%s", id);
    if (renameat(work->fd, SLEEP_STAGE, work->store, target) < 0)
        return io_error(error, errno, "hibernate", "the store cannot be written to");
    auto_close int all =
        openat(work->store, HIBERNATED_DIRECTORY, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    r = sync_fd(all);
    if (r == 0 && is_new)
        r = sync_fd(work->store);
    fault_point(FAULT_sleep_published);
    if (r < 0)
        (void)hibernated_remove(work->store, HIBERNATED_DIRECTORY, id);
    return r < 0 ? io_error(error, -r, "hibernate", "the store cannot be synced") : 0;
}

int hibernate_begin(int store, struct work *ret_work, int *ret_stage, struct rollbox_error *error) {
    int r = work_begin(store, ret_work, error);

    if (r < 0)
        return r;
    int fd =
        mkdirat(ret_work->fd, SLEEP_STAGE, 0700) < 0
            ? -1
            : openat(ret_work->fd, SLEEP_STAGE, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return io_error(error, errno, "hibernate", "a directory cannot be made in the store");
    *ret_stage = fd;
    return 0;
}

int hibernate_write(int store, int fd, json_t **ret_json, struct rollbox_error *error) {
    struct work work = WORK_NONE;
    struct stage stage = { 0 };
    auto_close int directory = -EBADF;
    struct hibernate_job job;
    int r = hibernate_job_read(fd, &job, error);

    if (r < 0)
        return r;
    r = hibernate_begin(store, &work, &directory, error);
    if (r == 0)
        r = stage_init(&stage, store, directory, error);
    if (r == 0)
        r = hibernate_stage(&job, &stage, error);
    json_t *record = r < 0 ? NULL
                           : hibernate_whole(job.id, json_object_get(job.root, "record"),
                                 stage.layers, stage.images, stage.bases);
    if (record)
        r = hibernate_check_record(&job, record, error);
    if (r == 0)
        r = record ? hibernate_publish(&work, directory, record,
                         (int)json_integer_value(json_object_get(job.root, "owner")), error)
                   : error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                         "the job has no record");
    *ret_json = r < 0 ? NULL
                      : json_pack("{s:I, s:I}", "bytes", (json_int_t)stage.bytes, "written",
                            (json_int_t)stage.written);
    json_decref(record);
    stage_done(&stage);
    work_done(&work);
    hibernate_job_done(&job);
    return r;
}

/* ---- awake ---- */

int hibernate_check_file(
    int directory, const char *name, const json_t *row, const char **ret_reason) {
    char found[DIGEST_HEX + 1];
    struct digest digest;
    struct stat st;
    auto_free char *chunk = malloc(CHUNK);
    auto_close int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    ssize_t n = 1;

    *ret_reason = NULL;
    if (fd < 0 && (errno == ENOENT || errno == ELOOP)) {
        *ret_reason = "it is missing";
        return 0;
    }
    if (fd < 0 || !chunk || fstat(fd, &st) < 0)
        return fd < 0 ? -errno : -ENOMEM;
    if (st.st_size != json_integer_value(json_object_get(row, "bytes"))) {
        *ret_reason = "its length is not the one that was written";
        return 0;
    }
    digest_init(&digest);
    while ((n = read(fd, chunk, CHUNK)) != 0) {
        if (n < 0 && errno != EINTR)
            return -errno;
        digest_add(&digest, chunk, n < 0 ? 0 : (size_t)n);
    }
    digest_end_hex(&digest, found);
    if (strcmp(found, json_string_value(json_object_get(row, "sha256"))) != 0)
        *ret_reason = "its content is not the one that was written";
    return 0;
}

int hibernate_check_files(int directory, const json_t *record, struct rollbox_error *error) {
    char name[HIBERNATED_FILE_NAME];
    const json_t *row;

    for (size_t i = 0; (row = hibernated_file(record, i, name)); i++) {
        const char *reason;
        int r = hibernate_check_file(directory, name, row, &reason);

        if (r < 0)
            return io_error(error, -r, "wake", "a file of the hibernated sandbox cannot be read");
        if (reason)
            return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "wake",
                "%s of the hibernated sandbox is damaged: %s; it cannot be woken (rollbox rm frees "
                "its space)",
                name, reason);
    }
    return 0;
}

static int read_layers(
    int directory, const struct hibernate_job *job, struct rollbox_error *error) {
    int r = 0;

    for (size_t i = 0; r == 0 && i < json_array_size(job->layers); i++) {
        char name[HIBERNATED_FILE_NAME];

        hibernated_file_name(name, HIBERNATED_LAYER, i);
        auto_close int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        r = fd < 0
                ? io_error(error, errno, "wake", "a file of the hibernated sandbox cannot be read")
                : pack_read(fd, descriptor_of(job->layers, i), error);
    }
    return r;
}

/* Joins each image that is a difference into the job's next image. */
static int join_images(int directory, const json_t *record, const struct hibernate_job *job,
    struct rollbox_error *error) {
    const json_t *row;
    size_t i, n = 0;
    int r = 0;

    json_array_foreach(json_object_get(record, "images"), i, row) {
        if (r < 0 || !json_object_get(row, "over"))
            continue;
        r = n == json_array_size(job->images)
                ? error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                      "the job and the record have different numbers of images")
                : stored_image_write(directory, record, i, descriptor_of(job->images, n++), error);
        fault_point(FAULT_wake_joined);
    }
    return r;
}

/* Checks that each image, as it will be restored, agrees with the record. */
static int match_images(int directory, const json_t *whole, const struct hibernate_job *job,
    struct rollbox_error *error) {
    const json_t *row;
    size_t i, n = 0;
    int r = 0;

    json_array_foreach(json_object_get(whole, "images"), i, row) {
        char name[HIBERNATED_FILE_NAME];

        hibernated_file_name(name, HIBERNATED_IMAGE, i);
        auto_close int own = json_object_get(row, "over")
                                 ? -EBADF
                                 : openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        const int fd = json_object_get(row, "over") ? descriptor_of(job->images, n++) : own;
        if (r == 0)
            r = hibernated_image_check(json_object_get(whole, "record"), i, fd, "wake", error);
    }
    return r;
}

static int open_sleeper(int store, const char *id) {
    char path[sizeof HIBERNATED_DIRECTORY + HIBERNATED_ID_LENGTH + 1];

    snprintf(path, sizeof path, HIBERNATED_DIRECTORY "/%s", id);
    int fd = openat(store, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* The directory of a hibernated sandbox, and its record. */
static int open_record(int store, const char *id, int *ret_directory, json_t **ret_record,
    struct rollbox_error *error) {
    auto_close int directory = open_sleeper(store, id);
    auto_close int file = directory;
    if (directory >= 0)
        file = openat(directory, "record.json", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0)
        return io_error(error, directory < 0 ? -directory : errno, "wake",
            "the hibernated sandbox is no longer in the store");
    int r = hibernated_read(file, ret_record, error);
    if (r == 0)
        *ret_directory = TAKE_FD(directory);
    return r;
}

int hibernate_open_image(int store, const char *id, size_t i) {
    auto_close int directory = -EBADF;
    char name[HIBERNATED_FILE_NAME];
    json_t *record = NULL;
    int r = open_record(store, id, &directory, &record, NULL);
    bool is_difference =
        r == 0 && json_object_get(json_array_get(json_object_get(record, "images"), i), "over");
    int fd = r < 0 ? r : -EBADF;

    hibernated_file_name(name, HIBERNATED_IMAGE, i);
    if (r == 0 && !is_difference &&
        (fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC)) < 0)
        fd = -errno;
    if (is_difference && (fd = memfd_create("rollbox-image", MFD_CLOEXEC)) < 0)
        fd = -errno;
    if (is_difference && fd >= 0 && (r = stored_image_write(directory, record, i, fd, NULL)) < 0) {
        close(fd);
        fd = r;
    }
    json_decref(record);
    return fd;
}

int hibernate_verify(int store, const char *id, struct rollbox_error *error) {
    auto_close int directory = -EBADF;
    json_t *record = NULL;
    int r = open_record(store, id, &directory, &record, error);

    if (r == 0)
        r = hibernate_check_files(directory, record, error);
    json_decref(record);
    return r;
}

int hibernate_read(int store, int fd, json_t **ret_json, struct rollbox_error *error) {
    auto_close int directory = -EBADF;
    json_t *record = NULL;
    struct hibernate_job job;
    int r = hibernate_job_read(fd, &job, error);

    if (r < 0)
        return r;
    r = open_record(store, job.id, &directory, &record, error);
    if (r == 0 && json_array_size(json_object_get(record, "layers")) != json_array_size(job.layers))
        r = error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "the job and the record have different numbers of layers");
    if (r == 0)
        r = hibernate_check_files(directory, record, error);
    if (r == 0) {
        fault_point(FAULT_wake_checked);
        r = read_layers(directory, &job, error);
    }
    if (r == 0)
        r = join_images(directory, record, &job, error);
    if (r == 0 && !json_is_true(json_object_get(job.root, "drops")))
        r = match_images(directory, record, &job, error);
    if (r == 0)
        fault_point(FAULT_wake_made);
    json_decref(record);
    hibernate_job_done(&job);
    *ret_json = r < 0 ? NULL : json_object();
    return r;
}
