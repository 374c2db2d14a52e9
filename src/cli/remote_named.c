/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands on what a server keeps by name: its images, volumes and templates; and the plan of a
 * policy, which concerns no sandbox either.
 */
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/format.h"
#include "cli/policy.h"
#include "cli/remote.h"
#include "cli/store_program.h"

static const struct format_column image_columns[] = { { "NAME", "name", SHOWN_TEXT } };
static const struct format_column volume_columns[] = { { "NAME", "name", SHOWN_TEXT },
    { "CREATED", "created", SHOWN_TIME }, { "LIMIT", "max_bytes", SHOWN_SIZE },
    { "USE", "use", SHOWN_TEXT } };
static const struct format_column template_columns[] = { { "NAME", "name", SHOWN_TEXT },
    { "SANDBOX", "sandbox", SHOWN_TEXT } };

/* What is kept by name, and how it is listed. */
static const struct kind {
    const char *path, *members[2]; /* the lists in the answer to a GET of the path */
    const struct format_column *columns;
    size_t n_columns;
    unsigned __int128 create, list, show, remove;
} kinds[] = {
    { "/v1/images", { "images", "snapshots" }, image_columns, ARRAY_SIZE(image_columns),
        COMMAND_IMAGE_PULL, COMMAND_IMAGE_LS, COMMAND_IMAGE_SHOW | COMMAND_IMAGE_INSPECT,
        COMMAND_IMAGE_RM },
    { "/v1/volumes", { "volumes" }, volume_columns, ARRAY_SIZE(volume_columns),
        COMMAND_VOLUME_CREATE, COMMAND_VOLUME_LS, COMMAND_VOLUME_INSPECT, COMMAND_VOLUME_RM },
    { "/v1/templates", { "templates" }, template_columns, ARRAY_SIZE(template_columns),
        COMMAND_TEMPLATE_CREATE, COMMAND_TEMPLATE_LS, 0, COMMAND_TEMPLATE_RM },
};

/* Asks, and reads the answer: *ret_answer, which the caller frees. 0, or an exit status after a
 * message. */
static int ask(const struct options *options, const char *method, const char *path,
    const json_t *body, json_t **ret_answer) {
    struct remote_answer answer;
    int status = 0;

    remote_ask(options, method, path, NULL, body, &answer);
    *ret_answer = NULL;
    if (answer.status >= 400 || !answer.status)
        status = remote_fail(options, &answer);
    else if (answer.body.length)
        *ret_answer = json_loadb(answer.body.data, answer.body.length, 0, NULL);
    if (!status && answer.body.length && !*ret_answer)
        status = cli_fail(options, "the server's answer is no JSON");
    buf_done(&answer.body);
    return status;
}

static void print_json(const json_t *answer, size_t flags) {
    (void)json_dumpf(answer, stdout, flags | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));
    putchar('\n');
}

/* ---- lists ---- */

static void show_rows(const struct options *options, const struct kind *kind, const json_t *rows) {
    json_t *row;
    size_t i;

    if (!options_has(options, OPTION_QUIET)) {
        format_table(rows, kind->columns, kind->n_columns);
        return;
    }
    json_array_foreach(rows, i, row) format_line(json_string_value(json_object_get(row, "name")));
}

static int list(const struct options *options, const struct kind *kind) {
    json_auto_t *answer = NULL, *rows = json_array();

    int status = ask(options, "GET", kind->path, NULL, &answer);
    if (status)
        return status;
    for (size_t i = 0; i < ARRAY_SIZE(kind->members) && kind->members[i]; i++)
        (void)json_array_extend(rows, json_object_get(answer, kind->members[i]));
    if (options_has(options, OPTION_JSON))
        print_json(answer, JSON_COMPACT);
    else
        show_rows(options, kind, rows);
    return cli_flush(options, 0);
}

/* ---- one ---- */

static void add_name(struct buf *path, const struct kind *kind, const char *name) {
    buf_add_text(path, kind->path);
    buf_add_text(path, "/");
    remote_path_add(path, name, true);
}

static int show(const struct options *options, const struct kind *kind) {
    auto_buf struct buf path = BUF_INIT;
    json_auto_t *answer = NULL;

    add_name(&path, kind, options->rest[0]);
    int status = ask(options, "GET", path.data, NULL, &answer);
    if (!status)
        print_json(answer, options_has(options, OPTION_JSON) ? JSON_COMPACT : JSON_INDENT(2));
    return cli_flush(options, status);
}

static int remove_all(const struct options *options, const struct kind *kind) {
    int status = 0;

    for (int i = 0; i < options->n_rest; i++) {
        auto_buf struct buf path = BUF_INIT;
        json_auto_t *answer = NULL;

        add_name(&path, kind, options->rest[i]);
        if (ask(options, "DELETE", path.data, NULL, &answer))
            status = CLI_EXIT_ERROR;
    }
    return cli_done(options, status);
}

/* ---- create ---- */

/* What a pull of the server takes: the files, credentials and limits are the server's. */
static int describe_image(const struct options *options, json_t *body) {
    const char *reference = options->rest[0];

    for (size_t i = 0; i < options->n_uses; i++) {
        enum option_id id = options->uses[i].option->id;

        if (id != OPTION_STORE_NAME && id != OPTION_PLATFORM && id != OPTION_MISSING &&
            id != OPTION_JSON && id != OPTION_NO_PROGRESS && id != OPTION_ENGINE)
            return cli_fail(options, "--%s is not offered with a server, which pulls by itself",
                options->uses[i].option->name);
    }
    auto_buf struct buf text = BUF_INIT;

    if ((!strncmp(reference, "oci", 3) && strchr(reference, ':')) ||
        !strncmp(reference, "docker-archive:", 15))
        return cli_fail(options, "%s: a server pulls from registries (docker://) alone", reference);
    if (!store_program_is_reference(reference))
        buf_add_text(&text, "docker://");
    buf_add_text(&text, reference);
    if (buf_failed(&text))
        return cli_fail(options, "out of memory");
    remote_set_text(body, "reference", text.data);
    remote_set_text(body, "name", options_text(options, OPTION_STORE_NAME));
    remote_set_text(body, "platform", options_text(options, OPTION_PLATFORM));
    if (options_has(options, OPTION_MISSING))
        json_object_set_new(body, "missing", json_true());
    return 0;
}

static int describe(const struct options *options, json_t *body) {
    const char *code = options_text(options, OPTION_PYTHON);

    if (options->command->bit == COMMAND_IMAGE_PULL)
        return describe_image(options, body);
    remote_set_text(body, "name", options->rest[0]);
    if (options->command->bit == COMMAND_VOLUME_CREATE) {
        remote_set_text(body, "size", options_text(options, OPTION_SIZE_LIMIT));
        return 0;
    }
    remote_set_text(body, "code", code ? code : "");
    return remote_add_policy(options, body);
}

static int create(const struct options *options, const struct kind *kind) {
    json_auto_t *answer = NULL, *body = json_object();

    int status = describe(options, body);
    if (!status)
        status = ask(options, "POST", kind->path, body, &answer);
    if (!status && options_has(options, OPTION_JSON))
        print_json(answer, JSON_COMPACT);
    else if (!status && options->command->bit == COMMAND_IMAGE_PULL)
        format_line(json_string_value(json_object_get(answer, "name")));
    return cli_flush(options, status);
}

/* ---- a plan ---- */

static int plan(const struct options *options) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    json_auto_t *answer = NULL, *body = NULL;
    struct cli_policy policy;
    json_t *line;
    size_t i;

    int status =
        cli_policy_make(options, options->n_rest ? options->rest[0] : NULL, &policy, &error);
    if (status)
        return error.code ? cli_fail_error(options, &error) : status;
    body = json_loadb(policy.text, policy.length, 0, NULL);
    cli_policy_done(&policy);
    status = ask(options, "POST", "/v1/policies", body, &answer);
    if (!status && options_has(options, OPTION_JSON)) {
        print_json(answer, JSON_COMPACT);
    } else if (!status) {
        json_array_foreach(json_object_get(answer, "plan"), i, line)
            format_line(json_string_value(line));
    }
    return cli_flush(options, status);
}

bool remote_named(const struct options *options, int *ret_status) {
    unsigned __int128 bit = options->command->bit;

    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        const struct kind *kind = &kinds[i];

        if (bit & kind->create)
            *ret_status = create(options, kind);
        else if (bit & kind->list)
            *ret_status = list(options, kind);
        else if (bit & kind->show)
            *ret_status = show(options, kind);
        else if (bit & kind->remove)
            *ret_status = remove_all(options, kind);
        else
            continue;
        return true;
    }
    if (bit != COMMAND_POLICY_PLAN)
        return false;
    *ret_status = plan(options);
    return true;
}
