# SPDX-License-Identifier: Apache-2.0
"""A program of the graded that the verifier runs cannot trace the verifier, or change its memory."""

import pytest

from rollbox import Policy, Sandbox

ANSWER = "/tmp/w/answer.py"

VERIFIER = """
import subprocess, sys
said = subprocess.run([sys.executable, "-I", "-S", "/tmp/w/answer.py"], capture_output=True, timeout=20).stdout
sys.stderr.buffer.write(said)
sys.exit(0 if said == b"42\\n" else 1)
"""

# Each call on the parent, which is the verifier, and what came of it. kcmp and pidfd_getfd are
# refused by the policy, too.
EACH_CALL = """
import ctypes, errno, os
libc, parent = ctypes.CDLL(None, use_errno=True), os.getppid()
buffer = ctypes.create_string_buffer(8)
vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
pidfd = os.pidfd_open(parent) if hasattr(os, "pidfd_open") else libc.syscall(434, parent, 0)
for name, number, arguments in (
    ("ptrace", 101, (16, parent, None, None)), ("process_vm_readv", 310, (parent, vector, 1, vector, 1, 0)),
    ("process_vm_writev", 311, (parent, vector, 1, vector, 1, 0)), ("kcmp", 312, (os.getpid(), parent, 0, 0, 0)),
    ("pidfd_getfd", 438, (pidfd, 1, 0)), ("process_madvise", 440, (pidfd, vector, 1, 20, 0)),
):
    failed = libc.syscall(number, *arguments) < 0
    print(name, errno.errorcode[ctypes.get_errno()] if failed else "done")
try:
    open(f"/proc/{parent}/mem", "r+b")
    print("mem done")
except OSError as problem:
    print("mem", errno.errorcode[problem.errno])
"""

# Attaches to the verifier and has it call exit_group(0) in place of its wait.
FORGERY = """
import ctypes, os, time
libc, parent = ctypes.CDLL(None), os.getppid()
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
if os.fork() == 0:
    if libc.ptrace(16, parent, None, None) < 0:
        os._exit(1)
    for _ in range(100):
        if " t " in open(f"/proc/{parent}/stat").read():
            break
        time.sleep(0.01)
    registers = (ctypes.c_ulonglong * 27)()
    libc.ptrace(12, parent, None, ctypes.addressof(registers))
    registers[15], registers[10], registers[14] = 2**64 - 1, 231, 0
    registers[16] -= 2
    libc.ptrace(13, parent, None, ctypes.addressof(registers))
    libc.ptrace(17, parent, None, None)
    os._exit(0)
os.wait()
"""

WAYS = {
    "named": {"outputs": [ANSWER]},
    "changed": {},
    "own root": {"outputs": [ANSWER], "verifier": Policy()},
    "in place": {"unsafe_in_place": True},
}


@pytest.fixture
def grade():
    with Sandbox(Policy(max_disk="64M")) as box:
        box.exec("mkdir -p /tmp/w", check=True)
        box.snapshot("task")

        def grade(answer, **options):
            box.write_file(ANSWER, answer)
            return box.grade(
                {"/tmp/t/verify.py": VERIFIER},
                ["python3", "-I", "/tmp/t/verify.py"],
                timeout=60,
                **options,
            )

        yield grade


@pytest.mark.filterwarnings("ignore::rollbox.UnsafeGrading")
@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS.keys())
def test_child_of_the_verifier_cannot_trace(grade, options):
    result = grade(EACH_CALL, **options)
    tried = dict(line.split() for line in result.stderr.decode().splitlines())
    assert tried.pop("mem") == "EROFS"
    assert len(tried) == 6 and set(tried.values()) == {"EPERM"}, tried
    assert grade("print(42)", **options).ok


@pytest.mark.filterwarnings("ignore::rollbox.UnsafeGrading")
@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS.keys())
def test_traced_verifier_forges_no_verdict(grade, options):
    result = grade(FORGERY, **options)
    assert not result.ok and result.exit_code == 1, result


def test_tracing_verifier_is_allowed():
    traced = ["python3", "-c", "import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(0, 0, None, None) != 0)"]
    with Sandbox() as box:
        assert box.grade({}, traced, outputs=[ANSWER], trace=True).ok
        assert not box.grade({}, traced, outputs=[ANSWER]).ok
