/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A signal or a terminal's size for a command that may still be on its way into its sandbox: the
 * call is made again until the command is there. A sandbox has a
 * bounded number of such calls, for a client may send them faster than the engine takes them.
 */
#ifndef ROLLBOX_SERVE_LATE_CALL_H
#define ROLLBOX_SERVE_LATE_CALL_H

#include "serve/server.h"

/* For the command `id` of the exchange's sandbox; the options are copied. False: there are too
 * many, or no memory. */
bool late_call_start(
    struct exchange *exchange, const char *id, const struct rollbox_call_options *options);
/* The same, and the exchange is answered with {} when the call was made, also if it failed. */
void late_call_answer(
    struct exchange *exchange, const char *id, const struct rollbox_call_options *options);

#endif
