/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client side of the engine's protocol, internal to librollbox.
 *
 * Requests. Every request is a `struct pending` in a table, by serial number, until its one reply
 * arrives. The library has no thread of its own. The first thread that has to wait becomes the
 * poller: it polls the socket for all threads, takes arrived messages under the lock, and wakes the
 * threads whose replies have come. When it leaves, another waiting thread takes over. Messages are
 * sent without the lock, because sending on a SOCK_SEQPACKET socket is atomic.
 *
 * Runs. Ended runs are queued in `ended`. Only rollbox_dispatch and rollbox_wait call callbacks,
 * with the lock released. Other functions that receive a result (a blocking request, a start whose
 * socket was full) leave it in the queue and make rollbox_engine_fd readable. Runs with the
 * callback rollbox_queued move on to `queued`, for rollbox_next_ended.
 *
 * Loss of the connection is final. The first end of file, failure or protocol violation fills
 * `lost_error`, and every pending request and run ends with it.
 *
 * Fork: a child shares nothing. A fork handler in the child closes its copies of the descriptors,
 * so that a forked worker that outlives its parent cannot keep the engine alive. Every call first
 * compares the process id. Locks are taken around the fork, so the child can free its copies.
 */
#ifndef ROLLBOX_CLIENT_CLIENT_H
#define ROLLBOX_CLIENT_CLIENT_H

#include <pthread.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "base/list.h"
#include "base/shared_text.h"
#include "base/wire.h"

/* ---- spawn.c ---- */

#define SPAWN_SOCKET_BYTES                                                                         \
    (1 << 20) /* more requests in flight before a sender must wait; the kernel caps it, and less   \
                 is only slower */

struct spawned {
    int socket; /* non-blocking, close-on-exec */
    int pidfd;
    pid_t pid;
    char *path; /* of the engine that runs; NULL: of no program of its own */
};

/* Starts a private engine that serves the other end of a socket pair as its descriptor 3.
 * `engine_path` may be NULL: it is then looked for. */
int spawn_engine(const char *engine_path, struct spawned *ret_spawned, struct rollbox_error *error);

/* Whether an engine gets this "NAME=value" of the caller's environment: ROLLBOX_*, and what says
 * where its private files and the store are. */
bool spawn_keeps(const char *variable);

/* ---- result.c ---- */

/* A result and the memory it points into. */
struct result {
    struct rollbox_result public;
    void *copies[2];   /* of stdout and stderr when they came inside the message */
    void *mappings[2]; /* ... when they came as memory files */
    size_t mapping_lengths[2];
    char *isolation, *network;
};

/* Reads a RESULT message into *ret_result (overwritten). `isolation` (copied; may be NULL) is what
 * holds when the message names none. 0; -EBADMSG if it is malformed; -ENOMEM, -EMFILE and the like
 * if its content cannot be taken. On failure *ret_result is empty. */
int result_read(struct wire_message *message, const char *isolation, struct result *ret_result);

void result_done(struct result *result);

/* The result of a run that was not carried out. Never NULL: without memory it is a constant. */
struct result *result_new_failed(const char *isolation, const struct rollbox_error *error);
/* As result_read, into a new result; NULL on failure. */
int result_read_new(
    struct wire_message *message, const char *isolation, struct result **ret_result);
void result_free(struct result *result); /* NULL: none */
/* `result` may be NULL: a result of zeros. */
const struct rollbox_result *result_public(const struct result *result);

/* Reads the error fields of a FAILED or RESULT message. 0 or -EBADMSG. */
int result_read_error(const void *data, size_t length, struct rollbox_error *ret_error);

/* The text of a TEXT message, for free(); NULL if it is malformed. */
char *result_read_text(const void *data, size_t length);

/* Appends a JSON string. Bytes that are not valid UTF-8 are replaced. */
void result_json_string(struct buf *to, const void *data, size_t length);

/* The text as compact JSON if it is one JSON object, for the caller to free; else NULL. */
char *result_json_object(const char *text);

/* ---- connection.c ---- */

#define REQUEST_FDS_MAX 16

struct waiter {
    struct list of_engine;  /* in engine->waiters */
    struct list of_pending; /* in pending->waiters */
    pthread_cond_t wake;
    bool calls_back; /* it may call the callbacks of runs that ended */
};

struct pending {
    struct pending *next; /* in its bucket */
    uint64_t serial;
    bool is_run; /* a struct rollbox_run, else a struct request, or the engine's hello */
    bool done;
    struct list waiters;
};

/* A blocking request, on its caller's stack. */
struct request {
    struct pending pending;
    uint32_t type;   /* of the reply */
    struct buf body; /* its fields */
    bool takes_fds;  /* set before the call; the caller closes them, also on failure */
    int fds[REQUEST_FDS_MAX];
    size_t n_fds;
    struct rollbox_error error; /* code is ROLLBOX_OK if there was a reply other than FAILED */
};

struct rollbox_plan {
    struct rollbox_plan *next; /* in its bucket */
    struct rollbox_engine *engine;
    uint64_t hash; /* of the text */
    uint64_t id;
    char *text;
    size_t length;
    char *environment; /* the caller's, as it was sent; NULL if the policy does not keep it */
    char *secrets;     /* the values of net_secrets, as they were sent (JSON); NULL: it has none */
    size_t environment_length;
    char *isolation;    /* compact JSON */
    int64_t timeout_ms; /* the default time-out of a run; -1: none */
};

struct rollbox_run {
    struct pending pending;
    struct rollbox_engine *engine; /* NULL once it is closed */
    pid_t owner;
    struct list of_engine; /* in engine->runs */
    struct list of_ended;  /* in engine->ended, between its end and the callback */
    unsigned references;   /* the caller's, and one while the callback is being called */
    bool calling;
    pthread_t caller; /* the thread that is calling the callback */
    rollbox_callback callback;
    void *userdata;
    bool detached;           /* freeing it does not end it */
    bool is_call;            /* it is a call on sessions (call.c), and its answer is `text` */
    bool attached_sandboxes; /* the sessions of the answer end with this connection */
    char *text;
    const char *isolation; /* the plan's, which lives as long as the engine, or own_isolation */
    struct shared_text *own_isolation; /* the sandbox's */
    struct result *result; /* made when it comes: it is ten times as large as all of the above */
};

#define CONNECTION_PLAN_BUCKETS 256

struct rollbox_engine {
    pthread_mutex_t lock;
    pthread_cond_t quiet; /* a callback returned */
    pid_t owner;          /* the process that opened it */
    struct list of_registry;
    int socket;
    int wake;          /* eventfd that interrupts the poller */
    int epoll, notify; /* what rollbox_engine_fd gives: the socket, and an eventfd readable while
                          `ended` or `queued` wait; -EBADF before the first call */
    int pidfd;         /* of a private engine, else -EBADF */
    pid_t pid;
    char *path; /* of a private engine's program or the shared one's socket */
    bool private_engine;
    bool welcomed;
    bool lost;
    bool poller; /* a thread is in poll() */
    struct rollbox_error lost_error;
    uint64_t last_serial;
    struct pending hello; /* done once the engine has answered HELLO, or is lost */
    struct pending **buckets;
    size_t n_buckets, n_pending;
    struct list waiters, runs, ended;
    struct list queued; /* struct rollbox_run.of_ended: returned by rollbox_next_ended, until
                           rollbox_told */
    struct rollbox_plan *plans[CONNECTION_PLAN_BUCKETS];
    struct wire_message message; /* being handled; under the lock */
};

/* Fails with -ECHILD in a process that forked off the owner. */
int connection_check_owner(pid_t owner, struct rollbox_error *error);

/* Gives the pending its serial and enters it. 0, -ENOMEM, or -ENOTCONN (engine lost; *error filled
 * either way). Takes the lock. */
int connection_enter(
    struct rollbox_engine *engine, struct pending *pending, struct rollbox_error *error);

/* Takes a pending out of the table if it is in there still. Needs the lock. */
void connection_forget(struct rollbox_engine *engine, struct pending *pending);

/* Sends a message whose header was begun with serial 0 under the given serial, waiting for room if
 * need be. Needs the lock to be free. *error says what went wrong. */
int connection_send(struct rollbox_engine *engine, struct buf *message, uint64_t serial,
    const int *fds, size_t n_fds, struct rollbox_error *error);

/* Waits until pending->done; timeout_ms -1: for ever. Needs the lock, which it releases while
 * waiting. 0 or -ETIMEDOUT. */
int connection_wait(
    struct rollbox_engine *engine, struct pending *pending, int64_t timeout_ms, bool calls_back);

/* Waits for the engine's answer to HELLO, for so long as a sane engine may take. Takes the lock. */
int connection_await_welcome(struct rollbox_engine *engine, struct rollbox_error *error);

/* One request, with descriptors (borrowed), and its reply. All of *ret_request but takes_fds is
 * overwritten. On success request->body holds the fields of a reply of the expected type; the
 * caller frees it with buf_done, also on failure. */
int connection_call(struct rollbox_engine *engine, struct buf *message, const int *fds,
    size_t n_fds, uint32_t expected, struct request *ret_request, struct rollbox_error *error);

/* Handles arrived messages without blocking; `enough` (may be NULL) ends it early. Needs the lock.
 */
void connection_receive(struct rollbox_engine *engine, const bool *enough);

/* Calls the callbacks of the runs that ended. Needs the lock, which it releases around each.
 * Returns how many ended. */
int connection_call_back(struct rollbox_engine *engine);

/* Makes sure that some thread calls the callbacks of ended runs, and that a thread in poll()
 * notices a reply that arrived by another thread. Needs the lock. */
void connection_announce(struct rollbox_engine *engine);

/* Ends all pending requests and runs with the error, which is final. Needs the lock. */
void connection_lose(struct rollbox_engine *engine, const struct rollbox_error *error);

/* ---- handle.c ---- */

/* Makes a handle of a connected SOCK_SEQPACKET socket (consumed also on failure) and sends HELLO.
 * `pid` is the engine's or 0, `take_pidfd` a private engine's, or -EBADF; `path` (borrowed) is for
 * messages. */
int handle_new(int take_socket, pid_t pid, int take_pidfd, const char *path,
    struct rollbox_engine **ret_engine, struct rollbox_error *error);

/* A connection to the shared engine on the path, non-blocking; nothing is sent yet. */
int handle_connect(const char *path, int *ret_fd, pid_t *ret_pid, struct rollbox_error *error);

/* The same for a private engine that is started already, consumed also on failure, as
 * rollbox_engine_open would return it. */
int handle_adopt(
    struct spawned *take, struct rollbox_engine **ret_engine, struct rollbox_error *error);

/* ---- request.c ---- */

#define REQUEST_MS_MAX                                                                             \
    (INT64_MAX / 1000000) /* times go to the engine in milliseconds and are nanoseconds there */
/* The common part of the options of rollbox_start and rollbox_exec; meanings as there. */
struct request_command {
    const char *const *argv;
    const char *const *env;
    const char *cwd;
    const void *stdin_data;
    size_t stdin_length;
    const struct rollbox_file *files;
    size_t n_files;
    int64_t timeout_ms;
    int64_t output_limit;
    const char *operation_id;
};

/* Of struct rollbox_run_options and rollbox_exec_options alike. */
#define REQUEST_COMMAND_OF(o)                                                                      \
    {                                                                                              \
        (o)->argv, (o)->env, (o)->cwd, (o)->stdin_data, (o)->stdin_length, (o)->files,             \
            (o)->n_files, (o)->timeout_ms, (o)->output_limit, (o)->operation_id                    \
    }

int request_invalid(struct rollbox_error *error, const char *message);
int request_out_of_memory(struct rollbox_error *error);
int request_malformed(struct rollbox_error *error);

/* INVALID_ARGUMENT if WHAT[i], or WHAT with REQUEST_NO_INDEX, is not an open descriptor. */
#define REQUEST_NO_INDEX SIZE_MAX
int request_check_fd(int fd, const char *what, size_t i, struct rollbox_error *error);

/* Adds OPERATION: the caller's id, or for NULL a new one. */
int request_add_operation(struct buf *to, const char *operation_id, struct rollbox_error *error);

/* Checks a command and adds its fields, from OPERATION to STDIN. */
int request_add_command(
    struct buf *to, const struct request_command *command, struct rollbox_error *error);

/* A run that is not sent yet, for request_destroy_run; NULL when out of memory. The caller fills in
 * the isolation. */
struct rollbox_run *request_new_run(
    struct rollbox_engine *engine, rollbox_callback callback, void *userdata);
void request_destroy_run(struct rollbox_run *run);

/* Sends it with at most REQUEST_FDS_MAX descriptors (borrowed), after a memory file of stdin_data
 * if there is any. */
int request_send_run(struct rollbox_run *run, struct buf *message, const void *stdin_data,
    size_t stdin_length, const int *fds, size_t n_fds, struct rollbox_error *error);

/* A call whose answer is one TEXT; for free(). */
int request_text(struct rollbox_engine *engine, struct buf *message, const int *fds, size_t n_fds,
    char **ret_text, struct rollbox_error *error);

/* The same where descriptors come with it, which are the caller's; ret_fds has room for
 * REQUEST_FDS_MAX. */
int request_text_fds(struct rollbox_engine *engine, struct buf *message, int *ret_fds,
    size_t *ret_n_fds, char **ret_text, struct rollbox_error *error);

/* ---- secrets.c ---- */

struct policy;
/* Reads the values of the policy's secrets. *ret_json is NULL if it has none; free it with
 * secrets_free, which erases it. Errors: policy_invalid names the secret whose value is missing. */
int secrets_read(const struct policy *policy, char **ret_json, struct rollbox_error *error);
char *secrets_free(char *json);

/* ---- policy_api.c ---- */

struct rollbox_plan *policy_api_free_plan(struct rollbox_plan *plan);
/* The time-out of a run under the plan if its caller gives none. Also for a recorded command, which
 * is a run to its user but has a session. */
int64_t policy_api_run_timeout_ms(const struct rollbox_plan *plan);

#endif
