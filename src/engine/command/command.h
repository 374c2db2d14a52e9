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

/* The sandbox of a command. */
struct run_sandbox {
    const char *name; /* of its session; NULL: a box for it alone */
    uint64_t number;  /* of its session; 0: a box for it alone */
    struct box *box;  /* NULL: none now */
};

/* The session of a command, which shares its box with others: exec.c. */
struct run_session_ops {
    struct run_sandbox (*sandbox)(const struct run *run);
    bool (*kill)(struct run *run);   /* its processes; false: init cannot receive it, or has none */
    void (*finish)(struct run *run); /* sends the result and frees the run */
    bool (*is_broken)(const struct run *run);     /* a dump that was killed has left it damaged */
    enum oom_cause (*oom_cause)(struct run *run); /* of one that was killed, by its box's cgroup */
};

enum run_state { RUN_QUEUED, RUN_STARTING, RUN_RUNNING, RUN_ENDED };

/* The queue of a run, and the clients that it counts for: admission.c. NULL: none. */
struct run_admission {
    struct client *queued_at;    /* in its queue */
    struct client *held_by;      /* its request counts for it */
    struct client *charged_to;   /* its memory counts for it */
    size_t held_bytes, held_fds; /* of its request */
    bool reserved;               /* its memory limit, in the budget */
    int rank;                    /* by priority: the higher is the first */
    int64_t joined_ns;
    uint64_t passed; /* bytes: of later runs of its client that began while it had no room */
};

enum run_stdin { RUN_STDIN_FILE, RUN_STDIN_DATA, RUN_STDIN_PIPED };

/* The id of the operation. Of a session's command: the session's number first, so that two sessions
 * may use the same. Of a run: its client's user first, so that two users may. */
struct run_operation {
    unsigned char id[72];
    size_t length;
    uint64_t fingerprint; /* of the request: another one under the same id is refused */
};

/* python3 -c CODE. */
struct run_code {
    bool is_wanted; /* the command is that: it may be a restored interpreter's */
    bool is_cold;   /* and is not, though it is queued or runs */
};

/* The request. */
struct run_request {
    enum run_stdin stdin_kind;
    bool is_detached;
    struct buf message; /* for init */
    size_t n_env;       /* of its variables, the last in it */
    unsigned n_extra_given;
};

/* The terminal of a command. */
struct run_terminal {
    bool is_wanted;
    int input;                         /* keyboard input of its terminal; -EBADF */
    const struct client *input_client; /* the client that opened it */
    struct terminal_input *writer;     /* session: from `input` into the terminal */
};

/* Descriptors of a command. -EBADF: none, or handed over. */
struct run_fds {
    int stdio[3];   /* the command's */
    int streams[2]; /* targets of the streams, until copying begins */
    int extra[MAX_RUN_EXTRA];
    unsigned n_extra;
    /* Of a session's command: by the descriptor that it became. Of stdout and stderr: `outputs`. */
    struct run_pipe pipes[3 + MAX_RUN_EXTRA];
};

struct run_limits {
    int64_t timeout_ms;
    uint64_t output_limit;
    struct loop_timer timer; /* of the time-out, of the start, or of the answer to a kill */
    int64_t received_ns, begun_ns, started_ns; /* it came, left its queue, and ran */
};

/* The look at the memory of a command with a box of its own: run.c. */
struct run_watch {
    struct loop_timer timer;
    int64_t look_ns;          /* the duration of the last look */
    int64_t oom_kills_before; /* of the host */
};

/* A command as init knows it. */
struct run_in_init {
    uint64_t serial;
    pid_t main_pid; /* of its main process, in the sandbox */
};

/* A kill of a session's command by init. */
enum run_kill {
    RUN_KILL_NONE,
    RUN_KILL_DUE,  /* init has not received it yet */
    RUN_KILL_SENT, /* the time-out is that of init's answer */
};

/* The end of a command. */
struct run_end {
    bool killed;        /* by the engine, for `outcome` */
    bool exited;        /* init has reported its status */
    bool was_sent_kill; /* SIGKILL, because somebody asked for it */
    enum rollbox_outcome outcome;
    int status; /* wait status */
    uint64_t wall_ns, cpu_ns, peak_memory;
    struct run_counts counts;
    uint32_t processes_peak;
    struct rollbox_error error;
};

struct run {
    struct engine *engine;
    struct client *client; /* NULL once it is gone */
    struct profile *profile;
    struct list of_engine;
    struct list of_client;
    struct list in_queue; /* the client's; of a session's command: session->commands.waiting */
    struct list waiters;  /* struct waiter: retries of the same operation */
    uint64_t serial;
    struct run_operation operation;
    enum run_state state;
    struct session *session;                   /* NULL: a box for it alone */
    const struct run_session_ops *session_ops; /* of that */
    struct list of_session;
    enum run_kill kill;
    struct run_code code;
    struct box *box;
    struct output outputs[2];
    struct run_admission admission;
    struct run_request given;
    struct run_terminal terminal;
    struct run_fds fds;
    struct run_limits limits;
    struct run_watch watch;
    struct run_in_init init;
    struct run_end end;
};

static inline struct run_sandbox run_sandbox(const struct run *run) {
    return run->session ? run->session_ops->sandbox(run) : (struct run_sandbox){ .box = run->box };
}

#endif
