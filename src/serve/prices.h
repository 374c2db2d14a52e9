/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A price table: a JSON object of numbers that are not negative, in any currency. A key that is
 * left out costs nothing.
 *
 *   {"cpu_s": PER_CPU_SECOND, "gib_s": PER_GIB_SECOND_OF_MEMORY, "disk_gib_s": ..._OF_DISK,
 *    "snapshot_gib_s": ..._OF_A_HIBERNATED_SANDBOX, "call": PER_RUN_OR_COMMAND}
 */
#ifndef ROLLBOX_SERVE_PRICES_H
#define ROLLBOX_SERVE_PRICES_H

#include <jansson.h>

struct prices {
    double cpu_s, gib_s, disk_gib_s, snapshot_gib_s, call;
};

/* 0, or 1 after a message. */
int prices_read(const char *path, struct prices *ret);
json_t *prices_json(const struct prices *prices);

#endif
