/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: sandboxes that last until they are closed.
 *
 * A session has at most one box at a time. Its commands are runs (struct run) with `session` set.
 * They share the box, and its init reports each of them by its serial.
 *
 * Files. The box's private tmpfs has a part for each writable place. When nothing runs in a box,
 * its tmpfs can become a *layer*: the box is given up, and the next box is based on the layer (and
 * on the layers below it) with a new tmpfs of its own. While something runs, the tmpfs is copied
 * into a layer with every process frozen, and the box stays. A *node* is a snapshot of the files: a
 * layer of its own on top of another node's. The nodes of one family (a session and its forks) make
 * a tree. A reset or a fork is a new box on a node. Long chains of layers are merged in the
 * background.
 *
 * Processes. A node may also have a checkpoint: the memory and registers of the running processes
 * in an image, dumped while the files were copied. The first use of such a node starts a *zygote*,
 * a launcher that has the image in its memory. A fork or a reset gets a box of the zygote, in which
 * the processes resume, and their commands are runs of the new session.
 *
 * Requests that need more than one step (snapshot, fork, reset, diff, ...) are *operations*: a
 * session carries them out one after the other, and its commands wait meanwhile.
 */
#ifndef ROLLBOX_ENGINE_SESSION_SESSION_H
#define ROLLBOX_ENGINE_SESSION_SESSION_H

#include <jansson.h>

#include "base/inode_numbers.h"
#include "engine/store_job/backing.h"
#include "engine/box/box.h"
#include "engine/engine.h"
#include "engine/checkpoint/dirty_tracking.h"
#include "engine/protocol.h"
#include "engine/session/session_events.h"

#define SESSION_NAME_MAX 64

/* Immutable files: see GUEST_MAX_LAYERS. */
struct layer {
    unsigned references;
    void (*free)(struct layer *layer); /* called with the last reference */
    struct backing_ref backing_ref;
    struct disk_upper *upper; /* on disk: where; a reference. NULL: it is a tmpfs, or a box's yet */
    int fd;
    uint64_t bytes, entries;
    uint64_t parts;     /* GUEST_PARTS */
    bool in_use_by_box; /* a box has it, too, and keeps it */
};

/* References to layers on disk: a descriptor keeps a tmpfs, but not a directory, from going. */
struct layer_hold {
    struct layer **layers;
    size_t n;
};

/* All nodes of a session and its forks. */
struct snapshot_tree {
    unsigned references;   /* sessions */
    struct list snapshots; /* struct snapshot.in_tree; the first is the beginning, without files of
                              its own */
    unsigned next_name;
};

/* What ran when a state was taken: an image of it, and what the engine is to make again. */
struct checkpoint {
    struct engine *engine;
    unsigned references;
    struct list node;        /* engine->zygotes */
    struct launcher *zygote; /* NULL: none now */
    struct box *preforked;   /* in which they wait for the next who wants them; NULL: none now */
    unsigned n_restored, n_uses; /* in sandboxes; by operations, each of which may have made many */
    int64_t taken_ns;            /* when a prefork was taken, the last time */
    int image;                   /* a sealed memory file */
    bool is_complete; /* it is, by now: a dump may fail while it is written, after the processes
                         resumed */
    struct checkpoint *parent; /* the parent of an incremental image (dirty_tracking.h); a
                                  reference. NULL: it is full */
    unsigned n_trackings;      /* of the references to it, those of dirty tracking since it */
    bool was_dropped;          /* by somebody who wants its memory back */
    bool notes, wants_zygote;  /* its sandboxes have dirty tracking from their start; the next fork
                                  is to come from its zygote (dirty_tracking.h) */
    int flat_image;      /* then: one that is none (flatten.c); -EBADF: nobody has asked for it */
    uint64_t flat_bytes; /* of that */
    struct flatten_handle *flattening; /* a job that nobody waits for (flatten.h); NULL: none */
    int64_t clocks[2]; /* of the processes, when they were captured: CLOCK_MONOTONIC,
                          CLOCK_BOOTTIME; nanoseconds */
    int progress; /* a socket that tells who loads it how far it is written, while it is; -EBADF */
    struct backing_ref backing_ref;
    unsigned processes;
    uint64_t bytes; /* of the image */
    struct checkpoint_command *commands;
    struct checkpoint_pipe *pipes; /* in the order that the image knows them in */
    int *terminals;                /* likewise: whose command's; -1: of one that had ended */
    size_t n_commands, n_pipes, n_terminals;
};

/* A command that was under way. */
struct checkpoint_command {
    unsigned char operation[64]; /* without the session's number */
    size_t operation_length;
    pid_t pid; /* of its main process, in the sandbox */
    char *description;
    int64_t timeout_ms; /* that was left; 0: none */
    uint64_t output_limit;
    bool has_terminal;
};

/* A pipe that leads out of the sandbox. */
struct checkpoint_pipe {
    uint64_t inode;
    int command;     /* whose it is; -1: of one that had ended */
    unsigned slot;   /* which of its descriptors it was at the start */
    bool is_written; /* in the sandbox */
};

/* What a session's processes are dumped to and restored from. */
struct session_checkpoint {
    struct profile *profile;    /* the session's */
    struct dump_job *dumping;   /* under way; NULL: none */
    struct dump_job *releasing; /* resumes the processes; until then no other dump may begin */
    bool was_thawed;            /* for that dump, and is paused */
    bool is_fork;
    bool tracks_from_birth; /* and was not made with many others at once (dirty_tracking.h) */
    struct session_tracking tracking;
    /* What is to be resumed in the session's box, until it is; a reference, or NULL. */
    struct checkpoint *pending_restore;
    enum restore_state {
        RESTORE_WAITS,   /* or none is pending */
        RESTORE_REPEATS, /* in a box that is made for it, as a preforked one has died */
    } restore_state;
    struct backing_ref backing_ref; /* the image that the processes were restored from */
};

struct snapshot {
    struct engine *engine;
    unsigned references; /* of nodes below in `under`, sessions, works; not of the family's list */
    struct list in_tree;
    struct snapshot_tree *tree; /* NULL: dropped, and here only for those above */
    struct snapshot *parent;    /* in the tree that users see; a reference */
    struct snapshot
        *lower; /* what the layer lies on; a reference; NULL: on nothing but the plan's own files */
    struct layer *layer;           /* NULL: none */
    struct checkpoint *checkpoint; /* NULL: nothing ran, or its files alone are kept; a reference */
    struct layer *compacted;       /* of this node and all under it; NULL: not merged (yet) */
    /* Called when the merge of the chain is over; NULL: none is under way. */
    void (*compacted_hook)(struct engine *engine, struct snapshot *snapshot);
    struct snapshot *compact_onto; /* while merging: what the merged layer is to lie on, a
                                      reference; NULL: it is `merged` */
    bool pinned;                   /* snapshot_tree_gc: somebody stands on it */
    char id[32];
    char *name;          /* or NULL */
    int64_t made_ns;     /* CLOCK_REALTIME */
    uint64_t generation; /* how many states lead to it, those that were dropped since, too */
    bool is_live;        /* taken while something ran */
    json_t *net_names;   /* gateway_name_snapshot; NULL: none */
    unsigned n_pins;     /* works that name it: what ran in it stays for them when it is dropped */
    bool is_asked_for;   /* by SNAPSHOT or FORK */
    bool is_of_fork;     /* by FORK alone: kept as long as somebody stands on it */
    uint64_t automatic;  /* the number of the session whose command's end it was taken at; 0:
                            somebody asked for it */
};

/* Of a session: auto_snapshot.c. */
struct auto_snapshot {
    struct session_observer observer;
    unsigned keep; /* how many; 0: none are taken */
    uint64_t n_taken, n_unchanged;
    char last[32]; /* id of the latest; "": none */
    char *refusal; /* of the last one, if it could not be taken; NULL */
};

enum session_state { SESSION_NEW, SESSION_LIVE, SESSION_PAUSED, SESSION_CLOSING };

/* A pipe out of the sandbox that a command had which is over: what it left running may have it
 * still. */
struct orphan_pipe {
    uint64_t inode;
    bool is_written;
};

/* The files of a session: take_snapshot.c. */
struct session_files {
    struct snapshot *base;      /* the box stands, or will stand, on it; a reference */
    struct snapshot *at;        /* the last state taken: the parent of the next one; a reference */
    struct snapshot *committed; /* what the host has since the last COMMIT; a reference, or NULL */
    char *committed_path;       /* of that; NULL: everything */
    struct snapshot_tree *tree;
    bool dirty; /* files may have changed since `at` */
};

/* How a session began. */
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
};

/* The commands of a session: exec.c. */
struct session_commands {
    struct list runs;    /* struct run.of_session */
    struct list waiting; /* struct run.in_queue: for room in init's socket, a box, or the end of an
                            operation */
    struct list ended;   /* struct ended.node: oldest first */
    unsigned n_runs, n_ended;
    bool kill_due; /* init has not received the request yet to kill some of them */
    bool thaw_due; /* nor that the processes may run, as the files are copied */
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

/* Ends, pauses and hibernates a session that is not used: session.c. 0 ms: never. */
struct session_timers {
    struct loop_timer idle, end, lifetime, hibernate;
    int64_t idle_ms, ttl_ms, lifetime_ms, hibernate_ms;
    int64_t called_ns;         /* CLOCK_MONOTONIC: the last request */
    uint64_t hibernate_cpu_ns; /* of its box when that timer was set */
};

/* Looks at the memory of the session's box: session.c. */
struct session_watch {
    struct loop_timer timer;
    int64_t cost_ns;          /* of the last look; counted in engine->memory_poll_cost_ns */
    unsigned n_out_of_memory; /* how often all processes were ended for want of memory */
};

struct session {
    struct engine *engine;
    struct profile *profile;
    struct client *client; /* NULL: detached */
    struct list node;      /* engine->sessions */
    struct list by_name;   /* engine->sessions_by */
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

struct op;

/* What sessions need of hibernation, which is a module above them (hibernate.c). */
struct hibernation_ops {
    /* The processes of a snapshot are about to be resumed in the session's box. A sandbox that
     * wakes is not to be offered by the store from then on. 0, or the error. */
    int (*before_restore)(struct session *session, struct rollbox_error *error);
    /* The session closes. `keeps_stored`: the store keeps it for the next engine. */
    void (*closing)(struct session *session, bool keeps_stored);
};

/* session.c, session_box.c, session_life.c */
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
    struct session *session); /* what it has counted until now is the cause of no later end */
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
#define CHECKPOINT_REST_NS 200000000ll /* the longest until the first look at what was restored */

/* exec.c: commands in sessions. */
void exec_enter(struct run *run);
bool exec_kill(struct run *run); /* its tree; false: init cannot receive it, or never knew of it */
int exec_signal(struct run *run, int number, enum rollbox_scope scope);
void exec_kill_all(struct session *session);    /* every process but init */
void exec_kill_guests(struct session *session); /* and but its agents */
/* Commands wait that may be sent: the session is to have a box then. */
bool exec_may_send(const struct session *session);
/* To init, in the session's box; of session_schedule alone. `ready`: 0, or why there is no box.
 * False: some wait still. */
bool exec_send_waiting(struct session *session, int ready, struct rollbox_error *error);
void exec_tell_again(struct session *session); /* what init had no room for */
/* There is no init any more that would tell the end of a command. It fails, unless its outcome is
 * known. */
void exec_end(struct run *run, const struct rollbox_error *error);
/* init has answered to a signal for that command. */
void exec_signalled(struct session *session, uint64_t serial);
void exec_answer(
    struct session *session, const struct guest_record *record, int *fds, size_t n_fds);
size_t exec_claim(struct run *run, uint64_t wanted, struct buf *json,
    int *ret_fds); /* VERB_CLAIM: what was kept for the first client that asks; the descriptors are
                      the caller's */
struct run *exec_find(struct session *session, const struct wire_field *operation);
/* A restored command, which continues in the session's box. NULL: out of memory. */
struct run *exec_adopt(struct session *session, const struct checkpoint_command *command);

/* session_files.c */
void snapshot_ref_assign(struct snapshot **at, struct snapshot *snapshot);
/* The state of a session in which nothing of a state's processes is: that state, or one of its
 * files alone, also where it was dropped and has lost its name. A reference, or NULL. */
struct snapshot *session_files_of(struct session *session, struct snapshot *snapshot);
/* The present state, of which all is known, as nothing was called since, or what was has left
 * nothing. A reference, or NULL. */
struct snapshot *session_files_unchanged(struct session *session);
/* The private files of a box as a layer; `ends`: nobody needs the box any more. 0 or -errno. */
int session_files_layer(struct box *box, bool ends, struct layer **ret_layer);
/* The files of a box in which nothing runs (any more), as a snapshot with a reference for the
 * caller, or NULL; the session stands on it from now on. */
struct snapshot *session_files_seal(struct session *session, struct box *box);

/* stream.c */
struct terminal_input;
/* Before the end of a pipe is handed to a sandbox: its programs may open the pipe by name, too.
 * Other files stay as they are. */
void stream_let_open(const struct engine *engine, int fd);
int stream_add(struct output *output, int take_fd);
void stream_flush(struct output *output);  /* there is more, or its end */
void stream_orphan(struct output *output); /* the run goes; what is not delivered yet still is */
void stream_drop(struct output *output);
void stream_forget_all(struct engine *engine);
void drain_add(struct engine *engine, uint64_t session,
    int take_fd); /* read from and forgotten, until its end; `session`: its number */
size_t drain_terminals(
    const struct engine *engine, uint64_t session, int *fds, size_t most); /* borrowed */
size_t drain_inodes(const struct engine *engine, uint64_t session, uint64_t *inodes, size_t most);
void drain_forget(
    struct engine *engine, uint64_t session); /* the writers of its drains are dying */
void drain_forget_all(struct engine *engine);
struct terminal_input *terminal_input_new(
    struct engine *engine, const struct client *client, int take_input, int terminal);
struct terminal_input *terminal_input_free(struct terminal_input *terminal_input);

/* layer_chain.c */
int layer_hold(struct layer_hold *hold, struct layer *const *layers,
    size_t n); /* those of them that are on disk, besides what it holds. 0 or -ENOMEM */
int layer_hold_tree(struct layer_hold *hold, const struct snapshot_tree *tree);
void layer_hold_done(struct layer_hold *hold);
struct layer *layer_put(struct layer *layer);
struct layer *layer_get(struct layer *layer);
/* No file of its family's sandboxes is older: CLOCK_REALTIME. */
int64_t snapshot_since_ns(const struct snapshot *snapshot);
void snapshot_has_since(struct snapshot *snapshot, int64_t since_ns); /* for a prefork, say */
size_t snapshot_chain(struct snapshot *snapshot, struct layer **layers,
    size_t most); /* bottom first; how many there are, perhaps more than most */
void snapshot_usage(
    struct snapshot *snapshot, uint64_t *ret_bytes, uint64_t *ret_entries); /* of its chain */

/* What a box on a snapshot needs of it. 0, -E2BIG or -ENOMEM. */
int snapshot_box_layers(struct snapshot *snapshot, struct box_layers *ret_layers);
void box_layers_done(struct box_layers *layers); /* what no box has taken */

/* layer.c */
struct layer *layer_new(int take_fd, uint64_t bytes, uint64_t entries);
void layer_take_upper(struct layer *layer,
    struct disk_upper *take_upper);                /* it is on disk, and immutable from now on */
bool layer_is_measured(const struct layer *layer); /* else it will be: op_measured */
struct snapshot_tree *snapshot_tree_new(struct engine *engine, struct snapshot **ret_beginning);
struct snapshot_tree *snapshot_tree_put(struct snapshot_tree *tree);
struct snapshot *snapshot_new(struct engine *engine, struct snapshot_tree *tree,
    struct snapshot *parent, struct snapshot *lower, struct layer *take_layer);
struct snapshot *snapshot_get(struct snapshot *snapshot);
struct snapshot *snapshot_put(struct snapshot *snapshot);
struct snapshot *snapshot_find(struct snapshot_tree *tree, const char *id);
int snapshot_drop(struct snapshot *snapshot);
struct snapshot *snapshot_pin(
    struct snapshot *snapshot); /* a reference, and what ran in it stays; of NULL NULL */
struct snapshot *snapshot_unpin(struct snapshot *snapshot); /* NULL */
struct snapshot *snapshot_nearest_owned(struct snapshot *
        snapshot); /* that one, or what it lies on if it is nobody's any more and has nothing of its
                      own: one more of those with each round of states would be kept for nothing */
/* Merges a long chain of layers in the background. `done` is called once if that begins. */
void snapshot_compact_later(struct snapshot *snapshot, struct profile *profile,
    void (*done)(struct engine *engine, struct snapshot *snapshot));
bool snapshot_is_compacting(const struct snapshot *snapshot);
/* The description of a snapshot for users. */
struct snapshot_facts {
    const char *id, *name, *parent; /* name, parent: or NULL */
    uint64_t bytes, files;          /* that its parent has not */
    int64_t made_ns;
    bool was_live, is_automatic;
    const char *kind; /* what becoming it takes: "files" alone; "live": its processes from their
                         image; "warm": they are held ready; "asleep": it is in the store */
    unsigned processes;
    uint64_t memory_bytes, disk_bytes; /* disk: of one that sleeps */
};
void snapshot_facts(struct snapshot *snapshot, struct snapshot_facts *ret_facts);
void snapshot_facts_text(
    const struct snapshot_facts *facts, struct buf *to); /* members of a JSON object */
struct snapshot *snapshot_nearest_visible(
    struct snapshot *snapshot); /* itself, or the nearest before it that users know of */
void snapshot_tree_gc(
    struct snapshot_tree *tree); /* forgets states that nobody asked for and nothing stands on */
void snapshot_tree_text(struct snapshot_tree *tree, struct buf *to);
/* Copies layers (the first `n`, bottom first) into a new one, in a child of the launcher. Files of
 * `numbers` keep those, besides what was kept in the layers; NULL: none. `done` is called once,
 * with NULL and an errno on failure. */
struct copy;
typedef void (*copy_done)(void *data, struct layer *take_layer, int error_number);
int copy_start(struct profile *profile, struct layer *const *layers, size_t n,
    const struct inode_numbers *numbers, copy_done done, void *data);
void copy_forget(struct engine *engine, const void *data);

int copy_empty(struct profile *profile, uint64_t bytes, uint64_t entries, copy_done done,
    void *data);                      /* a new layer with nothing in it */
void layer_look(struct layer *layer); /* it was filled */

/* checkpoint.c: processes that resume in another box. */
struct session_checkpoint *session_checkpoint_new(struct profile *profile);
/* Its dump ends, and its processes are resumed. Takes and returns NULL. */
struct session_checkpoint *session_checkpoint_free(struct session_checkpoint *of);
struct checkpoint *checkpoint_new(struct engine *engine); /* empty; NULL: out of memory */
int checkpoint_new_image(struct profile *profile);        /* a file for one, empty; or -errno */
int checkpoint_new_small_image(void);   /* one that a page of usual size is not too small for */
int checkpoint_open_to_read(int image); /* another descriptor of it: it may be written to by others
                                           yet, by this one it cannot be; or -errno */
int checkpoint_seal_image(int *fd); /* nobody writes to it any more, nor did anybody keep a way to:
                                       0 or -errno; the descriptor is another after it */
struct checkpoint *checkpoint_get(struct checkpoint *checkpoint);
struct checkpoint *checkpoint_put(struct checkpoint *checkpoint);
int checkpoint_zygote(struct checkpoint *checkpoint, struct profile *profile,
    struct launcher **ret_zygote, struct rollbox_error *error);
void checkpoint_prefork(struct checkpoint *checkpoint, struct profile *profile,
    struct snapshot *base); /* a box for the next one, if there is likely to be one */
bool checkpoint_is_in_demand(
    struct checkpoint *checkpoint); /* a prefork is taken: is the next one to be made at once? */
void checkpoint_load_box(struct checkpoint *checkpoint, struct profile *profile,
    struct snapshot *base); /* for the one who waits for what is being written; live->progress is
                               gone if there is one */
/* Of a box that the checkpoint's zygote, which there is, makes. */
void checkpoint_zygote_config(
    const struct checkpoint *checkpoint, const struct profile *profile, struct box_config *config);
void checkpoint_drop_zygotes(
    struct engine *engine); /* those that are idle: something has run out */
int checkpoint_image(
    const struct checkpoint *checkpoint); /* borrowed: a full image; -EBADF: there is none yet */
uint64_t checkpoint_memory(
    const struct checkpoint *checkpoint); /* bytes that its processes have, at most: the memory of
                                             its zygote, and of its sandboxes at their start */
bool checkpoint_is_incremental_on(const struct checkpoint *checkpoint,
    const struct box *box); /* is it an increment of the image that the box was prepared from? */
struct checkpoint *checkpoint_backing_ref(
    struct checkpoint *checkpoint); /* the checkpoint whose zygote makes its sandboxes: itself, or
                                       its parent, and they apply the increment */
/* In a list of JSON objects. */
void checkpoint_command_text(
    const struct checkpoint_command *command, const char **between, struct buf *to);

/* auto_snapshot.c: snapshots that are taken by themselves. */
void auto_snapshot_init(void);
bool auto_snapshot_is_due(const struct session
        *session); /* its state may be another than before the command that has just ended */
/* From now on each command that changes something is followed by a snapshot; `keep` of them stay.
 * 0: none are taken. */
void auto_snapshot_set(struct session *session, unsigned keep);
void auto_snapshot_failed(struct session *session, const struct rollbox_error *error);
void auto_snapshot_text(const struct session *session, struct buf *to);

/* box_files.c */
bool box_is_pristine(struct box *box); /* nothing seems to run in it, and nothing was written: as
                                          far as is known without a request to init */
bool op_files_are_pristine(struct box *box); /* nothing was written since it was made, though it may
                                                be in the next moment if something runs */
struct files_baseline *box_files_baseline(
    struct box *box); /* to find out later whether anything was written; NULL: not known */

/* record.c: trajectories. It observes the sessions that are recorded (session_events.h). */
void record_init(void);
int record_begin(struct session *session, struct wire_message *from, struct buf *json,
    struct rollbox_error *error); /* VERB_RECORD */
int record_note(struct session *session, struct wire_message *from,
    struct rollbox_error *error); /* VERB_NOTE */
void record_name(struct engine *engine, uint64_t number, char *ret_id,
    size_t size); /* a session's number as an id that no other has */
void record_finish(struct engine *engine);

/* status_json.c */
void session_text(struct session *session, struct buf *to);

/* The same facts and the use of resources, now and at the most: null where it is not known. It
 * asks the kernel. */
void session_text_stats(struct session *session, struct buf *to);

/* An array of all sessions. Without `has_stats` the kernel is not asked. */
void session_text_all(struct engine *engine, bool has_stats, struct buf *to);
void session_text_execs(const struct session *session, struct buf *to);
void session_text_processes(struct session *session, struct buf *to);

/* debug.c: what is under way, as a JSON object. */
void debug_dump(struct engine *engine, struct buf *to);

#endif
