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
hog='x = bytearray(200 << 20)
for at in range(0, len(x), 4096): x[at] = 1'
# Arguments: the expected outcome, then a command that prints a result.
ends() {
    local wanted=$1 result
    shift
    result=$("$@") || true
    echo "$result"
    [[ "$result" == *"\"outcome\":\"$wanted\""* || "$result" == *"\"outcome\": \"$wanted\""* ]]
}
by_cgroup() { "$@" | grep -q cgroup; }
none_left() { ! pgrep -u "$1" -f 'rollbox-(engine|init)'; }
socket=/run/rollbox/engine.sock
engine="rollbox run --engine $socket"

echo "kernel $(uname -r), systemd $(systemctl --version | sed -n '1s/systemd \([0-9]*\).*/\1/p')"
check service_is_not_started_unasked bash -c '! systemctl is-active rollbox-engine'
check service_starts systemctl start rollbox-engine
pid=$(systemctl show -P MainPID rollbox-engine)
check service_serves ends exit $engine --json -- /bin/true
check service_holds_memory ends out_of_memory $engine --json --memory 64M -- python3 -c "$hog"
check service_limits_by_cgroup by_cgroup $engine --json --memory 64M -- /bin/true
check service_outlives_out_of_memory [ "$(systemctl show -P MainPID rollbox-engine)" = "$pid" ]
check service_has_oom_score [ "$(cat "/proc/$pid/oom_score_adj")" = -500 ]
check sandbox_has_ordinary_oom_score bash -c "[ \$($engine -- cat /proc/self/oom_score_adj) -ge 0 ]"
check service_keeps_time_virtual ends exit $engine --json --time-start 2030-01-01T00:00:00 -- /bin/true
check socket_is_root_s_alone [ "$(stat -c '%a %U' /run/rollbox)" = "700 root" ]
check service_stops systemctl stop rollbox-engine
check service_stopped_well [ "$(systemctl show -P Result rollbox-engine)" = success ]
check service_leaves_nothing none_left 0

check linger loginctl enable-linger ordinary
for _ in $(seq 300); do [ -S /run/user/1000/bus ] && break; sleep 1; done
check user_service_starts user systemctl --user start rollbox-engine
check user_service_serves ends exit user rollbox run --engine /run/user/1000/rollbox.sock --json -- /bin/true
check user_service_is_found user rollbox engine status
check user_service_holds_memory ends out_of_memory user rollbox run --engine /run/user/1000/rollbox.sock --json --memory 64M -- python3 -c "$hog"
check user_service_limits_by_cgroup by_cgroup user rollbox run --engine /run/user/1000/rollbox.sock --json --memory 64M -- /bin/true
check user_service_stops user systemctl --user stop rollbox-engine
check user_scope ends exit user systemd-run --user --scope -q -p Delegate=yes rollbox run --json -- /bin/true
check user_scope_limits_by_cgroup by_cgroup user systemd-run --user --scope -q -p Delegate=yes rollbox run --json --memory 64M -- /bin/true
check user_transient_service user systemd-run --user --wait -q -p Delegate=yes rollbox run -- /bin/true
check user_leaves_nothing none_left 1000
systemd-analyze security --no-pager rollbox-engine | tail -1
echo "done"
