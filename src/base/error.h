/* SPDX-License-Identifier: Apache-2.0 */
/* Filling struct rollbox_error: once, where the context is known. */
#ifndef ROLLBOX_BASE_ERROR_H
#define ROLLBOX_BASE_ERROR_H

#include <rollbox/rollbox.h>

/* Fills *error (may be NULL) with a formatted one-line message and returns -error_number (or
 * -EINVAL for 0), so that a caller can write `return error_set(...)`. error_number is a positive
 * errno or 0. If it means that a limit of open files was reached, the message gets a hint. */
__attribute__((format(printf, 5, 6))) int error_set(struct rollbox_error *error,
    enum rollbox_error_code code, int error_number, const char *stage, const char *format, ...);

/* The most likely error code for a failed system call: RESOURCE_EXHAUSTED for EMFILE, ENFILE,
 * ENOMEM, ENOSPC, EAGAIN, EDQUOT, ENOBUFS and ETOOMANYREFS, else `otherwise`. */
enum rollbox_error_code error_code_of(int error_number, enum rollbox_error_code otherwise);

#endif
