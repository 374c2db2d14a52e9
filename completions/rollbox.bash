# SPDX-License-Identifier: Apache-2.0
# bash completion for rollbox; made by: rollbox completion bash
# The first word of the command line that is a sandbox's name.
_rollbox_sandbox() {
    local i names=$'\n'$("${COMP_WORDS[0]}" ps -q 2>/dev/null)$'\n'
    for ((i = 2; i < COMP_CWORD; i++)); do
        [[ $names == *$'\n'"${COMP_WORDS[i]}"$'\n'* ]] || continue
        echo "${COMP_WORDS[i]}"
        return
    done
}
_rollbox_snapshots() {
    local sandbox=$(_rollbox_sandbox)
    [[ ! $sandbox ]] || "${COMP_WORDS[0]}" tree -q -- "$sandbox" 2>/dev/null
}
# Completes one of these names. A name with a colon is several words of bash's.
_rollbox_names() {
    local word=$cur line=${COMP_LINE:0:COMP_POINT}
    [[ $line != *:* ]] || word=${line##*[ =]}
    COMPREPLY=($(compgen -W "$1" -- "$word"))
    [[ $word != *:* ]] || COMPREPLY=("${COMPREPLY[@]#"${word%:*}:"}")
}
_rollbox_list() {
    _rollbox_names "$("${COMP_WORDS[0]}" "$@" 2>/dev/null)"
}
_rollbox() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} options= first=2
    COMPREPLY=()
    [[ $cur != = ]] || cur=
    [[ $prev != = ]] || prev=${COMP_WORDS[COMP_CWORD - 2]}
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W 'run shell record replay verify batch doctor policy create exec attach logs forward port cp ps stats inspect kill rm pause resume hibernate wake snapshot fork restore reset tree diff commit discard export import image store volume template engine net serve mcp cost token debug completion version help --help --version' -- "$cur"))
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
    snapshot)
        if ((COMP_CWORD == 2)); then
            COMPREPLY=($(compgen -W 'show verify' -- "$cur") $(compgen -W "$("${COMP_WORDS[0]}" ps -q 2>/dev/null)" -- "$cur"))
            [[ $cur == -* ]] || return
        fi
        case ${COMP_WORDS[2]} in
        show | verify) command="$command ${COMP_WORDS[2]}" first=3 ;;
        esac
        ;;
    image)
        if ((COMP_CWORD == 2)); then
            COMPREPLY=($(compgen -W 'import pull push export commit ls build rm inspect show' -- "$cur"))
            return
        fi
        command="$command ${COMP_WORDS[2]}" first=3
        ;;
    store)
        if ((COMP_CWORD == 2)); then
            COMPREPLY=($(compgen -W 'path gc fsck df' -- "$cur"))
            return
        fi
        command="$command ${COMP_WORDS[2]}" first=3
        ;;
    volume)
        if ((COMP_CWORD == 2)); then
            COMPREPLY=($(compgen -W 'create ls rm inspect df snapshot' -- "$cur"))
            return
        fi
        command="$command ${COMP_WORDS[2]}" first=3
        ;;
    template)
        if ((COMP_CWORD == 2)); then
            COMPREPLY=($(compgen -W 'create ls rm' -- "$cur"))
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
    net)
        if ((COMP_CWORD == 2)); then
            COMPREPLY=($(compgen -W 'log test set' -- "$cur"))
            return
        fi
        command="$command ${COMP_WORDS[2]}" first=3
        ;;
    token)
        if ((COMP_CWORD == 2)); then
            COMPREPLY=($(compgen -W 'create tenant ls rm' -- "$cur"))
            return
        fi
        command="$command ${COMP_WORDS[2]}" first=3
        ;;
    debug)
        if ((COMP_CWORD == 2)); then
            COMPREPLY=($(compgen -W 'dump' -- "$cur"))
            return
        fi
        command="$command ${COMP_WORDS[2]}" first=3
        ;;
    esac
    case $command in
    'run') options='--interactive --tty --verbose --template --json --policy --readable --python --writable --shared --denied --image --memory --processes --cpus --disk --disk-at --open-files --output-limit --timeout --env --no-clean-env --cwd --user --users --hostname --volume --device --gpus --tmpfs --shm-size --ulimit --net --allow --allow-file --secret --inject --net-log --net-record --net-replay --max-upload --isolation --seed --time-start --time-mode --serial --label --priority --queue-timeout --trace --engine --help' ;;
    'shell') options='--verbose --json --policy --readable --python --writable --shared --denied --image --memory --processes --cpus --disk --disk-at --open-files --output-limit --timeout --env --no-clean-env --cwd --user --users --hostname --volume --device --gpus --tmpfs --shm-size --ulimit --net --allow --allow-file --secret --inject --net-log --net-record --net-replay --max-upload --isolation --seed --time-start --time-mode --serial --engine --help' ;;
    'record') options='--output --interactive --keep --max-record --redact --redact-env --env-values --record-changes --force --json --policy --readable --python --writable --shared --denied --image --memory --processes --cpus --disk --disk-at --open-files --output-limit --timeout --env --no-clean-env --cwd --user --users --hostname --volume --device --gpus --tmpfs --shm-size --ulimit --net --allow --allow-file --secret --inject --net-log --net-record --net-replay --max-upload --isolation --seed --time-start --time-mode --serial --engine --help' ;;
    'replay') options='--output --parent --trust --no-progress --force --json --policy --env --engine --help' ;;
    'verify') options='--keep --max-record --redact --redact-env --env-values --record-changes --parent --trust --twice --no-files --no-progress --json --policy --readable --python --writable --shared --denied --image --memory --processes --cpus --disk --disk-at --open-files --output-limit --timeout --env --no-clean-env --cwd --user --users --hostname --volume --device --gpus --tmpfs --shm-size --ulimit --net --allow --allow-file --secret --inject --net-log --net-record --net-replay --max-upload --isolation --seed --time-start --time-mode --serial --engine --help' ;;
    'batch') options='--output --record --keep --max-record --redact --redact-env --env-values --jobs --ordered --retries --no-progress --force --json --policy --readable --python --writable --shared --denied --image --memory --processes --cpus --disk --disk-at --open-files --output-limit --timeout --env --no-clean-env --cwd --user --users --hostname --volume --device --gpus --tmpfs --shm-size --ulimit --net --allow --allow-file --secret --inject --net-log --net-record --net-replay --max-upload --isolation --seed --time-start --time-mode --serial --engine --help' ;;
    'doctor') options='--json --help' ;;
    'policy check') options='--json --help' ;;
    'policy plan') options='--json --readable --python --writable --shared --denied --image --memory --processes --cpus --disk --disk-at --open-files --output-limit --timeout --env --no-clean-env --cwd --user --users --hostname --volume --device --gpus --tmpfs --shm-size --ulimit --net --publish --network --allow --allow-file --secret --inject --net-log --net-record --net-replay --max-upload --isolation --seed --time-start --time-mode --serial --engine --help' ;;
    'create') options='--record --keep --max-record --redact --redact-env --env-values --record-files --record-changes --name --idle --hibernate-after --auto-snapshot --auto-keep --ttl --lifetime --no-detach --force --json --policy --readable --python --writable --shared --denied --image --memory --processes --cpus --disk --disk-at --open-files --output-limit --timeout --env --no-clean-env --cwd --user --users --hostname --volume --device --gpus --tmpfs --shm-size --ulimit --net --publish --network --allow --allow-file --secret --inject --net-log --net-record --net-replay --max-upload --isolation --seed --time-start --time-mode --serial --label --priority --queue-timeout --socket --help' ;;
    'exec') options='--interactive --tty --detach-keys --detach --shell --id --json --output-limit --timeout --env --cwd --user --trace --socket --help' ;;
    'attach') options='--interactive --tty --detach-keys --json --socket --help' ;;
    'logs') options='--follow --tail --json --socket --help' ;;
    'forward') options='--listen --json --socket --help' ;;
    'port') options='--listen --json --socket --help' ;;
    'cp') options='--no-progress --chown --json --socket --help' ;;
    'ps') options='--quiet --json --socket --help' ;;
    'stats') options='--once --interval --json --socket --help' ;;
    'inspect') options='--json --socket --help' ;;
    'kill') options='--signal --scope --json --socket --help' ;;
    'rm') options='--json --socket --help' ;;
    'pause') options='--json --socket --help' ;;
    'resume') options='--json --socket --help' ;;
    'hibernate') options='--drop-processes --json --socket --help' ;;
    'wake') options='--drop-processes --json --socket --help' ;;
    'snapshot show') options='--json --socket --help' ;;
    'snapshot verify') options='--json --socket --help' ;;
    'snapshot') options='--as --drop-processes --json --socket --help' ;;
    'fork') options='--record --keep --max-record --redact --redact-env --env-values --record-files --record-changes --same-seed --count --from --drop-processes --force --json --socket --help' ;;
    'restore') options='--record --keep --max-record --redact --redact-env --env-values --record-files --record-changes --same-seed --count --drop-processes --force --json --socket --help' ;;
    'reset') options='--drop-processes --json --socket --help' ;;
    'tree') options='--quiet --json --socket --help' ;;
    'diff') options='--text --json --socket --help' ;;
    'commit') options='--force --json --socket --help' ;;
    'discard') options='--drop-processes --json --socket --help' ;;
    'export') options='--from --live --json --socket --help' ;;
    'import') options='--trust --drop-processes --name --max-entries --max-bytes --max-depth --json --policy --socket --help' ;;
    'image import') options='--no-progress --name --platform --tag-of-archive --max-entries --max-bytes --max-depth --max-ratio --json --help' ;;
    'image pull') options='--no-progress --name --platform --insecure --authfile --creds --stall --missing --max-entries --max-bytes --max-depth --max-ratio --json --help' ;;
    'image push') options='--insecure --authfile --creds --stall --compression --config-of --json --help' ;;
    'image export') options='--compression --config-of --json --help' ;;
    'image commit') options='--from --json --socket --help' ;;
    'image ls') options='--quiet --json --help' ;;
    'image build') options='--tag --file --build-arg --target --no-cache --secret --ssh --pull --no-pull --progress --insecure --authfile --max-entries --max-bytes --max-ratio --json --policy --memory --processes --cpus --disk --disk-at --timeout --shm-size --ulimit --net --allow --allow-file --net-log --net-record --net-replay --engine --help' ;;
    'image rm') options='--json --help' ;;
    'image inspect') options='--json --help' ;;
    'image show') options='--json --help' ;;
    'store path') options='--json --help' ;;
    'store gc') options='--keep --older --json --help' ;;
    'store fsck') options='--json --help' ;;
    'store df') options='--json --help' ;;
    'volume create') options='--json --size --help' ;;
    'volume ls') options='--quiet --json --help' ;;
    'volume rm') options='--json --help' ;;
    'volume inspect') options='--json --help' ;;
    'volume df') options='--json --help' ;;
    'volume snapshot') options='--name --json --help' ;;
    'template create') options='--python --json --policy --readable --writable --shared --denied --image --memory --processes --cpus --disk --disk-at --open-files --output-limit --timeout --env --no-clean-env --cwd --user --users --hostname --volume --device --gpus --tmpfs --shm-size --ulimit --net --allow --allow-file --secret --inject --net-log --net-record --net-replay --max-upload --isolation --socket --help' ;;
    'template ls') options='--quiet --json --socket --help' ;;
    'template rm') options='--json --socket --help' ;;
    'engine start') options='--background --log --log-level --log-format --json --socket --help' ;;
    'engine status') options='--json --socket --help' ;;
    'engine stop') options='--json --socket --help' ;;
    'net log') options='--json --socket --help' ;;
    'net test') options='--json --policy --allow --allow-file --method --help' ;;
    'net set') options='--json --net --allow --allow-file --socket --help' ;;
    'serve') options='--json --listen --host --insecure --config --tls-cert --tls-key --tls-client-ca --tls-client-required --drain --state --engines --engine-per-tenant --prices --template --otlp-endpoint --otlp-service-name --otlp-sampler --otlp-sampler-arg --tokens --quota --engine --help' ;;
    'mcp') options='--json --engine --help' ;;
    'cost') options='--json --prices --by --per-million --help' ;;
    'token create') options='--json --certificate --tokens --tenant --scope --expires --max-sandboxes --max-running --quota --help' ;;
    'token tenant') options='--json --tokens --quota --weight --ceiling --help' ;;
    'token ls') options='--json --tokens --help' ;;
    'token rm') options='--json --tokens --help' ;;
    'debug dump') options='--json --socket --help' ;;
    'completion') options='--help' ;;
    'version') options='--json --help' ;;
    'help') options='--help' ;;
    esac
    if [[ $command == run || $command == exec ]]; then
        # Behind the guest's command come its own words.
        local i
        for ((i = first; i < COMP_CWORD; i++)); do
            case ${COMP_WORDS[i]} in
            --) COMPREPLY=($(compgen -c -f -- "$cur")); return ;;
            esac
        done
    fi
    case $prev in
    --progress) COMPREPLY=($(compgen -W 'auto plain tty json quiet' -- "$cur")); return ;;
    --log-level) COMPREPLY=($(compgen -W 'error warn info debug' -- "$cur")); return ;;
    --log-format) COMPREPLY=($(compgen -W 'text json' -- "$cur")); return ;;
    --auto-snapshot) COMPREPLY=($(compgen -W 'changed off' -- "$cur")); return ;;
    --scope) COMPREPLY=($(compgen -W 'main tree children group' -- "$cur")); return ;;
    --compression) COMPREPLY=($(compgen -W 'gzip zstd none' -- "$cur")); return ;;
    --disk-at) COMPREPLY=($(compgen -W 'memory store' -- "$cur")); return ;;
    --users) COMPREPLY=($(compgen -W 'one many' -- "$cur")); return ;;
    --net) COMPREPLY=($(compgen -W 'none loopback allow host' -- "$cur")); return ;;
    --isolation) COMPREPLY=($(compgen -W 'namespace process' -- "$cur")); return ;;
    --time-mode) COMPREPLY=($(compgen -W 'offset virtual' -- "$cur")); return ;;
    --priority) COMPREPLY=($(compgen -W 'high normal low' -- "$cur")); return ;;
    --scope) COMPREPLY=($(compgen -W 'run net host admin metrics' -- "$cur")); return ;;
    --from) _rollbox_names "$(_rollbox_snapshots)"; return ;;
    --template) _rollbox_list template ls -q; return ;;
    --image) _rollbox_list image ls -q; return ;;
    --file | -f | --output | -o | --output | -o | --record | --record | --parent | --authfile | --creds | --policy | --policy | --policy | --policy | --readable | --python | --writable | --shared | --denied | --cwd | --allow-file | --net-log | --net-record | --net-replay | --config | --tls-cert | --tls-key | --tls-client-ca | --state | --prices | --tokens | --tokens | --ceiling | --engine | --socket) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    esac
    case $command in
    completion) COMPREPLY=($(compgen -W 'bash zsh fish' -- "$cur")); return ;;
    esac
    if [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$cur"))
        return
    fi
    case $command in
    'image push' | 'image export' | 'image rm' | 'image inspect' | 'image show') _rollbox_list image ls -q ;;
    'template rm') _rollbox_list template ls -q ;;
    'exec' | 'attach' | 'logs' | 'forward' | 'port' | 'ps' | 'inspect' | 'kill' | 'rm' | 'pause' | 'resume' | 'hibernate' | 'wake' | 'snapshot show' | 'snapshot verify' | 'snapshot' | 'restore' | 'reset' | 'tree' | 'diff' | 'commit' | 'discard' | 'export')
        if [[ ! $(_rollbox_sandbox) ]]; then
            _rollbox_list ps -q
            return
        fi
        case $command in
        'snapshot show' | 'snapshot verify' | 'restore' | 'reset' | 'diff') _rollbox_names "$(_rollbox_snapshots)" ;;
        'commit' | 'export') COMPREPLY=($(compgen -f -- "$cur")) ;;
        'rm') _rollbox_list ps -q ;;
        'exec') COMPREPLY=($(compgen -c -f -- "$cur")) ;;
        esac
        ;;
    *) COMPREPLY=($(compgen -f -- "$cur")) ;;
    esac
}
complete -o filenames -F _rollbox rollbox
