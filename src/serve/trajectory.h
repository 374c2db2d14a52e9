/* SPDX-License-Identifier: Apache-2.0 */
/* One kept trajectory, for trajectories.c and trajectory_requests.c. */
#ifndef ROLLBOX_SERVE_TRAJECTORY_H
#define ROLLBOX_SERVE_TRAJECTORY_H

#include "serve/server.h"

#define TRAJECTORY_DIGITS 16

struct trajectory {
    struct list of_all;
    struct tenant *tenant;
    char id[TRAJECTORY_DIGITS + 1];
    json_t *about; /* {"sandbox", "labels", "created"} */
    bool is_new;   /* not on its way to a recorder yet, and not seen */
    bool has_ended;
    uint64_t bytes; /* when it was looked at last */
    uint64_t held;  /* of the quota "disk" */
};

/* Whether the server has a directory for them. */
bool trajectories_kept(void);
/* The tenant's next one, the oldest first; `after` NULL: the first. NULL: there is no other. */
struct trajectory *trajectory_next(const struct tenant *tenant, const struct trajectory *after);
/* NULL: the tenant has none of this id. */
struct trajectory *trajectory_find(const struct tenant *tenant, const char *id);
/* Whether it has ended by now, and how long it is. */
void trajectory_look(struct trajectory *trajectory);
/* Open for reading, or -errno. */
int trajectory_file(const struct trajectory *trajectory);
/* Removes its files, and frees it: 0. Or -errno, and it is still there. */
int trajectory_remove(struct trajectory *trajectory);

#endif
