/* SPDX-License-Identifier: Apache-2.0 */
/* What a program can still do once it has confined itself. Each case confines the case's process.
 */
#include "test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "sys/confine.h"

/* What the harness needs for its verdict, and calls that Landlock is to refuse. */
static const int calls[] = {
    __NR_read,
    __NR_write,
    __NR_close,
    __NR_openat,
    __NR_exit,
    __NR_exit_group,
    __NR_getpid,
    __NR_getppid,
    __NR_geteuid,
    __NR_prctl,
    __NR_brk,
    __NR_sigaltstack, /* the address sanitizer, at the end */
    __NR_munmap,
    __NR_futex,
    __NR_rt_sigprocmask,
    __NR_lseek,
    __NR_dup,
};

#if defined(__SANITIZE_ADDRESS__)
/* The search for leaks at the end traces the process, which is refused by then. */
int __lsan_is_turned_off(void);
__attribute__((visibility("default"))) int __lsan_is_turned_off(void) {
    return 1;
}
#endif

static void confine(bool may_connect) {
    const char *step = "";
    const struct confine_service service = {
        .calls = calls, .n_calls = ARRAY_SIZE(calls), .may_connect = may_connect
    };

    if (confine_service(&service, &step) < 0)
        test_fail(__FILE__, __LINE__, "cannot %s", step);
}

TEST(confined_process_opens_no_file) {
    int landlock = confine_landlock_abi();

    confine(false);
    ASSERT_EQ(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 1);
    ASSERT_EQ(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0), 0);
    if (landlock > 0) {
        ASSERT_EQ(open("/etc/passwd", O_RDONLY | O_CLOEXEC), -1);
        ASSERT_EQ(errno, EACCES);
    }
}

TEST(confined_process_runs_no_program_and_makes_no_process) {
    confine(true);
    ASSERT_EQ(execl("/bin/true", "true", NULL), -1);
    ASSERT_EQ(errno, EPERM);
    ASSERT_EQ(fork(), -1);
    ASSERT_EQ(errno, EPERM);
    ASSERT_EQ(kill(getppid(), 0), -1);
    ASSERT_EQ(errno, EPERM);
}

TEST(confined_process_maps_no_executable_memory) {
    void *memory;

    confine(true);
    memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_TRUE(memory != MAP_FAILED);
    ASSERT_EQ(mprotect(memory, 4096, PROT_READ), 0);
    ASSERT_EQ(mprotect(memory, 4096, PROT_READ | PROT_EXEC), -1);
    ASSERT_EQ(errno, EPERM);
    ASSERT_TRUE(mmap(NULL, 4096, PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
    ASSERT_EQ(errno, EPERM);
}

TEST(confined_process_without_connect_makes_no_socket) {
    confine(false);
    ASSERT_EQ(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), -1);
    ASSERT_EQ(errno, EPERM);
}

TEST(confined_process_with_connect_makes_internet_sockets_alone) {
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(1) };
    int fd;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    confine(true);
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ASSERT_TRUE(fd >= 0);
    ASSERT_EQ(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ASSERT_TRUE(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0) >= 0 || errno == EAFNOSUPPORT);
    ASSERT_EQ(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), -1);
    ASSERT_EQ(errno, EPERM);
    ASSERT_EQ(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0), -1);
    ASSERT_EQ(errno, EPERM);
}

TEST(confined_process_of_root_has_another_id) {
    if (geteuid() != 0)
        SKIP("root", "an ordinary user keeps its id");
    confine(false);
    ASSERT_EQ(geteuid(), 65534);
}
