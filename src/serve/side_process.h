/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes for what the confined server cannot do itself. Each is forked before the server
 * confines itself, has nothing of the server's but its end of a socket, and ends when the other end
 * closes.
 *
 * The server cannot fork any more when one of them is killed. So it sends the new socket to another
 * one, which forks the replacement: all of them have the same memory of the server's start. Only
 * when both are gone is there no way on (side_process_replace), and the server ends for its service
 * manager.
 */
#ifndef ROLLBOX_SERVE_SIDE_PROCESS_H
#define ROLLBOX_SERVE_SIDE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum side {
    SIDE_KEEPER, /* keeper.h */
    SIDE_STORES, /* store_worker.h */
    SIDE_TRACES, /* becomes rollbox-otlp */
    SIDE_N,
};

/* Gets its end of the socket, and does not return. */
typedef void side_run(int socket, const void *data);

/* Before the first one starts: all of them must know all of them. */
void side_process_define(enum side side, const char *name, side_run *run, const void *data);
/* Forks it. The server's end, or -errno. The process must have no threads yet. */
int side_process_start(enum side side);
/* In a side process: whether the message asks for another one, which is forked then. `fds` came
 * with the message, and stay the caller's. */
bool side_process_take(const void *message, size_t length, const int *fds, size_t n_fds);
/* The message that asks for another one is no longer than this. */
#define SIDE_REQUEST_BYTES 16u

/* In the server: one has ended. Asks the process at `helper` for a new one. The server's end, or
 * -errno. */
int side_process_replace(int helper, enum side side);

#endif
