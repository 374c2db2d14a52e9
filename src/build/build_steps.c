/* SPDX-License-Identifier: Apache-2.0 */
/* Instructions that change the configuration of the image alone, and the variables. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "build/build.h"
#include "store/image.h"

static const char *const proxies[] = { "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy",
    "FTP_PROXY", "ftp_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy" };

bool step_is_proxy(const char *name) {
    for (size_t i = 0; i < ARRAY_SIZE(proxies); i++)
        if (strcmp(name, proxies[i]) == 0)
            return true;
    return false;
}

/* ---- variables ---- */

struct lookup {
    struct build *build;
    struct stage *stage; /* NULL: before the first FROM, and in FROM */
};

/* ARGs that are there without being declared. */
static const char *automatic(const char *name) {
    static const char *const of_platform[] = { "TARGETPLATFORM", "BUILDPLATFORM" },
                             *const of_machine[] = { "TARGETARCH", "BUILDARCH" },
                             *const of_system[] = { "TARGETOS", "BUILDOS" };
    static char platform[64];

    snprintf(platform, sizeof platform, "linux/%s", image_architecture());
    for (size_t i = 0; i < 2; i++) {
        if (strcmp(name, of_platform[i]) == 0)
            return platform;
        if (strcmp(name, of_machine[i]) == 0)
            return image_architecture();
        if (strcmp(name, of_system[i]) == 0)
            return "linux";
    }
    return NULL;
}

static const char *find_variable(void *context, const char *name) {
    const struct lookup *lookup = context;
    const json_t *args = lookup->stage ? lookup->stage->args : lookup->build->global_args;
    const json_t *value = lookup->stage ? json_object_get(lookup->stage->config.env, name) : NULL;

    if (!value)
        value = json_object_get(args, name);
    if (!value && step_is_proxy(name))
        value = json_object_get(lookup->build->options->build_args, name);
    if (value)
        return json_string_value(value);
    return lookup->stage ? NULL : automatic(name);
}

static int expand(struct build *build, struct stage *stage, const struct instruction *at,
    const char *text, enum expand_quotes quotes, char **ret_text) {
    struct lookup lookup = { build, stage };
    const struct expand_scope scope = { find_variable, &lookup, build->file.escape };
    char why[EXPAND_WHY];
    int r = expand_word(&scope, text, quotes, ret_text, why);

    if (r == -EINVAL)
        return step_refuse(build, at, "%s %.100s: %s", instruction_name(at->kind), text, why);
    return r < 0 ? build_out_of_memory(build) : 0;
}

int step_expand(struct build *build, struct stage *stage, const struct instruction *at,
    const char *text, char **ret_text) {
    return expand(build, stage, at, text, EXPAND_REMOVES_QUOTES, ret_text);
}

int step_expand_body(struct build *build, struct stage *stage, const struct instruction *at,
    const char *text, char **ret_text) {
    return expand(build, stage, at, text, EXPAND_KEEPS_QUOTES, ret_text);
}

/* ---- ARG, ENV, LABEL ---- */

static bool is_variable_name(const char *name) {
    return name[0] && !strchr(name, '=');
}

/* ARG NAME[=VALUE]...: the value of --build-arg, else the given one, else that of before FROM. */
static int do_arg(struct build *build, struct stage *stage, const struct instruction *at) {
    json_t *args = stage ? stage->args : build->global_args;
    struct words words = { 0 };
    int r = expand_split(at->arguments, build->file.escape, &words);

    if (r < 0)
        return build_out_of_memory(build);
    for (size_t i = 0; r == 0 && i < words.n; i++) {
        const char *equals = strchr(words.list[i], '=');
        auto_free char *given = NULL, *name = NULL,
                       *raw = equals ? strndup(words.list[i], (size_t)(equals - words.list[i]))
                                     : strdup(words.list[i]);

        r = raw ? step_expand(build, stage, at, raw, &name) : build_out_of_memory(build);
        if (r == 0 && !is_variable_name(name))
            r = step_refuse(build, at, "ARG has the form ARG NAME[=VALUE]");
        if (r == 0 && equals)
            r = step_expand(build, stage, at, equals + 1, &given);
        if (r < 0)
            break;
        json_t *value = json_object_get(build->options->build_args, name);
        json_object_set_new(build->used_args, name, json_true());
        if (value)
            json_object_set(args, name, value);
        else if (given)
            json_object_set_new(args, name, json_string(given));
        else if (stage && json_object_get(build->global_args, name))
            json_object_set(args, name, json_object_get(build->global_args, name));
        else if (stage && automatic(name))
            json_object_set_new(args, name, json_string(automatic(name)));
    }
    words_done(&words);
    return r;
}

static int set_pair(struct build *build, struct stage *stage, const struct instruction *at,
    json_t *into, const char *raw_name, const char *raw_value) {
    auto_free char *name = NULL, *value = NULL;
    int r = step_expand(build, stage, at, raw_name, &name);

    if (r == 0)
        r = step_expand(build, stage, at, raw_value, &value);
    if (r == 0 && !is_variable_name(name))
        r = step_refuse(build, at, "%s has the form %s NAME=VALUE", instruction_name(at->kind),
            instruction_name(at->kind));
    if (r == 0 && json_object_set_new(into, name, json_string(value)) < 0)
        r = build_out_of_memory(build);
    return r;
}

/* NAME=VALUE..., or NAME VALUE. All values are those of before the instruction. */
static int do_pairs(
    struct build *build, struct stage *stage, const struct instruction *at, json_t *into) {
    struct words words = { 0 };
    json_t *pairs = json_object();
    int r = pairs ? expand_split(at->arguments, build->file.escape, &words) : -ENOMEM;

    if (r < 0) {
        json_decref(pairs);
        return build_out_of_memory(build);
    }
    const bool old_form = words.n && !strchr(words.list[0], '=');
    if (old_form) {
        const char *value = at->arguments + strcspn(at->arguments, " \t");

        value += strspn(value, " \t");
        r = words.n < 2
                ? step_refuse(build, at, "%s needs a name and a value", instruction_name(at->kind))
                : set_pair(build, stage, at, pairs, words.list[0], value);
    }
    for (size_t i = 0; r == 0 && !old_form && i < words.n; i++) {
        char *equals = strchr(words.list[i], '=');

        if (!equals) {
            r = step_refuse(build, at, "%s: %.100s has no =; quote blanks in values",
                instruction_name(at->kind), words.list[i]);
            break;
        }
        *equals = '\0';
        r = set_pair(build, stage, at, pairs, words.list[i], equals + 1);
    }
    if (r == 0)
        json_object_update(into, pairs);
    json_decref(pairs);
    words_done(&words);
    return r;
}

/* ---- commands ---- */

/* The JSON form, or the shell's words and the text. A new array. */
json_t *step_command(const struct stage *stage, const struct instruction *at, const char *text) {
    json_t *command = json_array();

    if (at->is_json) {
        for (size_t i = 0; i < at->json.n; i++)
            json_array_append_new(command, json_string(at->json.list[i]));
        return command;
    }
    const json_t *shell = config_shell(&stage->config);
    if (json_array_size(shell)) {
        json_array_extend(command, (json_t *)(uintptr_t)shell);
    } else {
        json_array_append_new(command, json_string("/bin/sh"));
        json_array_append_new(command, json_string("-c"));
    }
    json_array_append_new(command, json_string(text));
    return command;
}

static int set_command(struct build *build, struct stage *stage, const struct instruction *at) {
    const bool is_cmd = at->kind == INSTRUCTION_CMD;
    json_t **target = is_cmd ? &stage->config.cmd : &stage->config.entrypoint;
    json_t *command =
        at->is_json || at->arguments[0] ? step_command(stage, at, at->arguments) : json_array();

    if (!command)
        return build_out_of_memory(build);
    json_decref(*target);
    *target = command;
    if (is_cmd)
        stage->config.has_cmd = true;
    else if (!stage->config.has_cmd)
        json_array_clear(stage->config.cmd);
    return 0;
}

static int set_shell(struct build *build, struct stage *stage, const struct instruction *at) {
    if (!at->is_json || !at->json.n)
        return step_refuse(build, at, "SHELL has the form SHELL [\"program\", \"argument\"]");
    json_t *command = step_command(stage, at, "");
    json_object_set_new(stage->config.oci, "Shell", command);
    return 0;
}

/* ---- lists of words ---- */

/* All words with their variables replaced; a variable with blanks is several words if `splits`. */
int step_words(struct build *build, struct stage *stage, const struct instruction *at, bool splits,
    struct words *ret_words) {
    struct words raw = { 0 }, words = { 0 };
    int r = 0;

    if (at->is_json) {
        for (size_t i = 0; r == 0 && i < at->json.n; i++) {
            char *word = NULL;

            r = step_expand_body(build, stage, at, at->json.list[i], &word);
            if (r == 0 && words_take(&words, word) < 0)
                r = build_out_of_memory(build);
        }
    } else if (expand_split(at->arguments, build->file.escape, &raw) < 0) {
        r = build_out_of_memory(build);
    }
    for (size_t i = 0; r == 0 && i < raw.n; i++) {
        struct words parts = { 0 };
        char *word = NULL;

        r = step_expand(build, stage, at, raw.list[i], &word);
        if (r == 0 && splits && strchr(raw.list[i], '$')) {
            if (expand_split(word, '\0', &parts) < 0)
                r = build_out_of_memory(build);
            for (size_t j = 0; r == 0 && j < parts.n; j++)
                if (words_add(&words, parts.list[j], strlen(parts.list[j])) < 0)
                    r = build_out_of_memory(build);
            words_done(&parts);
            free(word);
        } else if (r == 0 && words_take(&words, word) < 0) {
            r = build_out_of_memory(build);
        }
    }
    words_done(&raw);
    if (r < 0)
        words_done(&words);
    else
        *ret_words = words;
    return r;
}

static bool port_number(const char *text, size_t length, unsigned *ret_port) {
    unsigned long port = 0;

    if (!length || length > 5)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (!isdigit((unsigned char)text[i]))
            return false;
        port = port * 10 + (unsigned long)(text[i] - '0');
    }
    *ret_port = (unsigned)port;
    return port <= 65535;
}

/* PORT[-PORT][/PROTOCOL] */
static int add_ports(
    struct build *build, const struct instruction *at, json_t *ports, const char *word) {
    const size_t length = strcspn(word, "/"), first_length = strcspn(word, "-/");
    const char *protocol = word[length] ? word + length + 1 : "tcp";
    const bool is_known = strcasecmp(protocol, "tcp") == 0 || strcasecmp(protocol, "udp") == 0 ||
                          strcasecmp(protocol, "sctp") == 0;
    unsigned first = 0, last = 0;

    bool good = port_number(word, first_length, &first);
    last = first;
    if (good && word[first_length] == '-')
        good = port_number(word + first_length + 1, length - first_length - 1, &last);
    if (!good || last < first || !is_known)
        return step_refuse(build, at, "%.100s is not a port such as 80, 53/udp or 8000-8010", word);
    for (unsigned port = first; port <= last; port++) {
        char name[32];

        snprintf(name, sizeof name, "%u/%.5s", port, protocol);
        for (char *c = name; *c; c++)
            *c = (char)tolower((unsigned char)*c);
        json_object_set_new(ports, name, json_object());
    }
    return 0;
}

static int do_list(struct build *build, struct stage *stage, const struct instruction *at) {
    const bool is_expose = at->kind == INSTRUCTION_EXPOSE;
    json_t *into = config_member(&stage->config, is_expose ? "ExposedPorts" : "Volumes");
    struct words words = { 0 };
    int r = step_words(build, stage, at, true, &words);

    for (size_t i = 0; r == 0 && i < words.n; i++) {
        if (is_expose)
            r = add_ports(build, at, into, words.list[i]);
        else if (!words.list[i][0])
            r = step_refuse(build, at, "VOLUME: a path is empty");
        else
            json_object_set_new(into, words.list[i], json_object());
    }
    words_done(&words);
    return r;
}

/* ---- HEALTHCHECK ---- */

/* "1h30m", "500ms", in nanoseconds. */
static bool parse_duration(const char *text, json_int_t *ret_ns) {
    static const struct {
        const char *unit;
        double ns;
    } units[] = { { "ns", 1 }, { "us", 1e3 }, { "ms", 1e6 }, { "s", 1e9 }, { "m", 6e10 },
        { "h", 3.6e12 } };
    double total = 0;

    if (!text[0])
        return false;
    while (*text) {
        char *end;
        size_t i, length;
        double number = strtod(text, &end);

        if (end == text || !isfinite(number) || number < 0)
            return false;
        length = strspn(end, "abcdefghijklmnopqrstuvwxyz");
        for (i = 0; i < ARRAY_SIZE(units); i++)
            if (strlen(units[i].unit) == length && strncmp(end, units[i].unit, length) == 0)
                break;
        if (i == ARRAY_SIZE(units))
            return false;
        total += number * units[i].ns;
        text = end + length;
    }
    *ret_ns = (json_int_t)total;
    return total < 9e18;
}

static int do_healthcheck(struct build *build, struct stage *stage, const struct instruction *at) {
    static const char *const durations[][2] = { { "interval", "Interval" },
        { "timeout", "Timeout" }, { "start-period", "StartPeriod" },
        { "start-interval", "StartInterval" } };
    json_t *check = json_object(), *test = json_array();
    const size_t length = strcspn(at->arguments, " \t");
    const char *command = at->arguments + length + strspn(at->arguments + length, " \t");
    int r = 0;

    if (length == 4 && strncasecmp(at->arguments, "NONE", 4) == 0) {
        json_array_append_new(test, json_string("NONE"));
    } else if (length == 3 && strncasecmp(at->arguments, "CMD", 3) == 0 && command[0]) {
        json_t *words = command[0] == '[' ? json_loads(command, 0, NULL) : NULL;

        json_array_append_new(test, json_string(json_is_array(words) ? "CMD" : "CMD-SHELL"));
        if (json_is_array(words))
            json_array_extend(test, words);
        else
            json_array_append_new(test, json_string(command));
        json_decref(words);
    } else {
        r = step_refuse(build, at, "HEALTHCHECK is followed by CMD and a command, or by NONE");
    }
    json_object_set_new(check, "Test", test);
    for (size_t i = 0; r == 0 && i < ARRAY_SIZE(durations); i++) {
        const char *value = step_flag(at, durations[i][0]);
        json_int_t ns = 0;

        if (value && !parse_duration(value, &ns))
            r = step_refuse(build, at, "--%s=%s: not a time such as 30s", durations[i][0], value);
        else if (value)
            json_object_set_new(check, durations[i][1], json_integer(ns));
    }
    const char *retries = step_flag(at, "retries");
    if (r == 0 && retries)
        json_object_set_new(check, "Retries", json_integer(atoi(retries)));
    if (r == 0)
        json_object_set(stage->config.oci, "Healthcheck", check);
    json_decref(check);
    return r;
}

/* ---- texts ---- */

static int do_text(struct build *build, struct stage *stage, const struct instruction *at) {
    auto_free char *text = NULL;
    int r = step_expand(build, stage, at, at->arguments, &text);

    if (r < 0)
        return r;
    if (at->kind == INSTRUCTION_STOPSIGNAL)
        return json_object_set_new(stage->config.oci, "StopSignal", json_string(text));
    if (!text[0])
        return step_refuse(build, at, "USER needs a user");
    free(stage->config.user);
    stage->config.user = TAKE_PTR(text);
    return 0;
}

static int check_flags(struct build *build, const struct instruction *at) {
    static const char *const allowed[] = {
        [INSTRUCTION_ADD] = " chown chmod checksum exclude link keep-git-dir ",
        [INSTRUCTION_COPY] = " from chown chmod exclude link parents ",
        [INSTRUCTION_FROM] = " platform ",
        [INSTRUCTION_HEALTHCHECK] = " interval timeout start-period start-interval retries ",
        [INSTRUCTION_RUN] = " mount network security ",
    };
    const char *known = at->kind < ARRAY_SIZE(allowed) ? allowed[at->kind] : NULL;

    for (size_t i = 0; i < at->flags.n; i++) {
        const char *flag = at->flags.list[i];
        char word[40];

        snprintf(word, sizeof word, " %.*s ", (int)MIN(strcspn(flag, "="), (size_t)30), flag);
        if (!known || !strstr(known, word))
            return step_refuse(
                build, at, "%s has no flag --%.100s", instruction_name(at->kind), flag);
    }
    return 0;
}

int step_configure(struct build *build, struct stage *stage, const struct instruction *at) {
    int r = check_flags(build, at);

    if (r < 0)
        return r;
    switch (at->kind) {
    case INSTRUCTION_ARG:
        r = do_arg(build, stage, at);
        break;
    case INSTRUCTION_ENV:
        r = do_pairs(build, stage, at, stage->config.env);
        break;
    case INSTRUCTION_LABEL:
        r = do_pairs(build, stage, at, config_member(&stage->config, "Labels"));
        break;
    case INSTRUCTION_CMD:
    case INSTRUCTION_ENTRYPOINT:
        r = set_command(build, stage, at);
        break;
    case INSTRUCTION_SHELL:
        r = set_shell(build, stage, at);
        break;
    case INSTRUCTION_EXPOSE:
    case INSTRUCTION_VOLUME:
        r = do_list(build, stage, at);
        break;
    case INSTRUCTION_HEALTHCHECK:
        r = do_healthcheck(build, stage, at);
        break;
    case INSTRUCTION_STOPSIGNAL:
    case INSTRUCTION_USER:
        r = do_text(build, stage, at);
        break;
    case INSTRUCTION_MAINTAINER:
        json_object_set_new(
            config_member(&stage->config, "Labels"), "maintainer", json_string(at->arguments));
        break;
    case INSTRUCTION_ONBUILD:
        return dockerfile_refuse(build->error, &build->file, at->line, ROLLBOX_ERR_FEATURE_MISSING,
            "ONBUILD is not supported: write the instruction into the Dockerfile that uses the "
            "image");
    case INSTRUCTION_ADD:
    case INSTRUCTION_COPY:
    case INSTRUCTION_FROM:
    case INSTRUCTION_RUN:
    case INSTRUCTION_WORKDIR:
        return 0;
    }
    return r < 0 ? r : 1;
}
