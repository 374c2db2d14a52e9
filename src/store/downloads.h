/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that a pull has fetched and not yet imported: files in downloads/ of the store, named by
 * their digests. A pull links them into its own directory, so they may be removed at any time. */
#ifndef ROLLBOX_STORE_DOWNLOADS_H
#define ROLLBOX_STORE_DOWNLOADS_H

#include <stdint.h>

/* Opens the directory, which is made if it is missing. A descriptor or -errno. */
int downloads_open(int store);

/* Removes those of pulls that nobody has continued for a day. *freed grows by their bytes. 0 or
 * -errno. */
int downloads_sweep(int store, uint64_t *freed);

#endif
