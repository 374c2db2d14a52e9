/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people write them: digits and a unit, powers of 1024. */
#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "policy/policy.h"

/* 0 for "", "B"; 10 for "K", "k", "KiB"; ...; -EINVAL for what is no unit. "KB" is none: half the
 * world means 1000 by it. */
static int unit_shift(const char *unit) {
    static const char letters[] = "KMGT";
    const char *letter;

    if (*unit == 0 || strcmp(unit, "B") == 0)
        return 0;
    letter = strchr(letters, toupper((unsigned char)*unit));
    if (letter == NULL || (unit[1] != 0 && strcmp(unit + 1, "iB") != 0))
        return -EINVAL;
    return 10 * (int)(letter - letters + 1);
}

int policy_parse_size(const char *text, uint64_t *ret_bytes) {
    uint64_t value = 0;
    bool over = false;
    int shift;

    if (!isdigit((unsigned char)*text))
        return -EINVAL;
    for (; isdigit((unsigned char)*text); text++)
        over |= __builtin_mul_overflow(value, (uint64_t)10, &value) ||
                __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value);

    shift = unit_shift(text);
    if (shift < 0)
        return shift;
    if (over || value > UINT64_MAX >> shift)
        return -ERANGE;
    *ret_bytes = value << shift;
    return 0;
}
