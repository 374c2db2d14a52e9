/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds an image from a Dockerfile.
 *
 * A stage is carried out instruction by instruction. Instructions about the configuration change
 * it in memory. Instructions about files have a key: a digest of the files below, of what they do
 * and of what they read. The result of a step is the image "build/KEY" of the store, which later
 * builds find there. It appears when it is complete, so a killed build leaves nothing half done.
 */
#ifndef ROLLBOX_BUILD_BUILD_H
#define ROLLBOX_BUILD_BUILD_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include <rollbox/rollbox.h>

#include "build/config.h"
#include "build/copy.h"
#include "build/dockerfile.h"
#include "build/expand.h"
#include "build/progress.h"
#include "build/run.h"
#include "build/source.h"
#include "store/add_layer.h"

#define BUILD_PREFIX "build/"
#define BUILD_KEY_DIGITS 32
#define BUILD_MAX_LAYERS 128 /* of the root of a sandbox */

/* When images are fetched from registries. */
enum build_pull { BUILD_PULL_MISSING, BUILD_PULL_ALWAYS, BUILD_PULL_NEVER };

struct build_options {
    const char *context, *file, *tag, *target;
    json_t *build_args; /* object */
    json_t *secrets;    /* object: id -> {"file"} or {"env"} */
    json_t *agents;     /* object: id -> the socket of an SSH agent */
    bool no_cache;
    enum build_pull pull;
    bool insecure;        /* of registries: pull_options */
    const char *authfile; /* NULL: none */
    const char *socket;
    json_t *policy;
    struct unpack_limits limits;
    enum progress_form progress;
};

/* Files of a state of a stage. */
struct state {
    struct layer_list layers;
    char key[DIGEST_HEX + 1]; /* of the instructions that made them */
    char *image;              /* of the store, with these layers; NULL: there are none */
};

struct stage {
    char *name;   /* NULL: it has none */
    size_t first; /* FROM */
    size_t end;   /* after its last instruction */
    char *base_name;
    struct stage *base; /* NULL: an image */
    bool is_needed, is_done;
    struct state state;
    struct config config;
    json_t *args; /* object: ARG of the stage */
    unsigned step, n_steps;
};

struct build {
    const struct build_options *options;
    struct rollbox_error *error;
    int store, context;
    struct dockerfile file;
    struct ignore ignore;
    struct source context_source;
    struct stage *stages;
    size_t n_stages;
    json_t *global_args;
    json_t *pulled;    /* object: the images that this build has pulled */
    json_t *used_args; /* of --build-arg: those that an ARG has named */
    struct progress progress;
    struct runner runner;
    json_t *steps; /* for the result */
    unsigned n_cached;
};

/* *ret_json: {"name", "layers", "steps": [{"stage", "instruction", "line", "image", "cached"}],
 * "cached"}. */
int build_image(
    const struct build_options *options, json_t **ret_json, struct rollbox_error *error);

/* ---- step.c ---- */

/* An error of an instruction. */
#define step_refuse(build, at, ...)                                                                \
    dockerfile_refuse(                                                                             \
        (build)->error, &(build)->file, (at)->line, ROLLBOX_ERR_INVALID_ARGUMENT, __VA_ARGS__)
/* Puts the instruction's line before an error that a lower part has set. Returns `r`. */
int step_failed(struct build *build, const struct instruction *at, int r);
int build_out_of_memory(struct build *build);

/* Tells that a step of files begins, and how it has ended. */
void step_begin(struct build *build, struct stage *stage, const struct instruction *at);
void step_end(struct build *build, struct stage *stage, const struct instruction *at, bool cached);

/* The value of a flag such as --from=; NULL: not given. */
const char *step_flag(const struct instruction *at, const char *name);

/* The value of an option of NAME=VALUE,NAME=VALUE, for free(); NULL: it has none. */
char *step_option(const char *text, const char *name);

/* The beginning of a step's key: the files below, and the kind of the step. */
void step_key_begin(struct digest *key, const struct stage *stage, const char *what);
void step_key_text(struct digest *key, const char *text);

/* ---- build_stages.c ---- */

/* Divides the Dockerfile into stages, and marks those that the target needs. *ret_target. */
int stages_plan(struct build *build, struct stage **ret_target);
void stages_done(struct build *build);
/* The stage before `limit` of a name or number; NULL. */
struct stage *stages_find(struct build *build, const char *name, const struct stage *limit);

/* ---- build_steps.c: instructions about the configuration ---- */

/* 1: it was one, and is done; 0: it is about files. */
int step_configure(struct build *build, struct stage *stage, const struct instruction *at);

/* The argument with its variables replaced, for free(). */
int step_expand(struct build *build, struct stage *stage, const struct instruction *at,
    const char *text, char **ret_text);

/* The same for the body of a heredoc, where quotes are nothing special. */
int step_expand_body(struct build *build, struct stage *stage, const struct instruction *at,
    const char *text, char **ret_text);

/* All arguments with their variables replaced. `splits`: a variable with blanks is several. */
int step_words(struct build *build, struct stage *stage, const struct instruction *at, bool splits,
    struct words *ret_words);

/* The JSON form, or the words of the shell and `text`. A new array, NULL: out of memory. */
json_t *step_command(const struct stage *stage, const struct instruction *at, const char *text);

/* Variables that need no ARG, and are no part of a step's key. */
bool step_is_proxy(const char *name);

/* ---- build_files.c: instructions about files ---- */

int files_from(struct build *build, struct stage *stage, const struct instruction *at);
int files_copy(struct build *build, struct stage *stage, const struct instruction *at);
int files_workdir(struct build *build, struct stage *stage, const struct instruction *at);

/* The files of a --mount=type=bind as a layer of the step. `from` NULL: the context. */
int files_bind(struct build *build, struct stage *stage, const struct instruction *at,
    const char *from, const char *source, const char *target, struct run_step *step,
    struct digest *key);
/* The stage's image with those files: its name, for free(). */
int files_bound_image(struct build *build, const struct stage *stage, struct binds *binds,
    const char *key, char **ret_image);
struct binds *files_binds_free(struct binds *binds);

/* ---- build_run.c ---- */

int files_run(struct build *build, struct stage *stage, const struct instruction *at);

/* ---- mounts.c ---- */

/* Adds the mount of a flag of RUN. */
int mounts_add(struct build *build, struct stage *stage, const struct instruction *at,
    const char *flag, struct run_step *step, struct digest *key);
/* A file that is there while the command runs. */
int mounts_add_file(
    struct build *build, struct run_step *step, const char *path, struct buf *data, unsigned mode);

/* ---- build_cache.c ---- */

/* Looks for the step's result, and makes it the stage's state. 1: it was there. */
int cache_find(struct build *build, struct stage *stage, const char *key);
/* Stores the layers as the step's result, and makes them the stage's state. Takes the list. */
int cache_store(
    struct build *build, struct stage *stage, const char *key, struct layer_list *take_layers);
/* Stores the layers, with the stage's configuration, as an image for a step to run in. Takes the
 * list. *ret_image: its name, for free(). */
int cache_bind(struct build *build, const struct stage *stage, const char *key,
    struct layer_list *take_layers, char **ret_image);
/* Opens an image of the store, after pulling it if the options say so. */
int cache_open(struct build *build, const char *name, unsigned line, struct state *ret_state,
    struct manifest *ret_manifest);
/* Publishes the stage as an image with that name, unless it is that already. */
int cache_publish(struct build *build, const struct stage *stage, const char *name);
void state_done(struct state *state);

#endif
