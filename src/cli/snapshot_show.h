/* SPDX-License-Identifier: Apache-2.0 */
/* What a snapshot holds, and what was found when it was checked, as a person reads it. */
#ifndef ROLLBOX_CLI_HELD_H
#define ROLLBOX_CLI_HELD_H

#include <jansson.h>

void snapshot_show_contents(const json_t *state);
void snapshot_show_checks(const json_t *state);

#endif
