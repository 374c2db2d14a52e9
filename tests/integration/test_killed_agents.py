# SPDX-License-Identifier: Apache-2.0
"""A guest that kills what serves file calls: the calls are made again, and do not end in an error of the infrastructure."""

from rollbox import Policy, Sandbox

# Kills what has appeared, a thousand times a second.
KILLER = """
import os, signal, time
print("up", flush=True)
while True:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            try: os.kill(int(name), signal.SIGKILL)
            except OSError: pass
    time.sleep(0.001)
"""
ROUNDS = 40


def test_file_calls_outlast_a_guest_that_kills_their_agents():
    with Sandbox(Policy(max_disk="32M")) as box:
        box.write_file("/tmp/file", "first")
        killer = box.spawn(["python3", "-Sc", KILLER])
        assert killer.stdout.readline() == b"up\n"
        for number in range(ROUNDS):
            box.write_file("/tmp/file", str(number))
            assert box.read_file("/tmp/file") == str(number).encode()
            assert [entry.name for entry in box.list("/tmp")].count("file") == 1
        assert killer.poll() is None
