/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is the kernel itself still at work for the sandbox?
 *
 * All threads may wait while something is on its way to one of them. Two parts of the kernel
 * deliver later than the call that sends:
 *
 * - Terminals. A write to one end of a pseudo-terminal only queues the bytes; a kernel worker takes
 * them to the other end, echoes them and raises signals. poll(2) on an end waits for the worker of
 * that end. So init polls a copy of each end that a process has: slaves first, because a slave's
 * echo is then on its way to its master.
 * - TCP. A segment may wait in a queue of the network, for an acknowledgement (Nagle's algorithm),
 * or for a retransmission. /proc/net/tcp shows the retransmission timer of each such connection.
 * Init waits until no timer runs, but not for ever: a connection to a full backlog, or one that its
 * listener defers, keeps its timer running. Sockets acknowledge without delay here (loopback.c), so
 * a running timer means that something is under way. The tables are the host's and reading them
 * takes a millisecond, so they are read only if a segment was sent since.
 *
 * Pipes, Unix sockets, futexes and signals are delivered within the call that sends. UDP has no
 * timer to be seen.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "guest/det/det.h"
#include "guest/det/vtime.h"
#include "guest/state.h"
#include "sys/syscalls.h"

#define LONGEST_NS                                                                                 \
    2000000000ll           /* for the same segments; the kernel retries a lost SYN after a second */
#define TTY_MAJOR_NUMBER 5 /* /dev/tty and /dev/ptmx */
#define PTMX_MINOR 2
#define FIRST_SLAVE_MAJOR 136
#define LAST_SLAVE_MAJOR 143
#define GET_NUMBER 0x80045430u /* TIOCGPTN: of a master */
#define MAX_NUMBERS 64         /* the maximum of a sandbox's devpts */

enum end { SLAVE, MASTER };

struct flush {
    enum end end;
    pid_t process;
    int pidfd;
    uint64_t done; /* a bit for each terminal */
};

struct counted {
    const char *summary, *heading, *table;
    int fd; /* the opened summary */
};

static bool has_network;
static int terminals = -1; /* /dev/pts */
static int64_t spent_ns;
static int statistics = -1;       /* net/snmp */
static uint64_t statistics_clean; /* TCP counters when nothing was in flight */
static uint64_t segments_before;
static int64_t segments_since_ns;
static struct counted counted[] = {
    { "net/sockstat", "TCP: inuse ", "net/tcp", -1 },
    { "net/sockstat6", "TCP6: inuse ", "net/tcp6", -1 },
};

void kernel_begin(const struct plan *plan) {
    has_network = plan->flags & PLAN_NET_LOOPBACK;
}

/* ---- terminals ---- */

static bool is_there(void *data, pid_t number) {
    (void)number;
    *(bool *)data = true;
    return false;
}

static bool has_terminals(void) {
    bool any = false;

    if (terminals < 0)
        terminals = openat(AT_FDCWD, "/dev/pts", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (terminals < 0 || sys_call3(__NR_lseek, terminals, 0, 0) < 0)
        return false;
    (void)tree_each_number(terminals, is_there, &any);
    return any;
}

static bool is_end(const struct stat *st, enum end end) {
    unsigned number = major(st->st_rdev);

    if (!S_ISCHR(st->st_mode))
        return false;
    if (number == TTY_MAJOR_NUMBER)
        return (minor(st->st_rdev) == PTMX_MINOR) == (end == MASTER);
    return end == SLAVE && number >= FIRST_SLAVE_MAJOR && number <= LAST_SLAVE_MAJOR;
}

static bool flush_end(void *data, pid_t fd) {
    struct flush *flush = data;
    struct timespec now = { 0 };
    unsigned number = MAX_NUMBERS;
    struct stat st;

    if (!idle_stat(flush->process, (uint64_t)fd, &st) || !is_end(&st, flush->end))
        return true;
    if (major(st.st_rdev) != TTY_MAJOR_NUMBER)
        number = minor(st.st_rdev);
    if (number < MAX_NUMBERS && flush->done >> number & 1)
        return true;
    if (flush->pidfd < 0)
        flush->pidfd = sys_pidfd_open(flush->process, 0);
    int copy = flush->pidfd < 0 ? flush->pidfd : sys_pidfd_getfd(flush->pidfd, fd, 0);
    if (copy < 0)
        return true; /* it is gone, or cannot be inspected */
    if (flush->end == MASTER)
        (void)sys_call3(__NR_ioctl, copy, GET_NUMBER, &number);
    if (number >= MAX_NUMBERS || !(flush->done >> number & 1)) {
        struct pollfd polled = { copy, POLLIN, 0 };

        (void)sys_call5(__NR_ppoll, &polled, 1, &now, NULL, 0);
    }
    if (number < MAX_NUMBERS)
        flush->done |= 1ull << number;
    close(copy);
    return true;
}

static bool flush_process(void *data, pid_t pid) {
    struct flush *flush = data;
    int directory =
        pid == 1 || command_is_agent(pid) ? -1 : process_open(pid, "/fd", O_RDONLY | O_DIRECTORY);

    if (directory < 0)
        return true;
    flush->process = pid;
    flush->pidfd = -1;
    (void)tree_each_number(directory, flush_end, flush);
    close(directory);
    if (flush->pidfd >= 0)
        close(flush->pidfd);
    return true;
}

static void flush_terminals(void) {
    for (enum end end = SLAVE; end <= MASTER; end++) {
        struct flush flush = { .end = end };
        int directory = openat(determinism_proc, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (directory < 0)
            return;
        (void)tree_each_number(directory, flush_process, &flush);
        close(directory);
    }
}

/* ---- TCP ---- */

/* The number of sockets in this network namespace. */
static bool has_sockets(struct counted *of) {
    char text[512];

    if (of->fd < 0)
        of->fd = openat(determinism_proc, of->summary, O_RDONLY | O_CLOEXEC);
    long n = of->fd < 0 ? -1 : sys_call4(__NR_pread64, of->fd, text, sizeof text - 1, 0);
    size_t length = strlen(of->heading);

    for (const char *at = text, *end = text + (n > 0 ? n : 0); at + length < end; at++)
        if (!strncmp(at, of->heading, length))
            return at[length] != '0';
    return false;
}

static uint64_t hash_of(const char *at, const char *end) {
    uint64_t hash = 14695981039346656037ull;

    for (; at < end; at++)
        hash = (hash ^ (uint8_t)*at) * 1099511628211ull;
    return hash | 1;
}

/* A number that changes with each sent or received segment of this network namespace; 0:
 * unknown. */
static uint64_t statistics_of_tcp(void) {
    static const char heading[] = "\nTcp: ";
    const size_t length = sizeof heading - 1;
    char text[4096];

    if (statistics < 0)
        statistics = openat(determinism_proc, "net/snmp", O_RDONLY | O_CLOEXEC);
    long n = statistics < 0 ? -1 : sys_call4(__NR_pread64, statistics, text, sizeof text, 0);
    for (const char *at = text, *end = text + (n > 0 ? n : 0); at + length < end; at++) {
        const char *line = at + length, *next = memchr(line, '\n', (size_t)(end - line));

        /* The first such line has names. */
        if (!strncmp(at, heading, length) && *line >= '0' && *line <= '9')
            return next ? hash_of(line, next) : 0;
    }
    return 0;
}

/* "sl local remote state tx:rx timer:when ...": adds the connection to `sum` if its retransmission
 * timer runs. */
static uint64_t add_segments(uint64_t sum, const char *at, const char *end) {
    const char *fields[6] = { at };

    for (size_t n = 0; n < sizeof fields / sizeof fields[0]; n++) {
        while (at < end && *at == ' ')
            at++;
        fields[n] = at;
        while (at < end && *at != ' ')
            at++;
    }
    if (end - fields[5] < 3 || strncmp(fields[5], "01:", 3))
        return sum;
    return sum + hash_of(fields[1], fields[5]);
}

/* 0: none; else a number that differs for different segments in flight. */
static uint64_t segments_of(const struct counted *of) {
    char text[4096];
    size_t kept = 0;
    uint64_t sum = 0;
    long n;
    int fd = openat(determinism_proc, of->table, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return 0;
    while ((n = read(fd, text + kept, sizeof text - kept)) > 0) {
        const char *line = text, *end = text + kept + n, *next;

        for (; (next = memchr(line, '\n', (size_t)(end - line))); line = next + 1)
            sum = add_segments(sum, line, next);
        kept = (size_t)(end - line) < sizeof text ? (size_t)(end - line) : 0;
        for (size_t i = 0; i < kept; i++)
            text[i] = line[i];
    }
    close(fd);
    return sum;
}

/* Are segments in flight, and not the same ones for too long? */
static bool is_sending(void) {
    uint64_t now = statistics_of_tcp(), segments = 0;

    if (now && now == statistics_clean)
        return false;
    for (size_t i = 0; i < sizeof counted / sizeof counted[0]; i++)
        if (has_sockets(&counted[i]))
            segments += segments_of(&counted[i]);
    if (segments != segments_before) {
        segments_before = segments;
        segments_since_ns = clock_now_ns();
    }
    if (!segments)
        statistics_clean =
            now; /* later segments change this number, so the tables need not be read before */
    return segments && clock_now_ns() - segments_since_ns < LONGEST_NS;
}

bool kernel_has_settled(bool delivers) {
    int64_t begun = clock_now_ns();

    if (has_terminals())
        flush_terminals();
    bool settled = !delivers || !has_network || !is_sending();
    spent_ns = clock_now_ns() - begun;
    return settled;
}

int64_t kernel_spent_ns(void) {
    int64_t spent = spent_ns;

    spent_ns = 0;
    return spent;
}
