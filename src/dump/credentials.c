/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dumps the credentials of processes of a sandbox with many users: ids, groups, capabilities,
 * securebits and no_new_privs. The kernel keeps them for each thread.
 *
 * /proc and stat(2) show ids of the reader's user namespace. The image contains ids of the
 * sandbox's user namespace, so each id is translated with the map of that namespace.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "dump/internal.h"

#define NOBODY 65534u

/* ---- ids ---- */

static int read_map(const char *name, pid_t init, struct id_ranges *ret_ranges) {
    auto_buf struct buf text = BUF_INIT;
    struct id_ranges ranges = { 0 };
    char path[48];

    snprintf(path, sizeof path, "/proc/%d/%s", (int)init, name);
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    int r = fd < 0 ? -errno : fd_read_all(fd, DUMP_MAX_TEXT, &text);
    if (r < 0)
        return r;
    buf_add(&text, "", 1);
    if (buf_failed(&text))
        return -ENOMEM;
    for (const char *line = text.data; line && *line; line = strchr(line, '\n')) {
        struct id_range *range = &ranges.ranges[ranges.n];

        line += *line == '\n';
        if (!*line)
            break;
        if (ranges.n == ARRAY_SIZE(ranges.ranges) ||
            sscanf(line, "%u %u %u", &range->inside, &range->outside, &range->count) != 3)
            return -EBADMSG;
        ranges.n++;
    }
    *ret_ranges = ranges;
    return 0;
}

int credentials_begin_again(struct dump *c) {
    int r = c->options->many_users ? read_map("uid_map", c->options->init, &c->uids) : 0;

    if (r == 0 && c->options->many_users)
        r = read_map("gid_map", c->options->init, &c->gids);
    return r < 0 ? dump_fail(c, "the sandbox's ids", r) : 0;
}

int credentials_begin(struct dump *c) {
    if (!c->options->many_users)
        return 0;
    const int namespace = c->options->user_namespace;
    int r = namespace > 0 && setns(namespace, CLONE_NEWUSER) < 0 ? -errno : 0;

    return r < 0 ? dump_fail(c, "the sandbox's ids", r) : credentials_begin_again(c);
}

static bool translate_id(const struct id_ranges *ranges, uint32_t outside, uint32_t *ret_inside) {
    for (size_t i = 0; i < ranges->n; i++) {
        const struct id_range *range = &ranges->ranges[i];

        if (outside < range->outside || outside - range->outside >= range->count)
            continue;
        *ret_inside = range->inside + (outside - range->outside);
        return *ret_inside < IMAGE_IDS;
    }
    return false;
}

bool credentials_owns(const struct dump *c, const struct stat *st) {
    uint32_t inside;

    return translate_id(&c->uids, st->st_uid, &inside) &&
           translate_id(&c->gids, st->st_gid, &inside);
}

void credentials_owner(
    const struct dump *c, const struct stat *st, uint32_t *ret_owner, uint32_t *ret_group) {
    if (!translate_id(&c->uids, st->st_uid, ret_owner))
        *ret_owner = NOBODY;
    if (!translate_id(&c->gids, st->st_gid, ret_group))
        *ret_group = NOBODY;
}

void credentials_peer(
    const struct dump *c, const struct ucred *peer, uint32_t *ret_owner, uint32_t *ret_group) {
    const struct stat st = { .st_uid = peer->uid, .st_gid = peer->gid };

    credentials_owner(c, &st, ret_owner, ret_group);
}

/* ---- a thread ---- */

static int read_ids(
    struct dump *c, const char *at, const struct id_ranges *ranges, uint32_t ret_ids[4]) {
    for (size_t i = 0; i < 4; i++) {
        char *end;
        const uint32_t outside = (uint32_t)strtoul(at, &end, 10);

        if (end == at || !translate_id(ranges, outside, &ret_ids[i]))
            return dump_refuse(
                c, ENOTSUP, "it has a user or group id that is not mapped in the sandbox");
        at = end;
    }
    return 0;
}

static int read_groups(struct dump *c, const char *at, struct image_range *ret_range) {
    const size_t before = dump_count(&c->groups, uint32_t);

    for (const char *line_end = at + strcspn(at, "\n"); at < line_end;) {
        char *end;
        const uint32_t outside = (uint32_t)strtoul(at, &end, 10);
        uint32_t inside;

        if (end == at || end > line_end)
            break;
        if (!translate_id(&c->gids, outside, &inside))
            return dump_refuse(
                c, ENOTSUP, "it has a supplementary group that is not mapped in the sandbox");
        buf_add(&c->groups, &inside, sizeof inside);
        at = end;
    }
    *ret_range = dump_range(&c->groups, before, sizeof(uint32_t));
    return buf_failed(&c->groups) ? dump_fail(c, "its groups", -ENOMEM) : 0;
}

static uint64_t capabilities(const char *status, const char *name) {
    return strtoull(dump_field(status, name), NULL, 16);
}

static bool have_same_groups(struct dump *c, struct image_range a, struct image_range b) {
    return a.n == b.n &&
           (!a.n || !memcmp(dump_entry(&c->groups, a.first, uint32_t),
                        dump_entry(&c->groups, b.first, uint32_t), a.n * sizeof(uint32_t)));
}

/* Most threads have the same credentials as another thread, so each set is stored once. The group
 * table had the length `groups` before this thread's groups were added. Returns the number of the
 * set, from 1. */
static uint32_t find_or_add(struct dump *c, const struct image_credentials *own, size_t groups) {
    const size_t n = dump_count(&c->credentials, struct image_credentials);

    for (size_t i = 0; i < n; i++) {
        struct image_credentials known = *dump_entry(&c->credentials, i, struct image_credentials);
        const bool has_groups = have_same_groups(c, known.groups, own->groups);

        known.groups = own->groups;
        if (!has_groups || memcmp(&known, own, sizeof known) != 0)
            continue;
        c->groups.length = groups;
        return (uint32_t)i + 1;
    }
    buf_add(&c->credentials, own, sizeof *own);
    return (uint32_t)n + 1;
}

/* `status` is the content of the thread's /proc status file. It lacks the securebits, so the thread
 * itself is made to call prctl(2). */
int credentials_dump(struct dump *c, const struct dump_process *s, struct trace *trace,
    const char *status, struct image_thread *thread) {
    const size_t groups = c->groups.length;
    const uint64_t arguments[] = { PR_GET_SECUREBITS };
    struct image_credentials own;
    int64_t bits = 0;

    if (!c->options->many_users)
        return 0;
    memset(&own, 0, sizeof own);
    int r = read_ids(c, dump_field(status, "\nUid:\t"), &c->uids, own.uids);
    if (r == 0)
        r = read_ids(c, dump_field(status, "\nGid:\t"), &c->gids, own.gids);
    if (r == 0)
        r = read_groups(c, dump_field(status, "\nGroups:\t"), &own.groups);
    if (r < 0)
        return r;
    own.inheritable = capabilities(status, "\nCapInh:\t");
    own.permitted = capabilities(status, "\nCapPrm:\t");
    own.effective = capabilities(status, "\nCapEff:\t");
    own.bounds = capabilities(status, "\nCapBnd:\t");
    own.ambient = capabilities(status, "\nCapAmb:\t");
    own.has_no_new_privileges = strtoul(dump_field(status, "\nNoNewPrivs:\t"), NULL, 10) ? 1 : 0;
    if ((own.inheritable | own.permitted | own.bounds) & ~IMAGE_CAPABILITIES)
        return dump_refuse(c, ENOTSUP, "it has a capability that commands of a sandbox never have");
    r = trace_call(trace, &s->tools, SYS_prctl, arguments, ARRAY_SIZE(arguments), NULL, 0, &bits);
    if (r < 0 || bits < 0)
        return dump_fail(c, "its securebits", r < 0 ? r : (int)bits);
    own.secure_bits = (uint32_t)bits;
    thread->credentials = find_or_add(c, &own, groups);
    return buf_failed(&c->credentials) ? dump_fail(c, "its credentials", -ENOMEM) : 0;
}

/* The kernel makes a process undumpable when the process changes its user, so that the new user
 * cannot read data of the old one in its memory. */
int credentials_dump_closed(struct dump *c, const struct dump_process *s, struct trace *trace,
    struct image_process *process) {
    const uint64_t arguments[] = { PR_GET_DUMPABLE };
    int64_t dumpable = 0;

    if (!c->options->many_users)
        return 0;
    int r = trace_call(
        trace, &s->tools, SYS_prctl, arguments, ARRAY_SIZE(arguments), NULL, 0, &dumpable);
    process->is_closed = s->closed_vdso || dumpable != 1;
    if (r < 0)
        return dump_fail(c, "its dumpable flag", r);
    /* Memory of a restored process belongs to the user namespace of the launcher, so CAP_SYS_PTRACE
     * in the sandbox's does not open it to init once the process is closed, and init could not
     * answer its system calls. A program that was executed in the sandbox has no such memory. */
    if (process->is_closed && c->image.determinism.is_there)
        return dump_refuse(c, ENOTSUP,
            "it has changed its user and executed no program since, so a copy could get neither "
            "its random bytes nor its clock (random_seed, time_start); end it first, or take the "
            "snapshot without processes");
    return 0;
}
