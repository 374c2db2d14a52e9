/* SPDX-License-Identifier: Apache-2.0 */
/* What the server gives up; confine.c has the model. */
#ifndef ROLLBOX_SERVE_CONFINE_H
#define ROLLBOX_SERVE_CONFINE_H

/* Landlock, before any thread is started. The paths may be NULL. 0 or -errno. */
int confine_files(const char *tokens_path, const char *socket_path);
/* seccomp, for all threads; the last step. 0 or -errno. */
int confine_server(void);

#endif
