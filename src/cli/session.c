/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the shared engine and a sandbox on it; rollbox create. session.h has the model. */
#include "base/text.h"
#include "cli/session.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/outcome.h"
#include "cli/policy.h"
#include "cli/record.h"
#include "cli/signals.h"

#define AUTO_KEEP 16
#define MAX_AUTO_KEEP 100000

/* Where an engine is a private one otherwise, as in rollbox run, only --engine names it. */
static const char *given_socket(const struct options *options) {
    const char *given = options_text(options, OPTION_SOCKET);

    return given ? given : options_text(options, OPTION_ENGINE);
}

/* Whether the user is the owner of this directory: a variable may have come along from another
 * user's session (su, sudo -E). */
static bool is_our_directory(const char *path) {
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid();
}

/* A directory for the socket if the system has none for this user: /tmp/rollbox-UID, the same in
 * every terminal. Any user can create the name in /tmp first, so the directory has to belong to
 * this user, and only this user may access it. In a sticky directory no other user can rename or
 * remove it then. */
static int private_directory(const struct options *options, const char *path) {
    struct stat st;

    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return cli_fail(options,
            "cannot make %s for the engine's socket: %s; name a socket by --socket or "
            "ROLLBOX_SOCKET",
            path, strerror(errno));
    if (lstat(path, &st) < 0)
        return cli_fail(options,
            "cannot look at %s, where the engine's socket would be: %s; name a socket by --socket "
            "or ROLLBOX_SOCKET",
            path, strerror(errno));
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
        return cli_fail(options,
            "%s is not a directory that belongs to this user alone (mode 0700), so no engine's "
            "socket is used there; remove it, or name a socket by --socket or ROLLBOX_SOCKET",
            path);
    return 0;
}

int session_socket(const struct options *options, char **ret_path) {
    const char *given = given_socket(options), *variable = getenv("ROLLBOX_SOCKET"),
               *runtime = getenv("XDG_RUNTIME_DIR");
    auto_buf struct buf path = BUF_INIT;
    int status = 0;

    if (given) {
        buf_add_text(&path, given);
    } else if (variable && variable[0]) {
        buf_add_text(&path, variable);
    } else if (runtime && runtime[0] == '/' && is_our_directory(runtime)) {
        buf_printf(&path, "%s/rollbox.sock", runtime);
    } else if (geteuid() == 0 && access("/run", W_OK) == 0) {
        buf_add_text(&path, "/run/rollbox.sock");
    } else {
        buf_printf(&path, "/run/user/%u", (unsigned)geteuid());
        if (!buf_failed(&path) && !is_our_directory(path.data)) {
            path.length = 0;
            buf_printf(&path, "/tmp/rollbox-%u", (unsigned)geteuid());
            if (!buf_failed(&path))
                status = private_directory(options, path.data);
        }
        buf_add_text(&path, "/rollbox.sock");
    }
    if (status)
        return status;
    *ret_path = buf_take(&path);
    return *ret_path ? 0 : cli_fail(options, "out of memory");
}

int session_connect(const struct options *options, struct rollbox_engine **ret_engine) {
    struct rollbox_engine_options engine_options = { .size = sizeof engine_options };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_free char *path = NULL;

    int status = session_socket(options, &path);
    if (status)
        return status;
    engine_options.socket_path = path;
    if (rollbox_engine_open(&engine_options, ret_engine, &error) >= 0)
        return 0;
    if (error.code != ROLLBOX_ERR_ENGINE_LOST ||
        (error.error_number != ENOENT && error.error_number != ECONNREFUSED))
        return cli_fail_error(options, &error);
    /* The hint names the socket only where it is not the one that engine start finds by itself. */
    const char *given = given_socket(options);
    return cli_fail_code(options, ROLLBOX_ERR_ENGINE_LOST,
        "no engine serves %s; start one with: rollbox engine start --background%s%s, or name "
        "another socket by --socket or ROLLBOX_SOCKET",
        path, text_if(given, " --socket "), text_or(given, ""));
}

int session_open(const struct options *options, struct rollbox_engine **ret_engine,
    struct rollbox_sandbox **ret_sandbox) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rollbox_engine *engine;

    int status = session_connect(options, &engine);
    if (status)
        return status;
    if (rollbox_sandbox_open(engine, options->rest[0], ret_sandbox, &error) < 0) {
        rollbox_engine_close(engine);
        return cli_fail_error(options, &error);
    }
    *ret_engine = engine;
    return 0;
}

/* ---- create ---- */

static int64_t milliseconds_of(const struct options *options, enum option_id id) {
    const struct option_use *use = options_last(options, id);

    if (!use)
        return 0;
    /* A ten-thousandth of a second is still not "never". */
    return use->number >= 1e12 ? INT64_C(1000000000000000) / 1000
                               : MAX((int64_t)(use->number * 1000), (int64_t)1);
}

/* Waits for a signal or the end of input: the sandbox belongs to this process and ends with the
 * connection. */
static int hold_sandbox(const struct options *options, struct rollbox_engine *engine) {
    char drop[4096];
    int signal_fd = signals_catch();

    if (signal_fd < 0)
        return cli_fail(options, "cannot make a pipe: %s", strerror(-signal_fd));
    for (;;) {
        struct pollfd polls[3] = {
            { .fd = STDIN_FILENO, .events = POLLIN },
            { .fd = signal_fd, .events = POLLIN },
            { .fd = rollbox_engine_fd(engine), .events = POLLIN },
        };

        if (poll(polls, ARRAY_SIZE(polls), -1) < 0)
            continue;
        if (polls[1].revents)
            return 0;
        if (polls[2].revents && rollbox_dispatch(engine) == -ENOTCONN)
            return cli_fail(options, "the engine ended, and the sandbox with it");
        if (polls[0].revents) {
            ssize_t n = read(STDIN_FILENO, drop, sizeof drop);

            if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
                return 0;
        }
    }
}

/* The number of automatic snapshots that are kept; 0: none is taken. */
static int auto_snapshots(const struct options *options, unsigned *ret_n) {
    const struct option_use *keep = options_last(options, OPTION_AUTO_KEEP);
    const char *when = options_text(options, OPTION_AUTO_SNAPSHOT);
    bool is_on = when && !strcmp(when, "changed");

    if (keep && (!is_on || keep->count < 1 || keep->count > MAX_AUTO_KEEP))
        return cli_fail(options,
            is_on ? "--auto-keep %s: must be from 1 to %d"
                  : "--auto-keep %s: is for --auto-snapshot changed",
            keep->value, MAX_AUTO_KEEP);
    *ret_n = 0;
    if (is_on)
        *ret_n = keep ? (unsigned)keep->count : AUTO_KEEP;
    return 0;
}

static int create_sandbox(
    const struct options *options, struct rollbox_engine *engine, const struct cli_policy *policy) {
    struct rollbox_sandbox_options sandbox_options = {
        .size = sizeof sandbox_options,
        .name = options_text(options, OPTION_NAME),
        .detached = !options_has(options, OPTION_NO_DETACH),
        .idle_ms = milliseconds_of(options, OPTION_IDLE),
        .ttl_ms = milliseconds_of(options, OPTION_TTL),
        .lifetime_ms = milliseconds_of(options, OPTION_LIFETIME),
        .hibernate_ms = milliseconds_of(options, OPTION_HIBERNATE_AFTER),
    };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rollbox_sandbox *sandbox = NULL;
    struct rollbox_plan *plan;

    if (auto_snapshots(options, &sandbox_options.auto_snapshots))
        return CLI_EXIT_ERROR;
    if (rollbox_prepare(engine, policy->text, policy->length, &plan, &error) < 0 ||
        rollbox_sandbox_create(engine, plan, &sandbox_options, &sandbox, &error) < 0 ||
        record_kept(options, sandbox, &error) < 0) {
        (void)rollbox_sandbox_close(sandbox, NULL);
        return outcome_fail(options, &error);
    }
    /* Names need no escaping. */
    printf(options_has(options, OPTION_JSON) ? "{\"name\": \"%s\"}\n" : "%s\n",
        rollbox_sandbox_name(sandbox));
    int status = cli_flush(options, 0);
    /* A sandbox would be unknown if its name could not be written, as to a full disk. */
    if (status)
        (void)rollbox_sandbox_close(TAKE_PTR(sandbox), NULL);
    else if (!sandbox_options.detached)
        status = hold_sandbox(options, engine);
    rollbox_sandbox_free(sandbox);
    return status;
}

int cmd_create(const struct options *options) {
    struct rollbox_engine *engine;
    struct cli_policy policy;

    int status = cli_policy_given(options, &policy);
    if (status)
        return status;
    status = session_connect(options, &engine);
    if (!status) {
        status = create_sandbox(options, engine, &policy);
        rollbox_engine_close(engine);
    }
    cli_policy_done(&policy);
    return cli_end(status);
}
