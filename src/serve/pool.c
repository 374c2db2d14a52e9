/* SPDX-License-Identifier: Apache-2.0 */
/* Threads for calls that block; pool.h has the model. */
#include "serve/pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/cleanup.h"

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct list waiting, finished;
    struct loop_source source;
    int event;
};

static void *run(void *userdata) {
    struct pool *pool = userdata;

    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (list_empty(&pool->waiting))
            pthread_cond_wait(&pool->work, &pool->lock);
        struct pool_job *job = container_of(pool->waiting.next, struct pool_job, node);
        list_remove(&job->node);
        pthread_mutex_unlock(&pool->lock);
        job->work(job);
        pthread_mutex_lock(&pool->lock);
        list_add_tail(&pool->finished, &job->node);
        eventfd_write(pool->event, 1);
    }
    return NULL;
}

static void on_finished(struct loop_source *source, uint32_t events) {
    struct pool *pool = container_of(source, struct pool, source);
    eventfd_t count;

    (void)events;
    (void)eventfd_read(pool->event, &count);
    for (;;) {
        pthread_mutex_lock(&pool->lock);
        struct list *node = list_empty(&pool->finished) ? NULL : pool->finished.next;
        if (node)
            list_remove(node);
        pthread_mutex_unlock(&pool->lock);
        if (!node)
            return;
        struct pool_job *job = container_of(node, struct pool_job, node);
        job->done(job);
    }
}

int pool_new(struct loop *loop, unsigned n_threads, struct pool **ret_pool) {
    struct pool *pool = calloc(1, sizeof *pool);
    pthread_t thread;

    if (!pool)
        return -ENOMEM;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    list_init(&pool->waiting);
    list_init(&pool->finished);
    pool->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (pool->event < 0)
        return -errno;
    int r = loop_add(loop, &pool->source, pool->event, EPOLLIN, on_finished);
    for (unsigned i = 0; r >= 0 && i < n_threads; i++)
        r = -pthread_create(&thread, NULL, run, pool);
    if (r >= 0)
        *ret_pool = pool;
    return r;
}

void pool_submit(struct pool *pool, struct pool_job *job) {
    pthread_mutex_lock(&pool->lock);
    list_add_tail(&pool->waiting, &job->node);
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}
