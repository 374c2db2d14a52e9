/* SPDX-License-Identifier: Apache-2.0 */
/* The table of commands. Finds the command (one word, or two as in "policy check"), parses its
 * options and calls it. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"
#include "cli/private_engine.h"
#include "cli/remote.h"
#include "sys/limits.h"

int cmd_version(const struct options *options) {
    printf(
        options && options_has(options, OPTION_JSON) ? "{\"version\": \"%s\"}\n" : "rollbox %s\n",
        rollbox_version());
    return cli_flush(options, 0);
}

/* The command that is named by the first words; *ret_used is the number of these words. NULL if
 * none. */
static const struct command *command_find(int n, char **words, int *ret_used) {
    for (size_t i = 0; i < command_count; i++) {
        const char *name = command_table[i].name, *space = strchr(name, ' ');
        size_t first = space ? (size_t)(space - name) : strlen(name);

        if (n < 1 || strlen(words[0]) != first || memcmp(words[0], name, first) != 0)
            continue;
        if (space && (n < 2 || strcmp(words[1], space + 1) != 0))
            continue;
        *ret_used = space ? 2 : 1;
        return &command_table[i];
    }
    return NULL;
}

/* The error for a word that is not a command, with a suggestion. */
static int command_unknown(int n, char **words) {
    enum { MOST = 96, LONGEST = 24 };
    const char *names[MOST];
    char firsts[MOST][LONGEST];
    size_t n_firsts = 0, length = strlen(words[0]);
    bool half = false;

    for (size_t i = 0; i < command_count && n_firsts < MOST; i++) {
        const char *name = command_table[i].name;
        size_t first = strcspn(name, " ");

        if (name[first] && first == length && memcmp(name, words[0], first) == 0) {
            /* The first of a pair of words is right: suggest among the second ones. */
            if (!half)
                n_firsts = 0;
            half = true;
            names[n_firsts++] = name + first + 1;
        } else if (!half) {
            snprintf(firsts[n_firsts], sizeof firsts[0], "%.*s", (int)first, name);
            names[n_firsts] = firsts[n_firsts];
            n_firsts++;
        }
    }
    if (half && n > 1 && (strcmp(words[1], "--help") == 0 || strcmp(words[1], "-h") == 0)) {
        options_help_group(words[0]);
        return cli_flush(NULL, 0);
    }
    if (half) {
        const char *near =
            n > 1 ? options_nearest(words[1], names, n_firsts, sizeof names[0]) : NULL;

        if (near)
            return cli_fail(NULL, "unknown command '%s %s'; did you mean '%s %s'?", words[0],
                words[1], words[0], near);
        char list[MOST * LONGEST] = "";

        for (size_t i = 0, at = 0; i < n_firsts; i++)
            at += (size_t)snprintf(list + at, sizeof list - at, " %.*s", LONGEST - 2, names[i]);
        return cli_fail(NULL, "'%s' needs one of:%s", words[0], list);
    }
    const char *near = options_nearest(words[0], names, n_firsts, sizeof names[0]);
    if (near)
        return cli_fail(NULL, "unknown command '%s'; did you mean '%s'?", words[0], near);
    return cli_fail(NULL, "unknown command '%s'; see rollbox --help", words[0]);
}

int cmd_help(const struct options *options) {
    int used;

    if (options->n_rest == 0) {
        options_help_all();
        return cli_flush(options, 0);
    }
    const struct command *command = command_find(options->n_rest, options->rest, &used);
    if (!command)
        return command_unknown(options->n_rest, options->rest);
    options_help(command);
    return cli_flush(options, 0);
}

static const struct command commands[] = {
    { "run", "[--] COMMAND [ARGUMENT...]", "run one command in a sandbox of its own",
        "Exit status: the command's own; 128+N killed by signal N; 124 timed out; 137 out of "
        "memory; 141 too much output;\n"
        "127 not found; 126 not executable; 125 rollbox's own error. With --json: 0 if there is a "
        "result, 125 for outcome \"error\".\n"
        "With --image and without COMMAND, the image's own entry point and command run.\n"
        "Example: rollbox run --timeout 10 --readable . -- python3 test.py\n",
        COMMAND_RUN, 1, -1, cmd_run, 0 },
    { "shell", "", "start a shell in a sandbox of its own, which ends with the shell",
        "bash where the sandbox has it, else sh. Standard input is the script if it is not a "
        "terminal. "
        "Exit status: the shell's, else as of rollbox run.\n"
        "Example: rollbox shell --readable .\n",
        COMMAND_SHELL, 0, 0, cmd_shell, 0 },
    { "record", "[--] COMMAND [ARGUMENT...]", "run one command in a recorded sandbox of its own",
        "The trajectory (docs/reference/trajectories.md) has the command, what it wrote, how it "
        "ended and "
        "what it used. Exit status: as of rollbox run; 125 also if the\n"
        "trajectory could not be written whole.\n"
        "Example: rollbox record -o run.jsonl --seed 7 -- python3 test.py\n",
        COMMAND_RECORD, 1, -1, cmd_record, 0 },
    { "replay", "FILE",
        "repeat the actions of a trajectory in a new sandbox under its policy, and record them",
        "Steps whose data was not recorded (secrets, typed keys, long outputs) are refused by "
        "name; --env gives the values of variables.\n"
        "Example: rollbox replay -o again.jsonl run.jsonl\n",
        COMMAND_REPLAY, 1, 1, cmd_replay, 0 },
    { "verify", "FILE [FILE] | --twice -- COMMAND [ARGUMENT...]",
        "replay a trajectory, or run a command twice, and show the first difference",
        "Two files are compared without a replay. Exit status: 0 equal, up to the end of the "
        "shorter; 1 different: the first step, stream or file, and byte are printed; 125 rollbox's "
        "own error.\n"
        "Example: rollbox verify --twice --seed 7 -- python3 -c 'import random; "
        "print(random.random())'\n",
        COMMAND_VERIFY, 1, -1, cmd_verify, 2 },
    { "batch", "JOBS.jsonl", "run a file of jobs, N at a time, each in a sandbox of its own",
        "A job is one JSON object a line: id, argv (or code + language), stdin, files {path: "
        "text}, cwd, env, timeout_s, policy.\n"
        "Exit status: 0 every job has a result; 1 some row is an error, or a trajectory is not "
        "whole; 130 interrupted (run it again to continue); 125 rollbox's own error.\n",
        COMMAND_BATCH, 1, 1, cmd_batch, 0 },
    { "doctor", "",
        "show what this kernel and user can isolate, and how to enable missing features",
        "Exit status: 0 if namespace isolation works, else 1.\n", COMMAND_DOCTOR, 0, 0, cmd_doctor,
        0 },
    { "policy check", "FILE", "check a policy file (- is standard input) and list all its problems",
        "Exit status: 0 valid, 1 not valid.\n", COMMAND_POLICY_CHECK, 1, 1, cmd_policy_check, 0 },
    { "policy plan", "[FILE]", "print the operations, rules and system-call filter of a policy",
        NULL, COMMAND_POLICY_PLAN, 0, 1, cmd_policy_plan, 0 },
    { "create", "", "create a session on a shared engine, and print its name",
        "It lasts until rollbox rm, until --ttl or --lifetime expires, or until the engine ends "
        "(rollbox engine start --background starts one).\n"
        "Example: name=$(rollbox create --writable .); rollbox exec $name make test; rollbox rm "
        "$name\n",
        COMMAND_CREATE, 0, 0, cmd_create, 0 },
    { "exec", "NAME [--] [COMMAND [ARGUMENT...]]", "run a command in a session",
        "With --tty and no command: a login shell. The command continues if rollbox is killed or "
        "its terminal is closed: rollbox attach finds it by its id;\n"
        "SIGINT and SIGTERM kill only the command and its processes. Exit status: as of "
        "rollbox run.\n"
        "Example: rollbox exec -it NAME bash\n",
        COMMAND_EXEC, 1, -1, cmd_exec, 1 },
    { "attach", "NAME [ID]", "show a command's output from its beginning, and wait for its end",
        "Without ID: the only running command, with -t the only one with a terminal. Signals end "
        "rollbox, but not the command. Of several clients that\n"
        "attach with -i, all see the output, and the latest one types. Exit status: as of rollbox "
        "run.\n"
        "Example: rollbox attach -it NAME\n",
        COMMAND_ATTACH, 1, 2, cmd_attach, 0 },
    { "logs", "NAME [ID]", "print what commands of a sandbox have written so far",
        "Without ID: of each command that the sandbox has had, below its id. With --json each "
        "piece of output is one line.\n"
        "Example: id=$(rollbox exec -d NAME make test); rollbox logs -f NAME $id\n",
        COMMAND_LOGS, 1, 2, cmd_logs, 0 },
    { "forward", "NAME PORT", "lead connections of this host to a server in a sandbox",
        "Prints where it listens, and continues until it is interrupted. The sandbox needs net "
        "loopback or allow.\n"
        "Example: rollbox forward --listen 8080 NAME 80\n",
        COMMAND_FORWARD, 2, 2, cmd_forward, 0 },
    { "port", "NAME [PORT]", "publish a port of a sandbox on the host, or list those published",
        "Prints the address, and ends: the engine listens, until the sandbox is removed. A "
        "connection wakes a hibernated sandbox.\n"
        "Example: curl http://$(rollbox port NAME 8080)/\n",
        COMMAND_PORT, 1, 2, cmd_port, 0 },
    { "cp", "NAME:PATH PATH | PATH NAME:PATH", "copy a file or tree between the host and a sandbox",
        "PATH of the host may be - for a standard stream, which is one file. A directory goes into "
        "one that is there under its own name; SOURCE/. is what is\n"
        "in it. Links stay links, holes holes; nothing that a sandbox holds leads out of PATH. "
        "Exit status: 125 also if something could not be read.\n"
        "Example: rollbox cp NAME:/tmp/out.txt -\n",
        COMMAND_CP, 2, 2, cmd_cp, 0 },
    { "ps", "[NAME]", "list the sandboxes, or the processes of one", NULL, COMMAND_PS, 0, 1,
        cmd_sandbox, 0 },
    { "stats", "[NAME...]",
        "show what the sandboxes use: CPU, memory, disk and processes, again at each interval",
        "CPU is relative to one processor: two busy ones are 200%. - means unknown. With "
        "--json each table is one line.\n"
        "Example: rollbox stats --once\n",
        COMMAND_STATS, 0, -1, cmd_stats, INT_MAX },
    { "inspect", "NAME", "print a sandbox's state as JSON", NULL, COMMAND_INSPECT, 1, 1,
        cmd_sandbox, 0 },
    { "kill", "NAME [ID]", "signal a command of a sandbox, or all of them",
        "Without ID, --signal and --scope: every process of the sandbox is killed, including those "
        "in the background.\n",
        COMMAND_KILL, 1, 2, cmd_sandbox, 0 },
    { "rm", "NAME [NAME...]", "end sandboxes: processes and files", NULL, COMMAND_RM, 1, -1, cmd_rm,
        INT_MAX },
    { "pause", "NAME", "stop a sandbox's processes; the next call resumes it", NULL, COMMAND_PAUSE,
        1, 1, cmd_sandbox, 0 },
    { "resume", "NAME", "resume a paused sandbox", NULL, COMMAND_RESUME, 1, 1, cmd_sandbox, 0 },
    { "hibernate", "NAME",
        "hibernate a sandbox: save its files and processes to disk; the next call wakes it",
        "A hibernated sandbox uses no memory. A detached one outlives its engine.\n",
        COMMAND_HIBERNATE, 1, 1, cmd_sandbox, 0 },
    { "wake", "NAME", "wake a hibernated sandbox", NULL, COMMAND_WAKE, 1, 1, cmd_sandbox, 0 },
    { "snapshot show", "NAME [SNAPSHOT]",
        "show what a snapshot holds (default: the latest): its processes, memory, descriptors, "
        "commands and files",
        "A hibernated sandbox is not woken.\n", COMMAND_SNAPSHOT_SHOW, 1, 2, cmd_sandbox, 0 },
    { "snapshot verify", "NAME [SNAPSHOT]",
        "check a snapshot: every table and digest, and whether its processes can be restored here",
        "The processes are restored in a sandbox of their own, and do not run. Of a hibernated "
        "sandbox, the data on disk is checked. Exit status: 1 if there is a problem.\n",
        COMMAND_SNAPSHOT_VERIFY, 1, 2, cmd_sandbox, 0 },
    { "snapshot", "NAME",
        "save a snapshot of a sandbox, with files and processes, and print its id", NULL,
        COMMAND_SNAPSHOT, 1, 1, cmd_sandbox, 0 },
    { "fork", "NAME...",
        "create copies of a sandbox, with files and processes, and print their names",
        "Several sandboxes are copied at one moment, each --count times. Each line has a copy of "
        "each; those are a private network of their own if the originals are.\n",
        COMMAND_FORK, 1, -1, cmd_sandbox, INT_MAX },
    { "restore", "NAME SNAPSHOT", "create a sandbox from a snapshot: fork --from", NULL,
        COMMAND_RESTORE, 2, 2, cmd_sandbox, 0 },
    { "reset", "NAME [SNAPSHOT]",
        "reset a sandbox to a snapshot (default: its latest, or its beginning)",
        "Its processes are killed; those of the snapshot are restored.\n", COMMAND_RESET, 1, 2,
        cmd_sandbox, 0 },
    { "tree", "NAME",
        "show the snapshots of a sandbox and its forks, and which sandbox is at which snapshot",
        NULL, COMMAND_TREE, 1, 1, cmd_sandbox, 0 },
    { "diff", "NAME [FROM [TO]]",
        "list the differences between two snapshots (default: the beginning, and now)",
        "A added, M modified, D deleted.\n", COMMAND_DIFF, 1, 3, cmd_sandbox, 0 },
    { "commit", "NAME [PATH]",
        "write the changes below a --writable path (default: all of them) to the host", NULL,
        COMMAND_COMMIT, 1, 2, cmd_sandbox, 0 },
    { "discard", "NAME", "drop all changes since the latest snapshot, or the beginning",
        "Its processes are killed; those of the snapshot are restored.\n", COMMAND_DISCARD, 1, 1,
        cmd_sandbox, 0 },
    { "export", "NAME FILE", "write a snapshot to one file",
        "The files of a sandbox with an image include the image; rollbox import makes an image of "
        "them. With --live, a hibernated sandbox is not woken.\n",
        COMMAND_EXPORT, 2, 2, cmd_sandbox, 0 },
    { "import", "FILE", "import an exported snapshot into the store, for --image snapshot:NAME",
        "An export with processes becomes the hibernated sandbox NAME of the engine on --socket; "
        "any call there wakes it.\n"
        "Example: rollbox export --live box box.live; rollbox import --name copy box.live; rollbox "
        "exec copy -- ps\n",
        COMMAND_IMPORT, 1, 1, cmd_image, 0 },
    { "image import", "PATH",
        "import an image into the store: an OCI layout, or a tar of one or of docker save",
        "Layers that the store has already are not stored again. An image of the same name is "
        "replaced.\n"
        "Example: docker save python:3.12 -o python.tar; rollbox image import --name python:3.12 "
        "python.tar\n",
        COMMAND_IMAGE_IMPORT, 1, 1, cmd_image, 0 },
    { "image pull", "REFERENCE",
        "pull an image into the store: from a registry, a layout or an archive",
        "REFERENCE is docker://HOST/NAME:TAG, NAME:TAG or NAME@sha256:DIGEST, of a registry; "
        "oci:DIRECTORY[:TAG], oci-archive:FILE[:TAG] or docker-archive:FILE[:NAME]. Registries "
        "need skopeo, whose configuration of mirrors, credentials and proxies applies. Only "
        "layers that the store does not have are fetched, also after a pull that was interrupted.\n"
        "Example: rollbox image pull python:3.12-slim && rollbox run --image python:3.12-slim -- "
        "python3 -V\n",
        COMMAND_IMAGE_PULL, 1, 1, cmd_image, 0 },
    { "image push", "NAME [REFERENCE]",
        "push an image, or snapshot:NAME, to a registry (default: as it is named)",
        "Layers that the registry has are not sent.\n"
        "Example: rollbox image push python:mine docker://registry.example.com/me/python:1\n",
        COMMAND_IMAGE_PUSH, 1, 2, cmd_image, 0 },
    { "image export", "NAME PATH",
        "write an image, or snapshot:NAME, as an OCI image: an archive, or a directory",
        "PATH is a directory if it ends in a slash or exists as one; oci:DIRECTORY and "
        "oci-archive:FILE, with :TAG, say so.\n"
        "Example: rollbox image export python:mine python.tar && podman load -i python.tar\n",
        COMMAND_IMAGE_EXPORT, 2, 2, cmd_image, 0 },
    { "image commit", "NAME IMAGE", "make an image of a sandbox that has an image",
        "The new image has the layers of the sandbox's image, its changes, and the configuration "
        "of the sandbox's image. Volumes and paths of the host are no part of it.\n"
        "Example: rollbox image commit box python:mine; rollbox image export python:mine p.tar\n",
        COMMAND_IMAGE_COMMIT, 2, 2, cmd_image, 0 },
    { "image ls", "", "list the images and snapshots of the store", NULL, COMMAND_IMAGE_LS, 0, 0,
        cmd_image, 0 },
    { "image build", "CONTEXT", "build an image from a Dockerfile",
        "Commands of RUN reach the hosts of --allow alone. A step that was built before is taken "
        "from the store: the image build/KEY, which sandboxes can have, too.\n"
        "Example: rollbox image build -t app --allow @debian .\n",
        COMMAND_IMAGE_BUILD, 1, 1, cmd_image, 0 },
    { "image rm", "NAME",
        "remove an image, or snapshot:NAME; rollbox store gc then frees its layers", NULL,
        COMMAND_IMAGE_RM, 1, 1, cmd_image, 0 },
    { "image inspect", "NAME", "print all that the store knows of an image, as JSON", NULL,
        COMMAND_IMAGE_INSPECT, 1, 1, cmd_image, 0 },
    { "image show", "NAME", "show an image's layers and configuration", NULL, COMMAND_IMAGE_SHOW, 1,
        1, cmd_image, 0 },
    { "store path", "", "print where the store is", NULL, COMMAND_STORE_PATH, 0, 0, cmd_store, 0 },
    { "store gc", "", "remove layers that no image needs and no sandbox uses",
        "Images and layers that a sandbox uses stay.\n"
        "Example: rollbox store gc --older 30d --keep 200G\n",
        COMMAND_STORE_GC, 0, 0, cmd_store, 0 },
    { "store fsck", "", "read every layer again, and mark damaged ones",
        "A marked layer is refused by name. Importing its image again mends it. Exit status: 1 if "
        "something is damaged.\n",
        COMMAND_STORE_FSCK, 0, 0, cmd_store, 0 },
    { "store df", "", "show the size of the store, of each image, and of what is unused", NULL,
        COMMAND_STORE_DF, 0, 0, cmd_store, 0 },
    { "volume create", "NAME", "make an empty volume, which sandboxes can mount",
        "It is kept until it is removed, with all that sandboxes write to it.\n"
        "Example: rollbox volume create --size 10G data; rollbox run --volume data:/data -- sh -c "
        "'date > /data/now'\n",
        COMMAND_VOLUME_CREATE, 1, 1, cmd_volume, 0 },
    { "volume ls", "", "list the volumes, and whether sandboxes use them", NULL, COMMAND_VOLUME_LS,
        0, 0, cmd_volume, 0 },
    { "volume rm", "NAME", "remove a volume that no sandbox uses, with its files", NULL,
        COMMAND_VOLUME_RM, 1, 1, cmd_volume, 0 },
    { "volume inspect", "NAME", "show a volume: its size, limit and use", NULL,
        COMMAND_VOLUME_INSPECT, 1, 1, cmd_volume, 0 },
    { "volume df", "", "show the sizes of all volumes", NULL, COMMAND_VOLUME_DF, 0, 0, cmd_volume,
        0 },
    { "volume snapshot", "NAME", "make a volume --name with the files that NAME has now", NULL,
        COMMAND_VOLUME_SNAPSHOT, 1, 1, cmd_volume, 0 },
    { "template create", "NAME",
        "create a template: a Python interpreter that has run code, to run programs in forks of it",
        "It lasts until it is removed or the engine ends, and is the sandbox template.NAME of the "
        "shared engine. Objects that cannot be checkpointed are refused by name.\n"
        "Example: rollbox template create --python 'import json, sqlite3' base && rollbox run "
        "--template base -- python3 -c 'print(json.dumps(1))'\n",
        COMMAND_TEMPLATE_CREATE, 1, 1, cmd_template, 0 },
    { "template ls", "", "list the templates", NULL, COMMAND_TEMPLATE_LS, 0, 0, cmd_template, 0 },
    { "template rm", "NAME...", "remove templates; running commands continue", NULL,
        COMMAND_TEMPLATE_RM, 1, -1, cmd_template, INT_MAX },
    { "engine start", "", "run a shared engine, in the foreground",
        "Its socket is --socket, else $ROLLBOX_SOCKET, else $XDG_RUNTIME_DIR/rollbox.sock, else "
        "/run/rollbox.sock (root), /run/user/UID/rollbox.sock\n"
        "or, where that directory is missing, /tmp/rollbox-UID/rollbox.sock (a directory of the "
        "user's alone, which is made):\n"
        "every command that needs a shared engine looks there.\n",
        COMMAND_ENGINE_START, 0, 0, cmd_engine_start, 0 },
    { "engine status", "", "print a shared engine's state as JSON", NULL, COMMAND_ENGINE_STATUS, 0,
        0, cmd_engine_status, 0 },
    { "engine stop", "", "end a shared engine and all its sandboxes", NULL, COMMAND_ENGINE_STOP, 0,
        0, cmd_engine_stop, 0 },
    { "net log", "NAME", "print what a sandbox did in the network (net allow), one event a line",
        NULL, COMMAND_NET_LOG, 1, 1, cmd_net_log, 0 },
    { "net test", "URL", "say which rule of a policy decides about a URL (net allow)",
        "Connects to nothing. Exit status: 0 allowed, 1 refused.\n"
        "Example: rollbox net test --allow @pypi https://pypi.org/simple/\n",
        COMMAND_NET_TEST, 1, 1, cmd_net_test, 0 },
    { "net set", "NAME", "replace what a sandbox may reach (net allow)",
        "Connections that are not allowed any more are reset.\n"
        "Example: rollbox net set NAME --allow pypi.org --allow '*.example.org:8443'\n",
        COMMAND_NET_SET, 1, 1, cmd_net_set, 0 },
    { "serve", "", "serve sandboxes over HTTP",
        "The server has an engine of its own unless --engine names one, and ends with it. SIGTERM "
        "lets requests end, for at most 30 seconds.\n"
        "Example: rollbox token create --tokens tokens > my-token; rollbox serve --tokens tokens\n",
        COMMAND_SERVE, 0, 0, cmd_serve, 0 },
    { "mcp", "", "give agents sandboxes by the Model Context Protocol, over stdin and stdout",
        "It has an engine of its own unless --engine names a server (http://, https:// or "
        "unix:PATH) or an engine's socket; its sandboxes end with it.\n"
        "Example, in an agent's configuration: {\"mcpServers\": {\"rollbox\": {\"command\": "
        "\"rollbox\", \"args\": [\"mcp\"]}}}\n",
        COMMAND_MCP, 0, 0, cmd_mcp, 0 },
    { "cost", "[TRAJECTORY...]",
        "show what rollouts, tenants or sandboxes used, and what that costs",
        "The sums are those of the server that --engine URL names, or of the commands in "
        "trajectories.\n"
        "Example: rollbox --engine https://sandboxes.example cost --by rollout --per-million\n",
        COMMAND_COST, 0, -1, cmd_cost, 0 },
    { "token create", "", "make a token for clients of rollbox serve, and print it",
        "It is printed once: the file has only its digest.\n", COMMAND_TOKEN_CREATE, 0, 0,
        cmd_token, 0 },
    { "token tenant", "NAME", "set or print the quotas, the weight and the ceiling of a tenant",
        "A server uses them within a second. Of a tenant's quotas and its token's the lesser "
        "holds.\n"
        "Example: rollbox token tenant --tokens tokens --quota memory=64G --quota rate=20 teama\n",
        COMMAND_TOKEN_TENANT, 1, 1, cmd_token, 0 },
    { "token ls", "", "list the tokens of a file, one JSON object a line", NULL, COMMAND_TOKEN_LS,
        0, 0, cmd_token, 0 },
    { "token rm", "ID", "remove a token; a server refuses it within a second", NULL,
        COMMAND_TOKEN_RM, 1, 1, cmd_token, 0 },
    { "debug dump", "", "print the present operations of a shared engine as JSON",
        "For a bug report: each operation, its present wait, and since when.\n", COMMAND_DEBUG_DUMP,
        0, 0, cmd_debug_dump, 0 },
    { "completion", "bash|zsh|fish", "print the shell's completion script", NULL,
        COMMAND_COMPLETION, 1, 1, cmd_completion, 0 },
    { "version", "", "print the version", NULL, COMMAND_VERSION, 0, 0, cmd_version, 0 },
    { "help", "[COMMAND]", "print help", NULL, COMMAND_HELP, 0, 2, cmd_help, 0 },
};

int main(int argc, char **argv) {
    struct options options;
    const char *socket;
    int used;

    command_table = commands;
    command_count = ARRAY_SIZE(commands);
    argc = remote_arguments(argc, argv, &socket);
    if (argc < 0)
        return CLI_EXIT_ERROR;
    private_engine_arguments(argc, argv);
    if (cli_open_standard_streams() < 0)
        return CLI_EXIT_ERROR;
    (void)limits_raise_open_files(); /* descriptors that any process of this user has in flight over
                                        sockets, guests included, count against the soft limit of a
                                        sender */
    if (argc < 2) {
        cli_fail(NULL, "a command is missing; see rollbox --help");
        return CLI_EXIT_ERROR;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        options_help_all();
        return cli_flush(NULL, 0);
    }
    if (strcmp(argv[1], "--version") == 0)
        return cmd_version(NULL);
    const struct command *command = command_find(argc - 1, argv + 1, &used);
    const bool asks_json = command ? options_ask_json(command, argc - 1 - used, argv + 1 + used)
                                   : options_ask_json(NULL, argc - 1, argv + 1);
    int status;
    if (!command) {
        status = command_unknown(argc - 1, argv + 1);
        return asks_json ? cli_tell_failure(NULL, status) : status;
    }
    if (options_parse(command, argc - 1 - used, argv + 1 + used, &options) < 0)
        return asks_json ? cli_tell_failure(command, CLI_EXIT_ERROR) : CLI_EXIT_ERROR;
    if (socket)
        options_add_engine(&options, socket);
    if (options_has(&options, OPTION_HELP)) {
        options_help(command);
        status = cli_flush(&options, 0);
    } else {
        if (!remote_command(&options, &status))
            status = command->call(&options);
        private_engine_end();
        if (asks_json)
            status = cli_tell_failure(command, status);
    }
    options_done(&options);
    return status;
}
