#compdef rollbox
# SPDX-License-Identifier: Apache-2.0
# zsh completion for rollbox; made by: rollbox completion zsh
# The first word of the command line that is a sandbox's name.
_rollbox_snapshots() {
    local word
    local -a names=(${(f)"$(rollbox ps -q 2>/dev/null)"})
    for word in $words[2,CURRENT-1]; do
        (($names[(Ie)$word])) || continue
        compadd -- ${(f)"$(rollbox tree -q -- $word 2>/dev/null)"}
        return
    done
}
_rollbox_sandboxes() {
    compadd -- ${(f)"$(rollbox ps -q 2>/dev/null)"}
}
_rollbox_images() {
    compadd -- ${(f)"$(rollbox image ls -q 2>/dev/null)"}
}
_rollbox_templates() {
    compadd -- ${(f)"$(rollbox template ls -q 2>/dev/null)"}
}
_rollbox() {
    local command=$words[2] first=2
    if ((CURRENT == 2)); then
        compadd -- run shell record replay verify batch doctor policy create exec attach logs forward port cp ps stats inspect kill rm pause resume hibernate wake snapshot fork restore reset tree diff commit discard export import image store volume template engine net serve mcp cost token debug completion version help
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
    snapshot)
        if ((CURRENT == 3)); then
            compadd -- show verify
            [[ $words[3] == -* ]] || { _rollbox_sandboxes; return }
        fi
        case $words[3] in
        show | verify) command="$command $words[3]" first=3 ;;
        esac
        ;;
    image)
        if ((CURRENT == 3)); then
            compadd -- import pull push export commit ls build rm inspect show
            return
        fi
        command="$command $words[3]" first=3
        ;;
    store)
        if ((CURRENT == 3)); then
            compadd -- path gc fsck df
            return
        fi
        command="$command $words[3]" first=3
        ;;
    volume)
        if ((CURRENT == 3)); then
            compadd -- create ls rm inspect df snapshot
            return
        fi
        command="$command $words[3]" first=3
        ;;
    template)
        if ((CURRENT == 3)); then
            compadd -- create ls rm
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
    net)
        if ((CURRENT == 3)); then
            compadd -- log test set
            return
        fi
        command="$command $words[3]" first=3
        ;;
    token)
        if ((CURRENT == 3)); then
            compadd -- create tenant ls rm
            return
        fi
        command="$command $words[3]" first=3
        ;;
    debug)
        if ((CURRENT == 3)); then
            compadd -- dump
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
            '*-i[with -t\: pass keys on; without -t standard input is passed on anyway]' \
            '*--interactive[with -t\: pass keys on; without -t standard input is passed on anyway]' \
            '*-t[give it a terminal of its own]' \
            '*--tty[give it a terminal of its own]' \
            '*-v[say on standard error whether an image has one user or many (on a terminal always)]' \
            '*--verbose[say on standard error whether an image has one user or many (on a terminal always)]' \
            '*--template=[run python3 -c CODE, or python3 FILE, in a fork of this template (rollbox template create), under its policy]:NAME:_rollbox_templates' \
            '*--json[print the result as one JSON object]' \
            '*--policy=[a policy file (JSON); the options below add to it]:FILE:_files' \
            '*--readable=[let the sandbox read PATH of the host, too]:PATH:_files' \
            '*--python=[a Python of the host (of a venv, conda, pyenv) as python3, with its files; else the system'\''s]:PATH:_files' \
            '*--writable=[a private copy-on-write view of PATH; the host never changes]:PATH:_files' \
            '*--shared=[write through to PATH of the host]:PATH:_files' \
            '*--denied=[hide PATH, even inside a granted directory]:PATH:_files' \
            '*--image=[an image of the store as root file system (rollbox image ls lists them); docker\://REFERENCE is pulled if the store does not have it]:NAME:_rollbox_images' \
            '*--memory=[memory of the whole sandbox, such as 256M (default 512M)]:SIZE:' \
            '*--processes=[processes and threads at once (default 64, or 4 a CPU if more)]:N:' \
            '*--cpus=[CPUs, fractions allowed (default\: no limit)]:N:' \
            '*--disk=[size of private files (default 1G, at most 3/4 of the memory)]:SIZE:' \
            '*--disk-at=[where written files are kept\: in memory, or on the store'\''s disk (default memory)]:value:(memory store)' \
            '*--open-files=[open files a process (default 4096)]:N:' \
            '*--output-limit=[bytes of each output stream; more ends the run (default 10M)]:BYTES:' \
            '*--timeout=[wall-clock limit, fractions allowed; none\: no limit (default\: 300 for a run, none in a session)]:SECONDS:' \
            '*--env=[set a variable in the sandbox'\''s environment]:K=V:' \
            '*--no-clean-env[keep the caller'\''s environment too]' \
            '*--cwd=[working directory inside the sandbox (default /tmp, private)]:PATH:_files' \
            '*--user=[the user seen inside\: box (default), root or a number]:NAME:' \
            '*--users=[many\: 65,536 users, of which root may chown, su, install packages (default one)]:value:(one many)' \
            '*--hostname=[the host name seen inside (default rollbox)]:NAME:' \
            '*--volume=[mount a volume at PATH\: it outlives the sandbox. MODE\: exclusive (default), shared, ro, private]:NAME:PATH[:MODE]:' \
            '*--device=[give the sandbox a device\: /dev/kvm, or vendor.com/class=name of a CDI file]:DEVICE:' \
            '*--gpus=[give the sandbox GPUs of the CDI file of nvidia.com/gpu\: none (default), all or 0,2]:GPUS:' \
            '*--tmpfs=[an empty private directory at PATH. OPTIONS\: size=64M, mode=0700, noexec, with commas]:PATH[:OPTIONS]:' \
            '*--shm-size=[room in /dev/shm at least, such as 256M (default\: that of --disk)]:SIZE:' \
            '*--ulimit=[a limit of each process\: nofile=65536, memlock=unlimited, stack=8388608]:NAME=SOFT[:HARD]:' \
            '*--net=[network (default none; with --allow\: allow)]:value:(none loopback allow host)' \
            '*--allow=[a host that may be reached, such as pypi.org, '\''*.example.org\:8443'\'', 192.0.2.0/24 or @pypi]:HOST[:PORT]:' \
            '*--allow-file=[hosts that may be reached\: one a line, or a JSON list of rules]:FILE:_files' \
            '*--secret=[a secret for --inject; SOURCE is env\:VARIABLE, file\:PATH or fd\:N; with \:VARIABLE the sandbox has it, with a placeholder]:NAME[:VARIABLE]=SOURCE:' \
            '*--inject=[allow HOST, and set HEADER of its requests; {NAME} in TEXT is a secret]:HOST:HEADER=TEXT:' \
            '*--net-log=[append what the sandbox does in its network to FILE, one JSON object a line]:FILE:_files' \
            '*--net-record=[record what the sandbox exchanges with its network]:FILE:_files' \
            '*--net-replay=[answer from a recording, without any network]:FILE:_files' \
            '*--max-upload=[bytes that the sandbox may send to outside]:SIZE:' \
            '*--isolation=[how the sandbox is isolated (default namespace)]:value:(namespace process)' \
            '*--seed=[make randomness repeat]:N:' \
            '*--time-start=[the clock'\''s first reading, such as 2025-01-01T00\:00\:00]:ISO:' \
            '*--time-mode=[how the clock advances from there (default offset; for one command with --seed\: virtual)]:value:(offset virtual)' \
            '*--serial[one thread of the sandbox runs at a time, in a repeatable order]' \
            '*--label=[a label for a server'\''s costs and traces, such as rollout=17; repeat it for more]:K=V:' \
            '*--priority=[on a server that is full\: its place among the tenant'\''s own requests]:value:(high normal low)' \
            '*--queue-timeout=[on a server that is full\: how long it may wait for its turn (default 60)]:SECONDS:' \
            '*--trace[on a server\: the program gets TRACEPARENT of its span in its environment]' \
            '*--engine=[use the shared engine on this socket instead of a private one]:SOCKET:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            '*::command:_normal'
        ;;
    'shell')
        _arguments -s -S \
            '*-v[say on standard error whether an image has one user or many (on a terminal always)]' \
            '*--verbose[say on standard error whether an image has one user or many (on a terminal always)]' \
            '*--json[print the result as one JSON object]' \
            '*--policy=[a policy file (JSON); the options below add to it]:FILE:_files' \
            '*--readable=[let the sandbox read PATH of the host, too]:PATH:_files' \
            '*--python=[a Python of the host (of a venv, conda, pyenv) as python3, with its files; else the system'\''s]:PATH:_files' \
            '*--writable=[a private copy-on-write view of PATH; the host never changes]:PATH:_files' \
            '*--shared=[write through to PATH of the host]:PATH:_files' \
            '*--denied=[hide PATH, even inside a granted directory]:PATH:_files' \
            '*--image=[an image of the store as root file system (rollbox image ls lists them); docker\://REFERENCE is pulled if the store does not have it]:NAME:_rollbox_images' \
            '*--memory=[memory of the whole sandbox, such as 256M (default 512M)]:SIZE:' \
            '*--processes=[processes and threads at once (default 64, or 4 a CPU if more)]:N:' \
            '*--cpus=[CPUs, fractions allowed (default\: no limit)]:N:' \
            '*--disk=[size of private files (default 1G, at most 3/4 of the memory)]:SIZE:' \
            '*--disk-at=[where written files are kept\: in memory, or on the store'\''s disk (default memory)]:value:(memory store)' \
            '*--open-files=[open files a process (default 4096)]:N:' \
            '*--output-limit=[bytes of each output stream; more ends the run (default 10M)]:BYTES:' \
            '*--timeout=[wall-clock limit, fractions allowed; none\: no limit (default\: 300 for a run, none in a session)]:SECONDS:' \
            '*--env=[set a variable in the sandbox'\''s environment]:K=V:' \
            '*--no-clean-env[keep the caller'\''s environment too]' \
            '*--cwd=[working directory inside the sandbox (default /tmp, private)]:PATH:_files' \
            '*--user=[the user seen inside\: box (default), root or a number]:NAME:' \
            '*--users=[many\: 65,536 users, of which root may chown, su, install packages (default one)]:value:(one many)' \
            '*--hostname=[the host name seen inside (default rollbox)]:NAME:' \
            '*--volume=[mount a volume at PATH\: it outlives the sandbox. MODE\: exclusive (default), shared, ro, private]:NAME:PATH[:MODE]:' \
            '*--device=[give the sandbox a device\: /dev/kvm, or vendor.com/class=name of a CDI file]:DEVICE:' \
            '*--gpus=[give the sandbox GPUs of the CDI file of nvidia.com/gpu\: none (default), all or 0,2]:GPUS:' \
            '*--tmpfs=[an empty private directory at PATH. OPTIONS\: size=64M, mode=0700, noexec, with commas]:PATH[:OPTIONS]:' \
            '*--shm-size=[room in /dev/shm at least, such as 256M (default\: that of --disk)]:SIZE:' \
            '*--ulimit=[a limit of each process\: nofile=65536, memlock=unlimited, stack=8388608]:NAME=SOFT[:HARD]:' \
            '*--net=[network (default none; with --allow\: allow)]:value:(none loopback allow host)' \
            '*--allow=[a host that may be reached, such as pypi.org, '\''*.example.org\:8443'\'', 192.0.2.0/24 or @pypi]:HOST[:PORT]:' \
            '*--allow-file=[hosts that may be reached\: one a line, or a JSON list of rules]:FILE:_files' \
            '*--secret=[a secret for --inject; SOURCE is env\:VARIABLE, file\:PATH or fd\:N; with \:VARIABLE the sandbox has it, with a placeholder]:NAME[:VARIABLE]=SOURCE:' \
            '*--inject=[allow HOST, and set HEADER of its requests; {NAME} in TEXT is a secret]:HOST:HEADER=TEXT:' \
            '*--net-log=[append what the sandbox does in its network to FILE, one JSON object a line]:FILE:_files' \
            '*--net-record=[record what the sandbox exchanges with its network]:FILE:_files' \
            '*--net-replay=[answer from a recording, without any network]:FILE:_files' \
            '*--max-upload=[bytes that the sandbox may send to outside]:SIZE:' \
            '*--isolation=[how the sandbox is isolated (default namespace)]:value:(namespace process)' \
            '*--seed=[make randomness repeat]:N:' \
            '*--time-start=[the clock'\''s first reading, such as 2025-01-01T00\:00\:00]:ISO:' \
            '*--time-mode=[how the clock advances from there (default offset; for one command with --seed\: virtual)]:value:(offset virtual)' \
            '*--serial[one thread of the sandbox runs at a time, in a repeatable order]' \
            '*--engine=[use the shared engine on this socket instead of a private one]:SOCKET:_files' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'record')
        _arguments -s -S \
            '*-o[where the trajectory goes (required)\: a file that is new or empty, or a pipe]:FILE:_files' \
            '*--output=[where the trajectory goes (required)\: a file that is new or empty, or a pipe]:FILE:_files' \
            '*-i[read standard input to its end first, and give it to the command (default\: it has none)]' \
            '*--interactive[read standard input to its end first, and give it to the command (default\: it has none)]' \
            '*--keep=[record this many bytes of each stream and file, and a digest of the rest (default 256K, at most 16M)]:SIZE:' \
            '*--max-record=[end the trajectory when it would become larger (default 1G)]:SIZE:' \
            '*--redact=[replace each match of this extended regular expression in a line by \[redacted\]]:REGEX:' \
            '*--redact-env=[the same for the value that this variable has in a command, wherever it occurs]:NAME:' \
            '*--env-values[record variables with their values, not only their names]' \
            '*--record-changes[record after each command the files that it has changed, by digest]' \
            '*-f[overwrite the trajectory'\''s file if it is not empty]' \
            '*--force[overwrite the trajectory'\''s file if it is not empty]' \
            '*--json[print the result as one JSON object]' \
            '*--policy=[a policy file (JSON); the options below add to it]:FILE:_files' \
            '*--readable=[let the sandbox read PATH of the host, too]:PATH:_files' \
            '*--python=[a Python of the host (of a venv, conda, pyenv) as python3, with its files; else the system'\''s]:PATH:_files' \
            '*--writable=[a private copy-on-write view of PATH; the host never changes]:PATH:_files' \
            '*--shared=[write through to PATH of the host]:PATH:_files' \
            '*--denied=[hide PATH, even inside a granted directory]:PATH:_files' \
            '*--image=[an image of the store as root file system (rollbox image ls lists them); docker\://REFERENCE is pulled if the store does not have it]:NAME:_rollbox_images' \
            '*--memory=[memory of the whole sandbox, such as 256M (default 512M)]:SIZE:' \
            '*--processes=[processes and threads at once (default 64, or 4 a CPU if more)]:N:' \
            '*--cpus=[CPUs, fractions allowed (default\: no limit)]:N:' \
            '*--disk=[size of private files (default 1G, at most 3/4 of the memory)]:SIZE:' \
            '*--disk-at=[where written files are kept\: in memory, or on the store'\''s disk (default memory)]:value:(memory store)' \
            '*--open-files=[open files a process (default 4096)]:N:' \
            '*--output-limit=[bytes of each output stream; more ends the run (default 10M)]:BYTES:' \
            '*--timeout=[wall-clock limit, fractions allowed; none\: no limit (default\: 300 for a run, none in a session)]:SECONDS:' \
            '*--env=[set a variable in the sandbox'\''s environment]:K=V:' \
            '*--no-clean-env[keep the caller'\''s environment too]' \
            '*--cwd=[working directory inside the sandbox (default /tmp, private)]:PATH:_files' \
            '*--user=[the user seen inside\: box (default), root or a number]:NAME:' \
            '*--users=[many\: 65,536 users, of which root may chown, su, install packages (default one)]:value:(one many)' \
            '*--hostname=[the host name seen inside (default rollbox)]:NAME:' \
            '*--volume=[mount a volume at PATH\: it outlives the sandbox. MODE\: exclusive (default), shared, ro, private]:NAME:PATH[:MODE]:' \
            '*--device=[give the sandbox a device\: /dev/kvm, or vendor.com/class=name of a CDI file]:DEVICE:' \
            '*--gpus=[give the sandbox GPUs of the CDI file of nvidia.com/gpu\: none (default), all or 0,2]:GPUS:' \
            '*--tmpfs=[an empty private directory at PATH. OPTIONS\: size=64M, mode=0700, noexec, with commas]:PATH[:OPTIONS]:' \
            '*--shm-size=[room in /dev/shm at least, such as 256M (default\: that of --disk)]:SIZE:' \
            '*--ulimit=[a limit of each process\: nofile=65536, memlock=unlimited, stack=8388608]:NAME=SOFT[:HARD]:' \
            '*--net=[network (default none; with --allow\: allow)]:value:(none loopback allow host)' \
            '*--allow=[a host that may be reached, such as pypi.org, '\''*.example.org\:8443'\'', 192.0.2.0/24 or @pypi]:HOST[:PORT]:' \
            '*--allow-file=[hosts that may be reached\: one a line, or a JSON list of rules]:FILE:_files' \
            '*--secret=[a secret for --inject; SOURCE is env\:VARIABLE, file\:PATH or fd\:N; with \:VARIABLE the sandbox has it, with a placeholder]:NAME[:VARIABLE]=SOURCE:' \
            '*--inject=[allow HOST, and set HEADER of its requests; {NAME} in TEXT is a secret]:HOST:HEADER=TEXT:' \
            '*--net-log=[append what the sandbox does in its network to FILE, one JSON object a line]:FILE:_files' \
            '*--net-record=[record what the sandbox exchanges with its network]:FILE:_files' \
            '*--net-replay=[answer from a recording, without any network]:FILE:_files' \
            '*--max-upload=[bytes that the sandbox may send to outside]:SIZE:' \
            '*--isolation=[how the sandbox is isolated (default namespace)]:value:(namespace process)' \
            '*--seed=[make randomness repeat]:N:' \
            '*--time-start=[the clock'\''s first reading, such as 2025-01-01T00\:00\:00]:ISO:' \
            '*--time-mode=[how the clock advances from there (default offset; for one command with --seed\: virtual)]:value:(offset virtual)' \
            '*--serial[one thread of the sandbox runs at a time, in a repeatable order]' \
            '*--engine=[use the shared engine on this socket instead of a private one]:SOCKET:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'replay')
        _arguments -s -S \
            '*-o[where the trajectory goes (required)\: a file that is new or empty, or a pipe]:FILE:_files' \
            '*--output=[where the trajectory goes (required)\: a file that is new or empty, or a pipe]:FILE:_files' \
            '*--parent=[the record of the parent sandbox; repeat it for older ancestors, the oldest first]:FILE:_files' \
            '*--trust[use the policy in the file even if it grants more than the default one]' \
            '*--no-progress[no progress bar on a terminal]' \
            '*-f[overwrite the trajectory'\''s file if it is not empty]' \
            '*--force[overwrite the trajectory'\''s file if it is not empty]' \
            '*--json[print the result as one JSON object]' \
            '*--policy=[a policy file (JSON), used instead of the record'\''s policy]:FILE:_files' \
            '*--env=[set a variable in the sandbox'\''s environment]:K=V:' \
            '*--engine=[use the shared engine on this socket instead of a private one]:SOCKET:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'verify')
        _arguments -s -S \
            '*--keep=[record this many bytes of each stream and file, and a digest of the rest (default 256K, at most 16M)]:SIZE:' \
            '*--max-record=[end the trajectory when it would become larger (default 1G)]:SIZE:' \
            '*--redact=[replace each match of this extended regular expression in a line by \[redacted\]]:REGEX:' \
            '*--redact-env=[the same for the value that this variable has in a command, wherever it occurs]:NAME:' \
            '*--env-values[record variables with their values, not only their names]' \
            '*--record-changes[compare the files that the command has changed (default with --twice)]' \
            '*--parent=[the record of the parent sandbox; repeat it for older ancestors, the oldest first]:FILE:_files' \
            '*--trust[use the policy in the file even if it grants more than the default one]' \
            '*--twice[run a command twice and compare, the files that it has changed too]' \
            '*--no-files[of --twice\: do not compare files]' \
            '*--no-progress[no progress bar on a terminal]' \
            '*--json[print the result as one JSON object]' \
            '*--policy=[a policy file (JSON); the options below add to it. A replay uses it instead of the record'\''s policy]:FILE:_files' \
            '*--readable=[let the sandbox read PATH of the host, too]:PATH:_files' \
            '*--python=[a Python of the host (of a venv, conda, pyenv) as python3, with its files; else the system'\''s]:PATH:_files' \
            '*--writable=[a private copy-on-write view of PATH; the host never changes]:PATH:_files' \
            '*--shared=[write through to PATH of the host]:PATH:_files' \
            '*--denied=[hide PATH, even inside a granted directory]:PATH:_files' \
            '*--image=[an image of the store as root file system (rollbox image ls lists them); docker\://REFERENCE is pulled if the store does not have it]:NAME:_rollbox_images' \
            '*--memory=[memory of the whole sandbox, such as 256M (default 512M)]:SIZE:' \
            '*--processes=[processes and threads at once (default 64, or 4 a CPU if more)]:N:' \
            '*--cpus=[CPUs, fractions allowed (default\: no limit)]:N:' \
            '*--disk=[size of private files (default 1G, at most 3/4 of the memory)]:SIZE:' \
            '*--disk-at=[where written files are kept\: in memory, or on the store'\''s disk (default memory)]:value:(memory store)' \
            '*--open-files=[open files a process (default 4096)]:N:' \
            '*--output-limit=[bytes of each output stream; more ends the run (default 10M)]:BYTES:' \
            '*--timeout=[wall-clock limit, fractions allowed; none\: no limit (default\: 300 for a run, none in a session)]:SECONDS:' \
            '*--env=[set a variable in the sandbox'\''s environment]:K=V:' \
            '*--no-clean-env[keep the caller'\''s environment too]' \
            '*--cwd=[working directory inside the sandbox (default /tmp, private)]:PATH:_files' \
            '*--user=[the user seen inside\: box (default), root or a number]:NAME:' \
            '*--users=[many\: 65,536 users, of which root may chown, su, install packages (default one)]:value:(one many)' \
            '*--hostname=[the host name seen inside (default rollbox)]:NAME:' \
            '*--volume=[mount a volume at PATH\: it outlives the sandbox. MODE\: exclusive (default), shared, ro, private]:NAME:PATH[:MODE]:' \
            '*--device=[give the sandbox a device\: /dev/kvm, or vendor.com/class=name of a CDI file]:DEVICE:' \
            '*--gpus=[give the sandbox GPUs of the CDI file of nvidia.com/gpu\: none (default), all or 0,2]:GPUS:' \
            '*--tmpfs=[an empty private directory at PATH. OPTIONS\: size=64M, mode=0700, noexec, with commas]:PATH[:OPTIONS]:' \
            '*--shm-size=[room in /dev/shm at least, such as 256M (default\: that of --disk)]:SIZE:' \
            '*--ulimit=[a limit of each process\: nofile=65536, memlock=unlimited, stack=8388608]:NAME=SOFT[:HARD]:' \
            '*--net=[network (default none; with --allow\: allow)]:value:(none loopback allow host)' \
            '*--allow=[a host that may be reached, such as pypi.org, '\''*.example.org\:8443'\'', 192.0.2.0/24 or @pypi]:HOST[:PORT]:' \
            '*--allow-file=[hosts that may be reached\: one a line, or a JSON list of rules]:FILE:_files' \
            '*--secret=[a secret for --inject; SOURCE is env\:VARIABLE, file\:PATH or fd\:N; with \:VARIABLE the sandbox has it, with a placeholder]:NAME[:VARIABLE]=SOURCE:' \
            '*--inject=[allow HOST, and set HEADER of its requests; {NAME} in TEXT is a secret]:HOST:HEADER=TEXT:' \
            '*--net-log=[append what the sandbox does in its network to FILE, one JSON object a line]:FILE:_files' \
            '*--net-record=[record what the sandbox exchanges with its network]:FILE:_files' \
            '*--net-replay=[answer from a recording, without any network]:FILE:_files' \
            '*--max-upload=[bytes that the sandbox may send to outside]:SIZE:' \
            '*--isolation=[how the sandbox is isolated (default namespace)]:value:(namespace process)' \
            '*--seed=[make randomness repeat]:N:' \
            '*--time-start=[the clock'\''s first reading, such as 2025-01-01T00\:00\:00]:ISO:' \
            '*--time-mode=[how the clock advances from there (default offset; for one command with --seed\: virtual)]:value:(offset virtual)' \
            '*--serial[one thread of the sandbox runs at a time, in a repeatable order]' \
            '*--engine=[use the shared engine on this socket instead of a private one]:SOCKET:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'batch')
        _arguments -s -S \
            '*-o[where the result rows go; - is standard output (default); an existing file is resumed]:FILE:_files' \
            '*--output=[where the result rows go; - is standard output (default); an existing file is resumed]:FILE:_files' \
            '*--record=[keep a trajectory of each job; {id} in FILE, which must be there, is the job'\''s]:FILE:_files' \
            '*--keep=[record this many bytes of each stream and file, and a digest of the rest (default 256K, at most 16M)]:SIZE:' \
            '*--max-record=[end the trajectory when it would become larger (default 1G)]:SIZE:' \
            '*--redact=[replace each match of this extended regular expression in a line by \[redacted\]]:REGEX:' \
            '*--redact-env=[the same for the value that this variable has in a command, wherever it occurs]:NAME:' \
            '*--env-values[record variables with their values, not only their names]' \
            '*-j[how many jobs run at once (default\: the CPUs)]:N:' \
            '*--jobs=[how many jobs run at once (default\: the CPUs)]:N:' \
            '*--ordered[write the rows in the order of the jobs, not of their ends]' \
            '*--retries=[how often a job is tried again after an infrastructure error (default 2)]:N:' \
            '*--no-progress[no progress bar on a terminal]' \
            '*-f[overwrite the trajectory'\''s file if it is not empty]' \
            '*--force[overwrite the trajectory'\''s file if it is not empty]' \
            '*--json[print the result as one JSON object]' \
            '*--policy=[a policy file (JSON); the options below add to it]:FILE:_files' \
            '*--readable=[let the sandbox read PATH of the host, too]:PATH:_files' \
            '*--python=[a Python of the host (of a venv, conda, pyenv) as python3, with its files; else the system'\''s]:PATH:_files' \
            '*--writable=[a private copy-on-write view of PATH; the host never changes]:PATH:_files' \
            '*--shared=[write through to PATH of the host]:PATH:_files' \
            '*--denied=[hide PATH, even inside a granted directory]:PATH:_files' \
            '*--image=[an image of the store as root file system (rollbox image ls lists them); docker\://REFERENCE is pulled if the store does not have it]:NAME:_rollbox_images' \
            '*--memory=[memory of the whole sandbox, such as 256M (default 512M)]:SIZE:' \
            '*--processes=[processes and threads at once (default 64, or 4 a CPU if more)]:N:' \
            '*--cpus=[CPUs, fractions allowed (default\: no limit)]:N:' \
            '*--disk=[size of private files (default 1G, at most 3/4 of the memory)]:SIZE:' \
            '*--disk-at=[where written files are kept\: in memory, or on the store'\''s disk (default memory)]:value:(memory store)' \
            '*--open-files=[open files a process (default 4096)]:N:' \
            '*--output-limit=[bytes of each output stream; more ends the run (default 10M)]:BYTES:' \
            '*--timeout=[wall-clock limit, fractions allowed; none\: no limit (default\: 300 for a run, none in a session)]:SECONDS:' \
            '*--env=[set a variable in the sandbox'\''s environment]:K=V:' \
            '*--no-clean-env[keep the caller'\''s environment too]' \
            '*--cwd=[working directory inside the sandbox (default /tmp, private)]:PATH:_files' \
            '*--user=[the user seen inside\: box (default), root or a number]:NAME:' \
            '*--users=[many\: 65,536 users, of which root may chown, su, install packages (default one)]:value:(one many)' \
            '*--hostname=[the host name seen inside (default rollbox)]:NAME:' \
            '*--volume=[mount a volume at PATH\: it outlives the sandbox. MODE\: exclusive (default), shared, ro, private]:NAME:PATH[:MODE]:' \
            '*--device=[give the sandbox a device\: /dev/kvm, or vendor.com/class=name of a CDI file]:DEVICE:' \
            '*--gpus=[give the sandbox GPUs of the CDI file of nvidia.com/gpu\: none (default), all or 0,2]:GPUS:' \
            '*--tmpfs=[an empty private directory at PATH. OPTIONS\: size=64M, mode=0700, noexec, with commas]:PATH[:OPTIONS]:' \
            '*--shm-size=[room in /dev/shm at least, such as 256M (default\: that of --disk)]:SIZE:' \
            '*--ulimit=[a limit of each process\: nofile=65536, memlock=unlimited, stack=8388608]:NAME=SOFT[:HARD]:' \
            '*--net=[network (default none; with --allow\: allow)]:value:(none loopback allow host)' \
            '*--allow=[a host that may be reached, such as pypi.org, '\''*.example.org\:8443'\'', 192.0.2.0/24 or @pypi]:HOST[:PORT]:' \
            '*--allow-file=[hosts that may be reached\: one a line, or a JSON list of rules]:FILE:_files' \
            '*--secret=[a secret for --inject; SOURCE is env\:VARIABLE, file\:PATH or fd\:N; with \:VARIABLE the sandbox has it, with a placeholder]:NAME[:VARIABLE]=SOURCE:' \
            '*--inject=[allow HOST, and set HEADER of its requests; {NAME} in TEXT is a secret]:HOST:HEADER=TEXT:' \
            '*--net-log=[append what the sandbox does in its network to FILE, one JSON object a line]:FILE:_files' \
            '*--net-record=[record what the sandbox exchanges with its network]:FILE:_files' \
            '*--net-replay=[answer from a recording, without any network]:FILE:_files' \
            '*--max-upload=[bytes that the sandbox may send to outside]:SIZE:' \
            '*--isolation=[how the sandbox is isolated (default namespace)]:value:(namespace process)' \
            '*--seed=[make randomness repeat]:N:' \
            '*--time-start=[the clock'\''s first reading, such as 2025-01-01T00\:00\:00]:ISO:' \
            '*--time-mode=[how the clock advances from there (default offset; for one command with --seed\: virtual)]:value:(offset virtual)' \
            '*--serial[one thread of the sandbox runs at a time, in a repeatable order]' \
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
            '*--json[print the result as one JSON object]' \
            '*--readable=[let the sandbox read PATH of the host, too]:PATH:_files' \
            '*--python=[a Python of the host (of a venv, conda, pyenv) as python3, with its files; else the system'\''s]:PATH:_files' \
            '*--writable=[a private copy-on-write view of PATH; the host never changes]:PATH:_files' \
            '*--shared=[write through to PATH of the host]:PATH:_files' \
            '*--denied=[hide PATH, even inside a granted directory]:PATH:_files' \
            '*--image=[an image of the store as root file system (rollbox image ls lists them); docker\://REFERENCE is pulled if the store does not have it]:NAME:_rollbox_images' \
            '*--memory=[memory of the whole sandbox, such as 256M (default 512M)]:SIZE:' \
            '*--processes=[processes and threads at once (default 64, or 4 a CPU if more)]:N:' \
            '*--cpus=[CPUs, fractions allowed (default\: no limit)]:N:' \
            '*--disk=[size of private files (default 1G, at most 3/4 of the memory)]:SIZE:' \
            '*--disk-at=[where written files are kept\: in memory, or on the store'\''s disk (default memory)]:value:(memory store)' \
            '*--open-files=[open files a process (default 4096)]:N:' \
            '*--output-limit=[bytes of each output stream; more ends the run (default 10M)]:BYTES:' \
            '*--timeout=[wall-clock limit, fractions allowed; none\: no limit (default\: 300 for a run, none in a session)]:SECONDS:' \
            '*--env=[set a variable in the sandbox'\''s environment]:K=V:' \
            '*--no-clean-env[keep the caller'\''s environment too]' \
            '*--cwd=[working directory inside the sandbox (default /tmp, private)]:PATH:_files' \
            '*--user=[the user seen inside\: box (default), root or a number]:NAME:' \
            '*--users=[many\: 65,536 users, of which root may chown, su, install packages (default one)]:value:(one many)' \
            '*--hostname=[the host name seen inside (default rollbox)]:NAME:' \
            '*--volume=[mount a volume at PATH\: it outlives the sandbox. MODE\: exclusive (default), shared, ro, private]:NAME:PATH[:MODE]:' \
            '*--device=[give the sandbox a device\: /dev/kvm, or vendor.com/class=name of a CDI file]:DEVICE:' \
            '*--gpus=[give the sandbox GPUs of the CDI file of nvidia.com/gpu\: none (default), all or 0,2]:GPUS:' \
            '*--tmpfs=[an empty private directory at PATH. OPTIONS\: size=64M, mode=0700, noexec, with commas]:PATH[:OPTIONS]:' \
            '*--shm-size=[room in /dev/shm at least, such as 256M (default\: that of --disk)]:SIZE:' \
            '*--ulimit=[a limit of each process\: nofile=65536, memlock=unlimited, stack=8388608]:NAME=SOFT[:HARD]:' \
            '*--net=[network (default none; with --allow\: allow)]:value:(none loopback allow host)' \
            '*--publish=[lead an address of the host to PORT of the sandbox\: HOST\:PORT, a port of 127.0.0.1, or the path of a Unix socket (default\: any free port of 127.0.0.1)]:[ADDRESS:]PORT:' \
            '*--network=[join a private network, whose sandboxes reach each other by name]:NAME:' \
            '*--allow=[a host that may be reached, such as pypi.org, '\''*.example.org\:8443'\'', 192.0.2.0/24 or @pypi]:HOST[:PORT]:' \
            '*--allow-file=[hosts that may be reached\: one a line, or a JSON list of rules]:FILE:_files' \
            '*--secret=[a secret for --inject; SOURCE is env\:VARIABLE, file\:PATH or fd\:N; with \:VARIABLE the sandbox has it, with a placeholder]:NAME[:VARIABLE]=SOURCE:' \
            '*--inject=[allow HOST, and set HEADER of its requests; {NAME} in TEXT is a secret]:HOST:HEADER=TEXT:' \
            '*--net-log=[append what the sandbox does in its network to FILE, one JSON object a line]:FILE:_files' \
            '*--net-record=[record what the sandbox exchanges with its network]:FILE:_files' \
            '*--net-replay=[answer from a recording, without any network]:FILE:_files' \
            '*--max-upload=[bytes that the sandbox may send to outside]:SIZE:' \
            '*--isolation=[how the sandbox is isolated (default namespace)]:value:(namespace process)' \
            '*--seed=[make randomness repeat]:N:' \
            '*--time-start=[the clock'\''s first reading, such as 2025-01-01T00\:00\:00]:ISO:' \
            '*--time-mode=[how the clock advances from there (default offset; for one command with --seed\: virtual)]:value:(offset virtual)' \
            '*--serial[one thread of the sandbox runs at a time, in a repeatable order]' \
            '*--engine=[use the shared engine on this socket instead of a private one]:SOCKET:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'create')
        _arguments -s -S \
            '*--record=[record all actions on the sandbox, by any client, as a trajectory; {name} is its name]:FILE:_files' \
            '*--keep=[record this many bytes of each stream and file, and a digest of the rest (default 256K, at most 16M)]:SIZE:' \
            '*--max-record=[end the trajectory when it would become larger (default 1G)]:SIZE:' \
            '*--redact=[replace each match of this extended regular expression in a line by \[redacted\]]:REGEX:' \
            '*--redact-env=[the same for the value that this variable has in a command, wherever it occurs]:NAME:' \
            '*--env-values[record variables with their values, not only their names]' \
            '*--record-files[record with each snapshot the changes since the beginning, by digest]' \
            '*--record-changes[record after each command the files that it has changed, by digest]' \
            '*--name=[the sandbox'\''s name\: 1 to 64 of A-Z a-z 0-9 _ . - (default\: a generated one)]:NAME:' \
            '*--idle=[pause it after this time without a call or a running command]:SECONDS:' \
            '*--hibernate-after=[hibernate it after this time without a call, or a command that a client waits for]:SECONDS:' \
            '*--auto-snapshot=[changed\: take a snapshot after each command that has changed something (default off)]:value:(changed off)' \
            '*--auto-keep=[keep the latest N automatic snapshots, and those with a name or branches (default 16)]:N:' \
            '*--ttl=[remove it after this time without a call]:SECONDS:' \
            '*--lifetime=[remove it after this time in any case]:SECONDS:' \
            '*--no-detach[stay until a signal or the end of standard input, and remove it then]' \
            '*-f[overwrite the trajectory'\''s file if it is not empty]' \
            '*--force[overwrite the trajectory'\''s file if it is not empty]' \
            '*--json[print the result as one JSON object]' \
            '*--policy=[a policy file (JSON); the options below add to it]:FILE:_files' \
            '*--readable=[let the sandbox read PATH of the host, too]:PATH:_files' \
            '*--python=[a Python of the host (of a venv, conda, pyenv) as python3, with its files; else the system'\''s]:PATH:_files' \
            '*--writable=[a private copy-on-write view of PATH; the host never changes]:PATH:_files' \
            '*--shared=[write through to PATH of the host]:PATH:_files' \
            '*--denied=[hide PATH, even inside a granted directory]:PATH:_files' \
            '*--image=[an image of the store as root file system (rollbox image ls lists them); docker\://REFERENCE is pulled if the store does not have it]:NAME:_rollbox_images' \
            '*--memory=[memory of the whole sandbox, such as 256M (default 512M)]:SIZE:' \
            '*--processes=[processes and threads at once (default 64, or 4 a CPU if more)]:N:' \
            '*--cpus=[CPUs, fractions allowed (default\: no limit)]:N:' \
            '*--disk=[size of private files (default 1G, at most 3/4 of the memory)]:SIZE:' \
            '*--disk-at=[where written files are kept\: in memory, or on the store'\''s disk (default memory)]:value:(memory store)' \
            '*--open-files=[open files a process (default 4096)]:N:' \
            '*--output-limit=[bytes of each output stream; more ends the run (default 10M)]:BYTES:' \
            '*--timeout=[wall-clock limit, fractions allowed; none\: no limit (default\: 300 for a run, none in a session)]:SECONDS:' \
            '*--env=[set a variable in the sandbox'\''s environment]:K=V:' \
            '*--no-clean-env[keep the caller'\''s environment too]' \
            '*--cwd=[working directory inside the sandbox (default /tmp, private)]:PATH:_files' \
            '*--user=[the user seen inside\: box (default), root or a number]:NAME:' \
            '*--users=[many\: 65,536 users, of which root may chown, su, install packages (default one)]:value:(one many)' \
            '*--hostname=[the host name seen inside (default rollbox)]:NAME:' \
            '*--volume=[mount a volume at PATH\: it outlives the sandbox. MODE\: exclusive (default), shared, ro, private]:NAME:PATH[:MODE]:' \
            '*--device=[give the sandbox a device\: /dev/kvm, or vendor.com/class=name of a CDI file]:DEVICE:' \
            '*--gpus=[give the sandbox GPUs of the CDI file of nvidia.com/gpu\: none (default), all or 0,2]:GPUS:' \
            '*--tmpfs=[an empty private directory at PATH. OPTIONS\: size=64M, mode=0700, noexec, with commas]:PATH[:OPTIONS]:' \
            '*--shm-size=[room in /dev/shm at least, such as 256M (default\: that of --disk)]:SIZE:' \
            '*--ulimit=[a limit of each process\: nofile=65536, memlock=unlimited, stack=8388608]:NAME=SOFT[:HARD]:' \
            '*--net=[network (default none; with --allow\: allow)]:value:(none loopback allow host)' \
            '*--publish=[lead an address of the host to PORT of the sandbox\: HOST\:PORT, a port of 127.0.0.1, or the path of a Unix socket (default\: any free port of 127.0.0.1)]:[ADDRESS:]PORT:' \
            '*--network=[join a private network, whose sandboxes reach each other by name]:NAME:' \
            '*--allow=[a host that may be reached, such as pypi.org, '\''*.example.org\:8443'\'', 192.0.2.0/24 or @pypi]:HOST[:PORT]:' \
            '*--allow-file=[hosts that may be reached\: one a line, or a JSON list of rules]:FILE:_files' \
            '*--secret=[a secret for --inject; SOURCE is env\:VARIABLE, file\:PATH or fd\:N; with \:VARIABLE the sandbox has it, with a placeholder]:NAME[:VARIABLE]=SOURCE:' \
            '*--inject=[allow HOST, and set HEADER of its requests; {NAME} in TEXT is a secret]:HOST:HEADER=TEXT:' \
            '*--net-log=[append what the sandbox does in its network to FILE, one JSON object a line]:FILE:_files' \
            '*--net-record=[record what the sandbox exchanges with its network]:FILE:_files' \
            '*--net-replay=[answer from a recording, without any network]:FILE:_files' \
            '*--max-upload=[bytes that the sandbox may send to outside]:SIZE:' \
            '*--isolation=[how the sandbox is isolated (default namespace)]:value:(namespace process)' \
            '*--seed=[make randomness repeat]:N:' \
            '*--time-start=[the clock'\''s first reading, such as 2025-01-01T00\:00\:00]:ISO:' \
            '*--time-mode=[how the clock advances from there (default offset; for one command with --seed\: virtual)]:value:(offset virtual)' \
            '*--serial[one thread of the sandbox runs at a time, in a repeatable order]' \
            '*--label=[a label for a server'\''s costs and traces, such as rollout=17; repeat it for more]:K=V:' \
            '*--priority=[on a server that is full\: its place among the tenant'\''s own requests]:value:(high normal low)' \
            '*--queue-timeout=[on a server that is full\: how long it may wait for its turn (default 60)]:SECONDS:' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'exec')
        _arguments -s -S \
            '*-i[pass standard input on (default\: it has none)]' \
            '*--interactive[pass standard input on (default\: it has none)]' \
            '*-t[give it a terminal of its own]' \
            '*--tty[give it a terminal of its own]' \
            '*--detach-keys=[with -it\: the keys that detach from it (default ctrl-p,ctrl-q), or none]:KEYS:' \
            '*-d[print its id and leave it running]' \
            '*--detach[print its id and leave it running]' \
            '*-c[run STRING by a login shell\: bash where the sandbox has it, else sh]:STRING:' \
            '*--shell=[run STRING by a login shell\: bash where the sandbox has it, else sh]:STRING:' \
            '*--id=[the command'\''s id (default\: a generated one); the same command under it again returns the first result]:ID:' \
            '*--json[print the result as one JSON object]' \
            '*--output-limit=[bytes of each output stream; more ends the run (default 10M)]:BYTES:' \
            '*--timeout=[wall-clock limit, fractions allowed; none\: no limit (default\: 300 for a run, none in a session)]:SECONDS:' \
            '*--env=[set a variable in the sandbox'\''s environment]:K=V:' \
            '*--cwd=[working directory inside the sandbox (default /tmp, private)]:PATH:_files' \
            '*--user=[the user seen inside\: box (default), root or a number]:NAME:' \
            '*--trace[on a server\: the program gets TRACEPARENT of its span in its environment]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes' \
            '*::command:_normal'
        ;;
    'attach')
        _arguments -s -S \
            '*-i[pass standard input on (default\: it has none)]' \
            '*--interactive[pass standard input on (default\: it has none)]' \
            '*-t[only to a command that has a terminal]' \
            '*--tty[only to a command that has a terminal]' \
            '*--detach-keys=[with -it\: the keys that detach from it (default ctrl-p,ctrl-q), or none]:KEYS:' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes'
        ;;
    'logs')
        _arguments -s -S \
            '*-f[follow the output until the command ends]' \
            '*--follow[follow the output until the command ends]' \
            '*--tail=[print the last N lines of each stream (default\: all)]:N:' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes'
        ;;
    'forward')
        _arguments -s -S \
            '*--listen=[PORT, HOST\:PORT, the path of a Unix socket, or - for the standard streams (default\: any free port of 127.0.0.1)]:ADDRESS:' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes'
        ;;
    'port')
        _arguments -s -S \
            '*--listen=[PORT, HOST\:PORT or the path of a Unix socket (default\: the address that it has already, or any free port of 127.0.0.1)]:ADDRESS:' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes'
        ;;
    'cp')
        _arguments -s -S \
            '*--no-progress[no progress bar on a terminal]' \
            '*--chown=[with users many\: the owner of the files in the sandbox (default\: root)]:USER[:GROUP]:' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'ps')
        _arguments -s -S \
            '*-q[print only names (ps NAME\: process ids)]' \
            '*--quiet[print only names (ps NAME\: process ids)]' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes'
        ;;
    'stats')
        _arguments -s -S \
            '*--once[one table, and end]' \
            '*--interval=[the time between tables, over which CPU is measured (default 1)]:SECONDS:' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'inspect')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes'
        ;;
    'kill')
        _arguments -s -S \
            '*-s[by name or number (default KILL)]:SIGNAL:' \
            '*--signal=[by name or number (default KILL)]:SIGNAL:' \
            '*--scope=[which processes of the command get it (default tree)]:value:(main tree children group)' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes'
        ;;
    'rm')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            '*:name:_rollbox_sandboxes'
        ;;
    'pause')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes'
        ;;
    'resume')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes'
        ;;
    'hibernate')
        _arguments -s -S \
            '*--drop-processes[only the files, without processes]' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes'
        ;;
    'wake')
        _arguments -s -S \
            '*--drop-processes[only the files, without processes]' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes'
        ;;
    'snapshot show')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes' \
            '*:snapshot:_rollbox_snapshots'
        ;;
    'snapshot verify')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes' \
            '*:snapshot:_rollbox_snapshots'
        ;;
    'snapshot')
        _arguments -s -S \
            '*--as=[another name for the snapshot, beside its id]:NAME:' \
            '*--drop-processes[only the files, without processes]' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes'
        ;;
    'fork')
        _arguments -s -S \
            '*--record=[record all actions on the sandbox, by any client, as a trajectory; {name} is its name]:FILE:_files' \
            '*--keep=[record this many bytes of each stream and file, and a digest of the rest (default 256K, at most 16M)]:SIZE:' \
            '*--max-record=[end the trajectory when it would become larger (default 1G)]:SIZE:' \
            '*--redact=[replace each match of this extended regular expression in a line by \[redacted\]]:REGEX:' \
            '*--redact-env=[the same for the value that this variable has in a command, wherever it occurs]:NAME:' \
            '*--env-values[record variables with their values, not only their names]' \
            '*--record-files[record with each snapshot the changes since the beginning, by digest]' \
            '*--record-changes[record after each command the files that it has changed, by digest]' \
            '*--same-seed[under a policy with --seed, all get the parent'\''s seed; without this, each gets a seed of its own that is derived from it]' \
            '*-n[how many sandboxes to make (default 1)]:N:' \
            '*--count=[how many sandboxes to make (default 1)]:N:' \
            '*--from=[a snapshot (default\: the present state)]:SNAPSHOT:_rollbox_snapshots' \
            '*--drop-processes[only the files, without processes]' \
            '*-f[overwrite the trajectory'\''s file if it is not empty]' \
            '*--force[overwrite the trajectory'\''s file if it is not empty]' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'restore')
        _arguments -s -S \
            '*--record=[record all actions on the sandbox, by any client, as a trajectory; {name} is its name]:FILE:_files' \
            '*--keep=[record this many bytes of each stream and file, and a digest of the rest (default 256K, at most 16M)]:SIZE:' \
            '*--max-record=[end the trajectory when it would become larger (default 1G)]:SIZE:' \
            '*--redact=[replace each match of this extended regular expression in a line by \[redacted\]]:REGEX:' \
            '*--redact-env=[the same for the value that this variable has in a command, wherever it occurs]:NAME:' \
            '*--env-values[record variables with their values, not only their names]' \
            '*--record-files[record with each snapshot the changes since the beginning, by digest]' \
            '*--record-changes[record after each command the files that it has changed, by digest]' \
            '*--same-seed[under a policy with --seed, all get the parent'\''s seed; without this, each gets a seed of its own that is derived from it]' \
            '*-n[how many sandboxes to make (default 1)]:N:' \
            '*--count=[how many sandboxes to make (default 1)]:N:' \
            '*--drop-processes[only the files, without processes]' \
            '*-f[overwrite the trajectory'\''s file if it is not empty]' \
            '*--force[overwrite the trajectory'\''s file if it is not empty]' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes' \
            '*:snapshot:_rollbox_snapshots'
        ;;
    'reset')
        _arguments -s -S \
            '*--drop-processes[only the files, without processes]' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes' \
            '*:snapshot:_rollbox_snapshots'
        ;;
    'tree')
        _arguments -s -S \
            '*-q[print only names (ps NAME\: process ids)]' \
            '*--quiet[print only names (ps NAME\: process ids)]' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes'
        ;;
    'diff')
        _arguments -s -S \
            '*--text[unified diffs of text files]' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes' \
            '*:snapshot:_rollbox_snapshots'
        ;;
    'commit')
        _arguments -s -S \
            '*-f[even if the host'\''s files were changed meanwhile]' \
            '*--force[even if the host'\''s files were changed meanwhile]' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes' \
            ':file:_files'
        ;;
    'discard')
        _arguments -s -S \
            '*--drop-processes[only the files, without processes]' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes'
        ;;
    'export')
        _arguments -s -S \
            '*--from=[a snapshot (default\: the present state)]:SNAPSHOT:_rollbox_snapshots' \
            '*--live[export the processes too; rollbox import makes a hibernated sandbox of it]' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_sandboxes' \
            ':file:_files'
        ;;
    'import')
        _arguments -s -S \
            '*--trust[use the policy in the file even if it grants more than the default one]' \
            '*--drop-processes[only the files, without processes]' \
            '*--name=[its name (required)\: A-Z a-z 0-9 . _ \: @ / + -]:NAME:' \
            '*--max-entries=[refuse more files and directories than N (default 2000000)]:N:' \
            '*--max-bytes=[refuse an image that unpacks to more bytes (default 64 GiB)]:N:' \
            '*--max-depth=[refuse deeper trees (default 1000)]:N:' \
            '*--json[print the result as one JSON object]' \
            '*--policy=[of an export with processes\: a policy file (JSON), used instead of the policy in FILE]:FILE:_files' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'image import')
        _arguments -s -S \
            '*--no-progress[no progress bar on a terminal]' \
            '*--name=[its name (required)\: A-Z a-z 0-9 . _ \: @ / + -]:NAME:' \
            '*--platform=[for another machine than this one, such as linux/arm64]:OS/ARCHITECTURE[/VARIANT]:' \
            '*--tag-of-archive=[which image, if the archive has several]:TAG:' \
            '*--max-entries=[refuse more files and directories than N (default 2000000)]:N:' \
            '*--max-bytes=[refuse an image that unpacks to more bytes (default 64 GiB)]:N:' \
            '*--max-depth=[refuse deeper trees (default 1000)]:N:' \
            '*--max-ratio=[refuse layers that unpack to more than N times their size (default 500)]:N:' \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'image pull')
        _arguments -s -S \
            '*--no-progress[no progress bar on a terminal]' \
            '*--name=[its name in the store (default\: the reference without docker\://)]:NAME:' \
            '*--platform=[for another machine than this one, such as linux/arm64]:OS/ARCHITECTURE[/VARIANT]:' \
            '*--insecure[a registry without TLS, or with a self-signed certificate (always so for one on 127.0.0.1 or localhost)]' \
            '*--authfile=[credentials, as docker login and skopeo login write them (default\: where those do)]:FILE:_files' \
            '*--creds=[a file with USER\:PASSWORD; - is standard input]:FILE:_files' \
            '*--stall=[give up when nothing has arrived for so long (default 60)]:SECONDS:' \
            '*--missing[do nothing if the store has an image of this name]' \
            '*--max-entries=[refuse more files and directories than N (default 2000000)]:N:' \
            '*--max-bytes=[refuse an image that unpacks to more bytes (default 64 GiB)]:N:' \
            '*--max-depth=[refuse deeper trees (default 1000)]:N:' \
            '*--max-ratio=[refuse layers that unpack to more than N times their size (default 500)]:N:' \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'image push')
        _arguments -s -S \
            '*--insecure[a registry without TLS, or with a self-signed certificate (always so for one on 127.0.0.1 or localhost)]' \
            '*--authfile=[credentials, as docker login and skopeo login write them (default\: where those do)]:FILE:_files' \
            '*--creds=[a file with USER\:PASSWORD; - is standard input]:FILE:_files' \
            '*--stall=[give up when nothing has arrived for so long (default 60)]:SECONDS:' \
            '*--compression=[of the layers (default gzip)]:value:(gzip zstd none)' \
            '*--config-of=[with the configuration of this image, for a snapshot, which has none]:NAME:' \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_images'
        ;;
    'image export')
        _arguments -s -S \
            '*--compression=[of the layers (default gzip)]:value:(gzip zstd none)' \
            '*--config-of=[with the configuration of this image, for a snapshot, which has none]:NAME:' \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_images'
        ;;
    'image commit')
        _arguments -s -S \
            '*--from=[a snapshot (default\: the present state)]:SNAPSHOT:_rollbox_snapshots' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'image ls')
        _arguments -s -S \
            '*-q[print only names (ps NAME\: process ids)]' \
            '*--quiet[print only names (ps NAME\: process ids)]' \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'image build')
        _arguments -s -S \
            '*-t[the image'\''s name in the store (default\: none, only the steps are kept)]:NAME:' \
            '*--tag=[the image'\''s name in the store (default\: none, only the steps are kept)]:NAME:' \
            '*-f[the Dockerfile; - is standard input (default\: Dockerfile of the context)]:FILE:_files' \
            '*--file=[the Dockerfile; - is standard input (default\: Dockerfile of the context)]:FILE:_files' \
            '*--build-arg=[the value of an ARG; without =VALUE that of the caller'\''s variable]:NAME[=VALUE]:' \
            '*--target=[the stage to build, by name or number (default\: the last one)]:STAGE:' \
            '*--no-cache[carry out all steps again]' \
            '*--secret=[a secret for RUN --mount=type=secret\: a file, or a variable by env=VARIABLE]:id=ID,src=FILE:' \
            '*--ssh=[an SSH agent for RUN --mount=type=ssh\: default, or an id and the agent'\''s socket]:ID[=SOCKET]:' \
            '*--pull[ask registries for the images of FROM, also for those that the store has]' \
            '*--no-pull[use images of the store alone (default\: pull those that it lacks)]' \
            '*--progress=[the form of the progress on standard error (default auto)]:value:(auto plain tty json quiet)' \
            '*--insecure[a registry without TLS, or with a self-signed certificate (always so for one on 127.0.0.1 or localhost)]' \
            '*--authfile=[credentials, as docker login and skopeo login write them (default\: where those do)]:FILE:_files' \
            '*--max-entries=[refuse more files and directories than N (default 2000000)]:N:' \
            '*--max-bytes=[refuse an image that unpacks to more bytes (default 64 GiB)]:N:' \
            '*--max-ratio=[refuse layers that unpack to more than N times their size (default 500)]:N:' \
            '*--json[print the result as one JSON object]' \
            '*--policy=[a policy file (JSON); the options below add to it]:FILE:_files' \
            '*--memory=[memory of the whole sandbox, such as 256M (default 512M)]:SIZE:' \
            '*--processes=[processes and threads at once (default 64, or 4 a CPU if more)]:N:' \
            '*--cpus=[CPUs, fractions allowed (default\: no limit)]:N:' \
            '*--disk=[size of private files (default 1G, at most 3/4 of the memory)]:SIZE:' \
            '*--disk-at=[where written files are kept\: in memory, or on the store'\''s disk (default memory)]:value:(memory store)' \
            '*--timeout=[wall-clock limit, fractions allowed; none\: no limit (default\: 300 for a run, none in a session)]:SECONDS:' \
            '*--shm-size=[room in /dev/shm at least, such as 256M (default\: that of --disk)]:SIZE:' \
            '*--ulimit=[a limit of each process\: nofile=65536, memlock=unlimited, stack=8388608]:NAME=SOFT[:HARD]:' \
            '*--net=[network (default none; with --allow\: allow)]:value:(none loopback allow host)' \
            '*--allow=[a host that may be reached, such as pypi.org, '\''*.example.org\:8443'\'', 192.0.2.0/24 or @pypi]:HOST[:PORT]:' \
            '*--allow-file=[hosts that may be reached\: one a line, or a JSON list of rules]:FILE:_files' \
            '*--net-log=[append what the sandbox does in its network to FILE, one JSON object a line]:FILE:_files' \
            '*--net-record=[record what the sandbox exchanges with its network]:FILE:_files' \
            '*--net-replay=[answer from a recording, without any network]:FILE:_files' \
            '*--engine=[use the shared engine on this socket instead of a private one]:SOCKET:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'image rm')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_images'
        ;;
    'image inspect')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_images'
        ;;
    'image show')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':name:_rollbox_images'
        ;;
    'store path')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'store gc')
        _arguments -s -S \
            '*--keep=[remove the images that were used least recently until the layers have at most SIZE]:SIZE:' \
            '*--older=[remove images that nobody has used for so long, such as 30d or 12h]:TIME:' \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'store fsck')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'store df')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'volume create')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--size=[how much the volume may hold, such as 10G (default\: no limit)]:SIZE:' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'volume ls')
        _arguments -s -S \
            '*-q[print only names (ps NAME\: process ids)]' \
            '*--quiet[print only names (ps NAME\: process ids)]' \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'volume rm')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'volume inspect')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'volume df')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'volume snapshot')
        _arguments -s -S \
            '*--name=[the new volume'\''s name (required)\: A-Z a-z 0-9 . _ -]:NAME:' \
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'template create')
        _arguments -s -S \
            '*--python=[code that its interpreter runs first; runs start from its state (default\: none)]:CODE:' \
            '*--json[print the result as one JSON object]' \
            '*--policy=[a policy file (JSON); the options below add to it]:FILE:_files' \
            '*--readable=[let the sandbox read PATH of the host, too]:PATH:_files' \
            '*--writable=[a private copy-on-write view of PATH; the host never changes]:PATH:_files' \
            '*--shared=[write through to PATH of the host]:PATH:_files' \
            '*--denied=[hide PATH, even inside a granted directory]:PATH:_files' \
            '*--image=[an image of the store as root file system (rollbox image ls lists them); docker\://REFERENCE is pulled if the store does not have it]:NAME:_rollbox_images' \
            '*--memory=[memory of the whole sandbox, such as 256M (default 512M)]:SIZE:' \
            '*--processes=[processes and threads at once (default 64, or 4 a CPU if more)]:N:' \
            '*--cpus=[CPUs, fractions allowed (default\: no limit)]:N:' \
            '*--disk=[size of private files (default 1G, at most 3/4 of the memory)]:SIZE:' \
            '*--disk-at=[where written files are kept\: in memory, or on the store'\''s disk (default memory)]:value:(memory store)' \
            '*--open-files=[open files a process (default 4096)]:N:' \
            '*--output-limit=[bytes of each output stream; more ends the run (default 10M)]:BYTES:' \
            '*--timeout=[wall-clock limit, fractions allowed; none\: no limit (default\: 300 for a run, none in a session)]:SECONDS:' \
            '*--env=[set a variable in the sandbox'\''s environment]:K=V:' \
            '*--no-clean-env[keep the caller'\''s environment too]' \
            '*--cwd=[working directory inside the sandbox (default /tmp, private)]:PATH:_files' \
            '*--user=[the user seen inside\: box (default), root or a number]:NAME:' \
            '*--users=[many\: 65,536 users, of which root may chown, su, install packages (default one)]:value:(one many)' \
            '*--hostname=[the host name seen inside (default rollbox)]:NAME:' \
            '*--volume=[mount a volume at PATH\: it outlives the sandbox. MODE\: exclusive (default), shared, ro, private]:NAME:PATH[:MODE]:' \
            '*--device=[give the sandbox a device\: /dev/kvm, or vendor.com/class=name of a CDI file]:DEVICE:' \
            '*--gpus=[give the sandbox GPUs of the CDI file of nvidia.com/gpu\: none (default), all or 0,2]:GPUS:' \
            '*--tmpfs=[an empty private directory at PATH. OPTIONS\: size=64M, mode=0700, noexec, with commas]:PATH[:OPTIONS]:' \
            '*--shm-size=[room in /dev/shm at least, such as 256M (default\: that of --disk)]:SIZE:' \
            '*--ulimit=[a limit of each process\: nofile=65536, memlock=unlimited, stack=8388608]:NAME=SOFT[:HARD]:' \
            '*--net=[network (default none; with --allow\: allow)]:value:(none loopback allow host)' \
            '*--allow=[a host that may be reached, such as pypi.org, '\''*.example.org\:8443'\'', 192.0.2.0/24 or @pypi]:HOST[:PORT]:' \
            '*--allow-file=[hosts that may be reached\: one a line, or a JSON list of rules]:FILE:_files' \
            '*--secret=[a secret for --inject; SOURCE is env\:VARIABLE, file\:PATH or fd\:N; with \:VARIABLE the sandbox has it, with a placeholder]:NAME[:VARIABLE]=SOURCE:' \
            '*--inject=[allow HOST, and set HEADER of its requests; {NAME} in TEXT is a secret]:HOST:HEADER=TEXT:' \
            '*--net-log=[append what the sandbox does in its network to FILE, one JSON object a line]:FILE:_files' \
            '*--net-record=[record what the sandbox exchanges with its network]:FILE:_files' \
            '*--net-replay=[answer from a recording, without any network]:FILE:_files' \
            '*--max-upload=[bytes that the sandbox may send to outside]:SIZE:' \
            '*--isolation=[how the sandbox is isolated (default namespace)]:value:(namespace process)' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'template ls')
        _arguments -s -S \
            '*-q[print only names (ps NAME\: process ids)]' \
            '*--quiet[print only names (ps NAME\: process ids)]' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'template rm')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            '*:name:_rollbox_templates'
        ;;
    'engine start')
        _arguments -s -S \
            '*-b[start it in the background and return when it answers]' \
            '*--background[start it in the background and return when it answers]' \
            '*--log=[log to that file, which is appended to, or to standard error (-)]:FILE:' \
            '*--log-level=[the least level that is logged (default\: info)]:value:(error warn info debug)' \
            '*--log-format=[the lines'\'' format (default\: text)]:value:(text json)' \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'engine status')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'engine stop')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'net log')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'net test')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--policy=[a policy file (JSON); the options below add to it]:FILE:_files' \
            '*--allow=[a host that may be reached, such as pypi.org, '\''*.example.org\:8443'\'', 192.0.2.0/24 or @pypi]:HOST[:PORT]:' \
            '*--allow-file=[hosts that may be reached\: one a line, or a JSON list of rules]:FILE:_files' \
            '*--method=[of the request (default GET)]:METHOD:' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'net set')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--net=[reach nothing but the sandbox itself, instead of --allow and --allow-file]:loopback:' \
            '*--allow=[a host that may be reached, such as pypi.org, '\''*.example.org\:8443'\'', 192.0.2.0/24 or @pypi]:HOST[:PORT]:' \
            '*--allow-file=[hosts that may be reached\: one a line, or a JSON list of rules]:FILE:_files' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'serve')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--listen=[ADDRESS\:PORT, or the path of a Unix socket; repeat it for more (default 127.0.0.1\:7420)]:ADDRESS:' \
            '*--host=[a name by which clients reach the server, besides localhost; repeat it for more]:NAME:' \
            '*--insecure[listen on addresses that other machines reach, though tokens are then sent in clear]' \
            '*--config=[read options from a TOML file; those of the command line win]:FILE:_files' \
            '*--tls-cert=[speak TLS with this certificate and its chain (PEM); SIGHUP reads it again]:FILE:_files' \
            '*--tls-key=[the certificate'\''s key (PEM, without a password)]:FILE:_files' \
            '*--tls-client-ca=[accept client certificates of these authorities; see rollbox token create --certificate]:FILE:_files' \
            '*--tls-client-required[refuse clients without a certificate]' \
            '*--drain=[how long open requests may take after SIGTERM (default 30)]:SECONDS:' \
            '*--state=[keep answers for retries, detached sandboxes and durable leases there over a restart]:DIR:_files' \
            '*--engines=[start N engines, and share the sandboxes out by load (default 1)]:N:' \
            '*--engine-per-tenant[start an engine for each tenant]' \
            '*--prices=[a price table, for the cost of what is used; see docs/how-to/observability.md]:FILE:_files' \
            '*--template=[a template for E2B'\''s clients\: the policy in FILE; repeat it for more]:NAME=FILE:' \
            '*--otlp-endpoint=[send traces to this OpenTelemetry collector (OTLP/HTTP), such as http\://localhost\:4318]:URL:' \
            '*--otlp-service-name=[the service'\''s name in traces (default rollbox)]:NAME:' \
            '*--otlp-sampler=[which traces are recorded (default parentbased_always_on)]:NAME:' \
            '*--otlp-sampler-arg=[the part of the traces for parentbased_traceidratio]:RATIO:' \
            '*--tokens=[the file of the tokens (rollbox token create); without it only a Unix socket is of use]:FILE:_files' \
            '*--quota=[sandboxes, running, queued, memory, cpus, disk, starts (a day), rate (a second) or burst; repeat it for more]:NAME=VALUE:' \
            '*--engine=[use the shared engine on this socket instead of a private one]:SOCKET:_files' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'mcp')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--engine=[use the shared engine on this socket instead of a private one]:SOCKET:_files' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'cost')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--prices=[a price table, for the cost of what is used; see docs/how-to/observability.md]:FILE:_files' \
            '*--by=[a row for each rollout, tenant, sandbox, lease, label, or value of the label KIND (default\: tenant)]:KIND:' \
            '*--per-million[also the cost of a million of the rows, at their mean]' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'token create')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--certificate=[no secret\: for clients whose certificate has this alternative name; KIND is DNS, URI or email]:KIND:NAME:' \
            '*--tokens=[the file of the tokens (required)]:FILE:_files' \
            '*--tenant=[whose token it is\: 1 to 16 of a-z 0-9 (default\: default); tenants do not see each other]:NAME:' \
            '*--scope=[what it allows; repeat it for more (default\: run)]:value:(run net host admin metrics)' \
            '*--expires=[refuse it after this time (default\: never)]:SECONDS:' \
            '*--max-sandboxes=[how many sandboxes the tenant may have at once (default 1000)]:N:' \
            '*--max-running=[how many commands the tenant may run at once (default 1000)]:N:' \
            '*--quota=[sandboxes, running, queued, memory, cpus, disk, starts (a day), rate (a second) or burst; repeat it for more]:NAME=VALUE:' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'token tenant')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--tokens=[the file of the tokens (required)]:FILE:_files' \
            '*--quota=[sandboxes, running, queued, memory, cpus, disk, starts (a day), rate (a second) or burst; repeat it for more]:NAME=VALUE:' \
            '*--weight=[the tenant'\''s share of a server that is full (default 1)]:N:' \
            '*--ceiling=[the most that policies of the tenant may have, a JSON file; /dev/null\: no ceiling]:FILE:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'token ls')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--tokens=[the file of the tokens (required)]:FILE:_files' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'token rm')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--tokens=[the file of the tokens (required)]:FILE:_files' \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':file:_files'
        ;;
    'debug dump')
        _arguments -s -S \
            '*--json[print the result as one JSON object]' \
            '*--socket=[the shared engine'\''s socket; --engine is the same (default\: see rollbox engine start --help)]:PATH:_files' \
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
            '*--json[print the result as one JSON object]' \
            '*-h[print this help]' \
            '*--help[print this help]'
        ;;
    'help')
        _arguments -s -S \
            '*-h[print this help]' \
            '*--help[print this help]' \
            ':command:(run shell record replay verify batch doctor policy create exec attach logs forward port cp ps stats inspect kill rm pause resume hibernate wake snapshot fork restore reset tree diff commit discard export import image store volume template engine net serve mcp cost token debug completion version help)'
        ;;
    esac
}
_rollbox "$@"
