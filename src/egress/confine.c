/* SPDX-License-Identifier: Apache-2.0 */
#include "egress/confine.h"

#include <sys/syscall.h>

#include "base/cleanup.h"
#include "sys/confine.h"

/* The system calls of the loop, the sockets, c-ares and malloc. Their descriptors were opened
 * before the filter, came from the engine, or are sockets. */
static const int allowed[] = {
    __NR_read,
    __NR_readv,
    __NR_write,
    __NR_writev,
    __NR_close,
    __NR_fcntl,
    __NR_lseek,
    __NR_fstat,
#ifdef __NR_newfstatat
    __NR_newfstatat, /* fstat of newer C libraries; reveals only the type and attributes of a path
                      */
#endif
    __NR_recvfrom,
    __NR_recvmsg,
    __NR_sendto,
    __NR_sendmsg,
    __NR_accept4,
    __NR_shutdown,
    __NR_getsockname,
    __NR_getpeername,
    __NR_getsockopt,
    __NR_setsockopt,
    __NR_epoll_pwait,
    __NR_epoll_ctl,
    __NR_epoll_create1,
#ifdef __NR_epoll_wait
    __NR_epoll_wait,
#endif
    __NR_clock_gettime,
    __NR_gettimeofday,
#ifdef __NR_time
    __NR_time,
#endif
    __NR_brk,
    __NR_munmap,
    __NR_mremap,
    __NR_madvise,
    __NR_futex,
    __NR_getrandom,
    __NR_getpid,
    __NR_gettid,
    __NR_rt_sigreturn,
    __NR_rt_sigprocmask,
    __NR_restart_syscall,
    __NR_exit,
    __NR_exit_group,
};

#if defined(__SANITIZE_ADDRESS__)
/* The search for leaks at the end opens files and traces the process, which is refused by then. */
const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__asan_default_options(void) {
    return "detect_leaks=0";
}
#endif

int confine_gateway(const char **ret_step) {
    return confine_service(
        &(struct confine_service){
            .calls = allowed, .n_calls = ARRAY_SIZE(allowed), .may_connect = true },
        ret_step);
}
