/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A signal or a terminal's size for a command that may still be on its way into its sandbox: the
 * call is made again until the command is there. Nobody waits for its answer.
 */
#ifndef ROLLBOX_SERVE_LATE_CALL_H
#define ROLLBOX_SERVE_LATE_CALL_H

#include "serve/server.h"

/* For the command `id` of the exchange's sandbox; the options are copied. */
void late_call_start(
    struct exchange *exchange, const char *id, const struct rollbox_call_options *options);

#endif
