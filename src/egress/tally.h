/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts for results: connections, refusals and bytes, of a sandbox's life and of each command.
 *
 * Every event counts in all open tallies of its sandbox. A tally names at most TALLY_MAX hosts and
 * refusals; the sums include the others.
 */
#ifndef ROLLBOX_EGRESS_TALLY_H
#define ROLLBOX_EGRESS_TALLY_H

#include "egress/egress.h"

#define TALLY_MAX 64
#define TALLY_NAMES 16 /* of the refusals: connections have room beside them */

/* 0, -EEXIST or -ENOMEM. */
int tally_start(struct box *box, uint64_t id);
/* NULL: there is none. */
struct tally *tally_find(struct box *box, uint64_t id);
struct tally *tally_free(struct tally *tally);
void tally_done(struct tally *tally);

void tally_connection(struct box *box, const char *name, uint16_t port);
void tally_bytes(struct box *box, const char *name, uint16_t port, uint64_t up, uint64_t down);
void tally_refusal(struct box *box, const char *name, uint16_t port, enum net_why why);
/* A name that was asked for and that no rule allows: a refusal of port 0, and no connection. */
void tally_name(struct box *box, const char *name);
void tally_request(struct box *box);

/* The object "network" of a result; NULL: out of memory. */
json_t *tally_json(const struct tally *tally);

#endif
