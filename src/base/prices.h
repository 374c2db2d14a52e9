/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A price table: a JSON object of numbers that are not negative, in any currency. A key that is
 * left out costs nothing.
 *
 *   {"cpu_s": PER_CPU_SECOND, "gib_s": PER_GIB_SECOND_OF_MEMORY, "disk_gib_s": ..._OF_DISK,
 *    "snapshot_gib_s": ..._OF_A_HIBERNATED_SANDBOX, "call": PER_RUN_OR_COMMAND}
 */
#ifndef ROLLBOX_BASE_PRICES_H
#define ROLLBOX_BASE_PRICES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Prices, or the amounts that they are for. */
struct prices {
    double cpu_s, gib_s, disk_gib_s, snapshot_gib_s, call;
};

/* False: `why` says which file is wrong, and how. */
bool prices_read(const char *path, struct prices *ret, char *why, size_t why_size);
json_t *prices_json(const struct prices *prices);
double prices_cost(const struct prices *prices, const struct prices *amounts);

#endif
