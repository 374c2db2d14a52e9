/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RUN --mount: what a command has besides the image, and the layer has not.
 *
 * secret: files in the sandbox while the command runs. cache: volumes of the store (caches.h). ssh:
 * a socket that leads to an agent (ssh_agent.h). tmpfs: empty directories of the policy. bind:
 * files that a temporary layer adds below the command's, which it may change; the changes are
 * dropped.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/text.h"
#include "build/build.h"

#define MAX_SECRET (1u << 20)

static int read_secret(struct build *build, const struct instruction *at, const char *id,
    bool required, struct buf *to, bool *ret_found) {
    const json_t *secret = json_object_get(build->options->secrets, id);
    const char *file = json_string_value(json_object_get(secret, "file")),
               *variable = json_string_value(json_object_get(secret, "env"));

    *ret_found = secret != NULL;
    if (!secret)
        return required ? step_refuse(
                              build, at, "the secret %s is missing: add --secret id=%s,...", id, id)
                        : 0;
    if (variable) {
        const char *value = getenv(variable);

        buf_add_text(to, value ? value : "");
        return value ? 0 : step_refuse(build, at, "the secret %s: $%s is not set", id, variable);
    }
    auto_close int fd = open(file, O_RDONLY | O_CLOEXEC);
    int r = fd < 0 ? -errno : fd_read_all(fd, MAX_SECRET, to);
    return r < 0 ? step_refuse(build, at, "the secret %s: %s: %s", id, file, strerror(-r)) : 0;
}

int mounts_add_file(
    struct build *build, struct run_step *step, const char *path, struct buf *data, unsigned mode) {
    struct run_file *file = array_add(&step->files, step->n_files, sizeof *file);

    if (!file)
        return build_out_of_memory(build);
    step->n_files++;
    file->path = strdup(path);
    file->length = data->length;
    buf_add(data, "", 1);
    file->data = buf_failed(data) ? NULL : buf_take(data);
    file->mode = mode;
    return file->path && file->data ? 0 : build_out_of_memory(build);
}

/* --mount=type=secret,id=ID[,target=PATH][,env=NAME][,required][,mode=MODE] */
static int mount_secret(
    struct build *build, const struct instruction *at, const char *text, struct run_step *step) {
    auto_free char *id = step_option(text, "id"), *target = step_option(text, "target"),
                   *variable = step_option(text, "env"), *mode = step_option(text, "mode"),
                   *required = step_option(text, "required"), *path = NULL;
    auto_buf struct buf data = BUF_INIT;
    bool found;

    if (!target)
        target = step_option(text, "dst");
    if (!id)
        id = target ? strdup(strrchr(target, '/') ? strrchr(target, '/') + 1 : target) : NULL;
    if (!id || !id[0])
        return step_refuse(build, at, "--mount=type=secret needs id= or target=");
    const bool is_required = required && strcmp(required, "false") != 0;
    int r = read_secret(build, at, id, is_required, &data, &found);
    if (r < 0 || !found)
        return r;
    if (variable) {
        auto_free char *pair = NULL;

        if (asprintf(&pair, "%s=%.*s", variable, (int)data.length, text_or(data.data, "")) < 0 ||
            words_take(&step->env, TAKE_PTR(pair)) < 0)
            return build_out_of_memory(build);
        if (!target)
            return 0;
    }
    if (asprintf(&path, "%s%s", target && target[0] == '/' ? "" : "/run/secrets/",
            target ? target : id) < 0)
        return build_out_of_memory(build);
    r = mounts_add_file(
        build, step, path, &data, mode ? (unsigned)strtoul(mode, NULL, 8) & 0777 : 0400);
    if (r == 0)
        step->files[step->n_files - 1].is_secret = true;
    return r;
}

/* Options that are not among these are refused: each changes what the command sees. */
static int check_options(struct build *build, const struct instruction *at, const char *type,
    const char *text, const char *const *known) {
    for (const char *word = text; *word; word += strcspn(word, ","), word += *word == ',') {
        const size_t length = strcspn(word, "=,");
        bool is_known = !length;

        for (size_t i = 0; !is_known && known[i]; i++)
            is_known = strlen(known[i]) == length && strncmp(known[i], word, length) == 0;
        if (!is_known)
            return step_refuse(
                build, at, "--mount=type=%s has no option %.*s", type, (int)MIN(length, 80u), word);
    }
    return 0;
}

static char *take_target(const char *text) {
    static const char *const names[] = { "target", "dst", "destination" };
    char *target = NULL;

    for (size_t i = 0; !target && i < ARRAY_SIZE(names); i++)
        target = step_option(text, names[i]);
    return target;
}

/* The path of a directory in the sandbox. Its parts that the image lacks stay out of the layer. */
static int add_mount_point(struct build *build, struct run_step *step, const char *path) {
    char *inner;

    return asprintf(&inner, "%s/.", path) < 0 || words_take(&step->mounts, inner) < 0
               ? build_out_of_memory(build)
               : 0;
}

/* --mount=type=cache,target=PATH[,id=ID][,sharing=shared|locked|private][,mode=][,uid=][,gid=] */
static int mount_cache(struct build *build, struct stage *stage, const struct instruction *at,
    const char *text, struct run_step *step) {
    static const char *const known[] = { "type", "target", "dst", "destination", "id", "sharing",
        "mode", "uid", "gid", "ro", "readonly", "rw", NULL };
    auto_free char *target = take_target(text), *id = step_option(text, "id"),
                   *sharing = step_option(text, "sharing");
    int r = check_options(build, at, "cache", text, known);

    if (r == 0 && (!target || !target[0]))
        r = step_refuse(build, at, "--mount=type=cache needs target=");
    if (r < 0)
        return r;
    auto_free char *path = config_join(&stage->config, target);
    enum cache_sharing kind = !sharing || strcmp(sharing, "shared") == 0 ? CACHE_SHARED
                              : strcmp(sharing, "locked") == 0           ? CACHE_LOCKED
                                                                         : CACHE_PRIVATE;
    if (!path)
        return build_out_of_memory(build);
    if (kind == CACHE_PRIVATE && strcmp(sharing, "private") != 0)
        return step_refuse(build, at, "--mount=type=cache: sharing is shared, locked or private");
    r = caches_add(&step->caches, id && id[0] ? id : path, path, kind);
    return r < 0 ? build_out_of_memory(build) : add_mount_point(build, step, path);
}

/* --mount=type=ssh[,id=ID][,target=PATH][,required][,mode=][,uid=][,gid=] */
static int mount_ssh(
    struct build *build, const struct instruction *at, const char *text, struct run_step *step) {
    static const char *const known[] = { "type", "id", "target", "dst", "destination", "required",
        "mode", "uid", "gid", NULL };
    auto_free char *id = step_option(text, "id"), *target = take_target(text),
                   *required = step_option(text, "required");
    const char *name = id && id[0] ? id : "default";
    const char *agent = json_string_value(json_object_get(build->options->agents, name));
    int r = check_options(build, at, "ssh", text, known);

    if (r < 0)
        return r;
    if (!agent)
        return required && strcmp(required, "false") != 0
                   ? step_refuse(build, at,
                         "the command needs an SSH agent: add --ssh %s to the options of the "
                         "build",
                         name)
                   : 0;
    if (step->agent)
        return step_refuse(build, at, "a command can have one --mount=type=ssh");
    if (target)
        return step_refuse(build, at,
            "--mount=type=ssh: target= is not supported; $SSH_AUTH_SOCK has the socket's path");
    step->agent = agent;
    return 0;
}

/* --mount=type=tmpfs,target=PATH[,size=SIZE] */
static int mount_tmpfs(struct build *build, struct stage *stage, const struct instruction *at,
    const char *text, struct run_step *step) {
    static const char *const known[] = { "type", "target", "dst", "destination", "size", NULL };
    auto_free char *target = take_target(text), *size = step_option(text, "size");
    int r = check_options(build, at, "tmpfs", text, known);

    if (r == 0 && (!target || !target[0]))
        r = step_refuse(build, at, "--mount=type=tmpfs needs target=");
    if (r < 0)
        return r;
    auto_free char *path = config_join(&stage->config, target);
    if (!step->tmpfs)
        step->tmpfs = json_object();
    if (!path || json_object_set_new(
                     step->tmpfs, path, size && size[0] ? json_string(size) : json_null()) < 0)
        return build_out_of_memory(build);
    return add_mount_point(build, step, path);
}

/* ---- bind ---- */

/* --mount=type=bind,target=PATH[,source=PATH][,from=STAGE][,rw] */
static int mount_bind(struct build *build, struct stage *stage, const struct instruction *at,
    const char *text, struct run_step *step, struct digest *key) {
    static const char *const known[] = { "type", "target", "dst", "destination", "source", "src",
        "from", "rw", "readwrite", "ro", "readonly", NULL };
    auto_free char *target = take_target(text), *source = step_option(text, "source"),
                   *from = step_option(text, "from");
    int r = check_options(build, at, "bind", text, known);

    if (!source)
        source = step_option(text, "src");
    if (r == 0 && (!target || !target[0]))
        r = step_refuse(build, at, "--mount=type=bind needs target=");
    if (r < 0)
        return r;
    auto_free char *path = config_join(&stage->config, target);
    if (!path)
        return build_out_of_memory(build);
    if (strcmp(path, "/") == 0)
        return step_refuse(build, at, "--mount=type=bind: the target / has the image");
    r = files_bind(build, stage, at, from, source && source[0] ? source : "/", path, step, key);
    if (r < 0)
        return r;
    return words_add(&step->dropped, path, strlen(path)) < 0 ? build_out_of_memory(build)
                                                             : add_mount_point(build, step, path);
}

int mounts_add(struct build *build, struct stage *stage, const struct instruction *at,
    const char *flag, struct run_step *step, struct digest *key) {
    auto_free char *text = NULL;
    int r = step_expand(build, stage, at, flag, &text);

    if (r < 0)
        return r;
    auto_free char *type = step_option(text, "type");
    digest_add_sized(key, text, strlen(text));
    if (!type || strcmp(type, "bind") == 0)
        return mount_bind(build, stage, at, text, step, key);
    if (strcmp(type, "secret") == 0)
        return mount_secret(build, at, text, step);
    if (strcmp(type, "cache") == 0)
        return mount_cache(build, stage, at, text, step);
    if (strcmp(type, "ssh") == 0)
        return mount_ssh(build, at, text, step);
    if (strcmp(type, "tmpfs") == 0)
        return mount_tmpfs(build, stage, at, text, step);
    return dockerfile_refuse(build->error, &build->file, at->line, ROLLBOX_ERR_FEATURE_MISSING,
        "--mount=type=%s is not supported: of mounts there are bind, cache, secret, ssh and tmpfs",
        type);
}
