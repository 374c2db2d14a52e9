/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events of a session, for modules above it that observe what is done with the sandbox.
 *
 * A session has a list of observers and knows nothing else of them; the recorder (record.c) is one.
 * The modules below call the functions of this header where something happens; these call the
 * observers in the order of the list. The end of a command or an operation comes before the reply
 * to the client, so each result that a client has seen is recorded.
 *
 * An observer may delay the end of a session (may_close, closed). It then has the session asked
 * again by session_close_continue.
 */
#ifndef ROLLBOX_ENGINE_SESSION_SESSION_EVENTS_H
#define ROLLBOX_ENGINE_SESSION_SESSION_EVENTS_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/list.h"

struct op;
struct rollbox_error;
struct run;
struct session;
struct session_observer;

enum observer_answer { OBSERVER_CONTINUE, OBSERVER_WAIT };

/* An observer's requests to clients, which know what they do with a sandbox's files. */
enum observer_want {
    OBSERVER_WANTS_NOTES = 1,          /* a note of each file transfer */
    OBSERVER_WANTS_SNAPSHOT_FILES = 2, /* a note of the files that a snapshot has changed */
};

/* Every member may be NULL: the observer does not want that event. */
struct session_observer_ops {
    void (*command_started)(struct session_observer *observer, struct run *run); /* by a client */
    void (*command_sent)(struct session_observer *observer, struct run *run);    /* to init */
    void (*command_ended)(struct session_observer *observer, struct run *run);
    /* After the reply, when the run is gone. `has_run`: the command ran. */
    void (*command_settled)(
        struct session_observer *observer, struct session *session, bool has_run);
    void (*signal)(
        struct session_observer *observer, const struct run *run, unsigned number, unsigned scope);
    void (*op_started)(struct session_observer *observer, struct op *op); /* was queued */
    void (*op_ended)(
        struct session_observer *observer, struct op *op, const struct rollbox_error *error);
    /* The operation has made a child, which inherits observers by this. */
    void (*forked)(struct session_observer *observer, const struct op *op, struct session *child);
    unsigned (*wants)(const struct session_observer *observer); /* enum observer_want */
    /* The state of the record, as a JSON value. */
    void (*record_text)(const struct session_observer *observer, struct buf *to);
    /* Bytes that a hibernated sandbox keeps in the store for the observer. */
    const struct buf *(*saved)(const struct session_observer *observer);
    /* CLOSE was asked for. OBSERVER_WAIT: the operations that are queued come first. */
    enum observer_answer (*may_close)(struct session_observer *observer);
    void (*closing)(struct session_observer *observer); /* no command or operation follows */
    /* All processes are dead. OBSERVER_WAIT: CLOSE must not be answered yet. `is_waited_for`: a
     * client waits for the answer. */
    enum observer_answer (*closed)(struct session_observer *observer, bool is_waited_for);
    void (*release)(struct session_observer *observer); /* the session is being freed */
};

/* The owner embeds it, and keeps it until ops->release. */
struct session_observer {
    struct list node; /* session->observers */
    const struct session_observer_ops *ops;
};

/* `first`: before the observers that there are. */
void session_observe(struct session *session, struct session_observer *observer,
    const struct session_observer_ops *ops, bool first);

/* At the start: `restore` is called for each session that comes from the store, as an earlier
 * engine or this one has left it, with the bytes that an observer had saved. */
typedef void (*session_restorer)(struct session *session, const struct buf *saved);
void session_events_add_restorer(session_restorer restore);

void session_events_command_started(struct run *run);
void session_events_command_sent(struct run *run);
void session_events_command_ended(struct run *run);
void session_events_command_settled(struct session *session, bool has_run);
void session_events_signal(
    struct session *session, const struct run *run, unsigned number, unsigned scope);
void session_events_op_started(struct op *op);
void session_events_op_ended(struct op *op, const struct rollbox_error *error);
void session_events_forked(const struct op *op, struct session *child);
unsigned session_events_wants(const struct session *session);
bool session_events_record_text(const struct session *session, struct buf *to); /* false: none */
const struct buf *session_events_saved(const struct session *session);          /* NULL: nothing */
void session_events_restored(struct session *session, const struct buf *saved);
enum observer_answer session_events_may_close(const struct session *session);
void session_events_closing(const struct session *session);
enum observer_answer session_events_closed(const struct session *session, bool is_waited_for);
void session_events_release(struct session *session);

#endif
