/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sandboxes: their listeners, rules and names.
 *
 * Fairness: one turn of the loop accepts a few connections of one sandbox, and a sandbox that opens
 * them faster than ACCEPTS_PER_SECOND waits in its own listeners' queues.
 */
#ifndef ROLLBOX_EGRESS_BOX_H
#define ROLLBOX_EGRESS_BOX_H

#include "egress/egress.h"

#define BOX_MAX_LISTENERS 160

/* Files of a sandbox that follow its listeners, in this order. */
enum { BOX_LOG = 1, BOX_LOG_FILE = 2, BOX_RECORD = 4, BOX_REPLAY = 8 };

/* `fds` are taken over (set to -EBADF): the listeners, then `files` (flags).
 * Fills *ret_why on failure, which is a constant text. 0 or -errno. */
int box_open(struct egress *egress, const char *id, const char *policy, const json_t *names,
    int *fds, size_t n_fds, unsigned files, const char **ret_why);
/* Connections that the new rules do not allow are reset. */
int box_set_rules(struct box *box, const char *policy, const char **ret_why);
struct box *box_find(struct egress *egress, const char *id);
/* Are its exchanges recorded, or answered from a recording? */
static inline bool box_is_taped(const struct box *box) {
    return box->tape.recording || recorder_is_on(&box->tape.recorder);
}
/* Takes, or refuses, all that waits in the listeners: it belongs to the tally that ends. */
void box_drain(struct box *box);
/* Brings the bytes of all connections into the tallies. */
void box_tally(struct box *box);
/* Resets all connections. The totals are in box->totals until box_free. */
void box_stop(struct box *box);
struct box *box_free(struct box *box);

#endif
