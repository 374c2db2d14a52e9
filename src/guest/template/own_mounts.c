/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories of the host for sandboxes with an id of their own.
 *
 * The template shows what guests may write to as files of the plan's id. No other sandbox may have
 * that id, because the kernel counts pipes and other objects by user, and only the host's root can
 * idmap files of the host, which the launcher no longer is when it makes sandboxes. So while it
 * still is, it collects the same mounts without a map, the *sources*, in a tree that is attached
 * nowhere: mount "N" is that of the N-th operation with PLAN_BIND_IDMAP. The engine makes an
 * idmapped copy of the tree for each id. Init attaches the mounts of its copy over those of the
 * template, before anything uses them.
 *
 * Linux before 6.15 attaches nothing to such a tree. Then there are no sources, and all sandboxes
 * of the plan have its id.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "guest/internal.h"
#include "guest/template/template.h"
#include "sys/syscalls.h"

int own_mounts_sources = -1;

static unsigned recursion(const struct plan_op *op) {
    return op->kind == PLAN_OP_BIND ? AT_RECURSIVE : 0;
}

static int add_source(int source, const struct plan_op *op, mode_t type, const char *name) {
    struct mount_attr attributes = { .attr_set = op->mode };

    if (own_mounts_sources < 0)
        own_mounts_sources =
            guest_new_tmpfs(&(struct guest_tmpfs){ .entries = "1024", .mode = "0755" });
    if (own_mounts_sources < 0)
        return own_mounts_sources;
    int target = S_ISDIR(type) ? mkdirat(own_mounts_sources, name, 0)
                               : mknodat(own_mounts_sources, name, S_IFREG, 0);
    if (target < 0)
        return -errno;
    int tree = sys_open_tree(
        source, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | recursion(op));
    if (tree < 0)
        return tree;
    int r = sys_mount_setattr(tree, "", AT_EMPTY_PATH | recursion(op), &attributes);
    if (r == 0)
        r = sys_move_mount(tree, "", own_mounts_sources, name, MOVE_MOUNT_F_EMPTY_PATH);
    close(tree);
    return r;
}

void own_mounts_keep(int source, const struct plan_op *op, mode_t type) {
    static bool cannot;
    static unsigned n;
    char name[16];

    *guest_put_number(name, n++) = '\0';
    if (cannot || add_source(source, op, type, name) == 0)
        return;
    cannot = true;
    if (own_mounts_sources >= 0)
        close(own_mounts_sources);
    own_mounts_sources = -1;
}

int own_mounts_receive(struct box *box) {
    static int fds[FD_MESSAGE_MAX_FDS];
    size_t n_fds = 0;
    char byte;

    if (box->sources_socket < 0)
        return 0;
    ssize_t n = fd_receive(box->sources_socket, &byte, sizeof byte, fds, &n_fds);
    close(box->sources_socket);
    if (n < 0)
        return (int)n;
    if (n == 0)
        return -EPIPE; /* the engine is gone */
    if (n_fds) {
        box->sources = fds[0];
    } else {
        box->outer_id = box->plan->outer_uid;
        box->file_ids = -1;
    }
    return 0;
}

int own_mounts_attach(struct box *box) {
    const struct plan_op *ops = plan_items(box->plan, template_ops, struct plan_op);
    unsigned number = 0;
    char name[16];
    int r = 0;

    /* The sandbox's own files may have turned out to need the plan's id. */
    if (box->sources < 0 || box->outer_id == box->plan->outer_uid)
        return 0;
    for (uint32_t i = 0; r == 0 && i < box->plan->template_ops.n; i++) {
        if (!plan_bind_is_mapped(&ops[i]))
            continue;
        *guest_put_number(name, number++) = '\0';
        int tree = sys_open_tree(
            box->sources, name, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | recursion(&ops[i]));
        if (tree < 0)
            return tree;
        r = sys_move_mount(
            tree, "", AT_FDCWD, plan_text(box->plan, ops[i].path), MOVE_MOUNT_F_EMPTY_PATH);
        close(tree);
    }
    return r;
}
