/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a greedy program takes: `burden KIND [AMOUNT]` takes as much of one thing as it gets inside
 * a sandbox.
 *
 * Memory kinds want AMOUNT MiB and print SURVIVED only if they had all of it at once. Counting
 * kinds print how many they got, and the errno that ended it, as "got N errno E".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1L << 20)

static void got(long n) {
    int e = errno;

    printf("got %ld errno %d\n", n, e);
    fflush(stdout);
}

static void touch(volatile char *p, long length) {
    for (long i = 0; i < length; i += 4096)
        p[i] = 1;
}

static int survived(void) {
    static const char text[] = "SURVIVED\n";

    return write(1, text, sizeof text - 1) > 0 ? 0 : 1;
}

static int anonymous(long mib, int flags) {
    for (long i = 0; i < mib; i++) {
        char *p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);

        if (p == MAP_FAILED)
            return 3;
        touch(p, MIB);
    }
    return survived();
}

/* Pages that no page table shows: they belong to the mapping's nameless file. The end shows that
 * they are all there still. */
static int hidden(long mib) {
    char *all =
        mmap(NULL, (size_t)(mib * MIB), PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_SHARED, -1, 0);

    if (all == MAP_FAILED)
        return 3;
    for (long i = 0; i < mib; i++) {
        touch(all + i * MIB, MIB);
        if (madvise(all + i * MIB, MIB, MADV_DONTNEED) < 0)
            return 3;
    }
    for (long i = 0; i < mib; i++)
        if (all[i * MIB] != 1)
            return 4;
    return survived();
}

/* Hidden, and nobody of the same user may look. */
static int unseen(long mib) {
    return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 ? 3 : hidden(mib);
}

/* The same by a program that may be executed and not read. */
static int unreadable(const char *program, const char *mib) {
    const char *directory = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    char path[4096], data[65536];
    ssize_t n;

    snprintf(path, sizeof path, "%s/unreadable", directory);
    int from = open(program, O_RDONLY), to = open(path, O_WRONLY | O_CREAT | O_EXCL, 0111);
    if (from < 0 || to < 0)
        return 3;
    while ((n = read(from, data, sizeof data)) > 0)
        if (write(to, data, (size_t)n) != n)
            return 3;
    close(to);
    execl(path, path, "hidden", mib, (char *)NULL);
    return 3;
}

static pthread_t leader;

static void *take_alone(void *mib) {
    pthread_join(leader, NULL);
    _exit(anonymous((long)mib, MAP_PRIVATE));
}

static void *hide_alone(void *mib) {
    pthread_join(leader, NULL);
    _exit(hidden((long)mib));
}

/* What a process has when its main thread has ended, which then shows none. */
static int leaderless(long mib, void *(*take)(void *)) {
    pthread_t thread;

    leader = pthread_self();
    if (pthread_create(&thread, NULL, take, (void *)mib) != 0)
        return 3;
    pthread_exit(NULL);
}

/* Eight processes, none of them large. They wait for each other so that all hold their share at
 * once. */
static int children(long mib) {
    int done[2], go[2];
    char byte;
    long n = 8, alive = 0;

    if (pipe(done) < 0 || pipe(go) < 0)
        return 2;
    for (long i = 0; i < n; i++)
        if (fork() == 0) {
            char *p = mmap(NULL, (size_t)(mib / n * MIB), PROT_READ | PROT_WRITE,
                MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);

            close(done[0]);
            close(go[1]);
            if (p == MAP_FAILED)
                _exit(3);
            touch(p, mib / n * MIB);
            if (write(done[1], "x", 1) != 1)
                _exit(2);
            _exit(read(go[0], &byte, 1) == 0 ? 0 : 2);
        }
    close(done[1]);
    close(go[0]);
    while (alive < n && read(done[0], &byte, 1) == 1)
        alive++;
    return alive == n ? survived() : 3;
}

static int fill(int fd, long mib) {
    static char block[MIB];

    memset(block, 1, sizeof block);
    for (long i = 0; i < mib; i++)
        if (write(fd, block, sizeof block) != (ssize_t)sizeof block) {
            got(i);
            return 3;
        }
    return survived();
}

static int shared_file(long mib) {
    int fd = (int)syscall(SYS_memfd_create, "burden", 0);

    if (fd < 0 || ftruncate(fd, mib * MIB) < 0)
        return 3;
    char *p = mmap(NULL, (size_t)(mib * MIB), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return 3;
    touch(p, mib * MIB);
    return survived();
}

static int sysv(long mib) {
    for (long i = 0; i < mib / 16; i++) {
        int id = shmget(IPC_PRIVATE, 16 * MIB, IPC_CREAT | 0600);
        char *p = id < 0 ? (char *)-1 : shmat(id, NULL, 0);

        if (p == (char *)-1)
            return 3;
        touch(p, 16 * MIB);
        shmdt(p); /* it stays, and belongs to no process */
    }
    return survived();
}

static int pipes(long mib) {
    static char block[65536];
    long filled = 0;
    int ends[2];

    while (filled < mib * MIB) {
        if (pipe2(ends, O_NONBLOCK) < 0)
            return 3;
        fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
        for (ssize_t n; (n = write(ends[1], block, sizeof block)) > 0;)
            filled += n;
    }
    return survived();
}

static int sockets(long mib) {
    static char block[65536];
    long filled = 0;
    int ends[2];

    while (filled < mib * MIB) {
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) < 0)
            return 3;
        for (ssize_t n; (n = write(ends[1], block, sizeof block)) > 0;)
            filled += n;
    }
    return survived();
}

/* A page here and there of a large mapping of zeros: hardly any memory is the program's own, but
 * every 2 MiB need a page table. */
static int page_tables(long mib) {
    const long span = 2 * MIB;
    long tables = mib * MIB / 4096, got_here = 0;

    while (got_here < tables) {
        long part = tables - got_here < 16384 ? tables - got_here : 16384;
        volatile char *p = mmap(NULL, (size_t)(part * span), PROT_READ,
            MAP_ANONYMOUS | MAP_PRIVATE | MAP_NORESERVE, -1, 0);

        if (p == MAP_FAILED)
            return 3;
        madvise((void *)p, (size_t)(part * span), MADV_NOHUGEPAGE);
        for (long i = 0; i < part; i++)
            (void)p[i * span];
        got_here += part;
    }
    return survived();
}

/* A process may have a table of its own for those who wait, of as many places of 64 bytes as it
 * likes. */
static int futexes(long mib) {
    return prctl(78 /* PR_FUTEX_HASH */, 1, mib * MIB / 64, 0, 0) < 0 ? 3 : survived();
}

/* A rule for each port takes 64 bytes. The version, which programs ask for first, takes nothing. */
static int rulesets(long mib) {
    const struct { uint64_t files, ports; } attributes = { 0, 3 };

    for (long done = 0; done < mib * MIB / 64; done += 65536) {
        int fd = (int)syscall(444 /* landlock_create_ruleset */, &attributes, sizeof attributes, 0);

        for (uint64_t port = 0; port < 65536; port++) {
            const struct { uint64_t access, port; } rule = { 1, port };

            if (syscall(445 /* landlock_add_rule */, fd, 2, &rule, 0) < 0)
                return 3;
        }
    }
    return survived();
}

/* Filters of sockets: each is there twice, and once more in the processor's code, which has a bound
 * for the machine as a whole. */
static int programs(long mib) {
    static struct sock_filter program[4096];
    const struct sock_fprog all = { 4096, program };

    for (size_t i = 0; i < 4096; i++)
        program[i] = (struct sock_filter)BPF_STMT(
            i < 4095 ? BPF_ALU | BPF_ADD | BPF_K : BPF_RET | BPF_K, 0x12345678);
    for (long done = 0; done < mib * MIB; done += 64 << 10) {
        int ends[2];

        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0 || close(ends[1]) < 0 ||
            setsockopt(ends[0], SOL_SOCKET, SO_ATTACH_FILTER, &all, sizeof all) < 0)
            return 3;
    }
    return survived();
}

/* Where each page of a shared file would best lie is kept with the file, whether there is a page or
 * not. */
static int placements(long mib) {
    const unsigned long nodes = 1;
    int fd = open("/dev/shm/placements", O_RDWR | O_CREAT, 0600);

    if (fd < 0 || ftruncate(fd, 1L << 40) < 0)
        return 3;
    for (long i = 0; i < mib * MIB / 256; i++) {
        void *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, i * 8192);

        if (p == MAP_FAILED || syscall(SYS_mbind, p, 4096L, 2 /* MPOL_BIND */, &nodes, 8L, 0L) < 0)
            return 3;
        munmap(p, 8192);
    }
    return survived();
}

/* Descriptors sent and never received count against the user, not the process. */
static long in_flight(long most) {
    long sent = 0;
    int ends[2];

    while (sent < most) {
        if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, ends) < 0)
            break;
        for (;;) {
            union {
                struct cmsghdr head;
                char space[CMSG_SPACE(250 * sizeof(int))];
            } control = { 0 };
            struct iovec one = { "x", 1 };
            struct msghdr message = { .msg_iov = &one,
                .msg_iovlen = 1,
                .msg_control = &control,
                .msg_controllen = sizeof control };
            struct cmsghdr *header = CMSG_FIRSTHDR(&message);

            header->cmsg_level = SOL_SOCKET;
            header->cmsg_type = SCM_RIGHTS;
            header->cmsg_len = CMSG_LEN(250 * sizeof(int));
            memset(CMSG_DATA(header), 0, 250 * sizeof(int));
            if (sendmsg(ends[0], &message, 0) < 0)
                break;
            sent += 250;
        }
        if (errno != EAGAIN)
            break;
    }
    return sent;
}

static void *sleeper(void *unused) {
    (void)unused;
    pause();
    return NULL;
}

/* Those that take an amount and nothing else. */
static const struct {
    const char *name;
    int (*take)(long amount);
} takers[] = {
    { "hidden", hidden },
    { "unseen", unseen },
    { "children", children },
    { "memfd", shared_file },
    { "sysv", sysv },
    { "pipes", pipes },
    { "sockets", sockets },
    { "tables", page_tables },
    { "futexes", futexes },
    { "rulesets", rulesets },
    { "programs", programs },
    { "placements", placements },
};

int main(int argc, char **argv) {
    const char *kind = argc > 1 ? argv[1] : "";
    long amount = argc > 2 ? atol(argv[2]) : 0, n = 0;

    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < sizeof takers / sizeof takers[0]; i++)
        if (!strcmp(kind, takers[i].name))
            return takers[i].take(amount);
    if (!strcmp(kind, "private"))
        return anonymous(amount, MAP_PRIVATE);
    if (!strcmp(kind, "mapshared"))
        return anonymous(amount, MAP_SHARED);
    if (!strcmp(kind, "leaderless"))
        return leaderless(amount, take_alone);
    if (!strcmp(kind, "hiddenleaderless"))
        return leaderless(amount, hide_alone);
    if (!strcmp(kind, "unreadable"))
        return unreadable(argv[0], argv[2]);
    if (!strcmp(kind, "locked"))
        return anonymous(amount, MAP_PRIVATE | MAP_LOCKED);
    if (!strcmp(kind, "file") && argc > 3)
        return fill(open(argv[3], O_WRONLY | O_CREAT | O_TRUNC, 0600), amount);
    if (!strcmp(kind, "inodes") && argc > 3) {
        char path[256];

        for (; n < amount; n++) {
            snprintf(path, sizeof path, "%s/%ld", argv[3], n);
            int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
            if (fd < 0)
                break;
            close(fd);
        }
        got(n);
        return 0;
    }
    /* The next three hold what they got until their input ends. */
    if (!strcmp(kind, "inflight") || !strcmp(kind, "inotify") || !strcmp(kind, "timers")) {
        char byte;
        timer_t timer;

        if (!strcmp(kind, "inflight"))
            n = in_flight(amount);
        else if (!strcmp(kind, "inotify"))
            while (n < amount && inotify_init1(IN_CLOEXEC) >= 0)
                n++;
        else
            while (n < amount && timer_create(CLOCK_MONOTONIC, NULL, &timer) == 0)
                n++;
        got(n);
        while (read(0, &byte, 1) > 0)
            ;
        return 0;
    }
    if (!strcmp(kind, "descriptors")) {
        while (n < amount && dup(0) >= 0)
            n++;
        got(n);
        return 0;
    }
    if (!strcmp(kind, "threads")) {
        pthread_attr_t small;
        pthread_t thread;

        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, 65536);
        while (n < amount && (errno = pthread_create(&thread, &small, sleeper, NULL)) == 0)
            n++;
        got(n);
        _exit(0);
    }
    if (!strcmp(kind, "forks")) {
        for (; n < amount; n++) {
            pid_t child = fork();

            if (child == 0) {
                pause();
                _exit(0);
            }
            if (child < 0)
                break;
        }
        got(n);
        return 0;
    }
    /* Every child forks as well: what the count is, only the sandbox knows. */
    if (!strcmp(kind, "bomb")) {
        for (;;)
            if (fork() < 0 && argc > 2)
                break;
        return 0;
    }
    if (!strcmp(kind, "zombies")) {
        for (; n < amount; n++) {
            pid_t child = fork();

            if (child == 0)
                _exit(0);
            if (child < 0)
                break;
        }
        got(n);
        return 0;
    }
    if (!strcmp(kind, "spin")) {
        for (long i = 1; i < amount; i++)
            if (fork() == 0)
                break;
        for (;;)
            ;
    }
    return 2;
}
