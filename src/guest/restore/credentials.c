/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restores the credentials of processes of a sandbox with many users.
 *
 * A process is restored as the sandbox's root, with CAP_SYS_ADMIN in the sandbox's user namespace.
 * With these rights it opens its files and enters its domain and its root directory. The
 * credentials of the image come last. Each thread sets its own, because the kernel keeps
 * credentials for each thread. The order is:
 *
 * - groups and ids, with SECBIT_NO_SETUID_FIXUP, so that the capabilities do not change;
 * - inheritable and ambient capabilities, which the bounding set limits;
 * - the bounding set, then the securebits, which may be locked;
 * - permitted and effective capabilities; after this step no capability can be raised.
 *
 * image/process_image.c refuses images with ids or capabilities that no sandbox has. Capabilities
 * that this sandbox's plan does not allow are dropped here.
 */
#include <errno.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <signal.h>
#include <sys/prctl.h>

#include "guest/restore/restore_image.h"
#include "sys/syscalls.h"

#if defined(__x86_64__) && !defined(__GLIBC__)

_Static_assert(IMAGE_CAPABILITIES == PLAN_CAPABILITIES && IMAGE_IDS == PLAN_MANY_IDS,
    "an image may have what a plan may give");

#    define SETPCAP (UINT64_C(1) << CAP_SETPCAP)

static long set_capabilities(uint64_t effective, uint64_t permitted, uint64_t inheritable) {
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    const struct __user_cap_data_struct both[2] = {
        { (uint32_t)effective, (uint32_t)permitted, (uint32_t)inheritable },
        { (uint32_t)(effective >> 32), (uint32_t)(permitted >> 32), (uint32_t)(inheritable >> 32) },
    };

    return sys_capset(&header, both);
}

static long set_ids(const struct image_credentials *own) {
    const uint32_t *groups = restored_table(groups, uint32_t) + own->groups.first;
    long r = sys_setgroups(own->groups.n, groups);

    if (r == 0)
        r = sys_setresgid(own->gids[0], own->gids[1], own->gids[2]);
    if (r == 0)
        r = sys_prctl(PR_SET_SECUREBITS, 1ul << SECURE_NO_SETUID_FIXUP, 0, 0, 0);
    if (r < 0)
        return r;
    (void)sys_call1(__NR_setfsgid, own->gids[3]);
    r = sys_setresuid(own->uids[0], own->uids[1], own->uids[2]);
    if (r < 0)
        return r;
    (void)sys_call1(__NR_setfsuid, own->uids[3]);
    return sys_call1(__NR_setfsuid, -1) == (long)own->uids[3] &&
                   sys_call1(__NR_setfsgid, -1) == (long)own->gids[3]
               ? 0
               : -EPERM;
}

static long each_capability(uint64_t capabilities, int option, unsigned long command) {
    long r = 0;

    for (unsigned long capability = 0; capability < 64 && r == 0; capability++)
        if (capabilities >> capability & 1)
            r = command ? sys_prctl(option, command, capability, 0, 0)
                        : sys_prctl(option, capability, 0, 0, 0);
    return r;
}

/* Threads call this at the same time and share errno, so it does not use errno. */
long restore_take_rights(const struct image_thread *thread, uint64_t allowed) {
    const struct image_credentials *own =
        restored_table(credentials, struct image_credentials) + thread->credentials - 1;
    const uint64_t permitted = own->permitted & allowed;
    const uint64_t inheritable = own->inheritable & allowed;

    if (!thread->credentials)
        return 0;
    long r = set_ids(own);
    if (r == 0)
        r = set_capabilities(permitted | SETPCAP, permitted | SETPCAP, inheritable);
    if (r == 0)
        r = each_capability(
            own->ambient & permitted & inheritable, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE);
    if (r == 0)
        r = each_capability(allowed & ~own->bounds, PR_CAPBSET_DROP, 0);
    if (r == 0)
        r = sys_prctl(PR_SET_SECUREBITS, own->secure_bits, 0, 0, 0);
    if (r == 0)
        r = set_capabilities(own->effective & permitted, permitted, inheritable);
    if (r == 0 && own->has_no_new_privileges)
        r = sys_prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return r;
}

#endif
