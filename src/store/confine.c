/* SPDX-License-Identifier: Apache-2.0 */
#include "store/confine.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "sys/confine.h"
#include "sys/syscalls.h"

#define MEMORY_BYTES                                                                               \
    (4ull << 30) /* address space: xz and zstd may ask for windows of hundreds of megabytes */

#define READ_FILE LANDLOCK_ACCESS_FS_READ_FILE
#define READ_ALL (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)

/* Resources that unpacking does not need. */
static const int forbidden[] = {
    __NR_execve,
    __NR_execveat,
    __NR_clone,
    __NR_clone3,
    __NR_socket,
    __NR_socketpair,
    __NR_connect,
    __NR_bind,
    __NR_listen,
    __NR_accept,
    __NR_accept4,
    __NR_sendto,
    __NR_sendmsg,
    __NR_ptrace,
    __NR_process_vm_readv,
    __NR_process_vm_writev,
    __NR_pidfd_open,
    __NR_pidfd_getfd,
    __NR_pidfd_send_signal,
    __NR_mount,
    __NR_umount2,
    __NR_pivot_root,
    __NR_chroot,
    __NR_unshare,
    __NR_setns,
    __NR_open_tree,
    __NR_move_mount,
    __NR_fsopen,
    __NR_fsconfig,
    __NR_fsmount,
    __NR_mount_setattr,
    __NR_bpf,
    __NR_perf_event_open,
    __NR_userfaultfd,
    __NR_io_uring_setup,
    __NR_io_uring_enter,
    __NR_io_uring_register,
    __NR_add_key,
    __NR_request_key,
    __NR_keyctl,
    __NR_init_module,
    __NR_finit_module,
    __NR_delete_module,
    __NR_kexec_load,
    __NR_kexec_file_load,
    __NR_reboot,
    __NR_open_by_handle_at,
    __NR_name_to_handle_at,
    __NR_swapon,
    __NR_swapoff,
    __NR_setuid,
    __NR_setgid,
    __NR_setresuid,
    __NR_setresgid,
    __NR_setgroups,
    __NR_capset,
    __NR_personality,
    __NR_prlimit64,
    __NR_sethostname,
    __NR_settimeofday,
    __NR_clock_settime,
    __NR_acct,
    __NR_quotactl,
    __NR_memfd_create,
    __NR_kill,
    __NR_tkill,
    __NR_tgkill,
    __NR_rt_sigqueueinfo,
    __NR_rt_tgsigqueueinfo,
    __NR_shmget,
    __NR_msgget,
    __NR_semget,
    __NR_mq_open,
    __NR_ioctl,
#ifdef __NR_fork
    __NR_fork,
    __NR_vfork,
#endif
#ifdef __NR_iopl
    __NR_iopl,
    __NR_ioperm,
#endif
};

static int filter_system_calls(void) {
    struct sock_filter program[2 * ARRAY_SIZE(forbidden) + CONFINE_FILTER_HEAD + 1];
    unsigned short n = confine_filter_head(program);

    for (size_t i = 0; i < ARRAY_SIZE(forbidden); i++) {
        program[n++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)forbidden[i], 0, 1);
        program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    }
    program[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog description = { n, program };
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &description) < 0 ? -errno : 0;
}

static int drop_capabilities(void) {
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct now[2], kept[2] = { 0 };
    /* The last two for set-group-id programs and programs with capabilities of images. */
    const unsigned wanted = 1u << CAP_CHOWN | 1u << CAP_DAC_OVERRIDE | 1u << CAP_FOWNER |
                            1u << CAP_FSETID | 1u << CAP_SETFCAP;
    int r = sys_capget(&header, now);

    if (r < 0)
        return r;
    kept[0].effective = kept[0].permitted = now[0].permitted & wanted;
    return sys_capset(&header, kept);
}

/* Landlock refuses directories' rights for a file. */
static int allow_access(int ruleset, int fd, uint64_t access) {
    struct landlock_path_beneath_attr rule = { .allowed_access = access, .parent_fd = fd };
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISDIR(st.st_mode))
        rule.allowed_access &=
            READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_TRUNCATE;
    return sys_landlock_add_rule(ruleset, UAPI_LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
}

static int enter_landlock(const struct confine *confine, bool *ret_landlock) {
    int abi = confine_landlock_abi();
    uint64_t all = confine_landlock_files(abi);

    if (abi < 1)
        return 0;
    struct uapi_landlock_ruleset attributes = { .handled_access_fs = all,
        .handled_access_net =
            abi >= 4 ? LANDLOCK_ACCESS_NET_BIND_TCP | LANDLOCK_ACCESS_NET_CONNECT_TCP : 0,
        .scoped = abi >= 6 ? LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET : 0 };
    auto_close int ruleset =
        sys_landlock_create_ruleset(&attributes, uapi_landlock_ruleset_size(abi), 0);
    int r = ruleset < 0 ? ruleset
                        : allow_access(ruleset, confine->writable,
                              all & ~(LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_IOCTL_DEV));
    for (size_t i = 0; r == 0 && i < confine->n_readable; i++)
        r = allow_access(ruleset, confine->readable[i], READ_ALL);
    if (r == 0)
        r = sys_landlock_restrict_self(ruleset, 0);
    *ret_landlock = r == 0;
    return r;
}

int confine_enter(const struct confine *confine, bool *ret_landlock, struct rollbox_error *error) {
#if !defined(__SANITIZE_ADDRESS__)
    struct rlimit memory = { MEMORY_BYTES, MEMORY_BYTES };
    if (setrlimit(RLIMIT_AS, &memory) < 0)
        return error_set(error, ROLLBOX_ERR_SETUP_FAILED, errno, "setup",
            "cannot limit the memory of the process that unpacks: %s", strerror(errno));
#endif
    struct rlimit none = { 0, 0 };
    (void)setrlimit(RLIMIT_CORE, &none);
    *ret_landlock = false;
    int r = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -errno : 0;
    if (r == 0)
        r = drop_capabilities();
    if (r == 0)
        r = enter_landlock(confine, ret_landlock);
    if (r == 0)
        r = filter_system_calls();
    return r < 0 ? error_set(error, ROLLBOX_ERR_SETUP_FAILED, -r, "setup",
                       "cannot confine the process that unpacks: %s", strerror(-r))
                 : 0;
}
