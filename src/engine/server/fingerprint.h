/* SPDX-License-Identifier: Apache-2.0 */
/* Tells two requests under one operation id apart (FNV-1a). A client can only deceive itself. */
#ifndef ROLLBOX_ENGINE_SERVER_FINGERPRINT_H
#define ROLLBOX_ENGINE_SERVER_FINGERPRINT_H

#include <stddef.h>
#include <stdint.h>

#define FINGERPRINT_BEGIN UINT64_C(14695981039346656037)

static inline uint64_t fingerprint_add(uint64_t of, const void *data, size_t length) {
    for (size_t i = 0; i < length; i++)
        of = (of ^ ((const unsigned char *)data)[i]) * UINT64_C(1099511628211);
    return of;
}

#endif
