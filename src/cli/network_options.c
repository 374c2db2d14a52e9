/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/network_options.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "cli/cli.h"
#include "cli/absolute_path.h"

#define FILE_LIMIT (1u << 20)

bool network_option_is(enum option_id id) {
    switch ((int)id) {
    case OPTION_ALLOW:
    case OPTION_ALLOW_FILE:
    case OPTION_SECRET:
    case OPTION_INJECT:
    case OPTION_PUBLISH:
        return true;
    default:
        return false;
    }
}

/* The list or object of a key, made if the policy lacks the key. NULL: out of memory. A value of
 * another type is reported when the policy is checked. */
static json_t *open_key(json_t *policy, const char *key, json_t *(*make)(void)) {
    json_t *value = json_object_get(policy, key);

    if (value && !json_is_null(value))
        return value;
    value = make();
    return json_object_set_new(policy, key, value) < 0 ? NULL : value;
}

static int append_text(json_t *list, const char *text, size_t length) {
    json_t *value = json_stringn(text, length);

    if (!value)
        return -EILSEQ;
    return json_array_append_new(list, value) < 0 ? -ENOMEM : 0;
}

/* One host a line. A line that begins with # is a comment. */
static int add_lines(json_t *list, const char *text) {
    int r = 0;

    while (*text && r == 0) {
        size_t length = strcspn(text, "\n");
        size_t from = strspn(text, " \t\r"), to = length;

        while (to > from && isspace((unsigned char)text[to - 1]))
            to--;
        if (from < to && text[from] != '#')
            r = append_text(list, text + from, to - from);
        text += length + (text[length] == '\n');
    }
    return r;
}

static int add_file(const struct options *options, json_t *list, const char *file) {
    auto_buf struct buf text = BUF_INIT;
    json_error_t error;
    int r = strcmp(file, "-") == 0 ? fd_read_all(STDIN_FILENO, FILE_LIMIT, &text)
                                   : fd_read_file(file, FILE_LIMIT, &text);

    if (r < 0)
        return cli_fail(options, "--allow-file %s: cannot read the file: %s", file,
            r == -EFBIG ? "it is larger than 1 MiB" : strerror(-r));
    buf_add_text(&text, "");
    if (buf_failed(&text))
        return -ENOMEM;
    const char *begin = text.data + strspn(text.data, " \t\r\n");
    if (*begin != '[')
        return add_lines(list, text.data);
    json_t *rules = json_loads(begin, 0, &error);
    if (!rules)
        return cli_fail(
            options, "--allow-file %s:%d: not valid JSON: %s", file, error.line, error.text);
    r = json_array_extend(list, rules) < 0 ? -ENOMEM : 0;
    json_decref(rules);
    return r;
}

/* NAME=SOURCE or NAME:VARIABLE=SOURCE. */
static int add_secret(const struct options *options, json_t *secrets, const char *value) {
    static const char file[] = "file:";
    const char *equals = strchr(value, '=');
    size_t length = equals ? (size_t)(equals - value) : 0;
    const char *colon = equals ? memchr(value, ':', length) : NULL;

    if (!length || colon == value || (colon && colon + 1 == equals))
        return cli_fail(options,
            "--secret %s: must be NAME=SOURCE or NAME:VARIABLE=SOURCE; SOURCE is env:VARIABLE, "
            "file:PATH or fd:N",
            value);
    auto_free char *name = strndup(value, colon ? (size_t)(colon - value) : length);
    auto_free char *path = NULL;
    json_t *from = NULL;
    if (strncmp(equals + 1, file, sizeof file - 1) == 0) {
        path = cli_path_absolute(equals + sizeof file);
        from = path ? json_sprintf("file:%s", path) : NULL;
    } else
        from = json_string(equals + 1);
    if (colon && from) {
        json_t *as = json_stringn(colon + 1, (size_t)(equals - colon) - 1);

        from = json_pack("{s:o, s:o}", "from", from, "as", as);
    }
    return name && json_object_set_new(secrets, name, from) == 0 ? 0 : -EILSEQ;
}

/* A path of a Unix socket is made absolute: the engine has another working directory. */
static int add_port(json_t *ports, const char *value) {
    const char *colon = strrchr(value, ':');

    if (!colon || !memchr(value, '/', (size_t)(colon - value)))
        return append_text(ports, value, strlen(value));
    auto_free char *given = strndup(value, (size_t)(colon - value));
    auto_free char *path = given ? cli_path_absolute(given) : NULL;
    return path && json_array_append_new(ports, json_sprintf("%s%s", path, colon)) == 0 ? 0
                                                                                        : -EILSEQ;
}

/* The rule that an earlier --inject made for the host, or a new rule. */
static json_t *rule_of(json_t *rules, const char *host) {
    for (size_t i = 0; i < json_array_size(rules); i++) {
        json_t *rule = json_array_get(rules, i);
        const char *named = json_string_value(json_object_get(rule, "host"));

        if (named && strcmp(named, host) == 0 && json_object_get(rule, "inject"))
            return rule;
    }
    json_t *rule = json_pack("{s:s, s:{}}", "host", host, "inject");
    return rule && json_array_append_new(rules, rule) == 0 ? rule : NULL;
}

/* HOST:HEADER=TEXT or HOST:PORT:HEADER=TEXT. */
static int add_header(const struct options *options, json_t *rules, const char *value) {
    size_t length = strcspn(value, "=");
    const char *colon = memrchr(value, ':', length);

    if (!value[length] || !colon || colon == value || colon + 1 == value + length)
        return cli_fail(options,
            "--inject %s: must be HOST:HEADER=TEXT, such as api.github.com:Authorization='Bearer "
            "{github}'",
            value);
    auto_free char *host = strndup(value, (size_t)(colon - value));
    auto_free char *header = strndup(colon + 1, (size_t)(value + length - colon) - 1);
    json_t *rule = host && header ? rule_of(rules, host) : NULL;
    if (!rule)
        return -ENOMEM;
    return json_object_set_new(
               json_object_get(rule, "inject"), header, json_string(value + length + 1)) < 0
               ? -EILSEQ
               : 0;
}

int network_option_add(
    const struct options *options, json_t *policy, const struct option_use *use) {
    bool is_secret = use->option->id == OPTION_SECRET;
    json_t *value = open_key(policy, use->option->policy_key, is_secret ? json_object : json_array);

    if (!value)
        return -ENOMEM;
    switch ((int)use->option->id) {
    case OPTION_ALLOW:
        return append_text(value, use->value, strlen(use->value));
    case OPTION_ALLOW_FILE:
        return add_file(options, value, use->value);
    case OPTION_SECRET:
        return add_secret(options, value, use->value);
    case OPTION_PUBLISH:
        return add_port(value, use->value);
    default:
        return add_header(options, value, use->value);
    }
}
