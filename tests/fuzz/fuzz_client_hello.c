/* SPDX-License-Identifier: Apache-2.0 */
/* A TLS client's first message: it is read alike however many bytes have come, and its name is a
 * text of the given length. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "net/client_hello.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct client_hello hello, again;
    int whole = client_hello_read(data, size, &hello);

    if (whole == 0 && strlen(hello.name) >= sizeof hello.name)
        abort();
    /* A verdict about a part stays true of all. */
    for (size_t part = 0; part < size; part += 1 + size / 16) {
        int r = client_hello_read(data, part, &again);

        if (r != -EAGAIN && r != whole)
            abort();
        if (r == 0 && (strcmp(hello.name, again.name) != 0 || hello.has_ech != again.has_ech))
            abort();
    }
    return 0;
}
