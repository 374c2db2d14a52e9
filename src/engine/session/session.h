/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: sandboxes that last until they are closed.
 *
 * A session has a box at a time. Its commands are runs (struct run) with `session` set: they share
 * the box, and its init reports each by its serial.
 *
 * Files. The box's private tmpfs holds a part for each writable place. Once nothing runs in a box,
 * its tmpfs can become a layer: the box is given up, and the next one has the layer, and those
 * below it, under a fresh tmpfs of its own. While something runs, the tmpfs is copied into a layer
 * with every process frozen, and the box stays. A snapshot is a layer on top of another snapshot's.
 * The snapshots of a session and its forks make a tree. A reset or fork is a new box on a snapshot.
 * Chains of layers are compacted in the background.
 *
 * Processes. A snapshot may have a checkpoint: the memory and registers of the processes in an
 * image that was dumped while the files were copied. Its first use starts a zygote, a launcher with
 * the image in its memory. A fork or reset is a box that the zygote makes; the processes are
 * resumed there, and their commands are runs of the new session.
 *
 * Requests that need several steps (snapshot, fork, reset, diff, ...) are operations (op.h): a
 * session carries out one after the other, and its commands wait meanwhile.
 */
#ifndef ROLLBOX_ENGINE_SESSION_SESSION_H
#define ROLLBOX_ENGINE_SESSION_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rollbox/rollbox.h>

#include "base/list.h"
#include "engine/session/session_events.h"
#include "loop/loop.h"

struct box;
struct client;
struct engine;
struct hibernated;
struct profile;
struct session;
struct session_checkpoint;
struct snapshot;
struct snapshot_tree;

#define SESSION_NAME_MAX 64

/* Of a session: auto_snapshot.c. */
struct auto_snapshot {
    struct session_observer observer;
    unsigned keep; /* how many; 0: none are taken */
    uint64_t n_taken, n_unchanged;
    char last[32]; /* id of the latest; "": none */
    char *refusal; /* of the last one, if it could not be taken; NULL */
};

enum session_state { SESSION_NEW, SESSION_LIVE, SESSION_PAUSED, SESSION_CLOSING };

/* A pipe out of the sandbox of a command that is over. Processes that the command left running may
 * still have it. */
struct orphan_pipe {
    uint64_t inode;
    bool is_written;
};

/* The files of a session: take_snapshot.c. */
struct session_files {
    struct snapshot *base;      /* the box stands, or will stand, on it; a reference */
    struct snapshot *at;        /* the last state taken: the parent of the next one; a reference */
    struct snapshot *committed; /* the state of the last COMMIT; a reference, or NULL */
    char *committed_path;       /* of that; NULL: everything */
    struct snapshot_tree *tree;
    bool dirty; /* files may have changed since `at` */
};

/* The origin of a session. */
struct session_origin {
    uint64_t parent;   /* of a fork: the number of the session it was made from; 0 */
    char snapshot[32]; /* of a fork: the id of the state */
    int64_t clone_id;  /* of a fork: its index among those that were made at once; -1 */
    uint64_t seed;     /* random_seed: the policy's unless has_own_seed */
    uint64_t n_forked; /* children that it has had, whose seeds follow */
    bool has_own_seed;
    bool was_used;               /* something was done in it that a record begun now has not */
    int64_t made_ns;             /* CLOCK_REALTIME */
    int64_t since_ns;            /* CLOCK_REALTIME: changes on the host after that are not known */
    unsigned char operation[64]; /* of CREATE */
    size_t operation_length;
    uint64_t operation_fingerprint; /* of its request, and */
    uid_t operation_owner;          /* whose it was */
};

/* The commands of a session: exec.c. */
struct session_commands {
    struct list runs;    /* struct run.of_session */
    struct list waiting; /* struct run.in_queue: for room in init's socket, a box, or the end of an
                            operation */
    struct list ended;   /* struct ended.node: oldest first */
    unsigned n_runs, n_ended;
    uint64_t memory_reserved; /* in the budget of runs */
    bool kill_due;            /* init has not received the request yet to kill some of them */
    bool thaw_due;            /* nor that the processes may run, as the files are copied */
    struct orphan_pipe *orphan_pipes;
    size_t n_orphan_pipes;
};

/* The operations of a session: op.c. */
struct session_queue {
    struct list ops; /* struct op.node; the first is under way */
    unsigned n_ops;
    struct op *fork; /* of another session: it made this one and waits for the box; NULL */
    enum session_end {
        SESSION_GOES_ON,
        SESSION_IS_LOST,   /* the engine has lost track of an operation */
        SESSION_IS_UNMADE, /* it could not be created */
    } end;                 /* why the session closes soon, from the loop */
};

/* File agents in the box: op_files.c. */
struct session_agents {
    unsigned n;
    bool met_limit; /* they were killed at a limit: their calls are not repeated */
};

/* Ends and pauses a session that is not used: session.c. 0 ms: never. */
struct session_timers {
    struct loop_timer idle, end, lifetime;
    int64_t idle_ms, ttl_ms, lifetime_ms;
    int64_t called_ns; /* CLOCK_MONOTONIC: the last request */
};

/* Hibernates a session that is not used: hibernate_timer.c. */
struct session_hibernation {
    struct loop_timer timer;
    int64_t after_ms; /* 0: never */
    uint64_t cpu_ns;  /* of its box when the timer was set */
};

/* Looks at the memory of the session's box: session.c. */
struct session_watch {
    struct loop_timer timer;
    int64_t cost_ns;          /* of the last look; counted in engine->sessions.poll_cost_ns */
    unsigned n_out_of_memory; /* how often all processes were ended for want of memory */
};

struct session {
    struct engine *engine;
    struct profile *profile;
    struct client *client; /* NULL: detached */
    struct list node;      /* engine->sessions.all */
    struct list by_name;   /* engine->sessions.by_name */
    struct list of_client;
    char name[SESSION_NAME_MAX + 1];
    uint64_t number;
    enum session_state state;
    struct box *box;           /* NULL: not made yet, or given up */
    struct loop_task schedule; /* of session_schedule */
    struct list observers;     /* struct session_observer.node (session_events.h) */
    struct session_files files;
    struct session_origin origin;
    struct session_commands commands;
    struct session_queue queue;
    struct session_agents agents;
    struct session_timers timers;
    struct session_hibernation hibernation;
    struct session_watch watch;
    struct session_checkpoint *checkpoint;
    struct auto_snapshot auto_snapshot;
    struct hibernated *sleep; /* it is in the store alone; NULL: it is awake */
    bool is_dry_run; /* of VERIFY: its processes are restored and never run, and it has no name */
};

/* A command that is over; its output is with other results (result.c) as long as there is room. */
struct ended {
    struct list node;
    unsigned char operation[72];
    size_t operation_length;
    char *command;
    enum rollbox_outcome outcome;
    int status;
    uint64_t wall_ns, cpu_ns;
    bool told; /* somebody got its result */
};

/* What sessions need of hibernation, which is a module above them (hibernate.c). */
struct hibernation_ops {
    /* The processes of a snapshot are about to be resumed in the session's box. A sandbox that
     * wakes is not to be offered by the store from then on. 0, or the error. */
    int (*before_restore)(struct session *session, struct rollbox_error *error);
    /* The session closes. `keeps_stored`: the store keeps it for the next engine. */
    void (*closing)(struct session *session, bool keeps_stored);
    /* struct session_hibernation.timer is due. */
    void (*due)(struct loop_timer *timer);
};

void session_set_hibernation(const struct hibernation_ops *ops); /* once, at the start */
const struct hibernation_ops *session_hibernation(void);         /* NULL: no session hibernates */
struct list *session_bucket(struct engine *engine, const char *name); /* of sessions_by */
struct session *session_find(struct engine *engine, const char *name);
bool session_name_ok(const char *name);
bool session_has_user(const struct session *session, const char *user);
void session_name_operation(const struct session *session, unsigned char *operation,
    size_t *length); /* puts the session's number before it */
int session_not_found(
    const struct engine *engine, const char *name, struct rollbox_error *error); /* -ENOENT */
int session_may_wait(const struct session *session,
    struct rollbox_error *error); /* there is room for one request more that waits: 0 */
void session_out_of_memory(struct session *session, bool of_host); /* else of its own limit */
void session_broken(struct session *session); /* a process of it could not resume unchanged: all of
                                                 them end, and their commands with an error */
enum oom_cause session_oom_cause(
    struct session *session); /* since this was asked last, by its group */
void session_oom_forget(
    struct session *session); /* OOM kills until now are the cause of no later end */
void session_forget_client(struct client *client);
void session_close(struct session *session); /* and frees */

/* An observer that delayed the end of the session (session_events.h) does not any longer. */
void session_close_continue(struct session *session);
void session_close_all(struct engine *engine);
int session_need_box(
    struct session *session, struct rollbox_error *error); /* makes one unless there is */
void session_give_up_box(struct session *session);
void session_touch(struct session *session);
void session_arm(struct session *session); /* its timers */
int session_resume(struct session *session);
int session_freeze(
    struct session *session, uint64_t serial); /* init's answer goes to op_init_reply */
int session_thaw(struct session *session);
int session_ask(struct session *session,
    uint64_t
        serial); /* init's answer, SIGNALLED, goes to op.c: all earlier requests are done then */
void session_thaw_soon(
    struct session *session); /* at the latest when init's socket has room again */
struct session *session_new(struct engine *engine, struct profile *profile, struct client *client,
    const char *name, struct snapshot_tree *tree, struct snapshot *base,
    struct rollbox_error *error);

/* Soon, from the loop: starts the next operation, sends the commands that wait, frees a closed
 * session without a box. */
void session_schedule(struct session *session);
void session_watch(struct session *session);
void session_stop_watching(struct session *session);

#endif
