/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/held.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cli/shown.h"

#define WIDTH 10

static json_int_t number(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

static const char *text(const json_t *object, const char *key) {
    const char *value = json_string_value(json_object_get(object, key));

    return value ? value : "";
}

static void count(json_int_t n, const char *one, const char *several) {
    printf("%" JSON_INTEGER_FORMAT " %s", n, n == 1 ? one : several);
}

static void key(const char *name) {
    printf("%-*s", WIDTH, name);
}

/* "5 python3  5.6M, 2 threads, fds: 3 pipe, 1 file  python3 search.py". A command line says more than a name, where there is one. */
static void show_process(const json_t *process) {
    const char *command = text(process, "command"), *name = text(process, "name"), *between = "; ", *kind;
    size_t n_threads = json_array_size(json_object_get(process, "threads"));
    json_t *n;

    printf("%" JSON_INTEGER_FORMAT " ", number(process, "pid"));
    if (strcmp(text(process, "state"), "living") != 0) {
        shown_line(text(process, "state"));
        return;
    }
    shown_text(name);
    printf("  ");
    shown_size(json_number_value(json_object_get(process, "memory_bytes")));
    if (n_threads > 1)
        printf(", %zu threads", n_threads);
    json_object_foreach(json_object_get(process, "descriptors"), kind, n) {
        printf("%s%" JSON_INTEGER_FORMAT " %s", between, json_integer_value(n), kind);
        between = ", ";
    }
    if (command[0]) {
        printf("  ");
        shown_text(command);
    }
    putchar('\n');
}

void held_show(const json_t *state) {
    const json_t *processes = json_object_get(state, "processes"), *commands = json_object_get(state, "commands"), *command;
    const bool is_asleep = json_is_true(json_object_get(state, "asleep"));
    size_t i;

    key("snapshot");
    shown_text(text(state, "id"));
    if (text(state, "name")[0]) {
        printf(" \"");
        shown_text(text(state, "name"));
        putchar('"');
    }
    if (text(state, "parent")[0]) {
        printf(", made from ");
        shown_text(text(state, "parent"));
    }
    printf("%s\n", is_asleep ? ", asleep" : "");
    key("files");
    shown_size(json_number_value(json_object_get(state, "bytes")));
    printf(", ");
    count(number(state, "files"), "file", "files");
    putchar('\n');
    if (json_array_size(processes)) {
        key("processes");
        printf("%zu, ", json_array_size(processes));
        shown_size(json_number_value(json_object_get(state, "memory_bytes")));
        printf(", of kernel ");
        shown_line(text(state, "kernel"));
        shown_forest(processes, "pid", show_process);
    }
    json_array_foreach(commands, i, command) {
        key(i ? "" : "commands");
        shown_text(text(command, "id"));
        printf("  %" JSON_INTEGER_FORMAT "  ", number(command, "pid"));
        shown_line(text(command, "command"));
    }
    if (json_array_size(json_object_get(state, "changes"))) {
        printf("changes since ");
        shown_line(text(state, "parent"));
    }
    shown_diff(state, false);
}

void held_checks(const json_t *state) {
    const json_t *check;
    size_t i;

    json_array_foreach(json_object_get(state, "checks"), i, check) {
        const json_t *ok = json_object_get(check, "ok");

        key(json_is_true(ok) ? "ok" : json_is_false(ok) ? "REFUSED" : "-");
        shown_text(text(check, "what"));
        if (text(check, "why")[0]) {
            printf(": ");
            shown_text(text(check, "why"));
        }
        putchar('\n');
    }
}
