/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands and options: one table of each. Parsing, --help and the shell completions are all made
 * from them, and a test holds the man pages against --help, so that an option exists everywhere or
 * nowhere.
 *
 * An option's `argument` says its shape in the help; one with '|' in it is a list of choices, and
 * only those are taken.
 */
#ifndef ROLLBOX_CLI_OPTIONS_H
#define ROLLBOX_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum option_id {
    OPTION_HELP,
    OPTION_JSON,
    OPTION_ENGINE,
    OPTION_SOCKET,
    OPTION_POLICY,
    OPTION_IMAGE,
    OPTION_READABLE,
    OPTION_WRITABLE,
    OPTION_SHARED,
    OPTION_DENIED,
    OPTION_MEMORY,
    OPTION_PROCESSES,
    OPTION_CPUS,
    OPTION_DISK,
    OPTION_DISK_AT,
    OPTION_OPEN_FILES,
    OPTION_OUTPUT_LIMIT,
    OPTION_TIMEOUT,
    OPTION_ENV,
    OPTION_NO_CLEAN_ENV,
    OPTION_CWD,
    OPTION_USER,
    OPTION_USERS,
    OPTION_VOLUME,
    OPTION_SIZE_LIMIT,
    OPTION_VOLUME_NAME,
    OPTION_DEVICE,
    OPTION_GPUS,
    OPTION_TMPFS,
    OPTION_SHM_SIZE,
    OPTION_ULIMIT,
    OPTION_HOSTNAME,
    OPTION_NET,
    OPTION_NET_SET_NET,
    OPTION_ALLOW,
    OPTION_ALLOW_FILE,
    OPTION_SECRET,
    OPTION_INJECT,
    OPTION_PUBLISH,
    OPTION_NET_LOG,
    OPTION_NET_RECORD,
    OPTION_NET_REPLAY,
    OPTION_NETWORK,
    OPTION_METHOD,
    OPTION_MAX_UPLOAD,
    OPTION_ISOLATION,
    OPTION_SEED,
    OPTION_TIME_START,
    OPTION_TIME_MODE,
    OPTION_SERIAL,
    OPTION_OUTPUT,
    OPTION_JOBS,
    OPTION_ORDERED,
    OPTION_RETRIES,
    OPTION_NO_PROGRESS,
    OPTION_CHOWN,
    OPTION_BACKGROUND,
    OPTION_LOG,
    OPTION_LOG_LEVEL,
    OPTION_LOG_FORMAT,
    OPTION_NAME,
    OPTION_IDLE,
    OPTION_HIBERNATE_AFTER,
    OPTION_AUTO_SNAPSHOT,
    OPTION_AUTO_KEEP,
    OPTION_TTL,
    OPTION_LIFETIME,
    OPTION_NO_DETACH,
    OPTION_INTERACTIVE,
    OPTION_TTY,
    OPTION_DETACH,
    OPTION_DETACH_KEYS,
    OPTION_SHELL,
    OPTION_ID,
    OPTION_SIGNAL,
    OPTION_SCOPE,
    OPTION_QUIET,
    OPTION_VERBOSE,
    OPTION_STORE_NAME,
    OPTION_ARCHIVE_TAG,
    OPTION_PLATFORM,
    OPTION_AUTHFILE,
    OPTION_CREDS,
    OPTION_STALL,
    OPTION_MISSING,
    OPTION_COMPRESSION,
    OPTION_CONFIG_OF,
    OPTION_GC_KEEP,
    OPTION_OLDER,
    OPTION_MAX_ENTRIES,
    OPTION_MAX_BYTES,
    OPTION_MAX_DEPTH,
    OPTION_MAX_RATIO,
    OPTION_RECORD_OUTPUT,
    OPTION_RECORD,
    OPTION_RECORD_INPUT,
    OPTION_KEEP,
    OPTION_MAX_RECORD,
    OPTION_REDACT,
    OPTION_REDACT_ENV,
    OPTION_ENV_VALUES,
    OPTION_RECORD_FILES,
    OPTION_RECORD_CHANGES,
    OPTION_PARENT,
    OPTION_SAME_SEED,
    OPTION_TWICE,
    OPTION_NO_FILES,
    OPTION_TRUST,
    OPTION_OVERWRITE,
    OPTION_ONCE,
    OPTION_INTERVAL,
    OPTION_FOLLOW,
    OPTION_TAIL,
    OPTION_LISTEN,
    OPTION_AS,
    OPTION_FROM,
    OPTION_LIVE,
    OPTION_DROP_PROCESSES,
    OPTION_FORKS,
    OPTION_TEXTUAL,
    OPTION_FORCE,
    OPTION_TEMPLATE,
    OPTION_PYTHON,
    OPTION_INTERPRETER,
    OPTION_TOKENS,
    OPTION_HOST,
    OPTION_INSECURE,
    OPTION_CONFIG,
    OPTION_TLS_CERT,
    OPTION_TLS_KEY,
    OPTION_TLS_CLIENT_CA,
    OPTION_TLS_CLIENT_REQUIRED,
    OPTION_DRAIN,
    OPTION_STATE,
    OPTION_ENGINES,
    OPTION_ENGINE_PER_TENANT,
    OPTION_PRICES,
    OPTION_SERVE_TEMPLATE,
    OPTION_COST_BY,
    OPTION_PER_MILLION,
    OPTION_LABEL,
    OPTION_TRACE,
    OPTION_PRIORITY,
    OPTION_QUEUE_TIMEOUT,
    OPTION_OTLP_ENDPOINT,
    OPTION_OTLP_SERVICE_NAME,
    OPTION_OTLP_SAMPLER,
    OPTION_OTLP_SAMPLER_ARG,
    OPTION_CERTIFICATE,
    OPTION_TENANT,
    OPTION_TOKEN_SCOPE,
    OPTION_EXPIRES,
    OPTION_MAX_SANDBOXES,
    OPTION_MAX_RUNNING,
    OPTION_QUOTA,
    OPTION_WEIGHT,
    OPTION_CEILING,
    OPTION_BUILD_TAG,
    OPTION_BUILD_FILE,
    OPTION_BUILD_ARG,
    OPTION_BUILD_TARGET,
    OPTION_BUILD_SECRET,
    OPTION_BUILD_SSH,
    OPTION_BUILD_PULL,
    OPTION_BUILD_NO_PULL,
    OPTION_BUILD_PROGRESS,
    OPTION_NO_CACHE,
};

enum option_kind {
    OPTION_FLAG, /* no argument */
    OPTION_TEXT,
    OPTION_FILE,    /* a file of the caller, used as given */
    OPTION_PATH,    /* a path put into the policy: made absolute */
    OPTION_SIZE,    /* passed on as text, checked with the policy */
    OPTION_COUNT,   /* a whole number from 0 */
    OPTION_NUMBER,  /* a number above 0, fractions allowed */
    OPTION_SECONDS, /* the same, or "none", which is 0 */
};

struct option {
    enum option_id id;
    char letter;          /* 0: none */
    const char *name;     /* without the dashes */
    const char *argument; /* NULL: none */
    enum option_kind kind;
    unsigned __int128 commands; /* bits: COMMAND_ */
    const char *policy_key;     /* the policy key that it sets or adds to; NULL: none */
    const char *help;
};

/* More commands than a 64-bit number has bits. */
#define COMMAND_BIT(n) ((unsigned __int128)1 << (n))

#define COMMAND_RUN COMMAND_BIT(0)
#define COMMAND_BATCH COMMAND_BIT(1)
#define COMMAND_DOCTOR COMMAND_BIT(2)
#define COMMAND_POLICY_CHECK COMMAND_BIT(3)
#define COMMAND_POLICY_PLAN COMMAND_BIT(4)
#define COMMAND_ENGINE_START COMMAND_BIT(5)
#define COMMAND_ENGINE_STATUS COMMAND_BIT(6)
#define COMMAND_ENGINE_STOP COMMAND_BIT(7)
#define COMMAND_VERSION COMMAND_BIT(8)
#define COMMAND_COMPLETION COMMAND_BIT(9)
#define COMMAND_HELP COMMAND_BIT(10)
#define COMMAND_CREATE COMMAND_BIT(11)
#define COMMAND_EXEC COMMAND_BIT(12)
#define COMMAND_ATTACH COMMAND_BIT(13)
#define COMMAND_PS COMMAND_BIT(14)
#define COMMAND_INSPECT COMMAND_BIT(15)
#define COMMAND_KILL COMMAND_BIT(16)
#define COMMAND_RM COMMAND_BIT(17)
#define COMMAND_PAUSE COMMAND_BIT(18)
#define COMMAND_RESUME COMMAND_BIT(19)
#define COMMAND_SNAPSHOT COMMAND_BIT(20)
#define COMMAND_FORK COMMAND_BIT(21)
#define COMMAND_RESTORE COMMAND_BIT(22)
#define COMMAND_RESET COMMAND_BIT(23)
#define COMMAND_TREE COMMAND_BIT(24)
#define COMMAND_DIFF COMMAND_BIT(25)
#define COMMAND_COMMIT COMMAND_BIT(26)
#define COMMAND_DISCARD COMMAND_BIT(27)
#define COMMAND_EXPORT COMMAND_BIT(28)
#define COMMAND_CP COMMAND_BIT(29)
#define COMMAND_IMAGE_IMPORT COMMAND_BIT(30)
#define COMMAND_IMAGE_LS COMMAND_BIT(31)
#define COMMAND_IMAGE_RM COMMAND_BIT(32)
#define COMMAND_IMAGE_SHOW COMMAND_BIT(33)
#define COMMAND_STORE_PATH COMMAND_BIT(34)
#define COMMAND_STORE_GC COMMAND_BIT(35)
#define COMMAND_STORE_FSCK COMMAND_BIT(36)
#define COMMAND_STORE_DF COMMAND_BIT(37)
#define COMMAND_IMPORT COMMAND_BIT(38)
#define COMMAND_TEMPLATE_CREATE COMMAND_BIT(39)
#define COMMAND_TEMPLATE_LS COMMAND_BIT(40)
#define COMMAND_TEMPLATE_RM COMMAND_BIT(41)
#define COMMAND_HIBERNATE COMMAND_BIT(42)
#define COMMAND_WAKE COMMAND_BIT(43)
#define COMMAND_SNAPSHOT_SHOW COMMAND_BIT(44)
#define COMMAND_SNAPSHOT_VERIFY COMMAND_BIT(45)
#define COMMAND_SERVE COMMAND_BIT(46)
#define COMMAND_TOKEN_CREATE COMMAND_BIT(47)
#define COMMAND_TOKEN_LS COMMAND_BIT(52)
#define COMMAND_TOKEN_RM COMMAND_BIT(53)
#define COMMAND_TOKEN_TENANT COMMAND_BIT(110)
#define TOKEN_COMMANDS                                                                             \
    (COMMAND_TOKEN_CREATE | COMMAND_TOKEN_TENANT | COMMAND_TOKEN_LS | COMMAND_TOKEN_RM)
#define COMMAND_STATS COMMAND_BIT(60)
#define COMMAND_COST COMMAND_BIT(113)
#define COMMAND_LOGS COMMAND_BIT(61)
#define COMMAND_FORWARD COMMAND_BIT(62)
#define COMMAND_RECORD COMMAND_BIT(48)
#define COMMAND_REPLAY COMMAND_BIT(49)
#define COMMAND_VERIFY COMMAND_BIT(50)
#define COMMAND_PORT COMMAND_BIT(51)
#define COMMAND_SHELL COMMAND_BIT(56)
#define COMMAND_DEBUG_DUMP COMMAND_BIT(57)
#define COMMAND_NET_LOG COMMAND_BIT(58)
#define COMMAND_NET_SET COMMAND_BIT(59)
#define COMMAND_NET_TEST COMMAND_BIT(63)
#define COMMAND_IMAGE_PULL COMMAND_BIT(64)
#define COMMAND_IMAGE_PUSH COMMAND_BIT(65)
#define COMMAND_IMAGE_EXPORT COMMAND_BIT(66)
#define COMMAND_IMAGE_INSPECT COMMAND_BIT(67)
#define COMMAND_IMAGE_COMMIT COMMAND_BIT(119)
#define COMMAND_MCP COMMAND_BIT(112)
#define COMMAND_VOLUME_CREATE COMMAND_BIT(100)
#define COMMAND_VOLUME_LS COMMAND_BIT(101)
#define COMMAND_VOLUME_RM COMMAND_BIT(102)
#define COMMAND_VOLUME_INSPECT COMMAND_BIT(103)
#define COMMAND_VOLUME_DF COMMAND_BIT(104)
#define COMMAND_VOLUME_SNAPSHOT COMMAND_BIT(105)
#define COMMAND_IMAGE_BUILD COMMAND_BIT(54)

struct options;

struct command {
    const char *name;      /* "run", "policy check" */
    const char *arguments; /* the text after the options in the usage line */
    const char *summary;
    const char *notes; /* printed after the options; may be NULL */
    unsigned __int128 bit;
    int min_rest, max_rest; /* how many operands; max -1: any number */
    int (*call)(const struct options *options);
    int leading; /* with max_rest -1: the number of operands before the guest's command; options may
                    come between them */
};

extern const struct option option_table[];
extern const size_t option_count;
/* main() sets them before anything else: the table is in main.c, above the files of the commands
 * that it names. */
extern const struct command *command_table;
extern size_t command_count;

struct option_use {
    const struct option *option;
    const char *value; /* NULL for a flag */
    double number;     /* OPTION_NUMBER, OPTION_SECONDS */
    uint64_t count;    /* OPTION_COUNT */
};

struct options {
    const struct command *command;
    struct option_use *uses; /* in the order given */
    size_t n_uses;
    char **rest; /* operands, or the guest's argv; NULL-terminated, borrowed from argv */
    int n_rest;
};

/* Parses argv (after the command's name). 0; or -EINVAL after one line on standard error with the
 * error, its place and the remedy. */
int options_parse(
    const struct command *command, int argc, char **argv, struct options *ret_options);
/* Adds the --engine that stood before the command, which the command's own wins over. Once. */
void options_add_engine(struct options *options, const char *socket);
void options_done(struct options *options);

/* Whether --json is among the options, even if others are wrong. `command` NULL: unknown command.
 */
bool options_ask_json(const struct command *command, int argc, char *const *argv);

/* The last use of an option; NULL if it was not given. */
const struct option_use *options_last(const struct options *options, enum option_id id);
const char *options_text(const struct options *options, enum option_id id);
static inline bool options_has(const struct options *options, enum option_id id) {
    return options_last(options, id) != NULL;
}

/* The help of one command, or of all, on standard output. */
void options_help(const struct command *command);
void options_help_group(const char *group); /* the commands whose first word it is */
void options_help_all(void);

/* The entry of `names` (n of them, `stride` bytes apart, each a const char *) that was most likely
 * meant; NULL if none is similar. */
const char *options_nearest(const char *word, const void *names, size_t n, size_t stride);

#endif
