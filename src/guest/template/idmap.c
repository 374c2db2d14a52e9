/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User namespaces whose purpose is their id maps (base/id_map.h).
 *
 * - U0, which the launcher enters, has a range of host ids that nothing else uses. The host's root
 *   makes it.
 * - Namespaces for idmapped mounts of granted directories, also made by the host's root. A guest of
 *   a root caller is an unprivileged id of the host and would own nothing in the directories that
 *   it may write to. On an idmapped mount the files of the directory's owner belong to the guest,
 *   and new files of the guest belong to that owner. All other ids are moved, one to one, to ids
 *   that no process has, so that an overlay can still copy such files up.
 * - One for each sandbox with layers, made inside U0. The kernel counts pipes, descriptors in
 *   transit, watches and other objects by user, so every sandbox runs with an id of its own. But a
 *   layer outlives its sandbox and is used by others. So all files are stored with one id, the
 *   plan's, and each sandbox's mounts show them as its own.
 *
 * The idmapped mounts of granted directories are the plan's as well: the engine makes those of a
 * sandbox with another id (engine/box/own_mounts.c).
 */
#include <errno.h>

#include "base/id_map.h"
#include "guest/internal.h"
#include "guest/template/template.h"

uint32_t idmap_base;

int idmap_for_owner(int host, uint32_t id, uid_t uid, gid_t gid) {
    char uid_map[ID_MAP_TEXT], gid_map[ID_MAP_TEXT];

    if (uid > ID_MAP_LAST_OWNER || gid > ID_MAP_LAST_OWNER)
        return -EOVERFLOW;
    id_map_owner(uid_map, uid, idmap_base + id, idmap_base + GUEST_ID_OTHERS);
    id_map_owner(gid_map, gid, idmap_base + id, idmap_base + GUEST_ID_OTHERS);
    return id_map_namespace(host, uid_map, gid_map);
}

int idmap_for_all(int host, uint32_t id) {
    char map[ID_MAP_TEXT];

    (void)id_map_line(map, 0, idmap_base + id, PLAN_MANY_IDS);
    return id_map_namespace(host, map, map);
}

int idmap_for_files(int root, uint32_t stored, uint32_t id, uint32_t count) {
    char map[ID_MAP_TEXT];

    /* U0's root creates the directories of the files, and mounts need a known owner. */
    char *at = id_map_line(id_map_line(map, 0, 0, 1), stored, id, count);
    /* An overlay may copy up files of other owners from a directory of the host. */
    (void)id_map_line(at, GUEST_ID_OTHERS, GUEST_ID_OTHERS, GUEST_ID_RANGE - GUEST_ID_OTHERS);
    return id_map_namespace(root, map, map);
}

int idmap_for_launcher(int host, uint32_t count) {
    char map[ID_MAP_TEXT];

    (void)id_map_line(map, 0, idmap_base, count);
    return id_map_namespace(host, map, map);
}
