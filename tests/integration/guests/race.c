/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads and processes that race, and some that keep others from their turn. `race WHAT` prints in
 * which order things happened, or plays a trick and prints "done" and the seconds that a sleep of
 * 100 took afterwards.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define N 8

static long now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_nsec;
}

static void *share(size_t size) {
    return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* ---- races ---- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static char order[N * 100 + 1];
static int n_order, next;

static void *contend(void *number) {
    int own = (int)(intptr_t)number;

    for (int i = 0; i < 100; i++) {
        pthread_mutex_lock(&mutex);
        order[n_order++] = (char)('0' + own);
        pthread_mutex_unlock(&mutex);
        if (i % 10 == 0)
            (void)!write(1, "", 0);
    }
    pthread_mutex_lock(&mutex);
    while (next != own)
        pthread_cond_wait(&changed, &mutex);
    next++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    return (void *)(intptr_t)now_ns();
}

static int threads_main(void) {
    pthread_t threads[N];
    long ends[N];
    void *end;

    for (int i = 0; i < N; i++)
        pthread_create(&threads[i], NULL, contend, (void *)(intptr_t)i);
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], &end);
        ends[i] = (long)(intptr_t)end;
    }
    puts(order);
    for (int i = 0; i < N; i++)
        printf("%ld\n", ends[i]);
    return 0;
}

static int shared_main(void) {
    sem_t *semaphores = share(4096);

    setvbuf(stdout, NULL, _IONBF, 0);
    sem_init(&semaphores[0], 1, 1);
    sem_init(&semaphores[1], 1, 0);
    for (int i = 0; i < N; i++)
        if (fork() == 0) {
            struct timespec t;

            for (int n = 0; n < 20; n++) {
                sem_wait(&semaphores[0]);
                printf("%d %d\n", i, n);
                sem_post(&semaphores[0]);
            }
            clock_gettime(CLOCK_REALTIME, &t);
            t.tv_sec += i + 1;
            printf("%d %d %ld\n", i, sem_timedwait(&semaphores[1], &t), (long)t.tv_sec);
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
    return 0;
}

static int pipes_main(void) {
    int ends[2];
    char byte;

    if (pipe(ends) < 0)
        return 1;
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int i = 0; i < N; i++)
        if (fork() == 0) {
            struct pollfd polled = { ends[0], POLLIN, 0 };

            while (poll(&polled, 1, i % 2 ? 60000 : -1) > 0 && read(ends[0], &byte, 1) == 1 &&
                   byte != 'x')
                printf("%d %c %ld\n", i, byte, now_ns());
            _exit(0);
        }
    for (int i = 0; i < 40; i++)
        (void)!write(ends[1], &(char){ (char)('A' + i) }, 1);
    for (int i = 0; i < N; i++)
        (void)!write(ends[1], "x", 1);
    while (wait(NULL) > 0)
        ;
    return 0;
}

/* ---- tricks ---- */

static int is_served(void) {
    time_t before = time(NULL);

    sleep(100);
    printf("done %ld\n", (long)(time(NULL) - before));
    fflush(stdout);
    return 0;
}

static void ask_for_ever(void) {
    for (;;)
        syscall(SYS_getppid);
}

/* The process that has the turn, with all its calls. */
static int stopped(void) {
    int status;
    pid_t pid = fork();

    if (pid == 0)
        ask_for_ever();
    for (int i = 0; i < 100; i++) {
        kill(pid, SIGSTOP);
        if (waitpid(pid, &status, WUNTRACED) != pid || !WIFSTOPPED(status))
            return 2;
        sched_yield();
        kill(pid, SIGCONT);
    }
    kill(pid, SIGSTOP);
    int r = is_served();
    kill(pid, SIGKILL);
    return r;
}

static int killed(void) {
    for (int i = 0; i < 100; i++) {
        pid_t pid = fork();

        if (pid == 0)
            ask_for_ever();
        for (int n = 0; n < i % 7; n++)
            sched_yield();
        kill(pid, SIGKILL);
        if (waitpid(pid, NULL, 0) != pid)
            return 2;
    }
    return is_served();
}

/* Stopped by its tracer before each call and after it, and at last for good. */
static int held(void) {
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        ask_for_ever();
    }
    for (int i = 0; i < 500; i++)
        if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status) ||
            ptrace(PTRACE_SYSCALL, pid, NULL, NULL) < 0)
            return 2;
    waitpid(pid, &status, 0);
    int r = is_served();
    kill(pid, SIGKILL);
    return r;
}

static int affinity(void) {
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(1, &set);
    if (sched_setaffinity(0, sizeof set, &set) < 0 ||
        syscall(SYS_sched_getaffinity, 0, 4, &set) != -1 || errno != EINVAL)
        return 2;
    if (syscall(438 /* pidfd_getfd */, 0, 0, 0) != -1 || errno != EPERM)
        return 3;
    return is_served();
}

static void *ask_in_thread(void *unused) {
    ask_for_ever();
    return unused;
}

static void *wait_in_thread(void *word) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    return NULL;
}

/* All other threads end in the midst of their turns and their waits. */
static int execute(void) {
    static int word;
    pthread_t thread;

    for (int i = 0; i < 20; i++)
        pthread_create(&thread, NULL, i % 2 ? ask_in_thread : wait_in_thread, &word);
    for (int i = 0; i < 20; i++)
        sched_yield();
    execl("/proc/self/exe", "race", "served", NULL);
    return 2;
}

static int futex(void *word, int operation, uint32_t value, const struct timespec *t, void *other) {
    return (int)syscall(SYS_futex, word, operation, value, t, other, 0);
}

static int futexes(void) {
    struct timespec second = { 1, 0 }, bad = { 1, -1 };
    uint32_t *words = share(4096), own = 5;
    time_t before = time(NULL);

    if (futex((void *)16, FUTEX_WAIT_PRIVATE, 0, NULL, NULL) != -1 || errno != EFAULT ||
        futex((char *)&own + 1, FUTEX_WAIT_PRIVATE, 0, NULL, NULL) != -1 || errno != EINVAL)
        return 2;
    if (futex(&own, FUTEX_WAIT_PRIVATE, 4, NULL, NULL) != -1 || errno != EAGAIN ||
        futex(&own, FUTEX_WAIT_PRIVATE, 5, &bad, NULL) != -1 || errno != EINVAL)
        return 3;
    if (futex(&own, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 5, NULL, NULL) != -1 || errno != EINVAL)
        return 4; /* no bit */
    if (futex(&own, FUTEX_WAIT_PRIVATE, 5, &second, NULL) != -1 || errno != ETIMEDOUT ||
        time(NULL) != before + 1)
        return 5;
    if (futex(&own, FUTEX_WAKE_PRIVATE, UINT32_MAX, NULL, NULL) ||
        futex(&own, 99, 1, NULL, NULL) != -1 || errno != ENOSYS)
        return 6;
    pid_t pid = fork();
    if (pid == 0) {
        for (int operation = FUTEX_WAKE; operation != FUTEX_WAKE_OP + 1; operation++)
            syscall(SYS_futex, words, operation, 1, 1, words + 1, 0);
        words[0] = 1;
        while (futex(words, FUTEX_WAKE, 1, NULL, NULL) != 1)
            sched_yield();
        _exit(0);
    }
    while (!__atomic_load_n(words, __ATOMIC_RELAXED))
        sched_yield();
    if (futex(words, FUTEX_WAIT, 1, NULL, NULL) != 0)
        return 7;
    waitpid(pid, NULL, 0);
    return is_served();
}

static int crowded_futex(void) {
    static int word;
    pthread_attr_t small;
    pthread_t threads[200];
    int n = 0, woken = 0;

    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    while (n < 200 && pthread_create(&threads[n], &small, wait_in_thread, &word) == 0)
        n++;
    sleep(1);
    woken = futex(&word, FUTEX_WAKE_PRIVATE, 50, NULL, NULL);
    woken += futex(&word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    printf("%d\n", woken);
    return woken == n ? is_served() : 2;
}

static int epoll;

static void *wait_by_epoll(void *timeout) {
    struct epoll_event event;

    return (
        void *)(intptr_t)(epoll_wait(epoll, &event, 1, (int)(intptr_t)timeout) < 0 ? -errno : 0);
}

static void on_signal(int number) {
    (void)number;
}

/* What is waited for is closed, or the wait is interrupted. */
static int epoll_main(void) {
    struct sigaction action = { .sa_handler = on_signal };
    pthread_t thread;
    void *result;

    sigaction(SIGUSR1, &action, NULL);
    for (int i = 0; i < 2; i++) {
        epoll = epoll_create1(EPOLL_CLOEXEC);
        pthread_create(&thread, NULL, wait_by_epoll, (void *)(intptr_t)(i ? -1 : 5000));
        sleep(1);
        pthread_kill(thread, SIGUSR1);
        pthread_join(thread, &result);
        if ((intptr_t)result != -EINTR)
            return 2;
        pthread_create(&thread, NULL, wait_by_epoll, (void *)(intptr_t)5000);
        sleep(1);
        close(epoll);
        pthread_join(thread, &result);
    }
    return is_served();
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    static const struct {
        const char *name;
        int (*run)(void);
    } all[] = {
        { "threads", threads_main },
        { "shared", shared_main },
        { "pipes", pipes_main },
        { "served", is_served },
        { "stopped", stopped },
        { "killed", killed },
        { "held", held },
        { "affinity", affinity },
        { "execute", execute },
        { "futexes", futexes },
        { "crowded-futex", crowded_futex },
        { "epoll", epoll_main },
    };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!strcmp(all[i].name, what))
            return all[i].run();
    return 64;
}
