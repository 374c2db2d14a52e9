/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A few threads for calls of librollbox that block: the compilation of a policy, and transfers of
 * files. The loop's thread submits a job; when a thread has carried it out, the loop's thread calls
 * its `done`. Jobs never wait for memory or for other jobs.
 */
#ifndef ROLLBOX_SERVE_POOL_H
#define ROLLBOX_SERVE_POOL_H

#include "base/list.h"
#include "loop/loop.h"

struct pool;

struct pool_job {
    struct list node;
    void (*work)(struct pool_job *job); /* on a thread of the pool */
    void (*done)(struct pool_job *job); /* on the loop's thread; may free the job */
};

/* The threads are started here, before the process is confined. 0 or -errno. */
int pool_new(struct loop *loop, unsigned n_threads, struct pool **ret_pool);
void pool_submit(struct pool *pool, struct pool_job *job);

#endif
