/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on sessions, encoded in one place; call.c has the model. */
#ifndef ROLLBOX_CLIENT_CALL_H
#define ROLLBOX_CLIENT_CALL_H

#include <rollbox/rollbox.h>

#include "base/buf.h"

int call_check_id(const char *id, struct rollbox_error *error);

/* A terminal's size as the protocol has it. */
uint64_t call_terminal(const struct rollbox_terminal *terminal);

/* Checks the call's options and encodes its request. */
int call_encode(
    struct buf *to, const struct rollbox_call_options *options, struct rollbox_error *error);

/* Makes the call and waits for its answer; `options` says which it is. ret_json may be NULL. */
int call_wait(struct rollbox_sandbox *sandbox, struct rollbox_call_options *options,
    char **ret_json, struct rollbox_error *error);

#endif
