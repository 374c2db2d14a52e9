/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What test_live_security.py runs in sandboxes that are captured: `captive WHAT` brings itself into
 * a state that is awkward, says "ready" and then answers each line on its standard input with what
 * became of it. Raw calls where a library would do something else.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GIB (1ull << 30)
#define LAST 0x3ff000ul /* where a restored process has a page that no other has */

static char answer[200] = "as it was";

static void say(const char *text) {
    puts(text);
    fflush(stdout);
}

static void must(int condition, const char *what) {
    if (condition)
        return;
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

_Noreturn static void serve(void (*look)(void)) {
    char line[64];

    say("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (look)
            look();
        say(answer);
    }
    exit(0);
}

static int is_restored(void) {
    unsigned char there;

    return mincore((void *)LAST, 4096, &there) == 0;
}

/* ---- signals ---- */

static volatile sig_atomic_t handled, handled_early;

/* Counts what was there that should not be, without a library: it may run where there is none. */
static void on_early_signal(int number) {
    char c;

    (void)number;
    handled++;
    for (long fd = 3; fd < 64; fd++) {
        long r;
        __asm__ volatile("syscall"
                         : "=a"(r)
                         : "a"(SYS_fcntl), "D"(fd), "S"(F_GETFD)
                         : "rcx", "r11", "memory");
        handled_early += r >= 0;
    }
    (void)c;
}

struct raw_action {
    void *handler;
    unsigned long flags;
    void *restorer;
    uint64_t mask;
};

__asm__("restore_frame: mov $15, %eax\n syscall\n");
extern char restore_frame[];

static void raw_handler(int number, void (*handler)(int)) {
    struct raw_action action = { (void *)handler, 0x04000000 /* SA_RESTORER */, restore_frame, 0 };

    must(syscall(SYS_rt_sigaction, number, &action, NULL, 8) == 0, "rt_sigaction");
}

static void raw_mask(int how, uint64_t mask) {
    must(syscall(SYS_rt_sigprocmask, how, &mask, NULL, 8) == 0, "rt_sigprocmask");
}

static void look_at_early(void) {
    int before = handled;

    raw_mask(SIG_SETMASK, 0);
    snprintf(answer, sizeof answer, "before %d, after %d, early %d", before, (int)handled,
        (int)handled_early);
}

/* All that can wait do, those that a C library keeps for itself included. */
static void signals_pending(void) {
    raw_mask(SIG_SETMASK, ~0ull);
    for (int number = 1; number <= 64; number++)
        if (number != SIGKILL && number != SIGSTOP && number != SIGCONT && number != SIGTSTP &&
            number != SIGTTIN && number != SIGTTOU) {
            raw_handler(number, on_early_signal);
            must(syscall(SYS_kill, getpid(), number) == 0, "kill");
        }
    serve(look_at_early);
}

/* A timer that would stop or kill it. */
static void timer_of(int number, long ns) {
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = number };
    struct itimerspec when = { { 0, ns }, { 0, ns } };
    timer_t timer;

    if (fork() != 0)
        serve(NULL);
    must(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 &&
             timer_settime(timer, 0, &when, NULL) == 0,
        "timer");
    event.sigev_signo = SIGCONT;
    must(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 &&
             timer_settime(timer, 0, &when, NULL) == 0,
        "timer");
    for (;;)
        pause();
}

/* ---- filters ---- */

static void own_filter(uint32_t verdict) {
    static const uint32_t calls[] = { SYS_rt_sigaction, SYS_brk, SYS_prctl, SYS_sigaltstack,
        SYS_getitimer };
    struct sock_filter code[20] = { BPF_STMT(
        BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)) };
    unsigned short n = 1;

    setvbuf(stdin, NULL, _IONBF, 0);
    say("before");
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, verdict);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = { n, code };
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "seccomp");
    serve(NULL);
}

static volatile char selector;

static void dispatch(void) {
    static char line[64];

    say("before");
    must(prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, 0x400000, 0x1000000, &selector) == 0,
        "dispatch");
    say("ready");
    selector = 1; /* calls from elsewhere than this program are answered by a signal */
    while (fgets(line, sizeof line, stdin))
        say(answer);
    exit(0);
}

/* ---- memory ---- */

static uintptr_t vdso_start, vdso_end;

static void find_vdso(void) {
    char line[256];
    FILE *maps = fopen("/proc/self/maps", "re");

    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "[vdso]"))
            must(sscanf(line, "%lx-%lx", &vdso_start, &vdso_end) == 2, "maps");
    fclose(maps);
    must(vdso_end != 0, "vdso");
}

static void no_vdso(int protection) {
    find_vdso();
    must((protection < 0 ? munmap((void *)vdso_start, vdso_end - vdso_start)
                         : mprotect((void *)vdso_start, vdso_end - vdso_start, protection)) == 0,
        "vdso");
    serve(NULL);
}

/* Every `syscall` of the vDSO becomes something else, and one in its data is the only one left. */
static void own_vdso(void) {
    find_vdso();
    must(mprotect((void *)vdso_start, vdso_end - vdso_start, PROT_READ | PROT_WRITE | PROT_EXEC) ==
             0,
        "vdso");
    unsigned char *code = (void *)vdso_start;
    for (size_t i = 0; i + 1 < vdso_end - vdso_start; i++)
        if (code[i] == 0x0f && code[i + 1] == 0x05) {
            code[i] = 0xcd; /* int $0x80 */
            code[i + 1] = 0x80;
        }
    serve(NULL);
}

static void reservations(uint64_t length) {
    uint64_t had = 0;

    for (uint64_t size = length; size >= GIB; size /= 2)
        while (had + size <= length &&
               mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) !=
                   MAP_FAILED)
            had += size;
    must(had >= length / 4, "reservations");
    serve(NULL);
}

/* Something in every GiB where a region could be. */
static void everywhere(unsigned n) {
    for (uint64_t i = 0; i < n; i++)
        must(mmap((void *)(0x200000000000ull + i * GIB), 4096,
                 i % 2 ? PROT_READ | PROT_WRITE : PROT_READ,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1,
                 0) != MAP_FAILED,
            "mmap");
    serve(NULL);
}

static void sparse(uint64_t every) {
    int fd = memfd_create("sparse\npos:\t7 (deleted)", 0);

    if (fd < 0)
        fd = open("/tmp", O_TMPFILE | O_RDWR,
            0600); /* where memory files are denied, as nothing counts them */
    must(fd >= 0 && ftruncate(fd, (off_t)(100 * GIB)) == 0, "memfd");
    for (uint64_t at = 0; at < 8192 * every; at += every)
        must(pwrite(fd, "x", 1, (off_t)at) == 1, "pwrite");
    serve(NULL);
}

static void many_mappings(unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        must(page != MAP_FAILED, "mmap");
        *page = 1;
        must(mprotect(page + 4096, 4096, PROT_NONE) == 0, "mprotect");
    }
    serve(NULL);
}

/* ---- descriptors ---- */

static void many_descriptors(int n) {
    for (int i = 3; i < n; i++)
        if (dup2(0, i) < 0)
            break;
    serve(NULL);
}

/* What it watches has another number by now, or none. */
static void stale_epoll(int again) {
    int epoll = epoll_create1(0), event = eventfd(0, 0), kept = dup(event);
    struct epoll_event wanted = { .events = EPOLLIN, .data.u64 = 7 };

    must(epoll_ctl(epoll, EPOLL_CTL_ADD, event, &wanted) == 0, "epoll");
    close(event);
    if (again)
        must(open("/dev/null", O_RDWR) == event, "open");
    (void)kept;
    serve(NULL);
}

/* A child has the epoll of its parent, and of what that watches nothing. */
static void epoll_in_child(void) {
    int epoll = epoll_create1(0), event = eventfd(0, 0);
    struct epoll_event wanted = { .events = EPOLLIN, .data.u64 = 7 };

    must(epoll_ctl(epoll, EPOLL_CTL_ADD, event, &wanted) == 0, "epoll");
    if (fork() == 0) {
        close(event);
        for (;;)
            pause();
    }
    serve(NULL);
}

static void written_only(const char *path) {
    must(open(path, O_WRONLY) >= 0, path);
    must(unlink(path) == 0, path);
    serve(NULL);
}

/* ---- processes ---- */

/* As soon as it is another's copy, it kills all others. */
static void kill_others(void) {
    for (int i = 0; i < 20; i++)
        if (fork() == 0)
            for (;;)
                pause();
    if (fork() == 0)
        for (;;)
            if (is_restored()) {
                kill(-1, SIGKILL);
                _exit(0);
            }
    serve(NULL);
}

static void *spin(void *unused) {
    for (;;)
        ;
    return unused;
}

static void forks_all_the_time(void) {
    for (int i = 0; i < 3; i++)
        if (fork() == 0)
            for (;;) {
                pid_t pid = fork();
                if (pid == 0)
                    _exit(0);
                if (pid > 0)
                    waitpid(pid, NULL, 0);
            }
    serve(NULL);
}

static void chain(void) {
    if (fork() == 0) {
        for (;;)
            if (fork() != 0)
                _exit(0); /* its child continues */
    }
    serve(NULL);
}

static void executes_all_the_time(const char *self) {
    if (fork() == 0)
        execl(self, self, "execute", NULL);
    serve(NULL);
}

static void stops_and_goes(void) {
    pid_t other = fork();

    if (other == 0)
        for (;;)
            ;
    if (fork() == 0)
        for (;;) {
            kill(other, SIGSTOP);
            kill(other, SIGCONT);
        }
    serve(NULL);
}

static void traces(void) {
    pid_t other = fork();

    if (other == 0)
        for (;;)
            pause();
    must(ptrace(PTRACE_SEIZE, other, 0, 0) == 0, "ptrace");
    serve(NULL);
}

static void waits_in_vfork(void) {
    int ends[2];
    char c;

    must(pipe(ends) == 0, "pipe");
    if (fork() == 0) {
        if (vfork() == 0) {
            (void)!write(ends[1], "x", 1);
            for (;;)
                pause();
        }
        _exit(0);
    }
    must(read(ends[0], &c, 1) == 1, "pipe");
    serve(NULL);
}

static void names(void) {
    static const char *const odd[] = { "a) S 1 1 1 1", "Pid:\t1\nNSpid:\t1", "\n\nSigCgt:\t1",
        "((((()))))", "]\n[vdso]" };

    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++)
        if (fork() == 0) {
            prctl(PR_SET_NAME, odd[i]);
            for (;;)
                pause();
        }
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        char path[100] = "/tmp/";

        for (const char *from = odd[i], *end = (strcat(path, ""), from + strlen(from)); from < end;
             from++)
            path[strlen(path)] = *from == '/' ? '_' : *from;
        int fd = open(path, O_RDWR | O_CREAT, 0600);
        must(fd >= 0 && ftruncate(fd, 8192) == 0, path);
        must(mmap(NULL, 8192, PROT_READ | PROT_WRITE, i % 2 ? MAP_SHARED : MAP_PRIVATE, fd, 0) !=
                 MAP_FAILED,
            path);
    }
    serve(NULL);
}

/* 32-bit code, which tells that it runs and goes round in a circle. */
static void narrow(void) {
    static const unsigned char program[] = { 0xc6, 0x05, 0x00, 0x20, 0x00, 0x10,
        0x01,         /* movb $1, 0x10002000 */
        0xeb, 0xfe }; /* jmp to itself */
    unsigned char *code = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    volatile unsigned char *runs = mmap((void *)0x10002000, 4096, PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

    must(code != MAP_FAILED && runs != MAP_FAILED, "mmap");
    memcpy(code, program, sizeof program);
    pid_t child = fork();
    if (child == 0)
        /* clang-format off */
        __asm__ volatile("mov $0x10001000, %%rsp\n"
                         "mov $0x2b, %%eax\n"
                         "mov %%eax, %%ds\n"
                         "push $0x23\n"
                         "push $0x10000000\n"
                         "lretq\n" ::: "rax", "memory");
    /* clang-format on */
    while (!*runs)
        sched_yield();
    serve(NULL);
}

static void flags_of(uint64_t flags) {
    if (fork() == 0)
        /* clang-format off */
        __asm__ volatile("pushf\n"
                         "or %0, (%%rsp)\n"
                         "popf\n"
                         "1: jmp 1b\n" ::"r"(flags) : "memory");
    /* clang-format on */
    serve(NULL);
}

static void *quiet(void *unused) {
    for (;;)
        pause();
    return unused;
}

static void threads(int n) {
    pthread_t thread;

    for (int i = 0; i < n; i++)
        must(pthread_create(&thread, NULL, i % 2 ? quiet : spin, NULL) == 0, "pthread_create");
    serve(NULL);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";

    if (!strcmp(what, "pending"))
        signals_pending();
    if (!strcmp(what, "stop"))
        timer_of(SIGSTOP, 1);
    if (!strcmp(what, "stop-slow"))
        timer_of(SIGSTOP, 1000000);
    if (!strcmp(what, "filter-kill"))
        own_filter(SECCOMP_RET_KILL_PROCESS);
    if (!strcmp(what, "filter-trap"))
        own_filter(SECCOMP_RET_TRAP);
    if (!strcmp(what, "filter-errno"))
        own_filter(SECCOMP_RET_ERRNO);
    if (!strcmp(what, "dispatch"))
        dispatch();
    if (!strcmp(what, "no-vdso"))
        no_vdso(-1);
    if (!strcmp(what, "closed-vdso"))
        no_vdso(PROT_NONE);
    if (!strcmp(what, "read-vdso"))
        no_vdso(PROT_READ);
    if (!strcmp(what, "own-vdso"))
        own_vdso();
    if (!strcmp(what, "reserve"))
        reservations(strtoull(argv[2], NULL, 10) * GIB);
    if (!strcmp(what, "everywhere"))
        everywhere((unsigned)atoi(argv[2]));
    if (!strcmp(what, "sparse"))
        sparse(strtoull(argv[2], NULL, 10));
    if (!strcmp(what, "mappings"))
        many_mappings((unsigned)atoi(argv[2]));
    if (!strcmp(what, "descriptors"))
        many_descriptors(atoi(argv[2]));
    if (!strcmp(what, "stale-epoll"))
        stale_epoll(0);
    if (!strcmp(what, "reused-epoll"))
        stale_epoll(1);
    if (!strcmp(what, "child-epoll"))
        epoll_in_child();
    if (!strcmp(what, "written-only"))
        written_only(argv[2]);
    if (!strcmp(what, "kill-others"))
        kill_others();
    if (!strcmp(what, "forks"))
        forks_all_the_time();
    if (!strcmp(what, "chain"))
        chain();
    if (!strcmp(what, "executes"))
        executes_all_the_time(argv[0]);
    if (!strcmp(what, "execute"))
        execl(argv[0], argv[0], "execute", NULL);
    if (!strcmp(what, "stops-and-goes"))
        stops_and_goes();
    if (!strcmp(what, "traces"))
        traces();
    if (!strcmp(what, "vfork"))
        waits_in_vfork();
    if (!strcmp(what, "names"))
        names();
    if (!strcmp(what, "narrow"))
        narrow();
    if (!strcmp(what, "flags"))
        flags_of(strtoull(argv[2], NULL, 16));
    if (!strcmp(what, "threads"))
        threads(atoi(argv[2]));
    if (!strcmp(what, "plain"))
        serve(NULL);
    return 2;
}
