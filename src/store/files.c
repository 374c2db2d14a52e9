/* SPDX-License-Identifier: Apache-2.0 */
#include "store/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/remove_tree.h"
#include "base/utf8.h"
#include "guest/guest.h"
#include "store/digest.h"
#include "sys/syscalls.h"

#define COPY_BYTES (1u << 20)
#define XATTR_BYTES 65536

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int names_read(int directory, struct names *ret_names) {
    struct names names = { 0 };
    size_t capacity = 0;
    const struct dirent *entry;

    auto_close int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    DIR *stream = fdopendir(fd);
    if (!stream)
        return -errno;
    (void)TAKE_FD(fd);
    int r = 0;
    for (;;) {
        errno = 0;
        entry = readdir(stream);
        if (!entry) {
            r = -errno;
            break;
        }
        if (entry->d_name[0] == '.' &&
            (!entry->d_name[1] || (entry->d_name[1] == '.' && !entry->d_name[2])))
            continue;
        if (names.n == FILES_MAX_ENTRIES) {
            r = -E2BIG;
            break;
        }
        if (names.n == capacity) {
            capacity = capacity ? 2 * capacity : 16;
            char **more = realloc(names.list, capacity * sizeof *more);
            if (!more) {
                r = -ENOMEM;
                break;
            }
            names.list = more;
        }
        names.list[names.n] = strdup(entry->d_name);
        if (!names.list[names.n]) {
            r = -ENOMEM;
            break;
        }
        names.n++;
    }
    closedir(stream);
    if (r < 0) {
        names_done(&names);
        return r;
    }
    if (names.n)
        qsort(names.list, names.n, sizeof *names.list, compare_names);
    *ret_names = names;
    return 0;
}

void names_done(struct names *names) {
    for (size_t i = 0; i < names->n; i++)
        free(names->list[i]);
    free(names->list);
    *names = (struct names){ 0 };
}

/* A file whose owner, the caller, may not read it. */
static int open_unreadable(int at, const char *name, int flags) {
    char link[32];
    struct stat st;

    auto_close int path = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC | (flags & O_DIRECTORY));
    if (path < 0)
        return -errno;
    if (fstat(path, &st) < 0)
        return -errno;
    if (st.st_uid != geteuid() || (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)))
        return -EACCES;
    snprintf(link, sizeof link, "/proc/self/fd/%d", path);
    if (chmod(link, (st.st_mode & 07777) | (S_ISDIR(st.st_mode) ? 0500 : 0400)) < 0)
        return -errno;
    int fd = open(link, flags & ~O_NOFOLLOW);
    int r = fd < 0 ? -errno : fd;
    if (!S_ISDIR(st.st_mode))
        (void)chmod(link, st.st_mode & 07777);
    return r;
}

/* A directory must also be searchable while it is walked; files_left_as_it_was restores its mode.
 */
static bool is_closed(const struct stat *st) {
    return S_ISDIR(st->st_mode) && (st->st_mode & 0500) != 0500 && geteuid() != 0 &&
           st->st_uid == geteuid();
}

void files_left_as_it_was(int fd, const struct stat *before) {
    if (is_closed(before))
        (void)fchmod(fd, before->st_mode & 07777);
}

int files_open(int at, const char *name, int flags) {
    struct stat st;

    flags |= O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    auto_close int fd = openat(at, name, flags);
    if (fd < 0 && errno == EACCES)
        fd = open_unreadable(at, name, flags);
    else if (fd < 0)
        return errno == ENXIO ? -EINVAL : -errno; /* ENXIO: a socket */
    if (fd < 0)
        return fd;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return -EINVAL;
    if (is_closed(&st) && fchmod(fd, (st.st_mode & 07777) | 0500) < 0)
        return -errno;
    return TAKE_FD(fd);
}

/* Opens a directory below `at` by a path without leading slash, in steps that the kernel takes: a
 * tree may be deeper than PATH_MAX. */
static int open_below(int at, const char *path, size_t length) {
    struct open_how how = { .flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };
    char step[4000];
    auto_close int fd = -EBADF;

    do {
        size_t n = length;

        if (n >= sizeof step) {
            n = sizeof step - 1;
            while (n && path[n] != '/')
                n--;
            if (!n)
                return -ENAMETOOLONG;
        }
        memcpy(step, n ? path : ".", MAX(n, (size_t)1));
        step[MAX(n, (size_t)1)] = '\0';
        int next = sys_openat2(fd >= 0 ? fd : at, step, &how);
        if (next < 0)
            return next == -EXDEV ? -ELOOP : next;
        close_fd(&fd);
        fd = next;
        path += n;
        length -= n;
        while (length && *path == '/') {
            path++;
            length--;
        }
    } while (length);
    return TAKE_FD(fd);
}

int files_parent(int root, const char *path, const char **ret_name) {
    const char *slash = strrchr(path, '/');

    if (slash) {
        *ret_name = slash + 1;
        return open_below(root, path, (size_t)(slash - path));
    }
    *ret_name = path[0] ? path : ".";
    return open_below(root, path, 0);
}

bool files_is_opaque(int directory) {
    char value[4];

    return fgetxattr(directory, XATTR_OPAQUE, value, sizeof value) == 1 && value[0] == 'y';
}

const char *files_type(const struct stat *st) {
    switch (st->st_mode & S_IFMT) {
    case S_IFREG:
        return "file";
    case S_IFDIR:
        return "directory";
    case S_IFLNK:
        return "symlink";
    case S_IFIFO:
        return "fifo";
    case S_IFSOCK:
        return "socket";
    default:
        return files_is_whiteout(st) ? "whiteout" : "device";
    }
}

char *files_link(int at, const char *name, const struct stat *st) {
    size_t room = (size_t)st->st_size + 1;
    char *target = malloc(room);

    if (!target)
        return NULL;
    ssize_t n = readlinkat(at, name, target, room);
    if (n < 0 || (size_t)n >= room) {
        int saved = n < 0 ? errno : EAGAIN;
        free(target);
        errno = saved;
        return NULL;
    }
    target[n] = '\0';
    return target;
}

bool files_xattr_kept(const char *name) {
    return strncmp(name, "user.", 5) == 0 &&
           (strncmp(name, "user.overlay.", 13) != 0 || strcmp(name, XATTR_OPAQUE) == 0);
}

int files_xattrs(int fd,
    int (*each)(void *context, const char *name, const void *value, size_t length), void *context) {
    auto_free char *list = NULL;
    auto_free char *value = NULL;
    auto_free char **names = NULL;
    size_t n = 0;

    ssize_t length = flistxattr(fd, NULL, 0);
    if (length == 0 || (length < 0 && (errno == EOPNOTSUPP || errno == EPERM)))
        return 0;
    list = length > 0 ? malloc(XATTR_BYTES) : NULL;
    value = list ? malloc(XATTR_BYTES) : NULL;
    if (length < 0)
        return -errno;
    if (!value)
        return -ENOMEM;
    length = flistxattr(fd, list, XATTR_BYTES);
    if (length < 0)
        return -errno;
    for (const char *p = list; p < list + length; p += strlen(p) + 1)
        n++;
    names = calloc(n + 1, sizeof *names);
    if (!names)
        return -ENOMEM;
    n = 0;
    for (char *p = list; p < list + length; p += strlen(p) + 1)
        if (files_xattr_kept(p))
            names[n++] = p;
    qsort(names, n, sizeof *names, compare_names);
    for (size_t i = 0; i < n; i++) {
        ssize_t size = fgetxattr(fd, names[i], value, XATTR_BYTES);

        if (size < 0)
            return -errno;
        int r = each(context, names[i], value, (size_t)size);
        if (r)
            return r;
    }
    return 0;
}

struct copying {
    int to;
    bool with_overlay;
};

static int copy_one(void *context, const char *name, const void *value, size_t length) {
    const struct copying *copying = context;

    if (!copying->with_overlay &&
        (strcmp(name, XATTR_OPAQUE) == 0 || strcmp(name, XATTR_OWNER) == 0))
        return 0;
    return fsetxattr(copying->to, name, value, length, 0) < 0 && errno != EOPNOTSUPP ? -errno : 0;
}

int files_copy_xattrs(int from, int to, bool with_overlay) {
    struct copying copying = { to, with_overlay };

    return files_xattrs(from, copy_one, &copying);
}

/* In a container even root may have few ids to give. */
static bool cannot_give(int error_number) {
    return error_number == EPERM || error_number == EINVAL || error_number == EOVERFLOW;
}

int files_set_owner(int fd, const struct owner *owner, bool is_directory, bool keeps_setid) {
    uint32_t uid = MIN(owner->uid, 65534u), gid = MIN(owner->gid, 65534u),
             mode = owner->mode & 01777;

    if (geteuid() != 0) {
        keeps_setid = false;
        uid = gid = 0; /* the meaning of a missing attribute */
        mode |= is_directory ? 0500 : 0400;
    } else if (fchown(fd, uid, gid) < 0) {
        if (!cannot_give(errno))
            return -errno;
        uid = gid = 0;
        keeps_setid = false;
    }
    /* With its true owner. Nobody but root gets at the store's directory, and of sandboxes only
     * those of many users heed the bits, for which the owner is a user of their own. */
    if (keeps_setid && uid == owner->uid && gid == owner->gid)
        mode = owner->mode & 07777;
    if (uid != owner->uid || gid != owner->gid || mode != (owner->mode & 07777)) {
        char text[64];
        int n = snprintf(text, sizeof text, "%" PRIu32 ":%" PRIu32 ":%" PRIo32, owner->uid,
            owner->gid, owner->mode & 07777);

        if (fsetxattr(fd, XATTR_OWNER, text, (size_t)n, 0) < 0)
            return -errno;
    }
    if (fchmod(fd, mode) < 0)
        return -errno;
    return !is_directory && (owner->mode & ~mode & 06000);
}

int files_give(int at, const char *name, uint32_t uid, uint32_t gid) {
    if (geteuid() != 0 ||
        fchownat(at, name, MIN(uid, 65534u), MIN(gid, 65534u), AT_SYMLINK_NOFOLLOW) == 0 ||
        cannot_give(errno))
        return 0;
    return -errno;
}

void files_owner(int fd, const struct stat *st, struct owner *ret_owner) {
    char text[64], *end;
    ssize_t n = fd >= 0 ? fgetxattr(fd, XATTR_OWNER, text, sizeof text - 1) : -1;

    ret_owner->uid = st->st_uid;
    ret_owner->gid = st->st_gid;
    ret_owner->mode = st->st_mode & 07777;
    if (n <= 0)
        return;
    text[n] = '\0';
    unsigned long uid = strtoul(text, &end, 10);
    if (*end != ':')
        return;
    unsigned long gid = strtoul(end + 1, &end, 10);
    if (*end != ':')
        return;
    unsigned long mode = strtoul(end + 1, &end, 8);
    if (*end || uid > UINT32_MAX || gid > UINT32_MAX || mode > 07777)
        return;
    *ret_owner = (struct owner){ (uint32_t)uid, (uint32_t)gid, (uint32_t)mode };
}

void files_image_owner(int fd, const struct stat *st, struct owner *ret_owner) {
    char text[64];

    files_owner(fd, st, ret_owner);
    if (geteuid() != 0 && (fd < 0 || fgetxattr(fd, XATTR_OWNER, text, sizeof text) < 0))
        ret_owner->uid = ret_owner->gid = 0;
    ret_owner->uid = MIN(ret_owner->uid, 65534u);
    ret_owner->gid = MIN(ret_owner->gid, 65534u);
}

int files_many_ids(int layer, uint32_t *ret_base) {
    struct stat st;

    if (fstat(layer, &st) < 0)
        return -errno;
    *ret_base = st.st_uid / GUEST_ID_RANGE * GUEST_ID_RANGE + PLAN_MANY_FIRST;
    return 0;
}

int files_copy_data(int from, int to, uint64_t size) {
    auto_free struct segment *segments = NULL;
    auto_free char *buffer = NULL;
    bool by_kernel = true;
    size_t n = 0;
    int r = segments_of(from, size, &segments, &n);

    if (r < 0)
        return r;
    for (size_t i = 0; i < n; i++) {
        off_t in = (off_t)segments[i].offset, out = in;

        for (uint64_t left = segments[i].length; left;) {
            ssize_t done = -1;

            if (by_kernel) {
                done =
                    copy_file_range(from, &in, to, &out, (size_t)MIN(left, (uint64_t)1 << 30), 0);
                if (done < 0 && errno != EINTR && errno != ENOSPC && errno != EDQUOT &&
                    errno != EFBIG && errno != EIO) {
                    by_kernel = false;
                    continue;
                }
            } else {
                if (!buffer && !(buffer = malloc(COPY_BYTES)))
                    return -ENOMEM;
                done = pread(from, buffer, (size_t)MIN(left, (uint64_t)COPY_BYTES), in);
                for (ssize_t written = 0; done > 0 && written < done;) {
                    ssize_t w =
                        pwrite(to, buffer + written, (size_t)(done - written), out + written);
                    if (w < 0 && errno != EINTR)
                        return -errno;
                    written += MAX(w, 0);
                }
                if (done > 0) {
                    in += done;
                    out += done;
                }
            }
            if (done < 0 && errno == EINTR)
                continue;
            if (done <= 0)
                return done < 0 ? -errno : -EIO;
            left -= (uint64_t)done;
        }
    }
    return ftruncate(to, (off_t)size) < 0 ? -errno : 0;
}

const char *files_printable(const char *path) {
    static char turns[4][4 * 200 + 8];
    static unsigned turn;
    auto_buf struct buf text = BUF_INIT;
    char *to = turns[turn++ % ARRAY_SIZE(turns)];

    utf8_shown(&text, path, strnlen(path, 200), "");
    size_t n = MIN(text.length, sizeof turns[0] - 8);
    if (n)
        memcpy(to, text.data, n);
    snprintf(to + n, 8, "%s", strnlen(path, 201) > 200 ? "..." : "");
    return to;
}

int files_open_archive(const char *path, struct stat *ret_st, struct rollbox_error *error) {
    auto_close int archive = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    if (archive < 0 || fstat(archive, ret_st) < 0)
        return error_set(error,
            errno == ENOENT   ? ROLLBOX_ERR_NOT_FOUND
            : errno == EACCES ? ROLLBOX_ERR_PATH_DENIED
                              : ROLLBOX_ERR_IO,
            errno, "import", "%s cannot be opened: %s", files_printable(path), strerror(errno));
    return TAKE_FD(archive);
}

struct walk {
    files_visitor visit;
    void *context;
    struct rollbox_error *error;
    struct buf path;
    uint64_t entries;
    unsigned depth;
};

static int walk_fail(struct walk *walk, int r, const char *what) {
    return error_set(walk->error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "store",
        "cannot %s %s: %s", what,
        walk->path.length ? files_printable(walk->path.data) : "the top directory",
        r == -E2BIG ? "too many entries" : strerror(-r));
}

static int walk_directory(struct walk *walk, int directory);

static int walk_one(struct walk *walk, int parent, const char *name) {
    struct files_entry entry = { .name = name, .parent = parent, .fd = -EBADF };
    auto_close int fd = -EBADF;

    if (fstatat(parent, name, &entry.st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : walk_fail(walk, -errno, "look at");
    if (++walk->entries > FILES_MAX_ENTRIES)
        return error_set(walk->error, ROLLBOX_ERR_INVALID_ARGUMENT, E2BIG, "store",
            "the tree has more than %d entries", FILES_MAX_ENTRIES);
    if (S_ISDIR(entry.st.st_mode)) {
        fd = files_open(parent, name, O_DIRECTORY);
        if (fd < 0)
            return walk_fail(walk, fd, "open");
        entry.fd = fd;
    }
    entry.path = walk->path.data;
    entry.path_length = walk->path.length;
    int r = walk->visit(walk->context, &entry, walk->error);
    if (r == 0 && fd >= 0) {
        if (walk->depth >= FILES_MAX_DEPTH) {
            r = error_set(walk->error, ROLLBOX_ERR_INVALID_ARGUMENT, ELOOP, "store",
                "%s: the tree is deeper than %d directories", files_printable(walk->path.data),
                FILES_MAX_DEPTH);
        } else {
            walk->depth++;
            r = walk_directory(walk, fd);
            walk->depth--;
        }
    }
    if (fd >= 0)
        files_left_as_it_was(fd, &entry.st);
    return MIN(r, 0);
}

static int walk_directory(struct walk *walk, int directory) {
    size_t base = walk->path.length;
    struct names names;
    int r = names_read(directory, &names);

    if (r < 0)
        return walk_fail(walk, r, "read");
    for (size_t i = 0; r == 0 && i < names.n; i++) {
        if (base)
            buf_add(&walk->path, "/", 1);
        buf_add_text(&walk->path, names.list[i]);
        if (buf_failed(&walk->path))
            r = error_set(
                walk->error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
        else
            r = walk_one(walk, directory, names.list[i]);
        walk->path.length = base;
        if (walk->path.data)
            walk->path.data[base] = '\0';
    }
    names_done(&names);
    return r;
}

int files_walk(int root, files_visitor visit, void *context, struct rollbox_error *error) {
    struct walk walk = { .visit = visit, .context = context, .error = error, .path = BUF_INIT };
    struct files_entry top = { .path = "", .name = ".", .parent = root, .fd = root };

    if (fstat(root, &top.st) < 0)
        return walk_fail(&walk, -errno, "look at");
    int r = visit(context, &top, error);
    if (r == 0)
        r = walk_directory(&walk, root);
    buf_done(&walk.path);
    return MIN(r, 0);
}

static size_t inode_slot(const struct inodes *inodes, uint64_t device, uint64_t number) {
    size_t i = (size_t)((number * 0x9e3779b97f4a7c15u) ^ device) & (inodes->capacity - 1);

    while (inodes->table[i].path &&
           (inodes->table[i].number != number || inodes->table[i].device != device))
        i = (i + 1) & (inodes->capacity - 1);
    return i;
}

int inodes_note(struct inodes *inodes, const struct stat *st, const char *path,
    struct inode **ret_inode, bool *ret_found) {
    if (2 * inodes->n >= inodes->capacity) {
        struct inodes bigger = { .capacity = inodes->capacity ? 2 * inodes->capacity : 64 };

        bigger.table = calloc(bigger.capacity, sizeof *bigger.table);
        if (!bigger.table)
            return -ENOMEM;
        for (size_t i = 0; i < inodes->capacity; i++)
            if (inodes->table[i].path)
                bigger
                    .table[inode_slot(&bigger, inodes->table[i].device, inodes->table[i].number)] =
                    inodes->table[i];
        bigger.n = inodes->n;
        free(inodes->table);
        *inodes = bigger;
    }
    struct inode *inode = &inodes->table[inode_slot(inodes, st->st_dev, st->st_ino)];
    *ret_found = inode->path != NULL;
    if (!inode->path) {
        *inode = (struct inode){ .device = st->st_dev, .number = st->st_ino, .path = strdup(path) };
        if (!inode->path)
            return -ENOMEM;
        inodes->n++;
    }
    *ret_inode = inode;
    return 0;
}

void inodes_done(struct inodes *inodes) {
    for (size_t i = 0; i < inodes->capacity; i++)
        free(inodes->table[i].path);
    free(inodes->table);
    *inodes = (struct inodes){ 0 };
}

void tree_digest_begin(struct digest *digest) {
    digest_init(digest);
    digest_add_sized(digest, "rollbox tree 1", 14);
}

static int digest_xattr(void *context, const char *name, const void *value, size_t length) {
    struct digest *digest = context;

    if (strcmp(name, XATTR_OWNER) == 0)
        return 0;
    digest_add(digest, "x", 1);
    digest_add_sized(digest, name, strlen(name));
    digest_add_sized(digest, value, length);
    return 0;
}

static int digest_exported_xattr(
    void *context, const char *name, const void *value, size_t length) {
    return strcmp(name, XATTR_KEPT_CAPABILITY) == 0 ? 0
                                                    : digest_xattr(context, name, value, length);
}

int tree_digest_entry(struct digest *digest, const struct files_entry *entry, int fd,
    const uint8_t *content, const char *target, bool as_exported) {
    struct owner owner;
    int r = 0;

    digest_add_sized(digest, entry->path, entry->path_length);
    digest_add_sized(digest, files_type(&entry->st), strlen(files_type(&entry->st)));
    files_owner(fd, &entry->st, &owner);
    if (fd >= 0)
        digest_add_u64(digest, owner.mode);
    if (content) {
        digest_add_u64(digest, (uint64_t)entry->st.st_size);
        digest_add(digest, content, DIGEST_BYTES);
    }
    if (target)
        digest_add_sized(digest, target, strlen(target));
    if (fd >= 0 && as_exported)
        r = files_xattrs(fd, digest_exported_xattr, digest);
    else if (fd >= 0)
        r = files_xattrs(fd, digest_xattr, digest);
    digest_add(digest, ".", 1);
    return r;
}

struct digesting {
    files_filter keep;
    const void *keep_context;
    bool as_exported;
    struct digest digest;
    struct inodes inodes;
    struct tree_digest found;
};

static int digest_visit(
    void *context, const struct files_entry *entry, struct rollbox_error *error) {
    struct digesting *digesting = context;
    auto_free char *target = NULL;
    auto_close int fd = -EBADF;
    uint8_t content[DIGEST_BYTES];
    bool found = false, regular = S_ISREG(entry->st.st_mode);
    int r = 0;

    if (files_is_left_out(&entry->st))
        return 0;
    if (digesting->keep && entry->path_length && !strchr(entry->path, '/') &&
        !digesting->keep(digesting->keep_context, entry->name))
        return FILES_SKIP;
    if (regular) {
        struct inode *inode = NULL;

        fd = files_open(entry->parent, entry->name, 0);
        if (fd < 0)
            r = fd;
        if (r == 0 && entry->st.st_nlink > 1)
            r = inodes_note(&digesting->inodes, &entry->st, entry->path, &inode, &found);
        if (r == 0 && !found) {
            r = content_of(fd, (uint64_t)entry->st.st_size, content);
            digesting->found.bytes += (uint64_t)entry->st.st_size;
            if (inode)
                memcpy(inode->content, content, sizeof content);
        } else if (r == 0) {
            memcpy(content, inode->content, sizeof content);
        }
    } else if (S_ISLNK(entry->st.st_mode)) {
        target = files_link(entry->parent, entry->name, &entry->st);
        r = target ? 0 : -errno;
    }
    if (r == 0 && regular)
        r = tree_digest_entry(
            &digesting->digest, entry, fd, content, target, digesting->as_exported);
    else if (r == 0)
        r = tree_digest_entry(
            &digesting->digest, entry, entry->fd, NULL, target, digesting->as_exported);
    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "store",
            "cannot read %s: %s", files_printable(entry->path), strerror(-r));
    if (entry->path_length)
        digesting->found.files++;
    digesting->found.whiteouts += files_is_whiteout(&entry->st);
    return 0;
}

int tree_digest(int root, struct tree_digest *ret_digest, struct rollbox_error *error) {
    return tree_digest_some(root, NULL, NULL, false, ret_digest, error);
}

static int digest_tree(struct digesting *digesting, int root, struct tree_digest *ret_digest,
    struct rollbox_error *error) {
    tree_digest_begin(&digesting->digest);
    int r = files_walk(root, digest_visit, digesting, error);
    digest_end_hex(&digesting->digest, digesting->found.hex);
    inodes_done(&digesting->inodes);
    if (r == 0)
        *ret_digest = digesting->found;
    return r;
}

int tree_digest_some(int root, files_filter keep, const void *context, bool as_exported,
    struct tree_digest *ret_digest, struct rollbox_error *error) {
    struct digesting digesting = {
        .keep = keep, .keep_context = context, .as_exported = as_exported
    };

    return digest_tree(&digesting, root, ret_digest, error);
}
