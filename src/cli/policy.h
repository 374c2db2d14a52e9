/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy for a command line: the policy file, or the default, with the flags added. Flags
 * extend list keys and replace other keys. Problems are reported in the user's terms: FILE:LINE for
 * the file, --FLAG for a flag.
 */
#ifndef ROLLBOX_CLI_POLICY_H
#define ROLLBOX_CLI_POLICY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/options.h"

struct rollbox_error;

struct cli_policy {
    char *text; /* JSON for rollbox_prepare */
    size_t length;
    uint64_t max_output_bytes; /* what the policy says, or its default */
    bool chose_clock;          /* cli_policy_choose_clock has */
};

/* 0; or an exit status after telling what is wrong. `file` may be NULL. With --json and
 * ret_invalid, what is wrong with the policy is put there instead of being told. */
int cli_policy_make(const struct options *options, const char *file, struct cli_policy *ret_policy,
    struct rollbox_error *ret_invalid);
/* The same of a command that tells its errors as a result (outcome.h), with the file of --policy.
 */
int cli_policy_given(const struct options *options, struct cli_policy *ret_policy);
void cli_policy_done(struct cli_policy *policy);

/* The path made absolute against the working directory by its letters alone; for free(), NULL when
 * out of memory. */
char *cli_path_absolute(const char *path);

/* The canonical text (sorted keys, no spaces): equal policies have equal texts. NULL when out of
 * memory; the caller frees it. */
char *cli_policy_text(const json_t *policy);

/* `base` with the keys of `overrides` put over it; fs_denied is joined, for a policy can only deny
 * more. A new reference, NULL when out of memory. */
json_t *cli_policy_override(const json_t *base, const json_t *overrides);

/* Of one command by itself: who gives a seed and a time wants the same run again, for which the
 * clock must not go on by itself. So its mode, if none is given, is virtual; with net host, whose
 * peers keep the real time, it is not. (A sandbox that lives has others that wait for their clients
 * meanwhile, for whom that would be wrong.) 0 or -ENOMEM. */
int cli_policy_choose_clock(json_t *policy, bool *ret_chosen);

#endif
