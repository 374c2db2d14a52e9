/* SPDX-License-Identifier: Apache-2.0 */
/* The names that the parts of a record have: its lists, and the files beside it. */
#include <stdio.h>

#include "store/asleep.h"

static const struct { const char *list, *file; } kinds[] = { [ASLEEP_LAYER] = { "layers", "layer" }, [ASLEEP_IMAGE] = { "images", "image" }, [ASLEEP_BASE] = { "bases", "base" } };

void asleep_file_name(char ret_name[ASLEEP_FILE_NAME], enum asleep_kind kind, size_t i) {
    (void)snprintf(ret_name, ASLEEP_FILE_NAME, "%s-%zu", kinds[kind].file, i);
}

const char *asleep_list(enum asleep_kind kind) {
    return kinds[kind].list;
}
