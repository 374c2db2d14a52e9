/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What makes the kernel keep memory for a program: `hoard KIND PROCESSES SECONDS` makes as much of
 * one kind of thing as it gets, in several processes at once, prints "made N errno E" and holds all
 * of it until its input ends.
 *
 * The memory that the kernel takes for these things is the test's to measure, from outside
 * (test_uncharged_memory.py).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/msg.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static struct shared {
    long made;
    int error;
} * shared;

static int number; /* of this process among those that hoard */

/* Each makes one thing more, the i-th: 0, or -1 with errno. */

static int access_list(long i, size_t entries, bool on_directory) {
    struct entry {
        uint16_t tag, permissions;
        uint32_t id;
    };
    size_t size = 4 + entries * sizeof(struct entry);
    char *value = calloc(1, size);
    struct entry *e = (void *)(value + 4);
    char path[64];
    int r;

    *(uint32_t *)(void *)value = 2;
    e[0] = (struct entry){ 1, 6, ~0u };
    for (size_t k = 1; k < entries - 3; k++)
        e[k] = (struct entry){ 2, 6, getuid() };
    e[entries - 3] = (struct entry){ 4, 4, ~0u };
    e[entries - 2] = (struct entry){ 16, 6, ~0u };
    e[entries - 1] = (struct entry){ 32, 4, ~0u };
    snprintf(path, sizeof path, "/tmp/acl-%d-%ld", number, i);
    if (on_directory)
        mkdir(path, 0755);
    else
        close(open(path, O_CREAT | O_WRONLY, 0644));
    r = setxattr(path, "system.posix_acl_access", value, size, 0);
    if (r == 0 && on_directory)
        r = setxattr(path, "system.posix_acl_default", value, size, 0);
    free(value);
    return r;
}

static int make_acl(long i) {
    return access_list(i, 8191, true);
}

/* As long as it may be. */
static int make_acl_short(long i) {
    return access_list(i, 60, true);
}

static int make_attribute(long i) {
    static char value[60000];
    char path[64];

    snprintf(path, sizeof path, "/tmp/attribute-%d-%ld", number, i);
    close(open(path, O_CREAT | O_WRONLY, 0644));
    return setxattr(path, "user.hoard", value, sizeof value, 0);
}

static int make_symlink(long i) {
    char path[64], to[121];

    memset(to, 'x', 120);
    to[120] = '\0';
    snprintf(path, sizeof path, "/tmp/link-%d-%ld", number, i);
    return symlink(to, path);
}

static int make_empty(long i) {
    char path[300];

    memset(path, 'n', 256);
    snprintf(path, 64, "/tmp/%d-%ld-", number, i);
    path[strlen(path)] = 'n';
    path[250] = '\0';
    return mknod(path, S_IFREG | 0644, 0);
}

/* A socket of the process, to which everything is done until it takes no more, and then a new one.
 */
static int current = -1;

static int on_socket(
    int family, int type, int level, int option, const void *value, socklen_t length) {
    for (int again = 0; again < 2; again++) {
        if (current < 0 && (current = socket(family, type, 0)) < 0)
            return -1;
        if (setsockopt(current, level, option, value, length) == 0)
            return 0;
        if (again || errno == ENOPROTOOPT || errno == EPERM)
            return -1;
        current = -1;
    }
    return -1;
}

static int make_md5(long i) {
    struct tcp_md5sig key = { .tcpm_keylen = 16 };
    struct sockaddr_in6 *address = (void *)&key.tcpm_addr;

    address->sin6_family = AF_INET6;
    address->sin6_addr.s6_addr[0] = 0x20;
    memcpy(&address->sin6_addr.s6_addr[8], &i, sizeof i);
    return on_socket(AF_INET6, SOCK_STREAM, IPPROTO_TCP, TCP_MD5SIG, &key, sizeof key);
}

static int make_group6(long i) {
    struct ipv6_mreq group = { .ipv6mr_interface = 1 };

    group.ipv6mr_multiaddr.s6_addr[0] = 0xff;
    group.ipv6mr_multiaddr.s6_addr[1] = 1;
    memcpy(&group.ipv6mr_multiaddr.s6_addr[4], &number, sizeof number);
    memcpy(&group.ipv6mr_multiaddr.s6_addr[8], &i, sizeof i);
    return on_socket(AF_INET6, SOCK_DGRAM, IPPROTO_IPV6, IPV6_JOIN_GROUP, &group, sizeof group);
}

static int make_group4(long i) {
    struct ip_mreqn group = { .imr_ifindex = 1 };

    group.imr_multiaddr.s_addr = htonl(0xe1000000u + (uint32_t)number * 0x40000 + (uint32_t)i);
    return on_socket(AF_INET, SOCK_DGRAM, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group);
}

static int make_source4(long i) {
    struct ip_mreq_source group = { 0 };

    group.imr_multiaddr.s_addr = htonl(0xe1000000u + (uint32_t)number * 0x40000 + (uint32_t)i / 10);
    group.imr_interface.s_addr = htonl(INADDR_LOOPBACK);
    group.imr_sourceaddr.s_addr = htonl(0x7f000001u + (uint32_t)i % 10);
    return on_socket(
        AF_INET, SOCK_DGRAM, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, &group, sizeof group);
}

static int make_options6(long i) {
    static char header[2040] = { 0, 254, 4,
        0 }; /* a routing header without segments left would be refused as it is */
    struct {
        struct cmsghdr head;
        char data[40000];
    } all = { .head = {
                  sizeof(struct cmsghdr) + 4, IPPROTO_IPV6, 11 /* IPV6_2292HOPLIMIT's like */ } };

    (void)i, (void)header;
    current = -1;
    return on_socket(
        AF_INET6, SOCK_DGRAM, IPPROTO_IPV6, 6 /* IPV6_2292PKTOPTIONS */, &all, sizeof all);
}

static int make_tls(long i) {
    (void)i;
    current = -1;
    return on_socket(AF_INET, SOCK_STREAM, IPPROTO_TCP, TCP_ULP, "tls", 4);
}

static int make_timerfd(long i) {
    (void)i;
    return timerfd_create(CLOCK_MONOTONIC, 0);
}

static int make_epoll(long i) {
    (void)i;
    return epoll_create1(0);
}

static int make_eventfd(long i) {
    (void)i;
    return eventfd(0, 0);
}

static int make_netlink(long i) {
    (void)i;
    return socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
}

static int make_socketpair(long i) {
    int fds[2];

    (void)i;
    return socketpair(AF_UNIX, SOCK_DGRAM, 0, fds);
}

static int make_udp(long i) {
    (void)i;
    return socket(AF_INET6, SOCK_DGRAM, 0);
}

static int make_tcp(long i) {
    (void)i;
    return socket(AF_INET6, SOCK_STREAM, 0);
}

static int make_bound(long i) {
    struct sockaddr_un name = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);

    snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "%d-%ld-%080d", number, i, 0);
    return fd < 0 ? fd : bind(fd, (void *)&name, sizeof name);
}

/* An open file with all that can hang on one. */
static int make_file(long i) {
    int fd = open("/tmp", O_RDONLY | O_DIRECTORY);

    (void)i;
    if (fd < 0)
        return -1;
    flock(fd, LOCK_SH);
    fcntl(fd, F_SETOWN, getpid());
    fcntl(fd, F_SETSIG, SIGUSR1);
    return 0;
}

static int make_async(long i) {
    int fds[2];

    (void)i;
    if (pipe(fds) < 0)
        return -1;
    for (int k = 0; k < 2; k++) {
        flock(fds[k], LOCK_SH);
        fcntl(fds[k], F_SETOWN, getpid());
        fcntl(fds[k], F_SETFL, O_ASYNC);
    }
    return 0;
}

/* In many files: the kernel looks through all of one for each. */
static int lock_apart(long i, int command) {
    struct flock lock = { .l_type = F_WRLCK, .l_start = 2 * (i / 256), .l_len = 1 };
    static int files[256];
    char path[64];

    if (i < 256) {
        snprintf(path, sizeof path, "/tmp/locks-%d-%ld", number, i);
        files[i] = open(path, O_CREAT | O_RDWR, 0644);
    }
    return fcntl(files[i % 256], command, &lock);
}

static int make_lock(long i) {
    return lock_apart(i, F_SETLK);
}

static int make_file_lock(long i) {
    return lock_apart(i, F_OFD_SETLK);
}

static int make_opened(long i) {
    (void)i;
    return open("/dev/null", O_RDONLY);
}

/* Open as long as it is mapped. */
static int make_mapped(long i) {
    int fd = open("/proc/self/exe", O_RDONLY);

    (void)i;
    if (fd < 0)
        return -1;
    void *at = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    return at == MAP_FAILED ? -1 : 0;
}

/* A descriptor of a directory for which the kernel keeps a list of the names, as of now: it has
 * changed since the last one. */
static int make_listing(long i) {
    const char *directory = getenv("HOARD_DIRECTORY");
    static char names[1 << 16];
    char path[PATH_MAX];

    for (int k = 0; i == 0 && k < 200; k++) {
        int length = snprintf(path, sizeof path, "%s/%d-%d-", directory, number, k),
            end = length + 240;

        for (int n = length; n < end; n++)
            path[n] = 'n';
        path[end] = '\0';
        if (mknod(path, S_IFREG | 0644, 0) < 0)
            return -1;
    }
    snprintf(path, sizeof path, "%s/new-%d", directory, number);
    if (mknod(path, S_IFREG | 0644, 0) < 0 || unlink(path) < 0)
        return -1;
    int fd = open(directory, O_RDONLY | O_DIRECTORY);
    while (fd >= 0 && syscall(SYS_getdents64, fd, names, sizeof names) > 0)
        ;
    return fd;
}

static int make_name(long i) {
    static char *at, *end;
    char name[80];

    if (at == end) {
        at = mmap(NULL, 1 << 28, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED)
            return -1;
        end = at + (1 << 28);
    }
    snprintf(name, sizeof name, "%d-%060ld", number, i);
    int r = prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, at, 4096, name);
    at += 4096;
    return r;
}

static int make_mapping(long i) {
    static char *at;

    if (!at)
        at = mmap(NULL, 1L << 33, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return mprotect(at + 8192 * i, 4096, PROT_READ);
}

static int make_timer(long i) {
    struct sigevent event = { .sigev_notify = SIGEV_NONE };
    timer_t timer;

    (void)i;
    return (int)syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer);
}

static int make_semaphores(long i) {
    (void)i;
    return semget(IPC_PRIVATE, 32000, 0600);
}

static int make_message(long i) {
    static char message[8192 + 8] = { 1 };
    int queue = current = current < 0 || i % 2 == 0 ? msgget(IPC_PRIVATE, 0600) : current;

    return queue < 0 ? -1 : msgsnd(queue, message, 8000, IPC_NOWAIT);
}

static int make_watch(long i) {
    char path[64];

    if (current < 0 && (current = inotify_init()) < 0)
        return -1;
    snprintf(path, sizeof path, "/tmp/watched-%d-%ld", number, i);
    close(open(path, O_CREAT | O_WRONLY, 0644));
    return inotify_add_watch(current, path, IN_ALL_EVENTS);
}

static int make_absent(long i) {
    char path[300];

    memset(path, 'n', 256);
    snprintf(path, 64, "/tmp/%d-%ld-", number, i);
    path[strlen(path)] = 'n';
    path[250] = '\0';
    return access(path, F_OK) < 0 && errno == ENOENT ? 0 : -1;
}

static int make_proc(long i) {
    static const char *const names[] = { "maps", "smaps", "mountinfo", "status", "fdinfo",
        "environ", "stat", "net/unix" };
    char path[64], byte;

    snprintf(path, sizeof path, "/proc/self/%s", names[i % 8]);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return -1;
    return read(fd, &byte, 1) >= 0 || errno == EISDIR ? 0 : -1;
}

/* A thread that waits for as many descriptors as a call takes, which are one again and again. */
static void *wait_for_many(void *data) {
    struct rlimit files;
    int fds[2];

    getrlimit(RLIMIT_NOFILE, &files);
    struct pollfd *list = data;
    if (pipe(fds) < 0)
        return NULL;
    for (rlim_t i = 0; i < files.rlim_cur; i++)
        list[i] = (struct pollfd){ .fd = fds[0], .events = POLLIN };
    poll(list, files.rlim_cur, -1);
    return NULL;
}

static int make_poll(long i) {
    static struct pollfd list[1 << 16];
    pthread_attr_t attributes;
    pthread_t thread;

    (void)i;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 65536);
    errno = pthread_create(&thread, &attributes, wait_for_many, list);
    return errno ? -1 : 0;
}

static int make_terminal(long i) {
    static char text[4096];
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK), unlock = 0, slave;

    (void)i;
    memset(text, 'x', sizeof text);
    if (master < 0 || ioctl(master, 0x40045431 /* TIOCSPTLCK */, &unlock) < 0 ||
        (slave = ioctl(master, 0x5441 /* TIOCGPTPEER */, O_RDWR | O_NOCTTY | O_NONBLOCK)) < 0)
        return -1;
    while (write(master, text, sizeof text) > 0)
        ;
    while (write(slave, text, sizeof text) > 0)
        ;
    return 0;
}

static int make_filter(long i) {
    struct {
        unsigned short code;
        unsigned char jt, jf;
        unsigned k;
    } program[2] = { { 0x20, 0, 0, 0 }, { 6, 0, 0, 0x7fff0000 } };
    struct {
        unsigned short n;
        void *program;
    } whole = { 2, program };

    (void)i;
    return prctl(PR_SET_SECCOMP, 2, &whole);
}

static int make_dnotify(long i) {
    char path[64];

    snprintf(path, sizeof path, "/tmp/noted-%d-%ld", number, i);
    mkdir(path, 0755);
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    return fd < 0 ? -1 : fcntl(fd, F_NOTIFY, 0x80000000 | 1);
}

static int make_signal(long i) {
    union sigval value = { .sival_int = (int)i };
    sigset_t all;

    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    return sigqueue(getpid(), SIGRTMIN, value);
}

static int make_pidfd(long i) {
    (void)i;
    return (int)syscall(SYS_pidfd_open, getpid(), 0);
}

static int make_zombie(long i) {
    pid_t pid = fork();

    (void)i;
    if (pid == 0)
        _exit(0);
    return pid < 0 ? -1 : 0;
}

/* clang-format off */
#define KINDS(X) \
    X(acl) X(acl_short) X(attribute) X(symlink) X(empty) X(md5) X(group6) X(group4) X(source4) \
    X(options6) X(tls) X(timerfd) X(epoll) X(eventfd) X(netlink) X(socketpair) X(udp) X(tcp) \
    X(bound) X(file) X(async) X(lock) X(file_lock) X(opened) X(mapped) X(listing) X(name) \
    X(mapping) X(timer) X(semaphores) X(message) X(watch) X(absent) X(proc) X(poll) X(terminal) \
    X(filter) X(dnotify) X(signal) X(pidfd) X(zombie)
/* clang-format on */

static const struct kind {
    const char *name;
    int (*make)(long i);
} kinds[] = {
#define KIND(name) { #name, make_##name },
    KINDS(KIND)
};

static void hoard(const struct kind *kind, long until) {
    struct timespec now;

    for (long i = 0;; i++) {
        if (kind->make(i) < 0) {
            shared->error = errno;
            return;
        }
        __atomic_fetch_add(&shared->made, 1, __ATOMIC_RELAXED);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec >= until)
            return;
    }
}

int main(int argc, char **argv) {
    int processes = argc > 2 ? atoi(argv[2]) : 1, fds[2], more[2];
    const struct kind *kind = NULL;
    struct timespec now;
    struct rlimit files;
    char byte;

    for (size_t i = 0; argc > 3 && i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, argv[1]))
            kind = &kinds[i];
    if (!kind) {
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            puts(kinds[i].name);
        return 2;
    }
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (shared == MAP_FAILED || pipe(fds) < 0 || pipe(more) < 0)
        return 3;
    for (number = 1; number <= processes; number++)
        if (fork() == 0) {
            close(fds[0]);
            close(more[1]);
            hoard(kind, now.tv_sec + atol(argv[3]));
            close(fds[1]);
            while (read(more[0], &byte, 1) > 0 || errno == EINTR)
                ;
            _exit(0);
        }
    close(fds[1]);
    while (read(fds[0], &byte, 1) < 0 && errno == EINTR)
        ;
    printf("made %ld errno %d\n", shared->made, shared->error);
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
