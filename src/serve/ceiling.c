/* SPDX-License-Identifier: Apache-2.0 */
/* Ceilings of tenants' policies; ceiling.h has the model. */
#include "serve/ceiling.h"

#include <fnmatch.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <rollbox/rollbox.h>

#include "base/cleanup.h"
#include "policy/devices.h"
#include "policy/policy.h"
#include "policy/ulimits.h"
#include "policy/volumes.h"

#define AS_WRITTEN (JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6))

static const char *const modes[] = { [POLICY_NET_NONE] = "none",
    [POLICY_NET_LOOPBACK] = "loopback",
    [POLICY_NET_ALLOW] = "allow",
    [POLICY_NET_HOST] = "host" };
static const char *const lists[] = { "net", "fs_readable", "fs_writable", "fs_shared", "image",
    "volumes", "devices" };

static uint64_t memory_of(const struct policy *policy) {
    return policy->max_memory_bytes;
}
static uint64_t disk_of(const struct policy *policy) {
    return policy->max_disk_bytes;
}
static uint64_t cpu_of(const struct policy *policy) {
    return policy->max_cpu_milli ? policy->max_cpu_milli : UINT64_MAX;
}
static uint64_t processes_of(const struct policy *policy) {
    return policy->max_processes;
}
static uint64_t files_of(const struct policy *policy) {
    return policy->max_open_files;
}
static uint64_t output_of(const struct policy *policy) {
    return policy->max_output_bytes;
}
static uint64_t time_of(const struct policy *policy) {
    int64_t ms = policy_run_timeout_ms(policy);

    return ms > 0 ? (uint64_t)ms : UINT64_MAX;
}

static const struct limit {
    const char *key;
    uint64_t (*value)(const struct policy *policy); /* UINT64_MAX: no limit */
} limits[] = {
    { "max_memory", memory_of },
    { "max_disk", disk_of },
    { "max_cpu", cpu_of },
    { "max_processes", processes_of },
    { "max_open_files", files_of },
    { "max_output", output_of },
    { "timeout", time_of },
};

static bool say(char ret[CEILING_TEXT], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Always false. */
static bool say(char ret[CEILING_TEXT], const char *format, ...) {
    va_list list;

    va_start(list, format);
    (void)vsnprintf(ret, CEILING_TEXT, format, list);
    va_end(list);
    return false;
}

/* A value as its writer wrote it. */
static bool exceeds(
    char ret[CEILING_TEXT], const char *key, const json_t *value, const json_t *ceiling) {
    auto_free char *has = value ? json_dumps(value, AS_WRITTEN) : strdup("not limited");
    auto_free char *most = json_dumps(ceiling, AS_WRITTEN);

    if (!has || !most)
        return say(ret, "%s exceeds the ceiling of the tenant", key);
    return say(ret, "%s is %.200s, and the ceiling of the tenant is %.200s", key, has, most);
}

/* NULL: it is not valid, and `ret` tells why. */
static struct policy *parse(const json_t *json, char ret[CEILING_TEXT]) {
    auto_free char *text = json_dumps(json, JSON_COMPACT);
    struct policy_problems problems = { 0 };
    struct policy *policy = NULL;

    if (!text || policy_parse(text, strlen(text), &policy, &problems) < 0) {
        policy = NULL;
        (void)say(ret, "%s: %s", problems.n ? problems.items[0].key : "policy",
            problems.n ? problems.items[0].message : "out of memory");
    } else {
        long n = sysconf(_SC_NPROCESSORS_ONLN);

        policy_fit(policy, n < 1 ? 1 : (unsigned)n);
    }
    policy_problems_done(&problems);
    return policy;
}

/* The ceiling's limits as a policy. */
static struct policy *parse_limits(const json_t *ceiling, char ret[CEILING_TEXT]) {
    json_t *some = json_object();

    for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
        json_t *value = json_object_get(ceiling, limits[i].key);

        if (value)
            json_object_set(some, limits[i].key, value);
    }
    struct policy *policy = parse(some, ret);
    json_decref(some);
    return policy;
}

static bool is_known(const char *key) {
    for (size_t i = 0; i < ARRAY_SIZE(limits); i++)
        if (!strcmp(limits[i].key, key))
            return true;
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
        if (!strcmp(lists[i], key))
            return true;
    return !strcmp(key, "defaults");
}

static bool is_texts(const json_t *list) {
    const json_t *one;
    size_t i;

    json_array_foreach((json_t *)(uintptr_t)list, i, one) {
        if (!json_is_string(one))
            return false;
    }
    return json_is_array(list);
}

bool ceiling_fault(const json_t *ceiling, char ret[CEILING_TEXT]) {
    const json_t *defaults = json_object_get(ceiling, "defaults"), *list;
    struct policy *policy;
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)ceiling, key, value) {
        if (!is_known(key))
            return !say(ret, "a ceiling has no key \"%.64s\"", key);
    }
    for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
        list = json_object_get(ceiling, lists[i]);
        if (list && !is_texts(list))
            return !say(ret, "%s: a list of strings is needed", lists[i]);
    }
    if (defaults && !json_is_object(defaults))
        return !say(ret, "defaults: an object is needed");
    policy = parse_limits(ceiling, ret);
    if (!policy)
        return true;
    policy_free(policy);
    policy = defaults ? parse(defaults, ret) : NULL;
    if (defaults && !policy)
        return true;
    policy_free(policy);
    return false;
}

/* ---- lists ---- */

static bool is_below(const char *path, const char *root) {
    size_t n = strlen(root);

    while (n > 1 && root[n - 1] == '/')
        n--;
    if (n == 1)
        return true;
    return !strncmp(path, root, n) && (!path[n] || path[n] == '/');
}

/* Whether a name is one of a list: as a path, or by patterns. */
static bool is_in(const json_t *list, const char *name, bool is_path) {
    const json_t *one;
    size_t i;

    json_array_foreach((json_t *)(uintptr_t)list, i, one) {
        const char *text = json_string_value(one);

        if (text && (is_path ? is_below(name, text) : !fnmatch(text, name, 0)))
            return true;
    }
    return false;
}

static bool allows_name(
    const json_t *ceiling, const char *key, const char *name, bool is_path, char *ret) {
    const json_t *list = json_object_get(ceiling, key);

    if (!list || is_in(list, name, is_path))
        return true;
    json_t *value = json_string(name);
    bool r = exceeds(ret, key, value, list);
    json_decref(value);
    return r;
}

/* Paths of the defaults are optional, and are not the tenant's. */
static bool allows_paths(
    const json_t *ceiling, const char *key, const struct policy_paths *paths, char *ret) {
    for (size_t i = 0; i < paths->n; i++)
        if (!paths->items[i].optional &&
            !allows_name(ceiling, key, paths->items[i].path, true, ret))
            return false;
    return true;
}

static bool allows_lists(const json_t *ceiling, const struct policy *policy, char *ret) {
    if (!allows_name(ceiling, "net", modes[policy->net], false, ret) ||
        (policy->image && !allows_name(ceiling, "image", policy->image, false, ret)) ||
        !allows_paths(ceiling, "fs_readable", &policy->fs_readable, ret) ||
        !allows_paths(ceiling, "fs_writable", &policy->fs_writable, ret) ||
        !allows_paths(ceiling, "fs_shared", &policy->fs_shared, ret))
        return false;
    for (size_t i = 0; i < policy->volumes.n; i++)
        if (!allows_name(ceiling, "volumes", policy->volumes.items[i].name, false, ret))
            return false;
    for (size_t i = 0; i < policy->devices.n; i++)
        if (!allows_name(ceiling, "devices", policy->devices.items[i].name, false, ret))
            return false;
    return true;
}

/* ---- limits ---- */

static bool apply_limits(const json_t *ceiling, const struct policy *most,
    const struct policy *policy, json_t *json, char *ret) {
    for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
        const struct limit *limit = &limits[i];
        json_t *highest = json_object_get(ceiling, limit->key);

        if (!highest || limit->value(policy) <= limit->value(most))
            continue;
        if (json_object_get(json, limit->key))
            return exceeds(ret, limit->key, json_object_get(json, limit->key), highest);
        json_object_set(json, limit->key, highest);
    }
    return true;
}

/* `ulimits` may give processes more open files than max_open_files; the ceiling holds for both. */
static bool allows_ulimits(
    const json_t *ceiling, const struct policy *most, const struct policy *policy, char *ret) {
    const struct policy_ulimit *files = policy_ulimit_of(policy, RLIMIT_NOFILE);
    json_t *highest = json_object_get(ceiling, "max_open_files");

    if (!highest || !files || files->hard <= files_of(most))
        return true;
    json_t *value = files->hard == ULIMIT_UNLIMITED ? NULL : json_integer((json_int_t)files->hard);
    bool r = exceeds(ret, "ulimits nofile", value, highest);
    json_decref(value);
    return r;
}

bool ceiling_apply(const json_t *ceiling, json_t *json, char ret[CEILING_TEXT]) {
    const char *key;
    json_t *value;

    json_object_foreach(json_object_get(ceiling, "defaults"), key, value) {
        if (!json_object_get(json, key))
            json_object_set(json, key, value);
    }
    struct policy *most = parse_limits(ceiling, ret), *policy = most ? parse(json, ret) : NULL;
    bool allowed = policy && apply_limits(ceiling, most, policy, json, ret) &&
                   allows_ulimits(ceiling, most, policy, ret) && allows_lists(ceiling, policy, ret);

    policy_free(most);
    policy_free(policy);
    return allowed;
}

bool ceiling_allows(const json_t *ceiling, const struct amounts *has, char ret[CEILING_TEXT]) {
    static const struct {
        const char *key;
        enum quota quota;
    } kinds[] = { { "max_memory", QUOTA_MEMORY }, { "max_disk", QUOTA_DISK },
        { "max_cpu", QUOTA_CPUS } };
    struct policy *most = parse_limits(ceiling, ret);
    bool allowed = most != NULL;

    for (size_t i = 0; allowed && i < ARRAY_SIZE(kinds); i++) {
        const json_t *highest = json_object_get(ceiling, kinds[i].key);

        for (size_t k = 0; highest && k < ARRAY_SIZE(limits); k++)
            if (!strcmp(limits[k].key, kinds[i].key) &&
                has->of[kinds[i].quota] > limits[k].value(most)) {
                json_t *value = quota_to_json(kinds[i].quota, has->of[kinds[i].quota]);

                allowed = exceeds(ret, kinds[i].key, value, highest);
                json_decref(value);
            }
    }
    policy_free(most);
    return allowed;
}

bool ceiling_allows_time(const json_t *ceiling, int64_t timeout_ms, char ret[CEILING_TEXT]) {
    const json_t *highest = json_object_get(ceiling, "timeout");
    struct policy *most = highest ? parse_limits(ceiling, ret) : NULL;
    bool allowed = !highest || (most && timeout_ms > 0 && (uint64_t)timeout_ms <= time_of(most));

    if (most && !allowed) {
        json_t *value = timeout_ms > 0 ? json_integer(timeout_ms) : NULL;

        (void)exceeds(ret, timeout_ms > 0 ? "timeout_ms" : "timeout", value, highest);
        json_decref(value);
    }
    policy_free(most);
    return allowed;
}

/* The ceiling's value of a limit; UINT64_MAX: it has none. Without memory to read it: 1. */
static uint64_t highest_of(
    const json_t *ceiling, const char *key, uint64_t (*value)(const struct policy *policy)) {
    char why[CEILING_TEXT];

    if (!json_object_get(ceiling, key))
        return UINT64_MAX;
    struct policy *most = parse_limits(ceiling, why);
    uint64_t highest = most ? value(most) : 1;

    policy_free(most);
    return highest;
}

uint64_t ceiling_output(const json_t *ceiling) {
    return highest_of(ceiling, "max_output", output_of);
}

int64_t ceiling_time(const json_t *ceiling) {
    uint64_t ms = highest_of(ceiling, "timeout", time_of);

    return ms == UINT64_MAX ? ROLLBOX_NO_TIMEOUT : (int64_t)ms;
}
