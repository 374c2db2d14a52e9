/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a command line that put rules and secrets of the network into a policy. */
#ifndef ROLLBOX_CLI_NETWORK_OPTIONS_H
#define ROLLBOX_CLI_NETWORK_OPTIONS_H

#include <jansson.h>

#include "cli/options.h"

/* Whether network_option_add carries out this option. */
bool network_option_is(enum option_id id);

/* Adds one use of --allow, --allow-file, --secret, --inject or --publish to the policy. Returns 0,
 * -ENOMEM, -EILSEQ for text that JSON cannot hold, or an exit status after an error message. */
int network_option_add(const struct options *options, json_t *policy, const struct option_use *use);

#endif
