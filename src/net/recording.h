/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recording of the exchanges between a sandbox and its network. A replay answers from it.
 *
 * The file has one JSON object a line. So several writers can append to it, and a truncated line
 * damages no other line. The first line is RECORDING_FIRST_LINE. Each other line has the "id" of an
 * exchange, and one of:
 *
 *     "begin": "http" | "stream", "host", "port"; of HTTP also "method", "target"
 *     "request": SHA-256 of the request's content    the request is complete
 *     "up" | "down": base64                          bytes of the guest | of the server
 *     "up_end" | "down_end": true                    no more bytes of that side
 *     "end": true                                    the exchange is complete
 *
 * For HTTP, "down" has the bytes of the answer, and "up" only the bytes after a switch of
 * protocols. Unknown lines and members are skipped. An exchange without an end is ignored.
 */
#ifndef ROLLBOX_NET_RECORDING_H
#define ROLLBOX_NET_RECORDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORDING_FIRST_LINE "{\"rollbox_recording\":1}\n"
#define RECORDING_MAX_BYTES (64u << 20) /* of the file */

/* Bytes of one side, or the end of a side, in the order of time. */
struct recorded_piece {
    char *data;
    size_t length;
    bool is_up, is_end;
};

struct recorded {
    bool is_http, is_complete, is_used;
    char *host, *method, *target, *digest; /* the last three: of HTTP */
    uint16_t port;
    struct recorded_piece *pieces;
    size_t n_pieces;
};

struct recording {
    struct recorded *items;
    size_t n;
};

/* 0, -EBADMSG: not a recording, or -ENOMEM. */
int recording_read(const char *text, size_t length, struct recording **ret);
struct recording *recording_free(struct recording *recording);

/* The next exchange with these properties that has not been used, which it is from now on; NULL:
 * there is none. */
struct recorded *recording_take_http(struct recording *recording, const char *host, uint16_t port,
    const char *method, const char *target, const char *digest);

/*
 * Where the repetition of a stream is. The sides are followed apart, because which of two bytes
 * was seen first is a matter of time: the guest may say its next bytes at any time, and a byte of
 * the server comes when the guest has said all that it had said before that byte.
 */
struct replay {
    struct recording *recording;
    struct recorded *stream; /* NULL: not chosen yet */
    const char *host;        /* borrowed */
    uint16_t port;
    bool guest_has_ended;
    uint64_t up, down;          /* bytes so far */
    size_t up_piece, up_offset; /* the guest's next bytes */
    size_t piece, offset;       /* the server's next bytes, */
    uint64_t needs_up;          /* when the guest has said this many bytes, */
    bool needs_end;             /* and has ended */
};

void replay_init(
    struct replay *replay, struct recording *recording, const char *host, uint16_t port);
/* The same for an exchange that was taken. */
void replay_continue(struct replay *replay, struct recorded *http);
/* Gives bytes of the guest. Returns how many were those of the recording, and are consumed;
 * -ENOENT: no recorded stream continues with them. */
long replay_guest(struct replay *replay, const char *data, size_t length);
/* The bytes of the server that come now; 0: it waits for the guest, or ends. */
size_t replay_server(struct replay *replay, const char **ret_data);
/* That many of them have been sent. */
void replay_sent(struct replay *replay, size_t length);
/* Has the server ended its side? Then moves behind that. */
bool replay_server_ends(struct replay *replay);
/* The guest has ended its side. False: it had more to say in the recording. */
bool replay_guest_ends(struct replay *replay);
/* Has the server nothing more to say? */
bool replay_is_over(struct replay *replay);

#endif
