/* SPDX-License-Identifier: Apache-2.0 */
/* Random streams, one for each process: det/dispatch.c has the model. The kernel keeps their state
 * with the process. */
#ifndef ROLLBOX_GUEST_DET_STREAM_H
#define ROLLBOX_GUEST_DET_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct stream {
    uint64_t state;
    pid_t owner;
};

/* The purposes of random numbers. */
enum { PURPOSE_NEXT, PURPOSE_BYTES, PURPOSE_CHILD, PURPOSE_COMMAND };

uint64_t stream_derive(uint64_t seed, uint64_t state, uint32_t purpose);
/* 0 or -errno. */
int stream_store(pid_t pid, const struct stream *stream);
/* Writes the next bytes of a process's stream to its memory. Their number or -errno. */
long stream_draw(uint64_t seed, pid_t pid, uint64_t to, size_t length);
/* Before a fork: parent and child continue from the new state, each in its own way. */
void stream_advance(uint64_t seed, pid_t pid);

#endif
