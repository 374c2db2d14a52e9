/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The content of /dev/urandom under a random_seed, which is computed here, because a plan does not
 * contain it; and a fork's own random_seed, in place of the plan's.
 *
 * All forks of a session have the same plan. The answers of init follow from the plan's seed, so
 * this process changes the seed in its own copy of the page. The template's file, which all
 * sandboxes of the plan share, is covered by a file of the sandbox, which has the content that a
 * policy with that seed would give.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/seeded_random.h"
#include "base/fd.h"
#include "guest/internal.h"
#include "guest/template/template.h"
#include "policy/plan.h"
#include "sys/syscalls.h"

#define PAGE 4096u

static int change_plan(const struct plan *plan, uint64_t seed) {
    struct plan *own = (struct plan *)(uintptr_t)plan;

    /* It is a private mapping from the beginning of the plan. */
    _Static_assert(
        offsetof(struct plan, seed) + sizeof own->seed <= PAGE, "the seed is in the first page");
    long r = sys_call3(__NR_mprotect, own, PAGE, PROT_READ | PROT_WRITE);
    if (r == 0) {
        own->seed = seed;
        r = sys_call3(__NR_mprotect, own, PAGE, PROT_READ);
    }
    return (int)r;
}

/* `length` is a multiple of PAGE. 0 or -errno; does not touch errno. */
static int write_chance(int file, uint64_t seed, uint64_t length) {
    uint8_t bytes[PAGE];

    for (uint64_t at = 0; at < length; at += sizeof bytes) {
        seeded_random_bytes(seed, at, bytes, sizeof bytes);
        for (size_t done = 0; done < sizeof bytes;) {
            long n = sys_call3(__NR_write, file, bytes + done, sizeof bytes - done);
            if (n < 0)
                return (int)n;
            done += (size_t)n;
        }
    }
    return 0;
}

/* The plan's file takes as long as the rest of the template, so a child that shares the launcher's
 * memory and descriptors writes it in parallel, on another processor if there is one. */
static struct {
    pid_t maker; /* 0: none */
    int file, error;
    uint64_t seed, length;
} making;

static int make_files(void *unused) {
    (void)unused;
    making.error = write_chance(making.file, making.seed, making.length);
    _exit(0);
}

void urandom_file_begin(int file, uint64_t seed, uint64_t length) {
    static _Alignas(GUEST_STACK_ALIGN) char stack[4 * PAGE];

    making.file = file;
    making.error = -ECHILD; /* the child may be killed */
    making.seed = seed;
    making.length = length;
    pid_t pid = clone(make_files, stack + sizeof stack, CLONE_VM | CLONE_FILES | SIGCHLD, NULL);
    if (pid < 0)
        making.error = write_chance(file, seed, length);
    making.maker = pid < 0 ? 0 : pid;
}

int urandom_file_end(void) {
    if (!making.length)
        return 0;
    if (making.maker)
        while (waitpid(making.maker, NULL, __WALL) < 0 && errno == EINTR)
            ;
    close(making.file);
    making.maker = 0;
    making.length = 0;
    return making.error;
}

/* Mounts the file over `path`, read-only. The mount of `directory` cannot be reached from
 * anywhere. */
static int cover_device(int directory, const char *name, const char *path) {
    const struct open_how how = { .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
        .resolve = RESOLVE_NO_SYMLINKS };
    struct mount_attr read_only = { .attr_set = MOUNT_ATTR_RDONLY };
    int tree = sys_open_tree(directory, name, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC), target = -EBADF,
        r = tree;

    if (r >= 0)
        r = sys_mount_setattr(tree, "", AT_EMPTY_PATH, &read_only);
    if (r >= 0)
        r = target = sys_openat2(AT_FDCWD, path, &how);
    if (r >= 0)
        r = sys_move_mount(tree, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
    if (target >= 0)
        close(target);
    if (tree >= 0)
        close(tree);
    return r;
}

int urandom_file_setup(const struct box *box) {
    int directory, file, r = change_plan(box->plan, box->seed);

    if (r < 0)
        return r;
    directory =
        guest_new_tmpfs(&(struct guest_tmpfs){ .mode = "0755", .attributes = MOUNT_ATTR_NOEXEC });
    if (directory < 0)
        return directory;
    file = openat(directory, "urandom", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    r = file < 0 ? -errno : write_chance(file, box->seed, SEEDED_RANDOM_FORK_BYTES);
    if (file >= 0)
        close(file);
    file = r < 0 ? r : openat(directory, "uuid", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    if (r == 0)
        r = file < 0 ? -errno : fd_write_all(file, box->uuid, strlen(box->uuid));
    if (file >= 0)
        close(file);
    if (r == 0)
        r = cover_device(directory, "urandom", "/dev/urandom");
    if (r == 0)
        r = cover_device(directory, "uuid", "/proc/sys/kernel/random/uuid");
    close(directory);
    return r;
}
