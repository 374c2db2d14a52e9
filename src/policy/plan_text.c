/* SPDX-License-Identifier: Apache-2.0 */
/* A plan in words: for `rollbox policy plan`, and the "isolation" of results. */
#include <jansson.h>
#include <linux/filter.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "policy/devices.h"
#include "policy/filter.h"
#include "policy/plan.h"
#include "policy/tmpfs.h"
#include "policy/ulimits.h"
#include "policy/volumes.h"
#include "sys/uapi.h"

static const char *const op_names[] = {
#define NAME(name, text) #name,
    PLAN_OPS(NAME)
#undef NAME
};

static const struct {
    uint64_t bit;
    const char *name;
} rights[] = {
    { LANDLOCK_ACCESS_FS_EXECUTE, "execute" },
    { LANDLOCK_ACCESS_FS_READ_FILE, "read" },
    { LANDLOCK_ACCESS_FS_READ_DIR, "list" },
    { LANDLOCK_ACCESS_FS_WRITE_FILE, "write" },
    { LANDLOCK_ACCESS_FS_TRUNCATE, "truncate" },
    { LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE, "remove" },
    { LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SYM |
            LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_SOCK,
        "make" },
    { LANDLOCK_ACCESS_FS_REFER, "rename-across" },
    { LANDLOCK_ACCESS_FS_IOCTL_DEV, "ioctl" },
};

/* A path may come from a stranger's policy: it can neither end its line nor control the terminal.
 */
static void add_path(struct buf *to, const char *path) {
    utf8_shown(to, path, strlen(path), "");
}

static void explain_ops(const struct plan *plan, struct plan_array array, struct buf *to) {
    const struct plan_op *ops = (const void *)((const char *)plan + array.offset);

    for (uint32_t i = 0; i < array.n; i++) {
        buf_printf(to, "%4u %-8s ", i, op_names[ops[i].kind]);
        add_path(to, plan_text(plan, ops[i].path));
        if (ops[i].source && ops[i].kind != PLAN_OP_FILE) {
            buf_add_text(to, " <- ");
            add_path(to, plan_text(plan, ops[i].source));
        }
        if (ops[i].kind == PLAN_OP_FILE || ops[i].kind == PLAN_OP_CHANCE)
            buf_printf(to, " (%llu bytes)", (unsigned long long)ops[i].value);
        switch ((enum plan_op_kind)ops[i].kind) {
        case PLAN_OP_MKDIR:
        case PLAN_OP_FILE:
        case PLAN_OP_CHANCE:
        case PLAN_OP_PRIVATE:
            buf_printf(to, " mode %04o", ops[i].mode);
            break;
        case PLAN_OP_DEVICE:
        case PLAN_OP_BIND:
        case PLAN_OP_BIND_ONE:
        case PLAN_OP_COVER:
        case PLAN_OP_COVER_IF:
        case PLAN_OP_UPTIME:
            buf_printf(to, "%s%s%s%s%s", ops[i].mode & MOUNT_ATTR_RDONLY ? " ro" : "",
                ops[i].mode & MOUNT_ATTR_NOSUID ? " nosuid" : "",
                ops[i].mode & MOUNT_ATTR_NODEV ? " nodev" : "",
                ops[i].mode & MOUNT_ATTR_NOEXEC ? " noexec" : "",
                ops[i].value & PLAN_BIND_IDMAP && plan->flags & PLAN_AS_ROOT ? " idmapped" : "");
            break;
        case PLAN_OP_PLACE:
            buf_printf(to, " part %u%s", plan_place_part(&ops[i]),
                ops[i].value & PLAN_PLACE_FILE ? " (a copy of the file)" : "");
            break;
        case PLAN_OP_SYMLINK:
        case PLAN_OP_PIVOT:
        case PLAN_OP_OVERLAY:
        case PLAN_OP_TMPFS:
        case PLAN_OP_UPPER:
        case PLAN_OP_PROC:
        case PLAN_OP_DEVPTS:
            break;
        }
        buf_add_text(to, "\n");
    }
}

static void explain_rules(const struct plan *plan, struct buf *to) {
    const struct plan_rule *rules = plan_items(plan, rules, struct plan_rule);

    for (uint32_t i = 0; i < plan->rules.n; i++) {
        buf_printf(to, "%4u ", i);
        add_path(to, plan_text(plan, rules[i].path));
        buf_add_text(to, ":");
        for (size_t j = 0; j < ARRAY_SIZE(rights); j++)
            if (rules[i].access & rights[j].bit)
                buf_printf(to, " %s", rights[j].name);
        buf_add_text(to, "\n");
    }
}

static const char *rlimit_name(uint32_t resource) {
    switch (resource) {
    case RLIMIT_NPROC:
        return "processes";
    case RLIMIT_NOFILE:
        return "open files";
    case RLIMIT_CORE:
        return "core size";
    case RLIMIT_MEMLOCK:
        return "locked memory";
    case RLIMIT_MSGQUEUE:
        return "message queues";
    case RLIMIT_SIGPENDING:
        return "pending signals";
    case RLIMIT_RTPRIO:
        return "real-time priority";
    case RLIMIT_NICE:
        return "nice";
    case RLIMIT_FSIZE:
        return "file size";
    default:
        return policy_ulimit_name(resource);
    }
}

static void add_limit(struct buf *to, uint64_t value) {
    if (value == ULIMIT_UNLIMITED)
        buf_add_text(to, "unlimited");
    else
        buf_printf(to, "%llu", (unsigned long long)value);
}

static void explain_limit(const struct plan_rlimit *limit, struct buf *to) {
    buf_printf(to, "     %s ", rlimit_name(limit->resource));
    add_limit(to, limit->value);
    if (limit->soft != limit->value) {
        buf_add_text(to, ", soft ");
        add_limit(to, limit->soft);
    }
    buf_add_text(to, "\n");
}

/* Sizes that a policy gives to single directories are no limits of these: Docker's users expect
 * that they are. */
static void explain_sizes(const struct policy *policy, struct buf *to) {
    const uint64_t bytes = policy_tmpfs_bytes(policy);

    if (bytes)
        buf_printf(to,
            "\n# sizes: tmpfs and shm_size ask for %llu bytes, and are no limits of their own; "
            "max_disk, %llu bytes, limits all private files together\n",
            (unsigned long long)bytes, (unsigned long long)policy->max_disk_bytes);
}

void plan_explain(const struct plan *plan, const struct policy *policy, struct buf *to) {
    const struct plan_rlimit *limits = plan_items(plan, rlimits, struct plan_rlimit);

    if (plan->flags & PLAN_PROCESS) {
        plan_process_explain(plan, to);
    } else {
        buf_printf(to, "# template: once for all sandboxes of the policy%s\n",
            plan->flags & PLAN_AS_ROOT ? ", as root; then in a user namespace of unprivileged ids"
                                       : ", in a user namespace");
        explain_ops(plan, plan->template_ops, to);
        buf_printf(to,
            "\n# sandbox: cloned from the template into new pid, mount, ipc and uts "
            "namespaces%s%s%s\n",
            plan->flags & PLAN_CGROUPNS ? ", cgroup" : "",
            plan->flags & PLAN_NET_OWN ? ", net (from a pool)" : "",
            plan->flags & PLAN_TIMENS ? ", time" : "");
        explain_ops(plan, plan->box_ops, to);
        if (plan->flags & PLAN_MANY_USERS)
            buf_printf(to,
                "\n# then: user namespace of its own (ids 0 to %u), capabilities out of bounds but "
                "those of its root\n",
                PLAN_MANY_IDS - 1);
        else
            buf_printf(to,
                "\n# then: user namespace of its own (uid %u, gid %u), all capabilities dropped, "
                "no_new_privs\n",
                plan->inner_uid, plan->inner_gid);
    }
    explain_sizes(policy, to);
    buf_add_text(to, "\n# limits of every process\n");
    for (uint32_t i = 0; i < plan->rlimits.n; i++)
        explain_limit(&limits[i], to);
    if (plan->affinity)
        buf_printf(to, "     CPUs %llu\n", (unsigned long long)plan->affinity);
    buf_printf(to, "\n# Landlock%s\n", plan->flags & PLAN_LANDLOCK ? "" : ": the kernel has none");
    explain_rules(plan, to);
    if (plan->landlock_net)
        buf_add_text(to, "     no TCP bind or connect\n");
    if (plan->landlock_scoped)
        buf_printf(to, "     no abstract Unix sockets%s of others\n",
            plan->landlock_scoped & LANDLOCK_SCOPE_SIGNAL ? " and no signals to processes" : "");
    buf_add_text(to, "\n# seccomp\n");
    if (filter_disassemble(plan_items(plan, filter, struct sock_filter), plan->filter.n, to) < 0)
        buf_add_text(to, "# (cannot be shown)\n");
    if (plan->notify.n) {
        buf_add_text(to, "\n# seccomp, besides: what commands ask init about\n");
        if (filter_disassemble(plan_items(plan, notify, struct sock_filter), plan->notify.n, to) <
            0)
            buf_add_text(to, "# (cannot be shown)\n");
    }
}

static void explain_rights(const struct plan *plan, struct buf *to) {
    static const char *const names[] = { [0] = "chown",
        [1] = "dac_override",
        [3] = "fowner",
        [4] = "fsetid",
        [5] = "kill",
        [6] = "setgid",
        [7] = "setuid",
        [8] = "setpcap",
        [10] = "net_bind_service",
        [13] = "net_raw",
        [18] = "sys_chroot",
        [31] = "setfcap" };
    const bool many = plan->flags & PLAN_MANY_USERS;
    const char *between = "";

    buf_printf(to, "%s, \"capabilities\": [",
        many ? "\"users\": \"many\", \"no_new_privs\": false"
             : "\"users\": \"one\", \"no_new_privs\": true");
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (names[i] && plan->capabilities >> i & 1) {
            buf_printf(to, "%s\"%s\"", between, names[i]);
            between = ", ";
        }
    buf_add_text(to, "], ");
}

static void add_json_text(struct buf *to, const char *before, const char *text) {
    json_t *value = json_string(text);
    auto_free char *written = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;

    buf_printf(to, "%s%s", before, written ? written : "\"?\"");
    json_decref(value);
}

/* Grants besides files: the devices' nodes, and the volumes with their modes. */
static void explain_devices(const struct policy *policy, struct buf *to) {
    const char *before = "\"devices\": [";

    for (size_t i = 0; i < policy->devices.n_files; i++)
        if (policy->devices.files[i].is_node) {
            add_json_text(to, before, policy->devices.files[i].path);
            before = ", ";
        }
    if (before[0] == ',')
        buf_add_text(to, "], ");
    for (size_t i = 0; i < policy->volumes.n; i++) {
        add_json_text(to, i ? ", " : "\"volumes\": {", policy->volumes.items[i].name);
        buf_printf(to, ": \"%s\"%s", policy_volume_mode_name(policy->volumes.items[i].mode),
            i + 1 == policy->volumes.n ? "}, " : "");
    }
}

/* What the policy's limits have become, and its empty directories with the room asked for. */
static void explain_machine(const struct plan *plan, const struct policy *policy, struct buf *to) {
    const struct plan_rlimit *limits = plan_items(plan, rlimits, struct plan_rlimit);
    const char *before = "\"tmpfs\": {";

    for (size_t i = 0; i < policy->tmpfs.n; i++) {
        add_json_text(to, before, policy->tmpfs.items[i].path);
        buf_printf(to, ": %llu", (unsigned long long)policy->tmpfs.items[i].size_bytes);
        before = ", ";
    }
    buf_add_text(to, before[0] == ',' ? "}, " : "");
    if (policy->shm_bytes)
        buf_printf(to, "\"shm_size\": %llu, ", (unsigned long long)policy->shm_bytes);
    before = "\"ulimits\": {";
    for (size_t i = 0; i < policy->ulimits.n; i++) {
        const struct plan_rlimit *applied = NULL;

        for (uint32_t k = 0; k < plan->rlimits.n; k++)
            if (limits[k].resource == policy->ulimits.items[i].resource)
                applied = &limits[k];
        if (!applied)
            continue;
        buf_printf(to, "%s\"%s\": \"", before, policy_ulimit_name(applied->resource));
        add_limit(to, applied->soft);
        buf_add_text(to, ":");
        add_limit(to, applied->value);
        buf_add_text(to, "\"");
        before = ", ";
    }
    buf_add_text(to, before[0] == ',' ? "}, " : "");
}

void plan_isolation(const struct plan *plan, const struct plan_host *host,
    const struct policy *policy, const char *cgroup, struct buf *to) {
    static const char *const nets[] = { "none", "loopback", "allow", "host" };

    if (plan->flags & PLAN_PROCESS) {
        plan_process_isolation(plan, host, policy, cgroup, to);
        return;
    }
    buf_printf(to,
        "{\"level\": \"namespace\", \"namespaces\": [\"user\", \"pid\", \"mount\", \"ipc\", "
        "\"uts\"%s%s%s], ",
        plan->flags & PLAN_NET_OWN ? ", \"net\"" : "",
        plan->flags & PLAN_TIMENS ? ", \"time\"" : "",
        plan->flags & PLAN_CGROUPNS ? ", \"cgroup\"" : "");
    buf_printf(to, "\"landlock_abi\": %d, \"seccomp\": %s, ",
        plan->flags & PLAN_LANDLOCK ? host->landlock_abi : 0,
        plan->flags & PLAN_SECCOMP ? "true" : "false");
    explain_rights(plan, to);
    buf_printf(to, "\"net\": \"%s\", \"host_user\": \"%s\", ", nets[policy->net],
        host->is_root                   ? "unprivileged range"
        : plan->flags & PLAN_MANY_USERS ? "subordinate range"
                                        : "caller");
    if (plan->flags & (PLAN_SEED | PLAN_CLOCK)) {
        buf_printf(to, "\"determinism\": {\"level\": \"%s\"",
            plan->flags & PLAN_SERIAL    ? "serial"
            : plan->flags & PLAN_VIRTUAL ? "virtual"
            : plan->flags & PLAN_SEED    ? "seeded"
                                         : "offset");
        if (plan->flags & PLAN_SEED)
            buf_printf(to, ", \"random_seed\": \"%llu\"", (unsigned long long)plan->seed);
        if (plan->flags & PLAN_CLOCK)
            buf_printf(to, ", \"time_start\": \"%s\", \"time_mode\": \"%s\"", policy->time_start,
                plan->flags & PLAN_VIRTUAL ? "virtual" : "offset");
        buf_add_text(to, "}, ");
    }
    explain_devices(policy, to);
    explain_machine(plan, policy, to);
    const char *memory = host->memory_cgroup ? cgroup : "watcher";
    const char *processes = host->processes_cgroup ? cgroup : "rlimit";
    const char *cpu = host->cpu_cgroup ? cgroup : "affinity";
    if (!policy->max_cpu_milli)
        cpu = "none";
    buf_printf(to,
        "\"limits\": {\"memory\": \"%s\", \"processes\": \"%s\", \"cpu\": \"%s\", \"disk\": "
        "\"%s\", \"open_files\": \"rlimit\"",
        memory, processes, cpu, plan->flags & PLAN_ON_DISK ? "watcher" : "tmpfs");
    if (policy->tmpfs.n)
        buf_add_text(to, ", \"tmpfs\": \"max_disk\"");
    if (policy->shm_bytes)
        buf_add_text(to, ", \"shm_size\": \"max_disk\"");
    buf_add_text(to, "}}");
}
