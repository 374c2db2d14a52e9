/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pattern.h"

#include <ctype.h>
#include <errno.h>
#include <regex.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* With all repetitions written out. A compiled pattern takes memory that grows with the square. */
#define MAX_PARTS 4000u
#define MAX_DEPTH 64

static bool has_back_reference(const char *pattern) {
    for (; *pattern; pattern++)
        if (*pattern == '\\' && *++pattern >= '1' && *pattern <= '9')
            return true;
        else if (!*pattern)
            break;
    return false;
}

/* Returns the "]" that ends the bracket expression at p, or the last character of the pattern. */
static const char *skip_bracket(const char *p) {
    p++;
    p += *p == '^';
    p += *p == ']';
    for (; *p && *p != ']'; p++)
        if (*p == '[' && p[1] && strchr(":.=", p[1])) {
            const char ends[] = { p[1], ']', '\0' }, *end = strstr(p + 2, ends);

            if (!end)
                return p + strlen(p) - 1;
            p = end + 1;
        }
    return *p ? p : p - 1;
}

/* The number of copies of the part before "{m,n}". Moves *p to the end of the count. */
static unsigned long parse_repetitions(const char **p) {
    char *end;
    unsigned long least = strtoul(*p + 1, &end, 10), most = least;

    if (*end == ',')
        most = isdigit((unsigned char)end[1]) ? strtoul(end + 1, &end, 10) : (end++, least + 1);
    if (*end == '}')
        *p = end;
    return least > most ? least : most;
}

static bool has_too_many_parts(const char *pattern) {
    size_t parts[MAX_DEPTH] = { 0 }, depth = 0, last = 0;

    for (const char *p = pattern; *p; p++) {
        size_t times = 1;

        switch (*p) {
        case '(':
            if (++depth == MAX_DEPTH)
                return true;
            parts[depth] = last = 0;
            continue;
        case ')':
            if (!depth)
                continue;
            last = parts[depth--] + 1;
            parts[depth] += last;
            break;
        case '*':
        case '?':
            continue;
        case '+':
            times = 2;
            break;
        case '{':
            times = isdigit((unsigned char)p[1]) || p[1] == ',' ? parse_repetitions(&p) : 1;
            break;
        case '[':
            p = skip_bracket(p);
            parts[depth] += last = 1;
            break;
        case '\\':
            p += p[1] != '\0';
            parts[depth] += last = 1;
            break;
        default:
            parts[depth] += last = 1;
            break;
        }
        if (times > MAX_PARTS)
            return true;
        if (times > 1) {
            parts[depth] += last * (times - 1);
            last *= times;
        }
        if (parts[depth] > MAX_PARTS)
            return true;
    }
    return false;
}

int pattern_check(const char *pattern, char ret_why[PATTERN_WHY]) {
    char problem[PATTERN_WHY - 60];
    regex_t regex;

    if (!*pattern)
        (void)snprintf(ret_why, PATTERN_WHY, "is empty");
    else if (has_back_reference(pattern))
        (void)snprintf(ret_why, PATTERN_WHY,
            "has a back reference, which lets a guest make matching arbitrarily slow");
    else if (has_too_many_parts(pattern))
        (void)snprintf(ret_why, PATTERN_WHY,
            "is too large with its repetitions written out (at most %u parts)", MAX_PARTS);
    else {
        int r = regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB);

        if (r == 0) {
            regfree(&regex);
            return 0;
        }
        (void)regerror(r, &regex, problem, sizeof problem);
        (void)snprintf(
            ret_why, PATTERN_WHY, "is not an extended regular expression (regex(7)): %s", problem);
    }
    return -EINVAL;
}
