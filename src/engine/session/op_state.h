/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The waits of an operation, and the events that each of them takes.
 *
 * An operation (struct op) takes several steps. Between two of them it waits for exactly one thing,
 * its `enum op_wait`. An event ends the wait, and the step that follows begins the next wait or
 * ends the operation. Two tables say which waits may follow each other and what becomes of an event
 * in each wait. This file depends on nothing, so that a test can go through both tables without a
 * sandbox.
 *
 * The waits of an operation that takes a snapshot of running processes:
 *
 *     QUEUED > STARTED > INIT_ACK > DUMP > COPY > (IMAGE) > (SIZE) > (COMPACTION) > ... > DONE
 *
 * and of one that wants the files alone, or finds no process:
 *
 *     QUEUED > STARTED > FROZEN > (COPY) > (SIZE) > (COMPACTION) > ... > DONE
 */
#ifndef ROLLBOX_ENGINE_SESSION_OP_STATE_H
#define ROLLBOX_ENGINE_SESSION_OP_STATE_H

#include <stdbool.h>

/* X(suffix, name in logs). Each has its meaning in op_state.c. */
#define OP_WAITS(X)                                                                                \
    X(QUEUED, "queued")               /* for its turn: no step was made */                         \
    X(STARTED, "started")             /* for nothing: its first step is under way */               \
    X(FLATTEN, "flatten")             /* for one image in place of a chain of incremental ones */  \
    X(COMMANDS_SENT, "commands-sent") /* for commands of before to have reached init */            \
    X(FREEZE_SLOT, "freeze-slot")     /* for an earlier dump to let the processes go; to freeze */ \
    X(FROZEN, "frozen")               /* for init: all processes are frozen, or refused */         \
    X(WALK, "walk")                   /* for a walk over the files of paused processes */          \
    X(DUMP_SLOT, "dump-slot")         /* for an earlier dump to let the processes go; to dump */   \
    X(INIT_ACK, "init-ack")           /* for init to have done all earlier requests */             \
    X(DUMP, "dump")                   /* for the dump worker: processes are dumped and stand */    \
    X(COPY, "copy")                   /* for a copy of the files of paused processes */            \
    X(IMAGE, "image")                 /* for the rest of the image; the processes run */           \
    X(SIZE, "size")                   /* for the size of a layer on disk */                        \
    X(COMPACTION, "compaction")       /* for a long chain of layers to be merged */                \
    X(BOX_LOST, "box-lost")           /* for the news that the box is dead; starts again then */   \
    X(BOX_READY, "box-ready")         /* for the first box of a new sandbox */                     \
    X(RESTORE, "restore")             /* for the processes to resume in a new box */               \
    X(CHILDREN, "children")           /* for the boxes of forks */                                 \
    X(LAUNCHER_ROOM, "launcher-room") /* the same; and the launcher takes no more orders now */    \
    X(TRIAL, "trial")                 /* for a trial restore, in a sandbox of its own */           \
    X(LAYERS, "layers")               /* for empty layers, which the store fills */                \
    X(STORE_JOB, "store-job")         /* for rollbox-store */                                      \
    X(BOX_DEATH, "box-death")         /* for the box to die, as it is in the store */              \
    X(CLOSE, "close")                 /* for the box to die, and the sandbox with it */            \
    X(DONE, "done")                   /* for nothing: it has ended, and is freed */

/* X(suffix, name in logs). */
#define OP_EVENTS(X)                                                                               \
    X(START, "start")                                                                              \
    X(FLATTENED, "flattened")           /* or it failed, and the operation does without */         \
    X(COMMANDS_SENT, "commands-sent")   /* no command waits to be sent to init */                  \
    X(INIT_REPLY, "init-reply")         /* FROZEN or SIGNALLED with the operation's serial */      \
    X(PROCESSES_FREE, "processes-free") /* an earlier dump has let the processes go */             \
    X(WALKED, "walked")                                                                            \
    X(DUMPED, "dumped")                                                                            \
    X(DUMP_FAILED, "dump-failed") /* the dump worker's end, too, while it holds them */            \
    X(DUMP_AGAIN, "dump-again")   /* it failed for a reason that may pass */                       \
    X(IMAGE_WRITTEN, "image-written")                                                              \
    X(COPIED, "copied") /* or that failed */                                                       \
    X(SIZED, "sized")                                                                              \
    X(COMPACTED, "compacted")                                                                      \
    X(BOX_READY, "box-ready")     /* with its processes; or never will be */                       \
    X(BOX_LOST, "box-lost")       /* the box is dead, which nobody asked for */                    \
    X(BOX_DEAD, "box-dead")       /* the box is dead */                                            \
    X(CHILD_READY, "child-ready") /* the box of one fork */                                        \
    X(TRIED, "tried")                                                                              \
    X(LAYER_MADE, "layer-made")         /* or that failed */                                       \
    X(STORE_JOB_DONE, "store-job-done") /* or it failed */                                         \
    X(CANCEL, "cancel")                 /* a sandbox that hibernates by itself is called */

enum op_wait {
#define X(suffix, text) OP_WAIT_##suffix,
    OP_WAITS(X)
#undef X
        OP_N_WAITS
};

enum op_event {
#define X(suffix, text) OP_EVENT_##suffix,
    OP_EVENTS(X)
#undef X
        OP_N_EVENTS
};

/* The treatment of an event in a wait. */
enum op_answer {
    OP_EVENT_IS_ILLEGAL, /* it cannot come: the engine has lost track of the operation */
    OP_EVENT_IS_IGNORED, /* it is meant for an operation that waits for it, and this one does not */
    OP_EVENT_IS_TAKEN,   /* it is a step of the operation */
};

/* For logs; "?" of a number that is none. */
const char *op_wait_name(enum op_wait wait);
const char *op_event_name(enum op_event event);

bool op_wait_may_follow(enum op_wait before, enum op_wait next);
enum op_answer op_wait_takes(enum op_wait wait, enum op_event event);

/* The processes are paused for the operation, or are about to be. */
bool op_wait_holds_processes(enum op_wait wait);

#endif
