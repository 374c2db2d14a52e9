/* SPDX-License-Identifier: Apache-2.0 */
#include "store/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/inode_numbers.h"
#include "guest/guest.h"
#include "store/fault.h"
#include "store/files.h"

#define CHUNK (256u << 10)
#define ATTRIBUTE_BYTES 65536u
#define OVERLAY "user.overlay."
#define ESCAPED OVERLAY "overlay." /* an overlay's name for the guest's own "user.overlay.*" */
#define ORIGIN OVERLAY "origin"
#define NUMBER                                                                                     \
    OVERLAY "number" /* of a file, in packs alone: the uint64_t that it keeps, of those in the     \
                        list that the first part has */
#define ACCESS_LIST "system.posix_acl_"
#define MAX_IDS (PLAN_MANY_FIRST + PLAN_MANY_IDS)
#define NO_SETUID_FIXUP 4 /* SECBIT_NO_SETUID_FIXUP */

static const char magic[16] = "rollbox layer 1\n";

/* ---- shared by both sides ---- */

/* Where the range of ids of the layer's user namespace begins as we see it: its root belongs to
 * that one's root. 0 in that namespace, which an ordinary user's process has entered if the sandbox
 * has many users. Else such a user has no range: all is the caller's. */
static int base_of(int layer, uint32_t *ret_base, bool *ret_has_ids) {
    struct stat st;

    if (fstat(layer, &st) < 0)
        return -errno;
    *ret_has_ids = geteuid() == 0;
    *ret_base = *ret_has_ids ? st.st_uid / GUEST_ID_RANGE * GUEST_ID_RANGE : 0;
    return 0;
}

/* The number of ids in the range with this base. A sandbox's files may have these ids. */
static uint32_t count_ids(uint32_t base) {
    return base >= GUEST_FIRST_MANY_BASE || !base ? MAX_IDS : GUEST_ID_RANGE;
}

/* Capabilities of a program are those of a namespace's root, whose id of the host they hold.
 */
static bool is_capability(const char *name, const char *value, size_t length) {
    return strcmp(name, XATTR_CAPABILITY) == 0 && length == CAPABILITY_IN_NAMESPACE_BYTES &&
           value[3] == 3;
}

static void shift_capability(const char *name, char *value, size_t length, int64_t by) {
    uint32_t root;

    if (!is_capability(name, value, length))
        return;
    memcpy(&root, value + CAPABILITY_OF_HOST_BYTES, sizeof root);
    root = (uint32_t)(root + by);
    memcpy(value + CAPABILITY_OF_HOST_BYTES, &root, sizeof root);
}

/* As of the kernel's struct posix_acl_xattr_entry, after a version of 4 bytes. */
struct access {
    uint16_t tag, permissions;
    uint32_t id;
};

/* The kernel shows and accepts the ids of access lists as seen in the caller's user namespace. */
static void shift_access(const char *name, char *value, size_t length, int64_t by) {
    if (strncmp(name, ACCESS_LIST, sizeof ACCESS_LIST - 1) != 0)
        return;
    for (size_t at = 4; at + sizeof(struct access) <= length; at += sizeof(struct access)) {
        struct access access;

        memcpy(&access, value + at, sizeof access);
        if (access.tag != 0x02 && access.tag != 0x08) /* ACL_USER, ACL_GROUP */
            continue;
        access.id = (uint32_t)(access.id + by);
        memcpy(value + at, &access, sizeof access);
    }
}

/* "p0", "p1", ... and their contents; the rest of a layer's top directory belongs to the overlays.
 */
static bool is_in_part(const char *path) {
    size_t digits = path[0] == 'p' ? strspn(path + 1, "0123456789") : 0;

    return digits > 0 && digits < 4 && (path[1 + digits] == '/' || !path[1 + digits]);
}

static bool is_path(const char *path) {
    for (const char *at = path;; at++) {
        size_t n = strcspn(at, "/");

        if (n == 0 || n > 255 || (n <= 2 && strncmp(at, "..", n) == 0))
            return false;
        at += n;
        if (!*at)
            return is_in_part(path);
    }
}

/* Ours: a guest whose private files are in no overlay yet can give files attributes of these names,
 * which say nothing. */
static bool is_of_numbers(const char *name) {
    return strcmp(name, NUMBERS_LIST) == 0 || strcmp(name, NUMBER) == 0;
}

/* The guest's attributes, and those that an overlay needs for its own work. */
static bool is_attribute(const char *name) {
    if (strncmp(name, OVERLAY, sizeof OVERLAY - 1) == 0)
        return strncmp(name, ESCAPED, sizeof ESCAPED - 1) == 0 || strcmp(name, ORIGIN) == 0 ||
               strcmp(name, XATTR_OPAQUE) == 0 || is_of_numbers(name);
    return strncmp(name, "user.", 5) == 0 ||
           strncmp(name, ACCESS_LIST, sizeof ACCESS_LIST - 1) == 0 ||
           strcmp(name, XATTR_CAPABILITY) == 0;
}

static bool attributes_are_sound(const char *at, size_t length) {
    for (const char *end = at + length; at < end;) {
        const char *nul = memchr(at, '\0', (size_t)(end - at));
        uint32_t n;

        if (!nul || nul == at || !is_attribute(at) || (size_t)(end - nul - 1) < sizeof n)
            return false;
        memcpy(&n, nul + 1, sizeof n);
        if (n > ATTRIBUTE_BYTES || (size_t)(end - nul - 1) - sizeof n < n)
            return false;
        if (strcmp(at, XATTR_CAPABILITY) == 0 && !is_capability(at, nul + 1 + sizeof n, n))
            return false;
        at = nul + 1 + sizeof n + n;
    }
    return true;
}

bool pack_is_sound(const struct pack_entry *entry, const char *texts, size_t length) {
    bool has_target = entry->kind == PACK_SYMLINK || entry->kind == PACK_LINK,
         is_file = entry->kind == PACK_FILE;

    if (entry->kind == PACK_END)
        return !entry->path && !entry->target && !entry->attributes && !entry->n_segments;
    if (entry->kind < PACK_FILE || entry->kind > PACK_LINK || entry->mode & ~07777u ||
        entry->uid >= MAX_IDS || entry->gid >= MAX_IDS) /* restore_attributes() knows how many */
        return false;
    if (entry->size > INT64_MAX || (entry->n_segments && !is_file) ||
        entry->n_segments > PACK_MAX_SEGMENTS)
        return false;
    if ((entry->attributes && !is_file && entry->kind != PACK_DIRECTORY) ||
        (entry->target != 0) != has_target)
        return false;
    if ((uint64_t)entry->path + entry->target + entry->attributes != length || entry->path < 2 ||
        texts[entry->path - 1] || memchr(texts, '\0', entry->path - 1) || !is_path(texts))
        return false;
    const char *target = texts + entry->path;
    if (has_target && (entry->target < 2 || target[entry->target - 1] ||
                          memchr(target, '\0', entry->target - 1) ||
                          (entry->kind == PACK_LINK && !is_path(target))))
        return false;
    return attributes_are_sound(target + entry->target, entry->attributes);
}

/* ---- writing ---- */

struct writing {
    int to;
    uint32_t id_base;
    bool has_ids;
    struct digest digest;
    struct inodes inodes;
    struct inode_numbers numbers; /* the layer's */
    bool has_part;
    uint64_t bytes;
    size_t used;
    char *chunk; /* CHUNK bytes to write, then as many for reading */
};

static int flush_segment(struct writing *w) {
    int r = fd_write_all(w->to, w->chunk, w->used);

    digest_add(&w->digest, w->chunk, w->used);
    w->bytes += w->used;
    w->used = 0;
    return r;
}

static int write_bytes(struct writing *w, const void *data, size_t length) {
    for (const char *at = data; length;) {
        size_t n = MIN(length, (size_t)CHUNK - w->used);

        memcpy(w->chunk + w->used, at, n);
        w->used += n;
        at += n;
        length -= n;
        int r = w->used == CHUNK ? flush_segment(w) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

static int put_data(struct writing *w, int fd, const struct segment *segments, size_t n) {
    char *into = w->chunk + CHUNK;

    for (size_t i = 0; i < n; i++)
        for (uint64_t done = 0; done < segments[i].length;) {
            ssize_t got = pread(fd, into, (size_t)MIN(segments[i].length - done, (uint64_t)CHUNK),
                (off_t)(segments[i].offset + done));
            int r = got < 0 ? -errno : -ESTALE;

            if (got > 0)
                r = write_bytes(w, into, (size_t)got);
            if (r < 0 && r != -EINTR)
                return r;
            done += got > 0 ? (uint64_t)got : 0;
            fault_point(FAULT_sleep_half);
        }
    return 0;
}

static void add_attribute(struct buf *to, const char *name, const void *value, size_t length) {
    uint32_t size = (uint32_t)length;

    buf_add(to, name, strlen(name) + 1);
    buf_add(to, &size, sizeof size);
    buf_add(to, value, size);
}

/* The origin of a directory is recorded only as "merged". */
static int add_attributes(struct writing *w, int fd, struct buf *to) {
    auto_free char *names = malloc(2 * ATTRIBUTE_BYTES);

    if (!names)
        return -ENOMEM;
    char *value = names + ATTRIBUTE_BYTES;
    ssize_t length = flistxattr(fd, names, ATTRIBUTE_BYTES);
    if (length < 0)
        return errno == EOPNOTSUPP ? 0 : -errno;
    for (const char *name = names; name < names + length; name += strlen(name) + 1) {
        if (!is_attribute(name) || is_of_numbers(name))
            continue;
        ssize_t n = !strcmp(name, ORIGIN) ? 0 : fgetxattr(fd, name, value, ATTRIBUTE_BYTES);
        if (n < 0)
            return -errno;
        if (strcmp(name, XATTR_CAPABILITY) == 0 &&
            (!w->has_ids || !is_capability(name, value, (size_t)n)))
            continue;
        shift_access(name, value, (size_t)n, -(int64_t)w->id_base);
        shift_capability(name, value, (size_t)n, -(int64_t)w->id_base);
        add_attribute(to, name, value, (size_t)n);
    }
    if (buf_failed(to))
        return -ENOMEM;
    return to->length > PACK_MAX_ATTRIBUTES ? -E2BIG : 0;
}

/* No number is worth a pack that is too long to be read again. */
static void add_number(struct buf *to, const char *name, const void *value, size_t length) {
    if (to->length + strlen(name) + 1 + sizeof(uint32_t) + length <= PACK_MAX_ATTRIBUTES)
        add_attribute(to, name, value, length);
}

/* A file that keeps its inode number is marked; all such numbers are known before the first file.
 */
static int add_numbers(
    struct writing *w, const struct files_entry *entry, uint32_t kind, struct buf *to) {
    const struct inode_numbers *numbers = &w->numbers;

    if (kind == PACK_DIRECTORY && !w->has_part) {
        w->has_part = true;
        if (numbers->n)
            add_number(to, NUMBERS_LIST, numbers->list, numbers->n * sizeof numbers->list[0]);
    }
    if (kind == PACK_FILE && inode_numbers_has(numbers, entry->st.st_ino))
        add_number(to, NUMBER, &(uint64_t){ entry->st.st_ino }, sizeof(uint64_t));
    return buf_failed(to) ? -ENOMEM : 0;
}

static uint32_t kind_of(mode_t mode) {
    switch (mode & S_IFMT) {
    case S_IFREG:
        return PACK_FILE;
    case S_IFDIR:
        return PACK_DIRECTORY;
    case S_IFLNK:
        return PACK_SYMLINK;
    case S_IFIFO:
        return PACK_FIFO;
    case S_IFSOCK:
        return PACK_SOCKET;
    default:
        return PACK_WHITEOUT;
    }
}

static int put_entry(struct writing *w, const struct files_entry *entry) {
    struct pack_entry head = {
        .kind = kind_of(entry->st.st_mode),
        .mode = entry->st.st_mode & 07777,
        .path = (uint32_t)entry->path_length + 1,
        .times = { entry->st.st_atim.tv_sec, entry->st.st_atim.tv_nsec, entry->st.st_mtim.tv_sec,
            entry->st.st_mtim.tv_nsec },
    };
    auto_free struct segment *segments = NULL;
    auto_free char *target = NULL;
    auto_buf struct buf attributes = BUF_INIT;
    auto_close int fd = -EBADF;
    struct inode *inode = NULL;
    bool found = false;
    size_t n = 0;
    int r = 0;

    if (w->has_ids) {
        head.uid = entry->st.st_uid - w->id_base;
        head.gid = entry->st.st_gid - w->id_base;
    }
    if (head.uid >= count_ids(w->id_base) || head.gid >= count_ids(w->id_base))
        return -EOVERFLOW;
    if (head.kind != PACK_DIRECTORY && entry->st.st_nlink > 1 && head.kind != PACK_WHITEOUT)
        r = inodes_note(&w->inodes, &entry->st, entry->path, &inode, &found);
    if (r == 0 && found) {
        head.kind = PACK_LINK;
        target = strdup(inode->path);
        r = target ? 0 : -ENOMEM;
    } else if (r == 0 && head.kind == PACK_SYMLINK) {
        target = files_link(entry->parent, entry->name, &entry->st);
        r = target ? 0 : -errno;
    } else if (r == 0 && head.kind == PACK_FILE) {
        fd = files_open(entry->parent, entry->name, 0);
        r = MIN(fd, 0);
        head.size = (uint64_t)entry->st.st_size;
        if (r == 0)
            r = segments_of(fd, head.size, &segments, &n);
    }
    if (r == 0 && (fd >= 0 || entry->fd >= 0))
        r = add_attributes(w, fd >= 0 ? fd : entry->fd, &attributes);
    if (r == 0)
        r = add_numbers(w, entry, head.kind, &attributes);
    head.target = target ? (uint32_t)strlen(target) + 1 : 0;
    head.attributes = (uint32_t)attributes.length;
    head.n_segments = (uint32_t)n;
    if (r == 0)
        r = write_bytes(w, &head, sizeof head);
    if (r == 0)
        r = write_bytes(w, entry->path, head.path);
    if (r == 0)
        r = write_bytes(w, target, head.target);
    if (r == 0)
        r = write_bytes(w, attributes.data, attributes.length);
    if (r == 0)
        r = write_bytes(w, segments, n * sizeof *segments);
    if (r == 0)
        r = put_data(w, fd, segments, n);
    if (fd >= 0)
        files_left_as_it_was(fd, &entry->st);
    return r;
}

static int pack_visited(
    void *context, const struct files_entry *entry, struct rollbox_error *error) {
    if (!entry->path_length)
        return 0;
    if (!is_in_part(entry->path))
        return FILES_SKIP;
    int r = entry->path_length + 1 > PACK_MAX_TEXT ? -ENAMETOOLONG : put_entry(context, entry);
    return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "hibernate",
                       "cannot keep %s: %s", files_printable(entry->path), strerror(-r))
                 : 0;
}

int pack_write(int layer, int to, char ret_digest[DIGEST_HEX + 1], uint64_t *ret_bytes,
    struct rollbox_error *error) {
    const struct pack_entry end = { .kind = PACK_END };
    struct rollbox_error inner = { 0 };
    struct writing w = { .to = to, .chunk = malloc(2 * CHUNK) };
    int r = w.chunk ? base_of(layer, &w.id_base, &w.has_ids) : -ENOMEM;

    digest_init(&w.digest);
    inode_numbers_load(&w.numbers, layer);
    if (r == 0)
        r = write_bytes(&w, magic, sizeof magic);
    if (r == 0)
        r = files_walk(layer, pack_visited, &w, &inner);
    if (r == 0)
        r = write_bytes(&w, &end, sizeof end);
    if (r == 0)
        r = flush_segment(&w);
    inodes_done(&w.inodes);
    free(w.chunk);
    digest_end_hex(&w.digest, ret_digest);
    *ret_bytes = w.bytes;
    if (r < 0 && inner.code) {
        if (error)
            *error = inner;
        return r;
    }
    return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "hibernate",
                       "cannot write the files of the sandbox to the store: %s", strerror(-r))
                 : 0;
}

/* ---- reading ---- */

/* A directory gets its mode, times and attributes after all of its entries: new files would inherit
 * some of its attributes. */
struct made {
    char *path, *attributes;
    struct pack_entry entry;
};

struct reading {
    int from, layer;
    uint32_t id_base;
    bool has_ids;
    size_t at, held;
    char *chunk, *texts;
    size_t texts_room;
    struct inode_numbers numbers; /* for which files wait */
    struct made *made;
    size_t n_made, made_room;
    char *parent_path; /* of the descriptor below */
    int parent;
};

static int read_bytes(struct reading *in, void *to, size_t length) {
    for (char *at = to; length;) {
        if (in->at == in->held) {
            ssize_t n = read(in->from, in->chunk, CHUNK);

            if (n < 0 && errno == EINTR)
                continue;
            if (n <= 0)
                return n < 0 ? -errno : -EBADMSG;
            in->at = 0;
            in->held = (size_t)n;
        }
        size_t n = MIN(length, in->held - in->at);
        memcpy(at, in->chunk + in->at, n);
        in->at += n;
        at += n;
        length -= n;
    }
    return 0;
}

/* The directory that a path ends in, which stays open for the next one in it, and its name there.
 */
static int enter_parent(struct reading *in, const char *path, const char **ret_name) {
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;

    *ret_name = slash ? slash + 1 : path;
    if (in->parent >= 0 && in->parent_path && strlen(in->parent_path) == length &&
        memcmp(in->parent_path, path, length) == 0)
        return in->parent;
    close_fd(&in->parent);
    free(in->parent_path);
    in->parent_path = strndup(path, length);
    in->parent = in->parent_path ? files_parent(in->layer, path, ret_name) : -ENOMEM;
    return in->parent;
}

struct attribute {
    const char *name;
    char *value;
    uint32_t length;
};

/* The entry at `at`: returns the position of the next one. */
static char *next_attribute(char *at, struct attribute *ret_attribute) {
    char *value = at + strlen(at) + 1;
    uint32_t n;

    memcpy(&n, value, sizeof n);
    *ret_attribute = (struct attribute){ at, value + sizeof n, n };
    return value + sizeof n + n;
}

static int set_attributes(const struct reading *in, int fd, char *at, size_t length) {
    struct attribute attribute;

    for (char *end = at + length; at < end;) {
        at = next_attribute(at, &attribute);
        shift_access(attribute.name, attribute.value, attribute.length, in->id_base);
        shift_capability(attribute.name, attribute.value, attribute.length, in->id_base);
        if (!in->has_ids && strcmp(attribute.name, XATTR_CAPABILITY) == 0)
            continue;
        if (!is_of_numbers(attribute.name) &&
            fsetxattr(fd, attribute.name, attribute.value, attribute.length, 0) < 0)
            return -errno;
    }
    return 0;
}

static struct attribute find_attribute(char *at, size_t length, const char *name) {
    struct attribute attribute;

    for (char *end = at + length; at < end;) {
        at = next_attribute(at, &attribute);
        if (strcmp(attribute.name, name) == 0)
            return attribute;
    }
    return (struct attribute){ 0 };
}

/* Nothing has been made yet. */
static void reserve_numbers(struct reading *in, const struct pack_entry *entry, char *attributes) {
    struct attribute list = find_attribute(attributes, entry->attributes, NUMBERS_LIST);

    inode_numbers_add_all(&in->numbers, list.value, list.length);
    inode_numbers_reserve(&in->numbers, in->layer);
}

/* The file that has waited with the number of this one, if one has: opened, with that name. */
static int take_number(struct reading *in, int parent, const char *name,
    const struct pack_entry *entry, char *attributes) {
    struct attribute number = find_attribute(attributes, entry->attributes, NUMBER);
    uint64_t wanted = 0;

    if (number.length == sizeof wanted)
        memcpy(&wanted, number.value, sizeof wanted);
    if (!inode_numbers_has(&in->numbers, wanted) ||
        inode_numbers_take(in->layer, wanted, parent, name) < 0)
        return -ENOENT;
    int fd = openat(parent, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int set_times(int fd, int directory, const char *name, const struct pack_entry *entry) {
    const struct timespec times[] = { { entry->times[0], (long)entry->times[1] },
        { entry->times[2], (long)entry->times[3] } };

    return (name ? utimensat(directory, name, times, AT_SYMLINK_NOFOLLOW) : futimens(fd, times)) < 0
               ? -errno
               : 0;
}

/* An ordinary user's sandboxes of one user have one id, which all of it belongs to already. */
static int restore_attributes(const struct reading *in, int fd, int directory, const char *name,
    const struct pack_entry *entry) {
    uid_t uid = in->id_base + entry->uid;
    gid_t gid = in->id_base + entry->gid;

    if (!in->has_ids)
        return 0;
    if (entry->uid >= count_ids(in->id_base) || entry->gid >= count_ids(in->id_base))
        return -EOVERFLOW;
    return (name ? fchownat(directory, name, uid, gid, AT_SYMLINK_NOFOLLOW)
                 : fchown(fd, uid, gid)) < 0
               ? -errno
               : 0;
}

static int write_at(int fd, const char *data, size_t length, uint64_t offset) {
    while (length) {
        ssize_t n = pwrite(fd, data, length, (off_t)offset);

        if (n < 0 && errno != EINTR)
            return -errno;
        data += MAX(n, (ssize_t)0);
        offset += (uint64_t)MAX(n, (ssize_t)0);
        length -= (size_t)MAX(n, (ssize_t)0);
    }
    return 0;
}

/* `fd` negative: into nothing. */
static int get_data(struct reading *in, int fd, const struct pack_entry *entry) {
    auto_free struct segment *segments = calloc(entry->n_segments + 1u, sizeof *segments);
    uint64_t reached = 0;
    int r = segments ? read_bytes(in, segments, entry->n_segments * sizeof *segments) : -ENOMEM;

    for (uint32_t i = 0; r == 0 && i < entry->n_segments; i++) {
        if (segments[i].offset < reached || segments[i].offset > entry->size ||
            segments[i].length > entry->size - segments[i].offset)
            return -EBADMSG;
        reached = segments[i].offset + segments[i].length;
        for (uint64_t done = 0; r == 0 && done < segments[i].length;) {
            size_t n = (size_t)MIN(segments[i].length - done, (uint64_t)CHUNK);

            r = read_bytes(in, in->chunk + CHUNK, n);
            if (r == 0 && fd >= 0)
                r = write_at(fd, in->chunk + CHUNK, n, segments[i].offset + done);
            done += n;
        }
    }
    return r == 0 && fd >= 0 && ftruncate(fd, (off_t)entry->size) < 0 ? -errno : r;
}

static int make_file(struct reading *in, int parent, const char *name,
    const struct pack_entry *entry, char *attributes) {
    auto_close int fd = take_number(in, parent, name, entry, attributes);

    if (fd == -ENOENT)
        fd = openat(parent, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int r = fd < 0 ? -errno : get_data(in, fd, entry);

    if (r == 0)
        r = restore_attributes(in, fd, -EBADF, NULL, entry);
    if (r == 0)
        r = set_attributes(in, fd, attributes, entry->attributes);
    if (r == 0 && fchmod(fd, entry->mode) < 0)
        r = -errno;
    fault_point(FAULT_wake_half);
    return r == 0 ? set_times(fd, -EBADF, NULL, entry) : r;
}

static int make_directory(struct reading *in, int parent, const char *name,
    const struct pack_entry *entry, char *attributes) {
    if (!in->n_made)
        reserve_numbers(in, entry, attributes);
    if (mkdirat(parent, name, 0700) < 0)
        return -errno;
    auto_close int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (in->n_made == in->made_room) {
        size_t room = in->made_room ? 2 * in->made_room : 64;
        struct made *more = realloc(in->made, room * sizeof *more);

        if (!more)
            return -ENOMEM;
        in->made = more;
        in->made_room = room;
    }
    struct made *made = &in->made[in->n_made++];
    *made = (struct made){ strdup(in->texts), malloc(entry->attributes + 1u), *entry };
    if (!made->path || !made->attributes)
        return -ENOMEM;
    memcpy(made->attributes, attributes, entry->attributes);
    return restore_attributes(in, fd, -EBADF, NULL, entry);
}

static int make_other(struct reading *in, int parent, const char *name,
    const struct pack_entry *entry, const char *target) {
    static const mode_t types[] = {
        [PACK_FIFO] = S_IFIFO, [PACK_SOCKET] = S_IFSOCK, [PACK_WHITEOUT] = S_IFCHR
    };
    int r = 0;

    if (entry->kind == PACK_SYMLINK)
        r = symlinkat(target, parent, name);
    else if (mknodat(parent, name, types[entry->kind] | 0600, makedev(0, 0)) < 0)
        r = -1;
    if (r < 0)
        return -errno;
    r = restore_attributes(in, -EBADF, parent, name, entry);
    if (r == 0 && (entry->kind == PACK_FIFO || entry->kind == PACK_SOCKET) &&
        fchmodat(parent, name, entry->mode, 0) < 0)
        r = -errno;
    return r == 0 ? set_times(-EBADF, parent, name, entry) : r;
}

static int make_link(struct reading *in, int parent, const char *name, const char *target) {
    const char *other;
    auto_close int directory = files_parent(in->layer, target, &other);

    if (directory < 0)
        return directory;
    return linkat(directory, other, parent, name, 0) < 0 ? -errno : 0;
}

static int make_entry(struct reading *in, const struct pack_entry *entry) {
    char *target = in->texts + entry->path, *attributes = target + entry->target;
    const char *name;
    int parent = enter_parent(in, in->texts, &name);

    if (parent < 0)
        return parent;
    switch ((enum pack_kind)entry->kind) {
    case PACK_FILE:
        return make_file(in, parent, name, entry, attributes);
    case PACK_DIRECTORY:
        return make_directory(in, parent, name, entry, attributes);
    case PACK_LINK:
        return make_link(in, parent, name, target);
    case PACK_SYMLINK:
    case PACK_FIFO:
    case PACK_SOCKET:
    case PACK_WHITEOUT:
        return make_other(in, parent, name, entry, target);
    case PACK_END:
        break;
    }
    return 0;
}

/* Entries first, then the directory. */
static int finish_directories(struct reading *in) {
    for (size_t i = in->n_made; i--;) {
        const char *name;
        auto_close int parent = files_parent(in->layer, in->made[i].path, &name);
        auto_close int fd =
            parent < 0 ? parent
                       : openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

        if (fd < 0)
            return parent < 0 ? parent : -errno;
        int r = set_attributes(in, fd, in->made[i].attributes, in->made[i].entry.attributes);
        if (r == 0)
            r = fchmod(fd, in->made[i].entry.mode) < 0
                    ? -errno
                    : set_times(fd, -EBADF, NULL, &in->made[i].entry);
        if (r < 0)
            return r;
    }
    return 0;
}

static int read_all(
    struct reading *in, int (*take)(struct reading *in, const struct pack_entry *entry)) {
    char found[sizeof magic];
    int r = read_bytes(in, found, sizeof found);

    if (r == 0 && memcmp(found, magic, sizeof magic) != 0)
        r = -EBADMSG;
    while (r == 0) {
        struct pack_entry entry;

        r = read_bytes(in, &entry, sizeof entry);
        if (r < 0)
            return r;
        if (entry.path > PACK_MAX_TEXT || entry.target > PACK_MAX_TEXT ||
            entry.attributes > PACK_MAX_ATTRIBUTES)
            return -EBADMSG;
        size_t length = (size_t)entry.path + entry.target + entry.attributes;
        in->texts[0] = '\0';
        r = read_bytes(in, in->texts, length);
        if (r == 0 && !pack_is_sound(&entry, in->texts, length))
            r = -EBADMSG;
        if (r == 0 && entry.kind == PACK_END)
            return finish_directories(in);
        if (r == 0)
            r = take(in, &entry);
    }
    return r;
}

static int skip_entry(struct reading *in, const struct pack_entry *entry) {
    return entry->kind == PACK_FILE ? get_data(in, -EBADF, entry) : 0;
}

int pack_check(int from) {
    struct reading in = { .from = from,
        .layer = -EBADF,
        .chunk = malloc(2 * CHUNK),
        .texts = malloc(2 * PACK_MAX_TEXT + PACK_MAX_ATTRIBUTES),
        .parent = -EBADF };
    int r = in.chunk && in.texts ? read_all(&in, skip_entry) : -ENOMEM;
    char more;

    if (r == 0 && (in.at < in.held || read(from, &more, 1) != 0))
        r = -EBADMSG;
    free(in.chunk);
    free(in.texts);
    return r;
}

static void free_made(struct made *made) {
    free(made->path);
    free(made->attributes);
}

int pack_read(int from, int layer, struct rollbox_error *error) {
    struct reading in = { .from = from,
        .layer = layer,
        .chunk = malloc(2 * CHUNK),
        .texts = malloc(2 * PACK_MAX_TEXT + PACK_MAX_ATTRIBUTES),
        .parent = -EBADF };
    int r = in.chunk && in.texts ? base_of(layer, &in.id_base, &in.has_ids) : -ENOMEM;

    umask(0);
    /* New files must have an id that the layer's user namespace knows. The rights over them stay.
     */
    if (r == 0 && in.has_ids) {
        r = prctl(PR_SET_SECUREBITS, NO_SETUID_FIXUP, 0, 0, 0) < 0 ? -errno : 0;
        (void)setfsgid(in.id_base);
        (void)setfsuid(in.id_base);
    }
    if (r == 0)
        r = read_all(&in, make_entry);
    inode_numbers_release(&in.numbers, layer);
    inode_numbers_save(&in.numbers, layer);
    if (in.has_ids) {
        (void)setfsuid(geteuid());
        (void)setfsgid(getegid());
    }
    for (size_t i = 0; i < in.n_made; i++)
        free_made(&in.made[i]);
    free(in.made);
    free(in.parent_path);
    close_fd(&in.parent);
    free(in.chunk);
    free(in.texts);
    if (r == -EBADMSG)
        return error_set(error, ROLLBOX_ERR_DAMAGED, EBADMSG, "wake",
            "the files of the sandbox in the store are damaged");
    return r < 0 ? error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "wake",
                       "the files of the sandbox cannot be made again: %s", strerror(-r))
                 : 0;
}
