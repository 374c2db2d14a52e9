/* SPDX-License-Identifier: Apache-2.0 */
/* Instead of toml.cc where toml11 or a C++ compiler is missing. */
#include <string.h>

#include "serve/config.h"

int config_parse_toml(const char *text, size_t length, const char *path, config_setter *set,
    void *data, char **ret_why) {
    (void)text;
    (void)length;
    (void)path;
    (void)set;
    (void)data;
    *ret_why = strdup("--config needs TOML, and this rollbox-serve was built without toml11 "
                      "(Debian's libtoml11-dev) or without a C++ compiler; give the options on "
                      "the command line");
    return -1;
}
