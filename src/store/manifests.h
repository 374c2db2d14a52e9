/* SPDX-License-Identifier: Apache-2.0 */
/* All images or snapshots of a store. */
#ifndef ROLLBOX_STORE_MANIFESTS_H
#define ROLLBOX_STORE_MANIFESTS_H

#include <rollbox/rollbox.h>

#include "store/manifest.h"

/* Called for each manifest; with `problem`, and perhaps no manifest, if it cannot be used. */
typedef int (*manifest_visitor)(
    void *context, const char *name, const struct manifest *manifest, const char *problem);

/* Calls for each manifest of a kind, sorted by their files' names, until `visit` returns a negative
 * number, which must be for lack of memory. */
int manifests_each(int store, enum manifest_kind kind, manifest_visitor visit, void *context,
    struct rollbox_error *error);

#endif
