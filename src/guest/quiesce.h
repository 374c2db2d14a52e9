/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol between a dump worker and the init of a sandbox with random_seed or time_start.
 *
 * In such a sandbox, init answers system calls of the processes. A thread that waits for an answer
 * is in the kernel where no tracer reaches it, and calls that a tracer makes in a process would be
 * sent to init as well. So the engine gives both sides an end of a socket (GUEST_QUIESCE). The
 * worker sends orders, and init replies to each with a word: 0 or -errno.
 *
 *   HOLD       Init receives no more calls, and its clock stops. A thread that makes a call now
 *              waits in a state in which a tracer can stop it.
 *   GIVE_BACK  For these threads, which were asked to stop: the calls that init holds are
 *              interrupted as by a signal, and begin again when the threads resume.
 *   PASS       All threads have stopped. Calls that arrive now are the tracer's and pass to the
 *              kernel. The word is followed by init's state: a struct quiesce_state, and as
 *              many waits and alarms as it says.
 *   REPLY      The word is followed by the same; some threads have not stopped, and nothing
 *              passes.
 *   FORGET     None of these threads begins its wait again: it has ended, or a signal ends it.
 *   RELEASE    No more calls are made in the threads. They stay stopped until the socket is
 *              closed, and until then init does not react to their being stopped. The word is
 *              the number of threads that must resume before the others, because a signal that
 *              reached them before they make their call again would seem to be lost
 *              (vtime_wait.c).
 *   LEFT       The word is the number of those that have not made their call yet.
 */
#ifndef ROLLBOX_GUEST_QUIESCE_H
#define ROLLBOX_GUEST_QUIESCE_H

#include <stdint.h>

#include "image/process_image.h"

enum quiesce_command {
    QUIESCE_HOLD = 1,
    QUIESCE_GIVE_BACK,
    QUIESCE_PASS,
    QUIESCE_REPLY,
    QUIESCE_FORGET,
    QUIESCE_RELEASE,
    QUIESCE_LEFT
};

#define QUIESCE_MAX_THREADS 256u
#define QUIESCE_AT_ONCE 64u /* waits or alarms per message */
/* While all threads are stopped, a timer descriptor whose time init keeps is set to this many
 * seconds, with its number + 1 as interval. So the dump recognises it. */
#define QUIESCE_MARK_S 1000000000ll

struct quiesce_message {
    uint32_t order, n;
    int32_t threads[QUIESCE_MAX_THREADS]; /* GIVE_BACK, FORGET: thread ids inside the sandbox */
};

/* Follows the word of PASS and TELL, and is followed by messages of at most QUIESCE_AT_ONCE waits,
 * then alarms, each. */
struct quiesce_state {
    struct image_determinism determinism;
    uint32_t n_waits, n_again; /* the first n_again were interrupted, and have not begun again */
    uint32_t n_alarms;
};

#endif
