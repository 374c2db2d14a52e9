/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extended regular expressions (regex(7)) from untrusted authors, in a record's rules for secrets.
 *
 * glibc compiles a repetition by copying the repeated part, so a few nested repetitions would
 * exhaust memory. Back references take unbounded time. Both are refused.
 */
#ifndef ROLLBOX_BASE_PATTERN_H
#define ROLLBOX_BASE_PATTERN_H

#include <stddef.h>

#define PATTERN_WHY 200

/* Returns 0, or -EINVAL with the reason, worded as the end of a sentence. */
int pattern_check(const char *pattern, char ret_why[PATTERN_WHY]);

#endif
