/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox replay: repeats the actions of a trajectory and writes the observations as a new
 * trajectory.
 *
 * The origin of a trajectory that begins with a fork is in other records. Those are replayed first,
 * up to the fork, oldest first.
 */
#include "cli/replay.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "cli/cli.h"
#include "cli/recorded_files.h"
#include "cli/outcome.h"
#include "cli/replay_step.h"
#include "cli/private_engine.h"
#include "cli/progress.h"
#include "cli/record.h"
#include "cli/signals.h"

int replay_read(
    const struct options *options, const char *path, int *ret_fd, struct reader *ret_reader) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_close int fd = open(path, O_RDONLY | O_NOCTTY | O_CLOEXEC);

    if (fd < 0)
        return cli_fail(options, "%s: cannot read it: %s", path, strerror(errno));
    if (reader_open(ret_reader, fd, path, &error) < 0) {
        reader_done(ret_reader);
        return cli_fail_error(options, &error);
    }
    *ret_fd = TAKE_FD(fd);
    return 0;
}

unsigned replay_warn(const struct options *options, const struct reader *reader) {
    unsigned n = 0;

    if (reader->changed_line && ++n)
        cli_fail(options,
            "%s:%" PRIu64
            ": its digest does not match its lines: the record was changed after it was written",
            reader->name, reader->changed_line);
    if (!reader->read_all)
        return n;
    if (reader->torn && ++n)
        cli_fail(options, "%s: its last line is truncated and ignored", reader->name);
    if (!reader->end_reason && ++n)
        cli_fail(options, "%s: it has no end: more may have happened than its %" PRIu64 " steps",
            reader->name, reader->n_steps);
    else if (reader->end_reason && strcmp(reader->end_reason, "closed") && ++n)
        cli_fail(options, "%s: it ends early: %s", reader->name, reader->end_reason);
    return n;
}

/* The number of steps in a regular file, for the progress bar; 0: unknown. The reader's position
 * does not change. */
static uint64_t count_lines(int fd) {
    static char chunk[65536];
    uint64_t lines = 0;
    off_t at = 0;
    ssize_t n;

    while ((n = pread(fd, chunk, sizeof chunk, at)) > 0) {
        for (const char *p = chunk; (p = memchr(p, '\n', (size_t)(chunk + n - p))); p++)
            lines++;
        at += n;
    }
    if (lines > 2)
        return lines - 2;
    return lines ? 1 : 0;
}

static int play_steps(struct play *play, struct reader *reader, struct progress *progress,
    uint64_t *ret_steps, struct rollbox_error *error) {
    struct step *step;
    int r;

    while ((r = reader_next(reader, &step, error)) > 0) {
        r = signals_caught() ? signals_interrupted(error) : play_step(play, step, error);
        step_free(step);
        if (r < 0)
            return r;
        ++*ret_steps;
        progress->outcomes[ROLLBOX_OUTCOME_EXIT]++;
        progress_draw(progress);
    }
    return r < 0 ? r : play_settle(play, UINT64_MAX, error);
}

/* A parent's steps up to the fork that `child` came from. */
static int play_parent(
    struct play *play, struct reader *reader, const json_t *child, struct rollbox_error *error) {
    const json_t *of = json_object_get(child, "parent");
    const char *id = json_string_value(
                   json_object_get(json_object_get(reader->header, "sandbox"), "id")),
               *wanted = json_string_value(json_object_get(of, "id"));
    uint64_t fork = (uint64_t)json_integer_value(json_object_get(of, "step")),
             index = (uint64_t)json_integer_value(json_object_get(of, "index"));
    bool found = false;
    struct step *step;
    int r = 0;

    if (!id || !wanted || strcmp(id, wanted) || !fork)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, EINVAL, "arguments",
            "%s is not the record of the sandbox that was forked (%.64s), or that fork was not "
            "recorded; give the parents' records by --parent, the oldest first",
            reader->name, wanted ? wanted : "of none");
    while (r >= 0 && !found && (r = reader_next(reader, &step, error)) > 0) {
        found = step->number == fork;
        r = signals_caught() ? signals_interrupted(error)
            : found          ? play_fork(play, step, index, error)
                             : play_step(play, step, error);
        step_free(step);
    }
    if (r >= 0 && !found)
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, ENODATA, "arguments",
            "%s ends before the fork, its step %" PRIu64, reader->name, fork);
    return r < 0 ? r : 0;
}

static size_t parents_of(const struct options *options, const char **paths) {
    size_t n = 0;

    for (size_t i = 0; i < options->n_uses; i++)
        if (options->uses[i].option->id == OPTION_PARENT)
            paths[n++] = options->uses[i].value;
    return n;
}

/* Replays all parents; then the sandbox of `reader` exists. */
static int begin_replay(struct play *play, const struct options *options,
    struct rollbox_engine *engine, struct reader *reader, struct rollbox_error *error) {
    auto_free const char **paths = calloc(options->n_uses + 1, sizeof *paths);
    size_t n = paths ? parents_of(options, paths) : 0;
    int r = 0;

    *play = (struct play){ .name = reader->name };
    if (!n && json_is_object(json_object_get(reader->header, "parent")))
        return error_set(error, ROLLBOX_ERR_INVALID_ARGUMENT, ENODATA, "arguments",
            "%s begins with a fork; give the record of the parent sandbox: --parent FILE",
            reader->name);
    if (!n)
        return play_begin(play, options, engine, reader, error);
    struct reader *readers = calloc(n, sizeof *readers);
    auto_free int *fds = calloc(n, sizeof *fds);
    size_t opened = 0;
    if (!readers || !fds) {
        free(readers);
        return error_set(
            error, ROLLBOX_ERR_RESOURCE_EXHAUSTED, ENOMEM, "arguments", "out of memory");
    }
    for (; opened < n && r == 0; opened++) {
        fds[opened] = open(paths[opened], O_RDONLY | O_NOCTTY | O_CLOEXEC);
        r = fds[opened] < 0 ? error_set(error, ROLLBOX_ERR_IO, errno, "arguments",
                                  "%s: cannot read it: %s", paths[opened], strerror(errno))
                            : reader_open(&readers[opened], fds[opened], paths[opened], error);
    }
    if (r == 0)
        r = play_begin(play, options, engine, &readers[0], error);
    for (size_t i = 0; i < n && r == 0; i++)
        r = play_parent(
            play, &readers[i], i + 1 < n ? readers[i + 1].header : reader->header, error);
    play->name = reader->name;
    for (size_t i = 0; i < opened; i++) {
        if (readers[i].name)
            reader_done(&readers[i]);
        close_fd(&fds[i]);
    }
    free(readers);
    return r;
}

static bool has_files(const struct play *play, const struct reader *reader) {
    return !play->redacted && (json_is_true(json_object_get(reader->header, "changes")) ||
                                  json_is_true(json_object_get(reader->header, "files")));
}

int replay_all(const struct options *options, struct rollbox_engine *engine, struct reader *reader,
    int fd, const char *path, json_t **ret_contents, uint64_t *ret_steps) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct progress progress;
    struct play play;

    progress_init(&progress, !options_has(options, OPTION_NO_PROGRESS) &&
                                 !options_has(options, OPTION_JSON) && isatty(STDERR_FILENO));
    progress.total = progress.bar ? count_lines(reader->fd) : 0;
    *ret_steps = 0;
    int r = begin_replay(&play, options, engine, reader, &error);
    if (r >= 0)
        r = play_record(&play, reader, fd, &error);
    if (r >= 0)
        r = play_steps(&play, reader, &progress, ret_steps, &error);
    if (r >= 0 && ret_contents)
        *ret_contents = has_files(&play, reader) ? recorded_files_of(play.sandbox) : NULL;
    progress_clear(&progress);
    struct rollbox_sandbox *sandbox = play_take_sandbox(&play);
    int status = r < 0 ? outcome_fail(options, &error) : 0;
    if (r >= 0)
        status = record_end(options, sandbox, path);
    else
        (void)rollbox_sandbox_close(sandbox, NULL);
    play_done(&play);
    return status;
}

/* --force would truncate the file that is to be read. */
static int check_other(const struct options *options, const char *to, const char *from) {
    struct stat a, b;

    if (stat(to, &a) == 0 && stat(from, &b) == 0 && S_ISREG(a.st_mode) && a.st_dev == b.st_dev &&
        a.st_ino == b.st_ino)
        return cli_fail(options,
            "%s: this is the trajectory to replay (%s); the new one needs a file of its own", to,
            from);
    return 0;
}

static int check_output(const struct options *options, const char *to) {
    int status = check_other(options, to, options->rest[0]);

    for (size_t i = 0; i < options->n_uses && !status; i++)
        if (options->uses[i].option->id == OPTION_PARENT)
            status = check_other(options, to, options->uses[i].value);
    return status;
}

static int replay_file(
    const struct options *options, struct reader *reader, int fd, const char *path) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rollbox_engine *engine;
    uint64_t steps;

    if (cli_engine_open(options, &engine, &error) < 0)
        return outcome_fail(options, &error);
    int status = signals_catch() < 0 ? cli_fail(options, "cannot make a pipe: %s", strerror(errno))
                                     : replay_all(options, engine, reader, fd, path, NULL, &steps);
    rollbox_engine_close(engine);
    if (status)
        return status;
    (void)replay_warn(options, reader);
    if (options_has(options, OPTION_JSON))
        printf("{\"steps\": %" PRIu64 "}\n", steps);
    else
        fprintf(stderr, "rollbox replay: %" PRIu64 " step%s\n", steps, steps == 1 ? "" : "s");
    return cli_flush(options, 0);
}

int cmd_replay(const struct options *options) {
    const char *path = options_text(options, OPTION_RECORD_OUTPUT);
    auto_close int fd = -EBADF, from = -EBADF;
    struct reader reader;

    if (!path)
        return cli_fail(options, "the new trajectory's file is missing: rollbox replay -o FILE %s",
            options->rest[0]);
    private_engine_start(options);
    int status = check_output(options, path);
    if (!status)
        status = replay_read(options, options->rest[0], &from, &reader);
    if (status)
        return status;
    status = record_open(options, path, &fd);
    if (!status)
        status = replay_file(options, &reader, fd, path);
    reader_done(&reader);
    return cli_end(status);
}
