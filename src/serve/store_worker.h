/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs rollbox-store, which works on images, volumes and snapshots of the server's machine. The
 * server cannot execute programs (confine.h), so a process of its own, the worker, is forked before
 * it is confined. The worker takes arguments and three descriptors in a message, and starts the
 * program with them. It ends with the server.
 */
#ifndef ROLLBOX_SERVE_STORE_WORKER_H
#define ROLLBOX_SERVE_STORE_WORKER_H

#include <rollbox/rollbox.h>

/* Before any side process starts. */
void store_worker_define(void);

/* Runs the program with these arguments after its name, NULL-terminated, and waits for its end.
 * `input_fd` is its standard input (borrowed; -1: none). 0 with its JSON, which the caller frees;
 * or negative with the error. Any thread may call it. */
int store_worker_run(int socket, const char *const *arguments, int input_fd, char **ret_json,
    struct rollbox_error *error);

/* A new file without a name, for bytes that the program must be able to seek in. Its descriptor, or
 * negative with the error. Any thread may call it. */
int store_worker_file(int socket, struct rollbox_error *error);

#endif
