/* SPDX-License-Identifier: Apache-2.0 */
#include "store/hibernated_read.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "store/hibernated_check.h"

#define HEX HIBERNATED_DIGEST_HEX
_Static_assert(HEX == 2 * SHA256_DIGEST_SIZE, "two digits a byte");

static bool is_hex(const char *text, size_t digits) {
    return strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}

bool hibernated_id_ok(const char *id) {
    return is_hex(id, HIBERNATED_ID_LENGTH);
}

struct asleep_path {
    char text[sizeof HIBERNATED_DIRECTORY + HIBERNATED_ID_LENGTH + sizeof "/record.json"];
};

_Static_assert(sizeof WOKEN_DIRECTORY <= sizeof HIBERNATED_DIRECTORY, "it has room for either");

static struct asleep_path path_of(const char *directory, const char *id, const char *leaf) {
    struct asleep_path path;

    snprintf(path.text, sizeof path.text, "%s/%.*s%s", directory, HIBERNATED_ID_LENGTH, id, leaf);
    return path;
}

void hibernated_digest(const void *data, size_t length, char ret_hex[HEX + 1]) {
    struct sha256_ctx context;
    uint8_t digest[SHA256_DIGEST_SIZE];

    sha256_init(&context);
    sha256_update(&context, length, data);
    sha256_digest(&context, sizeof digest, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        (void)snprintf(ret_hex + 2 * i, 3, "%02x", digest[i]);
}

/* The parents of an image: at least one, each an existing base. */
static bool over_is_sound(const json_t *over, size_t n_bases) {
    const json_t *number;
    size_t i;

    json_array_foreach(
        over, i, number) if (!json_is_integer(number) || json_integer_value(number) < 0 ||
                             (uint64_t)json_integer_value(number) >= n_bases) return false;
    return json_array_size(over) > 0 && json_array_size(over) <= HIBERNATED_MAX_OVER;
}

static bool files_are_sound(const json_t *root, enum hibernated_kind kind) {
    const json_t *list = json_object_get(root, hibernated_list(kind)), *file;
    size_t i;

    json_array_foreach(list, i, file) {
        const char *digest = json_string_value(json_object_get(file, "sha256"));
        const json_t *over = json_object_get(file, "over");

        if (!digest || !is_hex(digest, HEX) ||
            json_integer_value(json_object_get(file, "bytes")) < 0)
            return false;
        if (over && (kind != HIBERNATED_IMAGE ||
                        !over_is_sound(over, json_array_size(json_object_get(
                                                 root, hibernated_list(HIBERNATED_BASE))))))
            return false;
    }
    return json_is_array(list) && json_array_size(list) <= HIBERNATED_MAX_FILES;
}

int hibernated_parse(
    const char *text, size_t length, json_t **ret_record, struct rollbox_error *error) {
    const char *end = text && length ? memrchr(text, '\n', length - 1) : NULL;
    char found[HEX + 1];
    json_t *root = NULL;

    if (!end || text[length - 1] != '\n' || (size_t)(text + length - 1 - end) != HEX + 1)
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "wake",
            "the record of the hibernated sandbox is cut off");
    hibernated_digest(text, (size_t)(end - text), found);
    if (memcmp(found, end + 1, HEX) == 0)
        root = json_loadb(text, (size_t)(end - text), JSON_REJECT_DUPLICATES, NULL);
    const char *id = json_string_value(json_object_get(root, "id"));
    if (json_integer_value(json_object_get(root, "version")) != 1 || !id || !hibernated_id_ok(id) ||
        !json_is_object(json_object_get(root, "record")) ||
        !files_are_sound(root, HIBERNATED_LAYER) || !files_are_sound(root, HIBERNATED_IMAGE) ||
        !files_are_sound(root, HIBERNATED_BASE)) {
        json_decref(root);
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "wake",
            "the record of the hibernated sandbox was changed, or is of another version");
    }
    *ret_record = root;
    return 0;
}

char *hibernated_text(const json_t *record) {
    auto_free char *text = json_dumps(record, JSON_COMPACT);
    char hex[HEX + 1], *whole = NULL;

    if (!text)
        return NULL;
    hibernated_digest(text, strlen(text), hex);
    return asprintf(&whole, "%s\n%s\n", text, hex) < 0 ? NULL : whole;
}

int hibernated_read_unchecked(int fd, json_t **ret_record, struct rollbox_error *error) {
    auto_buf struct buf text = BUF_INIT;
    int r = fd_read_again(fd, HIBERNATED_MAX_BYTES, &text);

    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "wake",
            "the record of the hibernated sandbox cannot be read: %s", strerror(-r));
    return hibernated_parse(text.data, text.length, ret_record, error);
}

int hibernated_read(int fd, json_t **ret_record, struct rollbox_error *error) {
    json_t *record = NULL;
    int r = hibernated_read_unchecked(fd, &record, error);

    if (r == 0 && (r = hibernated_check(record, error)) < 0)
        json_decref(record);
    else if (r == 0)
        *ret_record = record;
    return r;
}

const json_t *hibernated_file(const json_t *record, size_t i, char ret_name[HIBERNATED_FILE_NAME]) {
    for (enum hibernated_kind kind = HIBERNATED_LAYER; kind <= HIBERNATED_BASE; kind++) {
        const json_t *rows = json_object_get(record, hibernated_list(kind));

        if (i < json_array_size(rows)) {
            hibernated_file_name(ret_name, kind, i);
            return json_array_get(rows, i);
        }
        i -= json_array_size(rows);
    }
    return NULL;
}

int hibernated_scan(int store, const char *directory, const char *id, json_t **ret_record) {
    auto_close int fd = openat(
        store, path_of(directory, id, "/record.json").text, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

    return fd < 0 ? -errno : hibernated_read_unchecked(fd, ret_record, NULL);
}

int hibernated_lock(int store, const char *directory, const char *id, int *ret_lock) {
    struct asleep_path path = path_of(directory, id, "/record.json");
    struct stat held, there;
    auto_close int fd = openat(store, path.text, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &held) < 0)
        return -errno;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? -EBUSY : -errno;
    /* It may have been woken and removed meanwhile. */
    if (fstatat(store, path.text, &there, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (held.st_ino != there.st_ino || held.st_dev != there.st_dev)
        return -ENOENT;
    *ret_lock = TAKE_FD(fd);
    return 0;
}

int hibernated_each(
    int store, const char *directory, int (*each)(void *context, const char *id), void *context) {
    int fd = openat(store, directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), r = 0;

    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    DIR *entries = fdopendir(fd);
    if (!entries) {
        close(fd);
        return -ENOMEM;
    }
    for (struct dirent *entry; r == 0 && (entry = readdir(entries));)
        if (hibernated_id_ok(entry->d_name))
            r = each(context, entry->d_name);
    closedir(entries);
    return r;
}

int hibernated_remove(int store, const char *directory, const char *id) {
    char to[sizeof "trash/asleep-" + HIBERNATED_ID_LENGTH];

    snprintf(to, sizeof to, "trash/%s-%s", directory, id);
    return renameat(store, path_of(directory, id, "").text, store, to) < 0 ? -errno : 0;
}

int hibernated_keep(int store, const char *id) {
    if (mkdirat(store, WOKEN_DIRECTORY, 0700) < 0 && errno != EEXIST)
        return -errno;
    return renameat(store, path_of(HIBERNATED_DIRECTORY, id, "").text, store,
               path_of(WOKEN_DIRECTORY, id, "").text) < 0
               ? -errno
               : 0;
}

int hibernated_forget_kept(int store, const char *id) {
    return renameat(store, path_of(WOKEN_DIRECTORY, id, "").text, store,
               path_of(HIBERNATED_DIRECTORY, id, "").text) < 0
               ? -errno
               : 0;
}
