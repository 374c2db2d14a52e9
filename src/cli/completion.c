/* SPDX-License-Identifier: Apache-2.0 */
/* Completion scripts for three shells, made from the tables of options.c. The files in completions/
 * are this program's own output; a test compares them. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/cli.h"

/* The words of a choice list, separated by spaces. */
static void print_choices(const char *choices) {
    for (; *choices; choices++)
        putchar(*choices == '|' ? ' ' : *choices);
}

static bool is_choice_list(const struct option *option) {
    return option->argument && strchr(option->argument, '|');
}

static bool takes_file(const struct option *option) {
    return option->kind == OPTION_FILE || option->kind == OPTION_PATH;
}

/* The names that completion asks the program for. */
enum names { NAMES_NONE, NAMES_SANDBOXES, NAMES_SNAPSHOTS, NAMES_IMAGES, NAMES_TEMPLATES };

static const struct {
    const char *function;
    const char *list; /* the command that prints them; of snapshots, with the sandbox's name */
} name_lists[] = {
    [NAMES_SANDBOXES] = { "_rollbox_sandboxes", "ps -q" },
    [NAMES_SNAPSHOTS] = { "_rollbox_snapshots", "tree -q" },
    [NAMES_IMAGES] = { "_rollbox_images", "image ls -q" },
    [NAMES_TEMPLATES] = { "_rollbox_templates", "template ls -q" },
};

static enum names names_of_option(const struct option *option) {
    return option->id == OPTION_IMAGE      ? NAMES_IMAGES
           : option->id == OPTION_TEMPLATE ? NAMES_TEMPLATES
           : option->id == OPTION_FROM     ? NAMES_SNAPSHOTS
                                           : NAMES_NONE;
}

/* Whether the first operand is a session. */
static bool takes_sandbox(const struct command *command) {
    size_t first = strcspn(command->arguments, " ");

    /* "image rm NAME" is about another kind of name. */
    return (!strchr(command->name, ' ') ||
               (command->bit & (COMMAND_SNAPSHOT_SHOW | COMMAND_SNAPSHOT_VERIFY))) &&
           ((first == 4 && strncmp(command->arguments, "NAME", 4) == 0) ||
               (first == 6 && strncmp(command->arguments, "[NAME]", 6) == 0));
}

static enum names names_of_operand(const struct command *command) {
    switch (command->bit) {
    case COMMAND_IMAGE_RM:
    case COMMAND_IMAGE_SHOW:
    case COMMAND_IMAGE_INSPECT:
    case COMMAND_IMAGE_PUSH:
    case COMMAND_IMAGE_EXPORT:
        return NAMES_IMAGES;
    case COMMAND_TEMPLATE_RM:
        return NAMES_TEMPLATES;
    default:
        return takes_sandbox(command) ? NAMES_SANDBOXES : NAMES_NONE;
    }
}

/* Are the operands behind the sandbox snapshots of it? */
static bool takes_snapshots(const struct command *command) {
    return command->bit & (COMMAND_RESTORE | COMMAND_RESET | COMMAND_DIFF | COMMAND_SNAPSHOT_SHOW |
                              COMMAND_SNAPSHOT_VERIFY);
}

/* Whether the word after the sandbox is a file of the host. */
static bool takes_path_behind(const struct command *command) {
    return command->bit & (COMMAND_COMMIT | COMMAND_EXPORT);
}

/* Names of commands that have a property, as a pattern of bash's case. */
static void print_case(bool (*has)(const struct command *command)) {
    for (size_t i = 0, n = 0; i < command_count; i++)
        if (has(&command_table[i]))
            printf("%s'%s'", n++ ? " | " : "", command_table[i].name);
}

static bool takes_images(const struct command *command) {
    return names_of_operand(command) == NAMES_IMAGES;
}

static bool takes_templates(const struct command *command) {
    return names_of_operand(command) == NAMES_TEMPLATES;
}

/* True for the first command with this first word ("policy" of "policy check"). */
static bool is_first_of_word(size_t i, size_t length) {
    for (size_t j = 0; j < i; j++)
        if (strcspn(command_table[j].name, " ") == length &&
            memcmp(command_table[j].name, command_table[i].name, length) == 0)
            return false;
    return true;
}

/* Is the first word of command i one by itself, too ("snapshot" of "snapshot show")? */
static bool is_whole(size_t i, size_t length) {
    for (size_t j = 0; j < command_count; j++)
        if (strlen(command_table[j].name) == length &&
            memcmp(command_table[j].name, command_table[i].name, length) == 0)
            return true;
    return false;
}

static void print_first_words(void) {
    bool first = true;

    for (size_t i = 0; i < command_count; i++) {
        size_t length = strcspn(command_table[i].name, " ");

        if (is_first_of_word(i, length)) {
            printf("%s%.*s", first ? "" : " ", (int)length, command_table[i].name);
            first = false;
        }
    }
}

/* The second words that go with the first word of command i. */
static void print_second_words(size_t i, const char *between) {
    size_t length = strcspn(command_table[i].name, " ");
    bool first = true;

    for (size_t j = i; j < command_count; j++)
        if (strncmp(command_table[j].name, command_table[i].name, length + 1) == 0) {
            printf("%s%s", first ? "" : between, command_table[j].name + length + 1);
            first = false;
        }
}

static void print_bash(void) {
    printf("# SPDX-License-Identifier: Apache-2.0\n"
           "# bash completion for rollbox; made by: rollbox completion bash\n"
           "# The first word of the command line that is a sandbox's name.\n"
           "_rollbox_sandbox() {\n"
           "    local i names=$'\\n'$(\"${COMP_WORDS[0]}\" ps -q 2>/dev/null)$'\\n'\n"
           "    for ((i = 2; i < COMP_CWORD; i++)); do\n"
           "        [[ $names == *$'\\n'\"${COMP_WORDS[i]}\"$'\\n'* ]] || continue\n"
           "        echo \"${COMP_WORDS[i]}\"\n"
           "        return\n"
           "    done\n"
           "}\n"
           "_rollbox_snapshots() {\n"
           "    local sandbox=$(_rollbox_sandbox)\n"
           "    [[ ! $sandbox ]] || \"${COMP_WORDS[0]}\" tree -q -- \"$sandbox\" 2>/dev/null\n"
           "}\n"
           "# Completes one of these names. A name with a colon is several words of bash's.\n"
           "_rollbox_names() {\n"
           "    local word=$cur line=${COMP_LINE:0:COMP_POINT}\n"
           "    [[ $line != *:* ]] || word=${line##*[ =]}\n"
           "    COMPREPLY=($(compgen -W \"$1\" -- \"$word\"))\n"
           "    [[ $word != *:* ]] || COMPREPLY=(\"${COMPREPLY[@]#\"${word%%:*}:\"}\")\n"
           "}\n"
           "_rollbox_list() {\n"
           "    _rollbox_names \"$(\"${COMP_WORDS[0]}\" \"$@\" 2>/dev/null)\"\n"
           "}\n"
           "_rollbox() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} "
           "command=${COMP_WORDS[1]} options= first=2\n"
           "    COMPREPLY=()\n"
           "    [[ $cur != = ]] || cur=\n"
           "    [[ $prev != = ]] || prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
           "    if ((COMP_CWORD == 1)); then\n"
           "        COMPREPLY=($(compgen -W '");
    print_first_words();
    printf(" --help --version' -- \"$cur\"))\n"
           "        return\n"
           "    fi\n"
           "    case $command in\n");
    for (size_t i = 0; i < command_count; i++) {
        size_t length = strcspn(command_table[i].name, " ");

        if (!command_table[i].name[length] || !is_first_of_word(i, length))
            continue;
        printf("    %.*s)\n        if ((COMP_CWORD == 2)); then\n            COMPREPLY=($(compgen "
               "-W '",
            (int)length, command_table[i].name);
        print_second_words(i, " ");
        if (is_whole(i, length)) {
            printf("' -- \"$cur\") $(compgen -W \"$(\"${COMP_WORDS[0]}\" ps -q 2>/dev/null)\" -- "
                   "\"$cur\"))\n            [[ $cur == -* ]] || return\n        fi\n        case "
                   "${COMP_WORDS[2]} in\n        ");
            print_second_words(i, " | ");
            printf(
                ") command=\"$command ${COMP_WORDS[2]}\" first=3 ;;\n        esac\n        ;;\n");
            continue;
        }
        printf("' -- \"$cur\"))\n            return\n        fi\n        command=\"$command "
               "${COMP_WORDS[2]}\" first=3\n        ;;\n");
    }
    printf("    esac\n"
           "    case $command in\n");
    for (size_t i = 0; i < command_count; i++) {
        const char *separator = "";

        printf("    '%s') options='", command_table[i].name);
        for (size_t j = 0; j < option_count; j++)
            if (option_table[j].commands & command_table[i].bit) {
                printf("%s--%s", separator, option_table[j].name);
                separator = " ";
            }
        printf("' ;;\n");
    }
    printf("    esac\n"
           "    if [[ $command == run || $command == exec ]]; then\n"
           "        # Behind the guest's command come its own words.\n"
           "        local i\n"
           "        for ((i = first; i < COMP_CWORD; i++)); do\n"
           "            case ${COMP_WORDS[i]} in\n"
           "            --) COMPREPLY=($(compgen -c -f -- \"$cur\")); return ;;\n"
           "            esac\n"
           "        done\n"
           "    fi\n"
           "    case $prev in\n");
    for (size_t j = 0; j < option_count; j++)
        if (is_choice_list(&option_table[j])) {
            printf("    --%s) COMPREPLY=($(compgen -W '", option_table[j].name);
            print_choices(option_table[j].argument);
            printf("' -- \"$cur\")); return ;;\n");
        }
    for (size_t j = 0; j < option_count; j++) {
        enum names names = names_of_option(&option_table[j]);

        if (names == NAMES_SNAPSHOTS)
            printf("    --%s) _rollbox_names \"$(_rollbox_snapshots)\"; return ;;\n",
                option_table[j].name);
        else if (names)
            printf("    --%s) _rollbox_list %s; return ;;\n", option_table[j].name,
                name_lists[names].list);
    }
    printf("    ");
    for (size_t j = 0, n = 0; j < option_count; j++)
        if (takes_file(&option_table[j])) {
            printf("%s--%s", n++ ? " | " : "", option_table[j].name);
            if (option_table[j].letter)
                printf(" | -%c", option_table[j].letter);
        }
    printf(") COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n"
           "    esac\n"
           "    case $command in\n"
           "    completion) COMPREPLY=($(compgen -W 'bash zsh fish' -- \"$cur\")); return ;;\n"
           "    esac\n"
           "    if [[ $cur == -* ]]; then\n"
           "        COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
           "        return\n"
           "    fi\n"
           "    case $command in\n"
           "    ");
    print_case(takes_images);
    printf(") _rollbox_list %s ;;\n    ", name_lists[NAMES_IMAGES].list);
    print_case(takes_templates);
    printf(") _rollbox_list %s ;;\n    ", name_lists[NAMES_TEMPLATES].list);
    print_case(takes_sandbox);
    printf(")\n"
           "        if [[ ! $(_rollbox_sandbox) ]]; then\n"
           "            _rollbox_list %s\n"
           "            return\n"
           "        fi\n"
           "        case $command in\n"
           "        ",
        name_lists[NAMES_SANDBOXES].list);
    print_case(takes_snapshots);
    printf(") _rollbox_names \"$(_rollbox_snapshots)\" ;;\n"
           "        ");
    print_case(takes_path_behind);
    printf(") COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n"
           "        'rm') _rollbox_list %s ;;\n"
           "        'exec') COMPREPLY=($(compgen -c -f -- \"$cur\")) ;;\n"
           "        esac\n"
           "        ;;\n"
           "    *) COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n",
        name_lists[NAMES_SANDBOXES].list);
    printf("    esac\n"
           "}\n"
           "complete -o filenames -F _rollbox rollbox\n");
}

/* Text inside single quotes of a zsh or fish word; zsh's specs also end at ] and :. */
static void print_quoted(const char *text, const char *special) {
    for (; *text; text++) {
        if (*text == '\'')
            printf("'\\''");
        else if (strchr(special, *text))
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

static void print_zsh(void) {
    printf("#compdef rollbox\n"
           "# SPDX-License-Identifier: Apache-2.0\n"
           "# zsh completion for rollbox; made by: rollbox completion zsh\n"
           "# The first word of the command line that is a sandbox's name.\n"
           "_rollbox_snapshots() {\n"
           "    local word\n"
           "    local -a names=(${(f)\"$(rollbox ps -q 2>/dev/null)\"})\n"
           "    for word in $words[2,CURRENT-1]; do\n"
           "        (($names[(Ie)$word])) || continue\n"
           "        compadd -- ${(f)\"$(rollbox tree -q -- $word 2>/dev/null)\"}\n"
           "        return\n"
           "    done\n"
           "}\n");
    for (size_t i = NAMES_SANDBOXES; i < ARRAY_SIZE(name_lists); i++)
        if (i != NAMES_SNAPSHOTS)
            printf("%s() {\n    compadd -- ${(f)\"$(rollbox %s 2>/dev/null)\"}\n}\n",
                name_lists[i].function, name_lists[i].list);
    printf("_rollbox() {\n"
           "    local command=$words[2] first=2\n"
           "    if ((CURRENT == 2)); then\n"
           "        compadd -- ");
    print_first_words();
    printf("\n        return\n"
           "    fi\n"
           "    case $command in\n");
    for (size_t i = 0; i < command_count; i++) {
        size_t length = strcspn(command_table[i].name, " ");

        if (!command_table[i].name[length] || !is_first_of_word(i, length))
            continue;
        printf("    %.*s)\n        if ((CURRENT == 3)); then\n            compadd -- ", (int)length,
            command_table[i].name);
        print_second_words(i, " ");
        if (is_whole(i, length)) {
            printf("\n            [[ $words[3] == -* ]] || { _rollbox_sandboxes; return }\n        "
                   "fi\n        case $words[3] in\n        ");
            print_second_words(i, " | ");
            printf(") command=\"$command $words[3]\" first=3 ;;\n        esac\n        ;;\n");
            continue;
        }
        printf("\n            return\n        fi\n        command=\"$command $words[3]\" first=3\n "
               "       ;;\n");
    }
    printf("    esac\n"
           "    shift $((first - 1)) words\n"
           "    ((CURRENT -= first - 1))\n"
           "    case $command in\n");
    for (size_t i = 0; i < command_count; i++) {
        printf("    '%s')\n        _arguments -s -S", command_table[i].name);
        for (size_t j = 0; j < option_count; j++) {
            const struct option *option = &option_table[j];

            if (!(option->commands & command_table[i].bit))
                continue;
            for (int k = option->letter ? 0 : 1; k < 2; k++) {
                if (k == 0)
                    printf(" \\\n            '*-%c[", option->letter);
                else
                    printf(" \\\n            '*--%s%s[", option->name, option->argument ? "=" : "");
                print_quoted(option->help, "[]:");
                printf("]");
                if (is_choice_list(option)) {
                    printf(":value:(");
                    print_choices(option->argument);
                    printf(")");
                } else if (option->argument) {
                    enum names names = names_of_option(option);

                    printf(":%s:%s", option->argument,
                        takes_file(option) ? "_files"
                        : names            ? name_lists[names].function
                                           : "");
                }
                printf("'");
            }
        }
        if (command_table[i].bit == COMMAND_RUN)
            printf(" \\\n            '*::command:_normal'");
        else if (names_of_operand(&command_table[i]))
            printf(" \\\n            '%s:name:%s'%s",
                command_table[i].bit & (COMMAND_RM | COMMAND_TEMPLATE_RM) ? "*" : "",
                name_lists[names_of_operand(&command_table[i])].function,
                command_table[i].bit == COMMAND_EXEC ? " \\\n            '*::command:_normal'"
                : takes_snapshots(&command_table[i])
                    ? " \\\n            '*:snapshot:_rollbox_snapshots'"
                : takes_path_behind(&command_table[i]) ? " \\\n            ':file:_files'"
                                                       : "");
        else if (command_table[i].bit == COMMAND_COMPLETION)
            printf(" \\\n            ':shell:(bash zsh fish)'");
        else if (command_table[i].bit == COMMAND_HELP) {
            printf(" \\\n            ':command:(");
            print_first_words();
            printf(")'");
        } else if (command_table[i].max_rest)
            printf(" \\\n            ':file:_files'");
        printf("\n        ;;\n");
    }
    printf("    esac\n"
           "}\n"
           "_rollbox \"$@\"\n");
}

static void print_fish_operand(
    const struct command *command, const char *condition, const char *list) {
    size_t length = strcspn(command->name, " ");

    printf("complete -c rollbox -n '__fish_seen_subcommand_from %.*s", (int)length, command->name);
    if (command->name[length])
        printf("; and __fish_seen_subcommand_from %s", command->name + length + 1);
    printf("%s' -f -a '(%s)'\n", condition, list);
}

static void print_fish(void) {
    printf("# SPDX-License-Identifier: Apache-2.0\n"
           "# fish completion for rollbox; made by: rollbox completion fish\n"
           "# The first word of the command line that is a sandbox's name.\n"
           "function __rollbox_sandbox\n"
           "    set -l names (rollbox ps -q 2>/dev/null)\n"
           "    for word in (commandline -opc)[3..]\n"
           "        if contains -- $word $names\n"
           "            echo $word\n"
           "            return 0\n"
           "        end\n"
           "    end\n"
           "    return 1\n"
           "end\n"
           "function __rollbox_snapshots\n"
           "    set -l sandbox (__rollbox_sandbox); and rollbox tree -q -- $sandbox 2>/dev/null\n"
           "end\n"
           "complete -c rollbox -n __fish_use_subcommand -f -a '");
    print_first_words();
    printf("'\n");
    for (size_t i = 0; i < command_count; i++) {
        const struct command *command = &command_table[i];
        size_t length = strcspn(command->name, " ");

        if (command->name[length] && is_first_of_word(i, length)) {
            printf("complete -c rollbox -n '__fish_seen_subcommand_from %.*s; and not "
                   "__fish_seen_subcommand_from ",
                (int)length, command->name);
            print_second_words(i, " ");
            printf("' -f -a '");
            print_second_words(i, " ");
            printf("'\n");
        }
        for (size_t j = 0; j < option_count; j++) {
            const struct option *option = &option_table[j];

            if (!(option->commands & command->bit))
                continue;
            printf("complete -c rollbox -n '__fish_seen_subcommand_from %.*s", (int)length,
                command->name);
            if (command->name[length])
                printf("; and __fish_seen_subcommand_from %s", command->name + length + 1);
            printf("' -l %s", option->name);
            if (option->letter)
                printf(" -s %c", option->letter);
            if (is_choice_list(option)) {
                printf(" -x -a '");
                print_choices(option->argument);
                printf("'");
            } else if (names_of_option(option) == NAMES_SNAPSHOTS) {
                printf(" -x -a '(__rollbox_snapshots)'");
            } else if (names_of_option(option)) {
                printf(
                    " -x -a '(rollbox %s 2>/dev/null)'", name_lists[names_of_option(option)].list);
            } else if (option->argument) {
                printf(takes_file(option) ? " -r -F" : " -x");
            }
            printf(" -d '");
            for (const char *p = option->help; *p; p++)
                printf(*p == '\'' || *p == '\\' ? "\\%c" : "%c", *p);
            printf("'\n");
        }
        if (takes_snapshots(command))
            print_fish_operand(
                command, "; and __rollbox_sandbox >/dev/null", "__rollbox_snapshots");
        if (takes_sandbox(command))
            print_fish_operand(command,
                command->bit == COMMAND_RM ? "" : "; and not __rollbox_sandbox >/dev/null",
                "rollbox ps -q 2>/dev/null");
        else if (names_of_operand(command) == NAMES_IMAGES)
            print_fish_operand(command, "", "rollbox image ls -q 2>/dev/null");
        else if (names_of_operand(command) == NAMES_TEMPLATES)
            print_fish_operand(command, "", "rollbox template ls -q 2>/dev/null");
        if (command->bit == COMMAND_COMPLETION)
            printf("complete -c rollbox -n '__fish_seen_subcommand_from completion' -f -a 'bash "
                   "zsh fish'\n");
    }
}

int cmd_completion(const struct options *options) {
    const char *shell = options->rest[0];

    if (strcmp(shell, "bash") == 0)
        print_bash();
    else if (strcmp(shell, "zsh") == 0)
        print_zsh();
    else if (strcmp(shell, "fish") == 0)
        print_fish();
    else
        return cli_fail(
            options, "%s: no completion for this shell; choose bash, zsh or fish", shell);
    return cli_flush(options, 0);
}
