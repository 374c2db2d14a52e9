/* SPDX-License-Identifier: Apache-2.0 */
/* When what is due by the real clock ends, and when it is looked whether all rest: what waits, timers and the loop share. virtual.c has the model. */
#include "base/clock.h"
#include "guest/state.h"
#include "guest/serial.h"
#include "guest/virtual.h"

#define COSTLY_NS 2000000ll     /* a look that takes longer is not worth its while after each question, */
#define COSTLY_TIMES 4          /* but every fifth part of the time */
#define GRACE_NS 1000000000ll
#define SLOWEST 16              /* the clock goes on by itself as long as it is no slower than this part of the real one */

struct virtual_pace virtual_pace;

void virtual_disturb(void) {
    virtual_pace.pause_ns = VIRTUAL_FIRST_PAUSE_NS;
    if (serial_is_moving())
        virtual_pace.look_ns = clock_now_ns() + VIRTUAL_FIRST_PAUSE_NS;
    else
        virtual_pace.look_ns = virtual_pace.cost_ns > COSTLY_NS ? virtual_pace.looked_ns + virtual_pace.cost_ns * COSTLY_TIMES : 0;
}

bool virtual_awaits_outside(void) {
    return virtual_pace.awaits_outside && command_count();
}

int64_t virtual_grace_ns(void) {
    return serial_is_on() ? SERIAL_PATIENCE_NS : GRACE_NS;
}

int64_t virtual_put_off(int64_t now_ns, int64_t over_ns, int64_t length_ns, int64_t deadline, int64_t lost_before_ns) {
    int64_t took = now_ns - over_ns + length_ns, passed = length_ns - (deadline - virtual_now());
    int64_t fairly = over_ns + virtual_grace_ns() + idle_lost_of_ns(took, lost_before_ns), next = virtual_pace.jumped_ns + virtual_grace_ns();

    if (virtual_awaits_outside())
        return 0;
    return fairly > now_ns ? fairly : next > now_ns && passed > took / SLOWEST ? next : 0;
}

bool virtual_stands(void) {
    return tree_is_frozen() || !command_count();
}
