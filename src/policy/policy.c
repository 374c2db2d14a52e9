/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a policy (see policy.h).
 *
 * jansson turns the text into values; a table has one row a key with the function that checks its value and stores it. A function that finds a problem
 * notes it and goes on, so that one reading tells everything that is wrong. Only a text that is not JSON at all ends the reading at once.
 *
 * Texts are the caller's and may be hostile: their length, their depth (jansson's own limit) and the number of elements and of problems are bounded.
 */
#include "policy/policy.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/utf8.h"
#include "policy/locate.h"

#define MAX_TEXT (1u << 20)
#define MAX_PROBLEMS 100u
#define MAX_PATHS 1024u
#define MAX_ENV 4096u
#define MAX_ENV_BYTES (128u * 1024 - 1)     /* MAX_ARG_STRLEN of execve(2), with the NUL */
#define MAX_TIMEOUT_S 1e9

struct reader {
    const char *text;
    size_t length;
    struct policy *policy;
    struct policy_problems *problems;
    const char *key;                /* where the reading is: the key, ... */
    long index;                     /* ... the element of its list or -1, ... */
    const char *member;             /* ... or the member of its object or NULL */
    bool readable_given;
    bool out_of_memory;
    bool bad;
};

/* The known secrets of a Linux system's /etc: keys, password hashes, credentials of daemons and clusters, and what identifies the machine. */
static const char *const default_denied[] = {
    "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/.pwd.lock", "/etc/security/opasswd", "/etc/sudoers", "/etc/sudoers.d", "/etc/sudo.conf",
    "/etc/doas.conf", "/etc/polkit-1", "/etc/ssh", "/etc/ssl/private", "/etc/pki/tls/private", "/etc/letsencrypt", "/etc/krb5.keytab", "/etc/machine-id",
    "/etc/hostid", "/etc/NetworkManager/system-connections", "/etc/netplan", "/etc/wpa_supplicant", "/etc/iwd", "/etc/wireguard", "/etc/openvpn",
    "/etc/ipsec.secrets", "/etc/ipsec.d/private", "/etc/strongswan", "/etc/swanctl", "/etc/ppp", "/etc/crypttab", "/etc/cryptsetup-keys.d", "/etc/luks", "/etc/credstore",
    "/etc/credstore.encrypted", "/etc/docker", "/etc/containers/auth.json", "/etc/kubernetes", "/etc/rancher", "/etc/cni", "/etc/ceph", "/etc/samba/smbpasswd",
    "/etc/samba/private", "/etc/exim4/passwd.client", "/etc/postfix/sasl_passwd", "/etc/postfix/sasl_passwd.db", "/etc/dovecot/private", "/etc/mysql/debian.cnf",
    "/etc/ldap.secret", "/etc/pam_ldap.secret", "/etc/libnss-ldap.secret", "/etc/nslcd.conf", "/etc/sssd", "/etc/apt/auth.conf", "/etc/apt/auth.conf.d",
    "/etc/boto.cfg", "/etc/s3cmd", "/etc/davfs2/secrets", "/etc/cifs-credentials", "/etc/rsyncd.secrets", "/etc/snmp", "/etc/munge", "/etc/slurm", "/etc/vault.d",
    "/etc/consul.d", "/etc/nomad.d", "/etc/grub.d", "/etc/ansible", "/etc/puppetlabs", "/etc/cloud",
};

static const char *const default_readable[] = { "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt" };

/* ---- problems ----------------------------------------------------------------------------------------------------- */

/* The text as one line of valid UTF-8, for the caller to free; NULL when out of memory. */
static char *one_line(const char *text) {
    struct buf buf = BUF_INIT;

    utf8_replace(&buf, text, strlen(text));
    buf_add_text(&buf, "");
    for (size_t i = 0; i < buf.length; i++)
        if ((unsigned char)buf.data[i] < 0x20 || buf.data[i] == 0x7f)
            buf.data[i] = '?';
    return buf_take(&buf);
}

__attribute__((format(printf, 5, 0)))
static void add_problem(struct reader *r, unsigned line, const char *key, const char *hint, const char *format, va_list arguments) {
    struct policy_problems *problems = r->problems;
    auto_free char *message = NULL;
    struct policy_problem problem = { .line = line };

    r->bad = true;
    if (problems->n > MAX_PROBLEMS)
        return;
    if (problems->n == MAX_PROBLEMS) {
        line = problem.line = 0;
        key = hint = "";
        if (asprintf(&message, "there are more than %u problems; the others are not listed", MAX_PROBLEMS) < 0)
            message = NULL;
    } else if (vasprintf(&message, format, arguments) < 0)
        message = NULL;

    struct policy_problem *items = message == NULL ? NULL : reallocarray(problems->items, problems->n + 1, sizeof(*items));
    if (items == NULL) {
        r->out_of_memory = true;
        return;
    }
    problems->items = items;
    problem.key = one_line(key);
    problem.message = one_line(message);
    problem.hint = one_line(hint);
    if (problem.key == NULL || problem.message == NULL || problem.hint == NULL)
        r->out_of_memory = true;
    items[problems->n++] = problem;
}

/* A problem with the text as a whole. */
__attribute__((format(printf, 4, 5)))
static void bad_text(struct reader *r, unsigned line, const char *hint, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    add_problem(r, line, "", hint, format, arguments);
    va_end(arguments);
}

/* A problem with the value that is being read. `hint` may be "". */
__attribute__((format(printf, 3, 4)))
static void bad(struct reader *r, const char *hint, const char *format, ...) {
    struct buf key = BUF_INIT;
    unsigned line = r->problems->n <= MAX_PROBLEMS ? locate_line(r->text, r->length, r->key, r->index, r->member) : 0;
    va_list arguments;

    buf_printf(&key, "%.100s", r->key);
    if (r->index >= 0)
        buf_printf(&key, "[%ld]", r->index);
    else if (r->member != NULL)
        buf_printf(&key, ".%.100s", r->member);
    va_start(arguments, format);
    add_problem(r, line, buf_failed(&key) ? r->key : key.data, hint, format, arguments);
    va_end(arguments);
    buf_done(&key);
}

/* ---- values ------------------------------------------------------------------------------------------------------- */

static const char *type_name(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_NULL:
        return "null";
    }
    return "unknown";
}

static char *copy(struct reader *r, const char *text) {
    char *s = strdup(text);

    if (s == NULL)
        r->out_of_memory = true;
    return s;
}

/* The text of a string that is not empty and has no NUL; NULL after noting what is wrong. */
static const char *text_of(struct reader *r, const json_t *value, const char *what) {
    if (!json_is_string(value)) {
        bad(r, "", "must be %s, not %s", what, type_name(value));
        return NULL;
    }
    if (json_string_length(value) != strlen(json_string_value(value))) {
        bad(r, "", "must not contain a NUL character");
        return NULL;
    }
    if (json_string_length(value) == 0) {
        bad(r, "", "must not be empty");
        return NULL;
    }
    return json_string_value(value);
}

static void read_bool(struct reader *r, const json_t *value, bool *ret) {
    if (json_is_boolean(value))
        *ret = json_is_true(value);
    else
        bad(r, "", "must be true or false, not %s", type_name(value));
}

/* A whole number, written as one or as 20.0; false after noting what is wrong. */
static bool read_integer(struct reader *r, const json_t *value, uint64_t min, uint64_t max, uint64_t *ret) {
    double number = json_number_value(value);

    if (!json_is_number(value)) {
        bad(r, "", "must be a number, not %s", type_name(value));
        return false;
    }
    if (number != floor(number)) {
        bad(r, "", "must be a whole number");
        return false;
    }
    if (number < (double)min || number > (double)max) {
        bad(r, "", "is %.15g: must be from %" PRIu64 " to %" PRIu64, number, min, max);
        return false;
    }
    *ret = json_is_integer(value) ? (uint64_t)json_integer_value(value) : (uint64_t)number;
    return true;
}

static void read_count(struct reader *r, const json_t *value, uint32_t min, uint32_t max, uint32_t *ret) {
    uint64_t number;

    if (read_integer(r, value, min, max, &number))
        *ret = (uint32_t)number;
}

static void read_size(struct reader *r, const json_t *value, uint64_t min, const char *min_text, uint64_t *ret) {
    uint64_t bytes = 0;
    int result = 0;

    if (json_is_string(value)) {
        const char *text = text_of(r, value, "a size");
        if (text == NULL)
            return;
        result = policy_parse_size(text, &bytes);
        if (result == -EINVAL) {
            bad(r, *text == '-' ? "" : strchr(text, '.') != NULL ? "write a fraction in the next smaller unit: \"1536M\" for 1.5G" : "write \"512M\"; the units are K, M, G and T, powers of 1024",
                "\"%.40s\" is not a size", text);
            return;
        }
        if (result == -ERANGE || bytes > INT64_MAX) {
            bad(r, "", "\"%.40s\" is too large: sizes end at 2^63 - 1 bytes", text);
            return;
        }
    } else if (json_is_integer(value)) {
        if (json_integer_value(value) < 0) {
            bad(r, "", "is %" JSON_INTEGER_FORMAT ": a size cannot be negative", json_integer_value(value));
            return;
        }
        bytes = (uint64_t)json_integer_value(value);
    } else {
        bad(r, "write \"512M\" or a whole number of bytes", "must be a size, not %s", json_is_real(value) ? "a fraction" : type_name(value));
        return;
    }
    if (bytes < min)
        bad(r, "a bare number is bytes; write \"512M\" for mebibytes", "is %" PRIu64 " bytes: must be at least %s", bytes, min_text);
    else
        *ret = bytes;
}

/* ---- the nearest word --------------------------------------------------------------------------------------------- */

#define MAX_WORD 32u

/* Levenshtein's distance; words longer than MAX_WORD are far from everything. */
static unsigned distance(const char *a, const char *b) {
    size_t n = strlen(b);
    unsigned row[MAX_WORD + 1];

    if (strlen(a) > MAX_WORD || n > MAX_WORD)
        return MAX_WORD;
    for (size_t j = 0; j <= n; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; a[i - 1] != 0; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= n; j++) {
            unsigned changed = diagonal + (tolower((unsigned char)a[i - 1]) != b[j - 1]);
            diagonal = row[j];
            row[j] = MIN(changed, MIN(row[j], row[j - 1]) + 1);
        }
    }
    return row[n];
}

static const char *nearest(const char *word, const char *const *words, size_t n) {
    const char *best = NULL;
    unsigned best_distance = MAX(2u, (unsigned)strlen(word) / 3) + 1;

    for (size_t i = 0; i < n; i++) {
        unsigned d = distance(word, words[i]);
        if (d < best_distance) {
            best_distance = d;
            best = words[i];
        }
    }
    return best;
}

/* The index of the word that the value is, or -1 after noting what is wrong. */
static int read_word(struct reader *r, const json_t *value, const char *const *words, size_t n) {
    struct buf all = BUF_INIT, hint = BUF_INIT;
    const char *text = json_is_string(value) ? json_string_value(value) : NULL, *near;
    int found = -1;

    for (size_t i = 0; i < n; i++) {
        buf_printf(&all, "%s\"%s\"", i == 0 ? "" : i + 1 == n ? " or " : ", ", words[i]);
        if (text != NULL && strcmp(text, words[i]) == 0 && json_string_length(value) == strlen(text))
            found = (int)i;
    }
    if (buf_failed(&all))
        r->out_of_memory = true;
    else if (found < 0 && text == NULL)
        bad(r, "", "must be %s, not %s", all.data, type_name(value));
    else if (found < 0) {
        near = nearest(text, words, n);
        if (near != NULL)
            buf_printf(&hint, "did you mean \"%s\"?", near);
        bad(r, near != NULL && !buf_failed(&hint) ? hint.data : "", "\"%.40s\" is none of its values: must be %s", text, all.data);
    }
    buf_done(&all);
    buf_done(&hint);
    return found;
}

/* ---- paths -------------------------------------------------------------------------------------------------------- */

/* The absolute path without "//", "/./" and a "/" at its end, for the caller to free; NULL after noting what is wrong. ".." is refused: what it
 * means depends on symbolic links. */
static char *read_path(struct reader *r, const json_t *value) {
    const char *text = text_of(r, value, "a path");
    char *path;
    size_t n = 0;

    if (text == NULL)
        return NULL;
    if (*text != '/') {
        bad(r, *text == '~' ? "~ is not expanded: write the home directory out" : *text == '$' ? "variables are not expanded: write the path out" : "write it from / on",
            "\"%.80s\" is not an absolute path", text);
        return NULL;
    }
    if (strlen(text) >= 4096) {
        bad(r, "", "is %zu bytes long: a path has at most 4095", strlen(text));
        return NULL;
    }
    path = malloc(strlen(text) + 2);
    if (path == NULL) {
        r->out_of_memory = true;
        return NULL;
    }
    for (const char *p = text; *p != 0;) {
        size_t length = strcspn(p, "/");

        if (length == 2 && p[0] == '.' && p[1] == '.') {
            bad(r, "write the path without it", "\"%.80s\" contains \"..\"", text);
            free(path);
            return NULL;
        }
        if (length > 255) {
            bad(r, "", "\"%.80s...\" has a name of %zu bytes: a name has at most 255", text, length);
            free(path);
            return NULL;
        }
        if (length > 0 && !(length == 1 && *p == '.')) {
            path[n++] = '/';
            memcpy(path + n, p, length);
            n += length;
        }
        p += length + (p[length] == '/');
    }
    if (n == 0)
        path[n++] = '/';
    path[n] = 0;
    return path;
}

static bool is_below(const char *path, const char *parent) {
    size_t n = strlen(parent);

    if (strcmp(parent, "/") == 0)
        return strcmp(path, "/") != 0;
    return strncmp(path, parent, n) == 0 && path[n] == '/';
}

static bool add_path(struct reader *r, struct policy_paths *paths, char *take_path, bool optional) {
    struct policy_path *items = take_path == NULL ? NULL : reallocarray(paths->items, paths->n + 1, sizeof(*items));

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
static const char *refusal(const char *path, const struct policy_paths *list, const struct policy *policy, const char **ret_hint) {
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
        bad(r, json_is_string(value) ? "put it between [ and ]" : "", "must be a list of paths, not %s", type_name(value));
        return;
    }
    if (json_array_size(value) > MAX_PATHS) {
        bad(r, "grant a directory above them", "has %zu paths: at most %u", json_array_size(value), MAX_PATHS);
        return;
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *reason, *hint;
        bool twice = false;

        r->index = (long)i;
        char *path = read_path(r, json_array_get(value, i));
        if (path == NULL)
            continue;
        reason = refusal(path, paths, r->policy, &hint);
        if (reason != NULL)
            bad(r, hint, "%s", reason);
        for (size_t j = given; j < paths->n && !twice; j++)
            twice = strcmp(paths->items[j].path, path) == 0;
        if (twice)
            bad(r, "leave one out", "\"%.80s\" is in the list twice", path);
        if (reason != NULL || twice)
            free(path);
        else
            add_path(r, paths, path, false);
    }
    r->index = -1;
}

static bool add_defaults(struct reader *r, struct policy_paths *paths, const char *const *defaults, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!add_path(r, paths, copy(r, defaults[i]), true))
            return false;
    return true;
}

/* ---- strings ------------------------------------------------------------------------------------------------------ */

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
        bad(r, "", "a variable must have a name");
        return false;
    }
    for (size_t i = 0; i < name_length; i++) {
        if (name[i] == '=' || !isgraph((unsigned char)name[i])) {
            bad(r, "use letters, digits and _", "\"%.*s\" is not a name for a variable", (int)MIN(name_length, (size_t)40), name);
            return false;
        }
    }
    if (name_length + 1 + strlen(value) > MAX_ENV_BYTES) {
        bad(r, "put it into a file", "has %zu bytes: a variable has at most %u", name_length + 1 + strlen(value), MAX_ENV_BYTES);
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
            bad(r, json_is_object(member) || json_is_array(member) ? "" : "put the value between \" and \"", "must be a string, not %s", type_name(member));
        else if (strlen(json_string_value(member)) != json_string_length(member))
            bad(r, "", "must not contain a NUL character");
        else if (valid_env(r, name, strlen(name), json_string_value(member)))
            add_env(r, name, strlen(name), json_string_value(member));
    }
    r->member = NULL;
}

static void read_env_list(struct reader *r, const json_t *value) {
    for (size_t i = 0; i < json_array_size(value); i++) {
        r->index = (long)i;
        const char *text = text_of(r, json_array_get(value, i), "\"NAME=value\"");
        if (text == NULL)
            continue;
        const char *equals = strchr(text, '=');
        if (equals == NULL)
            bad(r, "write \"NAME=value\"", "\"%.40s\" has no \"=\"", text);
        else if (valid_env(r, text, (size_t)(equals - text), equals + 1))
            add_env(r, text, (size_t)(equals - text), equals + 1);
    }
    r->index = -1;
}

/* ---- keys, in the order of docs/policy.md ------------------------------------------------------------------------- */

static void read_fs_readable(struct reader *r, json_t *value) {
    r->readable_given = true;
    read_paths(r, value, &r->policy->fs_readable);
}

static void read_fs_writable(struct reader *r, json_t *value) {
    read_paths(r, value, &r->policy->fs_writable);
}

static void read_fs_shared(struct reader *r, json_t *value) {
    read_paths(r, value, &r->policy->fs_shared);
}

static void read_fs_denied(struct reader *r, json_t *value) {
    read_paths(r, value, &r->policy->fs_denied);
}

static void read_image(struct reader *r, json_t *value) {
    const char *text = text_of(r, value, "the name of an image");

    if (text != NULL)
        r->policy->image = copy(r, text);
}

static void read_cwd(struct reader *r, json_t *value) {
    r->policy->cwd = read_path(r, value);
}

static void read_env(struct reader *r, json_t *value) {
    size_t n = json_is_object(value) ? json_object_size(value) : json_array_size(value);

    if (!json_is_object(value) && !json_is_array(value))
        bad(r, "write {\"NAME\": \"value\"}", "must be an object, not %s", type_name(value));
    else if (n > MAX_ENV)
        bad(r, "", "has %zu variables: at most %u", n, MAX_ENV);
    else if (json_is_object(value))
        read_env_object(r, value);
    else
        read_env_list(r, value);
}

static void read_clean_env(struct reader *r, json_t *value) {
    read_bool(r, value, &r->policy->clean_env);
}

static void read_user(struct reader *r, json_t *value) {
    const char *text = json_is_string(value) ? text_of(r, value, "a user") : NULL;
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
    if (uid > 65534) {
        bad(r, "the host's users have no names in a sandbox", "must be \"box\", \"root\" or a number from 0 to 65534");
        return;
    }
    if (uid == 0)
        r->policy->user = copy(r, "root");
    else if (asprintf(&r->policy->user, "%lu", uid) < 0) {
        r->policy->user = NULL;
        r->out_of_memory = true;
    }
}

static void read_hostname(struct reader *r, json_t *value) {
    const char *text = text_of(r, value, "a host name");
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
            r->policy->hostname = copy(r, text);
            return;
        }
        label = ends ? 0 : label + 1;
    }
    bad(r, "use letters, digits, - inside a name and . between names; at most 64 bytes", "\"%.64s\" is not a host name", text);
}

static void read_max_memory(struct reader *r, json_t *value) {
    read_size(r, value, 4u << 20, "4M", &r->policy->max_memory_bytes);
}

static void read_max_processes(struct reader *r, json_t *value) {
    read_count(r, value, 1, 32768, &r->policy->max_processes);
}

static void read_max_cpu(struct reader *r, json_t *value) {
    double cpus = json_number_value(value);

    if (!json_is_number(value))
        bad(r, "", "must be a number of CPUs, not %s", type_name(value));
    else if (!(cpus >= 0.01 && cpus <= 65536))
        bad(r, cpus == 0 ? "leave it out for no limit" : "", "is %.6g: must be from 0.01 to 65536", cpus);
    else
        r->policy->max_cpu_milli = (uint32_t)lround(cpus * 1000);
}

static void read_max_disk(struct reader *r, json_t *value) {
    read_size(r, value, 64u << 10, "64K", &r->policy->max_disk_bytes);
}

static void read_max_open_files(struct reader *r, json_t *value) {
    read_count(r, value, 16, 1048576, &r->policy->max_open_files);
}

static void read_max_output(struct reader *r, json_t *value) {
    read_size(r, value, 0, "0", &r->policy->max_output_bytes);
}

static void read_timeout(struct reader *r, json_t *value) {
    double seconds = json_number_value(value);

    if (!json_is_number(value))
        bad(r, json_is_string(value) ? "write it without quotes and unit: 10 or 0.5" : "", "must be a number of seconds, not %s", type_name(value));
    else if (!(seconds > 0))
        bad(r, "leave it out for no time limit", "is %.6g: must be more than 0", seconds);
    else if (seconds > MAX_TIMEOUT_S)
        bad(r, "leave it out for no time limit", "is %.6g: must be at most %.0f", seconds, MAX_TIMEOUT_S);
    else
        r->policy->timeout_ms = (int64_t)ceil(seconds * 1000);
}

static void read_net(struct reader *r, json_t *value) {
    static const char *const words[] = { [POLICY_NET_NONE] = "none", [POLICY_NET_LOOPBACK] = "loopback", [POLICY_NET_HOST] = "host" };
    int found = read_word(r, value, words, ARRAY_SIZE(words));

    if (found >= 0)
        r->policy->net = (enum policy_net)found;
}

static void read_net_allow_hosts(struct reader *r, json_t *value) {
    if (!json_is_array(value))
        bad(r, "write []", "must be a list, not %s", type_name(value));
    else if (json_array_size(value) > 0)
        bad(r, "use \"net\": \"none\" or, for the whole network, \"net\": \"host\"", "allowing single hosts is not supported yet: must be an empty list");
}

static void read_random_seed(struct reader *r, json_t *value) {
    const char *text = json_is_string(value) ? json_string_value(value) : NULL;
    char *end = NULL;

    if (text != NULL && isdigit((unsigned char)*text) && strlen(text) == json_string_length(value)) {
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
    bad(r, json_is_integer(value) || text != NULL ? "" : "write 42", "must be a whole number from 0 to 2^64 - 1 (from 2^63 on as a string)");
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
    if (day < 1 || day > days[month - 1] + (month == 2 && year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)))
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

static void read_time_start(struct reader *r, json_t *value) {
    const char *text = text_of(r, value, "a time");

    if (text == NULL)
        return;
    if (valid_time(text))
        r->policy->time_start = copy(r, text);
    else
        bad(r, "write \"2025-01-01T00:00:00\", with Z or +01:00 after it if it is not UTC; years 1970 to 2199", "\"%.40s\" is not a time of ISO 8601", text);
}

static void read_time_mode(struct reader *r, json_t *value) {
    static const char *const words[] = { [POLICY_TIME_OFFSET] = "offset", [POLICY_TIME_VIRTUAL] = "virtual" };
    int found = read_word(r, value, words, ARRAY_SIZE(words));

    if (found >= 0)
        r->policy->time_mode = (enum policy_time_mode)found;
}

static void read_serial(struct reader *r, json_t *value) {
    read_bool(r, value, &r->policy->serial);
}

static void read_isolation(struct reader *r, json_t *value) {
    static const char *const words[] = { [POLICY_ISOLATION_NAMESPACE] = "namespace", [POLICY_ISOLATION_PROCESS] = "process" };
    const char *text = json_is_string(value) ? json_string_value(value) : "";
    int found;

    if (strcmp(text, "gvisor") == 0 || strcmp(text, "microvm") == 0) {
        bad(r, "use \"namespace\" or \"process\"", "\"%s\" is not available yet", text);
        return;
    }
    found = read_word(r, value, words, ARRAY_SIZE(words));
    if (found >= 0)
        r->policy->isolation = (enum policy_isolation)found;
}

#define KEYS(X) \
    X(fs_readable) X(fs_writable) X(fs_shared) X(fs_denied) X(image) X(cwd) X(env) X(clean_env) X(user) X(hostname) \
    X(max_memory) X(max_processes) X(max_cpu) X(max_disk) X(max_open_files) X(max_output) X(timeout) \
    X(net) X(net_allow_hosts) X(random_seed) X(time_start) X(time_mode) X(serial) X(isolation)

static const char *const key_names[] = {
#define KEY_NAME(name) #name,
    KEYS(KEY_NAME)
#undef KEY_NAME
};

static void (*const key_readers[])(struct reader *r, json_t *value) = {
#define KEY_READER(name) read_##name,
    KEYS(KEY_READER)
#undef KEY_READER
};

/* ---- the whole ---------------------------------------------------------------------------------------------------- */

/* The key that was meant: by what other tools and our own options call it, by a part of its name, by its spelling. */
static const char *meant_key(const char *key) {
    static const char *const aliases[][2] = {
        { "cpus", "max_cpu" }, { "output_limit", "max_output" }, { "memory_limit", "max_memory" }, { "cwd_dir", "cwd" }, { "workdir", "cwd" }, { "readonly", "fs_readable" },
    };
    const char *near = nearest(key, key_names, ARRAY_SIZE(key_names));

    for (size_t i = 0; i < ARRAY_SIZE(aliases); i++)
        if (strcmp(key, aliases[i][0]) == 0)
            return aliases[i][1];
    for (size_t i = 0; near == NULL && i < ARRAY_SIZE(key_names); i++)
        if (strlen(key) >= 3 && (strstr(key_names[i], key) != NULL || strstr(key, key_names[i]) != NULL))
            near = key_names[i];
    return near;
}

static void unknown_key(struct reader *r) {
    const char *meant = meant_key(r->key);
    char hint[80];

    if (meant != NULL)
        snprintf(hint, sizeof(hint), "did you mean \"%s\"?", meant);
    bad(r, meant != NULL ? hint : "docs/policy.md lists the keys", "unknown key \"%.80s\"", r->key);
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

/* The default denial that the path lies below, unless that is granted by name and so is none; NULL if there is none. */
static const char *denied_above(const struct policy *policy, const char *path) {
    const struct policy_paths *granted[] = { &policy->fs_readable, &policy->fs_writable, &policy->fs_shared };

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

/* Paths that are in two lists that exclude each other. Only for a text without problems so far: then the i-th path of a list is its i-th element. */
static void check_conflicts(struct reader *r) {
    struct policy *policy = r->policy;
    const struct { const char *key; const struct policy_paths *paths; } granted[] = {
        { "fs_readable", &policy->fs_readable }, { "fs_writable", &policy->fs_writable }, { "fs_shared", &policy->fs_shared },
    };

    r->member = NULL;
    r->key = "fs_shared";
    for (size_t i = 0; i < policy->fs_shared.n; i++)
        for (size_t j = 0; j < policy->fs_writable.n; j++)
            if (strcmp(policy->fs_shared.items[i].path, policy->fs_writable.items[j].path) == 0) {
                r->index = (long)i;
                bad(r, "writable keeps what is written private, shared writes through to the host: choose one", "\"%.80s\" is also in fs_writable", policy->fs_shared.items[i].path);
            }

    for (size_t g = 0; g < ARRAY_SIZE(granted); g++) {
        r->key = granted[g].key;
        for (size_t i = 0; i < granted[g].paths->n; i++) {
            const char *path = granted[g].paths->items[i].path;

            r->index = (long)i;
            for (size_t j = 0; j < policy->fs_denied.n; j++) {
                const char *denied = policy->fs_denied.items[j].path;
                if (strcmp(path, denied) == 0)
                    bad(r, "leave it out of one list", "\"%.80s\" is also in fs_denied", path);
                else if (is_below(path, denied))
                    bad(r, "grant another path or deny less", "\"%.80s\" is below \"%.80s\", which is in fs_denied", path, denied);
            }
            if (denied_above(policy, path) != NULL)
                bad(r, "grant that directory by name to lift its denial", "\"%.80s\" is below \"%s\", which is denied by default", path, denied_above(policy, path));
        }
    }
    r->index = -1;
}

/* What is given wins over the defaults: a default grant that is denied by name or lies below what is denied goes, and so does a default denial of a path that is granted by name. */
static void complete(struct reader *r) {
    struct policy *policy = r->policy;
    const struct policy_paths *granted[] = { &policy->fs_readable, &policy->fs_writable, &policy->fs_shared };
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
    free(policy->fs_denied.items);
    policy->fs_denied = denied;

    if (r->readable_given || !add_defaults(r, &policy->fs_readable, default_readable, ARRAY_SIZE(default_readable)))
        return;
    for (size_t i = policy->fs_readable.n; i-- > 0;) {
        bool gone = false;
        for (size_t j = 0; j < denied.n && !gone; j++)
            gone = strcmp(policy->fs_readable.items[i].path, denied.items[j].path) == 0 || is_below(policy->fs_readable.items[i].path, denied.items[j].path);
        if (gone)
            remove_path(&policy->fs_readable, i);
    }
}

/* Notes a syntax error in our words where jansson's would not help. */
static void bad_syntax(struct reader *r, const json_error_t *error) {
    unsigned line = error->line > 0 ? (unsigned)error->line : 1;

    switch ((int)json_error_code(error)) {
    case json_error_out_of_memory:
        r->out_of_memory = true;
        break;
    case json_error_numeric_overflow:
        bad_text(r, line, "write a random_seed of 2^63 or more as a string", "a number is too large for 64 bits");
        break;
    case json_error_duplicate_key:
        bad_text(r, line, "leave one out", "a key is given twice: %.100s", error->text);
        break;
    case json_error_stack_overflow:
        bad_text(r, line, "", "lists or objects are nested too deeply");
        break;
    case json_error_invalid_utf8:
        bad_text(r, line, "", "is not valid UTF-8");
        break;
    default:
        bad_text(r, line, "", "is not valid JSON: %.120s (column %d)", error->text, error->column);
    }
}

static json_t *parse(struct reader *r) {
    json_error_t error;
    json_t *root;
    size_t i = 0;

    while (i < r->length && isspace((unsigned char)r->text[i]))
        i++;
    if (r->length > MAX_TEXT) {
        bad_text(r, 0, "", "has %zu bytes: a policy has at most %u", r->length, MAX_TEXT);
        return NULL;
    }
    if (i == r->length) {
        bad_text(r, 1, "{} is the default policy", "is empty");
        return NULL;
    }
    root = json_loadb(r->text, r->length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (root == NULL) {
        bad_syntax(r, &error);
        if (json_error_code(&error) == json_error_duplicate_key)       /* the other problems can still be told */
            root = json_loadb(r->text, r->length, JSON_ALLOW_NUL, &error);
    }
    if (root != NULL && !json_is_object(root)) {
        bad_text(r, 1, "{} is the default policy", "must be an object, not %s", type_name(root));
        json_decref(root);
        return NULL;
    }
    return root;
}

int policy_parse(const char *text, size_t length, struct policy **ret_policy, struct policy_problems *problems) {
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
        .isolation = POLICY_ISOLATION_NAMESPACE,
        .time_mode = POLICY_TIME_OFFSET,
    };

    root = parse(&r);
    if (root != NULL)
        read_keys(&r, root);
    if (!r.bad)
        check_conflicts(&r);
    if (!r.bad)
        complete(&r);
    json_decref(root);

    if (r.out_of_memory || r.bad) {
        policy_free(r.policy);
        return r.out_of_memory ? -ENOMEM : -EINVAL;
    }
    *ret_policy = r.policy;
    return 0;
}

static void free_paths(struct policy_paths *paths) {
    for (size_t i = 0; i < paths->n; i++)
        free(paths->items[i].path);
    free(paths->items);
}

struct policy *policy_free(struct policy *policy) {
    if (policy == NULL)
        return NULL;
    free_paths(&policy->fs_readable);
    free_paths(&policy->fs_writable);
    free_paths(&policy->fs_shared);
    free_paths(&policy->fs_denied);
    for (size_t i = 0; i < policy->env.n; i++)
        free(policy->env.items[i]);
    free(policy->env.items);
    free(policy->image);
    free(policy->cwd);
    free(policy->user);
    free(policy->hostname);
    free(policy->time_start);
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
