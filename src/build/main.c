/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox-build: builds an image from a Dockerfile. `rollbox image build` executes this program
 * with the options of its own command line. --policy-text is the policy that these options make.
 * `rollbox image commit` executes it with --sandbox.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/utf8.h"
#include "build/build.h"
#include "build/commit.h"
#include "store/fault.h"

#define EXIT_ERROR 125

struct arguments {
    const char *program;
    struct build_options build;
    const char *sandbox, *from; /* image commit: instead of a build */
    bool json;
};

static int refuse(struct rollbox_error *error, const char *problem, const char *value) {
    return error_set(
        error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments", "%s: %.300s", problem, value);
}

/* NAME=VALUE, or NAME with its value in the environment. */
static int set_build_arg(
    struct arguments *arguments, const char *value, struct rollbox_error *error) {
    const char *equals = strchr(value, '=');
    auto_free char *name = equals ? strndup(value, (size_t)(equals - value)) : strdup(value);
    const char *text = equals ? equals + 1 : getenv(value);

    if (!name || !name[0])
        return refuse(error, "--build-arg has the form NAME=VALUE", value);
    if (text && json_object_set_new(arguments->build.build_args, name, json_string(text)) < 0)
        return refuse(error, "--build-arg is not UTF-8", name);
    return 0;
}

static char *member(const char *text, const char *name) {
    const size_t length = strlen(name);

    for (const char *at = text; *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            return strndup(at + length + 1, strcspn(at + length + 1, ","));
    return NULL;
}

/* id=ID[,src=FILE|,env=VARIABLE] */
static int set_secret(struct arguments *arguments, const char *value, struct rollbox_error *error) {
    auto_free char *id = member(value, "id"), *file = member(value, "src"),
                   *variable = member(value, "env");

    if (!file)
        file = member(value, "source");
    if (!id || !id[0] || (file && variable))
        return refuse(error, "--secret has the form id=ID,src=FILE or id=ID,env=VARIABLE", value);
    if (!file && !variable)
        variable = strdup(id);
    json_t *secret = json_pack("{s:s}", variable ? "env" : "file", variable ? variable : file);
    return json_object_set_new(arguments->build.secrets, id, secret) < 0
               ? refuse(error, "--secret is not UTF-8", id)
               : 0;
}

/* ID or ID=SOCKET; the socket is by default that of $SSH_AUTH_SOCK. */
static int set_agent(struct arguments *arguments, const char *value, struct rollbox_error *error) {
    const char *equals = strchr(value, '=');
    auto_free char *id = equals ? strndup(value, (size_t)(equals - value)) : strdup(value);
    const char *socket = equals ? equals + 1 : getenv("SSH_AUTH_SOCK");
    struct stat st;

    if (!id || !id[0])
        return refuse(error, "--ssh has the form ID or ID=SOCKET, such as default", value);
    if (!socket || !socket[0])
        return refuse(
            error, "--ssh: SSH_AUTH_SOCK is not set; start ssh-agent, or name a socket", value);
    if (stat(socket, &st) < 0 || !S_ISSOCK(st.st_mode))
        return refuse(
            error, "--ssh: this is no socket of an agent; add keys to ssh-agent instead", socket);
    return json_object_set_new(arguments->build.agents, id, json_string(socket)) < 0
               ? refuse(error, "--ssh is not UTF-8", id)
               : 0;
}

static int set_progress(
    struct arguments *arguments, const char *value, struct rollbox_error *error) {
    static const char *const forms[] = { [PROGRESS_AUTO] = "auto",
        [PROGRESS_PLAIN] = "plain",
        [PROGRESS_TTY] = "tty",
        [PROGRESS_JSON] = "json",
        [PROGRESS_QUIET] = "quiet" };

    for (size_t i = 0; i < ARRAY_SIZE(forms); i++)
        if (strcmp(value, forms[i]) == 0) {
            arguments->build.progress = (enum progress_form)i;
            return 0;
        }
    return refuse(error, "--progress is auto, plain, tty, json or quiet", value);
}

static int set_limit(
    const char *problem, const char *value, uint64_t *ret_limit, struct rollbox_error *error) {
    char *end;

    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end || errno || !number)
        return refuse(error, problem, value);
    *ret_limit = number;
    return 0;
}

static int set_policy(struct arguments *arguments, const char *value, struct rollbox_error *error) {
    json_t *policy = json_loads(value, JSON_REJECT_DUPLICATES, NULL);

    if (!json_is_object(policy)) {
        json_decref(policy);
        return refuse(error, "--policy-text is not a JSON object", value);
    }
    json_decref(arguments->build.policy);
    arguments->build.policy = policy;
    return 0;
}

static int set_option(
    struct arguments *arguments, const char *name, const char *value, struct rollbox_error *error) {
    struct build_options *build = &arguments->build;
    uint64_t limit = 0;
    int r = 0;

    if (strcmp(name, "tag") == 0)
        build->tag = value;
    else if (strcmp(name, "file") == 0)
        build->file = value;
    else if (strcmp(name, "authfile") == 0)
        build->authfile = value;
    else if (strcmp(name, "target") == 0)
        build->target = value;
    else if (strcmp(name, "sandbox") == 0)
        arguments->sandbox = value;
    else if (strcmp(name, "from") == 0)
        arguments->from = value;
    else if (strcmp(name, "engine") == 0)
        build->socket = value;
    else if (strcmp(name, "build-arg") == 0)
        r = set_build_arg(arguments, value, error);
    else if (strcmp(name, "secret") == 0)
        r = set_secret(arguments, value, error);
    else if (strcmp(name, "ssh") == 0)
        r = set_agent(arguments, value, error);
    else if (strcmp(name, "progress") == 0)
        r = set_progress(arguments, value, error);
    else if (strcmp(name, "policy-text") == 0)
        r = set_policy(arguments, value, error);
    else if (strcmp(name, "max-entries") == 0)
        r = set_limit(
            "--max-entries must be a positive number", value, &build->limits.max_entries, error);
    else if (strcmp(name, "max-bytes") == 0)
        r = set_limit(
            "--max-bytes must be a positive number", value, &build->limits.max_bytes, error);
    else if (strcmp(name, "max-ratio") == 0) {
        r = set_limit("--max-ratio must be a positive number", value, &limit, error);
        build->limits.max_ratio = (unsigned)MIN(limit, (uint64_t)1000000);
    } else
        r = refuse(error, "unknown option", name);
    return r;
}

static int parse(int argc, char **argv, struct arguments *arguments, struct rollbox_error *error) {
    int r = 0;

    for (int i = 1; i < argc; i++)
        arguments->json |= strcmp(argv[i], "--json") == 0;
    for (int i = 1; r == 0 && i < argc; i++) {
        char *word = argv[i];

        if (strcmp(word, "--json") == 0)
            continue;
        if (strcmp(word, "--no-cache") == 0) {
            arguments->build.no_cache = true;
        } else if (strcmp(word, "--pull") == 0) {
            arguments->build.pull = BUILD_PULL_ALWAYS;
        } else if (strcmp(word, "--no-pull") == 0) {
            arguments->build.pull = BUILD_PULL_NEVER;
        } else if (strcmp(word, "--insecure") == 0) {
            arguments->build.insecure = true;
        } else if (strcmp(word, "--") == 0) {
            arguments->build.context = i + 2 == argc ? argv[++i] : NULL;
            break;
        } else if (strncmp(word, "--", 2) == 0 && strchr(word, '=')) {
            char *equals = strchr(word, '=');

            *equals = '\0';
            r = set_option(arguments, word + 2, equals + 1, error);
        } else {
            r = refuse(error, "unknown argument", word);
        }
    }
    if (r == 0 && !arguments->build.context && !arguments->sandbox)
        r = refuse(error, "the context is missing", "give a directory, or - for none");
    return r;
}

static int print_failure(const struct arguments *arguments, const struct rollbox_error *error) {
    auto_buf struct buf out = BUF_INIT;

    if (arguments->json) {
        buf_printf(&out, "{\"error\": {\"code\": \"%s\", \"stage\": \"%s\", \"message\": ",
            rollbox_error_name(error->code), error->stage);
        json_add_string(&out, error->message, strlen(error->message));
        buf_add_text(&out, "}}\n");
    } else {
        buf_printf(&out, "%s: ", arguments->program);
        utf8_shown(&out, error->message, strlen(error->message), "\n");
        buf_add_text(&out, "\n");
    }
    if (!buf_failed(&out))
        (void)fwrite(out.data, 1, out.length, stderr);
    return EXIT_ERROR;
}

static int print_result(const struct arguments *arguments, const json_t *result) {
    const char *image = json_string_value(json_object_get(result, "image")),
               *name = json_string_value(json_object_get(result, "name"));

    if (arguments->json)
        json_dumpf(result, stdout, JSON_COMPACT);
    else
        fputs(name ? name : image ? image : "", stdout);
    putchar('\n');
    return fflush(stdout) < 0 || ferror(stdout) ? EXIT_ERROR : 0;
}

int main(int argc, char **argv) {
    struct arguments arguments = { .program = argc > 0 ? argv[0] : "rollbox-build",
        .build = { .build_args = json_object(),
            .secrets = json_object(),
            .agents = json_object(),
            .policy = json_object(),
            .limits = UNPACK_DEFAULTS } };
    struct rollbox_error error = { 0 };
    struct rlimit files;
    json_t *result = NULL;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    umask(0077);
    fault_init();
    int r = parse(argc, argv, &arguments, &error);
    if (r == 0 && arguments.sandbox)
        r = commit_image(arguments.build.socket, arguments.sandbox, arguments.from,
            arguments.build.tag, &result, &error);
    else if (r == 0)
        r = build_image(&arguments.build, &result, &error);
    int status = r < 0 ? print_failure(&arguments, &error) : print_result(&arguments, result);
    json_decref(result);
    json_decref(arguments.build.build_args);
    json_decref(arguments.build.secrets);
    json_decref(arguments.build.agents);
    json_decref(arguments.build.policy);
    return status;
}
