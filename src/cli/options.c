/* SPDX-License-Identifier: Apache-2.0 */
/* The table of options. Parsing, help and suggestions use it and the table of commands. */
#include "base/text.h"
#include "cli/options.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"

#define POLICY_COMMANDS                                                                            \
    (COMMAND_RUN | COMMAND_SHELL | COMMAND_BATCH | COMMAND_POLICY_PLAN | COMMAND_CREATE |          \
        COMMAND_RECORD | COMMAND_VERIFY | COMMAND_TEMPLATE_CREATE)
/* Of a policy, what concerns the steps of a build. */
#define BUILD_AND_POLICY_COMMANDS (POLICY_COMMANDS | COMMAND_IMAGE_BUILD)
/* A template is live, and those that have a seed or a clock of their own are not captured. */
#define REPEATING_COMMANDS (POLICY_COMMANDS & ~COMMAND_TEMPLATE_CREATE)
#define NET_RULE_COMMANDS (BUILD_AND_POLICY_COMMANDS | COMMAND_NET_SET | COMMAND_NET_TEST)
#define RECORD_COMMANDS (COMMAND_RECORD | COMMAND_REPLAY | COMMAND_VERIFY)
#define RULE_COMMANDS (COMMAND_RECORD | COMMAND_VERIFY | COMMAND_BATCH | KEPT_COMMANDS)
/* The commands that create sessions, which can be recorded. */
#define KEPT_COMMANDS (COMMAND_CREATE | COMMAND_FORK | COMMAND_RESTORE)
#define EVERY_COMMAND (~(unsigned __int128)0)
#define STATE_COMMANDS (COMMAND_SNAPSHOT_SHOW | COMMAND_SNAPSHOT_VERIFY)
#define TEMPLATE_COMMANDS (COMMAND_TEMPLATE_CREATE | COMMAND_TEMPLATE_LS | COMMAND_TEMPLATE_RM)
#define SESSION_COMMANDS                                                                           \
    (COMMAND_CREATE | COMMAND_EXEC | COMMAND_ATTACH | COMMAND_PS | COMMAND_STATS | COMMAND_LOGS |  \
        COMMAND_INSPECT | COMMAND_KILL | COMMAND_RM | COMMAND_PAUSE | COMMAND_RESUME |             \
        COMMAND_HIBERNATE | COMMAND_WAKE | COMMAND_SNAPSHOT | COMMAND_FORK | COMMAND_RESTORE |     \
        COMMAND_RESET | COMMAND_TREE | COMMAND_DIFF | COMMAND_COMMIT | COMMAND_DISCARD |           \
        COMMAND_EXPORT | COMMAND_CP | COMMAND_FORWARD | TEMPLATE_COMMANDS | STATE_COMMANDS |       \
        COMMAND_NET_LOG | COMMAND_NET_SET | COMMAND_PORT | COMMAND_IMAGE_COMMIT)
#define SOCKET_COMMANDS                                                                            \
    (COMMAND_ENGINE_START | COMMAND_ENGINE_STATUS | COMMAND_ENGINE_STOP | COMMAND_DEBUG_DUMP |     \
        SESSION_COMMANDS)
#define IMPORT_COMMANDS (COMMAND_IMAGE_IMPORT | COMMAND_IMPORT)
#define VOLUME_COMMANDS                                                                            \
    (COMMAND_VOLUME_CREATE | COMMAND_VOLUME_LS | COMMAND_VOLUME_RM | COMMAND_VOLUME_INSPECT |      \
        COMMAND_VOLUME_DF | COMMAND_VOLUME_SNAPSHOT)
#define UNPACK_COMMANDS (IMPORT_COMMANDS | COMMAND_IMAGE_PULL)
#define REGISTRY_COMMANDS (COMMAND_IMAGE_PULL | COMMAND_IMAGE_PUSH)
#define UNPACKING_COMMANDS (UNPACK_COMMANDS | COMMAND_IMAGE_BUILD)
#define STORE_COMMANDS                                                                             \
    (UNPACK_COMMANDS | COMMAND_IMAGE_PUSH | COMMAND_IMAGE_EXPORT | COMMAND_IMAGE_INSPECT |         \
        COMMAND_IMAGE_LS | COMMAND_IMAGE_RM | COMMAND_IMAGE_SHOW | COMMAND_STORE_PATH |            \
        COMMAND_STORE_GC | COMMAND_STORE_FSCK | COMMAND_STORE_DF | VOLUME_COMMANDS)
/* All commands except those whose output is a text for a person or a shell. */
#define JSON_COMMANDS (EVERY_COMMAND & ~(COMMAND_COMPLETION | COMMAND_HELP))

/* In the order of the help. */
const struct option option_table[] = {
    { OPTION_BUILD_TAG, 't', "tag", "NAME", OPTION_TEXT, COMMAND_IMAGE_BUILD, NULL,
        "the image's name in the store (default: none, only the steps are kept)" },
    { OPTION_BUILD_FILE, 'f', "file", "FILE", OPTION_FILE, COMMAND_IMAGE_BUILD, NULL,
        "the Dockerfile; - is standard input (default: Dockerfile of the context)" },
    { OPTION_BUILD_ARG, 0, "build-arg", "NAME[=VALUE]", OPTION_TEXT, COMMAND_IMAGE_BUILD, NULL,
        "the value of an ARG; without =VALUE that of the caller's variable" },
    { OPTION_BUILD_TARGET, 0, "target", "STAGE", OPTION_TEXT, COMMAND_IMAGE_BUILD, NULL,
        "the stage to build, by name or number (default: the last one)" },
    { OPTION_NO_CACHE, 0, "no-cache", NULL, OPTION_FLAG, COMMAND_IMAGE_BUILD, NULL,
        "carry out all steps again" },
    { OPTION_BUILD_SECRET, 0, "secret", "id=ID,src=FILE", OPTION_TEXT, COMMAND_IMAGE_BUILD, NULL,
        "a secret for RUN --mount=type=secret: a file, or a variable by env=VARIABLE" },
    { OPTION_BUILD_SSH, 0, "ssh", "ID[=SOCKET]", OPTION_TEXT, COMMAND_IMAGE_BUILD, NULL,
        "an SSH agent for RUN --mount=type=ssh: default, or an id and the agent's socket" },
    { OPTION_BUILD_PULL, 0, "pull", NULL, OPTION_FLAG, COMMAND_IMAGE_BUILD, NULL,
        "ask registries for the images of FROM, also for those that the store has" },
    { OPTION_BUILD_NO_PULL, 0, "no-pull", NULL, OPTION_FLAG, COMMAND_IMAGE_BUILD, NULL,
        "use images of the store alone (default: pull those that it lacks)" },
    { OPTION_BUILD_PROGRESS, 0, "progress", "auto|plain|tty|json|quiet", OPTION_TEXT,
        COMMAND_IMAGE_BUILD, NULL, "the form of the progress on standard error (default auto)" },
    { OPTION_OUTPUT, 'o', "output", "FILE", OPTION_FILE, COMMAND_BATCH, NULL,
        "where the result rows go; - is standard output (default); an existing file is resumed" },
    { OPTION_RECORD_OUTPUT, 'o', "output", "FILE", OPTION_FILE, COMMAND_RECORD | COMMAND_REPLAY,
        NULL, "where the trajectory goes (required): a file that is new or empty, or a pipe" },
    { OPTION_RECORD_INPUT, 'i', "interactive", NULL, OPTION_FLAG, COMMAND_RECORD, NULL,
        "read standard input to its end first, and give it to the command (default: it has none)" },
    { OPTION_RECORD, 0, "record", "FILE", OPTION_FILE, KEPT_COMMANDS, NULL,
        "record all actions on the sandbox, by any client, as a trajectory; {name} is its name" },
    { OPTION_RECORD, 0, "record", "FILE", OPTION_FILE, COMMAND_BATCH, NULL,
        "keep a trajectory of each job; {id} in FILE, which must be there, is the job's" },
    { OPTION_KEEP, 0, "keep", "SIZE", OPTION_SIZE, RULE_COMMANDS, NULL,
        "record this many bytes of each stream and file, and a digest of the rest (default 256K, "
        "at most 16M)" },
    { OPTION_MAX_RECORD, 0, "max-record", "SIZE", OPTION_SIZE, RULE_COMMANDS, NULL,
        "end the trajectory when it would become larger (default 1G)" },
    { OPTION_REDACT, 0, "redact", "REGEX", OPTION_TEXT, RULE_COMMANDS, NULL,
        "replace each match of this extended regular expression in a line by [redacted]" },
    { OPTION_REDACT_ENV, 0, "redact-env", "NAME", OPTION_TEXT, RULE_COMMANDS, NULL,
        "the same for the value that this variable has in a command, wherever it occurs" },
    { OPTION_ENV_VALUES, 0, "env-values", NULL, OPTION_FLAG, RULE_COMMANDS, NULL,
        "record variables with their values, not only their names" },
    { OPTION_RECORD_FILES, 0, "record-files", NULL, OPTION_FLAG, KEPT_COMMANDS, NULL,
        "record with each snapshot the changes since the beginning, by digest" },
    { OPTION_RECORD_CHANGES, 0, "record-changes", NULL, OPTION_FLAG, KEPT_COMMANDS | COMMAND_RECORD,
        NULL, "record after each command the files that it has changed, by digest" },
    { OPTION_RECORD_CHANGES, 0, "record-changes", NULL, OPTION_FLAG, COMMAND_VERIFY, NULL,
        "compare the files that the command has changed (default with --twice)" },
    { OPTION_SAME_SEED, 0, "same-seed", NULL, OPTION_FLAG, COMMAND_FORK | COMMAND_RESTORE, NULL,
        "under a policy with --seed, all get the parent's seed; without this, each gets a seed of "
        "its own that is derived from it" },
    { OPTION_PARENT, 0, "parent", "FILE", OPTION_FILE, COMMAND_REPLAY | COMMAND_VERIFY, NULL,
        "the record of the parent sandbox; repeat it for older ancestors, the oldest first" },
    { OPTION_TRUST, 0, "trust", NULL, OPTION_FLAG, COMMAND_REPLAY | COMMAND_VERIFY | COMMAND_IMPORT,
        NULL, "use the policy in the file even if it grants more than the default one" },
    { OPTION_TWICE, 0, "twice", NULL, OPTION_FLAG, COMMAND_VERIFY, NULL,
        "run a command twice and compare, the files that it has changed too" },
    { OPTION_NO_FILES, 0, "no-files", NULL, OPTION_FLAG, COMMAND_VERIFY, NULL,
        "of --twice: do not compare files" },
    { OPTION_JOBS, 'j', "jobs", "N", OPTION_COUNT, COMMAND_BATCH, NULL,
        "how many jobs run at once (default: the CPUs)" },
    { OPTION_ORDERED, 0, "ordered", NULL, OPTION_FLAG, COMMAND_BATCH, NULL,
        "write the rows in the order of the jobs, not of their ends" },
    { OPTION_RETRIES, 0, "retries", "N", OPTION_COUNT, COMMAND_BATCH, NULL,
        "how often a job is tried again after an infrastructure error (default 2)" },
    { OPTION_NO_PROGRESS, 0, "no-progress", NULL, OPTION_FLAG,
        COMMAND_BATCH | COMMAND_CP | COMMAND_IMAGE_IMPORT | COMMAND_IMAGE_PULL | COMMAND_REPLAY |
            COMMAND_VERIFY,
        NULL, "no progress bar on a terminal" },
    { OPTION_CHOWN, 0, "chown", "USER[:GROUP]", OPTION_TEXT, COMMAND_CP, NULL,
        "with users many: the owner of the files in the sandbox (default: root)" },
    { OPTION_BACKGROUND, 'b', "background", NULL, OPTION_FLAG, COMMAND_ENGINE_START, NULL,
        "start it in the background and return when it answers" },
    { OPTION_LOG, 0, "log", "FILE", OPTION_TEXT, COMMAND_ENGINE_START, NULL,
        "log to that file, which is appended to, or to standard error (-)" },
    { OPTION_LOG_LEVEL, 0, "log-level", "error|warn|info|debug", OPTION_TEXT, COMMAND_ENGINE_START,
        NULL, "the least level that is logged (default: info)" },
    { OPTION_LOG_FORMAT, 0, "log-format", "text|json", OPTION_TEXT, COMMAND_ENGINE_START, NULL,
        "the lines' format (default: text)" },
    { OPTION_NAME, 0, "name", "NAME", OPTION_TEXT, COMMAND_CREATE, NULL,
        "the sandbox's name: 1 to 64 of A-Z a-z 0-9 _ . - (default: a generated one)" },
    { OPTION_IDLE, 0, "idle", "SECONDS", OPTION_NUMBER, COMMAND_CREATE, NULL,
        "pause it after this time without a call or a running command" },
    { OPTION_HIBERNATE_AFTER, 0, "hibernate-after", "SECONDS", OPTION_NUMBER, COMMAND_CREATE, NULL,
        "hibernate it after this time without a call, or a command that a client waits for" },
    { OPTION_AUTO_SNAPSHOT, 0, "auto-snapshot", "changed|off", OPTION_TEXT, COMMAND_CREATE, NULL,
        "changed: take a snapshot after each command that has changed something (default off)" },
    { OPTION_AUTO_KEEP, 0, "auto-keep", "N", OPTION_COUNT, COMMAND_CREATE, NULL,
        "keep the latest N automatic snapshots, and those with a name or branches (default 16)" },
    { OPTION_TTL, 0, "ttl", "SECONDS", OPTION_NUMBER, COMMAND_CREATE, NULL,
        "remove it after this time without a call" },
    { OPTION_LIFETIME, 0, "lifetime", "SECONDS", OPTION_NUMBER, COMMAND_CREATE, NULL,
        "remove it after this time in any case" },
    { OPTION_NO_DETACH, 0, "no-detach", NULL, OPTION_FLAG, COMMAND_CREATE, NULL,
        "stay until a signal or the end of standard input, and remove it then" },
    { OPTION_INTERACTIVE, 'i', "interactive", NULL, OPTION_FLAG, COMMAND_EXEC | COMMAND_ATTACH,
        NULL, "pass standard input on (default: it has none)" },
    { OPTION_INTERACTIVE, 'i', "interactive", NULL, OPTION_FLAG, COMMAND_RUN, NULL,
        "with -t: pass keys on; without -t standard input is passed on anyway" },
    { OPTION_TTY, 't', "tty", NULL, OPTION_FLAG, COMMAND_EXEC | COMMAND_RUN, NULL,
        "give it a terminal of its own" },
    { OPTION_TTY, 't', "tty", NULL, OPTION_FLAG, COMMAND_ATTACH, NULL,
        "only to a command that has a terminal" },
    { OPTION_DETACH_KEYS, 0, "detach-keys", "KEYS", OPTION_TEXT, COMMAND_EXEC | COMMAND_ATTACH,
        NULL, "with -it: the keys that detach from it (default ctrl-p,ctrl-q), or none" },
    { OPTION_DETACH, 'd', "detach", NULL, OPTION_FLAG, COMMAND_EXEC, NULL,
        "print its id and leave it running" },
    { OPTION_SHELL, 'c', "shell", "STRING", OPTION_TEXT, COMMAND_EXEC, NULL,
        "run STRING by a login shell: bash where the sandbox has it, else sh" },
    { OPTION_ID, 0, "id", "ID", OPTION_TEXT, COMMAND_EXEC, NULL,
        "the command's id (default: a generated one); the same command under it again returns the "
        "first result" },
    { OPTION_SIGNAL, 's', "signal", "SIGNAL", OPTION_TEXT, COMMAND_KILL, NULL,
        "by name or number (default KILL)" },
    { OPTION_SCOPE, 0, "scope", "main|tree|children|group", OPTION_TEXT, COMMAND_KILL, NULL,
        "which processes of the command get it (default tree)" },
    { OPTION_VERBOSE, 'v', "verbose", NULL, OPTION_FLAG, COMMAND_RUN | COMMAND_SHELL, NULL,
        "say on standard error whether an image has one user or many (on a terminal always)" },
    { OPTION_QUIET, 'q', "quiet", NULL, OPTION_FLAG,
        COMMAND_PS | COMMAND_TREE | COMMAND_IMAGE_LS | COMMAND_VOLUME_LS | COMMAND_TEMPLATE_LS,
        NULL, "print only names (ps NAME: process ids)" },
    { OPTION_FOLLOW, 'f', "follow", NULL, OPTION_FLAG, COMMAND_LOGS, NULL,
        "follow the output until the command ends" },
    { OPTION_TAIL, 0, "tail", "N", OPTION_COUNT, COMMAND_LOGS, NULL,
        "print the last N lines of each stream (default: all)" },
    { OPTION_LISTEN, 0, "listen", "ADDRESS", OPTION_TEXT, COMMAND_FORWARD, NULL,
        "PORT, HOST:PORT, the path of a Unix socket, or - for the standard streams (default: any "
        "free port of 127.0.0.1)" },
    { OPTION_LISTEN, 0, "listen", "ADDRESS", OPTION_TEXT, COMMAND_PORT, NULL,
        "PORT, HOST:PORT or the path of a Unix socket (default: the address that it has already, "
        "or any free port of 127.0.0.1)" },
    { OPTION_ONCE, 0, "once", NULL, OPTION_FLAG, COMMAND_STATS, NULL, "one table, and end" },
    { OPTION_INTERVAL, 0, "interval", "SECONDS", OPTION_NUMBER, COMMAND_STATS, NULL,
        "the time between tables, over which CPU is measured (default 1)" },
    { OPTION_AS, 0, "as", "NAME", OPTION_TEXT, COMMAND_SNAPSHOT, NULL,
        "another name for the snapshot, beside its id" },
    { OPTION_FORKS, 'n', "count", "N", OPTION_COUNT, COMMAND_FORK | COMMAND_RESTORE, NULL,
        "how many sandboxes to make (default 1)" },
    { OPTION_FROM, 0, "from", "SNAPSHOT", OPTION_TEXT,
        COMMAND_FORK | COMMAND_EXPORT | COMMAND_IMAGE_COMMIT, NULL,
        "a snapshot (default: the present state)" },
    { OPTION_LIVE, 0, "live", NULL, OPTION_FLAG, COMMAND_EXPORT, NULL,
        "export the processes too; rollbox import makes a hibernated sandbox of it" },
    { OPTION_DROP_PROCESSES, 0, "drop-processes", NULL, OPTION_FLAG,
        COMMAND_IMPORT | COMMAND_SNAPSHOT | COMMAND_FORK | COMMAND_RESTORE | COMMAND_RESET |
            COMMAND_DISCARD | COMMAND_HIBERNATE | COMMAND_WAKE,
        NULL, "only the files, without processes" },
    { OPTION_TEXTUAL, 0, "text", NULL, OPTION_FLAG, COMMAND_DIFF, NULL,
        "unified diffs of text files" },
    { OPTION_OVERWRITE, 'f', "force", NULL, OPTION_FLAG,
        COMMAND_RECORD | COMMAND_REPLAY | COMMAND_BATCH | KEPT_COMMANDS, NULL,
        "overwrite the trajectory's file if it is not empty" },
    { OPTION_FORCE, 'f', "force", NULL, OPTION_FLAG, COMMAND_COMMIT, NULL,
        "even if the host's files were changed meanwhile" },
    { OPTION_VOLUME_NAME, 0, "name", "NAME", OPTION_TEXT, COMMAND_VOLUME_SNAPSHOT, NULL,
        "the new volume's name (required): A-Z a-z 0-9 . _ -" },
    { OPTION_STORE_NAME, 0, "name", "NAME", OPTION_TEXT, IMPORT_COMMANDS, NULL,
        "its name (required): A-Z a-z 0-9 . _ : @ / + -" },
    { OPTION_STORE_NAME, 0, "name", "NAME", OPTION_TEXT, COMMAND_IMAGE_PULL, NULL,
        "its name in the store (default: the reference without docker://)" },
    { OPTION_PLATFORM, 0, "platform", "OS/ARCHITECTURE[/VARIANT]", OPTION_TEXT,
        COMMAND_IMAGE_PULL | COMMAND_IMAGE_IMPORT, NULL,
        "for another machine than this one, such as linux/arm64" },
    { OPTION_INSECURE, 0, "insecure", NULL, OPTION_FLAG, REGISTRY_COMMANDS | COMMAND_IMAGE_BUILD,
        NULL,
        "a registry without TLS, or with a self-signed certificate (always so for one on 127.0.0.1 "
        "or localhost)" },
    { OPTION_AUTHFILE, 0, "authfile", "FILE", OPTION_FILE, REGISTRY_COMMANDS | COMMAND_IMAGE_BUILD,
        NULL,
        "credentials, as docker login and skopeo login write them (default: where those do)" },
    { OPTION_CREDS, 0, "creds", "FILE", OPTION_FILE, REGISTRY_COMMANDS, NULL,
        "a file with USER:PASSWORD; - is standard input" },
    { OPTION_STALL, 0, "stall", "SECONDS", OPTION_COUNT, REGISTRY_COMMANDS, NULL,
        "give up when nothing has arrived for so long (default 60)" },
    { OPTION_MISSING, 0, "missing", NULL, OPTION_FLAG, COMMAND_IMAGE_PULL, NULL,
        "do nothing if the store has an image of this name" },
    { OPTION_COMPRESSION, 0, "compression", "gzip|zstd|none", OPTION_TEXT,
        COMMAND_IMAGE_PUSH | COMMAND_IMAGE_EXPORT, NULL, "of the layers (default gzip)" },
    { OPTION_CONFIG_OF, 0, "config-of", "NAME", OPTION_TEXT,
        COMMAND_IMAGE_PUSH | COMMAND_IMAGE_EXPORT, NULL,
        "with the configuration of this image, for a snapshot, which has none" },
    { OPTION_GC_KEEP, 0, "keep", "SIZE", OPTION_SIZE, COMMAND_STORE_GC, NULL,
        "remove the images that were used least recently until the layers have at most SIZE" },
    { OPTION_OLDER, 0, "older", "TIME", OPTION_TEXT, COMMAND_STORE_GC, NULL,
        "remove images that nobody has used for so long, such as 30d or 12h" },
    { OPTION_ARCHIVE_TAG, 0, "tag-of-archive", "TAG", OPTION_TEXT, COMMAND_IMAGE_IMPORT, NULL,
        "which image, if the archive has several" },
    { OPTION_MAX_ENTRIES, 0, "max-entries", "N", OPTION_COUNT, UNPACKING_COMMANDS, NULL,
        "refuse more files and directories than N (default 2000000)" },
    { OPTION_MAX_BYTES, 0, "max-bytes", "N", OPTION_COUNT, UNPACKING_COMMANDS, NULL,
        "refuse an image that unpacks to more bytes (default 64 GiB)" },
    { OPTION_MAX_DEPTH, 0, "max-depth", "N", OPTION_COUNT, UNPACK_COMMANDS, NULL,
        "refuse deeper trees (default 1000)" },
    { OPTION_MAX_RATIO, 0, "max-ratio", "N", OPTION_COUNT,
        COMMAND_IMAGE_IMPORT | COMMAND_IMAGE_PULL | COMMAND_IMAGE_BUILD, NULL,
        "refuse layers that unpack to more than N times their size (default 500)" },
    { OPTION_TEMPLATE, 0, "template", "NAME", OPTION_TEXT, COMMAND_RUN, NULL,
        "run python3 -c CODE, or python3 FILE, in a fork of this template (rollbox template "
        "create), under its policy" },
    { OPTION_PYTHON, 0, "python", "CODE", OPTION_TEXT, COMMAND_TEMPLATE_CREATE, NULL,
        "code that its interpreter runs first; runs start from its state (default: none)" },
    { OPTION_JSON, 0, "json", NULL, OPTION_FLAG, JSON_COMMANDS, NULL,
        "print the result as one JSON object" },
    { OPTION_POLICY, 0, "policy", "FILE", OPTION_FILE,
        COMMAND_RUN | COMMAND_SHELL | COMMAND_BATCH | COMMAND_CREATE | COMMAND_TEMPLATE_CREATE |
            COMMAND_NET_TEST | COMMAND_RECORD | COMMAND_IMAGE_BUILD,
        NULL, "a policy file (JSON); the options below add to it" },
    { OPTION_POLICY, 0, "policy", "FILE", OPTION_FILE, COMMAND_REPLAY, NULL,
        "a policy file (JSON), used instead of the record's policy" },
    { OPTION_POLICY, 0, "policy", "FILE", OPTION_FILE, COMMAND_VERIFY, NULL,
        "a policy file (JSON); the options below add to it. A replay uses it instead of the "
        "record's policy" },
    { OPTION_POLICY, 0, "policy", "FILE", OPTION_FILE, COMMAND_IMPORT, NULL,
        "of an export with processes: a policy file (JSON), used instead of the policy in FILE" },
    { OPTION_READABLE, 0, "readable", "PATH", OPTION_PATH, POLICY_COMMANDS, "fs_readable_extra",
        "let the sandbox read PATH of the host, too" },
    { OPTION_INTERPRETER, 0, "python", "PATH", OPTION_PATH, REPEATING_COMMANDS, "python",
        "a Python of the host (of a venv, conda, pyenv) as python3, with its files; else the "
        "system's" },
    { OPTION_WRITABLE, 0, "writable", "PATH", OPTION_PATH, POLICY_COMMANDS, "fs_writable",
        "a private copy-on-write view of PATH; the host never changes" },
    { OPTION_SHARED, 0, "shared", "PATH", OPTION_PATH, POLICY_COMMANDS, "fs_shared",
        "write through to PATH of the host" },
    { OPTION_DENIED, 0, "denied", "PATH", OPTION_PATH, POLICY_COMMANDS, "fs_denied",
        "hide PATH, even inside a granted directory" },
    { OPTION_IMAGE, 0, "image", "NAME", OPTION_TEXT, POLICY_COMMANDS, "image",
        "an image of the store as root file system (rollbox image ls lists them); "
        "docker://REFERENCE "
        "is pulled if the store does not have it" },
    { OPTION_MEMORY, 0, "memory", "SIZE", OPTION_SIZE, BUILD_AND_POLICY_COMMANDS, "max_memory",
        "memory of the whole sandbox, such as 256M (default 512M)" },
    { OPTION_PROCESSES, 0, "processes", "N", OPTION_COUNT, BUILD_AND_POLICY_COMMANDS,
        "max_processes", "processes and threads at once (default 64, or 4 a CPU if more)" },
    { OPTION_CPUS, 0, "cpus", "N", OPTION_NUMBER, BUILD_AND_POLICY_COMMANDS, "max_cpu",
        "CPUs, fractions allowed (default: no limit)" },
    { OPTION_DISK, 0, "disk", "SIZE", OPTION_SIZE, BUILD_AND_POLICY_COMMANDS, "max_disk",
        "size of private files (default 1G, at most 3/4 of the memory)" },
    { OPTION_DISK_AT, 0, "disk-at", "memory|store", OPTION_TEXT, BUILD_AND_POLICY_COMMANDS,
        "disk_at",
        "where written files are kept: in memory, or on the store's disk (default memory)" },
    { OPTION_OPEN_FILES, 0, "open-files", "N", OPTION_COUNT, POLICY_COMMANDS, "max_open_files",
        "open files a process (default 4096)" },
    { OPTION_OUTPUT_LIMIT, 0, "output-limit", "BYTES", OPTION_SIZE, POLICY_COMMANDS | COMMAND_EXEC,
        "max_output", "bytes of each output stream; more ends the run (default 10M)" },
    { OPTION_TIMEOUT, 0, "timeout", "SECONDS", OPTION_SECONDS,
        BUILD_AND_POLICY_COMMANDS | COMMAND_EXEC, "timeout",
        "wall-clock limit, fractions allowed; none: no limit (default: 300 for a run, none in a "
        "session)" },
    { OPTION_ENV, 0, "env", "K=V", OPTION_TEXT, POLICY_COMMANDS | COMMAND_EXEC | COMMAND_REPLAY,
        "env", "set a variable in the sandbox's environment" },
    { OPTION_NO_CLEAN_ENV, 0, "no-clean-env", NULL, OPTION_FLAG, POLICY_COMMANDS, "clean_env",
        "keep the caller's environment too" },
    { OPTION_CWD, 0, "cwd", "PATH", OPTION_PATH, POLICY_COMMANDS | COMMAND_EXEC, "cwd",
        "working directory inside the sandbox (default /tmp, private)" },
    { OPTION_USER, 0, "user", "NAME", OPTION_TEXT, POLICY_COMMANDS | COMMAND_EXEC, "user",
        "the user seen inside: box (default), root or a number" },
    { OPTION_USERS, 0, "users", "one|many", OPTION_TEXT, POLICY_COMMANDS, "users",
        "many: 65,536 users, of which root may chown, su, install packages (default one)" },
    { OPTION_HOSTNAME, 0, "hostname", "NAME", OPTION_TEXT, POLICY_COMMANDS, "hostname",
        "the host name seen inside (default rollbox)" },
    { OPTION_VOLUME, 0, "volume", "NAME:PATH[:MODE]", OPTION_TEXT, POLICY_COMMANDS, "volumes",
        "mount a volume at PATH: it outlives the sandbox. MODE: exclusive (default), shared, ro, "
        "private" },
    { OPTION_DEVICE, 0, "device", "DEVICE", OPTION_TEXT, POLICY_COMMANDS, "devices",
        "give the sandbox a device: /dev/kvm, or vendor.com/class=name of a CDI file" },
    { OPTION_GPUS, 0, "gpus", "GPUS", OPTION_TEXT, POLICY_COMMANDS, "gpus",
        "give the sandbox GPUs of the CDI file of nvidia.com/gpu: none (default), all or 0,2" },
    { OPTION_TMPFS, 0, "tmpfs", "PATH[:OPTIONS]", OPTION_TEXT, POLICY_COMMANDS, "tmpfs",
        "an empty private directory at PATH. OPTIONS: size=64M, mode=0700, noexec, with commas" },
    { OPTION_SHM_SIZE, 0, "shm-size", "SIZE", OPTION_SIZE, BUILD_AND_POLICY_COMMANDS, "shm_size",
        "room in /dev/shm at least, such as 256M (default: that of --disk)" },
    { OPTION_ULIMIT, 0, "ulimit", "NAME=SOFT[:HARD]", OPTION_TEXT, BUILD_AND_POLICY_COMMANDS,
        "ulimits", "a limit of each process: nofile=65536, memlock=unlimited, stack=8388608" },
    { OPTION_SIZE_LIMIT, 0, "size", "SIZE", OPTION_SIZE, COMMAND_VOLUME_CREATE, NULL,
        "how much the volume may hold, such as 10G (default: no limit)" },
    { OPTION_NET, 0, "net", "none|loopback|allow|host", OPTION_TEXT, BUILD_AND_POLICY_COMMANDS,
        "net", "network (default none; with --allow: allow)" },
    { OPTION_PUBLISH, 0, "publish", "[ADDRESS:]PORT", OPTION_TEXT,
        COMMAND_CREATE | COMMAND_POLICY_PLAN, "publish",
        "lead an address of the host to PORT of the sandbox: HOST:PORT, a port of 127.0.0.1, or "
        "the "
        "path of a Unix socket (default: any free port of 127.0.0.1)" },
    { OPTION_NET_SET_NET, 0, "net", "loopback", OPTION_TEXT, COMMAND_NET_SET, NULL,
        "reach nothing but the sandbox itself, instead of --allow and --allow-file" },
    { OPTION_NETWORK, 0, "network", "NAME", OPTION_TEXT, COMMAND_CREATE | COMMAND_POLICY_PLAN,
        "network", "join a private network, whose sandboxes reach each other by name" },
    { OPTION_ALLOW, 0, "allow", "HOST[:PORT]", OPTION_TEXT, NET_RULE_COMMANDS, "net_allow_hosts",
        "a host that may be reached, such as pypi.org, '*.example.org:8443', 192.0.2.0/24 or "
        "@pypi" },
    { OPTION_ALLOW_FILE, 0, "allow-file", "FILE", OPTION_FILE, NET_RULE_COMMANDS, "net_allow",
        "hosts that may be reached: one a line, or a JSON list of rules" },
    { OPTION_SECRET, 0, "secret", "NAME[:VARIABLE]=SOURCE", OPTION_TEXT, POLICY_COMMANDS,
        "net_secrets",
        "a secret for --inject; SOURCE is env:VARIABLE, file:PATH or fd:N; with :VARIABLE the "
        "sandbox "
        "has it, with a placeholder" },
    { OPTION_INJECT, 0, "inject", "HOST:HEADER=TEXT", OPTION_TEXT, POLICY_COMMANDS, "net_allow",
        "allow HOST, and set HEADER of its requests; {NAME} in TEXT is a secret" },
    { OPTION_NET_LOG, 0, "net-log", "FILE", OPTION_PATH, BUILD_AND_POLICY_COMMANDS, "net_log_file",
        "append what the sandbox does in its network to FILE, one JSON object a line" },
    { OPTION_NET_RECORD, 0, "net-record", "FILE", OPTION_PATH, BUILD_AND_POLICY_COMMANDS,
        "net_record", "record what the sandbox exchanges with its network" },
    { OPTION_NET_REPLAY, 0, "net-replay", "FILE", OPTION_PATH, BUILD_AND_POLICY_COMMANDS,
        "net_replay", "answer from a recording, without any network" },
    { OPTION_METHOD, 0, "method", "METHOD", OPTION_TEXT, COMMAND_NET_TEST, NULL,
        "of the request (default GET)" },
    { OPTION_MAX_UPLOAD, 0, "max-upload", "SIZE", OPTION_SIZE, POLICY_COMMANDS, "net_max_upload",
        "bytes that the sandbox may send to outside" },
    { OPTION_ISOLATION, 0, "isolation", "namespace|process", OPTION_TEXT, POLICY_COMMANDS,
        "isolation", "how the sandbox is isolated (default namespace)" },
    { OPTION_SEED, 0, "seed", "N", OPTION_COUNT, REPEATING_COMMANDS, "random_seed",
        "make randomness repeat" },
    { OPTION_TIME_START, 0, "time-start", "ISO", OPTION_TEXT, REPEATING_COMMANDS, "time_start",
        "the clock's first reading, such as 2025-01-01T00:00:00" },
    { OPTION_TIME_MODE, 0, "time-mode", "offset|virtual", OPTION_TEXT, REPEATING_COMMANDS,
        "time_mode",
        "how the clock advances from there (default offset; for one command with --seed: "
        "virtual)" },
    { OPTION_SERIAL, 0, "serial", NULL, OPTION_FLAG, REPEATING_COMMANDS, "serial",
        "one thread of the sandbox runs at a time, in a repeatable order" },
    { OPTION_LISTEN, 0, "listen", "ADDRESS", OPTION_TEXT, COMMAND_SERVE, NULL,
        "ADDRESS:PORT, or the path of a Unix socket; repeat it for more (default 127.0.0.1:7420)" },
    { OPTION_HOST, 0, "host", "NAME", OPTION_TEXT, COMMAND_SERVE, NULL,
        "a name by which clients reach the server, besides localhost; repeat it for more" },
    { OPTION_INSECURE, 0, "insecure", NULL, OPTION_FLAG, COMMAND_SERVE, NULL,
        "listen on addresses that other machines reach, though tokens are then sent in clear" },
    { OPTION_CONFIG, 0, "config", "FILE", OPTION_FILE, COMMAND_SERVE, NULL,
        "read options from a TOML file; those of the command line win" },
    { OPTION_TLS_CERT, 0, "tls-cert", "FILE", OPTION_FILE, COMMAND_SERVE, NULL,
        "speak TLS with this certificate and its chain (PEM); SIGHUP reads it again" },
    { OPTION_TLS_KEY, 0, "tls-key", "FILE", OPTION_FILE, COMMAND_SERVE, NULL,
        "the certificate's key (PEM, without a password)" },
    { OPTION_TLS_CLIENT_CA, 0, "tls-client-ca", "FILE", OPTION_FILE, COMMAND_SERVE, NULL,
        "accept client certificates of these authorities; see rollbox token create --certificate" },
    { OPTION_TLS_CLIENT_REQUIRED, 0, "tls-client-required", NULL, OPTION_FLAG, COMMAND_SERVE, NULL,
        "refuse clients without a certificate" },
    { OPTION_DRAIN, 0, "drain", "SECONDS", OPTION_COUNT, COMMAND_SERVE, NULL,
        "how long open requests may take after SIGTERM (default 30)" },
    { OPTION_STATE, 0, "state", "DIR", OPTION_FILE, COMMAND_SERVE, NULL,
        "keep answers for retries, detached sandboxes and durable leases there over a restart" },
    { OPTION_ENGINES, 0, "engines", "N", OPTION_COUNT, COMMAND_SERVE, NULL,
        "start N engines, and share the sandboxes out by load (default 1)" },
    { OPTION_ENGINE_PER_TENANT, 0, "engine-per-tenant", NULL, OPTION_FLAG, COMMAND_SERVE, NULL,
        "start an engine for each tenant" },
    { OPTION_PRICES, 0, "prices", "FILE", OPTION_FILE, COMMAND_SERVE | COMMAND_COST, NULL,
        "a price table, for the cost of what is used; see docs/how-to/observability.md" },
    { OPTION_SERVE_TEMPLATE, 0, "template", "NAME=FILE", OPTION_TEXT, COMMAND_SERVE, NULL,
        "a template for E2B's clients: the policy in FILE; repeat it for more" },
    { OPTION_COST_BY, 0, "by", "KIND", OPTION_TEXT, COMMAND_COST, NULL,
        "a row for each rollout, tenant, sandbox, lease, label, or value of the label KIND "
        "(default: tenant)" },
    { OPTION_PER_MILLION, 0, "per-million", NULL, OPTION_FLAG, COMMAND_COST, NULL,
        "also the cost of a million of the rows, at their mean" },
    { OPTION_LABEL, 0, "label", "K=V", OPTION_TEXT, COMMAND_RUN | COMMAND_CREATE, NULL,
        "a label for a server's costs and traces, such as rollout=17; repeat it for more" },
    { OPTION_PRIORITY, 0, "priority", "high|normal|low", OPTION_TEXT, COMMAND_RUN | COMMAND_CREATE,
        NULL, "on a server that is full: its place among the tenant's own requests" },
    { OPTION_QUEUE_TIMEOUT, 0, "queue-timeout", "SECONDS", OPTION_NUMBER,
        COMMAND_RUN | COMMAND_CREATE, NULL,
        "on a server that is full: how long it may wait for its turn (default 60)" },
    { OPTION_TRACE, 0, "trace", NULL, OPTION_FLAG, COMMAND_RUN | COMMAND_EXEC, NULL,
        "on a server: the program gets TRACEPARENT of its span in its environment" },
    { OPTION_OTLP_ENDPOINT, 0, "otlp-endpoint", "URL", OPTION_TEXT, COMMAND_SERVE, NULL,
        "send traces to this OpenTelemetry collector (OTLP/HTTP), such as http://localhost:4318" },
    { OPTION_OTLP_SERVICE_NAME, 0, "otlp-service-name", "NAME", OPTION_TEXT, COMMAND_SERVE, NULL,
        "the service's name in traces (default rollbox)" },
    { OPTION_OTLP_SAMPLER, 0, "otlp-sampler", "NAME", OPTION_TEXT, COMMAND_SERVE, NULL,
        "which traces are recorded (default parentbased_always_on)" },
    { OPTION_OTLP_SAMPLER_ARG, 0, "otlp-sampler-arg", "RATIO", OPTION_TEXT, COMMAND_SERVE, NULL,
        "the part of the traces for parentbased_traceidratio" },
    { OPTION_CERTIFICATE, 0, "certificate", "KIND:NAME", OPTION_TEXT, COMMAND_TOKEN_CREATE, NULL,
        "no secret: for clients whose certificate has this alternative name; KIND is DNS, URI or "
        "email" },
    { OPTION_TOKENS, 0, "tokens", "FILE", OPTION_FILE, COMMAND_SERVE, NULL,
        "the file of the tokens (rollbox token create); without it only a Unix socket is of use" },
    { OPTION_TOKENS, 0, "tokens", "FILE", OPTION_FILE, TOKEN_COMMANDS, NULL,
        "the file of the tokens (required)" },
    { OPTION_TENANT, 0, "tenant", "NAME", OPTION_TEXT, COMMAND_TOKEN_CREATE, NULL,
        "whose token it is: 1 to 16 of a-z 0-9 (default: default); tenants do not see each other" },
    { OPTION_TOKEN_SCOPE, 0, "scope", "run|net|host|admin|metrics", OPTION_TEXT,
        COMMAND_TOKEN_CREATE, NULL, "what it allows; repeat it for more (default: run)" },
    { OPTION_EXPIRES, 0, "expires", "SECONDS", OPTION_COUNT, COMMAND_TOKEN_CREATE, NULL,
        "refuse it after this time (default: never)" },
    { OPTION_MAX_SANDBOXES, 0, "max-sandboxes", "N", OPTION_COUNT, COMMAND_TOKEN_CREATE, NULL,
        "how many sandboxes the tenant may have at once (default 1000)" },
    { OPTION_MAX_RUNNING, 0, "max-running", "N", OPTION_COUNT, COMMAND_TOKEN_CREATE, NULL,
        "how many commands the tenant may run at once (default 1000)" },
    { OPTION_QUOTA, 0, "quota", "NAME=VALUE", OPTION_TEXT,
        COMMAND_SERVE | COMMAND_TOKEN_CREATE | COMMAND_TOKEN_TENANT, NULL,
        "sandboxes, running, queued, memory, cpus, disk, starts (a day), rate (a second) or burst; "
        "repeat it for more" },
    { OPTION_WEIGHT, 0, "weight", "N", OPTION_COUNT, COMMAND_TOKEN_TENANT, NULL,
        "the tenant's share of a server that is full (default 1)" },
    { OPTION_CEILING, 0, "ceiling", "FILE", OPTION_FILE, COMMAND_TOKEN_TENANT, NULL,
        "the most that policies of the tenant may have, a JSON file; /dev/null: no ceiling" },
    { OPTION_ENGINE, 0, "engine", "SOCKET", OPTION_FILE,
        (REPEATING_COMMANDS & ~COMMAND_CREATE) | COMMAND_REPLAY | COMMAND_SERVE | COMMAND_MCP |
            COMMAND_IMAGE_BUILD,
        NULL, "use the shared engine on this socket instead of a private one" },
    { OPTION_SOCKET, 0, "socket", "PATH", OPTION_FILE, SOCKET_COMMANDS | COMMAND_IMPORT, NULL,
        "the shared engine's socket; --engine is the same (default: see rollbox engine start "
        "--help)" },
    { OPTION_HELP, 'h', "help", NULL, OPTION_FLAG, EVERY_COMMAND, NULL, "print this help" },
};
const size_t option_count = ARRAY_SIZE(option_table);

const struct command *command_table;
size_t command_count;

/* Edits (insert, delete, replace, swap neighbours) from a to b, for words up to 31 bytes; longer
 * ones count as far apart. */
static unsigned edit_distance(const char *a, const char *b) {
    unsigned rows[3][32];
    size_t n = strlen(a), m = strlen(b);

    if (n > 31 || m > 31)
        return 100;
    for (unsigned j = 0; j <= m; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n; i++) {
        unsigned *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];

        row[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            row[j] = MIN(MIN(row[j - 1], above[j]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = MIN(row[j], above2[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

const char *options_nearest(const char *word, const void *names, size_t n, size_t stride) {
    const char *best = NULL;
    unsigned best_distance = strlen(word) < 4 ? 2 : 3;

    for (size_t i = 0; i < n; i++) {
        const char *name = *(const char *const *)((const char *)names + i * stride);
        unsigned d = edit_distance(word, name);

        /* A beginning of a name ("--mem") is as good as one slip. */
        if (strlen(word) >= 3 && strncmp(word, name, strlen(word)) == 0)
            d = MIN(d, 1u);
        if (d < best_distance) {
            best_distance = d;
            best = name;
        }
    }
    return best;
}

static const struct option *find_in_table(
    const struct command *command, const char *name, size_t length) {
    for (size_t i = 0; i < option_count; i++)
        if ((option_table[i].commands & command->bit) && strlen(option_table[i].name) == length &&
            memcmp(option_table[i].name, name, length) == 0)
            return &option_table[i];
    return NULL;
}

/* Every command takes --engine, so that scripts can give it to all. Where --socket names the
 * engine, it is the same option. A command of the store or of a file needs no engine: only the
 * address of a server has an effect there. */
static const struct option *find_engine(const struct command *command) {
    static const struct option unlisted = { .id = OPTION_ENGINE,
        .name = "engine",
        .argument = "SOCKET",
        .kind = OPTION_FILE,
        .commands = EVERY_COMMAND };
    const struct option *option = find_in_table(command, "engine", 6);

    option = option ? option : find_in_table(command, "socket", 6);
    return option ? option : &unlisted;
}

static const struct option *find_option(
    const struct command *command, const char *name, size_t length) {
    if (length == 6 && memcmp(name, "engine", 6) == 0)
        return find_engine(command);
    return find_in_table(command, name, length);
}

static const struct option *find_letter(const struct command *command, char letter) {
    for (size_t i = 0; i < option_count; i++)
        if ((option_table[i].commands & command->bit) && option_table[i].letter == letter)
            return &option_table[i];
    return NULL;
}

static int refuse_option(const struct options *options, const char *text, size_t length) {
    const char *names[ARRAY_SIZE(option_table)];
    char word[32] = "";
    size_t n = 0;

    for (size_t i = 0; i < option_count; i++)
        if (option_table[i].commands & options->command->bit)
            names[n++] = option_table[i].name;
    if (length < sizeof word)
        memcpy(word, text, length);
    const char *near = word[0] ? options_nearest(word, names, n, sizeof names[0]) : NULL;
    if (near)
        cli_fail(options, "unknown option --%.*s; did you mean --%s?", (int)length, text, near);
    else
        cli_fail(options, "unknown option --%.*s; see rollbox %s --help%s", (int)length, text,
            options->command->name,
            options->command->bit == COMMAND_RUN ? " (put -- before the command to run)" : "");
    return -EINVAL;
}

static bool is_choice(const char *choices, const char *value) {
    size_t length = strlen(value);

    for (const char *p = choices;; p++) {
        size_t n = strcspn(p, "|");

        if (n == length && memcmp(p, value, n) == 0)
            return true;
        p += n;
        if (!*p)
            return false;
    }
}

/* Checks one value by the option's kind, so that the error can name the option. */
static int check_option(const struct options *options, struct option_use *use) {
    const struct option *option = use->option;
    const char *value = use->value;
    char *end;

    if (option->argument && strchr(option->argument, '|') && !is_choice(option->argument, value)) {
        cli_fail(options, "--%s %s: not one of %s", option->name, value, option->argument);
        return -EINVAL;
    }
    switch (option->kind) {
    case OPTION_FLAG:
        break;
    case OPTION_TEXT:
        if ((option->id == OPTION_ENV || option->id == OPTION_LABEL) &&
            (value[0] == '=' || !strchr(value, '='))) {
            cli_fail(options, "--%s %s: must be NAME=VALUE", option->name, value);
            return -EINVAL;
        }
        break;
    case OPTION_FILE:
    case OPTION_PATH:
    case OPTION_SIZE:
        if (!value[0]) {
            cli_fail(options, "--%s: must not be empty", option->name);
            return -EINVAL;
        }
        break;
    case OPTION_COUNT:
        errno = 0;
        use->count = strtoull(value, &end, 10);
        if (value[0] < '0' || value[0] > '9' || *end || errno ||
            (use->count > INT64_MAX && option->id != OPTION_SEED)) {
            cli_fail(options, "--%s %s: must be a whole number, 0 or more%s", option->name, value,
                option->id == OPTION_SEED ? ", below 2^64" : "");
            return -EINVAL;
        }
        break;
    case OPTION_SECONDS:
        use->number = 0;
        if (!strcmp(value, "none"))
            break;
        /* fall through */
    case OPTION_NUMBER:
        use->number = strtod(value, &end);
        if (end == value || *end || !isfinite(use->number) || use->number <= 0) {
            cli_fail(options, "--%s %s: must be a number above 0, such as 1.5%s", option->name,
                value, option->kind == OPTION_SECONDS ? ", or none" : "");
            return -EINVAL;
        }
        break;
    }
    return 0;
}

/* The name of the operand that comes after n operands. */
static const char *missing_operand(const struct command *command, int n, size_t *ret_length) {
    const char *word = command->bit == COMMAND_RUN ? "the command to run" : command->arguments;

    while (command->bit != COMMAND_RUN && n-- > 0 && strchr(word, ' '))
        word = strchr(word, ' ') + 1;
    *ret_length = command->bit == COMMAND_RUN ? strlen(word) : strcspn(word, " ");
    return word;
}

bool options_ask_json(const struct command *command, int argc, char *const *argv) {
    int n_rest = 0;

    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *word = argv[i];
        const size_t length = strcspn(word, "=");

        if (!strcmp(word, "--json"))
            return true;
        if (word[0] != '-' || !word[1]) {
            if (command && command->max_rest < 0 && n_rest++ >= command->leading)
                return false;
            continue;
        }
        const struct option *option = !command         ? NULL
                                      : word[1] == '-' ? find_option(command, word + 2, length - 2)
                                      : word[2]        ? NULL
                                                       : find_letter(command, word[1]);
        if (option && option->argument && !word[length])
            i++;
    }
    return false;
}

int options_parse(
    const struct command *command, int argc, char **argv, struct options *ret_options) {
    struct options options = { .command = command };
    int i = 0, n_rest = 0, r = -EINVAL;

    /* An option takes at least one letter of a word; operands are gathered at the front of argv. */
    size_t most = 2; /* one for options_add_engine() */
    for (int j = 0; j < argc; j++)
        most += 1 + (argv[j][0] == '-' && argv[j][1] != '-' ? strlen(argv[j]) : 0);
    options.uses = calloc(most, sizeof *options.uses);
    if (!options.uses) {
        cli_fail(&options, "out of memory");
        return -ENOMEM;
    }
    for (; i < argc; i++) {
        struct option_use *use = &options.uses[options.n_uses];
        char *word = argv[i];

        if (strcmp(word, "--") == 0) {
            i++;
            break;
        }
        if (word[0] != '-' || !word[1]) {
            /* The first word that is not an option begins the guest's command: the rest belongs to
             * the guest. */
            if (command->max_rest < 0 && n_rest >= command->leading)
                break;
            argv[n_rest++] = word;
            continue;
        }
        const char *value = NULL;
        if (word[1] == '-') {
            size_t length = strcspn(word + 2, "=");

            use->option = find_option(command, word + 2, length);
            if (!use->option) {
                r = refuse_option(&options, word + 2, length);
                goto out;
            }
            if (word[2 + length])
                value = word + 2 + length + 1;
        } else {
            use->option = find_letter(command, word[1]);
            if (!use->option) {
                cli_fail(&options, "unknown option %s; see rollbox %s --help", word, command->name);
                goto out;
            }
            if (word[2] >= 'a' && word[2] <= 'z' && !use->option->argument) {
                /* Letters in one word, as in -it: the next letter is parsed as a word of its own.
                 */
                options.n_uses++;
                word[1] = '-';
                argv[i--] = word + 1;
                continue;
            }
            if (word[2])
                value = word + 2;
        }
        if (!use->option->argument && value) {
            cli_fail(&options, "%s: --%s takes no value", word, use->option->name);
            goto out;
        }
        if (use->option->argument && !value) {
            if (i + 1 >= argc || strcmp(argv[i + 1], "--") == 0) {
                cli_fail(&options, "--%s needs a value: --%s %s", use->option->name,
                    use->option->name, use->option->argument);
                goto out;
            }
            value = argv[++i];
        }
        use->value = value;
        if (value && check_option(&options, use) < 0)
            goto out;
        options.n_uses++;
    }
    while (i < argc)
        argv[n_rest++] = argv[i++];
    argv[n_rest] = NULL;
    options.rest = argv;
    options.n_rest = n_rest;
    if (!options_has(&options, OPTION_HELP)) {
        /* An image has a default command. */
        if (n_rest < command->min_rest &&
            !(command->bit == COMMAND_RUN && options_has(&options, OPTION_IMAGE))) {
            size_t length;
            const char *word = missing_operand(command, n_rest, &length);

            cli_fail(&options, "%.*s is missing: rollbox %s [OPTION...] %s", (int)length, word,
                command->name, command->arguments);
            goto out;
        }
        if (command->max_rest >= 0 && n_rest > command->max_rest) {
            cli_fail(&options, "unexpected argument '%s'; see rollbox %s --help",
                argv[command->max_rest], command->name);
            goto out;
        }
    }
    *ret_options = options;
    return 0;
out:
    free(options.uses);
    return r;
}

void options_add_engine(struct options *options, const char *socket) {
    const struct option *option = find_engine(options->command);

    if (!options_last(options, option->id))
        options->uses[options->n_uses++] = (struct option_use){ .option = option, .value = socket };
}

void options_done(struct options *options) {
    free(options->uses);
    options->uses = NULL;
    options->n_uses = 0;
}

const struct option_use *options_last(const struct options *options, enum option_id id) {
    for (size_t i = options->n_uses; i-- > 0;)
        if (options->uses[i].option->id == id)
            return &options->uses[i];
    return NULL;
}

const char *options_text(const struct options *options, enum option_id id) {
    const struct option_use *use = options_last(options, id);

    return use ? use->value : NULL;
}

void options_help(const struct command *command) {
    printf("Usage: rollbox %s [OPTION...]%s%s\n\n%c%s.\n\n", command->name,
        command->arguments[0] ? " " : "", command->arguments, command->summary[0] - 'a' + 'A',
        command->summary + 1);
    for (size_t i = 0; i < option_count; i++) {
        const struct option *option = &option_table[i];
        char left[64];

        if (!(option->commands & command->bit))
            continue;
        char letter[] = "   ";
        if (option->letter)
            memcpy(letter, (char[]){ '-', option->letter, ',' }, 3);
        snprintf(left, sizeof left, "%s --%s%s%s", letter, option->name,
            text_if(option->argument, " "), text_or(option->argument, ""));
        printf("  %-34s %s\n", left, option->help);
    }
    if (command->notes)
        printf("\n%s", command->notes);
}

void options_help_group(const char *group) {
    size_t length = strlen(group);

    printf("Usage: rollbox %s COMMAND [OPTION...]\n\n", group);
    for (size_t i = 0; i < command_count; i++)
        if (strncmp(command_table[i].name, group, length) == 0 &&
            command_table[i].name[length] == ' ')
            printf("  %-16s %s\n", command_table[i].name, command_table[i].summary);
    printf("\nSee rollbox %s COMMAND --help.\n", group);
}

void options_help_all(void) {
    printf("Usage: rollbox COMMAND [OPTION...]\n\nRun untrusted programs in sandboxes.\n\n");
    for (size_t i = 0; i < command_count; i++)
        printf("  %-16s %s\n", command_table[i].name, command_table[i].summary);
    printf("\nSee rollbox COMMAND --help. Start with: rollbox run -- echo hello\n");
}
