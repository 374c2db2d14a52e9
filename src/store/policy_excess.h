/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rights that a policy grants beyond the default policy.
 *
 * Anyone may have written a record or an exported sandbox, with its policy. Only the caller may
 * grant rights beyond the defaults (files of the host, the caller's environment, the network, more
 * resources). So these rights are reported, and restoring with them must be requested.
 */
#ifndef ROLLBOX_STORE_REACH_H
#define ROLLBOX_STORE_REACH_H

#include <stddef.h>

#include "base/buf.h"

/* Appends the excess, separated by commas: "fs_readable /home, clean_env false". Nothing for a
 * policy that grants no more, or for an invalid one, under which nothing can run. 0 or -ENOMEM. */
int policy_excess_text(const char *policy, size_t length, struct buf *to);

#endif
