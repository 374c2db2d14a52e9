/* SPDX-License-Identifier: Apache-2.0 */
#include "net/names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

static uint32_t hash_name(const char *name) {
    uint32_t hash = 2166136261u;

    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 16777619u;
    return hash;
}

static void table_done(struct names_table *table) {
    for (uint32_t i = 0; i < table->n; i++)
        free(table->items[i].name);
    free(table->items);
    *table = (struct names_table){ 0 };
}

void names_release(struct names *names) {
    table_done(&names->exact);
    table_done(&names->wild);
}

static bool is_name_character(char c) {
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
        return true;
    return c == '-' || c == '_';
}

bool names_valid(const char *name) {
    size_t label = 0, length = strlen(name);

    if (length > NAMES_MAX_LENGTH)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (name[i] == '.') {
            if (!label)
                return false;
            label = 0;
        } else if (!is_name_character(name[i]) || ++label > 63) {
            return false;
        }
    }
    return label > 0;
}

static uint32_t find(const struct names_table *table, const char *name, uint32_t hash) {
    for (uint32_t i = 0; i < table->n; i++) {
        const struct names_entry *entry = &table->items[i];

        if (entry->name && entry->hash == hash && strcmp(entry->name, name) == 0)
            return i;
    }
    return NONE;
}

/* Puts the name at the index, after gaps if it is past the end. */
static int put(struct names_table *table, uint32_t index, const char *name, uint32_t hash) {
    if (index >= table->capacity) {
        uint32_t capacity = table->capacity ? 2 * table->capacity : 4;

        if (capacity <= index)
            capacity = index + 1;
        struct names_entry *items = reallocarray(table->items, capacity, sizeof *items);
        if (!items)
            return -ENOMEM;
        table->items = items;
        table->capacity = capacity;
    }
    char *copy = strdup(name);
    if (!copy)
        return -ENOMEM;
    while (table->n <= index)
        table->items[table->n++] = (struct names_entry){ NULL, 0 };
    table->items[index] = (struct names_entry){ copy, hash };
    return 0;
}

int names_add_rules(struct names *names, const struct net_rules *rules) {
    for (size_t i = 0; i < rules->n; i++) {
        const char *host = rules->items[i].host;
        int r = 0;

        if (!host || *host == '*')
            continue;
        uint32_t hash = hash_name(host);
        if (find(&names->exact, host, hash) != NONE || find(&names->wild, host, hash) != NONE)
            continue;
        if (names->exact.n < NAMES_MAX_EXACT - 1)
            r = put(&names->exact, names->exact.n, host, hash);
        if (r < 0)
            return r;
    }
    return 0;
}

int names_load(struct names *names, const char *name, uint32_t address) {
    struct names_table *table = &names->exact;
    uint32_t index = address - NAMES_FIRST_EXACT, limit = NAMES_MAX_EXACT - 1;

    if (address >= NAMES_FIRST_WILD) {
        table = &names->wild;
        index = address - NAMES_FIRST_WILD;
        limit = NAMES_MAX_WILD;
    }
    if (address < NAMES_FIRST_EXACT || index >= limit || !names_valid(name))
        return -EINVAL;
    uint32_t hash = hash_name(name);
    if (find(table, name, hash) == index)
        return 0;
    if (find(&names->exact, name, hash) != NONE || find(&names->wild, name, hash) != NONE)
        return -EEXIST;
    if (index < table->n && table->items[index].name)
        return -EEXIST;
    return put(table, index, name, hash);
}

int names_address(
    struct names *names, const char *name, bool may_add, uint32_t *ret_address, bool *ret_is_new) {
    uint32_t hash = hash_name(name), index = find(&names->exact, name, hash);

    *ret_is_new = false;
    if (index != NONE) {
        *ret_address = NAMES_FIRST_EXACT + index;
        return 0;
    }
    index = find(&names->wild, name, hash);
    if (index == NONE) {
        if (!may_add || !names_valid(name))
            return -ENOENT;
        if (names->wild.n >= NAMES_MAX_WILD)
            return -ENOSPC;
        index = names->wild.n;
        int r = put(&names->wild, index, name, hash);
        if (r < 0)
            return r;
        *ret_is_new = true;
    }
    *ret_address = NAMES_FIRST_WILD + index;
    return 0;
}

const char *names_name(const struct names *names, uint32_t address) {
    const struct names_table *table = &names->exact;
    uint32_t index = address - NAMES_FIRST_EXACT;

    if (address >= NAMES_FIRST_WILD) {
        table = &names->wild;
        index = address - NAMES_FIRST_WILD;
    }
    return index < table->n ? table->items[index].name : NULL;
}

bool names_is_fake(uint32_t address) {
    return address >> 17 == NAMES_NETWORK >> 17;
}
