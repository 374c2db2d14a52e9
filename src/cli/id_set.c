/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/id_set.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct ids_slot {
    char *id; /* NULL: empty */
    uint64_t hash, line;
};

/* FNV-1a. The ids are the user's own, so there is no reason to make them collide. */
static uint64_t hash_of(const char *id) {
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *id; id++)
        hash = (hash ^ (unsigned char)*id) * 0x100000001b3u;
    return hash;
}

/* The id's slot, or the free slot for it. */
static struct ids_slot *slot_of(
    struct ids_slot *slots, size_t n_slots, const char *id, uint64_t hash) {
    for (size_t i = hash & (n_slots - 1);; i = (i + 1) & (n_slots - 1))
        if (!slots[i].id || (slots[i].hash == hash && strcmp(slots[i].id, id) == 0))
            return &slots[i];
}

static int grow_ids(struct id_set *ids) {
    size_t n_slots = ids->n_slots ? ids->n_slots * 2 : 1024;
    struct ids_slot *slots = calloc(n_slots, sizeof *slots);

    if (!slots)
        return -ENOMEM;
    for (size_t i = 0; i < ids->n_slots; i++)
        if (ids->slots[i].id)
            *slot_of(slots, n_slots, ids->slots[i].id, ids->slots[i].hash) = ids->slots[i];
    free(ids->slots);
    ids->slots = slots;
    ids->n_slots = n_slots;
    return 0;
}

int id_set_add(struct id_set *ids, const char *id, uint64_t line, uint64_t *ret_line) {
    uint64_t hash = hash_of(id);

    if (ids->n * 2 >= ids->n_slots && grow_ids(ids) < 0)
        return -ENOMEM;
    struct ids_slot *slot = slot_of(ids->slots, ids->n_slots, id, hash);
    if (slot->id) {
        if (ret_line)
            *ret_line = slot->line;
        return 1;
    }
    slot->id = strdup(id);
    if (!slot->id)
        return -ENOMEM;
    slot->hash = hash;
    slot->line = line;
    ids->n++;
    return 0;
}

uint64_t id_set_find(const struct id_set *ids, const char *id) {
    return ids->n_slots ? slot_of(ids->slots, ids->n_slots, id, hash_of(id))->line : 0;
}

size_t id_set_common(const struct id_set *a, const struct id_set *b) {
    size_t n = 0;

    for (size_t i = 0; i < a->n_slots; i++)
        n += a->slots[i].id && id_set_find(b, a->slots[i].id);
    return n;
}

void id_set_done(struct id_set *ids) {
    for (size_t i = 0; i < ids->n_slots; i++)
        free(ids->slots[i].id);
    free(ids->slots);
    *ids = (struct id_set){ 0 };
}
