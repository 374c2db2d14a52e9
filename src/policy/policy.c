/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses a policy (see policy.h).
 *
 * jansson turns the text into values. A table has one row per key, with the function that checks
 * and stores its value. A function that finds a problem records it and continues, so that one pass
 * reports all problems. Only text that is not JSON at all ends the pass at once.
 *
 * The caller's text may be hostile. Its length, its depth (jansson's own limit) and the number of
 * elements and problems are bounded.
 */
#include "policy/policy.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "policy/devices.h"
#include "policy/network_read.h"
#include "policy/read.h"
#include "policy/tmpfs.h"
#include "policy/ulimits.h"
#include "policy/volumes.h"

#define MAX_TEXT (1u << 20)
#define MAX_PATHS 1024u
#define MAX_ENV 4096u
#define MAX_ENV_BYTES (128u * 1024 - 1) /* MAX_ARG_STRLEN of execve(2), with the NUL */
#define MAX_TIMEOUT_S 1e9

/* The known secrets of a Linux system's /etc: keys, password hashes, credentials of daemons and
 * clusters, and what identifies the machine. */
static const char *const default_denied[] = {
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/.pwd.lock",
    "/etc/security/opasswd",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/sudo.conf",
    "/etc/doas.conf",
    "/etc/polkit-1",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/pki/tls/private",
    "/etc/letsencrypt",
    "/etc/krb5.keytab",
    "/etc/machine-id",
    "/etc/hostid",
    "/etc/NetworkManager/system-connections",
    "/etc/netplan",
    "/etc/wpa_supplicant",
    "/etc/iwd",
    "/etc/wireguard",
    "/etc/openvpn",
    "/etc/ipsec.secrets",
    "/etc/ipsec.d/private",
    "/etc/strongswan",
    "/etc/swanctl",
    "/etc/ppp",
    "/etc/crypttab",
    "/etc/cryptsetup-keys.d",
    "/etc/luks",
    "/etc/credstore",
    "/etc/credstore.encrypted",
    "/etc/docker",
    "/etc/containers/auth.json",
    "/etc/kubernetes",
    "/etc/rancher",
    "/etc/cni",
    "/etc/ceph",
    "/etc/samba/smbpasswd",
    "/etc/samba/private",
    "/etc/exim4/passwd.client",
    "/etc/postfix/sasl_passwd",
    "/etc/postfix/sasl_passwd.db",
    "/etc/dovecot/private",
    "/etc/mysql/debian.cnf",
    "/etc/ldap.secret",
    "/etc/pam_ldap.secret",
    "/etc/libnss-ldap.secret",
    "/etc/nslcd.conf",
    "/etc/sssd",
    "/etc/apt/auth.conf",
    "/etc/apt/auth.conf.d",
    "/etc/boto.cfg",
    "/etc/s3cmd",
    "/etc/davfs2/secrets",
    "/etc/cifs-credentials",
    "/etc/rsyncd.secrets",
    "/etc/snmp",
    "/etc/munge",
    "/etc/slurm",
    "/etc/vault.d",
    "/etc/consul.d",
    "/etc/nomad.d",
    "/etc/grub.d",
    "/etc/ansible",
    "/etc/puppetlabs",
    "/etc/cloud",
};

static const char *const default_readable[] = { "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64",
    "/libx32", "/etc", "/opt" };

/* ---- paths ---- */

static void free_paths(struct policy_paths *paths) {
    for (size_t i = 0; i < paths->n; i++)
        free(paths->items[i].path);
    free(paths->items);
}

static bool is_below(const char *path, const char *parent) {
    size_t n = strlen(parent);

    if (strcmp(parent, "/") == 0)
        return strcmp(path, "/") != 0;
    return strncmp(path, parent, n) == 0 && path[n] == '/';
}

static bool add_path(struct reader *r, struct policy_paths *paths, char *take_path, bool optional) {
    struct policy_path *items =
        take_path == NULL ? NULL : reallocarray(paths->items, paths->n + 1, sizeof(*items));

    if (items == NULL) {
        free(take_path);
        r->out_of_memory = true;
        return false;
    }
    paths->items = items;
    items[paths->n++] = (struct policy_path){ take_path, optional };
    return true;
}

static void remove_path(struct policy_paths *paths, size_t i) {
    free(paths->items[i].path);
    memmove(&paths->items[i], &paths->items[i + 1], (paths->n - i - 1) * sizeof(paths->items[0]));
    paths->n--;
}

/* NULL if this list may hold the path; else why not. */
static const char *refusal_of_path(const char *path, const struct policy_paths *list,
    const struct policy *policy, const char **ret_hint) {
    bool is_root = strcmp(path, "/") == 0;

    *ret_hint = "";
    if (list == &policy->fs_denied)
        return is_root ? "\"/\" cannot be denied: nothing could run" : NULL;
    if (is_root && list == &policy->fs_writable) {
        *ret_hint = "name the directories that the program writes to";
        return "\"/\" cannot be writable: it would put a copy-on-write layer over the whole host";
    }
    if (is_root && list == &policy->fs_shared) {
        *ret_hint = "name the directories that the program writes to";
        return "\"/\" cannot be shared: the program could change the whole host";
    }
    *ret_hint = "leave it out";
    if (strcmp(path, "/proc") == 0 || is_below(path, "/proc"))
        return "/proc cannot be granted: a sandbox has its own";
    if (strcmp(path, "/dev") == 0)
        return "/dev cannot be granted: a sandbox has its own";
    *ret_hint = "";
    return NULL;
}

static void read_paths(struct reader *r, const json_t *value, struct policy_paths *paths) {
    size_t given = paths->n;

    if (!json_is_array(value)) {
        read_bad(r, json_is_string(value) ? "put it between [ and ]" : "",
            "must be a list of paths, not %s", read_type(value));
        return;
    }
    if (json_array_size(value) > MAX_PATHS) {
        read_bad(r, "grant a directory above them", "has %zu paths: at most %u",
            json_array_size(value), MAX_PATHS);
        return;
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *reason, *hint;
        bool twice = false;

        r->index = (long)i;
        char *path = read_path(r, json_array_get(value, i));
        if (path == NULL)
            continue;
        reason = refusal_of_path(path, paths, r->policy, &hint);
        if (reason != NULL)
            read_bad(r, hint, "%s", reason);
        for (size_t j = given; j < paths->n && !twice; j++)
            twice = strcmp(paths->items[j].path, path) == 0;
        if (twice)
            read_bad(r, "leave one out", "\"%.80s\" is in the list twice", path);
        if (reason != NULL || twice)
            free(path);
        else
            add_path(r, paths, path, false);
    }
    r->index = -1;
}

static bool add_defaults(
    struct reader *r, struct policy_paths *paths, const char *const *defaults, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!add_path(r, paths, read_copy(r, defaults[i]), true))
            return false;
    return true;
}

/* ---- environment ---- */

/* Puts name=value into the environment, in the place of an earlier one of that name. */
static void add_env(struct reader *r, const char *name, size_t name_length, const char *value) {
    struct policy_strings *env = &r->policy->env;
    char *entry;

    if (asprintf(&entry, "%.*s=%s", (int)name_length, name, value) < 0) {
        r->out_of_memory = true;
        return;
    }
    for (size_t i = 0; i < env->n; i++) {
        if (strncmp(env->items[i], entry, name_length + 1) == 0) {
            free(env->items[i]);
            env->items[i] = entry;
            return;
        }
    }
    char **items = reallocarray(env->items, env->n + 2, sizeof(*items));
    if (items == NULL) {
        free(entry);
        r->out_of_memory = true;
        return;
    }
    env->items = items;
    items[env->n++] = entry;
    items[env->n] = NULL;
}

static bool valid_env(struct reader *r, const char *name, size_t name_length, const char *value) {
    if (name_length == 0) {
        read_bad(r, "", "a variable must have a name");
        return false;
    }
    for (size_t i = 0; i < name_length; i++) {
        if (name[i] == '=' || !isgraph((unsigned char)name[i])) {
            read_bad(r, "use letters, digits and _", "\"%.*s\" is not a name for a variable",
                (int)MIN(name_length, (size_t)40), name);
            return false;
        }
    }
    if (name_length + 1 + strlen(value) > MAX_ENV_BYTES) {
        read_bad(r, "put it into a file", "has %zu bytes: a variable has at most %u",
            name_length + 1 + strlen(value), MAX_ENV_BYTES);
        return false;
    }
    return true;
}

static void read_env_object(struct reader *r, json_t *value) {
    const char *name;
    json_t *member;

    json_object_foreach(value, name, member) {
        r->member = name;
        if (!json_is_string(member))
            read_bad(r,
                json_is_object(member) || json_is_array(member) ? ""
                                                                : "put the value between \" and \"",
                "must be a string, not %s", read_type(member));
        else if (strlen(json_string_value(member)) != json_string_length(member))
            read_bad(r, "", "must not contain a NUL character");
        else if (valid_env(r, name, strlen(name), json_string_value(member)))
            add_env(r, name, strlen(name), json_string_value(member));
    }
    r->member = NULL;
}

static void read_env_list(struct reader *r, const json_t *value) {
    for (size_t i = 0; i < json_array_size(value); i++) {
        r->index = (long)i;
        const char *text = read_text(r, json_array_get(value, i), "\"NAME=value\"");
        if (text == NULL)
            continue;
        const char *equals = strchr(text, '=');
        if (equals == NULL)
            read_bad(r, "write \"NAME=value\"", "\"%.40s\" has no \"=\"", text);
        else if (valid_env(r, text, (size_t)(equals - text), equals + 1))
            add_env(r, text, (size_t)(equals - text), equals + 1);
    }
    r->index = -1;
}

/* ---- keys, in the order of docs/reference/policy.md ---- */

static void key_fs_readable(struct reader *r, json_t *value) {
    r->readable_given = true;
    read_paths(r, value, &r->policy->fs_readable);
}

static void key_fs_readable_extra(struct reader *r, json_t *value) {
    read_paths(r, value, &r->policy->fs_readable_extra);
}

static void key_fs_writable(struct reader *r, json_t *value) {
    read_paths(r, value, &r->policy->fs_writable);
}

static void key_fs_shared(struct reader *r, json_t *value) {
    read_paths(r, value, &r->policy->fs_shared);
}

static void key_fs_denied(struct reader *r, json_t *value) {
    read_paths(r, value, &r->policy->fs_denied);
}

static void key_image(struct reader *r, json_t *value) {
    const char *text = read_text(r, value, "the name of an image");

    if (text != NULL)
        r->policy->image = read_copy(r, text);
}

static void key_cwd(struct reader *r, json_t *value) {
    r->policy->cwd = read_path(r, value);
}

static void key_python(struct reader *r, json_t *value) {
    r->policy->python = read_path(r, value);
}

static void key_env(struct reader *r, json_t *value) {
    size_t n = json_is_object(value) ? json_object_size(value) : json_array_size(value);

    if (!json_is_object(value) && !json_is_array(value))
        read_bad(r, "write {\"NAME\": \"value\"}", "must be an object, not %s", read_type(value));
    else if (n > MAX_ENV)
        read_bad(r, "", "has %zu variables: at most %u", n, MAX_ENV);
    else if (json_is_object(value))
        read_env_object(r, value);
    else
        read_env_list(r, value);
}

static void key_clean_env(struct reader *r, json_t *value) {
    read_bool(r, value, &r->policy->clean_env);
}

bool policy_is_user_name(const char *text) {
    size_t n = strlen(text);

    if (n < 1 || n > POLICY_USER_NAME_MAX || isdigit((unsigned char)*text) || *text == '-')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("_.-", text[i]))
            return false;
    return true;
}

static void key_users(struct reader *r, json_t *value) {
    static const char *const words[] = { "one", "many" };
    int found = read_word(r, value, words, ARRAY_SIZE(words));

    if (found >= 0)
        r->policy->many_users = found;
}

static void key_user(struct reader *r, json_t *value) {
    const char *text = json_is_string(value) ? read_text(r, value, "a user") : NULL;
    unsigned long uid = ULONG_MAX;
    char *end = NULL;

    if (json_is_string(value) && text == NULL)
        return;
    if (text != NULL && strcmp(text, "box") == 0)
        return;
    if (json_is_integer(value) && json_integer_value(value) >= 0)
        uid = (unsigned long)json_integer_value(value);
    else if (text != NULL && strcmp(text, "root") == 0)
        uid = 0;
    else if (text != NULL && isdigit((unsigned char)*text)) {
        uid = strtoul(text, &end, 10);
        if (*end != 0)
            uid = ULONG_MAX;
    }
    if (uid > 65534 && text != NULL && policy_is_user_name(text)) {
        r->policy->user = read_copy(r, text);
        return; /* check_users() */
    }
    if (uid > 65534) {
        read_bad(r, "the host's users have no names in a sandbox",
            "must be \"box\", \"root\" or a number from 0 to 65534");
        return;
    }
    if (uid == 0)
        r->policy->user = read_copy(r, "root");
    else if (asprintf(&r->policy->user, "%lu", uid) < 0) {
        r->policy->user = NULL;
        r->out_of_memory = true;
    }
}

static void key_hostname(struct reader *r, json_t *value) {
    const char *text = read_text(r, value, "a host name");
    size_t label = 0;

    if (text == NULL)
        return;
    for (const char *p = text;; p++) {
        bool ends = *p == '.' || *p == 0;

        if (ends && (label == 0 || label > 63 || p[-1] == '-'))
            break;
        if (!ends && !(isascii(*p) && isalnum((unsigned char)*p)) && !(*p == '-' && label > 0))
            break;
        if (*p == 0) {
            if (p - text > 64)
                break;
            r->policy->hostname = read_copy(r, text);
            return;
        }
        label = ends ? 0 : label + 1;
    }
    read_bad(r, "use letters, digits, - inside a name and . between names; at most 64 bytes",
        "\"%.64s\" is not a host name", text);
}

static void key_max_memory(struct reader *r, json_t *value) {
    read_size(r, value, 4u << 20, "4M", &r->policy->max_memory_bytes);
}

static void key_max_processes(struct reader *r, json_t *value) {
    read_count(r, value, 1, 32768, &r->policy->max_processes);
    r->policy->max_processes_given = true;
}

static void key_max_cpu(struct reader *r, json_t *value) {
    double cpus = json_number_value(value);

    if (!json_is_number(value))
        read_bad(r, "", "must be a number of CPUs, not %s", read_type(value));
    else if (!(cpus >= 0.01 && cpus <= 65536))
        read_bad(r, cpus == 0 ? "leave it out for no limit" : "",
            "is %.6g: must be from 0.01 to 65536", cpus);
    else
        r->policy->max_cpu_milli = (uint32_t)lround(cpus * 1000);
}

static void key_max_disk(struct reader *r, json_t *value) {
    read_size(r, value, 64u << 10, "64K", &r->policy->max_disk_bytes);
    r->policy->max_disk_given = true;
}

static void key_disk_at(struct reader *r, json_t *value) {
    static const char *const words[] = {
        [POLICY_DISK_MEMORY] = "memory", [POLICY_DISK_STORE] = "store"
    };
    int found = read_word(r, value, words, ARRAY_SIZE(words));

    if (found >= 0)
        r->policy->disk_at = (enum policy_disk_at)found;
}

static void key_max_open_files(struct reader *r, json_t *value) {
    read_count(r, value, 16, POLICY_OPEN_FILES_MAX, &r->policy->max_open_files);
}

static void key_max_output(struct reader *r, json_t *value) {
    read_size(r, value, 0, "0", &r->policy->max_output_bytes);
}

static void key_timeout(struct reader *r, json_t *value) {
    double seconds = json_number_value(value);

    if (json_is_string(value) && json_string_length(value) == 4 &&
        strcmp(json_string_value(value), "none") == 0)
        r->policy->timeout_ms = 0;
    else if (!json_is_number(value))
        read_bad(r,
            json_is_string(value)
                ? "write it without quotes and unit: 10 or 0.5; \"none\" is no limit"
                : "",
            "must be a number of seconds, not %s", read_type(value));
    else if (!(seconds > 0))
        read_bad(r, "leave it out for the default; \"none\" is no limit",
            "is %.6g: must be more than 0", seconds);
    else if (seconds > MAX_TIMEOUT_S)
        read_bad(
            r, "\"none\" is no limit", "is %.6g: must be at most %.0f", seconds, MAX_TIMEOUT_S);
    else
        r->policy->timeout_ms = MAX((int64_t)ceil(seconds * 1000 - 1e-6),
            (int64_t)1); /* 1.1 * 1000 is a little more than 1100 */
}

static void key_random_seed(struct reader *r, json_t *value) {
    const char *text = json_is_string(value) ? json_string_value(value) : NULL;
    char *end = NULL;

    if (text != NULL && isdigit((unsigned char)*text) &&
        strlen(text) == json_string_length(value)) {
        errno = 0;
        r->policy->random_seed = strtoull(text, &end, 10);
        if (*end == 0 && errno == 0) {
            r->policy->have_seed = true;
            return;
        }
    } else if (json_is_integer(value) && json_integer_value(value) >= 0) {
        r->policy->random_seed = (uint64_t)json_integer_value(value);
        r->policy->have_seed = true;
        return;
    }
    read_bad(r, json_is_integer(value) || text != NULL ? "" : "write 42",
        "must be a whole number from 0 to 2^64 - 1 (from 2^63 on as a string)");
}

/* Reads `digits` digits; -1 if they are not there. */
static int read_digits(const char **p, int digits) {
    int value = 0;

    for (; digits > 0; digits--, (*p)++) {
        if (!isdigit((unsigned char)**p))
            return -1;
        value = value * 10 + (**p - '0');
    }
    return value;
}

static bool skip_character(const char **p, const char *any) {
    if (**p == 0 || strchr(any, **p) == NULL)
        return false;
    (*p)++;
    return true;
}

/* Z, +hh:mm, +hhmm or nothing, up to the end. */
static bool valid_zone(const char *p) {
    int hours, minutes;

    if (*p == 0 || strcmp(p, "Z") == 0 || strcmp(p, "z") == 0)
        return true;
    if (!skip_character(&p, "+-"))
        return false;
    hours = read_digits(&p, 2);
    skip_character(&p, ":");
    minutes = read_digits(&p, 2);
    return hours >= 0 && hours <= 14 && minutes >= 0 && minutes <= 59 && *p == 0;
}

/* ISO 8601's calendar form: a date, or a date and a time with an optional fraction and zone. */
static bool valid_time(const char *p) {
    static const int days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
    int year = read_digits(&p, 4), month, day, hour, minute, second = 0;

    if (year < 1970 || year > 2199 || !skip_character(&p, "-"))
        return false;
    month = read_digits(&p, 2);
    if (month < 1 || month > 12 || !skip_character(&p, "-"))
        return false;
    day = read_digits(&p, 2);
    if (day < 1 || day > days[month - 1] +
                             (month == 2 && year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)))
        return false;
    if (*p == 0)
        return true;
    if (!skip_character(&p, "Tt "))
        return false;
    hour = read_digits(&p, 2);
    if (hour < 0 || hour > 23 || !skip_character(&p, ":"))
        return false;
    minute = read_digits(&p, 2);
    if (minute < 0 || minute > 59)
        return false;
    if (skip_character(&p, ":")) {
        second = read_digits(&p, 2);
        if (second < 0 || second > 59)
            return false;
        if (skip_character(&p, ".,")) {
            size_t n = strspn(p, "0123456789");
            if (n == 0 || n > 9)
                return false;
            p += n;
        }
    }
    return valid_zone(p);
}

static void key_time_start(struct reader *r, json_t *value) {
    const char *text = read_text(r, value, "a time");

    if (text == NULL)
        return;
    if (valid_time(text))
        r->policy->time_start = read_copy(r, text);
    else
        read_bad(r,
            "write \"2025-01-01T00:00:00\", with Z or +01:00 after it if it is not UTC; years 1970 "
            "to 2199",
            "\"%.40s\" is not a time of ISO 8601", text);
}

static void key_time_mode(struct reader *r, json_t *value) {
    static const char *const words[] = {
        [POLICY_TIME_OFFSET] = "offset", [POLICY_TIME_VIRTUAL] = "virtual"
    };
    int found = read_word(r, value, words, ARRAY_SIZE(words));

    if (found >= 0)
        r->policy->time_mode = (enum policy_time_mode)found;
}

static void key_serial(struct reader *r, json_t *value) {
    read_bool(r, value, &r->policy->serial);
}

static void key_isolation(struct reader *r, json_t *value) {
    static const char *const words[] = {
        [POLICY_ISOLATION_NAMESPACE] = "namespace", [POLICY_ISOLATION_PROCESS] = "process"
    };
    const char *text = json_is_string(value) ? json_string_value(value) : "";
    int found;

    if (strcmp(text, "gvisor") == 0 || strcmp(text, "microvm") == 0) {
        read_bad(r, "use \"namespace\" or \"process\"", "\"%s\" is not available yet", text);
        return;
    }
    found = read_word(r, value, words, ARRAY_SIZE(words));
    if (found >= 0)
        r->policy->isolation = (enum policy_isolation)found;
}

/* clang-format off */
#define KEYS(X) \
    X(fs_readable) X(fs_readable_extra) X(fs_writable) X(fs_shared) X(fs_denied) X(image) X(cwd) \
    X(python) X(env) X(clean_env) X(user) X(users) X(hostname) X(max_memory) X(max_processes) \
    X(max_cpu) X(max_disk) X(disk_at) X(max_open_files) X(max_output) X(timeout) X(net) \
    X(net_allow_hosts) X(net_allow) X(net_secrets) X(net_max_connections) X(net_max_requests) \
    X(net_max_upload) X(net_max_download) X(net_max_rate) X(net_idle) X(net_log) \
    X(net_log_file) X(net_record) \
    X(net_replay) X(publish) X(network) X(random_seed) X(time_start) X(time_mode) X(serial) \
    X(isolation) X(volumes) X(devices) X(gpus) X(tmpfs) X(shm_size) X(ulimits)
/* clang-format on */

static const char *const key_names[] = {
#define KEY_NAME(name) #name,
    KEYS(KEY_NAME)
#undef KEY_NAME
};

static void (*const key_readers[])(struct reader *r, json_t *value) = {
#define KEY_READER(name) key_##name,
    KEYS(KEY_READER)
#undef KEY_READER
};

/* ---- the whole ---- */

/* The key that was meant: by what other tools and our own options call it, by a part of its name,
 * by its spelling. */
static const char *meant_key(const char *key) {
    static const char *const aliases[][2] = {
        { "cpus", "max_cpu" },
        { "output_limit", "max_output" },
        { "memory_limit", "max_memory" },
        { "cwd_dir", "cwd" },
        { "workdir", "cwd" },
        { "readonly", "fs_readable" },
    };
    const char *near = read_nearest(key, key_names, ARRAY_SIZE(key_names));

    for (size_t i = 0; i < ARRAY_SIZE(aliases); i++)
        if (strcmp(key, aliases[i][0]) == 0)
            return aliases[i][1];
    for (size_t i = 0; near == NULL && i < ARRAY_SIZE(key_names); i++)
        if (strlen(key) >= 3 &&
            (strstr(key_names[i], key) != NULL || strstr(key, key_names[i]) != NULL))
            near = key_names[i];
    return near;
}

bool policy_has_key(const char *key, const char **ret_meant) {
    for (size_t i = 0; i < ARRAY_SIZE(key_names); i++)
        if (strcmp(key, key_names[i]) == 0)
            return true;
    *ret_meant = meant_key(key);
    return false;
}

static void unknown_key(struct reader *r) {
    const char *meant = meant_key(r->key);
    char hint[80];

    if (meant != NULL)
        snprintf(hint, sizeof(hint), "did you mean \"%s\"?", meant);
    read_bad(r, meant != NULL ? hint : "docs/reference/policy.md lists the keys",
        "unknown key \"%.80s\"", r->key);
}

static void read_keys(struct reader *r, json_t *root) {
    const char *key;
    json_t *value;

    json_object_foreach(root, key, value) {
        size_t i = 0;

        while (i < ARRAY_SIZE(key_names) && strcmp(key, key_names[i]) != 0)
            i++;
        r->key = key;
        r->index = -1;
        r->member = NULL;
        if (i == ARRAY_SIZE(key_names))
            unknown_key(r);
        else if (!json_is_null(value))
            key_readers[i](r, value);
    }
}

/* The default denial that the path lies below, unless that is granted by name and so is none; NULL
 * if there is none. */
static const char *denied_above(const struct policy *policy, const char *path) {
    const struct policy_paths *granted[] = { &policy->fs_readable, &policy->fs_readable_extra,
        &policy->fs_writable, &policy->fs_shared };

    for (size_t d = 0; d < ARRAY_SIZE(default_denied); d++) {
        bool lifted = false;

        if (!is_below(path, default_denied[d]))
            continue;
        for (size_t g = 0; g < ARRAY_SIZE(granted); g++)
            for (size_t i = 0; i < granted[g]->n; i++)
                lifted |= strcmp(granted[g]->items[i].path, default_denied[d]) == 0;
        if (!lifted)
            return default_denied[d];
    }
    return NULL;
}

/* Paths that are in two lists that exclude each other. Only for a text without problems so far:
 * then the i-th path of a list is its i-th element. */
static void check_conflicts(struct reader *r) {
    struct policy *policy = r->policy;
    const struct {
        const char *key;
        const struct policy_paths *paths;
    } granted[] = {
        { "fs_readable", &policy->fs_readable },
        { "fs_readable_extra", &policy->fs_readable_extra },
        { "fs_writable", &policy->fs_writable },
        { "fs_shared", &policy->fs_shared },
    };

    r->member = NULL;
    r->key = "fs_shared";
    for (size_t i = 0; i < policy->fs_shared.n; i++)
        for (size_t j = 0; j < policy->fs_writable.n; j++)
            if (strcmp(policy->fs_shared.items[i].path, policy->fs_writable.items[j].path) == 0) {
                r->index = (long)i;
                read_bad(r,
                    "writable keeps what is written private, shared writes through to the host: "
                    "choose one",
                    "\"%.80s\" is also in fs_writable", policy->fs_shared.items[i].path);
            }

    for (size_t g = 0; g < ARRAY_SIZE(granted); g++) {
        r->key = granted[g].key;
        for (size_t i = 0; i < granted[g].paths->n; i++) {
            const char *path = granted[g].paths->items[i].path;

            r->index = (long)i;
            for (size_t j = 0; j < policy->fs_denied.n; j++) {
                const char *denied = policy->fs_denied.items[j].path;
                if (strcmp(path, denied) == 0)
                    read_bad(r, "leave it out of one list", "\"%.80s\" is also in fs_denied", path);
                else if (is_below(path, denied))
                    read_bad(r, "grant another path or deny less",
                        "\"%.80s\" is below \"%.80s\", which is in fs_denied", path, denied);
            }
            if (denied_above(policy, path) != NULL)
                read_bad(r, "grant that directory by name to lift its denial",
                    "\"%.80s\" is below \"%s\", which is denied by default", path,
                    denied_above(policy, path));
        }
    }
    r->index = -1;
}

/* Names are those of the sandbox's /etc/passwd, which only a sandbox of many users has. */
static void check_users(struct reader *r) {
    const struct policy *policy = r->policy;
    const char *user = policy->user;

    r->key = "user";
    if (!policy->many_users && user != NULL && !isdigit((unsigned char)*user) &&
        strcmp(user, "root") != 0)
        read_bad(r,
            "the host's users have no names in a sandbox, whose own have with users \"many\"",
            "must be \"box\", \"root\" or a number from 0 to 65534");
}

int policy_grant(struct policy *policy, const char *path) {
    struct reader r = { .policy = policy };

    for (size_t i = 0; i < policy->fs_readable.n; i++)
        if (strcmp(policy->fs_readable.items[i].path, path) == 0) {
            /* With an image the defaults are none. */
            policy->fs_readable.items[i].optional = false;
            return 0;
        }
    return add_path(&r, &policy->fs_readable, strdup(path), false) ? 0 : -ENOMEM;
}

/* The policy's own entries win over the defaults. A default grant is removed if the policy denies
 * its path or a directory above it. A default denial is removed if the policy grants its path. */
static void complete_policy(struct reader *r) {
    struct policy *policy = r->policy;
    const struct policy_paths *granted[] = { &policy->fs_readable, &policy->fs_readable_extra,
        &policy->fs_writable, &policy->fs_shared };
    struct policy_paths denied = { NULL, 0 };

    if (add_defaults(r, &denied, default_denied, ARRAY_SIZE(default_denied))) {
        for (size_t g = 0; g < ARRAY_SIZE(granted); g++)
            for (size_t i = 0; i < granted[g]->n; i++)
                for (size_t j = denied.n; j-- > 0;)
                    if (strcmp(granted[g]->items[i].path, denied.items[j].path) == 0)
                        remove_path(&denied, j);
        for (size_t i = 0; i < policy->fs_denied.n; i++) {
            for (size_t j = denied.n; j-- > 0;)
                if (strcmp(policy->fs_denied.items[i].path, denied.items[j].path) == 0)
                    remove_path(&denied, j);
            add_path(r, &denied, TAKE_PTR(policy->fs_denied.items[i].path), false);
        }
    }
    free_paths(&policy->fs_denied);
    policy->fs_denied = denied;

    if (!r->readable_given &&
        !add_defaults(r, &policy->fs_readable, default_readable, ARRAY_SIZE(default_readable)))
        return;
    for (size_t i = policy->fs_readable.n; !r->readable_given && i-- > 0;) {
        bool gone = false;
        for (size_t j = 0; j < denied.n && !gone; j++)
            gone = strcmp(policy->fs_readable.items[i].path, denied.items[j].path) == 0 ||
                   is_below(policy->fs_readable.items[i].path, denied.items[j].path);
        if (gone)
            remove_path(&policy->fs_readable, i);
    }
    for (size_t i = 0; i < policy->fs_readable_extra.n; i++)
        if (policy_grant(policy, policy->fs_readable_extra.items[i].path) < 0)
            r->out_of_memory = true;
}

/* Notes a syntax error in our words where jansson's would not help. */
static void bad_syntax(struct reader *r, const json_error_t *error) {
    unsigned line = error->line > 0 ? (unsigned)error->line : 1;

    switch ((int)json_error_code(error)) {
    case json_error_out_of_memory:
        r->out_of_memory = true;
        break;
    case json_error_numeric_overflow:
        read_bad_text(r, line, "write a random_seed of 2^63 or more as a string",
            "a number is too large for 64 bits");
        break;
    case json_error_duplicate_key:
        read_bad_text(r, line, "leave one out", "a key is given twice: %.100s", error->text);
        break;
    case json_error_stack_overflow:
        read_bad_text(r, line, "", "lists or objects are nested too deeply");
        break;
    case json_error_invalid_utf8:
        read_bad_text(r, line, "", "is not valid UTF-8");
        break;
    default:
        read_bad_text(
            r, line, "", "is not valid JSON: %.120s (column %d)", error->text, error->column);
    }
}

static json_t *parse_policy(struct reader *r) {
    json_error_t error;
    json_t *root;
    size_t i = 0;

    while (i < r->length && isspace((unsigned char)r->text[i]))
        i++;
    if (r->length > MAX_TEXT) {
        read_bad_text(r, 0, "", "has %zu bytes: a policy has at most %u", r->length, MAX_TEXT);
        return NULL;
    }
    if (i == r->length) {
        read_bad_text(r, 1, "{} is the default policy", "is empty");
        return NULL;
    }
    root = json_loadb(r->text, r->length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (root == NULL) {
        bad_syntax(r, &error);
        if (json_error_code(&error) ==
            json_error_duplicate_key) /* the other problems can still be reported */
            root = json_loadb(r->text, r->length, JSON_ALLOW_NUL, &error);
    }
    if (root != NULL && !json_is_object(root)) {
        read_bad_text(
            r, 1, "{} is the default policy", "must be an object, not %s", read_type(root));
        json_decref(root);
        return NULL;
    }
    return root;
}

int policy_parse(
    const char *text, size_t length, struct policy **ret_policy, struct policy_problems *problems) {
    struct reader r = { .text = text, .length = length, .problems = problems, .index = -1 };
    json_t *root;

    *problems = (struct policy_problems){ NULL, 0 };
    r.policy = malloc(sizeof(*r.policy));
    if (r.policy == NULL)
        return -ENOMEM;
    *r.policy = (struct policy){
        .clean_env = true,
        .max_memory_bytes = 512ull << 20,
        .max_processes = 64,
        .max_disk_bytes = 1ull << 30,
        .max_open_files = 4096,
        .max_output_bytes = 10ull << 20,
        .timeout_ms = -1,
        .net = POLICY_NET_NONE,
        .network = NET_RULES_DEFAULT,
        .isolation = POLICY_ISOLATION_NAMESPACE,
        .time_mode = POLICY_TIME_OFFSET,
    };

    root = parse_policy(&r);
    if (root != NULL)
        read_keys(&r, root);
    network_check(&r);
    publish_check(&r);
    if (!r.bad)
        check_users(&r);
    if (!r.bad)
        check_conflicts(&r);
    if (!r.bad)
        complete_policy(&r);
    if (!r.bad)
        volumes_check(&r);
    if (!r.bad)
        tmpfs_check(&r);
    json_decref(root);

    if (r.out_of_memory || r.bad) {
        policy_free(r.policy);
        return r.out_of_memory ? -ENOMEM : -EINVAL;
    }
    *ret_policy = r.policy;
    return 0;
}

void policy_fit(struct policy *policy, unsigned cpus) {
    if (!policy->max_processes_given)
        policy->max_processes = MAX(policy->max_processes, MIN(4 * cpus, 32768u));
    if (!policy->max_disk_given && policy->disk_at == POLICY_DISK_MEMORY &&
        policy->isolation == POLICY_ISOLATION_NAMESPACE)
        policy->max_disk_bytes = MIN(policy->max_disk_bytes, policy->max_memory_bytes / 4 * 3);
    if (!policy->max_disk_given)
        policy->max_disk_bytes = MAX(policy->max_disk_bytes, policy_tmpfs_bytes(policy));
}

int64_t policy_run_timeout_ms(const struct policy *policy) {
    return policy->timeout_ms < 0 ? POLICY_RUN_TIMEOUT_MS
           : policy->timeout_ms   ? policy->timeout_ms
                                  : -1;
}

int policy_deny(struct policy *policy, const char *path) {
    const struct policy_paths *named[] = { &policy->fs_readable, &policy->fs_writable,
        &policy->fs_shared, &policy->fs_denied };
    struct reader r = { .policy = policy };

    for (size_t i = 0; i < ARRAY_SIZE(named); i++)
        for (size_t k = 0; k < named[i]->n; k++)
            if (strcmp(named[i]->items[k].path, path) == 0)
                return 0;
    return add_path(&r, &policy->fs_denied, strdup(path), true) ? 0 : -ENOMEM;
}

struct policy *policy_free(struct policy *policy) {
    if (policy == NULL)
        return NULL;
    free_paths(&policy->fs_readable);
    free_paths(&policy->fs_readable_extra);
    free_paths(&policy->fs_writable);
    free_paths(&policy->fs_shared);
    free_paths(&policy->fs_denied);
    for (size_t i = 0; i < policy->env.n; i++)
        free(policy->env.items[i]);
    free(policy->env.items);
    free(policy->image);
    free(policy->cwd);
    free(policy->python);
    free(policy->user);
    free(policy->hostname);
    free(policy->time_start);
    net_rules_done(&policy->network);
    policy_volumes_done(&policy->volumes);
    policy_devices_done(&policy->devices);
    policy_tmpfs_done(&policy->tmpfs);
    free(policy->ulimits.items);
    free(policy->publish.items);
    free(policy->network_name);
    free(policy);
    return NULL;
}

void policy_problems_done(struct policy_problems *problems) {
    for (size_t i = 0; i < problems->n; i++) {
        free(problems->items[i].key);
        free(problems->items[i].message);
        free(problems->items[i].hint);
    }
    free(problems->items);
    *problems = (struct policy_problems){ NULL, 0 };
}
