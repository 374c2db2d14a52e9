/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dumping inotify descriptors: the paths that they watch.
 *
 * For each watch the kernel tells its number, its mask, and the inode, device and file handle of
 * the watched file. No later file gets the same handle. To find a path, the dump worker tries all
 * paths that are known to be in use, and then walks all mounts of that file system. Any path whose
 * file has the handle can be watched.
 *
 * Inode numbers in overlays need not agree, so a file that is not found by inode is looked for by
 * handle alone. Two files of an overlay may have the same handle, so the worker also tests whether
 * the file is the watched one. Events that were not read yet can be neither peeked at nor put back,
 * so they are refused.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "dump/internal.h"
#include "sys/syscalls.h"

/* Limit for all watches together: the processes are paused meanwhile. */
#define MAX_ENTRIES 200000u
#define MAX_DEPTH 64
#define MAX_PLACE 4096   /* limit of a path; longer ones are not found */
#define MAX_HANDLE 128   /* MAX_HANDLE_SZ */
#define WEAK_HANDLE 0x81 /* FILEID_INO64_GEN, of file systems without handles of their own */
/* AT_HANDLE_FID: the kernel's identifier, also of file systems that cannot open a handle; Linux
 * 6.5. */
#define ANY_INODE 0x200

struct watch {
    struct image_watch image;           /* path 0: not found yet */
    const struct dump_process *process; /* a process that has the descriptor, under this number */
    int fd;
    uint64_t inode;
    uint32_t major, minor;
    int type;
    unsigned n_handle;
    unsigned char handle[MAX_HANDLE];
};

struct search {
    struct dump *c;
    const struct dump_process *process;
    struct buf mounts;
    bool by_handle; /* not by its inode */
    unsigned n_entries, n_missing;
    uint64_t inodes[1024]; /* a filter: bits of the wanted inodes, modulo its size */
};

static struct watch *watch_list(struct dump *c) {
    return (struct watch *)(void *)c->watched.data;
}

/* Bytes in hexadecimal, such as "61ca0a000000". */
static unsigned read_hex(const char *text, unsigned char *to, unsigned most) {
    unsigned n = 0, byte;

    for (; n < most && sscanf(text + (size_t)n * 2, "%2x", &byte) == 1; n++)
        to[n] = (unsigned char)byte;
    return n;
}

static int by_number(const void *a, const void *b) {
    const struct watch *x = a, *y = b;

    return (x->image.number > y->image.number) - (x->image.number < y->image.number);
}

int inotify_dump(struct dump *c, const struct dump_process *s, int number, int fd, const char *info,
    struct image_file *to, const char **ret_why) {
    size_t before = dump_count(&c->watched, struct watch);
    int waiting = 0;

    if (ioctl(fd, FIONREAD, &waiting) < 0)
        return -errno;
    if (waiting) {
        *ret_why = "it has unread inotify events";
        return -EAGAIN;
    }
    for (const char *at = info; (at = strstr(at, "\ninotify wd:")); at++) {
        struct watch watch = { .process = s, .fd = number };
        unsigned long long inode;
        unsigned device, bytes;
        int handle = 0;

        if (sscanf(at,
                "\ninotify wd:%x ino:%llx sdev:%x mask:%x ignored_mask:%*x fhandle-bytes:%x "
                "fhandle-type:%x f_handle:%n",
                &watch.image.number, &inode, &device, &watch.image.mask, &bytes,
                (unsigned *)&watch.type, &handle) != 6 ||
            !handle || bytes > MAX_HANDLE || watch.image.number < 1)
            return -EBADMSG;
        if (watch.image.number > IMAGE_MAX_WATCHES) {
            *ret_why = "too many inotify watches were added to it";
            return -ENOTSUP;
        }
        watch.inode = inode;
        watch.major = device >> 20;
        watch.minor = device & 0xfffff;
        watch.n_handle = read_hex(at + handle, watch.handle, bytes);
        buf_add(&c->watched, &watch, sizeof watch);
    }
    to->kind = IMAGE_FILE_NOTIFY;
    to->targets = dump_range(&c->watched, before, sizeof(struct watch));
    if (buf_failed(&c->watched))
        return -ENOMEM;
    if (to->targets.n)
        qsort(watch_list(c) + before, to->targets.n, sizeof(struct watch), by_number);
    return 0;
}

/* ---- which path ---- */

union handle {
    struct file_handle handle;
    char room[sizeof(struct file_handle) + MAX_HANDLE];
};

static bool find_handle(int directory, const char *name, union handle *ret_handle, int *ret_mount) {
    ret_handle->handle.handle_bytes = MAX_HANDLE;
    if (name_to_handle_at(directory, name, &ret_handle->handle, ret_mount, ANY_INODE) == 0)
        return true;
    ret_handle->handle.handle_bytes = MAX_HANDLE;
    return errno == EINVAL &&
           name_to_handle_at(directory, name, &ret_handle->handle, ret_mount, 0) == 0;
}

static bool is_of_mount(const struct search *search, int mount, const struct watch *watch) {
    for (const char *line = search->mounts.data; line && *line;
         line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        unsigned device_major, device_minor;
        int id;

        if (sscanf(line, "%d %*u %u:%u", &id, &device_major, &device_minor) == 3 && id == mount)
            return device_major == watch->major && device_minor == watch->minor;
    }
    return false;
}

/* Adds a watch with IN_MASK_CREATE, which the kernel refuses for a file that is watched already. If
 * the kernel accepts it, it is removed again. */
static bool is_watched(const struct watch *watch, int directory, const char *name) {
    char path[32];
    auto_close int process = sys_pidfd_open(watch->process->pid, 0);
    auto_close int fd = process < 0 ? process : sys_pidfd_getfd(process, watch->fd, 0);
    auto_close int file = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);

    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int number = fd < 0 || file < 0 ? -1 : inotify_add_watch(fd, path, IN_ATTRIB | IN_MASK_CREATE);
    if (number >= 0)
        (void)inotify_rm_watch(fd, number);
    return fd >= 0 && file >= 0 && number < 0 && errno == EEXIST;
}

static bool is_same(const struct watch *watch, const union handle *found) {
    return found->handle.handle_type == watch->type &&
           found->handle.handle_bytes == watch->n_handle &&
           !memcmp(found->handle.f_handle, watch->handle, watch->n_handle);
}

/* Does another watch of the same descriptor have the same identity? */
static bool is_ambiguous(struct dump *c, size_t index) {
    const struct watch *list = watch_list(c), *watch = &list[index];

    for (size_t i = 0; i < dump_count(&c->watched, struct watch); i++)
        if (i != index && list[i].process == watch->process && list[i].fd == watch->fd &&
            list[i].inode == watch->inode && list[i].major == watch->major &&
            list[i].minor == watch->minor)
            return true;
    return false;
}

/* Compares a directory entry with the watches of all processes with this root. */
static void match_entry(
    struct search *search, int directory, const char *name, uint64_t inode, const char *path) {
    struct dump *c = search->c;
    union handle handle;
    int mount;

    if ((!search->by_handle &&
            !(search->inodes[inode / 64 % ARRAY_SIZE(search->inodes)] >> inode % 64 & 1)) ||
        !find_handle(directory, name, &handle, &mount))
        return;
    for (size_t i = 0; i < dump_count(&c->watched, struct watch); i++) {
        const struct watch *watch = &watch_list(c)[i];

        if (watch->image.path || !is_same(watch, &handle) || !is_of_mount(search, mount, watch) ||
            (watch->type == WEAK_HANDLE &&
                (is_ambiguous(c, i) || !is_watched(watch, directory, name))))
            continue;
        watch_list(c)[i].image.path = dump_text(c, path);
        search->n_missing--;
    }
}

/* Tries a path that is in use, and all directories above it. */
static void try_path(struct search *search, const char *known) {
    char place[MAX_PLACE];
    struct stat st;

    for (snprintf(place, sizeof place, "%s", known); *place == '/' && search->n_missing;
         *strrchr(place, '/') = '\0') {
        if (!place[1])
            break;
        if (fstatat(search->process->root, place + 1, &st, AT_SYMLINK_NOFOLLOW) == 0)
            match_entry(search, search->process->root, place + 1, st.st_ino, place);
    }
}

static void walk_directory(
    struct search *search, int take_directory, char *path, size_t length, unsigned depth) {
    DIR *list = fdopendir(take_directory);

    if (!list) {
        close(take_directory);
        return;
    }
    for (const struct dirent *entry;
         search->n_missing && search->n_entries < MAX_ENTRIES && (entry = readdir(list));) {
        int n = snprintf(path + length, MAX_PLACE - length, "/%s", entry->d_name);

        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") ||
            n >= (int)(MAX_PLACE - length))
            continue;
        search->n_entries++;
        match_entry(search, dirfd(list), entry->d_name, entry->d_ino, path);
        if (entry->d_type == DT_DIR && depth < MAX_DEPTH) {
            int below = openat(dirfd(list), entry->d_name,
                O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_NOATIME | O_CLOEXEC);

            if (below < 0 && errno == EPERM)
                below = openat(dirfd(list), entry->d_name,
                    O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
            if (below >= 0)
                walk_directory(search, below, path, length + (size_t)n, depth + 1);
        }
        path[length] = '\0';
    }
    closedir(list);
}

static bool is_wanted(struct dump *c, unsigned device_major, unsigned device_minor) {
    for (size_t i = 0; i < dump_count(&c->watched, struct watch); i++)
        if (!watch_list(c)[i].image.path && watch_list(c)[i].major == device_major &&
            watch_list(c)[i].minor == device_minor)
            return true;
    return false;
}

/* Walks the mounts of the wanted file systems. */
static void look_everywhere(struct search *search) {
    struct dump *c = search->c;
    char place[MAX_PLACE];

    for (const char *line = search->mounts.data; line && *line && search->n_missing;
         line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        unsigned device_major, device_minor;
        struct stat st;

        if (sscanf(line, "%*u %*u %u:%u %*s %4095s", &device_major, &device_minor, place) != 3 ||
            !is_wanted(c, device_major, device_minor))
            continue;
        int directory = openat(search->process->root, place[1] ? place + 1 : ".",
            O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (directory < 0)
            continue;
        if (fstat(directory, &st) == 0 && place[1])
            match_entry(search, search->process->root, place + 1, st.st_ino, place);
        walk_directory(search, directory, place, place[1] ? strlen(place) : 0, 0);
    }
}

int inotify_connect(struct dump *c) {
    static struct search search;
    size_t n = dump_count(&c->watched, struct watch);
    struct stat st;

    if (!n)
        return 0;
    search =
        (struct search){ .c = c, .n_missing = (unsigned)n, .process = watch_list(c)[0].process };
    for (size_t i = 0; i < n; i++)
        search.inodes[watch_list(c)[i].inode / 64 % ARRAY_SIZE(search.inodes)] |=
            1ull << watch_list(c)[i].inode % 64;
    int r = dump_read(c, search.process, "mountinfo", &search.mounts);
    for (int pass = 0; pass < 2 && r == 0 && search.n_missing; pass++) {
        search.by_handle = pass;
        if (fstat(search.process->root, &st) == 0)
            match_entry(&search, search.process->root, ".", st.st_ino, "/");
        for (size_t at = 0; at < c->texts.length && search.n_missing;
             at += strlen(c->texts.data + at) + 1)
            try_path(&search, c->texts.data + at);
        look_everywhere(&search);
    }
    buf_done(&search.mounts);
    if (r < 0)
        return dump_fail(c, "its mounts", r);
    for (size_t i = 0; i < n; i++) {
        const struct watch *watch = &watch_list(c)[i];

        c->current = watch->process;
        if (!watch->image.path)
            return dump_refuse(c, ENOTSUP,
                "the file of its inotify watch %u (inode %llu of device %u:%u) was not found",
                watch->image.number, (unsigned long long)watch->inode, watch->major, watch->minor);
        buf_add(&c->watches, &watch->image, sizeof watch->image);
    }
    c->current = NULL;
    return buf_failed(&c->watches) ? dump_fail(c, "its image", -ENOMEM) : 0;
}
