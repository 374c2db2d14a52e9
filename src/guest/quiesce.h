/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a capturer and the init of a sandbox with random_seed or time_start say to each other.
 *
 * There, calls of processes wait for init's answers: who has asked stands in the kernel where no
 * tracer reaches, and calls that a tracer makes in a process would be asked about as well. So the
 * engine gives both an end of a socket (GUEST_QUIESCE), on which the capturer asks for what it
 * needs, and hears a word for each: 0 or -errno.
 *
 *     HOLD        init takes no question up any more, and no clock of its own moves: who asks now
 * waits so that a tracer stops it. GIVE_BACK   of these threads, which have been told to stop: what
 * init holds is broken off as by a signal, and begins anew where they go on. PASS        all stand:
 * what is asked now are the tracer's calls, and goes to the kernel. The word is followed by what
 * init knows: a struct image_determinism, and by so many waits and alarms as quiesce_counts says.
 *     TELL        the word is followed by the same; some do not stand, and nothing passes.
 *     FORGET      of these threads none begins anew what it was in: it has ended, or a signal ends
 * it. GO          no calls are made in them any more. They stand until the socket is closed, and
 * until then nothing is looked for that comes of their standing. The word is how many are to be let
 * go before the others, for a signal that came to them before they have asked again would be taken
 * for none (vtime_wait.c). LEFT        the word is how many of those have not asked yet.
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
#define QUIESCE_AT_ONCE 64u /* waits, or alarms, of one message */
/* A timer descriptor that init keeps has, while all stand, this many seconds to go, and its number
 * + 1 as its interval: so it is known wherever it is found. */
#define QUIESCE_MARK_S 1000000000ll

struct quiesce_message {
    uint32_t order, n;
    int32_t threads[QUIESCE_MAX_THREADS]; /* GIVE_BACK, FORGET: inside */
};

/* Follows the word of PASS, and of TELL, and is followed by messages of at most QUIESCE_AT_ONCE
 * waits, then alarms, each. */
struct quiesce_state {
    struct image_determinism determinism;
    uint32_t n_waits, n_again; /* of them so many, the first, were broken off before and have not
                                  been begun anew */
    uint32_t n_alarms;
};

#endif
