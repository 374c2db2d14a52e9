/* SPDX-License-Identifier: Apache-2.0 */
/* Parses CDI files (cdi.h). YAML becomes the same values as JSON; what YAML has besides (anchors,
 * tags, several documents) is refused. */
#include "policy/cdi.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/cleanup.h"
#include "base/text.h"

#define MAX_DEPTH 16
#define MAX_VALUES 100000

__attribute__((format(printf, 2, 3))) static int refuse(char *problem, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(problem, CDI_PROBLEM_MAX, format, arguments);
    va_end(arguments);
    return -EINVAL;
}

/* ---- YAML ---- */

struct yaml_reader {
    yaml_parser_t parser;
    char *problem;
    unsigned n;
};

static int next_event(struct yaml_reader *r, yaml_event_t *event) {
    if (!yaml_parser_parse(&r->parser, event))
        return r->parser.error == YAML_MEMORY_ERROR
                   ? -ENOMEM
                   : refuse(r->problem, "line %zu: %s", r->parser.problem_mark.line + 1,
                         r->parser.problem ? r->parser.problem : "is not valid YAML");
    return 0;
}

static json_t *scalar_value(const yaml_event_t *event) {
    const char *text = (const char *)event->data.scalar.value;
    const size_t length = event->data.scalar.length;
    char *end = NULL;

    if (event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return json_stringn(text, length);
    if (!strcmp(text, "true") || !strcmp(text, "false"))
        return json_boolean(text[0] == 't');
    if (!text[0] || !strcmp(text, "~") || !strcmp(text, "null"))
        return json_null();
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (isdigit((unsigned char)text[text[0] == '-']) && !*end && !errno)
        return json_integer(number);
    return json_stringn(text, length);
}

static int read_value(
    struct yaml_reader *r, const yaml_event_t *event, unsigned depth, json_t **ret_value);

/* An entry of a mapping or sequence that has begun; *ret_ended: there is none. */
static int read_entry(
    struct yaml_reader *r, unsigned depth, yaml_event_type_t end, json_t *of, bool *ret_ended) {
    yaml_event_t event;
    json_t *value = NULL;
    auto_free char *key = NULL;
    int r2 = next_event(r, &event);

    if (r2 < 0)
        return r2;
    const size_t line = event.start_mark.line + 1;
    *ret_ended = event.type == end;
    if (*ret_ended) {
        yaml_event_delete(&event);
        return 0;
    }
    if (json_is_object(of)) {
        if (event.type != YAML_SCALAR_EVENT || event.data.scalar.anchor || event.data.scalar.tag)
            r2 = refuse(r->problem, "line %zu: a key must be a plain text", line);
        else if (!(key = text_copy(
                       (const char *)event.data.scalar.value, event.data.scalar.length)))
            r2 = -ENOMEM;
        yaml_event_delete(&event);
        if (r2 == 0 && json_object_get(of, key))
            r2 = refuse(r->problem, "line %zu: the key %.40s is given twice", line, key);
        if (r2 == 0)
            r2 = next_event(r, &event);
        if (r2 < 0)
            return r2;
    }
    r2 = read_value(r, &event, depth + 1, &value);
    yaml_event_delete(&event);
    if (r2 < 0)
        return r2;
    r2 = key ? json_object_set_new(of, key, value) : json_array_append_new(of, value);
    return r2 < 0 ? refuse(r->problem, "line %zu: is not valid UTF-8", line) : 0;
}

static int read_value(
    struct yaml_reader *r, const yaml_event_t *event, unsigned depth, json_t **ret_value) {
    const size_t line = event->start_mark.line + 1;
    yaml_event_type_t end = YAML_NO_EVENT;
    json_t *value = NULL;
    bool ended = false, plain = true;

    if (depth > MAX_DEPTH || ++r->n > MAX_VALUES)
        return refuse(r->problem, "line %zu: is nested too deeply, or has too many values", line);
    switch ((int)event->type) {
    case YAML_SCALAR_EVENT:
        plain = !event->data.scalar.anchor && !event->data.scalar.tag;
        value = plain ? scalar_value(event) : NULL;
        break;
    case YAML_SEQUENCE_START_EVENT:
        plain = !event->data.sequence_start.anchor && !event->data.sequence_start.tag;
        end = YAML_SEQUENCE_END_EVENT;
        value = json_array();
        break;
    case YAML_MAPPING_START_EVENT:
        plain = !event->data.mapping_start.anchor && !event->data.mapping_start.tag;
        end = YAML_MAPPING_END_EVENT;
        value = json_object();
        break;
    default:
        plain = false;
    }
    int r2 = !plain  ? refuse(r->problem, "line %zu: anchors, aliases and tags are not read", line)
             : value ? 0
                     : refuse(r->problem, "line %zu: is not valid UTF-8", line);
    while (r2 == 0 && end != YAML_NO_EVENT && !ended)
        r2 = read_entry(r, depth, end, value, &ended);
    if (r2 < 0)
        json_decref(value);
    else
        *ret_value = value;
    return r2;
}

/* The event, which must be of this type. */
static int expect(struct yaml_reader *r, yaml_event_type_t type, const char *problem) {
    yaml_event_t event;
    int r2 = next_event(r, &event);

    if (r2 < 0)
        return r2;
    if (event.type != type)
        r2 = refuse(r->problem, "%s", problem);
    yaml_event_delete(&event);
    return r2;
}

static int parse_yaml(const char *text, size_t length, json_t **ret_root, char *problem) {
    struct yaml_reader r = { .problem = problem };
    yaml_event_t event;
    json_t *root = NULL;

    if (!yaml_parser_initialize(&r.parser))
        return -ENOMEM;
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, length);
    int r2 = expect(&r, YAML_STREAM_START_EVENT, "is empty");
    if (r2 == 0)
        r2 = expect(&r, YAML_DOCUMENT_START_EVENT, "is empty");
    if (r2 == 0)
        r2 = next_event(&r, &event);
    if (r2 == 0) {
        r2 = read_value(&r, &event, 0, &root);
        yaml_event_delete(&event);
    }
    if (r2 == 0)
        r2 = expect(&r, YAML_DOCUMENT_END_EVENT, "has something after its end");
    if (r2 == 0)
        r2 = expect(&r, YAML_STREAM_END_EVENT, "has more than one document");
    yaml_parser_delete(&r.parser);
    if (r2 < 0)
        json_decref(root);
    else
        *ret_root = root;
    return r2;
}

/* ---- the specification ---- */

bool cdi_is_path(const json_t *value) {
    const char *path = json_string_value(value);

    return path && path[0] == '/' && path[1] && strlen(path) == json_string_length(value) &&
           strlen(path) < 4096 && !strstr(path, "/../") && !strstr(path, "/./") &&
           !strstr(path, "//") && path[strlen(path) - 1] != '/' &&
           strcmp(path + strlen(path) - MIN(strlen(path), (size_t)3), "/..") != 0;
}

static bool is_path_or_none(const json_t *value) {
    return !value || json_is_null(value) || cdi_is_path(value);
}

static int check_list(
    const json_t *edits, const char *key, const char *where, char *problem, const json_t **ret) {
    const json_t *list = json_object_get(edits, key);

    *ret = json_is_null(list) ? NULL : list;
    return !*ret || json_is_array(list) ? 0 : refuse(problem, "%s: %s must be a list", where, key);
}

static int check_edits(const json_t *edits, const char *where, char *problem) {
    const json_t *list, *item;
    size_t i;

    if (!edits || json_is_null(edits))
        return 0;
    if (!json_is_object(edits))
        return refuse(problem, "%s: containerEdits must be an object", where);
    if (check_list(edits, "deviceNodes", where, problem, &list) < 0)
        return -EINVAL;
    json_array_foreach(list, i,
        item) if (!cdi_is_path(json_object_get(item, "path")) ||
                  !is_path_or_none(json_object_get(item, "hostPath"))) return refuse(problem,
        "%s: deviceNodes[%zu] needs an absolute path", where, i);
    if (check_list(edits, "mounts", where, problem, &list) < 0)
        return -EINVAL;
    json_array_foreach(list, i,
        item) if (!cdi_is_path(json_object_get(item, "hostPath")) ||
                  !cdi_is_path(json_object_get(item, "containerPath"))) return refuse(problem,
        "%s: mounts[%zu] needs an absolute hostPath and containerPath", where, i);
    if (check_list(edits, "env", where, problem, &list) < 0)
        return -EINVAL;
    json_array_foreach(list, i, item) {
        const char *text = json_string_value(item);

        if (!text || strlen(text) != json_string_length(item) || !strchr(text, '=') ||
            text[0] == '=')
            return refuse(problem, "%s: env[%zu] must be \"NAME=value\"", where, i);
    }
    return check_list(edits, "hooks", where, problem, &list);
}

static int check_spec(const json_t *spec, char *problem) {
    const json_t *kind = json_object_get(spec, "kind"), *devices = json_object_get(spec, "devices"),
                 *device;
    size_t i;

    if (!json_is_object(spec))
        return refuse(problem, "must be an object");
    if (!json_is_string(json_object_get(spec, "cdiVersion")))
        return refuse(problem, "has no cdiVersion");
    if (!json_is_string(kind) || !cdi_is_kind(json_string_value(kind), json_string_length(kind)))
        return refuse(problem, "has no kind such as vendor.com/class");
    if (!json_is_array(devices) || !json_array_size(devices))
        return refuse(problem, "has no devices");
    json_array_foreach(devices, i, device) {
        const json_t *name = json_object_get(device, "name");
        char number[32];
        char where[64];

        /* YAML has numbers where JSON has texts. */
        if (json_is_integer(name)) {
            snprintf(number, sizeof number, "%lld", (long long)json_integer_value(name));
            if (json_object_set_new((json_t *)device, "name", json_string(number)) < 0)
                return -ENOMEM;
            name = json_object_get(device, "name");
        }
        if (!json_is_string(name) ||
            !cdi_is_name(json_string_value(name), json_string_length(name)))
            return refuse(problem, "devices[%zu] has no name of letters, digits and - _ . :", i);
        snprintf(where, sizeof where, "device %.40s", json_string_value(name));
        for (size_t k = 0; k < i; k++)
            if (json_equal(name, json_object_get(json_array_get(devices, k), "name")))
                return refuse(problem, "%s is there twice", where);
        int r = check_edits(json_object_get(device, "containerEdits"), where, problem);
        if (r < 0)
            return r;
    }
    return check_edits(json_object_get(spec, "containerEdits"), "containerEdits", problem);
}

int cdi_parse(const char *text, size_t length, bool is_yaml, json_t **ret_spec, char *problem) {
    json_error_t error;
    json_t *spec = NULL;
    int r = 0;

    if (length > CDI_MAX_BYTES)
        return refuse(problem, "has more than %u bytes", CDI_MAX_BYTES);
    if (is_yaml)
        r = parse_yaml(text, length, &spec, problem);
    else if (!(spec = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error)))
        r = refuse(problem, "line %d: is not valid JSON: %.100s", error.line, error.text);
    if (r == 0)
        r = check_spec(spec, problem);
    if (r < 0)
        json_decref(spec);
    else
        *ret_spec = spec;
    return r;
}

const json_t *cdi_device(const json_t *spec, const char *name) {
    const char *kind = json_string_value(json_object_get(spec, "kind"));
    const size_t length = cdi_kind_length(name);
    const json_t *device;
    size_t i;

    if (!length || strlen(kind) != length || strncmp(kind, name, length) != 0)
        return NULL;
    json_array_foreach(json_object_get(spec, "devices"), i,
        device) if (!strcmp(json_string_value(json_object_get(device, "name")),
                        name + length + 1)) return device;
    return NULL;
}
