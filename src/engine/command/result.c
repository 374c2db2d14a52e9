/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results on their way to clients. Each is kept for a while under its operation id: a client that
 * lost its connection, or gave up too early, and asks again gets the first answer and not a second
 * run.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/wire.h"
#include "engine/box/profile.h"
#include "engine/command/command.h"
#include "engine/command/output.h"
#include "engine/command/result.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/core/log.h"
#include "engine/network/gateway.h"
#include "engine/protocol.h"

#define MAX_FINISHED 1024 /* and engine->results.max_fds descriptors */
#define MAX_FINISHED_BYTES (64u << 20)

struct finished {
    struct list node;
    struct list in_bucket;
    unsigned char operation[72];
    size_t operation_length;
    uint64_t fingerprint; /* 0: unknown, of an engine before this one */
    struct buf message;
    int fds[2];
    size_t n_fds;
    size_t bytes;
};

/* FNV-1a: ids are often text, whose last byte alone tells little. */
static struct list *bucket_of(
    struct engine *engine, const unsigned char *operation, size_t length) {
    uint32_t hash = 2166136261u;

    for (size_t i = 0; i < length; i++)
        hash = (hash ^ operation[i]) * 16777619u;
    return &engine->results
                .by_operation[(hash ^ hash >> 16) % ARRAY_SIZE(engine->results.by_operation)];
}

static void finished_free(struct engine *engine, struct finished *finished) {
    list_remove(&finished->node);
    list_remove(&finished->in_bucket);
    engine->results.bytes -= finished->bytes;
    engine->results.n--;
    engine->results.n_fds -= (unsigned)finished->n_fds;
    for (size_t i = 0; i < finished->n_fds; i++)
        close(finished->fds[i]);
    buf_done(&finished->message);
    free(finished);
}

void result_forget(struct engine *engine, const void *operation, size_t length) {
    list_for_each(node, bucket_of(engine, operation, length)) {
        struct finished *finished = container_of(node, struct finished, in_bucket);

        if (finished->operation_length == length && !memcmp(finished->operation, operation, length))
            finished_free(engine, finished);
    }
}

/* `bytes`: its memory, that of memory files included. */
static void keep_result(struct engine *engine, const void *operation, size_t length,
    uint64_t fingerprint, const struct buf *message, size_t bytes, const int *fds, size_t n_fds) {
    if (buf_failed(message) || !length || bytes > MAX_FINISHED_BYTES ||
        n_fds > engine->results.max_fds)
        return;
    struct finished *finished = calloc(1, sizeof *finished);
    if (!finished)
        return;
    list_init(&finished->node);
    memcpy(finished->operation, operation, length);
    finished->operation_length = length;
    finished->fingerprint = fingerprint;
    buf_add(&finished->message, message->data, message->length);
    if (buf_failed(&finished->message) || fd_copy_all(finished->fds, fds, n_fds) < 0) {
        buf_done(&finished->message);
        free(finished);
        return;
    }
    finished->n_fds = n_fds;
    finished->bytes = bytes;
    list_add_tail(&engine->results.all, &finished->node);
    list_add_tail(
        bucket_of(engine, finished->operation, finished->operation_length), &finished->in_bucket);
    engine->results.bytes += bytes;
    engine->results.n++;
    engine->results.n_fds += (unsigned)n_fds;
    while (engine->results.n > MAX_FINISHED || engine->results.n_fds > engine->results.max_fds ||
           engine->results.bytes > MAX_FINISHED_BYTES)
        finished_free(engine, container_of(engine->results.all.next, struct finished, node));
}

static void send_copy(struct client *client, uint64_t serial, const struct buf *message,
    const int *fds, size_t n_fds) {
    auto_buf struct buf copy = BUF_INIT;

    if (message->failed)
        copy.failed = true;
    else
        buf_add(&copy, message->data, message->length);
    if (!buf_failed(&copy))
        ((struct wire_header *)(void *)copy.data)->serial = serial;
    client_send(client, &copy, fds, n_fds);
}

static const struct finished *find_result(
    struct engine *engine, const void *operation, size_t length) {
    list_for_each(node, bucket_of(engine, operation, length)) {
        const struct finished *finished = container_of(node, struct finished, in_bucket);

        if (length && finished->operation_length == length &&
            !memcmp(finished->operation, operation, length))
            return finished;
    }
    return NULL;
}

int result_replay(struct client *client, uint64_t serial, const void *operation, size_t length,
    uint64_t fingerprint) {
    const struct finished *finished = find_result(client->engine, operation, length);

    if (!finished)
        return 0;
    if (fingerprint && finished->fingerprint && fingerprint != finished->fingerprint)
        return -EEXIST;
    send_copy(client, serial, &finished->message, finished->fds, finished->n_fds);
    return 1;
}

static void add_output(struct buf *message, struct output *output, uint32_t tag, uint32_t tag_fd,
    int *fds, size_t *n_fds) {
    if (output->spool < 0) {
        wire_add(message, tag, output->head.data, output->head.length);
        return;
    }
    if (lseek(output->spool, 0, SEEK_SET) < 0 || output_seal(output) < 0) {
        message->failed = true;
        return;
    }
    wire_add_u64(message, tag_fd, 1);
    fds[(*n_fds)++] = output->spool;
}

static void add_error(struct buf *message, const struct rollbox_error *error) {
    wire_add_u64(message, TAG_ERROR_CODE, error->code);
    wire_add_u64(message, TAG_ERROR_NUMBER, (uint64_t)error->error_number);
    wire_add_text(message, TAG_ERROR_STAGE, error->stage);
    wire_add_text(message, TAG_ERROR_MESSAGE, error->message);
}

static void begin_result(struct buf *message, uint64_t serial, enum rollbox_outcome outcome,
    int status, uint64_t wall_ns, uint64_t cpu_ns) {
    wire_begin(message, PROTOCOL_RESULT, serial);
    wire_add_u64(message, TAG_OUTCOME, outcome);
    if (outcome == ROLLBOX_OUTCOME_EXIT)
        wire_add_u64(message, TAG_EXIT_CODE, (uint64_t)WEXITSTATUS(status));
    if (outcome == ROLLBOX_OUTCOME_SIGNAL)
        wire_add_u64(message, TAG_SIGNAL, (uint64_t)WTERMSIG(status));
    wire_add_u64(message, TAG_WALL_NS, wall_ns);
    wire_add_u64(message, TAG_CPU_NS, cpu_ns);
}

/* A result that lacks only the tally of the gateway: its run is over and gone. Or a reply that is
 * the tally itself. */
struct held {
    struct list node; /* held_results */
    struct engine *engine;
    uint64_t tally;
    struct buf message;
    int fds[2];
    size_t n_fds, bytes;
    unsigned char operation[72];
    size_t operation_length;
    uint64_t fingerprint;
    struct client *client; /* NULL: it is gone */
    uint64_t serial;
    struct list waiters;
    bool is_reply;
};

static struct list held_results = { &held_results, &held_results };

static void held_free(struct held *held) {
    list_remove(&held->node);
    list_for_each(node, &held->waiters) {
        list_remove(node);
        free(container_of(node, struct waiter, node));
    }
    for (size_t i = 0; i < held->n_fds; i++)
        close_fd(&held->fds[i]);
    buf_done(&held->message);
    free(held);
}

/* False: it cannot be kept, and is to be sent as it is. */
static bool hold_result(struct run *run, uint64_t tally, struct buf *message, const int *fds,
    size_t n_fds, size_t bytes) {
    struct held *held = buf_failed(message) ? NULL : calloc(1, sizeof *held);

    if (!held)
        return false;
    list_init(&held->node);
    list_init(&held->waiters);
    if (fd_copy_all(held->fds, fds, n_fds) < 0) {
        held_free(held);
        return false;
    }
    held->n_fds = n_fds;
    held->engine = run->engine;
    held->tally = tally;
    held->message = *message;
    *message = BUF_INIT;
    held->bytes = bytes;
    if (run->end.outcome != ROLLBOX_OUTCOME_ERROR) {
        memcpy(held->operation, run->operation.id, run->operation.length);
        held->operation_length = run->operation.length;
    }
    held->client = run->client;
    held->serial = run->serial;
    list_for_each(node, &run->waiters) {
        list_remove(node);
        list_add_tail(&held->waiters, node);
    }
    list_add_tail(&held_results, &held->node);
    return true;
}

int result_hold_reply(struct client *client, uint64_t serial, uint64_t tally) {
    struct held *held = calloc(1, sizeof *held);

    if (!held)
        return -ENOMEM;
    list_init(&held->node);
    list_init(&held->waiters);
    held->engine = client->engine;
    held->tally = tally;
    held->client = client;
    held->serial = serial;
    held->is_reply = true;
    wire_begin(&held->message, PROTOCOL_TEXT, serial);
    list_add_tail(&held_results, &held->node);
    return 0;
}

static void add_reply(struct buf *message, const char *network) {
    auto_buf struct buf text = BUF_INIT;

    buf_printf(&text, "{\"network\": %s}", network);
    if (buf_failed(&text))
        message->failed = true;
    else
        wire_add_text(message, TAG_TEXT_DATA, text.data);
}

void result_tally(uint64_t tally, const char *network) {
    list_for_each(node, &held_results) {
        struct held *held = container_of(node, struct held, node);

        if (held->tally != tally)
            continue;
        if (held->is_reply)
            add_reply(&held->message, network);
        else
            wire_add_text(&held->message, TAG_NETWORK, network);
        if (held->operation_length) {
            result_forget(held->engine, held->operation, held->operation_length);
            keep_result(held->engine, held->operation, held->operation_length, held->fingerprint,
                &held->message, held->bytes, held->fds, held->n_fds);
        }
        list_for_each(at, &held->waiters) {
            struct waiter *waiter = container_of(at, struct waiter, node);

            send_copy(waiter->client, waiter->serial, &held->message, held->fds, held->n_fds);
        }
        if (held->client)
            client_send(held->client, &held->message, held->fds, held->n_fds);
        held_free(held);
        return;
    }
}

void result_forget_client(const struct client *client) {
    list_for_each(node, &held_results) {
        struct held *held = container_of(node, struct held, node);

        if (held->client == client)
            held->client = NULL;
        list_for_each(at, &held->waiters) {
            struct waiter *waiter = container_of(at, struct waiter, node);

            if (waiter->client == client) {
                list_remove(&waiter->node);
                free(waiter);
            }
        }
    }
}

/* ---- the tally of the network gateway ---- */

static bool has_gateway(const struct run *run) {
    return run->profile && run->profile->policy->net == POLICY_NET_ALLOW;
}

uint64_t run_tally_end(struct run *run) {
    struct run_counts *counts = &run->end.counts;

    if (has_gateway(run) && !counts->tally && !counts->network)
        counts->tally = gateway_tally_end(run, run_sandbox(run).box, &counts->network);
    return counts->tally;
}

uint64_t run_tally_restart(const struct run *run) {
    return gateway_tally_restart(run, run_sandbox(run).box);
}

/* Nothing of a command that was restored, or has never started. */
static void add_times(struct buf *message, const struct run_limits *times) {
    if (!times->begun_ns || !times->started_ns)
        return;
    wire_add_u64(message, TAG_QUEUE_NS, (uint64_t)(times->begun_ns - times->received_ns));
    wire_add_u64(message, TAG_SETUP_NS, (uint64_t)(times->started_ns - times->begun_ns));
}

void result_send(struct run *run) {
    auto_buf struct buf message = BUF_INIT;
    int fds[2];
    size_t n_fds = 0;

    begin_result(&message, run->serial, run->end.outcome, run->end.status, run->end.wall_ns,
        run->end.cpu_ns);
    add_output(&message, &run->outputs[0], TAG_STDOUT, TAG_STDOUT_FD, fds, &n_fds);
    add_output(&message, &run->outputs[1], TAG_STDERR, TAG_STDERR_FD, fds, &n_fds);
    wire_add_u64(&message, TAG_STDOUT_TRUNCATED, run->outputs[0].truncated);
    wire_add_u64(&message, TAG_STDERR_TRUNCATED, run->outputs[1].truncated);
    wire_add_u64(&message, TAG_PEAK_MEMORY, run->end.peak_memory);
    wire_add_u64(&message, TAG_PROCESSES_PEAK, run->end.processes_peak);
    add_times(&message, &run->limits);
    if (run->profile)
        wire_add_text(&message, TAG_ISOLATION, run->profile->isolation);
    const uint64_t tally = run_tally_end(run);
    if (run->end.counts.network)
        wire_add_text(&message, TAG_NETWORK, run->end.counts.network);
    const size_t bytes = message.length + run->outputs[0].total + run->outputs[1].total;
    if (run->end.outcome == ROLLBOX_OUTCOME_ERROR)
        add_error(&message, &run->end.error);
    else /* infrastructure failures are not kept: a retry of one is meant to try again */
        keep_result(run->engine, run->operation.id, run->operation.length,
            run->operation.fingerprint, &message, bytes, fds, n_fds);
    if (tally && hold_result(run, tally, &message, fds, n_fds, bytes))
        return;
    list_for_each(node, &run->waiters) {
        struct waiter *waiter = container_of(node, struct waiter, node);

        send_copy(waiter->client, waiter->serial, &message, fds, n_fds);
    }
    if (run->client)
        client_send(run->client, &message, fds, n_fds);
}

void result_forget_all(struct engine *engine) {
    list_for_each(node, &engine->results.all)
        finished_free(engine, container_of(node, struct finished, node));
    while (!list_empty(&held_results))
        held_free(container_of(held_results.next, struct held, node));
}

void result_send_summary(struct client *client, uint64_t serial, enum rollbox_outcome outcome,
    int status, uint64_t wall_ns, uint64_t cpu_ns) {
    auto_buf struct buf message = BUF_INIT;

    begin_result(&message, serial, outcome, status, wall_ns, cpu_ns);
    wire_add_u64(&message, TAG_STDOUT_TRUNCATED, 1);
    wire_add_u64(&message, TAG_STDERR_TRUNCATED, 1);
    client_send(client, &message, NULL, 0);
}

static bool read_spool(int fd, size_t most, struct buf *to) {
    off_t size = lseek(fd, 0, SEEK_END);

    return size >= 0 && (uint64_t)size <= most && fd_read_again(fd, most, to) == 0;
}

bool result_streams(struct engine *engine, const void *operation, size_t length, size_t most,
    struct buf streams[2]) {
    const struct finished *finished = find_result(engine, operation, length);
    struct wire_field field;
    size_t position = 0, next = 0;
    uint64_t number;
    bool whole = finished;

    while (
        whole && wire_next(finished->message.data + sizeof(struct wire_header),
                     finished->message.length - sizeof(struct wire_header), &position, &field) > 0)
        if (field.tag == TAG_STDOUT || field.tag == TAG_STDERR)
            buf_add(&streams[field.tag == TAG_STDERR], field.data, field.length);
        else if (field.tag == TAG_STDOUT_FD || field.tag == TAG_STDERR_FD)
            whole = next < finished->n_fds &&
                    read_spool(finished->fds[next++], most, &streams[field.tag == TAG_STDERR_FD]);
        else if (field.tag == TAG_STDOUT_TRUNCATED || field.tag == TAG_STDERR_TRUNCATED)
            whole = wire_u64(&field, &number) == 0 && !number;
    return whole && !buf_failed(&streams[0]) && !buf_failed(&streams[1]) &&
           streams[0].length + streams[1].length <= most;
}

void result_restore(struct engine *engine, const void *operation, size_t length,
    enum rollbox_outcome outcome, int status, uint64_t wall_ns, uint64_t cpu_ns,
    const struct buf streams[2]) {
    auto_buf struct buf message = BUF_INIT;

    begin_result(&message, 0, outcome, status, wall_ns, cpu_ns);
    wire_add(&message, TAG_STDOUT, streams[0].data, streams[0].length);
    wire_add(&message, TAG_STDERR, streams[1].data, streams[1].length);
    keep_result(engine, operation, length, 0, &message, message.length, NULL, 0);
}

void result_send_error(struct client *client, uint64_t serial, const struct rollbox_error *error) {
    auto_buf struct buf message = BUF_INIT;

    wire_begin(&message, PROTOCOL_RESULT, serial);
    wire_add_u64(&message, TAG_OUTCOME, ROLLBOX_OUTCOME_ERROR);
    add_error(&message, error);
    client_send(client, &message, NULL, 0);
}
