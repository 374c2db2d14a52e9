/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions of SWE-ReX: a bash on a terminal in a sandbox, which keeps its state between requests.
 *
 * A command is not typed as it is: lines that assign it to a variable, quoted so that the terminal
 * takes every byte, are followed by a line that evaluates it. That line prints a mark before and
 * after, with the session's random number and the command's, so the output and the exit status are
 * known without a prompt that the output might resemble. After an interruption bash's own
 * PROMPT_COMMAND prints the mark. While a program has the terminal, text is typed as it is.
 */
#ifndef ROLLBOX_SERVE_SWEREX_SESSION_H
#define ROLLBOX_SERVE_SWEREX_SESSION_H

#include "serve/server.h"

#define REX_NAME_MAX 128
#define REX_PROMPT "SHELLPS1PREFIX" /* what clients call the end of a command */

struct rex_session;

/* How a wait has ended. */
enum rex_end {
    REX_DONE,     /* the command has ended, with `status` */
    REX_EXPECTED, /* `expected` was in the output, and the program runs */
    REX_TIMEOUT,
    REX_GONE, /* the shell has ended */
};

struct rex_outcome {
    enum rex_end end;
    int status;
    const char *expected;
    const char *output; /* without control sequences */
};

typedef void rex_waited(struct exchange *exchange, const struct rex_outcome *outcome);

/* What a wait is for. `expect`: a JSON array of patterns, borrowed until the end; NULL: none. */
struct rex_wish {
    const json_t *expect;
    double timeout_s; /* < 0: none */
    rex_waited *done;
};

/* Starts the shell. NULL: the answer is given. */
struct rex_session *rex_session_new(struct exchange *exchange, struct box *box, const char *name);
struct rex_session *rex_session_find(
    struct server *server, const struct box *box, const char *name);
void rex_session_close(struct rex_session *session);
/* All of a sandbox. */
void rex_sessions_close(struct server *server, const struct box *box);

/* NULL, or why this list of patterns is not possible. */
const char *rex_expect_fault(const json_t *expect);

bool rex_session_is_busy(const struct rex_session *session); /* a request waits */
bool rex_session_is_idle(const struct rex_session *session); /* the shell waits for a command */

/* Each sends, and calls `done` once, unless rex_session_leave comes before. */
void rex_session_run(struct rex_session *session, struct exchange *exchange, const char *command,
    const struct rex_wish *wish);
void rex_session_type(struct rex_session *session, struct exchange *exchange, const char *text,
    const struct rex_wish *wish);
void rex_session_interrupt(struct rex_session *session, struct exchange *exchange, unsigned retries,
    const struct rex_wish *wish);
/* Waits for the shell's first prompt. */
void rex_session_begin(
    struct rex_session *session, struct exchange *exchange, const struct rex_wish *wish);
/* The request does not wait any more. */
void rex_session_leave(struct server *server, const struct exchange *exchange);

#endif
