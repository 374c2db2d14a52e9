/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox-store: slow work on files and layers, outside every sandbox. The engine and the command
 * line start one process per job; it is not a daemon.
 *
 * With --json it writes one object to standard output, and on failure one {"error": {"code",
 * "stage", "message"}} to standard error. Without --json it writes text, under the name by which it
 * was called. Exit status: 0 success; 1 if fsck found damage; 125 failure.
 *
 * setlocale is never called. File names are bytes, and libarchive leaves them unchanged only in the
 * C locale. In a UTF-8 locale it composes characters, so that two names can become one.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/size_text.h"
#include "base/text.h"
#include "base/utf8.h"
#include "policy/policy.h"
#include "store/live_archive.h"
#include "store/commit.h"
#include "store/describe.h"
#include "store/fault.h"
#include "store/files.h"
#include "store/image.h"
#include "store/image_export.h"
#include "store/image_pull.h"
#include "store/job.h"
#include "store/maintenance.h"
#include "store/layer.h"
#include "store/owned_layers.h"
#include "store/hibernate.h"
#include "store/snapshot.h"
#include "store/volume_job.h"
#include "policy/policy.h"

#define EXIT_ERROR 125
#define EXIT_DAMAGE 1

struct arguments {
    const char *program, *store, *name, *tag, *part, *operand, *socket, *policy, *platform,
        *authfile, *creds, *to, *compression, *config_of;
    struct prune_options prune;
    uint64_t stall_s;
    struct unpack_limits limits;
    uint64_t size;
    uint64_t user_namespace; /* a descriptor, of the engine's; 0: none */
    bool json, no_progress, trusts, drops, quiet, insecure, missing;
};

struct command {
    const char *name;
    const char *operand; /* NULL: none */
    const char *summary;
    bool opens, creates; /* the store */
    int (*call)(int store, const struct arguments *arguments, json_t **ret_json,
        struct rollbox_error *error);
    void (*tell)(const json_t *json);
};

static json_int_t get_number(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

/* As it may be shown; static, of a few turns. */
static const char *shown_value(const char *value, const char *allowed) {
    static struct buf turns[8];
    static unsigned turn;
    struct buf *to = &turns[turn++ % ARRAY_SIZE(turns)];

    to->length = 0;
    utf8_shown(to, text_or(value, ""), text_size(value), allowed);
    buf_add(to, "", 1);
    return buf_failed(to) ? "" : to->data;
}

static const char *get_text(const json_t *object, const char *key) {
    return shown_value(json_string_value(json_object_get(object, key)), "");
}

/* Static, of a few turns. */
static const char *size_text(json_int_t bytes) {
    static struct buf turns[4];
    static unsigned turn;
    struct buf *to = &turns[turn++ % ARRAY_SIZE(turns)];

    to->length = 0;
    size_text_add(to, (double)bytes);
    return buf_failed(to) ? "" : to->data;
}

/* ---- commands ---- */

static int needs_name(const struct arguments *arguments, struct rollbox_error *error) {
    return arguments->name ? 0
                           : error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                                 "the image needs a name: add --name NAME");
}

static int call_import(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    struct import_options options = { .name = arguments->name,
        .path = arguments->operand,
        .choice.tag = arguments->tag,
        .limits = arguments->limits,
        .progress = !arguments->no_progress && isatty(STDERR_FILENO),
        .archive = -EBADF,
        .turns = -EBADF };
    int r = needs_name(arguments, error);

    if (r == 0)
        r = image_platform_parse(arguments->platform, &options.choice.platform, error);
    return r < 0 ? r : image_import(store, &options, ret_json, error);
}

static void print_import(const json_t *json) {
    const json_t *note;
    size_t i;

    if (json_object_get(json, "asleep")) {
        printf("%s: hibernated, %s, %" JSON_INTEGER_FORMAT " processes, for the engine on %s\n",
            get_text(json, "name"), size_text(get_number(json, "bytes")),
            get_number(json, "processes"), get_text(json, "socket"));
        return;
    }
    printf("%s: %" JSON_INTEGER_FORMAT " %s (%" JSON_INTEGER_FORMAT
           " new), %s in %" JSON_INTEGER_FORMAT " files\n",
        get_text(json, "name"), get_number(json, "layers"),
        get_number(json, "layers") == 1 ? "layer" : "layers", get_number(json, "new_layers"),
        size_text(get_number(json, "bytes")), get_number(json, "files"));
    json_array_foreach(json_object_get(json, "notes"), i, note)
        printf("note: %s\n", shown_value(json_string_value(note), ""));
}

static void print_pull(const json_t *json) {
    if (!json_is_true(json_object_get(json, "pulled"))) {
        printf("%s: the store has it\n", get_text(json, "name"));
        return;
    }
    if (json_object_get(json, "bytes"))
        print_import(json);
    else
        printf("%s: the store has all of its layers\n", get_text(json, "name"));
    if (json_object_get(json, "digest"))
        printf("%s, %" JSON_INTEGER_FORMAT " layers fetched, %s\n", get_text(json, "digest"),
            get_number(json, "fetched_layers"), size_text(get_number(json, "fetched_bytes")));
}

static int call_pull(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    const struct pull_options options = { .reference = arguments->operand,
        .name = arguments->name,
        .platform = arguments->platform,
        .authfile = arguments->authfile,
        .creds = arguments->creds,
        .insecure = arguments->insecure,
        .missing = arguments->missing,
        .stall_s = arguments->stall_s ? (unsigned)arguments->stall_s : PULL_STALL_S,
        .limits = arguments->limits,
        .progress = !arguments->no_progress && !arguments->json && isatty(STDERR_FILENO),
        .events = arguments->json };

    int r = image_pull(store, &options, ret_json, error);
    if (r == 0 && options.events)
        json_object_set_new(*ret_json, "event", json_string("pulled"));
    return r;
}

static int export_options_of(const struct arguments *arguments, struct export_options *ret_options,
    struct rollbox_error *error) {
    *ret_options = (struct export_options){ .name = arguments->operand,
        .to = arguments->to,
        .config_of = arguments->config_of,
        .authfile = arguments->authfile,
        .creds = arguments->creds,
        .insecure = arguments->insecure,
        .stall_s = (unsigned)arguments->stall_s };
    return oci_compression_parse(arguments->compression, &ret_options->compression, error);
}

static int call_export_image(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    struct export_options options;
    int r = export_options_of(arguments, &options, error);

    if (r == 0 && !options.to)
        r = error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "the image needs a file or a directory to go to: add --to PATH");
    return r < 0 ? r : image_export(store, &options, ret_json, error);
}

static int call_push(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    struct export_options options;
    int r = export_options_of(arguments, &options, error);

    return r < 0 ? r : image_push(store, &options, ret_json, error);
}

static void print_export(const json_t *json) {
    printf("%s: %" JSON_INTEGER_FORMAT " layers, %s\n%s\n", get_text(json, "to"),
        get_number(json, "layers"), size_text(get_number(json, "bytes")), get_text(json, "digest"));
}

static int call_import_snapshot(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    const struct live_archive_options live = { arguments->name, arguments->socket,
        arguments->policy, arguments->trusts, arguments->drops, arguments->limits.max_bytes };
    int r = needs_name(arguments, error);

    if (r == 0 && live_archive_is_live(arguments->operand))
        return live_archive_import(store, arguments->operand, &live, ret_json, error);
    if (r == 0 && (arguments->policy || arguments->trusts || arguments->drops))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%s contains only files: --policy, --trust and --drop-processes apply to sandboxes "
            "with processes",
            files_printable(arguments->operand));
    return r < 0 ? r
                 : snapshot_import(store, arguments->operand, arguments->name, &arguments->limits,
                       ret_json, error);
}

static int call_list(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    (void)arguments;
    return maintenance_list(store, ret_json, error);
}

/* Local time; static. */
static const char *date_text(json_int_t seconds) {
    static char date[32];
    const time_t time = (time_t)seconds;
    struct tm tm;

    snprintf(date, sizeof date, "?");
    if (localtime_r(&time, &tm))
        strftime(date, sizeof date, "%Y-%m-%d %H:%M", &tm);
    return date;
}

static void print_rows(const json_t *rows, const char *prefix) {
    const json_t *row;
    size_t i;

    json_array_foreach(rows, i, row) {
        const char *date = date_text(get_number(row, "created"));

        printf("%s%-*s %3" JSON_INTEGER_FORMAT " layers  %9s  %s%s%s\n", prefix,
            (int)(40 - strlen(prefix)), get_text(row, "name"), get_number(row, "layers"),
            size_text(get_number(row, "bytes")), date,
            get_text(row, "problem")[0] ? "  DAMAGED: " : "", get_text(row, "problem"));
    }
}

static void print_list(const json_t *json) {
    print_rows(json_object_get(json, "images"), "");
    print_rows(json_object_get(json, "snapshots"), KEEP_SNAPSHOT_PREFIX);
}

static void print_names(const json_t *json) {
    const json_t *row;
    size_t i;

    json_array_foreach(json_object_get(json, "images"), i, row) puts(get_text(row, "name"));
    json_array_foreach(json_object_get(json, "snapshots"), i, row)
        printf("%s%s\n", KEEP_SNAPSHOT_PREFIX, get_text(row, "name"));
}

static int call_show(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    return maintenance_show(store, arguments->operand, ret_json, error);
}

static void tell_words(const char *key, const json_t *words) {
    const json_t *word;
    size_t i;

    if (!json_array_size(words))
        return;
    printf("%-13s", key);
    json_array_foreach(words, i, word)
        printf("%s%s", i ? " " : "", files_printable(json_string_value(word)));
    putchar('\n');
}

static void print_show(const json_t *json) {
    const json_t *config = json_object_get(json, "config"), *layer, *variable, *place;
    static const char *const keys[] = { "cwd", "user", "architecture" };
    size_t i;

    printf("%-13s%s (%s)\n", "name", get_text(json, "name"), get_text(json, "kind"));
    for (i = 0; i < ARRAY_SIZE(keys); i++)
        if (get_text(config, keys[i])[0])
            printf("%-13s%s\n", keys[i], get_text(config, keys[i]));
    if (json_object_get(json, "source"))
        printf("%-13s%s, %s\n", "source", get_text(json_object_get(json, "source"), "reference"),
            get_text(json_object_get(json, "source"), "digest"));
    tell_words("entrypoint", json_object_get(config, "entrypoint"));
    tell_words("cmd", json_object_get(config, "cmd"));
    json_array_foreach(json_object_get(config, "env"), i, variable)
        printf("%-13s%s\n", "env", files_printable(json_string_value(variable)));
    json_array_foreach(json_object_get(json, "places"), i, place)
        printf("%-13s%s (%s)\n", "place", get_text(place, "path"), get_text(place, "kind"));
    json_array_foreach(json_object_get(json, "layers"), i, layer) printf(
        "%-13s%.12s  %9s  %6" JSON_INTEGER_FORMAT " files%s%s\n", "layer", get_text(layer, "id"),
        size_text(get_number(layer, "bytes")), get_number(layer, "files"),
        get_text(layer, "problem")[0] ? "  DAMAGED: " : "", get_text(layer, "problem"));
}

static void print_object(const json_t *json) {
    json_dumpf(json, stdout, JSON_INDENT(2) | (isatty(STDOUT_FILENO) ? JSON_ENSURE_ASCII : 0));
    putchar('\n');
}

static int call_remove(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    return maintenance_remove(store, arguments->operand, ret_json, error);
}

static void tell_nothing(const json_t *json) {
    (void)json;
}

static int call_path(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    auto_free char *path = NULL;
    int r = arguments->store ? 0 : store_default_path(&path, error);

    (void)store;
    if (r < 0)
        return r;
    *ret_json = json_pack("{s:s}", "path", arguments->store ? arguments->store : path);
    return *ret_json ? 0
                     : error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EILSEQ, "store",
                           "the store's path is not UTF-8");
}

static void tell_path(const json_t *json) {
    printf("%s\n", get_text(json, "path"));
}

static int call_collect(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    return maintenance_collect(store, &arguments->prune, ret_json, error);
}

static void print_collect(const json_t *json) {
    const json_t *row;
    size_t i;

    json_array_foreach(json_object_get(json, "removed_images"), i, row)
        printf("image %s removed\n", shown_value(json_string_value(row), ""));

    printf("%" JSON_INTEGER_FORMAT " layers", get_number(json, "removed_layers"));
    if (get_number(json, "removed_asleep"))
        printf(" and %" JSON_INTEGER_FORMAT " sandboxes that slept",
            get_number(json, "removed_asleep"));
    if (get_number(json, "removed_boxes"))
        printf(", and the private files of %" JSON_INTEGER_FORMAT " engines that are gone,",
            get_number(json, "removed_boxes"));
    printf(" removed, %s freed", size_text(get_number(json, "freed_bytes")));
    if (get_number(json, "in_use"))
        printf("; %" JSON_INTEGER_FORMAT " are in use", get_number(json, "in_use"));
    putchar('\n');
    json_array_foreach(json_object_get(json, "damaged"), i, row) if (json_object_get(row, "layer"))
        printf("layers/%s is kept: %s\n", get_text(row, "layer"), get_text(row, "reason"));
    else printf("asleep/%.12s cannot be read, and is kept: %s: %s\n", get_text(row, "asleep"),
        get_text(row, "file"), get_text(row, "reason"));
}

static int call_check(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    (void)arguments;
    return maintenance_check(store, ret_json, error);
}

static void print_hibernated(const json_t *row) {
    const char *name = get_text(row, "sandbox");

    printf("%s%s(hibernated, %.12s): %s is damaged: %s; it cannot be woken\n",
        files_printable(name), name[0] ? " " : "", get_text(row, "asleep"), get_text(row, "file"),
        get_text(row, "reason"));
}

static void print_check(const json_t *json) {
    const json_t *row, *user;
    size_t i, j;

    json_array_foreach(json_object_get(json, "damaged"), i, row) {
        if (json_object_get(row, "asleep")) {
            print_hibernated(row);
            continue;
        }
        if (json_object_get(row, "volume")) {
            printf("volume %s is damaged: %s\n", get_text(row, "volume"), get_text(row, "reason"));
            continue;
        }
        printf("layer %.12s is damaged: %s", get_text(row, "layer"), get_text(row, "reason"));
        json_array_foreach(json_object_get(row, "used_by"), j, user)
            printf("%s%s", j ? ", " : "; used by ", shown_value(json_string_value(user), ""));
        putchar('\n');
    }
    json_array_foreach(json_object_get(json, "manifests"), i, row)
        printf("%s: %s\n", get_text(row, "name"), get_text(row, "problem"));
    printf("%" JSON_INTEGER_FORMAT " layers checked", get_number(json, "layers"));
    if (get_number(json, "asleep"))
        printf(", and %" JSON_INTEGER_FORMAT " hibernated sandboxes", get_number(json, "asleep"));
    printf("; %zu damaged\n", json_array_size(json_object_get(json, "damaged")));
}

static int call_usage(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    (void)arguments;
    return maintenance_usage(store, ret_json, error);
}

static void print_usage(const json_t *json) {
    const json_t *row;
    size_t i;

    printf("%" JSON_INTEGER_FORMAT " images, %" JSON_INTEGER_FORMAT " snapshots\n",
        get_number(json, "images"), get_number(json, "snapshots"));
    printf("%" JSON_INTEGER_FORMAT " layers, %s\n", get_number(json, "layers"),
        size_text(get_number(json, "bytes")));
    printf("%" JSON_INTEGER_FORMAT " of them unused, %s (rollbox store gc removes them)\n",
        get_number(json, "unused_layers"), size_text(get_number(json, "unused_bytes")));
    printf("%" JSON_INTEGER_FORMAT " hibernated sandboxes, %s\n", get_number(json, "asleep"),
        size_text(get_number(json, "asleep_bytes")));
    printf("%" JSON_INTEGER_FORMAT " that were woken, %s for their next hibernation\n",
        get_number(json, "woken"), size_text(get_number(json, "woken_bytes")));
    printf("%" JSON_INTEGER_FORMAT " engines have private files here, %s\n",
        get_number(json, "engines"), size_text(get_number(json, "boxes_bytes")));
    printf("%" JSON_INTEGER_FORMAT " volumes, %s\n", get_number(json, "volumes"),
        size_text(get_number(json, "volume_bytes")));
    printf("%s free\n", size_text(get_number(json, "free_bytes")));
    if (json_array_size(json_object_get(json, "by_image")))
        printf("\n%-40s %9s  %9s  %s\n", "image", "own", "shared", "last used");
    json_array_foreach(json_object_get(json, "by_image"), i, row) {
        const bool snapshot = strcmp(get_text(row, "kind"), "snapshot") == 0;
        const int width = snapshot ? 40 - (int)strlen(KEEP_SNAPSHOT_PREFIX) : 40;

        printf("%s%-*s %9s  %9s  %s%s\n", snapshot ? KEEP_SNAPSHOT_PREFIX : "", width,
            get_text(row, "name"), size_text(get_number(row, "own_bytes")),
            size_text(get_number(row, "shared_bytes")), date_text(get_number(row, "used")),
            json_is_true(json_object_get(row, "in_use")) ? ", in use" : "");
    }
}

static int with_job(int (*call)(const struct job *job, const struct arguments *arguments,
                        json_t **ret_json, struct rollbox_error *error),
    const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    struct job job;
    int r = job_read(STDIN_FILENO, &job, error);

    if (r < 0)
        return r;
    r = call(&job, arguments, ret_json, error);
    job_done(&job);
    return r;
}

static int diff_job(const struct job *job, const struct arguments *arguments, json_t **ret_json,
    struct rollbox_error *error) {
    (void)arguments;
    return changes_json(job, ret_json, error);
}

static int export_job(const struct job *job, const struct arguments *arguments, json_t **ret_json,
    struct rollbox_error *error) {
    return snapshot_export(job, arguments->operand, ret_json, error);
}

static int commit_job(const struct job *job, const struct arguments *arguments, json_t **ret_json,
    struct rollbox_error *error) {
    return commit_places(job, arguments->part, ret_json, error);
}

static int call_diff(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    (void)store;
    return with_job(diff_job, arguments, ret_json, error);
}

static int call_export(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    (void)store;
    return with_job(export_job, arguments, ret_json, error);
}

static int call_sweep(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    int r = commit_sweep(arguments->operand, error);

    (void)store;
    *ret_json = json_object();
    return r;
}

static int call_commit(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    (void)store;
    return with_job(commit_job, arguments, ret_json, error);
}

static int call_hibernate(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    (void)arguments;
    return hibernate_write(store, STDIN_FILENO, ret_json, error);
}

static int call_wake(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    (void)arguments;
    return hibernate_read(store, STDIN_FILENO, ret_json, error);
}

static int call_export_live(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    (void)arguments;
    return live_archive_export(store, STDIN_FILENO, ret_json, error);
}

static int describe_job(const struct job *job, const struct arguments *arguments, json_t **ret_json,
    struct rollbox_error *error) {
    (void)arguments;
    return describe_state(job, ret_json, error);
}

static int call_describe(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    (void)store;
    return with_job(describe_job, arguments, ret_json, error);
}

static int call_describe_hibernated(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    (void)arguments;
    return describe_hibernated(store, STDIN_FILENO, ret_json, error);
}

static int call_forget(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    (void)layer_sweep_leftovers(store);
    int r = layer_empty_trash(store);

    (void)arguments;
    *ret_json = json_object();
    return r < 0 ? error_set(error, ROLLBOX_ERR_IO, -r, "store", "the trash cannot be emptied: %s",
                       strerror(-r))
                 : 0;
}

static void tell_diff(const json_t *json) {
    const json_t *row;
    size_t i;

    json_array_foreach(json_object_get(json, "changes"), i, row)
        printf("%s %s\n%s", get_text(row, "change"), get_text(row, "path"),
            shown_value(json_string_value(json_object_get(row, "diff")), "\n\t"));
}

static int call_own(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    auto_free char *found = NULL;
    int r = arguments->store ? 0 : store_default_path(&found, error); /* the caller's, not root's */

    if (r == 0)
        r = owned_layers_enter(error);
    return r < 0 ? r
                 : owned_layers_make(store, arguments->store ? arguments->store : found,
                       arguments->operand, ret_json, error);
}

static int call_faults(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    json_t *list = json_array();

    (void)store;
    (void)arguments;
    for (int i = 0; i < FAULT_COUNT; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:b}", "name", fault_name((enum fault)i), "command",
                      fault_command((enum fault)i), "done", fault_is_done((enum fault)i)));
    *ret_json = json_pack("{s:o}", "faults", list);
    return *ret_json
               ? 0
               : error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "store", "out of memory");
}

static void tell_faults(const json_t *json) {
    const json_t *row;
    size_t i;

    json_array_foreach(json_object_get(json, "faults"), i, row)
        printf("%s %s\n", get_text(row, "name"), get_text(row, "command"));
}

static int call_volume_create(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    return volume_create(store, arguments->operand, arguments->size, ret_json, error);
}

static int call_volume_copy(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    if (!arguments->name)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "the snapshot needs a name: add --name NAME");
    return volume_copy(store, arguments->operand, arguments->name, ret_json, error);
}

static int call_volume_list(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    (void)arguments;
    return volume_list(store, false, ret_json, error);
}

static int call_volume_usage(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    (void)arguments;
    return volume_list(store, true, ret_json, error);
}

static int call_volume_inspect(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    return volume_inspect(store, arguments->operand, ret_json, error);
}

static int call_volume_remove(
    int store, const struct arguments *arguments, json_t **ret_json, struct rollbox_error *error) {
    *ret_json = json_object();
    return volume_remove(store, arguments->operand, error);
}

static void print_volume(const json_t *row) {
    const json_t *bytes = json_object_get(row, "bytes");

    printf("%-32s", get_text(row, "name"));
    if (bytes)
        printf(" %9s in %" JSON_INTEGER_FORMAT " files", size_text(json_integer_value(bytes)),
            get_number(row, "files"));
    if (get_number(row, "max_bytes"))
        printf("  at most %s", size_text(get_number(row, "max_bytes")));
    printf("  %s%s%s\n", get_text(row, "use"), get_text(row, "problem")[0] ? "  DAMAGED: " : "",
        get_text(row, "problem"));
}

static void print_volumes(const json_t *json) {
    const json_t *row;
    size_t i;

    json_array_foreach(json_object_get(json, "volumes"), i, row) print_volume(row);
}

static void print_volume_names(const json_t *json) {
    const json_t *row;
    size_t i;

    json_array_foreach(json_object_get(json, "volumes"), i, row) puts(get_text(row, "name"));
}

static const struct command commands[] = {
    { "import", "PATH",
        "import an image: an OCI layout, or a tar of one or of docker save; --name NAME", true,
        true, call_import, print_import },
    { "pull", "REFERENCE", "pull an image from a registry, a layout or an archive", true, true,
        call_pull, print_pull },
    { "push", "NAME", "push an image or snapshot:NAME to a registry; --to REFERENCE", true, false,
        call_push, print_export },
    { "export-image", "NAME", "write an image or snapshot:NAME as an OCI image; --to PATH", true,
        false, call_export_image, print_export },
    { "import-snapshot", "FILE", "import an exported snapshot or sandbox; --name NAME", true, true,
        call_import_snapshot, print_import },
    { "ls", NULL, "list images and snapshots", true, true, call_list, print_list },
    { "show", "NAME", "show an image's layers and configuration", true, false, call_show,
        print_show },
    { "inspect", "NAME", "print what the store knows of an image, as JSON", true, false, call_show,
        print_object },
    { "rm", "NAME", "remove an image, or snapshot:NAME", true, false, call_remove, tell_nothing },
    { "path", NULL, "print the store's path", false, false, call_path, tell_path },
    { "gc", NULL, "remove unused layers", true, true, call_collect, print_collect },
    { "fsck", NULL, "read every layer and hibernated sandbox, and report damage", true, true,
        call_check, print_check },
    { "df", NULL, "show the size of the store", true, true, call_usage, print_usage },
    { "diff", NULL, "list the changes in the layers of the job on standard input", false, false,
        call_diff, tell_diff },
    { "export", "FILE", "export the layers of a job to one file", false, false, call_export,
        tell_nothing },
    { "commit", NULL, "commit the places of a job to the host; --part PART: only one", false, false,
        call_commit, tell_nothing },
    { "sweep", "PATH", "remove the leftovers of interrupted commits", false, false, call_sweep,
        tell_nothing },
    { "hibernate", NULL, "save the sandbox of the job on standard input", true, true,
        call_hibernate, tell_nothing },
    { "wake", NULL, "restore the files of the job's sandbox", true, false, call_wake,
        tell_nothing },
    { "export-live", NULL,
        "export the sandbox of the job on standard input, with processes, to one file", true, true,
        call_export_live, tell_nothing },
    { "describe", NULL, "describe the snapshot of the job on standard input", false, false,
        call_describe, tell_nothing },
    { "describe-asleep", NULL, "describe a hibernated sandbox", true, false,
        call_describe_hibernated, tell_nothing },
    { "forget", NULL, "empty the trash, and remove the leftovers of interrupted calls", true, false,
        call_forget, tell_nothing },
    { "volume-create", "NAME", "make an empty volume; --size SIZE limits it", true, true,
        call_volume_create, print_volume },
    { "volume-snapshot", "NAME", "make a volume with another one's files; --name NAME", true, false,
        call_volume_copy, print_volume },
    { "volume-ls", NULL, "list the volumes", true, true, call_volume_list, print_volumes },
    { "volume-df", NULL, "show the sizes of the volumes", true, true, call_volume_usage,
        print_volumes },
    { "volume-inspect", "NAME", "show one volume", true, false, call_volume_inspect, print_volume },
    { "volume-rm", "NAME", "remove a volume and its files", true, false, call_volume_remove,
        tell_nothing },
    { "own", "NAME", "copy an image's layers with owners of the user's range of ids", true, false,
        call_own, tell_nothing },
    { "faults", NULL, "list the fault points (see ROLLBOX_FAULT)", false, false, call_faults,
        tell_faults },
};

/* ---- arguments ---- */

static int print_failure(const struct arguments *arguments, const struct rollbox_error *error) {
    if (arguments->json) {
        json_t *object =
            json_pack("{s:{s:s, s:s, s:s, s:i}}", "error", "code", rollbox_error_name(error->code),
                "stage", error->stage, "message", error->message, "errno", error->error_number);
        auto_free char *line = object ? json_dumps(object, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;

        fprintf(stderr, "%s\n",
            line ? line
                 : "{\"error\": {\"code\": \"internal\", \"stage\": \"store\", \"message\": \"the "
                   "error cannot be written as JSON\"}}");
        json_decref(object);
    } else {
        fprintf(stderr, "%s: %s\n", arguments->program, error->message);
    }
    return EXIT_ERROR;
}

static void print_help(void) {
    printf("Usage: rollbox-store COMMAND [OPTION...] [ARGUMENT]\n\nImages, snapshots and layers on "
           "disk. rollbox(1) and rollbox-engine start it.\n\n");
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        printf("  %-16s %-5s %s\n", commands[i].name,
            commands[i].operand ? commands[i].operand : "", commands[i].summary);
    printf("\nOptions: --json, --store PATH, --name NAME, --tag-of-archive TAG, --max-entries N, "
           "--max-bytes N, --max-depth N, --max-ratio N, --no-progress, --quiet, --part PART, "
           "--socket "
           "PATH, --policy FILE, --trust, --drop-processes, --user-namespace FD\n");
}

static int parse_number(const char *name, const char *value, uint64_t most, uint64_t *ret,
    struct rollbox_error *error) {
    char *end;

    errno = 0;
    uint64_t found = strtoull(value, &end, 10);
    const bool is_number = value[0] >= '0' && value[0] <= '9' && !*end && !errno;
    if (!is_number || !found || found > most)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "--%s %s: must be a whole number from 1 to %" PRIu64, name, value, most);
    *ret = found;
    return 0;
}

static int parse_size(
    const char *name, const char *value, uint64_t *ret, struct rollbox_error *error) {
    if (policy_parse_size(value, ret) == 0)
        return 0;
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
        "--%s %s: must be a size, such as 200G", name, files_printable(value));
}

/* 30d, 12h, 90m, or seconds. */
static int parse_age(
    const char *name, const char *value, uint64_t *ret, struct rollbox_error *error) {
    static const struct unit {
        char letter;
        uint64_t seconds;
    } units[] = { { 'd', 86400 }, { 'h', 3600 }, { 'm', 60 }, { 's', 1 }, { '\0', 1 } };
    char *end;

    errno = 0;
    const uint64_t number = strtoull(value, &end, 10);
    const bool is_number = value[0] >= '0' && value[0] <= '9' && !errno && number < UINT32_MAX;
    for (size_t i = 0; is_number && i < ARRAY_SIZE(units); i++)
        if (*end == units[i].letter && (!*end || !end[1])) {
            *ret = number * units[i].seconds;
            return 0;
        }
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
        "--%s %s: must be a time such as 30d, 12h or 90m", name, files_printable(value));
}

static int set_option(
    struct arguments *arguments, const char *name, const char *value, struct rollbox_error *error) {
    uint64_t found = 0;
    int r = 0;

    if (strcmp(name, "store") == 0)
        arguments->store = value;
    else if (strcmp(name, "name") == 0)
        arguments->name = value;
    else if (strcmp(name, "tag-of-archive") == 0)
        arguments->tag = value;
    else if (strcmp(name, "platform") == 0)
        arguments->platform = value;
    else if (strcmp(name, "authfile") == 0)
        arguments->authfile = value;
    else if (strcmp(name, "creds") == 0)
        arguments->creds = value;
    else if (strcmp(name, "to") == 0)
        arguments->to = value;
    else if (strcmp(name, "compression") == 0)
        arguments->compression = value;
    else if (strcmp(name, "config-of") == 0)
        arguments->config_of = value;
    else if (strcmp(name, "keep") == 0)
        r = parse_size(name, value, &arguments->prune.keep_bytes, error);
    else if (strcmp(name, "older") == 0)
        r = parse_age(name, value, &arguments->prune.older_s, error);
    else if (strcmp(name, "stall") == 0)
        r = parse_number(name, value, 86400, &arguments->stall_s, error);
    else if (strcmp(name, "part") == 0)
        arguments->part = value;
    else if (strcmp(name, "socket") == 0)
        arguments->socket = value;
    else if (strcmp(name, "policy") == 0)
        arguments->policy = value;
    else if (strcmp(name, "size") == 0)
        r = policy_parse_size(value, &arguments->size) < 0 || arguments->size < 65536
                ? error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                      "--size %s: must be a size of at least 64K, such as 10G", value)
                : 0;
    else if (strcmp(name, "user-namespace") == 0)
        r = parse_number(name, value, INT32_MAX, &arguments->user_namespace, error);
    else if (strcmp(name, "max-entries") == 0)
        r = parse_number(
            name, value, FILES_MAX_ENTRIES * 10ull, &arguments->limits.max_entries, error);
    else if (strcmp(name, "max-bytes") == 0)
        r = parse_number(name, value, 1ull << 60, &arguments->limits.max_bytes, error);
    else if (strcmp(name, "max-depth") == 0) {
        r = parse_number(name, value, FILES_MAX_DEPTH, &found, error);
        arguments->limits.max_depth = (unsigned)found;
    } else if (strcmp(name, "max-ratio") == 0) {
        r = parse_number(name, value, 1000000, &found, error);
        arguments->limits.max_ratio = (unsigned)found;
    } else
        r = error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "unknown option --%s; see rollbox-store --help", name);
    return r;
}

static int parse_arguments(
    int argc, char **argv, struct arguments *arguments, struct rollbox_error *error) {
    int r = 0;

    /* First, so that errors in the others are reported in the right form. */
    for (int i = 2; i < argc; i++)
        arguments->json |= strcmp(argv[i], "--json") == 0;
    for (int i = 2; r == 0 && i < argc; i++) {
        char *word = argv[i];

        if (strcmp(word, "--json") == 0)
            continue;
        if (strcmp(word, "--no-progress") == 0) {
            arguments->no_progress = true;
        } else if (strcmp(word, "--quiet") == 0) {
            arguments->quiet = true;
        } else if (strcmp(word, "--insecure") == 0) {
            arguments->insecure = true;
        } else if (strcmp(word, "--missing") == 0) {
            arguments->missing = true;
        } else if (strcmp(word, "--trust") == 0) {
            arguments->trusts = true;
        } else if (strcmp(word, "--drop-processes") == 0) {
            arguments->drops = true;
        } else if (strcmp(word, "--") == 0 && i + 2 == argc && !arguments->operand) {
            arguments->operand = argv[++i];
        } else if (strncmp(word, "--", 2) == 0) {
            char *equals = strchr(word, '=');

            if (equals)
                *equals = '\0';
            else if (i + 1 >= argc)
                return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                    "%s needs a value, or is unknown; see rollbox-store --help", word);
            r = set_option(arguments, word + 2, equals ? equals + 1 : argv[++i], error);
        } else if (arguments->operand) {
            r = error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                "unexpected argument '%s'", files_printable(word));
        } else {
            arguments->operand = word;
        }
    }
    return r;
}

/* Files of sandboxes of many users, and copies of layers for them, have owners of the user's range
 * of ids. Only in its user namespace can they all be read and removed. A job comes with it. A
 * command that looks at the whole store makes one, if there is a range: without, there are no such
 * files. */
static int enter_namespace(
    const struct command *command, const struct arguments *arguments, struct rollbox_error *error) {
    const bool sees_all = command->call == call_collect || command->call == call_check ||
                          command->call == call_usage || command->call == call_forget ||
                          command->call == call_volume_copy || command->call == call_volume_usage ||
                          command->call == call_volume_inspect ||
                          command->call == call_volume_remove;

    if (sees_all && !arguments->user_namespace)
        (void)owned_layers_enter(NULL);
    if (!arguments->user_namespace || setns((int)arguments->user_namespace, CLONE_NEWUSER) == 0)
        return 0;
    return error_set(error, ROLLBOX_ERR_SETUP_FAILED, errno, "store",
        "the user namespace of the sandbox's files cannot be entered: %s", strerror(errno));
}

static int run_command(const struct command *command, const struct arguments *arguments) {
    struct rollbox_error error = { 0 };
    auto_close int store = -EBADF;
    json_t *json = NULL;
    int r = 0;

    if (command->operand && !arguments->operand)
        r = error_set(&error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%s is missing: %s %s", command->operand, command->name, command->operand);
    else if (!command->operand && arguments->operand)
        r = error_set(&error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "unexpected argument '%s'", files_printable(arguments->operand));
    if (r == 0 && command->opens)
        r = layer_store_open(arguments->store, command->creates, &store, &error);
    if (r == 0)
        r = enter_namespace(command, arguments, &error);
    if (r == 0)
        r = command->call(store, arguments, &json, &error);
    if (r < 0)
        return print_failure(arguments, &error);
    int status =
        command->call == call_check && (json_array_size(json_object_get(json, "damaged")) ||
                                           json_array_size(json_object_get(json, "manifests")))
            ? EXIT_DAMAGE
            : 0;
    if (arguments->json) {
        json_dumpf(json, stdout, JSON_COMPACT | (isatty(STDOUT_FILENO) ? JSON_ENSURE_ASCII : 0));
        putchar('\n');
    } else {
        (arguments->quiet && command->tell == print_list         ? print_names
            : arguments->quiet && command->tell == print_volumes ? print_volume_names
                                                                 : command->tell)(json);
    }
    json_decref(json);
    if (fflush(stdout) < 0 || ferror(stdout)) {
        error_set(&error, ROLLBOX_ERR_IO, errno, "store", "cannot write to standard output: %s",
            strerror(errno));
        return print_failure(arguments, &error);
    }
    return status;
}

int main(int argc, char **argv) {
    struct arguments arguments = { .program = argc > 0 ? argv[0] : "rollbox-store",
        .limits = UNPACK_DEFAULTS };
    struct rollbox_error error = { 0 };
    struct rlimit files;

    /* Trees may be deep, and a merged one has a descriptor a layer and level. */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    umask(0077);
    fault_init();
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help();
        return argc < 2 ? EXIT_ERROR : 0;
    }
    if (parse_arguments(argc, argv, &arguments, &error) < 0)
        return print_failure(&arguments, &error);
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return run_command(&commands[i], &arguments);
    error_set(&error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
        "unknown command '%s'; see rollbox-store --help", files_printable(argv[1]));
    return print_failure(&arguments, &error);
}
