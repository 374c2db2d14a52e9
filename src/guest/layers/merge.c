/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merging layers: copying the combined content of several layers into one.
 *
 * The parts of a layer are trees in the format of an overlay's upper directory. A device 0:0, a
 * whiteout, means that the name is deleted, and user.overlay.opaque that nothing below a directory
 * is visible. The lowest layer is copied into a new tmpfs, and each further one over that, as the
 * kernel would show it. The files below all layers are unknown here, so whiteouts stay in the copy.
 * If a directory exists in one layer only, the kernel shows its whiteouts in listings, unless the
 * directory has an "origin", which marks a merged directory; so these directories get one.
 *
 * The source is a guest's work, of any depth and width, and may belong to a sandbox that is paused
 * but still in use. Nothing is written to it, and no link in it is followed. The walk keeps few
 * directories open: ancestors are found again as "..". Each level takes a small record of memory.
 *
 * Most of the time is spent on creating many small files, so a second process helps in a large
 * directory. The two share the descriptors, and the list of entries in shared memory, from which
 * each takes the next one.
 *
 * Hard links are recreated with the help of a directory in the copy, in which each such file has a
 * second name: its number in its layer.
 *
 * Files that processes have open keep their inode numbers where possible (base/inode_numbers.h):
 * they are given by name and number, and lists in the layers are passed on.
 *
 * Not copied: access control lists of FIFOs, and attributes that only the host's root can set.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/inode_numbers.h"
#include "base/remove_tree.h"
#include "guest/internal.h"
#include "guest/layers/layers.h"
#include "sys/syscalls.h"

#define OVERLAY "user.overlay."
#define ESCAPED OVERLAY "overlay." /* the overlay's name for the guest's own "user.overlay.*" */
#define OPAQUE OVERLAY "opaque"
#define ORIGIN OVERLAY "origin"
#define LINKS "links"          /* beside the parts, during the copy */
#define OPEN_LEVELS 48         /* in each tree */
#define WHOLE 196608u          /* files up to this size are read and written at once */
#define WORTH_HELP 64          /* regular files in a listing */
#define MAX_FILES (65536 / 24) /* in the result of one call */
#define UPPER_DEPTH                                                                                \
    (1u << 20) /* for a copy on a disk, where the number of entries is not known before */
/* SECBIT_NO_SETUID_FIXUP: a change of the id for files drops no rights. */
#define NO_SECURE_FIXUP 4

/* The output of getdents64(2); C libraries disagree on its name. */
struct entry {
    uint64_t inode;
    int64_t offset; /* of the next one */
    unsigned short length;
    unsigned char type;
    char name[];
};

/* A directory on the path of the walk. */
struct level {
    int from, to; /* -1: closed for now */
    uint64_t from_inode, to_inode;
    int64_t next; /* position in the search for subdirectories */
    bool listed;  /* all other entries have been copied */
    bool has_directories;
    bool fresh; /* the copy has entries of this layer only */
    bool opaque;
    bool hides;     /* it hides everything below all layers */
    bool whiteouts; /* the copy has whiteouts here */
    uint32_t name;  /* inode_numbers_name() */
};

/* Shared by both processes: the regular files of one listing. */
struct crew {
    _Atomic uint64_t ticket; /* round << 32 | number << 16 | next index */
    _Atomic uint32_t done;   /* entries that the helper has handled, in all rounds */
    _Atomic uint32_t calls;  /* changes in order to wake the helper */
    atomic_bool sleeps, stop;
    atomic_bool awaited; /* the other process waits for `done` */
    _Atomic int error;
    int from, to;
    uint32_t name;
    bool fresh;
    struct inode_numbers kept; /* in the layer that is being copied */
    uint32_t files[MAX_FILES]; /* offsets of their names */
    bool left[MAX_FILES];      /* entries that the helper must leave */
    _Alignas(struct entry) char entries[65536];
};

struct walk {
    struct crew *crew;
    pid_t helper;    /* 0: none yet; -1: it could not be started */
    uint32_t n_done; /* its entries before this round */
    struct level *levels;
    size_t n_levels;
    size_t first_open;                   /* lowest open level; the top is always open */
    int top, links;                      /* of the copy; links: -1 until needed */
    uint32_t id;                         /* owner of new files */
    const struct inode_numbers *numbers; /* to be preserved */
};

/* ---- attributes ---- */

static bool has_prefix(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* The guest's attributes, without those that the overlay has set for itself, and those that only
 * the host's root can set. Capabilities are of the guest's own root, if it may set any. */
static bool is_wanted(const char *name) {
    return has_prefix(name, "user.")
               ? !has_prefix(name, OVERLAY) || has_prefix(name, ESCAPED)
               : has_prefix(name, "system.posix_acl_") || has_prefix(name, "security.capability");
}

/* Buffers of the kernel's maximum size; loops over them call nothing that uses them. */
static char names[65536], value[65536];

/* Most files have no attributes. Asking for the length first finds that out without the kernel
 * allocating a buffer. */
static ssize_t list_names(int fd) {
    ssize_t length = flistxattr(fd, NULL, 0);

    if (length > 0)
        length = flistxattr(fd, names, sizeof names);

    if (length < 0)
        return errno == EOPNOTSUPP ? 0 : -errno;
    return length;
}

static int copy_xattrs(int from, int to) {
    ssize_t length = list_names(from);

    for (const char *name = names; length > 0 && name < names + length; name += strlen(name) + 1) {
        if (!is_wanted(name))
            continue;
        ssize_t n = fgetxattr(from, name, value, sizeof value);
        if (n < 0 || fsetxattr(to, name, value, (size_t)n, 0) < 0)
            return -errno;
    }
    return length < 0 ? (int)length : 0;
}

static int remove_xattrs(int fd) {
    ssize_t length = list_names(fd);

    for (const char *name = names; length > 0 && name < names + length; name += strlen(name) + 1)
        if (is_wanted(name) && fremovexattr(fd, name) < 0)
            return -errno;
    return length < 0 ? (int)length : 0;
}

static bool is_opaque(int fd) {
    char c;

    return fgetxattr(fd, OPAQUE, &c, 1) == 1 && c == 'y';
}

static int set_times(int fd, const char *name, const struct stat *st) {
    const struct timespec times[] = { st->st_atim, st->st_mtim };

    return (name ? utimensat(fd, name, times, AT_SYMLINK_NOFOLLOW) : futimens(fd, times)) < 0
               ? -errno
               : 0;
}

int copy_attributes(int from, int to, const struct stat *st) {
    if (fchown(to, st->st_uid, st->st_gid) < 0 || fchmod(to, st->st_mode & 07777) < 0)
        return -errno;
    int r = copy_xattrs(from, to);
    return r < 0 ? r : set_times(to, NULL, st);
}

/* ---- single files ---- */

static int copy_range(int from, int to, off_t at, off_t end) {
    if (lseek(from, at, SEEK_SET) < 0 || lseek(to, at, SEEK_SET) < 0)
        return -errno;
    while (at < end) {
        ssize_t n = sendfile(to, from, NULL, (size_t)(end - at < 1 << 30 ? end - at : 1 << 30));
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        at += n;
    }
    return 0;
}

/* Copies only data, so that holes stay holes. */
static int copy_content(int from, int to, const struct stat *st) {
    static char bytes[WHOLE];
    off_t end = st->st_size, at = 0;
    int r = 0;

    if (end <= (off_t)sizeof bytes && st->st_blocks * 512 >= end) {
        ssize_t n = end ? read(from, bytes, (size_t)end) : 0;
        if (n < 0)
            return -errno;
        return n ? fd_write_all(to, bytes, (size_t)n) : 0;
    }
    while (r == 0 && at < end) {
        off_t data = lseek(from, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            break;
        at = data < 0 ? data : lseek(from, data, SEEK_HOLE);
        r = at < 0 ? -errno : copy_range(from, to, data, at);
    }
    return r == 0 && ftruncate(to, end) < 0 ? -errno : r;
}

static int remove_at(int directory, const char *name) {
    if (unlinkat(directory, name, 0) == 0)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return -errno;
    int fd = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = tree_empty(fd);
    close(fd);
    return r == 0 && unlinkat(directory, name, AT_REMOVEDIR) < 0 ? -errno : r;
}

/* Creates the empty file of a copy. *ret_is_new: with its final mode. */
static int create_regular(const struct walk *w, const struct level *l, const char *name,
    const struct stat *st, bool *ret_is_new) {
    uint64_t number = inode_numbers_wanted(w->numbers, &w->crew->kept, l->name, name, st);
    int directory = l->to,
        r = number ? inode_numbers_take(w->top, number, directory, name) : -ENOENT;

    *ret_is_new = r == -ENOENT;
    if (r < 0 && r != -ENOENT)
        return r;
    int to = *ret_is_new
                 ? openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                       st->st_mode & 0777)
                 : openat(directory, name, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC);
    return to < 0 ? -errno : to;
}

/* A file that replaces another may be the same one, copied from a higher layer. */
static void spare_number(const struct walk *w, int directory, const char *name) {
    struct stat st;

    if (!w->numbers->n || fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        !S_ISREG(st.st_mode) || st.st_nlink > 1 || !inode_numbers_has(w->numbers, st.st_ino))
        return;
    int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && remove_xattrs(fd) == 0)
        (void)inode_numbers_give_back(w->top, st.st_ino, directory, name);
    if (fd >= 0)
        close(fd);
}

static int copy_regular(const struct walk *w, const struct level *l, int from, const char *name,
    const struct stat *st) {
    bool is_new;
    int to = create_regular(w, l, name, st, &is_new);

    if (to < 0)
        return to;
    int r = copy_content(from, to, st);
    bool other =
        !is_new || st->st_uid != w->id ||
        st->st_gid != w->id; /* an existing one may belong to another id, in a lower layer */
    if (r == 0 && other && fchown(to, st->st_uid, st->st_gid) < 0)
        r = -errno;
    if (r == 0 && (st->st_mode & 07000 || !is_new) && fchmod(to, st->st_mode & 07777) < 0)
        r = -errno;
    if (r == 0)
        r = copy_xattrs(from, to);
    if (r == 0)
        r = set_times(to, NULL, st);
    close(to);
    return r;
}

static int copy_special(const struct walk *w, int from_directory, int directory, const char *name,
    const struct stat *st) {
    char target[4097];
    ssize_t n;

    if (S_ISLNK(st->st_mode)) {
        n = readlinkat(from_directory, name, target, sizeof target - 1);
        if (n < 0)
            return -errno;
        target[n] = '\0';
        if (symlinkat(target, directory, name) < 0)
            return -errno;
    } else if (mknodat(directory, name, st->st_mode, st->st_rdev) < 0) {
        return -errno;
    }
    if ((st->st_uid != w->id || st->st_gid != w->id) &&
        fchownat(directory, name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    return set_times(directory, name, st);
}

/* ---- hard links ---- */

static const char *link_name(char *text, uint64_t inode) {
    *guest_put_number(text, inode) = '\0';
    return text;
}

static int link_to_earlier(
    const struct walk *w, const char *known, int directory, const char *name) {
    if (w->links < 0)
        return -ENOENT;
    return linkat(w->links, known, directory, name, 0) < 0 ? -errno : 0;
}

static int remember_link(struct walk *w, const char *known, int directory, const char *name) {
    if (w->links < 0) {
        if (mkdirat(w->top, LINKS, 0700) < 0)
            return -errno;
        w->links = openat(w->top, LINKS, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (w->links < 0)
            return -errno;
    }
    return linkat(directory, name, w->links, known, 0) < 0 ? -errno : 0;
}

static int forget_links(struct walk *w) {
    if (w->links < 0)
        return 0;
    int r = tree_empty(w->links);
    close(w->links);
    w->links = -1;
    return r == 0 && unlinkat(w->top, LINKS, AT_REMOVEDIR) < 0 ? -errno : r;
}

/* ---- the tree ---- */

/* 1: the file has several names; with `alone` it is not copied then. */
static int copy_one(
    struct walk *w, struct level *l, const char *name, unsigned char type, bool alone) {
    char known[24];
    struct stat st;
    int from = -1, r = 0;

    if (type == DT_REG && (from = openat(l->from, name,
                               O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOATIME | O_CLOEXEC)) < 0)
        return -errno;
    if ((from >= 0 ? fstat(from, &st) : fstatat(l->from, name, &st, AT_SYMLINK_NOFOLLOW)) < 0)
        r = -errno;
    else if ((type == DT_REG) != S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
        r = -ESTALE; /* the sandbox is in use after all */
    else if (alone && st.st_nlink > 1)
        r = 1;
    if (r == 0 && !l->fresh) {
        spare_number(w, l->to, name);
        r = remove_at(l->to, name);
        r = r == -ENOENT ? 0 : r;
    }
    if (r == 0 && S_ISCHR(st.st_mode) && st.st_rdev == 0) {
        if (!l->hides && mknodat(l->to, name, S_IFCHR, makedev(0, 0)) < 0)
            r = -errno;
        l->whiteouts |= !l->hides;
    } else if (r == 0) {
        bool linked = st.st_nlink > 1;
        r = linked ? link_to_earlier(w, link_name(known, st.st_ino), l->to, name) : -ENOENT;
        if (r == -ENOENT) {
            r = from >= 0 ? copy_regular(w, l, from, name, &st)
                          : copy_special(w, l->from, l->to, name, &st);
            if (r == 0 && linked)
                r = remember_link(w, known, l->to, name);
        }
    }
    if (from >= 0)
        close(from);
    return r;
}

/* ---- two at once ---- */

/* The next file of the round; -1: none. */
static int take_file(struct crew *crew) {
    uint64_t ticket = atomic_load(&crew->ticket);

    while ((ticket & 0xffff) < (ticket >> 16 & 0xffff))
        if (atomic_compare_exchange_weak(&crew->ticket, &ticket, ticket + 1))
            return (int)(ticket & 0xffff);
    return -1;
}

static void futex_wait(_Atomic uint32_t *at, uint32_t seen) {
    struct timespec most = { 0, 100000000 };

    (void)sys_call4(__NR_futex, at, FUTEX_WAIT, seen, &most);
}

static void futex_wake(_Atomic uint32_t *at) {
    (void)sys_call3(__NR_futex, at, FUTEX_WAKE, 1);
}

static int copy_file_of(struct walk *w, struct level *l, int i, bool alone) {
    return copy_one(w, l, w->crew->entries + w->crew->files[i], DT_REG, alone);
}

_Noreturn static void run_helper(struct walk *w) {
    struct crew *crew = w->crew;

    for (;;) {
        uint32_t calls = atomic_load(&crew->calls);
        int i = take_file(crew);

        if (i < 0) {
            atomic_store(&crew->sleeps, true);
            if (atomic_load(&crew->stop))
                _exit(0);
            if (atomic_load(&crew->calls) == calls)
                futex_wait(&crew->calls, calls);
            atomic_store(&crew->sleeps, false);
            continue;
        }
        struct level l = {
            .from = crew->from, .to = crew->to, .fresh = crew->fresh, .name = crew->name
        };
        int r = copy_file_of(w, &l, i, true);
        crew->left[i] = r > 0;
        if (r < 0)
            atomic_store(&crew->error, r);
        atomic_fetch_add(&crew->done, 1);
        if (atomic_load(&crew->awaited))
            futex_wake(&crew->done);
    }
}

static void call_helper(struct walk *w) {
    atomic_fetch_add(&w->crew->calls, 1);
    if (atomic_load(&w->crew->sleeps))
        futex_wake(&w->crew->calls);
}

static void start_helper(struct walk *w) {
    pid_t parent = getpid(), pid = (pid_t)sys_clone(CLONE_FILES | SIGCHLD, NULL);

    if (pid == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || getppid() != parent)
            _exit(1);
        run_helper(w);
    }
    w->helper = pid < 0 ? -1 : pid;
}

/* The helper works on an entry of this round until it has counted it as done. */
static int await_helper(struct walk *w, uint32_t done) {
    uint32_t now;
    int r = 0;

    /* Either the helper sees this flag, or this process sees the helper's count. */
    atomic_store(&w->crew->awaited, true);
    while (r == 0 && (now = atomic_load(&w->crew->done)) != done) {
        if (waitpid(w->helper, NULL, WNOHANG) == w->helper) {
            w->helper = -1;
            r = -ECHILD;
        } else {
            futex_wait(&w->crew->done, now);
        }
    }
    atomic_store(&w->crew->awaited, false);
    return r < 0 ? r : atomic_load(&w->crew->error);
}

/* Its end is collected when nobody waits for this process any more. */
static pid_t stopped = -1;

static void stop_helper(struct walk *w) {
    if (w->helper <= 0)
        return;
    stopped = w->helper;
    atomic_store(&w->crew->stop, true);
    call_helper(w);
}

void copy_end(void) {
    if (stopped > 0)
        waitpid(stopped, NULL, 0);
}

/* Copies the regular files of a round. */
static int copy_round(struct walk *w, struct level *l, size_t n) {
    struct crew *crew = w->crew;
    size_t by_us = 0;
    int i, r = 0;

    crew->from = l->from;
    crew->to = l->to;
    crew->fresh = l->fresh;
    crew->name = l->name;
    memset(crew->left, 0, n);
    bool helped = n >= WORTH_HELP && w->helper >= 0;
    atomic_store(&crew->ticket, ((atomic_load(&crew->ticket) >> 32) + 1) << 32 | n << 16);
    if (helped && !w->helper)
        start_helper(w);
    else if (helped)
        call_helper(w);
    while (r == 0 && (i = take_file(crew)) >= 0) {
        r = copy_file_of(w, l, i, false);
        by_us++;
    }
    /* After a failure, the remaining entries are taken and dropped. */
    while (r < 0 && take_file(crew) >= 0)
        by_us++;
    w->n_done += (uint32_t)(n - by_us);
    if (w->helper > 0 && n > by_us) {
        int theirs = await_helper(w, w->n_done);
        r = r < 0 ? r : theirs;
    }
    for (size_t left = 0; r == 0 && left < n; left++)
        if (crew->left[left])
            r = copy_file_of(w, l, (int)left, false);
    return r;
}

/* ---- directories ---- */

static bool is_dot(const char *name) {
    return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

/* Copies all entries of a directory except subdirectories. At the top only the parts count. */
static int copy_files(struct walk *w, struct level *l) {
    struct crew *crew = w->crew;
    bool top = l == w->levels;
    long n = 0;
    int r = 0;

    while (r == 0 &&
           (n = sys_call3(__NR_getdents64, l->from, crew->entries, sizeof crew->entries)) > 0) {
        size_t n_files = 0;

        for (long i = 0; r == 0 && i < n;) {
            const struct entry *entry = (const void *)(crew->entries + i);

            if (is_dot(entry->name) || (top && entry->name[0] != 'p'))
                ;
            else if (entry->type == DT_DIR)
                l->has_directories = true;
            else if (entry->type == DT_REG)
                crew->files[n_files++] = (uint32_t)(entry->name - crew->entries);
            else
                r = copy_one(w, l, entry->name, entry->type, false);
            i += entry->length;
        }
        if (r == 0 && n_files)
            r = copy_round(w, l, n_files);
    }
    l->listed = true;
    if (r < 0)
        return r;
    return n < 0 ? (int)n : 0;
}

/* Finds the next subdirectory. 1: ret_name is filled; 0: there is none. */
static int next_directory(const struct walk *w, struct level *l, char ret_name[256]) {
    _Alignas(struct entry) char entries[1024];
    long n;

    if (!l->has_directories)
        return 0;
    if (lseek(l->from, l->next, SEEK_SET) < 0)
        return -errno;
    while ((n = sys_call3(__NR_getdents64, l->from, entries, sizeof entries)) > 0)
        for (long i = 0; i < n;) {
            const struct entry *entry = (const void *)(entries + i);

            i += entry->length;
            l->next = entry->offset;
            if (entry->type != DT_DIR || is_dot(entry->name) ||
                (l == w->levels && entry->name[0] != 'p'))
                continue;
            memcpy(ret_name, entry->name, strlen(entry->name) + 1);
            return 1;
        }
    return (int)n;
}

static int open_directory(int at, const char *name) {
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC);

    return fd < 0 ? -errno : fd;
}

/* Creates the directory of the copy for one of the layer, and replaces anything else at its
 * place. */
static int make_directory(const struct level *parent, struct level *l, const char *name) {
    struct stat st;
    int r = 0;

    if (mkdirat(parent->to, name, 0700) == 0) {
        l->fresh = true;
    } else if (errno != EEXIST || parent->fresh ||
               fstatat(parent->to, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        return -errno;
    } else if (!S_ISDIR(st.st_mode)) {
        if (unlinkat(parent->to, name, 0) < 0 || mkdirat(parent->to, name, 0700) < 0)
            return -errno;
        l->fresh = l->opaque = true;
    }
    l->to = open_directory(parent->to, name);
    if (l->to < 0 || fstat(l->to, &st) < 0)
        return l->to < 0 ? l->to : -errno;
    l->to_inode = st.st_ino;
    if (l->fresh)
        return 0;
    /* Until it gets the layer's attributes, it must have none that new entries would inherit. */
    if (fchmod(l->to, 0700) < 0 || (r = remove_xattrs(l->to)) < 0)
        return r < 0 ? r : -errno;
    if (l->opaque) {
        l->fresh = true;
        return tree_empty(l->to);
    }
    l->opaque = is_opaque(l->to);
    return 0;
}

static void close_level(struct level *l) {
    if (l->from >= 0)
        close(l->from);
    if (l->to >= 0)
        close(l->to);
    l->from = l->to = -1;
}

static int enter_directory(struct walk *w, size_t depth, const char *name) {
    struct level *parent = &w->levels[depth - 1], *l = parent + 1;
    struct stat st;

    if (depth == w->n_levels)
        return -ENOSPC; /* deeper than the copy supports */
    *l = (struct level){ .from = open_directory(parent->from, name),
        .to = -1,
        .name = depth > 1 ? inode_numbers_name(name, strlen(name)) : 0 };
    if (l->from < 0 || fstat(l->from, &st) < 0)
        return l->from < 0 ? l->from : -errno;
    l->from_inode = st.st_ino;
    l->opaque = is_opaque(l->from);
    int r = make_directory(parent, l, name);
    l->hides = parent->hides || l->opaque;
    if (depth - w->first_open > OPEN_LEVELS)
        close_level(&w->levels[w->first_open++]);
    return r;
}

static int open_again(int below, uint64_t inode) {
    struct stat st;
    int fd = open_directory(below, "..");

    if (fd < 0 || (fstat(fd, &st) == 0 && st.st_ino == inode))
        return fd;
    close(fd);
    return -ESTALE;
}

static int leave_directory(struct walk *w, size_t depth) {
    struct level *l = &w->levels[depth], *parent = l - 1;
    struct stat st;
    int r = fstat(l->from, &st) < 0 ? -errno : 0;

    if (r == 0 && l->opaque && fsetxattr(l->to, OPAQUE, "y", 1, 0) < 0)
        r = -errno;
    if (r == 0 && l->whiteouts && fsetxattr(l->to, ORIGIN, "", 0, 0) < 0)
        r = -errno;
    if (r == 0)
        r = copy_attributes(l->from, l->to, &st);
    if (r == 0 && parent->from < 0) {
        w->first_open = depth - 1;
        r = parent->from = open_again(l->from, parent->from_inode);
        if (r >= 0)
            r = parent->to = open_again(l->to, parent->to_inode);
    }
    close_level(l);
    return r < 0 ? r : 0;
}

static int copy_tree(struct walk *w, int from, bool fresh) {
    size_t depth = 0;
    char name[256];
    int r = 0;

    w->first_open = 1;
    w->levels[0] = (struct level){ .from = from, .to = w->top, .fresh = fresh };
    for (;;) {
        struct level *l = &w->levels[depth];

        if (!l->listed)
            r = copy_files(w, l);
        if (r == 0)
            r = next_directory(w, l, name);
        if (r < 0)
            return r;
        if (r > 0)
            r = enter_directory(w, ++depth, name);
        else if (depth)
            r = leave_directory(w, depth--);
        else
            return forget_links(w);
        if (r < 0)
            return r;
    }
}

/* ---- layers ---- */

static int new_tmpfs(uint64_t bytes, uint64_t entries) {
    char size[24], inodes[24];
    struct guest_tmpfs options = {
        .size = link_name(size, bytes), .entries = link_name(inodes, entries), .mode = "0755"
    };

    return guest_new_tmpfs(&options);
}

/* Creates new files as the guest from the start, which saves a call for each. */
static int create_as(uint32_t id) {
    if (id && prctl(PR_SET_SECUREBITS, NO_SECURE_FIXUP, 0, 0, 0) < 0)
        return -errno;
    (void)sys_call1(__NR_setfsgid, id);
    (void)sys_call1(__NR_setfsuid, id);
    return 0;
}

/* Inode numbers to preserve: of files open in the topmost layer, and lists kept in the layers. */
static void gather_numbers(
    const int *layers, size_t n, const struct box *to, struct inode_numbers *numbers) {
    inode_numbers_add_all(numbers, to->numbers, to->inode_numbers_length);
    for (size_t i = n; i--;) {
        int top = open_directory(layers[i], ".");

        if (top >= 0) {
            inode_numbers_load(numbers, top);
            close(top);
        }
    }
}

int copy_layers(const int *layers, size_t n, uint32_t id, const struct box *to, uint64_t *ret_bytes,
    uint64_t *ret_entries) {
    /* In addition to the entries, half of them may have a second name, and attributes use inodes,
     * too. A copy is never written to, so a larger limit does no harm. */
    uint64_t inodes = to->entries * 2 + 64;
    static struct inode_numbers numbers;
    struct walk w = { .n_levels = to->upper ? UPPER_DEPTH : to->entries + 2,
        .links = -1,
        .id = id,
        .numbers = &numbers };
    struct statfs used;
    int r, copy = to->upper                ? ops_open_upper(to->upper)
                  : to->entries > 1u << 30 ? -EINVAL
                                           : new_tmpfs(to->bytes, inodes);

    if (copy < 0)
        return copy;
    umask(0);
    w.levels = mmap(NULL, w.n_levels * sizeof *w.levels, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    w.crew = mmap(NULL, sizeof *w.crew, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (w.levels == MAP_FAILED || w.crew == MAP_FAILED)
        return -errno;
    w.top = openat(copy, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    r = w.top < 0 ? -errno : create_as(id);
    if (!to->upper)
        gather_numbers(layers, n, to, &numbers);
    if (r == 0)
        inode_numbers_reserve(&numbers, w.top);
    for (size_t i = 0; r == 0 && i < n; i++) {
        int from = open_directory(layers[i], ".");
        w.crew->kept.n = 0;
        if (from >= 0 && numbers.n)
            inode_numbers_load(&w.crew->kept, from);
        r = from < 0 ? from : copy_tree(&w, from, i == 0);
        if (from >= 0)
            close(from);
    }
    stop_helper(&w);
    inode_numbers_release(&numbers, w.top);
    if (r == 0 && fstatfs(copy, &used) < 0)
        r = -errno;
    if (r < 0)
        return r;
    inode_numbers_save(&numbers, w.top); /* after the count, because it is not the guest's */
    if (to->upper)
        return copy; /* it is a shared file system */
    *ret_bytes = (uint64_t)(used.f_blocks - used.f_bfree) * (uint64_t)used.f_bsize;
    *ret_entries = (uint64_t)(used.f_files - used.f_ffree);
    return copy;
}
