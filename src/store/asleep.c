/* SPDX-License-Identifier: Apache-2.0 */
#include "store/asleep.h"

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

#define HEX ASLEEP_DIGEST_HEX
_Static_assert(HEX == 2 * SHA256_DIGEST_SIZE, "two digits a byte");

static bool is_hex(const char *text, size_t digits) {
    return strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}

bool asleep_id_ok(const char *id) {
    return is_hex(id, ASLEEP_ID_LENGTH);
}

struct asleep_path {
    char text[sizeof ASLEEP_DIRECTORY + ASLEEP_ID_LENGTH + sizeof "/record.json"];
};

static struct asleep_path path_of(const char *id, const char *leaf) {
    struct asleep_path path;

    snprintf(path.text, sizeof path.text, ASLEEP_DIRECTORY "/%.*s%s", ASLEEP_ID_LENGTH, id, leaf);
    return path;
}

void asleep_digest(const void *data, size_t length, char ret_hex[HEX + 1]) {
    struct sha256_ctx context;
    uint8_t digest[SHA256_DIGEST_SIZE];

    sha256_init(&context);
    sha256_update(&context, length, data);
    sha256_digest(&context, sizeof digest, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        (void)snprintf(ret_hex + 2 * i, 3, "%02x", digest[i]);
}

static bool files_are_sound(const json_t *list) {
    const json_t *file;
    size_t i;

    json_array_foreach(list, i, file) {
        const char *digest = json_string_value(json_object_get(file, "sha256"));

        if (!digest || !is_hex(digest, HEX) || json_integer_value(json_object_get(file, "bytes")) < 0)
            return false;
    }
    return json_is_array(list) && json_array_size(list) <= ASLEEP_MAX_FILES;
}

int asleep_parse(const char *text, size_t length, json_t **ret_record, struct rollbox_error *error) {
    const char *end = text && length ? memrchr(text, '\n', length - 1) : NULL;
    char found[HEX + 1];
    json_t *root = NULL;

    if (!end || text[length - 1] != '\n' || (size_t)(text + length - 1 - end) != HEX + 1)
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "wake", "the record of the sleeping sandbox is cut off");
    asleep_digest(text, (size_t)(end - text), found);
    if (memcmp(found, end + 1, HEX) == 0)
        root = json_loadb(text, (size_t)(end - text), JSON_REJECT_DUPLICATES, NULL);
    const char *id = json_string_value(json_object_get(root, "id"));
    if (json_integer_value(json_object_get(root, "version")) != 1 || !id || !asleep_id_ok(id) || !json_is_object(json_object_get(root, "record")) || !files_are_sound(json_object_get(root, "layers")) ||
        !files_are_sound(json_object_get(root, "images"))) {
        json_decref(root);
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "wake", "the record of the sleeping sandbox was changed, or is of another version");
    }
    *ret_record = root;
    return 0;
}

char *asleep_text(const json_t *record) {
    auto_free char *text = json_dumps(record, JSON_COMPACT);
    char hex[HEX + 1], *whole = NULL;

    if (!text)
        return NULL;
    asleep_digest(text, strlen(text), hex);
    return asprintf(&whole, "%s\n%s\n", text, hex) < 0 ? NULL : whole;
}

int asleep_read(int fd, json_t **ret_record, struct rollbox_error *error) {
    auto_buf struct buf text = BUF_INIT;
    int r = lseek(fd, 0, SEEK_SET) < 0 ? -errno : fd_read_all(fd, ASLEEP_MAX_BYTES, &text);

    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "wake", "the record of the sleeping sandbox cannot be read: %s", strerror(-r));
    return asleep_parse(text.data, text.length, ret_record, error);
}

const json_t *asleep_file(const json_t *record, size_t i, char ret_name[ASLEEP_FILE_NAME]) {
    static const struct { const char *list, *file; } kinds[] = { { "layers", "layer" }, { "images", "image" } };

    for (size_t k = 0; k < ARRAY_SIZE(kinds); k++) {
        const json_t *rows = json_object_get(record, kinds[k].list);

        if (i < json_array_size(rows)) {
            (void)snprintf(ret_name, ASLEEP_FILE_NAME, "%s-%zu", kinds[k].file, i);
            return json_array_get(rows, i);
        }
        i -= json_array_size(rows);
    }
    return NULL;
}

int asleep_lock(int store, const char *id, int *ret_lock) {
    struct asleep_path path = path_of(id, "/record.json");
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

int asleep_each(int store, int (*each)(void *context, const char *id), void *context) {
    int fd = openat(store, ASLEEP_DIRECTORY, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), r = 0;

    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    DIR *directory = fdopendir(fd);
    if (!directory) {
        close(fd);
        return -ENOMEM;
    }
    for (struct dirent *entry; r == 0 && (entry = readdir(directory));)
        if (asleep_id_ok(entry->d_name))
            r = each(context, entry->d_name);
    closedir(directory);
    return r;
}

int asleep_remove(int store, const char *id) {
    char to[sizeof "trash/asleep-" + ASLEEP_ID_LENGTH];

    snprintf(to, sizeof to, "trash/asleep-%s", id);
    return renameat(store, path_of(id, "").text, store, to) < 0 ? -errno : 0;
}
