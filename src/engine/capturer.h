/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The capturer: a fork of the engine that looks at one sandbox' processes (capturing.c has the other side). It knows nothing of the engine.
 */
#ifndef ROLLBOX_ENGINE_CAPTURER_H
#define ROLLBOX_ENGINE_CAPTURER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <rollbox/rollbox.h>

#define CAPTURER_MAX_MAINS 512

/* What it says, once: one message. */
struct verdict {
    struct rollbox_error error; /* code 0: it is captured, and stands still */
    uint64_t bytes;
    uint32_t processes;
    uint32_t n_mains, mains[CAPTURER_MAX_MAINS];        /* pids, inside, of init's children */
};

/* Captures what is below `init` to the empty memory file `image`, tells how that went, and lets it go on when the other end of `socket` is closed; or ends it, if anything is sent before. */
_Noreturn void capturer_run(pid_t init, const uint64_t *externals, size_t n_externals, uint64_t most_bytes, int image, int socket);

#endif
