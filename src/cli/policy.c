/* SPDX-License-Identifier: Apache-2.0 */
/* Policies: made from a file and flags; checked; shown as a plan. */
#include "base/text.h"
#include "cli/policy.h"
#include "cli/format.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/utf8.h"
#include "cli/absolute_path.h"
#include "cli/cli.h"
#include "cli/network_options.h"
#include "cli/outcome.h"
#include "cli/store_program.h"
#include "policy/policy.h"

#define FILE_LIMIT (16u << 20)
#define DEFAULT_MAX_OUTPUT (10u << 20)

static bool is_given(const json_t *policy, const char *key) {
    const json_t *value = json_object_get(policy, key);

    return value && !json_is_null(value);
}

/* The value of one use of an option; NULL if it cannot be represented in JSON. */
static json_t *option_value(const struct option_use *use) {
    switch (use->option->kind) {
    case OPTION_FLAG:
        return json_boolean(use->option->id != OPTION_NO_CLEAN_ENV);
    case OPTION_COUNT:
        /* A seed may be more than a number of JSON holds here; a policy has it as digits then. */
        return use->count <= INT64_MAX ? json_integer((json_int_t)use->count)
                                       : json_sprintf("%" PRIu64, use->count);
    case OPTION_SECONDS:
        if (use->number <= 0)
            break;
        /* fall through */
    case OPTION_NUMBER:
        return json_real(use->number);
    case OPTION_PATH: {
        auto_free char *path = cli_path_absolute(use->value);

        return path ? json_string(path) : NULL;
    }
    case OPTION_SIZE:
    case OPTION_TEXT:
    case OPTION_FILE:
        break;
    }
    return json_string(use->value);
}

/* A relative path without a working directory; errno has the reason. */
static bool has_no_place(const struct option_use *use) {
    char cwd[PATH_MAX];

    return use->option->kind == OPTION_PATH && use->value[0] != '/' && !getcwd(cwd, sizeof cwd);
}

/* A word, or numbers with commas between. */
static int add_gpus(json_t *policy, const char *key, const char *value) {
    json_t *list = json_array();
    const char *at = value;
    char *end;

    while (list && *at >= '0' && *at <= '9') {
        if (json_array_append_new(list, json_integer(strtol(at, &end, 10))) < 0)
            break;
        at = *end == ',' ? end + 1 : end;
    }
    if (list && at > value && !*at)
        return json_object_set_new(policy, key, list) < 0 ? -ENOMEM : 0;
    json_decref(list);
    return json_object_set_new(policy, key, json_string(value)) < 0 ? -EILSEQ : 0;
}

/* NAME:PATH or NAME:PATH:MODE. What is wrong with the parts is said by the check of the policy. */
static int add_volume(json_t *policy, const char *key, const char *value) {
    const char *colon = strchr(value, ':'), *path = colon ? colon + 1 : "";
    const char *mode = strrchr(path, ':');
    json_t *volumes = json_object_get(policy, key);
    auto_free char *name = strndup(value, colon ? (size_t)(colon - value) : strlen(value));
    json_auto_t *volume = json_object();

    if (!is_given(policy, key) && json_object_set_new(policy, key, volumes = json_object()) < 0)
        return -ENOMEM;
    if (!name || !volume)
        return -ENOMEM;
    if (json_object_set_new(
            volume, "path", json_stringn(path, mode ? (size_t)(mode - path) : strlen(path))) < 0)
        return -EILSEQ;
    if (mode) {
        const char *word = !strcmp(mode + 1, "ro") ? "read-only" : mode + 1;

        if (json_object_set_new(volume, "mode", json_string(word)) < 0)
            return -EILSEQ;
    }
    return json_object_set(volumes, name, volume) < 0 ? -EILSEQ : 0;
}

/* Docker's options that hold anyway. */
static bool is_usual(const char *word) {
    static const char *const usual[] = { "rw", "nosuid", "nodev", "exec", "" };

    for (size_t i = 0; i < ARRAY_SIZE(usual); i++)
        if (!strcmp(word, usual[i]))
            return true;
    return false;
}

/* An option that the policy does not have becomes a member, which the check of the policy names. */
static int add_tmpfs_option(json_t *tmpfs, const char *word) {
    const char *equals = strchr(word, '=');
    auto_free char *name = strndup(word, equals ? (size_t)(equals - word) : strlen(word));

    if (!name)
        return -ENOMEM;
    if (is_usual(word))
        return 0;
    if (!strcmp(word, "noexec"))
        return json_object_set_new(tmpfs, "exec", json_false());
    return json_object_set_new(tmpfs, name, equals ? json_string(equals + 1) : json_true());
}

/* PATH or PATH:OPTION,OPTION... */
static int add_tmpfs(json_t *policy, const char *key, const char *value) {
    const char *colon = strchr(value, ':');
    json_t *all = json_object_get(policy, key);
    auto_free char *path = strndup(value, colon ? (size_t)(colon - value) : strlen(value));
    auto_free char *words = strdup(colon ? colon + 1 : "");
    json_auto_t *tmpfs = json_object();

    if (!is_given(policy, key) && json_object_set_new(policy, key, all = json_object()) < 0)
        return -ENOMEM;
    if (!path || !words || !tmpfs)
        return -ENOMEM;
    for (char *rest = words, *word; (word = strsep(&rest, ",")) != NULL;)
        if (add_tmpfs_option(tmpfs, word) < 0)
            return -EILSEQ;
    return json_object_set(all, path, tmpfs) < 0 ? -EILSEQ : 0;
}

/* NAME=SOFT or NAME=SOFT:HARD. */
static int add_ulimit(json_t *policy, const char *key, const char *value) {
    const char *equals = strchr(value, '=');
    json_t *all = json_object_get(policy, key);
    auto_free char *name = strndup(value, equals ? (size_t)(equals - value) : strlen(value));

    if (!is_given(policy, key) && json_object_set_new(policy, key, all = json_object()) < 0)
        return -ENOMEM;
    if (!name)
        return -ENOMEM;
    if (json_object_set_new(all, name, json_string(equals ? equals + 1 : "")) < 0)
        return -EILSEQ;
    return 0;
}

/* Puts one use of an option into the policy. */
static int add_option(json_t *policy, const struct option_use *use) {
    const char *key = use->option->policy_key;

    if (use->option->id == OPTION_ENV) {
        json_t *env = json_object_get(policy, key);
        const char *equals = strchr(use->value, '=');
        auto_free char *name = strndup(use->value, (size_t)(equals - use->value));

        if (!is_given(policy, key) && json_object_set_new(policy, key, env = json_object()) < 0)
            return -ENOMEM;
        if (json_is_array(env))
            return json_array_append_new(env, json_string(use->value)) < 0 ? -EILSEQ : 0;
        return name && json_is_object(env) &&
                       json_object_set_new(env, name, json_string(equals + 1)) == 0
                   ? 0
                   : -EILSEQ;
    }
    if (use->option->id == OPTION_GPUS)
        return add_gpus(policy, key, use->value);
    if (use->option->id == OPTION_TMPFS)
        return add_tmpfs(policy, key, use->value);
    if (use->option->id == OPTION_ULIMIT)
        return add_ulimit(policy, key, use->value);
    if (use->option->id == OPTION_VOLUME)
        return add_volume(policy, key, use->value);
    json_auto_t *value = option_value(use);
    if (!value)
        return -EILSEQ;
    if (strncmp(key, "fs_", 3) != 0 && use->option->id != OPTION_DEVICE)
        return json_object_set(policy, key, value) < 0 ? -ENOMEM : 0;
    json_t *list = json_object_get(policy, key);
    if (!is_given(policy, key) && json_object_set_new(policy, key, list = json_array()) < 0)
        return -ENOMEM;
    /* Entries that exist already, by default or given before, stay. */
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_equal(json_array_get(list, i), value))
            return 0;
    return json_array_append(list, value) < 0 ? -ENOMEM : 0;
}

/* The problems of rollbox_policy_check, one line each; where the option that set the key was used,
 * the option is named, else the place in the file. */
static void print_problems(
    const struct options *options, FILE *to, const char *file, const char *problems_json) {
    json_auto_t *problems = json_loads(problems_json ? problems_json : "[]", 0, NULL);
    json_t *problem;
    size_t i;

    json_array_foreach(problems, i, problem) {
        const char *key = json_string_value(json_object_get(problem, "key")),
                   *message = json_string_value(json_object_get(problem, "message"));
        const char *hint = json_string_value(json_object_get(problem, "hint"));
        json_int_t line = json_integer_value(json_object_get(problem, "line"));
        size_t length = key ? strcspn(key, "[.") : 0;
        const struct option *option = NULL;
        auto_buf struct buf text = BUF_INIT;

        for (size_t j = 0; !file && j < options->n_uses; j++) {
            const char *sets = options->uses[j].option->policy_key;

            if (sets && length && strlen(sets) == length && memcmp(sets, key, length) == 0)
                option = options->uses[j].option;
        }
        if (!file)
            buf_printf(&text, "rollbox %s: ", options->command->name);
        else if (line > 0)
            buf_printf(&text, "%s:%lld: ", file, (long long)line);
        else
            buf_printf(&text, "%s: ", file);
        if (option)
            buf_printf(&text, "--%s: ", option->name);
        else if (key && key[0])
            buf_printf(&text, "%s: ", key);
        buf_add_text(&text, message ? message : "not valid");
        if (hint && hint[0])
            buf_printf(&text, " (%s)", hint);
        if (buf_failed(&text))
            continue;
        if (to == stdout) {
            format_line(text.data);
        } else {
            format_error(text.data, text.length);
            fputc('\n', stderr);
        }
    }
}

char *cli_policy_text(const json_t *policy) {
    return json_dumps(policy, JSON_COMPACT | JSON_SORT_KEYS);
}

json_t *cli_policy_override(const json_t *base, const json_t *overrides) {
    json_auto_t *policy = json_copy((json_t *)base);
    const json_t *denied = json_object_get(base, "fs_denied"),
                 *more = json_object_get(overrides, "fs_denied");

    if (!policy || json_object_update(policy, (json_t *)overrides) < 0)
        return NULL;
    if (json_is_array(denied) && json_is_array(more)) {
        json_auto_t *both = json_copy((json_t *)denied);

        if (!both || json_array_extend(both, (json_t *)more) < 0 ||
            json_object_set(policy, "fs_denied", both) < 0)
            return NULL;
    }
    return TAKE_PTR(policy);
}

/* Whether it is a single command. A replay depends on the recorded one. */
static bool is_one_command(const struct options *options) {
    if (options_has(options, OPTION_TTY))
        return false; /* an interactive user needs real time */
    return options->command->bit & (COMMAND_RUN | COMMAND_BATCH | COMMAND_RECORD) ||
           options_has(options, OPTION_TWICE);
}

/* Whether a command may wait for others than itself, who keep the real time. */
static bool reaches_outside(const json_t *policy) {
    const char *net = json_string_value(json_object_get(policy, "net"));

    return (net && (!strcmp(net, "host") || !strcmp(net, "allow"))) ||
           json_array_size(json_object_get(policy, "net_allow")) ||
           json_array_size(json_object_get(policy, "net_allow_hosts"));
}

int cli_policy_choose_clock(json_t *policy, bool *ret_chosen) {
    *ret_chosen = !is_given(policy, "time_mode") && is_given(policy, "random_seed") &&
                  is_given(policy, "time_start") && !reaches_outside(policy);
    return *ret_chosen && json_object_set_new(policy, "time_mode", json_string("virtual")) < 0
               ? -ENOMEM
               : 0;
}

/* Reads a policy file ("-": standard input). */
static int read_policy(const struct options *options, const char *file, struct buf *to) {
    int r = strcmp(file, "-") == 0 ? fd_read_all(STDIN_FILENO, FILE_LIMIT, to)
                                   : fd_read_file(file, FILE_LIMIT, to);

    if (r == -EFBIG)
        return cli_fail(options, "%s: larger than a policy may be (16 MiB)", file);
    return r < 0 ? cli_fail(options, "%s: cannot read the policy: %s", file, strerror(-r)) : 0;
}

/* To the caller, if he is to put it into a result; else every problem on a line of its own. */
static int tell_invalid(const struct options *options, const char *file, const char *problems,
    const struct rollbox_error *error, struct rollbox_error *ret_invalid) {
    if (ret_invalid && options_has(options, OPTION_JSON))
        *ret_invalid = *error;
    else
        print_problems(options, stderr, file, problems);
    return CLI_EXIT_ERROR;
}

/* An image that --image names by where it is becomes one of the store. */
static int pull_image(const struct options *options, json_t *policy) {
    const char *image = options_text(options, OPTION_IMAGE), *name = NULL;

    if (!store_program_is_reference(image))
        return 0;
    int status = store_program_pull(options, image, &name);
    if (status)
        return status;
    return json_object_set_new(policy, "image", json_string(name)) < 0
               ? cli_fail(options, "out of memory")
               : 0;
}

int cli_policy_make(const struct options *options, const char *file, struct cli_policy *ret_policy,
    struct rollbox_error *ret_invalid) {
    struct cli_policy made = { .max_output_bytes = DEFAULT_MAX_OUTPUT };
    auto_buf struct buf text = BUF_INIT;
    auto_free char *problems = NULL;
    struct rollbox_error error = { 0 };
    bool flags = false;

    for (size_t i = 0; i < options->n_uses; i++)
        flags = flags || options->uses[i].option->policy_key;
    if (!file && !flags) {
        /* The commonest case costs nothing. */
        made.text = strdup("{}");
        made.length = 2;
        if (!made.text)
            return cli_fail(options, "out of memory");
        *ret_policy = made;
        return 0;
    }
    if (file) {
        int r = read_policy(options, file, &text);

        if (r)
            return r;
        if (rollbox_policy_check(text.data ? text.data : "", text.length, &problems, &error) < 0) {
            if (error.code != ROLLBOX_ERR_POLICY_INVALID)
                return cli_fail_error(options, &error);
            return tell_invalid(options, file, problems, &error, ret_invalid);
        }
        free(TAKE_PTR(problems));
    }
    json_auto_t *policy =
        file ? json_loadb(text.data, text.length, JSON_REJECT_DUPLICATES, NULL) : json_object();
    if (!json_is_object(policy))
        return cli_fail(options, "%s: not a JSON object", file ? file : "policy");
    for (size_t i = 0; i < options->n_uses; i++) {
        const struct option_use *use = &options->uses[i];

        if (!use->option->policy_key)
            continue;
        int r = network_option_is(use->option->id) ? network_option_add(options, policy, use)
                                                   : add_option(policy, use);
        if (r > 0)
            return r;
        if (r == -EILSEQ && has_no_place(use))
            return cli_fail(options,
                "--%s %s: the path is relative, and the working directory cannot be determined: %s",
                use->option->name, use->value, strerror(errno));
        if (r == -EILSEQ)
            return cli_fail(options, "--%s %s: not valid UTF-8", use->option->name, use->value);
        if (r < 0)
            return cli_fail(options, "out of memory");
    }
    int pulled = pull_image(options, policy);
    if (pulled)
        return pulled;
    if (is_one_command(options) && cli_policy_choose_clock(policy, &made.chose_clock) < 0)
        return cli_fail(options, "out of memory");
    made.text = cli_policy_text(policy);
    if (!made.text)
        return cli_fail(options, "out of memory");
    made.length = strlen(made.text);
    if (flags && rollbox_policy_check(made.text, made.length, &problems, &error) < 0) {
        cli_policy_done(&made);
        if (error.code != ROLLBOX_ERR_POLICY_INVALID)
            return cli_fail_error(options, &error);
        return tell_invalid(options, NULL, problems, &error, ret_invalid);
    }
    const json_t *limit = json_object_get(policy, "max_output");
    if (json_is_integer(limit))
        made.max_output_bytes = (uint64_t)json_integer_value(limit);
    else if (json_is_string(limit) &&
             policy_parse_size(json_string_value(limit), &made.max_output_bytes) < 0) {
        cli_policy_done(&made);
        return cli_fail(options, "max_output %s: not a size", json_string_value(limit));
    }
    *ret_policy = made;
    return 0;
}

int cli_policy_given(const struct options *options, struct cli_policy *ret_policy) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    int status = cli_policy_make(options, options_text(options, OPTION_POLICY), ret_policy, &error);

    return status && error.code ? outcome_fail(options, &error) : status;
}

void cli_policy_done(struct cli_policy *policy) {
    free(policy->text);
    policy->text = NULL;
}

int cmd_policy_check(const struct options *options) {
    const char *file = options->rest[0], *shown = strcmp(file, "-") == 0 ? "<stdin>" : file;
    auto_buf struct buf text = BUF_INIT;
    auto_free char *problems = NULL;
    struct rollbox_error error = { 0 };

    int r = read_policy(options, file, &text);
    if (r)
        return r;
    int status =
        rollbox_policy_check(text_or(text.data, ""), text.length, &problems, &error) < 0 ? 1 : 0;
    if (status && error.code != ROLLBOX_ERR_POLICY_INVALID)
        return cli_fail_error(options, &error);
    if (options_has(options, OPTION_JSON))
        printf("{\"valid\": %s, \"problems\": %s}\n", status ? "false" : "true",
            problems ? problems : "[]");
    else if (status)
        print_problems(options, stdout, shown, problems);
    else {
        format_text(shown);
        printf(": valid\n");
    }
    return cli_flush(options, status);
}

/* Line by line: {"plan": [...]}. A path of the host's need not be UTF-8. */
static int print_plan(const struct options *options, const char *text) {
    auto_buf struct buf plan = BUF_INIT;

    buf_add_text(&plan, "{\"plan\":[");
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n");

        buf_add_text(&plan, line == text ? "" : ",");
        (void)utf8_json(&plan, line, length);
        line += length + (line[length] == '\n');
    }
    buf_add_text(&plan, "]}\n");
    if (buf_failed(&plan))
        return cli_fail(options, "out of memory");
    (void)fwrite(plan.data, 1, plan.length, stdout);
    return 0;
}

int cmd_policy_plan(const struct options *options) {
    struct rollbox_engine *engine;
    struct rollbox_error error = { 0 };
    struct cli_policy policy;
    auto_free char *text = NULL;

    int status =
        cli_policy_make(options, options->n_rest ? options->rest[0] : NULL, &policy, &error);
    if (status)
        return error.code ? cli_fail_error(options, &error) : status;
    if (cli_engine_open(options, &engine, &error) < 0) {
        status = cli_fail_error(options, &error);
    } else {
        if (rollbox_policy_plan(engine, policy.text, policy.length, &text, &error) < 0)
            status = cli_fail_error(options, &error);
        else if (options_has(options, OPTION_JSON))
            status = print_plan(options, text);
        else
            shown_lines(text);
        rollbox_engine_close(engine);
    }
    cli_policy_done(&policy);
    return cli_flush(options, status);
}

void cli_policy_tell_users(const struct options *options, const struct cli_policy *policy) {
    json_auto_t *keys = json_loads(policy->text, 0, NULL);
    const char *image = json_string_value(json_object_get(keys, "image")),
               *users = json_string_value(json_object_get(keys, "users"));
    auto_buf struct buf text = BUF_INIT;

    if (!image || options_has(options, OPTION_JSON) ||
        !(options_has(options, OPTION_VERBOSE) || isatty(STDERR_FILENO)))
        return;
    buf_printf(&text, "rollbox %s: %s: %s", options->command->name, image,
        users && !strcmp(users, "many")
            ? "65,536 users, and a root with capabilities over them (--users many)"
            : "one user without capabilities, so nothing can become root (--users many gives "
              "more)");
    if (buf_failed(&text))
        return;
    format_error(text.data, text.length);
    fputc('\n', stderr);
}
