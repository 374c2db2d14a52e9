/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel constants and structures that are newer than Debian 12's headers (6.1). Macros of the
 * kernel have the kernel's own names. Where the 6.1 headers have an enum or a shorter structure,
 * the names here begin with uapi_/UAPI_, so that they do not collide with newer headers.
 *
 * The values are the kernel's ABI (include/uapi/linux). On an older kernel the call fails, so probe
 * first (features.h).
 */
#ifndef ROLLBOX_SYS_UAPI_H
#define ROLLBOX_SYS_UAPI_H

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/landlock.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stdint.h>
/* Has glibc's constants of the mount API; <linux/mount.h> cannot be included beside it. */
#include <sys/mount.h>
#include <sys/syscall.h>
#ifndef __GLIBC__
#    include <linux/mount.h> /* musl's <sys/mount.h> does not have the constants */
#endif

/* clone3 (clone(2)) */
#ifndef CLONE_INTO_CGROUP
#    define CLONE_INTO_CGROUP 0x200000000ULL
#endif
#ifndef CLONE_NEWTIME
#    define CLONE_NEWTIME 0x00000080
#endif

#ifndef AT_RECURSIVE
#    define AT_RECURSIVE 0x8000
#endif
#ifndef AT_EMPTY_PATH
#    define AT_EMPTY_PATH 0x1000
#endif

#ifndef P_PIDFD
#    define P_PIDFD 3
#endif

/* The mount API, 6.5 and later */
#ifndef MOVE_MOUNT_BENEATH
#    define MOVE_MOUNT_BENEATH 0x00000200
#endif
#define UAPI_FSCONFIG_CMD_CREATE_EXCL 8 /* 6.6 */

/* madvise(2) and mmap(2) */
#define UAPI_MADV_WIPEONFORK 18
#define UAPI_MADV_DONTFORK 10
#define UAPI_MADV_DOFORK 11
#define UAPI_MADV_HUGEPAGE 14
#define UAPI_MADV_GUARD_INSTALL 102 /* 6.13; 6.15 for more than anonymous memory */
#define UAPI_MADV_POPULATE_READ 22  /* 5.14, both */
#define UAPI_MADV_POPULATE_WRITE 23
#define UAPI_MAP_DROPPABLE 0x08 /* 6.11 */

#define UAPI_PR_TIMER_CREATE_RESTORE_IDS 77 /* prctl(2), 6.15 */

/* Landlock (landlock(7)): ABI 2 REFER, 3 TRUNCATE, 4 network, 5 IOCTL_DEV, 6 scopes, 7 logging */
#ifndef LANDLOCK_ACCESS_FS_REFER
#    define LANDLOCK_ACCESS_FS_REFER (1ULL << 13)
#endif
#ifndef LANDLOCK_ACCESS_FS_TRUNCATE
#    define LANDLOCK_ACCESS_FS_TRUNCATE (1ULL << 14)
#endif
#ifndef LANDLOCK_ACCESS_FS_IOCTL_DEV
#    define LANDLOCK_ACCESS_FS_IOCTL_DEV (1ULL << 15)
#endif
#ifndef LANDLOCK_ACCESS_NET_BIND_TCP
#    define LANDLOCK_ACCESS_NET_BIND_TCP (1ULL << 0)
#endif
#ifndef LANDLOCK_ACCESS_NET_CONNECT_TCP
#    define LANDLOCK_ACCESS_NET_CONNECT_TCP (1ULL << 1)
#endif
#ifndef LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
#    define LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET (1ULL << 0)
#endif
#ifndef LANDLOCK_SCOPE_SIGNAL
#    define LANDLOCK_SCOPE_SIGNAL (1ULL << 1)
#endif
#ifndef LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF
#    define LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF (1U << 0)
#    define LANDLOCK_RESTRICT_SELF_LOG_NEW_EXEC_ON (1U << 1)
#    define LANDLOCK_RESTRICT_SELF_LOG_SUBDOMAINS_OFF (1U << 2)
#endif

#define UAPI_LANDLOCK_RULE_PATH_BENEATH 1
#define UAPI_LANDLOCK_RULE_NET_PORT 2

struct uapi_landlock_ruleset {
    uint64_t handled_access_fs;
    uint64_t handled_access_net; /* ABI 4 */
    uint64_t scoped;             /* ABI 6 */
};

/* The structure's size to pass on a kernel of this ABI. An older kernel refuses a longer structure
 * unless the rest is 0; with this size the call always works. */
static inline size_t uapi_landlock_ruleset_size(int abi) {
    if (abi >= 6)
        return 24;
    return abi >= 4 ? 16 : 8;
}

/* The size up to the last field that is not 0, which an older kernel takes, too. */
static inline size_t uapi_landlock_used_size(const struct uapi_landlock_ruleset *ruleset) {
    if (ruleset->scoped)
        return 24;
    return ruleset->handled_access_net ? 16 : 8;
}

struct uapi_landlock_net_port {
    uint64_t allowed_access;
    uint64_t port;
};

/* Overlay, FUSE and others report these in statfs. The cgroup numbers are in <linux/magic.h>. */
#ifndef CGROUP_SUPER_MAGIC
#    define CGROUP_SUPER_MAGIC 0x27e0eb
#endif
#ifndef CGROUP2_SUPER_MAGIC
#    define CGROUP2_SUPER_MAGIC 0x63677270
#endif
#ifndef PID_FS_MAGIC
#    define PID_FS_MAGIC 0x50494446
#endif

/* pidfd_send_signal(2), 6.9; pidfd_open(2), 6.9 */
#ifndef PIDFD_SIGNAL_THREAD
#    define PIDFD_SIGNAL_THREAD (1UL << 0)
#    define PIDFD_SIGNAL_THREAD_GROUP (1UL << 1)
#    define PIDFD_SIGNAL_PROCESS_GROUP (1UL << 2)
#endif
#ifndef PIDFD_THREAD
#    define PIDFD_THREAD O_EXCL
#endif

/* memfd_create(2), 6.3 */
#ifndef MFD_NOEXEC_SEAL
#    define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MFD_EXEC
#    define MFD_EXEC 0x0010U
#endif

/* prctl(2) */
#ifndef PR_SET_MDWE
#    define PR_SET_MDWE 65
#    define PR_GET_MDWE 66
#endif
#ifndef PR_SET_MEMORY_MERGE
#    define PR_SET_MEMORY_MERGE 67
#    define PR_GET_MEMORY_MERGE 68
#endif

/* statmount(2), listmount(2), 6.8. The numbers are the same on every architecture except alpha. */
#ifndef __NR_statmount
#    define __NR_statmount 457
#endif
#ifndef __NR_listmount
#    define __NR_listmount 458
#endif
#ifndef __NR_cachestat
#    define __NR_cachestat 451
#endif
#ifndef __NR_map_shadow_stack
#    define __NR_map_shadow_stack 453
#endif

/* statx(2). Older C libraries lack it or parts of it. */
struct uapi_statx_time {
    int64_t seconds;
    uint32_t nanoseconds;
    int32_t spare;
};

struct uapi_statx {
    uint32_t mask, blksize;
    uint64_t attributes;
    uint32_t nlink, uid, gid;
    uint16_t mode, spare;
    uint64_t inode, size, blocks, attributes_mask;
    struct uapi_statx_time accessed, born, changed, modified;
    uint32_t special_major, special_minor, device_major, device_minor;
    uint64_t mount;
    uint64_t rest[13];
};

_Static_assert(sizeof(struct uapi_statx) == 256, "as the kernel has it");

#define UAPI_STATX_TYPE 1u
#define UAPI_STATX_BASIC 0x7ffu
#define UAPI_STATX_BORN 0x800u
#define UAPI_STATX_MOUNT 0x1000u
#define UAPI_STATX_ATTR_MOUNT_ROOT 0x2000u

/* ioctl(PAGEMAP_SCAN) on /proc/PID/pagemap, 6.7 (Documentation/admin-guide/mm/pagemap.rst) */
struct uapi_page_region {
    uint64_t start, end, categories;
};

struct uapi_pm_scan_arg {
    uint64_t size, flags, start, end, walk_end;
    uint64_t vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};

#ifndef PAGEMAP_SCAN
#    define PAGEMAP_SCAN _IOWR('f', 16, struct uapi_pm_scan_arg)
#    define PAGEMAP_GUARD (1ull << 58) /* in an entry of /proc/PID/pagemap, 6.15 */
#    define PAGE_IS_WPALLOWED (1ULL << 0)
#    define PAGE_IS_WRITTEN (1ULL << 1)
#    define PAGE_IS_FILE (1ULL << 2)
#    define PAGE_IS_PRESENT (1ULL << 3)
#    define PAGE_IS_SWAPPED (1ULL << 4)
#    define PAGE_IS_PFNZERO (1ULL << 5)
#    define PAGE_IS_HUGE (1ULL << 6)
#    define PAGE_IS_SOFT_DIRTY (1ULL << 7)
#    define PM_SCAN_WP_MATCHING (1ULL << 0)
#    define PM_SCAN_CHECK_WPASYNC (1ULL << 1)
#endif

/* userfaultfd(2): the kernel records write faults in the page table and notifies no process, 6.7 */
#define UAPI_UFFD_USER_MODE_ONLY 1
#define UAPI_UFFD_FEATURE_WP_ASYNC (1ull << 15)

#endif
