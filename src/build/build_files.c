/* SPDX-License-Identifier: Apache-2.0 */
/* Instructions that change files: their keys, and what they do if their key is not in the store. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/passwd.h"
#include "base/text.h"
#include "build/build.h"

#define MAX_PASSWD (1u << 20)
#define MAX_DOWNLOAD (4ull << 30)

/* ---- FROM ---- */

static int from_stage(struct build *build, struct stage *stage) {
    const struct stage *base = stage->base;

    stage->state.image = base->state.image ? strdup(base->state.image) : NULL;
    memcpy(stage->state.key, base->state.key, sizeof stage->state.key);
    if ((base->state.image && !stage->state.image) ||
        layer_list_copy(&base->state.layers, &stage->state.layers) < 0 ||
        config_copy(&base->config, &stage->config) < 0)
        return build_out_of_memory(build);
    return 0;
}

int files_from(struct build *build, struct stage *stage, const struct instruction *at) {
    const char *name = stage->base_name;
    struct manifest manifest;
    int r;

    step_begin(build, stage, at);
    if (stage->base) {
        r = from_stage(build, stage);
    } else if (strcasecmp(name, "scratch") == 0) {
        snprintf(stage->state.key, sizeof stage->state.key, "scratch");
        r = config_new(NULL, &stage->config) < 0 ? build_out_of_memory(build) : 0;
    } else {
        r = cache_open(build, strncmp(name, "docker://", 9) ? name : name + 9, at->line,
            &stage->state, &manifest);
        if (r < 0)
            return r;
        r = config_new(&manifest, &stage->config) < 0 ? build_out_of_memory(build) : 0;
        if (r == 0 && json_array_size(json_object_get(stage->config.oci, "OnBuild")))
            progress_note(&build->progress,
                "%s:%u: the image's ONBUILD instructions are not carried out", build->file.name,
                at->line);
        manifest_done(&manifest);
    }
    if (r == 0)
        json_object_del(stage->config.oci, "OnBuild");
    if (r == 0)
        step_end(build, stage, at, false);
    return r;
}

/* ---- COPY, ADD, WORKDIR ---- */

/* The merged files of the stage. */
static int open_base(struct build *build, const struct stage *stage, struct source *ret_source) {
    struct source source = { 0 };
    int r = layer_list_stack(&stage->state.layers, &source.top);

    if (r < 0)
        return error_set(build->error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "build",
            "cannot open the image's layers: %s", strerror(-r));
    *ret_source = source;
    return 0;
}

static int write_step(
    void *context, struct archive *tar, json_t **ret_report, struct rollbox_error *error) {
    return copy_write(context, tar, ret_report, error);
}

/* Adds the layer to the list. `hex`: the digest that its files have. */
static int write_layer(struct build *build, const struct copy_step *step, const int *readable,
    size_t n_readable, const char *hex, struct layer_list *layers) {
    const struct layer_writer writer = { .write = write_step,
        .context = (void *)(uintptr_t)step,
        .readable = readable,
        .n_readable = n_readable,
        .limits = build->options->limits };
    json_t *report = NULL;
    int r = add_written_layer(build->store, layers, &writer, &report, build->error);
    const char *read = json_string_value(json_object_get(report, "digest"));

    if (r == 0 && (!read || strcmp(read, hex) != 0))
        r = error_set(build->error, ROLLBOX_ERR_CONFLICT, EAGAIN, "build",
            "the files were changed while they were read; try again");
    json_decref(report);
    return r;
}

/* Finds the step's result by its key, or writes the layer. Takes nothing of `step`. */
static int run_copy(struct build *build, struct stage *stage, const struct instruction *at,
    const struct copy_step *step, const int *readable, size_t n_readable) {
    char hex[DIGEST_HEX + 1], key_hex[DIGEST_HEX + 1];
    struct layer_list layers;
    struct digest digest, key;

    digest_init(&digest);
    int r = copy_digest(step, &digest, build->error);
    digest_end_hex(&digest, hex);
    if (r < 0)
        return step_failed(build, at, r);
    step_key_begin(&key, stage, "copy");
    step_key_text(&key, hex);
    digest_end_hex(&key, key_hex);
    if (cache_find(build, stage, key_hex)) {
        step_end(build, stage, at, true);
        return 0;
    }
    if (layer_list_copy(&stage->state.layers, &layers) < 0)
        return build_out_of_memory(build);
    r = write_layer(build, step, readable, n_readable, hex, &layers);
    if (r == 0)
        r = cache_store(build, stage, key_hex, &layers);
    layer_list_done(&layers);
    if (r < 0)
        return step_failed(build, at, r);
    step_end(build, stage, at, false);
    return 0;
}

int files_workdir(struct build *build, struct stage *stage, const struct instruction *at) {
    auto_free char *path = NULL;
    struct source base = { 0 };
    struct found found;

    int r = step_expand(build, stage, at, at->arguments, &path);
    if (r == 0 && !path[0])
        r = step_refuse(build, at, "WORKDIR needs a path");
    if (r < 0)
        return r;
    char *joined = config_join(&stage->config, path);
    if (!joined)
        return build_out_of_memory(build);
    free(stage->config.cwd);
    stage->config.cwd = joined;
    step_begin(build, stage, at);
    r = open_base(build, stage, &base);
    if (r < 0)
        return r;
    auto_free char *plain = NULL;
    if (source_resolve(&base, joined, SOURCE_TAIL_FOLLOWED, &plain, &found) == 0) {
        const bool is_directory = S_ISDIR(found.st.st_mode);

        found_done(&found);
        if (is_directory)
            step_end(build, stage, at, false);
        else
            r = step_refuse(build, at, "WORKDIR %s is there and no directory", joined);
    } else {
        struct copy_step step = { .destination = strdup(joined),
            .into_directory = true,
            .base = &base,
            .limits = build->options->limits };

        r = step.destination ? run_copy(build, stage, at, &step, NULL, 0)
                             : build_out_of_memory(build);
        copy_done(&step);
    }
    source_done(&base);
    return r;
}

/* ---- flags ---- */

static bool find_id(const struct source *base, const char *file, const char *name, bool group,
    struct passwd_user *ret_user) {
    const struct passwd_text wanted = { name, strlen(name) };
    auto_free char *text = NULL;
    uint32_t number;

    if (passwd_number(wanted, &number)) {
        const struct passwd_user user = { .uid = number, .gid = number };

        *ret_user = user;
        return true;
    }
    if (source_read(base, file, MAX_PASSWD, &text) < 0)
        return false;
    const struct passwd_text all = { text, strlen(text) };
    return group ? passwd_group(all, wanted, &ret_user->gid)
                 : passwd_by_name(all, wanted, ret_user);
}

/* --chown=USER[:GROUP], names or numbers, looked up in the image. */
static int read_owner(struct build *build, struct stage *stage, const struct instruction *at,
    const struct source *base, struct copy_step *step) {
    const char *flag = step_flag(at, "chown");
    auto_free char *text = NULL;
    struct passwd_user user = { 0 }, group = { 0 };

    if (!flag)
        return 0;
    int r = step_expand(build, stage, at, flag, &text);
    if (r < 0)
        return r;
    char *colon = strchr(text, ':');
    if (colon)
        *colon = '\0';
    if (text[0] && !find_id(base, "etc/passwd", text, false, &user))
        return step_refuse(
            build, at, "--chown: the image's /etc/passwd has no user %s; give a number", text);
    if (colon && colon[1] && !find_id(base, "etc/group", colon + 1, true, &group))
        return step_refuse(
            build, at, "--chown: the image's /etc/group has no group %s; give a number", colon + 1);
    step->has_owner = true;
    step->uid = user.uid;
    step->gid = colon && colon[1] ? group.gid : user.gid;
    return 0;
}

static int read_mode(struct build *build, struct stage *stage, const struct instruction *at,
    struct copy_step *step) {
    const char *flag = step_flag(at, "chmod");
    auto_free char *text = NULL;
    char *end;

    if (!flag)
        return 0;
    int r = step_expand(build, stage, at, flag, &text);
    if (r < 0)
        return r;
    unsigned long mode = strtoul(text, &end, 8);
    if (!text[0] || *end || mode > 07777 || text[0] == '-')
        return step_refuse(build, at, "--chmod=%s: give an octal number such as 0755", text);
    step->has_mode = true;
    step->mode = (uint32_t)mode;
    return 0;
}

static int read_excludes(struct build *build, struct stage *stage, const struct instruction *at,
    struct copy_step *step) {
    for (size_t i = 0; i < at->flags.n; i++) {
        auto_free char *pattern = NULL;

        if (strncmp(at->flags.list[i], "exclude=", 8) != 0)
            continue;
        int r = step_expand(build, stage, at, at->flags.list[i] + 8, &pattern);
        if (r < 0)
            return r;
        if (ignore_add(&step->excluded, pattern, strlen(pattern)) < 0)
            return build_out_of_memory(build);
    }
    return 0;
}

/* ---- inputs ---- */

/* Everything that a step of COPY or ADD opens. */
struct opened {
    struct source base, from;
    struct state other; /* of --from=IMAGE */
    struct words bodies;
    int fds[32];
    size_t n_fds;
};

static void opened_done(struct opened *opened) {
    source_done(&opened->base);
    source_done(&opened->from);
    state_done(&opened->other);
    words_done(&opened->bodies);
    for (size_t i = 0; i < opened->n_fds; i++)
        close_fd(&opened->fds[i]);
}

static struct copy_input *add_input(struct build *build, struct copy_step *step) {
    struct copy_input *input = array_add(&step->inputs, step->n_inputs, sizeof *input);

    if (!input) {
        (void)build_out_of_memory(build);
        return NULL;
    }
    input->fd = -EBADF;
    step->n_inputs++;
    return input;
}

static int add_path(struct build *build, const struct instruction *at, struct copy_step *step,
    const struct source *from, const char *path) {
    auto_free char *plain = NULL;
    struct found found;
    int r = source_resolve(from, path, SOURCE_TAIL_FOLLOWED, &plain, &found);

    if (r == 0 && from->ignore && plain[0] && ignore_matches(from->ignore, plain) &&
        !(S_ISDIR(found.st.st_mode) && from->ignore->has_includes)) {
        found_done(&found);
        return step_refuse(build, at, "%s is left out of the context by .dockerignore", path);
    }
    if (r < 0)
        return step_refuse(build, at, "%s: %s in %s", path, strerror(-r),
            from->ignore ? "the context" : "the image that is copied from");
    struct copy_input *input = add_input(build, step);
    if (input) {
        const char *slash = strrchr(path, '/');

        input->source = from;
        input->is_directory = S_ISDIR(found.st.st_mode);
        input->name = strdup(slash && slash[1] ? slash + 1 : path);
        input->path = TAKE_PTR(plain);
    }
    found_done(&found);
    return input ? 0 : -ENOMEM;
}

static int add_pattern(struct build *build, const struct instruction *at, struct copy_step *step,
    const struct source *from, const char *pattern) {
    struct words paths = { 0 };
    auto_free char *clean = glob_clean(pattern);

    if (!clean)
        return build_out_of_memory(build);
    if (!glob_is_pattern(clean))
        return add_path(build, at, step, from, clean);
    int r = source_glob(from, clean, &paths);
    if (r < 0)
        r = step_refuse(build, at, "%s: %s", pattern, strerror(-r));
    else if (!paths.n)
        r = step_refuse(build, at, "%s matches no file", pattern);
    for (size_t i = 0; r == 0 && i < paths.n; i++)
        r = add_path(build, at, step, from, paths.list[i]);
    words_done(&paths);
    return r;
}

static bool is_url(const char *text) {
    return strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0;
}

/* As BuildKit sees it: by the protocol, or by a path that ends in .git. */
static bool is_repository(const char *text) {
    const size_t length = strcspn(text, "#?");

    return strncmp(text, "git@", 4) == 0 || strncmp(text, "git://", 6) == 0 ||
           strncmp(text, "ssh://", 6) == 0 ||
           (is_url(text) && length > 4 && strncmp(text + length - 4, ".git", 4) == 0);
}

/* The last name of the URL's path. */
static char *url_name(const char *url) {
    const char *path = strstr(url, "://") + 3;
    const size_t length = strcspn(path, "?#");
    const char *slash = memrchr(path, '/', length);

    return slash && slash + 1 < path + length
               ? strndup(slash + 1, (size_t)(path + length - slash - 1))
               : NULL;
}

static int check_sum(
    struct build *build, const struct instruction *at, const char *wanted, int fd) {
    char data[65536], hex[DIGEST_HEX + 1];
    struct digest digest;
    ssize_t n;

    digest_init(&digest);
    for (off_t offset = 0; (n = pread(fd, data, sizeof data, offset)) > 0; offset += n)
        digest_add(&digest, data, (size_t)n);
    digest_end_hex(&digest, hex);
    if (n == 0 && strncmp(wanted, "sha256:", 7) == 0 && strcasecmp(wanted + 7, hex) == 0)
        return 0;
    return step_refuse(build, at, "the download has the digest sha256:%s, not %s", hex, wanted);
}

/* A file of the network. With --checksum a later build does not need the network for it. */
static int add_url(struct build *build, struct stage *stage, const struct instruction *at,
    struct copy_step *step, struct opened *opened, const char *url) {
    const char *flag = step_flag(at, "checksum");
    auto_free char *sum = NULL;
    int fd = -EBADF;

    int r = flag ? step_expand(build, stage, at, flag, &sum) : 0;
    if (r < 0)
        return r;
    if (opened->n_fds == ARRAY_SIZE(opened->fds))
        return step_refuse(build, at, "ADD has more than %zu URLs", ARRAY_SIZE(opened->fds));
    r = run_fetch(&build->runner, url, MIN(build->options->limits.max_bytes, MAX_DOWNLOAD), &fd,
        build->error);
    if (r < 0)
        return step_failed(build, at, r);
    opened->fds[opened->n_fds++] = fd;
    if (sum)
        r = check_sum(build, at, sum, fd);
    struct copy_input *input = r == 0 ? add_input(build, step) : NULL;
    if (input) {
        input->fd = fd;
        input->name = url_name(url);
    }
    return r < 0 ? r : input ? 0 : -ENOMEM;
}

static int add_heredoc(struct build *build, struct stage *stage, const struct instruction *at,
    struct copy_step *step, struct opened *opened, const struct heredoc *heredoc) {
    char *body = NULL;
    int r = heredoc->is_literal ? (body = strdup(heredoc->body)) ? 0 : build_out_of_memory(build)
                                : step_expand_body(build, stage, at, heredoc->body, &body);

    if (r == 0 && words_take(&opened->bodies, body) < 0)
        r = build_out_of_memory(build);
    struct copy_input *input = r == 0 ? add_input(build, step) : NULL;
    if (!input)
        return r < 0 ? r : -ENOMEM;
    input->name = strdup(heredoc->name);
    input->data = body;
    input->length = strlen(body);
    return 0;
}

/* ---- COPY and ADD ---- */

/* Opens the source of the paths: the context, an earlier stage, or an image. */
static int open_from(struct build *build, struct stage *stage, const struct instruction *at,
    const char *flag, struct opened *opened, const struct source **ret_from,
    struct copy_step *step) {
    auto_free char *name = NULL;

    if (!flag) {
        if (build->context < 0)
            return step_refuse(build, at, "the build has no context");
        *ret_from = &build->context_source;
        return 0;
    }
    int r = step_expand(build, stage, at, flag, &name);
    if (r < 0)
        return r;
    const struct stage *other = stages_find(build, name, stage);
    const struct state *state = other ? &other->state : &opened->other;
    if (!other)
        r = cache_open(build, name, at->line, &opened->other, NULL);
    if (r < 0)
        return r;
    step->from_key = state->key;
    r = layer_list_stack(&state->layers, &opened->from.top);
    if (r < 0)
        return step_refuse(build, at, "--from=%s: %s", name, strerror(-r));
    *ret_from = &opened->from;
    return 0;
}

static bool ends_as_directory(const char *path) {
    const size_t n = strlen(path);

    return !n || path[n - 1] == '/' || strcmp(path, ".") == 0 || strcmp(path, "..") == 0 ||
           (n >= 2 && strcmp(path + n - 2, "/.") == 0);
}

static const struct heredoc *find_heredoc(
    const struct instruction *at, const char *word, size_t *next) {
    return strncmp(word, "<<", 2) == 0 && *next < at->n_heredocs ? &at->heredocs[(*next)++] : NULL;
}

static int add_inputs(struct build *build, struct stage *stage, const struct instruction *at,
    struct copy_step *step, struct opened *opened, const struct source *from,
    const struct words *words) {
    struct words raw = { 0 };
    size_t next = 0;
    int r = 0;

    if (at->n_heredocs && expand_split(at->arguments, build->file.escape, &raw) < 0)
        return build_out_of_memory(build);
    for (size_t i = 0; r == 0 && i + 1 < words->n; i++) {
        const struct heredoc *heredoc = i < raw.n ? find_heredoc(at, raw.list[i], &next) : NULL;

        if (heredoc)
            r = add_heredoc(build, stage, at, step, opened, heredoc);
        else if (at->kind == INSTRUCTION_ADD && is_repository(words->list[i]))
            r = step_refuse(build, at,
                "%s: ADD does not clone repositories; run git clone in RUN, with --mount=type=ssh "
                "or --mount=type=secret for a private one",
                words->list[i]);
        else if (at->kind == INSTRUCTION_ADD && is_url(words->list[i]))
            r = add_url(build, stage, at, step, opened, words->list[i]);
        else if (at->kind == INSTRUCTION_ADD && strstr(words->list[i], "://"))
            r = step_refuse(build, at, "%s: ADD takes files, http:// and https://", words->list[i]);
        else
            r = add_pattern(build, at, step, from, words->list[i]);
    }
    words_done(&raw);
    return r;
}

static int prepare_copy(struct build *build, struct stage *stage, const struct instruction *at,
    struct copy_step *step, struct opened *opened) {
    const struct source *from = NULL;
    struct words words = { 0 };

    if (step_flag(at, "parents"))
        return dockerfile_refuse(build->error, &build->file, at->line, ROLLBOX_ERR_FEATURE_MISSING,
            "--parents is not supported: copy each directory by its name");
    int r = open_base(build, stage, &opened->base);
    if (r == 0)
        r = open_from(build, stage, at, step_flag(at, "from"), opened, &from, step);
    if (r == 0)
        r = step_words(build, stage, at, false, &words);
    if (r < 0)
        return r;
    if (words.n < 2)
        r = step_refuse(
            build, at, "%s needs a source and a destination", instruction_name(at->kind));
    step->base = &opened->base;
    step->unpacks = at->kind == INSTRUCTION_ADD;
    step->limits = build->options->limits;
    if (r == 0) {
        step->into_directory = ends_as_directory(words.list[words.n - 1]);
        step->destination = config_join(&stage->config, words.list[words.n - 1]);
        if (!step->destination)
            r = build_out_of_memory(build);
    }
    if (r == 0)
        r = read_owner(build, stage, at, &opened->base, step);
    if (r == 0)
        r = read_mode(build, stage, at, step);
    if (r == 0)
        r = read_excludes(build, stage, at, step);
    if (r == 0)
        r = add_inputs(build, stage, at, step, opened, from, &words);
    if (r == 0 && step->n_inputs > 1 && !step->into_directory)
        r = step_refuse(build, at,
            "with more than one source the destination must be a directory and end in /: %s",
            words.list[words.n - 1]);
    for (size_t i = 0; r == 0 && i < step->n_inputs; i++)
        if (!step->inputs[i].name && step->into_directory)
            r = step_refuse(build, at, "the URL has no file name; give one in the destination");
    words_done(&words);
    return r;
}

int files_copy(struct build *build, struct stage *stage, const struct instruction *at) {
    struct copy_step step = { 0 };
    struct opened opened = { 0 };
    int readable[40];
    size_t n = 0;

    step_begin(build, stage, at);
    int r = prepare_copy(build, stage, at, &step, &opened);
    if (build->context >= 0)
        readable[n++] = build->context;
    for (size_t i = 0; i < opened.n_fds; i++)
        readable[n++] = opened.fds[i];
    if (r == 0)
        r = run_copy(build, stage, at, &step, readable, n);
    copy_done(&step);
    opened_done(&opened);
    return r;
}

/* ---- RUN --mount=type=bind ---- */

struct binds {
    struct bind {
        struct copy_step step; /* points into `opened` */
        struct opened opened;
        char digest[DIGEST_HEX + 1];
    } * *items;
    size_t n;
};

struct binds *files_binds_free(struct binds *binds) {
    for (size_t i = 0; binds && i < binds->n; i++) {
        copy_done(&binds->items[i]->step);
        opened_done(&binds->items[i]->opened);
        free(binds->items[i]);
    }
    if (binds)
        free(binds->items);
    free(binds);
    return NULL;
}

static int prepare_bind(struct build *build, struct stage *stage, const struct instruction *at,
    const char *from, const char *source, struct bind *bind) {
    const struct source *files = NULL;
    struct digest digest;
    int r = open_base(build, stage, &bind->opened.base);

    bind->step.base = &bind->opened.base;
    if (r == 0)
        r = open_from(build, stage, at, from, &bind->opened, &files, &bind->step);
    if (r == 0)
        r = add_path(build, at, &bind->step, files, source);
    if (r < 0)
        return r;
    bind->step.into_directory = bind->step.inputs[0].is_directory;
    digest_init(&digest);
    r = copy_digest(&bind->step, &digest, build->error);
    digest_end_hex(&digest, bind->digest);
    return r < 0 ? step_failed(build, at, r) : 0;
}

int files_bind(struct build *build, struct stage *stage, const struct instruction *at,
    const char *from, const char *source, const char *target, struct run_step *step,
    struct digest *key) {
    if (!step->binds)
        step->binds = calloc(1, sizeof *step->binds);
    struct bind **place =
        step->binds ? array_add(&step->binds->items, step->binds->n, sizeof(void *)) : NULL;
    struct bind *bind = place ? calloc(1, sizeof *bind) : NULL;

    if (!bind)
        return build_out_of_memory(build);
    *place = bind;
    step->binds->n++;
    bind->step.limits = build->options->limits;
    bind->step.destination = strdup(target);
    if (!bind->step.destination)
        return build_out_of_memory(build);
    int r = prepare_bind(build, stage, at, from, source, bind);
    step_key_text(key, bind->digest);
    return r;
}

/* The image of the step with the files in it. */
int files_bound_image(struct build *build, const struct stage *stage, struct binds *binds,
    const char *key, char **ret_image) {
    char bound_key[DIGEST_HEX + 1];
    struct layer_list layers;
    struct digest digest;
    int r = 0;

    if (layer_list_copy(&stage->state.layers, &layers) < 0)
        return build_out_of_memory(build);
    for (size_t i = 0; r == 0 && i < binds->n; i++) {
        const struct bind *bind = binds->items[i];

        r = write_layer(build, &bind->step, &build->context, build->context >= 0 ? 1 : 0,
            bind->digest, &layers);
    }
    digest_init(&digest);
    digest_add_sized(&digest, "bound", 5);
    digest_add_sized(&digest, key, strlen(key));
    digest_end_hex(&digest, bound_key);
    if (r == 0)
        r = cache_bind(build, stage, bound_key, &layers, ret_image);
    layer_list_done(&layers);
    return r;
}
