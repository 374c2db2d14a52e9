/* SPDX-License-Identifier: Apache-2.0 */
#include "store/job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fd.h"
#include "store/files.h"

static int refuse_key(struct rollbox_error *error, const char *key) {
    return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
        "the job's \"%s\" is missing or not valid", key);
}

static int read_fds(const json_t *root, const char *key, int **ret_fds, size_t *ret_n,
    struct rollbox_error *error) {
    const json_t *array = json_object_get(root, key);
    size_t n = json_array_size(array);

    if ((array && !json_is_array(array)) || n > JOB_MAX_SOURCES)
        return refuse_key(error, key);
    int *fds = calloc(n + 1, sizeof *fds);
    if (!fds)
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
    *ret_fds = fds;
    for (size_t i = 0; i < n; i++) {
        json_int_t number = json_is_integer(json_array_get(array, i))
                                ? json_integer_value(json_array_get(array, i))
                                : -1;
        struct stat st;

        if (number < 3 || number > 1 << 20 || fstat((int)number, &st) < 0 || !S_ISDIR(st.st_mode))
            return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EBADF, "arguments",
                "the job's \"%s\" names descriptor %lld, which is not a directory", key,
                (long long)number);
        fds[i] = (int)number;
        *ret_n = i + 1;
        (void)fcntl(fds[i], F_SETFD, FD_CLOEXEC);
    }
    return 0;
}

static int read_places(const json_t *root, struct job *job, struct rollbox_error *error) {
    const json_t *array = json_object_get(root, "places");
    json_t *item;
    size_t i;

    if (!json_is_array(array) || json_array_size(array) > JOB_MAX_SOURCES)
        return refuse_key(error, "places");
    job->places = calloc(json_array_size(array) + 1, sizeof *job->places);
    if (!job->places)
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
    json_array_foreach(array, i, item) {
        struct job_place *place = &job->places[i];
        const char *kind = json_string_value(json_object_get(item, "kind"));
        const json_t *base = json_object_get(item, "base");

        place->part = json_string_value(json_object_get(item, "part"));
        place->path = json_string_value(json_object_get(item, "path"));
        place->base = json_string_value(base);
        place->under = json_object_get(item, "under");
        place->base_dev = (uint64_t)json_integer_value(json_object_get(item, "base_dev"));
        place->base_ino = (uint64_t)json_integer_value(json_object_get(item, "base_ino"));
        if (!place->part || place->part[0] == '.' || !place->part[0] || strchr(place->part, '/'))
            return refuse_key(error, "part");
        if (!place->path || place->path[0] != '/')
            return refuse_key(error, "path");
        if ((base && !json_is_null(base) && !json_is_string(base)) ||
            (place->base && place->base[0] != '/'))
            return refuse_key(error, "base");
        if (place->under &&
            (!json_is_array(place->under) || json_array_size(place->under) > JOB_MAX_SOURCES))
            return refuse_key(error, "under");
        if (!kind || (strcmp(kind, "directory") != 0 && strcmp(kind, "file") != 0))
            return refuse_key(error, "kind");
        place->is_file = kind[0] == 'f';
        job->n_places = i + 1;
    }
    return 0;
}

int job_read(int fd, struct job *ret_job, struct rollbox_error *error) {
    auto_buf struct buf text = BUF_INIT;
    struct job job = { 0 };
    json_error_t problem;
    int r = fd_read_all(fd, JOB_MAX_BYTES, &text);

    if (r < 0)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, -r, "arguments",
            "the job cannot be read from standard input: %s", strerror(-r));
    job.root =
        json_loadb(text.data ? text.data : "", text.length, JSON_REJECT_DUPLICATES, &problem);
    if (!json_is_object(job.root)) {
        json_decref(job.root);
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "the job on standard input is not a JSON object (line %d: %s)", problem.line,
            problem.text);
    }
    job.text = json_is_true(json_object_get(job.root, "text"));
    job.digests = json_is_true(json_object_get(job.root, "digests"));
    job.many = json_is_true(json_object_get(job.root, "many"));
    job.n_stored = (size_t)json_integer_value(json_object_get(job.root, "stored"));
    job.stored_ids = (uint32_t)json_integer_value(json_object_get(job.root, "stored_ids"));
    job.image = json_object_get(job.root, "image");
    job.n_root = (size_t)json_integer_value(json_object_get(job.root, "root_layers"));
    job.owner = (uint32_t)json_integer_value(json_object_get(job.root, "owner"));
    job.force = json_is_true(json_object_get(job.root, "force"));
    job.kept = json_is_integer(json_object_get(job.root, "kept"))
                   ? (int)json_integer_value(json_object_get(job.root, "kept"))
                   : -EBADF;
    job.max_changes = (uint64_t)json_integer_value(json_object_get(job.root, "max_changes"));
    job.max_digested = (uint64_t)json_integer_value(json_object_get(job.root, "max_digested"));
    job.since_ns = json_integer_value(json_object_get(job.root, "since_ns"));
    r = read_fds(job.root, "lower", &job.lower, &job.n_lower, error);
    if (r == 0)
        r = read_fds(job.root, "upper", &job.upper, &job.n_upper, error);
    json_t *shared = json_object_get(job.root, "shared");
    if (r == 0 && shared) {
        job.beside = true;
        job.n_shared = json_is_integer(shared) ? (size_t)json_integer_value(shared) : SIZE_MAX;
        if (job.n_shared > job.n_lower)
            r = error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
                "the job's \"shared\" is not a number of its lower layers");
    }
    if (r == 0)
        r = read_places(job.root, &job, error);
    if (r < 0) {
        job_done(&job);
        return r;
    }
    *ret_job = job;
    return 0;
}

void job_done(struct job *job) {
    for (size_t i = 0; i < job->n_lower; i++)
        close(job->lower[i]);
    for (size_t i = 0; i < job->n_upper; i++)
        close(job->upper[i]);
    free(job->lower);
    free(job->upper);
    free(job->places);
    json_decref(job->root);
    *job = (struct job){ 0 };
}

void stack_done(struct stack *stack) {
    for (size_t i = 0; i < stack->n; i++) {
        files_left_as_it_was(stack->fds[i], &stack->stats[i]);
        close(stack->fds[i]);
    }
    free(stack->fds);
    free(stack->stats);
    *stack = (struct stack){ 0 };
}

void found_done(struct found *found) {
    stack_done(&found->below);
}

static int stack_push(struct stack *stack, size_t room, int take_fd, const struct stat *st) {
    auto_close int fd = take_fd;

    if (!stack->fds) {
        stack->fds = calloc(room, sizeof *stack->fds);
        stack->stats = calloc(room, sizeof *stack->stats);
        if (!stack->fds || !stack->stats)
            return -ENOMEM;
    }
    stack->stats[stack->n] = *st;
    stack->fds[stack->n++] = TAKE_FD(fd);
    return 0;
}

/* Looks from the top down, as an overlay does: the first that is no directory ends it. */
int stack_find(const struct stack *stack, const char *name, struct found *ret_found) {
    struct found found = { 0 };
    struct stat st;
    int r = 0;

    for (size_t i = 0; i < stack->n && !found.closed; i++) {
        if (fstatat(stack->fds[i], name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
            if (errno == ENOENT)
                continue;
            r = -errno;
            break;
        }
        if (files_is_whiteout(&st)) {
            found.whiteout = !found.there;
            found.closed = true;
            break;
        }
        if (!found.there) {
            found.there = true;
            found.source = i;
            found.st = st;
        } else if (!S_ISDIR(st.st_mode)) {
            found.closed = true;
            break;
        }
        if (!S_ISDIR(st.st_mode)) {
            found.closed = true;
            break;
        }
        int fd = files_open(stack->fds[i], name, O_DIRECTORY);
        r = fd < 0 ? fd : stack_push(&found.below, stack->n, fd, &st);
        if (r < 0)
            break;
        found.below.with_base = stack->with_base && i == stack->n - 1;
        found.closed = files_is_opaque(fd);
    }
    if (r < 0) {
        found_done(&found);
        return r;
    }
    *ret_found = found;
    return 0;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int stack_names(const struct stack *stack, struct names *ret_names) {
    struct names all = { 0 };

    for (size_t i = 0; i < stack->n; i++) {
        struct names some;
        int r = names_read(stack->fds[i], &some);

        if (r < 0) {
            names_done(&all);
            return r;
        }
        if (!all.n) {
            names_done(&all);
            all = some;
            continue;
        }
        char **more = some.n ? realloc(all.list, (all.n + some.n) * sizeof *more) : all.list;
        if (!more) {
            names_done(&all);
            names_done(&some);
            return -ENOMEM;
        }
        if (some.n)
            memcpy(more + all.n, some.list, some.n * sizeof *more);
        all.list = more;
        all.n += some.n;
        free(some.list);
    }
    if (stack->n > 1 && all.n) {
        size_t kept = 0;

        qsort(all.list, all.n, sizeof *all.list, compare_names);
        for (size_t i = 0; i < all.n; i++) {
            if (kept && strcmp(all.list[kept - 1], all.list[i]) == 0)
                free(all.list[i]);
            else
                all.list[kept++] = all.list[i];
        }
        all.n = kept;
    }
    *ret_names = all;
    return 0;
}

/* Adds one layer's subtree of a place to a stack, lowest priority yet. 1: nothing further down
 * shows. */
static int push_part(struct stack *stack, size_t room, int layer, const struct job_place *place) {
    struct stat st;

    if (fstatat(layer, place->part, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISDIR(st.st_mode))
        return -ENOTDIR;
    int fd = files_open(layer, place->part, O_DIRECTORY);
    if (fd < 0)
        return fd;
    int r = stack_push(stack, room, fd, &st);
    return r < 0 ? r : files_is_opaque(fd);
}

/* Layers of the store: the engine's word, and followed. */
static int push_under(struct stack *stack, size_t room, const struct job_place *place) {
    for (size_t i = json_array_size(place->under); i-- > 0;) {
        const char *path = json_string_value(json_array_get(place->under, i));
        struct stat st;

        auto_close int fd = path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -EINVAL;
        if (fd < 0 && errno == ENOENT)
            continue; /* a snapshot's layer may have no such part */
        if (fd < 0 || fstat(fd, &st) < 0)
            return path ? -errno : -EINVAL;
        int r = stack_push(stack, room, TAKE_FD(fd), &st);
        if (r < 0)
            return r;
    }
    return 0;
}

static int bad_layers(const struct job_place *place, int r, struct rollbox_error *error) {
    return error_set(error, error_code_of(-r, ROLLBOX_ERR_IO), -r, "store",
        "the layers of %s cannot be read: %s", files_printable(place->path), strerror(-r));
}

/* 1: nothing further down shows. */
static int push_parts(
    struct stack *stack, size_t room, const int *layers, size_t n, const struct job_place *place) {
    int r = 0;

    for (size_t i = n; r == 0 && i-- > 0;)
        r = push_part(stack, room, layers[i], place);
    return r;
}

/* The part below these layers in addition to each other: a stored snapshot's, and the host's. */
static int push_base(
    struct stack *stack, size_t room, const struct job_place *place, struct rollbox_error *error) {
    struct stat st;
    int r = push_under(stack, room, place);

    if (r < 0)
        return bad_layers(place, r, error);
    if (!place->base)
        return 0;
    /* Links in a path of the caller are followed, as when it was granted. */
    auto_close int fd = open(place->base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    r = fd < 0 || fstat(fd, &st) < 0 ? -errno : 0;
    if (r == 0)
        r = stack_push(stack, room, TAKE_FD(fd), &st);
    stack->with_base = r == 0;
    return r < 0 ? error_set(error,
                       r == -ENOENT || r == -ENOTDIR ? ROLLBOX_ERR_CONFLICT
                                                     : error_code_of(-r, ROLLBOX_ERR_IO),
                       -r, "store", "the host's directory %s cannot be opened: %s",
                       files_printable(place->base), strerror(-r))
                 : 0;
}

int place_open(const struct job *job, const struct job_place *place, struct stack *ret_upper,
    struct stack *ret_below, bool *ret_closed, struct rollbox_error *error) {
    size_t room = job->n_lower + job->n_upper + json_array_size(place->under) + 1;
    struct stack upper = { 0 }, below = { 0 };
    int hides = push_parts(&below, room, job->lower, job->n_lower, place);
    int r = hides < 0 ? bad_layers(place, hides, error)
            : hides   ? 0
                      : push_base(&below, room, place, error);

    if (r == 0) {
        hides = push_parts(&upper, room, job->upper, job->n_upper, place);
        if (hides == 0 && job->beside)
            hides = push_parts(&upper, room, job->lower, job->n_shared, place);
        r = hides < 0               ? bad_layers(place, hides, error)
            : !hides && job->beside ? push_base(&upper, room, place, error)
                                    : 0;
    }
    if (r < 0) {
        stack_done(&upper);
        stack_done(&below);
        return r;
    }
    *ret_closed = hides == 1 || job->beside;
    *ret_upper = upper;
    *ret_below = below;
    return 0;
}
