/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ceilings: the most that the policies of a tenant may have.
 *
 * A ceiling is a JSON object with keys of policies:
 *
 *   max_memory, max_disk, max_cpu, max_processes, max_open_files, max_output, timeout
 *                          the highest value; a policy without the key gets this value if the
 *                          default would be higher
 *   net                    a list of the modes that are allowed
 *   fs_readable, fs_writable, fs_shared
 *                          lists of paths: what a policy grants must be one of them, or below
 *   image, volumes, devices  lists of patterns (* and ?) of names
 *   defaults               members that a policy gets which has none of that name
 *
 * A key that the ceiling has not is not limited by it (scopes of tokens limit it still). A key that
 * no ceiling has is an error, so that a mistyped one does not allow everything.
 *
 * policy_parse reads both sides, so that all spellings of a value are the same to a ceiling.
 */
#ifndef ROLLBOX_SERVE_CEILING_H
#define ROLLBOX_SERVE_CEILING_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "serve/quota.h"

#define CEILING_TEXT 600

/* A fault of the ceiling itself: its text, into `ret`; false: none. */
bool ceiling_fault(const json_t *ceiling, char ret[CEILING_TEXT]);
/* Fills defaults in, and compares. False: the policy exceeds the ceiling; the key, the value and
 * the ceiling are in `ret`. `policy` is an object and is changed. */
bool ceiling_apply(const json_t *ceiling, json_t *policy, char ret[CEILING_TEXT]);
/* The same for limits that are known already, of a sandbox. */
bool ceiling_allows(const json_t *ceiling, const struct amounts *limits, char ret[CEILING_TEXT]);
/* The same for the time of a command; `timeout_ms` 0: no limit. */
bool ceiling_allows_time(const json_t *ceiling, int64_t timeout_ms, char ret[CEILING_TEXT]);
/* The longest time of a command in ms; ROLLBOX_NO_TIMEOUT: no ceiling. */
int64_t ceiling_time(const json_t *ceiling);
/* The most bytes of each stream of a command's output; UINT64_MAX: no ceiling. */
uint64_t ceiling_output(const json_t *ceiling);

#endif
