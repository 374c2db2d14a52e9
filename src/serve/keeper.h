/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts engines, and connects to them.
 *
 * The server cannot: it gives up execve, clone, socket and connect before it reads a request. So a
 * process of its own, the keeper, is forked before that. It parses nothing but the fixed messages
 * below, which name engines by a number and a tenant, and passes connected sockets back. It ends
 * with the server.
 */
#ifndef ROLLBOX_SERVE_KEEPER_H
#define ROLLBOX_SERVE_KEEPER_H

#include <sys/types.h>

#include "client/client.h"
#include "serve/config.h"

#define KEEPER_OWNER_MAX 32

/* The identity of an engine. */
struct keeper_engine {
    unsigned number;
    bool stops;                   /* of a request: the engine is to end; there is no answer */
    char owner[KEEPER_OWNER_MAX]; /* of an engine of one tenant; else "" */
};

struct keeper_answer {
    struct keeper_engine engine;
    int error_number; /* 0: the socket comes with the message, and the pidfd of a private engine */
    pid_t pid;
    char message[512];
};

/* The same for this process, at its start: 0, or an error. */
int keeper_open(const struct config *config, const struct keeper_engine *engine,
    struct spawned *ret_spawned, struct rollbox_error *error);

/* Before any side process starts. */
void keeper_define(const struct config *config);
/* Asks for an engine, by a socket of side_process.h that does not block. 0 or -errno. */
int keeper_ask(int socket, const struct keeper_engine *engine);
/* An answer: 1, with *ret_spawned if it has no error; 0: none is there; or -errno. */
int keeper_answer(int socket, struct keeper_answer *ret_answer, struct spawned *ret_spawned);

#endif
