/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the content of a snapshot, and the results of its check, for people. */
#ifndef ROLLBOX_CLI_HELD_H
#define ROLLBOX_CLI_HELD_H

#include <jansson.h>

void snapshot_show_contents(const json_t *state);
void snapshot_show_checks(const json_t *state);

#endif
