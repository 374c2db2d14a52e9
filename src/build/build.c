/* SPDX-License-Identifier: Apache-2.0 */
#include "build/build.h"

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
#include "base/text.h"
#include "store/layer.h"

#define MAX_IGNORE (1u << 20)

/* ---- the context ---- */

static int read_file(struct build *build, int fd, const char *name, size_t limit, struct buf *to) {
    int r = fd_read_all(fd, limit, to);

    if (r == 0) {
        buf_add(to, "", 1);
        to->length -= !buf_failed(to);
        return buf_failed(to) ? build_out_of_memory(build) : 0;
    }
    if (r == -EFBIG)
        return error_set(build->error, ROLLBOX_ERR_INVALID_ARGUMENT, EFBIG, "build",
            "%.200s has more than %zu bytes", name, limit);
    return error_set(build->error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "build",
        "cannot read %.200s: %s", name, strerror(-r));
}

static int open_context(struct build *build) {
    const char *path = build->options->context;

    if (strcmp(path, "-") == 0)
        return 0;
    build->context = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (build->context < 0)
        return error_set(build->error,
            errno == ENOENT ? ROLLBOX_ERR_PATH_NOT_FOUND : error_code_of(errno, ROLLBOX_ERR_IO),
            errno, "build", "cannot open the context %.300s: %s", path, strerror(errno));
    int r = source_of_directory(build->context, &build->context_source);
    build->context_source.ignore = &build->ignore;
    return r < 0 ? build_out_of_memory(build) : 0;
}

/* -f FILE, from the current directory; else Dockerfile, or Containerfile, of the context; else
 * standard input for the context "-". */
static int open_dockerfile(struct build *build, const char **ret_name) {
    static const char *const names[] = { "Dockerfile", "Containerfile" };
    const char *file = build->options->file;
    int fd = -EBADF;

    if (build->context < 0 || (file && strcmp(file, "-") == 0)) {
        *ret_name = "-";
        fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    } else if (file) {
        *ret_name = file;
        fd = open(file, O_RDONLY | O_CLOEXEC);
    } else {
        for (size_t i = 0; fd < 0 && i < ARRAY_SIZE(names); i++) {
            *ret_name = names[i];
            fd = openat(build->context, names[i], O_RDONLY | O_CLOEXEC);
            if (fd < 0 && errno != ENOENT)
                break;
        }
    }
    if (fd >= 0)
        return fd;
    const int number = errno;
    return error_set(build->error,
        number == ENOENT ? ROLLBOX_ERR_PATH_NOT_FOUND : error_code_of(number, ROLLBOX_ERR_IO),
        number, "build", "cannot open %.300s: %s", file ? file : "Dockerfile of the context",
        strerror(number));
}

static int load_dockerfile(struct build *build) {
    auto_buf struct buf text = BUF_INIT;
    const char *name = NULL;
    struct stat st;

    auto_close int fd = open_dockerfile(build, &name);
    if (fd < 0)
        return fd;
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        return error_set(build->error, ROLLBOX_ERR_INVALID_ARGUMENT, EISDIR, "build",
            "%.300s is a directory", name);
    int r = read_file(build, fd, name, DOCKERFILE_MAX_BYTES, &text);
    return r < 0 ? r : dockerfile_parse(name, text.data, text.length, &build->file, build->error);
}

/* FILE.dockerignore beside the Dockerfile, else .dockerignore of the context. */
static int load_ignore(struct build *build) {
    const char *file = build->options->file ? build->options->file : build->file.name;
    auto_buf struct buf text = BUF_INIT;
    auto_free char *own = NULL;

    if (build->context < 0)
        return 0;
    if (asprintf(&own, "%s.dockerignore", file) < 0)
        return build_out_of_memory(build);
    const int at = build->options->file ? AT_FDCWD : build->context;
    const char *name = own;
    auto_close int fd = openat(at, own, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        name = ".dockerignore";
        fd = openat(build->context, name, O_RDONLY | O_CLOEXEC);
    }
    if (fd < 0)
        return errno == ENOENT ? 0
                               : error_set(build->error, ROLLBOX_ERR_IO, errno, "build",
                                     "cannot open %.200s: %s", name, strerror(errno));
    int r = read_file(build, fd, name, MAX_IGNORE, &text);
    if (r == 0 && ignore_parse(text_or(text.data, ""), text.length, &build->ignore) < 0)
        r = build_out_of_memory(build);
    return r;
}

/* ---- stages ---- */

static int do_instruction(struct build *build, struct stage *stage, const struct instruction *at) {
    int r = step_configure(build, stage, at);

    if (r)
        return MIN(r, 0);
    switch ((int)at->kind) {
    case INSTRUCTION_FROM:
        return files_from(build, stage, at);
    case INSTRUCTION_RUN:
        return files_run(build, stage, at);
    case INSTRUCTION_WORKDIR:
        return files_workdir(build, stage, at);
    default:
        return files_copy(build, stage, at);
    }
}

static int do_stage(struct build *build, struct stage *stage) {
    int r = 0;

    for (size_t i = stage->first; r == 0 && i < stage->end; i++)
        r = do_instruction(build, stage, &build->file.items[i]);
    if (r < 0 && build->progress.step)
        progress_end(&build->progress, "ERROR");
    return r;
}

static void note_unused(struct build *build) {
    json_t *value;
    const char *name;

    json_object_foreach(build->options->build_args, name,
        value) if (!json_object_get(build->used_args, name) && !step_is_proxy(name))
        progress_note(
            &build->progress, "--build-arg %s: no ARG of the Dockerfile has the name", name);
}

static int finish(struct build *build, const struct stage *target, json_t **ret_json) {
    const char *tag = build->options->tag;
    int r = 0;

    if (tag) {
        progress_begin(&build->progress, "exporting to image");
        r = cache_publish(build, target, tag);
        progress_end(&build->progress, r < 0 ? "ERROR" : "DONE");
    }
    if (r < 0)
        return r;
    note_unused(build);
    *ret_json = json_pack("{s:s?, s:s?, s:I, s:O, s:I}", "name", tag, "image", target->state.image,
        "layers", (json_int_t)target->state.layers.n, "steps", build->steps, "cached",
        (json_int_t)build->n_cached);
    return *ret_json ? 0 : build_out_of_memory(build);
}

static int do_build(struct build *build, json_t **ret_json) {
    struct stage *target;
    int r = layer_store_open(NULL, true, &build->store, build->error);

    build->runner.store = build->store;
    if (r == 0)
        r = open_context(build);
    if (r == 0)
        r = load_dockerfile(build);
    if (r == 0)
        r = load_ignore(build);
    if (r == 0)
        r = stages_plan(build, &target);
    for (size_t i = 0; r == 0 && i < build->n_stages; i++)
        if (build->stages[i].is_needed)
            r = do_stage(build, &build->stages[i]);
    return r < 0 ? r : finish(build, target, ret_json);
}

int build_image(
    const struct build_options *options, json_t **ret_json, struct rollbox_error *error) {
    struct build build = { .options = options,
        .error = error,
        .store = -EBADF,
        .context = -EBADF,
        .global_args = json_object(),
        .pulled = json_object(),
        .used_args = json_object(),
        .steps = json_array() };

    if (options->tag && !manifest_name_ok(options->tag))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%.200s is not an image name: use letters, digits and . _ : @ / + -, and begin with a "
            "letter or digit",
            options->tag);
    progress_init(&build.progress, options->progress);
    build.runner = (struct runner){
        .policy = options->policy, .socket = options->socket, .progress = &build.progress
    };
    int r = do_build(&build, ret_json);
    runner_done(&build.runner);
    stages_done(&build);
    dockerfile_done(&build.file);
    ignore_done(&build.ignore);
    source_done(&build.context_source);
    progress_done(&build.progress);
    json_decref(build.global_args);
    json_decref(build.pulled);
    json_decref(build.used_args);
    json_decref(build.steps);
    close_fd(&build.context);
    close_fd(&build.store);
    return r;
}
