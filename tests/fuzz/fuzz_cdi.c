/* SPDX-License-Identifier: Apache-2.0 */
/* CDI files: any bytes give a specification whose paths are absolute and plain, or a problem of one
 * line, and nothing leaks. The first byte says whether the rest is YAML, or a
 * list of nvidia-container-cli. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "policy/cdi.h"

static void expect(bool holds) {
    if (!holds)
        abort();
}

static void check_path(const json_t *value) {
    const char *path = json_string_value(value);

    expect(path && path[0] == '/' && !strstr(path, "/../") && strlen(path) < 4096);
}

static void check_edits(const json_t *edits) {
    const json_t *item;
    size_t i;

    json_array_foreach(json_object_get(edits, "deviceNodes"), i, item)
        check_path(json_object_get(item, "path"));
    json_array_foreach(json_object_get(edits, "mounts"), i, item) {
        check_path(json_object_get(item, "hostPath"));
        check_path(json_object_get(item, "containerPath"));
    }
    json_array_foreach(json_object_get(edits, "env"), i, item)
        expect(strchr(json_string_value(item), '='));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char problem[CDI_PROBLEM_MAX] = "";
    json_t *spec = NULL;
    const json_t *device;
    size_t i;

    if (size < 1)
        return 0;
    const char *text = (const char *)data + 1;
    int r = data[0] == 'l' ? cdi_parse_list(text, size - 1, &spec, problem)
                           : cdi_parse(text, size - 1, data[0] == 'y', &spec, problem);
    expect(r == 0 || r == -ENOMEM || (r == -EINVAL && problem[0] && !spec));
    if (r < 0)
        return 0;
    check_edits(json_object_get(spec, "containerEdits"));
    json_array_foreach(json_object_get(spec, "devices"), i, device) {
        expect(json_string_value(json_object_get(device, "name")));
        check_edits(json_object_get(device, "containerEdits"));
    }
    (void)cdi_device(spec, "vendor.com/class=a");
    json_decref(spec);
    return 0;
}
