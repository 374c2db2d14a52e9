/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of the engine that several modules share: one thread around one loop.
 *
 * A client is a connection. A profile is a policy compiled for this host, shared by all clients
 * that sent the same text; it has a launcher process and some spare boxes. A box is a sandbox as
 * the kernel knows it: an init held by pidfd, the socket to it, a network namespace and a cgroup. A
 * run is a command: queued until memory is granted, then in a box, until its result is sent. Runs
 * end with their client. A box outlives its run by the moment that the kernel takes to remove it.
 */
#ifndef ROLLBOX_ENGINE_CORE_CONTEXT_H
#define ROLLBOX_ENGINE_CORE_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/wire.h"
#include "guest/guest.h"
#include "loop/loop.h"
#include "sys/features.h"

struct client;
struct engine;
struct hoards;
struct janitor;
struct launcher;
struct layer;
struct process_state;
struct recorder;
struct session;
struct uppers;

/* What lower files need of higher ones; engine.c fills it. */
struct engine_hooks {
    /* A box has gone, or a launcher has room: runs that wait may start, soon. */
    void (*room_freed)(struct engine *engine);
    /* There are no open files for one more box: some are freed, if that can be. */
    void (*make_room)(struct engine *engine);
    /* Idle zygotes of checkpoints are to go: something has run out. */
    void (*drop_zygotes)(struct engine *engine);
    /* A run of code need not wait for an interpreter any more (interpreter_queue). */
    void (*code_released)(struct engine *engine, struct list *in_queue);
    /* The size of a layer on disk is known. */
    void (*layer_measured)(struct layer *layer);
};

/* As root: ids in the launchers' ranges, a bit for each that a sandbox has, or a namespace in
 * free_file_ids. */
struct guest_ids {
    uint32_t next;
    uint64_t ids[GUEST_ID_OTHERS / 64];
    uint64_t slots[(GUEST_MANY_SLOTS + 63) / 64]; /* with users many, of PLAN_MANY_IDS each */
};

struct engine {
    struct loop *loop;
    struct engine_hooks hooks;
    /* Carries out a request (connection.c): for one that was kept until it could be. < 0: the
     * connection is to end. */
    int (*handle_request)(struct client *client, struct wire_message *message);
    struct features features;
    struct cgroup_root *cgroups;
    struct janitor *janitor; /* NULL: it has no duty yet */
    char *leftovers;         /* see engine_serve.h */
    size_t leftovers_size;
    char *init_path, *store_path; /* of rollbox-init; of rollbox-store, NULL: not found */
    bool is_private;              /* ends with its one client */
    unsigned n_unreadable; /* records of sleeping sandboxes that the last search of the store met
                              (hibernate_reattach) */
    struct loop_source listen;
    struct loop_source signals;
    int listen_fd, signal_fd, lock_fd, null_fd;
    unsigned max_files,
        files; /* of our limit of open files: for boxes; what they have, or may come to need */
    unsigned open_files;         /* that limit: snapshots, images and zygotes have files, too */
    int64_t socket_poll_cost_ns; /* time to ask all boxes once how much waits in their sockets */
    int64_t memory_poll_cost_ns; /* time to look at the memory of all sessions once */
    char *socket_path;
    struct list clients, profiles, boxes, runs, sessions, streams, drains;
    struct list
        turns; /* struct client.in_turns: those with a queue; who was served last is the last */
    struct list copies;  /* struct copy.node: asked of launchers, not answered yet */
    struct list zygotes; /* struct checkpoint.node: those that have one, the longest unused first */
    unsigned n_zygotes;
    struct session *forked_last;   /* as it ran; NULL: it is gone */
    struct list sessions_by[1024]; /* the same, found by a hash of the name */
    uint64_t next_session, next_name, next_exec;
    unsigned n_sessions, n_drains;
    uint64_t next_profile;
    unsigned n_clients, n_boxes, n_running, n_queued;
    uint64_t memory_budget, memory_reserved; /* bytes; budget 0: unlimited */
    uint32_t next_id_base;                   /* as root: ranges of the host's ids */
    struct guest_ids guest_ids;
    unsigned next_slot;
    uint64_t next_launcher;
    struct launcher *idle_launcher; /* started, without a plan; or NULL */
    struct list finished_by[256];   /* the same, found by a hash of the id */
    struct list finished;           /* operations whose result is kept for a retry, oldest first */
    size_t finished_bytes;
    unsigned n_finished, n_finished_fds, max_finished_fds;
#define TIDY_SECONDS 1
    struct loop_timer tidy; /* armed while there are boxes */
    struct loop_timer janitor_due;
    struct loop_task schedule_runs;
    struct recorder *recorder;     /* record.c; NULL: nothing was recorded yet */
    uint64_t identity;             /* of this engine among all; 0: not needed yet */
    struct uppers *uppers;         /* disk_upper.c; NULL: no sandbox with disk_at store yet */
    struct hoards *hoards;         /* hoards.c; NULL: nothing has run yet */
    struct process_state *process; /* of isolation process; NULL: no sandbox of that kind yet */
    bool stopping;
    bool has_adopted; /* hibernate.c: looked for sandboxes that sleep */
};

/* Of an amount that is counted in a sum of all: another one. */
static inline void engine_account(int64_t *sum, int64_t *own, int64_t now) {
    *sum += now - *own;
    *own = now;
}

/* How long it takes a guest at least to bring in so much memory. */
static inline int64_t run_filling_ns(const struct engine *engine, uint64_t bytes) {
    const uint64_t bytes_a_second = UINT64_C(4) << 30;

    return (int64_t)(bytes / (bytes_a_second * engine->features.cpus / 1000000000 + 1));
}

#define AGAIN_NS                                                                                   \
    50000000ll /* before it is tried again what found no room, or is looked for again what nobody  \
                  tells of */

#endif
