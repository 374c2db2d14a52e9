/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operator's templates for E2B's clients (--template NAME=FILE): each is a policy, which may
 * have what a client's own policy may not, such as paths of the server's machine.
 */
#ifndef ROLLBOX_SERVE_TEMPLATES_H
#define ROLLBOX_SERVE_TEMPLATES_H

#include <jansson.h>

/* Reads NAME=FILE. 0, or 1 after a message. */
int templates_read(const char *text);
/* The policy of that template, borrowed; NULL: there is none. */
const json_t *templates_find(const char *name);

#endif
