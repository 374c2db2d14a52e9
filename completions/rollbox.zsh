#compdef rollbox
# SPDX-License-Identifier: Apache-2.0
# zsh completion for rollbox; made by: rollbox completion zsh
_rollbox() {
    local command=$words[2] first=2
    if ((CURRENT == 2)); then
        compadd -- run batch doctor policy engine completion version help
        return
    fi
    case $command in
    policy)
        if ((CURRENT == 3)); then
            compadd -- check plan
            return
        fi
        command="$command $words[3]" first=3
        ;;
    engine)
        if ((CURRENT == 3)); then
            compadd -- start status stop
            return
        fi
        command="$command $words[3]" first=3
        ;;
    esac
    shift $((first - 1)) words
    ((CURRENT -= first - 1))
    case $command in
    'run')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--policy=[a policy file (JSON); the options below add to it]:FILE:_files' \
            '*--readable=[let the sandbox read PATH of the host]:PATH:_files' \
            '*--writable=[a private copy-on-write view of PATH; the host never changes]:PATH:_files' \
            '*--shared=[write through to PATH of the host]:PATH:_files' \
            '*--denied=[hide PATH, even inside a granted directory]:PATH:_files' \
            '*--memory=[memory of the whole sandbox, such as 256M (default 512M)]:SIZE:' \
            '*--processes=[processes and threads at once (default 64)]:N:' \
            '*--cpus=[CPUs, fractions allowed (default\: no limit)]:N:' \
            '*--disk=[what the sandbox may write (default 1G)]:SIZE:' \
            '*--open-files=[open files a process (default 4096)]:N:' \
            '*--output-limit=[bytes of each output stream; more ends the run (default 10M)]:BYTES:' \
            '*--timeout=[wall-clock limit, fractions allowed (default\: none)]:SECONDS:' \
            '*--env=[set a variable in the sandbox'\''s environment]:K=V:' \
            '*--no-clean-env[keep the caller'\''s environment too]' \
            '*--cwd=[working directory inside the sandbox (default /tmp, private)]:PATH:_files' \
            '*--user=[the user seen inside\: box (default), root or a number]:NAME:' \
            '*--hostname=[the host name seen inside (default rollbox)]:NAME:' \
            '*--net=[network (default none)]:value:(none loopback host)' \
            '*--isolation=[how the sandbox is isolated (default namespace)]:value:(namespace process)' \
            '*--seed=[make randomness repeat]:N:' \
            '*--time-start=[the clock'\''s first reading, such as 2025-01-01T00\:00\:00]:ISO:' \
            '*--time-mode=[how the clock goes on from there (default offset)]:value:(offset virtual)' \
            '*--serial[one thread of the sandbox runs at a time, in a repeating order]' \
            '*--engine=[use the shared engine on this socket instead of a private one]:SOCKET:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            '*::command:_normal'
        ;;
    'batch')
        _arguments -s -S \
            '*-o[where the result rows go; - is standard output (default); an existing file is resumed]:FILE:_files' \
            '*--output=[where the result rows go; - is standard output (default); an existing file is resumed]:FILE:_files' \
            '*-j[how many jobs run at once (default\: the CPUs)]:N:' \
            '*--jobs=[how many jobs run at once (default\: the CPUs)]:N:' \
            '*--ordered[write the rows in the order of the jobs, not as they end]' \
            '*--retries=[how often a job is tried again after an infrastructure error (default 2)]:N:' \
            '*--no-progress[no progress bar on a terminal]' \
            '*--json[print the result as one JSON object]' \
            '*--policy=[a policy file (JSON); the options below add to it]:FILE:_files' \
            '*--readable=[let the sandbox read PATH of the host]:PATH:_files' \
            '*--writable=[a private copy-on-write view of PATH; the host never changes]:PATH:_files' \
            '*--shared=[write through to PATH of the host]:PATH:_files' \
            '*--denied=[hide PATH, even inside a granted directory]:PATH:_files' \
            '*--memory=[memory of the whole sandbox, such as 256M (default 512M)]:SIZE:' \
            '*--processes=[processes and threads at once (default 64)]:N:' \
            '*--cpus=[CPUs, fractions allowed (default\: no limit)]:N:' \
            '*--disk=[what the sandbox may write (default 1G)]:SIZE:' \
            '*--open-files=[open files a process (default 4096)]:N:' \
            '*--output-limit=[bytes of each output stream; more ends the run (default 10M)]:BYTES:' \
            '*--timeout=[wall-clock limit, fractions allowed (default\: none)]:SECONDS:' \
            '*--env=[set a variable in the sandbox'\''s environment]:K=V:' \
            '*--no-clean-env[keep the caller'\''s environment too]' \
            '*--cwd=[working directory inside the sandbox (default /tmp, private)]:PATH:_files' \
            '*--user=[the user seen inside\: box (default), root or a number]:NAME:' \
            '*--hostname=[the host name seen inside (default rollbox)]:NAME:' \
            '*--net=[network (default none)]:value:(none loopback host)' \
            '*--isolation=[how the sandbox is isolated (default namespace)]:value:(namespace process)' \
            '*--seed=[make randomness repeat]:N:' \
            '*--time-start=[the clock'\''s first reading, such as 2025-01-01T00\:00\:00]:ISO:' \
            '*--time-mode=[how the clock goes on from there (default offset)]:value:(offset virtual)' \
            '*--serial[one thread of the sandbox runs at a time, in a repeating order]' \
            '*--engine=[use the shared engine on this socket instead of a private one]:SOCKET:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'doctor')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'policy check')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'policy plan')
        _arguments -s -S \
            '*--readable=[let the sandbox read PATH of the host]:PATH:_files' \
            '*--writable=[a private copy-on-write view of PATH; the host never changes]:PATH:_files' \
            '*--shared=[write through to PATH of the host]:PATH:_files' \
            '*--denied=[hide PATH, even inside a granted directory]:PATH:_files' \
            '*--memory=[memory of the whole sandbox, such as 256M (default 512M)]:SIZE:' \
            '*--processes=[processes and threads at once (default 64)]:N:' \
            '*--cpus=[CPUs, fractions allowed (default\: no limit)]:N:' \
            '*--disk=[what the sandbox may write (default 1G)]:SIZE:' \
            '*--open-files=[open files a process (default 4096)]:N:' \
            '*--output-limit=[bytes of each output stream; more ends the run (default 10M)]:BYTES:' \
            '*--timeout=[wall-clock limit, fractions allowed (default\: none)]:SECONDS:' \
            '*--env=[set a variable in the sandbox'\''s environment]:K=V:' \
            '*--no-clean-env[keep the caller'\''s environment too]' \
            '*--cwd=[working directory inside the sandbox (default /tmp, private)]:PATH:_files' \
            '*--user=[the user seen inside\: box (default), root or a number]:NAME:' \
            '*--hostname=[the host name seen inside (default rollbox)]:NAME:' \
            '*--net=[network (default none)]:value:(none loopback host)' \
            '*--isolation=[how the sandbox is isolated (default namespace)]:value:(namespace process)' \
            '*--seed=[make randomness repeat]:N:' \
            '*--time-start=[the clock'\''s first reading, such as 2025-01-01T00\:00\:00]:ISO:' \
            '*--time-mode=[how the clock goes on from there (default offset)]:value:(offset virtual)' \
            '*--serial[one thread of the sandbox runs at a time, in a repeating order]' \
            '*--engine=[use the shared engine on this socket instead of a private one]:SOCKET:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'engine start')
        _arguments -s -S \
            '*--socket=[the engine'\''s socket (required)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'engine status')
        _arguments -s -S \
            '*--socket=[the engine'\''s socket (required)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'engine stop')
        _arguments -s -S \
            '*--socket=[the engine'\''s socket (required)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'completion')
        _arguments -s -S \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':shell:(bash zsh fish)'
        ;;
    'version')
        _arguments -s -S \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'help')
        _arguments -s -S \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':command:(run batch doctor policy engine completion version help)'
        ;;
    esac
}
_rollbox "$@"
