/* SPDX-License-Identifier: Apache-2.0 */
/* Completion scripts for three shells, made from the tables of options.c. The files in completions/
 * are this program's own output; a test compares them. */
#include <stdio.h>
#include <string.h>

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

/* Is its first operand a sandbox that lives? */
static bool takes_sandbox(const struct command *command) {
    size_t first = strcspn(command->arguments, " ");

    /* "image rm NAME" is about another kind of name. */
    return (!strchr(command->name, ' ') ||
               (command->bit & (COMMAND_SNAPSHOT_SHOW | COMMAND_SNAPSHOT_VERIFY))) &&
           ((first == 4 && strncmp(command->arguments, "NAME", 4) == 0) ||
               (first == 6 && strncmp(command->arguments, "[NAME]", 6) == 0));
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
           "_rollbox() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} "
           "command=${COMP_WORDS[1]} options= first=2\n"
           "    COMPREPLY=()\n"
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
           "    completion) COMPREPLY=($(compgen -W 'bash zsh fish' -- \"$cur\")) ;;\n"
           "    ");
    for (size_t i = 0, n = 0; i < command_count; i++)
        if (takes_sandbox(&command_table[i]))
            printf(strchr(command_table[i].name, ' ') ? "%s'%s'" : "%s%s", n++ ? " | " : "",
                command_table[i].name);
    printf(")\n"
           "        if [[ $cur == -* ]]; then\n"
           "            COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
           "        else\n"
           "            # What behind the name is no option is the command's own, or a snapshot's "
           "name.\n"
           "            COMPREPLY=($(compgen -W \"$(\"${COMP_WORDS[0]}\" ps -q 2>/dev/null)\" -- "
           "\"$cur\"))\n"
           "        fi\n"
           "        ;;\n"
           "    *)\n"
           "        if [[ $cur == -* ]]; then\n"
           "            COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
           "        else\n"
           "            COMPREPLY=($(compgen -f -- \"$cur\"))\n"
           "        fi\n"
           "        ;;\n"
           "    esac\n"
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
           "_rollbox_sandboxes() {\n"
           "    compadd -- ${(f)\"$(rollbox ps -q 2>/dev/null)\"}\n"
           "}\n"
           "_rollbox() {\n"
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
                    printf(":%s:%s", option->argument, takes_file(option) ? "_files" : "");
                }
                printf("'");
            }
        }
        if (command_table[i].bit == COMMAND_RUN)
            printf(" \\\n            '*::command:_normal'");
        else if (takes_sandbox(&command_table[i]))
            printf(" \\\n            ':sandbox:_rollbox_sandboxes'%s",
                command_table[i].bit == COMMAND_EXEC ? " \\\n            '*::command:_normal'"
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

static void print_fish(void) {
    printf("# SPDX-License-Identifier: Apache-2.0\n"
           "# fish completion for rollbox; made by: rollbox completion fish\n"
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
            } else if (option->argument) {
                printf(takes_file(option) ? " -r -F" : " -x");
            }
            printf(" -d '");
            for (const char *p = option->help; *p; p++)
                printf(*p == '\'' || *p == '\\' ? "\\%c" : "%c", *p);
            printf("'\n");
        }
        if (takes_sandbox(command))
            printf("complete -c rollbox -n '__fish_seen_subcommand_from %.*s' -f -a '(rollbox ps "
                   "-q 2>/dev/null)'\n",
                (int)length, command->name);
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
            options, "%s: no completion for this shell; there is bash, zsh and fish", shell);
    return cli_flush(options, 0);
}
