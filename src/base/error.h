/* SPDX-License-Identifier: Apache-2.0 */
/* Filling struct rollbox_error: once, where the context is known. */
#ifndef ROLLBOX_BASE_ERROR_H
#define ROLLBOX_BASE_ERROR_H

#include <rollbox/rollbox.h>

/* Fills *error (may be NULL) with a formatted one-line message and returns -error_number (or
 * -EINVAL for 0), so that `return error_set(...)` reads well. error_number is a positive errno or
 * 0; where it is that of a limit of open files, the message gets a hint. */
__attribute__((format(printf, 5, 6))) int error_set(struct rollbox_error *error,
    enum rollbox_error_code code, int error_number, const char *stage, const char *format, ...);

/* The code that a failed host call most likely means: RESOURCE_EXHAUSTED for EMFILE, ENFILE,
 * ENOMEM, ENOSPC, EAGAIN, EDQUOT, ENOBUFS, ETOOMANYREFS; else `otherwise`. */
enum rollbox_error_code error_code_of(int error_number, enum rollbox_error_code otherwise);

#endif
