/* SPDX-License-Identifier: Apache-2.0 */
/* The message format: with any datagram, reading its fields stays inside it. */
#include <stdint.h>
#include <stdlib.h>

#include "base/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct wire_field field;
    size_t position = 0;
    uint64_t value;
    int r;

    while ((r = wire_next(data, size, &position, &field)) == 1) {
        const char *text = wire_text(&field);

        if ((const uint8_t *)field.data < data || field.length > size ||
            (size_t)((const uint8_t *)field.data - data) > size - field.length)
            abort();
        if (text && text[field.length - 1] != '\0')
            abort();
        if (wire_u64(&field, &value) == 0 && field.length != sizeof value)
            abort();
    }
    if (r == 0 && position != size)
        abort();
    return 0;
}
