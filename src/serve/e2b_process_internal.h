/* SPDX-License-Identifier: Apache-2.0 */
/* What e2b_process.c and e2b_stream.c share: a process, and the clients that follow it. */
#ifndef ROLLBOX_SERVE_E2B_PROCESS_INTERNAL_H
#define ROLLBOX_SERVE_E2B_PROCESS_INTERNAL_H

#include "serve/e2b_process.h"

struct process {
    struct list of_box;
    struct server *server;
    struct e2b_box *e2b;             /* not valid any more once it has ended */
    struct exchange *watch;          /* without a client: it counts as a running command */
    const struct process_user *user; /* instead of clients */
    const struct process_followers *followers;
    void *userdata;
    uint32_t pid;
    char id[65];
    json_t *config, *tag;
    struct rollbox_run *run;
    struct process_side {
        struct process *process;
        struct loop_source source;
        int fd;         /* -EBADF: ended */
        uint64_t moved; /* bytes that were read */
    } sides[2];
    int input; /* -EBADF: none */
    struct loop_source input_source;
    struct buf pending;
    struct claim *claim; /* of its standard input, in a thread; NULL: none */
    struct loop_timer deadline;
    struct loop_task sweep; /* frees it, from the loop */
    bool has_stdin, input_ends, is_terminal, is_full, has_result, is_asleep, is_late;
    json_t *end;         /* {"end": ...}, or {"error": ...}, once known */
    struct list streams; /* of e2b_stream.c */
    struct list writers; /* exchanges that wait for the input to be taken */
};

/* The clients that follow a process: e2b_stream.c. */
struct process_followers {
    /* It has written. True: the clients have not read, and nothing more should be read. */
    bool (*output)(struct process *process, bool is_error, const char *data, size_t length);
    /* It has ended: process->end says how. Every client is answered. */
    void (*ended)(struct process *process);
};

/* ---- e2b_process.c ---- */

/* The clients have read. */
void process_go_on(struct process *process);

#endif
