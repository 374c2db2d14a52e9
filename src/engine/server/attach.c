/* SPDX-License-Identifier: Apache-2.0 */
/* A client attaches to a command of a session: it gets the result, and the streams from now on. */
#include "engine/server/attach.h"

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/wire.h"
#include "engine/command/result.h"
#include "engine/command/stream.h"
#include "engine/core/client.h"
#include "engine/core/log.h"
#include "engine/hibernate/hibernate.h"
#include "engine/protocol.h"
#include "engine/run/run.h"
#include "engine/session/op.h"
#include "engine/session/session.h"

#define MAX_ATTACHED 1024u /* clients that wait for one command */

static bool replay_ended(struct client *client, uint64_t serial, struct session *session,
    const unsigned char *key, size_t length) {
    list_for_each(node, &session->commands.ended) {
        struct ended *ended = container_of(node, struct ended, node);

        if (ended->operation_length == length && !memcmp(ended->operation, key, length) &&
            ended->outcome != ROLLBOX_OUTCOME_ERROR) {
            ended->told = true;
            result_send_summary(
                client, serial, ended->outcome, ended->status, ended->wall_ns, ended->cpu_ns);
            return true;
        }
    }
    return false;
}

/* The result, at once or when it is there, and from now on its streams. Of a command that is over
 * the streams are closed at once: its output is in the result. */
void attach_client(struct client *client, struct wire_message *message) {
    unsigned char key[sizeof((struct run *)0)->operation];
    struct wire_field field, operation = { 0 };
    size_t position = 0, next = 0, length = 0;
    uint64_t serial = message->header.serial, input = 0, streams = 0;
    struct session *session = NULL;
    struct rollbox_error error;

    while (wire_next(message->data, message->length, &position, &field) > 0)
        if (field.tag == TAG_SANDBOX && wire_text(&field))
            session = session_find(client->engine, wire_text(&field));
        else if (field.tag == TAG_EXEC && field.length >= 1 && field.length <= 64)
            operation = field;
        else if (field.tag == TAG_INPUT)
            (void)wire_u64(&field, &input);
        else if (field.tag == TAG_STREAM)
            (void)wire_u64(&field, &streams);
    if (session && operation.data) {
        length = operation.length;
        memcpy(key, operation.data, length);
        session_name_operation(session, key, &length);
    }
    /* Results of ended commands need no wake. */
    if (session && sleep_of(session) && length &&
        (result_replay(client, serial, key, length, 0) ||
            replay_ended(client, serial, session, key, length)))
        return;
    if (session && sleep_of(session)) {
        if (session_may_wait(session, &error) < 0)
            result_send_error(client, serial, &error);
        else if (wake_then(session, client, message) < 0) {
            error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments",
                "the engine is out of memory");
            result_send_error(client, serial, &error);
        }
        return;
    }
    if (length)
        session_touch(session);
    struct run *run = length ? run_find(client->engine, NULL, key, length) : NULL;
    if (!run) {
        if (length && (result_replay(client, serial, key, length, 0) ||
                          replay_ended(client, serial, session, key, length)))
            return;
        error_set(&error, ROLLBOX_ERR_NOT_FOUND, ENOENT, "arguments",
            session ? "no such command in the sandbox" : "there is no such sandbox");
        result_send_error(client, serial, &error);
        return;
    }
    unsigned n_attached = 0;
    list_for_each(node, &run->waiters)
        n_attached++;
    if (n_attached >= MAX_ATTACHED) {
        error_set(&error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOBUFS, "request",
            "%u clients are attached to that command, as many as may be; end some of them",
            n_attached);
        result_send_error(client, serial, &error);
        return;
    }
    int r = run_wait_for(client, serial, run);
    if (r == 0 && input && next < message->n_fds) {
        int fd = wire_take_fd(message, next++);

        if (!run->terminal.is_wanted) {
            close_fd(&fd);
        } else if (run->outputs[0].fd >= 0) {
            /* The last client types: the one before may be gone. */
            terminal_input_free(run->terminal.writer);
            run->terminal.writer = terminal_input_new(run->engine, client, fd, run->outputs[0].fd);
        } else {
            /* It has not started yet, or its terminal is gone. */
            close_fd(&run->terminal.input);
            run->terminal.input = fd;
            run->terminal.input_client = client;
        }
    }
    for (unsigned i = 0; i < 2 && r == 0; i++)
        if (streams & 1u << i && next < message->n_fds)
            (void)stream_add(&run->outputs[i], wire_take_fd(message, next++));
    if (r < 0) {
        error_set(
            &error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, -r, "arguments", "the engine is out of memory");
        result_send_error(client, serial, &error);
    }
}
