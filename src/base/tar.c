/* SPDX-License-Identifier: Apache-2.0 */
/* Heads of tar archives; tar.h has the model. */
#include "base/tar.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define OCTAL_SIZE_MAX ((UINT64_C(1) << 33) - 1) /* 11 digits */
#define SIZE_LARGEST ((uint64_t)INT64_MAX / 2)
#define SECOND INT64_C(1000000000)

struct head {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, linkname[100],
        magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], rest[12];
};

_Static_assert(sizeof(struct head) == TAR_BLOCK, "a head is one block");

size_t tar_padding(uint64_t size) {
    return (size_t)(-size % TAR_BLOCK);
}

static unsigned checksum(const struct head *head) {
    const unsigned char *bytes = (const unsigned char *)head;
    unsigned sum = 0;

    for (size_t i = 0; i < sizeof *head; i++) {
        bool is_field = i >= offsetof(struct head, checksum) && i < offsetof(struct head, type);

        sum += is_field ? ' ' : bytes[i];
    }
    return sum;
}

/* ---- writing ---- */

static void set_octal(char *field, size_t size, uint64_t value) {
    for (size_t i = size - 1; i-- > 0; value >>= 3)
        field[i] = (char)('0' + (value & 7));
    field[size - 1] = '\0';
}

static void add_block(struct buf *to, struct head *head) {
    (void)snprintf(head->checksum, sizeof head->checksum, "%06o", checksum(head));
    head->checksum[7] = ' ';
    buf_add(to, head, sizeof *head);
}

/* A pax record: its length with itself, " KEY=VALUE\n". */
static void add_record(struct buf *to, const char *key, const char *value) {
    size_t rest = strlen(key) + strlen(value) + 3, length = rest + 1;

    for (char digits[24]; (size_t)snprintf(digits, sizeof digits, "%zu", length) + rest != length;)
        length = (size_t)snprintf(digits, sizeof digits, "%zu", length) + rest;
    buf_printf(to, "%zu %s=%s\n", length, key, value);
}

static void add_text(
    struct buf *records, char *field, size_t size, const char *key, const char *value) {
    size_t length = strlen(value);

    memcpy(field, value, MIN(length, size));
    if (length > size)
        add_record(records, key, value);
}

void tar_add_head(struct buf *to, const struct tar_entry *entry) {
    struct head head = { .type = (char)entry->type, .magic = "ustar", .version = { '0', '0' } };
    auto_buf struct buf records = BUF_INIT;
    uint64_t size = entry->type == TAR_FILE ? entry->size : 0;
    int64_t seconds = entry->mtime_ns / SECOND, rest = entry->mtime_ns % SECOND;
    char text[48];

    add_text(&records, head.name, sizeof head.name, "path", entry->path);
    add_text(&records, head.linkname, sizeof head.linkname, "linkpath", entry->target);
    set_octal(head.mode, sizeof head.mode, entry->mode & 07777);
    set_octal(head.uid, sizeof head.uid, 0);
    set_octal(head.gid, sizeof head.gid, 0);
    set_octal(head.size, sizeof head.size, MIN(size, OCTAL_SIZE_MAX));
    set_octal(head.mtime, sizeof head.mtime, seconds < 0 ? 0 : (uint64_t)seconds);
    if (size > OCTAL_SIZE_MAX) {
        (void)snprintf(text, sizeof text, "%llu", (unsigned long long)size);
        add_record(&records, "size", text);
    }
    if (rest > 0 && seconds >= 0) {
        (void)snprintf(text, sizeof text, "%lld.%09lld", (long long)seconds, (long long)rest);
        add_record(&records, "mtime", text);
    }
    if (records.length) {
        struct head extended = { .type = 'x', .magic = "ustar", .version = { '0', '0' } };
        static const char zeros[TAR_BLOCK];

        memcpy(extended.name, "././@PaxHeader", 14);
        set_octal(extended.mode, sizeof extended.mode, 0644);
        set_octal(extended.size, sizeof extended.size, records.length);
        set_octal(extended.mtime, sizeof extended.mtime, 0);
        add_block(to, &extended);
        buf_add(to, records.data, records.length);
        buf_add(to, zeros, tar_padding(records.length));
    }
    add_block(to, &head);
}

/* ---- reading ---- */

/* Octal digits, or a binary number after a byte 0x80. */
static bool get_number(const char *field, size_t size, uint64_t *ret) {
    uint64_t value = 0;
    size_t i = 0;

    if ((unsigned char)field[0] == 0x80) {
        for (i = 1; i < size; i++) {
            if (value > SIZE_LARGEST >> 8)
                return false;
            value = value << 8 | (unsigned char)field[i];
        }
        *ret = value;
        return true;
    }
    while (i < size && field[i] == ' ')
        i++;
    for (; i < size && field[i] >= '0' && field[i] <= '7'; i++)
        value = value << 3 | (unsigned)(field[i] - '0');
    if (i < size && field[i] && field[i] != ' ')
        return false;
    *ret = value;
    return value <= SIZE_LARGEST;
}

/* What came before a head and replaces its fields. */
struct overrides {
    char path[TAR_TEXT_MAX], target[TAR_TEXT_MAX];
    bool has_size, has_mtime;
    uint64_t size;
    int64_t mtime_ns;
};

static bool set_text(char field[TAR_TEXT_MAX], const char *value, size_t length) {
    if (length >= TAR_TEXT_MAX || memchr(value, '\0', length))
        return false;
    memcpy(field, value, length);
    field[length] = '\0';
    return true;
}

static bool take_time(const char *value, int64_t *ret_ns) {
    char *end;
    long long seconds = strtoll(value, &end, 10);
    int64_t fraction = 0, unit = SECOND / 10;

    if (end == value || seconds < -(INT64_C(1) << 32) || seconds > INT64_C(1) << 33)
        return false;
    if (*end == '.')
        for (end++; *end >= '0' && *end <= '9'; end++, unit /= 10)
            fraction += (*end - '0') * unit;
    *ret_ns = seconds * SECOND + fraction;
    return !*end;
}

static bool take_record(
    struct overrides *overrides, const char *key, const char *value, size_t length) {
    char *end;

    if (!strcmp(key, "path"))
        return set_text(overrides->path, value, length);
    if (!strcmp(key, "linkpath"))
        return set_text(overrides->target, value, length);
    if (!strcmp(key, "mtime")) {
        overrides->has_mtime = true;
        return take_time(value, &overrides->mtime_ns);
    }
    if (!strcmp(key, "size")) {
        errno = 0;
        overrides->size = strtoull(value, &end, 10);
        overrides->has_size = true;
        return !errno && end != value && !*end && *value != '-' && overrides->size <= SIZE_LARGEST;
    }
    /* Sparse files of GNU have other data than this reader takes. */
    return strncmp(key, "GNU.sparse", 10) != 0;
}

static bool take_records(struct overrides *overrides, char *data, size_t length) {
    while (length) {
        char *end;
        unsigned long n = strtoul(data, &end, 10);
        char *key = end + 1, *equals;

        if (end == data || *end != ' ' || n > length || n <= (size_t)(key - data) ||
            data[n - 1] != '\n')
            return false;
        data[n - 1] = '\0';
        equals = memchr(key, '=', (size_t)(data + n - key));
        if (!equals)
            return false;
        *equals = '\0';
        if (!take_record(overrides, key, equals + 1, (size_t)(data + n - 1 - (equals + 1))))
            return false;
        data += n;
        length -= n;
    }
    return true;
}

/* The data of a head that describes the next one. */
static int read_records(tar_reader *read, void *userdata, uint64_t size, struct buf *to) {
    size_t whole;
    char *room;

    if (size > TAR_RECORDS_MAX)
        return -EBADMSG;
    whole = (size_t)size + tar_padding(size);
    room = buf_reserve(to, whole + 1);
    if (!room)
        return -ENOMEM;
    int r = read(userdata, room, whole);
    room[size] = '\0';
    to->length = (size_t)size;
    return r;
}

static int take_extension(tar_reader *read, void *userdata, const struct head *head, uint64_t size,
    struct overrides *overrides) {
    auto_buf struct buf data = BUF_INIT;
    int r = read_records(read, userdata, size, &data);
    bool ok = true;

    if (r < 0)
        return r;
    switch (head->type) {
    case 'x':
        ok = take_records(overrides, data.data, data.length);
        break;
    case 'L':
        ok = set_text(overrides->path, data.data, strlen(data.data));
        break;
    case 'K':
        ok = set_text(overrides->target, data.data, strlen(data.data));
        break;
    default: /* 'g': of the whole archive, such as a comment */
        break;
    }
    return ok ? 0 : -EBADMSG;
}

static void take_name(const struct head *head, char path[TAR_TEXT_MAX]) {
    bool has_prefix = !memcmp(head->magic, "ustar", 6) && head->prefix[0];

    (void)snprintf(path, TAR_TEXT_MAX, "%.*s%s%.*s", has_prefix ? (int)sizeof head->prefix : 0,
        head->prefix, has_prefix ? "/" : "", (int)sizeof head->name, head->name);
}

static int take_entry(const struct head *head, uint64_t size, const struct overrides *overrides,
    struct tar_entry *ret) {
    uint64_t mode, seconds;
    char type = head->type ? head->type : '0';

    if (!get_number(head->mode, sizeof head->mode, &mode) ||
        !get_number(head->mtime, sizeof head->mtime, &seconds))
        return -EBADMSG;
    if (overrides->path[0])
        memcpy(ret->path, overrides->path, sizeof ret->path);
    else
        take_name(head, ret->path);
    if (overrides->target[0])
        memcpy(ret->target, overrides->target, sizeof ret->target);
    else
        (void)snprintf(
            ret->target, sizeof ret->target, "%.*s", (int)sizeof head->linkname, head->linkname);
    ret->mode = (unsigned)mode & 07777;
    ret->mtime_ns = overrides->has_mtime ? overrides->mtime_ns
                                         : (int64_t)MIN(seconds, UINT64_C(1) << 33) * SECOND;
    if (type == '7')
        type = '0';
    /* Before ustar a directory was a file whose name ends with a slash. */
    size_t length = strlen(ret->path);
    if (type == '0' && length && ret->path[length - 1] == '/')
        type = '5';
    if (type != '0' && type != '1' && type != '2' && type != '5')
        return -EOPNOTSUPP;
    ret->type = (enum tar_type)type;
    ret->size = type == '0' ? size : 0;
    return type == '0' || !size || type == '1' ? 1 : -EBADMSG;
}

int tar_next(tar_reader *read, void *userdata, struct tar_entry *ret) {
    struct overrides overrides = { .path = "" };
    struct head head;
    uint64_t size, sum;

    for (;;) {
        static const struct head nothing;
        int r = read(userdata, &head, sizeof head);

        if (r < 0)
            return r;
        if (!memcmp(&head, &nothing, sizeof head))
            return 0;
        if (!get_number(head.checksum, sizeof head.checksum, &sum) || sum != checksum(&head) ||
            !get_number(head.size, sizeof head.size, &size))
            return -EBADMSG;
        if (!head.type || !strchr("xgLK", head.type))
            break;
        r = take_extension(read, userdata, &head, size, &overrides);
        if (r < 0)
            return r;
    }
    return take_entry(&head, overrides.has_size ? overrides.size : size, &overrides, ret);
}
