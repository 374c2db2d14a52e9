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
    uint64_t max_output_bytes; /* the policy's value, or its default */
    bool chose_clock;          /* cli_policy_choose_clock has */
};

/* Says which users an image of other people has here, on a terminal or with --verbose: with one
 * user, much of what it is made for fails, and the reason is not seen in the image. */
void cli_policy_tell_users(const struct options *options, const struct cli_policy *policy);
/* 0; or an exit status after a message. `file` may be NULL. With --json and ret_invalid, the
 * problems of the policy are stored there instead of printed. */
int cli_policy_make(const struct options *options, const char *file, struct cli_policy *ret_policy,
    struct rollbox_error *ret_invalid);
/* The same for a command that reports its errors as a result (outcome.h), with the file of
 * --policy. */
int cli_policy_given(const struct options *options, struct cli_policy *ret_policy);
void cli_policy_done(struct cli_policy *policy);

/* The canonical text (sorted keys, no spaces): equal policies have equal texts. NULL when out of
 * memory; the caller frees it. */
char *cli_policy_text(const json_t *policy);

/* `base` with the keys of `overrides` put over it; fs_denied is joined, for a policy can only deny
 * more. A new reference, NULL when out of memory. */
json_t *cli_policy_override(const json_t *base, const json_t *overrides);

/* A command by itself with a seed and a start time is meant to repeat, so its clock must not
 * advance by itself: unless the policy gives a mode, it becomes virtual. With net allow or host it
 * does not, because hosts outside keep the real time. A session waits for its clients, so it keeps
 * the real rate, too. 0 or -ENOMEM. */
int cli_policy_choose_clock(json_t *policy, bool *ret_chosen);

#endif
