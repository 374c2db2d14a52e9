/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Confines the process that reads an archive, in case an attacker takes over the parser.
 *
 * The process can reach only a few directories (Landlock). Seccomp refuses programs, sockets,
 * namespaces, mounts and access to other processes. It keeps only the capabilities for changing
 * file owners, and its memory is limited. Landlock is a second layer here: on a kernel without
 * Landlock the rest still applies, and the result reports that.
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
