/* SPDX-License-Identifier: Apache-2.0 */
#include "store/manifests.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "store/files.h"
#include "store/store.h"

int manifests_each(int store, enum manifest_kind kind, manifest_visitor visit, void *context,
    struct rollbox_error *error) {
    const char *directory = store_manifest_directory(kind);
    struct names names;

    auto_close int fd = openat(store, directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int r = fd < 0 ? -errno : names_read(fd, &names);
    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "store",
            "cannot read %s of the store: %s", directory, strerror(-r));
    for (size_t i = 0; r == 0 && i < names.n; i++) {
        auto_free char *name = manifest_name_of_file(names.list[i]);
        struct rollbox_error inner = { 0 };
        struct manifest manifest = { 0 };

        if (!name) {
            r = visit(context, names.list[i], NULL, "is no manifest");
            continue;
        }
        int found = store_manifest(store, kind, name, &manifest, &inner);
        if (found == -ENOENT)
            continue; /* removed meanwhile */
        r = found < 0 ? visit(context, name, NULL, inner.message)
                      : visit(context, name, &manifest, NULL);
        manifest_done(&manifest);
    }
    names_done(&names);
    return r < 0
               ? error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory")
               : 0;
}
