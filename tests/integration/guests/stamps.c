/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time stamps of files, by every call that shows or sets them. `stamps DIRECTORY WHAT`, for what it
 * makes there: "written" prints stamps; "ways" compares each with the clock, or with what was set,
 * and prints "ok" or "not ok"; "children" looks at the code of stat, when children have called it;
 * "signals" has stat broken off; "links" looks for init's files through /proc; "bad", "storm" and
 * "deep" ask what cannot be answered, from everywhere at once, and by the longest of ways.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000ll
#define SLACK_NS 20000000ll /* the kernel's stamps are behind its clock by a tick */

/* As the kernel has it: a C library's may be shorter. */
struct extended {
    uint32_t head[8];
    uint64_t inode, size, blocks, attributes;
    struct {
        int64_t s;
        uint32_t ns;
        int32_t spare;
    } accessed, born, changed, modified;
    uint64_t rest[16];
};

static int64_t now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * NS + t.tv_nsec;
}

static int64_t ns(struct timespec t) {
    return t.tv_sec * NS + t.tv_nsec;
}

static void check(const char *what, bool is_true) {
    printf("%s %s\n", is_true ? "ok" : "not ok", what);
    fflush(stdout);
}

static void make(const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

    if (fd < 0 || write(fd, "x", 1) != 1)
        exit(1);
    close(fd);
}

/* All ways to see one file agree, and are of a time between. */
static void check_shown(const char *what, const char *path, int64_t from, bool of_modified) {
    struct stat by_name, by_link, by_fd, at, empty, raw;
    struct extended extended, by_statx_fd;
    int fd = open(path, O_RDONLY | O_NONBLOCK), directory = open(".", O_PATH | O_DIRECTORY), r;
    char name[64];

    r = stat(path, &by_name) | lstat(path, &by_link) | fstat(fd, &by_fd) |
        fstatat(directory, path, &at, AT_SYMLINK_NOFOLLOW) | fstatat(fd, "", &empty, AT_EMPTY_PATH);
    r |= syscall(SYS_statx, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, 0xfff, &extended) |
         syscall(SYS_statx, fd, "", AT_EMPTY_PATH, 0xfff, &by_statx_fd) |
         syscall(SYS_stat, path, &raw);
    close(fd);
    close(directory);
    int64_t modified = ns(by_name.st_mtim), changed = ns(by_name.st_ctim),
            seen = of_modified ? modified : changed;
    snprintf(name, sizeof name, "%s is of now", what);
    check(name, r == 0 && seen >= from - SLACK_NS && seen <= now_ns());
    snprintf(name, sizeof name, "%s is the same in all ways", what);
    check(name, ns(by_link.st_mtim) == modified && ns(by_fd.st_mtim) == modified &&
                    ns(at.st_mtim) == modified && ns(empty.st_mtim) == modified &&
                    ns(raw.st_mtim) == modified && ns(by_fd.st_ctim) == changed &&
                    ns(raw.st_ctim) == changed &&
                    extended.modified.s * NS + extended.modified.ns == modified &&
                    by_statx_fd.modified.s * NS + by_statx_fd.modified.ns == modified &&
                    extended.changed.s * NS + extended.changed.ns == changed &&
                    extended.born.s * NS + extended.born.ns <= now_ns() &&
                    extended.born.s * NS + extended.born.ns >= from - 60 * NS &&
                    by_fd.st_ino == by_name.st_ino && by_fd.st_size == by_name.st_size &&
                    by_fd.st_dev == by_name.st_dev);
}

static void check_set(
    const char *what, const char *path, int r, int64_t accessed, int64_t modified) {
    struct stat st;

    check(what, r == 0 && lstat(path, &st) == 0 && ns(st.st_mtim) == modified &&
                    ns(st.st_atim) == accessed);
}

static void ways(void) {
    struct timespec old[2] = { { 5, 6 }, { 7, 8 } },
                    far[2] = { { 4000000000, 1 }, { 2500000000, 999999999 } },
                    now[2] = { { 0, UTIME_NOW }, { 0, UTIME_NOW } },
                    half[2] = { { 0, UTIME_OMIT }, { 1234567890, 5 } };
    long micro[4] = { 11, 22, 1750000000, 33 }, seconds[2] = { 44, 1751000000 };
    struct extended some;
    struct stat st;
    int64_t from = now_ns();
    int fd;

    make("a");
    check_shown("a new file", "a", from, true);
    from = now_ns();
    fd = open("a", O_WRONLY | O_APPEND);
    check("writing", write(fd, "y", 1) == 1);
    check_shown("what was written", "a", from, true);
    from = now_ns();
    check("writing again", write(fd, "z", 1) == 1 && ftruncate(fd, 1) == 0);
    check_shown("what was cut", "a", from, true);
    from = now_ns();
    check("chmod", chmod("a", 0600) == 0);
    check_shown("a new mode", "a", from, false);
    from = now_ns();
    check("mkdir", mkdir("d", 0755) == 0 && mknod("d/p", S_IFIFO | 0600, 0) == 0);
    check_shown("a directory", "d", from, true);
    check_shown("a pipe", "d/p", from, true);
    from = now_ns();
    check("rename", rename("d/p", "p") == 0);
    check_shown("a directory that lost one", "d", from, true);
    check_shown("this directory", ".", from, true);
    from = now_ns();
    check("by the memory of a file", ftruncate(fd, 4096) == 0);
    close(fd);
    fd = open("a", O_RDWR);
    char *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    mapped[1] = 1;
    check("msync", msync(mapped, 4096, MS_SYNC) == 0);
    check_shown("a mapped file", "a", from, true);

    check_set("utimensat", "a", utimensat(AT_FDCWD, "a", old, 0), 5 * NS + 6, 7 * NS + 8);
    check_set("futimens", "a", futimens(fd, far), 4000000000 * NS + 1, 2500000000 * NS + 999999999);
    check_set("half of them", "a", utimensat(AT_FDCWD, "a", half, 0), 4000000000 * NS + 1,
        1234567890 * NS + 5);
    check_set("utimes", "a", (int)syscall(SYS_utimes, "a", micro), 11 * NS + 22000,
        1750000000 * NS + 33000);
    check_set("utime", "a", (int)syscall(SYS_utime, "a", seconds), 44 * NS, 1751000000 * NS);
    check_set("futimesat", "a", (int)syscall(SYS_futimesat, AT_FDCWD, "a", micro), 11 * NS + 22000,
        1750000000 * NS + 33000);
    check("symlink", symlink("a", "l") == 0);
    check_set("of a link", "l", utimensat(AT_FDCWD, "l", far, AT_SYMLINK_NOFOLLOW),
        4000000000 * NS + 1, 2500000000 * NS + 999999999);
    check_set("and not of its target", "a", 0, 11 * NS + 22000, 1750000000 * NS + 33000);
    char whole[4096 + 3];
    if (!getcwd(whole, 4096))
        exit(1);
    strcat(whole, "/a");
    check_set("and of a whole path, whose directory is not looked at", "a",
        utimensat(-1, whole, far, 0), 4000000000 * NS + 1, 2500000000 * NS + 999999999);
    check("and shown",
        fstatat(-1, whole, &st, 0) == 0 && ns(st.st_mtim) == 2500000000 * NS + 999999999);
    check("but of no other", fstatat(-1, "a", &st, 0) < 0 && errno == EBADF &&
                                 utimensat(-1, "a", far, 0) < 0 && errno == EBADF &&
                                 fstatat(-1, "", &st, AT_EMPTY_PATH) < 0 && errno == EBADF);
    check_set("utimensat, of an empty path", "a",
        (int)syscall(SYS_utimensat, fd, "", old, AT_EMPTY_PATH), 5 * NS + 6, 7 * NS + 8);
    from = now_ns();
    check("now", futimens(fd, NULL) == 0);
    check_shown("NULL", "a", from, true);
    check("old", futimens(fd, old) == 0);
    from = now_ns();
    check("now", utimensat(AT_FDCWD, "a", now, 0) == 0);
    check_shown("UTIME_NOW", "a", from, true);
    from = now_ns();
    check("now", syscall(SYS_utimes, "a", NULL) == 0 && syscall(SYS_utime, "a", NULL) == 0);
    check_shown("utimes and utime", "a", from, true);

    check("errors of stat", stat("nowhere", &st) < 0 && errno == ENOENT && stat("", &st) < 0 &&
                                errno == ENOENT && stat("a/b", &st) < 0 && errno == ENOTDIR &&
                                fstat(-1, &st) < 0 && errno == EBADF && fstat(999, &st) < 0 &&
                                errno == EBADF);
    check("of its address", syscall(SYS_stat, "a", (void *)8) < 0 && errno == EFAULT &&
                                syscall(SYS_stat, (void *)8, &st) < 0 && errno == EFAULT &&
                                syscall(SYS_statx, AT_FDCWD, "a", 0, 0xfff, (void *)8) < 0 &&
                                errno == EFAULT);
    char *edge = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(edge + 4096, 4096);
    check("of half of it", syscall(SYS_stat, "a", edge + 4096 - 60) < 0 && errno == EFAULT &&
                               syscall(SYS_statx, AT_FDCWD, "a", 0, 0xfff, edge + 4096 - 60) < 0 &&
                               errno == EFAULT);
    check("of its flags",
        syscall(SYS_newfstatat, AT_FDCWD, "a", &st, 0x40000) < 0 && errno == EINVAL &&
            syscall(SYS_statx, AT_FDCWD, "a", 0x6000, 0xfff, &some) < 0 && errno == EINVAL &&
            syscall(SYS_statx, AT_FDCWD, "a", 0, 0x80000000u, &some) < 0 && errno == EINVAL);
    struct timespec bad[2] = { { 1, -1 }, { 1, 2 * NS } };
    check("of times", utimensat(AT_FDCWD, "a", bad, 0) < 0 && errno == EINVAL &&
                          syscall(SYS_utimensat, AT_FDCWD, "a", (void *)8, 0) < 0 &&
                          errno == EFAULT && utimensat(AT_FDCWD, "nowhere", far, 0) < 0 &&
                          errno == ENOENT);
    check("of what is another's", utimensat(AT_FDCWD, "/usr", far, 0) < 0 &&
                                      (errno == EPERM || errno == EROFS || errno == EACCES));
    check("what was not asked for is not told",
        syscall(SYS_statx, AT_FDCWD, "a", 0, 0x200, &some) == 0 && some.size == 4096);
    int pair[2];
    check("a socket", socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && fstat(pair[0], &st) == 0 &&
                          S_ISSOCK(st.st_mode));
    check("a file that is gone", unlink("p") == 0 && unlink("a") == 0 && fstat(fd, &st) == 0 &&
                                     st.st_nlink == 0 && ns(st.st_mtim) >= from - SLACK_NS &&
                                     ns(st.st_mtim) <= now_ns());
}

static void written(void) {
    static const char *const names[] = { "a", "b", "c", "d", "d/e", ".", "l" };
    struct stat st;

    make("a");
    make("b");
    if (mkdir("d", 0755) < 0 || symlink("a", "l") < 0)
        exit(1);
    make("d/e");
    make("c");
    make("a");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (lstat(names[i], &st) == 0)
            printf("%s %lld %lld %lld\n", names[i], (long long)ns(st.st_atim),
                (long long)ns(st.st_mtim), (long long)ns(st.st_ctim));
    make("d/e");
    printf("%d %lld %lld\n", stat("d/e", &st), (long long)ns(st.st_mtim), (long long)now_ns());
}

/* The C library's newfstatat, as init knows it (guest/det/vdso_patch.c); NULL: it is another. */
static unsigned char *code_of_stat(void) {
    static const unsigned char known[] = { 0x41, 0x89, 0xca, 0xb8, 0x06, 0x01, 0x00, 0x00, 0x0f,
        0x05 };
    unsigned char *code = (unsigned char *)(uintptr_t)fstatat;

    for (int i = 0; i < 8; i++)
        if (!memcmp(code + i, known, sizeof known))
            return code + i + 3;
    return NULL;
}

static void look_often(void) {
    struct stat st;

    for (int i = 0; i < 10; i++)
        (void)!stat("/", &st);
}

static void *looking(void *is_done) {
    while (!*(volatile bool *)is_done)
        sched_yield();
    return NULL;
}

/* A child that has its parent's memory has the parent's code, too, which others run meanwhile: it
 * is left as it is. */
static void children(void) {
    volatile bool is_done = false;
    unsigned char *code = code_of_stat();
    pthread_t thread;

    if (!code)
        return;
    pthread_create(&thread, NULL, looking, (void *)&is_done);
    pid_t pid = vfork();
    if (pid == 0) {
        look_often();
        _exit(0);
    }
    bool is_left = *code == 0xb8;
    is_done = true;
    pthread_join(thread, NULL);
    check("a child that has our memory", pid > 0 && waitpid(pid, NULL, 0) == pid && is_left);
    pid = fork();
    if (pid == 0) {
        look_often();
        _exit(*code != 0xb8);
    }
    int status;
    check("one of its own", waitpid(pid, &status, 0) == pid && status == 0);
    look_often();
    check("ourselves", *code == 0xe8);
}

static volatile sig_atomic_t n_ticks, n_bad;

static void tick(int number) {
    struct stat st;
    int error = errno;

    (void)number;
    n_ticks++;
    for (int i = 0; i < 3; i++) {
        st.st_size = -1;
        n_bad += fstatat(AT_FDCWD, "a", &st, 0) < 0 || st.st_size != 1;
    }
    errno = error;
}

static void ticking(int flags, long after_us, long every_us) {
    struct sigaction action = { .sa_handler = tick, .sa_flags = flags };
    struct itimerval timer = { { 0, every_us }, { 0, after_us } };

    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

/* Signals interrupt a program's very first stat of this name now and then, and the calls of their
 * handler make init change the code. A call that starts again then must still succeed. */
static void broken_off(const char *after_us) {
    struct stat st = { .st_size = -1 };

    ticking(SA_RESTART, atoi(after_us), 0);
    bool is_done = fstatat(AT_FDCWD, "a", &st, 0) == 0 && st.st_size == 1;
    while (!n_ticks)
        usleep(100);
    exit(!is_done || n_bad);
}

/* And once it calls the vDSO, stat is broken off no more than the kernel's own is. */
static void signals(const char *program) {
    const unsigned char *code = code_of_stat();
    static int n_failed;
    int status;
    struct stat st;
    char text[16];

    make("a");
    for (int i = 0; i < 300; i++) {
        snprintf(text, sizeof text, "%d", 1 + i % 60);
        pid_t pid = vfork();
        if (pid == 0) {
            execl(program, program, ".", "broken-off", text, NULL);
            _exit(1);
        }
        n_failed += pid < 0 || waitpid(pid, &status, 0) != pid || status;
    }
    check("calls that start again", n_failed == 0);
    look_often();
    ticking(0, 200, 200);
    for (int i = 0; i < 10000; i++)
        n_failed += stat("a", &st) < 0 || st.st_size != 1;
    ticking(0, 0, 0);
    check("what is broken off", n_bad == 0 && (n_failed == 0 || !code || *code != 0xe8));
}

/* By its number there may be none of ours: of what is not ours, nothing is to be seen by ours. */
static void links(void) {
    struct stat st, through;
    char path[64];
    int n = 0;

    make("a");
    int fd = open("a", O_RDONLY);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    check("its own", stat("a", &st) == 0 && stat(path, &through) == 0 &&
                         st.st_ino == through.st_ino && st.st_size == through.st_size);
    if (symlink("/proc/self/fd", "fds") < 0)
        exit(1);
    for (int i = 0; i < 64; i++) {
        int known = fcntl(i, F_GETFD);

        snprintf(path, sizeof path, "fds/%d", i);
        n += known < 0 && stat(path, &through) == 0;
        snprintf(path, sizeof path, "/proc/1/fd/%d", i);
        n += stat(path, &through) == 0;
    }
    check("no others", n == 0);
    check("/proc", stat("/proc/self", &st) == 0 && lstat("/proc/self", &through) == 0 &&
                       S_ISDIR(st.st_mode) && S_ISLNK(through.st_mode) &&
                       stat("/proc/self/cwd/a", &through) == 0);
}

static void bad(void) {
    static const long calls[] = { SYS_stat, SYS_lstat, SYS_fstat, SYS_newfstatat, SYS_statx,
        SYS_utimensat, SYS_utimes, SYS_utime, SYS_futimesat, SYS_open, SYS_openat, SYS_openat2,
        SYS_rename, SYS_renameat2, SYS_linkat, SYS_symlinkat, SYS_unlinkat, SYS_mkdirat };
    char *edge = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned random = 1;

    munmap(edge + 4096, 4096);
    memset(edge, 'a', 4096); /* a path that ends nowhere */
    const uint64_t values[] = { 0, 1, 2, 3, 77, (uint64_t)-1, (uint64_t)-100,
        (uint64_t)(uintptr_t)edge, (uint64_t)(uintptr_t)edge + 4090, 0x7fffffff, 0x80000000,
        ~0ull << 47, (uint64_t)(uintptr_t) "", (uint64_t)(uintptr_t) "x/y",
        (uint64_t)(uintptr_t) "/", 0x1000, 0xfff };

    for (int i = 0; i < 20000; i++) {
        uint64_t a[5];

        for (int j = 0; j < 5; j++)
            a[j] = values[(random = random * 1103515245 + 12345) / 65536 %
                          (sizeof values / sizeof values[0])];
        long number = calls[random / 1024 % (sizeof calls / sizeof calls[0])];
        if (number == SYS_open || number == SYS_openat)
            a[number == SYS_open ? 1 : 2] |= O_NONBLOCK;
        long r = syscall(number, a[0], a[1], a[2], a[3], a[4]);
        if (r > 2 && number != SYS_statx)
            close((int)r);
    }
}

static void *storming(void *path) {
    struct stat st;

    for (int i = 0; i < 500; i++) {
        make(path);
        (void)!stat(path, &st);
        (void)!unlink(path);
    }
    return NULL;
}

/* Processes and threads side by side, and some that are killed in the middle of it. */
static void storm(void) {
    char paths[4][16];
    pthread_t threads[4];
    pid_t pids[4];

    for (int i = 0; i < 4; i++) {
        pid_t pid = pids[i] = fork();

        if (pid == 0) {
            snprintf(paths[i], sizeof paths[i], "p%d", i);
            for (;;)
                storming(paths[i]);
        }
        snprintf(paths[i], sizeof paths[i], "t%d", i);
        pthread_create(&threads[i], NULL, storming, paths[i]);
        if (i % 2)
            kill(pid, SIGKILL);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++)
        kill(pids[i], SIGKILL);
    while (wait(NULL) > 0)
        ;
}

/* Links in links, deep directories that are moved while they are looked at, paths of the utmost
 * length. */
static void deep(void) {
    char path[4200], name[16];
    struct stat st;

    for (int i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "l%d", i);
        snprintf(path, sizeof path, "l%d/l%d", i + 1, i + 1);
        (void)!symlink(path, name);
    }
    (void)!mkdir("l50", 0755);
    for (int i = 0; i < 50; i++) {
        snprintf(name, sizeof name, "l%d", i);
        (void)!stat(name, &st);
    }
    memset(path, '/', sizeof path);
    memcpy(path + 4090, "tmp", 4);
    check("long", stat(path, &st) == 0 && S_ISDIR(st.st_mode));
    path[4093] = '/';
    path[4199] = '\0';
    check("too long", stat(path, &st) < 0 && errno == ENAMETOOLONG);
    for (int i = 0;
         i < 2000 && mkdir("dddddddddddddddd", 0755) == 0 && chdir("dddddddddddddddd") == 0; i++)
        make("f");
    check("deep", stat("f", &st) == 0 && stat(".", &st) == 0);
}

int main(int argc, char **argv) {
    const char *what = argc > 2 ? argv[2] : "";

    if (argc > 3 && !strcmp(what, "broken-off"))
        broken_off(argv[3]);
    if (argc < 3 || chdir(argv[1]) < 0 || mkdir("stamps", 0755) < 0 || chdir("stamps") < 0)
        return 2;
    if (!strcmp(what, "written"))
        written();
    else if (!strcmp(what, "ways"))
        ways();
    else if (!strcmp(what, "children"))
        children();
    else if (!strcmp(what, "signals"))
        signals(argv[0]);
    else if (!strcmp(what, "links"))
        links();
    else if (!strcmp(what, "bad"))
        bad();
    else if (!strcmp(what, "storm"))
        storm();
    else if (!strcmp(what, "deep"))
        deep();
    return 0;
}
