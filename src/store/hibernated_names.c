/* SPDX-License-Identifier: Apache-2.0 */
/* The names that the parts of a record have: its lists, and the files beside it. */
#include <stdio.h>

#include "store/hibernated_read.h"

static const struct {
    const char *list, *file;
} kinds[] = { [HIBERNATED_LAYER] = { "layers", "layer" },
    [HIBERNATED_IMAGE] = { "images", "image" },
    [HIBERNATED_BASE] = { "bases", "base" } };

void hibernated_file_name(
    char ret_name[HIBERNATED_FILE_NAME], enum hibernated_kind kind, size_t i) {
    (void)snprintf(ret_name, HIBERNATED_FILE_NAME, "%s-%zu", kinds[kind].file, i);
}

const char *hibernated_list(enum hibernated_kind kind) {
    return kinds[kind].list;
}
