/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ROLLBOX_CLI_ABSOLUTE_PATH_H
#define ROLLBOX_CLI_ABSOLUTE_PATH_H

/* The path made absolute against the working directory by its letters alone; for free(), NULL when
 * out of memory. */
char *cli_path_absolute(const char *path);

#endif
