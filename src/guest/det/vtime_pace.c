/* SPDX-License-Identifier: Apache-2.0 */
/* When waits end by the real clock, and when rest is checked: shared by waits, timers and the main
 * loop. vtime.c has the model. */
#include "base/clock.h"
#include "guest/det/serial.h"
#include "guest/det/vtime.h"
#include "guest/state.h"

#define COSTLY_NS 2000000ll /* a check that takes longer is not made after each call, */
#define COSTLY_TIMES 4      /* but takes at most a fifth of the time */
#define GRACE_NS 1000000000ll
#define SLOWEST                                                                                    \
    16 /* the clock counts as moving if it is at most this many times slower than the real one */

struct virtual_pace vtime_pace;

void vtime_disturb(void) {
    vtime_pace.pause_ns = VIRTUAL_FIRST_PAUSE_NS;
    if (serial_is_moving())
        vtime_pace.look_ns = clock_now_ns() + VIRTUAL_FIRST_PAUSE_NS;
    else
        vtime_pace.look_ns = vtime_pace.cost_ns > COSTLY_NS
                                 ? vtime_pace.looked_ns + vtime_pace.cost_ns * COSTLY_TIMES
                                 : 0;
}

bool vtime_awaits_outside(void) {
    return vtime_pace.awaits_outside && command_count();
}

int64_t vtime_grace_ns(void) {
    return serial_is_on() ? SERIAL_PATIENCE_NS : GRACE_NS;
}

int64_t vtime_put_off(
    int64_t now_ns, int64_t over_ns, int64_t length_ns, int64_t deadline, int64_t lost_before_ns) {
    int64_t took = now_ns - over_ns + length_ns, passed = length_ns - (deadline - vtime_now());
    int64_t fairly = over_ns + vtime_grace_ns() + idle_lost_of_ns(took, lost_before_ns),
            next = vtime_pace.jumped_ns + vtime_grace_ns();

    if (vtime_awaits_outside())
        return 0;
    if (fairly > now_ns)
        return fairly;
    return next > now_ns && passed > took / SLOWEST ? next : 0;
}

bool vtime_stands(void) {
    return tree_is_frozen() || !command_count();
}
