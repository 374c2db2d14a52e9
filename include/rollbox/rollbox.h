/* SPDX-License-Identifier: Apache-2.0 */
/*
 * librollbox: run untrusted programs in sandboxes.
 *
 * Model. A `struct rollbox_engine` is a connection to a rollbox-engine process. The engine is
 * private (started by this process, and ends with it) or shared (it listens on a Unix socket). A
 * policy is JSON text. `rollbox_prepare` has the engine check a policy and compile it into a plan,
 * which any number of runs share. `rollbox_start` starts a run and returns at once. A run ends in a
 * `struct rollbox_result`. A caller collects the result with `rollbox_wait`, which blocks; an event
 * loop polls `rollbox_engine_fd` and calls `rollbox_dispatch`, which calls the run's callback.
 *
 * Results and errors. How the guest's program ended (exit, signal, time-out, ...) is a result.
 * Something that rollbox could not do is an error. A result whose outcome is ROLLBOX_OUTCOME_ERROR
 * says nothing about the guest's program.
 *
 * Return values. Functions return 0 or a positive count, or -errno. A function that can fail for a
 * reason worth explaining takes a `struct rollbox_error *`. The caller owns it and may pass NULL;
 * the function fills it once. Outputs named ret_* are written on success only, except where a
 * comment says so.
 *
 * Memory. A comment that names free() means that the caller releases that memory with free().
 * Strings called static are never freed. Arguments are copied or used before the call returns,
 * unless they are called borrowed.
 *
 * Blocking. A comment says "blocks" if the call waits for the engine.
 *
 * Threads. Any number of threads may use an engine handle at once. After fork() the child must not
 * use the parent's handles: every call on them fails with -ECHILD, and closing them affects nothing
 * of the parent's.
 *
 * The library never prints, exits, installs signal handlers, or changes the working directory,
 * umask or environment.
 */
#ifndef ROLLBOX_ROLLBOX_H
#define ROLLBOX_ROLLBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ROLLBOX_PUBLIC __attribute__((visibility("default")))

/* One row per error: name, number in the protocol, HTTP status, Python exception, meaning. The C
 * enum, the Python exceptions and docs/reference/errors.md are generated from this table. Numbers
 * never change. */
/* clang-format off */
#define ROLLBOX_ERRORS(X) \
    X(INVALID_ARGUMENT,   1, 400, InvalidArgument,   "an argument of the call is not valid") \
    X(POLICY_INVALID,     2, 400, PolicyInvalid,     "the policy is not valid; the message lists every problem with its line") \
    X(PATH_NOT_FOUND,     3, 400, PathNotFound,      "a path that the policy grants does not exist") \
    X(PATH_DENIED,        4, 403, PathDenied,        "a path that the policy grants cannot be used by the caller") \
    X(FEATURE_MISSING,    5, 501, FeatureMissing,    "the policy asks for isolation or a limit that this kernel or user lacks") \
    X(COMMAND_NOT_FOUND,  6, 422, CommandNotFound,   "the program does not exist inside the sandbox") \
    X(NOT_EXECUTABLE,     7, 422, NotExecutable,     "the program exists inside the sandbox but cannot be executed") \
    X(BAD_CWD,            8, 422, BadCwd,            "the working directory does not exist inside the sandbox") \
    X(SETUP_FAILED,       9, 500, SetupFailed,       "the kernel refused a step of setting the sandbox up") \
    X(RESOURCE_EXHAUSTED, 10, 503, ResourceExhausted, "the host is out of memory, file descriptors, processes or disk; try again later") \
    X(HOST_OUT_OF_MEMORY, 11, 503, HostOutOfMemory,  "the host, or a control group that the engine is in, ran out of memory, and the OOM killer ended the sandbox or its command; the guest is not at fault") \
    X(ENGINE_START,       12, 500, EngineStartFailed, "the engine could not be started") \
    X(ENGINE_LOST,        13, 502, EngineLost,       "the connection to the engine ended; the sandbox is gone") \
    X(ENGINE_BUSY,        14, 409, EngineBusy,       "another engine is serving that socket") \
    X(PROTOCOL,           15, 502, ProtocolError,    "engine and library do not speak the same protocol version, or a message is malformed") \
    X(NOT_FOUND,          16, 404, NotFound,         "the operation, sandbox or file does not exist") \
    X(CANCELLED,          17, 499, Cancelled,        "the caller cancelled the operation") \
    X(IO,                 18, 500, IOFailed,         "reading or writing a file of the host failed") \
    X(INTERNAL,           19, 500, InternalError,    "a bug in rollbox; please report it") \
    X(CONFLICT,           20, 409, Conflict,         "the host's files changed since the sandbox read them; nothing was replaced") \
    X(DAMAGED,            21, 500, Damaged,          "a layer or snapshot of the store is damaged; its name is in the message") \
    X(ENGINE_UNTRUSTED,   22, 403, EngineUntrusted,  "another user serves the engine's socket, or could; nothing was sent to it") \
    X(GUEST_INTERFERED,   23, 409, GuestInterfered,  "processes of the sandbox prevented it")
/* clang-format on */

enum rollbox_error_code {
    ROLLBOX_OK = 0,
#define ROLLBOX_ERROR_ENUM(name, number, http, python, text) ROLLBOX_ERR_##name = number,
    ROLLBOX_ERRORS(ROLLBOX_ERROR_ENUM)
#undef ROLLBOX_ERROR_ENUM
};

/* Filled by a failing call. `error_number` is a positive errno, or 0. `stage` is one short word. It
 * names the step (arguments, policy, connect, setup, exec, run, result) or the part of rollbox that
 * failed (files, snapshot, restore, hibernate, wake, commit, export, import, store and others).
 * `message` is one line without a trailing newline; POLICY_INVALID has one line per problem. It
 * says what failed, on which object, and what to do. */
struct rollbox_error {
    enum rollbox_error_code code;
    int error_number;
    char stage[16];
    char message[1000];
};

/* The code's name as in JSON results, such as "policy_invalid". "unknown" for a number without a
 * code. Static. */
ROLLBOX_PUBLIC const char *rollbox_error_name(enum rollbox_error_code code);

/* The library's version, such as "1.2.3". Static. */
ROLLBOX_PUBLIC const char *rollbox_version(void);

/* ---- engine ---- */

struct rollbox_engine;

struct rollbox_engine_options {
    size_t size;             /* sizeof(struct rollbox_engine_options) */
    const char *socket_path; /* A shared engine's socket. NULL starts a private engine. */
    const char *engine_path; /* The engine's program. NULL: $ROLLBOX_ENGINE, else the one beside
                                this library, else the installed one. */
};

/* Starts or joins an engine. Blocks until the engine answers; a private engine takes about a
 * millisecond. `options` may be NULL. The caller owns *ret_engine and closes it with
 * rollbox_engine_close.
 *
 * A shared engine must run as the caller's user, as root, or as the user named by the environment
 * variable ROLLBOX_TRUST_UID, and no other user may be able to replace its socket. Otherwise the
 * call fails with ENGINE_UNTRUSTED before it sends anything.
 *
 * Errors: ENGINE_START, ENGINE_LOST, ENGINE_UNTRUSTED, PROTOCOL, INVALID_ARGUMENT,
 * RESOURCE_EXHAUSTED. */
ROLLBOX_PUBLIC int rollbox_engine_open(const struct rollbox_engine_options *options,
    struct rollbox_engine **ret_engine, struct rollbox_error *error);

/* Closes the connection and frees the handle. The engine kills and removes every sandbox of this
 * connection. A private engine ends; the call waits for that. Runs that have not ended end with
 * ENGINE_LOST and stay valid until they are freed. No other thread may be in a call on the handle.
 * Takes and returns NULL. */
ROLLBOX_PUBLIC struct rollbox_engine *rollbox_engine_close(struct rollbox_engine *engine);

/* A descriptor that polls readable when rollbox_dispatch has something to do. The handle owns
 * it. */
ROLLBOX_PUBLIC int rollbox_engine_fd(struct rollbox_engine *engine);

/* The process id of the engine. */
ROLLBOX_PUBLIC int rollbox_engine_pid(struct rollbox_engine *engine);

/* Handles every message that has arrived and calls the callbacks of runs that ended. Does not
 * block. Returns the number of runs that ended, or -ENOTCONN once the engine is lost; all runs have
 * ended by then. Meant for event loops; rollbox_wait calls it by itself. */
ROLLBOX_PUBLIC int rollbox_dispatch(struct rollbox_engine *engine);

/* The engine's status as JSON text: {"pid", "version", "sandboxes", "queued", "plans", "spares",
 * "memory_budget_bytes", "cgroup", "connections", ...}; see docs/how-to/sessions.md. The caller
 * frees *ret_json with free(). Blocks. */
ROLLBOX_PUBLIC int rollbox_engine_status(
    struct rollbox_engine *engine, char **ret_json, struct rollbox_error *error);

/* ---- policy ---- */

/* Checks the text of a policy (JSON, docs/reference/policy.md). Needs no engine and does not look
 * at the file system. Returns 0 if the policy is valid, else -EINVAL with POLICY_INVALID.
 * `ret_problems` may be NULL. It receives all problems as JSON text, on failure too; the caller
 * frees it with free(): [{"line": 3, "key": "fs_readible", "message": "...", "hint": "..."}]. */
ROLLBOX_PUBLIC int rollbox_policy_check(
    const char *json, size_t length, char **ret_problems, struct rollbox_error *error);

/* Which network rule of a policy decides about a URL: http://, https://, tcp:// or udp://, the last
 * two with a port. `method` is that of the request; NULL: GET. Needs no engine and connects to
 * nothing, so addresses of names are not checked. The answer is JSON text that the caller frees
 * with free(): {"url", "allowed", "rule": index in net_allow_hosts and net_allow together, or null,
 * "host", "set", "why": the reason of a refusal, or null}. */
ROLLBOX_PUBLIC int rollbox_net_test(const char *json, size_t length, const char *url,
    const char *method, char **ret_json, struct rollbox_error *error);

/* The engine's plan for a policy, as text: one operation per line, then the Landlock rules and the
 * disassembled seccomp program. The caller frees *ret_text with free(). Blocks. */
ROLLBOX_PUBLIC int rollbox_policy_plan(struct rollbox_engine *engine, const char *json,
    size_t length, char **ret_text, struct rollbox_error *error);

/* A policy compiled by the engine. The engine handle owns it; it is valid until that handle is
 * closed. */
struct rollbox_plan;

/* Has the engine check and compile a policy; "{}" is the default policy. A second call with the
 * same text returns the same plan at no cost. Checks that the granted paths exist. Blocks. Errors:
 * POLICY_INVALID, PATH_NOT_FOUND, PATH_DENIED, FEATURE_MISSING, SETUP_FAILED, ENGINE_LOST. */
ROLLBOX_PUBLIC int rollbox_prepare(struct rollbox_engine *engine, const char *json, size_t length,
    struct rollbox_plan **ret_plan, struct rollbox_error *error);

/* ---- run ---- */

enum rollbox_outcome {
    ROLLBOX_OUTCOME_EXIT = 0,
    ROLLBOX_OUTCOME_SIGNAL = 1,
    ROLLBOX_OUTCOME_TIMEOUT = 2,
    ROLLBOX_OUTCOME_OUT_OF_MEMORY = 3,
    ROLLBOX_OUTCOME_OUTPUT_LIMIT = 4,
    ROLLBOX_OUTCOME_ERROR = 5,
};

/* "exit", "signal", "timeout", "out_of_memory", "output_limit", "error". Static. */
ROLLBOX_PUBLIC const char *rollbox_outcome_name(enum rollbox_outcome outcome);

/* A file to create in the sandbox before the program starts. A relative path starts at the working
 * directory. Missing parent directories are created. The path must lie in a place where the sandbox
 * may write. */
struct rollbox_file {
    const char *path;
    const void *data;
    size_t length;
    unsigned mode; /* 0 means 0644 */
};

struct rollbox_run;

/* Called once per run, when its result is available, from rollbox_dispatch or from a rollbox_wait
 * on any run of the same engine. No lock is held during the call. */
typedef void (*rollbox_callback)(struct rollbox_run *run, void *userdata);

/* A callback for a program that polls with rollbox_next_ended instead of being called from inside
 * rollbox_dispatch or rollbox_wait. The function itself does nothing. */
ROLLBOX_PUBLIC void rollbox_queued(struct rollbox_run *run, void *userdata);

/* rollbox_next_ended returns the userdata (not NULL) of the first ended run whose callback is
 * rollbox_queued, or NULL if no such run has ended. The same run stays first until rollbox_told is
 * called with its userdata, or the run is freed. rollbox_engine_fd is readable while there is such
 * a run. Neither call blocks. Any thread may call them. */
ROLLBOX_PUBLIC void *rollbox_next_ended(struct rollbox_engine *engine);
ROLLBOX_PUBLIC void rollbox_told(struct rollbox_engine *engine, void *userdata);

/* For timeout_ms: no time limit, even if the policy has one. */
#define ROLLBOX_NO_TIMEOUT INT64_MIN

/* Which of a connection's runs starts first when memory is short. Every ten seconds of waiting let
 * a run keep its place before later ones of a higher priority. */
enum rollbox_priority {
    ROLLBOX_PRIORITY_NORMAL,
    ROLLBOX_PRIORITY_HIGH,
    ROLLBOX_PRIORITY_LOW,
};

struct rollbox_run_options {
    size_t size; /* sizeof(struct rollbox_run_options) */
    const char *const
        *argv; /* NULL-terminated, at least one string. An argv[0] without a slash is searched in
                  the sandbox's PATH. NULL: the image's own entry point and command. */
    const char *const *env; /* NULL-terminated list of "K=V". They are added to the policy's
                               variables or replace them. NULL: none. */
    const char *cwd;        /* NULL: the policy's directory */
    const void
        *stdin_data; /* The program's standard input, followed by end of file. NULL: /dev/null. */
    size_t stdin_length;
    const struct rollbox_file *files;
    size_t n_files;
    int64_t timeout_ms;   /* -1: the policy's limit, or 300 s if it has none. ROLLBOX_NO_TIMEOUT: no
                             limit. 0 is refused. */
    int64_t output_limit; /* bytes per stream; -1: the policy's limit */
    /* NULL: output is collected into the result. Otherwise three descriptors (borrowed, duplicated)
     * that become the program's descriptors 0, 1 and 2. Nothing is collected then, and the caller
     * enforces output_limit (rollbox_kill). The program may also open these descriptors by name
     * (/dev/stdin), with the access that each descriptor allows. If root runs it, files and
     * terminals also need a mode that gives other users access. Append-only files cannot be opened
     * by name. */
    const int *stdio_fds;
    const char *operation_id;  /* NULL: a new id. Otherwise 1 to 64 bytes. Starting the same again
                                  under the id returns the first run's result; starting another
                                  command under it is INVALID_ARGUMENT. Users do not share ids. */
    rollbox_callback callback; /* may be NULL */
    void *userdata;
    /* Says that argv is "python3", "-c", the code and its arguments. If env and stdio_fds are NULL,
     * a warm interpreter of the same policy may run the code (docs/explanation/interpreters.md).
     * The result is the same either way. */
    bool is_code;
    enum rollbox_priority priority;
};

/* Starts a run. Does not wait for it. The options are copied. The caller owns *ret_run and frees it
 * with rollbox_run_free. Errors: INVALID_ARGUMENT, ENGINE_LOST, RESOURCE_EXHAUSTED. All later
 * errors are in the result. */
ROLLBOX_PUBLIC int rollbox_start(struct rollbox_engine *engine, struct rollbox_plan *plan,
    const struct rollbox_run_options *options, struct rollbox_run **ret_run,
    struct rollbox_error *error);

/* The result of a run. The run owns all its memory. Times are in milliseconds, sizes in bytes. */
struct rollbox_result {
    enum rollbox_outcome outcome;
    int exit_code;           /* -1 unless the outcome is EXIT */
    int signal;              /* 0 unless the outcome is SIGNAL */
    const void *stdout_data; /* NULL and length 0 if no output was collected */
    size_t stdout_length;
    const void *stderr_data;
    size_t stderr_length;
    bool stdout_truncated;
    bool stderr_truncated;
    double wall_ms; /* from the program's start to its end */
    double cpu_ms;  /* user and system time of all processes of the sandbox */
    uint64_t peak_memory_bytes;
    uint32_t
        processes_peak;    /* the most processes seen at once; at least 1 if the program started */
    const char *isolation; /* JSON object: the isolation that was applied */
    struct rollbox_error error; /* code is ROLLBOX_OK unless the outcome is ERROR */
    const char *network; /* JSON object: what the command did in the network (net allow); or NULL */
    double queue_ms;     /* in the engine's queue, before its set-up */
    double setup_ms;     /* from there to the program's start; not in the JSON, like queue_ms */
};

/* Blocks until the run has ended, for at most timeout_ms (-1: no limit). Returns 0 and the result,
 * which the run owns, or -ETIMEDOUT if the run has not ended. */
ROLLBOX_PUBLIC int rollbox_wait(
    struct rollbox_run *run, int64_t timeout_ms, const struct rollbox_result **ret_result);

/* Kills the whole sandbox of a run. `as` becomes the run's outcome: OUTPUT_LIMIT, TIMEOUT, or ERROR
 * (with code CANCELLED). Does not wait. Returns 0 if the run has already ended. */
ROLLBOX_PUBLIC int rollbox_kill(struct rollbox_run *run, enum rollbox_outcome as);

/* Frees a run. A run that has not ended is killed first; the call does not wait for its end, and
 * the callback is not called. Takes and returns NULL. */
ROLLBOX_PUBLIC struct rollbox_run *rollbox_run_free(struct rollbox_run *run);

/* The result as one line of JSON without a trailing newline; docs/reference/result.md has the
 * fields. `id` may be NULL; otherwise it becomes the first field. The caller frees *ret_json with
 * free(). Error: -ENOMEM. */
ROLLBOX_PUBLIC int rollbox_result_json(
    const struct rollbox_result *result, const char *id, char **ret_json);

/* ---- sessions ---- */

/* A handle of a session, a sandbox that exists until it is closed. Each command (`rollbox_exec`)
 * sees the files and background processes that earlier commands left. A session can be snapshotted,
 * forked and reset, with its files and processes. It belongs to the connection that created it and
 * ends with that connection, unless it was created `detached` on a shared engine. A call on a
 * paused session resumes it. Several handles may name one session, from several processes on a
 * shared engine. All calls on a session block, except rollbox_exec, rollbox_attach and
 * rollbox_call_start. */
struct rollbox_sandbox;

struct rollbox_sandbox_options {
    size_t size; /* sizeof(struct rollbox_sandbox_options) */
    const char
        *name; /* 1 to 64 of [A-Za-z0-9_.-], unique on the engine. NULL: the engine chooses one. */
    bool detached; /* the session survives its connection (shared engines only) */
    int64_t
        idle_ms; /* Pause after this time without a call and without a running command. 0: never. */
    int64_t ttl_ms;           /* Close after this time without a call. 0: never. */
    int64_t lifetime_ms;      /* Close after this time in any case. 0: never. */
    const char *operation_id; /* As in rollbox_run_options: a retry returns the session that the
                                 first call created. */
    /* Hibernate (rollbox_hibernate) after this time without a call, a command that a client waits
     * for, a file transfer, or CPU use above one hundredth of a CPU. 0: never. */
    int64_t hibernate_ms;
    /* Take a snapshot after each command that changed something, and keep this many, the latest. 0:
     * take none. */
    unsigned auto_snapshots;
};

/* Creates a session. The caller owns *ret_sandbox. Errors: those of rollbox_prepare, and
 * INVALID_ARGUMENT (the name is taken), RESOURCE_EXHAUSTED, SETUP_FAILED. */
ROLLBOX_PUBLIC int rollbox_sandbox_create(struct rollbox_engine *engine, struct rollbox_plan *plan,
    const struct rollbox_sandbox_options *options, struct rollbox_sandbox **ret_sandbox,
    struct rollbox_error *error);

/* A handle of an existing session, by its name. The caller owns *ret_sandbox. Error: NOT_FOUND. */
ROLLBOX_PUBLIC int rollbox_sandbox_open(struct rollbox_engine *engine, const char *name,
    struct rollbox_sandbox **ret_sandbox, struct rollbox_error *error);

/* The session's name. Valid as long as the handle. */
ROLLBOX_PUBLIC const char *rollbox_sandbox_name(const struct rollbox_sandbox *sandbox);

/* Ends the session: kills its processes and deletes its files. Then frees the handle, on failure
 * too. Returns 0 if the session has already ended. */
ROLLBOX_PUBLIC int rollbox_sandbox_close(
    struct rollbox_sandbox *sandbox, struct rollbox_error *error);

/* Does the same as rollbox_sandbox_close and reports on the trajectory: {"record": {"id", "steps",
 * "written", "complete", "error"}}. The report is {} if the session was not recorded or had already
 * ended, and {"lost": true} if it ended together with its engine. The caller frees *ret_json with
 * free(). Waits until the last line is written, but not for a reader that has stopped reading. */
ROLLBOX_PUBLIC int rollbox_sandbox_finish(
    struct rollbox_sandbox *sandbox, char **ret_json, struct rollbox_error *error);

/* Frees the handle; the session stays. Takes and returns NULL. */
ROLLBOX_PUBLIC struct rollbox_sandbox *rollbox_sandbox_free(struct rollbox_sandbox *sandbox);

/* The sessions of the engine that this connection may use, as JSON text: {"sandboxes": [{"name",
 * "state": "starting"|"idle"|"running"|"paused"|"asleep", "commands", "running", "created", ...}]}.
 * "asleep" means hibernated. The caller frees *ret_json with free(). */
ROLLBOX_PUBLIC int rollbox_sandbox_list(
    struct rollbox_engine *engine, char **ret_json, struct rollbox_error *error);

/* The same rows, each with the session's resource usage as in ROLLBOX_QUERY_STATS. Reading it from
 * the kernel takes some microseconds per session, more without control groups. */
ROLLBOX_PUBLIC int rollbox_sandbox_stats(
    struct rollbox_engine *engine, char **ret_json, struct rollbox_error *error);

/* What the engine is in the middle of, as JSON, for a bug report: each sandbox with its operations
 * and commands, what each waits for ("wait") and since when ("since_ms"), and one-off runs; free().
 * The members are for people and may change with any version. */
ROLLBOX_PUBLIC int rollbox_engine_debug(
    struct rollbox_engine *engine, char **ret_json, struct rollbox_error *error);

enum rollbox_query {
    ROLLBOX_QUERY_INSPECT =
        1, /* {"name", "state", "policy", "isolation", "snapshot", "execs": [{"id", "command",
              "state", ...}], "memory_bytes", "disk_bytes", ...} */
    ROLLBOX_QUERY_PROCESSES, /* {"processes": [{"pid", "parent", "state", "command", "cpu_ms",
                                "memory_bytes", "exec"}]} */
    ROLLBOX_QUERY_TREE,      /* {"snapshots": [{"id", "name", "parent", "bytes", "files", "kind":
                                "files"|"live"|"warm"|"asleep", "automatic", "processes",
                                "memory_bytes", "disk_bytes", "created", "sandboxes": [...]}]} */
    ROLLBOX_QUERY_EXECS,     /* {"execs": [...]}: the part of ROLLBOX_QUERY_INSPECT that needs no
                                measuring */
    ROLLBOX_QUERY_STATS,     /* A row of rollbox_sandbox_list with "age_s", "cpu_ms" (since its
                                creation), "memory_bytes", "peak_memory_bytes", "max_memory_bytes",
                                "disk_bytes", "max_disk_bytes", "processes", "max_processes". A value
                                that cannot be measured is null. */
    ROLLBOX_QUERY_NET_LOG,   /* {"log": [{"t", "box", "event", ...}]}: what the session did in the
                                network, with net allow (docs/reference/network.md) */
};

/* The answer to a query as JSON text. The caller frees *ret_json with free(). */
ROLLBOX_PUBLIC int rollbox_sandbox_query(struct rollbox_sandbox *sandbox, enum rollbox_query query,
    char **ret_json, struct rollbox_error *error);

/* Replaces what a session with net allow may reach by the network keys of a policy (JSON text).
 * Connections that are not allowed any more are reset. The new rules hold for the session's life,
 * and its forks begin with them; an imported copy has the policy's. */
ROLLBOX_PUBLIC int rollbox_net_set(
    struct rollbox_sandbox *sandbox, const char *policy, struct rollbox_error *error);

/* What a running command of a session with net allow did in the network since it began, or since
 * the last call: {"network": {...}} as in a result; {} without net allow. operation_id names the
 * command. The caller frees *ret_json with free(). NOT_FOUND: it does not run. */
ROLLBOX_PUBLIC int rollbox_net_tally(struct rollbox_sandbox *sandbox, const char *operation_id,
    char **ret_json, struct rollbox_error *error);

/* Stops all processes of the session until rollbox_resume. rollbox_resume does nothing if the
 * session is not paused. */
ROLLBOX_PUBLIC int rollbox_pause(struct rollbox_sandbox *sandbox, struct rollbox_error *error);
ROLLBOX_PUBLIC int rollbox_resume(struct rollbox_sandbox *sandbox, struct rollbox_error *error);

/* Connects to a server in the sandbox that listens on `port` of its loopback addresses, 127.0.0.1
 * or ::1. Needs a policy with net loopback or allow. *ret_fd is a TCP socket, which the caller
 * closes. It is non-blocking, and may still be connecting: poll(2) says when it can be written. A
 * snapshot, fork or hibernation of the sandbox does not keep the connection.
 * ROLLBOX_ERR_NOT_FOUND: nothing listens there. */
ROLLBOX_PUBLIC int rollbox_connect(
    struct rollbox_sandbox *sandbox, unsigned port, int *ret_fd, struct rollbox_error *error);

/* Publishes `port` of the sandbox on the host: connections to the address lead to a server that
 * listens on that port of the sandbox's 127.0.0.1 or ::1. They wake a hibernated sandbox. `listen`
 * is "PORT", "ADDRESS:PORT", "[V6]:PORT" or the absolute path of a Unix socket; NULL: the address
 * that the port has already, or a free port of 127.0.0.1. Port 0 publishes nothing, and lists. The
 * address is closed with the sandbox. Needs a policy with net loopback or allow, or with "publish".
 * *ret_json, for free(): {"ports": [{"port", "address", "url"}]}; the url of a Unix socket is null.
 * ROLLBOX_ERR_CONFLICT: the address is in use. */
ROLLBOX_PUBLIC int rollbox_publish(struct rollbox_sandbox *sandbox, unsigned port,
    const char *listen, char **ret_json, struct rollbox_error *error);

struct rollbox_state_options;

/* Hibernates the session: its files and processes are written to the store on the disk, and it uses
 * no processes or memory. Commands that have not ended end with CANCELLED for their callers. Inside
 * the session they continue when it wakes, under the same ids (rollbox_attach, rollbox_claim).
 * Blocks until all data has reached the disk. Does nothing if the session is hibernated. `options`
 * may be NULL; ROLLBOX_PROCESSES_DROP saves the files alone. Errors: FEATURE_MISSING (a process
 * uses something that cannot be checkpointed), RESOURCE_EXHAUSTED or IO (no space). After an error
 * the session is unchanged. */
ROLLBOX_PUBLIC int rollbox_hibernate(struct rollbox_sandbox *sandbox,
    const struct rollbox_state_options *options, struct rollbox_error *error);

/* Wakes a hibernated session. Any call that needs a running session wakes it by itself.
 * ROLLBOX_PROCESSES_DROP restores the files alone, for instance when the processes cannot be
 * restored. If the session is not hibernated, the call only resumes it if it is paused. Errors:
 * DAMAGED (the stored data is not what was written), FEATURE_MISSING (it was hibernated under
 * another kernel or on another processor), CONFLICT (the policy's places have changed),
 * SETUP_FAILED. After an error the session stays hibernated. */
ROLLBOX_PUBLIC int rollbox_wake(struct rollbox_sandbox *sandbox,
    const struct rollbox_state_options *options, struct rollbox_error *error);

struct rollbox_terminal {
    unsigned short rows, columns;
};

struct rollbox_exec_options {
    size_t size;             /* sizeof(struct rollbox_exec_options) */
    const char *const *argv; /* this and the following fields: as in rollbox_run_options */
    const char *const *env;
    const char *cwd;
    const char *user; /* NULL: the policy's user. Otherwise a name or number. A user that the
                         sandbox does not map is FEATURE_MISSING. */
    const void *stdin_data;
    size_t stdin_length;
    const struct rollbox_file *files;
    size_t n_files;
    int64_t timeout_ms;   /* -1: the policy's limit, or none. A time-out kills this command and all
                             processes that it started, and nothing else. */
    int64_t output_limit; /* bytes per stream; the command's processes are killed above it, as by a
                             time-out */
    const char *operation_id; /* the command's id, for rollbox_attach, rollbox_signal and retries */
    const struct rollbox_terminal *
        terminal; /* not NULL: the command gets a terminal of this size; all its output is stdout */
    /* Standard input, or the bytes typed into the terminal until end of file. -1: use stdin_data.
     * Borrowed. */
    int input_fd;
    /* Descriptors to which stdout and stderr are written as they arrive, besides being collected.
     * -1: none. Borrowed, duplicated, made non-blocking: pass the write ends of pipes. A slow
     * reader delays its stream but not the command. If a reader closes its end, only that stream
     * ends. */
    int stream_fds[2];
    const int *extra_fds; /* these become the command's descriptors 3 and up; borrowed */
    size_t n_extra_fds;   /* at most 8 */
    bool detached; /* The command survives its connection (in a detached session), and its result is
                      kept for rollbox_attach. */
    rollbox_callback callback; /* may be NULL */
    void *userdata;
    /* ptrace, process_vm_readv, process_vm_writev, pidfd_getfd, kcmp and process_madvise fail with
     * EPERM for the command and all its descendants. A snapshot cannot contain such a process. */
    bool no_trace;
};

/* Starts a command in the session. Its result is collected as a run's is (rollbox_wait,
 * rollbox_kill, rollbox_run_free, callbacks). The result is available when the command's main
 * process ends; processes that it left stay in the session. rollbox_run_free kills a command that
 * has not ended, with its descendants, unless it is `detached`. */
ROLLBOX_PUBLIC int rollbox_exec(struct rollbox_sandbox *sandbox,
    const struct rollbox_exec_options *options, struct rollbox_run **ret_run,
    struct rollbox_error *error);

/* Waits for a command, running or ended, by its id. A new run receives the command's result. All
 * its output from the start is written to stream_fds (-1: nowhere). An unknown id gives the error
 * NOT_FOUND in the result. */
struct rollbox_attach_options {
    size_t size; /* sizeof(struct rollbox_attach_options) */
    const char *operation_id;
    int input_fd; /* input for a command with a terminal; -1: none */
    int stream_fds[2];
    rollbox_callback callback;
    void *userdata;
};
ROLLBOX_PUBLIC int rollbox_attach(struct rollbox_sandbox *sandbox,
    const struct rollbox_attach_options *options, struct rollbox_run **ret_run,
    struct rollbox_error *error);

enum rollbox_scope {
    ROLLBOX_SCOPE_MAIN = 1, /* the command's main process */
    ROLLBOX_SCOPE_TREE,     /* the main process and all its descendants */
    ROLLBOX_SCOPE_CHILDREN, /* the descendants without the main process */
    ROLLBOX_SCOPE_GROUP,    /* the foreground process group of its terminal; without a terminal, its
                               process group */
};

/* Sends a signal to a running command. NOT_FOUND if the command has ended. operation_id NULL means
 * every process of the session, background processes included; only SIGKILL is allowed then. */
ROLLBOX_PUBLIC int rollbox_signal(struct rollbox_sandbox *sandbox, const char *operation_id,
    int signal_number, enum rollbox_scope scope, struct rollbox_error *error);
ROLLBOX_PUBLIC int rollbox_resize(struct rollbox_sandbox *sandbox, const char *operation_id,
    const struct rollbox_terminal *terminal, struct rollbox_error *error);

/* Whether a snapshot, fork, reset or hibernation includes processes. */
enum rollbox_processes {
    ROLLBOX_PROCESSES_KEEP =
        1, /* running processes are included; memory and files are of the same moment */
    ROLLBOX_PROCESSES_DROP, /* files alone */
};

struct rollbox_state_options {
    size_t size;                      /* sizeof(struct rollbox_state_options) */
    enum rollbox_processes processes; /* 0: ROLLBOX_PROCESSES_KEEP */
    /* For forks under a policy with random_seed. true: all forks have the parent's seed. false:
     * each has its own, derived from the parent's seed and the number of its earlier forks. */
    bool same_seed;
    bool attached; /* For forks: they end with this connection even if their parent is detached. */
};

/* Saves the session's private files and its running processes, which are paused meanwhile. The
 * snapshot exists until it is dropped or the last session of the family (the sessions forked from
 * one another) is closed. `name` may be NULL; otherwise it can be used in place of the id within
 * the family. `options` may be NULL. *ret_json is {"id", "name", "parent", "bytes", "files",
 * "live", "processes", "memory_bytes"}; the caller frees it with free(). Error: FEATURE_MISSING (a
 * process uses something that cannot be checkpointed; the message names it). The session is
 * unchanged then. */
ROLLBOX_PUBLIC int rollbox_snapshot(struct rollbox_sandbox *sandbox, const char *name,
    const struct rollbox_state_options *options, char **ret_json, struct rollbox_error *error);

/* Creates n sessions of the same policy from a snapshot (NULL: from the session as it is now), with
 * its processes if it has any. Their commands keep their ids (rollbox_attach, rollbox_claim).
 * `options` may be NULL. ret_sandboxes has room for n handles, which the caller owns. Either all
 * forks are created or none. Commands started in the k-th fork, counted from 0, have CLONE_ID=k in
 * their environment unless the caller sets that variable. Errors: those of rollbox_snapshot, and
 * SETUP_FAILED (a process cannot be restored). */
ROLLBOX_PUBLIC int rollbox_fork(struct rollbox_sandbox *sandbox, const char *snapshot, size_t n,
    const struct rollbox_state_options *options, struct rollbox_sandbox **ret_sandboxes,
    struct rollbox_error *error);

/* Forks several sessions at one moment, n times each: the processes of all are paused until the
 * states of all are taken. The k-th forks of members of a private network (the policy's key
 * "network") are a network of their own, with the names of the originals; connections between
 * sessions are reset in the copies. ret_sandboxes has room for n_sandboxes * n handles: first the
 * forks of the first session, then those of the second. All forks are made, or none. Otherwise as
 * rollbox_fork. */
ROLLBOX_PUBLIC int rollbox_fork_group(struct rollbox_sandbox *const *sandboxes, size_t n_sandboxes,
    size_t n, const struct rollbox_state_options *options, struct rollbox_sandbox **ret_sandboxes,
    struct rollbox_error *error);

/* Puts the session back to a snapshot, with its processes if it has any. NULL means the latest
 * snapshot of this session's line, or its beginning. All changes since then are discarded. Running
 * processes are killed, and commands that have not ended end with CANCELLED. `options` may be NULL.
 * Error: SETUP_FAILED (the processes cannot be restored; the session then has the snapshot's files
 * and no processes). */
ROLLBOX_PUBLIC int rollbox_reset(struct rollbox_sandbox *sandbox, const char *snapshot,
    const struct rollbox_state_options *options, struct rollbox_error *error);

/* For a running command that entered the session by a fork or reset: returns the caller's ends of
 * its pipes. Bit i of `wanted` asks for the pipe that was the command's descriptor i when it was
 * started. ret_fds[i] becomes the other end of that pipe. It is -1 if it was not wanted, was not a
 * pipe, is stdout or stderr (use rollbox_attach), or has been claimed before. The open mode of a
 * descriptor tells whether to read or write it. The caller owns the descriptors. Error:
 * NOT_FOUND. */
#define ROLLBOX_CLAIM_FDS 11
ROLLBOX_PUBLIC int rollbox_claim(struct rollbox_sandbox *sandbox, const char *operation_id,
    unsigned wanted, int ret_fds[ROLLBOX_CLAIM_FDS], struct rollbox_error *error);

/* Drops a snapshot. Its memory is freed once no session or later snapshot depends on it. */
ROLLBOX_PUBLIC int rollbox_snapshot_drop(
    struct rollbox_sandbox *sandbox, const char *snapshot, struct rollbox_error *error);

/* Describes a snapshot (NULL: the latest of this session's line): a row of ROLLBOX_QUERY_TREE, with
 * {"commands": [{"id", "command", "pid", "timeout_ms"}], "kernel", "processes": [{"pid", "parent",
 * "session", "group", "state", "name", "command", "executable", "directory", "memory_bytes",
 * "mapped_bytes", "threads": [{"tid", "name"}], "descriptors": {kind: count}}], "changes": as in
 * rollbox_diff, since the snapshot before it}. The caller frees *ret_json with free(). A hibernated
 * session is not woken: "asleep" is then true and "changes" is null. Error: NOT_FOUND. */
ROLLBOX_PUBLIC int rollbox_snapshot_show(struct rollbox_sandbox *sandbox, const char *snapshot,
    char **ret_json, struct rollbox_error *error);

/* The same, with {"sound", "checks": [{"what", "ok", "why"}]}: whether the snapshot's data is
 * intact and its processes can be restored. The processes are restored in a sandbox of their own
 * and never run. "ok" is null for a check that was not made ("restoring", while the session is
 * hibernated). A snapshot that is not sound is not an error of the call. */
ROLLBOX_PUBLIC int rollbox_snapshot_verify(struct rollbox_sandbox *sandbox, const char *snapshot,
    char **ret_json, struct rollbox_error *error);

/* The differences between two snapshots, by their ids. `from` NULL: the beginning. `to` NULL: now.
 * {"changes": [{"path", "change": "A"|"M"|"D", "type", "size", "old_size"}], ...}. With `text`,
 * unified diffs of text files are included. The caller frees *ret_json with free(). */
ROLLBOX_PUBLIC int rollbox_diff(struct rollbox_sandbox *sandbox, const char *from, const char *to,
    bool text, char **ret_json, struct rollbox_error *error);

/* Writes the changes below a granted fs_writable path (NULL: all such paths) to the host. After a
 * crash each path is entirely old or entirely new. CONFLICT if the host's files changed meanwhile,
 * unless `force`. *ret_json is {"committed": [{"path", "changes"}]}; the caller frees it with
 * free(). */
ROLLBOX_PUBLIC int rollbox_commit(struct rollbox_sandbox *sandbox, const char *path, bool force,
    char **ret_json, struct rollbox_error *error);

/* Writes a snapshot (NULL: the session as it is now) to one file of the host. `rollbox import`
 * makes a snapshot of the store from such a file, which policies name as image "snapshot:NAME". */
ROLLBOX_PUBLIC int rollbox_export(struct rollbox_sandbox *sandbox, const char *snapshot,
    const char *host_path, struct rollbox_error *error);

/* The same with the running processes. `rollbox import` makes a hibernated session from the file,
 * on another engine or on another machine with the same kernel and processor. A hibernated session
 * is exported without waking it, unless a snapshot of it is asked for. Error: FEATURE_MISSING (the
 * processes cannot be checkpointed; nothing is written). */
ROLLBOX_PUBLIC int rollbox_export_live(struct rollbox_sandbox *sandbox, const char *snapshot,
    const char *host_path, struct rollbox_error *error);

/* ---- calls on sessions that do not wait ---- */

/* Each is the call of the same name above, and its answer is that call's JSON text: {} where the
 * call has none. CREATE and OPEN answer {"name", ...}, FORK {"sandboxes": ["name", ...]}. */
enum rollbox_call {
    ROLLBOX_CALL_CREATE = 1, /* plan, create */
    ROLLBOX_CALL_OPEN,
    ROLLBOX_CALL_LIST,  /* no sandbox */
    ROLLBOX_CALL_STATS, /* of one session, or without `sandbox` of all */
    ROLLBOX_CALL_INSPECT,
    ROLLBOX_CALL_PROCESSES,
    ROLLBOX_CALL_TREE,
    ROLLBOX_CALL_EXECS,
    ROLLBOX_CALL_NET_LOG,
    ROLLBOX_CALL_CLOSE,
    ROLLBOX_CALL_PAUSE,
    ROLLBOX_CALL_RESUME,
    ROLLBOX_CALL_HIBERNATE, /* state */
    ROLLBOX_CALL_WAKE,      /* state */
    ROLLBOX_CALL_SNAPSHOT,  /* snapshot: its name, or NULL; state */
    ROLLBOX_CALL_FORK,      /* snapshot, n, state */
    ROLLBOX_CALL_RESET,     /* snapshot, state */
    ROLLBOX_CALL_DROP,      /* snapshot */
    ROLLBOX_CALL_SHOW,      /* snapshot */
    ROLLBOX_CALL_VERIFY,    /* snapshot */
    ROLLBOX_CALL_DIFF,      /* snapshot: from; to; text */
    ROLLBOX_CALL_SIGNAL,    /* operation_id, signal_number, scope */
    ROLLBOX_CALL_RESIZE,    /* operation_id, terminal */
    ROLLBOX_CALL_STATUS,    /* no sandbox: as rollbox_engine_status */
};

struct rollbox_call_options {
    size_t size; /* sizeof(struct rollbox_call_options) */
    enum rollbox_call call;
    const char *sandbox; /* the session's name */
    struct rollbox_plan *plan;
    const struct rollbox_sandbox_options *create;
    const char *snapshot, *to;
    bool text;
    size_t n;
    const struct rollbox_state_options *state;
    const char *operation_id;
    int signal_number;
    enum rollbox_scope scope;
    const struct rollbox_terminal *terminal;
    rollbox_callback callback; /* may be NULL */
    void *userdata;
};

/* Starts a call on a session and does not wait for its answer. *ret_run ends as a run does, with
 * the same callbacks (rollbox_dispatch, rollbox_next_ended): if the outcome of its result is ERROR,
 * the call failed with that error; otherwise rollbox_call_json has the answer. rollbox_run_free
 * forgets a call that has not ended; the engine finishes it. Errors: as of rollbox_start.
 * A snapshot of a recorded session that is taken so records no list of changed files. */
ROLLBOX_PUBLIC int rollbox_call_start(struct rollbox_engine *engine,
    const struct rollbox_call_options *options, struct rollbox_run **ret_run,
    struct rollbox_error *error);

/* The answer to a call that has ended without an error, else NULL. Valid as long as the run. */
ROLLBOX_PUBLIC const char *rollbox_call_json(const struct rollbox_run *run);

/* A handle of the session of an answer to CREATE or OPEN (i is 0), or of the i-th fork. Does not
 * block. The caller owns *ret_sandbox. */
ROLLBOX_PUBLIC int rollbox_call_sandbox(const struct rollbox_run *run, size_t i,
    struct rollbox_sandbox **ret_sandbox, struct rollbox_error *error);

/* ---- trajectories ---- */

struct rollbox_record_options {
    size_t size; /* sizeof(struct rollbox_record_options) */
    int fd; /* Open for writing; borrowed, duplicated. A regular file should be empty, and no other
               user should be able to write to it. */
    uint64_t stream_bytes; /* Bytes kept of each stream and file, at most 16 MiB. 0: 256 KiB. Longer
                              data is represented by its length and digest. */
    uint64_t file_bytes;   /* Size of the trajectory, at which recording stops. 0: 1 GiB. */
    const char *const *redact_names;    /* NULL-terminated, or NULL: names of variables whose values
                                           are removed wherever they occur */
    const char *const *redact_patterns; /* NULL-terminated, or NULL: extended regular expressions,
                                           matched line by line */
    bool env_values;                    /* record the values of variables, not only their names */
    /* With each snapshot, record the digests of all files that the session has added or changed
     * since its beginning. Takes as long as reading those files. */
    bool files;
    bool
        /* After each command, record the digests of the files that it changed. Costs almost nothing
         * if it changed none, otherwise a snapshot and reading those files. */
        changes;
    /* For a fork: options that are not set here are taken from the parent's record. Everything that
     * the parent's record redacts is redacted here, too. */
    bool as_parent;
};

/* Records all use of the session by any client from now until it is closed;
 * docs/reference/trajectories.md has the format. Recording never delays a command. If a line cannot
 * be written, the record ends; rollbox_sandbox_finish and ROLLBOX_QUERY_INSPECT ("record":
 * {"error"}) report that. Forks are not recorded unless this function is called for them. ret_json
 * may be NULL. *ret_json is {"id"}; the caller frees it with free(). Errors: INVALID_ARGUMENT,
 * RESOURCE_EXHAUSTED. */
ROLLBOX_PUBLIC int rollbox_record(struct rollbox_sandbox *sandbox,
    const struct rollbox_record_options *options, char **ret_json, struct rollbox_error *error);

/* Adds a step of the caller's to the session's record, such as a reward or a model's message.
 * `json` is any JSON text. Does nothing if the session is not recorded. */
ROLLBOX_PUBLIC int rollbox_note(
    struct rollbox_sandbox *sandbox, const char *json, struct rollbox_error *error);

/* A command that was given to a shell, and its result. The shell itself is a command of the session
 * (rollbox_exec with pipes). For callers that keep such a shell, as the Python package does. */
struct rollbox_shell_note {
    size_t size;              /* sizeof(struct rollbox_shell_note) */
    const char *operation_id; /* the shell's id */
    const void *command;
    size_t command_length;
    int64_t timeout_ms;    /* -1: none */
    uint64_t output_limit; /* bytes per stream */
    enum rollbox_outcome outcome;
    int exit_code, signal; /* valid if the outcome is EXIT or SIGNAL */
    const void *stdout_data, *stderr_data;
    size_t stdout_length, stderr_length;
    bool stdout_truncated, stderr_truncated;
    bool ended; /* the command also ended the shell */
    double wall_ms;
};

/* Adds a step `shell` to the session's record, which `rollbox replay` can repeat. Does nothing if
 * the session is not recorded. */
ROLLBOX_PUBLIC int rollbox_note_shell(struct rollbox_sandbox *sandbox,
    const struct rollbox_shell_note *note, struct rollbox_error *error);

/* ---- files of a sandbox ---- */

/* These calls run no program of the guest. rollbox-init accesses the files with the guest's rights
 * and inside the sandbox's root, so no path leads outside. Paths are absolute. All calls block.
 * Errors: NOT_FOUND, PATH_DENIED, INVALID_ARGUMENT (for instance, the path is a directory;
 * error_number has the errno), IO, RESOURCE_EXHAUSTED (ENOSPC, EDQUOT). */

/* Reads a regular file of up to `most` bytes (0: 1 GiB). A larger file is INVALID_ARGUMENT with
 * EFBIG. The caller frees *ret_data with free(). */
ROLLBOX_PUBLIC int rollbox_file_read(struct rollbox_sandbox *sandbox, const char *path,
    uint64_t most, void **ret_data, size_t *ret_length, struct rollbox_error *error);

/* Creates a file with its missing parent directories, or replaces an existing file. */
ROLLBOX_PUBLIC int rollbox_file_write(struct rollbox_sandbox *sandbox, const char *path,
    const void *data, size_t length, unsigned mode, struct rollbox_error *error);

/* rollbox_file_list returns {"entries": [{"name", "name_base64" (if not UTF-8), "type":
 * "file"|"directory"|"symlink"|..., "size", "mode", "mtime_ns", "target"}]}; rollbox_file_stat
 * returns one such object. The caller frees *ret_json with free(). */
ROLLBOX_PUBLIC int rollbox_file_list(struct rollbox_sandbox *sandbox, const char *path,
    char **ret_json, struct rollbox_error *error);
ROLLBOX_PUBLIC int rollbox_file_stat(struct rollbox_sandbox *sandbox, const char *path, bool follow,
    char **ret_json, struct rollbox_error *error);

/* rollbox_file_mkdir creates a directory with its parents. rollbox_file_remove removes a file, or
 * with `recursive` a tree. */
ROLLBOX_PUBLIC int rollbox_file_mkdir(
    struct rollbox_sandbox *sandbox, const char *path, unsigned mode, struct rollbox_error *error);
ROLLBOX_PUBLIC int rollbox_file_remove(
    struct rollbox_sandbox *sandbox, const char *path, bool recursive, struct rollbox_error *error);

/* Called from time to time during a transfer with the bytes and files transferred so far. A
 * non-zero return value ends the transfer with CANCELLED. */
typedef int (*rollbox_progress)(uint64_t bytes, uint64_t files, void *userdata);

/* Copy a file or a tree between host and sandbox. Data is streamed; holes and links are kept;
 * anything that is not a file, directory or link is skipped. The host's files are accessed with the
 * caller's rights, and nothing from the sandbox can be written outside `host_path`. If the target
 * is an existing directory, the entries are put into it. */
ROLLBOX_PUBLIC int rollbox_upload(struct rollbox_sandbox *sandbox, const char *host_path,
    const char *path, rollbox_progress progress, void *userdata, struct rollbox_error *error);
ROLLBOX_PUBLIC int rollbox_download(struct rollbox_sandbox *sandbox, const char *path,
    const char *host_path, rollbox_progress progress, void *userdata, struct rollbox_error *error);

/* Users of a sandbox with users "many"; in others they are FEATURE_MISSING. A user that the
 * sandbox's /etc/passwd does not have is INVALID_ARGUMENT; a number need not be there. */
struct rollbox_file_options {
    size_t size;       /* sizeof(struct rollbox_file_options) */
    const char *user;  /* NULL: root. "USER[:GROUP[:GROUPS]]": the call has this user's rights, and
                          new files are the user's */
    const char *owner; /* NULL: the same as the user. "USER[:GROUP]": root gives new files and
                          directories to this user. A user without a group has its own */
    unsigned mode;     /* of rollbox_file_write_as */
    rollbox_progress progress; /* of rollbox_upload_as; may be NULL */
    void *userdata;
};

/* rollbox_file_write and rollbox_upload with these options. */
ROLLBOX_PUBLIC int rollbox_file_write_as(struct rollbox_sandbox *sandbox, const char *path,
    const void *data, size_t length, const struct rollbox_file_options *options,
    struct rollbox_error *error);
ROLLBOX_PUBLIC int rollbox_upload_as(struct rollbox_sandbox *sandbox, const char *host_path,
    const char *path, const struct rollbox_file_options *options, struct rollbox_error *error);

/* The same through a files agent that serves the other end of a connected SOCK_SEQPACKET socket
 * (consumed): that of a sandbox of `rollbox serve`, whose channel the caller forwards. An error
 * GUEST_INTERFERED with ECONNRESET, or one with EUSERS, may be repeated with another agent. */
ROLLBOX_PUBLIC int rollbox_agent_upload(int take_socket, const char *host_path, const char *path,
    rollbox_progress progress, void *userdata, struct rollbox_error *error);
ROLLBOX_PUBLIC int rollbox_agent_download(int take_socket, const char *path, const char *host_path,
    rollbox_progress progress, void *userdata, struct rollbox_error *error);

/* ---- features ---- */

/* The features of this kernel that the current user may use, as JSON text: {"kernel", "ok",
 * "isolation": {"namespace": bool, "process": bool}, "cgroup": "v1"|"v2"|"none", "features":
 * [{"name", "available", "needed_for", "hint"}]}. The caller frees *ret_json with free(). Features
 * named in the environment variable ROLLBOX_KFEAT (-landlock,-userns,...) count as missing. Blocks
 * for a few milliseconds, because it tries features in child processes. */
ROLLBOX_PUBLIC int rollbox_doctor(char **ret_json, struct rollbox_error *error);

#ifdef __cplusplus
}
#endif
#endif
