/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether anything was written in a box, or runs there.
 *
 * The box's private tmpfs has a part for each writable place. Its use, and when the parts' roots
 * were changed, tell cheaply whether anything was written since the box was made.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "engine/box/box.h"
#include "engine/box/profile.h"
#include "engine/core/log.h"
#include "engine/files/box_files.h"
#include "sys/proc.h"

/* The content of a private tmpfs (that of a disk is not known at once), and the change times of the
 * roots of its parts. A later write changes one of these. */
struct files_baseline {
    uint64_t bytes, entries;
    bool holds; /* anything */
    unsigned n;
    struct timespec changed[];
};

static unsigned count_places(const struct plan *plan) {
    const struct plan_op *ops = plan_items(plan, box_ops, struct plan_op);
    unsigned n = 0;

    for (uint32_t i = 0; i < plan->box_ops.n; i++)
        if (ops[i].kind == PLAN_OP_PLACE)
            n = MAX(n, plan_place_part(&ops[i]) + 1);
    return n;
}

/* A directory without entries. */
static bool is_empty_dir(int directory, const char *name) {
    int fd = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *list = fd < 0 ? NULL : fdopendir(fd);
    unsigned n = 0;

    if (!list) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    while (n <= 2 && readdir(list))
        n++;
    closedir(list);
    return n <= 2; /* "." and ".." */
}

struct files_baseline *box_files_baseline(struct box *box) {
    unsigned n = box->profile ? count_places(box->profile->plan) : 0;
    struct statfs disk;

    if (box->disk < 0 || !box->lower.is_layered || (!box->upper && fstatfs(box->disk, &disk) < 0))
        return NULL;
    struct files_baseline *mark = calloc(1, sizeof *mark + n * sizeof mark->changed[0]);
    if (!mark)
        return NULL;
    mark->bytes =
        box->upper ? 0 : (uint64_t)(disk.f_blocks - disk.f_bfree) * (uint64_t)disk.f_bsize;
    mark->entries = box->upper ? 0 : (uint64_t)(disk.f_files - disk.f_ffree);
    /* Most often its root and the parts are all that a tmpfs has, and nobody needs to look into
     * them. */
    bool may_hold = mark->entries != n + 1;
    for (mark->n = 0; mark->n < n; mark->n++) {
        char part[16];
        struct stat st;

        snprintf(part, sizeof part, "p%u", mark->n);
        if (fstatat(box->disk, part, &st, AT_SYMLINK_NOFOLLOW) < 0) {
            mark->holds |= !may_hold; /* something else was counted */
            continue;
        }
        mark->changed[mark->n] = st.st_ctim;
        mark->holds |= may_hold && !is_empty_dir(box->disk, part);
    }
    return mark;
}

/* This holds while processes run, too: all that they write is an entry below a root that had none.
 * A file that was there already could have been changed in place: what processes of a state have
 * open to be written to is copied up for them as they are restored. */
bool op_files_are_pristine(struct box *box) {
    auto_free struct files_baseline *now =
        box->baseline.files && !box->baseline.was_missed ? box_files_baseline(box) : NULL;

    return now && !box->baseline.files->holds && !now->holds &&
           now->bytes == box->baseline.files->bytes &&
           now->entries == box->baseline.files->entries && now->n == box->baseline.files->n &&
           !memcmp(now->changed, box->baseline.files->changed, now->n * sizeof now->changed[0]);
}

/* 1: nothing in it but perhaps agents; what takes itself for one is found out by init. 0, or
 * -errno: it is unknown. */
int box_seems_empty(const struct box *box) {
    static const char agent[] = "rollbox-files\n";
    pid_t pids[64];
    ssize_t n = box->state == BOX_READY && box->pid > 0
                    ? proc_children(box->pid, pids, ARRAY_SIZE(pids))
                    : 0;

    for (ssize_t i = 0; i < n; i++) {
        auto_buf struct buf name = BUF_INIT;
        char path[64];

        snprintf(path, sizeof path, "/proc/%d/comm", (int)pids[i]);
        int r = fd_read_file(path, 64, &name);
        if (r < 0 && r != -ENOENT && r != -ESRCH)
            return r;
        if (r == 0 && (name.length != sizeof agent - 1 || memcmp(name.data, agent, name.length)))
            return 0;
    }
    return n < 0 ? (int)n : n < (ssize_t)ARRAY_SIZE(pids);
}

bool box_is_pristine(struct box *box) {
    return op_files_are_pristine(box) && box_seems_empty(box) == 1;
}

int box_files_written(struct box *box, uint64_t *ret_bytes, uint64_t *ret_entries) {
    auto_free struct files_baseline *now = box_files_baseline(box);
    const uint64_t before = box->baseline.files ? box->baseline.files->entries : 0;

    if (!now)
        return -ENOMEM;
    *ret_bytes = now->bytes;
    *ret_entries = now->entries - MIN(now->entries, before);
    return 0;
}
