/* SPDX-License-Identifier: Apache-2.0 */
/* The guest of test_session_security.py in sessions: it disturbs init, its own process tree,
 * commands beside it, or the copying of its files. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static int failures;

static void refused(const char *what, long r) {
    if (r >= 0) {
        printf("%s was not refused\n", what);
        failures++;
    }
}

#define REFUSED(call) refused(#call, (long)(call))

static void say(const char *text) {
    puts(text);
    fflush(stdout);
}

static int bother_init(void) {
    static const char *const closed[] = { "mem", "environ", "maps", "auxv", "fd", "fdinfo",
        "map_files", "root/", "cwd/", "exe", "ns/mnt", "syscall", "stack", "pagemap", "io", NULL };
    static const char *const fixed[] = { "oom_score_adj", "comm", "coredump_filter",
        "timerslack_ns", "autogroup", "clear_refs", "attr/current", NULL };
    char bytes[64], path[64];
    struct iovec ours = { bytes, sizeof bytes }, theirs = { (void *)0x400000, sizeof bytes };
    struct rlimit none = { 0, 0 };
    struct sched_param parameter = { 0 };
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(0, &one);
    REFUSED(ptrace(PTRACE_ATTACH, 1, 0, 0));
    REFUSED(ptrace(PTRACE_SEIZE, 1, 0, 0));
    REFUSED(syscall(SYS_ptrace, PTRACE_SEIZE, 1L << 32 | 1, 0, 0));
    REFUSED(process_vm_readv(1, &ours, 1, &theirs, 1, 0));
    REFUSED(process_vm_writev(1, &ours, 1, &theirs, 1, 0));
    REFUSED(syscall(SYS_kcmp, 1, getpid(), 0, 0, 0));
    REFUSED(syscall(SYS_pidfd_getfd, (int)syscall(SYS_pidfd_open, 1, 0), 3, 0));
    REFUSED(syscall(SYS_prlimit64, 1, RLIMIT_NOFILE, &none, NULL));
    REFUSED(setpriority(PRIO_PROCESS, 1, 19));
    REFUSED(setpriority(PRIO_USER, 0, 19));
    REFUSED(syscall(SYS_sched_setscheduler, 1, SCHED_IDLE, &parameter));
    /* Succeeds, and does nothing. */
    cpu_set_t before, after;
    (void)sched_getaffinity(1, sizeof before, &before);
    (void)sched_setaffinity(1, sizeof one, &one);
    refused("sched_setaffinity",
        sched_getaffinity(1, sizeof after, &after) == 0 && CPU_EQUAL(&before, &after) ? -1 : 0);
    REFUSED(syscall(SYS_ioprio_set, 1, 1, 3 << 13));
    REFUSED(syscall(SYS_ioprio_set, 3, 0, 3 << 13));
    REFUSED(syscall(SYS_migrate_pages, 1, 0, NULL, NULL));
    REFUSED(syscall(SYS_move_pages, 1, 0, NULL, NULL, NULL, 0));
    for (size_t i = 0; closed[i]; i++) {
        snprintf(path, sizeof path, "/proc/1/%s", closed[i]);
        int fd = open(path, O_RDONLY);
        refused(path, fd < 0 ? -1 : read(fd, bytes, sizeof bytes));
    }
    for (size_t i = 0; fixed[i]; i++) {
        snprintf(path, sizeof path, "/proc/1/%s", fixed[i]);
        refused(path, open(path, O_WRONLY));
    }
    REFUSED(prctl(PR_SET_CHILD_SUBREAPER, 0));
    REFUSED(syscall(SYS_prctl, 1UL << 32 | PR_SET_CHILD_SUBREAPER, 0));
    REFUSED(syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0));
    REFUSED(syscall(SYS_clone, 1UL << 40 | CLONE_PARENT | SIGCHLD, 0, 0, 0, 0));
    for (int number = 1; number < 65; number++)
        (void)kill(1, number);
    int queued = 0;
    while (queued < 200000 && sigqueue(1, SIGRTMAX, (union sigval){ 0 }) == 0)
        queued++;
    refused("a thousand signals in init's queue", queued < 1000 ? -1 : 0);
    return failures;
}

/* As soon as the main process stands, another of its tree kills it. */
_Noreturn static void leave_the_tree(int top) {
    char path[64], text[256];
    const char *state;

    for (int i = 0; i < 20; i++)
        if (fork() == 0)
            for (;;)
                pause();
    if (fork())
        for (;;)
            pause();
    setsid();
    snprintf(path, sizeof path, "/proc/%d/stat", top);
    int fd = open(path, O_RDONLY);
    say("ready");
    for (;;) {
        ssize_t n = pread(fd, text, sizeof text - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        if (n <= 0 || ((state = strrchr(text, ')')) && state[2] == 'T'))
            break;
    }
    kill(top, SIGKILL);
    for (;;)
        pause();
}

/* Kills every process that starts after this one. */
_Noreturn static void shoot(void) {
    int me = getpid();

    say("ready");
    for (;;)
        for (int pid = me + 1; pid < me + 1000; pid++)
            kill(pid, SIGKILL);
}

static void nothing(int number) {
    (void)number;
}

static void *stir(void *number) {
    char d[32], e[32], f[40];

    snprintf(d, sizeof d, "/tmp/t/d%d", *(int *)number);
    snprintf(e, sizeof e, "/tmp/t/e%d", *(int *)number);
    snprintf(f, sizeof f, "%s/f", d);
    for (;;) {
        mkdir(d, 0755);
        close(open(f, O_WRONLY | O_CREAT, 0644));
        rename(d, "/tmp/u/d");
        rename("/tmp/u/d", e);
        (void)!symlink("/etc", d);
        unlink(d);
        mkfifo(d, 0600);
        unlink(d);
        rename(e, d);
        unlink(f);
        (void)!symlink("/etc/passwd", f);
        unlink(f);
        rmdir(d);
    }
    return NULL;
}

/* Continues itself when it is stopped, by timers that send SIGCONT, and changes files that are
 * being copied. */
static int move_on(void) {
    static int numbers[2] = { 0, 1 };
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGCONT };
    pthread_t thread;
    char path[32];
    timer_t timer;

    signal(SIGCONT, nothing);
    mkdir("/tmp/t", 0755);
    mkdir("/tmp/u", 0755);
    for (int i = 0; i < 1000; i++) {
        snprintf(path, sizeof path, "/tmp/t/x%d", i);
        close(open(path, O_WRONLY | O_CREAT, 0644));
    }
    for (int i = 1; i <= 400; i++) {
        struct itimerspec when = { { 4, 0 }, { i / 100, i % 100 * 10000000 } };
        if (timer_create(CLOCK_MONOTONIC, &event, &timer) < 0 ||
            timer_settime(timer, 0, &when, NULL) < 0)
            return 1;
    }
    pthread_create(&thread, NULL, stir, &numbers[0]);
    say("ready");
    stir(&numbers[1]);
    return 1;
}

/* What overlays read, on a file system that is none. */
static int mark(void) {
    mkdir("/tmp/d", 0755);
    close(open("/tmp/d/hidden", O_WRONLY | O_CREAT, 0644));
    close(open("/tmp/d/other", O_WRONLY | O_CREAT, 0644));
    mkdir("/tmp/d/sub", 0755);
    setxattr("/tmp/d", "user.overlay.opaque", "x", 1, 0);
    setxattr("/tmp/d/hidden", "user.overlay.whiteout", "y", 1, 0);
    setxattr("/tmp/d/sub", "user.overlay.redirect", "/../../etc", 10, 0);
    setxattr("/tmp/d/other", "user.overlay.metacopy", "", 0, 0);
    setxattr("/tmp/d/other", "user.overlay.redirect", "/../p1/secret", 13, 0);
    REFUSED(setxattr("/tmp/d/sub", "trusted.overlay.opaque", "y", 1, 0));
    REFUSED(mknod("/tmp/d/w", S_IFCHR | 0600, 0));
    REFUSED(syscall(SYS_renameat2, AT_FDCWD, "/tmp/d/hidden", AT_FDCWD, "/tmp/d/away",
        4 /* RENAME_WHITEOUT */));
    return failures;
}

static void *fork_here(void *unused) {
    (void)unused;
    if (fork() == 0)
        execl("/proc/self/exe", "hidden", "rest", NULL);
    say("ready");
    for (;;)
        pause();
    return NULL;
}

_Noreturn static void rest(void) {
    for (;;)
        pause();
}

/* A child of a thread that is not the first. */
static int hide(void) {
    pthread_t thread;

    return pthread_create(&thread, NULL, fork_here, NULL) || pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";

    if (!strcmp(what, "init"))
        return bother_init();
    if (!strcmp(what, "leave"))
        leave_the_tree(getpid());
    if (!strcmp(what, "shoot"))
        shoot();
    if (!strcmp(what, "hide"))
        return hide();
    if (!strcmp(what, "rest"))
        rest();
    if (!strcmp(what, "move"))
        return move_on();
    return !strcmp(what, "mark") ? mark() : 2;
}
