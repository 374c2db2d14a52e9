/* SPDX-License-Identifier: Apache-2.0 */
#include "store/image_platform.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"
#include "store/files.h"

const char *image_architecture(void) {
    static struct utsname machine;

    if (uname(&machine) < 0)
        return "unknown";
    return strcmp(machine.machine, "x86_64") == 0    ? "amd64"
           : strcmp(machine.machine, "aarch64") == 0 ? "arm64"
                                                     : machine.machine;
}

struct image_platform image_platform_own(void) {
    struct image_platform platform = { .os = "linux" };

    snprintf(platform.architecture, sizeof platform.architecture, "%s", image_architecture());
    return platform;
}

int image_platform_parse(
    const char *text, struct image_platform *ret_platform, struct rollbox_error *error) {
    struct image_platform platform = { 0 };
    char *const parts[] = { platform.os, platform.architecture, platform.variant };
    const char *rest = text;
    size_t n = 0;

    if (!text) {
        *ret_platform = image_platform_own();
        return 0;
    }
    for (; n < ARRAY_SIZE(parts) && *rest; n++) {
        size_t length = strcspn(rest, "/");

        if (!length || length >= sizeof platform.os)
            break;
        memcpy(parts[n], rest, length);
        rest += length + (rest[length] == '/');
    }
    if (n < 2 || *rest || text[strlen(text) - 1] == '/')
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "--platform %s: must be OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT, such as "
            "linux/arm64",
            files_printable(text));
    *ret_platform = platform;
    return 0;
}

static bool fits_text(const json_t *described, const char *key, const char *wanted) {
    const char *text = json_string_value(json_object_get(described, key));

    return !text || !text[0] || !wanted[0] || strcmp(text, wanted) == 0;
}

bool image_platform_fits(const struct image_platform *platform, const json_t *described) {
    return fits_text(described, "os", platform->os) &&
           fits_text(described, "architecture", platform->architecture) &&
           fits_text(described, "variant", platform->variant);
}

void image_platform_add(struct buf *to, const json_t *described) {
    static const char *const keys[] = { "os", "architecture", "variant" };

    for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
        const char *text = json_string_value(json_object_get(described, keys[i]));

        if (text && text[0])
            buf_printf(to, "%s%s", text_if(i > 0, "/"), files_printable(text));
    }
}

json_t *image_platform_choose(const json_t *index, const struct image_platform *platform) {
    json_t *descriptor, *chosen = NULL;
    size_t i;

    json_array_foreach(json_object_get(index, "manifests"), i, descriptor) {
        const json_t *described = json_object_get(descriptor, "platform");
        const char *variant = json_string_value(json_object_get(described, "variant"));

        if (!image_platform_fits(platform, described))
            continue;
        if (!chosen)
            chosen = descriptor;
        if (!variant || !variant[0])
            return descriptor;
    }
    return chosen;
}
