/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions of SWE-ReX; swerex_session.h has the model. */
#include "serve/swerex_session.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "serve/admission.h"
#include "serve/digits.h"
#include "serve/engine_link.h"

#define PIECE_BYTES ((size_t)64 << 10)
#define OUTPUT_MAX ((size_t)16 << 20) /* of one command; more of it is dropped at the beginning */
#define SEARCHED_MAX ((size_t)64 << 10)
#define COLLECTED_MAX (INT64_C(64) << 20) /* of a session in all; the engine keeps it in memory */
#define TYPED_MAX 2000u /* bytes of a quoted piece: a terminal's line has at most 4095 */
#define PATTERNS_MAX 16u
#define PATTERN_MAX 256u
#define ROWS 24
#define COLUMNS 80
#define MARK '\036'

enum wait_kind { WAIT_NONE, WAIT_COMMAND, WAIT_INTERRUPT };

struct rex_session {
    struct list of_server;
    struct server *server;
    struct exchange *holder; /* holds the quotas of a command, for the session's life */
    struct box *box;         /* referenced */
    char name[REX_NAME_MAX + 1], nonce[17];
    struct rollbox_run *run;
    int input, output; /* -EBADF: ended */
    struct loop_source input_source, output_source;
    struct buf typed, raw, text; /* not written yet; not parsed yet; of the present command */
    unsigned number;             /* of the last command */
    int status;                  /* of it */
    bool has_ended, is_idle, was_marked, is_closing;
    /* The request that waits. */
    enum wait_kind wait;
    struct exchange *exchange;
    struct rex_wish wish;
    struct loop_timer timer;
    unsigned n_retries;
    struct loop_task sweep;
};

/* ---- patterns ---- */

/*
 * A pattern has one set of bytes for each byte that it matches: texts, escapes and classes, without
 * repetitions, alternatives and groups. Every search is then linear in the text. A client's regular
 * expression on a guest's output may take hours, in which the server would answer nobody.
 */
struct pattern {
    size_t length;
    uint8_t sets[PATTERN_MAX][256 / 8];
};

static void add_byte(uint8_t set[256 / 8], unsigned byte) {
    set[byte / 8] |= (uint8_t)(1u << byte % 8);
}

static bool has_byte(const uint8_t set[256 / 8], unsigned byte) {
    return set[byte / 8] & 1u << byte % 8;
}

static void add_range(uint8_t set[256 / 8], unsigned from, unsigned to) {
    for (unsigned byte = from; byte <= to; byte++)
        add_byte(set, byte);
}

static void invert(uint8_t set[256 / 8]) {
    for (size_t i = 0; i < 256 / 8; i++)
        set[i] = (uint8_t)~set[i];
}

static void add_text_bytes(uint8_t set[256 / 8], const char *text) {
    for (; *text; text++)
        add_byte(set, (unsigned char)*text);
}

/* What follows a backslash. */
static bool add_escape(uint8_t set[256 / 8], char letter) {
    switch (letter) {
    case 'd':
    case 'D':
        add_range(set, '0', '9');
        break;
    case 'w':
    case 'W':
        add_range(set, '0', '9');
        add_range(set, 'a', 'z');
        add_range(set, 'A', 'Z');
        add_byte(set, '_');
        break;
    case 's':
    case 'S':
        add_text_bytes(set, " \t\r\n\f\v");
        break;
    case 'n':
        add_byte(set, '\n');
        break;
    case 'r':
        add_byte(set, '\r');
        break;
    case 't':
        add_byte(set, '\t');
        break;
    default:
        if (!letter || isalnum((unsigned char)letter))
            return false;
        add_byte(set, (unsigned char)letter);
    }
    if (letter && strchr("DWS", letter))
        invert(set);
    return true;
}

/* After its bracket, up to the one that ends it; NULL: it is malformed. */
static const char *add_class(uint8_t set[256 / 8], const char *c) {
    bool is_inverted = *c == '^', is_first = true;

    for (c += is_inverted; *c != ']' || is_first; c++, is_first = false) {
        if (!*c)
            return NULL;
        if (*c == '\\') {
            if (!add_escape(set, *++c))
                return NULL;
        } else if (c[1] == '-' && c[2] && c[2] != ']') {
            if (c[2] == '\\' || (unsigned char)*c > (unsigned char)c[2])
                return NULL;
            add_range(set, (unsigned char)*c, (unsigned char)c[2]);
            c += 2;
        } else {
            add_byte(set, (unsigned char)*c);
        }
    }
    if (is_inverted)
        invert(set);
    return c;
}

static bool compile(const char *text, struct pattern *ret) {
    *ret = (struct pattern){ .length = 0 };
    for (const char *c = text; *c; c++) {
        uint8_t *set = ret->sets[ret->length++];

        if (strchr("^$*+?(){}|", *c))
            return false;
        if (*c == '\\') {
            if (!add_escape(set, *++c))
                return false;
        } else if (*c == '[') {
            c = add_class(set, c + 1);
            if (!c)
                return false;
        } else if (*c == '.') {
            add_byte(set, '\n');
            invert(set);
        } else {
            add_byte(set, (unsigned char)*c);
        }
    }
    return true;
}

/* Where the pattern is in the text; *ret_end is after it. SIZE_MAX: nowhere. */
static size_t find_pattern(const char *text, size_t length, const char *written, size_t *ret_end) {
    static struct pattern pattern; /* large */

    if (!compile(written, &pattern))
        return SIZE_MAX;
    for (size_t at = 0; at + pattern.length <= length; at++) {
        size_t n = 0;

        while (n < pattern.length && has_byte(pattern.sets[n], (unsigned char)text[at + n]))
            n++;
        if (n == pattern.length) {
            *ret_end = at + n;
            return at;
        }
    }
    return SIZE_MAX;
}

const char *rex_expect_fault(const json_t *expect) {
    static struct pattern pattern;
    json_t *one;
    size_t i;

    if (json_array_size(expect) > PATTERNS_MAX)
        return "expect has too many patterns";
    json_array_foreach((json_t *)expect, i, one) {
        const char *text = json_string_value(one);
        size_t length = json_string_length(one);

        if (!text || !*text || length > PATTERN_MAX || strlen(text) != length)
            return "expect must be a list of strings of 1 to 256 bytes";
        if (!compile(text, &pattern))
            return "a pattern of expect has repetitions, alternatives, groups or anchors, which "
                   "rollbox does not support: escape what is meant as it is";
    }
    return NULL;
}

/* ---- the end of waits ---- */

/* Without control sequences of terminals, and with plain ends of lines. */
static void clean(struct buf *to, const char *data, size_t length) {
    auto_buf struct buf plain = BUF_INIT;

    for (size_t i = 0; i < length; i++) {
        if (data[i] == '\033' && i + 1 < length && data[i + 1] >= '@' && data[i + 1] <= '_') {
            i += 2;
            while (i < length && data[i] >= '0' && data[i] <= '?')
                i++;
            while (i < length && data[i] >= ' ' && data[i] <= '/')
                i++;
            continue; /* the loop skips the last byte */
        }
        if (data[i] != '\r' || i + 1 == length || data[i + 1] != '\n')
            buf_add(&plain, data + i, 1);
    }
    utf8_replace(to, plain.data ? plain.data : "", plain.length);
}

/* Tells the request, with the first `length` bytes of the output, and drops `consumed` of it. */
static void finish(
    struct rex_session *session, struct rex_outcome outcome, size_t length, size_t consumed) {
    struct exchange *exchange = TAKE_PTR(session->exchange);
    auto_buf struct buf text = BUF_INIT;

    loop_timer_clear(session->server->loop, &session->timer);
    session->wait = WAIT_NONE;
    clean(&text, session->text.data ? session->text.data : "", length);
    session->text.length -= consumed;
    if (session->text.length)
        memmove(session->text.data, session->text.data + consumed, session->text.length);
    outcome.output = text.data ? text.data : "";
    session->wish.done(exchange, &outcome);
}

/* Whether a pattern is in the output. The earliest one counts. */
static bool finish_expected(struct rex_session *session) {
    size_t from = session->text.length > SEARCHED_MAX ? session->text.length - SEARCHED_MAX : 0;
    size_t best = SIZE_MAX, best_end = 0, i;
    const char *found = NULL;
    json_t *one;

    if (!session->text.length || !json_array_size(session->wish.expect))
        return false;
    json_array_foreach((json_t *)session->wish.expect, i, one) {
        size_t end = 0;
        size_t at = find_pattern(
            session->text.data + from, session->text.length - from, json_string_value(one), &end);

        if (at < best) {
            best = at;
            best_end = end;
            found = json_string_value(one);
        }
    }
    if (!found)
        return false;
    finish(session, (struct rex_outcome){ .end = REX_EXPECTED, .expected = found }, from + best,
        from + best_end);
    return true;
}

/* Whether the request that waits has what it waits for. */
static void look(struct rex_session *session) {
    if (!session->exchange || finish_expected(session))
        return;
    if (session->wait == WAIT_INTERRUPT ? session->was_marked : session->is_idle)
        finish(session,
            (struct rex_outcome){
                .end = REX_DONE, .status = session->status, .expected = REX_PROMPT },
            session->text.length, session->text.length);
    else if (session->has_ended)
        finish(session, (struct rex_outcome){ .end = REX_GONE }, session->text.length,
            session->text.length);
}

/* ---- output ---- */

static void add_text(struct rex_session *session, const char *data, size_t length) {
    struct buf *text = &session->text;

    buf_add(text, data, length);
    if (text->length > OUTPUT_MAX) {
        memmove(text->data, text->data + text->length - OUTPUT_MAX / 2, OUTPUT_MAX / 2);
        text->length = OUTPUT_MAX / 2;
    }
}

/* MARK NONCE < NUMBER MARK begins the output of a command, MARK NONCE > NUMBER : STATUS MARK ends
 * it. */
static void take_mark(struct rex_session *session, const char *mark) {
    unsigned number;
    int status;

    if (sscanf(mark, "<%u", &number) == 1) {
        if (number == session->number)
            session->text.length = 0;
    } else if (sscanf(mark, ">%u:%d", &number, &status) == 2 && number == session->number) {
        if (!session->is_idle)
            session->status = status;
        session->is_idle = session->was_marked = true;
    }
}

static void parse(struct rex_session *session) {
    struct buf *raw = &session->raw;
    size_t at = 0, n_nonce = strlen(session->nonce);

    while (at < raw->length) {
        char *begin = memchr(raw->data + at, MARK, raw->length - at);
        size_t n = begin ? (size_t)(begin - raw->data) - at : raw->length - at;

        add_text(session, raw->data + at, n);
        at += n;
        if (!begin)
            break;
        size_t left = raw->length - at;
        size_t compared = MIN(left - 1, n_nonce);
        if (memcmp(begin + 1, session->nonce, compared) != 0) {
            add_text(session, begin, 1);
            at++;
            continue;
        }
        char *end = memchr(begin + 1, MARK, left - 1);
        if (!end && left < 64)
            break; /* the rest comes */
        if (!end) {
            add_text(session, begin, 1);
            at++;
            continue;
        }
        *end = '\0';
        take_mark(session, begin + 1 + n_nonce);
        at = (size_t)(end + 1 - raw->data);
        if (session->is_idle)
            look(session);
    }
    raw->length -= at;
    if (raw->length)
        memmove(raw->data, raw->data + at, raw->length);
}

static void free_session(struct rex_session *session) {
    struct loop *loop = session->server->loop;

    loop_remove(loop, &session->input_source);
    loop_remove(loop, &session->output_source);
    loop_timer_clear(loop, &session->timer);
    loop_task_cancel(&session->sweep);
    close_fd(&session->input);
    close_fd(&session->output);
    if (session->run && !session->has_ended)
        (void)rollbox_kill(session->run, ROLLBOX_OUTCOME_ERROR);
    session->run = rollbox_run_free(session->run);
    if (session->holder && session->holder->release)
        session->holder->release(session->holder);
    free(session->holder);
    list_remove(&session->of_server);
    box_unref(session->box);
    buf_done(&session->typed);
    buf_done(&session->raw);
    buf_done(&session->text);
    free(session);
}

static void run_sweep(struct loop_task *task) {
    struct rex_session *session = container_of(task, struct rex_session, sweep);

    look(session);
    free_session(session);
}

/* Frees it from the loop, after a request that waits has its answer. */
static void end_later(struct rex_session *session) {
    loop_remove(session->server->loop, &session->output_source);
    session->has_ended = session->is_closing = true;
    loop_defer(session->server->loop, &session->sweep, run_sweep);
}

static void on_output(struct loop_source *source, uint32_t events) {
    struct rex_session *session = container_of(source, struct rex_session, output_source);
    static char piece[PIECE_BYTES];
    ssize_t n = read(session->output, piece, sizeof piece);

    (void)events;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        end_later(session);
        return;
    }
    buf_add(&session->raw, piece, (size_t)n);
    if (buf_failed(&session->raw)) {
        end_later(session);
        return;
    }
    parse(session);
    look(session);
}

/* ---- input ---- */

static void write_typed(struct rex_session *session) {
    struct buf *typed = &session->typed;
    size_t done = 0;

    while (done < typed->length) {
        ssize_t n = write(session->input, typed->data + done, typed->length - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break; /* its end is seen at the output */
        done += (size_t)n;
    }
    typed->length -= done;
    if (typed->length && done)
        memmove(typed->data, typed->data + done, typed->length);
    (void)loop_modify(session->server->loop, &session->input_source, typed->length ? EPOLLOUT : 0);
}

static void on_input(struct loop_source *source, uint32_t events) {
    struct rex_session *session = container_of(source, struct rex_session, input_source);

    if (events & EPOLLOUT)
        write_typed(session);
    else
        loop_remove(session->server->loop, source); /* nobody reads any more */
}

static void on_timeout(struct loop_timer *timer);

static void set_timer(struct rex_session *session) {
    if (session->wish.timeout_s >= 0)
        (void)loop_timer_set(session->server->loop, &session->timer,
            clock_now_ns() + (int64_t)(session->wish.timeout_s * 1e9), on_timeout);
}

static void wait_for(struct rex_session *session, struct exchange *exchange, enum wait_kind kind,
    const struct rex_wish *wish) {
    session->wait = kind;
    session->exchange = exchange;
    session->wish = *wish;
    session->was_marked = false;
    set_timer(session);
}

/* An interruption is tried again, then the program is stopped and killed. */
static void on_timeout(struct loop_timer *timer) {
    struct rex_session *session = container_of(timer, struct rex_session, timer);

    if (session->wait == WAIT_INTERRUPT && session->n_retries) {
        session->n_retries--;
        if (session->n_retries)
            buf_add_text(&session->typed, "\003");
        else
            buf_add_text(&session->typed, "\032kill -9 %1\n");
        write_typed(session);
        set_timer(session);
        return;
    }
    finish(session, (struct rex_outcome){ .end = REX_TIMEOUT }, session->text.length, 0);
}

/* $'...' in which the terminal has nothing to interpret. */
static void add_quoted(struct buf *to, const char *text, size_t length) {
    buf_add_text(to, "$'");
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c < ' ' || c > '~' || c == '\'' || c == '\\' || c == '!')
            buf_printf(to, "\\x%02x", c);
        else
            buf_add(to, text + i, 1);
    }
    buf_add_text(to, "'");
}

void rex_session_run(struct rex_session *session, struct exchange *exchange, const char *command,
    const struct rex_wish *wish) {
    size_t length = strlen(command), at = 0;
    /* A piece grows by at most four times, and stays below what a line may have. */
    const size_t step = TYPED_MAX / 4;

    session->number++;
    session->is_idle = false;
    session->text.length = 0;
    do {
        size_t n = MIN(step, length - at);

        buf_add_text(&session->typed, at ? " __rex_c+=" : " __rex_c=");
        add_quoted(&session->typed, command + at, n);
        buf_add_text(&session->typed, "\n");
        at += n;
    } while (at < length);
    buf_printf(&session->typed,
        " __rex_n=%u PROMPT_COMMAND=__rex_p PS1= PS2= PS0=; printf '\\036%s<%u\\036'; __rex_r; "
        "eval \"$__rex_c\"; __rex_e $?\n",
        session->number, session->nonce, session->number);
    write_typed(session);
    wait_for(session, exchange, WAIT_COMMAND, wish);
}

void rex_session_type(struct rex_session *session, struct exchange *exchange, const char *text,
    const struct rex_wish *wish) {
    session->text.length = 0;
    buf_printf(&session->typed, "%s\n", text);
    write_typed(session);
    wait_for(session, exchange, WAIT_COMMAND, wish);
}

void rex_session_interrupt(struct rex_session *session, struct exchange *exchange, unsigned retries,
    const struct rex_wish *wish) {
    buf_add_text(&session->typed, "\003");
    write_typed(session);
    session->n_retries = retries;
    wait_for(session, exchange, WAIT_INTERRUPT, wish);
}

void rex_session_begin(
    struct rex_session *session, struct exchange *exchange, const struct rex_wish *wish) {
    wait_for(session, exchange, WAIT_COMMAND, wish);
    look(session);
}

void rex_session_leave(struct server *server, const struct exchange *exchange) {
    list_for_each(node, &server->rex_sessions) {
        struct rex_session *session = container_of(node, struct rex_session, of_server);

        if (session->exchange == exchange) {
            loop_timer_clear(server->loop, &session->timer);
            session->exchange = NULL;
            session->wait = WAIT_NONE;
        }
    }
}

bool rex_session_is_busy(const struct rex_session *session) {
    return session->exchange != NULL;
}

bool rex_session_is_idle(const struct rex_session *session) {
    return session->is_idle;
}

/* ---- beginning and end ---- */

struct rex_session *rex_session_find(
    struct server *server, const struct box *box, const char *name) {
    list_for_each(node, &server->rex_sessions) {
        struct rex_session *session = container_of(node, struct rex_session, of_server);

        if (session->box == box && !session->is_closing && !strcmp(session->name, name))
            return session;
    }
    return NULL;
}

void rex_session_close(struct rex_session *session) {
    if (session->is_closing)
        return;
    if (session->run)
        (void)rollbox_kill(session->run, ROLLBOX_OUTCOME_ERROR);
    end_later(session);
}

void rex_sessions_close(struct server *server, const struct box *box) {
    list_for_each(node, &server->rex_sessions) {
        struct rex_session *session = container_of(node, struct rex_session, of_server);

        if (session->box == box)
            rex_session_close(session);
    }
}

/* The functions of the shell; its first prompt is the mark of command 0. */
static void type_functions(struct rex_session *session) {
    buf_printf(&session->typed,
        " stty -echo 2>/dev/null; set +o history; __rex_s=0 __rex_n=0; "
        "__rex_p() { local s=$?; printf '\\036%s>%%d:%%d\\036' \"$__rex_n\" \"$s\"; return $s; }; "
        "__rex_e() { __rex_s=$1; printf '\\036%s>%%d:%%d\\036' \"$__rex_n\" \"$1\"; return $1; }; "
        "__rex_r() { return $__rex_s; }; PS1= PS2= PS0= PROMPT_COMMAND=__rex_p\n",
        session->nonce, session->nonce);
    write_typed(session);
}

static int start_shell(struct rex_session *session, struct rollbox_error *error) {
    static const char *const argv[] = { "/usr/bin/env", "bash", "--noediting", "-i", NULL };
    static const char *const env[] = { "PS1=", "PS2=", "PS0=", "TERM=dumb", NULL };
    const struct rollbox_terminal terminal = { ROWS, COLUMNS };
    struct rollbox_exec_options options = { .size = sizeof options,
        .argv = argv,
        .env = env,
        .timeout_ms = ROLLBOX_NO_TIMEOUT,
        .output_limit = COLLECTED_MAX,
        .terminal = &terminal };
    int in[2], out[2];

    if (pipe2(in, O_CLOEXEC) < 0)
        return -errno;
    session->input = in[1];
    auto_close int reader = in[0];
    if (pipe2(out, O_CLOEXEC) < 0)
        return -errno;
    session->output = out[0];
    auto_close int writer = out[1];
    (void)fcntl(session->input, F_SETFL, O_WRONLY | O_NONBLOCK);
    (void)fcntl(session->output, F_SETFL, O_RDONLY | O_NONBLOCK);
    int r = loop_add(
        session->server->loop, &session->output_source, session->output, EPOLLIN, on_output);
    if (r >= 0)
        r = loop_add(session->server->loop, &session->input_source, session->input, 0, on_input);
    options.input_fd = reader;
    options.stream_fds[0] = writer;
    options.stream_fds[1] = -1;
    return r < 0 ? r : rollbox_exec(session->box->handle, &options, &session->run, error);
}

struct rex_session *rex_session_new(struct exchange *exchange, struct box *box, const char *name) {
    struct rollbox_error error = { .code = ROLLBOX_ERR_RESOURCE_EXHAUSTED,
        .stage = "session",
        .message = "the server has no room for a session" };
    struct rex_session *session = calloc(1, sizeof *session);

    if (session)
        session->holder = calloc(1, sizeof *session->holder);
    if (!session || !session->holder) {
        free(session);
        exchange_fail(exchange, &error);
        return NULL;
    }
    if (!admission_command(exchange)) {
        free(session->holder);
        free(session);
        return NULL;
    }
    session->holder->server = exchange->server;
    session->holder->tenant = exchange->tenant;
    admission_move(exchange, session->holder);
    session->server = exchange->server;
    session->box = box;
    box->references++;
    session->input = session->output = -EBADF;
    (void)snprintf(session->name, sizeof session->name, "%s", name);
    digits_random(8, session->nonce);
    list_init(&session->sweep.node);
    list_add_tail(&session->server->rex_sessions, &session->of_server);
    if (start_shell(session, &error) < 0) {
        free_session(session);
        exchange_fail(exchange, &error);
        return NULL;
    }
    type_functions(session);
    return session;
}
