/* SPDX-License-Identifier: Apache-2.0 */
/* User namespaces that exist for their id maps: for idmapped mounts, and to be entered. */
#ifndef ROLLBOX_BASE_ID_MAP_H
#define ROLLBOX_BASE_ID_MAP_H

#include <stdint.h>

#define ID_MAP_LAST_OWNER 65535u
#define ID_MAP_TEXT 160 /* room for a map of up to four lines */

/* Appends the line "inside outside count" to a map. Returns the new end, which has a NUL. */
char *id_map_line(char *at, uint32_t inside, uint32_t outside, uint32_t count);

/* The map of a mount on which files of `owner` (at most ID_MAP_LAST_OWNER) belong to `id`, and
 * those of any other id below 65536 to `others` plus that id. */
void id_map_owner(char text[ID_MAP_TEXT], uint32_t owner, uint32_t id, uint32_t others);

/* A new user namespace with these maps, which only the descriptor keeps alive; or -errno. `root`
 * is a directory with "proc" below it. Takes about a tenth of a millisecond. */
int id_map_namespace(int root, const char *uid_map, const char *gid_map);

/* The same, where `map` writes the maps of the process `pid`, whose directory in proc is `process`.
 * A negative value that it returns is the result. */
int id_map_namespace_by(
    int root, int (*map)(int process, int pid, const void *data), const void *data);

#endif
