/* SPDX-License-Identifier: Apache-2.0 */
/* Price tables; prices.h has the model. */
#include "base/prices.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"

static const struct {
    const char *key;
    size_t offset;
} keys[] = {
    { "cpu_s", offsetof(struct prices, cpu_s) },
    { "gib_s", offsetof(struct prices, gib_s) },
    { "disk_gib_s", offsetof(struct prices, disk_gib_s) },
    { "snapshot_gib_s", offsetof(struct prices, snapshot_gib_s) },
    { "call", offsetof(struct prices, call) },
};

static double value_of(const struct prices *prices, size_t i) {
    return *(const double *)(const void *)((const char *)prices + keys[i].offset);
}

/* NULL, or the key that is not known or is no price. */
static const char *take(const json_t *table, struct prices *to) {
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)table, key, value) {
        double *place = NULL;

        for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
            if (!strcmp(keys[i].key, key))
                place = (double *)(void *)((char *)to + keys[i].offset);
        if (!place || !json_is_number(value) || !(json_number_value(value) >= 0))
            return key;
        *place = json_number_value(value);
    }
    return NULL;
}

bool prices_read(const char *path, struct prices *ret, char *why, size_t why_size) {
    struct prices prices = { .cpu_s = 0 };
    json_error_t problem;
    json_t *table = json_load_file(path, JSON_REJECT_DUPLICATES, &problem);
    const char *wrong = json_is_object(table) ? take(table, &prices) : NULL;
    bool ok = json_is_object(table) && !wrong;

    if (!json_is_object(table))
        (void)snprintf(why, why_size, "%s: the prices are not a JSON object: %.160s", path,
            table ? "another type" : problem.text);
    else if (wrong)
        (void)snprintf(why, why_size,
            "%s: \"%.64s\" must be one of cpu_s, gib_s, disk_gib_s, snapshot_gib_s and call, with "
            "a number that is not negative",
            path, wrong);
    json_decref(table);
    if (ok)
        *ret = prices;
    return ok;
}

json_t *prices_json(const struct prices *prices) {
    json_t *table = json_object();

    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        json_object_set_new(table, keys[i].key, json_real(value_of(prices, i)));
    return table;
}

double prices_cost(const struct prices *prices, const struct prices *amounts) {
    double cost = 0;

    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        cost += value_of(prices, i) * value_of(amounts, i);
    return cost;
}
