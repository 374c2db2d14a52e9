/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executes a RUN instruction.
 *
 * A sandbox is created from the step's image and runs the command. Its changes are then exported
 * through a pipe, while the store reads the other end. At last the sandbox is closed.
 */
#include "build/run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "build/changes.h"
#include "build/source.h"
#include "build/ssh_agent.h"
#include "store/files.h"

#define MAX_OUTPUT (1ll << 40)

static int out_of_memory(struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "build", "out of memory");
}

void run_step_done(struct run_step *step) {
    for (size_t i = 0; i < step->n_files; i++) {
        free(step->files[i].path);
        if (step->files[i].data)
            explicit_bzero(step->files[i].data, step->files[i].length);
        free(step->files[i].data);
    }
    free(step->files);
    words_done(&step->argv);
    words_done(&step->env);
    words_done(&step->mounts);
    words_done(&step->dropped);
    caches_done(&step->caches);
    json_decref(step->tmpfs);
    *step = (struct run_step){ 0 };
}

void runner_done(struct runner *runner) {
    if (runner->engine)
        rollbox_engine_close(runner->engine);
    runner->engine = NULL;
}

static int start_engine(struct runner *runner, struct rollbox_error *error) {
    const struct rollbox_engine_options options = { .size = sizeof options,
        .socket_path = runner->socket };

    return runner->engine ? 0 : rollbox_engine_open(&options, &runner->engine, error);
}

/* What a step's sandbox has besides its image, while it runs. */
struct extras {
    json_t *volumes;
    struct ssh_agent *agent; /* NULL: none */
};

/* The caller's policy with the step's image. A build may need more than a single program, so its
 * default limits are larger. */
static char *make_policy(
    const struct runner *runner, const struct run_step *step, const struct extras *extras) {
    static const char *const network_keys[] = { "net", "net_allow_hosts", "net_allow",
        "net_secrets", "net_log_file", "net_record", "net_replay", "net_max_upload" };
    json_t *policy = json_deep_copy(runner->policy);

    if (step) {
        json_t *defaults = json_pack("{s:s, s:s, s:s, s:i, s:s}", "max_memory", "2G", "max_disk",
            "32G", "disk_at", "store", "max_processes", 4096, "timeout", "none");

        json_object_update_missing(policy, defaults);
        json_decref(defaults);
        json_object_set_new(policy, "image", json_string(step->image));
        json_object_set_new(policy, "users", json_string("many"));
        if (json_object_size(extras->volumes))
            json_object_set(policy, "volumes", extras->volumes);
        if (step->tmpfs)
            json_object_set(policy, "tmpfs", step->tmpfs);
        if (extras->agent) {
            json_t *readable = json_deep_copy(json_object_get(policy, "fs_readable_extra"));

            if (!readable)
                readable = json_array();
            json_array_append_new(readable, json_string(ssh_agent_directory(extras->agent)));
            json_object_set_new(policy, "fs_readable_extra", readable);
        }
    }
    for (size_t i = 0; step && step->offline && i < ARRAY_SIZE(network_keys); i++)
        json_object_del(policy, network_keys[i]);
    char *text = json_dumps(policy, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(policy);
    return text;
}

static int open_sandbox(struct runner *runner, const struct run_step *step,
    const struct extras *extras, struct rollbox_sandbox **ret_sandbox,
    struct rollbox_error *error) {
    auto_free char *policy = make_policy(runner, step, extras);
    struct rollbox_plan *plan;

    if (!policy)
        return out_of_memory(error);
    int r = start_engine(runner, error);
    if (r == 0)
        r = rollbox_prepare(runner->engine, policy, strlen(policy), &plan, error);
    return r < 0 ? r : rollbox_sandbox_create(runner->engine, plan, NULL, ret_sandbox, error);
}

/* ---- the command ---- */

/* Relays the output until the command has ended and both pipes have reached end of file. */
static int relay_output(struct runner *runner, struct rollbox_run *run, int *outputs,
    const struct rollbox_result **ret_result) {
    struct pollfd polled[3] = { { outputs[0], POLLIN, 0 }, { outputs[1], POLLIN, 0 },
        { rollbox_engine_fd(runner->engine), POLLIN, 0 } };
    const struct rollbox_result *result = NULL;
    char data[16384];

    while (!result || polled[0].fd >= 0 || polled[1].fd >= 0) {
        if (poll(polled, 3, -1) < 0 && errno != EINTR)
            return -errno;
        for (size_t i = 0; i < 2; i++) {
            if (polled[i].fd < 0 || !polled[i].revents)
                continue;
            ssize_t n = read(polled[i].fd, data, sizeof data);
            if (n > 0)
                progress_output(runner->progress, data, (size_t)n);
            else if (n == 0 || (errno != EINTR && errno != EAGAIN))
                polled[i].fd = -1;
        }
        if (polled[2].fd >= 0 && polled[2].revents && rollbox_dispatch(runner->engine) < 0)
            polled[2].fd = -1;
        if (!result && rollbox_wait(run, 0, &result) == 0)
            polled[2].fd = -1;
    }
    *ret_result = result;
    return 0;
}

static int status_of(
    const struct rollbox_result *result, int *ret_status, struct rollbox_error *error) {
    switch (result->outcome) {
    case ROLLBOX_OUTCOME_EXIT:
        *ret_status = result->exit_code;
        return 0;
    case ROLLBOX_OUTCOME_SIGNAL:
        *ret_status = 128 + result->signal;
        return 0;
    case ROLLBOX_OUTCOME_OUT_OF_MEMORY:
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "build",
            "the command needs more memory than the build may use; raise the limit with --memory");
    case ROLLBOX_OUTCOME_TIMEOUT:
        return error_set(error, ROLLBOX_ERR_CANCELLED, ETIMEDOUT, "build",
            "the command has not ended within the policy's timeout");
    case ROLLBOX_OUTCOME_OUTPUT_LIMIT:
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, EFBIG, "build",
            "the command has written more than the policy's max_output");
    case ROLLBOX_OUTCOME_ERROR:
    default:
        *error = result->error;
        return -MAX(result->error.error_number, 1);
    }
}

/* Root writes the files, because the command's user may have no right to write there. The files
 * then belong to that user. */
static int write_files(
    const struct run_step *step, struct rollbox_sandbox *sandbox, struct rollbox_error *error) {
    int r = 0;

    for (size_t i = 0; r == 0 && i < step->n_files; i++) {
        const struct run_file *file = &step->files[i];
        const struct rollbox_file_options options = {
            .size = sizeof options, .owner = step->user[0] ? step->user : NULL, .mode = file->mode
        };

        r = rollbox_file_write_as(sandbox, file->path, file->data, file->length, &options, error);
    }
    return r;
}

static int run_command(struct runner *runner, const struct run_step *step,
    const struct ssh_agent *agent, struct rollbox_sandbox *sandbox, int *ret_status,
    struct rollbox_error *error) {
    const struct rollbox_result *result = NULL;
    auto_free const char **env = calloc(step->env.n + 2, sizeof *env);
    struct rollbox_run *run;
    int pipes[2][2];

    if (!env)
        return out_of_memory(error);
    for (size_t i = 0; i < step->env.n; i++)
        env[i] = step->env.list[i];
    if (agent)
        env[step->env.n] = ssh_agent_variable(agent);
    if (pipe2(pipes[0], O_CLOEXEC) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, errno, "build",
            "cannot make a pipe: %s", strerror(errno));
    auto_close int out = pipes[0][0], out_end = pipes[0][1];
    if (pipe2(pipes[1], O_CLOEXEC) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, errno, "build",
            "cannot make a pipe: %s", strerror(errno));
    auto_close int err = pipes[1][0], err_end = pipes[1][1];
    const struct rollbox_exec_options options = { .size = sizeof options,
        .argv = (const char *const *)step->argv.list,
        .env = env,
        .cwd = step->cwd,
        .user = step->user[0] ? step->user : "0:0",
        .timeout_ms = -1,
        .output_limit = json_object_get(runner->policy, "max_output") ? -1 : MAX_OUTPUT,
        .input_fd = -1,
        .stream_fds = { out_end, err_end } };
    int r = rollbox_exec(sandbox, &options, &run, error);
    if (r < 0)
        return r;
    close_fd(&out_end);
    close_fd(&err_end);
    int outputs[2] = { out, err };
    r = relay_output(runner, run, outputs, &result);
    r = r < 0 ? error_set(error, ROLLBOX_ERR_IO, -r, "build",
                    "cannot read the command's output: %s", strerror(-r))
              : status_of(result, ret_status, error);
    rollbox_run_free(run);
    return r;
}

/* ---- the layer ---- */

/* What add_exported_layers needs besides the archive. */
struct taking {
    int store;
    struct layer_list *layers;
    struct layer_exclusions exclusions;
};

static int take_layers(void *context, int archive, struct rollbox_error *error) {
    const struct taking *taking = context;

    return add_exported_layers(taking->store, taking->layers, archive, &taking->exclusions, error);
}

/* Adds the parent directories that the image lacks, the deepest first. */
static int add_made_directories(
    const struct layer_list *layers, const char *path, struct words *left_out) {
    struct source image = { 0 };
    auto_free char *part = strdup(path + strspn(path, "/"));
    int r = part ? layer_list_stack(layers, &image.top) : -ENOMEM;

    for (char *slash; r == 0 && (slash = strrchr(part, '/'));) {
        struct found found;

        *slash = '\0';
        if (source_find(&image, part, &found) == 0)
            found_done(&found);
        else
            r = words_add(left_out, part, strlen(part));
    }
    source_done(&image);
    return r;
}

/* Lists the paths that exist in the sandbox and must not be in the layer. */
static int list_left_out(const struct run_step *step, const struct ssh_agent *agent,
    const struct layer_list *layers, struct words *left_out) {
    int r = 0;

    for (size_t i = 0; r == 0 && layer_mount_points[i]; i++)
        r = words_add(left_out, layer_mount_points[i], strlen(layer_mount_points[i]));
    for (size_t i = 0; r == 0 && i < step->n_files; i++)
        r = add_made_directories(layers, step->files[i].path, left_out);
    for (size_t i = 0; r == 0 && i < step->mounts.n; i++)
        r = add_made_directories(layers, step->mounts.list[i], left_out);
    if (r == 0 && agent) {
        auto_free char *inner = NULL;

        r = asprintf(&inner, "%s/.", ssh_agent_directory(agent)) < 0
                ? -ENOMEM
                : add_made_directories(layers, inner, left_out);
    }
    return r;
}

static int add_changes(struct runner *runner, const struct run_step *step,
    const struct ssh_agent *agent, struct rollbox_sandbox *sandbox, struct layer_list *layers,
    struct rollbox_error *error) {
    struct words left_out = { 0 };
    int r = list_left_out(step, agent, layers, &left_out);

    if (r == 0) {
        struct taking taking = { runner->store, layers,
            { .if_empty = (const char *const *)left_out.list,
                .n_if_empty = left_out.n,
                .dropped = (const char *const *)step->dropped.list,
                .n_dropped = step->dropped.n } };

        r = changes_read(sandbox, NULL, take_layers, &taking, error);
    } else {
        r = out_of_memory(error);
    }
    words_done(&left_out);
    return r;
}

/* A secret would replace a file that the image has at its path, and the layer would lack that
 * file. */
static int check_places(
    const struct run_step *step, const struct layer_list *layers, struct rollbox_error *error) {
    struct source image = { 0 };
    int r = step->n_files ? layer_list_stack(layers, &image.top) : 0;

    if (r < 0)
        return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "build",
            "cannot open the image's layers: %s", strerror(-r));
    for (size_t i = 0; r == 0 && i < step->n_files; i++) {
        auto_free char *path = NULL;
        struct found found;

        if (source_resolve(&image, step->files[i].path, SOURCE_TAIL_KEPT, &path, &found) < 0)
            continue;
        found_done(&found);
        r = error_set(error, ROLLBOX_ERR_CONFLICT, EEXIST, "build",
            "%s: the image has a file there already; give the secret another target",
            files_printable(step->files[i].path));
    }
    source_done(&image);
    return r;
}

/* A secret that the command moved would get into the layer. A file that the command put in its
 * place would be removed by remove_files. */
static int check_unmoved(
    const struct run_file *file, struct rollbox_sandbox *sandbox, struct rollbox_error *error) {
    struct rollbox_error ignored = { 0 };
    void *data = NULL;
    size_t length = 0;

    int r = rollbox_file_read(
        sandbox, file->path, MAX(file->length, (size_t)1), &data, &length, &ignored);
    const bool is_same = r == 0 && length == file->length && !memcmp(data, file->data, length);
    if (data)
        explicit_bzero(data, length);
    free(data);
    return is_same ? 0
                   : error_set(error, ROLLBOX_ERR_CONFLICT, EBUSY, "build",
                         "the command has moved, removed or changed the secret %s; leave it where "
                         "it is, so that the image does not keep it",
                         files_printable(file->path));
}

static int remove_files(
    const struct run_step *step, struct rollbox_sandbox *sandbox, struct rollbox_error *error) {
    int r = 0;

    for (size_t i = 0; r == 0 && i < step->n_files; i++) {
        struct rollbox_error inner = { 0 };

        if (step->files[i].is_secret)
            r = check_unmoved(&step->files[i], sandbox, error);
        if (r < 0)
            break;
        r = rollbox_file_remove(sandbox, step->files[i].path, false, &inner);
        if (r < 0 && inner.code == ROLLBOX_ERR_NOT_FOUND)
            r = 0;
        else if (r < 0)
            *error = inner;
    }
    return r;
}

static int execute(struct runner *runner, const struct run_step *step, const struct extras *extras,
    struct layer_list *layers, int *ret_status, struct rollbox_error *error) {
    struct rollbox_sandbox *sandbox;
    int r = open_sandbox(runner, step, extras, &sandbox, error);

    if (r < 0)
        return r;
    r = write_files(step, sandbox, error);
    if (r == 0)
        r = run_command(runner, step, extras->agent, sandbox, ret_status, error);
    /* Processes that the command has left running must not write any more. */
    if (r == 0)
        r = rollbox_signal(sandbox, NULL, SIGKILL, ROLLBOX_SCOPE_TREE, error);
    if (r == 0 && *ret_status == 0)
        r = remove_files(step, sandbox, error);
    if (r == 0 && *ret_status == 0)
        r = add_changes(runner, step, extras->agent, sandbox, layers, error);
    (void)rollbox_sandbox_close(sandbox, NULL);
    return r;
}

int run_execute(struct runner *runner, struct run_step *step, struct layer_list *layers,
    int *ret_status, struct rollbox_error *error) {
    struct extras extras = { NULL, NULL };
    int r = check_places(step, layers, error);

    if (r == 0)
        r = caches_take(&step->caches, runner->store, runner->progress, &extras.volumes, error);
    if (r == 0 && step->agent)
        r = ssh_agent_start(step->agent, &extras.agent, error);
    if (r == 0)
        r = execute(runner, step, &extras, layers, ret_status, error);
    ssh_agent_stop(extras.agent);
    json_decref(extras.volumes);
    caches_give_back(&step->caches);
    return r;
}

/* ---- downloads ---- */

#define CURL_TOO_LARGE 63 /* of --max-filesize, curl(1) */

static int too_large(const char *url, struct rollbox_error *error) {
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EFBIG, "build",
        "%.300s is too large (--max-bytes sets the limit)", url);
}

int run_fetch(struct runner *runner, const char *url, size_t limit, int *ret_fd,
    struct rollbox_error *error) {
    static const char *const curl = "curl";
    char limit_text[32];
    const char *const argv[] = { curl, "-fsSL", "--proto", "=http,https", "--max-filesize",
        limit_text, "--", url, NULL };
    auto_free char *policy = make_policy(runner, NULL, NULL);
    const struct rollbox_result *result;
    struct rollbox_plan *plan;
    struct rollbox_run *run;

    if (!policy)
        return out_of_memory(error);
    snprintf(limit_text, sizeof limit_text, "%zu", limit);
    auto_close int fd = openat(runner->store, "tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    auto_close int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int ends[2];
    if (fd < 0 || null < 0 || pipe2(ends, O_CLOEXEC) < 0)
        return error_set(error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, errno, "build",
            "cannot make a file for the download: %s", strerror(errno));
    auto_close int from = ends[0], to = ends[1];
    int r = start_engine(runner, error);
    if (r == 0)
        r = rollbox_prepare(runner->engine, policy, strlen(policy), &plan, error);
    if (r < 0)
        return r;
    auto_close int messages = memfd_create("messages", MFD_CLOEXEC);
    const int stdio[3] = { null, to, messages };
    const struct rollbox_run_options options = { .size = sizeof options,
        .argv = argv,
        .stdio_fds = stdio,
        .timeout_ms = -1,
        .output_limit = -1 };
    r = rollbox_start(runner->engine, plan, &options, &run, error);
    if (r < 0)
        return r;
    close_fd(&to);
    char data[65536];
    uint64_t total = 0;
    ssize_t n;
    while ((n = read(from, data, sizeof data)) > 0 && r == 0) {
        total += (uint64_t)n;
        if (total > limit || write(fd, data, (size_t)n) != n)
            r = too_large(url, error);
    }
    if (r < 0)
        (void)rollbox_kill(run, ROLLBOX_OUTCOME_ERROR);
    (void)rollbox_wait(run, -1, &result);
    if (r == 0 && result->outcome == ROLLBOX_OUTCOME_ERROR) {
        *error = result->error;
        r = -MAX(result->error.error_number, 1);
    } else if (r == 0 && result->exit_code == CURL_TOO_LARGE) {
        r = too_large(url, error);
    } else if (r == 0 && (result->outcome != ROLLBOX_OUTCOME_EXIT || result->exit_code)) {
        ssize_t length = pread(messages, data, 300, 0);

        while (length > 0 && data[length - 1] == '\n')
            length--;
        r = error_set(error, ROLLBOX_ERR_IO, EIO, "build",
            "%.300s cannot be downloaded: %.*s; a build reaches only the hosts that --allow names",
            url, (int)MAX(length, (ssize_t)0), data);
    }
    rollbox_run_free(run);
    if (r == 0)
        *ret_fd = TAKE_FD(fd);
    return r;
}
