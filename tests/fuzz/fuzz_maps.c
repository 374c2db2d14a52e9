/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of /proc/PID/maps: with any path in a line, the values that are read make sense and the
 * path lies inside the line. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "dump/dump.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct map_line map;
    char *line = malloc(size + 1);

    if (!line)
        return 0;
    memcpy(line, data, size);
    line[size] = '\0';
    if (map_line_parse(line, &map) == 0 &&
        (map.end <= map.start || map.protection & ~7u || map.path < line ||
            map.path + strlen(map.path) > line + size))
        abort();
    free(line);
    return 0;
}
