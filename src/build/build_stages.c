/* SPDX-License-Identifier: Apache-2.0 */
/* Stages: which there are, and which of them the target needs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "build/build.h"
#include "store/image.h"

#define MAX_STAGES 500

void stages_done(struct build *build) {
    for (size_t i = 0; i < build->n_stages; i++) {
        struct stage *stage = &build->stages[i];

        free(stage->name);
        free(stage->base_name);
        state_done(&stage->state);
        config_done(&stage->config);
        json_decref(stage->args);
    }
    free(build->stages);
}

struct stage *stages_find(struct build *build, const char *name, const struct stage *limit) {
    char *end;

    for (struct stage *stage = build->stages; stage < limit; stage++)
        if (stage->name && strcasecmp(stage->name, name) == 0)
            return stage;
    if (name[0] < '0' || name[0] > '9')
        return NULL;
    errno = 0;
    unsigned long n = strtoul(name, &end, 10);
    return !*end && !errno && n < (size_t)(limit - build->stages) ? &build->stages[n] : NULL;
}

static bool has_files(const struct instruction *at) {
    return at->kind == INSTRUCTION_FROM || at->kind == INSTRUCTION_RUN ||
           at->kind == INSTRUCTION_COPY || at->kind == INSTRUCTION_ADD ||
           at->kind == INSTRUCTION_WORKDIR;
}

static bool is_stage_name(const char *name) {
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";

    return strspn(name, allowed) == strlen(name) && name[0] && !strchr("0123456789_.-", name[0]) &&
           strcasecmp(name, "scratch") != 0;
}

static int check_platform(struct build *build, const struct instruction *at) {
    const char *flag = step_flag(at, "platform");
    auto_free char *platform = NULL;

    if (!flag)
        return 0;
    int r = step_expand(build, NULL, at, flag, &platform);
    if (r < 0)
        return r;
    const char *slash = strchr(platform, '/');
    const char *machine = image_architecture();
    const size_t length = strlen(machine);
    const bool fits = strncmp(platform, "linux/", 6) == 0 &&
                      strncmp(slash + 1, machine, length) == 0 &&
                      (!slash[1 + length] || slash[1 + length] == '/');
    return fits ? 0
                : dockerfile_refuse(build->error, &build->file, at->line,
                      ROLLBOX_ERR_FEATURE_MISSING,
                      "--platform=%s: this machine builds for linux/%s alone", platform, machine);
}

/* FROM [--platform=P] IMAGE [AS NAME] */
static int add_stage(struct build *build, size_t index) {
    const struct instruction *at = &build->file.items[index];
    struct words words = { 0 };

    if (build->n_stages == MAX_STAGES)
        return step_refuse(build, at, "there are more than %u stages", MAX_STAGES);
    struct stage *stage = array_add(&build->stages, build->n_stages, sizeof *stage);
    if (!stage || expand_split(at->arguments, build->file.escape, &words) < 0)
        return build_out_of_memory(build);
    build->n_stages++;
    stage->first = index;
    stage->args = json_object();
    int r = check_platform(build, at);
    if (r == 0 && words.n != 1 && !(words.n == 3 && strcasecmp(words.list[1], "as") == 0))
        r = step_refuse(build, at, "FROM has the form FROM IMAGE [AS NAME]");
    if (r == 0)
        r = step_expand(build, NULL, at, words.list[0], &stage->base_name);
    if (r == 0 && !stage->base_name[0])
        r = step_refuse(build, at, "FROM %s: the name of the image is empty", words.list[0]);
    if (r == 0 && words.n == 3) {
        if (!is_stage_name(words.list[2]))
            r = step_refuse(
                build, at, "%s is not a name of a stage: letters, digits, _ . -", words.list[2]);
        else if (stages_find(build, words.list[2], stage))
            r = step_refuse(build, at, "there are two stages of the name %s", words.list[2]);
        else if (!(stage->name = strdup(words.list[2])))
            r = build_out_of_memory(build);
    }
    words_done(&words);
    return r;
}

/* ARG before the first FROM. */
static int add_global(struct build *build, const struct instruction *at) {
    if (at->kind != INSTRUCTION_ARG)
        return step_refuse(
            build, at, "%s comes before the first FROM; only ARG may", instruction_name(at->kind));
    int r = step_configure(build, NULL, at);
    return MIN(r, 0);
}

static int collect(struct build *build) {
    int r = 0;

    for (size_t i = 0; r == 0 && i < build->file.n; i++) {
        const struct instruction *at = &build->file.items[i];

        if (at->kind == INSTRUCTION_FROM)
            r = add_stage(build, i);
        else if (!build->n_stages)
            r = add_global(build, at);
        if (r == 0 && build->n_stages) {
            build->stages[build->n_stages - 1].end = i + 1;
            build->stages[build->n_stages - 1].n_steps += has_files(at);
        }
    }
    if (r == 0 && !build->n_stages)
        r = dockerfile_refuse(
            build->error, &build->file, 1, ROLLBOX_ERR_INVALID_ARGUMENT, "there is no FROM");
    /* The array does not move any more. */
    for (size_t i = 0; r == 0 && i < build->n_stages; i++)
        build->stages[i].base = stages_find(build, build->stages[i].base_name, &build->stages[i]);
    return r;
}

static int mark_source(
    struct build *build, struct stage *stage, const struct instruction *at, const char *from) {
    auto_free char *name = NULL;
    int r = step_expand(build, NULL, at, from, &name);
    struct stage *other = r == 0 ? stages_find(build, name, stage) : NULL;

    if (other)
        other->is_needed = true;
    return r;
}

/* COPY --from=, and RUN --mount=from=. */
static int mark_sources(struct build *build, struct stage *stage, const struct instruction *at) {
    const char *from = at->kind == INSTRUCTION_COPY ? step_flag(at, "from") : NULL;
    int r = from ? mark_source(build, stage, at, from) : 0;

    for (size_t i = 0; r == 0 && at->kind == INSTRUCTION_RUN && i < at->flags.n; i++) {
        const bool is_mount = strncmp(at->flags.list[i], "mount=", 6) == 0;
        auto_free char *name = is_mount ? step_option(at->flags.list[i] + 6, "from") : NULL;

        if (name)
            r = mark_source(build, stage, at, name);
    }
    return r;
}

/* A stage needs its base, and those that it copies from. Later stages only need earlier ones. */
static int mark(struct build *build, struct stage *target) {
    int r = 0;

    target->is_needed = true;
    for (struct stage *stage = target; r == 0 && stage >= build->stages; stage--) {
        if (!stage->is_needed)
            continue;
        if (stage->base)
            stage->base->is_needed = true;
        for (size_t i = stage->first; r == 0 && i < stage->end; i++)
            r = mark_sources(build, stage, &build->file.items[i]);
    }
    return r;
}

int stages_plan(struct build *build, struct stage **ret_target) {
    const char *wanted = build->options->target;
    int r = collect(build);

    if (r < 0)
        return r;
    struct stage *end = build->stages + build->n_stages;
    struct stage *target = wanted ? stages_find(build, wanted, end) : end - 1;
    if (!target)
        return dockerfile_refuse(build->error, &build->file, 1, ROLLBOX_ERR_INVALID_ARGUMENT,
            "there is no stage %s (--target)", wanted);
    *ret_target = target;
    return mark(build, target);
}
