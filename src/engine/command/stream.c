/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: a command's output for clients that read it while the command runs, and keys for its
 * terminal.
 *
 * Output is collected first (output.c), in memory or a memory file. A stream is a reader of that
 * with a position of its own, so a slow or late reader delays nothing and misses nothing. It
 * outlives the run until its reader has taken everything. The pipe of a command that has ended may
 * still be held by a background process. Then it gets a *drain*, which reads and drops the bytes,
 * so that the writer is neither blocked nor killed.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/tty.h"
#include "engine/command/stream.h"
#include "engine/command/command.h"
#include "engine/command/output.h"
#include "engine/core/client.h"
#include "engine/core/context.h"
#include "engine/core/log.h"

#define CHUNK 65536
#define MAX_SINKS 4096 /* of all sandboxes */
#define MAX_SINKS_EACH 256
#define END_FIRST_NS                                                                               \
    20000000ll /* after the end of what is typed: when to look whether that was noticed, later and \
                  later */
#define END_LAST_NS 1000000000ll
#define SINK_REST_NS                                                                               \
    5000000ll /* after a sink was found full: one that is written to without end costs us little,  \
                 and its writer waits */

struct stream {
    struct engine *engine;
    struct output *output; /* NULL: an orphan, with its own: */
    struct buf head;
    int spool;
    uint64_t total;
    struct list node;          /* output->streams, or engine->outputs.streams */
    struct loop_source source; /* armed while the reader has no room */
    int fd;
    uint64_t position;
};

struct drain {
    struct engine *engine;
    struct list node; /* engine->outputs.drains */
    struct loop_source source;
    struct loop_timer rest;
    uint64_t session; /* the session of the command */
    int fd;
};

struct terminal_input {
    struct engine *engine;
    struct loop_source source, room;
    struct loop_timer again; /* after the end of the input */
    int64_t rest_ns;
    const struct client *client; /* the client that sends the input */
    int input, terminal;
    char last;
    char bytes[4096];
    size_t at, end;
};

/* A pipe belongs to its maker, so only the maker may open it by name (/dev/stdout,
 * /proc/self/fd/1). Ids are no protection here: a process that can name the pipe has one of its
 * ends already. For an ordinary user the sandbox has the maker's own id. */
void stream_let_open(const struct engine *engine, int fd) {
    struct stat st;

    if ((engine->features.is_root || engine->features.own_ids) && fstat(fd, &st) == 0 &&
        S_ISFIFO(st.st_mode))
        (void)fchmod(fd, 0666);
}

static void stream_free(struct stream *stream) {
    loop_remove(stream->engine->loop, &stream->source);
    list_remove(&stream->node);
    close_fd(&stream->fd);
    close_fd(&stream->spool);
    buf_done(&stream->head);
    free(stream);
}

/* The next bytes, at most CHUNK. */
static ssize_t next_bytes(const struct stream *stream, char *chunk, const char **ret_data) {
    const struct buf *head = stream->output ? &stream->output->head : &stream->head;
    int spool = stream->output ? stream->output->spool : stream->spool;
    uint64_t total = stream->output ? stream->output->total : stream->total;
    size_t length = (size_t)MIN(total - stream->position, (uint64_t)CHUNK);

    if (!length)
        return 0;
    if (spool < 0) {
        *ret_data = head->data + stream->position;
        return (ssize_t)length;
    }
    *ret_data = chunk;
    return pread(spool, chunk, length, (off_t)stream->position);
}

static void on_room(struct loop_source *source, uint32_t events);

static void move_stream(struct stream *stream) {
    static char chunk[CHUNK];
    const char *data;
    ssize_t n;

    while ((n = next_bytes(stream, chunk, &data)) > 0) {
        n = write(stream->fd, data, (size_t)n);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            if (stream->source.callback ||
                loop_add(stream->engine->loop, &stream->source, stream->fd, EPOLLOUT, on_room) == 0)
                return;
        }
        if (n < 0) { /* its reader is gone */
            stream_free(stream);
            return;
        }
        stream->position += (uint64_t)n;
    }
    if (n < 0 || !stream->output || stream->output->fd < 0)
        stream_free(stream); /* delivered, and there is no more to come */
    else
        loop_remove(stream->engine->loop, &stream->source);
}

static void on_room(struct loop_source *source, uint32_t events) {
    (void)events;
    move_stream(container_of(source, struct stream, source));
}

int stream_add(struct output *output, int take_fd) {
    auto_close int fd = take_fd;
    struct stream *stream = calloc(1, sizeof *stream);
    int flags = fcntl(fd, F_GETFL);

    if (!stream)
        return -ENOMEM;
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY ||
        fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
        free(stream);
        return -EBADF;
    }
    stream->engine = output->run->engine;
    stream->output = output;
    stream->spool = -EBADF;
    stream->fd = TAKE_FD(fd);
    list_add_tail(&output->streams, &stream->node);
    if (output->total)
        move_stream(stream);
    return 0;
}

void stream_flush(struct output *output) {
    list_for_each(node, &output->streams) {
        struct stream *stream = container_of(node, struct stream, node);

        if (!stream->source.callback)
            move_stream(stream);
    }
}

void stream_drop(struct output *output) {
    list_for_each(node, &output->streams)
        stream_free(container_of(node, struct stream, node));
}

/* Takes over the output from its beginning. A memory file is shared if a descriptor is left for it;
 * other output is copied. */
static bool take_over(struct stream *stream, const struct output *output) {
    stream->spool = output->spool < 0 ? -EBADF : fcntl(output->spool, F_DUPFD_CLOEXEC, 3);
    if (stream->spool >= 0)
        return true;
    if (output->spool >= 0)
        return fd_read_again(output->spool, (size_t)output->total, &stream->head) == 0;
    buf_add(&stream->head, output->head.data, output->head.length);
    return !buf_failed(&stream->head);
}

/* The output goes to the result; undelivered output stays. */
void stream_orphan(struct output *output) {
    list_for_each(node, &output->streams) {
        struct stream *stream = container_of(node, struct stream, node);

        stream->total = output->total;
        if (stream->position >= stream->total || !take_over(stream, output)) {
            stream_free(stream);
            continue;
        }
        stream->output = NULL;
        list_remove(&stream->node);
        list_add_tail(&stream->engine->outputs.streams, &stream->node);
        if (!stream->source.callback)
            move_stream(stream);
    }
}

void stream_forget_all(struct engine *engine) {
    list_for_each(node, &engine->outputs.streams)
        stream_free(container_of(node, struct stream, node));
}

/* ---- drains ---- */

static void drain_free(struct drain *drain) {
    loop_remove(drain->engine->loop, &drain->source);
    loop_timer_clear(drain->engine->loop, &drain->rest);
    list_remove(&drain->node);
    drain->engine->outputs.n_drains--;
    close_fd(&drain->fd);
    free(drain);
}

static void on_drain(struct loop_source *source, uint32_t events);

static void on_rested(struct loop_timer *timer) {
    struct drain *drain = container_of(timer, struct drain, rest);

    if (loop_add(drain->engine->loop, &drain->source, drain->fd, EPOLLIN, on_drain) < 0)
        drain_free(drain);
}

static void on_drain(struct loop_source *source, uint32_t events) {
    static char chunk[CHUNK];
    struct drain *drain = container_of(source, struct drain, source);
    ssize_t n = read(drain->fd, chunk, sizeof chunk);

    (void)events;
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        drain_free(drain);
        return;
    }
    if (n > 0 && loop_timer_set(drain->engine->loop, &drain->rest, clock_now_ns() + SINK_REST_NS,
                     on_rested) == 0)
        loop_remove(drain->engine->loop, &drain->source);
}

static int compare_numbers(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* The sandbox with most drains. */
static uint64_t find_greediest(const struct engine *engine) {
    auto_free uint64_t *numbers = calloc(engine->outputs.n_drains + 1, sizeof *numbers);
    size_t n = 0, most = 0, same = 0;
    uint64_t found = 0;

    list_for_each(node, &engine->outputs.drains)
        if (numbers)
            numbers[n++] = container_of(node, struct drain, node)->session;
    if (n)
        qsort(numbers, n, sizeof *numbers, compare_numbers);
    for (size_t i = 0; i < n; i++) {
        same = i && numbers[i] == numbers[i - 1] ? same + 1 : 1;
        if (same > most) {
            most = same;
            found = numbers[i];
        }
    }
    return found;
}

/* Each is a descriptor of ours, so there is an end to them, and the writer of the one that goes
 * gets SIGPIPE: the oldest of a sandbox that has many, then of the one that has most. Others'
 * guests have no say in that. */
static void make_room(struct engine *engine, uint64_t session) {
    unsigned own = 0;

    list_for_each(node, &engine->outputs.drains)
        own += container_of(node, struct drain, node)->session == session;
    if (own <= MAX_SINKS_EACH && engine->outputs.n_drains <= MAX_SINKS)
        return;
    if (own <= MAX_SINKS_EACH)
        session = find_greediest(engine);
    list_for_each(node, &engine->outputs.drains)
        if (container_of(node, struct drain, node)->session == session) {
            drain_free(container_of(node, struct drain, node));
            return;
        }
}

void drain_add(struct engine *engine, uint64_t session, int take_fd) {
    auto_close int fd = take_fd;
    struct drain *drain = calloc(1, sizeof *drain);

    if (!drain)
        return;
    list_init(&drain->node);
    drain->engine = engine;
    drain->session = session;
    if (loop_add(engine->loop, &drain->source, fd, EPOLLIN, on_drain) < 0) {
        free(drain);
        return;
    }
    drain->fd = TAKE_FD(fd);
    list_add_tail(&engine->outputs.drains, &drain->node);
    engine->outputs.n_drains++;
    make_room(engine, session);
}

size_t drain_inodes(const struct engine *engine, uint64_t session, uint64_t *inodes, size_t most) {
    size_t n = 0;
    struct stat st;

    list_for_each(node, &engine->outputs.drains) {
        const struct drain *drain = container_of(node, struct drain, node);

        if (drain->session == session && n < most && fstat(drain->fd, &st) == 0 &&
            S_ISFIFO(st.st_mode))
            inodes[n++] = st.st_ino;
    }
    return n;
}

size_t drain_terminals(const struct engine *engine, uint64_t session, int *fds, size_t most) {
    size_t n = 0;

    list_for_each(node, &engine->outputs.drains) {
        const struct drain *drain = container_of(node, struct drain, node);

        if (drain->session == session && n < most && tty_is_one(drain->fd))
            fds[n++] = drain->fd;
    }
    return n;
}

void drain_forget(struct engine *engine, uint64_t session) {
    list_for_each(node, &engine->outputs.drains)
        if (container_of(node, struct drain, node)->session == session)
            drain_free(container_of(node, struct drain, node));
}

void drain_forget_all(struct engine *engine) {
    list_for_each(node, &engine->outputs.drains)
        drain_free(container_of(node, struct drain, node));
}

/* ---- a terminal's input ---- */

static void on_input(struct loop_source *source, uint32_t events);
static void on_terminal_room(struct loop_source *source, uint32_t events);

/* Types the bytes that were read. Returns true if all of them fitted. */
static bool type_input(struct terminal_input *terminal_input) {
    while (terminal_input->at < terminal_input->end) {
        ssize_t n = write(terminal_input->terminal, terminal_input->bytes + terminal_input->at,
            terminal_input->end - terminal_input->at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return false;
        if (n < 0)
            break; /* hung up: nobody reads it any more */
        terminal_input->at += (size_t)n;
    }
    terminal_input->at = terminal_input->end = 0;
    return true;
}

/* Whether something that was typed, or an end of file, waits for a reader. */
static bool is_read(int terminal) {
    auto_close int slave = ioctl(terminal, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    struct pollfd waiting = { .fd = slave, .events = POLLIN };

    return slave >= 0 && poll(&waiting, 1, 0) == 0;
}

/* A client that has left has not ended the input: its command may be attached to again. A process
 * that is killed closes its pipes and its connection in any order, within a moment. */
static bool is_connected(const struct terminal_input *terminal_input) {
    list_for_each(node, &terminal_input->engine->server.clients) {
        const struct client *client = container_of(node, struct client, node);
        struct pollfd left = { .fd = client->fd, .events = POLLRDHUP };

        if (client == terminal_input->client)
            return poll(&left, 1, 0) == 0;
    }
    return false;
}

/*
 * The input is at its end, and so is every read of the terminal from now on. A terminal has no end
 * of its own: there is a character that ends one read, if the terminal is in line mode when it is
 * typed and when it is read. Shells switch that mode as they start, and it is lost. So it is typed
 * whenever a reader has taken all there is. In raw mode it is a key, which line editors take for
 * the end of file on an empty line: a line is ended before.
 */
static void on_ended(struct loop_timer *timer) {
    struct terminal_input *terminal_input = container_of(timer, struct terminal_input, again);
    struct termios modes;

    if (!is_connected(terminal_input))
        return;
    if (tcgetattr(terminal_input->terminal, &modes) == 0 && is_read(terminal_input->terminal)) {
        bool is_raw = !(modes.c_lflag & ICANON), ends_line = is_raw && terminal_input->last &&
                                                             terminal_input->last != '\n' &&
                                                             terminal_input->last != '\r';
        char key = ends_line                             ? '\r'
                   : modes.c_cc[VEOF] != _POSIX_VDISABLE ? (char)modes.c_cc[VEOF]
                                                         : 4;

        if (write(terminal_input->terminal, &key, 1) == 1 && is_raw)
            terminal_input->last = key;
    }
    (void)loop_timer_set(terminal_input->engine->loop, &terminal_input->again,
        clock_now_ns() + terminal_input->rest_ns, on_ended);
    terminal_input->rest_ns = MIN(2 * terminal_input->rest_ns, END_LAST_NS);
}

static void on_terminal_room(struct loop_source *source, uint32_t events) {
    struct terminal_input *terminal_input = container_of(source, struct terminal_input, room);

    (void)events;
    if (!type_input(terminal_input))
        return;
    loop_remove(terminal_input->engine->loop, &terminal_input->room);
    if (terminal_input->input >= 0)
        (void)loop_add(terminal_input->engine->loop, &terminal_input->source, terminal_input->input,
            EPOLLIN, on_input);
}

static void on_input(struct loop_source *source, uint32_t events) {
    struct terminal_input *terminal_input = container_of(source, struct terminal_input, source);
    ssize_t n = read(terminal_input->input, terminal_input->bytes, sizeof terminal_input->bytes);

    (void)events;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) { /* nothing more is typed; the terminal stays */
        loop_remove(terminal_input->engine->loop, &terminal_input->source);
        close_fd(&terminal_input->input);
        terminal_input->rest_ns = END_FIRST_NS;
        (void)loop_timer_set(terminal_input->engine->loop, &terminal_input->again,
            clock_now_ns() + END_FIRST_NS, on_ended);
        return;
    }
    terminal_input->end = (size_t)n;
    terminal_input->last = terminal_input->bytes[n - 1];
    if (!type_input(terminal_input)) {
        loop_remove(terminal_input->engine->loop, &terminal_input->source);
        (void)loop_add(terminal_input->engine->loop, &terminal_input->room,
            terminal_input->terminal, EPOLLOUT, on_terminal_room);
    }
}

struct terminal_input *terminal_input_new(
    struct engine *engine, const struct client *client, int take_input, int terminal) {
    auto_close int input = take_input;
    struct terminal_input *terminal_input = calloc(1, sizeof *terminal_input);

    if (!terminal_input)
        return NULL;
    terminal_input->engine = engine;
    terminal_input->client = client;
    terminal_input->input = -EBADF;
    terminal_input->terminal = fcntl(terminal, F_DUPFD_CLOEXEC, 3);
    int flags = fcntl(input, F_GETFL);
    if (terminal_input->terminal < 0 || flags < 0 ||
        fcntl(input, F_SETFL, flags | O_NONBLOCK) < 0 ||
        fcntl(terminal_input->terminal, F_SETFL, O_NONBLOCK) < 0 ||
        loop_add(engine->loop, &terminal_input->source, input, EPOLLIN, on_input) < 0) {
        close_fd(&terminal_input->terminal);
        free(terminal_input);
        return NULL;
    }
    terminal_input->input = TAKE_FD(input);
    return terminal_input;
}

struct terminal_input *terminal_input_free(struct terminal_input *terminal_input) {
    if (!terminal_input)
        return NULL;
    loop_remove(terminal_input->engine->loop, &terminal_input->source);
    loop_remove(terminal_input->engine->loop, &terminal_input->room);
    loop_timer_clear(terminal_input->engine->loop, &terminal_input->again);
    close_fd(&terminal_input->input);
    close_fd(&terminal_input->terminal);
    free(terminal_input);
    return NULL;
}
