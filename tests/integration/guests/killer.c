/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kills a process between two of its system calls, which are all that others see of it.
 *
 *     killer PARENT NAME N
 *
 * kills the next child of PARENT that calls itself NAME (*: any name),
 *
 *     killer PROCESS - N
 *
 * kills PROCESS itself, and
 *
 *     killer PARENT + 0
 *
 * kills none, but stops the children of PARENT at their start.
 *
 * Prints "ready" once it watches. From then on the target stops before and after each system call.
 * At stop number N it is killed, and "killed at N" is printed; or "ended after M" if it had fewer.
 * At the end of its input the killer releases all processes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static int fail(const char *what) {
    fprintf(stderr, "killer: %s: %s\n", what, strerror(errno));
    return 1;
}

static int is_called(pid_t pid, const char *name) {
    char path[64], text[64] = "";
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    file = fopen(path, "re");
    if (!file)
        return 0;
    if (!fgets(text, sizeof text, file))
        text[0] = '\0';
    fclose(file);
    text[strcspn(text, "\n")] = '\0';
    return !strcmp(text, name);
}

static pid_t parent, quarry;
static const char *name;
static long wanted, seen;

/* A stop: on it goes, as what it is. True: the quarry has been killed. */
static int resumed(pid_t pid, int status) {
    int number = WSTOPSIG(status), event = status >> 16;
    int is_call = number == (SIGTRAP | 0x80);

    if (!quarry && pid != parent && is_call && (!strcmp(name, "*") || is_called(pid, name)))
        quarry = pid;
    if (pid == quarry && is_call && seen++ == wanted) {
        (void)kill(pid, SIGKILL);
        printf("killed at %ld\n", wanted);
        return 1;
    }
    if (pid != parent && !strcmp(name, "+"))
        return 0;
    /* A new child begins with a stop that is none of its own. */
    (void)ptrace(pid == parent && quarry != parent ? PTRACE_CONT : PTRACE_SYSCALL, pid, 0,
        event || is_call || number == SIGSTOP ? 0 : number);
    return 0;
}

static int take_line(void) {
    char byte;

    return read(0, &byte, 1) == 1;
}

int main(int argc, char **argv) {
    long options =
        PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_TRACESYSGOOD;
    struct pollfd input = { .fd = 0, .events = POLLIN };
    pid_t pid;
    int status;

    if (argc != 4)
        return 2;
    parent = atoi(argv[1]);
    name = argv[2];
    wanted = atol(argv[3]);
    if (!strcmp(name, "-"))
        quarry = parent;
    if (!strcmp(name, "+"))
        options = PTRACE_O_TRACEFORK; /* its children continue */
    if (ptrace(PTRACE_SEIZE, parent, 0, quarry ? PTRACE_O_TRACESYSGOOD : options) < 0)
        return fail("PTRACE_SEIZE");
    if (quarry && ptrace(PTRACE_INTERRUPT, parent, 0, 0) < 0)
        return fail("PTRACE_INTERRUPT");
    puts("ready");
    fflush(stdout);
    for (;;) {
        pid = waitpid(-1, &status, __WALL | WNOHANG);
        if (pid < 0)
            break;
        if (pid == 0) {
            if (poll(&input, 1, 1) > 0 && !take_line())
                break;
            continue;
        }
        if (WIFSTOPPED(status) ? resumed(pid, status) : pid == quarry) {
            if (!WIFSTOPPED(status))
                printf("ended after %ld\n", seen);
            fflush(stdout);
            return 0;
        }
    }
    printf("let go after %ld\n", seen);
    fflush(stdout);
    return 0;
}
