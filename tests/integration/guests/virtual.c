/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What waits under a virtual clock, and what a guest may do to that clock. `virtual WHAT` prints
 * how long things took by the clock, to the millisecond, or plays a trick and prints "done" and the
 * seconds that a sleep of 100 took afterwards.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
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
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/times.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int64_t start_ms;

static int64_t ms_of(int clock, bool raw) {
    struct timespec t;

    if (raw)
        syscall(SYS_clock_gettime, clock, &t);
    else
        clock_gettime(clock, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void say(const char *what, long result) {
    printf("%lld %s %ld\n", (long long)(ms_of(CLOCK_MONOTONIC, false) - start_ms), what, result);
    fflush(stdout);
}

static struct timespec ahead(int clock, long seconds) {
    struct timespec t;

    clock_gettime(clock, &t);
    t.tv_sec += seconds;
    return t;
}

static void on_signal(int number) {
    (void)number;
}

static void handle(int number) {
    struct sigaction action = { .sa_handler = on_signal };

    sigaction(number, &action, NULL);
}

/* ---- waits: each takes ten seconds ---- */

static int waits_main(void) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER, monotonic;
    pthread_condattr_t attributes;
    struct timespec t, ten = { 10, 0 };
    struct epoll_event event = { .events = EPOLLIN };
    struct timeval tv = { 10, 0 };
    struct sembuf down = { 0, -1, 0 };
    sigset_t usr1;
    sem_t semaphore;
    fd_set set;
    int ends[2], word = 7;

    if (pipe(ends) < 0)
        return 1;
    struct pollfd polled = { ends[0], POLLIN, 0x7f };
    int epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&monotonic, &attributes);
    sem_init(&semaphore, 0, 0);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, NULL);
    pthread_mutex_lock(&mutex);

    say("sleep", sleep(10));
    say("usleep", usleep(10000000));
    say("nanosleep", nanosleep(&ten, NULL));
    t = ahead(CLOCK_REALTIME, 10);
    say("until a time of day", clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, NULL));
    t = ahead(CLOCK_MONOTONIC, 10);
    say("until an uptime", clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL));
    say("poll", poll(&polled, 1, 10000) + polled.revents);
    say("poll of nothing", poll(NULL, 0, 10000));
    say("ppoll", ppoll(&polled, 1, &ten, NULL));
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    say("select", select(ends[0] + 1, &set, NULL, NULL, &tv));
    say("its set", FD_ISSET(ends[0], &set));
    tv.tv_sec = 10;
    say("select of nothing", select(0, NULL, NULL, NULL, &tv));
    FD_SET(ends[0], &set);
    say("pselect", pselect(ends[0] + 1, &set, NULL, NULL, &ten, &usr1));
    say("epoll", epoll_wait(epoll, &event, 1, 10000));
    t = ahead(CLOCK_REALTIME, 10);
    say("condition", pthread_cond_timedwait(&condition, &mutex, &t));
    t = ahead(CLOCK_MONOTONIC, 10);
    say("condition by uptime", pthread_cond_timedwait(&monotonic, &mutex, &t));
    t = ahead(CLOCK_REALTIME, 10);
    say("semaphore", sem_timedwait(&semaphore, &t) < 0 ? errno : 0);
    t = ahead(CLOCK_REALTIME, 10);
    say("mutex", pthread_mutex_timedlock(&mutex, &t));
    say("futex", syscall(SYS_futex, &word, FUTEX_WAIT, 7, &ten, NULL, 0) < 0 ? errno : 0);
    say("signal", sigtimedwait(&usr1, NULL, &ten) < 0 ? errno : 0);
    int id = semget(IPC_PRIVATE, 1, 0600);
    if (id >= 0)
        say("semop", semtimedop(id, &down, 1, &ten) < 0 ? errno : 0);
    else
        say("semop", sleep(10) + EAGAIN); /* where policies have no System V IPC */
    return 0;
}

static void on_timer(union sigval value) {
    say("in a thread", value.sival_int);
}

static int timers_main(void) {
    struct itimerval interval = { { 3, 0 }, { 10, 0 } };
    struct itimerspec once = { .it_value = { 10, 0 } }, every = { { 10, 0 }, { 5, 0 } }, left;
    struct sigevent event = {
        .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1, .sigev_value.sival_int = 5
    };
    sigset_t usr1;
    siginfo_t info;
    timer_t timer;
    uint64_t n = 0;

    handle(SIGALRM);
    say("alarm", alarm(10));
    say("its rest", alarm(10));
    say("pause", pause());
    setitimer(ITIMER_REAL, &interval, NULL);
    say("interval", pause());
    say("interval", pause());
    getitimer(ITIMER_REAL, &interval);
    say("left", interval.it_value.tv_sec);
    memset(&interval, 0, sizeof interval);
    setitimer(ITIMER_REAL, &interval, NULL);

    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, NULL);
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    timer_settime(timer, 0, &once, NULL);
    sigwaitinfo(&usr1, &info);
    say("timer", info.si_value.sival_int * 100 + info.si_code);
    once.it_value = ahead(CLOCK_MONOTONIC, 10);
    timer_settime(timer, TIMER_ABSTIME, &once, NULL);
    timer_gettime(timer, &left);
    say("left", left.it_value.tv_sec);
    sigwaitinfo(&usr1, &info);
    say("timer until an uptime", info.si_value.sival_int);
    timer_settime(timer, 0, &every, NULL);
    sleep(100);
    sigwaitinfo(&usr1, &info);
    say("overdue", timer_delete(timer));

    event = (struct sigevent){
        .sigev_notify = SIGEV_THREAD, .sigev_notify_function = on_timer, .sigev_value.sival_int = 42
    };
    once.it_value = (struct timespec){ 10, 0 };
    timer_create(CLOCK_REALTIME, &event, &timer);
    timer_settime(timer, 0, &once, NULL);
    say("slept", sleep(20));

    int fd = timerfd_create(CLOCK_REALTIME, 0), copy = dup(fd);
    timerfd_settime(copy, 0, &every, NULL);
    long r = read(fd, &n, sizeof n);
    say("descriptor", r * 100 + (long)n);
    timerfd_gettime(fd, &left);
    say("left", left.it_value.tv_sec);
    struct pollfd polled = { copy, POLLIN, 0 };
    say("too early", poll(&polled, 1, 9000));
    say("in time", poll(&polled, 1, 9000));
    return 0;
}

/* What ends a wait before its time does so at once. */
static int ends[2];

static void *write_later(void *unused) {
    sleep(5);
    if (write(ends[1], "x", 1) != 1)
        abort();
    return unused;
}

static pthread_mutex_t shared_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t shared_condition = PTHREAD_COND_INITIALIZER;
static bool ready;

static void *wake_later(void *unused) {
    sleep(5);
    pthread_mutex_lock(&shared_mutex);
    ready = true;
    pthread_cond_signal(&shared_condition);
    pthread_mutex_unlock(&shared_mutex);
    return unused;
}

static int early_main(void) {
    struct timespec hour = { 3600, 0 }, left = { 0, 0 };
    pthread_t thread;
    char byte;
    int r = 0;

    if (pipe(ends) < 0)
        return 1;
    struct pollfd polled = { ends[0], POLLIN, 0 };
    pthread_create(&thread, NULL, write_later, NULL);
    say("poll", poll(&polled, 1, 3600000));
    say("byte", read(ends[0], &byte, 1));
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, wake_later, NULL);
    struct timespec until = ahead(CLOCK_REALTIME, 3600);
    pthread_mutex_lock(&shared_mutex);
    while (!ready && !r)
        r = pthread_cond_timedwait(&shared_condition, &shared_mutex, &until);
    pthread_mutex_unlock(&shared_mutex);
    say("condition", r);
    pthread_join(thread, NULL);

    /* A wait without a time-out after one whose time-out did not come: it has none. */
    struct epoll_event event = { .events = EPOLLIN };
    int epoll = epoll_create1(0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event);
    pthread_create(&thread, NULL, write_later, NULL);
    say("epoll", epoll_wait(epoll, &event, 1, 7000));
    say("byte", read(ends[0], &byte, 1));
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, write_later, NULL);
    say("epoll", epoll_wait(epoll, &event, 1, -1));
    say("byte", read(ends[0], &byte, 1));
    pthread_join(thread, NULL);

    handle(SIGALRM);
    alarm(5);
    say("nanosleep", nanosleep(&hour, &left) < 0 ? errno : 0);
    say("of which are left", left.tv_sec);
    alarm(5);
    say("poll", poll(&polled, 1, 3600000) < 0 ? errno : 0);
    alarm(5);
    say("sleep", sleep(3600));

    /* Stopped and continued, a sleep continues; a fatal signal kills at once. */
    for (int number = SIGCONT; number == SIGCONT || number == SIGTERM;
         number = number == SIGCONT ? SIGTERM : 0) {
        int status = 0;
        pid_t pid = fork();

        if (pid == 0) {
            sleep(100);
            _exit(7);
        }
        sleep(1);
        kill(pid, SIGSTOP);
        waitpid(pid, &status, WUNTRACED);
        say("stopped", WIFSTOPPED(status));
        kill(pid, number);
        if (number == SIGTERM)
            kill(pid, SIGCONT);
        waitpid(pid, &status, 0);
        say("ended", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
    return 0;
}

/* All that can be asked for the time, after an hour. */
static int clocks_main(void) {
    static const int clocks[] = { CLOCK_REALTIME, CLOCK_REALTIME_COARSE, CLOCK_TAI, CLOCK_MONOTONIC,
        CLOCK_MONOTONIC_RAW, CLOCK_MONOTONIC_COARSE, CLOCK_BOOTTIME };
    int64_t before[7];
    struct timeval v;
    struct sysinfo info;
    struct tms times_of;

    for (int i = 0; i < 7; i++)
        before[i] = ms_of(clocks[i], false);
    int64_t ticks = times(&times_of), day = time(NULL);
    sysinfo(&info);
    long uptime = info.uptime;
    sleep(3600);
    for (int i = 0; i < 7; i++)
        printf("clock %d: %lld, by a call %lld\n", clocks[i],
            (long long)(ms_of(clocks[i], false) - before[i]),
            (long long)(ms_of(clocks[i], true) - before[i]));
    gettimeofday(&v, NULL);
    printf("gettimeofday %lld\n", (long long)(v.tv_sec - before[0] / 1000));
    syscall(SYS_gettimeofday, &v, NULL);
    printf("by a call %lld\n", (long long)(v.tv_sec - before[0] / 1000));
    printf("time %lld, by a call %lld\n", (long long)(time(NULL) - day),
        (long long)(syscall(SYS_time, NULL) - day));
    printf("times %lld\n", (long long)(times(&times_of) - ticks) / 100);
    sysinfo(&info);
    printf("sysinfo %ld load %lu\n", info.uptime - uptime, info.loads[0]);
    printf("CPU %d\n", clock() < CLOCKS_PER_SEC / 10);
    return 0;
}

static int order_main(void) {
    static const int tenths[] = { 5, 3, 9, 1, 7, 2, 8, 4, 6 };

    for (int i = 0; i < 9; i++)
        if (fork() == 0) {
            usleep((unsigned)tenths[i] * 100000);
            say("child", tenths[i]);
            _exit(0);
        }
    while (wait(NULL) > 0)
        ;
    return 0;
}

static int *meeting;

static void *in_step(void *number) {
    for (int i = 0; i < 3; i++) {
        usleep(1000000);
        __atomic_fetch_add(meeting, 1, __ATOMIC_SEQ_CST);
        if (number)
            say("thread", (long)(intptr_t)number);
    }
    return NULL;
}

static int same_time_main(void) {
    pthread_t threads[5];

    meeting = calloc(1, sizeof *meeting);
    for (int i = 0; i < 5; i++)
        pthread_create(&threads[i], NULL, in_step, (void *)(intptr_t)(i + 1));
    for (int i = 0; i < 5; i++)
        pthread_join(threads[i], NULL);
    say("all", *meeting);
    return 0;
}

/* ---- tricks ---- */

static int is_served(void) {
    int64_t before = time(NULL);

    sleep(100);
    printf("done %lld\n", (long long)(time(NULL) - before));
    fflush(stdout);
    return 0;
}

/* The page that holds the clock is where its first query has mapped it. */
static uint64_t *find_page(void) {
    FILE *maps = fopen("/proc/self/maps", "re");
    unsigned long long from = 0;
    char line[512];

    time(NULL);
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "rollbox-clock"))
            from = strtoull(line, NULL, 16);
    if (maps)
        fclose(maps);
    return (uint64_t *)(uintptr_t)from;
}

static int lying_page(void) {
    static const uint64_t lies[] = { UINT64_MAX, 1ull << 63, INT64_MAX, 1ull << 61,
        (1ull << 61) - 1, 0 };
    uint64_t *page = find_page(), real;
    struct timespec t = { 0, 1000000 };

    if (!page)
        return 2;
    real = *page;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        page[0] = page[1] = lies[i];
        syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
        t = (struct timespec){ 0, 1000000 };
        nanosleep(&t, NULL);
        syscall(SYS_futex, &page[2], FUTEX_WAIT, 0, &t, NULL, 0);
        alarm(1);
        alarm(0);
    }
    page[0] = real;
    page[1] = 0;
    sleep(1); /* init tells it again */
    return is_served();
}

/* Neither can it be cut off under init. */
static int sealed_page(void) {
    int fd = (int)syscall(SYS_clock_gettime, 1919904876, NULL); /* not from the vDSO: no page */

    if (fd >= 0 || errno != EINVAL || syscall(SYS_clock_gettime, 1919904877, 4096) != -1)
        return 2;
    uint64_t *page = find_page();
    if (!page || madvise(page, 4096, MADV_REMOVE) < 0)
        return 3;
    munmap(page, 4096);
    mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    struct timespec t = { 100, 0 };
    nanosleep(&t, NULL);
    execl("/proc/self/exe", "virtual", "served", NULL);
    return 4;
}

static int bad_times(void) {
    static const struct timespec bad[] = { { -1, 0 }, { 0, -1 }, { 0, 1000000000 },
        { INT64_MIN, 5 } };
    struct timespec far = { INT64_MAX, 999999999 };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (syscall(SYS_nanosleep, &bad[i], NULL) != -1 || errno != EINVAL ||
            syscall(SYS_clock_nanosleep, 1, 1, &bad[i], NULL) != -1 || errno != EINVAL)
            return 2;
    if (syscall(SYS_nanosleep, 8, NULL) != -1 || errno != EFAULT ||
        syscall(SYS_poll, 8, 1, 10) != -1 || errno != EFAULT)
        return 3;
    if (syscall(SYS_timer_settime, 12345, 0, &far, NULL) != -1 ||
        syscall(SYS_timerfd_settime, 0, 0, &far, NULL) != -1 ||
        syscall(SYS_timer_create, 99, NULL, NULL) != -1)
        return 4;
    handle(SIGALRM);
    alarm(1);
    if (syscall(SYS_nanosleep, &far, NULL) != -1 || errno != EINTR)
        return 5;
    return is_served();
}

/* More sleeping threads than init looks at one by one, which then end. */
static void *sleep_long(void *unused) {
    sleep(1000000);
    return unused;
}

static int crowd(void) {
    pthread_attr_t small;
    pthread_t thread;
    pid_t pid = fork();
    int n = 0;

    if (pid == 0) {
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 65536);
        while (n < 400 && pthread_create(&thread, &small, sleep_long, NULL) == 0)
            n++;
        sleep(10);
        printf("%d\n", n);
        fflush(stdout);
        kill(getpid(), SIGKILL);
    }
    waitpid(pid, NULL, 0);
    return is_served();
}

static int storm(void) {
    for (int i = 0; i < 200; i++) {
        pid_t pid = fork();

        if (pid == 0) {
            for (;;)
                usleep(1 + (unsigned)i % 7);
        }
        if (i % 10 == 9) {
            kill(0, SIGCONT);
            usleep(100);
        }
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    return is_served();
}

/* One that has a tracer of its own, which stops it in its sleep. */
static int traced(void) {
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        int nothing[2];

        if (pipe(nothing) < 0)
            _exit(1);
        struct pollfd polled = { nothing[0], POLLIN, 0 };
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        poll(&polled, 1, 50);
        sleep(5);
        _exit(7);
    }
    waitpid(pid, &status, 0);
    ptrace(PTRACE_CONT, pid, NULL, NULL);
    waitpid(pid, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 7)
        return 2;
    return is_served();
}

/* A timer whose signal nobody takes must not keep init busy; nor do more of them than it has room
 * for. */
static int many_timers(void) {
    struct itimerval often = { { 0, 1 }, { 0, 1 } };
    struct itimerspec each = { { 0, 1 }, { 0, 1 } };
    sigset_t all;
    timer_t timer;
    int n = 0, fd;

    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    while (n < 1000 && timer_create(CLOCK_REALTIME, NULL, &timer) == 0) {
        timer_settime(timer, 0, &each, NULL);
        n++;
    }
    for (int i = 0; i < 1000 && (fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) >= 0; i++)
        timerfd_settime(fd, 0, &each, NULL);
    printf("%d\n", n > 100 && n < 1000);
    fflush(stdout);
    memset(&often, 0, sizeof often);
    setitimer(ITIMER_REAL, &often, NULL);
    execl("/proc/self/exe", "virtual", "served", NULL);
    return 2;
}

static volatile int flag;

static void *raise_flag(void *unused) {
    usleep(1000);
    flag = 1;
    return unused;
}

/* A thread that never rests: sleeping ones must wake all the same. */
static int spinner(void) {
    pthread_t thread;

    pthread_create(&thread, NULL, raise_flag, NULL);
    while (!flag)
        ;
    pthread_join(thread, NULL);
    return is_served();
}

/* A process executes while init cuts waits of its threads short, and one of these, dead, has a
 * tracer that does not look: until it does, the execve holds what a tracer that comes, as init
 * then, has to wait for. */
static struct {
    volatile pid_t thread;
    volatile bool has_tracer;
} * shared;
static int never_ready[2];

static void *be_traced(void *unused) {
    shared->thread = (pid_t)syscall(SYS_gettid);
    for (;;)
        pause();
    return unused;
}

static void *wait_briefly(void *unused) {
    struct pollfd polled = { never_ready[0], POLLIN, 0 };

    for (;;)
        poll(&polled, 1, 1);
    return unused;
}

static void ask_often(int n) {
    for (int i = 0; i < n; i++)
        (void)ms_of(CLOCK_MONOTONIC, false);
}

static void *ask_for_ever(void *unused) {
    for (;;)
        ask_often(1);
    return unused;
}

static void execute_among_threads(int round, const char *script) {
    pthread_t thread;

    pthread_create(&thread, NULL, be_traced, NULL);
    while (!shared->has_tracer)
        sched_yield();
    for (int i = 0; i < 8; i++)
        pthread_create(&thread, NULL, wait_briefly, NULL);
    pthread_create(&thread, NULL, ask_for_ever, NULL);
    ask_often(20000 + round % 10 * 1000);
    execl(script, script, NULL);
    _exit(1);
}

static int exec_race(void) {
    char name[2][32], last[] = "/bin/true";
    int status;

    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    /* Scripts of scripts: an execve that takes its time. */
    strcpy(name[0], last);
    for (int i = 0; i < 4; i++) {
        snprintf(name[(i + 1) % 2], sizeof name[0], "/tmp/script-%d", i);
        int fd = open(name[(i + 1) % 2], O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
        dprintf(fd, "#!%s\n", name[i % 2]);
        close(fd);
    }
    if (pipe(never_ready) < 0)
        return 2;
    for (int round = 0; round < 150; round++) {
        siginfo_t ended = { 0 };

        shared->thread = shared->has_tracer = 0;
        pid_t pid = fork();
        if (pid == 0)
            execute_among_threads(round, name[0]);
        while (!shared->thread)
            sched_yield();
        if (ptrace(PTRACE_SEIZE, shared->thread, NULL, NULL) < 0)
            return 3;
        shared->has_tracer = true;
        for (int i = 0; i < 100000 && !ended.si_pid; i++) {
            waitid(P_PID, (id_t)shared->thread, &ended, WEXITED | WNOHANG | WNOWAIT | __WALL);
            ask_often(10);
        }
        syscall(SYS_clock_gettime, CLOCK_REALTIME,
            &(struct timespec){ 0 }); /* of init, if it is there */
        kill(pid, SIGKILL);
        waitpid(shared->thread, &status, __WALL);
        waitpid(pid, &status, 0);
    }
    return is_served();
}

/* What the kernel tells of an epoll that watches a thousand files is long, and told for each timer
 * in the table, twice. */
static int dear_descriptor(void) {
    struct itimerspec each = { { 0, 0 }, { 1, 0 } };
    struct epoll_event event = { .events = EPOLLIN };
    int epoll = epoll_create1(EPOLL_CLOEXEC), ends[2];

    if (pipe(ends) < 0)
        return 2;
    for (int i = 0; i < 250; i++)
        if (timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC) < 0)
            return 3;
    for (int i = 0; i < 3000; i++)
        epoll_ctl(epoll, EPOLL_CTL_ADD, dup(ends[0]), &event);
    for (int i = 0; i < 50; i++)
        if (syscall(SYS_timerfd_settime, epoll, 0, &each, NULL) != -1 || errno != EINVAL)
            return 4;
    return is_served();
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    static const struct {
        const char *name;
        int (*run)(void);
    } all[] = {
        { "waits", waits_main },
        { "timers", timers_main },
        { "early", early_main },
        { "clocks", clocks_main },
        { "order", order_main },
        { "same-time", same_time_main },
        { "served", is_served },
        { "lying-page", lying_page },
        { "sealed-page", sealed_page },
        { "bad-times", bad_times },
        { "crowd", crowd },
        { "storm", storm },
        { "traced", traced },
        { "many-timers", many_timers },
        { "spinner", spinner },
        { "exec-race", exec_race },
        { "dear-descriptor", dear_descriptor },
    };

    start_ms = ms_of(CLOCK_MONOTONIC, false);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!strcmp(what, all[i].name))
            return all[i].run();
    return 9;
}
