/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/limits.h"

#include <sys/resource.h>

#include "base/cleanup.h"

/* Where all have more of it, Linux' own default: where the stack may grow to says where all else is
 * mapped. */
#define MEMLOCK_BYTES ((rlim_t)8 << 20) /* what a sandbox has unless its policy says otherwise */
#define STACK_BYTES ((rlim_t)8 << 20)

static const struct {
    int resource;
    rlim_t wanted;
    const char *name, *command;
    uint64_t unit;
} limits[LIMITS_COUNT] = {
    { RLIMIT_AS, RLIM_INFINITY, "address space", "ulimit -v", 1024 },
    { RLIMIT_DATA, RLIM_INFINITY, "data", "ulimit -d", 1024 },
    { RLIMIT_CPU, RLIM_INFINITY, "CPU time", "ulimit -t", 1 },
    { RLIMIT_FSIZE, RLIM_INFINITY, "file size", "ulimit -f", 1024 },
    { RLIMIT_STACK, STACK_BYTES, "stack", "ulimit -s", 1024 },
    /* The plan makes it 1, where the kernel starts no handler of the host's for a guest's crash;
       with 0 it does. */
    { RLIMIT_MEMLOCK, MEMLOCK_BYTES, "locked memory", "ulimit -l", 1024 },
    { RLIMIT_CORE, 1, "core dumps", "ulimit -c", 1024 },
};

void limits_settle(void) {
    for (unsigned i = 0; i < LIMITS_COUNT; i++) {
        struct rlimit now;

        if (setrlimit(limits[i].resource, &(struct rlimit){ limits[i].wanted, RLIM_INFINITY }) <
                0 &&
            getrlimit(limits[i].resource, &now) == 0)
            (void)setrlimit(limits[i].resource,
                &(struct rlimit){ MIN(limits[i].wanted, now.rlim_max), now.rlim_max });
    }
}

uint64_t limits_raise_open_files(void) {
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return 0;
    if (files.rlim_cur < files.rlim_max &&
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){ files.rlim_max, files.rlim_max }) == 0)
        files.rlim_cur = files.rlim_max;
    return files.rlim_cur;
}

bool limits_is_low(unsigned i, struct limits_left *ret_left) {
    struct rlimit now;

    if (getrlimit(limits[i].resource, &now) < 0 || now.rlim_max >= limits[i].wanted ||
        setrlimit(limits[i].resource, &(struct rlimit){ now.rlim_cur, RLIM_INFINITY }) == 0)
        return false;
    *ret_left = (struct limits_left){ limits[i].name, limits[i].command,
        (uint64_t)now.rlim_max / limits[i].unit };
    return true;
}
