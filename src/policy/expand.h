/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Expands grants that contain denied paths, for Landlock.
 *
 * A Landlock rule allows a directory with everything below it, and no later rule can take a part
 * away. So a grant that contains a denied path becomes one rule for each entry without a denied
 * path. Entries that contain a denied path are expanded in the same way, level by level. The
 * directories on the way get no rule: they cannot be listed, and files created in them later are
 * not granted.
 */
#ifndef ROLLBOX_POLICY_EXPAND_H
#define ROLLBOX_POLICY_EXPAND_H

#include <stdbool.h>
#include <stddef.h>

/* The most rules for one plan; more are refused. */
#define EXPAND_MAX 3500

struct expand_entry {
    char *name;
    bool directory;
};

struct expand_entries {
    struct expand_entry *items;
    size_t n, capacity;
};

/* How to look into a directory of the host: appends its entries but links (what they lead to has a
 * rule of its own, or none). 0 or -errno. */
struct expand_lister {
    int (*list)(void *data, const char *directory, struct expand_entries *to);
    void *data;
};

int expand_entries_add(struct expand_entries *entries, const char *name, bool directory);
void expand_entries_done(struct expand_entries *entries);

/* Calls `emit` for each path that is to have a rule. `whole`: it is the grant itself. `denied`:
 * real paths, existing or not, of which only those inside the grant count. 0, or -errno: -E2BIG for
 * more than `*budget` rules (which is lowered by those used), -ENAMETOOLONG, -ENOMEM, or what
 * listing or `emit` returned. */
int expand_grant(const char *path, bool directory, const char *const *denied, size_t n_denied,
    const struct expand_lister *lister, size_t *budget,
    int (*emit)(void *data, const char *path, bool directory, bool whole), void *emit_data);

#endif
