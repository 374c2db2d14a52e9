/* SPDX-License-Identifier: Apache-2.0 */
/* RUN: its key, and the command if the key is not in the store. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "build/build.h"

static int read_network(struct build *build, const struct instruction *at, struct run_step *step) {
    const char *network = step_flag(at, "network"), *security = step_flag(at, "security");

    if (network && strcmp(network, "none") == 0)
        step->offline = true;
    else if (network && strcmp(network, "default") != 0)
        return dockerfile_refuse(build->error, &build->file, at->line, ROLLBOX_ERR_FEATURE_MISSING,
            "--network=%s is not supported: a step has the network of the build's policy, or none",
            network);
    if (security && strcmp(security, "sandbox") != 0)
        return dockerfile_refuse(build->error, &build->file, at->line, ROLLBOX_ERR_FEATURE_MISSING,
            "--security=%s is not supported: a step runs in a sandbox", security);
    return 0;
}

static int add_variable(struct run_step *step, const char *name, const char *value) {
    char *pair;

    return asprintf(&pair, "%s=%s", name, value) < 0 ? -ENOMEM : words_take(&step->env, pair);
}

/* ARG, then ENV, which hides it. Proxies are no part of the key. */
static int add_environment(
    struct build *build, struct stage *stage, struct run_step *step, struct digest *key) {
    const json_t *env = stage->config.env;
    json_t *value;
    const char *name;
    int r = 0;

    json_object_foreach((json_t *)(uintptr_t)build->options->build_args, name,
        value) if (r == 0 && step_is_proxy(name) && !json_object_get(env, name)) r =
        add_variable(step, name, json_string_value(value));
    json_object_foreach(stage->args, name, value) {
        if (r < 0 || step_is_proxy(name) || json_object_get(env, name))
            continue;
        step_key_text(key, name);
        step_key_text(key, json_string_value(value));
        r = add_variable(step, name, json_string_value(value));
    }
    json_object_foreach(stage->config.env, name, value) {
        step_key_text(key, name);
        step_key_text(key, json_string_value(value));
        if (r == 0)
            r = add_variable(step, name, json_string_value(value));
    }
    return r < 0 ? build_out_of_memory(build) : 0;
}

/* RUN <<EOF: the body is the script. With another command, the shell has the heredoc. */
static int make_text(struct build *build, const struct instruction *at, char **ret_text) {
    auto_buf struct buf text = BUF_INIT;
    const bool alone = at->n_heredocs == 1 && strncmp(at->arguments, "<<", 2) == 0 &&
                       !strpbrk(at->arguments, " \t");

    if (alone) {
        buf_add_text(&text, at->heredocs[0].body);
    } else {
        buf_add_text(&text, at->arguments);
        for (size_t i = 0; i < at->n_heredocs; i++)
            buf_printf(&text, "\n%s%s", at->heredocs[i].body, at->heredocs[i].name);
    }
    buf_add(&text, "", 1);
    *ret_text = buf_failed(&text) ? NULL : buf_take(&text);
    return *ret_text ? 0 : build_out_of_memory(build);
}

/* A script with "#!" is a program of its own. */
static int set_script(struct build *build, struct run_step *step, const char *text) {
    static const char path[] = "/run/rollbox-heredoc";
    auto_buf struct buf data = BUF_INIT;

    buf_add_text(&data, text);
    words_done(&step->argv);
    if (words_add(&step->argv, path, strlen(path)) < 0)
        return build_out_of_memory(build);
    return mounts_add_file(build, step, path, &data, 0755);
}

static int prepare_run(struct build *build, struct stage *stage, const struct instruction *at,
    struct run_step *step, struct digest *key) {
    auto_free char *text = NULL;
    int r = make_text(build, at, &text);
    json_t *command = r == 0 ? step_command(stage, at, text) : NULL, *word;
    size_t i;

    json_array_foreach(command, i, word) {
        if (words_add(&step->argv, json_string_value(word), json_string_length(word)) < 0)
            r = build_out_of_memory(build);
        step_key_text(key, json_string_value(word));
    }
    json_decref(command);
    if (r == 0 && !step->argv.n)
        r = step_refuse(build, at, "RUN has no command");
    if (r == 0 && at->n_heredocs == 1 && strncmp(text, "#!", 2) == 0)
        r = set_script(build, step, text);
    if (r == 0)
        r = add_environment(build, stage, step, key);
    for (i = 0; r == 0 && i < at->flags.n; i++)
        if (strncmp(at->flags.list[i], "mount=", 6) == 0)
            r = mounts_add(build, stage, at, at->flags.list[i] + 6, step, key);
    if (r == 0)
        r = read_network(build, at, step);
    step->cwd = stage->config.cwd[0] ? stage->config.cwd : "/";
    step->user = stage->config.user;
    step_key_text(key, step->cwd);
    step_key_text(key, step->user);
    digest_add_u64(key, step->offline);
    return r;
}

static int run_and_store(struct build *build, struct stage *stage, const struct instruction *at,
    struct run_step *step, const char *key) {
    auto_free char *bound = NULL;
    struct layer_list layers;
    int status = 0;

    if (step->binds) {
        int r = files_bound_image(build, stage, step->binds, key, &bound);

        if (r < 0)
            return step_failed(build, at, r);
        step->image = bound;
    }
    if (layer_list_copy(&stage->state.layers, &layers) < 0)
        return build_out_of_memory(build);
    int r = run_execute(&build->runner, step, &layers, &status, build->error);
    if (r < 0) {
        layer_list_done(&layers);
        return step_failed(build, at, r);
    }
    if (status) {
        layer_list_done(&layers);
        return step_refuse(build, at, "%s %.300s: exit status %d", instruction_name(at->kind),
            at->arguments, status);
    }
    r = cache_store(build, stage, key, &layers);
    return r < 0 ? step_failed(build, at, r) : 0;
}

int files_run(struct build *build, struct stage *stage, const struct instruction *at) {
    struct run_step step = { .image = stage->state.image };
    char key_hex[DIGEST_HEX + 1];
    struct digest key;

    step_begin(build, stage, at);
    if (!stage->state.image)
        return step_refuse(build, at, "RUN: the stage has no files yet; COPY a program first");
    step_key_begin(&key, stage, "run");
    int r = prepare_run(build, stage, at, &step, &key);
    digest_end_hex(&key, key_hex);
    const bool cached = r == 0 && cache_find(build, stage, key_hex);
    if (r == 0 && !cached)
        r = run_and_store(build, stage, at, &step, key_hex);
    if (r == 0)
        step_end(build, stage, at, cached);
    files_binds_free(step.binds);
    run_step_done(&step);
    return r;
}
