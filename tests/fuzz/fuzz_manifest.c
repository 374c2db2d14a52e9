/* SPDX-License-Identifier: Apache-2.0 */
/* Manifests: what is taken can be written and read again, and is the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "store/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (int kind = MANIFEST_IMAGE; kind <= MANIFEST_SNAPSHOT; kind++) {
        struct rollbox_error error = { 0 };
        struct manifest manifest, again;

        if (manifest_parse((const char *)data, size, (enum manifest_kind)kind, &manifest, &error) <
            0) {
            if (error.code == ROLLBOX_OK || !error.message[0])
                abort();
            continue;
        }
        char *file = manifest_file_name(manifest.name),
             *name = file ? manifest_name_of_file(file) : NULL, *text = manifest_text(&manifest);
        if (!file || strchr(file, '/') || file[0] == '.' || !name ||
            strcmp(name, manifest.name) != 0)
            abort();
        for (size_t i = 0; i < manifest.n_layers; i++)
            if (!layer_id_ok(manifest.layers[i]))
                abort();
        if (!text ||
            manifest_parse(text, strlen(text), (enum manifest_kind)kind, &again, NULL) < 0 ||
            again.n_layers != manifest.n_layers)
            abort();
        free(file);
        free(name);
        free(text);
        manifest_done(&manifest);
        manifest_done(&again);
    }
    return 0;
}
