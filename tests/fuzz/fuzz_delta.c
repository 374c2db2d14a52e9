/* SPDX-License-Identifier: Apache-2.0 */
/* A difference of an image: what is taken for sound names nothing that its files do not have, and
 * says how long the whole is. The input is the difference; two files that it may lie over are
 * there. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "store/delta.h"

#define BASE_BYTES (3 * DELTA_BLOCK + 100)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char base[BASE_BYTES];
    auto_free char *own = malloc(size + 1);
    volatile unsigned sum = 0;
    uint64_t length = 0;

    if (!own)
        return 0;
    memcpy(own, data, size);
    const struct delta_file files[] = { { own, size }, { base, sizeof base },
        { base, DELTA_BLOCK } };
    struct delta_view view;
    if (!delta_view(files, ARRAY_SIZE(files), &view))
        return 0;
    for (size_t i = 0; i < view.n_runs; i++) {
        const struct delta_run *run = &view.runs[i];

        for (uint64_t k = 0; k < run->length; k++)
            sum += (unsigned char)files[run->file].data[run->offset + k];
        length += run->length;
    }
    (void)sum;
    if (length != view.length)
        abort();
    return 0;
}
