/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process for what the confined server cannot do itself. It is forked before the server confines
 * itself, has nothing of the server's but its end of a socket, and ends when the other end closes.
 */
#ifndef ROLLBOX_SERVE_SIDE_PROCESS_H
#define ROLLBOX_SERVE_SIDE_PROCESS_H

/* Forks it. `run` gets its end of the socket, and must not return. The server's end, or -errno. The
 * process must have no threads yet. */
int side_process_start(
    const char *name, void (*run)(int socket, const void *data), const void *data);

#endif
