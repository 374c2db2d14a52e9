/* SPDX-License-Identifier: Apache-2.0 */
#include "base/text.h"
#include "store/live_archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "policy/plan.h"
#include "policy/policy.h"
#include "store/hibernated_check.h"
#include "store/hibernated_image.h"
#include "store/confine.h"
#include "store/fault.h"
#include "store/files.h"
#include "store/fingerprint.h"
#include "store/pack.h"
#include "store/policy_excess.h"
#include "store/hibernate.h"
#include "store/image_source.h"
#include "store/parser_process.h"

#define CHUNK (1u << 20)
#define RECORD "record.json"
#define MAX_POLICY (4u << 20)
#define MAX_NAME 64

/* ---- export ---- */

struct writing {
    struct archive *archive;
    struct rollbox_error *error;
};

static int bad_write(struct writing *w, const char *name) {
    const char *text = archive_error_string(w->archive);
    int number = archive_errno(w->archive);

    return error_set(w->error, error_code_of(number, ROLLBOX_ERR_IO), number > 0 ? number : EIO,
        "export", "cannot write %s to the file: %s", name,
        text ? files_printable(text) : "unknown");
}

static int begin_member(struct writing *w, const char *name, uint64_t size) {
    struct archive_entry *entry = archive_entry_new();

    if (!entry)
        return error_set(
            w->error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "export", "out of memory");
    archive_entry_copy_pathname(entry, name);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0600);
    archive_entry_set_size(entry, (la_int64_t)size);
    int r = archive_write_header(w->archive, entry) < ARCHIVE_WARN ? bad_write(w, name) : 0;
    archive_entry_free(entry);
    return r;
}

static int put_file(struct writing *w, const char *name, const void *data, uint64_t length) {
    for (const char *at = data; length;) {
        size_t n = (size_t)MIN(length, (uint64_t)CHUNK);

        if (archive_write_data(w->archive, at, n) != (la_ssize_t)n)
            return bad_write(w, name);
        at += n;
        length -= n;
        fault_point(FAULT_carry_half);
    }
    return 0;
}

static int put_layer(struct writing *w, int directory, const char *name, const json_t *row) {
    auto_free char *chunk = malloc(CHUNK);
    auto_close int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    const int failure = fd < 0 ? errno : ENOMEM;
    ssize_t n = 0;

    if (fd < 0 || !chunk)
        return error_set(w->error, ROLLBOX_ERR_IO, failure, "export", "%s cannot be read: %s", name,
            strerror(failure));
    int r = begin_member(w, name, (uint64_t)json_integer_value(json_object_get(row, "bytes")));
    while (r == 0 && ((n = read(fd, chunk, CHUNK)) > 0 || (n < 0 && errno == EINTR)))
        r = n < 0 ? 0 : put_file(w, name, chunk, (uint64_t)n);
    return r == 0 && n < 0 ? error_set(w->error, ROLLBOX_ERR_IO, errno, "export",
                                 "%s cannot be read: %s", name, strerror(errno))
                           : r;
}

struct summing {
    struct digest digest;
    uint64_t bytes;
};

static int sum_part(void *context, const char *data, uint64_t length) {
    struct summing *summing = context;

    digest_add(&summing->digest, data, length);
    summing->bytes += length;
    return 0;
}

static int put_part(void *context, const char *data, uint64_t length) {
    return put_file(context, "an image", data, length);
}

/* The record for the file: no image has a parent. The engine's internal data is left out. */
static json_t *carried_record(int directory, const json_t *whole, struct rollbox_error *error) {
    static const char *const private[] = { "socket", "operation", "grounds", "net_rules" };
    json_t *images = json_array(), *row, *bases = json_array(),
           *record = json_deep_copy(json_object_get(whole, "record")), *carried = NULL;
    int r = 0;
    size_t i;

    for (size_t k = 0; k < ARRAY_SIZE(private); k++)
        json_object_del(record, private[k]);
    json_array_foreach(json_object_get(whole, "images"), i, row) {
        struct summing summing = { 0 };
        char hex[DIGEST_HEX + 1];

        if (r < 0 || !json_object_get(row, "over")) {
            json_array_append(images, row);
            continue;
        }
        digest_init(&summing.digest);
        r = stored_image_each(directory, whole, i, sum_part, &summing);
        digest_end_hex(&summing.digest, hex);
        json_array_append_new(
            images, json_pack("{s:I, s:s}", "bytes", (json_int_t)summing.bytes, "sha256", hex));
    }
    if (r == 0)
        carried = hibernate_whole(json_string_value(json_object_get(whole, "id")), record,
            json_object_get(whole, "layers"), images, bases);
    if (!carried)
        error_set(error, r < 0 ? ROLLBOX_ERR_DAMAGED : ROLLBOX_ERR_RESOURCE_EXHAUSTED,
            r < 0 ? -r : ENOMEM, "export",
            r < 0 ? "the process images cannot be read: %s" : "out of memory", strerror(-r));
    json_decref(images);
    json_decref(bases);
    json_decref(record);
    return carried;
}

static int write_members(
    struct writing *w, int directory, const json_t *whole, const json_t *carried) {
    auto_free char *text = hibernated_text(carried);
    char name[HIBERNATED_FILE_NAME];
    const json_t *row;
    size_t i;
    int r = text ? begin_member(w, RECORD, strlen(text))
                 : error_set(
                       w->error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "export", "out of memory");

    if (r == 0)
        r = put_file(w, RECORD, text, strlen(text));
    json_array_foreach(json_object_get(carried, "layers"), i, row) {
        hibernated_file_name(name, HIBERNATED_LAYER, i);
        r = r < 0 ? r : put_layer(w, directory, name, row);
    }
    json_array_foreach(json_object_get(carried, "images"), i, row) {
        hibernated_file_name(name, HIBERNATED_IMAGE, i);
        if (r == 0)
            r = begin_member(w, name, (uint64_t)json_integer_value(json_object_get(row, "bytes")));
        if (r == 0 && (r = stored_image_each(directory, whole, i, put_part, w)) < 0 && w->error &&
            !w->error->code)
            error_set(w->error, ROLLBOX_ERR_IO, -r, "export", "%s cannot be read: %s", name,
                strerror(-r));
    }
    return r;
}

static int write_archive(int to, int directory, const json_t *whole, const json_t *carried,
    struct rollbox_error *error) {
    struct rollbox_error own = { 0 };
    struct writing w = { .archive = archive_write_new(), .error = &own };
    int r = w.archive ? fd_write_all(to, LIVE_ARCHIVE_MAGIC, sizeof LIVE_ARCHIVE_MAGIC) : -ENOMEM;

    if (r < 0) {
        if (w.archive)
            archive_write_free(w.archive);
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "export",
            "the file cannot be written: %s", strerror(-r));
    }
    archive_write_set_format_pax(w.archive);
    if (archive_write_add_filter_zstd(w.archive) != ARCHIVE_OK)
        archive_write_add_filter_gzip(w.archive);
    if (archive_write_open_fd(w.archive, to) != ARCHIVE_OK)
        r = bad_write(&w, "the beginning");
    if (r == 0)
        r = write_members(&w, directory, whole, carried);
    if (r == 0 && archive_write_close(w.archive) != ARCHIVE_OK)
        r = bad_write(&w, "the end");
    if (r < 0)
        archive_write_fail(w.archive);
    archive_write_free(w.archive);
    if (r < 0 && error)
        *error = own;
    return r;
}

/* Of the state that it is in. */
static json_int_t processes_of(const json_t *record) {
    const json_t *node = json_array_get(json_object_get(record, "nodes"),
                     (size_t)json_integer_value(json_object_get(record, "at"))),
                 *live = json_object_get(node, "live");

    return json_is_integer(live)
               ? json_integer_value(json_object_get(json_array_get(json_object_get(record, "lives"),
                                                        (size_t)json_integer_value(live)),
                     "processes"))
               : 0;
}

static int export_directory(
    int to, int directory, const json_t *whole, json_t **ret_json, struct rollbox_error *error) {
    json_t *carried = carried_record(directory, whole, error);
    struct stat st = { 0 };
    int r = carried ? write_archive(to, directory, whole, carried, error) : -EIO;

    if (r == 0 && fstat(to, &st) < 0)
        r = error_set(error, ROLLBOX_ERR_IO, errno, "export", "the file cannot be examined: %s",
            strerror(errno));
    if (r == 0)
        *ret_json = json_pack("{s:I, s:I}", "bytes", (json_int_t)st.st_size, "processes",
            processes_of(json_object_get(carried, "record")));
    json_decref(carried);
    return r;
}

static int export_hibernated(
    int store, const char *id, int to, json_t **ret_json, struct rollbox_error *error) {
    char path[sizeof HIBERNATED_DIRECTORY + HIBERNATED_ID_LENGTH + 1];
    json_t *whole = NULL;

    snprintf(path, sizeof path, HIBERNATED_DIRECTORY "/%s", id);
    auto_close int directory = openat(store, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    auto_close int file =
        directory < 0 ? -EBADF : openat(directory, RECORD, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0)
        return error_set(error, ROLLBOX_ERR_IO, errno, "export",
            "the hibernated sandbox cannot be read: %s", strerror(errno));
    int r = hibernated_read(file, &whole, error);
    /* Damaged data is not exported. */
    if (r == 0)
        r = hibernate_check_files(directory, whole, error);
    if (r == 0)
        r = export_directory(to, directory, whole, ret_json, error);
    json_decref(whole);
    return r;
}

static int export_live(int store, const struct hibernate_job *job, int to, json_t **ret_json,
    struct rollbox_error *error) {
    struct work work = WORK_NONE;
    struct stage stage = { 0 };
    auto_close int directory = -EBADF;
    json_t *whole = NULL;
    int r = hibernate_begin(store, &work, &directory, error);

    if (r == 0)
        r = stage_init(&stage, store, directory, error);
    if (r == 0)
        r = hibernate_stage(job, &stage, error);
    if (r == 0 && !(whole = hibernate_whole(job->id, json_object_get(job->root, "record"),
                        stage.layers, stage.images, stage.bases)))
        r = error_set(
            error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "the job has no record");
    if (r == 0)
        r = hibernate_check_record(job, whole, error);
    if (r == 0)
        r = export_directory(to, directory, whole, ret_json, error);
    json_decref(whole);
    stage_done(&stage);
    work_done(&work);
    return r;
}

int live_archive_export(int store, int fd, json_t **ret_json, struct rollbox_error *error) {
    struct hibernate_job job;
    int r = hibernate_job_read(fd, &job, error);

    if (r < 0)
        return r;
    int to = (int)json_integer_value(json_object_get(job.root, "to"));
    if (to <= STDERR_FILENO)
        r = error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "the job does not say where to write");
    else if (json_is_true(json_object_get(job.root, "asleep")))
        r = export_hibernated(store, job.id, to, ret_json, error);
    else
        r = export_live(store, &job, to, ret_json, error);
    hibernate_job_done(&job);
    return r;
}

/* ---- import: the child ---- */

bool live_archive_is_live(const char *path) {
    char found[sizeof LIVE_ARCHIVE_MAGIC];
    auto_close int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    return fd >= 0 && read(fd, found, sizeof found) == (ssize_t)sizeof found &&
           memcmp(found, LIVE_ARCHIVE_MAGIC, sizeof found) == 0;
}

struct importing {
    int archive, stage;
    uint64_t room; /* bytes that may still be unpacked */
    struct archive *tar;
    struct rollbox_error *error;
};

static int refuse_archive(struct importing *in, const char *why) {
    return error_set(in->error, ROLLBOX_ERR_DAMAGED, EBADMSG, "import",
        "the file is not a complete exported sandbox: %s; it is refused", why);
}

/* The next member, which must be this one; its size. */
static int next_member(struct importing *in, const char *name, uint64_t *ret_size) {
    struct archive_entry *entry;
    int r = archive_read_next_header(in->tar, &entry);
    const char *found = r == ARCHIVE_OK || r == ARCHIVE_WARN ? archive_entry_pathname(entry) : NULL;

    if (!found || strcmp(found, name) != 0 || archive_entry_filetype(entry) != AE_IFREG ||
        archive_entry_hardlink(entry) || !archive_entry_size_is_set(entry) ||
        archive_entry_size(entry) < 0) {
        char why[128];

        snprintf(why, sizeof why, "%s is not at its place in the archive", name);
        return refuse_archive(in, why);
    }
    *ret_size = (uint64_t)archive_entry_size(entry);
    if (*ret_size > in->room)
        return error_set(in->error, ROLLBOX_ERR_INVALID_ARGUMENT, EFBIG, "import",
            "the file unpacks to more than --max-bytes allows; it is refused");
    in->room -= *ret_size;
    return 0;
}

static int read_record(struct importing *in, json_t **ret_whole) {
    uint64_t size = 0, done = 0;
    int r = next_member(in, RECORD, &size);

    if (r == 0 && size > HIBERNATED_MAX_BYTES)
        r = refuse_archive(in, "its record is too long");
    auto_free char *text = r == 0 ? malloc(size + 1) : NULL;
    if (r < 0 || !text)
        return r < 0 ? r : refuse_archive(in, "its record is too long");
    for (la_ssize_t n = 1; done < size && n > 0; done += n > 0 ? (uint64_t)n : 0)
        n = archive_read_data(in->tar, text + done, size - done);
    if (done < size)
        return refuse_archive(in, "its record is cut off");
    json_t *whole = NULL;
    struct rollbox_error why;
    if (hibernated_parse(text, size, &whole, NULL) < 0)
        return refuse_archive(in, "its record was changed, or is of another version");
    if (hibernated_check(whole, &why) < 0) {
        json_decref(whole);
        return refuse_archive(in, why.message);
    }
    *ret_whole = whole;
    return 0;
}

static int read_file(struct importing *in, const char *name, const json_t *row) {
    char hex[DIGEST_HEX + 1], why[128];
    struct digest digest;
    uint64_t size = 0, done = 0;
    auto_free char *chunk = malloc(CHUNK);
    int r = chunk ? next_member(in, name, &size) : refuse_archive(in, "out of memory");

    if (r < 0)
        return r;
    auto_close int to =
        openat(in->stage, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (to < 0)
        return error_set(in->error, error_code_of(errno, ROLLBOX_ERR_IO), errno, "import",
            "a file cannot be made in the store: %s", strerror(errno));
    digest_init(&digest);
    for (la_ssize_t n = 1; done < size && n > 0; done += n > 0 ? (uint64_t)n : 0) {
        n = archive_read_data(in->tar, chunk, CHUNK);
        if (n <= 0)
            break;
        digest_add(&digest, chunk, (size_t)n);
        r = fd_write_all(to, chunk, (size_t)n);
        if (r < 0)
            return error_set(in->error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "import",
                "%s cannot be written to the store: %s", name, strerror(-r));
        fault_point(FAULT_carried_half);
    }
    digest_end_hex(&digest, hex);
    snprintf(why, sizeof why, "%s is not what its record says", name);
    return done < size || json_integer_value(json_object_get(row, "bytes")) != (json_int_t)size ||
                   strcmp(hex, json_string_value(json_object_get(row, "sha256"))) != 0
               ? refuse_archive(in, why)
               : 0;
}

static int check_layers(struct importing *in, const json_t *whole) {
    for (size_t i = 0; i < json_array_size(json_object_get(whole, "layers")); i++) {
        char name[HIBERNATED_FILE_NAME], why[128];

        hibernated_file_name(name, HIBERNATED_LAYER, i);
        auto_close int fd = openat(in->stage, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        snprintf(why, sizeof why, "%s is not a layer", name);
        if (fd < 0 || pack_check(fd) < 0)
            return refuse_archive(in, why);
    }
    return 0;
}

static int read_members(struct importing *in, json_t **ret_whole) {
    char name[HIBERNATED_FILE_NAME];
    struct archive_entry *entry;
    json_t *whole = NULL;
    const json_t *row;
    size_t i;
    int r = read_record(in, &whole);

    if (r < 0)
        return r;
    if (json_array_size(json_object_get(whole, "bases")))
        r = refuse_archive(in, "it has incremental images without their parents");
    json_array_foreach(
        json_object_get(whole, "images"), i, row) if (r == 0 && json_object_get(row, "over")) r =
        refuse_archive(in, "it has incremental images without their parents");
    for (i = 0; r == 0 && (row = hibernated_file(whole, i, name)); i++)
        r = read_file(in, name, row);
    if (r == 0 && archive_read_next_header(in->tar, &entry) != ARCHIVE_EOF)
        r = refuse_archive(in, "something follows its end");
    if (r == 0)
        r = check_layers(in, whole);
    if (r < 0)
        json_decref(whole);
    else
        *ret_whole = whole;
    return r;
}

/* In the child. */
static int read_in_child(void *context, json_t **ret_report, struct rollbox_error *error) {
    struct importing *in = context;
    const struct confine confine = { &in->archive, 1, in->stage };
    bool landlock;
    int r = confine_enter(&confine, &landlock, error);

    in->error = error;
    in->tar = r == 0 ? archive_read_new() : NULL;
    if (r == 0 && !in->tar)
        return refuse_archive(in, "out of memory");
    if (r == 0) {
        image_source_filters(in->tar);
        archive_read_support_format_tar(in->tar);
        r = archive_read_open_fd(in->tar, in->archive, 1u << 18) != ARCHIVE_OK
                ? refuse_archive(in, "it cannot be unpacked")
                : read_members(in, ret_report);
    }
    if (in->tar)
        archive_read_free(in->tar);
    return r;
}

/* ---- import: the parent ---- */

/* For free(); NULL if the text is not hex. */
static char *text_of(const char *hex) {
    size_t n = hex ? strlen(hex) / 2 : 0;
    char *text = hex && strlen(hex) % 2 == 0 && strspn(hex, "0123456789abcdef") == 2 * n
                     ? malloc(n + 1)
                     : NULL;

    for (size_t i = 0; text && i < n; i++) {
        const char pair[3] = { hex[2 * i], hex[2 * i + 1], '\0' };

        text[i] = (char)strtoul(pair, NULL, 16);
    }
    if (text)
        text[n] = '\0';
    return text;
}

static json_t *hex_of(const char *text) {
    auto_free char *hex = malloc(2 * strlen(text) + 1);

    for (size_t i = 0; hex && text[i]; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", (unsigned char)text[i]);
    if (hex)
        hex[2 * strlen(text)] = '\0';
    return hex ? json_string(hex) : NULL;
}

/* A file in a writable place, or in an image, may be the sandbox's own: that is checked when it
 * wakes. */
static bool is_own(const json_t *record, const char *path) {
    const json_t *place;
    size_t i;

    json_array_foreach(json_object_get(record, "places"), i, place) {
        auto_free char *at = text_of(json_string_value(json_object_get(place, "path")));
        size_t n = at ? strlen(at) : 0;

        if (!at || strncmp(at, PLAN_HIDDEN, strlen(PLAN_HIDDEN)) == 0 ||
            (strncmp(path, at, n) == 0 && (path[n] == '/' || !path[n])))
            return true;
    }
    return false;
}

static int check_mapped(const json_t *record, const struct image_area *area, const char *path,
    struct rollbox_error *error) {
    const char *what = NULL;
    struct stat st;

    if (area->kind != IMAGE_FILE || area->is_written || is_own(record, path))
        return 0;
    if (stat(path, &st) < 0)
        what = errno == ENOENT || errno == ENOTDIR ? "does not exist on this machine" : NULL;
    else if ((uint64_t)st.st_size != area->size || st.st_mtim.tv_sec != area->mtime_s ||
             st.st_mtim.tv_nsec != area->mtime_ns)
        what = "is another file on this machine";
    return what ? error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOENT, "import",
                      "the sandbox's processes have %.300s mapped, which %s, so they cannot be "
                      "restored here; rollbox import --drop-processes imports only its files",
                      files_printable(path), what)
                : 0;
}

static int check_image(int stage, size_t i, const json_t *record, struct rollbox_error *error) {
    char name[HIBERNATED_FILE_NAME];
    struct hibernated_image image;

    hibernated_file_name(name, HIBERNATED_IMAGE, i);
    auto_close int fd = openat(stage, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    struct rollbox_error why;
    if (hibernated_image_open(record, i, fd, "import", &image, &why) < 0)
        return error_set(error, why.code, EBADMSG, "import",
            "the file is not a complete exported sandbox: %.800s; it is refused", why.message);
    const struct image_area *areas =
        image_table(image.header, image.data, areas, struct image_area);
    int r = 0;
    for (uint64_t k = 0; r == 0 && k < image.header->areas.n; k++)
        r = check_mapped(record, &areas[k],
            areas[k].kind == IMAGE_FILE ? (const char *)image.data + areas[k].path : "", error);
    hibernated_image_done(&image);
    return r;
}

/* Drops the processes and all references to them. */
static void drop_processes(json_t *whole, int stage) {
    json_t *record = json_object_get(whole, "record"), *node;
    char name[HIBERNATED_FILE_NAME];
    size_t i;

    for (i = 0; i < json_array_size(json_object_get(whole, "images")); i++) {
        hibernated_file_name(name, HIBERNATED_IMAGE, i);
        (void)unlinkat(stage, name, 0);
    }
    json_array_foreach(json_object_get(record, "nodes"), i, node)
        json_object_set_new(node, "live", json_null());
    json_object_set_new(record, "lives", json_array());
    json_object_set_new(whole, "images", json_array());
}

static int read_policy(const char *path, struct buf *to, struct rollbox_error *error) {
    struct policy_problems problems = { 0 };
    struct policy *policy = NULL;
    int r = fd_read_file(path, MAX_POLICY, to);

    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_INVALID_ARGUMENT), -r, "policy",
            "cannot read %s: %s", files_printable(path), strerror(-r));
    r = policy_parse(to->data ? to->data : "", to->length, &policy, &problems);
    policy_problems_done(&problems);
    policy_free(policy);
    return r < 0 ? error_set(error, ROLLBOX_ERR_POLICY_INVALID, EINVAL, "policy",
                       "%s is not a valid policy; rollbox policy check lists its problems",
                       files_printable(path))
                 : 0;
}

/* Uses the new owner's policy, or the sandbox's own if that grants no more than the default or is
 * trusted. */
static int choose_policy(
    json_t *record, const struct live_archive_options *options, struct rollbox_error *error) {
    auto_buf struct buf text = BUF_INIT;
    const json_t *own = json_object_get(record, "policy");

    json_object_del(record, "net_rules"); /* they could allow more than the policy */
    if (options->policy) {
        int r = read_policy(options->policy, &text, error);
        json_t *given = r == 0 ? json_stringn(text_or(text.data, ""), text.length) : NULL;

        if (r < 0)
            return r;
        json_object_set_new(record, "environment", json_array());
        return given && json_object_set_new(record, "policy", given) == 0
                   ? 0
                   : error_set(error, ROLLBOX_ERR_POLICY_INVALID, EILSEQ, "policy",
                         "%s is not UTF-8", files_printable(options->policy));
    }
    if (!json_is_string(own))
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "import",
            "the file is not a complete exported sandbox: it has no policy; it is refused");
    if (options->trusts)
        return 0;
    if (policy_excess_text(json_string_value(own), json_string_length(own), &text) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "import", "out of memory");
    return text.length ? error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EPERM, "policy",
                             "the sandbox's policy grants more than the default policy: %.500s; "
                             "use --trust to accept it, or --policy FILE to replace it",
                             text.data)
                       : 0;
}

struct naming {
    int store;
    const char *name, *socket;
};

static int has_name(void *context, const char *id) {
    const struct naming *naming = context;
    char path[sizeof HIBERNATED_DIRECTORY "//" RECORD + HIBERNATED_ID_LENGTH];
    json_t *whole = NULL;

    snprintf(path, sizeof path, HIBERNATED_DIRECTORY "/%s/" RECORD, id);
    auto_close int fd = openat(naming->store, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || hibernated_read_unchecked(fd, &whole, NULL) < 0)
        return 0;
    const json_t *record = json_object_get(whole, "record");
    const char *name = json_string_value(json_object_get(record, "name"));
    auto_free char *socket = text_of(json_string_value(json_object_get(record, "socket")));
    int same =
        name && socket && strcmp(name, naming->name) == 0 && strcmp(socket, naming->socket) == 0;
    json_decref(whole);
    return same;
}

/* Only the needed parts of the old engine's record are kept. */
static json_t *new_record(const json_t *from, const struct live_archive_options *options) {
    static const char *const kept[] = { "policy", "environment", "fingerprint", "places", "nodes",
        "layers", "lives", "at", "next_name", "seed", "has_own_seed" };
    const json_int_t now = (json_int_t)time(NULL) * 1000000000;
    json_t *record =
        json_pack("{s:s, s:b, s:o, s:n, s:n, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:b, s:s}", "name",
            options->name, "detached", true, "socket", hex_of(options->socket), "committed",
            "committed_path", "made_ns", now, "since_ns", now, "idle_ms", 0, "ttl_ms", 0,
            "lifetime_ms", 0, "hibernate_ms", 0, "n_forked", 0, "was_used", true, "operation", "");

    for (size_t i = 0; record && i < ARRAY_SIZE(kept); i++)
        if (json_object_get(from, kept[i]))
            json_object_set(record, kept[i], json_object_get(from, kept[i]));
    return record;
}

static int check_archive(json_t *whole, const struct live_archive_options *options, int stage,
    struct rollbox_error *error) {
    json_t *record = json_object_get(whole, "record");
    int r = choose_policy(record, options, error);

    if (r == 0 && options->drops)
        drop_processes(whole, stage);
    if (r == 0 && json_array_size(json_object_get(whole, "images")))
        r = fingerprint_check(json_object_get(record, "fingerprint"), "import",
            "rollbox import --drop-processes imports only its files", error);
    for (size_t i = 0; r == 0 && i < json_array_size(json_object_get(whole, "images")); i++)
        r = check_image(stage, i, record, error);
    return r;
}

static int publish_import(const struct work *work, int stage, json_t *whole,
    const struct live_archive_options *options, json_t **ret_json, struct rollbox_error *error) {
    struct naming naming = { work->store, options->name, options->socket };
    json_t *record = new_record(json_object_get(whole, "record"), options), *bases = json_array();
    char id[HIBERNATED_ID_LENGTH + 1], name[HIBERNATED_FILE_NAME];
    json_int_t bytes = 0;
    const json_t *row;

    layer_random(id, HIBERNATED_ID_LENGTH);
    json_t *now = hibernate_whole(
        id, record, json_object_get(whole, "layers"), json_object_get(whole, "images"), bases);
    int r = now ? hibernated_each(work->store, HIBERNATED_DIRECTORY, has_name, &naming) : -ENOMEM;
    if (r != 0)
        error_set(error, r > 0 ? ROLLBOX_ERR_CONFLICT : error_code_of(-r, ROLLBOX_ERR_IO),
            r > 0 ? EEXIST : -r, "import",
            r > 0 ? "that engine has a hibernated sandbox %s already; choose another --name"
                  : "%s cannot be imported",
            options->name);
    for (size_t i = 0; r == 0 && (row = hibernated_file(now, i, name)); i++)
        bytes += json_integer_value(json_object_get(row, "bytes"));
    if (r == 0) {
        fault_point(FAULT_carried_checked);
        r = hibernate_publish(work, stage, now, -1, error);
    }
    if (r == 0)
        *ret_json = json_pack("{s:s, s:s, s:I, s:I, s:s, s:O}", "name", options->name, "asleep", id,
            "bytes", bytes, "processes", processes_of(record), "socket", options->socket, "policy",
            json_object_get(record, "policy"));
    json_decref(now);
    json_decref(record);
    json_decref(bases);
    if (r < 0)
        return r;
    return r > 0 ? -EEXIST : 0;
}

static bool is_name(const char *name) {
    size_t n = strlen(name);

    return n && n <= MAX_NAME &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") == n;
}

int live_archive_import(int store, const char *path, const struct live_archive_options *options,
    json_t **ret_json, struct rollbox_error *error) {
    struct importing in = { .room = options->max_bytes };
    struct parser_process worker = WORKER_NONE;
    struct work work = WORK_NONE;
    auto_close int stage = -EBADF;
    json_t *whole = NULL;
    struct stat st;

    if (!is_name(options->name))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%.200s is not a sandbox name: use 1 to 64 of A-Z a-z 0-9 _ . -",
            files_printable(options->name));
    if (!options->socket)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "a sandbox with processes is imported for one engine: add --socket PATH");
    auto_close int archive = files_open_archive(path, &st, error);
    if (archive < 0)
        return archive;
    if (lseek(archive, sizeof LIVE_ARCHIVE_MAGIC, SEEK_SET) < 0)
        return error_set(error, ROLLBOX_ERR_IO, errno, "import", "%s cannot be read: %s",
            files_printable(path), strerror(errno));
    int r = hibernate_begin(store, &work, &stage, error);
    in.archive = archive;
    in.stage = stage;
    if (r == 0)
        r = parser_process_start(read_in_child, &in, &worker, &whole, error);
    if (r == 0)
        r = check_archive(whole, options, stage, error);
    if (r == 0)
        r = publish_import(&work, stage, whole, options, ret_json, error);
    parser_process_end(&worker);
    json_decref(whole);
    work_done(&work);
    return r;
}
