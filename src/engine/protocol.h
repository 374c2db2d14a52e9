/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's protocol: what clients and the engine say to each other, over base/wire.h.
 *
 * The client speaks first with HELLO; the engine answers WELCOME, or FAILED and closes when the versions differ. Every request carries a
 * serial that the client chooses, never used twice on a connection; its one reply carries the same. Replies come in any order. When the connection closes, every
 * sandbox that it owns is killed.
 *
 *   HELLO    VERSION                                        -> WELCOME  VERSION PID
 *   PREPARE  POLICY ENV*                                    -> PREPARED PLAN ISOLATION DEFAULT_TIMEOUT DEFAULT_OUTPUT   | FAILED
 *   EXPLAIN  POLICY                                         -> TEXT     TEXT_DATA                                       | FAILED
 *   STATUS                                                  -> TEXT     TEXT_DATA                                       | FAILED
 *   RUN      PLAN OPERATION ARG+ ENV* CWD? TIMEOUT? OUTPUT_LIMIT? {FILE_PATH FILE_MODE FILE_DATA}* STDIN? STDIO?   -> RESULT
 *   KILL     TARGET OUTCOME                                 (no reply: the run's RESULT says what came of it)
 *
 * RUN's descriptors: if STDIN is 1, a sealed memory file; then, if STDIO is 1, three that become 0, 1 and 2 (STDIN and STDIO exclude each other).
 * RESULT's descriptors: a memory file for stdout if STDOUT_FD is 1 (instead of STDOUT), then one for stderr if STDERR_FD is 1.
 * FAILED and a RESULT whose OUTCOME is error carry ERROR_CODE, ERROR_NUMBER, ERROR_STAGE, ERROR_MESSAGE.
 */
#ifndef ROLLBOX_ENGINE_PROTOCOL_H
#define ROLLBOX_ENGINE_PROTOCOL_H

#define PROTOCOL_VERSION 1

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
};

enum protocol_tag {
    TAG_VERSION = 1,            /* u64 */
    TAG_PID,                    /* u64 */
    TAG_POLICY,                 /* text: JSON */
    TAG_PLAN,                   /* u64 */
    TAG_ISOLATION,              /* text: JSON */
    TAG_DEFAULT_TIMEOUT,        /* u64: an int64, milliseconds, -1 for none */
    TAG_DEFAULT_OUTPUT,         /* u64: bytes */
    TAG_TEXT_DATA,              /* text */
    TAG_OPERATION,              /* bytes, 1 to 64 */
    TAG_ARG,                    /* text, one an argument */
    TAG_ENV,                    /* text, "K=V" */
    TAG_CWD,                    /* text */
    TAG_TIMEOUT,                /* u64: an int64, milliseconds, > 0 */
    TAG_OUTPUT_LIMIT,           /* u64: bytes */
    TAG_FILE_PATH,              /* text; begins a file */
    TAG_FILE_MODE,              /* u64 */
    TAG_FILE_DATA,              /* bytes; ends a file */
    TAG_STDIN,                  /* u64 */
    TAG_STDIO,                  /* u64 */
    TAG_TARGET,                 /* u64: the serial of a RUN on this connection */
    TAG_OUTCOME,                /* u64: enum rollbox_outcome */
    TAG_EXIT_CODE,              /* u64 */
    TAG_SIGNAL,                 /* u64 */
    TAG_STDOUT,                 /* bytes */
    TAG_STDERR,                 /* bytes */
    TAG_STDOUT_FD,              /* u64 */
    TAG_STDERR_FD,              /* u64 */
    TAG_STDOUT_TRUNCATED,       /* u64 */
    TAG_STDERR_TRUNCATED,       /* u64 */
    TAG_WALL_NS,                /* u64 */
    TAG_CPU_NS,                 /* u64 */
    TAG_PEAK_MEMORY,            /* u64: bytes */
    TAG_PROCESSES_PEAK,         /* u64 */
    TAG_ERROR_CODE,             /* u64: enum rollbox_error_code */
    TAG_ERROR_NUMBER,           /* u64: errno or 0 */
    TAG_ERROR_STAGE,            /* text */
    TAG_ERROR_MESSAGE,          /* text */
};

#endif
