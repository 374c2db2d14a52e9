/* SPDX-License-Identifier: Apache-2.0 */
/* Price tables; prices.h has the model. */
#include "serve/prices.h"

#include <stddef.h>
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

/* NULL, or the key that is not known or is no price. */
static const char *take(const json_t *table, struct prices *to) {
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)table, key, value) {
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

int prices_read(const char *path, struct prices *ret) {
    struct prices prices = { 0 };
    json_error_t problem;
    json_t *table = json_load_file(path, JSON_REJECT_DUPLICATES, &problem);
    const char *wrong = json_is_object(table) ? take(table, &prices) : NULL;

    if (!json_is_object(table))
        fprintf(stderr, "rollbox-serve: %s: the prices are not a JSON object: %.160s\n", path,
            table ? "another type" : problem.text);
    else if (wrong)
        fprintf(stderr,
            "rollbox-serve: %s: \"%.64s\" must be one of cpu_s, gib_s, disk_gib_s, snapshot_gib_s "
            "and call, with a number that is not negative\n",
            path, wrong);
    int status = !json_is_object(table) || wrong;
    json_decref(table);
    if (!status)
        *ret = prices;
    return status;
}

json_t *prices_json(const struct prices *prices) {
    json_t *table = json_object();

    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        json_object_set_new(table, keys[i].key,
            json_real(*(const double *)(const void *)((const char *)prices + keys[i].offset)));
    return table;
}
