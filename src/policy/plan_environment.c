/* SPDX-License-Identifier: Apache-2.0 */
/* The environment variables of a sandbox's programs. */
#include <string.h>

#include "base/cleanup.h"
#include "policy/network.h"
#include "policy/plan.h"

static bool lists_path(const struct policy_paths *paths, const char *path) {
    for (size_t i = 0; i < paths->n; i++) {
        size_t n = strlen(paths->items[i].path);

        if (!strncmp(path, paths->items[i].path, n) && (path[n] == '/' || !path[n]))
            return true;
    }
    return false;
}

/*
 * Whether a variable of the caller names a place to write to that is not in the sandbox. Programs
 * trust these variables: with the caller's home, git and pip fail, and mktemp with his TMPDIR.
 * Without them they find the sandbox's own.
 */
static bool is_place_elsewhere(const struct policy *policy, const char *entry) {
    static const char *const names[] = { "HOME", "TMPDIR", "TMP", "TEMP", "TEMPDIR",
        "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME",
        "PWD", "OLDPWD" };
    const char *path = strchr(entry, '=');

    for (size_t i = 0; path && i < ARRAY_SIZE(names); i++)
        if (strlen(names[i]) == (size_t)(path - entry) &&
            !strncmp(entry, names[i], strlen(names[i])))
            return !lists_path(&policy->fs_writable, path + 1) &&
                   !lists_path(&policy->fs_shared, path + 1);
    return false;
}

/* The programs beside the policy's own interpreter go first: python3, pip and what is installed
 * there. */
static void add_variable(const struct policy *policy, const char *entry, struct buf *to) {
    if (policy->python && !strncmp(entry, "PATH=", 5)) {
        const size_t length = (size_t)(strrchr(policy->python, '/') - policy->python);

        buf_add(to, "PATH=", 5);
        buf_add(to, policy->python, length ? length : 1);
        buf_add(to, ":", 1);
        entry += 5;
    }
    buf_add(to, entry, strlen(entry) + 1);
}

/* The variables by which programs find certificates and, for secrets, placeholders. */
static void add_network_variables(const struct policy *policy, struct buf *to) {
    static const char *const readers[] = { "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO", "PIP_CERT" };
    const struct net_rules *rules = &policy->network;

    for (size_t i = 0; net_rules_terminate(rules) && i < ARRAY_SIZE(readers); i++) {
        buf_printf(to, "%s=" PLAN_CA_BUNDLE, readers[i]);
        buf_add(to, "", 1);
    }
    if (net_rules_terminate(rules)) {
        static const char java[] = "JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=" PLAN_CA_JAVA
                                   " -Djavax.net.ssl.trustStoreType=JKS";

        buf_add(to, java, sizeof java);
    }
    for (size_t i = 0; i < rules->n_secrets; i++)
        if (rules->secrets[i].as) {
            buf_printf(to, "%s=rollbox-secret-%s", rules->secrets[i].as, rules->secrets[i].name);
            buf_add(to, "", 1);
        }
}

static bool is_listed(const char *text, const char *const *list, size_t n) {
    while (n && strcmp(text, list[n - 1]))
        n--;
    return n;
}

/* Later entries replace earlier ones of the same name, so `caller`, base and policy are added in
 * that order and the last counts. */
void plan_environment(const struct policy *policy, const char *const *caller, struct buf *to) {
    static const char home[] = "HOME=/tmp";
    static const char *const base[] = {
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", home, "LANG=C.UTF-8",
        "USER=box", "LOGNAME=box", "SHELL=/bin/sh", "TERM=dumb", NULL
    };

    /* With many users init knows whose they are. */
    static const char *const of_user[] = { home, "USER=box", "LOGNAME=box" };
    bool is_base = policy->clean_env || !caller;
    if (is_base)
        caller = base;
    else if (policy->isolation != POLICY_ISOLATION_PROCESS && !policy->many_users)
        buf_add(to, home, strlen(home) + 1);
    for (; *caller; caller++)
        /* Under isolation process each sandbox's home is a directory of its own, whose name only
         * its init knows. */
        if (is_base && policy->many_users && is_listed(*caller, of_user, ARRAY_SIZE(of_user)))
            continue;
        else if (is_base ? policy->isolation != POLICY_ISOLATION_PROCESS || strcmp(*caller, home)
                         : !is_place_elsewhere(policy, *caller))
            add_variable(policy, *caller, to);
    add_network_variables(policy, to);
    for (size_t i = 0; i < policy->env.n; i++)
        buf_add(to, policy->env.items[i], strlen(policy->env.items[i]) + 1);
}
