/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the line of a key in a policy's text. jansson reports lines only for syntax errors, so a
 * second, small scanner walks the text that jansson has accepted. */
#ifndef ROLLBOX_POLICY_LOCATE_H
#define ROLLBOX_POLICY_LOCATE_H

#include <stddef.h>

/* The line (from 1) of `key` in the object that is the text; of its element `index` if that is not
 * -1, and of the member `member` of that object if that is not NULL (as far as they exist). 0 if
 * the text has no such key. The text must be valid JSON. */
unsigned locate_line(
    const char *text, size_t length, const char *key, long index, const char *member);

#endif
