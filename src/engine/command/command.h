/* SPDX-License-Identifier: Apache-2.0 */
/* A command: a run in a box of its own, or in that of a session. run/run.h has its functions. */
#ifndef ROLLBOX_ENGINE_COMMAND_COMMAND_H
#define ROLLBOX_ENGINE_COMMAND_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

#include "base/buf.h"
#include "base/list.h"
#include "engine/command/output.h"
#include "engine/core/sender.h"
#include "loop/loop.h"

struct box;
struct client;
struct engine;
struct profile;
struct run;
struct session;
struct terminal_input;

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
    uint64_t tally;  /* of the network gateway; 0: it has not been asked for */
    char *network;   /* the tally's JSON, where it is known at once; or NULL */
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

#endif
