/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the devices of a policy are on this host.
 *
 * A name of CDI is looked up in the files of /var/run/cdi and /etc/cdi, the first of which wins, or
 * of the directories in ROLLBOX_CDI_DIRS; then, for GPUs, in their files *.list, which hold the
 * output of nvidia-container-cli. The files must belong to root or to the engine's user,
 * and nobody else may write them: they name files of the host that sandboxes get. The engine only
 * reads them. Hooks in them are not run, so links and the loader's cache are not made.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "engine/pool/profile.h"
#include "policy/cdi.h"
#include "policy/devices.h"

#define MAX_FILES 256

struct search {
    const char *name; /* that is looked for */
    bool of_lists;    /* in lists of nvidia-container-cli, in place of CDI files */
    json_t *spec;     /* the file that has it; NULL: none yet */
    char *found_in;
    struct rollbox_error problem; /* of the first file that cannot be used */
};

static int add_file(struct policy *policy, struct policy_device_file file) {
    struct policy_devices *devices = &policy->devices;

    for (size_t i = 0; i < devices->n_files; i++)
        if (!strcmp(devices->files[i].path, file.path))
            return 0; /* several devices of a vendor have the same libraries */
    struct policy_device_file *files =
        reallocarray(devices->files, devices->n_files + 1, sizeof *files);
    if (!files)
        return -ENOMEM;
    devices->files = files;
    file.source = strdup(file.source);
    file.path = strdup(file.path);
    if (!file.source || !file.path) {
        free(file.source);
        free(file.path);
        return -ENOMEM;
    }
    files[devices->n_files++] = file;
    return 0;
}

/* The texts of a file are copied. A node of the host, for `path` in the sandbox. */
static int add_node(struct policy *policy, unsigned device, const char *host, const char *path,
    bool by_list, struct rollbox_error *error) {
    auto_free char *real = realpath(host, NULL);
    const char *name = policy->devices.items[device].name;
    struct stat st;

    if (!real || stat(real, &st) < 0)
        return error_set(error, ROLLBOX_ERR_PATH_NOT_FOUND, errno, "policy",
            "devices: %s: %s: %s; is its driver loaded?", name, host, strerror(errno));
    const char *refusal = device_refusal(real, st.st_mode, st.st_rdev, by_list);
    if (!refusal && strncmp(path, "/dev/", 5) != 0)
        refusal = "the sandbox's node must be below /dev";
    if (refusal)
        return error_set(error, ROLLBOX_ERR_PATH_DENIED, EPERM, "policy", "devices: %s: %s: %s",
            name, host, refusal);
    if (geteuid() && faccessat(AT_FDCWD, real, R_OK | W_OK, AT_EACCESS) < 0)
        return error_set(error, ROLLBOX_ERR_PATH_DENIED, errno, "policy",
            "devices: %s: you cannot open %s yourself, so your sandboxes cannot either; ask for "
            "the group of the device (such as kvm, video or render)",
            name, real);
    const bool needs_node = !geteuid() && (st.st_mode & 0006) != 0006;
    const struct policy_device_file file = { .source = real,
        .path = (char *)path,
        .is_node = true,
        .needs_node = needs_node,
        .device = device };
    if (add_file(policy, file) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    return 0;
}

/* ---- CDI ---- */

static void note_problem(struct search *search, const char *path, const char *what) {
    if (!search->problem.code)
        error_set(
            &search->problem, ROLLBOX_ERR_POLICY_INVALID, EBADMSG, "policy", "%s: %s", path, what);
}

static bool ends_with(const char *file, const char *ending) {
    const size_t length = strlen(file), n = strlen(ending);

    return length > n && file[0] != '.' && !strcmp(file + length - n, ending);
}

static int look_into(struct search *search, int directory, const char *in, const char *file) {
    const bool is_yaml = ends_with(file, ".yaml") || ends_with(file, ".yml");
    const bool is_wanted =
        search->of_lists ? ends_with(file, ".list") : is_yaml || ends_with(file, ".json");
    auto_buf struct buf text = BUF_INIT;
    auto_free char *path = NULL;
    char problem[CDI_PROBLEM_MAX];
    json_t *spec = NULL;
    struct stat st;

    if (!is_wanted)
        return 0;
    if (asprintf(&path, "%s/%s", in, file) < 0)
        return -ENOMEM;
    auto_close int fd = openat(directory, file, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    int r = fd < 0 || fstat(fd, &st) < 0 ? -errno : 0;
    if (r == 0 &&
        (!S_ISREG(st.st_mode) || (st.st_uid && st.st_uid != geteuid()) || st.st_mode & 022)) {
        note_problem(search, path,
            "is not read: it must be a file of root's or of your own, which nobody else may write");
        return 0;
    }
    if (r == 0)
        r = fd_read_all(fd, CDI_MAX_BYTES, &text);
    if (r < 0) {
        note_problem(search, path, strerror(-r));
        return 0;
    }
    const char *content = text.data ? text.data : "";
    r = search->of_lists ? cdi_parse_list(content, text.length, &spec, problem)
                         : cdi_parse(content, text.length, is_yaml, &spec, problem);
    if (r == -EINVAL) {
        note_problem(search, path, problem);
        return 0;
    }
    if (r < 0)
        return r;
    if (!cdi_device(spec, search->name)) {
        json_decref(spec);
        return 0;
    }
    if (search->spec) {
        json_decref(spec);
        search->problem.code = ROLLBOX_OK;
        return error_set(&search->problem, ROLLBOX_ERR_POLICY_INVALID, EEXIST, "policy",
            "%s and %s both have %s; remove one of them", search->found_in, path, search->name);
    }
    search->spec = spec;
    search->found_in = TAKE_PTR(path);
    return 0;
}

static int search_directory(struct search *search, const char *path) {
    DIR *directory = opendir(path);
    struct dirent *entry;
    unsigned n = 0;
    int r = 0;

    if (!directory && errno != ENOENT)
        note_problem(search, path, strerror(errno));
    while (directory && r == 0 && n++ < MAX_FILES && (entry = readdir(directory)))
        r = look_into(search, dirfd(directory), path, entry->d_name);
    if (directory)
        closedir(directory);
    return r;
}

static const char *directories(void) {
    const char *named = secure_getenv("ROLLBOX_CDI_DIRS");

    return named && *named ? named : "/var/run/cdi:/etc/cdi";
}

static int search_all(struct search *search) {
    auto_free char *list = strdup(directories());
    int r = list ? 0 : -ENOMEM;

    for (char *at = list, *next; r == 0 && at && !search->spec; at = next) {
        next = strchr(at, ':');
        if (next)
            *next++ = '\0';
        if (*at == '/')
            r = search_directory(search, at);
    }
    return r;
}

static int add_mount(
    struct policy *policy, unsigned device, const json_t *mount, struct rollbox_error *error) {
    const char *host = json_string_value(json_object_get(mount, "hostPath")),
               *path = json_string_value(json_object_get(mount, "containerPath"));
    auto_free char *real = realpath(host, NULL);
    auto_free char *same = realpath(path, NULL);
    struct stat st;

    if (!real || stat(real, &st) < 0)
        return error_set(error, ROLLBOX_ERR_PATH_NOT_FOUND, errno, "policy",
            "devices: %s: %s: %s; make the CDI file again (nvidia-ctk cdi generate)",
            policy->devices.items[device].name, host, strerror(errno));
    /* A socket would lead to a daemon of the host. */
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return 0;
    if (!strncmp(path, "/proc/", 6) || !strncmp(path, "/sys/", 5) || !strncmp(path, "/dev/", 5) ||
        !strcmp(real, "/"))
        return error_set(error, ROLLBOX_ERR_PATH_DENIED, EPERM, "policy",
            "devices: %s: its CDI file mounts %s at %s, which sandboxes do not get",
            policy->devices.items[device].name, host, path);
    const struct policy_device_file file = { .source = real,
        .path = (char *)path,
        .is_directory = S_ISDIR(st.st_mode),
        .is_there = same && !strcmp(same, real),
        .device = device };
    return add_file(policy, file) < 0
               ? error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory")
               : 0;
}

/* The policy's own variables win. */
static int add_variable(struct policy *policy, const char *entry) {
    struct policy_strings *env = &policy->env;
    const size_t n = strcspn(entry, "=") + 1;

    for (size_t i = 0; i < env->n; i++)
        if (!strncmp(env->items[i], entry, n))
            return 0;
    char **items = reallocarray(env->items, env->n + 2, sizeof *items);
    if (!items)
        return -ENOMEM;
    env->items = items;
    if (!(items[env->n] = strdup(entry)))
        return -ENOMEM;
    items[++env->n] = NULL;
    return 0;
}

static int apply_edits(
    struct policy *policy, unsigned device, const json_t *edits, struct rollbox_error *error) {
    const json_t *item;
    size_t i;
    int r = 0;

    json_array_foreach(json_object_get(edits, "deviceNodes"), i, item) {
        const char *path = json_string_value(json_object_get(item, "path")),
                   *host = json_string_value(json_object_get(item, "hostPath"));

        if (r == 0)
            r = add_node(policy, device, host ? host : path, path, false, error);
    }
    json_array_foreach(json_object_get(edits, "mounts"), i, item) {
        if (r == 0)
            r = add_mount(policy, device, item, error);
    }
    json_array_foreach(json_object_get(edits, "env"), i, item) {
        if (r == 0 && add_variable(policy, json_string_value(item)) < 0)
            r = error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    }
    return r;
}

static int not_found(const struct search *search, struct rollbox_error *error) {
    const bool is_nvidia = !strncmp(search->name, "nvidia.com/", 11);
    const char *between = search->problem.code ? "; a file was not read: " : "";

    return error_set(error, ROLLBOX_ERR_PATH_NOT_FOUND, ENODEV, "policy",
        "devices: no CDI file in %s has %s%s%s%s", directories(), search->name,
        is_nvidia ? "; nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml makes one" : "",
        between, search->problem.message);
}

static int add_named(struct policy *policy, unsigned device, struct rollbox_error *error) {
    struct search search = { .name = policy->devices.items[device].name };
    int r = search_all(&search);

    if (r == 0 && !search.spec) {
        search.of_lists = true;
        r = search_all(&search);
    }
    if (r == -ENOMEM)
        error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "policy", "out of memory");
    else if (r < 0)
        error_set(error, search.problem.code, search.problem.error_number, "policy", "devices: %s",
            search.problem.message);
    else if (!search.spec)
        r = not_found(&search, error);
    if (r == 0)
        r = apply_edits(policy, device, json_object_get(search.spec, "containerEdits"), error);
    if (r == 0)
        r = apply_edits(policy, device,
            json_object_get(cdi_device(search.spec, search.name), "containerEdits"), error);
    json_decref(search.spec);
    free(search.found_in);
    return r;
}

int devices_resolve(struct policy *policy, struct rollbox_error *error) {
    int r = 0;

    if (policy->devices.n && policy->isolation == POLICY_ISOLATION_PROCESS)
        return error_set(error, ROLLBOX_ERR_FEATURE_MISSING, ENOTSUP, "policy",
            "devices: isolation process has no /dev of its own; use isolation namespace");
    for (unsigned i = 0; r == 0 && i < policy->devices.n; i++) {
        const struct policy_device *device = &policy->devices.items[i];

        r = device->name[0] == '/'
                ? add_node(policy, i, device->name, device->name, !device->unlisted, error)
                : add_named(policy, i, error);
    }
    return r;
}
