/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The measurer: tells the engine how much is in an upper (disk_upper.h), of which it is asked for
 * one at a time. A walk takes the longer the more files there are, so it is a process of its own.
 * It finds no less than what there is, but for files that were removed and that nobody has open as
 * such: mapped, or on their way in a socket; and for what a guest moved out of its way, which it
 * can tell.
 */
#ifndef ROLLBOX_ENGINE_CORE_DISK_USAGE_WORKER_H
#define ROLLBOX_ENGINE_CORE_DISK_USAGE_WORKER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct disk_usage_request {
    uint64_t number; /* of the upper: its name */
    int64_t init;    /* whose processes may have files open that were removed; 0: none */
    bool checks;     /* whether something moved meanwhile, too */
};

struct disk_usage_reply {
    uint64_t number, bytes, entries;
    int64_t took_ns;
    bool is_deep;
    bool was_checked, has_moved; /* from where the walk came to where it was already, perhaps */
};

/* In a process of a single thread: no mode of a file of the caller's keeps it out any more. 0 or
 * -errno. */
int disk_usage_overrule(void);

/* The measurer: answers on the socket until that ends, about what is in `uppers`. */
_Noreturn void disk_usage_serve(int socket, int uppers);

#endif
