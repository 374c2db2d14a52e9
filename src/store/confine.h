/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process that reads an archive: what it can do to the host if a parser is taken over.
 *
 * Nothing outside a few directories (Landlock), no programs, sockets, namespaces, mounts, or
 * looking into other processes (seccomp), no capability but what giving files their owners takes,
 * no endless memory. Landlock is a second layer here: where the kernel has none, the rest stands,
 * and the result says so.
 */
#ifndef ROLLBOX_STORE_CONFINE_H
#define ROLLBOX_STORE_CONFINE_H

#include <stdbool.h>
#include <stddef.h>

#include <rollbox/rollbox.h>

struct confine {
    const int *readable; /* descriptors of files and directories */
    size_t n_readable;
    int writable; /* of a directory */
};

/* For the calling process, for good. *ret_landlock: the domain was entered. */
int confine_enter(const struct confine *confine, bool *ret_landlock, struct rollbox_error *error);

#endif
