/* SPDX-License-Identifier: Apache-2.0 */
/* A gateway program as a child of the engine: messages to it and from it, and its end. */
#ifndef ROLLBOX_ENGINE_NETWORK_GATEWAY_PROCESS_H
#define ROLLBOX_ENGINE_NETWORK_GATEWAY_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

#include <jansson.h>

#include "base/list.h"
#include "loop/loop.h"

struct engine;

struct gateway_process {
    struct engine *engine;
    const char *program; /* rollbox-egress or rollbox-egress-tls */
    pid_t pid;           /* 0: it does not run */
    int socket, pidfd;
    struct loop_source source;
    struct list waiting; /* struct posted: messages that found no room in the socket */
    struct loop_timer retry;
    bool by_event;
    /* Neither is called from inside of a function of this file. */
    void (*on_message)(struct gateway_process *process, const json_t *message);
    void (*on_end)(struct gateway_process *process);
};

void gateway_process_init(
    struct gateway_process *process, struct engine *engine, const char *program);
/* 0 or -errno. */
int gateway_process_start(struct gateway_process *process);
/* Sends a message (a reference is taken over) with descriptors (borrowed). A message that finds no
 * room is kept and sent later, in order. Does nothing if the process does not run. 0 or -ENOMEM. */
int gateway_process_send(
    struct gateway_process *process, json_t *take_message, const int *fds, size_t n_fds);
/* Ends it, and everything that is connected through it. */
void gateway_process_stop(struct gateway_process *process);

#endif
