# SPDX-License-Identifier: Apache-2.0
"""Hostile archives as trees: what they name outside is not touched, and the server still works."""

import io
import random
import tarfile

import pytest
from harness import caller, repeat_count  # noqa: F401
from serving import server  # noqa: F401
from trees import DIRECTORY, FILE, HARD, LINK, box, execute, get, memory, packed, put  # noqa: F401

FIFO, CHARACTER, BLOCK = tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE
END = bytes(1024)
OUTSIDE = "cat /etc/hostile /tmp/hostile /hostile 2>/dev/null; ls /tmp"


def head(name, kind=FILE, size=0, link=b"", **fields):
    """One head, with any values."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link.decode()
    for key, value in fields.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def pax(records, declared=None):
    """A head of pax records, as raw bytes."""
    size = len(records) if declared is None else declared
    return head("x", tarfile.XHDTYPE, size) + records + bytes(-len(records) % 512)


def record(key, value):
    """One pax record."""
    rest = len(key) + len(value) + 3
    length = rest + 1
    while len(str(length)) + rest != length:
        length = len(str(length)) + rest
    return str(length).encode() + b" " + key + b"=" + value + b"\n"


def taken(server, box, data):  # noqa: F811
    """The status of an archive below /tmp/t. Then the server and the sandbox still work."""
    assert execute(server, box, "rm -rf /tmp/t; mkdir -p /tmp/t && echo made") == "made\n"
    status, body = put(server, f"{box}/tree/tmp/t", [data], len(data))
    assert status == 204 or 400 <= status < 500, (status, body)
    assert execute(server, box, OUTSIDE) == "t\n"
    return status


@pytest.mark.parametrize(
    "data, status",
    [
        (packed(("/etc/hostile", FILE, b"X", 0o644)), 204),
        (packed(("//tmp/../hostile", FILE, b"X", 0o644)), 400),
        (packed(("a/..", FILE, b"X", 0o644)), 400),
        (packed(("l", LINK, "/tmp", 0o777), ("l/hostile", FILE, b"X", 0o644)), None),
        (
            packed(
                ("l", LINK, "..", 0o777),
                ("l/", DIRECTORY, "", 0o755),
                ("l/hostile", FILE, b"X", 0o644),
            ),
            None,
        ),
        (packed(("l", LINK, "/tmp/hostile", 0o777), ("l", FILE, b"X", 0o644)), None),
        (packed(("a", FILE, b"X", 0o644), ("a/hostile", FILE, b"X", 0o644)), None),
        (packed(("h", HARD, "/etc/passwd", 0o644)), 400),
        (packed(("h", HARD, "../../etc/passwd", 0o644)), 400),
        (packed(("f", FIFO, "", 0o644)), 400),
        (packed(("c", CHARACTER, "", 0o644)), 400),
        (packed(("b", BLOCK, "", 0o644)), 400),
        (packed(("s", FILE, b"X", 0o6755)), 204),
        (head("s", b"S", 1 << 30) + END, 400),
        (head("s", FILE, 1 << 62) + END, None),
        (pax(record(b"GNU.sparse.realsize", b"1" * 18)) + head("s") + END, 400),
        (pax(record(b"size", b"4611686018427387903")) + head("s") + END, None),
        (pax(record(b"size", b"-1")) + head("s") + END, 400),
        (pax(record(b"path", b"../hostile")) + head("s") + END, 400),
        (pax(record(b"path", b"a" * 5000)) + head("s") + END, 400),
        (pax(record(b"path", b"a\0/../hostile")) + head("s") + END, 400),
        (pax(record(b"linkpath", b"/" * 4095)) + head("s", tarfile.SYMTYPE, link=b"x") + END, None),
        (pax(b"", 1 << 40) + END, 400),
        (pax(b"99999999999999999999 a=b\n") + head("s") + END, 400),
        (pax(b"5 a=b\n") + head("s") + END, 400),
        (head("x", b"L", 1 << 33) + END, 400),
        (head("n" * 90 + "\n\x1b[31m") + END, None),
        (head("a/" * 49 + "f") + END, 204),
        (packed(("/".join("d" * 1 for _ in range(2000)), FILE, b"X", 0o644)), None),
        (packed(("n" * 300, FILE, b"X", 0o644)), 400),
    ],
)
def test_archive_reaches_nothing_outside(server, box, data, status):  # noqa: F811
    assert status in (None, taken(server, box, data))
    assert execute(server, box, "find /tmp/t -perm /6000 -o -type p -o -type c -o -type b") == ""


def test_cut_archive_leaves_no_part_of_a_file(server, box):  # noqa: F811
    whole = packed(("a", FILE, b"A" * 3000, 0o644), ("b", FILE, b"B" * 3000, 0o644))
    for length in (1, 511, 512, 600, 3583, 3584, 4608, 7000):
        assert taken(server, box, whole[:length]) >= 400
        assert execute(server, box, "find /tmp/t -type f -size -3000c | grep -v '/[ab]$'") == ""
        assert execute(server, box, "find /tmp/t -name b") == ""


def test_many_heads_without_an_entry_take_no_memory(server, box):  # noqa: F811
    before = memory(server)
    one = pax(record(b"comment", b"c" * 60000))
    data = one * repeat_count(400, 400, soak=4000) + END
    assert taken(server, box, data) in (204, 400)
    assert memory(server) - before < 48


def test_hundred_thousand_entries(server, box):  # noqa: F811
    n = repeat_count(20_000, 2000, soak=100_000)
    data = b"".join(head(f"d{i // 1000}/f{i}") for i in range(n)) + END
    assert taken(server, box, data) == 204
    assert execute(server, box, "find /tmp/t -type f | wc -l").strip() == str(n)


def test_changed_archives_are_taken_or_refused(server, box):  # noqa: F811
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    whole = bytearray(
        pax(record(b"path", b"p/q") + record(b"mtime", b"1.5"))
        + head("q", FILE, 600)
        + b"Q" * 600
        + bytes(424)
        + packed(
            ("d/", DIRECTORY, "", 0o755),
            ("d/l", LINK, "../../..", 0o777),
            ("e", FILE, b"E", 0o644),
        )
    )
    for _ in range(repeat_count(60, 10, soak=2000)):
        data = bytearray(whole)
        at = dice.randrange(len(data))
        for _ in range(dice.choice((1, 1, 2, 8))):
            data[dice.randrange(len(data))] = dice.randrange(256)
        block = at - at % 512
        if dice.random() < 0.7:  # a right checksum, so that the change is looked at
            data[block + 148 : block + 156] = b" " * 8
            total = sum(data[block : block + 512])
            data[block + 148 : block + 156] = b"%06o\0 " % total
        taken(server, box, bytes(data))


def test_archive_is_read_back_by_tar(server, box):  # noqa: F811
    """A name with any bytes comes back as it was."""
    command = "mkdir -p /tmp/t; printf X >\"/tmp/t/$(printf 'a\\nb\\377')\"; echo ok"
    assert execute(server, box, command) == "ok\n"
    with tarfile.open(fileobj=io.BytesIO(get(server, f"{box}/tree/tmp/t").read())) as archive:
        assert [entry.name for entry in archive] == ["a\nb\udcff"]
