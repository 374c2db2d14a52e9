/* SPDX-License-Identifier: Apache-2.0 */
#include "client/net_sets.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rollbox/rollbox.h>
#include <net_sets_source.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"

#define FILE_LIMIT (1u << 20)

static int fail(struct rollbox_error *error, const char *name, const char *what) {
    return error_set(
        error, ROLLBOX_ERR_POLICY_INVALID, EINVAL, "policy", "net_allow: %s: %s", name, what);
}

/* A set that a file in `directory` describes; NULL with *ret_error 0 if there is no such file. */
static json_t *read_set(const char *directory, const char *below, const char *name,
    struct rollbox_error *error, int *ret_error) {
    auto_buf struct buf path = BUF_INIT, text = BUF_INIT;
    json_error_t problem;

    if (!directory || !directory[0])
        return NULL;
    buf_printf(&path, "%s%s/%s.json", directory, below, name + 1);
    if (buf_failed(&path))
        return NULL;
    int r = fd_read_file(path.data, FILE_LIMIT, &text);
    if (r == -ENOENT || r == -ENOTDIR)
        return NULL;
    buf_add_text(&text, "");
    if (r >= 0 && buf_failed(&text))
        r = -ENOMEM;
    json_t *set = r < 0 ? NULL : json_loads(text.data, 0, &problem);
    if (r < 0)
        *ret_error = error_set(error, ROLLBOX_ERR_POLICY_INVALID, EINVAL, "policy",
            "net_allow: %s: cannot read %s: %s", name, path.data, strerror(-r));
    else if (!set)
        *ret_error = error_set(error, ROLLBOX_ERR_POLICY_INVALID, EINVAL, "policy",
            "net_allow: %s: %s:%d: not valid JSON: %s", name, path.data, problem.line,
            problem.text);
    return set;
}

static json_t *known_sets(void) {
    return json_loadb((const char *)net_sets_source, sizeof net_sets_source - 1, 0, NULL);
}

static int fail_unknown(struct rollbox_error *error, const char *name, const json_t *sets) {
    auto_buf struct buf known = BUF_INIT;
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)sets, key, value)
        buf_printf(&known, "%s@%s", known.length ? ", " : "", key);
    return error_set(error, ROLLBOX_ERR_POLICY_INVALID, EINVAL, "policy",
        "net_allow: there is no set %s; rollbox has %s; others are read from NAME.json in "
        "~/.config/rollbox/net",
        name, known.data ? known.data : "none");
}

static json_t *find_set(const char *name, struct rollbox_error *error, int *ret_error) {
    const char *const config = getenv("XDG_CONFIG_HOME"), *const home = getenv("HOME");
    json_t *set = read_set(getenv("ROLLBOX_NET_SETS"), "", name, error, ret_error);

    if (!set && !*ret_error)
        set = config ? read_set(config, "/rollbox/net", name, error, ret_error)
                     : read_set(home, "/.config/rollbox/net", name, error, ret_error);
    if (!set && !*ret_error)
        set = read_set("/etc/rollbox/net", "", name, error, ret_error);
    if (set || *ret_error)
        return set;
    json_auto_t *sets = known_sets();
    set = json_incref(json_object_get(sets, name + 1));
    if (!set)
        *ret_error = fail_unknown(error, name, sets);
    return set;
}

/* The host and port of a URL: "https://mirror.example.org:8443/simple" ->
 * "mirror.example.org:8443". NULL if the text is no such URL. */
static char *host_of_url(const char *url) {
    const char *begin = strstr(url, "://");
    const bool is_plain = strncmp(url, "http://", 7) == 0;

    if (!begin)
        return NULL;
    begin += 3;
    size_t length = strcspn(begin, "/?#, |");
    const char *at = memrchr(begin, '@', length); /* a user's name and password come before */
    if (at) {
        length -= (size_t)(at + 1 - begin);
        begin = at + 1;
    }
    const char *end = memchr(begin, ']', length);
    const size_t from = end ? (size_t)(end - begin) : 0;
    const bool has_port = memchr(begin + from, ':', length - from) != NULL;
    char *host;

    if (!length || asprintf(&host, "%.*s%s", (int)length, begin,
                       has_port   ? ""
                       : is_plain ? ":80"
                                  : ":443") < 0)
        return NULL;
    return host;
}

/* One entry of a set, with what the policy adds to all of the set. */
static int add_rule(json_t *rules, const json_t *entry, const char *set, const json_t *more) {
    json_auto_t *rule = json_is_object(entry) ? json_deep_copy(entry) : json_object();
    const char *key;
    json_t *value;

    if (json_is_string(entry))
        json_object_set(rule, "host", (json_t *)entry);
    json_object_foreach((json_t *)more, key, value) if (strcmp(key, "host") != 0)
        json_object_set(rule, key, value);
    json_object_set_new(rule, "set", json_string(set));
    return json_array_append(rules, rule) < 0 ? -ENOMEM : 0;
}

static int add_mirrors(json_t *rules, const json_t *names, const char *set, const json_t *more) {
    int r = 0;

    for (size_t i = 0; i < json_array_size(names) && r == 0; i++) {
        const char *name = json_string_value(json_array_get(names, i));
        const char *url = name ? getenv(name) : NULL;
        auto_free char *host = url ? host_of_url(url) : NULL;
        json_auto_t *entry = host ? json_string(host) : NULL;

        if (entry)
            r = add_rule(rules, entry, set, more);
    }
    return r;
}

static int fill_one(
    json_t *rules, const char *name, const json_t *more, struct rollbox_error *error) {
    int r = 0;
    json_auto_t *set = find_set(name, error, &r);
    const json_t *allow = json_object_get(set, "allow");

    if (!set)
        return r ? r : fail(error, name, "out of memory");
    if (!json_is_array(allow))
        return fail(error, name, "its file has no list \"allow\"");
    for (size_t i = 0; i < json_array_size(allow) && r == 0; i++)
        r = add_rule(rules, json_array_get(allow, i), name, more);
    if (r == 0)
        r = add_mirrors(rules, json_object_get(set, "mirrors"), name, more);
    return r < 0 ? fail(error, name, "out of memory") : 0;
}

static const char *set_name(const json_t *entry) {
    const json_t *host = json_is_object(entry) ? json_object_get(entry, "host") : entry;
    const char *text = json_string_value(host);

    return text && text[0] == '@' ? text : NULL;
}

static int fill_list(json_t *rules, const json_t *list, struct rollbox_error *error) {
    int r = 0;

    for (size_t i = 0; i < json_array_size(list) && r == 0; i++) {
        json_t *entry = json_array_get(list, i);
        const char *name = set_name(entry);

        if (name)
            r = fill_one(rules, name, json_is_object(entry) ? entry : NULL, error);
        else if (json_array_append(rules, entry) < 0)
            r = fail(error, "the policy", "out of memory");
    }
    return r;
}

int net_sets_fill(const char *json, size_t length, char **ret_text, struct rollbox_error *error) {
    *ret_text = NULL;
    if (!memmem(json, length, "\"@", 2) && !memmem(json, length, "\\u0040", 6))
        return 0;
    json_auto_t *policy = json_loadb(json, length, JSON_ALLOW_NUL, NULL);
    json_auto_t *rules = json_array();
    if (!policy || !rules)
        return fail(error, "the policy", "out of memory");
    int r = fill_list(rules, json_object_get(policy, "net_allow_hosts"), error);
    if (r == 0)
        r = fill_list(rules, json_object_get(policy, "net_allow"), error);
    if (r < 0)
        return r;
    json_object_del(policy, "net_allow_hosts");
    if (json_array_size(rules) && json_object_set(policy, "net_allow", rules) < 0)
        return fail(error, "the policy", "out of memory");
    *ret_text = json_dumps(policy, JSON_COMPACT);
    return *ret_text ? 0 : fail(error, "the policy", "out of memory");
}
