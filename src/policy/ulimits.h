/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resource limits of each process (setrlimit(2)): the key `ulimits` of a policy.
 *
 * A value above what the sandbox may have anyway is lowered to that: its processes (max_processes),
 * its memory, its disk, the hard limits of the engine.
 */
#ifndef ROLLBOX_POLICY_ULIMITS_H
#define ROLLBOX_POLICY_ULIMITS_H

#include "policy/policy.h"

#define ULIMIT_UNLIMITED UINT64_MAX

struct policy_ulimit {
    unsigned resource; /* RLIMIT_* */
    uint64_t soft, hard;
};

/* "nofile" for RLIMIT_NOFILE; "?" for one without a name here. */
const char *policy_ulimit_name(unsigned resource);
/* What the policy says of a resource, or NULL. */
const struct policy_ulimit *policy_ulimit_of(const struct policy *policy, unsigned resource);

#endif
