/* SPDX-License-Identifier: Apache-2.0 */
/* The clients that follow processes of a sandbox by streams of messages. */
#ifndef ROLLBOX_SERVE_E2B_STREAM_H
#define ROLLBOX_SERVE_E2B_STREAM_H

struct process_followers;
extern const struct process_followers e2b_streams;

#endif
