/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel and processor that a process image is valid for. */
#ifndef ROLLBOX_STORE_FINGERPRINT_H
#define ROLLBOX_STORE_FINGERPRINT_H

#include <jansson.h>

#include <rollbox/rollbox.h>

/* {"kernel", "vdso", "processor"} of here and now. NULL: out of memory. */
json_t *fingerprint_now(void);

/* FEATURE_MISSING, in words, if they are not the same; `hint` is their end. */
int fingerprint_check(
    const json_t *then, const char *stage, const char *hint, struct rollbox_error *error);

#endif
