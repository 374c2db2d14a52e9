/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of net_log_file, net_record and net_replay (net/recording.h), which the gateways get
 * open: they can open nothing themselves.
 */
#ifndef ROLLBOX_ENGINE_NETWORK_GATEWAY_TAPE_H
#define ROLLBOX_ENGINE_NETWORK_GATEWAY_TAPE_H

#include <rollbox/rollbox.h>

#include "policy/network.h"

/* For each box; -EBADF where the policy has none. */
struct gateway_tape {
    int log;    /* appended to */
    int record; /* appended to */
    int replay; /* a sealed memory file */
};

#define GATEWAY_TAPE_NONE ((struct gateway_tape){ -EBADF, -EBADF, -EBADF })

/* Before anything is made for a policy: the same errors, and a recording is begun. */
int gateway_tape_check(const struct net_rules *rules, struct rollbox_error *error);
/* Opens them. A recording that exists is continued. 0, or -errno and the error. */
int gateway_tape_open(
    const struct net_rules *rules, struct gateway_tape *ret, struct rollbox_error *error);
static inline unsigned gateway_tape_files(const struct gateway_tape *tape) {
    return (tape->log >= 0) + (tape->record >= 0) + (tape->replay >= 0);
}
void gateway_tape_close(struct gateway_tape *tape);

#endif
