/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recorder: writes trajectories, line by line, for one engine.
 *
 * A line is complete, or it is the last of its file: after a failed write the recorder writes no
 * more to that file. So a file is always a beginning of what happened, and its last line says "end"
 * only if the file is complete. Regular files are written at once. Pipes, terminals and sockets
 * receive as much as they accept; the rest waits in memory, up to MAX_QUEUE per file. The engine is
 * notified of every failure.
 *
 * If the engine dies, the recorder still writes the lines that the engine has sent, and an end line
 * that says so. It then waits PATIENCE_MS for slow readers.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/wire.h"
#include "record/record.h"

#define MAX_QUEUE (64u << 20)
#define END_ROOM 512u /* of the file's limit, for its last line */
#define PATIENCE_MS 5000
#define FORKS_KEPT 4096
#define TELL_EVERY 32u
#define IDLE_MS 20
#define MESSAGES_AT_ONCE                                                                           \
    32 /* then the engine is notified of the progress, and slow readers are served */
#define SLICE_NS                                                                                   \
    100000000 /* or after this time: closing a sandbox waits only until its trajectory's end is    \
                 reported */

/* The start of the digest chains of a fork's children. */
struct fork {
    uint64_t step;
    struct chain chain;
};

struct trajectory {
    struct list node;
    uint64_t number, steps, told_steps, bytes, most;
    struct line_options line;
    bool env_values, is_regular, is_socket, is_full, ended, told;
    int fd;
    int error; /* errno; 0 */
    char message[160];
    struct chain chain;
    struct fork *forks;
    size_t n_forks;
    struct buf queue; /* not written yet */
    size_t at;
};

struct recorder {
    int socket; /* -EBADF: the engine is gone */
    int bell;
    struct list trajectories;
};

static void trajectory_free(struct trajectory *trajectory) {
    list_remove(&trajectory->node);
    rules_free(trajectory->line.rules);
    close_fd(&trajectory->fd);
    buf_done(&trajectory->queue);
    free(trajectory->forks);
    free(trajectory);
}

static struct trajectory *find_trajectory(struct recorder *recorder, uint64_t number) {
    list_for_each(node, &recorder->trajectories) {
        struct trajectory *trajectory = container_of(node, struct trajectory, node);

        if (trajectory->number == number)
            return trajectory;
    }
    return NULL;
}

static void stop_trajectory(struct trajectory *trajectory, int error_number, const char *message) {
    buf_done(&trajectory->queue);
    trajectory->at = 0;
    trajectory->told = false;
    if (trajectory->error)
        return;
    trajectory->error = error_number;
    snprintf(
        trajectory->message, sizeof trajectory->message, "%s: %s", message, strerror(error_number));
}

/* ---- writing ---- */

/* Truncates an incomplete line of a regular file if the end of the file is still ours. Otherwise
 * the incomplete line stays, and is the last. */
static void take_back(const struct trajectory *trajectory, off_t before) {
    struct stat st;

    if (trajectory->is_regular && before >= 0 && fstat(trajectory->fd, &st) == 0 &&
        st.st_size > before)
        (void)!ftruncate(trajectory->fd, before);
}

static void flush_trajectory(struct trajectory *trajectory) {
    struct stat st;
    off_t before = trajectory->is_regular && fstat(trajectory->fd, &st) == 0 ? st.st_size : -1;

    while (trajectory->at < trajectory->queue.length) {
        const char *data = trajectory->queue.data + trajectory->at;
        size_t left = trajectory->queue.length - trajectory->at;
        ssize_t n = trajectory->is_socket
                        ? send(trajectory->fd, data, left, MSG_DONTWAIT | MSG_NOSIGNAL)
                        : write(trajectory->fd, data, left);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            int error_number = n < 0 ? errno : EIO;

            take_back(trajectory, before);
            stop_trajectory(trajectory, error_number, "the record cannot be written");
            return;
        }
        trajectory->at += (size_t)n;
    }
    buf_done(&trajectory->queue);
    trajectory->at = 0;
}

/* Drops written data, so that the queue of a slow reader does not grow by it. */
static void make_room(struct trajectory *trajectory) {
    if (!trajectory->at)
        return;
    memmove(trajectory->queue.data, trajectory->queue.data + trajectory->at,
        trajectory->queue.length - trajectory->at);
    trajectory->queue.length -= trajectory->at;
    trajectory->at = 0;
}

static void enqueue_line(struct trajectory *trajectory, const struct buf *line) {
    make_room(trajectory);
    if (trajectory->queue.length + line->length > MAX_QUEUE) {
        stop_trajectory(trajectory, ENOBUFS, "the reader of the record has stopped reading");
        return;
    }
    buf_add(&trajectory->queue, line->data, line->length);
    if (buf_failed(&trajectory->queue)) {
        stop_trajectory(trajectory, ENOMEM, "the record cannot be kept");
        return;
    }
    trajectory->bytes += line->length;
    flush_trajectory(trajectory);
}

/* A line with the digest of all up to it. Takes the reference. */
static void write_line(struct trajectory *trajectory, json_t *take_line, bool is_end) {
    auto_buf struct buf text = BUF_INIT;

    json_object_set_new(take_line, "digest", json_string(trajectory->chain.hex));
    int r = line_write(take_line, &text);
    if (r == 0 && text.length > RECORD_MAX_LINE) {
        line_shorten(take_line);
        buf_done(&text);
        text = BUF_INIT;
        r = line_write(take_line, &text);
    }
    json_decref(take_line);
    if (r == 0 && text.length > RECORD_MAX_LINE)
        r = -EFBIG;
    if (r < 0)
        stop_trajectory(trajectory, -r, "a line of the record cannot be built");
    else if (!is_end && trajectory->bytes + text.length + END_ROOM > trajectory->most) {
        /* Data for a slow reader is still to be written, and an end after it. */
        trajectory->is_full = true;
        trajectory->error = EFBIG;
        trajectory->told = false;
        snprintf(trajectory->message, sizeof trajectory->message,
            "the record has reached its size limit");
    } else
        enqueue_line(trajectory, &text);
}

static void write_end(struct trajectory *trajectory, const char *reason) {
    json_t *line = json_pack(
        "{s:{s:s, s:I}}", "end", "reason", reason, "steps", (json_int_t)trajectory->steps);

    trajectory->ended = true;
    if (line && (!trajectory->error || trajectory->is_full))
        write_line(trajectory, line, true);
    else
        json_decref(line);
}

/* ---- messages ---- */

static void notify_engine(const struct recorder *recorder, struct trajectory *trajectory) {
    auto_buf struct buf message = BUF_INIT;
    bool done = trajectory->ended && !trajectory->queue.length;

    wire_begin(&message, RECORD_STATE, trajectory->number);
    wire_add_u64(&message, RECORD_STEPS, trajectory->steps);
    wire_add_u64(&message, RECORD_ERROR, (uint64_t)trajectory->error);
    wire_add_text(&message, RECORD_MESSAGE, trajectory->message);
    wire_add_u64(&message, RECORD_DONE, done);
    trajectory->told = wire_send(recorder->socket, &message, NULL, 0) == 0;
    trajectory->told_steps = trajectory->steps;
}

/* "NAME=value"s as an object; a later one replaces an earlier one, as it does in the policy. */
static json_t *variables_of(json_t *list) {
    json_t *object = json_object(), *item;
    size_t i;

    json_array_foreach(list, i, item) {
        const char *text = json_string_value(item) ? json_string_value(item) : "";
        auto_free char *name = strndup(text, strcspn(text, "="));

        if (name)
            json_object_set_new(
                object, name, json_string(text + strlen(name) + (text[strlen(name)] == '=')));
    }
    return object;
}

/* The policy without the values of its variables, unless they are requested, and without secrets.
 */
static json_t *shown_policy(const struct trajectory *trajectory, const char *text) {
    json_t *policy = json_loads(text, JSON_ALLOW_NUL, NULL), *env, *value;
    const char *key;
    void *next;

    if (json_is_array(json_object_get(policy, "env")))
        json_object_set_new(policy, "env", variables_of(json_object_get(policy, "env")));
    env = json_object_get(policy, "env");
    json_object_foreach_safe(env, next, key, value) {
        auto_free char *variable = NULL;

        if (trajectory->line.rules && json_is_string(value) &&
            asprintf(&variable, "%s=%s", key, json_string_value(value)) < 0)
            variable = NULL;
        if (variable && rules_learn(trajectory->line.rules, variable) < 0) {
            json_decref(policy);
            return NULL;
        }
        if (!trajectory->env_values)
            json_object_set_new(env, key, json_null());
    }
    return line_clean(&trajectory->line, policy);
}

static const struct chain *chain_of_parent(
    struct recorder *recorder, uint64_t number, uint64_t step) {
    const struct trajectory *parent = find_trajectory(recorder, number);

    for (size_t i = parent ? parent->n_forks : 0; i-- > 0;)
        if (parent->forks[i].step == step)
            return &parent->forks[i].chain;
    return NULL;
}

static void begin_line(struct recorder *recorder, struct trajectory *trajectory, json_t *line,
    const char *policy_text, uint64_t parent, uint64_t parent_step) {
    json_t *policy = shown_policy(trajectory, policy_text),
           *of_parent = json_object_get(line, "parent");
    auto_free char *text = policy ? json_dumps(policy, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    const struct chain *before = parent ? chain_of_parent(recorder, parent, parent_step) : NULL;
    char hex[RECORD_DIGEST_HEX + 1];

    if (!text) {
        json_decref(policy);
        json_decref(line);
        stop_trajectory(trajectory, ENOMEM, "the record cannot be started");
        return;
    }
    digest_hex(text, strlen(text), hex);
    json_object_set_new(line, "policy", policy);
    json_object_set_new(line, "policy_sha256", json_string(hex));
    if (json_is_object(of_parent))
        json_object_set_new(of_parent, "digest", before ? json_string(before->hex) : json_null());
    chain_begin(&trajectory->chain, hex,
        json_string_value(json_object_get(json_object_get(line, "image"), "sha256")),
        before ? before->hex : NULL);
    write_line(trajectory, line, false);
}

/* Writes without blocking, but without setting O_NONBLOCK: the flag would affect all processes that
 * share the descriptor, such as those of a terminal. */
static int open_again(int take_fd, struct trajectory *trajectory) {
    auto_close int fd = take_fd;
    struct stat st;
    char path[32];

    if (fstat(fd, &st) < 0)
        return -errno;
    trajectory->is_regular = S_ISREG(st.st_mode);
    trajectory->is_socket = S_ISSOCK(st.st_mode);
    if (trajectory->is_regular || trajectory->is_socket)
        return TAKE_FD(fd);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (again >= 0)
        return again;
    return fcntl(fd, F_SETFL, O_NONBLOCK) < 0 ? -errno : TAKE_FD(fd);
}

/* Otherwise the engine would assume that the recorder is stuck. */
static void on_wait(void *data) {
    const struct recorder *recorder = data;
    auto_buf struct buf message = BUF_INIT;

    wire_begin(&message, RECORD_STATE, 0);
    (void)wire_send(recorder->socket, &message, NULL, 0);
}

static int take_rule(
    struct recorder *recorder, struct trajectory *trajectory, const struct wire_field *field) {
    const char *text = wire_text(field);

    if (!text)
        return -EBADMSG;
    if (!trajectory->line.rules && rules_new(&trajectory->line.rules) < 0)
        return -ENOMEM;
    rules_on_wait(trajectory->line.rules, on_wait, recorder);
    return field->tag == RECORD_RULE_NAME ? rules_add_name(trajectory->line.rules, text)
                                          : rules_add_pattern(trajectory->line.rules, text, NULL);
}

static void on_begin(struct recorder *recorder, struct wire_message *message) {
    struct trajectory *trajectory = calloc(1, sizeof *trajectory);
    uint64_t parent = 0, parent_step = 0, kin = 0, number = 0;
    const char *policy = "{}";
    struct wire_field field;
    size_t position = 0;
    json_t *line = NULL;
    int r = 0;

    if (!trajectory)
        return; /* the engine learns of it at the next step, whose trajectory is unknown */
    list_init(&trajectory->node);
    list_add_tail(&recorder->trajectories, &trajectory->node);
    trajectory->number = message->header.serial;
    trajectory->line.most = RECORD_STREAM_BYTES;
    trajectory->most = RECORD_FILE_BYTES;
    while (r == 0 && wire_next(message->data, message->length, &position, &field) > 0) {
        (void)wire_u64(&field, &number);
        switch (field.tag) {
        case RECORD_POLICY:
            policy = wire_text(&field);
            break;
        case MAX_RECORD:
            trajectory->line.most = number;
            break;
        case RECORD_MAX_FILE:
            trajectory->most = number;
            break;
        case RECORD_ENV_VALUES:
            trajectory->env_values = number;
            break;
        case RECORD_PARENT:
            parent = number;
            break;
        case RECORD_PARENT_STEP:
            parent_step = number;
            break;
        case RECORD_KIN:
            kin = number;
            break;
        case RECORD_RULE_NAME:
        case RECORD_RULE_PATTERN:
            r = take_rule(recorder, trajectory, &field);
            break;
        default:
            break;
        }
    }
    /* The files and memory of a fork come from its parent. */
    struct trajectory *from = kin ? find_trajectory(recorder, kin) : NULL;
    if (r == 0 && from && from->line.rules && trajectory->line.rules)
        r = rules_learn_from(trajectory->line.rules, from->line.rules);
    trajectory->fd = message->n_fds ? open_again(wire_take_fd(message, 0), trajectory) : -EBADF;
    if (r == 0 && trajectory->fd < 0)
        r = trajectory->fd;
    if (r == 0)
        r = line_build(&(struct line_options){ .most = trajectory->line.most }, message->data,
            message->length, NULL, 0, &line);
    if (r < 0)
        stop_trajectory(trajectory, -r, "the record cannot be started");
    else
        begin_line(recorder, trajectory, line, policy ? policy : "{}", parent, parent_step);
}

static void learn_rules(struct trajectory *trajectory, const struct wire_message *message) {
    struct wire_field field;
    size_t position = 0;

    while (wire_next(message->data, message->length, &position, &field) > 0)
        if (field.tag == RECORD_SECRET && wire_text(&field) &&
            rules_learn(trajectory->line.rules, wire_text(&field)) < 0)
            stop_trajectory(trajectory, E2BIG, "there are too many secrets to redact");
}

static void remember_fork(struct trajectory *trajectory, const json_t *line) {
    const char *kind = json_string_value(json_object_get(json_object_get(line, "action"), "kind"));

    if (!kind || strcmp(kind, "fork") || trajectory->n_forks == FORKS_KEPT)
        return;
    struct fork *grown = realloc(trajectory->forks, (trajectory->n_forks + 1) * sizeof *grown);
    if (!grown)
        return; /* its children begin without a parent's digest, and say so */
    trajectory->forks = grown;
    grown[trajectory->n_forks++] =
        (struct fork){ (uint64_t)json_integer_value(json_object_get(line, "step")),
            trajectory->chain };
}

static void on_step(struct trajectory *trajectory, const struct wire_message *message) {
    json_t *line;

    if (trajectory->error || trajectory->ended)
        return;
    learn_rules(trajectory, message);
    int r = trajectory->error ? 0
                              : line_build(&trajectory->line, message->data, message->length,
                                    message->fds, message->n_fds, &line);
    if (r < 0)
        stop_trajectory(trajectory, -r, "a step cannot be recorded");
    if (trajectory->error)
        return;
    const struct chain before = trajectory->chain;
    chain_add(
        &trajectory->chain, json_object_get(line, "action"), json_object_get(line, "observation"));
    remember_fork(trajectory, line);
    write_line(trajectory, line, false);
    if (trajectory->error)
        trajectory->chain = before; /* of the present data */
    else
        trajectory->steps++;
}

static void on_end(struct trajectory *trajectory, const struct wire_message *message) {
    struct wire_field field;
    size_t position = 0;
    const char *reason = "closed";

    while (wire_next(message->data, message->length, &position, &field) > 0)
        if (field.tag == RECORD_REASON && wire_text(&field))
            reason = wire_text(&field);
    if (!trajectory->ended)
        write_end(trajectory, trajectory->is_full ? "file_limit" : reason);
}

/* A message that came without its descriptors, or truncated, was a step of an unknown trajectory.
 * So no trajectory continues as if it were complete. */
static void lose_message(struct recorder *recorder, int error_number) {
    list_for_each(node, &recorder->trajectories)
        stop_trajectory(container_of(node, struct trajectory, node), error_number,
            "a step was lost before it was recorded");
}

/* Handles the pending messages. False when the engine has ended. *ret_slow: they took long.
 * *ret_more: there may be others. */
static bool receive_message(struct recorder *recorder, bool *ret_slow, bool *ret_more) {
    static struct wire_message message;
    const int64_t until_ns = clock_now_ns() + SLICE_NS;
    eventfd_t rung;
    int r = 1;

    (void)eventfd_read(recorder->bell,
        &rung); /* before the messages are read: the bell may be rung again for the next ones */
    *ret_slow = false;
    for (int i = 0;
         i < MESSAGES_AT_ONCE && !*ret_slow && (r = wire_receive(recorder->socket, &message)) == 1;
         i++) {
        struct trajectory *trajectory = find_trajectory(recorder, message.header.serial);

        if (message.header.type == RECORD_BEGIN)
            on_begin(recorder, &message);
        else if (trajectory && message.header.type == RECORD_STEP)
            on_step(trajectory, &message);
        else if (trajectory && message.header.type == RECORD_END)
            on_end(trajectory, &message);
        if ((trajectory = find_trajectory(recorder, message.header.serial)))
            trajectory->told = false;
        wire_message_done(&message);
        *ret_slow = clock_now_ns() > until_ns;
    }
    *ret_more = r != -EAGAIN;
    if (r < 0 && r != -EAGAIN && r != -EINTR)
        lose_message(recorder, -r);
    return r != 0 && r != -ECONNRESET && r != -EPIPE;
}

/* ---- its life ---- */

/* Reports progress from time to time, or at once: when there is nothing to do, because the report
 * wakes the engine; when there is very much to do; and for important events. Ended trajectories are
 * freed. */
static void settle_trajectories(struct recorder *recorder, bool at_once) {
    list_for_each(node, &recorder->trajectories) {
        struct trajectory *trajectory = container_of(node, struct trajectory, node);
        bool over = trajectory->ended && !trajectory->queue.length;

        if (over)
            close_fd(&trajectory->fd); /* before its end is reported: the client may then record to
                                          the same file, which is locked while it is open */
        if (recorder->socket >= 0 && !trajectory->told &&
            (at_once || over || trajectory->error ||
                trajectory->steps >= trajectory->told_steps + TELL_EVERY))
            notify_engine(recorder, trajectory);
        if (over && (trajectory->told || recorder->socket < 0))
            trajectory_free(trajectory);
    }
}

static void lose_engine(struct recorder *recorder) {
    close_fd(&recorder->socket);
    list_for_each(node, &recorder->trajectories) {
        struct trajectory *trajectory = container_of(node, struct trajectory, node);

        if (!trajectory->ended)
            write_end(trajectory, "engine_lost");
    }
}

/* 1: there is more to do; 0: nothing to do, or no reader is ready; -ENOMEM. *ret_idle: no message
 * came. `more`: does not wait. */
static int run_turn(struct recorder *recorder, int64_t until_ns, bool more, bool *ret_idle) {
    size_t n = 2, most = 2;

    list_for_each(node, &recorder->trajectories)
        most++;
    auto_free struct pollfd *polls = calloc(most, sizeof *polls);
    auto_free struct trajectory **of = calloc(most, sizeof(struct trajectory *));
    if (!polls || !of)
        return -ENOMEM;
    /* The socket itself only signals the engine's end. */
    polls[0] = (struct pollfd){ .fd = recorder->socket };
    polls[1] =
        (struct pollfd){ .fd = recorder->socket >= 0 ? recorder->bell : -1, .events = POLLIN };
    bool untold = false;
    list_for_each(node, &recorder->trajectories) {
        of[n] = container_of(node, struct trajectory, node);
        untold |= !of[n]->told;
        if (of[n]->queue.length) {
            polls[n] = (struct pollfd){ .fd = of[n]->fd, .events = POLLOUT };
            n++;
        }
    }
    if (recorder->socket < 0 && n == 2)
        return 0;
    int64_t left_ms = untold ? IDLE_MS : -1;
    if (recorder->socket < 0)
        left_ms = (until_ns - clock_now_ns()) / 1000000;
    if (recorder->socket < 0 && left_ms <= 0)
        return 0;
    int ready = poll(polls, n, more ? 0 : (int)left_ms);
    if (ready < 0 && errno != EINTR)
        return -errno;
    *ret_idle = ready == 0 && !more;
    for (size_t i = 2; i < n; i++)
        if (polls[i].revents) {
            flush_trajectory(of[i]);
            of[i]->told &= of[i]->queue.length != 0;
        }
    return 1;
}

int recorder_run(int take_socket, int take_bell) {
    struct recorder recorder = { .socket = take_socket, .bell = take_bell };
    int64_t until_ns = 0;
    bool idle = false, slow = false, more = false;
    int r;

    list_init(&recorder.trajectories);
    (void)fcntl(recorder.socket, F_SETFL, O_NONBLOCK);
    signal(SIGCHLD, SIG_DFL); /* children that are ignored cannot be waited for */
    do {
        if (recorder.socket >= 0 && !receive_message(&recorder, &slow, &more)) {
            lose_engine(&recorder);
            more = false;
            until_ns = clock_now_ns() + (int64_t)PATIENCE_MS * 1000000;
        }
        settle_trajectories(&recorder, idle || slow);
        r = run_turn(&recorder, until_ns, more, &idle);
    } while (r > 0);
    return r < 0;
}
