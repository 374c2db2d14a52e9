/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * The engine's protocol: the messages between clients and the engine, over base/wire.h.
 *
 * The client begins with HELLO. The engine answers WELCOME, or FAILED if the versions differ, and
 * then closes the connection. Every request carries a serial that the client chooses and never uses
 * twice on a connection; its one reply carries the same serial. Replies come in any order. When the
 * connection closes, every sandbox that it owns is killed.
 *
 * A request and its reply (or FAILED):
 *
 *   HELLO    VERSION                          WELCOME VERSION PID
 *   PREPARE  POLICY ENV*                      PREPARED PLAN ISOLATION DEFAULT_TIMEOUT
 *                                             DEFAULT_OUTPUT
 *   EXPLAIN  POLICY                           TEXT TEXT_DATA
 *   STATUS                                    TEXT TEXT_DATA
 *   RUN      PLAN OPERATION ARG+ ENV* CWD? TIMEOUT? OUTPUT_LIMIT?
 *            {FILE_PATH FILE_MODE FILE_DATA}* STDIN? STDIO? CODE?                        RESULT
 *   EXEC     SANDBOX OPERATION ARG+ ENV* CWD? USER? TIMEOUT? OUTPUT_LIMIT? {FILE...}*
 *            STDIN? INPUT? TERMINAL? STREAM? EXTRA? DETACHED?                            RESULT
 *   ATTACH   SANDBOX EXEC INPUT? STREAM?      RESULT
 *   KILL     TARGET OUTCOME                   no reply of its own: the command's RESULT has the
 *                                             outcome. TARGET is a RUN, EXEC or ATTACH
 *   SANDBOX  VERB ...                         TEXT TEXT_DATA (one JSON object)
 *
 * The verbs of SANDBOX, their fields and their answers. The field SANDBOX comes first: the
 * name of the session (optional in CREATE, none in LIST).
 *
 *   CREATE     PLAN OPERATION? DETACHED? IDLE? TTL? LIFETIME? HIBERNATE? CHECKPOINTS?    {"name"}
 *   OPEN       {"name", "isolation"}: its commands have that isolation unless a result names one
 *   INSPECT, PROCESSES, EXECS, STATS, TREE, PAUSE, RESUME, CLOSE
 *                                             objects of rollbox.h; {} if there is none
 *   LIST       {"sandboxes": [...]}
 *   SIGNAL     EXEC? NUMBER SCOPE             without EXEC: SIGKILL to every process
 *   RESIZE     EXEC TERMINAL
 *   FILES      FORCE?                         one descriptor: a socket that an agent in the sandbox
 *                                             serves. FORCE: the guest's processes are stopped
 *                                             meanwhile, because they have killed an agent
 *   SNAPSHOT   NAME? DROPS?
 *   FORK       SNAPSHOT? NUMBER DROPS?        {"sandboxes": ["name", ...]}
 *   FORK_GROUP SANDBOX* NUMBER SAME_SEED? DROPS? ATTACHED?
 *                                             {"sandboxes": [["name", ...], ...]}: forks several
 *                                             sessions at one moment
 *   RESET      SNAPSHOT? DROPS?
 *   DROP       SNAPSHOT
 *   HIBERNATE  DROPS?
 *   WAKE       DROPS?                         any other request that needs it wakes it, too
 *   CONNECT    NUMBER (a port)                one descriptor: a socket on which init sends the
 *                                             connection
 *   CLAIM      EXEC NUMBER (bits)             {"fds": [{"slot", "mode": "r" | "w"}]} with those
 *                                             descriptors, once: the other ends of the pipes of a
 *                                             restored command beside stdout and stderr
 *   DIFF       SNAPSHOT? TO? TEXTUAL? DIGESTS?
 *   COMMIT     PATH? FORCE?
 *   EXPORT     SNAPSHOT? LIVE?                one descriptor: the file to write; a pipe gets the
 *                                             tar uncompressed, and of a sandbox with an image
 *                                             what has changed in that
 *   SHOW       SNAPSHOT?                      the content of a snapshot (without: the latest); does
 *                                             not wake the session
 *   VERIFY     SNAPSHOT?                      the same with "checks": what would refuse it
 *   RECORD     MAX_STREAM? MAX_FILE? ENV_VALUES? FILES? RULE_NAME* RULE_PATTERN*
 *                                             one descriptor: the destination of the trajectory
 *   NOTE       NAME PATH TO? NUMBER? FORCE? ERROR_CODE? BYTES? FILES? TEXT_DATA?
 *                                             perhaps one descriptor, the content: changes of an
 *                                             agent to files, if FILES answered "recorded": true;
 *                                             the changes of a snapshot, if that answered
 *                                             "recorded_files": true; or a note of the client
 *   NOTE       NAME ("shell") EXEC TIMEOUT? OUTPUT_LIMIT OUTCOME EXIT_CODE SIGNAL STDOUT_TRUNCATED
 *              STDERR_TRUNCATED FORCE (it ended the shell) WALL_NS
 *                                             three memory files: a command of that shell, and its
 *                                             output
 *   NET_LOG    {"log": [...]}
 *   NET_SET    POLICY                         its network keys alone
 *   NET_TALLY  EXEC                           {"network": {...}} since the command began, or since
 *                                             the last NET_TALLY; {} without net allow
 *   PUBLISH    NUMBER? PATH?                  {"ports": [{"port", "address", "url"}]}: publishes a
 *                                             port at the address PATH, or any; without NUMBER it
 *                                             lists the published ports
 *
 * Descriptors, in this order:
 *
 *   RUN     if STDIN is 1, a sealed memory file; if STDIO is 1, three that become 0, 1 and 2 (STDIN
 *           and STDIO exclude each other)
 *   EXEC    if STDIN is 1, a sealed memory file; else if INPUT is 1, the standard input, or what is
 *           typed into the terminal; then by STREAM (0 to 3) one to copy stdout to (bit 0) and one
 *           for stderr (bit 1); then EXTRA more, which become 3 and up
 *   ATTACH  those of INPUT and STREAM
 *   RESULT  if STDOUT_FD is 1, a memory file in place of STDOUT; the same for STDERR_FD
 *
 * FAILED, and a RESULT whose OUTCOME is error, carry ERROR_CODE, ERROR_NUMBER, ERROR_STAGE and
 * ERROR_MESSAGE.
 */
/* clang-format on */
#ifndef ROLLBOX_ENGINE_PROTOCOL_H
#define ROLLBOX_ENGINE_PROTOCOL_H

#define PROTOCOL_VERSION 2

enum protocol_type {
    PROTOCOL_HELLO = 1,
    PROTOCOL_WELCOME,
    PROTOCOL_PREPARE,
    PROTOCOL_PREPARED,
    PROTOCOL_EXPLAIN,
    PROTOCOL_STATUS,
    PROTOCOL_TEXT,
    PROTOCOL_RUN,
    PROTOCOL_RESULT,
    PROTOCOL_KILL,
    PROTOCOL_FAILED,
    PROTOCOL_EXEC,
    PROTOCOL_ATTACH,
    PROTOCOL_SANDBOX,
};

/* X(CONSTANT, name): what can be asked of a sandbox. The name is that of logs, counters and
 * messages. */
/* clang-format off */
#define PROTOCOL_VERBS(X) \
    X(CREATE, "create") X(OPEN, "open") X(INSPECT, "inspect") \
    X(PROCESSES, "processes") X(TREE, "tree") X(PAUSE, "pause") \
    X(RESUME, "resume") X(CLOSE, "close") X(LIST, "list") \
    X(SIGNAL, "signal") X(RESIZE, "resize") X(FILES, "files") \
    X(SNAPSHOT, "snapshot") X(FORK, "fork") X(RESET, "reset") \
    X(DROP, "drop") X(DIFF, "diff") X(COMMIT, "commit") \
    X(EXPORT, "export") X(RECORD, "record") X(NOTE, "note") \
    X(CLAIM, "claim") X(HIBERNATE, "hibernate") X(WAKE, "wake") \
    X(SHOW, "show") X(VERIFY, "verify") X(EXECS, "execs") \
    X(STATS, "stats") X(DEBUG, "debug") X(NET_LOG, "net_log") \
    X(NET_SET, "net_set") X(CONNECT, "connect") X(PUBLISH, "publish") \
    X(NET_TALLY, "net_tally") X(FORK_GROUP, "fork_group")
/* clang-format on */

enum protocol_verb {
    VERB_NONE,
#define PROTOCOL_VERB(constant, name) VERB_##constant,
    PROTOCOL_VERBS(PROTOCOL_VERB)
#undef PROTOCOL_VERB
        VERB_END, /* their number, VERB_NONE included */
};

enum protocol_tag {
    TAG_VERSION = 1,     /* u64 */
    TAG_PID,             /* u64 */
    TAG_POLICY,          /* text: JSON */
    TAG_PLAN,            /* u64 */
    TAG_ISOLATION,       /* text: JSON */
    TAG_DEFAULT_TIMEOUT, /* u64: an int64, milliseconds, -1 for none: of a run (commands of sessions
                            have none by default) */
    TAG_DEFAULT_OUTPUT,  /* u64: bytes */
    TAG_TEXT_DATA,       /* text */
    TAG_OPERATION,       /* bytes, 1 to 64 */
    TAG_ARG,             /* text, one an argument */
    TAG_ENV,             /* text, "K=V" */
    TAG_CWD,             /* text */
    TAG_TIMEOUT,         /* u64: an int64, milliseconds; 0: none */
    TAG_OUTPUT_LIMIT,    /* u64: bytes */
    TAG_FILE_PATH,       /* text; begins a file */
    TAG_FILE_MODE,       /* u64 */
    TAG_FILE_DATA,       /* bytes; ends a file */
    TAG_STDIN,           /* u64 */
    TAG_STDIO,           /* u64 */
    TAG_TARGET,          /* u64: the serial of a RUN, EXEC or ATTACH on this connection */
    TAG_OUTCOME,         /* u64: enum rollbox_outcome */
    TAG_EXIT_CODE,       /* u64 */
    TAG_SIGNAL,          /* u64 */
    TAG_STDOUT,          /* bytes */
    TAG_STDERR,          /* bytes */
    TAG_STDOUT_FD,       /* u64 */
    TAG_STDERR_FD,       /* u64 */
    TAG_STDOUT_TRUNCATED, /* u64 */
    TAG_STDERR_TRUNCATED, /* u64 */
    TAG_WALL_NS,          /* u64 */
    TAG_CPU_NS,           /* u64 */
    TAG_PEAK_MEMORY,      /* u64: bytes */
    TAG_PROCESSES_PEAK,   /* u64 */
    TAG_ERROR_CODE,       /* u64: enum rollbox_error_code */
    TAG_ERROR_NUMBER,     /* u64: errno or 0 */
    TAG_ERROR_STAGE,      /* text */
    TAG_ERROR_MESSAGE,    /* text */
    TAG_SANDBOX,          /* text: a name */
    TAG_VERB,             /* u64: enum protocol_verb */
    TAG_USER,             /* text */
    TAG_INPUT,            /* u64 */
    TAG_TERMINAL,         /* u64: rows << 16 | columns */
    TAG_STREAM,           /* u64 */
    TAG_EXTRA,            /* u64: how many */
    TAG_DETACHED,         /* u64 */
    TAG_IDLE,             /* u64: milliseconds, these three; 0: never */
    TAG_TTL,
    TAG_LIFETIME,
    TAG_EXEC,     /* bytes: the operation id of an EXEC */
    TAG_NUMBER,   /* u64: a signal; how many */
    TAG_SCOPE,    /* u64: enum rollbox_scope */
    TAG_NAME,     /* text */
    TAG_SNAPSHOT, /* text: an id or name, of the characters of a sandbox's name */
    TAG_TO,       /* text: likewise */
    TAG_TEXTUAL,  /* u64 */
    TAG_PATH,     /* text */
    TAG_FORCE,    /* u64 */
    TAG_CODE, /* u64: ARG is python3, -c, code...: an interpreter that was started before may take
                 it */
    TAG_MAX_STREAM,   /* u64: bytes that a trajectory keeps of a stream or file */
    TAG_MAX_FILE,     /* u64: bytes of a trajectory */
    TAG_ENV_VALUES,   /* u64: variables are recorded with their values */
    TAG_RULE_NAME,    /* text: a variable whose value is a secret */
    TAG_RULE_PATTERN, /* text: what secrets look like */
    TAG_BYTES,        /* u64: moved */
    TAG_FILES,     /* u64: moved; of RECORD, bits: 1: changed files are recorded with each snapshot;
                      2: after each command; 4: settings that are not given are those of the sandbox
                      that it was forked from */
    TAG_DIGESTS,   /* u64: of changed files */
    TAG_SAME_SEED, /* u64: forks have their parent's random_seed, not one each */
    TAG_DROPS,     /* u64: files alone, no processes */
    TAG_ATTACHED,  /* u64: forks are the client's, whosever the sandbox is */
    TAG_HIBERNATE, /* u64: milliseconds; 0: never */
    TAG_LIVE,      /* u64: with processes, where files alone are the rule */
    TAG_CHECKPOINTS, /* u64: a snapshot is taken after each command that has changed something, and
                        so many are kept; 0: none is taken */
    TAG_NO_TRACE,    /* u64: the command and its descendants trace nobody */
    TAG_NETWORK,     /* text: JSON; of a RESULT: what the command did in the network */
    TAG_QUEUE_NS,    /* u64: of a RESULT: how long the command waited in the engine's queue */
    TAG_SETUP_NS,    /* u64: and from there to its start */
    TAG_PRIORITY,    /* u64: enum rollbox_priority, of a RUN */
};

#endif
