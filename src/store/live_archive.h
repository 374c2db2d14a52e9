/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hibernated sandboxes as files, to be carried to another store or to another machine of the same
 * kind (docs/reference/hibernation-format.md, "Exports with processes").
 *
 * A file is LIVE_ARCHIVE_MAGIC and a tar (zstd): record.json, then the layers and images that the
 * record names, each complete, as in asleep/. The reader trusts nothing in it. An import creates a
 * hibernated, detached sandbox under a policy that its new owner supplies or accepts.
 */
#ifndef ROLLBOX_STORE_LIVE_ARCHIVE_H
#define ROLLBOX_STORE_LIVE_ARCHIVE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#define LIVE_ARCHIVE_MAGIC "rollbox live 1\n" /* with its NUL */

/* The job on `fd`: {"to": fd} and what `hibernate` has, or {"to": fd, "id", "asleep": true}: what
 * sleeps, as it is. *ret_json: {"bytes", "processes"}. */
int live_archive_export(int store, int fd, json_t **ret_json, struct rollbox_error *error);

/* Does a file begin as one does? */
bool live_archive_is_live(const char *path);

struct live_archive_options {
    const char *name;   /* of the sandbox */
    const char *socket; /* of the engine that it is for */
    const char *policy; /* a file's path; NULL: its own, which must not grant more than the default
                           one unless `trusts` */
    bool trusts, drops; /* drops: only its files */
    uint64_t max_bytes;
};

/* {"name", "asleep": ID, "bytes", "processes", "policy"}. INVALID_ARGUMENT, DAMAGED, CONFLICT (the
 * name is another's), FEATURE_MISSING (it is not for this machine), IO. */
int live_archive_import(int store, const char *path, const struct live_archive_options *options,
    json_t **ret_json, struct rollbox_error *error);

#endif
