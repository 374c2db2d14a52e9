/* SPDX-License-Identifier: Apache-2.0 */
/* How a result is told to whoever called the program: as one JSON object, or as an exit status with
 * a line where the status alone is not plain. */
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

/* The end of what never began: told as --json asks for. Returns the exit status. */
int outcome_fail(const struct options *options, const struct rollbox_error *error);

/* The exit status that a result means, after a line on standard error about whatever is not plain
 * from it. output_limit UINT64_MAX: not known here. */
int outcome_status(
    const struct options *options, const struct rollbox_result *result, uint64_t output_limit);

/* A line on standard error if the command failed, has no network, and what it wrote last tells that
 * it wanted one. Python's rollbox/_core/result.py has the same words. */
void outcome_hint_network(const struct options *options, const struct rollbox_result *result,
    const char *tail, size_t length);

#endif
