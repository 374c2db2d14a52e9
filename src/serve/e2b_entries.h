/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of files in the form of E2B's daemon. The calls block. */
#ifndef ROLLBOX_SERVE_E2B_ENTRIES_H
#define ROLLBOX_SERVE_E2B_ENTRIES_H

#include <jansson.h>
#include <rollbox/rollbox.h>

/* *ret_entry is new. */
int entries_stat(struct rollbox_sandbox *sandbox, const char *path, json_t **ret_entry,
    struct rollbox_error *error);
/* A directory, and the directories in it down to `depth` levels (0: one); at most that many. */
int entries_list(struct rollbox_sandbox *sandbox, const char *path, int64_t depth, size_t most,
    json_t **ret_entries, struct rollbox_error *error);

#endif
