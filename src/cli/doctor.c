/* SPDX-License-Identifier: Apache-2.0 */
/* rollbox doctor: the library's findings as a table. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cli/cli.h"

static bool colours;

static const char *colour_code(const char *code) {
    return colours ? code : "";
}

static void print_row(bool good, const char *name, const char *text) {
    const char *colour = colour_code(good ? "\033[32m" : "\033[31m");

    printf("  %s%-4s%s %-22s %s\n", colour, good ? "ok" : "no", colour_code("\033[0m"), name, text);
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

static void print_table(const json_t *report) {
    const json_t *isolation = json_object_get(report, "isolation"),
                 *features = json_object_get(report, "features");
    const json_t *value;
    const char *key;
    json_t *feature, *limit;
    size_t i;
    bool good = json_is_true(json_object_get(report, "ok"));

    printf("rollbox %s on Linux %s\n\nIsolation\n", rollbox_version(), text_of(report, "kernel"));
    json_object_foreach((json_t *)isolation, key, value) print_row(
        json_is_true(value), key, json_is_true(value) ? "available" : "not available here");
    printf("  %-4s %-22s %s\n", "", "cgroup", text_of(report, "cgroup"));
    printf("  %-4s %-22s %s\n\nFeatures\n", "", "egress", text_of(report, "egress"));
    json_array_foreach(features, i, feature) {
        bool available = json_is_true(json_object_get(feature, "available"));
        const char *hint = text_of(feature, "hint");

        print_row(available, text_of(feature, "name"), text_of(feature, "needed_for"));
        if (!available && hint[0])
            printf("       %-22s %s-> %s%s\n", "", colour_code("\033[33m"), hint,
                colour_code("\033[0m"));
    }
    if (json_array_size(json_object_get(report, "low_limits")))
        printf("\nYour own limits apply inside sandboxes, too: a program that needs more fails "
               "there as if by its own fault\n");
    json_array_foreach(json_object_get(report, "low_limits"), i, limit)
        printf("  %slow%s  %-22s %s %" JSON_INTEGER_FORMAT
               "\n       %-22s %s-> raise the hard limit (limits.conf(5), or LimitAS= and others "
               "of a unit)%s\n",
            colour_code("\033[33m"), colour_code("\033[0m"), text_of(limit, "name"),
            text_of(limit, "command"), json_integer_value(json_object_get(limit, "value")), "",
            colour_code("\033[33m"), colour_code("\033[0m"));
    const char *sharer = text_of(json_object_get(report, "facts"), "subids_shared_with");
    if (sharer[0])
        printf("\nYour ids in /etc/subuid or /etc/subgid are also those of %s: each of you can "
               "touch files of the other's sandboxes of many users\n",
            sharer);
    printf("\n%s%s%s\n", colour_code(good ? "\033[32m" : "\033[31m"),
        json_is_true(json_object_get(isolation, "namespace")) ? "Sandboxes work here."
        : json_is_true(json_object_get(isolation, "process"))
            ? "Namespace isolation does not work here; --isolation process does."
            : "Sandboxes do not work here: see the hints above.",
        colour_code("\033[0m"));
}

int cmd_doctor(const struct options *options) {
    struct rollbox_error error = { 0 };
    auto_free char *text = NULL;

    if (rollbox_doctor(&text, &error) < 0)
        return cli_fail_error(options, &error);
    json_t *report = json_loads(text, 0, NULL);
    if (!report)
        return cli_fail(options, "the report is not JSON; this is a bug");
    colours = cli_colours(STDOUT_FILENO);
    if (options_has(options, OPTION_JSON))
        printf("%s\n", text);
    else
        print_table(report);
    int status =
        json_is_true(json_object_get(json_object_get(report, "isolation"), "namespace")) ? 0 : 1;
    json_decref(report);
    return cli_flush(options, status);
}
