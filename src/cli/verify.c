/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rollbox verify: checks whether the same actions give the same history.
 *
 * It compares two trajectories step by step: a record and its replay, two records, or two runs of
 * one command. For the first step that differs it reports the place, the byte, both values, and a
 * guess at the cause, which is derived from the two values.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/outcome.h"
#include "cli/policy.h"
#include "cli/private_engine.h"
#include "cli/record.h"
#include "cli/replay.h"
#include "cli/format.h"
#include "cli/signals.h"
#include "record/compare.h"

#define EXIT_DIVERGED 1

/* The two histories and their names. */
struct pair {
    struct reader readers[2];
    int fds[2];
    bool open[2];
    const char *names[2];
    json_t *contents[2]; /* recorded_files.h; NULL: not known */
    bool twice;
};

static void pair_done(struct pair *pair) {
    for (int i = 0; i < 2; i++) {
        if (pair->open[i])
            reader_done(&pair->readers[i]);
        close_fd(&pair->fds[i]);
        json_decref(pair->contents[i]);
    }
}

static int open_one(
    const struct options *options, struct pair *pair, int i, const char *path, const char *name) {
    int status = replay_read(options, path, &pair->fds[i], &pair->readers[i]);

    pair->open[i] = !status;
    pair->names[i] = name;
    return status;
}

/* The same of a descriptor. */
static int open_read(const struct options *options, struct pair *pair, int i, int take_fd,
    const char *path, const char *name) {
    struct rollbox_error error = { .code = ROLLBOX_OK };

    pair->fds[i] = take_fd;
    pair->open[i] = true;
    pair->names[i] = name;
    return reader_open(&pair->readers[i], take_fd, path, &error) < 0
               ? cli_fail_error(options, &error)
               : 0;
}

/* A memory file, whose beginning is read once it is written. */
static int open_memory(const struct options *options, int *ret_fd) {
    *ret_fd = memfd_create("rollbox-trajectory", MFD_CLOEXEC);
    return *ret_fd < 0 ? cli_fail(options, "cannot make a memory file: %s", strerror(errno)) : 0;
}

static int open_written(
    const struct options *options, struct pair *pair, int i, int fd, const char *name) {
    char path[32];

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open_one(options, pair, i, path, name);
}

/* ---- the comparison ---- */

static int next_step(
    const struct options *options, struct pair *pair, int i, struct step **ret_step) {
    struct rollbox_error error = { .code = ROLLBOX_OK };

    *ret_step = NULL;
    if (reader_next(&pair->readers[i], ret_step, &error) < 0)
        return cli_fail_error(options, &error);
    if (*ret_step) {
        (*ret_step)->header = pair->readers[i].header;
        (*ret_step)->contents = pair->contents[i];
    }
    return 0;
}

/* The changed files that both records describe and that were compared: after each command, or only
 * at snapshots. */
static const char *files_of(const struct pair *pair) {
    static const char *const keys[] = { "changes", "files" }, *const words[] = { "commands",
        "snapshots" };

    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        if (json_is_true(json_object_get(pair->readers[0].header, keys[i])) &&
            json_is_true(json_object_get(pair->readers[1].header, keys[i])))
            return words[i];
    return "none";
}

/* Read to its end: whether more steps may have happened. */
static bool is_cut(const struct reader *reader) {
    return !reader->end_reason || strcmp(reader->end_reason, "closed");
}

/* The number of equal steps, and how far "equal" is limited for some of them. */
struct counts {
    uint64_t equal;
    uint64_t partial;   /* something was not compared */
    uint64_t unstarted; /* commands that could not be started, here as there */
    char why[64];       /* of the first of these, the code of its error */
};

/* A command that never ran has no history that could repeat. */
static void count_unstarted(struct counts *counts, const struct step *step) {
    const char *outcome = json_string_value(json_object_get(step->observation, "outcome"));
    const char *code =
        json_string_value(json_object_get(json_object_get(step->observation, "error"), "code"));

    if (!outcome || strcmp(outcome, "error") != 0)
        return;
    if (counts->unstarted++ == 0)
        (void)snprintf(counts->why, sizeof counts->why, "%s", code ? code : "error");
}

/* 0 and whether they part; or an exit status after a line. */
static int compare_pair(const struct options *options, struct pair *pair, bool *ret_diverged,
    struct divergence *ret_divergence, struct counts *counts) {
    const json_t *headers[2] = { pair->readers[0].header, pair->readers[1].header };
    int status = 0;

    *counts = (struct counts){ 0 };
    *ret_diverged = false;
    if (!json_equal(json_object_get(headers[0], "policy_sha256"),
            json_object_get(headers[1], "policy_sha256")))
        cli_fail(options, "the two were made under different policies");
    while (!status && !*ret_diverged) {
        struct step *steps[2] = { NULL, NULL };

        for (int i = 0; i < 2 && !status; i++)
            status = next_step(options, pair, i, &steps[i]);
        /* A truncated record is equal as far as it goes. */
        bool is_end = (!steps[0] && is_cut(&pair->readers[0])) ||
                      (!steps[1] && is_cut(&pair->readers[1])) || (!steps[0] && !steps[1]);
        int r = status || is_end ? 0 : compare_steps(steps[0], steps[1], ret_divergence);
        if (r < 0)
            status = cli_fail(options, "out of memory");
        *ret_diverged = r > 0;
        if (!status && !is_end && r == 0) {
            counts->equal++;
            counts->partial += compare_is_partial(steps[0]) || compare_is_partial(steps[1]);
            count_unstarted(counts, steps[0]);
        }
        for (int i = 0; i < 2; i++)
            step_free(steps[i]);
        if (is_end)
            break;
    }
    return status;
}

static bool is_seeded(const struct reader *reader) {
    const json_t *seed = json_object_get(reader->header, "random_seed");

    return seed && !json_is_null(seed);
}

/* The option that would make it repeat; NULL: unknown. */
static const char *hint_of(const struct divergence *divergence, const struct pair *pair) {
    const json_t *header = pair->readers[0].header;
    bool seeded = is_seeded(&pair->readers[0]) || is_seeded(&pair->readers[1]),
         timed = json_is_string(json_object_get(header, "time_start"));
    const char *level = json_string_value(json_object_get(
        json_object_get(json_object_get(header, "isolation"), "determinism"), "level"));
    bool serial = level && !strcmp(level, "serial");

    if (!strcmp(divergence->source, "time") && !timed)
        return "the policy has no time_start (--time-start), which makes clocks begin alike";
    if (!strcmp(divergence->source, "time") && level &&
        (!strcmp(level, "offset") || !strcmp(level, "seeded")))
        return "the policy's clock advances at the real rate (with --time-mode virtual, by what "
               "the program does)";
    if (!strcmp(divergence->source, "order") && !serial)
        return seeded ? "the policy has no serial (--serial, which takes --time-start and "
                        "--time-mode virtual), by which threads and processes that race take turns"
                      : "the policy has no random_seed (--seed), by which what is hashed comes in "
                        "one order, nor serial (--serial), by which threads and processes that "
                        "race take turns";
    if ((!strcmp(divergence->source, "randomness") || !strcmp(divergence->source, "pid")) &&
        !seeded)
        return "the policy has no random_seed (--seed), which makes random bytes, addresses and "
               "hashes repeat";
    if (!strcmp(divergence->source, "randomness") && !timed)
        return "the policy has no time_start (--time-start): many programs seed their random "
               "numbers from the clock";
    if (divergence->path.length && divergence->offset < 0 && strstr(divergence->where, ".sha256") &&
        !pair->twice)
        return "records have files by digest alone; rollbox verify --twice, with the command, "
               "shows where two runs' files part";
    return NULL;
}

static json_t *describe_divergence(const struct divergence *divergence, const struct pair *pair) {
    json_t *object = json_pack("{s:I, s:s, s:s, s:s, s:s}", "step", (json_int_t)divergence->step,
        "kind", divergence->kind, "where", divergence->where, "source", divergence->source, "why",
        divergence->why);

    json_object_set_new(object, "path",
        divergence->path.length
            ? json_loads(divergence->path.data, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)
            : json_null());
    json_object_set_new(
        object, "offset", divergence->offset < 0 ? json_null() : json_integer(divergence->offset));
    json_object_set_new(object, "hint",
        hint_of(divergence, pair) ? json_string(hint_of(divergence, pair)) : json_null());
    for (int i = 0; i < 2; i++) {
        json_t *byte = divergence->offset < 0 || divergence->bytes[i] < 0
                           ? json_null()
                           : json_integer(divergence->bytes[i]);

        json_object_set_new(object, i ? "second" : "first",
            json_pack("{s:s, s:o, s:o}", "of", pair->names[i], "value",
                json_loads(divergence->values[i].data, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL),
                "byte", byte));
    }
    return object;
}

static int tell_json(const struct options *options, const struct pair *pair, bool diverged,
    const struct divergence *divergence, uint64_t n_equal, bool whole) {
    json_t *object = json_pack("{s:s, s:I, s:b, s:s}", "verdict", diverged ? "diverged" : "equal",
        "steps", (json_int_t)n_equal, "whole", whole, "files", files_of(pair));

    json_object_set_new(
        object, "divergence", diverged ? describe_divergence(divergence, pair) : json_null());
    auto_free char *text = object ? json_dumps(object, JSON_ENSURE_ASCII) : NULL;
    json_decref(object);
    if (!text)
        return cli_fail(options, "out of memory");
    printf("%s\n", text);
    return cli_flush(options, diverged ? EXIT_DIVERGED : 0);
}

/* The limits of "equal". */
static void tell_unseen(const struct pair *pair, bool whole) {
    const char *files = files_of(pair),
               *note = !strcmp(files, "none") ? "files were not compared: they were not recorded"
                       : !strcmp(files, "snapshots") ? "files were compared at snapshots alone"
                                                     : "";

    if (!whole || *note)
        printf(" (%s%s%s)", whole ? "" : "not whole, see standard error",
            !whole && *note ? "; " : "", note);
}

/* Bytes that are no text all look the same as text. */
static void tell_byte(const struct divergence *divergence, int i) {
    if (divergence->offset < 0 ||
        strcmp(divergence->values[0].data, divergence->values[1].data) != 0)
        return;
    if (divergence->bytes[i] < 0)
        printf(" (ends there)");
    else
        printf(" (byte 0x%02x)", (unsigned)divergence->bytes[i]);
}

static int report_verdict(const struct options *options, const struct pair *pair, bool diverged,
    const struct divergence *divergence, uint64_t n_equal, bool whole) {
    bool colours = cli_colours(STDOUT_FILENO);
    int width = (int)MAX(strlen(pair->names[0]), strlen(pair->names[1]));

    if (!diverged) {
        printf("%sequal%s: %" PRIu64 " step%s", text_if(colours, "\033[32m"),
            text_if(colours, "\033[0m"), n_equal, n_equal == 1 ? "" : "s");
        tell_unseen(pair, whole);
        printf("\n");
        return cli_flush(options, 0);
    }
    printf("%sdiverged%s at step %" PRIu64 " (%s): ", colours ? "\033[31m" : "",
        colours ? "\033[0m" : "", divergence->step, divergence->kind);
    format_text(divergence->where);
    if (divergence->path.length) {
        printf(" of ");
        format_text(divergence->path.data);
    }
    if (divergence->offset >= 0)
        printf(", byte %" PRId64, divergence->offset);
    printf("\n");
    for (int i = 0; i < 2; i++) {
        printf("  ");
        format_text(pair->names[i]);
        printf("%*s  ", width - (int)strlen(pair->names[i]), "");
        format_text(divergence->values[i].data);
        tell_byte(divergence, i);
        printf("\n");
    }
    printf("  likely source: %s (a guess: %s)\n", divergence->source, divergence->why);
    if (hint_of(divergence, pair))
        printf("  %s\n", hint_of(divergence, pair));
    return cli_flush(options, EXIT_DIVERGED);
}

static int conclude_verify(const struct options *options, struct pair *pair) {
    struct divergence divergence = { 0 };
    bool diverged;
    struct counts counts;

    int status = compare_pair(options, pair, &diverged, &divergence, &counts);
    if (status)
        return status;
    if (!diverged && counts.unstarted && counts.unstarted == counts.equal)
        return cli_fail(options,
            "no command of the record could be started (%s), so there is nothing to compare: "
            "`rollbox record` said why",
            counts.why);
    unsigned warnings = (counts.partial != 0) + (counts.unstarted != 0);
    if (counts.unstarted)
        cli_fail(options,
            "%" PRIu64 " of the equal steps could not be started, here as there (the first: %s)",
            counts.unstarted, counts.why);
    if (counts.partial)
        cli_fail(options,
            "%" PRIu64 " of the equal steps had something that was not compared: a content that "
            "was withheld, a file that is too large, more changes than the limit of one record, or "
            "files that could not be looked at",
            counts.partial);
    for (int i = 0; i < 2; i++)
        warnings += replay_warn(options, &pair->readers[i]);
    if (!diverged && !counts.equal && (is_cut(&pair->readers[0]) || is_cut(&pair->readers[1])))
        return cli_fail(options, "there is no step that could be compared");
    status = options_has(options, OPTION_JSON)
                 ? tell_json(options, pair, diverged, &divergence, counts.equal, !warnings)
                 : report_verdict(options, pair, diverged, &divergence, counts.equal, !warnings);
    divergence_done(&divergence);
    return status;
}

/* ---- comparison ---- */

static int two_files(const struct options *options, struct pair *pair) {
    int status = open_one(options, pair, 0, options->rest[0], options->rest[0]);

    return status ? status : open_one(options, pair, 1, options->rest[1], options->rest[1]);
}

/* The record, and a replay of it. */
static int against_record(const struct options *options, struct pair *pair) {
    struct rollbox_error error = { .code = ROLLBOX_OK };
    auto_close int from = -EBADF, memory = -EBADF;
    struct rollbox_engine *engine;
    struct reader reader;
    uint64_t steps;

    int status = replay_read(options, options->rest[0], &from, &reader);
    if (status)
        return status;
    /* The same file both times, even if its name refers to another one by then. */
    const bool seekable = lseek(from, 0, SEEK_CUR) >= 0;
    if (!seekable)
        status = cli_fail(options,
            "%s: it is read twice, which a pipe cannot be: save it to a file", options->rest[0]);
    if (!status)
        status = open_memory(options, &memory);
    if (!status && cli_engine_open(options, &engine, &error) < 0)
        status = outcome_fail(options, &error);
    else if (!status) {
        status = signals_catch() < 0 ? cli_fail(options, "cannot make a pipe: %s", strerror(errno))
                                     : replay_all(options, engine, &reader, memory, NULL,
                                           &pair->contents[1], &steps);
        rollbox_engine_close(engine);
    }
    reader_done(&reader);
    if (!status && lseek(from, 0, SEEK_SET) < 0)
        status =
            cli_fail(options, "%s: cannot read it again: %s", options->rest[0], strerror(errno));
    if (!status)
        status = open_read(options, pair, 0, TAKE_FD(from), options->rest[0], "record");
    return status ? status : open_written(options, pair, 1, memory, "replay");
}

static int run_twice(const struct options *options, struct pair *pair) {
    static const char *const names[] = { "first run", "second run" };
    struct rollbox_error error = { .code = ROLLBOX_OK };
    struct rollbox_engine *engine;
    struct cli_policy policy;

    int status = cli_policy_given(options, &policy);
    if (status)
        return status;
    pair->twice = true;
    if (cli_engine_open(options, &engine, &error) < 0) {
        cli_policy_done(&policy);
        return outcome_fail(options, &error);
    }
    for (int i = 0; i < 2 && !status; i++) {
        auto_close int memory = -EBADF;
        int command_status;

        status = open_memory(options, &memory);
        if (!status)
            status = record_run(options, engine, policy.text, policy.length, memory, NULL, false,
                &pair->contents[i], &command_status);
        if (!status && command_status)
            status = CLI_EXIT_ERROR; /* the exit status of run for a missing command is not an
                                        answer of this command */
        if (!status)
            status = open_written(options, pair, i, memory, names[i]);
    }
    rollbox_engine_close(engine);
    cli_policy_done(&policy);
    return status;
}

static int check_operands(const struct options *options) {
    const bool is_twice = options_has(options, OPTION_TWICE);

    for (size_t i = 0; i < options->n_uses && !is_twice; i++) {
        const struct option *option = options->uses[i].option;

        if (option->policy_key && option->id != OPTION_ENV)
            return cli_fail(options,
                "--%s: the record has its policy, or --policy is another; single options are for "
                "--twice",
                option->name);
    }
    if (!is_twice &&
        (options_has(options, OPTION_RECORD_CHANGES) || options_has(options, OPTION_NO_FILES)))
        return cli_fail(options, "--record-changes and --no-files are for --twice; a record has "
                                 "its files or has not, as it was made");
    if (options_has(options, OPTION_RECORD_CHANGES) && options_has(options, OPTION_NO_FILES))
        return cli_fail(options, "--record-changes and --no-files are opposites");
    if (!is_twice && options->n_rest > 2)
        return cli_fail(options, "one record, or two, are compared; a command needs --twice before "
                                 "it: rollbox verify --twice -- COMMAND");
    return 0;
}

int cmd_verify(const struct options *options) {
    struct pair pair = { .fds = { -EBADF, -EBADF } };
    int status = check_operands(options);

    if (status)
        return status;
    if (options_has(options, OPTION_TWICE) || options->n_rest == 1)
        private_engine_start(options);
    if (options_has(options, OPTION_TWICE))
        status = run_twice(options, &pair);
    else
        status = options->n_rest == 2 ? two_files(options, &pair) : against_record(options, &pair);
    if (!status && !signals_caught())
        status = conclude_verify(options, &pair);
    pair_done(&pair);
    return cli_end(status);
}
