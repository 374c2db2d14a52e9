/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/play_shell.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "cli/replay_step.h"
#include "cli/signals.h"

enum { IN, STATUS, OUT, ERR };

#define SLICE_MS 100
#define PATIENCE_NS                                                                                \
    1000000000ll /* how long a command may take to end when asked, then when forced, before the    \
                    next harder step */
#define MAX_STATUS 4096u

/* Where a bash script has numbers for descriptors of its own there are few; sh knows one digit
 * only. */
static const char *status_fd(const struct play_shell *shell) {
    return shell->is_bash ? "247" : "9";
}

bool play_shell_is(const json_t *action) {
    const json_t *argv = json_object_get(action, "argv");
    const char *program = json_string_value(json_array_get(argv, 0)),
               *login = json_string_value(json_array_get(argv, 1)),
               *reads = json_string_value(json_array_get(argv, 2));

    return json_integer_value(json_object_get(action, "extra_fds")) == PLAY_SHELL_FDS - 1 &&
           json_array_size(argv) == 3 && program && login && reads &&
           (!strcmp(program, "bash") || !strcmp(program, "sh")) && !strcmp(login, "-l") &&
           !strcmp(reads, "-s");
}

int play_shell_open(
    struct play_shell *shell, const json_t *action, uint64_t step, int ret_theirs[PLAY_SHELL_FDS]) {
    int r = 0;

    *shell = (struct play_shell){ .step = step,
        .is_bash =
            !strcmp(json_string_value(json_array_get(json_object_get(action, "argv"), 0)), "bash"),
        .unsent = BUF_INIT,
        .statuses = BUF_INIT };
    snprintf(shell->id, sizeof shell->id, "shell-%" PRIu64, step);
    for (size_t i = 0; i < PLAY_SHELL_FDS; i++)
        shell->fds[i] = ret_theirs[i] = -EBADF;
    for (size_t i = 0; r == 0 && i < PLAY_SHELL_FDS; i++) {
        int ends[2];

        if (pipe2(ends, O_CLOEXEC) < 0) {
            r = -errno;
            break;
        }
        shell->fds[i] = ends[i == IN];
        ret_theirs[i] = ends[i != IN];
        if (fcntl(shell->fds[i], F_SETFL, O_NONBLOCK) < 0 ||
            (i != STATUS && fchmod(ret_theirs[i], i == IN ? 0644 : 0622) <
                                0)) /* so that any guest user can open /dev/stdin and /dev/stdout */
            r = -errno;
    }
    buf_printf(&shell->unsent,
        "exec %s>&3 1>&4 2>&5\nexec 3>&- 4>&- 5>&-\ntrap 'break 999 2>/dev/null' INT\n",
        status_fd(shell));
    if (r == 0 && buf_failed(&shell->unsent))
        r = -ENOMEM;
    return r;
}

void play_shell_close(struct play_shell *shell) {
    for (size_t i = 0; i < PLAY_SHELL_FDS; i++)
        close_fd(&shell->fds[i]);
    buf_done(&shell->unsent);
    buf_done(&shell->statuses);
}

void play_shell_result_done(struct play_shell_result *result) {
    for (size_t i = 0; i < ARRAY_SIZE(result->streams); i++)
        buf_done(&result->streams[i]);
}

/* ---- input ---- */

/*
 * The shell's own lines must not be seen, with any options that the user has set. So -x and -v are
 * off while the shell reads and runs them, and the command gets them back as the first thing in its
 * eval. python/rollbox/_shell.py has the same lines.
 *
 * -v shows a line when it is read, so -v is turned off in the line that runs the command: before
 * the next line is read. -x traces to standard error (or BASH_XTRACEFD): the group that turns it
 * off has its own. PS4 is left alone, for it may be read-only, and an assignment would end the
 * shell. The empty line is for bash: after an eval that ended within a quotation its parser does
 * not take
 * `{` for a reserved word. Should an error have ended the first line, the second finds no
 * _rollbox_was and takes the status from $?.
 */
#define OPTIONS_ON                                                                                 \
    "{ \\command eval \"\\\\command unset -v _rollbox_was _rollbox_on; \\\\command set "           \
    "${_rollbox_on:-+x}\"; } >/dev/null 2>&1\n"
#define OPTIONS_OFF                                                                                \
    "{ _rollbox_was=$?$-; \\command set +xv; } >/dev/null 2>&1\n\n"                                \
    "{ case ${_rollbox_was=$?} in *v*x* | *x*v*) _rollbox_on=-xv;; *x*) _rollbox_on=-x;; "         \
    "*v*) _rollbox_on=-v;; esac; } >/dev/null 2>&1\n"

/*
 * A shell with -n parses and runs nothing, so it would never tell a status. It meets a syntax error
 * here, which ends it. A shell without -n does not parse that line: bash, which reads its input
 * byte by byte, reads it as data; other shells read ahead, and take the line for a comment by an
 * alias that a shell with -n does not define.
 */
#define NO_EXEC ") # set -n: this shell runs nothing any more, so it ends\n"
#define END_BASH                                                                                   \
    "{ \\builtin read -r _rollbox_skipped; \\builtin unset -v _rollbox_skipped; } >/dev/null "     \
    "2>&1\n" NO_EXEC
#define END_SH                                                                                     \
    "\\command alias _rollbox_skip='#'\n_rollbox_skip " NO_EXEC "\\command unalias "               \
    "_rollbox_skip\n"

static void add_quoted(struct buf *to, const struct buf *text) {
    buf_add_text(to, "'");
    for (size_t i = 0; i < text->length; i++)
        if (text->data[i] == '\'')
            buf_add_text(to, "'\\''");
        else
            buf_add(to, &text->data[i], 1);
    buf_add_text(to, "'");
}

static size_t count_prompts(const struct buf *text, char what) {
    size_t n = 0;

    for (size_t i = 0; i < text->length; i++)
        n += text->data[i] == what;
    return n;
}

static void add_command(struct play_shell *shell, const struct buf *command) {
    const char *fd = status_fd(shell);

    /* An open "$(" at the end of an eval corrupts bash 5.2's heap: another bash is to find it. */
    if (shell->is_bash && count_prompts(command, '(') > count_prompts(command, ')')) {
        buf_add_text(&shell->unsent, "\\command bash -n -c ");
        add_quoted(&shell->unsent, command);
        buf_printf(&shell->unsent, " </dev/null %s>&- && ", fd);
    }
    buf_add_text(&shell->unsent,
        shell->is_bash ? "\\builtin eval '" OPTIONS_ON "'" : "\\command eval '" OPTIONS_ON "'");
    add_quoted(&shell->unsent, command);
    buf_printf(&shell->unsent, " </dev/null %s>&-; ", fd);
    buf_add_text(&shell->unsent, shell->is_bash ? OPTIONS_OFF END_BASH : OPTIONS_OFF END_SH);
    buf_printf(&shell->unsent,
        "{ \\command printf '%%s %%s\\n' %" PRIu64
        " \"${_rollbox_was%%%%[!0-9]*}\" >&%s; } >/dev/null 2>&1\n",
        ++shell->number, fd);
}

static void copy_stream_in(struct play_shell *shell) {
    ssize_t n = write(shell->fds[IN], shell->unsent.data, MIN(shell->unsent.length, (size_t)65536));

    if (n < 0 && errno == EPIPE)
        n = (ssize_t)shell->unsent.length; /* the shell has ended, which is reported next */
    if (n <= 0)
        return;
    memmove(shell->unsent.data, shell->unsent.data + n, shell->unsent.length - (size_t)n);
    shell->unsent.length -= (size_t)n;
}

/* ---- output ---- */

static void keep_output(
    struct play_shell_result *result, int stream, const char *data, size_t length, uint64_t limit) {
    size_t room = limit > result->streams[stream].length
                      ? (size_t)(limit - result->streams[stream].length)
                      : 0;

    result->truncated[stream] |= length > room;
    buf_add(&result->streams[stream], data, MIN(length, room));
}

/* True when the status of the present command has arrived: *ret_status. */
static bool take_status(struct play_shell *shell, int *ret_status) {
    char chunk[MAX_STATUS], wanted[32];
    ssize_t n = read(shell->fds[STATUS], chunk, sizeof chunk);
    bool found = false;
    char *end;

    if (n > 0)
        buf_add(&shell->statuses, chunk, (size_t)n);
    int length = snprintf(wanted, sizeof wanted, "%" PRIu64 " ", shell->number);
    while (shell->statuses.length &&
           (end = memchr(shell->statuses.data, '\n', shell->statuses.length))) {
        size_t line = (size_t)(end - shell->statuses.data);

        *end = '\0';
        if (line > (size_t)length && !memcmp(shell->statuses.data, wanted, (size_t)length) &&
            strspn(shell->statuses.data + length, "0123456789") == line - (size_t)length) {
            *ret_status = atoi(shell->statuses.data + length) & 0xff;
            found = true;
        }
        memmove(shell->statuses.data, end + 1, shell->statuses.length - line - 1);
        shell->statuses.length -= line + 1;
    }
    if (shell->statuses.length > MAX_STATUS)
        shell->statuses.length =
            0; /* a guest that writes there itself gains nothing but its own confusion */
    return found;
}

/* False at its end. */
static bool take_output(
    struct play_shell *shell, int fd, struct play_shell_result *result, uint64_t limit) {
    static char chunk[65536];
    ssize_t n = read(shell->fds[fd], chunk, sizeof chunk);

    if (n > 0)
        keep_output(result, fd - OUT, chunk, (size_t)n, limit);
    return n != 0;
}

/* Reads only the data that is in the pipes now: other processes may continue to write. */
static void drain_output(
    struct play_shell *shell, int fd, struct play_shell_result *result, uint64_t limit) {
    int left = 0;

    (void)ioctl(shell->fds[fd], FIONREAD, &left);
    for (size_t before; left > 0;
         left -= (int)MAX(result->streams[fd - OUT].length - before, (size_t)1)) {
        before = result->streams[fd - OUT].length;
        if (!take_output(shell, fd, result, limit) || result->truncated[fd - OUT])
            return;
    }
}

/* ---- a command ---- */

/* Asks the command to end first, then kills the shell's processes, then the shell. */
static void press_interrupt(
    struct play_shell *shell, struct rollbox_sandbox *sandbox, int64_t since_ns) {
    int64_t past = clock_now_ns() - since_ns;

    if (past < PATIENCE_NS)
        (void)rollbox_signal(sandbox, shell->id, SIGINT, ROLLBOX_SCOPE_TREE, NULL);
    else
        (void)rollbox_signal(sandbox, shell->id, SIGKILL,
            past < 2 * PATIENCE_NS ? ROLLBOX_SCOPE_CHILDREN : ROLLBOX_SCOPE_TREE, NULL);
}

int play_shell_run(struct play_shell *shell, struct rollbox_engine *engine,
    struct rollbox_sandbox *sandbox, const struct buf *command, int64_t timeout_ms, uint64_t limit,
    struct play_shell_result *ret_result, struct rollbox_error *error) {
    const int64_t begun = clock_now_ns();
    const struct rollbox_result *end = NULL;
    struct play_shell_result *result = ret_result;
    bool open[PLAY_SHELL_FDS] = { true, true, true, true }, has_status = false;
    int64_t stopping = 0, pressed = 0;
    int status = 0, r = -ETIMEDOUT;

    *result = (struct play_shell_result){ .outcome = ROLLBOX_OUTCOME_EXIT,
        .streams = { BUF_INIT, BUF_INIT } };
    add_command(shell, command);
    if (buf_failed(&shell->unsent))
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "run", "out of memory");
    while (!has_status && r == -ETIMEDOUT) {
        struct pollfd polls[PLAY_SHELL_FDS + 2] = {
            [PLAY_SHELL_FDS] = { .fd = rollbox_engine_fd(engine), .events = POLLIN },
            [PLAY_SHELL_FDS + 1] = { .fd = signals_fd(), .events = POLLIN }
        };

        for (int i = 0; i < PLAY_SHELL_FDS; i++)
            polls[i] = (struct pollfd){
                .fd = !open[i] || (i == IN && !shell->unsent.length) ? -1 : shell->fds[i],
                .events = i == IN ? POLLOUT : POLLIN
            };
        (void)poll(polls, ARRAY_SIZE(polls), SLICE_MS);
        if (signals_caught())
            return signals_interrupted(error);
        if (polls[IN].revents)
            copy_stream_in(shell);
        for (int i = OUT; i <= ERR; i++)
            if (polls[i].revents)
                open[i] = take_output(shell, i, result, limit);
        if (polls[STATUS].revents)
            has_status = take_status(shell, &status);
        rollbox_dispatch(engine);
        r = rollbox_wait(shell->run, 0, &end);
        int64_t now = clock_now_ns();
        if (!stopping && (result->truncated[0] || result->truncated[1]))
            result->outcome = ROLLBOX_OUTCOME_OUTPUT_LIMIT;
        else if (!stopping && timeout_ms > 0 && now - begun >= timeout_ms * 1000000)
            result->outcome = ROLLBOX_OUTCOME_TIMEOUT;
        if (result->outcome == ROLLBOX_OUTCOME_EXIT || has_status)
            continue;
        stopping = stopping ? stopping : now;
        if (now - pressed >= SLICE_MS * 1000000ll) {
            pressed = now;
            press_interrupt(shell, sandbox, stopping);
        }
    }
    result->wall_ms = (double)(clock_now_ns() - begun) / 1e6;
    if (!has_status)
        has_status = take_status(shell, &status);
    for (int i = OUT; i <= ERR; i++)
        drain_output(shell, i, result, limit);
    if (result->outcome == ROLLBOX_OUTCOME_EXIT && (result->truncated[0] || result->truncated[1]))
        result->outcome = ROLLBOX_OUTCOME_OUTPUT_LIMIT;
    result->ended = r == 0;
    if (r < 0 && r != -ETIMEDOUT)
        return error_set(
            error, ROLLBOX_ERR_INTERNAL, -r, "run", "cannot collect a result: %s", strerror(-r));
    if (!has_status && end->outcome == ROLLBOX_OUTCOME_ERROR) {
        if (error)
            *error = end->error;
        return end->error.error_number ? -end->error.error_number : -EIO;
    }
    if (result->outcome == ROLLBOX_OUTCOME_EXIT && !has_status)
        result->outcome = end->outcome;
    result->exit_code = has_status ? status : end->exit_code;
    result->signal = has_status ? 0 : end->signal;
    return buf_failed(&result->streams[0]) || buf_failed(&result->streams[1])
               ? error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "run", "out of memory")
               : 0;
}
