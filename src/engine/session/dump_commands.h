/* SPDX-License-Identifier: Apache-2.0 */
/* See dump_commands.c. */
#ifndef ROLLBOX_ENGINE_SESSION_DUMP_COMMANDS_H
#define ROLLBOX_ENGINE_SESSION_DUMP_COMMANDS_H

struct checkpoint;
struct session;

/* Before a dump: the image's names of the commands, pipes and terminals. `masters`, of
 * DUMP_WORKER_MAX_TERMINALS, are the terminals', borrowed. 0, -ENOMEM or -E2BIG. */
int dump_commands_note(const struct session *session, struct checkpoint *checkpoint, int *masters);

#endif
