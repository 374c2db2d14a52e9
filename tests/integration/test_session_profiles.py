# SPDX-License-Identifier: Apache-2.0
"""Profiles and directories that a commit has replaced: they stay while a session uses them, and no longer."""

import os
import signal

import protocol
from engines import engine, launcher_of, stopped  # noqa: F401
from harness import caller, children, until  # noqa: F401
from protocol import SessionClient


def test_retired_profile_ends_when_its_last_session_fails(engine, caller):
    """After a commit the old profile ends with its last session, even if that is closed while its
    launcher is killed."""
    place = caller.directory() / "work"
    place.mkdir()
    os.chown(place, caller.uid, caller.uid)
    with SessionClient(engine.path) as client:
        pid = client.status()["pid"]
        name = client.create(client.prepare(fs_writable=[str(place)]))
        client.output(name, "touch", f"{place}/file")
        client.json(client.verb("COMMIT", ("SANDBOX", name)))
        launcher = launcher_of(pid)
        with stopped(launcher):
            command = client.exec(name, "true")
            closed = client.verb("CLOSE", ("SANDBOX", name))
            client.json(client.verb("LIST"))
            os.kill(launcher, signal.SIGKILL)
        assert client.wait(command)["OUTCOME"] == protocol.ERROR
        assert client.json(closed) == {}
        assert client.status()["sessions"] == 0


def test_replaced_directory_is_kept_for_other_policies(engine, caller):
    """A session of another policy keeps seeing the directory that a commit replaced, until it is closed."""
    place = caller.directory() / "work"
    place.mkdir()
    (place / "old").write_text("old\n")
    for path in (place, place / "old"):
        os.chown(path, caller.uid, caller.uid)
    with SessionClient(engine.path) as client:
        other = client.create(client.prepare(fs_writable=[str(place)], max_processes=77))
        name = client.create(client.prepare(fs_writable=[str(place)]))
        for content in ("1", "2"):
            client.output(name, "sh", "-c", f"echo {content} >{place}/new; rm -f {place}/old")
            client.json(client.verb("COMMIT", ("SANDBOX", name)))
        client.json(client.verb("CLOSE", ("SANDBOX", name)))
        late = client.create(client.prepare(fs_writable=[str(place)]))
        client.output(late, "touch", f"{place}/late")
        client.json(client.verb("COMMIT", ("SANDBOX", late)))
        client.json(client.verb("CLOSE", ("SANDBOX", late)))
        assert client.output(other, "cat", f"{place}/old") == b"old\n"
        assert client.output(other, "ls", str(place)) == b"old\n"
        client.json(client.verb("CLOSE", ("SANDBOX", other)))
        until(lambda: sorted(path.name for path in place.parent.iterdir() if path.name != "engine") == ["work"])


def test_unwritable_stream_fails_only_its_command(engine, caller):
    """A stream that cannot be written fails its command alone: the profile still ends with its last session."""
    place = caller.directory() / "work"
    place.mkdir()
    os.chown(place, caller.uid, caller.uid)
    with SessionClient(engine.path) as client, open("/dev/null", "rb") as null:
        pid = client.status()["pid"]
        name = client.create(client.prepare(fs_writable=[str(place)]))
        answer = client.wait(client.exec(name, "true", more=[("STREAM", 1)], fds=[null.fileno()]))
        assert answer["OUTCOME"] == protocol.ERROR and b"stream_fds[0]" in answer["ERROR_MESSAGE"]
        client.output(name, "touch", f"{place}/file")
        client.json(client.verb("COMMIT", ("SANDBOX", name)))
        assert client.output(name, "echo", "well") == b"well\n"
        client.json(client.verb("CLOSE", ("SANDBOX", name)))
        until(lambda: not children(pid, "rollbox-launch"))
