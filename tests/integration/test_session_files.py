# SPDX-License-Identifier: Apache-2.0
"""Files of sessions from outside: what a guest lays in the way leads nowhere, and what goes in comes out the same."""

import asyncio
import errno
import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollbox import (
    AsyncSandbox,
    Cancelled,
    InvalidArgument,
    IOFailed,
    NotFound,
    PathDenied,
    Policy,
    ResourceExhausted,
    Sandbox,
)


@pytest.fixture(scope="module")
def box():
    with Sandbox(Policy(max_disk="256M")) as box:
        yield box


@pytest.fixture
def place(box, request):
    """A directory of the test's own in the sandbox, as a path."""
    path = f"/tmp/{request.node.name}"
    box.mkdir(path, 0o755)
    yield path
    box.remove(path, recursive=True)


def sh(box, script, **options):
    result = box.exec(["sh", "-c", script], **options)
    assert result.exit_code == 0, result
    return result.stdout


def raised(kind, number, call, *arguments, **options):
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    assert caught.value.errno == number, caught.value
    assert "\n" not in str(caught.value)
    return str(caught.value)


def tree_of(top):
    """{path: what it is} of a tree of the host."""
    found = {}
    for directory, directories, files in os.walk(os.fsencode(top)):
        for name in directories + files:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            key = os.path.relpath(path, os.fsencode(top))
            if stat.S_ISLNK(status.st_mode):
                found[key] = os.readlink(path)
            elif stat.S_ISDIR(status.st_mode):
                found[key] = stat.S_IMODE(status.st_mode)
            else:
                with open(path, "rb") as file:
                    found[key] = (stat.S_IMODE(status.st_mode), status.st_mtime_ns, file.read())
    return found


def test_guest_sees_written_files(box, place):
    box.write_file(f"{place}/a/b", b"\0\xffbytes", 0o751)
    assert sh(box, f"cat {place}/a/b; stat -c %a:%U {place}/a/b") == b"\0\xffbytes751:" + sh(box, "id -un")
    sh(box, f"printf more >> {place}/a/b")
    assert box.read_file(f"{place}/a/b") == b"\0\xffbytesmore"
    box.write_file(f"{place}/text", "\u00e9")
    assert box.read_file(f"{place}/text") == b"\xc3\xa9"
    raised(InvalidArgument, errno.EFBIG, box.read_file, f"{place}/a/b", max_bytes=3)
    raised(InvalidArgument, errno.EISDIR, box.read_file, place)
    raised(NotFound, errno.ENOENT, box.read_file, f"{place}/none")
    raised(PathDenied, errno.EROFS, box.write_file, "/etc/none/x", b"")


def test_stat_list_and_exists(box, place):
    box.write_file(f"{place}/file", b"12345", 0o640)
    sh(box, f"ln -s file {place}/link; ln -s none {place}/dangling; mkfifo {place}/fifo; mkdir {place}/d")
    assert [(info.name, info.type) for info in box.list(place)] == [
        ("d", "directory"), ("dangling", "symlink"), ("fifo", "fifo"), ("file", "file"), ("link", "symlink")]
    info = box.stat(f"{place}/link")
    assert (info.type, info.size, info.mode, info.is_file) == ("file", 5, 0o640, True)
    assert box.stat(f"{place}/link", follow=False).target == "file"
    assert box.exists(f"{place}/dangling") and not box.exists(f"{place}/file/none") and not box.exists(f"{place}/none")
    raised(NotFound, errno.ENOENT, box.stat, f"{place}/dangling")


def test_names_of_any_bytes(box, place, tmp_path):
    name = b"new\nline \xff\xfe"
    source = os.path.join(os.fsencode(tmp_path), b"source")
    os.mkdir(source)
    with open(os.path.join(source, name), "wb") as file:
        file.write(b"content")
    box.upload(source, f"{place}/up")
    (info,) = box.list(f"{place}/up")
    assert os.fsencode(info.name) == name
    assert box.read_file(f"{place}/up/{info.name}") == b"content"
    box.download(f"{place}/up", tmp_path / "back")
    assert tree_of(tmp_path / "back") == tree_of(source)
    raised(NotFound, errno.ENOENT, box.read_file, os.fsencode(place) + b"/none\n\xff")


def test_planted_things_are_replaced_and_nothing_is_followed(box, place):
    sh(
        box,
        f"cd {place}; echo kept > victim; ln -s victim link; mkfifo fifo; ln -s /etc/passwd passwd; ln -s /dev/full device",
    )
    for name in ("link", "fifo", "passwd", "device"):
        box.write_file(f"{place}/{name}", b"new")
        assert box.stat(f"{place}/{name}", follow=False).is_file
        assert box.read_file(f"{place}/{name}") == b"new"
    assert box.read_file(f"{place}/victim") == b"kept\n"


def test_special_files_are_not_opened(box, place):
    sh(
        box,
        f"cd {place}; mkfifo fifo; ln -s /dev/zero zero; ln -s /proc/self/mem mem; ln -s /proc/self/environ environ; ln -s /proc/self/fd/0 fd; ln -s /proc/1/root/etc root",
    )
    raised(InvalidArgument, errno.EINVAL, box.read_file, f"{place}/fifo")
    raised(InvalidArgument, errno.EINVAL, box.read_file, f"{place}/zero")
    for name in ("mem", "environ", "fd", "root/passwd"):
        with pytest.raises((PathDenied, InvalidArgument, NotFound)):
            box.read_file(f"{place}/{name}")


def test_guest_symlink_does_not_leave_the_sandbox(box, place, tmp_path):
    (tmp_path / "secret").write_text("secret")
    sh(
        box,
        f"cd {place}; ln -s {tmp_path}/secret secret; ln -s {tmp_path} up; ln -s ../../../../../../..{tmp_path} dots",
    )
    for name in ("secret", "up/secret", "dots/secret"):
        with pytest.raises((NotFound, PathDenied)):
            box.read_file(f"{place}/{name}")
    with pytest.raises((NotFound, PathDenied, InvalidArgument)):
        box.write_file(f"{place}/secret/x", b"")
    assert os.listdir(tmp_path) == ["secret"]


def test_downloaded_link_is_not_followed_by_the_next_download(box, place, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    sh(box, f"cd {place}; mkdir t; ln -s {outside} t/d")
    box.download(f"{place}/t", tmp_path / "to")
    assert os.readlink(tmp_path / "to" / "d") == str(outside)
    sh(box, f"cd {place}; rm t/d; mkdir t/d; echo x > t/d/planted")
    message = raised(InvalidArgument, errno.ENOTDIR, box.download, f"{place}/t", tmp_path / "to")
    assert "/d" in message and not list(outside.iterdir())


def test_trees_come_back_as_they_went(box, place, tmp_path):
    source = tmp_path / "source"
    (source / "d" / "empty").mkdir(parents=True)
    (source / "d" / "script").write_bytes(b"#!/bin/sh\necho ran\n")
    (source / "d" / "script").chmod(0o755)
    (source / "link").symlink_to("d/script")
    (source / "large").write_bytes(os.urandom(3 << 20))
    os.link(source / "large", source / "d" / "other")
    os.utime(source / "d" / "script", ns=(1, 1_000_000_000_000_000_001))
    (source / "d").chmod(0o555 if os.geteuid() == 0 else 0o755)
    box.upload(source, f"{place}/there/up")
    assert sh(box, f"{place}/there/up/link; stat -c %h {place}/there/up/d/other") == b"ran\n2\n"
    box.download(f"{place}/there/up", tmp_path / "back")
    assert tree_of(tmp_path / "back") == tree_of(source)
    assert (tmp_path / "back" / "large").stat().st_nlink == 2


def test_set_id_bits_do_not_arrive(box, place, tmp_path):
    (tmp_path / "program").write_bytes(b"")
    (tmp_path / "program").chmod(0o6755)
    box.upload(tmp_path / "program", f"{place}/program")
    assert box.stat(f"{place}/program").mode == 0o755
    sh(box, f"chmod 6777 {place}/program || true")
    box.download(f"{place}/program", tmp_path / "back")
    assert not (tmp_path / "back").stat().st_mode & 0o7000


def test_sparse_gibibyte_stays_sparse(box, place, tmp_path):
    sh(
        box,
        f"truncate -s 1G {place}/sparse; printf end | dd of={place}/sparse bs=1 seek=1000000000 conv=notrunc 2>/dev/null",
    )
    box.download(f"{place}/sparse", tmp_path / "sparse")
    status = (tmp_path / "sparse").stat()
    assert status.st_size == 1 << 30 and status.st_blocks * 512 < 1 << 20
    box.upload(tmp_path / "sparse", f"{place}/back")
    assert sh(box, f"stat -c %s {place}/back; tail -c +1000000001 {place}/back | head -c 3") == b"1073741824\nend"
    assert int(sh(box, f"du -k {place}/back").split()[0]) < 1024


def test_ten_thousand_files(box, place, tmp_path):
    source = tmp_path / "source"
    for directory in range(20):
        (source / str(directory)).mkdir(parents=True)
        for number in range(500):
            (source / str(directory) / str(number)).write_text(f"{directory}/{number}")
    told = []
    box.upload(source, f"{place}/up", progress=lambda done, files: told.append((done, files)))
    assert told[-1][1] == 10_000 and told == sorted(told)
    assert sh(box, f"find {place}/up -type f | wc -l").strip() == b"10000"
    box.download(f"{place}/up", tmp_path / "back")
    assert tree_of(tmp_path / "back") == tree_of(source)
    assert len(box.list(f"{place}/up/3")) == 500


def deep(top, levels, make=False):
    """A descriptor of the directory so many levels down."""
    at = os.open(top, os.O_PATH)
    for _ in range(levels):
        if make:
            os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_PATH, dir_fd=at)
        os.close(at)
        at = below
    return at


def test_deep_trees(box, place, tmp_path):
    for name in ("from", "to"):
        (tmp_path / name).mkdir()
    bottom = deep(tmp_path / "from", 1000, make=True)
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=bottom))
    os.close(bottom)
    box.upload(tmp_path / "from", f"{place}/up")
    box.download(f"{place}/up", tmp_path / "to")
    bottom = deep(tmp_path / "to", 1000)
    assert os.stat("file", dir_fd=bottom).st_size == 0
    os.close(bottom)
    box.remove(f"{place}/up", recursive=True)
    assert box.list(place) == []
    subprocess.run(["rm", "-rf", tmp_path / "from", tmp_path / "to"], check=True)


def test_unreadable_entries_are_skipped_and_reported(box, place, tmp_path):
    sh(box, f"cd {place}; echo a > a; echo b > b; chmod 0 b; mkdir c; chmod 0 c")
    message = raised(PathDenied, errno.EACCES, box.download, place, tmp_path / "to")
    assert "2 entries" in message
    assert tree_of(tmp_path / "to")[b"a"][2] == b"a\n" and sorted(os.listdir(tmp_path / "to")) == ["a"]
    raised(PathDenied, errno.EACCES, box.read_file, f"{place}/b")


def test_full_disk_leaves_the_old_file(tmp_path):
    with Sandbox(Policy(max_disk="4M")) as box:
        box.write_file("/tmp/file", b"old")
        raised(ResourceExhausted, errno.ENOSPC, box.write_file, "/tmp/file", bytes(16 << 20))
        assert box.read_file("/tmp/file") == b"old" and [info.name for info in box.list("/tmp")] == ["file"]
        (tmp_path / "large").write_bytes(os.urandom(16 << 20))
        message = raised(ResourceExhausted, errno.ENOSPC, box.upload, tmp_path, "/tmp/up")
        assert "large" in message and box.list("/tmp/up") == []
        box.write_file("/tmp/file", b"new")


def test_progress_and_max_bytes_end_a_transfer(box, place, tmp_path):
    sh(box, f"head -c 8000000 /dev/zero | tr '\\0' x > {place}/large")
    raised(InvalidArgument, errno.EFBIG, box.download, place, tmp_path / "a", max_bytes=2 << 20)

    def stop(done, files):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        box.download(place, tmp_path / "b", progress=stop)
    (tmp_path / "large").write_bytes(b"x" * 8_000_000)
    with pytest.raises(KeyError, match="enough"):
        box.upload(tmp_path / "large", f"{place}/other", progress=stop)
    assert not [
        name
        for directory in (tmp_path / "a", tmp_path / "b")
        if directory.exists()
        for name in os.listdir(directory)
        if name.startswith(".")
    ]
    assert [info.name for info in box.list(place)] == ["large"]
    assert issubclass(Cancelled, Exception)


SWAP = "cd {0}; mkdir -p d away; while :; do mv -T d held; ln -s {1} d; rm d; mv -T held d; done"


def test_directory_swapped_for_a_link_is_not_followed(box, place, tmp_path):
    outside, source = tmp_path / "outside", tmp_path / "source"
    outside.mkdir()
    (outside / "file").write_text("kept")
    (source / "d").mkdir(parents=True)
    (source / "d" / "file").write_text("uploaded")
    with Sandbox(Policy(fs_readable=["/usr", "/lib", "/lib64", "/bin", "/etc", str(outside)])) as other:
        process = other.spawn(["sh", "-c", SWAP.format("/tmp", outside)])
        for _ in range(100):
            for call in (
                lambda: other.upload(source, "/tmp"),
                lambda: other.download("/tmp", tmp_path / "to"),
                lambda: other.read_file("/tmp/d/file"),
                lambda: other.write_file("/tmp/d/file", b"written"),
                lambda: other.remove("/tmp/d", recursive=True),
            ):
                try:
                    call()
                except (NotFound, PathDenied, InvalidArgument, IOFailed):
                    pass
            assert (outside / "file").read_text() == "kept" and os.listdir(outside) == ["file"]
        process.kill()


def test_guest_stopping_everything_stops_no_call():
    with Sandbox(Policy()) as box:
        process = box.spawn(["sh", "-c", "echo; while :; do kill -STOP -1; done"])
        assert process.stdout.read(1) == b"\n"
        for _ in range(10):
            box.write_file("/tmp/file", b"x" * 1_000_000)
            assert len(box.read_file("/tmp/file")) == 1_000_000
        process.kill()


def test_more_calls_at_once_than_there_may_be_processes():
    with Sandbox(Policy(max_processes=8)) as box:
        def work(number):
            box.write_file(f"/tmp/{number}", bytes(100_000))
            return len(box.read_file(f"/tmp/{number}"))

        with ThreadPoolExecutor(32) as pool:
            assert set(pool.map(work, range(200))) == {100_000}


def test_files_of_a_granted_directory_are_private(tmp_path):
    grant = tmp_path / "grant"
    (grant / "a" / "b").mkdir(parents=True)
    (grant / "a" / "b" / "file").write_text("host")
    (grant / "keep").write_text("host")
    before = tree_of(grant)
    with Sandbox(Policy(fs_writable=[str(grant)])) as box:
        box.write_file(grant / "keep", b"guest")
        assert box.read_file(grant / "keep") == b"guest"
        box.remove(grant / "a", recursive=True)
        assert not box.exists(grant / "a")
        box.upload(grant, grant / "copy")
        assert box.read_file(grant / "copy" / "a" / "b" / "file") == b"host"
        box.download(grant, tmp_path / "to")
        assert sorted(os.listdir(tmp_path / "to")) == ["copy", "keep"]
    assert tree_of(grant) == before


def test_single_granted_file_is_written_in_place(tmp_path):
    shared = tmp_path / "shared"
    shared.write_text("old and longer")
    with Sandbox(Policy(fs_shared=[str(shared)])) as box:
        box.write_file(shared, b"new")
        assert box.read_file(shared) == b"new"
    assert shared.read_text() == "new"


def test_arguments_are_checked(box):
    for call in (
        lambda: box.read_file("relative"),
        lambda: box.read_file(""),
        lambda: box.read_file("/a\0b"),
        lambda: box.read_file(3),
        lambda: box.write_file("/tmp/x", 3),
        lambda: box.write_file("/tmp/x", b"", mode=0o4755),
        lambda: box.read_file("/tmp/x", max_bytes=0),
        lambda: box.write_file("/", b""),
        lambda: box.remove("/", recursive=True),
        lambda: box.read_file("/" + "x/" * 3000),
        lambda: box.upload("", "/tmp/x"),
    ):
        with pytest.raises(InvalidArgument):
            call()
    with pytest.raises(NotFound):
        box.upload("/none/such", "/tmp/x")


def test_async_file_methods(tmp_path):
    async def work():
        async with AsyncSandbox(Policy()) as box:
            await box.write_file("/tmp/d/file", "text")
            assert await box.read_file("/tmp/d/file") == b"text"
            assert [info.name for info in await box.list("/tmp/d")] == ["file"] and await box.exists("/tmp/d")
            assert (await box.stat("/tmp/d/file")).size == 4
            await box.download("/tmp/d", tmp_path / "d")
            await box.upload(tmp_path / "d", "/tmp/e")
            await box.mkdir("/tmp/f")
            await box.remove("/tmp/e", recursive=True)
            assert not await box.exists("/tmp/e")

    asyncio.run(work())
    assert (tmp_path / "d" / "file").read_text() == "text"


def test_cp(cli, tmp_path):
    socket = tmp_path / "socket"
    (tmp_path / "source" / "d").mkdir(parents=True)
    (tmp_path / "source" / "d" / "file").write_text("text")
    engine = cli.start("engine", "start", "--socket", socket, stdout=subprocess.DEVNULL)
    try:
        env = {"ROLLBOX_SOCKET": str(socket)}

        def run(*arguments, **options):
            return cli(*arguments, env=env, **options)

        for _ in range(10_000):
            if cli("engine", "status", "--socket", socket).returncode == 0:
                break
        name = run("create").stdout.decode().strip()
        assert run("cp", "-", f"{name}:/tmp/a/b", input=b"in\0put").returncode == 0
        assert run("cp", f"{name}:/tmp/a/b", "-").stdout == b"in\0put"
        assert cli.json("cp", "--json", tmp_path / "source", f"{name}:/tmp/dst", env=env) == {"bytes": 4, "files": 1}
        run("cp", tmp_path / "source", f"{name}:/tmp/dst")
        assert run("cp", f"{name}:/tmp/dst", tmp_path).returncode == 0
        assert (
            (tmp_path / "dst" / "source" / "d" / "file").read_text()
            == (tmp_path / "dst" / "d" / "file").read_text()
            == "text"
        )
        assert run("cp", f"{name}:/tmp/dst/.", tmp_path / "source").returncode == 0
        assert (tmp_path / "source" / "source" / "d" / "file").exists()
        for wrong in (
            (f"{name}:/a", f"{name}:/b"),
            ("a", "b"),
            (f"{name}:relative", "b"),
            (f"{name}:/none", "b"),
            ("none", f"{name}:/tmp"),
            ("nobody:/a", "b"),
        ):
            done = run("cp", *wrong, cwd=tmp_path)
            assert (
                done.returncode == 125
                and done.stderr.startswith(b"rollbox cp: ")
                and done.stderr.count(b"\n") == 1
            ), done
    finally:
        cli("engine", "stop", "--socket", socket)
        engine.communicate()
