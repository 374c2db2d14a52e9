/* SPDX-License-Identifier: Apache-2.0 */
/* A set of job ids, each with the line it came from. An id is kept as the JSON text of its value,
 * so 7 and "7" are two ids. */
#ifndef ROLLBOX_CLI_IDS_H
#define ROLLBOX_CLI_IDS_H

#include <stddef.h>
#include <stdint.h>

struct id_set {
    struct ids_slot *slots; /* open addressing; a power of two */
    size_t n, n_slots;
};

/* 0: added; 1: it was there already, and *ret_line (may be NULL) is its line; -ENOMEM. */
int id_set_add(struct id_set *ids, const char *id, uint64_t line, uint64_t *ret_line);

/* The line of an id; 0 if it is not in the set. */
uint64_t id_set_find(const struct id_set *ids, const char *id);

/* How many ids of `a` are in `b` too. */
size_t id_set_common(const struct id_set *a, const struct id_set *b);
void id_set_done(struct id_set *ids);

#endif
