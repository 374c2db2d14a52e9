/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of hosts: "@pypi" in net_allow or net_allow_hosts stands for the hosts of a package index.
 *
 * The sets of net_sets.json are part of the library. A file NAME.json in $ROLLBOX_NET_SETS, in
 * $XDG_CONFIG_HOME/rollbox/net (~/.config without it) or in /etc/rollbox/net replaces a set, or
 * adds one. A set may name variables of the environment with the URL of a mirror, whose host it
 * then allows, too.
 */
#ifndef ROLLBOX_CLIENT_NET_SETS_H
#define ROLLBOX_CLIENT_NET_SETS_H

#include <stddef.h>

struct rollbox_error;

/* The policy with every set filled in, for free(); NULL if it names none. `json` is a text that
 * policy_parse takes. 0, or a negative error with *error: no such set, a file that is no set. */
int net_sets_fill(const char *json, size_t length, char **ret_text, struct rollbox_error *error);

#endif
