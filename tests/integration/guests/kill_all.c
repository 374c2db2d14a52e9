/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kills every process with one of the newest pids, over and over. Writes a kilobyte to standard
 * output after each time.
 *
 *     kill_all N       with N processes
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#define WINDOW 40
#define LAST_PID 4194304

static char kilobyte[1024];
static pid_t own[64];
static int n_own;

static bool is_own(pid_t pid) {
    for (int i = 0; i < n_own; i++)
        if (own[i] == pid)
            return true;
    return false;
}

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 1;
    pid_t last;

    own[n_own++] = getpid();
    while (n_own < n && n_own < (int)(sizeof own / sizeof own[0])) {
        pid_t pid = fork();

        if (!pid) { /* it knows those that were made before it; the others outnumber it */
            own[n_own++] = getpid();
            n = 0;
            break;
        }
        own[n_own++] = pid;
    }
    last = own[n_own - 1] + 8;
    for (;;) {
        for (pid_t pid = last; pid < last + WINDOW && pid < LAST_PID; pid++)
            if (!is_own(pid) && kill(pid, SIGKILL) == 0)
                last = pid;
        if (n && write(1, kilobyte, sizeof kilobyte) < 0)
            return 0;
    }
}
