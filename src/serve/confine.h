/* SPDX-License-Identifier: Apache-2.0 */
/* The rights that the server gives up; confine.c has the model. */
#ifndef ROLLBOX_SERVE_CONFINE_H
#define ROLLBOX_SERVE_CONFINE_H

#include <stddef.h>

/* Landlock, before any thread is started: the files that may be read (NULLs are skipped), the
 * directory that may be written and the socket that may be removed (may be NULL). 0 or -errno. */
int confine_files(
    const char *const *read, size_t n_read, const char *state, const char *socket_path);
/* seccomp, for all threads; the last step. 0 or -errno. */
int confine_server(void);

#endif
