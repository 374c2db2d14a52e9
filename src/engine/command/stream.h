/* SPDX-License-Identifier: Apache-2.0 */
/* Copies output to clients as it comes, and reads from pipes that nobody wants any more. */
#ifndef ROLLBOX_ENGINE_COMMAND_STREAM_H
#define ROLLBOX_ENGINE_COMMAND_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client;
struct engine;
struct output;
struct terminal_input;

/* Before the end of a pipe is handed to a sandbox: its programs may open the pipe by name, too.
 * Other files stay as they are. */
void stream_let_open(const struct engine *engine, int fd);
int stream_add(struct output *output, int take_fd);
void stream_flush(struct output *output); /* there is more, or its end */
void stream_orphan(
    struct output *output); /* the run ends; the output that is left is still delivered */
void stream_drop(struct output *output);
void stream_forget_all(struct engine *engine);
void drain_add(struct engine *engine, uint64_t session,
    int take_fd); /* read from and forgotten, until its end; `session`: its number */
size_t drain_terminals(
    const struct engine *engine, uint64_t session, int *fds, size_t most); /* borrowed */
size_t drain_inodes(const struct engine *engine, uint64_t session, uint64_t *inodes, size_t most);
void drain_forget(
    struct engine *engine, uint64_t session); /* the writers of its drains are dying */
void drain_forget_all(struct engine *engine);
struct terminal_input *terminal_input_new(
    struct engine *engine, const struct client *client, int take_input, int terminal);
struct terminal_input *terminal_input_free(struct terminal_input *terminal_input);

#endif
