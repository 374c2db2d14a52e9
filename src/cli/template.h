/* SPDX-License-Identifier: Apache-2.0 */
/* rollbox run --template: template.c has the model. */
#ifndef ROLLBOX_CLI_TEMPLATE_H
#define ROLLBOX_CLI_TEMPLATE_H

struct options;

/* Runs `python3 -c CODE` or `python3 FILE` in a fork of the template that --template names. The
 * exit status. */
int template_run(const struct options *options);

#endif
