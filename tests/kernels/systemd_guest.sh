#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The checks of systemd.py, in the machine, as root: the packages' units under systemd. One line for each: "check NAME works|failed".
export HOME=/root XDG_RUNTIME_DIR=
check() {
    local name=$1 output
    shift
    if output=$("$@" 2>&1); then
        echo "check $name works"
    else
        echo "check $name failed: $(echo "$output" | tail -3 | tr '\n' ' ')"
    fi
}
user() {
    setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all env -i PATH="$PATH" HOME=/home/ordinary XDG_RUNTIME_DIR=/run/user/1000 \
        DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus "$@"
}
# More than the limit in three processes, each of which is below it: only a cgroup counts their sum.
hog='import os, signal
for _ in range(3):
    if os.fork() == 0:
        x = bytearray(40 << 20)
        for at in range(0, len(x), 4096): x[at] = 1
        signal.pause()
os.wait()'
# Prints how many processes the sandbox can have.
crowd='import os, signal
n = 1
try:
    while n < 100:
        if os.fork() == 0: signal.pause()
        n += 1
except BlockingIOError: pass
print(n)'
# Arguments: the expected outcome, then a command that prints a result.
ends() {
    local wanted=$1 result
    shift
    result=$("$@") || true
    echo "$result"
    [[ "$result" == *"\"outcome\":\"$wanted\""* ]]
}
# How many processes the kernel has ended for the memory limit of a cgroup below this one.
kernel_kills() { sed -n 's/^oom_kill //p' "/sys/fs/cgroup/$1/memory.events"; }
# Arguments: the cgroup of the engine or above it, the command up to its options. The kernel ends the sandbox for the sum of its processes.
holds_memory() {
    local cgroup=$1 before
    shift
    before=$(kernel_kills "$cgroup")
    ends out_of_memory "$@" --json --memory 100M --timeout 300 -- python3 -c "$hog" || return 1
    echo "ended by the kernel: before $before, now $(kernel_kills "$cgroup")"
    [ "$(kernel_kills "$cgroup")" -gt "$before" ]
}
# The result names cgroup v2 for both limits, and exactly so many processes can be.
limits_by_cgroup() {
    local result
    result=$("$@" --json --memory 100M --processes 7 -- python3 -c "$crowd")
    echo "$result"
    [[ "$result" == *'"memory":"v2","processes":"v2"'* && "$result" == *'"stdout":"7\n"'* ]]
}
limits_cpu_by_cgroup() {
    local result
    result=$("$@" --json --cpus 0.5 -- /bin/true)
    echo "$result"
    [[ "$result" == *'"cpu":"v2"'* ]]
}
ended_well() {
    systemctl show -p Result,ExecMainCode,ExecMainStatus rollbox-engine
    [ "$(systemctl show -P Result rollbox-engine)" = success ]
}
# Each cgroup that rollbox has made is below this one, and there are some.
within() {
    find /sys/fs/cgroup -type d -name 'rollbox-[0-9]*' | grep "/$1/" || return 1
    ! find /sys/fs/cgroup -type d -name 'rollbox-[0-9]*' | grep -v "/$1/"
}
# A sandbox of the service, with a process in it, lives on while the kernel ends another one.
service_outlives_out_of_memory() {
    local -x ROLLBOX_SOCKET=$socket
    rollbox create --name bystander || return 1
    rollbox exec bystander -- sh -c 'sleep 100000 >/dev/null 2>&1 & echo $! >/tmp/pid' || return 1
    holds_memory system.slice/rollbox-engine.service $engine || return 1
    within system.slice/rollbox-engine.service || return 1
    rollbox exec bystander -- sh -c 'kill -0 $(cat /tmp/pid)' || return 1
    [ "$(systemctl show -P MainPID rollbox-engine)" = "$pid" ] && [ "$(systemctl show -P NRestarts rollbox-engine)" = 0 ]
}
# A private engine ends a moment after its program.
none_left() {
    for _ in $(seq 60); do
        pgrep -l '^rollbox' || pgrep -f '^sleep 100000' || find /sys/fs/cgroup -name 'rollbox-[0-9]*' | grep . || return 0
        sleep 1
    done
    return 1
}
socket=/run/rollbox/engine.sock
engine="rollbox run --engine $socket"

echo "kernel $(uname -r), systemd $(systemctl --version | sed -n '1s/systemd \([0-9]*\).*/\1/p')"
check service_is_not_started_unasked bash -c '! systemctl is-active rollbox-engine'
check service_starts systemctl start rollbox-engine
pid=$(systemctl show -P MainPID rollbox-engine)
check service_serves ends exit $engine --json -- /bin/true
check service_holds_memory holds_memory system.slice/rollbox-engine.service $engine
check service_limits_by_cgroup limits_by_cgroup $engine
check service_limits_cpu_by_cgroup limits_cpu_by_cgroup $engine
check service_outlives_out_of_memory service_outlives_out_of_memory
check service_has_oom_score [ "$(cat "/proc/$pid/oom_score_adj")" = -500 ]
check sandbox_has_ordinary_oom_score bash -c "[ \$($engine -- cat /proc/self/oom_score_adj) -ge 0 ]"
check service_keeps_time_virtual ends exit $engine --json --time-start 2030-01-01T00:00:00 -- /bin/true
check socket_is_for_root_alone [ "$(stat -c '%a %U' /run/rollbox)" = "700 root" ]
check service_stops systemctl stop rollbox-engine
check service_stopped_well ended_well
check service_leaves_nothing none_left

# ---- the server, on a socket of systemd, with the shared engine ----

etc=/etc/rollbox
at_server="rollbox --engine https://localhost:7420 --token-file /root/token --ca $etc/tls/cert.pem"
new_certificate() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=localhost \
        -addext subjectAltName=DNS:localhost -keyout $etc/tls/new.key -out $etc/tls/new.pem 2>/dev/null || return 1
    mv $etc/tls/new.key $etc/tls/key.pem
    mv $etc/tls/new.pem $etc/tls/cert.pem
}
# As docs/how-to/serve.md says.
configure_server() {
    mkdir -p $etc/tls || return 1
    sed -e 's/^# \[tls\]/[tls]/; s/^# cert =/cert =/; s/^# key =/key =/' /usr/share/rollbox/serve.toml >$etc/serve.toml || return 1
    rollbox token create --tokens $etc/tokens --tenant one --scope run >/root/token || return 1
    chmod 600 /root/token
    new_certificate
}
property() { systemctl show -P "$1" rollbox-serve; }
is_started_by_a_connection() {
    [ "$(property ActiveState)" = inactive ] || return 1
    [ "$($at_server run -- echo hello)" = hello ] && [ "$(property ActiveState)" = active ]
}
# By the key that clients see.
shown_certificate() {
    openssl s_client -connect 127.0.0.1:7420 -servername localhost </dev/null 2>/dev/null | openssl x509 -noout -fingerprint
}
# A request: method, path, body.
ask() {
    python3 -c 'import ssl, sys, urllib.request
method, path, body = sys.argv[1:]
head = {"Authorization": "Bearer " + open("/root/token").read().strip(), "Content-Type": "application/json"}
request = urllib.request.Request("https://localhost:7420" + path, body.encode() or None, head, method=method)
context = ssl.create_default_context(cafile="/etc/rollbox/tls/cert.pem")
print(urllib.request.urlopen(request, context=context).read().decode())' "$@"
}
reloads_its_certificate() {
    local before pid
    before=$(shown_certificate) pid=$(property MainPID)
    new_certificate && systemctl reload rollbox-serve || return 1
    [ -n "$before" ] || return 1
    for _ in $(seq 100); do [ "$(shown_certificate)" != "$before" ] && break; sleep 0.2; done
    [ "$(shown_certificate)" = "$(openssl x509 -noout -fingerprint -in $etc/tls/cert.pem)" ] && [ "$(property MainPID)" = "$pid" ] &&
        [ "$($at_server run -- echo hello)" = hello ]
}
restarts_after_kill_and_keeps_sandboxes() {
    local pid
    ask POST /v1/sandboxes '{"name": "kept", "detached": true}' && $at_server exec kept -- sh -c 'echo stays >/tmp/file' || return 1
    pid=$(property MainPID)
    kill -KILL "$pid"
    for _ in $(seq 100); do [ "$(property MainPID)" != "$pid" ] && [ "$(property ActiveState)" = active ] && break; sleep 0.2; done
    [ "$(property NRestarts)" = 1 ] && [ "$($at_server exec kept -- cat /tmp/file)" = stays ]
}
replaces_its_side_processes() {
    local name old
    for name in rollbox-keeper rollbox-stores; do
        old=$(pgrep -x $name)
        kill -KILL "$old"
        for _ in $(seq 100); do pgrep -x $name | grep -qvx "$old" && break; sleep 0.2; done
        pgrep -x $name | grep -vx "$old" || return 1
    done
    ask GET /v1/images "" && [ "$(property NRestarts)" = 1 ]
}
# A command that runs when the service is stopped ends by itself, and its client gets the result.
drains_when_stopped() {
    $at_server run -- sh -c 'echo begun >&2; sleep 5; echo done' >/root/drained 2>/root/begun &
    for _ in $(seq 300); do grep -q begun /root/begun && break; sleep 0.2; done
    systemctl stop rollbox-serve.socket rollbox-serve.service || return 1
    wait $! && [ "$(cat /root/drained)" = done ] || return 1
    [ "$(property Result)" = success ] && [ -z "$(pgrep -x rollbox-serve)" ]
}
# The sandbox is the engine's, and the next server has it.
keeps_sandboxes_over_a_stop() {
    systemctl start rollbox-serve.socket && [ "$($at_server exec kept -- cat /tmp/file)" = stays ] && $at_server rm kept
}
check serve_is_configured configure_server
check serve_is_not_started_unasked bash -c '! systemctl is-active rollbox-serve.socket && ! systemctl is-active rollbox-serve'
check serve_socket_starts systemctl start rollbox-serve.socket
check serve_is_started_by_a_connection is_started_by_a_connection
check serve_starts_the_shared_engine systemctl is-active rollbox-engine
check serve_reloads_its_certificate reloads_its_certificate
check serve_restarts_after_a_kill_and_keeps_sandboxes restarts_after_kill_and_keeps_sandboxes
check serve_replaces_its_side_processes replaces_its_side_processes
check serve_is_restricted systemd-analyze security --no-pager --threshold=60 rollbox-serve.service
systemd-analyze security --no-pager rollbox-serve.service | sed -n 's/^.*Overall exposure level/exposure/p'
check serve_drains_when_stopped drains_when_stopped
check serve_keeps_sandboxes_over_a_stop keeps_sandboxes_over_a_stop
check serve_stops systemctl stop rollbox-serve.socket rollbox-serve.service rollbox-engine.service
check serve_leaves_nothing none_left

check linger loginctl enable-linger ordinary
for _ in $(seq 300); do [ -S /run/user/1000/bus ] && break; sleep 1; done
check user_service_starts user systemctl --user start rollbox-engine
own=$(user systemctl --user show -P ControlGroup rollbox-engine)
users=user.slice/user-1000.slice/user@1000.service
user_engine="user rollbox run --engine /run/user/1000/rollbox.sock"
check user_service_serves ends exit $user_engine --json -- /bin/true
check user_service_is_found user rollbox engine status
check user_service_holds_memory holds_memory "${own#/}" $user_engine
check user_service_keeps_to_its_cgroup within "${own#/}"
check user_service_limits_by_cgroup limits_by_cgroup $user_engine
check user_service_stops user systemctl --user stop rollbox-engine
scope="user systemd-run --user --scope -q -p Delegate=yes rollbox run"
check user_scope_works ends exit $scope --json -- /bin/true
check user_scope_holds_memory holds_memory $users $scope
check user_scope_limits_by_cgroup limits_by_cgroup $scope
check user_transient_service_works user systemd-run --user --wait -q -p Delegate=yes rollbox run -- /bin/true
check user_leaves_nothing none_left
echo "done"
