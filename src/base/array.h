/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow by one item at a time. */
#ifndef ROLLBOX_BASE_ARRAY_H
#define ROLLBOX_BASE_ARRAY_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The zeroed place of item number `n` of the array that `items_pointer` points to; the array's room
 * doubles when it is full. The caller counts the item. NULL: out of memory. */
static inline void *array_add(void *items_pointer, size_t n, size_t size) {
    void **items = items_pointer;

    if ((n & (n - 1)) == 0) {
        void *grown = reallocarray(*items, n ? 2 * n : 1, size);

        if (!grown)
            return NULL;
        *items = grown;
    }
    return memset((char *)*items + n * size, 0, size);
}

#endif
