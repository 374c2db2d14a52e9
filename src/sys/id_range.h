/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ids that an ordinary user has besides his own: a range of /etc/subuid and one of /etc/subgid,
 * and a user namespace that maps them. Only newuidmap and newgidmap, which are set-user-id root,
 * may write such maps for him.
 */
#ifndef ROLLBOX_SYS_ID_RANGE_H
#define ROLLBOX_SYS_ID_RANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ID_RANGE_COUNT 65536u /* ids; a smaller range is not used */
#define ID_RANGE_TEXT 400

struct id_range {
    uint32_t uid_first, gid_first; /* ids of the host */
};

/* Finds the caller's range and the programs, and makes nothing. 0; or -ENOTSUP, and `problem` says
 * what is missing and which command mends it. Allocates memory for a moment. */
int id_range_find(struct id_range *ret_range, char problem[ID_RANGE_TEXT]);

/* A new user namespace in which the caller is 0 and the range begins at `inside`, which only the
 * descriptor keeps alive. Or -ENOTSUP and `problem`, or another -errno and `problem`. Takes some
 * milliseconds: two programs run. The caller owns the namespace, so it may enter it. */
int id_range_namespace(const struct id_range *range, uint32_t inside, char problem[ID_RANGE_TEXT]);

/* Finds the range, makes the namespace and enters it for good: then the caller is 0, with rights
 * over the ids of the range. Not in a process with several threads. Results as above. */
int id_range_enter(struct id_range *ret_range, uint32_t inside, char problem[ID_RANGE_TEXT]);

/* Another user's line of /etc/subuid or /etc/subgid, or an account of /etc/passwd, that shares ids
 * with the range: its name, static; or NULL. Each may touch the files of the other. */
const char *id_range_overlap(const struct id_range *range);

#endif
