/* SPDX-License-Identifier: Apache-2.0 */
/*
 * librollbox: run untrusted programs in sandboxes.
 *
 * The model: a `struct rollbox_engine` is a connection to a rollbox-engine process, private
 * (started by and dying with this process) or shared (on a Unix socket). A policy is JSON text;
 * `rollbox_prepare` has the engine check and compile it once into a plan, which any number of runs
 * share. A run is started with `rollbox_start`, which does not block, and ends in a `struct
 * rollbox_result`, collected by `rollbox_wait` (blocks) or, from an event loop, by polling
 * `rollbox_engine_fd` and calling `rollbox_dispatch`, which calls the run's callback.
 *
 * What the guest did (exit, signal, time-out, ...) is a result; what rollbox could not do is an
 * error. The two never mix: a result whose outcome is ROLLBOX_OUTCOME_ERROR says nothing about the
 * guest program.
 *
 * Functions return 0 or a positive count, or -errno. Those that can fail for a reason worth telling
 * take a `struct rollbox_error *` (the caller's, may be NULL), filled once. Outputs named ret_* are
 * written on success only.
 *
 * Threads: an engine handle may be used from any number of threads at once. After fork() the child
 * must not use the parent's handles: every call on them fails with -ECHILD, and closing them
 * touches nothing of the parent's.
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

/* One row an error: name, number on the wire, HTTP status, Python exception (base class after the
 * slash), meaning. The C enum, the Python exceptions and docs/reference/errors.md are all made from
 * this table; numbers never change. */
/* clang-format off */
#define ROLLBOX_ERRORS(X) \
    X(INVALID_ARGUMENT,   1, 400, InvalidArgument,   "an argument of the call is not valid") \
    X(POLICY_INVALID,     2, 400, PolicyInvalid,     "the policy is not valid; the message lists every problem with its line") \
    X(PATH_NOT_FOUND,     3, 400, PathNotFound,      "a path that the policy grants does not exist") \
    X(PATH_DENIED,        4, 403, PathDenied,        "a path that the policy grants cannot be used by the caller") \
    X(FEATURE_MISSING,    5, 501, FeatureMissing,    "the policy asks for isolation or a limit that this kernel or user cannot give") \
    X(COMMAND_NOT_FOUND,  6, 422, CommandNotFound,   "the program does not exist inside the sandbox") \
    X(NOT_EXECUTABLE,     7, 422, NotExecutable,     "the program exists inside the sandbox but cannot be executed") \
    X(BAD_CWD,            8, 422, BadCwd,            "the working directory does not exist inside the sandbox") \
    X(SETUP_FAILED,       9, 500, SetupFailed,       "the kernel refused a step of setting the sandbox up") \
    X(RESOURCE_EXHAUSTED, 10, 503, ResourceExhausted, "the host is out of memory, file descriptors, processes or disk; try again later") \
    X(HOST_OUT_OF_MEMORY, 11, 503, HostOutOfMemory,  "the host, or a control group that the engine is in, had no memory left, and the OOM killer ended the sandbox or its command; the guest is not at fault") \
    X(ENGINE_START,       12, 500, EngineStartFailed, "the engine could not be started") \
    X(ENGINE_LOST,        13, 502, EngineLost,       "the connection to the engine ended; the sandbox is gone") \
    X(ENGINE_BUSY,        14, 409, EngineBusy,       "another engine is serving that socket") \
    X(PROTOCOL,           15, 502, ProtocolError,    "engine and library do not speak the same protocol version, or a message is malformed") \
    X(NOT_FOUND,          16, 404, NotFound,         "no such operation, sandbox or file") \
    X(CANCELLED,          17, 499, Cancelled,        "the caller cancelled the operation") \
    X(IO,                 18, 500, IOFailed,         "reading or writing a file of the host failed") \
    X(INTERNAL,           19, 500, InternalError,    "a bug in rollbox; please report it") \
    X(CONFLICT,           20, 409, Conflict,         "what is to be replaced on the host was changed meanwhile") \
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

/* Filled by a failing call. `error_number` is a positive errno or 0. `stage` is a short word:
 * arguments, policy, connect, setup, exec, run, result, or what failed (files, snapshot, restore,
 * hibernate, wake, commit, export, import, store and the like). `message` is one line
 * (POLICY_INVALID: one line a problem), no trailing newline: what, where, and how to mend it. */
struct rollbox_error {
    enum rollbox_error_code code;
    int error_number;
    char stage[16];
    char message[1000];
};

/* "policy_invalid", ...: the code's name as JSON results spell it; "unknown" for a number that is
 * none. Static. */
ROLLBOX_PUBLIC const char *rollbox_error_name(enum rollbox_error_code code);

/* The library's version, such as "1.2.3". Static. */
ROLLBOX_PUBLIC const char *rollbox_version(void);

/* ---- engine ---- */

struct rollbox_engine;

struct rollbox_engine_options {
    size_t size; /* sizeof(struct rollbox_engine_options) */
    const char *
        socket_path; /* NULL: start a private engine; else join the shared engine listening there */
    const char *engine_path; /* NULL: $ROLLBOX_ENGINE, else found beside this library, else the
                                installed one */
};

/* Starts or joins an engine; blocks until it answers (a private start takes about a millisecond).
 * `options` may be NULL. The caller owns *ret_engine. A shared engine has to be of the caller's own
 * user or root's, or of one that the environment variable ROLLBOX_TRUST_UID names, and no other
 * user may be able to replace its socket: else ENGINE_UNTRUSTED, before anything is sent. Errors:
 * ENGINE_START, ENGINE_LOST, ENGINE_UNTRUSTED, PROTOCOL, INVALID_ARGUMENT, RESOURCE_EXHAUSTED. */
ROLLBOX_PUBLIC int rollbox_engine_open(const struct rollbox_engine_options *options,
    struct rollbox_engine **ret_engine, struct rollbox_error *error);

/* Closes the connection: every sandbox it owns is killed and cleaned up; a private engine ends
 * (waited for). Runs still under way end as ENGINE_LOST and stay valid until freed. No other thread
 * may be in a call on the handle. Takes and returns NULL. */
ROLLBOX_PUBLIC struct rollbox_engine *rollbox_engine_close(struct rollbox_engine *engine);

/* A descriptor, owned by the handle, that polls readable when rollbox_dispatch has something to do.
 */
ROLLBOX_PUBLIC int rollbox_engine_fd(struct rollbox_engine *engine);

/* The process id of the engine. */
ROLLBOX_PUBLIC int rollbox_engine_pid(struct rollbox_engine *engine);

/* Handles every message that has arrived, without blocking, calling the callbacks of runs that
 * ended. Returns how many ended, or -ENOTCONN once the engine is lost (all runs have then been
 * ended). For event loops; rollbox_wait does the same by itself. */
ROLLBOX_PUBLIC int rollbox_dispatch(struct rollbox_engine *engine);

/* Engine status as JSON text ({"pid", "version", "sandboxes", "queued", "plans", "spares",
 * "memory_budget_bytes", "cgroup", "connections", ...}; docs/how-to/sessions.md); the caller frees
 * *ret_json with free(). Blocks. */
ROLLBOX_PUBLIC int rollbox_engine_status(
    struct rollbox_engine *engine, char **ret_json, struct rollbox_error *error);

/* ---- policy ---- */

/* Checks policy text (JSON, see docs/reference/policy.md) without an engine and without looking at
 * the file system. 0 if it is valid; else -EINVAL and POLICY_INVALID. `ret_problems` (may be NULL)
 * gets all problems as JSON text, to be freed with free(), also on failure:
 * [{"line": 3, "key": "fs_readible", "message": "...", "hint": "..."}]. */
ROLLBOX_PUBLIC int rollbox_policy_check(
    const char *json, size_t length, char **ret_problems, struct rollbox_error *error);

/* The plan that the engine makes of a policy as text, one operation a line, then the Landlock rules
 * and the disassembled seccomp program; the caller frees *ret_text with free(). Blocks. */
ROLLBOX_PUBLIC int rollbox_policy_plan(struct rollbox_engine *engine, const char *json,
    size_t length, char **ret_text, struct rollbox_error *error);

/* A policy compiled by the engine. Valid as long as the engine handle; never freed by itself. */
struct rollbox_plan;

/* Has the engine check and compile a policy ("{}" is the default one), once: the same text gives
 * the same plan again at no cost. Checks that granted paths exist. Blocks. Errors: POLICY_INVALID,
 * PATH_NOT_FOUND, PATH_DENIED, FEATURE_MISSING, SETUP_FAILED, ENGINE_LOST. */
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

/* A file to put into the sandbox before the program starts. A relative path is below the working
 * directory; missing parent directories are made. The path must lie in a writable place of the
 * sandbox. */
struct rollbox_file {
    const char *path;
    const void *data;
    size_t length;
    unsigned mode; /* 0 means 0644 */
};

struct rollbox_run;

/* Called from rollbox_dispatch or rollbox_wait (of any run of that engine), without locks held,
 * once, when the run's result is there. */
typedef void (*rollbox_callback)(struct rollbox_run *run, void *userdata);

/* A callback for those who ask by rollbox_next_ended: nothing of theirs is called from inside of
 * rollbox_dispatch or rollbox_wait then. Itself it does nothing. */
ROLLBOX_PUBLIC void rollbox_queued(struct rollbox_run *run, void *userdata);

/* The userdata (not NULL) of the run that ended first, of those with that callback; it stays the
 * first until rollbox_told is called with it, or the run is freed. NULL: there is none.
 * rollbox_engine_fd is readable while there are some. Neither blocks; any thread may call them. */
ROLLBOX_PUBLIC void *rollbox_next_ended(struct rollbox_engine *engine);
ROLLBOX_PUBLIC void rollbox_told(struct rollbox_engine *engine, void *userdata);

/* For timeout_ms: whatever the policy says, it may take as long as it likes. */
#define ROLLBOX_NO_TIMEOUT INT64_MIN

struct rollbox_run_options {
    size_t size; /* sizeof(struct rollbox_run_options) */
    const char *const
        *argv; /* NULL-terminated, at least one; argv[0] is looked up in the sandbox's PATH unless
                  it has a slash. NULL: the image's own entry point and command */
    const char *const
        *env;        /* NULL-terminated "K=V", added to (or replacing) the policy's; NULL: none */
    const char *cwd; /* NULL: the policy's */
    const void *stdin_data; /* given to the program as its standard input, which is at end of file
                               after it; NULL: /dev/null */
    size_t stdin_length;
    const struct rollbox_file *files;
    size_t n_files;
    int64_t timeout_ms;   /* -1: the policy's, and 300 s if that has none; ROLLBOX_NO_TIMEOUT: none;
                             0: refused */
    int64_t output_limit; /* bytes a stream; -1: the policy's */
    const int *stdio_fds; /* NULL: output is collected into the result. Else three descriptors
                             (borrowed, duplicated) that become the program's 0, 1 and 2; nothing is
                             collected, and output_limit is the caller's to hold (rollbox_kill). The
                             program may open them by name (/dev/stdin), too, for what each
                             descriptor allows. Run by root, files and terminals also need a mode
                             that lets others in; append-only files cannot be opened by name */
    const char *operation_id;  /* NULL: a new one. Else 1 to 64 bytes: starting the same id again
                                  gives the first one's result */
    rollbox_callback callback; /* may be NULL */
    void *userdata;
    bool is_code; /* argv is "python3", "-c", the code and its arguments: an interpreter that was
                     started before, under the same policy, may take it, if env and stdio_fds are
                     NULL (docs/explanation/interpreters.md). Nothing else changes */
};

/* Starts a run; does not wait for it. The options are copied. The caller owns *ret_run and frees it
 * with rollbox_run_free. Errors: INVALID_ARGUMENT, ENGINE_LOST, RESOURCE_EXHAUSTED. Everything
 * later is in the result. */
ROLLBOX_PUBLIC int rollbox_start(struct rollbox_engine *engine, struct rollbox_plan *plan,
    const struct rollbox_run_options *options, struct rollbox_run **ret_run,
    struct rollbox_error *error);

/* The result of a run. All memory belongs to the run. Times are in milliseconds, sizes in bytes. */
struct rollbox_result {
    enum rollbox_outcome outcome;
    int exit_code;           /* -1 unless the outcome is EXIT */
    int signal;              /* 0 unless the outcome is SIGNAL */
    const void *stdout_data; /* NULL with length 0 if nothing was collected */
    size_t stdout_length;
    const void *stderr_data;
    size_t stderr_length;
    bool stdout_truncated;
    bool stderr_truncated;
    double wall_ms; /* from the start of the program to its end */
    double cpu_ms;  /* user + system, of all processes of the sandbox */
    uint64_t peak_memory_bytes;
    uint32_t
        processes_peak;    /* the most that were seen at once; at least 1 if the program started */
    const char *isolation; /* JSON object: what was applied */
    struct rollbox_error error; /* code is ROLLBOX_OK unless the outcome is ERROR */
};

/* Blocks until the run has ended, up to timeout_ms (-1: for ever). Returns 0 and the result, owned
 * by the run; -ETIMEDOUT if it has not ended. */
ROLLBOX_PUBLIC int rollbox_wait(
    struct rollbox_run *run, int64_t timeout_ms, const struct rollbox_result **ret_result);

/* Kills the whole sandbox of a run that is under way. `as` is the outcome it will have:
 * OUTPUT_LIMIT, TIMEOUT, or ERROR (code CANCELLED). Does not wait. 0 also if it has ended already.
 */
ROLLBOX_PUBLIC int rollbox_kill(struct rollbox_run *run, enum rollbox_outcome as);

/* Frees the run; one still under way is killed first (its end is not waited for, its callback not
 * called). Takes and returns NULL. */
ROLLBOX_PUBLIC struct rollbox_run *rollbox_run_free(struct rollbox_run *run);

/* The result as one line of JSON, fields as in docs/reference/result.md, without trailing newline.
 * `id` (may be NULL) is put first. The caller frees *ret_json with free(). -ENOMEM. */
ROLLBOX_PUBLIC int rollbox_result_json(
    const struct rollbox_result *result, const char *id, char **ret_json);

/* ---- sandboxes that live ---- */

/* A session: a sandbox that stays until it is closed. Commands (`rollbox_exec`) see what earlier
 * ones left, files and background processes. It can be snapshotted, forked and reset, files and
 * processes. It belongs to the connection that made it and ends with that, unless it was made
 * `detached` on a shared engine. Calls on a paused sandbox resume it. The handle is a name: several
 * may exist of one sandbox, in several processes on one shared engine. All calls here block, but
 * for rollbox_exec and rollbox_attach. */
struct rollbox_sandbox;

struct rollbox_sandbox_options {
    size_t size;         /* sizeof(struct rollbox_sandbox_options) */
    const char *name;    /* 1 to 64 of [A-Za-z0-9_.-], unique on the engine; NULL: one is made up */
    bool detached;       /* it outlives the connection (shared engines only) */
    int64_t idle_ms;     /* paused after so long without a call or a running command; 0: never */
    int64_t ttl_ms;      /* closed after so long without a call; 0: never */
    int64_t lifetime_ms; /* closed after so long, whatever happens; 0: never */
    const char *operation_id; /* as of a run: a retry gets the sandbox that the first call made */
    int64_t hibernate_ms;     /* hibernated (rollbox_hibernate) after so long without a call, a
                                 command that is waited for, a transfer of files, or a hundredth of
                                 a processor used; 0: never */
    unsigned auto_snapshots;  /* take a snapshot after each command that has changed something, and
                                 keep so many of these, the latest; 0: take none */
};

/* Errors: as rollbox_prepare; INVALID_ARGUMENT (name taken), RESOURCE_EXHAUSTED, SETUP_FAILED. The
 * caller owns *ret_sandbox. */
ROLLBOX_PUBLIC int rollbox_sandbox_create(struct rollbox_engine *engine, struct rollbox_plan *plan,
    const struct rollbox_sandbox_options *options, struct rollbox_sandbox **ret_sandbox,
    struct rollbox_error *error);

/* A handle of one that exists, by its name. NOT_FOUND. */
ROLLBOX_PUBLIC int rollbox_sandbox_open(struct rollbox_engine *engine, const char *name,
    struct rollbox_sandbox **ret_sandbox, struct rollbox_error *error);

/* Its name; lives as long as the handle. */
ROLLBOX_PUBLIC const char *rollbox_sandbox_name(const struct rollbox_sandbox *sandbox);

/* Ends the sandbox: its processes are killed, its files dropped; then frees the handle, also on
 * failure. 0 also if it is gone already. */
ROLLBOX_PUBLIC int rollbox_sandbox_close(
    struct rollbox_sandbox *sandbox, struct rollbox_error *error);

/* The same, and tells what became of its trajectory: {"record": {"id", "steps", "written",
 * "complete", "error"}}, or {} if it was not recorded, or had ended before, {"lost": true} if it
 * ended with its engine; free(). Waits for the last line, but not for a reader that does not read.
 */
ROLLBOX_PUBLIC int rollbox_sandbox_finish(
    struct rollbox_sandbox *sandbox, char **ret_json, struct rollbox_error *error);

/* Frees the handle alone. Takes and returns NULL. */
ROLLBOX_PUBLIC struct rollbox_sandbox *rollbox_sandbox_free(struct rollbox_sandbox *sandbox);

/* The sandboxes of the engine that this connection may use, as JSON: {"sandboxes": [{"name",
 * "state": "starting"|"idle"|"running"|"paused"|"asleep", "commands", "running", "created", ...}]};
 * free(). */
ROLLBOX_PUBLIC int rollbox_sandbox_list(
    struct rollbox_engine *engine, char **ret_json, struct rollbox_error *error);

/* The same rows, each with the sandbox's use of resources, as of ROLLBOX_QUERY_STATS. The kernel is
 * asked for it: some microseconds a sandbox, more without control groups. */
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
    ROLLBOX_QUERY_EXECS,     /* {"execs": [...]}: of what ROLLBOX_QUERY_INSPECT tells the commands
                                alone, for which nothing has to be measured */
    ROLLBOX_QUERY_STATS, /* a row of rollbox_sandbox_list with "age_s", "cpu_ms" (all that it has
                            used), "memory_bytes", "peak_memory_bytes", "max_memory_bytes",
                            "disk_bytes", "max_disk_bytes", "processes", "max_processes": null where
                            it cannot be told */
};

/* JSON text for free(). */
ROLLBOX_PUBLIC int rollbox_sandbox_query(struct rollbox_sandbox *sandbox, enum rollbox_query query,
    char **ret_json, struct rollbox_error *error);

/* No processor time until resumed; rollbox_resume does nothing to one that is not paused. */
ROLLBOX_PUBLIC int rollbox_pause(struct rollbox_sandbox *sandbox, struct rollbox_error *error);
ROLLBOX_PUBLIC int rollbox_resume(struct rollbox_sandbox *sandbox, struct rollbox_error *error);

struct rollbox_state_options;

/* Puts the sandbox to sleep: files and processes go to the store on the disk, and neither processes
 * nor memory are left. Commands under way end as CANCELLED; in the sandbox they go on when it
 * wakes, under the same ids (rollbox_attach, rollbox_claim). Blocks until all of it has reached the
 * disk. Does nothing to one that sleeps. options may be NULL; ROLLBOX_PROCESSES_DROP: files alone.
 * FEATURE_MISSING: a process has what cannot be captured; RESOURCE_EXHAUSTED, IO: no room; after
 * any error it is as it was. */
ROLLBOX_PUBLIC int rollbox_hibernate(struct rollbox_sandbox *sandbox,
    const struct rollbox_state_options *options, struct rollbox_error *error);

/* Wakes it. Any call that needs it awake does that by itself. ROLLBOX_PROCESSES_DROP: its files
 * alone, such as where its processes cannot go on. Does nothing to one that is awake, but that a
 * paused one is resumed. DAMAGED: what is in the store is not what was written; FEATURE_MISSING: it
 * was put to sleep under another kernel, or on another processor; CONFLICT: the policy's places are
 * others now; SETUP_FAILED. After any error it sleeps on. */
ROLLBOX_PUBLIC int rollbox_wake(struct rollbox_sandbox *sandbox,
    const struct rollbox_state_options *options, struct rollbox_error *error);

struct rollbox_terminal {
    unsigned short rows, columns;
};

struct rollbox_exec_options {
    size_t size;             /* sizeof(struct rollbox_exec_options) */
    const char *const *argv; /* as of rollbox_run_options, these and the following */
    const char *const *env;
    const char *cwd;
    const char *user; /* NULL: the policy's. Else its name or number; others are FEATURE_MISSING
                         unless the sandbox maps them */
    const void *stdin_data;
    size_t stdin_length;
    const struct rollbox_file *files;
    size_t n_files;
    int64_t timeout_ms;       /* -1: the policy's, and none if that has none. A time-out kills this
                                 command's tree of processes and nothing else */
    int64_t output_limit;     /* past it the command's tree is killed, as by a time-out */
    const char *operation_id; /* its id, to attach, signal or retry by */
    const struct rollbox_terminal *terminal; /* not NULL: it gets a terminal of its own of that
                                                size; its output is all on stdout */
    int input_fd; /* what becomes its standard input, or is typed into the terminal, whose readers
                     see its end; -1: stdin_data. Borrowed */
    int stream_fds[2];    /* where stdout and stderr are written to as they come, besides being
                             collected; -1: nowhere. Borrowed, duplicated, made non-blocking: give the
                             write ends of pipes. A stream whose reader is slow waits without holding
                             the command up; one whose reader is gone ends alone */
    const int *extra_fds; /* what becomes its descriptors 3 and up; borrowed */
    size_t n_extra_fds;   /* at most 8 */
    bool detached; /* it runs on when the connection ends (in a detached sandbox), and its result is
                      kept for rollbox_attach */
    rollbox_callback callback; /* may be NULL */
    void *userdata;
    bool no_trace; /* ptrace, process_vm_readv and _writev, pidfd_getfd, kcmp and process_madvise
                      are EPERM for it and for all that it starts. No snapshot takes such a process
                      along */
};

/* Starts a command in the sandbox; its result is waited for as a run's (rollbox_wait, rollbox_kill,
 * rollbox_run_free, callbacks). When its main program ends, its result is there; what it left
 * running lives on with the sandbox. rollbox_run_free of one under way kills its tree unless
 * `detached`. */
ROLLBOX_PUBLIC int rollbox_exec(struct rollbox_sandbox *sandbox,
    const struct rollbox_exec_options *options, struct rollbox_run **ret_run,
    struct rollbox_error *error);

/* Waits for a command that runs or has run, by its id: its result comes to the new run. What it
 * wrote from its beginning on goes to stream_fds (-1: nowhere). NOT_FOUND in the result. */
struct rollbox_attach_options {
    size_t size; /* sizeof(struct rollbox_attach_options) */
    const char *operation_id;
    int input_fd; /* for a command with a terminal; -1 */
    int stream_fds[2];
    rollbox_callback callback;
    void *userdata;
};
ROLLBOX_PUBLIC int rollbox_attach(struct rollbox_sandbox *sandbox,
    const struct rollbox_attach_options *options, struct rollbox_run **ret_run,
    struct rollbox_error *error);

enum rollbox_scope {
    ROLLBOX_SCOPE_MAIN = 1, /* the command's main process */
    ROLLBOX_SCOPE_TREE,     /* and all that it started */
    ROLLBOX_SCOPE_CHILDREN, /* all that it started, not itself */
    ROLLBOX_SCOPE_GROUP, /* the foreground process group of its terminal; without one, its process
                            group */
};

/* Signals a command that runs. NOT_FOUND if it does not any more. operation_id NULL: every process
 * of the sandbox, background ones too; SIGKILL only. */
ROLLBOX_PUBLIC int rollbox_signal(struct rollbox_sandbox *sandbox, const char *operation_id,
    int signal_number, enum rollbox_scope scope, struct rollbox_error *error);
ROLLBOX_PUBLIC int rollbox_resize(struct rollbox_sandbox *sandbox, const char *operation_id,
    const struct rollbox_terminal *terminal, struct rollbox_error *error);

/* What the next three calls do with processes. */
enum rollbox_processes {
    ROLLBOX_PROCESSES_KEEP =
        1, /* those that run are part of the state: memory and files of one moment */
    ROLLBOX_PROCESSES_DROP, /* files alone */
};

struct rollbox_state_options {
    size_t size;                      /* sizeof(struct rollbox_state_options) */
    enum rollbox_processes processes; /* 0: ROLLBOX_PROCESSES_KEEP */
    bool same_seed; /* of forks, under a policy with random_seed: all have the parent's; else each
                       has its own, which follows from the parent's and from how many children that
                       had before it */
    bool attached;  /* of forks: they end with this connection, though the sandbox that they are of
                       is detached */
};

/* The state of the sandbox, kept until the last sandbox of the family is closed or it is dropped:
 * its private files, and the processes that run, which stand still meanwhile, and run on. `name`
 * (may be NULL) is another name for its id in this family; options may be NULL. *ret_json: {"id",
 * "name", "parent", "bytes", "files", "live", "processes", "memory_bytes"}; free().
 * FEATURE_MISSING: a process has what cannot be captured, which the message names; nothing was
 * changed. */
ROLLBOX_PUBLIC int rollbox_snapshot(struct rollbox_sandbox *sandbox, const char *name,
    const struct rollbox_state_options *options, char **ret_json, struct rollbox_error *error);

/* New sandboxes of the same policy in the state of a snapshot (NULL: of now), with its processes if
 * it has any: their commands have the ids that they have here (rollbox_attach, rollbox_claim).
 * options may be NULL. ret_sandboxes has room for n; the caller owns what is put there; all or
 * none. What is started in the k-th, from 0, has CLONE_ID=k in its environment, unless it is given
 * another. Errors: as rollbox_snapshot, SETUP_FAILED (a process cannot go on). */
ROLLBOX_PUBLIC int rollbox_fork(struct rollbox_sandbox *sandbox, const char *snapshot, size_t n,
    const struct rollbox_state_options *options, struct rollbox_sandbox **ret_sandboxes,
    struct rollbox_error *error);

/* Back to a snapshot (NULL: to the latest of this sandbox's line, or its beginning: what was
 * changed since is discarded), with its processes if it has any. Those of now are killed; commands
 * under way end as CANCELLED. options may be NULL. SETUP_FAILED: its processes cannot go on; the
 * sandbox has the snapshot's files then, and none. */
ROLLBOX_PUBLIC int rollbox_reset(struct rollbox_sandbox *sandbox, const char *snapshot,
    const struct rollbox_state_options *options, struct rollbox_error *error);

/* Of a command that runs and came into the sandbox by a fork or reset: the other ends of its pipes,
 * which nobody has yet. `wanted` has bit i for what was its descriptor i when it was started;
 * ret_fds[i] is the other end of that, -1 if it is not wanted, was no pipe, is stdout or stderr
 * (rollbox_attach), or was claimed before. Whether it is to be read or written, its open mode says.
 * They are the caller's. NOT_FOUND. */
#define ROLLBOX_CLAIM_FDS 11
ROLLBOX_PUBLIC int rollbox_claim(struct rollbox_sandbox *sandbox, const char *operation_id,
    unsigned wanted, int ret_fds[ROLLBOX_CLAIM_FDS], struct rollbox_error *error);

/* Gives a snapshot's place in memory back, once nothing stands on it. */
ROLLBOX_PUBLIC int rollbox_snapshot_drop(
    struct rollbox_sandbox *sandbox, const char *snapshot, struct rollbox_error *error);

/* What a snapshot (NULL: the latest of this sandbox's line) holds: as a row of ROLLBOX_QUERY_TREE,
 * with {"commands": [{"id", "command", "pid", "timeout_ms"}], "kernel", "processes": [{"pid",
 * "parent", "session", "group", "state", "name", "command", "executable", "directory",
 * "memory_bytes", "mapped_bytes", "threads": [{"tid", "name"}], "descriptors": {kind: how many}}],
 * "changes": as of rollbox_diff, from the snapshot before it}; free(). A sandbox that sleeps is not
 * woken: "asleep" is true then, and "changes" null. NOT_FOUND. */
ROLLBOX_PUBLIC int rollbox_snapshot_show(struct rollbox_sandbox *sandbox, const char *snapshot,
    char **ret_json, struct rollbox_error *error);

/* The same, with {"sound", "checks": [{"what", "ok", "why"}]}: whether it is what was kept, and
 * what would refuse its processes, which are made in a sandbox of their own and do not go on. "ok"
 * is null of what was not tried ("restoring", while the sandbox sleeps). What is not sound is no
 * error. */
ROLLBOX_PUBLIC int rollbox_snapshot_verify(struct rollbox_sandbox *sandbox, const char *snapshot,
    char **ret_json, struct rollbox_error *error);

/* What differs between two states: snapshot ids; NULL for `from`: the beginning; for `to`: now.
 * {"changes": [{"path", "change": "A"|"M"|"D", "type", "size", "old_size"}], ...}; with `text`,
 * unified diffs of text files, too. free(). */
ROLLBOX_PUBLIC int rollbox_diff(struct rollbox_sandbox *sandbox, const char *from, const char *to,
    bool text, char **ret_json, struct rollbox_error *error);

/* Publishes what was changed below a granted fs_writable path (NULL: all of them) on the host:
 * after a crash, each of them is old or new. CONFLICT if the host changed meanwhile, unless
 * `force`.
 * {"committed": [{"path", "changes"}]}; free(). */
ROLLBOX_PUBLIC int rollbox_commit(struct rollbox_sandbox *sandbox, const char *path, bool force,
    char **ret_json, struct rollbox_error *error);

/* A snapshot (NULL: of now) as one file, and back: a new snapshot in the store by that name, for
 * policies' image "snapshot:NAME". */
ROLLBOX_PUBLIC int rollbox_export(struct rollbox_sandbox *sandbox, const char *snapshot,
    const char *host_path, struct rollbox_error *error);

/* The same with what runs: a live state, which `rollbox import` makes a sandbox of that sleeps, for
 * another engine, perhaps of another machine with the same kernel and processor. One that sleeps is
 * not woken for it, but for a snapshot. FEATURE_MISSING: what runs cannot be captured, and nothing
 * is written. */
ROLLBOX_PUBLIC int rollbox_export_live(struct rollbox_sandbox *sandbox, const char *snapshot,
    const char *host_path, struct rollbox_error *error);

/* ---- trajectories ---- */

struct rollbox_record_options {
    size_t size; /* sizeof(struct rollbox_record_options) */
    int fd; /* open for writing; borrowed, duplicated. A regular file should be empty and nobody
               else's to write */
    uint64_t stream_bytes; /* kept of each stream and file, at most 16 MiB; 0: 256 KiB. What is more
                              has its length and digest */
    uint64_t file_bytes;   /* the whole trajectory; 0: 1 GiB. It ends there */
    const char *const *redact_names; /* NULL-terminated or NULL: variables whose values are taken
                                        out wherever they occur */
    const char *const
        *redact_patterns; /* likewise: extended regular expressions, matched line by line */
    bool env_values;      /* record variables' values, not their names alone */
    bool files; /* with each snapshot, what it has that the sandbox's beginning had not, by digest:
                   takes as long as reading those files */
    bool
        changes; /* after each command, the files that it has changed, by digest: nearly free of one
                    that changed none, of others as long as a snapshot and reading those files */
    bool as_parent; /* of a fork: what is not given here is as it is with the record of what it was
                       forked from, and what that takes out is taken out here, too */
};

/* Records what is done with the sandbox from now on, by whomever, until it is closed
 * (docs/reference/trajectories.md has the format). Nothing is ever held up by it: what cannot be
 * written ends the record, which rollbox_sandbox_finish and INSPECT ("record": {"error"}) tell.
 * Forks are not recorded unless this is called for them. *ret_json (ret_json may be NULL): {"id"};
 * free(). INVALID_ARGUMENT, RESOURCE_EXHAUSTED. */
ROLLBOX_PUBLIC int rollbox_record(struct rollbox_sandbox *sandbox,
    const struct rollbox_record_options *options, char **ret_json, struct rollbox_error *error);

/* A step of the caller's own in the sandbox's record: a reward, a model's words. `json` is any JSON
 * text. Does nothing if the sandbox is not recorded. */
ROLLBOX_PUBLIC int rollbox_note(
    struct rollbox_sandbox *sandbox, const char *json, struct rollbox_error *error);

/* A command that was given to a shell which runs as a command of the sandbox (rollbox_exec, with
 * pipes), and what came of it: for who keeps such a shell, as the Python package does. */
struct rollbox_shell_note {
    size_t size;              /* sizeof(struct rollbox_shell_note) */
    const char *operation_id; /* of the shell */
    const void *command;
    size_t command_length;
    int64_t timeout_ms;    /* -1: none */
    uint64_t output_limit; /* bytes a stream */
    enum rollbox_outcome outcome;
    int exit_code, signal; /* if the outcome is EXIT, SIGNAL */
    const void *stdout_data, *stderr_data;
    size_t stdout_length, stderr_length;
    bool stdout_truncated, stderr_truncated;
    bool ended; /* it ended the shell, too */
    double wall_ms;
};

/* A step `shell` in the sandbox's record, which rollbox replay can do again. Does nothing if the
 * sandbox is not recorded. */
ROLLBOX_PUBLIC int rollbox_note_shell(struct rollbox_sandbox *sandbox,
    const struct rollbox_shell_note *note, struct rollbox_error *error);

/* ---- files of a sandbox ---- */

/* Without a guest's program: rollbox-init reads and writes them, with the guest's own rights and
 * inside its root, so that no path leads outside. Paths are absolute. Errors: NOT_FOUND,
 * PATH_DENIED, INVALID_ARGUMENT (is a directory, ...; error_number says), IO, RESOURCE_EXHAUSTED
 * (ENOSPC, EDQUOT). */

/* Up to `most` bytes (0: 1 GiB) of a regular file, for free(); more is INVALID_ARGUMENT with EFBIG.
 */
ROLLBOX_PUBLIC int rollbox_file_read(struct rollbox_sandbox *sandbox, const char *path,
    uint64_t most, void **ret_data, size_t *ret_length, struct rollbox_error *error);

/* Makes or replaces a file in place of whatever file was there, with missing parents. */
ROLLBOX_PUBLIC int rollbox_file_write(struct rollbox_sandbox *sandbox, const char *path,
    const void *data, size_t length, unsigned mode, struct rollbox_error *error);

/* {"entries": [{"name", "name_base64" (if not UTF-8), "type": "file"|"directory"|"symlink"|...,
 * "size", "mode", "mtime_ns", "target"}]}, and one such object; free(). */
ROLLBOX_PUBLIC int rollbox_file_list(struct rollbox_sandbox *sandbox, const char *path,
    char **ret_json, struct rollbox_error *error);
ROLLBOX_PUBLIC int rollbox_file_stat(struct rollbox_sandbox *sandbox, const char *path, bool follow,
    char **ret_json, struct rollbox_error *error);

/* Makes a directory with its parents; removes a file, or a tree if `recursive`. */
ROLLBOX_PUBLIC int rollbox_file_mkdir(
    struct rollbox_sandbox *sandbox, const char *path, unsigned mode, struct rollbox_error *error);
ROLLBOX_PUBLIC int rollbox_file_remove(
    struct rollbox_sandbox *sandbox, const char *path, bool recursive, struct rollbox_error *error);

/* Called now and then with what was moved so far; non-zero ends the transfer with CANCELLED. */
typedef int (*rollbox_progress)(uint64_t bytes, uint64_t files, void *userdata);

/* A file or a tree between host and sandbox, streamed; holes stay holes, links stay links, what is
 * neither file, directory nor link is left out. The host's side is used with the caller's rights;
 * what comes from the sandbox is never followed out of `host_path`. An existing directory as target
 * gets the entries put into it. */
ROLLBOX_PUBLIC int rollbox_upload(struct rollbox_sandbox *sandbox, const char *host_path,
    const char *path, rollbox_progress progress, void *userdata, struct rollbox_error *error);
ROLLBOX_PUBLIC int rollbox_download(struct rollbox_sandbox *sandbox, const char *path,
    const char *host_path, rollbox_progress progress, void *userdata, struct rollbox_error *error);

/* ---- features ---- */

/* What this kernel and user can give, as JSON text: {"kernel", "ok", "isolation": {"namespace":
 * bool, "process": bool}, "cgroup": "v1"|"v2"|"none", "features": [{"name", "available",
 * "needed_for", "hint"}]}. The caller frees *ret_json with free(). Features named in the
 * environment variable ROLLBOX_KFEAT (-landlock,-userns,...) count as missing. Blocks for a few
 * milliseconds: it tries things in child processes. */
ROLLBOX_PUBLIC int rollbox_doctor(char **ret_json, struct rollbox_error *error);

#ifdef __cplusplus
}
#endif
#endif
