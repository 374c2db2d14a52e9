/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What random_seed and time_start must govern, and what a guest may do to them. `chance WHAT`
 * prints one thing that differs from run to run on a bare machine, or plays a trick on init, which
 * serves the clocks and the randomness of its guests, and prints "done" if it is still served
 * afterwards.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t chance(void) {
    uint64_t x = 0;

    if (syscall(SYS_getrandom, &x, sizeof x, 0) != sizeof x)
        abort();
    return x;
}

static void say(const char *what) {
    printf("%s %016llx\n", what, (unsigned long long)chance());
    fflush(stdout);
}

static void seconds(const char *what, long value) {
    printf("%s %ld\n", what, value);
    fflush(stdout);
}

/* ---- clocks: every way to ask, in seconds ---- */

static void ask_all(void) {
    static const int clocks[] = { CLOCK_REALTIME, CLOCK_REALTIME_COARSE, CLOCK_TAI };
    struct timespec t;
    struct timeval v;
    time_t now;

    for (size_t i = 0; i < 3; i++) {
        clock_gettime(clocks[i], &t);
        seconds("clock", t.tv_sec);
        syscall(SYS_clock_gettime, clocks[i], &t);
        seconds("raw clock", t.tv_sec);
    }
    gettimeofday(&v, NULL);
    seconds("gettimeofday", v.tv_sec);
    syscall(SYS_gettimeofday, &v, NULL);
    seconds("raw gettimeofday", v.tv_sec);
    seconds("time", time(&now));
    seconds("time by pointer", now);
    seconds("raw time", syscall(SYS_time, &now));
    seconds("raw time by pointer", now);
    /* The legacy page, where there is one. */
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    bool legacy = false;
    while (maps && fgets(line, sizeof line, maps))
        legacy |= strstr(line, "[vsyscall]") != NULL;
    if (maps)
        fclose(maps);
    if (legacy)
        seconds("vsyscall", ((time_t(*)(time_t *))0xffffffffff600400)(NULL));
    if (syscall(SYS_clock_gettime, CLOCK_REALTIME, (void *)8) != -1 || errno != EFAULT)
        seconds("a clock into nowhere", 1);
}

static void *in_thread(void *unused) {
    ask_all();
    return unused;
}

static int clocks_main(void) {
    pthread_t thread;

    ask_all();
    pthread_create(&thread, NULL, in_thread, NULL);
    pthread_join(thread, NULL);
    if (fork() == 0) {
        ask_all();
        _exit(0);
    }
    wait(NULL);
    return 0;
}

/* Waits until a time of day, 50 ms ahead: they end, with what they end with, and not before. */
static int waits_main(void) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    struct timespec until, start, end;

    for (int i = 0; i < 2; i++) {
        clock_gettime(CLOCK_REALTIME, &until);
        clock_gettime(CLOCK_MONOTONIC, &start);
        until.tv_nsec += 50000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&mutex);
        int r = i ? pthread_cond_timedwait(&condition, &mutex, &until)
                  : clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &until, NULL);
        pthread_mutex_unlock(&mutex);
        clock_gettime(CLOCK_MONOTONIC, &end);
        long ns = (end.tv_sec - start.tv_sec) * 1000000000 + end.tv_nsec - start.tv_nsec;
        printf("%d %s\n", r, ns >= 49000000 ? "waited" : "did not wait");
    }
    return 0;
}

static pthread_mutex_t shared_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t shared_condition = PTHREAD_COND_INITIALIZER;
static bool ready;

static void *wake(void *unused) {
    pthread_mutex_lock(&shared_mutex);
    ready = true;
    pthread_cond_signal(&shared_condition);
    pthread_mutex_unlock(&shared_mutex);
    return unused;
}

/* A wait with an hour's time-out ends when it is woken; a sleep until then, by a signal. */
static void on_alarm(int number) {
    (void)number;
}

static int woken_main(void) {
    struct sigaction action = { .sa_handler = on_alarm };
    struct itimerval soon = { .it_value = { 0, 30000 } };
    struct timespec until;
    pthread_t thread;
    int r = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 3600;
    pthread_mutex_lock(&shared_mutex);
    pthread_create(&thread, NULL, wake, NULL);
    while (!ready && !r)
        r = pthread_cond_timedwait(&shared_condition, &shared_mutex, &until);
    pthread_mutex_unlock(&shared_mutex);
    pthread_join(thread, NULL);
    printf("woken %d\n", r);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &soon, NULL);
    printf(
        "interrupted %d\n", clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &until, NULL) == EINTR);
    return 0;
}

/* ---- randomness ---- */

static int canary_main(void) {
    const uint64_t *random = (const void *)getauxval(AT_RANDOM);
    void *heap = malloc(10), *map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    printf("%016llx %016llx heap %p map %p stack %p code %p\n", (unsigned long long)random[0],
        (unsigned long long)random[1], heap, map, (void *)&heap, (void *)canary_main);
    return 0;
}

/* A tree whose branches race: each prints its path and its number, sorted by the reader. */
static void branch(unsigned depth, unsigned path) {
    char what[32];

    for (unsigned i = 0; depth && i < 3; i++)
        if (fork() == 0) {
            branch(depth - 1, path * 10 + i + 1);
            _exit(0);
        }
    snprintf(what, sizeof what, "%u", path);
    say(what);
    while (wait(NULL) > 0)
        ;
}

static int orphans_main(void) {
    for (int i = 0; i < 3; i++) {
        int ends[2];
        char byte;

        if (pipe(ends) < 0)
            return 1;
        if (fork() == 0) {
            if (fork() == 0) {
                say("orphan");
                _exit(0);
            }
            _exit(0);
        }
        close(ends[1]);
        (void)!read(ends[0], &byte, 1); /* until the last of them is gone */
        close(ends[0]);
        while (wait(NULL) > 0)
            ;
    }
    return 0;
}

/* In turns: so the order of draws is the program's. */
static void *draw(void *what) {
    say(what);
    return NULL;
}

static int threads_main(void) {
    pthread_t thread;

    for (int i = 0; i < 3; i++) {
        pthread_create(&thread, NULL, draw, "thread");
        pthread_join(thread, NULL);
        say("main");
    }
    return 0;
}

static int large_main(void) {
    static unsigned char bytes[1 << 20];
    uint64_t sum = 14695981039346656037u;
    size_t done = 0;

    while (done < sizeof bytes) {
        ssize_t n = getrandom(bytes + done, sizeof bytes - done, 0);
        if (n <= 0)
            return 1;
        done += (size_t)n;
    }
    for (size_t i = 0; i < sizeof bytes; i++)
        sum = (sum ^ bytes[i]) * 1099511628211u;
    printf("%016llx\n", (unsigned long long)sum);
    return 0;
}

/* ---- tricks ---- */

static int is_served(void) {
    struct timespec t;

    chance();
    if (syscall(SYS_clock_gettime, CLOCK_REALTIME, &t) < 0)
        return 1;
    printf("done %ld\n", (long)t.tv_sec);
    return 0;
}

static int second_listener(void) {
    struct sock_filter allow = { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW };
    struct sock_fprog program = { 1, &allow };

    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program) !=
        -1)
        return 2;
    printf("errno %d\n", errno);
    return is_served();
}

static void marker(void) {
    (void)syscall(SYS_brk, 0);
}

/* Another's pages where the vDSO was: they are not init's to change. */
static int moved_vdso(void) {
    char *vdso = (char *)getauxval(AT_SYSINFO_EHDR),
         *to = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (mremap(vdso, 8192, 8192, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED)
        return 2;
    marker();
    char *mine =
        mmap(vdso, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    memset(mine, 7, 8192);
    marker();
    for (int i = 0; i < 8192; i++)
        if (mine[i] != 7)
            return 3;
    munmap(mine, 8192);
    marker();
    return is_served();
}

static int bad_memory(void) {
    char *readable = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
         *half = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    munmap(half + 4096, 4096);
    if (syscall(SYS_getrandom, readable, 8, 0) != -1 || errno != EFAULT ||
        syscall(SYS_getrandom, (void *)8, 8, 0) != -1 || errno != EFAULT)
        return 2;
    if (syscall(SYS_getrandom, half + 4090, 100, 0) != 6 ||
        syscall(SYS_getrandom, half, 8, 0xff00) != -1 || errno != EINVAL)
        return 3;
    if (syscall(SYS_getrandom, half, -1ul, 0) < 1 ||
        syscall(SYS_clock_gettime, CLOCK_REALTIME, readable) != -1 || errno != EFAULT)
        return 4;
    return is_served();
}

/* Its own stream's state is not a guest's to set; and init does not take its word for whose it is.
 */
static int limits(void) {
    struct rlimit none = { 0, 0 }, now;

    setrlimit(RLIMIT_RSS, &none);
    prlimit(0, RLIMIT_LOCKS, &none, NULL);
    getrlimit(RLIMIT_RSS, &now);
    if (!now.rlim_cur || now.rlim_max != RLIM_INFINITY)
        return 2;
    return is_served();
}

static int killed_while_asking(void) {
    for (int i = 0; i < 50; i++) {
        pid_t pid = fork();

        if (pid == 0)
            for (;;)
                chance();
        struct timespec moment = { 0, i * 20000 };
        nanosleep(&moment, NULL);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    return is_served();
}

static void *ask_forever(void *unused) {
    for (;;) {
        chance();
        marker();
    }
    return unused;
}

static int storm(char *self) {
    for (int i = 0; i < 6; i++)
        if (fork() == 0) {
            pthread_t thread;
            pthread_create(&thread, NULL, ask_forever, NULL);
            ask_forever(NULL);
        }
    for (int i = 0; i < 40; i++)
        if (fork() == 0) {
            execl(self, self, "nothing", NULL);
            _exit(1);
        }
    for (int i = 0; i < 40; i++)
        wait(NULL);

    return is_served();
}

/* A call by the 32-bit entry is death by the policy's filter; ours asks nothing about it. */
static int foreign(void) {
    int status = 0;
    pid_t pid = fork();

    if (pid == 0) {
        int r = 355; /* getrandom of i386 */

        __asm__ volatile("int $0x80" : "+a"(r) : "b"(0), "c"(0), "d"(0) : "memory");
        _exit(r == 0 ? 3 : 4);
    }
    waitpid(pid, &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS)
        return 2;
    return is_served();
}

static int undumpable(void) {
    if (prctl(PR_SET_DUMPABLE, 0) < 0)
        return 2;
    return is_served();
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    static const struct {
        const char *name;
        int (*run)(void);
    } all[] = {
        { "clocks", clocks_main },
        { "waits", waits_main },
        { "woken", woken_main },
        { "canary", canary_main },
        { "orphans", orphans_main },
        { "threads", threads_main },
        { "large", large_main },
        { "second-listener", second_listener },
        { "moved-vdso", moved_vdso },
        { "bad-memory", bad_memory },
        { "limits", limits },
        { "killed", killed_while_asking },
        { "undumpable", undumpable },
        { "foreign", foreign },
    };

    if (!strcmp(what, "nothing"))
        return 0;
    if (!strcmp(what, "storm"))
        return storm(argv[0]);
    if (!strcmp(what, "tree")) {
        branch(2, 1);
        return 0;
    }
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!strcmp(what, all[i].name))
            return all[i].run();
    return 9;
}
