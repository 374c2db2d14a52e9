/* SPDX-License-Identifier: Apache-2.0 */
#include "egress_tls/confine.h"

#include <sys/syscall.h>

#include "base/cleanup.h"
#include "sys/confine.h"

/* No open, socket, connect, execve, clone, kill, ptrace or ioctl. fcntl and setsockopt act on
 * descriptors that the process has; recvmsg brings those of egress and the engine alone. After a
 * change of rules getpeername and getsockname tell to which server a connection leads. */
static const int allowed[] = {
    __NR_read,
    __NR_write,
    __NR_readv,
    __NR_writev,
    __NR_recvmsg,
    __NR_sendmsg,
    __NR_recvfrom,
    __NR_sendto,
    __NR_close,
    __NR_shutdown,
    __NR_setsockopt,
    __NR_getsockopt,
    __NR_getpeername,
    __NR_getsockname,
    __NR_fcntl,
    __NR_fstat,
    __NR_lseek,
    __NR_pread64,
    __NR_epoll_ctl,
    __NR_epoll_pwait,
    __NR_epoll_pwait2,
    __NR_timerfd_settime,
    __NR_getrandom,
    __NR_clock_gettime,
    __NR_gettimeofday,
    __NR_getpid,
    __NR_gettid,
    __NR_mremap,
    __NR_munmap,
    __NR_madvise,
    __NR_brk,
    __NR_futex,
    __NR_rt_sigprocmask,
    __NR_rt_sigreturn,
    __NR_restart_syscall,
    __NR_sched_yield,
    __NR_exit,
    __NR_exit_group,
#ifdef __NR_epoll_wait
    __NR_epoll_wait,
    __NR_time,
#endif
};

int confine_self(const char **ret_step) {
    return confine_service(
        &(struct confine_service){
            .calls = allowed, .n_calls = ARRAY_SIZE(allowed), .may_connect = false },
        ret_step);
}
