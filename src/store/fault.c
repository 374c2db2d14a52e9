/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/fault.h"

static const struct {
    const char *name, *command;
    bool done;
} table[] = {
#define FAULT_ROW(name, command, done) { #name, command, done },
    FAULTS(FAULT_ROW)
#undef FAULT_ROW
};

static enum fault chosen = FAULT_COUNT;
static bool in_worker;

void fault_init(void) {
    const char *wanted = secure_getenv("ROLLBOX_FAULT");

    for (int i = 0; wanted && i < FAULT_COUNT; i++)
        if (strcmp(wanted, table[i].name) == 0)
            chosen = (enum fault)i;
}

void fault_in_worker(void) {
    in_worker = true;
}

void fault_point(enum fault fault) {
    if (fault != chosen)
        return;
    if (in_worker)
        _exit(FAULT_EXIT);
    kill(getpid(), SIGKILL);
}

const char *fault_name(enum fault fault) {
    return table[fault].name;
}

const char *fault_command(enum fault fault) {
    return table[fault].command;
}

bool fault_is_done(enum fault fault) {
    return table[fault].done;
}
