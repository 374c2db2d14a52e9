/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk usage worker: measures one upper (disk_upper.h) at a time for the engine.
 *
 * A walk takes longer the more files there are, so the worker is a process of its own. It may miss
 * only removed files that are still mapped or on their way in a socket, and files that a guest
 * moved during the walk. It notices the latter.
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

/* In a process of a single thread: no mode of a file keeps it out any more that is the caller's or,
 * if he has one, of his range of ids. 0 or -errno. */
int disk_usage_overrule(void);

/* The worker's loop: measures `uppers` and answers on the socket, until the socket ends. */
_Noreturn void disk_usage_serve(int socket, int uppers);

#endif
