/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks trees with hostile contents and reads the attributes of their files.
 *
 * Every file is reached from its parent directory's descriptor by one name, and no link is
 * followed. Files that the caller owns and that are unreadable are read as well; their modes stay
 * unchanged.
 */
#ifndef ROLLBOX_STORE_FILES_H
#define ROLLBOX_STORE_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"

#define FILES_MAX_DEPTH 1000
#define FILES_MAX_ENTRIES 2000000

#define XATTR_OPAQUE "user.overlay.opaque"
#define XATTR_OWNER "user.rollbox.owner"
#define XATTR_CAPABILITY "security.capability"
/* XATTR_CAPABILITY of an image, without effect. */
#define XATTR_KEPT_CAPABILITY "user.rollbox.capability"
#define XATTR_SPARSE "user.rollbox.sparse" /* in snapshot files only */

/* The names in a directory (but . and ..), sorted by their bytes. */
struct names {
    char **list;
    size_t n;
};

int names_read(int directory, struct names *ret_names);
void names_done(struct names *names);

/* Opens a regular file or directory, no link, for reading. -ELOOP for a link, -EINVAL for anything
 * else that is neither. A directory that its owner, the caller, may not search is made searchable.
 */
int files_open(int at, const char *name, int flags);

/* Restores the mode that a directory had before files_open. */
void files_left_as_it_was(int fd, const struct stat *before);

/* Resolves `path` below `root` through no link: its parent's descriptor (the caller's) and, in
 * *ret_name, its last component (pointing into path; "." for the root itself). */
int files_parent(int root, const char *path, const char **ret_name);

static inline bool files_is_whiteout(const struct stat *st) {
    return S_ISCHR(st->st_mode) && st->st_rdev == 0;
}

/* Sockets live with processes, and devices are nothing that a layer may have: no digest counts
 * them, no export has them. */
static inline bool files_is_left_out(const struct stat *st) {
    return S_ISSOCK(st->st_mode) || S_ISBLK(st->st_mode) ||
           (S_ISCHR(st->st_mode) && st->st_rdev != 0);
}

/* True for a directory (by descriptor) that hides the layers below it. */
bool files_is_opaque(int directory);

/* "file", "directory", "symlink", "fifo", "socket", "device", "whiteout". */
const char *files_type(const struct stat *st);

/* The target of a link, for free(); NULL with errno. */
char *files_link(int at, const char *name, const struct stat *st);

/* Attributes that belong to a file's state: user.*, but of the overlay's own only its mark of an
 * opaque directory. */
bool files_xattr_kept(const char *name);

/* Calls `each` for every kept attribute, sorted by name. 0 or what `each` returned, or -errno. */
int files_xattrs(int fd,
    int (*each)(void *context, const char *name, const void *value, size_t length), void *context);
int files_copy_xattrs(int from, int to, bool with_overlay);

/* The owner and mode that were requested for a file; see files_set_owner. */
struct owner {
    uint32_t uid, gid, mode;
};

/* Sets the owner and mode of a new file or directory, as far as the caller may and should: root
 * sets ids up to 65534, and then setuid and setgid bits if `keeps_setid`; a caller that is not root
 * keeps the right to read. The lost part is kept in the attribute user.rollbox.owner. Not for
 * links. Returns 0; 1 if a file has lost a setuid or setgid bit; or -errno. */
int files_set_owner(int fd, const struct owner *owner, bool is_directory, bool keeps_setid);

/* Sets only the owner, for files that cannot have attributes. As root only, as far as possible. */
int files_give(int at, const char *name, uint32_t uid, uint32_t gid);

/* The arguments of files_set_owner, as far as they are known. */
void files_owner(int fd, const struct stat *st, struct owner *ret_owner);

/* The owner and mode as an image has them: what an ordinary user's store has no record of belongs
 * to root. `fd` -EBADF: a link or a FIFO. */
void files_image_owner(int fd, const struct stat *st, struct owner *ret_owner);

/* The id, as this process sees it, of root of the sandbox of many users that has written a layer;
 * those of its other users follow. 0 or -errno. */
int files_many_ids(int layer, uint32_t *ret_base);

/* The attribute of a program's capabilities: of the host's root (revision 2), or of the root of a
 * user namespace (revision 3), whose id comes after what revision 2 has. */
#define CAPABILITY_OF_HOST_BYTES 20
#define CAPABILITY_IN_NAMESPACE_BYTES 24

/* Copies all data of a file, without holes. Without O_APPEND. */
int files_copy_data(int from, int to, uint64_t size);

struct files_entry {
    const char *path; /* from the root of the walk, no slash in front; "" is the root itself */
    size_t path_length;
    const char *name;
    int parent;
    int fd; /* of a directory: itself; else -EBADF */
    struct stat st;
};

/* Parents before their entries, names in the order of their bytes. A directory that is entered
 * counts one level. The visitor returns 0, FILES_SKIP (do not enter), or -errno after setting the
 * error. */
#define FILES_SKIP 1
typedef int (*files_visitor)(
    void *context, const struct files_entry *entry, struct rollbox_error *error);
int files_walk(int root, files_visitor visit, void *context, struct rollbox_error *error);

/* The digest of a tree (docs/reference/store-format.md), and its size. */
struct tree_digest {
    char hex[65];
    uint64_t bytes; /* of regular files, each inode once */
    uint64_t files; /* entries, the root not counted */
    uint64_t whiteouts;
};

int tree_digest(int root, struct tree_digest *ret_digest, struct rollbox_error *error);

/* Only those entries of the top directory that `keep` accepts. `as_exported`: as in an export of
 * many users, which has capabilities of programs in another form. */
typedef bool (*files_filter)(const void *context, const char *name);
int tree_digest_some(int root, files_filter keep, const void *context, bool as_exported,
    struct tree_digest *ret_digest, struct rollbox_error *error);

/* Adds one entry, for callers with their own walk. `content` is the content digest of a regular
 * file; `target` a link's. */
struct digest;
void tree_digest_begin(struct digest *digest);
int tree_digest_entry(struct digest *digest, const struct files_entry *entry, int fd,
    const uint8_t *content, const char *target, bool as_exported);

/* Inodes with several names, and the data of the first name. */
struct inodes {
    struct inode *table;
    size_t n, capacity;
};

struct inode {
    uint64_t device, number;
    char *path;
    uint8_t content[32];
};

/* *ret_found: it was there. -ENOMEM. */
int inodes_note(struct inodes *inodes, const struct stat *st, const char *path,
    struct inode **ret_inode, bool *ret_found);
void inodes_done(struct inodes *inodes);

/* A name for a message: at most about 200 bytes, with terminal control characters replaced. Static,
 * valid for a few calls. */
const char *files_printable(const char *path);

/* Opens a file to import, and returns its kind: a descriptor, or negative with *error filled. */
int files_open_archive(const char *path, struct stat *ret_st, struct rollbox_error *error);

#endif
