/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a policy lets a sandbox reach that the default policy does not.
 *
 * A record, or a live state, is a file that anybody may have written, its policy included. What
 * that grants beyond the defaults (files of the host, the caller's environment, the network, more
 * of the machine) is the caller's to give, not the writer's: it is told, and going on under it has
 * to be asked for.
 */
#ifndef ROLLBOX_STORE_REACH_H
#define ROLLBOX_STORE_REACH_H

#include <stddef.h>

#include "base/buf.h"

/* Appends what it is, with commas between: "fs_readable /home, clean_env false". Nothing for a
 * policy that grants no more, or that is none, which nothing can be run under. 0 or -ENOMEM. */
int policy_excess_text(const char *policy, size_t length, struct buf *to);

#endif
