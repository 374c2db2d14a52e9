/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations: requests of a session that take several steps.
 *
 * A session makes one operation after the other. An operation waits for one thing at a time
 * (op_state.h); an event ends the wait. Each verb has a class with its functions, in a file of its
 * own where it is long: op_fork.c, op_snapshot.c, op_pause.c, op_files.c, op_reset.c, op_store.c,
 * op_hibernate.c, op_wake.c, describe.c. Verbs that begin with a snapshot of the present state
 * share its steps (take_snapshot.c).
 */
#ifndef ROLLBOX_ENGINE_SESSION_OP_H
#define ROLLBOX_ENGINE_SESSION_OP_H

#include <jansson.h>

#include "engine/protocol.h"
#include "engine/session/op_state.h"
#include "engine/session/session.h"
#include "engine/session/session_events.h"

struct engine;
struct op;

/* The content of an event. The members in use depend on the event. Members that the operation would
 * take are freed if it does not take the event. */
struct op_message {
    const struct rollbox_error *error;  /* NULL: it went well */
    int error_number;                   /* likewise, of COPIED and LAYER_MADE: 0 */
    const struct guest_record *record;  /* INIT_REPLY */
    struct checkpoint *take_checkpoint; /* DUMPED */
    struct layer *take_layer;           /* COPIED, LAYER_MADE: NULL if it failed */
    void *which;                        /* LAYER_MADE: wake's own */
    const json_t *answer;               /* STORE_JOB_DONE, of HIBERNATE and WAKE */
    struct buf *take_text;              /* the same, of others: the reply */
    int take_lock;                      /* STORE_JOB_DONE, of HIBERNATE; 0: none */
};

enum op_class_flags {
    OP_LEAVES_ASLEEP = 1,       /* does not wake a sandbox that hibernates */
    OP_NEEDS_NO_LAYER = 2,      /* a copy of changed files is enough: it is not to be mounted */
    OP_STARTS_UNFLATTENED = 16, /* it does without a full image that cannot be made */
    OP_YIELDS_TO_CALLS = 8, /* one that nobody asked for is cancelled while it waits for the store,
                               when the sandbox is called */
    OP_RESUMES_EARLY = 4,   /* the dump worker may resume the processes before it reports, and what
                               they write to from then on may be tracked */
};

struct op_class {
    enum protocol_verb verb;
    unsigned flags;
    void (*start)(struct op *op);
    /* Of those that take a snapshot: op->to is the present state. */
    void (*have_snapshot)(struct op *op);
    /* An event that its wait takes, but for START, FLATTENED and BOX_LOST. NULL: none but those of
     * a snapshot. */
    void (*event)(struct op *op, enum op_event event, const struct op_message *message);
    /* The next checkpoint that must have a full image before the operation starts. NULL: none. */
    struct checkpoint *(*wants_full_image)(const struct op *op);
    void (*failed)(struct op *op, const struct rollbox_error *error); /* before the reply */
    void (*release)(struct op *op);
};

/* The steps of a snapshot: take_snapshot.c. */
struct take_snapshot {
    uint64_t init_serial;  /* of what init is to answer: FREEZE, or the SIGNAL that tells that init
                              has done all before it */
    bool follows_commands; /* that were on their way to init when it was asked for */
    bool keeps_stopped;    /* HIBERNATE: the processes are not let go until the store has them.
                              FORK of a group: until the states of all are taken */
    bool flatten_failed;   /* OP_STARTS_UNFLATTENED: it starts without the full image */
    unsigned n_dumps;      /* that failed and may be tried again */
    unsigned n_out_of_memory;      /* of the session, when the dump began */
    struct dump_job *dump_job;     /* while the processes are paused for it */
    struct checkpoint *checkpoint; /* the result of the dump; a reference */
    struct layer *layer;           /* a copy of the files, while the image is still written */
};

#define TAKE_SNAPSHOT_MAX_DUMPS                                                                    \
    20 /* again, of one that something is in the way of for the moment */

struct op_snapshot {
    bool is_automatic; /* auto_snapshot.c's */
};

#define FORK_GROUP_MAX 64 /* sandboxes */

/* Forks of several sandboxes at one moment (op_fork.c): an operation each, with one reply. */
struct fork_group {
    uint64_t number;
    unsigned n, n_taken, n_ready;
    bool is_busy, is_over; /* the forks are being made; it is freed after that */
    struct op *ops[];
};

struct op_fork {
    struct fork_group *group; /* NULL: it is alone */
    unsigned count, n_made, n_asked, n_ready;
    unsigned n_owned; /* of those made: they are closed with the operation */
    struct session **made;
    bool same_seed; /* not one for each */
    bool attached;  /* they are the asker's */
};

struct op_diff {
    bool textual, digests;
    bool is_recorded;         /* an observer asks for it, and no client waits */
    const struct buf *answer; /* of that, while it ends */
};

struct op_commit {
    char *path;
    bool force;
};

struct op_export {
    bool takes_live; /* the processes, too */
};

struct op_files {
    bool alone; /* the guest's processes are stopped meanwhile: they have killed an agent */
};

/* SHOW, VERIFY. */
struct op_describe {
    struct session *trial; /* VERIFY: in which the processes are restored, but not resumed */
    bool was_tried;        /* what refused them is `refusal`, unless that is NULL */
    char *refusal;
};

struct op_pause {
    bool for_walk; /* only until the files have been walked over (disk_upper.h) */
};

struct op_hibernate {
    struct hibernated *becoming;
};

struct op_wake {
    struct wake_op *progress;
    struct wire_message *deferred; /* a request that is answered once it is awake */
};

/* The request that its reply answers. */
struct op_reply {
    struct client *client; /* NULL: gone, or nobody waits */
    uint64_t serial;
};

/* The content of a request, for several verbs. */
struct op_request {
    int fd;     /* the client's, of FILES (its agent's socket), CONNECT and EXPORT; else -EBADF */
    bool drops; /* processes="drop" */
    char *name; /* SNAPSHOT: the new one's; SHOW, VERIFY: of one in the store */
};

struct op {
    struct list node;
    struct session *session;
    struct op_reply reply;
    struct op_request request;
    const struct op_class *class;
    enum protocol_verb verb;
    enum op_wait wait;
    int64_t since_ns;           /* CLOCK_MONOTONIC: when that wait began */
    struct snapshot *from, *to; /* references */
    struct snapshot *pinned; /* the state that was named, also if it is dropped before its turn */
    struct flatten_job *flatten_job; /* while an image is put together for it; NULL */
    struct store_job *store_job;
    struct take_snapshot take;
    union { /* by verb */
        struct op_snapshot snapshot;
        struct op_fork fork;
        struct op_diff diff;
        struct op_commit commit;
        struct op_describe describe;
        struct op_pause pause;
        struct op_export export;
        struct op_files files;
        unsigned port; /* CONNECT */
        struct op_hibernate hibernate;
        struct op_wake wake;
    };
};

/* The one under way, or the next; NULL: there is none. */
static inline struct op *session_first_op(const struct session *session) {
    return list_empty(&session->queue.ops) ? NULL
                                           : container_of(session->queue.ops.next, struct op, node);
}

static inline bool op_is_recorded_diff(const struct op *op) {
    return op->verb == VERB_DIFF && op->diff.is_recorded;
}

static inline bool op_is_live_export(const struct op *op) {
    return op->verb == VERB_EXPORT && op->export.takes_live;
}

/* op.c */
void op_set_classes(const struct op_class *const *all, size_t n); /* which stay */
/* A request of a client's; its other members are for the caller to fill before session_schedule.
 * NULL: out of memory. */
struct op *op_new(
    struct session *session, enum protocol_verb verb, struct client *client, uint64_t serial);
/* One that nobody waits for; `first`: before all others, of which none is under way. NULL: out of
 * memory */
struct op *op_add(struct session *session, enum protocol_verb verb, bool first);
struct op *op_free(struct op *op);
void op_fail(struct op *op, const struct rollbox_error *error);
void op_fail_with(
    struct op *op, enum rollbox_error_code code, int error_number, const char *message);
void op_done(struct op *op, struct buf *json);

/* The engine has lost track of the operation, which may be in the middle of a step. Its sandbox
 * ends soon, from the loop. */
void op_lose_track(struct op *op);

/* Begins to wait for that, if it may follow the present wait (op_state.h). Otherwise the sandbox
 * ends soon, from the loop. */
void op_wait(struct op *op, enum op_wait wait);

/* Tells of an event. False: the operation does not wait for it. An event that cannot come now ends
 * the sandbox soon, from the loop. After an event that was taken the operation may be gone. */
bool op_event(struct op *op, enum op_event event, const struct op_message *message);
/* STORE_JOB_DONE with the job's answer as text. NULL: nobody waits for the answer. */
void op_store_job_done(struct op *op, struct buf *take_answer, const struct rollbox_error *error);
/* The same as op_event, to the session's first operation. False also if there is none. */
bool session_event(struct session *session, enum op_event event, const struct op_message *message);

bool op_allows_hibernated(const struct op *op);  /* it needs no sandbox that is awake */
void op_session_called(struct session *session); /* by a client: OP_YIELDS_TO_CALLS */
void op_init_reply(
    struct session *session, const struct guest_record *record); /* FROZEN, SIGNALLED */
/* Its box is ready, with the processes that were to be restored in it, or (error) never will be. */
void op_session_ready(struct session *session, const struct rollbox_error *error);
void op_box_lost(struct session *session);
void op_dump_released(struct session *session); /* the dump that held its processes has ended */
void op_compacted(struct engine *engine, struct snapshot *snapshot);
void op_measured(struct layer *layer); /* how much is in it is known */
/* The processes are to be paused for a walk over its files; answered by disk_upper_stands, soon
 * or at once, or disk_upper_is_left. False: it cannot be asked */
bool op_hold_frozen(struct session *session);
void op_disk_walked(struct session *session); /* the pause ends */

/* The classes (op_classes.c). */
extern const struct op_class op_create_class, op_close_class, op_snapshot_class, op_fork_class,
    op_reset_class, op_pause_class, op_files_class, op_connect_class, op_diff_class,
    op_commit_class, op_export_class, op_show_class, op_verify_class, op_hibernate_class,
    op_wake_class;

/* op_fork.c: makes a group of operations of the verb FORK, which are not started yet. 0 or -ENOMEM.
 */
int op_fork_group(struct op *const *ops, unsigned n);

/* op_hibernate.c */
void hibernate_export(struct op *op); /* op->to, or what sleeps, with its processes */

#endif
