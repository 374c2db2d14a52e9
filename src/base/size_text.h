/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes for people, in the one format of the whole product: "512", "1.2K", "34M", by 1,024.
 * Python's rollbox/_snapshots.py has the same, and a test compares both. */
#ifndef ROLLBOX_BASE_SIZE_TEXT_H
#define ROLLBOX_BASE_SIZE_TEXT_H

struct buf;

void size_text_add(struct buf *to, double bytes);

#endif
