/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP/1.0 and HTTP/1.1 messages, read strictly and without I/O.
 *
 * The gateway and the server must agree on where a request ends and which host and path it names.
 * So this parser refuses each form that some server reads differently: bare line feeds, folded
 * headers, white space before a colon, absolute targets, a length beside a transfer coding, chunk
 * extensions, a second Host. A refused request costs a client nothing that RFC 9112 promises it.
 *
 * Texts of a head point into the caller's bytes.
 */
#ifndef ROLLBOX_NET_HTTP_H
#define ROLLBOX_NET_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

#define HTTP_MAX_HEAD (64u << 10)   /* bytes from the first line to the empty line */
#define HTTP_MAX_HEADERS 128        /* header lines */
#define HTTP_MAX_TARGET (16u << 10) /* bytes of a request's target */
#define HTTP_MAX_TRAILERS (8u << 10)

struct http_text {
    const char *text;
    size_t length;
};

struct http_header {
    struct http_text name, value; /* the value without white space around it */
};

enum http_framing {
    HTTP_NO_BODY,
    HTTP_LENGTH,
    HTTP_CHUNKED,
    HTTP_UNTIL_CLOSE, /* answers only */
    HTTP_TUNNEL,      /* status 101: the following bytes are not HTTP */
};

struct http_head {
    struct http_text method, target, host; /* of requests */
    unsigned status;                       /* of answers */
    unsigned minor;                        /* 0 or 1: of HTTP/1 */
    bool is_persistent; /* by its version and Connection: another message may follow */
    bool is_websocket;  /* asks for, or switches to, the WebSocket protocol */
    bool has_upgrade;   /* names a protocol in Upgrade */
    enum http_framing framing;
    uint64_t length; /* HTTP_LENGTH: bytes of the body */
    struct http_header headers[HTTP_MAX_HEADERS];
    size_t n_headers;
};

/*
 * Reads the head of a request. Returns its length, or 0 when bytes are missing; *scanned, 0 at
 * first, keeps the place up to which line ends were looked for. -EBADMSG: refused, and *ret_why is
 * a constant text. Never needs more than HTTP_MAX_HEAD bytes.
 */
ssize_t http_read_request(
    const char *data, size_t length, size_t *scanned, struct http_head *ret, const char **ret_why);
/* The properties of a request that decide on the framing of its answer. */
struct http_asked {
    bool is_head;
    bool is_websocket;
};
/* The same for the head of an answer. */
ssize_t http_read_answer(const char *data, size_t length, size_t *scanned, struct http_asked asked,
    struct http_head *ret, const char **ret_why);

/* The body that follows a head. */
struct http_body {
    enum http_framing framing;
    enum {
        HTTP_SIZE,
        HTTP_EXTENSION,
        HTTP_SIZE_LF,
        HTTP_DATA,
        HTTP_DATA_CR,
        HTTP_DATA_LF,
        HTTP_TRAILER,
        HTTP_TRAILER_NAME,
        HTTP_TRAILER_VALUE,
        HTTP_TRAILER_LF,
        HTTP_END_LF
    } state;
    bool is_answer; /* chunk extensions and trailers are for answers alone */
    bool is_done;
    bool has_digits;
    uint64_t left;      /* bytes of the body, or of the chunk */
    uint32_t n_framing; /* bytes of the chunk's line, or of all trailers */
};

void http_body_start(struct http_body *body, const struct http_head *head);
/*
 * Takes bytes of the body, its framing included, and stops behind its end. Returns how many were
 * taken, or -EBADMSG. *ret_piece (may be NULL) is the one piece of content among them: with it
 * call again for the rest.
 */
ssize_t http_body_take(
    struct http_body *body, const char *data, size_t length, struct http_text *ret_piece);
/* The sender has closed the connection. 0: the body is complete; -EBADMSG: it is cut short. */
int http_body_eof(struct http_body *body);

/* Is it this text, regardless of the case of ASCII letters? */
bool http_text_is(struct http_text text, const char *want);
/* The only header of that name; NULL: none, or several. */
const struct http_header *http_find(const struct http_head *head, const char *name);
/* Does the value of Host name that host, alone or with that port? */
bool http_host_is(struct http_text host, const char *name, uint16_t port);

/*
 * The path of a target in the form in which rules are compared with it: without the query, with
 * letters, digits, '-', '_' and '~' unescaped and other escapes in capitals. Returns 0, or -EINVAL
 * for a path that servers may read as another: one with an empty segment, '.', '..', an escaped
 * dot, slash, backslash, percent sign or control character, or a backslash. No rule's path matches
 * such a path. The caller frees *ret. -ENOMEM.
 */
int http_path_normal(struct http_text target, char **ret);
/* Does the path match? '*' matches any characters, slashes included. */
bool http_path_matches(const char *pattern, const char *path);

/* Appends a complete answer of the gateway: one line of text, after which the connection ends.
 * `why` is the reason's name, which the header Rollbox-Refused has as well. */
void http_add_refusal(
    struct buf *to, unsigned status, const char *why, const char *text, bool is_head);
const char *http_status_text(unsigned status);

#endif
