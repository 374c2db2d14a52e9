/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of /proc/PID/maps: "start-end perms offset major:minor inode   path". proc(5). */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "dump/dump.h"

/* Parses a number and the character that must follow it. */
static int take_number(char **at, int base, char after, uint64_t *ret_number) {
    char *end;

    if (!isxdigit((unsigned char)**at))
        return -EBADMSG;
    errno = 0;
    *ret_number = strtoull(*at, &end, base);
    if (errno || end == *at || *end != after)
        return -EBADMSG;
    *at = end + 1;
    return 0;
}

/* The kernel writes a newline in a path as \012, and escapes nothing else. */
static void unescape_path(char *path) {
    char *to = path;

    for (const char *from = path; *from; from++) {
        if (!strncmp(from, "\\012", 4)) {
            *to++ = '\n';
            from += 3;
        } else {
            *to++ = *from;
        }
    }
    *to = '\0';
}

int map_line_parse(char *line, struct map_line *ret_line) {
    static const char letters[] = "rwx";
    static const uint32_t bits[] = { PROT_READ, PROT_WRITE, PROT_EXEC };
    struct map_line map = { 0 };
    uint64_t major, minor;
    char *at = line;

    if (take_number(&at, 16, '-', &map.start) < 0 || take_number(&at, 16, ' ', &map.end) < 0 ||
        map.end <= map.start)
        return -EBADMSG;
    for (size_t i = 0; i < 3; i++) {
        if (at[i] != letters[i] && at[i] != '-')
            return -EBADMSG;
        map.protection |= at[i] == '-' ? 0 : bits[i];
    }
    if ((at[3] != 'p' && at[3] != 's') || at[4] != ' ')
        return -EBADMSG;
    map.is_shared = at[3] == 's';
    at += 5;
    if (take_number(&at, 16, ' ', &map.offset) < 0 || take_number(&at, 16, ':', &major) < 0 ||
        take_number(&at, 16, ' ', &minor) < 0 || major > UINT32_MAX || minor > UINT32_MAX)
        return -EBADMSG;
    map.major = (uint32_t)major;
    map.minor = (uint32_t)minor;
    char *end;
    if (!isdigit((unsigned char)*at))
        return -EBADMSG;
    map.inode = strtoull(at, &end, 10);
    if (*end && *end != ' ')
        return -EBADMSG;
    end += strspn(end, " ");
    unescape_path(end);
    map.path = end;
    *ret_line = map;
    return 0;
}
