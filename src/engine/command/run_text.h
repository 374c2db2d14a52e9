/* SPDX-License-Identifier: Apache-2.0 */
/* A command as text. */
#ifndef ROLLBOX_ENGINE_COMMAND_RUN_TEXT_H
#define ROLLBOX_ENGINE_COMMAND_RUN_TEXT_H

struct run;

char *run_describe(const struct run *run);

#endif
