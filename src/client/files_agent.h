/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of a call on files, for files.c and files_stream.c. Each returns 0 or -errno with the error
 * filled in. */
#ifndef ROLLBOX_CLIENT_FILES_AGENT_H
#define ROLLBOX_CLIENT_FILES_AGENT_H

#include "client/files.h"

int files_agent_open(
    struct files *files, struct rollbox_sandbox *sandbox, struct rollbox_error *error);
/* Whether nothing was done since there was no room for an agent; waits before it says so. */
bool files_try_again(int r, int64_t since_ns, unsigned *tries);

int files_set_path(struct files *files, const char *path, struct rollbox_error *error);
/* Sends the request and has it served. */
int files_send_request(struct files *files, struct transfer_record record, const void *data,
    size_t length, struct rollbox_error *error);
/* The next message of an answer; FAILED is an error. */
int files_next_message(const struct files *files, const char *doing,
    struct transfer_message *ret_message, struct rollbox_error *error);
int files_expect_done(const struct files *files, const char *doing, struct rollbox_error *error);
/* The error of an agent that does not keep to the protocol, or is gone. */
int files_agent_lost(const struct files *files, int r, struct rollbox_error *error);
/* Ends a transfer in its middle, and waits until the agent has removed what is incomplete. */
void files_give_up(const struct files *files);
/* Whether an error of sending is the agent's end, which has told its own error. */
bool files_is_of_socket(int r);

#endif
