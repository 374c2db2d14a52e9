/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands and options: one table of each. Parsing, --help and the shell completions are all made from them, and a test holds the
 * man pages against --help, so that an option exists everywhere or nowhere.
 *
 * An option's `argument` says its shape in the help; one with '|' in it is a list of choices, and only those are taken.
 */
#ifndef ROLLBOX_CLI_OPTIONS_H
#define ROLLBOX_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum option_id {
    OPTION_HELP, OPTION_JSON, OPTION_ENGINE, OPTION_SOCKET,
    OPTION_POLICY, OPTION_READABLE, OPTION_WRITABLE, OPTION_SHARED, OPTION_DENIED,
    OPTION_MEMORY, OPTION_PROCESSES, OPTION_CPUS, OPTION_DISK, OPTION_OPEN_FILES, OPTION_OUTPUT_LIMIT, OPTION_TIMEOUT,
    OPTION_ENV, OPTION_NO_CLEAN_ENV, OPTION_CWD, OPTION_USER, OPTION_HOSTNAME, OPTION_NET, OPTION_ISOLATION,
    OPTION_SEED, OPTION_TIME_START, OPTION_TIME_MODE, OPTION_SERIAL,
    OPTION_OUTPUT, OPTION_JOBS, OPTION_ORDERED, OPTION_RETRIES, OPTION_NO_PROGRESS,
};

enum option_kind {
    OPTION_FLAG,            /* no argument */
    OPTION_TEXT,
    OPTION_FILE,            /* a file of the caller's, used as given */
    OPTION_PATH,            /* a path put into the policy: made absolute */
    OPTION_SIZE,            /* passed on as text, checked with the policy */
    OPTION_COUNT,           /* a whole number from 0 */
    OPTION_NUMBER,          /* a number above 0, fractions allowed */
};

struct option {
    enum option_id id;
    char letter;                /* 0: none */
    const char *name;           /* without the dashes */
    const char *argument;       /* NULL: none */
    enum option_kind kind;
    unsigned commands;          /* bits of enum command_bit */
    const char *policy_key;     /* the key of the policy that it sets or adds to; NULL: none */
    const char *help;
};

enum command_bit {
    COMMAND_RUN = 1 << 0, COMMAND_BATCH = 1 << 1, COMMAND_DOCTOR = 1 << 2, COMMAND_POLICY_CHECK = 1 << 3, COMMAND_POLICY_PLAN = 1 << 4,
    COMMAND_ENGINE_START = 1 << 5, COMMAND_ENGINE_STATUS = 1 << 6, COMMAND_ENGINE_STOP = 1 << 7, COMMAND_VERSION = 1 << 8,
    COMMAND_COMPLETION = 1 << 9, COMMAND_HELP = 1 << 10,
};

struct options;

struct command {
    const char *name;           /* "run", "policy check" */
    const char *arguments;      /* what follows the options in the usage line */
    const char *summary;
    const char *notes;          /* printed after the options; may be NULL */
    enum command_bit bit;
    int min_rest, max_rest;     /* how many operands; max -1: any number */
    int (*call)(const struct options *options);
};

extern const struct option option_table[];
extern const size_t option_count;
extern const struct command command_table[];
extern const size_t command_count;

struct option_use {
    const struct option *option;
    const char *value;          /* NULL for a flag */
    double number;              /* OPTION_NUMBER */
    uint64_t count;             /* OPTION_COUNT */
};

struct options {
    const struct command *command;
    struct option_use *uses;    /* in the order given */
    size_t n_uses;
    char **rest;                /* operands, or the guest's argv; NULL-terminated, borrowed from argv */
    int n_rest;
};

/* Parses argv (after the command's name). 0; or -EINVAL after one line on standard error saying what, where and how to mend it. */
int options_parse(const struct command *command, int argc, char **argv, struct options *ret_options);
void options_done(struct options *options);

/* The last use of an option; NULL if it was not given. */
const struct option_use *options_last(const struct options *options, enum option_id id);
const char *options_text(const struct options *options, enum option_id id);
static inline bool options_has(const struct options *options, enum option_id id) {
    return options_last(options, id) != NULL;
}

/* The help of one command, or of all, on standard output. */
void options_help(const struct command *command);
void options_help_all(void);

/* Of `names` (n of them, `stride` bytes apart, each a const char *), the one that was most likely meant; NULL if none is near. */
const char *options_nearest(const char *word, const void *names, size_t n, size_t stride);

#endif
