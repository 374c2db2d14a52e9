/* SPDX-License-Identifier: Apache-2.0 */
/* When a sandbox with hibernate_after hibernates: nobody has called it for so long, nobody waits
 * for its commands, and its processes have used less than 1 % of a CPU meanwhile. */
#include "base/clock.h"
#include "base/list.h"
#include "engine/box/box.h"
#include "engine/command/command.h"
#include "engine/core/context.h"
#include "engine/hibernate/hibernate.h"
#include "engine/session/op.h"
#include "engine/session/session.h"

void hibernate_on_timer(struct loop_timer *timer) {
    struct session *session = container_of(timer, struct session, hibernation.timer);
    int64_t left =
        session->timers.called_ns + session->hibernation.after_ms * 1000000 - clock_now_ns();
    uint64_t memory, cpu = session->hibernation.cpu_ns;
    uint32_t processes;
    bool is_waited_for = false;

    list_for_each(node, &session->commands.runs) {
        const struct run *run = container_of(node, struct run, of_session);

        is_waited_for |= (run->client || !list_empty(&run->waiters)) && !run->given.is_detached;
    }
    if (session->box)
        (void)box_usage(session->box, &memory, &cpu, &processes);
    if (session->state == SESSION_CLOSING)
        return;
    bool is_busy =
        is_waited_for || !list_empty(&session->queue.ops) || session->queue.fork ||
        session->agents.n ||
        cpu - session->hibernation.cpu_ns > (uint64_t)session->hibernation.after_ms * 10000;
    session->hibernation.cpu_ns = cpu;
    if (session->sleep)
        return; /* the next call sets it again */
    if (left <= 0 && !is_busy && op_add(session, VERB_HIBERNATE, false)) {
        session_schedule(session); /* one that cannot hibernate tries again after the next call */
        return;
    }
    (void)loop_timer_set(session->engine->loop, timer,
        clock_now_ns() + (left > 0 ? left : session->hibernation.after_ms * 1000000),
        hibernate_on_timer);
}
