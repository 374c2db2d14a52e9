/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine: owns sandboxes on behalf of its clients.
 *
 * It has one thread and one loop. A *client* is a connection. A *profile* is a policy compiled for
 * this host, shared by all clients that sent the same text; it has a *launcher* process and some
 * spare boxes. A *box* is a kernel sandbox: an init that is held by a pidfd, the socket to it, a
 * network namespace and a cgroup slot. A *run* is a request for one command: it is queued until
 * memory is granted, then it has a box, until its result is sent. Runs belong to clients and end
 * with them. A box outlives its run for the moment that the kernel needs to remove it.
 */
#ifndef ROLLBOX_ENGINE_ENGINE_H
#define ROLLBOX_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "base/list.h"
#include "base/wire.h"
#include "engine/box/launcher.h"
#include "loop/loop.h"
#include "policy/plan.h"
#include "policy/policy.h"
#include "store/store.h"
#include "sys/cgroup.h"
#include "sys/features.h"

struct checkpoint;
struct snapshot;
struct checkpoint_command;
struct box;
struct box_config;
struct box_owner_ops;
struct client;
struct layer;

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

/* The file system for images of processes. A launcher makes it. */
struct image_fs {
    int fd; /* -EBADF: none yet */
    bool requested;
    uint32_t id; /* whose it is; 0: the caller's own */
    struct launcher_job job;
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
    unsigned open_files; /* that limit: snapshots, images and zygotes have files, too */
    int64_t
        socket_poll_cost_ns; /* what it takes to ask all boxes once what waits in their sockets */
    int64_t memory_poll_cost_ns; /* what it takes to look at the memory of all sessions once */
    char *socket_path;
    struct list clients, profiles, boxes, runs, sessions, streams, drains;
    struct list
        turns; /* struct client.in_turns: those with a queue; who was served last is the last */
    struct list copies;  /* struct copy.node: asked of launchers, not answered yet */
    struct list zygotes; /* struct checkpoint.node: those that have one, the longest unused first */
    unsigned n_zygotes;
    struct session *forked_last;   /* as it ran; NULL: it is gone */
    struct image_fs image_fs;      /* checkpoint.c */
    struct list sessions_by[1024]; /* the same, found by a hash of the name */
    uint64_t next_session, next_name, next_exec;
    unsigned n_sessions, n_drains;
    uint64_t next_profile;
    unsigned n_clients, n_boxes, n_running, n_queued;
    uint64_t memory_budget, memory_reserved;  /* bytes; budget 0: unlimited */
    uint32_t next_id_base, next_guest_id;     /* as root: ranges of the host's ids */
    uint64_t guest_ids[GUEST_ID_OTHERS / 64]; /* a bit for each id in such a range that a sandbox
                                                 has, or a namespace in free_file_ids */
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

#define MAX_RUN_EXTRA 8 /* descriptors of a command from 3 on */
#define AGAIN_NS                                                                                   \
    50000000ll /* before it is tried again what found no room, or is looked for again what nobody  \
                  tells of */

/* sender.c: a message that waits, inside the object that keeps it for its owner. */
struct outgoing {
    struct list node; /* sender->waiting */
    struct buf message;
    int fds[MAX_RUN_EXTRA + 1];
    size_t n_fds, bytes;
};

struct sender {
    struct loop *loop;
    struct loop_source
        *source; /* of the socket: its owner reads from it, and calls sender_flush on EPOLLOUT */
    struct loop_timer retry;
    struct list waiting;
    size_t bytes, n;  /* of what waits: memory files included; how many messages */
    uint64_t flying;  /* bytes of memory files that were sent since the other end had read all */
    size_t pauses_at; /* bytes: with more waiting, nothing is read from the socket. 0: it is always
                         read */
    bool by_event;    /* it waits for room in the socket */
    void (*over)(struct sender *sender, struct outgoing *outgoing,
        int r); /* takes what has waited: it is sent, or (-errno) never can be */
};

struct client {
    struct engine *engine;
    struct list node; /* engine->clients */
    struct loop_source source;
    int fd;
    bool greeted;
    struct list runs;     /* struct run.of_client */
    struct list sessions; /* struct session.of_client: those that end with it */
    struct sender sender;
    pid_t pid; /* as the kernel tells; 0: of another pid namespace */
    uid_t uid;
    unsigned n_requests;         /* that are not answered yet */
    size_t held_bytes, held_fds; /* of its requests: what waits in the engine */
    struct list queue;           /* struct run.in_queue */
    struct list in_turns;        /* engine->turns */
    unsigned n_queued, n_running;
    uint64_t memory_reserved; /* bytes: of its runs that run */
    uint64_t passed;          /* bytes: of others' runs that began while its first had no room */
};

/* oci_image.c: an image that a policy names, with what it says where the policy is silent put into
 * the policy. */
struct image {
    struct store_image *stored; /* its layers, locked */
    char *directory;            /* of the store's layers */
    struct plan_image plan;
    struct plan_image_place *places; /* of a snapshot; what they point to is ours */
};
int image_get(struct policy *policy, struct image **ret_image, struct rollbox_error *error);
struct image *image_free(struct image *image);

/* What is at the paths that a policy names: to tell, later, whether it is something else there now.
 */
struct path_identities {
    struct path_identity *items;
    size_t n;
    int64_t etc_changed_ns; /* the host's /etc */
    bool is_mixed; /* its template has something else than this, however the host looks now */
};

/* What the client's environment and files give a policy. */
struct profile_values {
    struct buf environment; /* "K=V" NUL each */
    int secrets;            /* of net_secrets: a sealed memory file; -EBADF: none */
};

/* The runs of code of a profile, and the interpreter that is kept started for them
 * (python_zygote.c). */
struct profile_code {
    unsigned n_runs;                 /* that an interpreter may be ready for */
    unsigned n_cold;                 /* of these, that have none, and run or are queued */
    struct interpreter *interpreter; /* NULL: none */
    struct profile *twin;            /* the profile that has the interpreter; NULL */
    void (*free_interpreter)(struct interpreter *interpreter);
};

struct profile {
    struct engine *engine;
    struct list node; /* engine->programs */
    uint64_t number;
    char *key; /* policy text and, where it counts, the caller's environment */
    size_t key_length, text_length;
    struct list kept; /* struct kept: host directories that a commit has replaced, and that its
                         sandboxes still see */
    struct policy *policy;
    struct plan *plan;
    struct image *image; /* that its template shows; NULL: none */
    struct path_identities
        path_identities; /* what was at the policy's paths when it was compiled */
    struct profile_values values;
    char *isolation;
    struct launcher *launcher;                /* NULL: none yet, or it died */
    struct launcher_namespace user_namespace; /* what its sandboxes' files belong to */
    struct list spares;                       /* struct box.in_profile: ready and idle */
    unsigned n_spares, n_runs, n_running;
    unsigned n_sessions; /* that stand on its launcher: it must not go */
    unsigned n_sleepers; /* sessions that sleep: it may rest, but must not go */
    unsigned n_wakers;   /* of these, and of its sessions, that are about to wake: what their files
                            are made with is to be what they run with */
    struct list slots;   /* struct cgroup_lease: free */
    int64_t used_ns;
    struct profile_code code;
    struct interpreter *serves;                 /* of the profile that has an interpreter; NULL */
    struct profile *base;                       /* of the same: whose code it runs; else NULL */
    int (*load_image)(struct profile *profile); /* into a new launcher; NULL: there is none */
};

struct output;

/* What follows from a command's output, for the owner of the run. Each may end the run. */
struct output_ops {
    void (*ended)(struct output *output); /* nobody has it open for writing any more */
    void (*overflowed)(struct output *output);
    void (*lost)(struct output *output, int error_number); /* it cannot be kept */
};

struct output {
    struct run *run;
    const struct output_ops *ops;
    struct list streams; /* struct stream: who gets it as it comes */
    struct loop_source source;
    int fd; /* read end; -EBADF once at its end or never there */
    struct buf head;
    int spool;      /* memory file with everything, once head is too small; -EBADF */
    uint64_t total; /* bytes kept */
    bool truncated, sealed;
};

/* A retry of an operation that is under way: it gets the same result. */
struct waiter {
    struct list node;
    struct client *client;
    uint64_t serial;
};

/* A pipe between a command and its client. */
struct run_pipe {
    uint64_t inode;  /* 0: none */
    bool is_written; /* by the command */
    int kept;        /* of a restored one: the other end, until somebody claims it; -EBADF */
};

/* As init counts them, for records. UINT64_MAX: not known. */
struct run_counts {
    uint64_t read_bytes, written_bytes;
    uint64_t stream; /* of random numbers */
};

/* How a command of a session ends, which shares its box with others: exec.c. */
struct run_session_ops {
    bool (*kill)(struct run *run);   /* its processes; false: init cannot receive it, or has none */
    void (*finish)(struct run *run); /* sends the result and frees the run */
    bool (*is_broken)(const struct run *run);     /* a dump that was killed has left it damaged */
    enum oom_cause (*oom_cause)(struct run *run); /* of one that was killed, by its box's cgroup */
};

enum run_state { RUN_QUEUED, RUN_STARTING, RUN_RUNNING, RUN_ENDED };

struct run {
    struct engine *engine;
    struct client *client; /* NULL once it is gone */
    struct profile *profile;
    struct list of_engine;
    struct list of_client;
    struct list in_queue; /* engine's; of a session's: session->waiting */
    struct list waiters;  /* struct waiter: retries of the same operation */
    uint64_t serial;
    unsigned char
        operation[72]; /* of a session's: its number first, so that two sessions may use the same */
    size_t operation_length;
    enum run_state state;
    struct session *session;                   /* NULL: a box for it alone */
    const struct run_session_ops *session_ops; /* of that */
    struct list of_session;
    uint64_t exec;  /* its serial towards init */
    pid_t main_pid; /* of its main process, in the sandbox */
    bool has_terminal, is_detached;
    bool kill_due;    /* init has not received it yet */
    bool told_to_end; /* init is to kill it: `timeout` is how long that may take to answer */
    int input;        /* what is typed into the terminal; -EBADF */
    const struct client *input_client; /* who gave it */
    int streams[2]; /* what the streams are to be copied to, until they are; -EBADF */
    int extra[MAX_RUN_EXTRA];
    unsigned n_extra;
    struct run_pipe pipes[3 + MAX_RUN_EXTRA]; /* of a session's: by the descriptor that it became.
                                                 Of stdout and stderr: `outputs` */
    struct terminal_input *terminal_input;    /* session: from `input` into the terminal */
    struct buf request;                       /* the message for init */
    size_t n_env;                             /* of the request's variables, the last in it */
    unsigned n_extra_given;
    bool stdin_is_data, stdin_is_piped;
    int stdio[3]; /* what the command gets; -EBADF once handed over */
    int64_t timeout_ms;
    uint64_t output_limit;
    struct box *box;
    struct output outputs[2];
    struct loop_timer timeout, watch;
    int64_t started_ns;
    int64_t oom_kills_before; /* of the host */
    bool was_sent_kill;       /* SIGKILL, because somebody asked for it */
    bool is_code;             /* python3 -c CODE ...: may be a restored interpreter's */
    bool is_cold;             /* and is not, though it is queued or runs */
    bool reserved;
    struct client *queued_at, *held_by, *charged_to; /* whose queue it is in; who is counted what it
                                                        holds, and its memory; NULL: nobody */
    size_t held_bytes, held_fds;                     /* of its request */
    bool killed;                                     /* by us, for `outcome` */
    bool exited;                                     /* init told how it ended */
    enum rollbox_outcome outcome;
    int status; /* wait status */
    uint64_t wall_ns, cpu_ns, peak_memory;
    int64_t look_ns; /* what the last look at its memory took (on_watch) */
    struct run_counts counts;
    uint32_t processes_peak;
    struct rollbox_error error;
};

/* profile.c */
/* python.c: grants what the interpreter of the policy's own needs, if it names one. */
int python_grant(struct policy *policy, struct rollbox_error *error);

int profile_get(struct engine *engine, const char *text, size_t length,
    const char *const *caller_environment, int secrets, struct profile **ret_profile,
    struct rollbox_error *error); /* `secrets`: see struct profile; borrowed */
struct profile *profile_twin(const struct profile *of,
    struct rollbox_error *error); /* another of the same policy, on no list and without a number:
                                     its owner frees it; NULL */
struct profile *profile_find(struct engine *engine, uint64_t number);
int profile_renew(struct profile **profile,
    struct rollbox_error *error); /* for what begins now: another one, if the host has something
                                     else at the policy's paths */
int profile_of_before(struct profile **profile, const json_t *path_identities,
    struct rollbox_error *error); /* for what began on those (path_identities_record): another one
                                     of no number, if the host's directories are others now */
int profile_explain(struct engine *engine, const char *text, size_t length, struct buf *to,
    struct rollbox_error *error);
/* Adds the policy's environment, then which clone it is (-1: none), then the entries; of two with
 * one name the later. How many of the entries. */
size_t profile_add_environment(struct buf *to, const struct profile *profile, int64_t clone_id,
    const char *const *entries, size_t n);
struct profile *profile_free(struct profile *profile);
int profile_keep_spares(struct profile *profile);
void profile_drop_spares(struct engine *engine); /* of all programs: something has run out */
/* Of all that have something at or below `path`, which is another directory now: new sandboxes see
 * that, the present ones the old one. That is at `kept` now, locked by the descriptor (-EBADF: by
 * none), and goes with the last of them. */
void profile_retire(struct engine *engine, const char *path, int take_fd, const char *kept);
void profile_rest(
    struct profile *profile); /* nothing of it is needed but what it says, unless something is */
void profile_leave(
    struct profile *profile);             /* a session has: a retired program ends with its last */
void profile_tidy(struct engine *engine); /* free slots of a peak that is over */

/* profile_launcher.c */
struct path_identities *profile_path_identities(
    struct profile *profile); /* of an interpreter's second profile: its base's */
int profile_start_launcher(struct profile *profile, struct rollbox_error *error); /* if it has none
                                                                                   */
void profile_stop_launcher(struct profile *profile); /* if it has one */
/* box_new, with a launcher and room for its open files if these can be had. */
int profile_new_box(struct profile *profile, const struct box_config *config,
    const struct box_owner_ops *ops, void *owner, struct box **ret_box,
    struct rollbox_error *error);

/* python_zygote.c: Python kept started. */
/* A run of code of the profile has come; the second has an interpreter made. True: the run is to
 * wait, by its in_queue, until there is one, or a processor is free: hooks.code_released. */
bool interpreter_queue(struct profile *profile, struct list *in_queue);
/* Releases the runs that need not wait any more. NULL: nobody waits. */
void interpreter_release_queue(struct interpreter *interpreter);
struct profile *interpreter_profile(
    struct profile *base); /* in which a run of code is to be started: that one, or one that has the
                              interpreter ready */
int interpreter_code(
    const struct buf *request); /* what the interpreter reads, as a memory file; or -errno */
bool interpreter_is_fixed(
    const struct profile *profile); /* code is always run by it, also after a cold start: its
                                       surroundings must be the same */
int interpreter_request(const struct buf *request,
    struct buf *to); /* that, in place of the command of a GUEST_EXEC. 0 or -errno */
void interpreter_started(struct profile *profile, const struct guest_record *record);
struct profile *interpreter_base_of(
    struct profile *second); /* a run of the second profile has ended */
void interpreter_status(const struct engine *engine, struct buf *to);

/* host_view.c: what plan_compile must know. */
struct host;
int host_look(struct engine *engine, const struct policy *policy, const struct image *image,
    struct host **ret_host, struct rollbox_error *error);
const struct plan_host *host_plan(const struct host *host);
struct host *host_free(struct host *host);
int path_identities_scan(const struct policy *policy, const char *later,
    struct path_identities *ret_path_identities); /* `later`: where something will be denied once it
                                                     is there, or NULL */
bool path_identities_hold(const struct path_identities *path_identities);
bool path_identities_base(const struct path_identities *path_identities, const char *path,
    uint64_t *ret_device, uint64_t *ret_inode);
struct commit_exchange;
void path_identities_published(struct engine *engine, struct profile *by, const char *place,
    const struct commit_exchange *exchange);
json_t *path_identities_record(
    const struct path_identities *path_identities); /* the bases, for when this engine is gone */
size_t path_identities_compare(struct path_identities *path_identities, const json_t *record,
    bool marks); /* how many are others than the record's bases; `marks`: nothing is committed to
                    these unless it is forced */
void path_identities_expect(
    const struct path_identities *path_identities, struct plan *plan); /* tells the launcher */
void path_identities_bound(struct path_identities *path_identities, const struct plan *plan,
    uint64_t others); /* which has answered (ops_others) */
void path_identities_done(struct path_identities *path_identities);

/* run_request.c */
void run_request(struct client *client, struct wire_message *message);

/* run.c */
struct run *run_new(struct engine *engine);
void run_free(struct run *run);
void run_kill(struct run *run, enum rollbox_outcome outcome);
void run_out_of_memory(struct run *run,
    bool of_host); /* with all else in its sandbox: it may have begun already, which init has not
                      said yet. One that nobody has asked init for begins after it */
void run_broken(struct run *run); /* session_broken */
void run_fail(struct run *run, enum rollbox_error_code code, int error_number, const char *stage,
    const char *message);
void run_answer(struct run *run, const struct guest_record *record);
void run_abandon(struct run *run);             /* its client is gone */
void run_forget_client(struct client *client); /* as somebody who waits for another's run */
void run_cancel(struct client *client, uint64_t serial, enum rollbox_outcome outcome);
/* run_text.c: "argv0 argv1 ...", as far as it is short, for people; the caller frees it. Or NULL.
 */
char *run_describe(const struct run *run);

void run_enqueue(struct run
        *run); /* to be started by run_schedule; of code, by the interpreter that there is now */
void run_schedule(
    struct engine *engine); /* soon, from the loop: starts those queued runs that may start */
/* engine_hooks.code_released. */
void run_release_code(struct engine *engine, struct list *in_queue);
struct run *run_find(struct engine *engine, const struct run *except,
    const unsigned char *operation, size_t length); /* under way */
void run_finish(struct run *run);                   /* init has told all that it will */
int run_open_streams(struct run *run);
int run_wait_for(
    struct client *client, uint64_t serial, struct run *run); /* its result goes there, too */

/* output.c */
int output_open(struct output *output, struct run *run, int *ret_write_end);
int output_adopt(struct output *output, int take_fd); /* a terminal's master */
void output_drain(struct output *output);
int output_seal(struct output
        *output); /* its memory file, if it has one, before anybody else gets that: 0 or -errno */
void output_done(struct output *output);
void output_hand_over(struct output *output); /* of a command that has ended, whose stream somebody
                                                 may still write to, and others still read */

/* result.c */
void result_send(struct run *run); /* to its client and all who wait for it */
void result_send_error(
    struct client *client, uint64_t serial, const struct rollbox_error *error); /* without a run */
bool result_replay(struct client *client, uint64_t serial, const void *operation, size_t length);
void result_send_summary(struct client *client, uint64_t serial, enum rollbox_outcome outcome,
    int status, uint64_t wall_ns, uint64_t cpu_ns); /* of one whose output is gone */
bool result_streams(struct engine *engine, const void *operation, size_t length, size_t most,
    struct buf streams[2]); /* appends stdout and stderr of one that is kept; false: they are not
                               there whole, or more than `most` bytes */
void result_restore(struct engine *engine, const void *operation, size_t length,
    enum rollbox_outcome outcome, int status, uint64_t wall_ns, uint64_t cpu_ns,
    const struct buf streams[2]); /* keeps it, of a command of an engine before this one */
void result_forget(struct engine *engine, const void *operation, size_t length);
void result_forget_all(struct engine *engine);
void result_forget_client(
    const struct client *client); /* which waits for a result that waits for a tally */
void result_tally(uint64_t tally,
    const char *network); /* what the gateway has counted, as JSON: the result is complete */

/* engine.c */
void engine_stop(struct engine *engine);
int64_t engine_oom_kills(struct engine *engine, bool now);
bool engine_oom_lately(struct engine *engine); /* has it killed anybody in the last seconds? */

/* sender.c */
void sender_init(struct sender *sender, struct loop *loop, struct loop_source *source,
    void (*over)(struct sender *, struct outgoing *, int));
int sender_send(struct sender *sender, struct buf *message, const int *fds,
    size_t n_fds); /* 0: it is sent; 1: it has to wait; -errno: it never can be sent */
int sender_keep(struct sender *sender, struct outgoing *outgoing, struct buf *message,
    const int *fds, size_t n_fds); /* what has to wait, in an empty *outgoing; takes the message. 0,
                                      or -errno: then neither */
void sender_flush(struct sender *sender);
bool sender_is_paused(const struct sender *sender); /* more waits than may: see pauses_at */
void outgoing_done(struct outgoing *outgoing);      /* does not wait any more */

/* connection.c */
int client_new(struct engine *engine, int take_fd);
void client_free(struct client *client); /* and ends its runs */

/* client.c */
/* A JSON object as the reply; consumed. Without text: {}. */
void client_reply(struct client *client, uint64_t serial, struct buf *json);
void client_send(struct client *client, struct buf *message, const int *fds, size_t n_fds);
void client_fail(struct client *client, uint64_t serial, const struct rollbox_error *error);
int server_handle(
    struct client *client, struct wire_message *message); /* < 0: the connection is to end */
void server_status(struct engine *engine, struct buf *to);

/* spawn.c */
/* The path of a program of ours, for the caller to free; `variable` of the environment overrides
 * it, unless NULL. NULL: out of memory. */
char *spawn_find_program(const char *variable, const char *program);
/* A program in a session of its own, without environment, whose descriptors 0 to n_fds - 1
 * are fds[] (each its own number, or above all of them). 0 or -errno. */
int spawn_clean(const char *path, char *const *argv, const int *fds, int n_fds, pid_t *ret_pid);
/* The same once in the life of a process (later it is spawn_clean), without waiting until it is
 * executed, so the path is to stay. A failure of that shows as its end, with 127. */
int spawn_soon(const char *path, char *const *argv, const int *fds, int n_fds, pid_t *ret_pid);
/* In a fork of the engine, which continues as `name`, in a session of its own and with all signals
 * blocked: closes its descriptors, which are what keeps sandboxes alive and clients waiting, but
 * the standard streams and fds[], in any order (negative: none). 0 or -errno. */
int spawn_shed(const char *name, const int *fds, size_t n_fds);
/* A fork of the engine that looks at guests, and so has nothing of it but these descriptors
 * (-EBADF: none). It ends with the engine. 0 in it, its pid in the engine, or -errno. */
pid_t spawn_fork(const char *name, const int *fds, size_t n_fds);

/* deferred_close.c: closes a descriptor of a tmpfs which may be the last, without waiting for what
 * that frees. */
void deferred_close(int take_fd);
/* A child that has ended: it may have been one of these. */
void deferred_close_ended(pid_t pid);
/* Some child has ended: how many of these have? */
unsigned deferred_close_look(void);
/* Descriptors that are to be closed yet. */
unsigned deferred_close_waiting(void);
/* Waits for all of them. */
void deferred_close_wait(void);

/* no_namespace.c: isolation process: private files, ids, processes. */
struct private_dir;
int private_dir_new(
    struct profile *profile, uint32_t id_base, struct private_dir **ret_private_dir);
/* Where an engine's directory for them may be, in the order of preference; NULL-terminated, static.
 */
const char *const *process_places(void);
void private_dir_fields(const struct private_dir *private_dir, struct buf *message); /* of CREATE */
bool private_dir_is_over(struct private_dir *private_dir,
    uint64_t limit_bytes); /* now and then looks, so that looking costs little */
struct private_dir *private_dir_free(struct private_dir *private_dir); /* the sandbox is dead */
uint64_t process_limit(struct profile *profile); /* RLIMIT_NPROC of a command; 0: the plan's */
void process_end_strays(struct engine *engine);  /* kills what a killed init left */
void process_finish(struct engine *engine);

/* hoards.c: ends sandboxes that have the kernel hold too much for them. */
void hoards_watch(struct engine *engine); /* something runs */
void hoards_finish(struct engine *engine);

/* guest_error.c: a failure of the guest side, worded. */
void guest_restore_error_to_text(const struct guest_record *record, struct rollbox_error *error);
void guest_error_to_text(const struct profile *profile, const struct guest_record *record,
    const char *argv0, const char *cwd, struct rollbox_error *error);

#endif
