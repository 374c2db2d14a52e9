/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox_doctor: tries the features of features.h and reports them as JSON. A hint names the
 * sysctl that disables a feature, if it is known, and the isolation that remains without the
 * feature.
 */
#include <errno.h>
#include <jansson.h>
#include <rollbox/rollbox.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "sys/cgroup.h"
#include "sys/features.h"
#include "sys/id_range.h"
#include "sys/limits.h"

static const char *userns_hint(const struct features *f) {
    if (f->userns_forbidden_by_max)
        return "sysctl -w user.max_user_namespaces=28633 (it is 0); without it, use isolation "
               "process";
    if (!f->is_root && f->unprivileged_userns_clone == 0)
        return "sysctl -w kernel.unprivileged_userns_clone=1 (it is 0), or run as root; without "
               "it, use isolation process";
    if (!f->is_root && f->apparmor_restrict_unprivileged_userns > 0)
        return "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (it is 1), or give "
               "rollbox-engine an AppArmor profile with the "
               "rule userns, or run as root; without it, use "
               "isolation process";
    return "no sysctl forbids it: a container's seccomp profile, a security module or a chroot "
           "does (docker and podman: --security-opt "
           "seccomp=unconfined); without it, use isolation "
           "process";
}

/* Names the missing part, and the command that adds it. */
static const char *subids_hint(const struct features *f) {
    static char problem[ID_RANGE_TEXT];
    struct id_range range;

    if (!f->uid)
        return "root needs CAP_SYS_ADMIN and all ids for users many; without them, use users one";
    if (!f->userns)
        return "made with a user namespace: see userns";
    if (id_range_find(&range, problem) < 0)
        return problem;
    int fd = id_range_namespace(&range, 1, problem);
    if (fd >= 0)
        close(fd);
    return fd < 0 ? problem : feature_hint(FEATURE_SUBIDS);
}

/* The user or account with which this user's range has ids in common; NULL: none. */
static const char *subids_shared_with(const struct features *f) {
    char problem[ID_RANGE_TEXT];
    struct id_range range;

    return f->uid && id_range_find(&range, problem) == 0 ? id_range_overlap(&range) : NULL;
}

/* One of the two cgroup versions is always missing; that needs mending only if the other is missing
 * as well. */
static const char *hint_for_feature(const struct features *f, enum feature feature) {
    if (feature_get(f, feature))
        return "";
    switch ((int)feature) {
    case FEATURE_USERNS:
        return userns_hint(f);
    case FEATURE_CGROUP_V1:
        return f->cgroup_v2 ? "" : feature_hint(feature);
    case FEATURE_CGROUP_V2:
        return f->cgroup_v1 ? "" : feature_hint(feature);
    case FEATURE_SUBIDS:
        return subids_hint(f);
    case FEATURE_IDMAPPED_MOUNTS:
        return f->is_root ? feature_hint(feature) : "";
    case FEATURE_PIDNS:
    case FEATURE_PROC_MOUNT:
    case FEATURE_MOUNTNS:
    case FEATURE_PIVOT_ROOT:
    case FEATURE_IPCNS:
    case FEATURE_UTSNS:
    case FEATURE_NETNS:
    case FEATURE_TIMENS:
    case FEATURE_CGROUPNS:
    case FEATURE_MOUNT_API:
        return f->userns ? feature_hint(feature) : "made inside a user namespace: see userns";
    default:
        return feature_hint(feature);
    }
}

static const char *cgroup_name(const struct features *f) {
    if (f->cgroup_v2)
        return cgroup_backend_name(CGROUP_V2);
    return cgroup_backend_name(f->cgroup_v1 ? CGROUP_V1 : CGROUP_NONE);
}

/* How connections of a sandbox with net "allow" get to the gateway. */
static const char *egress_name(const struct features *f) {
    if (!f->userns || !f->netns)
        return "none";
    return f->nft_tproxy ? "tproxy" : "ports";
}

static json_t *describe_facts(const struct features *f) {
    return json_pack("{s:I, s:b, s:i, s:I, s:I, s:i, s:b, s:i, s:i, s:i, s:s?}", "uid",
        (json_int_t)f->uid, "root", f->is_root, "cpus", (int)f->cpus, "memory_total_bytes",
        (json_int_t)f->memory_total_bytes, "memory_available_bytes",
        (json_int_t)f->memory_available_bytes, "landlock_abi", f->landlock_abi,
        "max_user_namespaces_is_zero", f->userns_forbidden_by_max, "unprivileged_userns_clone",
        f->unprivileged_userns_clone, "apparmor_restrict_unprivileged_userns",
        f->apparmor_restrict_unprivileged_userns, "yama_ptrace_scope", f->yama_ptrace_scope,
        "subids_shared_with", subids_shared_with(f));
}

static json_t *describe_features(const struct features *f) {
    json_t *array = json_array();

    for (enum feature i = 0; i < FEATURE_COUNT; i++)
        if (json_array_append_new(
                array, json_pack("{s:s, s:b, s:s, s:s}", "name", feature_name(i), "available",
                           feature_get(f, i), "needed_for", feature_needed_for(i), "hint",
                           hint_for_feature(f, i))) < 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

/* The limits that an engine started here will leave to its guests. */
static json_t *low_limits(void) {
    json_t *array = json_array();
    struct limits_left left;

    for (unsigned i = 0; i < LIMITS_COUNT; i++)
        if (limits_is_low(i, &left) &&
            json_array_append_new(array, json_pack("{s:s, s:s, s:I}", "name", left.name, "command",
                                             left.command, "value", (json_int_t)left.value)) < 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

int rollbox_doctor(char **ret_json, struct rollbox_error *error) {
    struct features f;
    json_t *report;
    char *text;
    int r = features_probe(&f);

    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_INTERNAL), -r, "setup",
            "cannot start a child process to try features in: %s", strerror(-r));
    if (f.mask_problem[0] != '\0')
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "ROLLBOX_KFEAT: \"%s\" is not -NAME of a feature (rollbox doctor lists the names)",
            f.mask_problem);
    report = json_pack("{s:s, s:b, s:{s:b, s:b}, s:s, s:s, s:o, s:o, s:o}", "kernel", f.release,
        "ok", features_namespace_ok(&f), "isolation", "namespace", features_namespace_ok(&f),
        "process", features_process_ok(&f), "cgroup", cgroup_name(&f), "egress", egress_name(&f),
        "features", describe_features(&f), "low_limits", low_limits(), "facts", describe_facts(&f));
    text = report != NULL ? json_dumps(report, JSON_COMPACT) : NULL;
    json_decref(report);
    if (text == NULL)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "result", "out of memory");
    *ret_json = text;
    return 0;
}
