# SPDX-License-Identifier: Apache-2.0
"""Devices of a policy: by path, by the name of a CDI file, GPUs; nothing by default, and never
memory, disks or terminals."""

import fcntl
import json
import os
import stat
import subprocess

import pytest

from conftest import BUILD
from harness import caller, place, skip  # noqa: F401
from rollbox import Engine, FeatureMissing, PathDenied, PathNotFound, Policy, PolicyInvalid, RollboxError, Sandbox

SPEC = {
    "cdiVersion": "0.6.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {
            "name": "0",
            "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/null"}]},
        },
        {
            "name": "2",
            "containerEdits": {
                "deviceNodes": [{"path": "/dev/nvidia2", "hostPath": "/dev/zero"}],
                "env": ["SECOND=yes"],
            },
        },
        {
            "name": "all",
            "containerEdits": {
                "deviceNodes": [
                    {"path": "/dev/nvidia0", "hostPath": "/dev/null"},
                    {"path": "/dev/nvidia2", "hostPath": "/dev/zero"},
                ]
            },
        },
    ],
    "containerEdits": {
        "env": ["DRIVER=1"],
        "deviceNodes": [{"path": "/dev/nvidiactl", "hostPath": "/dev/full"}],
    },
}
YAML = """---
cdiVersion: 0.5.0
kind: vendor.com/thing
devices:
- name: 7
  containerEdits:
    deviceNodes:
    - {path: /dev/thing7, hostPath: /dev/null}
    hooks:
    - hookName: createContainer
      path: /usr/bin/touch
      args: [touch, HOOK]
containerEdits:
  mounts:
  - hostPath: LIBRARY
    containerPath: /driver/lib.so.1
    options: [ro, nosuid]
"""


@pytest.fixture
def cdi(tmp_path, monkeypatch):
    os.chmod(tmp_path, 0o755)
    directory = tmp_path / "cdi"
    directory.mkdir(mode=0o755)
    monkeypatch.setenv("ROLLBOX_CDI_DIRS", str(directory))
    (directory / "nvidia.json").write_text(json.dumps(SPEC))
    (tmp_path / "library").write_text("code\n")
    (directory / "thing.yaml").write_text(
        YAML.replace("LIBRARY", str(tmp_path / "library")).replace("HOOK", str(tmp_path / "hook"))
    )
    return directory


@pytest.fixture
def engine(cdi):
    with Engine() as engine:
        yield engine


def nodes(engine, **keys):
    return Sandbox(Policy(**keys), engine=engine).run("ls /dev").text.split()


def test_nothing_is_given_by_default(cdi, engine):
    assert not {"nvidia0", "nvidiactl", "thing7", "kvm", "fuse"} & set(nodes(engine))
    assert "nvidia0" not in nodes(engine, gpus="none")


def test_gpus_of_a_cdi_file(cdi, engine):
    assert {"nvidia0", "nvidiactl"} <= set(nodes(engine, gpus=[0])) and "nvidia2" not in nodes(engine, gpus=[0])
    assert {"nvidia0", "nvidia2", "nvidiactl"} <= set(nodes(engine, gpus="all")) & set(nodes(engine, gpus=[0, 2]))
    done = Sandbox(Policy(gpus=[2], env={"DRIVER": "mine"}), engine=engine).run(
        "head -c 3 /dev/nvidia2 | wc -c; echo $DRIVER $SECOND; cat /etc/passwd > /dev/nvidiactl"
    )
    assert done.text.split() == ["3", "mine", "yes"] and b"No space" in done.stderr
    assert done.isolation["devices"] == ["/dev/nvidiactl", "/dev/nvidia2"]
    with pytest.raises(PathNotFound, match="nvidia.com/gpu=1.*nvidia-ctk"):
        Sandbox(Policy(gpus=[1]), engine=engine).run("true")


LIST = """/dev/nvidiactl
/dev/nvidia-uvm
/dev/nvidia0
/dev/nvidia2
BIN
LIB
SOCKET
"""


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """What nvidia-container-cli prints, of nodes that rollbox's root makes for the test: they are
    those of null, whose number nobody else has by this name."""
    if os.geteuid() or os.path.exists("/proc/driver/nvidia"):
        skip("it makes device nodes as root, where no driver of NVIDIA is")
    os.chmod(tmp_path, 0o755)
    directory = tmp_path / "cdi"
    directory.mkdir(mode=0o755)
    monkeypatch.setenv("ROLLBOX_CDI_DIRS", str(directory))
    made = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia2"]
    for name in ("nvidia-smi", "libcuda.so.535.1"):
        (tmp_path / name).write_text(f"{name}\n")
    os.mknod(tmp_path / "socket", 0o666 | stat.S_IFSOCK)
    text = LIST.replace("BIN", str(tmp_path / "nvidia-smi"))
    text = text.replace("LIB", str(tmp_path / "libcuda.so.535.1"))
    (directory / "nvidia.list").write_text(text.replace("SOCKET", str(tmp_path / "socket")))
    with open(place().parent / ".rollbox-test-nodes", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in made:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        yield directory
        for path in made:
            os.unlink(path)


def test_gpus_of_a_list_of_nvidia_container_cli(listed, tmp_path):
    with Engine() as engine:
        assert {"nvidia0", "nvidiactl", "nvidia-uvm"} <= set(nodes(engine, gpus=[0]))
        assert "nvidia2" not in nodes(engine, gpus=[0])
        assert {"nvidia0", "nvidia2"} <= set(nodes(engine, gpus="all"))
        library = tmp_path / "libcuda.so.535.1"
        done = Sandbox(Policy(gpus=[2]), engine=engine).run(
            f"cat {library}; echo x > {library}; test -e {tmp_path}/socket || echo no socket"
        )
        assert done.text == "libcuda.so.535.1\nno socket\n" and b"Read-only" in done.stderr
        assert done.isolation["devices"] == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia2"]
        with pytest.raises(PathNotFound, match="nvidia.com/gpu=1"):
            Sandbox(Policy(gpus=[1]), engine=engine).run("true")


def test_a_cdi_file_counts_before_a_list(listed):
    (listed / "nvidia.json").write_text(json.dumps(SPEC))
    with Engine() as engine:
        found = nodes(engine, gpus=[0])
    assert "nvidiactl" in found and "nvidia-uvm" not in found


@pytest.mark.parametrize(
    "text, problem",
    [
        ("dev/nvidia0\n", "line 1: is not an absolute path"),
        ("/dev/nvidia0\n/usr/lib/../../etc/shadow\n", "line 2: is not an absolute path"),
        ("/usr/bin/nvidia-smi\n", "no /dev/nvidiaN"),
        ("/dev/nvidia0\n" + "/a\n" * 5000, "too many"),
    ],
)
def test_bad_lists_are_named(cdi, text, problem):
    (cdi / "nvidia.json").unlink()
    (cdi / "nvidia.list").write_text(text)
    with Engine() as engine, pytest.raises(PathNotFound, match=problem):
        Sandbox(Policy(gpus=[0]), engine=engine).run("true")


def test_a_list_cannot_give_what_is_never_given(cdi):
    (cdi / "nvidia.json").unlink()
    (cdi / "nvidia.list").write_text("/dev/nvidia0\n/dev/kmsg\n")
    with Engine() as engine, pytest.raises((PathDenied, PathNotFound)):
        Sandbox(Policy(gpus=[0]), engine=engine).run("true")


def test_cdi_file_in_yaml_mounts_libraries_and_runs_no_hook(cdi, engine, tmp_path):
    policy = Policy(devices=["vendor.com/thing=7"])
    done = Sandbox(policy, engine=engine).run("cat /driver/lib.so.1; echo x > /driver/lib.so.1; ls /dev/thing7")
    assert done.text == "code\n/dev/thing7\n" and b"Read-only" in done.stderr
    assert not (tmp_path / "hook").exists()
    plan = subprocess.run(
        [BUILD / "rollbox", "policy", "plan", "-"],
        input=policy.to_json(),
        capture_output=True,
        text=True,
    ).stdout
    assert f"/driver/lib.so.1 <- {tmp_path}/library" in plan and "/dev/thing7 <- /dev/null" in plan


def test_devices_from_the_command_line(cdi, engine):
    words = ["--gpus", "0,2", "--device", "vendor.com/thing=7"]
    done = subprocess.run([BUILD / "rollbox", "run", *words, "--", "ls", "/dev"], capture_output=True, text=True)
    assert {"nvidia0", "nvidia2", "thing7"} <= set(done.stdout.split()), done


@pytest.mark.parametrize("device", ["/dev/fuse", "/dev/kvm"])
def test_device_by_path(device):
    if not os.path.exists(device):
        skip(f"needs devices: {device} is not there")
    code = f"import os; print(os.open({device!r}, os.O_RDWR))"
    if os.geteuid() and not os.access(device, os.R_OK | os.W_OK):
        with pytest.raises(PathDenied, match="cannot open"):
            Sandbox(Policy(devices=[device])).run("true")
        return
    assert Sandbox(Policy(devices=[device])).run(["python3", "-c", code]).exit_code == 0
    with pytest.raises(RollboxError, match="a device"):
        with Sandbox(Policy(devices=[device])) as box:
            process = box.spawn(["python3", "-c", code + "; import time; print(1, flush=True); time.sleep(1000)"])
            process.stdout.readline()
            box.fork()


@pytest.mark.parametrize(
    "device",
    [
        "/dev/kmsg",
        "/dev/tty",
        "/dev/console",
        "/dev/ptmx",
        "/dev/loop0",
        "/dev/loop-control",
        "/dev/vcs1",
        "/dev/tty1",
        "/dev/vda",
        "/dev/autofs",
    ],
)
def test_memory_disks_and_terminals_are_never_given(device):
    if not os.path.exists(device):
        skip(f"needs devices: {device} is not there")
    for item in (device, {"path": device, "unlisted": True}):
        with pytest.raises(PathDenied, match="never given"):
            Sandbox(Policy(devices=[item])).run("true")


def test_unlisted_device_needs_the_word(caller):
    for policy, status in (
        ({"devices": ["/dev/zero"]}, 125),
        ({"devices": [{"path": "/dev/zero", "unlisted": True}]}, 0),
    ):
        done = caller.rollbox("run", "--policy", "-", "--", "true", input=json.dumps(policy).encode())
        assert done.returncode == status and (b"unlisted" in done.stderr) == bool(status), done


def test_cdi_file_cannot_give_what_is_never_given(cdi, engine):
    for host, path in (("/dev/kmsg", "/dev/x"), ("/dev/null", "/etc/x"), ("/etc/passwd", "/dev/x")):
        (cdi / "bad.json").write_text(
            json.dumps(
                {
                    "cdiVersion": "0.6.0",
                    "kind": "bad.com/x",
                    "devices": [
                        {
                            "name": "a",
                            "containerEdits": {"deviceNodes": [{"path": path, "hostPath": host}]},
                        }
                    ],
                }
            )
        )
        with pytest.raises(PathDenied):
            Sandbox(Policy(devices=["bad.com/x=a"]), engine=engine).run("true")


def test_bad_cdi_files_are_named(cdi, engine):
    texts = {
        "a.json": ("{", "line 1"),
        "b.json": ('{"cdiVersion": "1", "kind": "x"}', "kind"),
        "c.yaml": ("a: &x 1\nb: *x\n", "anchors"),
        "d.yaml": (
            "cdiVersion: 0.5.0\nkind: a.com/b\ndevices:\n- name: x\n  containerEdits:\n    mounts:\n    - hostPath: ../etc\n",
            "absolute hostPath",
        ),
        "e.yaml": ("a: 1\na: 2\n", "line 2"),
        "f.yaml": ("[" * 100, "line 1"),
        "g.json": (json.dumps({**SPEC, "devices": SPEC["devices"][:1] * 2}), "twice"),
    }
    for name, (text, expected) in texts.items():
        (cdi / name).write_text(text)
        with pytest.raises(PathNotFound, match=f"{name}: .*{expected}"):
            Sandbox(Policy(devices=["no.such/device=x"]), engine=engine).run("true")
        assert "nvidia0" in nodes(engine, gpus=[0])
        (cdi / name).unlink()


def test_cdi_file_that_others_may_write_is_not_read(cdi, engine):
    os.chmod(cdi / "nvidia.json", 0o666)
    with pytest.raises(PathNotFound, match="nobody else may write"):
        Sandbox(Policy(gpus=[0]), engine=engine).run("true")


def test_device_in_two_files_is_refused(cdi, engine):
    (cdi / "again.json").write_text(json.dumps(SPEC))
    with pytest.raises(PolicyInvalid, match="both have"):
        Sandbox(Policy(gpus=[0]), engine=engine).run("true")


def test_wrong_values_are_refused():
    for value in (
        "/dev/null",
        ["null"],
        ["/etc/passwd"],
        [1],
        [{"unlisted": True}],
        ["/dev/kvm", "/dev/kvm"],
        ["/dev/../etc/x"],
    ):
        with pytest.raises(RollboxError):
            Policy.from_json(json.dumps({"devices": value})).check()
    for value in ("some", 1, [-1], ["0"], [0, 0]):
        with pytest.raises(RollboxError):
            Policy.from_json(json.dumps({"gpus": value})).check()
    with pytest.raises(FeatureMissing):
        Sandbox(Policy(devices=["/dev/null"], isolation="process")).run("true")
