/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/snapshot_show.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cli/format.h"

#define WIDTH 10

static json_int_t get_number(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

static const char *get_text(const json_t *object, const char *key) {
    const char *value = json_string_value(json_object_get(object, key));

    return value ? value : "";
}

static void print_count(json_int_t n, const char *one, const char *several) {
    printf("%" JSON_INTEGER_FORMAT " %s", n, n == 1 ? one : several);
}

static void print_key(const char *name) {
    printf("%-*s", WIDTH, name);
}

/* "5 python3  5.6M, 2 threads, fds: 3 pipe, 1 file  python3 search.py". A command line says more
 * than a name, where there is one. */
static void show_process(const json_t *process) {
    const char *command = get_text(process, "command"), *name = get_text(process, "name"),
               *between = "; ", *kind;
    size_t n_threads = json_array_size(json_object_get(process, "threads"));
    json_t *n;

    printf("%" JSON_INTEGER_FORMAT " ", get_number(process, "pid"));
    if (strcmp(get_text(process, "state"), "living") != 0) {
        format_line(get_text(process, "state"));
        return;
    }
    format_text(name);
    printf("  ");
    format_size(json_number_value(json_object_get(process, "memory_bytes")));
    if (n_threads > 1)
        printf(", %zu threads", n_threads);
    json_object_foreach(json_object_get(process, "descriptors"), kind, n) {
        printf("%s%" JSON_INTEGER_FORMAT " %s", between, json_integer_value(n), kind);
        between = ", ";
    }
    if (command[0]) {
        printf("  ");
        format_text(command);
    }
    putchar('\n');
}

void snapshot_show_contents(const json_t *state) {
    const json_t *processes = json_object_get(state, "processes"),
                 *commands = json_object_get(state, "commands"), *command;
    const bool is_hibernated = json_is_true(json_object_get(state, "asleep"));
    size_t i;

    print_key("snapshot");
    format_text(get_text(state, "id"));
    if (get_text(state, "name")[0]) {
        printf(" \"");
        format_text(get_text(state, "name"));
        putchar('"');
    }
    if (get_text(state, "parent")[0]) {
        printf(", made from ");
        format_text(get_text(state, "parent"));
    }
    printf("%s\n", is_hibernated ? ", hibernated" : "");
    print_key("files");
    format_size(json_number_value(json_object_get(state, "bytes")));
    printf(", ");
    print_count(get_number(state, "files"), "file", "files");
    putchar('\n');
    if (json_array_size(processes)) {
        print_key("processes");
        printf("%zu, ", json_array_size(processes));
        format_size(json_number_value(json_object_get(state, "memory_bytes")));
        printf(", of kernel ");
        format_line(get_text(state, "kernel"));
        format_forest(processes, "pid", show_process);
    }
    json_array_foreach(commands, i, command) {
        print_key(i ? "" : "commands");
        format_text(get_text(command, "id"));
        printf("  %" JSON_INTEGER_FORMAT "  ", get_number(command, "pid"));
        format_line(get_text(command, "command"));
    }
    if (json_array_size(json_object_get(state, "changes"))) {
        printf("changes since ");
        format_line(get_text(state, "parent"));
    }
    format_diff(state, false);
}

void snapshot_show_checks(const json_t *state) {
    const json_t *check;
    size_t i;

    json_array_foreach(json_object_get(state, "checks"), i, check) {
        const json_t *ok = json_object_get(check, "ok");

        const char *verdict = json_is_true(ok) ? "ok" : "-";
        print_key(json_is_false(ok) ? "REFUSED" : verdict);
        format_text(get_text(check, "what"));
        if (get_text(check, "why")[0]) {
            printf(": ");
            format_text(get_text(check, "why"));
        }
        putchar('\n');
    }
}
