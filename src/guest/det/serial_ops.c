/* SPDX-License-Identifier: Apache-2.0 */
/* The questions that files below serial.c ask of it. If serial is off, the answers are those of a
 * sandbox whose threads take no turns. */
#include "guest/det/serial.h"

const struct serial_ops *serial_ops;

bool serial_is_on(void) {
    return serial_ops;
}

bool serial_is_moving(void) {
    return serial_ops && serial_ops->is_moving();
}

void serial_moves(void) {
    if (serial_ops)
        serial_ops->moves();
}

bool serial_has_asked(pid_t thread) {
    return serial_ops && serial_ops->has_asked(thread);
}

bool serial_has_threads(pid_t thread) {
    return serial_ops && serial_ops->has_threads(thread);
}

size_t serial_count(void) {
    return serial_ops ? serial_ops->count() : 0;
}

void serial_ask_end(int listener, uint64_t id, pid_t thread, int result, bool passes) {
    if (serial_ops)
        serial_ops->ask_end(listener, id, thread, result, passes);
}

void serial_turn_of(pid_t thread) {
    if (serial_ops)
        serial_ops->turn_of(thread);
}
