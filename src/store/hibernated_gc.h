/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hibernated sandboxes, as gc, fsck and df treat them.
 *
 * A sandbox may be woken, and so disappear, at any moment; a missing file is then not damage. These
 * commands neither wait for an engine nor delay one.
 */
#ifndef ROLLBOX_STORE_HIBERNATED_GC_H
#define ROLLBOX_STORE_HIBERNATED_GC_H

#include <jansson.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

/* Moves to the trash the sandboxes that were to end with an engine that is gone, and the leftovers
 * of those that were awake when their engine died. Unreadable ones are never removed: each becomes
 * a row of `kept`, as in hibernated_gc_check. Under the store's exclusive lock. Adds the freed
 * bytes to *freed. */
int hibernated_gc_collect(
    int store, json_t *kept, uint64_t *ret_removed, uint64_t *freed, struct rollbox_error *error);

/* Compares every file with its record. Adds {"asleep", "sandbox", "file", "reason"} to `damaged`
 * for each difference. */
int hibernated_gc_check(
    int store, json_t *damaged, uint64_t *ret_checked, struct rollbox_error *error);

struct hibernated_usage {
    uint64_t n, bytes;
};

/* The number of hibernated sandboxes, and the size of their files; for woken ones, the size of
 * files that only they have. */
int hibernated_gc_measure(int store, struct hibernated_usage *ret_hibernated,
    struct hibernated_usage *ret_woken, struct rollbox_error *error);

#endif
