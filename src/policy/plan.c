/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiles a policy into a plan.
 *
 * The template holds everything that is the same for every sandbox: read-only and shared grants,
 * /dev, and /etc's own files. Below PLAN_HIDDEN it holds the sources for box operations: faked
 * files of /proc, lower directories of copy-on-write grants, and "late" grants. A late grant lies
 * below a private place of the sandbox, so it can be mounted only after that place. A sandbox adds
 * one tmpfs, whose parts become its writable places and /dev/shm, so that one size limits
 * everything that it writes. It also adds its own /proc and /dev/pts and the late grants.
 *
 * With an image, the root itself is such a place: an overlay over the image's layers, which the
 * sandbox mounts first and then enters. Everything else is moved into it from the template, which
 * the sandbox leaves at the end. So all grants are late. An image's files are as untrusted as a
 * guest's: no link in them is followed.
 */
#include "policy/plan.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "policy/compiler.h"
#include "policy/determinism.h"
#include "policy/devices.h"
#include "policy/filter.h"
#include "policy/network.h"
#include "policy/tmpfs.h"
#include "policy/ulimits.h"
#include "policy/volumes.h"
#include "sys/confine.h"
#include "sys/uapi.h"

#define NOBODY 65534u
/* Without a memory cgroup nothing counts a System V segment that no process has mapped, so all of
 * them together get a small share on top of max_memory. PostgreSQL wants 56 bytes, an X client a
 * picture. */
#define SEGMENT_SHARE 16
#define MAX_SEGMENT_BYTES (16ull << 20)
#define PAGE_BYTES 4096 /* of the one architecture that has a filter */
#define GUESTS_LAYERS                                                                              \
    64 /* of a snapshot of the store: what fits beside a sandbox's own into the options of a mount \
        */

const char *const plan_sysctl_names[] = {
    "fs/file-max",
    "fs/inotify/max_queued_events",
    "fs/inotify/max_user_instances",
    "fs/inotify/max_user_watches",
    "fs/nr_open",
    "fs/pipe-max-size",
    "kernel/cap_last_cap",
    "kernel/msgmax",
    "kernel/msgmnb",
    "kernel/msgmni",
    "kernel/ngroups_max",
    "kernel/osrelease",
    "kernel/ostype",
    "kernel/overflowgid",
    "kernel/overflowuid",
    "kernel/pid_max",
    "kernel/sem",
    "kernel/shmall",
    "kernel/shmmax",
    "kernel/shmmni",
    "kernel/threads-max",
    "kernel/version",
    "kernel/yama/ptrace_scope",
    "net/core/somaxconn",
    "vm/max_map_count",
    "vm/overcommit_memory",
    "vm/overcommit_ratio",
    "vm/swappiness",
    NULL,
};

/* Files that only root can read are not listed, because no guest is the host's root; nor files that
 * only describe the kernel's build (kallsyms has no addresses for a guest). cpuinfo, loadavg,
 * meminfo, stat and vmstat are replaced by files that describe the sandbox, and /proc/sys by a
 * selection. Each costs every sandbox a mount, about 10 us. */
const char *const plan_proc_masked[] = {
    "buddyinfo",
    "bus/",
    "cgroups",
    "cmdline",
    "diskstats",
    "fs/",
    "interrupts",
    "irq/",
    "key-users",
    "keys",
    "latency_stats",
    "locks",
    "mdstat",
    "partitions",
    "pressure/",
    "sched_debug",
    "schedstat",
    "scsi/",
    "softirqs",
    "swaps",
    "timer_stats",
    "zoneinfo",
    NULL,
};

/* ---- what every sandbox has ---- */

static bool is_granted_below(const struct compiler *c, const char *path) {
    const struct policy_paths *lists[] = { &c->policy->fs_readable, &c->policy->fs_writable,
        &c->policy->fs_shared };
    const struct plan_host_path *found[] = { c->host->readable, c->host->writable,
        c->host->shared };

    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        for (size_t k = 0; k < lists[i]->n; k++)
            if (compiler_is_below(lists[i]->items[k].path, path) ||
                (found[i][k].real && compiler_is_below(found[i][k].real, path)))
                return true;
    for (size_t i = 0; i < c->policy->tmpfs.n; i++)
        if (compiler_is_below(c->policy->tmpfs.items[i].path, path))
            return true;
    return false;
}

static void add_skeleton(struct compiler *c) {
    static const char *const directories[] = { "/proc", "/dev/pts", "/dev/shm", "/tmp", "/var/tmp",
        "/sys", "/home", "/mnt" };
    static const char *const devices[] = { "/dev/null", "/dev/zero", "/dev/full", "/dev/random",
        "/dev/urandom", "/dev/tty" };
    static const char *const links[] = { "/dev/fd", "/proc/self/fd", "/dev/stdin",
        "/proc/self/fd/0", "/dev/stdout", "/proc/self/fd/1", "/dev/stderr", "/proc/self/fd/2",
        "/dev/ptmx", "pts/ptmx", "/var/run", "/run", "/etc/mtab", "/proc/self/mounts" };

    compiler_template_op(c, PLAN_OP_MKDIR, PLAN_HIDDEN, NULL, 0755);
    compiler_file(c, PLAN_HIDDEN "/none", "", 0);
    compiler_template_op(c, PLAN_OP_MKDIR, PLAN_HIDDEN "/void", NULL, 0);
    compiler_file(c, PLAN_HIDDEN "/empty", "", 0444);
    compiler_template_op(c, PLAN_OP_MKDIR, PLAN_HIDDEN "/hollow", NULL, 0555);
    for (size_t i = 0; i < ARRAY_SIZE(directories); i++)
        compiler_template_op(c, PLAN_OP_MKDIR, directories[i], NULL, 0755);
    /* Servers put sockets and process ids there. It is another name for a place that every sandbox
     * has, as one more would cost each a mount. */
    if (is_granted_below(c, "/run") || is_granted_below(c, "/var/run"))
        compiler_template_op(c, PLAN_OP_MKDIR, "/run", NULL, 0755);
    else
        compiler_template_op(c, PLAN_OP_SYMLINK, "/run", "/dev/shm", 0);
    for (size_t i = 0; i < ARRAY_SIZE(devices); i++)
        if (!(c->plan.flags & PLAN_SEED) || !strstr(devices[i], "random"))
            compiler_template_op(c, PLAN_OP_BIND, devices[i], devices[i],
                MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_RDONLY);
    for (const char *const *link = c->host->root_links; *link; link += 2)
        compiler_template_op(c, PLAN_OP_SYMLINK, link[0], link[1], 0);
    /* Fully visible and never seen: the kernel lets a user namespace mount a proc of its own only
     * where there is one. Each sandbox's own lies over it. */
    compiler_template_op(c, PLAN_OP_BIND, "/proc", "/proc", 0);
    compiler_rule(c, "/", c->host->image ? c->access_write : LANDLOCK_ACCESS_FS_READ_DIR,
        c->host->image ? PLAN_RULE_OWN : PLAN_RULE_STATIC);
    compiler_rule(c, "/dev", c->access_file | LANDLOCK_ACCESS_FS_READ_DIR, PLAN_RULE_STATIC);
    /* By itself, too: a standard input that is empty is the host's /dev/null, which is not below
     * the sandbox's /dev. */
    compiler_rule(c, "/dev/null", c->access_file, PLAN_RULE_STATIC);
    compiler_rule(c, "/sys", c->access_read, PLAN_RULE_STATIC);
    for (size_t i = 0; i < ARRAY_SIZE(links) - 2; i += 2)
        compiler_template_op(c, PLAN_OP_SYMLINK, links[i], links[i + 1], 0);
}

/* Devices of the policy, in the template's /dev, which images show, too. */
static void add_devices(struct compiler *c) {
    const struct policy_devices *devices = &c->policy->devices;

    for (size_t i = 0; i < devices->n_files; i++) {
        const struct policy_device_file *file = &devices->files[i];

        if (!file->is_node)
            continue;
        compiler_op(c, &c->template_ops, file->needs_node ? PLAN_OP_DEVICE : PLAN_OP_BIND,
            file->path, file->source, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC,
            plan_grant(PLAN_GRANT_DEVICE, file->device));
        compiler_rule(c, file->path, c->access_write & c->access_file, PLAN_RULE_STATIC);
    }
}

static bool has_etc(const struct compiler *c) {
    if (c->host->image)
        return true;
    for (size_t i = 0; i < c->policy->fs_readable.n; i++)
        if (!strcmp(c->policy->fs_readable.items[i].path, "/etc") &&
            c->host->readable[i].type == PLAN_PATH_DIRECTORY)
            return true;
    return false;
}

/* A file of /etc: in the place of the host's or the image's, if there is one. */
static void add_etc_file(struct compiler *c, const char *name, const struct buf *text) {
    bool over = has_etc(c);
    char path[64], at[64];

    snprintf(at, sizeof at, "/etc/%s", name);
    snprintf(path, sizeof path, over ? PLAN_HIDDEN "/%s" : "/etc/%s", name);
    if (text->data)
        compiler_file(c, path, text->data, 0444);
    else
        c->texts.failed = true;
    /* Images leave these out, because container engines make them; sudo and others miss them. */
    if (c->host->image && c->policy->many_users)
        compiler_box_op(c, PLAN_OP_FILE, at, NULL, 0644);
    if (over)
        compiler_op(c, c->host->image ? &c->box_ops : &c->template_ops, PLAN_OP_COVER_IF, at, path,
            READ_ONLY | MOUNT_ATTR_NOEXEC, 0);
}

/* Names are asked of the gateway, which answers at any address. Where a file cannot be covered
 * (a link, or none in the image), libraries ask 127.0.0.1, which is as good. */
static void add_resolver(struct compiler *c) {
    static const char resolvers[] = "nameserver " NET_NAMESERVER "\noptions timeout:5 attempts:2\n";
    static const char services[] = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n"
                                   "networks: files\nprotocols: files\nservices: files\n";
    auto_buf struct buf text = BUF_INIT;

    buf_add_text(&text, resolvers);
    add_etc_file(c, "resolv.conf", &text);
    buf_done(&text);
    buf_add_text(&text, services);
    add_etc_file(c, "nsswitch.conf", &text);
}

/* Where the gateway ends TLS, programs must trust the store's own certificate. Most read the file
 * that a variable names (plan_environment), others the system's. */
static void add_certificates(struct compiler *c) {
    if (!net_rules_terminate(&c->policy->network) || !c->host->ca_bundle)
        return;
    compiler_file(c, PLAN_CA_BUNDLE, c->host->ca_bundle, 0444);
    if (c->host->ca_java)
        compiler_file_bytes(c, PLAN_CA_JAVA, c->host->ca_java, c->host->ca_java_bytes, 0444);
    if (has_etc(c))
        compiler_op(c, c->host->image ? &c->box_ops : &c->template_ops, PLAN_OP_COVER_IF,
            "/etc/ssl/certs/ca-certificates.crt", PLAN_CA_BUNDLE, READ_ONLY | MOUNT_ATTR_NOEXEC, 0);
}

/* The users, the host name and the resolvers of the sandbox in place of the host's. An image has
 * users of its own. */
static void add_etc(struct compiler *c) {
    const char *name = c->policy->hostname ? c->policy->hostname : "rollbox";
    auto_buf struct buf text = BUF_INIT;
    bool own_net = c->policy->net != POLICY_NET_HOST;
    bool has_user = c->plan.inner_uid && c->plan.inner_uid != 65534;

    if (!c->host->image) {
        buf_add_text(&text, "root:x:0:0:root:/root:/bin/sh\n");
        if (has_user)
            buf_printf(
                &text, "box:x:%u:%u:box:/tmp:/bin/sh\n", c->plan.inner_uid, c->plan.inner_gid);
        buf_add_text(&text, "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n");
        add_etc_file(c, "passwd", &text);
        buf_done(&text);
        buf_add_text(&text, "root:x:0:\n");
        if (has_user)
            buf_printf(&text, "box:x:%u:\n", c->plan.inner_gid);
        buf_add_text(&text, "nogroup:x:65534:\n");
        add_etc_file(c, "group", &text);
        buf_done(&text);
    }
    if (own_net || (!c->host->image && !has_etc(c))) {
        buf_printf(&text, "127.0.0.1 localhost %s\n::1 localhost\n", name);
        add_etc_file(c, "hosts", &text);
        buf_done(&text);
    }
    if (c->policy->net == POLICY_NET_ALLOW)
        add_resolver(c);
    add_certificates(c);
    buf_printf(&text, "%s\n", name);
    add_etc_file(c, "hostname", &text);
    if (!has_etc(c))
        compiler_rule(c, "/etc", c->access_read, PLAN_RULE_STATIC);
}

static void add_cpus(struct compiler *c) {
    unsigned cpus = c->plan.affinity ? (unsigned)c->plan.affinity : c->host->cpus;
    static const char *const lists[] = { "online", "possible", "present" };
    char path[80], list[32];

    snprintf(list, sizeof list, cpus > 1 ? "0-%u\n" : "%u\n", cpus - 1);
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
        snprintf(path, sizeof path, "/sys/devices/system/cpu/%s", lists[i]);
        compiler_file(c, path, list, 0444);
    }
    for (unsigned i = 0; i < cpus; i++) {
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u", i);
        compiler_template_op(c, PLAN_OP_MKDIR, path, NULL, 0755);
    }
}

/* The one interface of a sandbox's network namespace, for programs that list them here. */
static void add_interfaces(struct compiler *c) {
    static const char *const files[][2] = { { "address", "00:00:00:00:00:00\n" },
        { "addr_len", "6\n" }, { "broadcast", "00:00:00:00:00:00\n" }, { "carrier", "1\n" },
        { "flags", "0x9\n" }, { "ifindex", "1\n" }, { "mtu", "65536\n" },
        { "operstate", "unknown\n" }, { "type", "772\n" } };
    char path[80];

    for (size_t i = 0; c->policy->net != POLICY_NET_HOST && i < ARRAY_SIZE(files); i++) {
        snprintf(path, sizeof path, "/sys/class/net/lo/%s", files[i][0]);
        compiler_file(c, path, files[i][1], 0444);
    }
}

/* The limits as cgroup v2 tells of them, for runtimes that size themselves by these files
 * (/proc/self/cgroup names the root of the hierarchy). They do not change; what is used is not
 * told. */
static void add_cgroup(struct compiler *c) {
    const struct policy *p = c->policy;
    char memory[24] = "max\n", cpu[40] = "max 100000\n", processes[16];

    if (p->max_memory_bytes)
        snprintf(memory, sizeof memory, "%llu\n", (unsigned long long)p->max_memory_bytes);
    if (p->max_cpu_milli)
        snprintf(cpu, sizeof cpu, "%llu 100000\n", (unsigned long long)p->max_cpu_milli * 100);
    snprintf(processes, sizeof processes, "%u\n", p->max_processes);
    compiler_file(c, "/sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n", 0444);
    compiler_file(c, "/sys/fs/cgroup/memory.max", memory, 0444);
    compiler_file(c, "/sys/fs/cgroup/memory.high", "max\n", 0444);
    compiler_file(c, "/sys/fs/cgroup/memory.swap.max", "0\n", 0444);
    compiler_file(c, "/sys/fs/cgroup/cpu.max", cpu, 0444);
    compiler_file(c, "/sys/fs/cgroup/pids.max", processes, 0444);
}

static void cover_proc(struct compiler *c, const char *name, const char *source, uint64_t value) {
    char path[80];

    snprintf(path, sizeof path, "/proc/%s", name);
    struct plan_op op = { .kind = PLAN_OP_COVER,
        .path = compiler_text(c, path),
        .source = compiler_text(c, source),
        .value = value };
    buf_add(&c->box_ops, &op, sizeof op);
}

/* With a clock of its own the sandbox was also started by that: ps counts from there. */
static void add_stat(struct compiler *c, const char *path) {
    const char *stat = c->host->stat, *at = strstr(stat, "btime ");
    int before = at ? (int)(at - stat) + 6 : 0;
    struct buf text = BUF_INIT;

    if (at)
        buf_printf(&text, "%.*s%lld%s", before, stat,
            (long long)c->plan.clock_seconds -
                (c->plan.flags & PLAN_VIRTUAL ? PLAN_VIRTUAL_UPTIME_S : 0),
            at + 6 + strspn(at + 6, "0123456789"));
    else
        buf_add_text(&text, stat);
    if (buf_failed(&text))
        c->texts.failed = true;
    else
        compiler_file(c, path, text.data, 0444);
    buf_done(&text);
}

/* With a seed: files in place of those that the kernel fills with random bytes at each reading.
 * Each open of one reads the same bytes from its beginning. */
static void add_seeded_random(struct compiler *c) {
    struct plan_op op = { .kind = PLAN_OP_CHANCE,
        .mode = 0444,
        .path = compiler_text(c, "/dev/urandom"),
        .value = DETERMINISM_URANDOM_BYTES };
    char uuid[40];

    determinism_uuid(c->plan.seed, uuid);
    compiler_file(c, PLAN_HIDDEN "/proc/sys/kernel/random/uuid", uuid, 0444);
    buf_add(&c->template_ops, &op, sizeof op);
    compiler_template_op(c, PLAN_OP_SYMLINK, "/dev/random", "urandom", 0);
}

static void add_proc(struct compiler *c) {
    const char *const fakes[] = { "cpuinfo", c->host->cpuinfo, "stat", c->host->stat, "meminfo",
        c->host->meminfo, "loadavg", c->host->loadavg, "vmstat", c->host->vmstat };
    char path[128], pages[24];

    if (!c->host->image)
        compiler_box_op(c, PLAN_OP_PROC, "/proc", NULL, 0);
    /* With a seed or a clock init, which in a session is in the commands' domain, writes to memory
     * of guests there. What guests see is mounted read-only. */
    compiler_rule(c, "/proc",
        LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR |
            (c->plan.flags & (PLAN_SEED | PLAN_CLOCK) ? LANDLOCK_ACCESS_FS_WRITE_FILE : 0),
        PLAN_RULE_OWN);
    for (size_t i = 0; i < ARRAY_SIZE(fakes); i += 2) {
        snprintf(path, sizeof path, PLAN_HIDDEN "/proc/%s", fakes[i]);
        if (c->plan.flags & PLAN_CLOCK && !strcmp(fakes[i], "stat"))
            add_stat(c, path);
        else
            compiler_file(c, path, fakes[i + 1], 0444);
        cover_proc(c, fakes[i], path, PLAN_COVER_ALONE);
    }
    if (c->plan.flags & PLAN_VIRTUAL)
        compiler_box_op(c, PLAN_OP_UPTIME, "/proc/uptime", PLAN_PRIVATE "/uptime", MASK);
    snprintf(path, sizeof path, "%s\n", c->policy->hostname ? c->policy->hostname : "rollbox");
    compiler_file(c, PLAN_HIDDEN "/proc/sys/kernel/hostname", path, 0444);
    compiler_file(c, PLAN_HIDDEN "/proc/sys/kernel/domainname", "(none)\n", 0444);
    snprintf(pages, sizeof pages, "%" PRIu64 "\n", c->plan.segment_bytes / PAGE_BYTES);
    for (size_t i = 0; plan_sysctl_names[i]; i++)
        if (c->host->sysctls[i]) {
            snprintf(path, sizeof path, PLAN_HIDDEN "/proc/sys/%s", plan_sysctl_names[i]);
            compiler_file(c, path,
                strcmp(plan_sysctl_names[i], "kernel/shmall") || !c->plan.segment_bytes
                    ? c->host->sysctls[i]
                    : pages,
                0444);
        }
    if (!(c->plan.flags & PLAN_SEED))
        compiler_template_op(c, PLAN_OP_BIND, PLAN_HIDDEN "/proc/sys/kernel/random/uuid",
            "/proc/sys/kernel/random/uuid", MASK);
    cover_proc(c, "sys", PLAN_HIDDEN "/proc/sys", 0);
    for (size_t i = 0; plan_proc_masked[i]; i++) {
        size_t length = strlen(plan_proc_masked[i]);
        bool directory = plan_proc_masked[i][length - 1] == '/';
        char name[32];

        snprintf(name, sizeof name, "%.*s", (int)(length - directory), plan_proc_masked[i]);
        if (c->host->proc_exists[i])
            cover_proc(c, name, directory ? PLAN_HIDDEN "/hollow" : PLAN_HIDDEN "/empty",
                PLAN_COVER_ALONE);
    }
}

/* The layers of an image or a snapshot, by short names, because the option text that lists an
 * overlay's layers is short; those as a list, topmost first, if `layers` is given. `owners`: whose
 * files on the disk are the guest's (PLAN_BIND_*). */
static void add_store(
    struct compiler *c, const struct plan_image *image, uint64_t owners, struct buf *layers) {
    char path[64], target[128];
    struct plan_op op = { .kind = PLAN_OP_BIND_ONE,
        .mode = READ_ONLY,
        .path = compiler_text(c, PLAN_HIDDEN "/store"),
        .source = compiler_text(c, image->directory),
        .value = owners };

    buf_add(&c->template_ops, &op, sizeof op);
    for (size_t i = image->n; i--;) {
        snprintf(path, sizeof path, PLAN_HIDDEN "/i/%zu", i);
        snprintf(target, sizeof target, "../store/%s/fs", image->ids[i]);
        compiler_template_op(c, PLAN_OP_SYMLINK, path, target, 0);
        if (layers)
            buf_printf(layers, "%s%s", layers->length ? ":" : "", path);
    }
}

/* The image's root: made, entered, and given what every root has. */
static void add_image(struct compiler *c) {
    struct buf layers = BUF_INIT;

    add_store(c, c->host->image,
        c->policy->many_users ? PLAN_BIND_IDMAP | PLAN_BIND_ALL
                              : plan_bind_owned(c->plan.inner_uid),
        &layers);
    compiler_template_op(c, PLAN_OP_MKDIR, PLAN_HIDDEN "/root", NULL, 0755);
    compiler_place(c, PLAN_HIDDEN "/root", layers.data, 0755, 0, 0);
    c->texts.failed |= buf_failed(&layers);
    buf_done(&layers);
    compiler_box_op(c, PLAN_OP_PIVOT, PLAN_HIDDEN "/root", NULL, 0);
    compiler_box_op(c, PLAN_OP_MKDIR, "/proc", NULL, 0755);
    compiler_box_op(c, PLAN_OP_PROC, "/proc", NULL, 0);
    compiler_box_op(c, PLAN_OP_MKDIR, "/dev", NULL, 0755);
    compiler_box_op(c, PLAN_OP_COVER, "/dev", "/dev", 0);
    compiler_box_op(c, PLAN_OP_MKDIR, "/sys", NULL, 0755);
    compiler_box_op(c, PLAN_OP_COVER, "/sys", "/sys", READ_ONLY | MOUNT_ATTR_NOEXEC);
    compiler_box_op(c, PLAN_OP_MKDIR, "/tmp", NULL, 01777);
}

static void add_private(struct compiler *c) {
    /* Each file with content takes a page. More files than pages of memory would only help a guest
     * to fill kernel memory that no limit counts. */
    uint64_t inodes = MIN(c->policy->max_disk_bytes / 16384 + 1024,
        MAX(c->policy->max_memory_bytes / 4096, (uint64_t)1024));
    char options[128];

    snprintf(options, sizeof options, "mode=0755,size=%llu,nr_inodes=%llu",
        (unsigned long long)c->policy->max_disk_bytes, (unsigned long long)inodes);
    if (c->host->uppers) {
        compiler_template_op(c, PLAN_OP_BIND_ONE, PLAN_UPPERS, c->host->uppers,
            MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
        compiler_box_op(c, PLAN_OP_UPPER, PLAN_PRIVATE, PLAN_UPPERS, 0);
    } else {
        compiler_box_op(c, PLAN_OP_TMPFS, PLAN_PRIVATE, options, 0);
    }
    if (c->host->image) {
        add_image(c);
    } else {
        /* An export of one user knows no owner but nobody where the guest's id was of a range. */
        if (c->host->snapshot)
            add_store(c, c->host->snapshot,
                c->policy->many_users ? PLAN_BIND_IDMAP | PLAN_BIND_ALL : plan_bind_owned(NOBODY),
                NULL);
        compiler_place(c, "/tmp", NULL, 01777, 0, 0);
        compiler_place(c, "/var/tmp", NULL, 01777, 0, 0);
        compiler_rule(c, "/tmp", c->access_write, PLAN_RULE_OWN);
        compiler_rule(c, "/var/tmp", c->access_write, PLAN_RULE_OWN);
    }
    compiler_box_op(c, PLAN_OP_DEVPTS, "/dev/pts", "newinstance,ptmxmode=0666,mode=0620,max=64", 0);
    compiler_rule(c, "/dev/shm", c->access_write, PLAN_RULE_OWN);
    compiler_rule(c, "/dev/pts", c->access_file, PLAN_RULE_OWN);
}

/* ---- rights and limits ---- */

static void user_ids(struct compiler *c) {
    const char *user = c->policy->user;

    /* Init is the sandbox's root, and looks up the others in the sandbox's own /etc/passwd. */
    if (c->policy->many_users) {
        c->plan.flags |= PLAN_MANY_USERS;
        c->plan.user = compiler_text(c, user ? user : "root");
        /* In a directory that writes through, a file of root's is one of the directory's owner, so
         * that capabilities of a program would hold on the host. */
        c->plan.capabilities =
            PLAN_CAPABILITIES & ~(c->policy->fs_shared.n || policy_writes_volumes(c->policy)
                                        ? UINT64_C(1) << PLAN_CAP_SETFCAP
                                        : 0);
        c->plan.outer_uid = PLAN_MANY_FIRST;
        return;
    }
    uint32_t id = !user || !strcmp(user, "box") ? 1000
                  : !strcmp(user, "root")       ? 0
                                                : (uint32_t)strtoul(user, NULL, 10);

    c->plan.inner_uid = c->plan.inner_gid = id;
    /* As root U0 has a range of ids, and the guest is not the one that owns the template. An
     * ordinary user has one id to map. */
    c->plan.outer_uid = c->host->is_root ? 1 : 0;
}

static void landlock_rights(struct compiler *c) {
    int abi = c->host->landlock_abi;

    if (abi < 1)
        return;
    c->plan.flags |= PLAN_LANDLOCK;
    const uint64_t all = confine_landlock_files(abi);
    c->plan.landlock_fs = all;
    bool process = c->policy->isolation == POLICY_ISOLATION_PROCESS;
    if (abi >= 4 && c->policy->net == POLICY_NET_NONE)
        c->plan.landlock_net = LANDLOCK_ACCESS_NET_BIND_TCP | LANDLOCK_ACCESS_NET_CONNECT_TCP;
    /* The host's abstract sockets are out of reach in a network namespace of one's own; on the
     * host's, only by this. */
    if (abi >= 6 && c->policy->net == POLICY_NET_HOST)
        c->plan.landlock_scoped = LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET;
    if (abi >= 6 && process)
        c->plan.landlock_scoped = LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | LANDLOCK_SCOPE_SIGNAL;
    c->access_read =
        LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
    c->access_write =
        all & ~(uint64_t)(LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_BLOCK);
    c->access_file = all & (LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE |
                               LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_TRUNCATE |
                               LANDLOCK_ACCESS_FS_IOCTL_DEV);
}

/* Limits that a process has only where the policy names them. */
static void add_other_limits(struct compiler *c) {
    for (size_t i = 0; i < c->policy->ulimits.n; i++) {
        const struct policy_ulimit *asked = &c->policy->ulimits.items[i];
        const struct plan_rlimit *limits = (const void *)c->rlimits.data;
        bool is_there = asked->resource == RLIMIT_NPROC || asked->resource == RLIMIT_FSIZE;
        struct plan_rlimit own = { asked->resource, 0, asked->hard, asked->soft };

        /* plan_process() adds these two later. */
        if (is_there && c->policy->isolation == POLICY_ISOLATION_PROCESS)
            continue;
        is_there = false;
        for (size_t k = 0; limits && k < c->rlimits.length / sizeof *limits; k++)
            is_there |= limits[k].resource == asked->resource;
        if (!is_there)
            buf_add(&c->rlimits, &own, sizeof own);
    }
}

static int compile_limits(struct compiler *c, struct rollbox_error *error) {
    const struct policy *p = c->policy;
    const struct plan_host *h = c->host;

    c->plan.memory_bytes = p->max_memory_bytes;
    if (p->isolation == POLICY_ISOLATION_NAMESPACE && !h->memory_cgroup)
        c->plan.segment_bytes = MIN(p->max_memory_bytes / SEGMENT_SHARE, MAX_SEGMENT_BYTES);
    if (p->isolation == POLICY_ISOLATION_NAMESPACE)
        compiler_limit(c, RLIMIT_NPROC, MIN((uint64_t)p->max_processes + 1, h->processes_max),
            0); /* init counts */
    compiler_limit(c, RLIMIT_NOFILE, MIN((uint64_t)p->max_open_files, h->open_files_max),
        MIN((uint64_t)POLICY_OPEN_FILES_MAX, h->open_files_max));
    /* Not 0, which `ulimits` may say: where core_pattern is a pipe, only 1 keeps the kernel from
     * starting the host's handler, as root. */
    struct plan_rlimit core = { .resource = RLIMIT_CORE, .value = 1, .soft = 1 };
    buf_add(&c->rlimits, &core, sizeof core);
    /* Locked memory counts as the sandbox's memory. */
    compiler_limit(
        c, RLIMIT_MEMLOCK, MIN(p->max_memory_bytes / 8, 8ull << 20), p->max_memory_bytes);
    compiler_limit(c, RLIMIT_MSGQUEUE, 819200, 0);
    compiler_limit(c, RLIMIT_SIGPENDING, 4096, 0);
    if (c->plan.flags & PLAN_ON_DISK)
        compiler_limit(c, RLIMIT_FSIZE, p->max_disk_bytes, 0); /* the sum is measured now and then;
                                                                  this bounds a single file at
                                                                  once */
    compiler_limit(c, RLIMIT_RTPRIO, 0, 0);
    compiler_limit(c, RLIMIT_NICE, 0, 0);
    add_other_limits(c);
    if (!p->max_cpu_milli)
        return 0;
    uint64_t cpus = (p->max_cpu_milli + 999) / 1000;
    if (!h->cpu_cgroup && p->max_cpu_milli % 1000)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "max_cpu: a fraction of a CPU (%g) needs a cpu cgroup, which this user does not have "
            "here; ask for a whole number of CPUs, or delegate a cgroup",
            p->max_cpu_milli / 1000.0);
    if (cpus < h->cpus)
        c->plan.affinity = cpus;
    return 0;
}

static int compile_filter(
    struct compiler *c, struct sock_filter *program, struct rollbox_error *error) {
    struct filter_options options = {
        .process_isolation = c->policy->isolation == POLICY_ISOLATION_PROCESS,
        .net_host = c->policy->net == POLICY_NET_HOST,
        .no_inet = c->policy->net == POLICY_NET_NONE,
        .deny_uncharged = !c->host->memory_cgroup,
        .allow_segments = c->plan.segment_bytes > 0,
        .allow_affinity = c->plan.flags & PLAN_SERIAL && (!c->plan.affinity || c->host->cpu_cgroup),
        /* A volume is open to nobody but its owner, and mounted nosuid; many users need the bits
         * elsewhere. */
        .deny_setid_bits = c->policy->fs_shared.n > 0 ||
                           (policy_writes_volumes(c->policy) && !c->policy->many_users),
        .keep_metadata = c->policy->isolation == POLICY_ISOLATION_PROCESS && !c->host->own_ids,
        .allow_listener = c->plan.flags & (PLAN_SEED | PLAN_CLOCK),
        .allow_getfd = c->plan.flags & PLAN_CLOCK,
        .many_users = c->policy->many_users,
        .deny_reserve = c->plan.flags & PLAN_ON_DISK,
        .no_sync = !c->policy->fs_shared.n && !policy_writes_volumes(c->policy),
    };
    int n = filter_build(&options, program, FILTER_MAX_INSTRUCTIONS);

    if (n < 0)
        return error_set(error, ROLLBOX_ERR_INTERNAL, -n, "policy",
            "the seccomp filter cannot be built: %s", strerror(-n));
    c->plan.filter.n = (uint32_t)n;
    c->plan.flags |= PLAN_SECCOMP;
    return 0;
}

/* Refuses the parts of a policy that this version lacks. No part is ignored silently. */
static int refuse_missing(const struct compiler *c, struct rollbox_error *error) {
    const struct policy *p = c->policy;
    bool is_virtual = p->time_mode == POLICY_TIME_VIRTUAL;

    if (p->serial && (!is_virtual || !p->time_start))
        return error_set(error, ROLLBOX_ERR_POLICY_INVALID, EINVAL, "policy",
            "serial: threads take turns only under a virtual clock; set time_mode to virtual, and "
            "time_start");
    if (is_virtual && !p->time_start)
        return error_set(error, ROLLBOX_ERR_POLICY_INVALID, EINVAL, "policy",
            "time_mode virtual: the start time is missing; set time_start, such as "
            "2025-01-01T00:00:00");
    if (is_virtual && p->net == POLICY_NET_HOST)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "time_mode virtual: net host is not possible, because other hosts keep the real time; "
            "use net none or loopback");
    if (is_virtual && p->net == POLICY_NET_ALLOW)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "time_mode virtual: net allow is not possible, because hosts outside keep the real "
            "time; "
            "use time_mode offset");
    if (p->network_name && !c->host->nft_tproxy)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "network: a private network needs nft_tproxy, which this kernel lacks "
            "(CONFIG_NFT_TPROXY)");
    for (size_t i = 0; i < p->network.n; i++)
        if (p->network.items[i].set && !p->network.items[i].n_ports)
            return error_set(error, ROLLBOX_ERR_POLICY_INVALID, EINVAL, "policy",
                "net_allow: %s is a set of hosts that is not filled in; librollbox does that when "
                "it sends a policy",
                p->network.items[i].set);
    if (is_virtual && p->isolation != POLICY_ISOLATION_PROCESS && !c->host->timens)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "time_mode virtual: timens is missing (Linux 6.3 or later with CONFIG_TIME_NS); use "
            "offset");
    if ((p->have_seed || p->time_start) && p->isolation == POLICY_ISOLATION_PROCESS)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "%s: isolation process has process ids and devices of the host; use isolation "
            "namespace",
            p->have_seed ? "random_seed" : "time_start");
    if (p->disk_at == POLICY_DISK_STORE && p->isolation == POLICY_ISOLATION_PROCESS)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "disk_at store: isolation process keeps private files in $TMPDIR, /tmp or /var/tmp; "
            "leave disk_at out, or use isolation namespace");
    if (p->many_users && p->isolation == POLICY_ISOLATION_PROCESS)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "users many: isolation process has no user namespace; use isolation namespace");
    /* On these root would own nothing: only the host's root can show files with other owners. */
    if (p->many_users && !c->host->is_root && (p->fs_writable.n || p->fs_shared.n))
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "users many: %s: an ordinary user's sandboxes of many users cannot own files of the "
            "host; copy them in with rollbox cp, use a volume, run rollbox as root, or use users "
            "one",
            p->fs_writable.n ? "fs_writable" : "fs_shared");
    if ((p->tmpfs.n || p->shm_bytes) && p->isolation == POLICY_ISOLATION_PROCESS)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "%s: isolation process has no mounts of its own; use isolation namespace",
            p->tmpfs.n ? "tmpfs" : "shm_size");
    if (p->volumes.n && p->isolation == POLICY_ISOLATION_PROCESS)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "volumes: isolation process has no mounts of its own; use isolation namespace");
    if (p->image && p->isolation == POLICY_ISOLATION_PROCESS)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "image: isolation process has no root file system of its own; use isolation namespace");
    if (c->host->snapshot && c->host->snapshot->n > GUESTS_LAYERS)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "image: the snapshot has %zu layers, and a sandbox can use at most %d; export it again "
            "from a fork",
            c->host->snapshot->n, GUESTS_LAYERS);
    if (c->host->image && c->host->image->n > PLAN_MAX_IMAGE_LAYERS)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "image: the image has %zu layers, and a sandbox can use at most %d; flatten the image",
            c->host->image->n, PLAN_MAX_IMAGE_LAYERS);
    if (!c->host->seccomp)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "seccomp: the kernel has no system call filters, which every sandbox needs; use a "
            "kernel with CONFIG_SECCOMP_FILTER");
    return 0;
}

/* ---- the block ---- */

static struct plan_array place_array(struct buf *block, const void *items, size_t n, size_t size) {
    static const char zeros[8];

    buf_add(block, zeros, -block->length & 7);
    struct plan_array array = { (uint32_t)block->length, (uint32_t)n };
    buf_add(block, items, n * size);
    return array;
}

static int assemble_plan(struct compiler *c, const struct sock_filter *program,
    const struct sock_filter *asked, struct plan **ret_plan) {
    struct buf block = BUF_INIT;
    struct plan head = c->plan;

    if (buf_failed(&c->texts) || buf_failed(&c->template_ops) || buf_failed(&c->box_ops) ||
        buf_failed(&c->rules) || buf_failed(&c->rlimits) || buf_failed(&c->net_ports))
        return -ENOMEM;
    buf_add(&block, &head, sizeof head);
    buf_add(&block, c->texts.data, c->texts.length);
    head.template_ops = place_array(&block, c->template_ops.data,
        c->template_ops.length / sizeof(struct plan_op), sizeof(struct plan_op));
    head.box_ops = place_array(&block, c->box_ops.data, c->box_ops.length / sizeof(struct plan_op),
        sizeof(struct plan_op));
    head.rules = place_array(&block, c->rules.data, c->rules.length / sizeof(struct plan_rule),
        sizeof(struct plan_rule));
    head.rlimits = place_array(&block, c->rlimits.data,
        c->rlimits.length / sizeof(struct plan_rlimit), sizeof(struct plan_rlimit));
    head.net_ports = place_array(&block, c->net_ports.data,
        c->net_ports.length / sizeof(struct plan_net_ports), sizeof(struct plan_net_ports));
    head.filter = place_array(&block, program, c->plan.filter.n, sizeof *program);
    head.notify = place_array(&block, asked, c->plan.notify.n, sizeof *asked);
    if (buf_failed(&block)) {
        buf_done(&block);
        return -ENOMEM;
    }
    head.magic = PLAN_MAGIC;
    head.length = (uint32_t)block.length;
    memcpy(block.data, &head, sizeof head);
    *ret_plan = (void *)block.data;
    return 0;
}

/* The program of determinism, if anything of that is asked for. */
static int compile_notify(
    struct compiler *c, struct sock_filter *program, struct rollbox_error *error) {
    const struct policy *p = c->policy;

    if (!p->have_seed && !p->time_start)
        return 0;
    bool is_virtual = p->time_start && p->time_mode == POLICY_TIME_VIRTUAL;

    c->plan.flags |= p->have_seed ? PLAN_SEED : 0;
    c->plan.flags |= p->time_start ? PLAN_CLOCK : 0;
    c->plan.flags |= is_virtual ? PLAN_VIRTUAL : 0;
    c->plan.flags |= is_virtual && p->serial ? PLAN_SERIAL : 0;
    c->plan.seed = p->random_seed;
    if (p->time_start)
        determinism_time(p->time_start, &c->plan.clock_seconds, &c->plan.clock_nanoseconds);
    enum determinism_clock clock = !p->time_start ? DETERMINISM_CLOCK_REAL
                                   : !is_virtual  ? DETERMINISM_CLOCK_OFFSET
                                   : p->serial    ? DETERMINISM_CLOCK_SERIAL
                                                  : DETERMINISM_CLOCK_VIRTUAL;
    int n = determinism_filter(p->have_seed, clock, p->many_users, program, PLAN_MAX_QUESTIONS);
    if (n < 0)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, -n, "policy",
            "%s: not available on this architecture; take it out of the policy",
            p->have_seed ? "random_seed" : "time_start");
    c->plan.notify.n = (uint32_t)n;
    return 0;
}

static int compile_plan(struct compiler *c, struct sock_filter *program, struct sock_filter *asked,
    struct rollbox_error *error) {
    int r = refuse_missing(c, error);

    if (r < 0)
        return r;
    c->plan.flags = c->host->is_root ? PLAN_AS_ROOT : 0;
    c->plan.flags |= c->policy->net != POLICY_NET_HOST ? PLAN_NET_OWN : 0;
    c->plan.flags |= c->policy->net == POLICY_NET_LOOPBACK ? PLAN_NET_LOOPBACK : 0;
    c->plan.flags |= c->policy->net == POLICY_NET_ALLOW ? PLAN_NET_LOOPBACK | PLAN_NET_ALLOW : 0;
    c->plan.flags |= c->host->timens ? PLAN_TIMENS : 0;
    c->plan.flags |= c->host->cgroupns ? PLAN_CGROUPNS : 0;
    if (c->host->uppers)
        c->plan.flags |= PLAN_ON_DISK;
    else if (!c->host->memory_cgroup)
        c->plan.flags |= PLAN_REPORT_DISK;
    if ((r = compile_notify(c, asked, error)) < 0)
        return r;
    if ((r = plan_network(c, error)) < 0)
        return r;
    c->plan.hostname = compiler_text(c, c->policy->hostname ? c->policy->hostname : "rollbox");
    landlock_rights(c);
    user_ids(c);
    if ((r = compile_limits(c, error)) < 0)
        return r;
    if (c->policy->isolation == POLICY_ISOLATION_PROCESS)
        return (r = plan_process(c, error)) < 0 ? r : compile_filter(c, program, error);
    add_skeleton(c);
    if (c->plan.flags & PLAN_SEED)
        add_seeded_random(c); /* early: it is made beside what follows */
    add_devices(c);
    add_cpus(c);
    add_interfaces(c);
    add_cgroup(c);
    add_private(c);
    if ((r = plan_grants(c, error)) < 0)
        return r;
    add_etc(c);
    add_proc(c);
    /* Last: from here on nothing can be reached in the tmpfs' root any more; nor the late grants
     * where they were kept, which nothing denied covers there. */
    compiler_place(c, "/dev/shm", NULL, 01777, 0, 0);
    if ((c->n_hidden || c->host->snapshot || c->host->uppers) && !c->host->image)
        compiler_box_op(c, PLAN_OP_COVER, PLAN_HIDDEN, PLAN_HIDDEN "/void", 0);
    return compile_filter(c, program, error);
}

int plan_compile(const struct policy *policy, const struct plan_host *host, struct plan **ret_plan,
    struct rollbox_error *error) {
    struct compiler c = { .policy = policy, .host = host };
    struct sock_filter program[FILTER_MAX_INSTRUCTIONS], asked[PLAN_MAX_QUESTIONS];
    int r = compile_plan(&c, program, asked, error);

    if (r == 0 && (r = assemble_plan(&c, program, asked, ret_plan)) == -ENOMEM)
        error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy",
            "out of memory while compiling the policy");
    buf_done(&c.texts);
    buf_done(&c.template_ops);
    buf_done(&c.box_ops);
    buf_done(&c.rules);
    buf_done(&c.rlimits);
    buf_done(&c.net_ports);
    return r;
}
