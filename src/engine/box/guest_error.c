/* SPDX-License-Identifier: Apache-2.0 */
/* A failure of the guest side, which knows only stage, operation and errno, in words. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "engine/box/guest_error.h"
#include "engine/box/profile.h"
#include "policy/plan.h"

static const char *const grant_keys[] = { "", "fs_readable", "fs_writable", "fs_shared",
    "fs_denied", "volumes", "devices", "tmpfs" };

static const char *const op_names[] = {
#define NAME(name, text) text,
    PLAN_OPS(NAME)
#undef NAME
};

static const char *stage_words(uint32_t stage) {
    switch ((enum guest_stage)stage) {
    case GUEST_STAGE_PLAN:
        return "reading the plan";
    case GUEST_STAGE_UNSHARE:
        return "entering new namespaces";
    case GUEST_STAGE_MAP:
        return "mapping user ids";
    case GUEST_STAGE_ROOT:
        return "making a root file system";
    case GUEST_STAGE_TEMPLATE:
        return "building the template";
    case GUEST_STAGE_PIVOT:
        return "changing the root";
    case GUEST_STAGE_CLONE:
        return "cloning the sandbox";
    case GUEST_STAGE_CGROUP:
        return "entering the cgroup";
    case GUEST_STAGE_NETWORK:
        return "making a network namespace";
    case GUEST_STAGE_TIME:
        return "making a time namespace";
    case GUEST_STAGE_BOX:
        return "setting the sandbox up";
    case GUEST_STAGE_LANDLOCK:
        return "building the Landlock rules";
    case GUEST_STAGE_USER:
        return "entering a user namespace";
    case GUEST_STAGE_PRIVILEGE:
        return "dropping privileges";
    case GUEST_STAGE_SECCOMP:
        return "installing the seccomp filter";
    case GUEST_STAGE_REQUEST:
        return "reading the request";
    case GUEST_STAGE_FILE:
        return "putting a file in place";
    case GUEST_STAGE_SPAWN:
        return "starting a process";
    case GUEST_STAGE_SESSION:
        return "starting a session";
    case GUEST_STAGE_STREAMS:
        return "placing the standard streams";
    case GUEST_STAGE_CWD:
        return "entering the working directory";
    case GUEST_STAGE_LIMITS:
        return "setting limits";
    case GUEST_STAGE_RESTRICT:
        return "entering the Landlock domain";
    case GUEST_STAGE_EXEC:
        return "executing the command";
    case GUEST_STAGE_RESTORE:
        return "restoring processes";
    }
    return "setting up";
}

static void of_operation(
    const struct profile *profile, const struct guest_record *record, struct rollbox_error *error) {
    const struct plan *plan = profile->plan;
    struct plan_array array =
        record->stage == GUEST_STAGE_TEMPLATE ? plan->template_ops : plan->box_ops;
    const struct plan_op *ops = (const void *)((const char *)plan + array.offset);
    int e = record->error;

    if (record->operation >= array.n) {
        error_set(error, error_code_of(e, ROLLBOX_ERR_SETUP_FAILED), e, "setup", "%s failed: %s",
            stage_words(record->stage), strerror(e));
        return;
    }
    const struct plan_op *op = &ops[record->operation];
    const char *path = plan_text(plan, op->path), *source = op->source && op->kind != PLAN_OP_FILE
                                                                ? plan_text(plan, op->source)
                                                                : path;
    const char *key = grant_keys[op->grant >> 12 & 7], *hint = "";
    enum rollbox_error_code code = error_code_of(e, ROLLBOX_ERR_SETUP_FAILED);

    if (op->kind == PLAN_OP_PLACE && !(op->value & PLAN_PLACE_FILE)) {
        source = path;
        if (e == EOPNOTSUPP)
            hint = "; snapshots, forks and resets of files need Linux 6.15";
        else if (e == EINVAL)
            hint = "; other file systems may be mounted below it: grant a directory that has none";
        else if (e == ENODEV)
            hint = "; the kernel has no overlayfs: load the module overlay";
        code = e == EINVAL || e == ENODEV || e == EPERM || e == EOPNOTSUPP
                   ? ROLLBOX_ERR_FEATURE_MISSING
                   : code;
    } else if (key[0] && (e == ENOENT || e == ENOTDIR || e == ELOOP)) {
        code = ROLLBOX_ERR_PATH_NOT_FOUND;
        hint = "; it has changed since the policy was prepared";
    } else if (key[0] && (e == EACCES || e == EPERM)) {
        code = ROLLBOX_ERR_PATH_DENIED;
    } else if (op->kind == PLAN_OP_PROC && e == EOPNOTSUPP) {
        code = ROLLBOX_ERR_FEATURE_MISSING;
        hint =
            "; random_seed and time_start need a kernel that lets the code of a process be written "
            "through /proc/PID/mem (proc_mem.force_override=always): take them out of the policy";
    } else if (op->kind == PLAN_OP_PROC && e == EPERM) {
        code = ROLLBOX_ERR_FEATURE_MISSING;
        hint = "; the host's /proc is partly hidden (as in a container), so the kernel lets nobody "
               "mount a fresh one: run the container with its /proc unmasked";
    }
    if (!hint[0] && (e == EPERM || e == ENOSYS)) {
        code = ROLLBOX_ERR_FEATURE_MISSING;
        hint = "; a container's seccomp profile may refuse the call: let it pass mount, umount2, "
               "open_tree, move_mount, mount_setattr, fsopen, fsconfig and fsmount "
               "(docs/how-to/containers.md)";
    }
    if (key[0])
        error_set(error, code, e, "setup", "%s: %s: %s%s", key, source, strerror(e), hint);
    else
        error_set(error, code, e, "setup", "%s failed at %s (%s): %s%s", stage_words(record->stage),
            path, op_names[op->kind], strerror(e), hint);
}

/* The call that an operation of these stages is, for calls that a container's seccomp profile or a
 * missing capability refuses. NULL: none. */
static const char *refused_call(const struct guest_record *record) {
    static const char *const calls[][6] = {
        [GUEST_STAGE_UNSHARE] = { "unshare", "sethostname", "unshare", "setdomainname" },
        [GUEST_STAGE_MAP] = { "writing to uid_map", "clone(CLONE_NEWUSER), or writing to uid_map",
            "setns", "setresuid", "setns" },
        [GUEST_STAGE_ROOT] = { "mount", "mount" },
        [GUEST_STAGE_PIVOT] = { "pivot_root", NULL, "umount2", "mount_setattr", "umount2" },
        [GUEST_STAGE_CLONE] = { "clone with new namespaces" },
        [GUEST_STAGE_NETWORK] = { "unshare(CLONE_NEWNET), or setns" },
        [GUEST_STAGE_TIME] = { "unshare(CLONE_NEWTIME)" },
        [GUEST_STAGE_USER] = { "unshare(CLONE_NEWUSER)" },
    };
    bool is_refusal = record->error == EPERM || record->error == ENOSYS || record->error == EACCES;

    return is_refusal && record->stage < ARRAY_SIZE(calls) &&
                   record->operation < ARRAY_SIZE(calls[0])
               ? calls[record->stage][record->operation]
               : NULL;
}

/* EAGAIN of a clone, which says no more. */
static const char *clone_hint(const struct guest_record *record) {
    bool is_clone = record->stage == GUEST_STAGE_CLONE || record->stage == GUEST_STAGE_SPAWN;

    if (is_clone && record->error == ENOSPC)
        return "; a limit of namespaces is reached: one of /proc/sys/user/max_*_namespaces, or of "
               "how deep they may be";
    return is_clone && record->error == EAGAIN
               ? "; a limit of processes is reached: ulimit -u, kernel.pid_max, kernel.threads-max "
                 "or a cgroup's pids.max"
               : "";
}

static const char *restore_words(uint32_t step) {
    switch ((enum restore_step)step) {
    case RESTORE_FORK:
        return "making it";
    case RESTORE_GROUP:
        return "joining its session and group";
    case RESTORE_PROGRAM:
        return "being the program that it was";
    case RESTORE_PRIVILEGE:
        return "giving up rights";
    case RESTORE_RESTRICT:
        return "entering the sandbox's restrictions";
    case RESTORE_LIMITS:
        return "setting its limits";
    case RESTORE_MEMORY:
        return "moving its memory to where it was";
    case RESTORE_FILES:
        return "opening its files, which must be what they were";
    case RESTORE_VDSO:
        return "moving the kernel's own code";
    case RESTORE_SIGNALS:
        return "setting its signals and timers";
    case RESTORE_THREADS:
        return "making its threads";
    case RESTORE_UNMAP:
        return "removing what restored it";
    case RESTORE_CWD:
        return "entering its directory";
    case RESTORE_STREAMS:
        return "taking its streams";
    case RESTORE_DESCRIPTORS:
        return "taking its descriptors";
    case RESTORE_TERMINAL:
        return "having its terminal";
    case RESTORE_ASK:
        return "beginning to ask init for random bytes and time";
    case RESTORE_SEGMENTS:
        return "making its System V shared memory";
    }
    return "restoring";
}

void guest_restore_error_to_text(const struct guest_record *record, struct rollbox_error *error) {
    /* A restored process has the limits that it had, and its number of descriptors is the policy's.
     */
    const char *why = !record->error ? "it was killed"
                      : record->error == EMFILE && record->operation
                          ? "it may not have as many files open (max_open_files, or the ulimit -n "
                            "of the user who started the engine)"
                          : strerror(record->error);

    if (record->operation)
        error_set(error, error_code_of(record->error, ROLLBOX_ERR_SETUP_FAILED), record->error,
            "restore", "process %u of the snapshot cannot resume in the sandbox; %s: %s",
            record->operation, restore_words(record->stage), why);
    else
        error_set(error, error_code_of(record->error, ROLLBOX_ERR_SETUP_FAILED), record->error,
            "restore", "the processes of the snapshot cannot resume in the sandbox; %s: %s",
            restore_words(record->stage), why);
}

void guest_error_to_text(const struct profile *profile, const struct guest_record *record,
    const char *argv0, const char *cwd, struct rollbox_error *error) {
    const char *refused =
        profile && !(profile->plan->flags & PLAN_PROCESS) ? refused_call(record) : NULL;
    int e = record->error;

    if (refused && record->kind != GUEST_IMAGE_LOADED) {
        error_set(error, ROLLBOX_ERR_FEATURE_MISSING, e, "setup",
            "isolation namespace: %s is refused here (%s): let the container's seccomp profile and "
            "capabilities permit it "
            "(docs/how-to/containers.md), or use isolation process; `rollbox doctor` tries what is "
            "needed",
            refused, strerror(e));
        return;
    }
    if (record->kind == GUEST_IMAGE_LOADED && e == EOPNOTSUPP) {
        error_set(error, ROLLBOX_ERR_FEATURE_MISSING, e, "restore",
            "this rollbox-init cannot hold processes: it is not linked with musl, or not for "
            "x86-64; processes=\"drop\" (--drop-processes) forks and resets files alone");
        return;
    }
    if (record->kind == GUEST_IMAGE_LOADED && e == EBADMSG) {
        error_set(error, ROLLBOX_ERR_DAMAGED, e, "restore",
            "the processes of the snapshot are refused: their image is not sound, or one of "
            "another version of rollbox; processes=\"drop\" (--drop-processes) takes its files "
            "alone");
        return;
    }
    if ((record->kind == GUEST_IMAGE_LOADED ||
            (record->stage == GUEST_STAGE_RESTORE && !record->operation)) &&
        e == E2BIG) {
        error_set(error, ROLLBOX_ERR_DAMAGED, e, "restore",
            "the snapshot has more processes or threads than its policy allows (max_processes); "
            "processes=\"drop\" (--drop-processes) takes its files alone");
        return;
    }
    if (record->stage == GUEST_STAGE_RESTORE && !record->operation && e == EAGAIN) {
        error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, e, "restore",
            "there is no room for as many processes as the snapshot has: raise the policy's "
            "max_processes, or the host's limits (ulimit -u, pids.max, kernel.pid_max)");
        return;
    }
    if (record->kind == GUEST_IMAGE_LOADED) {
        error_set(error, error_code_of(e, ROLLBOX_ERR_SETUP_FAILED), e, "restore",
            "the processes of the snapshot cannot be held in memory: %s", strerror(e));
        return;
    }
    switch ((enum guest_stage)record->stage) {
    case GUEST_STAGE_TEMPLATE:
    case GUEST_STAGE_BOX:
        if (profile) {
            of_operation(profile, record, error);
            return;
        }
        break;
    case GUEST_STAGE_LANDLOCK:
        if (profile && profile->plan->flags & PLAN_PROCESS &&
            record->operation < profile->plan->rules.n) {
            const struct plan_rule *rule =
                &plan_items(profile->plan, rules, struct plan_rule)[record->operation];

            error_set(error,
                e == ENOENT || e == ENOTDIR || e == ELOOP
                    ? ROLLBOX_ERR_PATH_NOT_FOUND
                    : error_code_of(e, ROLLBOX_ERR_SETUP_FAILED),
                e, "setup", "%s: %s; it has changed since the policy was prepared",
                plan_text(profile->plan, rule->path), strerror(e));
            return;
        }
        break;
    case GUEST_STAGE_UNSHARE:
        if (e == ENOSPC) {
            error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, e, "setup",
                "isolation namespace: a limit of namespaces is reached, one of "
                "/proc/sys/user/max_*_namespaces; raise it, or close sandboxes");
            return;
        }
        if (e == EPERM || e == EINVAL || e == ENOSYS) {
            error_set(error, ROLLBOX_ERR_FEATURE_MISSING, e, "setup",
                "isolation namespace: this user may not make user namespaces here (%s); `rollbox "
                "doctor` tells how to allow it",
                strerror(e));
            return;
        }
        break;
    case GUEST_STAGE_EXEC:
        if (e == ENOENT || e == ENOTDIR || e == ELOOP || e == ENAMETOOLONG)
            error_set(error, ROLLBOX_ERR_COMMAND_NOT_FOUND, e, "exec",
                "%.200s: no such program in the sandbox (or its interpreter is missing); is its "
                "directory granted, and in PATH?",
                argv0 ? argv0 : "?");
        else if (e == E2BIG)
            error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, e, "exec",
                "argv and env together are larger than the kernel takes (%s); pass large data as "
                "files or standard input",
                strerror(e));
        else
            error_set(error, error_code_of(e, ROLLBOX_ERR_NOT_EXECUTABLE), e, "exec",
                "%.200s: cannot be executed in the sandbox: %s", argv0 ? argv0 : "?", strerror(e));
        return;
    case GUEST_STAGE_CWD:
        error_set(error, ROLLBOX_ERR_BAD_CWD, e, "exec",
            "cwd%s%.200s: cannot be entered in the sandbox: %s", text_if(cwd, " "),
            text_or(cwd, ""), strerror(e));
        return;
    case GUEST_STAGE_FILE:
        if (e == ENOSPC && profile->plan->flags &
                               (PLAN_PROCESS | PLAN_ON_DISK)) /* where max_disk is a watcher's */
            error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, e, "exec",
                "files: number %u finds no room on the host's disk, where the sandbox's private "
                "files are (TMPDIR, or the store); free some",
                record->operation + 1);
        else if (e == ENOSPC)
            error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, e, "exec",
                "files: number %u does not fit into the sandbox; raise max_disk",
                record->operation + 1);
        else
            error_set(error, error_code_of(e, ROLLBOX_ERR_INVALID_ARGUMENT), e, "exec",
                "files: number %u cannot be put in place: %s; its path must be writable in the "
                "sandbox",
                record->operation + 1, strerror(e));
        return;
    case GUEST_STAGE_USER:
        if (record->kind != GUEST_EXEC_FAILED || !record->operation)
            break;
        error_set(error, error_code_of(e, ROLLBOX_ERR_INVALID_ARGUMENT), e, "exec",
            "%s: %s; name one of the sandbox's /etc/passwd and /etc/group, or give its number",
            record->operation == 1   ? "user"
            : record->operation == 2 ? "group"
                                     : "groups",
            e == ENOENT ? "the sandbox has none of that name" : strerror(e));
        return;
    case GUEST_STAGE_PLAN:
    case GUEST_STAGE_MAP:
    case GUEST_STAGE_ROOT:
    case GUEST_STAGE_PIVOT:
    case GUEST_STAGE_CLONE:
    case GUEST_STAGE_CGROUP:
    case GUEST_STAGE_NETWORK:
    case GUEST_STAGE_TIME:
    case GUEST_STAGE_SECCOMP:
        if (record->operation && (e == EINVAL || e == EOPNOTSUPP)) {
            error_set(error, ROLLBOX_ERR_FEATURE_MISSING, e, "setup",
                "random_seed and time_start need %s; take them out of the policy",
                e == EINVAL ? "Linux 5.19 or later" : "a kernel whose vDSO rollbox knows");
            return;
        }
        break;
    case GUEST_STAGE_PRIVILEGE:
    case GUEST_STAGE_REQUEST:
    case GUEST_STAGE_SPAWN:
    case GUEST_STAGE_SESSION:
    case GUEST_STAGE_STREAMS:
    case GUEST_STAGE_LIMITS:
    case GUEST_STAGE_RESTRICT:
    case GUEST_STAGE_RESTORE:
        break;
    }
    error_set(error, error_code_of(e, ROLLBOX_ERR_SETUP_FAILED), e, "setup", "%s failed: %s%s",
        stage_words(record->stage), strerror(e), clone_hint(record));
}
