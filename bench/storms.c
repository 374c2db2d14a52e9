/* SPDX-License-Identifier: Apache-2.0 */
/* The guest of neighbours.py: `storms KIND N` takes from its neighbours what it can, with N
 * processes, until it is killed. `storms` lists the kinds. */
#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1u << 20)

static void spin(void) {
    for (;;)
        __asm__ volatile("");
}

/* Where the CPUs are shared by session, one gets a share for each. */
static void sessions(void) {
    if (fork() == 0) {
        setsid();
        spin();
    }
    pause();
}

static void hops(void) {
    for (unsigned i = 0;; i++) {
        cpu_set_t one;

        CPU_ZERO(&one);
        CPU_SET(i % (unsigned)sysconf(_SC_NPROCESSORS_ONLN), &one);
        (void)sched_setaffinity(0, sizeof one, &one);
        (void)sched_yield();
    }
}

static void wakes(void) {
    int to[2], back[2];
    char byte = 0;

    if (pipe(to) < 0 || pipe(back) < 0)
        _exit(1);
    if (fork())
        while (write(to[1], &byte, 1) == 1 && read(back[0], &byte, 1) == 1)
            ;
    else
        while (read(to[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1)
            ;
}

static void forks(void) {
    for (;;) {
        pid_t pid = fork();

        if (pid == 0)
            _exit(0);
        if (pid > 0)
            waitpid(pid, NULL, 0);
    }
}

static void large_forks(void) {
    char *memory = mmap(NULL, 40 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory != MAP_FAILED)
        memset(memory, 1, 40 * MIB);
    forks();
}

static void execs(void) {
    for (;;) {
        pid_t pid = vfork();

        if (pid == 0) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        waitpid(pid, NULL, 0);
    }
}

static void maps(void) {
    for (;;) {
        char *memory = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

        if (memory != MAP_FAILED) {
            mprotect(memory, 4 * MIB, PROT_READ);
            munmap(memory, 4 * MIB);
        }
    }
}

static void barriers(void) {
    for (;;)
        syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0);
}

static void quick_barriers(void) {
    syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0);
    for (;;)
        syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
}

static void futexes(void) {
    static int word;

    for (;;) {
        syscall(SYS_futex, &word, FUTEX_WAKE, 1, NULL, NULL, 0);
        syscall(SYS_futex, &word, FUTEX_WAIT, 1, NULL, NULL, 0);
    }
}

static void sockets(void) {
    for (;;) {
        char control[CMSG_SPACE(2 * sizeof(int))] = { 0 };
        struct iovec data = { .iov_base = "x", .iov_len = 1 };
        struct msghdr message = { .msg_iov = &data,
            .msg_iovlen = 1,
            .msg_control = control,
            .msg_controllen = sizeof control };
        int pair[2];

        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
            continue;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(2 * sizeof(int));
        memcpy(CMSG_DATA(header), pair, sizeof pair);
        (void)sendmsg(pair[0], &message, 0); /* in flight in itself: for the kernel's collector */
        (void)sendmsg(pair[1], &message, 0);
        close(pair[0]);
        close(pair[1]);
    }
}

static void renames(void) {
    char from[64], to[64];

    snprintf(from, sizeof from, "/tmp/from%d", getpid());
    snprintf(to, sizeof to, "/tmp/to%d", getpid());
    (void)mkdir(from, 0755);
    for (;;) {
        (void)!rename(from, to);
        (void)!rename(to, from);
    }
}

static void files(void) {
    char path[64];

    for (unsigned i = 0;; i++) {
        snprintf(path, sizeof path, "/tmp/%d.%u", getpid(), i % 1000);
        int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
        if (fd >= 0)
            close(fd);
        if (i % 3 == 0)
            (void)unlink(path);
    }
}

static void statuses(void) {
    char path[300], text[4096];

    for (;;) {
        DIR *directory = opendir("/proc");
        struct dirent *entry;

        while (directory && (entry = readdir(directory))) {
            snprintf(path, sizeof path, "/proc/%s/status", entry->d_name);
            int fd = open(path, O_RDONLY | O_CLOEXEC);
            if (fd >= 0) {
                (void)!read(fd, text, sizeof text);
                close(fd);
            }
        }
        if (directory)
            closedir(directory);
    }
}

static void chances(void) {
    static char bytes[16 * MIB];

    for (;;)
        (void)!getrandom(bytes, sizeof bytes, 0);
}

static const struct {
    const char *name;
    void (*run)(void);
} kinds[] = {
    { "spin", spin },
    { "sessions", sessions },
    { "hops", hops },
    { "wakes", wakes },
    { "forks", forks },
    { "large forks", large_forks },
    { "execs", execs },
    { "maps", maps },
    { "barriers", barriers },
    { "quick barriers", quick_barriers },
    { "futexes", futexes },
    { "sockets", sockets },
    { "renames", renames },
    { "files", files },
    { "statuses", statuses },
    { "chances", chances },
};

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (argc < 3)
            puts(kinds[i].name);
        else if (strcmp(kinds[i].name, argv[1]) == 0) {
            for (int n = 1; n < atoi(argv[2]) && fork(); n++)
                ;
            kinds[i].run();
        }
    }
    return argc < 3 ? 0 : 2;
}
