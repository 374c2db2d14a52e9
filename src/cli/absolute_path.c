/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/absolute_path.h"

#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"

char *cli_path_absolute(const char *path) {
    auto_buf struct buf out = BUF_INIT;
    char cwd[PATH_MAX];
    const char *parts[2] = { "", path };

    if (path[0] != '/') {
        if (!getcwd(cwd, sizeof cwd))
            return NULL;
        parts[0] = cwd;
    }
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        for (const char *p = parts[i]; *p;) {
            size_t n = strcspn(p, "/");

            if (n == 2 && p[0] == '.' && p[1] == '.') {
                while (out.length > 0 && out.data[--out.length] != '/')
                    ;
            } else if (n > 0 && !(n == 1 && p[0] == '.')) {
                buf_add(&out, "/", 1);
                buf_add(&out, p, n);
            }
            p += n;
            p += *p == '/';
        }
    if (out.length == 0)
        buf_add(&out, "/", 1);
    buf_add(&out, "", 0);
    return buf_take(&out);
}
