/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the host, and not a sandbox's own limit, was out of memory. */
#include "base/clock.h"
#include "engine/core/context.h"
#include "engine/core/host_oom.h"
#include "sys/proc.h"

static struct {
    bool is_known;   /* there was a look */
    int64_t kills;   /* as of the last look */
    int64_t rose_ns; /* CLOCK_MONOTONIC: when a look found more; 0: never */
} host;

/* The kills of the host's OOM killer: as of now, or as of the last look, at most
 * TIDY_SECONDS ago while anything runs. (A look takes longer than it takes to start a command.) */
int64_t engine_oom_kills(struct engine *engine, bool now) {
    const int64_t before = host.kills;

    if (now || !host.is_known || !engine->boxes.tidy.position)
        host.kills = proc_oom_kill_count();
    host.is_known = true;
    if (host.kills > before && before > 0)
        host.rose_ns = clock_now_ns();
    return host.kills;
}

bool engine_oom_lately(struct engine *engine) {
    (void)engine_oom_kills(engine, true);
    return host.rose_ns && clock_now_ns() - host.rose_ns < 2 * TIDY_SECONDS * 1000000000ll;
}
