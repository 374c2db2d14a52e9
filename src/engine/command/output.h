/* SPDX-License-Identifier: Apache-2.0 */
/* The output of a command. */
#ifndef ROLLBOX_ENGINE_COMMAND_OUTPUT_H
#define ROLLBOX_ENGINE_COMMAND_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/list.h"
#include "loop/loop.h"

struct output;
struct run;

/* Consequences of a command's output, for the owner of the run. Each may end the run. */
struct output_ops {
    void (*ended)(struct output *output); /* nobody has it open for writing any more */
    void (*overflowed)(struct output *output);
    void (*lost)(struct output *output, int error_number); /* it cannot be kept */
};

struct output {
    struct run *run;
    const struct output_ops *ops;
    struct list streams; /* struct stream: clients that receive it at once */
    struct loop_source source;
    int fd; /* read end; -EBADF once at its end or never there */
    struct buf head;
    int spool;      /* memory file with everything, once head is too small; -EBADF */
    uint64_t total; /* bytes kept */
    bool truncated, sealed;
};

int output_open(struct output *output, struct run *run, int *ret_write_end);
int output_adopt(struct output *output, int take_fd); /* a terminal's master */
void output_drain(struct output *output);
int output_seal(struct output
        *output); /* its memory file, if it has one, before anybody else gets that: 0 or -errno */
void output_done(struct output *output);
void output_hand_over(struct output *output); /* of a command that has ended, whose stream somebody
                                                 may still write to, and others still read */

#endif
