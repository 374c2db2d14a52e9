/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The output of `nvidia-container-cli list`: a path a line, of device nodes, libraries, programs,
 * firmware and sockets. It becomes the specification of CDI that says the same: /dev/nvidiaN is the
 * device N, and all other paths are for each of them.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/cdi.h"

#define MAX_LINES 4096
#define MAX_GPUS 64
#define GPU "/dev/nvidia"

static int refuse(char *problem, unsigned line, const char *what) {
    snprintf(problem, CDI_PROBLEM_MAX, "line %u: %s", line, what);
    return -EINVAL;
}

/* The number of "/dev/nvidia3"; -1: another path. */
static int gpu_number(const char *path, size_t length) {
    const size_t prefix = strlen(GPU);
    int number = 0;

    if (length <= prefix || length > prefix + 2 || memcmp(path, GPU, prefix) != 0)
        return -1;
    for (size_t i = prefix; i < length; i++) {
        if (path[i] < '0' || path[i] > '9')
            return -1;
        number = number * 10 + path[i] - '0';
    }
    return number < MAX_GPUS && (length == prefix + 1 || path[prefix] != '0') ? number : -1;
}

static json_t *node(const char *path, size_t length) {
    return json_pack("{s:s%}", "path", path, length);
}

static json_t *mount_at(const char *path, size_t length) {
    return json_pack("{s:s%, s:s%}", "hostPath", path, length, "containerPath", path, length);
}

static int add_device(json_t *devices, const char *name, json_t *nodes) {
    json_t *device =
        json_pack("{s:s, s:{s:o}}", "name", name, "containerEdits", "deviceNodes", nodes);

    return json_array_append_new(devices, device) < 0 ? -ENOMEM : 0;
}

struct list {
    json_t *nodes, *mounts, *all; /* of each GPU; of GPU "all" */
    json_t *gpus;                 /* the devices */
    unsigned long long seen;      /* numbers of GPUs */
};

static int add_gpu(struct list *list, int number, const char *path, size_t length) {
    char name[16];

    if (list->seen >> number & 1)
        return 0;
    list->seen |= 1ull << number;
    snprintf(name, sizeof name, "%d", number);
    json_t *nodes = json_pack("[o]", node(path, length));
    int r = nodes ? add_device(list->gpus, name, nodes) : -ENOMEM;
    if (r == 0 && json_array_append_new(list->all, node(path, length)) < 0)
        r = -ENOMEM;
    return r;
}

static int add_line(struct list *list, const char *path, size_t length) {
    const int number = gpu_number(path, length);

    if (number >= 0)
        return add_gpu(list, number, path, length);
    const bool is_device = length > 5 && !memcmp(path, "/dev/", 5);
    int r = is_device ? json_array_append_new(list->nodes, node(path, length))
                      : json_array_append_new(list->mounts, mount_at(path, length));

    return r < 0 ? -ENOMEM : 0;
}

static int read_lines(struct list *list, const char *text, size_t length, char *problem) {
    unsigned line = 0;

    for (size_t at = 0, n; at < length; at += n + 1) {
        const char *end = memchr(text + at, '\n', length - at);
        n = end ? (size_t)(end - text) - at : length - at;

        if (++line > MAX_LINES)
            return refuse(problem, line, "there are too many");
        if (!n)
            continue;
        json_t *path = json_stringn(text + at, n);
        const bool is_path = path && cdi_is_path(path);
        json_decref(path);
        if (!is_path)
            return refuse(problem, line, "is not an absolute path");
        int r = add_line(list, text + at, n);
        if (r < 0)
            return r;
    }
    return list->seen ? 0 : refuse(problem, line, "the list has no " GPU "N");
}

int cdi_parse_list(const char *text, size_t length, json_t **ret_spec, char *problem) {
    struct list list = {
        .nodes = json_array(), .mounts = json_array(), .all = json_array(), .gpus = json_array()
    };
    json_t *spec = NULL;
    const bool is_made = list.nodes && list.mounts && list.all && list.gpus;
    int r = is_made ? read_lines(&list, text, length, problem) : -ENOMEM;

    if (r == 0)
        r = add_device(list.gpus, "all", json_incref(list.all));
    if (r == 0)
        spec = json_pack("{s:s, s:s, s:O, s:{s:O, s:O}}", "cdiVersion", "0.3.0", "kind",
            "nvidia.com/gpu", "devices", list.gpus, "containerEdits", "deviceNodes", list.nodes,
            "mounts", list.mounts);
    if (r == 0 && !spec)
        r = -ENOMEM;
    json_decref(list.nodes);
    json_decref(list.mounts);
    json_decref(list.all);
    json_decref(list.gpus);
    if (r == 0)
        *ret_spec = spec;
    return r;
}
