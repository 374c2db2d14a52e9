/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the host, and not a sandbox's own limit, was out of memory. */
#include "base/clock.h"
#include "engine/engine.h"
#include "sys/proc.h"

/* How often the host's OOM killer has struck: as of now, or as of the last look, at most
 * TIDY_SECONDS ago while anything runs. (A look takes longer than it takes to start a command.) */
int64_t engine_oom_kills(struct engine *engine, bool now) {
    const int64_t before = engine->oom_kills;

    if (now || !engine->tidy.position)
        engine->oom_kills = proc_oom_kill_count();
    if (engine->oom_kills > before && before > 0)
        engine->oom_rose_ns = clock_now_ns();
    return engine->oom_kills;
}

bool engine_oom_lately(struct engine *engine) {
    (void)engine_oom_kills(engine, true);
    return engine->oom_rose_ns &&
           clock_now_ns() - engine->oom_rose_ns < 2 * TIDY_SECONDS * 1000000000ll;
}
