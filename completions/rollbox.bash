# SPDX-License-Identifier: Apache-2.0
# bash completion for rollbox; made by: rollbox completion bash
_rollbox() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} options= first=2
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W 'run batch doctor policy engine completion version help --help --version' -- "$cur"))
        return
    fi
    case $command in
    policy)
        if ((COMP_CWORD == 2)); then
            COMPREPLY=($(compgen -W 'check plan' -- "$cur"))
            return
        fi
        command="$command ${COMP_WORDS[2]}" first=3
        ;;
    engine)
        if ((COMP_CWORD == 2)); then
            COMPREPLY=($(compgen -W 'start status stop' -- "$cur"))
            return
        fi
        command="$command ${COMP_WORDS[2]}" first=3
        ;;
    esac
    case $command in
    'run') options='--json --policy --readable --writable --shared --denied --memory --processes --cpus --disk --open-files --output-limit --timeout --env --no-clean-env --cwd --user --hostname --net --isolation --seed --time-start --time-mode --serial --engine --help' ;;
    'batch') options='--output --jobs --ordered --retries --no-progress --json --policy --readable --writable --shared --denied --memory --processes --cpus --disk --open-files --output-limit --timeout --env --no-clean-env --cwd --user --hostname --net --isolation --seed --time-start --time-mode --serial --engine --help' ;;
    'doctor') options='--json --help' ;;
    'policy check') options='--json --help' ;;
    'policy plan') options='--readable --writable --shared --denied --memory --processes --cpus --disk --open-files --output-limit --timeout --env --no-clean-env --cwd --user --hostname --net --isolation --seed --time-start --time-mode --serial --engine --help' ;;
    'engine start') options='--socket --help' ;;
    'engine status') options='--socket --help' ;;
    'engine stop') options='--socket --help' ;;
    'completion') options='--help' ;;
    'version') options='--help' ;;
    'help') options='--help' ;;
    esac
    if [[ $command == run ]]; then
        # Behind the guest's command come its own words.
        local i
        for ((i = first; i < COMP_CWORD; i++)); do
            case ${COMP_WORDS[i]} in
            --) COMPREPLY=($(compgen -c -f -- "$cur")); return ;;
            esac
        done
    fi
    case $prev in
    --net) COMPREPLY=($(compgen -W 'none loopback host' -- "$cur")); return ;;
    --isolation) COMPREPLY=($(compgen -W 'namespace process' -- "$cur")); return ;;
    --time-mode) COMPREPLY=($(compgen -W 'offset virtual' -- "$cur")); return ;;
    --output | -o | --policy | --readable | --writable | --shared | --denied | --cwd | --engine | --socket) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    esac
    case $command in
    completion) COMPREPLY=($(compgen -W 'bash zsh fish' -- "$cur")) ;;
    *)
        if [[ $cur == -* ]]; then
            COMPREPLY=($(compgen -W "$options" -- "$cur"))
        else
            COMPREPLY=($(compgen -f -- "$cur"))
        fi
        ;;
    esac
}
complete -o filenames -F _rollbox rollbox
