/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of the host for sandboxes with an id of their own.
 *
 * The kernel counts pipes, descriptors in flight and other objects by user. So if root runs the
 * engine, each sandbox has a user id of its own. Its launcher idmaps its tmpfs and layers in memory
 * (idmap_for_files). Files of the host's own file systems (granted directories, images, disk_at
 * store) can be idmapped only by the host's root, which is the engine. It makes detached mounts,
 * and init attaches them (guest/template/own_mounts.c).
 *
 * The engine knows which mounts a template needs only when the template is ready, perhaps after the
 * sandbox was requested. So init waits at a socket for them. The mounts stay with the id and serve
 * the next sandbox that gets it, because making the user namespace takes longer than all other
 * steps. One sandbox at a time has the plan's own id, for which the template is made, and needs
 * none of this.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/id_map.h"
#include "engine/box/box.h"
#include "engine/box/own_mounts.h"
#include "engine/box/launcher.h"
#include "engine/box/profile.h"
#include "sys/syscalls.h"

static bool has_sources(const struct plan *plan) {
    const struct plan_op *ops = plan_items(plan, template_ops, struct plan_op);

    for (uint32_t i = 0; i < plan->template_ops.n; i++)
        if (plan_bind_is_mapped(&ops[i]))
            return true;
    return false;
}

bool own_mounts_on_disk(const struct box *box) {
    return box->lower.is_layered && box->profile->plan->flags & PLAN_ON_DISK;
}

bool own_mounts_needed(const struct box *box) {
    return own_mounts_on_disk(box) || has_sources(box->profile->plan);
}

int own_mounts_show(int namespace, int directory, const char *path, unsigned flags) {
    struct mount_attr ids = { .attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t) namespace };
    auto_close int mount =
        sys_open_tree(directory, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | flags);

    if (mount < 0)
        return mount;
    int r = sys_mount_setattr(mount, "", AT_EMPTY_PATH | (flags & AT_RECURSIVE), &ids);
    return r < 0 ? r : TAKE_FD(mount);
}

/* ---- what the template shows ---- */

struct owner_map {
    int root, namespace;
    uid_t uid;
    gid_t gid;
};

/* Every file of a store's layers is of the guest's user of that number. */
static int map_of_all(struct owner_map *map, uint32_t base, uint32_t id) {
    char text[ID_MAP_TEXT];

    close_fd(&map->namespace);
    (void)id_map_line(text, 0, base + id, PLAN_MANY_IDS);
    map->uid = map->gid = ID_MAP_LAST_OWNER + 1; /* nobody's */
    map->namespace = id_map_namespace(map->root, text, text);
    return MIN(map->namespace, 0);
}

/* Mostly one owner has them all. */
static int map_of_owner(struct owner_map *map, uint32_t base, uint32_t id, uid_t uid, gid_t gid) {
    char uid_map[ID_MAP_TEXT], gid_map[ID_MAP_TEXT];

    if (map->namespace >= 0 && map->uid == uid && map->gid == gid)
        return 0;
    if (uid > ID_MAP_LAST_OWNER || gid > ID_MAP_LAST_OWNER)
        return -EOVERFLOW;
    close_fd(&map->namespace);
    id_map_owner(uid_map, uid, base + id, base + GUEST_ID_OTHERS);
    id_map_owner(gid_map, gid, base + id, base + GUEST_ID_OTHERS);
    map->uid = uid;
    map->gid = gid;
    map->namespace = id_map_namespace(map->root, uid_map, gid_map);
    return MIN(map->namespace, 0);
}

static int add_mount(const struct launcher *pool, const struct plan_op *op, const char *name,
    struct owner_map *map, uint32_t id, int tree) {
    struct stat st;

    if (fstatat(pool->sources, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (op->value & PLAN_BIND_OWNER)
        st.st_uid = st.st_gid = plan_bind_owner(op);
    int r = op->value & PLAN_BIND_ALL ? map_of_all(map, pool->id_base, id)
                                      : map_of_owner(map, pool->id_base, id, st.st_uid, st.st_gid);
    if (r < 0)
        return r;
    auto_close int mount = own_mounts_show(
        map->namespace, pool->sources, name, op->kind == PLAN_OP_BIND ? AT_RECURSIVE : 0);
    if (mount < 0)
        return mount;
    return sys_move_mount(mount, "", tree, name, MOVE_MOUNT_F_EMPTY_PATH);
}

static int show_sources(const struct launcher *pool, const struct plan *plan, uint32_t id) {
    const struct plan_op *ops = plan_items(plan, template_ops, struct plan_op);
    auto_close int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    auto_close int tree =
        sys_open_tree(pool->sources, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    struct owner_map map = { .root = root, .namespace = -EBADF };
    unsigned number = 0;
    char name[16];
    int r = MIN(root < 0 ? -errno : root, MIN(tree, 0));

    for (uint32_t i = 0; r >= 0 && i < plan->template_ops.n; i++) {
        if (!plan_bind_is_mapped(&ops[i]))
            continue;
        snprintf(name, sizeof name, "%u", number++);
        r = add_mount(pool, &ops[i], name, &map, id, tree);
    }
    close_fd(&map.namespace);
    return r < 0 ? r : TAKE_FD(tree);
}

void own_mounts_ready(struct box *box, const struct launcher *pool) {
    struct file_ids *ids = &box->file_ids;
    int socket = TAKE_FD(ids->waits);

    if (socket < 0)
        return;
    if (ids->mounts < 0 && pool && pool->sources >= 0)
        ids->mounts = MAX(show_sources(pool, box->profile->plan, ids->id), -EBADF);
    /* Init notices if it does not arrive: it waits until the socket closes. */
    (void)fd_send_patiently(socket, "", 1, &ids->mounts, ids->mounts >= 0);
    close(socket);
}

int own_mounts_promise(struct box *box, const struct launcher *pool, int *ret_socket) {
    int pair[2];

    *ret_socket = -EBADF;
    if (!box->file_ids.id || !has_sources(box->profile->plan))
        return 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    box->file_ids.waits = pair[0];
    *ret_socket = pair[1];
    if (!pool || pool->state == LAUNCHER_READY)
        own_mounts_ready(box, pool);
    return 0;
}

/* ---- files on the store's disk ---- */

int own_mounts_map(uint32_t base, const struct plan *plan, uint32_t id) {
    const uint32_t count = plan->flags & PLAN_MANY_USERS ? PLAN_MANY_IDS : 1;
    char map[ID_MAP_TEXT];
    auto_close int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (root < 0)
        return -errno;
    /* Only ids of the range: a set-user-id file of a guest is stored as one of such an id. */
    char *at =
        id_map_line(id_map_line(map, base, base, 1), base + plan->outer_uid, base + id, count);
    (void)id_map_line(
        at, base + GUEST_ID_OTHERS, base + GUEST_ID_OTHERS, GUEST_ID_RANGE - GUEST_ID_OTHERS);
    return id_map_namespace(root, map, map);
}
