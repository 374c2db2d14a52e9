/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan operations.
 *
 * `root` is "/", of the launcher or of the sandbox; `host` is the host's root while the template is
 * built. The sources of bind mounts are resolved paths of the host. They are opened without
 * following symbolic links, so a link that was put there after the engine resolved the path leads
 * nowhere.
 *
 * A *place* is a directory in which a sandbox may write: its part "p<number>" of the private tmpfs,
 * alone or as the upper directory of an overlay. Below that are its base in the template and the
 * layers that the sandbox is created on, which are the private file systems of earlier sandboxes.
 * The engine passes them as detached mounts. The overlay takes them by descriptor, so they are
 * never attached where a guest can see them.
 *
 * Guests have written the content of layers and of shared directories. So a path through those (of
 * any box operation that belongs to a grant) is walked without following links. So is every path in
 * an image, once the sandbox has entered that as its root; from then on it uses a descriptor to
 * reach the template.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "guest/code_write.h"
#include "guest/det/det.h"
#include "guest/det/vtime.h"
#include "guest/internal.h"
#include "guest/layers/layers.h"
#include "guest/template/template.h"
#include "sys/syscalls.h"

static const char *path_below(const char *path) {
    return path[1] ? path + 1 : ".";
}

static int open_strictly(int directory, const char *path, uint64_t flags) {
    struct open_how how = { .flags = flags | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS };

    return sys_openat2(directory, path, &how);
}

/* Opens the directory of a path's last name. Missing parents are created. No link is followed. */
static int open_parent(int root, const char *path, const char **ret_name) {
    char parent[4096];
    size_t length = (size_t)(strrchr(path, '/') - path);

    *ret_name = path + length + 1;
    if (length >= sizeof parent)
        return -ENAMETOOLONG;
    if (length) {
        memcpy(parent, path + 1, length - 1);
        parent[length - 1] = '\0';
    } else {
        memcpy(parent, ".", 2);
    }
    int at = open_strictly(root, parent, O_PATH | O_DIRECTORY);
    if (at != -ENOENT)
        return at;
    at = open_strictly(root, ".", O_PATH | O_DIRECTORY);
    for (char *name = parent, *end = parent; at >= 0 && end; name = end + 1) {
        end = strchr(name, '/');
        if (end)
            *end = '\0';
        int next = mkdirat(at, name, 0755) < 0 && errno != EEXIST && errno != EROFS
                       ? -errno
                       : open_strictly(at, name, O_PATH | O_DIRECTORY);
        close(at);
        at = next;
    }
    return at;
}

/* Creates a directory and its missing parents; succeeds if it exists. */
static int make_directories(int root, const char *path, mode_t mode, bool strictly) {
    const char *name;

    if (!strictly && (mkdirat(root, path_below(path), mode) == 0 || errno == EEXIST))
        return 0;
    if (!strictly && errno != ENOENT)
        return -errno;
    int parent = open_parent(root, path, &name);
    if (parent < 0)
        return parent;
    int r = mkdirat(parent, name, mode) < 0 && errno != EEXIST ? -errno : 0;
    close(parent);
    return r;
}

/* Creates a file and opens it for writing. (The umask is 0 while operations run.) */
static int create_file(int root, const char *path, mode_t mode, bool strictly) {
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    const char *name;

    if (!strictly) {
        int fd = openat(root, path_below(path), flags, mode);
        if (fd >= 0 || errno != ENOENT)
            return fd < 0 ? -errno : fd;
    }
    int parent = open_parent(root, path, &name);
    if (parent < 0)
        return parent;
    int fd = openat(parent, name, flags, mode);
    int r = fd < 0 ? -errno : fd;
    close(parent);
    return r;
}

static int make_file(
    int root, const char *path, const char *content, size_t length, mode_t mode, bool strictly) {
    int fd = create_file(root, path, mode, strictly);

    if (fd < 0)
        return fd;
    int r = length ? fd_write_all(fd, content, length) : 0;
    close(fd);
    return r;
}

static int make_chance(int root, const struct plan *plan, const struct plan_op *op) {
    int fd = create_file(root, plan_text(plan, op->path), op->mode, false);

    if (fd < 0)
        return fd;
    urandom_file_begin(fd, plan->seed, op->value);
    return 0;
}

static int make_symlink(int root, const char *path, const char *to, bool strictly) {
    const char *name;

    if (!strictly && (symlinkat(to, root, path_below(path)) == 0 || errno == EEXIST))
        return 0;
    if (!strictly && errno != ENOENT)
        return -errno;
    int parent = open_parent(root, path, &name);
    if (parent < 0)
        return parent == -ELOOP || parent == -ENOTDIR
                   ? 0
                   : parent; /* a link on the way, or a guest's file, leads elsewhere */
    int r = symlinkat(to, parent, name) < 0 && errno != EEXIST ? -errno : 0;
    close(parent);
    return r;
}

/* Makes sure that the target of a mount exists, as a directory or file like the source. */
static int make_target(int root, const char *path, mode_t type) {
    if (S_ISDIR(type))
        return make_directories(root, path, 0755, false);
    int r = make_file(root, path, NULL, 0, 0644, false);
    return r == -EEXIST || r == -EROFS ? 0 : r;
}

uint64_t ops_others;

/* The host may have replaced a path after the engine inspected it, and may put the original back
 * later. The present object is acceptable, but the engine must know. */
static void note_other(const struct plan_op *op, const struct stat *st) {
    static unsigned n;

    if (op->inode && (st->st_ino != op->inode || st->st_dev != op->device))
        ops_others |= 1ull << (n < 63 ? n : 63);
    n += op->inode != 0;
}

/* Mounts a tree at the op's path, which exists. */
static int attach_tree(int root, int tree, const struct plan *plan, const struct plan_op *op) {
    int target = open_strictly(root, path_below(plan_text(plan, op->path)), O_PATH);

    if (target < 0)
        return target;
    int r = sys_move_mount(tree, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
    close(target);
    return r;
}

static int bind_from_host(int root, int host, const struct plan *plan, const struct plan_op *op) {
    struct mount_attr attributes = { .attr_set = op->mode };
    unsigned recursive = op->kind == PLAN_OP_BIND ? AT_RECURSIVE : 0;
    struct stat st;
    int tree = -EBADF, ids = -EBADF, r;

    int source = open_strictly(host, path_below(plan_text(plan, op->source)), O_PATH);
    if (source < 0)
        return source;
    r = fstat(source, &st) < 0 ? -errno : 0;
    if (r == 0) {
        note_other(op, &st);
        r = make_target(root, plan_text(plan, op->path), st.st_mode);
    }
    if (r == 0)
        r = tree = sys_open_tree(
            source, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | recursive);
    if (r >= 0 && plan->flags & PLAN_AS_ROOT && plan_bind_is_mapped(op)) {
        own_mounts_keep(source, op, st.st_mode);
        if (op->value & PLAN_BIND_OWNER)
            st.st_uid = st.st_gid = plan_bind_owner(op);
        r = ids = op->value & PLAN_BIND_ALL
                      ? idmap_for_all(host, plan->outer_uid)
                      : idmap_for_owner(host, plan->outer_uid, st.st_uid, st.st_gid);
        attributes.attr_set |= MOUNT_ATTR_IDMAP;
        attributes.userns_fd = (uint64_t)ids;
    }
    if (r >= 0)
        r = sys_mount_setattr(tree, "", AT_EMPTY_PATH | recursive, &attributes);
    if (r >= 0)
        r = attach_tree(root, tree, plan, op);
    if (ids >= 0)
        close(ids);
    if (tree >= 0)
        close(tree);
    close(source);
    return r;
}

/* As root: the host's node may be root's alone, and its file system cannot be idmapped. So the
 * sandbox has a node of its own, on a file system that the host's root has mounted, with the same
 * number. Everybody in the sandbox may open it, and nobody outside of the sandbox sees it. */
static int make_device(int root, int host, const struct plan *plan, const struct plan_op *op) {
    struct mount_attr devices = { .attr_clr = MOUNT_ATTR_NODEV };
    struct mount_attr attributes = { .attr_set = op->mode };
    int source = open_strictly(host, path_below(plan_text(plan, op->source)), O_PATH);
    int tree = -EBADF, r;
    struct stat st;

    if (source < 0)
        return source;
    r = fstat(source, &st) < 0 ? -errno : 0;
    close(source);
    if (r == 0 && !S_ISCHR(st.st_mode))
        r = -ENODEV;
    if (r < 0)
        return r;
    int own = guest_new_tmpfs(&(struct guest_tmpfs){ .entries = "8", .mode = "0755" });
    if (own < 0)
        return own;
    r = sys_mount_setattr(own, "", AT_EMPTY_PATH, &devices);
    if (r == 0 && mknodat(own, "node", S_IFCHR | 0666, st.st_rdev) < 0)
        r = -errno;
    if (r == 0 && fchmodat(own, "node", 0666, 0) < 0)
        r = -errno;
    if (r == 0)
        r = tree = sys_open_tree(own, "node", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (r >= 0)
        r = sys_mount_setattr(tree, "", AT_EMPTY_PATH, &attributes);
    if (r >= 0)
        r = make_target(root, plan_text(plan, op->path), S_IFREG);
    if (r >= 0)
        r = attach_tree(root, tree, plan, op);
    if (tree >= 0)
        close(tree);
    close(own);
    return r;
}

/* Gives a new directory or file of the sandbox to the guest, with this mode. */
static int give_to_guest(int fd, uint32_t outer_id, mode_t mode) {
    return fchown(fd, outer_id, outer_id) < 0 || fchmod(fd, mode) < 0 ? -errno : 0;
}

static int make_private(
    int root, const struct box *box, const char *path, mode_t mode, bool strictly) {
    if (!strictly && mkdirat(root, path_below(path), mode) ==
                         0) /* new, and no guest user owns it, so none can replace it */
        return fchownat(root, path_below(path), box->outer_id, box->outer_id, AT_SYMLINK_NOFOLLOW) <
                       0
                   ? -errno
                   : 0;
    int r = make_directories(root, path, 0700, strictly);

    if (r < 0)
        return r;
    int fd = open_strictly(root, path_below(path), O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return fd;
    r = give_to_guest(fd, box->outer_id, mode);
    close(fd);
    return r;
}

static char *put_text(char *at, const char *text) {
    size_t length = strlen(text);

    memcpy(at, text, length + 1);
    return at + length;
}

static char *put_numbered(char *at, const char *text, uint64_t number) {
    at = guest_put_number(put_text(at, text), number);
    *at = '\0';
    return at;
}

/* mount(2); with `strictly`, the target is reached without following links. For that the target
 * directory is entered, because there may be no /proc to name it by. If the sandbox's ids may not
 * enter a directory (root's own, to be covered), it belongs to a grant, and grants are mounted once
 * there is a /proc. */
static int mount_at(int root, const char *source, const char *path, const char *type,
    unsigned long flags, const char *options, bool strictly) {
    char descriptor[40] = ".";
    struct stat st;

    if (!strictly)
        return mount(source, path, type, flags, options) < 0 ? -errno : 0;
    int target = open_strictly(root, path_below(path), O_PATH);
    if (target < 0)
        return target;
    int r = fstat(target, &st) < 0 ? -errno : 0;
    if (r == 0 && (!S_ISDIR(st.st_mode) || fchdir(target) < 0))
        put_numbered(descriptor, "/proc/self/fd/", (uint64_t)target);
    if (r == 0 && mount(source, descriptor, type, flags, options) < 0)
        r = -errno;
    if (S_ISDIR(st.st_mode) && chdir("/") < 0)
        r = -errno;
    close(target);
    return r;
}

/* Guests see a read-only copy of the proc mount, on top of the mount itself. Init uses the mount
 * below, which nothing else reaches, to set limits of its user namespace, and, with a seed or a
 * clock, to write to memory of its guests (det/vdso_patch.c). In the launcher's proc, the kernel
 * would have to search the entries of all sandboxes, and unmounting a mount with nothing below it
 * waits for all processors. */
static int mount_proc(int root, struct box *box, const char *path, bool strictly) {
    struct mount_attr read_only = { .attr_set = MOUNT_ATTR_RDONLY };
    int r = mount_at(root, "proc", path, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL, strictly);

    if (r < 0)
        return r;
    int own = open_strictly(root, path_below(path), O_PATH);
    if (own < 0)
        return own;
    int seen = r = sys_open_tree(own, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    if (r >= 0)
        r = sys_mount_setattr(seen, "", AT_EMPTY_PATH, &read_only);
    if (r >= 0)
        r = sys_move_mount(seen, "", own, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
    if (seen >= 0)
        close(seen);
    if (r >= 0 && (box->proc_sys = openat(own, "sys", O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0 &&
        errno != ENOENT)
        r = -errno;
    if (!determinism_wanted(box->plan)) {
        close(own);
        return r;
    }
    determinism_proc = own;
    if (r >= 0)
        r = code_write_probe(determinism_proc);
    return r >= 0 && box->plan->flags & PLAN_VIRTUAL ? vtime_make_page() : r;
}

/* The template's root: "/", until the sandbox enters an image's root. */
static int template_of(const struct box *box, int root) {
    return box->template >= 0 ? box->template : root;
}

/* Writes the name of a file in it. */
static char *put_source(char *at, const struct box *box, const char *path) {
    if (box->template >= 0)
        at = put_numbered(at, "/proc/self/fd/", (uint64_t)box->template);
    return put_text(at, path);
}

/* Enters an image's root. The template's root stays mounted above it, where no path leads. */
static int change_root(struct box *box, int root, const char *path) {
    box->template = openat(root, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (box->template <0 || chdir(path) < 0)
        return -errno;
    int r = sys_pivot_root(".", ".");
    if (r < 0)
        return r;
    if (chdir("/") < 0 || (box->root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
        return -errno;
    return 0;
}

/* Nothing on the way here belongs to the guest yet. The engine gets a separate mount of the
 * directory, without the places that are mounted later. */
static int bind_upper(struct box *box, const char *path) {
    int r = 0, upper = box->own_upper;

    /* As show_as_own does, and for the same reason. */
    for (unsigned i = 0; r == 0 && upper >= 0 && i < box->n_layers; i++)
        r = sys_move_mount(box->layers[i], "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH);
    if (r < 0)
        return r;
    if (upper < 0)
        upper = box->upper ? ops_open_upper(box->upper) : -EBADMSG;
    if (upper < 0)
        return upper;
    if (box->layered)
        r = box->layer = ops_open_upper(box->upper);
    if (r >= 0)
        r = sys_move_mount(upper, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH);
    close(upper);
    return r;
}

/* Makes a copy of a mount, on which the files belong to the sandbox's id, at `path`. There it is
 * below the final mounts and does no harm. A copy that is attached nowhere would make the kernel
 * wait for all processors when it ends. */
static int show_as_own(const struct box *box, int mount, const char *path) {
    struct mount_attr ids = { .attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)box->file_ids };
    int own = sys_open_tree(mount, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH),
        r = own;

    if (r >= 0)
        r = sys_mount_setattr(own, "", AT_EMPTY_PATH, &ids);
    if (r >= 0)
        r = sys_move_mount(own, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH);
    if (r < 0 && own >= 0)
        close(own);
    return r < 0 ? r : own;
}

/* Shows the layers and a new tmpfs, which are stored with the plan's id, as the sandbox's own. Not
 * every kernel can do that: tmpfs can be idmapped since 6.3, and copies of other sandboxes' mounts
 * since 6.15. Nor has U0 rights over layers from the U0 of an earlier launcher. */
static int mount_as_own(struct box *box, const char *path, const char *options) {
    static int layers[GUEST_MAX_LAYERS];
    int r = 0;

    for (unsigned i = 0; r >= 0 && i < box->n_layers; i++)
        r = layers[i] = show_as_own(box, box->layers[i], path);
    int tmpfs = r < 0 ? r : guest_new_tmpfs_of(options);
    if (r >= 0)
        r = tmpfs;
    int own = r < 0 ? r : show_as_own(box, tmpfs, path);
    if (own < 0) {
        if (tmpfs >= 0)
            close(tmpfs);
        for (unsigned i = 0; i < box->n_layers && layers[i] > 0; i++)
            close(layers[i]);
        return own;
    }
    close(own);
    box->layers = box->n_layers ? layers : box->layers;
    box->layer = tmpfs;
    return 0;
}

/* Mounts the sandbox's tmpfs, with the size of the request or else of the plan. */
static int mount_private(struct box *box, const char *path, const char *options) {
    char text[96];

    if (box->bytes) {
        put_numbered(
            put_numbered(text, "mode=0755,size=", box->bytes), ",nr_inodes=", box->entries);
        options = text;
    }
    if (box->file_ids >= 0) {
        int r = mount_as_own(box, path, options);

        if (r != -EINVAL && r != -EPERM)
            return r;
        box->outer_id = box->plan->outer_uid;
    }
    if (mount("rollbox", path, "tmpfs", MS_NOSUID | MS_NODEV, options) < 0)
        return -errno;
    /* For queries of its usage. It is not opened by path later, because a grant of the host may
     * cover the path. */
    if (!box->layered && box->plan->flags & PLAN_REPORT_DISK &&
        (box->disk = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        return -errno;
    if (!box->layered)
        return 0;
    /* Of the tmpfs alone: places and covering mounts are added later. */
    box->layer = sys_open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    return box->layer < 0 ? box->layer : 0;
}

/* ---- places ---- */

/* The part of the topmost layer, which has the latest attributes of the place's root. */
static int open_topmost(const struct box *box, const char *part, uint64_t flags) {
    return open_strictly(box->layers[box->n_layers - 1], part, flags | O_NOFOLLOW);
}

/* Copies one file for the guest to write to. */
static int copy_file(int root, const struct box *box, int from, const char *path) {
    struct stat st;

    if (fstat(from, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    int r = 0, to = create_file(root, path, 0600, false);
    if (to < 0)
        return to;
    for (ssize_t n = 1; r == 0 && n > 0;) {
        n = sendfile(to, from, NULL, 1 << 30);
        if (n < 0)
            r = -errno;
    }
    if (r == 0)
        r = give_to_guest(
            to, box->outer_id, box->n_layers ? st.st_mode & 07777 : (st.st_mode & 0777) | 0600);
    close(to);
    return r;
}

static int file_place(int root, const struct box *box, const struct plan *plan,
    const struct plan_op *op, const char *part, const char *part_path) {
    int template = template_of(box, root);
    int from = box->n_layers
                   ? open_topmost(box, part, O_RDONLY)
                   : open_strictly(template, path_below(plan_text(plan, op->source)), O_RDONLY);
    char source[80];

    if (from < 0)
        return from;
    int r = copy_file(template, box, from, part_path);
    close(from);
    put_source(source, box, part_path);
    return r < 0 ? r
                 : mount_at(root, source, plan_text(plan, op->path), NULL, MS_BIND, NULL,
                       op->grant || box->template >= 0);
}

/* Creates the new upper directory with the attributes of the topmost layer, if there is one: an
 * overlay shows the attributes of its uppermost directory. */
static int make_upper(
    int template, const struct box *box, const char *part, const char *part_path, mode_t mode) {
    struct stat st;

    if (!box->n_layers)
        return make_private(template, box, part_path, mode, false);
    int from = open_topmost(box, part, O_RDONLY | O_DIRECTORY);
    if (from < 0)
        return from;
    int to = -EBADF,
        r = fstat(from, &st) < 0 ? -errno : make_directories(template, part_path, 0700, false);
    if (r == 0)
        r = to = open_strictly(template, path_below(part_path), O_RDONLY | O_DIRECTORY);
    if (r >= 0)
        r = copy_attributes(from, to, &st);
    if (to >= 0)
        close(to);
    close(from);
    return r;
}

/* Layers without content in a part are left out: that saves a mount, or a directory to search. */
static bool layer_has_part(const struct box *box, unsigned layer, uint64_t part) {
    return part >= 64 || box->parts[layer] >> part & 1;
}

static bool any_holds(const struct box *box, uint64_t part) {
    for (unsigned i = 0; i < box->n_layers; i++)
        if (layer_has_part(box, i, part))
            return true;
    return false;
}

static int make_place(
    int root, const struct box *box, const struct plan *plan, const struct plan_op *op) {
    const char *path = plan_text(plan, op->path),
               *base = op->source ? plan_text(plan, op->source) : NULL;
    char options[4096], part_path[40], work[40], *at = options;
    const char *part = part_path + sizeof PLAN_PRIVATE;
    uint64_t number = plan_place_part(op);
    int template = template_of(box, root);

    put_numbered(part_path, PLAN_PRIVATE "/p", number);
    if (op->value & PLAN_PLACE_FILE)
        return file_place(root, box, plan, op, part, part_path);
    int r = make_upper(template, box, part, part_path, op->mode);
    if (r < 0)
        return r;
    if (!any_holds(box, number) && !base) {
        put_source(options, box, part_path);
        return mount_at(root, options, path, NULL, MS_BIND, NULL, op->grant || box->template >= 0);
    }
    put_numbered(work, PLAN_PRIVATE "/w/p", number);
    r = make_directories(template, work, 0700, false);
    if (r < 0)
        return r;
    /* On a disk, the end of an overlay would otherwise write out the whole file system. This
     * directory never becomes an upper directory again. */
    at = put_source(
        put_text(at, box->upper ? "userxattr,volatile,workdir=" : "userxattr,workdir="), box, work);
    at = put_source(put_text(at, ",upperdir="), box, part_path);
    at = put_text(at, ",lowerdir=");
    for (unsigned i = box->n_layers; i--;) {
        if (!layer_has_part(box, i, number))
            continue;
        at = put_numbered(at, "/proc/self/fd/", (uint64_t)box->layers[i]);
        *at++ = '/';
        at = put_text(at, part);
        *at++ = ':';
    }
    if (base && strlen(base) + 40 >= (size_t)(options + sizeof options - at))
        return -ENAMETOOLONG;
    if (base)
        put_source(at, box, base);
    else
        at[-1] = '\0';
    /* With many users, set-user-id files of the sandbox make its own users of its processes. */
    r = mount_at(root, "rollbox", path, "overlay",
        (plan->flags & PLAN_MANY_USERS ? 0 : MS_NOSUID) | MS_NODEV, options,
        op->grant || box->template >= 0);
    return r == -EINVAL && box->n_layers ? -EOPNOTSUPP
                                         : r; /* before 6.15 the kernel takes no detached mount */
}

/* Binds a path of the new root over `path`, which may be missing where the plan allows that. */
static int cover_place(int root, const struct box *box, const struct plan *plan,
    const struct plan_op *op, bool strictly) {
    const char *path = plan_text(plan, op->path), *source = plan_text(plan, op->source);
    struct mount_attr attributes = { .attr_set = op->mode };
    char name[4096 + 40];

    if (box && box->template >= 0 && !(op->value & PLAN_COVER_HERE)) {
        if (strlen(source) >= 4096)
            return -ENAMETOOLONG;
        put_source(name, box, source);
        source = name;
    }
    int r = mount_at(root, source, path, NULL,
        op->value & PLAN_COVER_ALONE ? MS_BIND : MS_BIND | MS_REC, NULL, strictly);
    if (r == -ENOENT && op->value & PLAN_COVER_OR_GONE)
        return 0;
    if (r < 0) /* in an image it may be a link */
        return op->kind == PLAN_OP_COVER_IF && (r == -ENOENT || r == -ELOOP || r == -ENOTDIR) ? 0
                                                                                              : r;
    return op->mode ? sys_mount_setattr(AT_FDCWD, path, 0, &attributes) : 0;
}

/*
 * A mount is attached to a directory entry of the file system below, in every namespace. When the
 * host renames a file over /etc/passwd, a mount over that name in a bind of /etc disappears. The
 * entries of an overlay are its own, so mounts on them stay. The kernel requires two lower
 * directories; the second is empty. It is mounted without userxattr, because otherwise a directory
 * whose attributes the sandbox may not read could not be looked up. EINVAL: the directory contains
 * a mount that an ordinary user may not look below, or its file system cannot be part of an
 * overlay. Then it is bound.
 */
static int make_overlay(int root, const struct box *box, const struct plan *plan,
    const struct plan_op *op, bool strictly) {
    const char *path = plan_text(plan, op->path), *source = plan_text(plan, op->source);
    char options[256], from[128],
        *at = put_text(options, "redirect_dir=nofollow,metacopy=off,lowerdir=");

    if (strlen(source) >= 64)
        return -ENAMETOOLONG;
    if (box)
        put_source(from, box, source);
    else
        put_text(from, source);
    at = put_text(put_text(at, from), ":");
    if (box)
        put_source(at, box, PLAN_HIDDEN "/hollow");
    else
        put_text(at, PLAN_HIDDEN "/hollow");
    int r = mount_at(
        root, "rollbox", path, "overlay", MS_RDONLY | MS_NOSUID | MS_NODEV, options, strictly);
    if (r == -EINVAL)
        r = mount_at(root, from, path, NULL, MS_BIND | MS_REC, NULL, strictly);
    return r == 0 && !op->value && umount2(from, MNT_DETACH) < 0 ? -errno : r;
}

/* Beside the parts, where no snapshot looks. The first text reserves the space for later ones. */
static int cover_uptime(int root, const struct box *box, const struct plan *plan,
    const struct plan_op *op, bool strictly) {
    int fd = create_file(template_of(box, root), plan_text(plan, op->source), 0444, false);
    int r = fd < 0 ? fd : vtime_take_uptime(fd);

    return r < 0 ? r : cover_place(root, box, plan, op, strictly);
}

/* ---- all of them ---- */

static int run_one(
    const struct plan *plan, struct box *box, const struct plan_op *op, int root, int host) {
    const char *path = plan_text(plan, op->path), *source = plan_text(plan, op->source);
    bool strictly = box && (op->grant || box->template >= 0);
    int r;

    switch ((enum plan_op_kind)op->kind) {
    case PLAN_OP_MKDIR:
        return make_directories(root, path, op->mode, strictly);
    case PLAN_OP_FILE:
        r = make_file(root, path, source, op->value, op->mode, strictly);
        /* A mount point, which the surrounding grant or image may contain already, or not have a
         * directory for. */
        if (!op->value && (r == -EEXIST || (box && (r == -ELOOP || r == -ENOTDIR))))
            return 0;
        return r;
    case PLAN_OP_CHANCE:
        return make_chance(root, plan, op);
    case PLAN_OP_SYMLINK:
        return make_symlink(root, path, source, strictly);
    case PLAN_OP_BIND:
    case PLAN_OP_BIND_ONE:
        return bind_from_host(root, host, plan, op);
    case PLAN_OP_DEVICE:
        return make_device(root, host, plan, op);
    case PLAN_OP_OVERLAY:
        return make_overlay(root, box, plan, op, strictly);
    case PLAN_OP_TMPFS:
        r = mount_private(box, path, source);
        return r < 0 ? r : own_mounts_attach(box);
    case PLAN_OP_UPPER:
        r = bind_upper(box, path);
        return r < 0 ? r : own_mounts_attach(box);
    case PLAN_OP_PRIVATE:
        return op->grant && box->n_layers
                   ? 0
                   : make_private(root, box, path, op->mode,
                         strictly); /* the layers have it, or the guest has removed it */
    case PLAN_OP_PLACE:
        return make_place(root, box, plan, op);
    case PLAN_OP_PIVOT:
        return change_root(box, root, path);
    case PLAN_OP_COVER:
    case PLAN_OP_COVER_IF:
        return cover_place(root, box, plan, op, strictly);
    case PLAN_OP_PROC:
        return mount_proc(root, box, path, strictly);
    case PLAN_OP_UPTIME:
        return cover_uptime(root, box, plan, op, strictly);
    case PLAN_OP_DEVPTS:
        return mount_at(root, "devpts", path, "devpts", MS_NOSUID | MS_NOEXEC, source, strictly);
    }
    return -EINVAL;
}

int ops_run(const struct plan *plan, struct box *box, struct plan_array which, int root, int host,
    struct guest_fault *fault) {
    const struct plan_op *ops = (const void *)((const char *)plan + which.offset);
    uint32_t begun = 0;
    int r = 0;

    for (uint32_t i = 0; i < which.n && r >= 0; i++) {
        r = run_one(plan, box, &ops[i], root, host);
        if (r < 0)
            fault->operation = i;
        if (ops[i].kind == PLAN_OP_PIVOT)
            root = box->root;
        if (ops[i].kind == PLAN_OP_CHANCE)
            begun = i;
    }
    int ended = urandom_file_end();
    if (r >= 0 && ended < 0) {
        fault->operation = begun;
        return ended;
    }
    return r < 0 ? r : 0;
}
