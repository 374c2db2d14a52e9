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
#include "sys/id_range.h"

struct client;
struct engine;
struct hoards;
struct image_copy;
struct janitor;
struct launcher;
struct layer;
struct process_state;
struct recorder;
struct session;
struct uppers;

/* Functions of higher modules that lower modules call; engine.c fills them in. */
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
 * free_file_ids. As an ordinary user: the namespace of many_ids.h. */
struct guest_ids {
    bool has_namespace;
    int user_namespace;
    struct id_range range;
    uint32_t next, next_account;
    uint64_t ids[GUEST_ID_OTHERS / 64];
    uint64_t slots[(GUEST_MANY_SLOTS + 63) / 64]; /* with users many, of PLAN_MANY_IDS each */
};

/* The socket of the protocol, and its clients: connection.c, engine.c. */
struct engine_server {
    struct loop_source listen, signals;
    int listen_fd, signal_fd, lock_fd;
    char *socket_path;
    struct list clients;
    unsigned n_clients;
    /* Carries out a request (connection.c) that was kept until it could be. < 0: the connection is
     * to end. */
    int (*handle_request)(struct client *client, struct wire_message *message);
};

/* Open files: box.c. Snapshots, images and zygotes have some, too. */
struct engine_files {
    unsigned limit; /* of the engine's process */
    unsigned most;  /* of these, for boxes */
    unsigned used;  /* that boxes have, or may come to need */
};

struct engine_boxes {
    struct list all;     /* struct box.node */
    struct list volumes; /* struct held_volume.node: volume_lease.c */
    unsigned n;
    unsigned next_slot;
    int64_t poll_cost_ns; /* time to ask all of them once how much waits in their sockets */
#define TIDY_SECONDS 1
    struct loop_timer tidy; /* armed while there are boxes */
};

/* launcher.c */
struct engine_launchers {
    struct launcher *idle; /* started, without a plan; or NULL */
    uint64_t next_number;
    uint32_t next_id_base; /* as root: ranges of the host's ids */
    struct guest_ids guest_ids;
};

struct engine_profiles {
    struct list all; /* struct profile.node */
    uint64_t next_number;
    /* owned_image.c: images whose layers are copied, the one that the latest request lacks (or
     * NULL), and whether a request is carried out again after that */
    struct list copies;
    struct image_copy *wanted_copy;
    bool is_second_try;
};

/* Commands, and the admission of those that have a box for themselves: run.c, admission.c. */
struct engine_runs {
    struct list all;   /* struct run.of_engine */
    struct list turns; /* struct client.in_turns: those with a queue; the one that was served last
                          is the last */
    unsigned n_running, n_queued;
    struct loop_task schedule;
    uint64_t memory_budget, memory_reserved; /* bytes; budget 0: unlimited */
};

struct engine_sessions {
    struct list all;           /* struct session.node, the oldest first */
    struct list by_name[1024]; /* the same, found by a hash of the name */
    unsigned n;
    uint64_t next_number, next_name, next_exec;
    int64_t poll_cost_ns;     /* time to look at the memory of all of them once */
    uint64_t memory_reserved; /* bytes: limits of those that run commands; admission.c */
};

/* Results that are kept for a retry of their operation: result.c. */
struct engine_results {
    struct list all;               /* oldest first */
    struct list by_operation[256]; /* the same, found by a hash of the id */
    size_t bytes;
    unsigned n, n_fds, max_fds;
};

/* Outputs that are copied to clients, and those of commands that are over: stream.c. */
struct engine_outputs {
    struct list streams, drains;
    unsigned n_drains;
};

/* Checkpoints that have a zygote: checkpoint.c. */
struct engine_zygotes {
    struct list all; /* struct checkpoint.node, the longest unused first */
    unsigned n;
};

struct engine_programs {
    char *init;  /* rollbox-init */
    char *store; /* rollbox-store; NULL: not found */
};

/* janitor.c */
struct engine_janitor {
    struct janitor *process; /* NULL: it has no duty yet */
    char *leftovers;         /* see engine_serve.h */
    size_t leftovers_size;
    struct loop_timer due;
};

/* Sandboxes that hibernate in the store: hibernate.c. */
struct engine_stored {
    bool was_searched;
    unsigned n_unreadable; /* records that the last search met */
};

struct engine_record {
    struct recorder *recorder; /* record.c; NULL: nothing was recorded yet */
    uint64_t identity;         /* of this engine among all; 0: not needed yet */
};

/* Each part belongs to the module that its struct names. */
struct engine {
    struct loop *loop;
    struct engine_hooks hooks;
    struct features features;
    struct cgroup_root *cgroups;
    int null_fd;
    bool is_private; /* ends with its one client */
    bool stopping;
    struct engine_programs programs;
    struct engine_files files;
    struct engine_server server;
    struct engine_janitor janitor;
    struct engine_launchers launchers;
    struct engine_boxes boxes;
    struct engine_profiles profiles;
    struct engine_outputs outputs;
    struct engine_results results;
    struct engine_zygotes zygotes;
    struct list copies; /* struct copy.node: asked of launchers, not answered yet */
    struct engine_runs runs;
    struct engine_sessions sessions;
    struct engine_stored stored;
    struct engine_record record;
    struct uppers *uppers;         /* disk_upper.c; NULL: no sandbox with disk_at store yet */
    struct hoards *hoards;         /* hoards.c; NULL: nothing has run yet */
    struct process_state *process; /* of isolation process; NULL: no sandbox of that kind yet */
};

/* Of an amount that is counted in a sum of all: another one. */
static inline void engine_account(int64_t *sum, int64_t *own, int64_t now) {
    *sum += now - *own;
    *own = now;
}

/* The shortest time in which a guest can fill so much memory. */
static inline int64_t run_filling_ns(const struct engine *engine, uint64_t bytes) {
    const uint64_t bytes_a_second = UINT64_C(4) << 30;

    return (int64_t)(bytes / (bytes_a_second * engine->features.cpus / 1000000000 + 1));
}

#define AGAIN_NS                                                                                   \
    50000000ll /* before it is tried again what found no room, or is looked for again what nobody  \
                  tells of */

#endif
