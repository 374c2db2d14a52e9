/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "cli/terminal.h"

#define MAX_SECONDS 5 /* the time from the first signal on for the remaining work */

static const int caught_signals[] = { SIGINT, SIGTERM, SIGHUP };
static int wake_fd = -EBADF, ready_fd = -EBADF;
static volatile sig_atomic_t first;

static void handle_signal(int number) {
    int saved = errno;

    if (!first) {
        first = number;
        (void)alarm(MAX_SECONDS);
    }
    /* The pipe only has to be readable: a full one is. */
    if (write(wake_fd, "", 1) < 0)
        errno = 0;
    errno = saved;
}

/* The awaited event may never come: the engine's answer, or the end of a command that cannot be
 * killed. */
static void on_overdue(int number) {
    (void)number;
    terminal_restore();
    signals_die(first);
}

int signals_catch(void) {
    struct sigaction action = { .sa_handler = handle_signal,
        .sa_flags = (int)(SA_RESTART | SA_RESETHAND) };
    struct sigaction overdue = { .sa_handler = on_overdue };
    int fds[2];

    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    wake_fd = fds[1];
    ready_fd = fds[0];
    for (size_t i = 0; i < ARRAY_SIZE(caught_signals); i++) {
        struct sigaction old;

        /* Signals that the caller has set to be ignored (nohup) stay ignored. */
        if (sigaction(caught_signals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(caught_signals[i], &action, NULL);
    }
    sigaction(SIGALRM, &overdue, NULL);
    signal(SIGPIPE, SIG_IGN);
    return fds[0];
}

int signals_fd(void) {
    return ready_fd;
}

int signals_caught(void) {
    return first;
}

int signals_interrupted(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_CANCELLED, EINTR, "run", "interrupted");
}

_Noreturn void signals_die(int number) {
    sigset_t set;

    signal(number, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, number);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    raise(number);
    _exit(128 + number);
}
