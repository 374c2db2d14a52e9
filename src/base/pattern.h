/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extended regular expressions (regex(7)) that somebody else may have written: in a record's rules
 * for secrets.
 *
 * glibc compiles a repetition by copying what is repeated, so a few nested ones would take all
 * memory there is; and back references take time that grows without bound. Neither is taken.
 */
#ifndef ROLLBOX_BASE_PATTERN_H
#define ROLLBOX_BASE_PATTERN_H

#include <stddef.h>

#define PATTERN_WHY 200

/* 0; or -EINVAL and why not, as the end of a sentence about it. */
int pattern_check(const char *pattern, char ret_why[PATTERN_WHY]);

#endif
