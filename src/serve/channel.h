/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels: WebSocket connections with the streams of one command, or with one port of a sandbox.
 *
 * A binary message is a stream's number (0 standard input, 1 output, 2 errors, 3 and up the
 * command's further descriptors) and bytes; without bytes it is the end of that stream. Text
 * messages are JSON. The client's first message names the purpose of the channel:
 * {"start": COMMAND}, {"attach": ...}, {"claim": ...}, {"connect": PORT}, {"record": ...} or
 * {"agent": ...}. "started" answers it, and "result" or "error" tells the end of the command.
 *
 * Each side may send at most WINDOW bytes of a stream that the other has not taken; {"credit":
 * [STREAM, BYTES]} tells how many bytes it has taken. So an unread stream does not block the other
 * streams. A client may give credit and read nothing: past HTTP_UNSENT_MAX unsent bytes the server
 * reads neither the streams nor the client (http.h). So a channel needs bounded memory.
 *
 * On the path of a terminal (.../execs/E/tty) binary messages are keys and output as they are, as
 * terminal emulators in browsers send them, without numbers and credit. The connection is then read
 * only as fast as the terminal takes its keys.
 */
#ifndef ROLLBOX_SERVE_CHANNEL_H
#define ROLLBOX_SERVE_CHANNEL_H

#include "serve/command.h"
#include "serve/websocket.h"

#define CHANNEL_WAYS_MAX (ROLLBOX_CLAIM_FDS + 1)
#define CHANNEL_PACKET_MAX ((size_t)72 << 10) /* of a files agent */

struct channel_kind;

/* One direction of one stream. */
struct way {
    struct channel *channel;
    struct loop_source source;
    int fd; /* -EBADF: it has ended */
    unsigned number;
    bool is_input; /* from the client to the sandbox */
    bool has_ended;
    struct buf pending; /* of an input */
    size_t credit;      /* of an output: still to send; of an input: taken, but not credited */
    uint64_t moved;
};

struct channel {
    struct pool_job job; /* of a claim or connection */
    const struct channel_kind *kind;
    struct exchange *exchange;
    struct websocket *websocket;
    struct loop_timer timer;
    bool is_terminal, has_begun, has_run, has_ended, is_socket, is_stopped;
    bool is_working, was_left; /* a thread has it; the client is gone */
    json_t *result;            /* not sent yet */
    /* The result's output, for streams that brought none. It is the run's, which is not freed
     * before the channel's end. */
    const char *rest[2];
    size_t rest_length[2];
    struct loop_task more; /* the client has read what was unsent */
    bool is_full;          /* as much is unsent as may be */
    struct way ways[CHANNEL_WAYS_MAX];
    size_t n_ways;
    struct rollbox_error error; /* of the job */
    char id[65];
    unsigned wanted, port;
    int fds[ROLLBOX_CLAIM_FDS], r;
    void (*work)(struct channel *channel); /* of the job */
    json_t *answer;                        /* of the job, told with "started" */
    bool has_packets;                      /* of a files agent: a message is a packet */
    bool is_alone;                         /* the guest is frozen while the agent works */
    int theirs; /* the agent's end of its socket, until it has it; else -EBADF */
};

/* channel_start.c's part, which channel.c calls. */
struct channel_kind {
    /* Does what the client's first message says. */
    void (*begin)(struct channel *channel, const json_t *message);
    /* A files agent's request lies in its socket. */
    void (*start_agent)(struct channel *channel);
};

/* NULL: the answer is given. */
struct channel *channel_open(struct exchange *exchange, const struct channel_kind *kind);
void channel_no_room(struct exchange *exchange);

struct loop *channel_loop(const struct channel *channel);
struct way *channel_add_way(struct channel *channel, unsigned number, bool is_input, int take_fd);
void channel_send_json(struct channel *channel, json_t *take_message);
/* Tells the end of an output, when it is known. */
void channel_tell_end(struct way *way);
/* Ends the channel if nothing is left to come. */
void channel_end_when_done(struct channel *channel);
/* Frees a channel that has ended; the caller uses it no more. */
void channel_sweep(struct channel *channel);

#endif
