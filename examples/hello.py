# SPDX-License-Identifier: Apache-2.0
"""One program in a sandbox: what it did, and what it could not do."""

from rollbox import Outcome, Policy, Sandbox

CODE = """
import os, socket
print("hello from process", os.getpid(), "in", os.getcwd())
for what, attempt in (
    ("read /etc/shadow", lambda: open("/etc/shadow").read()),
    ("reach the network", lambda: socket.create_connection(("192.0.2.1", 80), 1)),
):
    try:
        attempt()
        print("it could", what)
    except OSError as error:
        print("it could not", what, "-", error.strerror)
"""

sandbox = Sandbox(Policy(max_memory="256M", max_processes=16))

result = sandbox.run(["python3", "-"], stdin=CODE, timeout=10, text=True)
print(result.stdout, end="")
print(
    f"outcome {result.outcome}, status {result.exit_code}, {result.wall_ms:.0f} ms, "
    f"{result.peak_memory_bytes >> 20} MiB"
)

endless = sandbox.run(["python3", "-c", "while True: pass"], timeout=0.5)
assert endless.outcome is Outcome.TIMEOUT
print("a loop without end:", endless.outcome)
