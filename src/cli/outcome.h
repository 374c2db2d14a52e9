/* SPDX-License-Identifier: Apache-2.0 */
/* Reports a result to the caller of the program: as one JSON object, or as an exit status, with a
 * line if the status alone is unclear. */
#ifndef ROLLBOX_CLI_OUTCOME_H
#define ROLLBOX_CLI_OUTCOME_H

#include <stddef.h>
#include <stdint.h>

struct options;
struct rollbox_error;
struct rollbox_result;

/* Prints the result as a line of JSON; `id` may be NULL. Returns the exit status: 125 for outcome
 * "error", else 0. */
int outcome_print_json(
    const struct options *options, const struct rollbox_result *result, const char *id);

/* Reports a command that was never started, in the form that --json selects. Returns the exit
 * status. */
int outcome_fail(const struct options *options, const struct rollbox_error *error);

/* The exit status for a result, after a line on standard error if the status alone is unclear.
 * output_limit UINT64_MAX: unknown. */
int outcome_status(
    const struct options *options, const struct rollbox_result *result, uint64_t output_limit);

/* Prints a line on standard error if the command failed and its network refused something, or if
 * it has no network and its last output shows that it needed one. Python's
 * rollbox/_core/result.py has the same words. */
void outcome_hint_network(const struct options *options, const struct rollbox_result *result,
    const char *tail, size_t length);

#endif
