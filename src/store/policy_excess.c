/* SPDX-License-Identifier: Apache-2.0 */
#include "store/policy_excess.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "policy/devices.h"
#include "policy/volumes.h"
#include "policy/policy.h"
#include "policy/publish.h"

static inline void cleanup_policy(struct policy **policy) {
    policy_free(*policy);
}
#define auto_policy __attribute__((cleanup(cleanup_policy)))

__attribute__((format(printf, 2, 3))) static void add_line(
    struct buf *to, const char *format, ...) {
    char text[PATH_MAX + 64];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (to->length)
        buf_add_text(to, ", ");
    buf_add_text(to, text);
}

static bool is_within(const char *path, const char *directory) {
    size_t length = strlen(directory);

    return !strncmp(path, directory, length) && (!path[length] || path[length] == '/');
}

/* Resolved on the host: a grant follows links, and below a default directory there may be a link to
 * another place. */
static bool is_in_any(const char *real, const struct policy_paths *paths) {
    for (size_t i = 0; i < paths->n; i++) {
        auto_free char *directory = realpath(paths->items[i].path, NULL);

        if (is_within(real, paths->items[i].path) || (directory && is_within(real, directory)))
            return true;
    }
    return false;
}

static void add_paths(const char *key, const struct policy_paths *paths,
    const struct policy *defaults, struct buf *to) {
    for (size_t i = 0; i < paths->n; i++) {
        const char *path = paths->items[i].path;
        auto_free char *real = realpath(path, NULL);

        /* To name one of the secrets that the defaults hide is to grant it. */
        if (!paths->items[i].optional &&
            (!real || !is_in_any(real, &defaults->fs_readable) ||
                is_in_any(real, &defaults->fs_denied) || is_in_any(path, &defaults->fs_denied)))
            add_line(to, "%s %s", key, path);
    }
}

static void add_limit(const char *key, uint64_t value, uint64_t default_value, struct buf *to) {
    if (value > default_value)
        add_line(to, "%s %" PRIu64, key, value);
}

int policy_excess_text(const char *text, size_t length, struct buf *to) {
    struct policy_problems problems = { 0 };
    auto_policy struct policy *policy = NULL;
    auto_policy struct policy *defaults = NULL;

    int r = policy_parse("{}", 2, &defaults, &problems);
    if (r == 0)
        r = policy_parse(text, length, &policy, &problems);
    policy_problems_done(&problems);
    if (r < 0)
        return r == -ENOMEM ? r : 0;
    add_paths("fs_readable", &policy->fs_readable, defaults, to);
    add_paths("fs_writable", &policy->fs_writable, defaults, to);
    for (size_t i = 0; i < policy->fs_shared.n; i++)
        add_line(to, "fs_shared %s", policy->fs_shared.items[i].path);
    for (size_t i = 0; i < policy->devices.n; i++)
        add_line(to, "devices %s", policy->devices.items[i].name);
    for (size_t i = 0; i < policy->volumes.n; i++)
        add_line(to, "volumes %s (%s)", policy->volumes.items[i].name,
            policy_volume_mode_name(policy->volumes.items[i].mode));
    if (policy->python)
        add_line(to, "python %s", policy->python);
    if (policy->image)
        add_line(to, "image %s", policy->image);
    if (!policy->clean_env)
        add_line(to, "clean_env false");
    if (policy->net == POLICY_NET_HOST)
        add_line(to, "net host");
    if (policy->network_name)
        add_line(to, "network %s", policy->network_name);
    for (size_t i = 0; i < policy->publish.n; i++) {
        char address[PUBLISH_ADDRESS_TEXT];

        add_line(to, "publish %s:%u",
            publish_address_text(&policy->publish.items[i].address, address),
            policy->publish.items[i].port);
    }
    for (size_t i = 0; i < policy->network.n; i++)
        add_line(to, "net_allow %s",
            policy->network.items[i].host  ? policy->network.items[i].host
            : policy->network.items[i].set ? policy->network.items[i].set
                                           : "an address");
    if (policy->net == POLICY_NET_ALLOW && !policy->network.n)
        add_line(to, "net allow");
    /* The engine writes and reads them on the host. */
    if (policy->network.log_file)
        add_line(to, "net_log_file %s", policy->network.log_file);
    if (policy->network.record)
        add_line(to, "net_record %s", policy->network.record);
    if (policy->network.replay)
        add_line(to, "net_replay %s", policy->network.replay);
    for (size_t i = 0; i < policy->network.n_secrets; i++)
        add_line(to, "net_secrets %s", policy->network.secrets[i].name);
    if (policy->many_users)
        add_line(to, "users many");
    if (policy->isolation != defaults->isolation)
        add_line(to, "isolation process");
    add_limit("max_memory", policy->max_memory_bytes, defaults->max_memory_bytes, to);
    add_limit("max_processes", policy->max_processes, defaults->max_processes, to);
    add_limit("max_disk", policy->max_disk_bytes, defaults->max_disk_bytes, to);
    if (policy->disk_at != defaults->disk_at)
        add_line(to, "disk_at store");
    add_limit("max_open_files", policy->max_open_files, defaults->max_open_files, to);
    add_limit("max_output", policy->max_output_bytes, defaults->max_output_bytes, to);
    return buf_failed(to) ? -ENOMEM : 0;
}
