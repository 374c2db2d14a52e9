/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/terminal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <rollbox/rollbox.h>

#include "base/cleanup.h"
#include "cli/cli.h"

/* Signals that end a process and can be caught, except INT, TERM and HUP: signals.c handles those,
 * and its users restore the terminal before the next signal. */
static const int ending_signals[] = { SIGQUIT, SIGABRT, SIGALRM, SIGUSR1, SIGUSR2, SIGSEGV, SIGBUS,
    SIGILL, SIGFPE, SIGXCPU };

static struct termios before, raw;
static volatile sig_atomic_t is_raw, resized;
static int wake_fd = -EBADF;

struct rollbox_terminal terminal_size(void) {
    struct winsize size;

    for (int fd = 0; fd <= 2; fd++)
        if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_row && size.ws_col)
            return (struct rollbox_terminal){ .rows = size.ws_row, .columns = size.ws_col };
    return (struct rollbox_terminal){ .rows = 24, .columns = 80 };
}

void terminal_restore(void) {
    if (!is_raw)
        return;
    is_raw = 0;
    /* From a process group in the background this would stop us. */
    void (*old)(int) = signal(SIGTTOU, SIG_IGN);
    (void)tcsetattr(STDIN_FILENO, TCSANOW, &before);
    signal(SIGTTOU, old);
}

static void on_end(int number) {
    terminal_restore();
    signal(number, SIG_DFL);
    raise(number);
}

/* The shell that continues when this process is stopped needs its terminal in the old mode; SIGCONT
 * makes it raw again. */
static void on_stop(int number) {
    int saved = errno;

    (void)number;
    if (is_raw)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &before);
    raise(SIGSTOP);
    errno = saved;
}

static void on_resize(int number) {
    int saved = errno;

    /* The process that stopped us may have changed the terminal. */
    if (number == SIGCONT && is_raw)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    resized = 1;
    if (write(wake_fd, "", 1) < 0)
        errno = 0;
    errno = saved;
}

bool terminal_resized(void) {
    bool was = resized;

    resized = 0;
    return was;
}

int terminal_raw(int new_wake_fd) {
    struct sigaction end = { .sa_handler = on_end },
                     resize = { .sa_handler = on_resize, .sa_flags = SA_RESTART };
    struct sigaction stop = { .sa_handler = on_stop, .sa_flags = SA_RESTART };

    if (tcgetattr(STDIN_FILENO, &before) < 0)
        return -errno;
    raw = before;
    cfmakeraw(&raw);
    wake_fd = new_wake_fd;
    if (atexit(terminal_restore) != 0)
        return -ENOMEM;
    for (size_t i = 0; i < ARRAY_SIZE(ending_signals); i++) {
        struct sigaction old;

        if (sigaction(ending_signals[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            sigaction(ending_signals[i], &end, NULL);
    }
    sigaction(SIGWINCH, &resize, NULL);
    sigaction(SIGCONT, &resize, NULL);
    sigaction(SIGTSTP, &stop, NULL);
    is_raw = 1;
    if (tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) < 0) {
        is_raw = 0;
        return -errno;
    }
    return 0;
}

bool cli_colours(int fd) {
    const char *no_colour = getenv("NO_COLOR");

    return (!no_colour || !no_colour[0]) && isatty(fd);
}
