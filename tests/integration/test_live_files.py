# SPDX-License-Identifier: Apache-2.0
"""Exports with processes: a sandbox is exported as one file and continues in another store, under another engine.

The model: two stores and two shared engines stand for two machines; what a machine is recognised by
is changed in the file. The content of a file is
not trusted: it is refused whole, by name, and nothing is left in the store.
make check runs this file as root and as an ordinary user.
"""

import asyncio
import hashlib
import io
import json
import os
import signal
import struct
import subprocess
import tarfile

import pytest

from conftest import BUILD
from harness import binaries, caller, until  # noqa: F401
from rollbox import AsyncSandbox, Conflict, FeatureMissing, InvalidArgument, RollboxError, Sandbox
from stores import FAULTS, asleep, failing, in_store, Shared, store  # noqa: F401
from asked import Asked, sh
from two_stores import engine, other  # noqa: F401

MAGIC = b"rollbox live 1\n\0"


def members_of(path):
    content = path.read_bytes()
    assert content.startswith(MAGIC)
    plain = subprocess.run(["zstd", "-dc"], input=content[len(MAGIC):], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar]


def write_members(path, members, kind=tarfile.REGTYPE):
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size, member.type = len(content) if kind == tarfile.REGTYPE else 0, kind
            tar.addfile(member, io.BytesIO(content))
    path.write_bytes(MAGIC + plain.getvalue())
    return path


def sealed(record):
    text = json.dumps(record)
    return f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n".encode()


def changed(path, to, change):
    """The file with what `change` makes of the record (a dict, in place) and the other members (a
    dict by name); digests are right again."""
    members = dict(members_of(path))
    whole = json.loads(members["record.json"].splitlines()[0])
    change(whole, members)
    for kind in ("layer", "image"):
        for i, row in enumerate(whole[kind + "s"]):
            content = members.get(f"{kind}-{i}")
            if content is not None:
                row["bytes"], row["sha256"] = len(content), hashlib.sha256(content).hexdigest()
    members["record.json"] = sealed(whole)
    return write_members(to, members.items())


@pytest.fixture
def exported(engine, tmp_path):
    with Sandbox(engine=engine) as box:
        asked = Asked.begin(box, "x = {'a': 1}")
        sh(box, "echo kept > /tmp/f; mkdir -m 700 /tmp/d; ln -s f /tmp/link")
        box.export(tmp_path / "box.live", processes="keep")
        assert asked("x") == "{'a': 1}"       # it still runs
        yield tmp_path / "box.live", asked


@pytest.mark.parametrize("how", ["running", "asleep", "again", "snapshot"])
def test_processes_resume_from_an_exported_snapshot(engine, other, tmp_path, store, how):  # noqa: F811
    path = tmp_path / "box.live"
    with Sandbox(engine=engine) as box:
        asked = Asked.begin(box, "x = []", "b = bytearray(3000000)", "f = open('/tmp/log', 'w')")
        asked("print('before', file=f, flush=True)")
        if how == "again":                      # a difference is put together
            box.hibernate()
            asked = asked.of(box)
            asked("b[5] = 7")
        if how == "snapshot":
            box.snapshot("one")
            sh(box, "echo not this > /tmp/log")
            asked("x = 5")
        if how in ("asleep", "again"):
            box.hibernate()
        box.export(path, "one" if how == "snapshot" else None, processes="keep")
        assert box.inspect()["state"] == ("asleep" if how in ("asleep", "again") else "running")
        assert not list((store / "tmp").iterdir())
    found = other.import_(path)
    assert (found["name"], found["processes"]) == ("copy", 1) and asleep(other.store) == [found["asleep"]]
    with other.engine() as there:
        assert [(row["name"], row["state"]) for row in there.sandboxes()] == [("copy", "asleep")]
        copy = Sandbox.open("copy", engine=there)
        again = asked.of(copy)
        assert again("x") == "[]" and again("b[5]") == ("7" if how == "again" else "0")
        again("print('after', file=f, flush=True)")
        assert copy.read_file("/tmp/log") == b"before\nafter\n"
        copy.hibernate()
        assert asked.of(copy)("x") == "[]"
        copy.close()
        assert asleep(other.store) == []


def test_files_alone_and_nothing_at_all(engine, other, tmp_path):
    with Sandbox(engine=engine) as box:
        box.export(tmp_path / "fresh.live", processes="keep")
        box.write_file("/tmp/f", b"x")
        box.export(tmp_path / "files.live", processes="keep")
    assert (
        other.import_(tmp_path / "fresh.live", "fresh")["processes"]
        == other.import_(tmp_path / "files.live", "files")["processes"]
        == 0
    )
    with other.engine() as there:
        assert Sandbox.open("files", engine=there).read_file("/tmp/f") == b"x"
        assert sh(Sandbox.open("fresh", engine=there), "ls /tmp").stdout == ""


def test_several_copies_of_one_and_a_name_that_is_taken(exported, other):
    path, asked = exported
    for name in ("a", "b"):
        other.import_(path, name)
    assert other.import_(path, "a", 125)["code"] == "conflict"
    assert other.import_(path, "no name", 125)["code"] == "invalid_argument"
    with other.engine() as there:
        a, b = Sandbox.open("a", engine=there), Sandbox.open("b", engine=there)
        asked.of(a)("x.clear()")
        assert asked.of(b)("x") == "{'a': 1}" and b.read_file("/tmp/f") == b"kept\n"
        other.import_(path, "late")             # the engine runs already
        assert asked.of(Sandbox.open("late", engine=there))("x") == "{'a': 1}"


def test_imported_sandbox_has_the_importers_policy(engine, other, tmp_path):
    granted = tmp_path / "granted"
    granted.mkdir()
    policy = {"fs_shared": [str(granted)], "max_memory": "300M"}
    with Sandbox(policy, engine=engine) as box:
        asked = Asked.begin(box, "x = 1")
        box.export(tmp_path / "box.live", processes="keep")
        assert asked.id
    code, message = other.refuses(tmp_path / "box.live")
    assert code == "invalid_argument" and f"fs_shared {granted}" in message and "--policy" in message
    (tmp_path / "own.json").write_text('{"max_memory": "256M"}')
    (tmp_path / "bad.json").write_text('{"max_memory": 0')
    assert other.refuses(tmp_path / "box.live", "--policy", str(tmp_path / "bad.json"))[0] == "policy_invalid"
    other.import_(tmp_path / "box.live", "own", 0, (), "--policy", str(tmp_path / "own.json"))
    other.import_(tmp_path / "box.live", "its", 0, (), "--trust")
    with other.engine() as there:
        own, its = Sandbox.open("own", engine=there), Sandbox.open("its", engine=there)
        assert asked.of(own)("x") == "1"
        sh(own, f"touch {granted}/own")         # there may be a place of that name, in its own /tmp
        assert not (granted / "own").exists()
        assert asked.of(its)("x") == "1" and os.listdir(granted) == []
        own.write_file("/tmp/f", b"")


def test_different_writable_places_are_a_conflict(engine, other, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    with Sandbox({"fs_writable": [str(place)]}, engine=engine) as box:
        box.write_file("/tmp/f", b"x")
        box.export(tmp_path / "box.live", processes="keep")
    (tmp_path / "own.json").write_text("{}")
    other.import_(tmp_path / "box.live", "copy", 0, (), "--policy", str(tmp_path / "own.json"))
    with other.engine() as there:
        with pytest.raises(Conflict, match="writable places"):
            Sandbox.open("copy", engine=there).wake()


@pytest.mark.parametrize("part", ["kernel", "vdso", "processor"])
def test_another_machine_is_refused_in_words(exported, other, tmp_path, part):
    path, _ = exported

    def change(whole, members):
        whole["record"]["fingerprint"][part] = "something else"

    there = changed(path, tmp_path / "there.live", change)
    code, message = other.refuses(there)
    assert (
        code == "feature_missing"
        and {"kernel": "something else", "vdso": "vDSO", "processor": "processor"}[part] in message
        and "--drop-processes" in message
    )
    assert other.import_(there, "copy", 0, (), "--drop-processes")["processes"] == 0
    with other.engine() as engine:  # noqa: F811
        box = Sandbox.open("copy", engine=engine)
        assert box.inspect()["asleep"]["processes"] == 0
        assert box.read_file("/tmp/f") == b"kept\n" and "x = {" not in str(box.processes())


@pytest.mark.parametrize("how", ["gone", "changed"])
def test_changed_program_is_named_on_import(exported, other, tmp_path, how):
    path, _ = exported
    program = os.path.realpath("/usr/bin/python3")
    elsewhere = program[:-1] + "X"

    def change(whole, members):
        status = os.stat(program)
        was = (
            struct.pack("<qq", status.st_mtime_ns // 10**9, status.st_mtime_ns % 10**9)
            if how == "changed"
            else program.encode() + b"\0"
        )
        now = struct.pack("<qq", 1, 1) if how == "changed" else elsewhere.encode() + b"\0"
        assert was in members["image-0"]
        members["image-0"] = members["image-0"].replace(was, now)

    code, message = other.refuses(changed(path, tmp_path / "there.live", change))
    assert (
        code == "feature_missing"
        and (program if how == "changed" else elsewhere) in message
        and ("does not exist" if how == "gone" else "another file") in message
    )


def test_refused_checkpoint_is_not_written(engine, tmp_path):
    with Sandbox(engine=engine) as box:
        process = box.spawn(["sh", "-c", "kill -STOP $$"])
        until(lambda: any(row["state"] == "T" for row in box.processes()))
        with pytest.raises(FeatureMissing):
            box.export(tmp_path / "box.live", processes="keep")
        with pytest.raises(InvalidArgument):
            box.export(tmp_path / "box.live", processes="some")
        assert process.id and not [path for path in tmp_path.iterdir() if path.name.startswith("box.live")]


def nothing(whole, members):
    pass


def cut_image(whole, members):
    members["image-0"] = members["image-0"][:-1]


def flip_tables(whole, members):
    image = bytearray(members["image-0"])
    image[-400:-300] = b"\xff" * 100
    members["image-0"] = bytes(image)


def older_version(whole, members):
    """The format's version is its last number."""
    image = members["image-0"]
    members["image-0"] = image[:-8] + (int.from_bytes(image[-8:], "little") - (1 << 56)).to_bytes(8, "little")


def no_layer(whole, members):
    members["layer-0"] = b"x" * len(members["layer-0"])


def leave_the_layer(whole, members):
    members["layer-0"] = members["layer-0"].replace(b"p0/link\0f\0", b"../link\0f\0").replace(b"/d\0", b"/.\0")
    assert members["layer-0"] != b""


def redirect(whole, members, name=b"user.overlay.redirect\0"):
    """An attribute that would tell an overlay to look elsewhere."""
    end = members["layer-0"].rindex((8).to_bytes(4, "little") + bytes(68))
    path, value = b"p0/x\0", b"/"
    attributes = name + len(value).to_bytes(4, "little") + value
    entry = (
        (2).to_bytes(4, "little")
        + (0o755).to_bytes(4, "little")
        + bytes(48)
        + len(path).to_bytes(4, "little")
        + bytes(4)
        + len(attributes).to_bytes(4, "little")
        + bytes(4)
    )
    members["layer-0"] = members["layer-0"][:end] + entry + path + attributes + members["layer-0"][end:]


def lies_over(whole, members):
    whole["bases"] = [dict(whole["images"][0])]
    whole["images"][0]["over"] = [0]


def longer(whole, members):
    members["image-1"] = b"more"


@pytest.mark.parametrize(
    "change",
    [cut_image, flip_tables, older_version, no_layer, leave_the_layer, redirect, lies_over, longer],
    ids=lambda change: change.__name__,
)
def test_hostile_files_are_refused(exported, other, tmp_path, change):
    path, _ = exported
    other.import_(changed(path, tmp_path / "same.live", nothing), "same")
    other.import_(
        changed(
            path, tmp_path / "same.live", lambda *record: redirect(*record, b"user.harmless\0")
        ),
        "harmless",
    )
    subprocess.run(["rm", "-rf", other.store], check=True)
    code, message = other.refuses(changed(path, tmp_path / "hostile.live", change))
    assert code == "damaged" and "refused" in message
    assert change is not older_version or "another version of rollbox" in message


def test_invalid_archives_are_refused(exported, other, tmp_path):
    path, _ = exported
    members = members_of(path)
    content = path.read_bytes()
    hostile = tmp_path / "hostile.live"
    for bad in (
        content[: len(MAGIC)],
        content[: len(content) // 2],
        MAGIC + b"no archive",
        content[:300] + bytes([content[300] ^ 1]) + content[301:],
    ):
        hostile.write_bytes(bad)
        assert other.refuses(hostile)[0] == "damaged"
    names = [
        members[1:],
        members[:-1],
        [members[0], *members[:0:-1]] if len(members) > 2 else members[::-1],
        [("../record.json", members[0][1]), *members[1:]],
        [members[0], ("/etc/evil", members[1][1]), *members[2:]],
        [*members, ("record.json", b"{}")],
        [("record.json", members[0][1][:-5]), *members[1:]],
    ]
    for bad in names:
        assert other.refuses(write_members(hostile, bad))[0] == "damaged"
    for kind in (tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        assert other.refuses(write_members(hostile, members, kind))[0] == "damaged"
    code, message = other.refuses(path, "--max-bytes", "10000")
    assert code == "invalid_argument" and "--max-bytes" in message


def test_engine_fields_of_a_record_are_ignored(exported, other, tmp_path):
    """The engine, the time-outs and the identity in a record are not taken over; its snapshots are
    read like those of any hibernated session."""
    path, asked = exported

    def change(whole, members):
        whole["id"] = "../../../../../../etc/passwd0000"[:32]

    assert other.refuses(changed(path, tmp_path / "id.live", change))[0] == "damaged"

    def states(whole, members):
        whole["record"]["at"] = 99

    code, message = other.refuses(changed(path, tmp_path / "at.live", states))
    assert code == "damaged" and "at is 99" in message

    def times(whole, members):
        whole["record"].update(name="another", hibernate_ms=1, ttl_ms=1, lifetime_ms=1, idle_ms=1)

    other.import_(changed(path, tmp_path / "times.live", times))
    with other.engine() as engine:  # noqa: F811
        box = Sandbox.open("copy", engine=engine)
        assert asked.of(box)("x") == "{'a': 1}" and box.inspect()["name"] == "copy"


@pytest.mark.parametrize(
    "fault",
    [
        row
        for row in FAULTS
        if row["command"] in ("import-live", "hibernate")
        and row["name"] in ("carried_half", "carried_checked", "sleep_written", "sleep_published")
    ],
    ids=lambda row: row["name"],
)
def test_killed_while_importing(exported, other, fault):
    path, asked = exported
    other.import_(path, "copy", -signal.SIGKILL, {"ROLLBOX_FAULT": fault["name"]})
    assert len(asleep(other.store)) == fault["done"]
    if not fault["done"]:
        other.import_(path)
    subprocess.run(
        [BUILD / "rollbox", "store", "gc"],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "ROLLBOX_STORE": str(other.store)},
    )
    assert not os.listdir(other.store / "tmp") and len(asleep(other.store)) == 1
    with other.engine() as engine:  # noqa: F811
        assert asked.of(Sandbox.open("copy", engine=engine))("x") == "{'a': 1}"


@pytest.mark.parametrize("asleep_first", [False, True])
def test_killed_while_exporting(store, failing, tmp_path, asleep_first):  # noqa: F811
    fault = next(row["name"] for row in FAULTS if row["command"] == "export-live")
    with Shared(str(tmp_path / "socket")) as shared, Sandbox(engine=shared.engine) as box:
        asked = Asked.begin(box, "x = 1")
        (tmp_path / "box.live").write_bytes(b"old")
        if asleep_first:
            box.hibernate()
        failing.write_text(f"export ROLLBOX_FAULT={fault}\n")
        with pytest.raises(RollboxError):
            box.export(tmp_path / "box.live", processes="keep")
        failing.unlink()
        assert (tmp_path / "box.live").read_bytes() == b"old"
        box.export(tmp_path / "box.live", processes="keep")
        assert (
            (tmp_path / "box.live").read_bytes().startswith(MAGIC)
            and (asked.of(box) if asleep_first else asked)("x") == "1"
            and not list((store / "tmp").iterdir())
        )


def test_damaged_hibernated_session_is_not_exported(engine, store, tmp_path):  # noqa: F811
    with Sandbox(engine=engine) as box:
        asked = Asked.begin(box, "x = 1")
        box.hibernate()
        image = in_store(store, "image-0")[0]
        os.truncate(image, image.stat().st_size - 1)
        with pytest.raises(RollboxError, match="image-0"):
            box.export(tmp_path / "box.live", processes="keep")
        assert asked.id and not (tmp_path / "box.live").exists()


def test_async(engine, other, tmp_path):
    async def main():
        async with AsyncSandbox(engine=engine) as box:
            await box.write_file("/tmp/f", b"x")
            await box.export(tmp_path / "box.live", processes="keep")

    asyncio.run(main())
    assert other.import_(tmp_path / "box.live")["bytes"] > 0


def test_command_line(caller):  # noqa: F811
    directory = caller.directory()
    environment = caller.environment(ROLLBOX_STORE=str(directory / "store"), ROLLBOX_SOCKET=str(directory / "socket"))
    with caller.popen(
        [binaries() / "rollbox-engine", "--socket", directory / "socket"], env=environment
    ) as engine:  # noqa: F811

        def rollbox(*words):
            return caller.rollbox(*words, env=environment)

        try:
            until(lambda: rollbox("ps").returncode == 0)
            assert rollbox("create", "--name", "a").returncode == 0
            assert rollbox("exec", "a", "--", "sh", "-c", "echo hi > /tmp/f; sleep 1000 &").returncode == 0
            assert rollbox("hibernate", "a").returncode == 0
            assert rollbox("export", "--live", "a", directory / "a.live").returncode == 0
            assert b"asleep" in rollbox("ps").stdout
            told = rollbox("import", "--name", "b", directory / "a.live")
            assert told.returncode == 0 and b"hibernated" in told.stdout and b"1 processes" in told.stdout
            assert (
                rollbox("exec", "b", "--", "cat", "/tmp/f").stdout == b"hi\n"
                and b"sleep 1000" in rollbox("ps", "b").stdout
            )
            assert rollbox("export", "a", directory / "files").returncode == 0
            assert b"--trust" in rollbox("import", "--name", "c", "--trust", directory / "files").stderr
            assert rollbox("import", "--name", "c", directory / "files").returncode == 0
        finally:
            engine.terminate()
            engine.wait()


def test_file_whose_policy_names_files_of_the_host_needs_trust(caller):  # noqa: F811
    """The engine writes a log of the network with its user's rights, wherever the policy says."""
    directory = caller.directory()
    environment = caller.environment(ROLLBOX_STORE=str(directory / "store"), ROLLBOX_SOCKET=str(directory / "socket"))
    with caller.popen(
        [binaries() / "rollbox-engine", "--socket", directory / "socket"], env=environment
    ) as engine:  # noqa: F811

        def rollbox(*words):
            return caller.rollbox(*words, env=environment)

        try:
            until(lambda: rollbox("ps").returncode == 0)
            for key in ("net_log_file", "net_record"):
                policy, taken = directory / f"{key}.json", directory / f"{key}.taken"
                policy.write_text(json.dumps({"net": "allow", key: str(taken)}))
                caller.own(policy)
                assert rollbox("create", "--name", key, "--policy", policy).returncode == 0
                assert rollbox("exec", "--detach", key, "--", "sleep", "1000").returncode == 0
                assert rollbox("export", "--live", key, directory / f"{key}.live").returncode == 0
                told = rollbox("import", "--name", f"{key}2", directory / f"{key}.live")
                assert told.returncode == 125 and f"{key} {taken}".encode() in told.stderr, told
        finally:
            engine.terminate()
            engine.wait()
