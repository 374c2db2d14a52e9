/* SPDX-License-Identifier: Apache-2.0 */
/* rollbox-store, the program that does all work on the store, and images that it has to pull. */
#ifndef ROLLBOX_CLI_STORE_PROGRAM_H
#define ROLLBOX_CLI_STORE_PROGRAM_H

#include <stdbool.h>

#include "cli/options.h"

#define STORE_PROGRAM "rollbox-store"

/* Executes it: beside this program (a build tree, the Python package), or where an installation
 * puts it. Returns only if it is in neither, with errno. */
void store_program_execute(char *const *argv);
/* The same for another program of its directory. */
void store_program_execute_as(const char *program, char *const *argv);

/* Whether an image is named by where it is: docker://REFERENCE. */
bool store_program_is_reference(const char *image);

/* Pulls it unless the store has it. *ret_name, its name in the store, is a part of `reference`. 0;
 * or an exit status after a message. */
int store_program_pull(const struct options *options, const char *reference, const char **ret_name);

#endif
