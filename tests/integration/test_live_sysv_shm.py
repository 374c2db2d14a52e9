# SPDX-License-Identifier: Apache-2.0
"""System V shared memory in snapshots, forks, resets and hibernated sandboxes, and PostgreSQL, whose
server has a segment of it. make check runs this file as root and as an ordinary user.
"""

import glob
import os
import struct

import pytest
import record_fuzz
from asked import Asked, closing, restorer  # noqa: F401
from many_users import give_ids, has_ids
from rollbox import FeatureMissing, Outcome, Policy, Sandbox
from stores import store  # noqa: F401
from two_stores import engine, other  # noqa: F401

CALLS = r"""
exec('''
import ctypes, errno, os, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.shmdt.argtypes = [ctypes.c_void_p]
libc.shmget.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
libc.mremap.restype = ctypes.c_void_p
RMID, SET, STAT, INFO, STAT_ANY = 0, 1, 2, 14, 15
def done(value):
    return errno.errorcode[ctypes.get_errno()] if value in (-1, 2**64 - 1) else value
def get(key, size, mode=0o1600): return done(libc.shmget(key, size, mode))
def at(id, flags=0): return done(libc.shmat(id, None, flags))
def dt(address): return done(libc.shmdt(address))
def rm(id): return done(libc.shmctl(id, RMID, None))
def read(address, n=5): return ctypes.string_at(address, n)
def write(address, data): ctypes.memmove(address, data, len(data))
def stat_of(number, how=STAT):
    data = ctypes.create_string_buffer(112)
    id = libc.shmctl(number, how, data)
    if id < 0: return done(id)
    key, uid, gid, cuid, cgid, mode = struct.unpack_from("i5I", data)
    size, = struct.unpack_from("Q", data, 48)
    attached, = struct.unpack_from("Q", data, 88)
    return (id if how == STAT_ANY else number, key, size, oct(mode), uid, gid, cuid, cgid, attached)
def all_of_them():
    data = ctypes.create_string_buffer(48)
    highest = libc.shmctl(0, INFO, data)
    return [s for i in range(highest + 1) if isinstance(s := stat_of(i, STAT_ANY), tuple)]
def pages():
    data = ctypes.create_string_buffer(48)
    libc.shmctl(0, INFO, data)
    return struct.unpack_from("3Q", data, 8)[1]
def maps(): return [line.split()[1:3] for line in open("/proc/self/maps") if "SYSV" in line]
''', globals())
"""


@pytest.fixture(params=["one", "many"])
def users(request):
    if request.param == "many" and os.geteuid() == 0:
        give_ids()
    elif request.param == "many" and not has_ids():
        pytest.skip("this ordinary user has no range of ids for sandboxes of many users")
    return request.param


def begin(box, *setup):
    lines = [line.strip("\n") for line in CALLS.strip("\n").split("\n")]
    program = repr("\n".join(lines[1:-1]))
    return Asked.begin(box, f"exec({program}, globals())", *setup)


@pytest.fixture
def box(users):
    with Sandbox(Policy(max_memory="512M", users=users)) as box:
        yield box


def copies(box, asked):
    """The process in each kind of copy, which may change it: forks, a fork of a fork, a woken sandbox
    and a fork of it, and a reset one."""
    base = box.snapshot()
    with closing(box.fork(2)) as kids:
        for kid in kids:
            with closing(kid.fork(1)) as grandchildren:
                yield asked.of(grandchildren[0])
            yield asked.of(kid)
    box.hibernate()
    with closing(box.fork(1)) as kids:
        yield asked.of(kids[0])
    yield asked.of(box)
    box.reset(base)
    yield asked.of(box)


def test_segments_keep_ids_keys_sizes_and_modes(box):
    """Attached or not; and one that is removed and still attached."""
    asked = begin(
        box,
        "for i in range(5): rm(get(0, 4096))",
        "a = get(7, 10000); b = get(0, 4096, 0o1644); c = get(-5, 1, 0o1060); d = get(0, 5000)",
        "a_at = at(a); b_at = at(b, 0o10000); d_at = at(d)",
        "write(a_at, b'first'); write(a_at + 12000, b'tail.'); write(d_at, b'fifth'); rm(d)",
    )
    before = asked("all_of_them()")
    assert before.count("(") == 4 and "'0o1600'" in before, before
    for copy in copies(box, asked):
        assert copy("all_of_them()") == before
        assert copy("read(a_at), read(a_at + 12000), read(b_at), read(d_at)") == (
            r"(b'first', b'tail.', b'\x00\x00\x00\x00\x00', b'fifth')"
        )
        assert copy("get(7, 10000, 0) == a, get(-5, 1, 0) in (c, 'EACCES')") == "(True, True)"
        assert copy("[p for p, _ in sorted(maps())]") == "['r--s', 'rw-s', 'rw-s']"
        assert copy("libc.mprotect(ctypes.c_void_p(b_at), 4096, 3), ctypes.get_errno()") == "(-1, 13)"


def test_segments_of_a_copy_are_its_own(box):
    asked = begin(box, "a = get(7, 4096); where = at(a)", "write(where, b'known')")
    with closing(box.fork(3)) as kids:
        for i, kid in enumerate(kids):
            copy = asked.of(kid)
            assert copy(f"write(where, b'kid-{i}'), read(where)")[-9:-1] == f"b'kid-{i}'"
            assert copy("rm(a), dt(where), stat_of(a), get(7, 4096, 0)") == "(0, 0, 'EINVAL', 'ENOENT')"
    assert asked("read(where), stat_of(a)[-1], get(7, 4096, 0) == a") == "(b'known', 1, True)"


CHILD = r"""
ours, theirs = os.pipe(), os.pipe()
if not os.fork():
    os.close(ours[1])
    while (line := os.read(ours[0], 100)): os.write(theirs[1], repr(eval(line)).encode())
    os._exit(0)
def child(line):
    os.write(ours[1], line.encode()); return eval(os.read(theirs[0], 100))
"""


def test_processes_of_a_copy_share_a_segment(box):
    """Each copy is one segment again, not one for each process that had attached it."""
    asked = begin(box, "a = get(7, 8192); where = at(a)", f"exec({CHILD!r}, globals())")
    assert asked("stat_of(a)[-1]") == "2"
    for copy in copies(box, asked):
        assert copy("child('write(where, b\"child\")'), read(where)") == "(None, b'child')"
        assert copy("write(where + 4096, b'above'), child('read(where + 4096)')") == "(None, b'above')"
        assert copy("stat_of(a)[-1], dt(where), stat_of(a)[-1]") == "(2, 0, 1)"
        assert copy("child('dt(where)'), stat_of(a)[-1], (where := at(a)) > 0") == "(0, 0, True)"
        assert copy("child('globals().update(where=at(a))')") == "None"


def test_parts_of_a_segment_are_attached_where_they_were(box):
    """munmap(2) and mremap(2) leave parts, and shmdt(2) takes all of them back."""
    asked = begin(
        box,
        "a = get(7, 16 * 4096); where = at(a)",
        "[write(where + i * 4096, b'page%x' % i) for i in range(16)]",
        "libc.munmap(ctypes.c_void_p(where + 4096), 4096)",
        "libc.mprotect(ctypes.c_void_p(where + 8 * 4096), 4096, 0)",
        "free = libc.mmap; free.restype = ctypes.c_void_p; moved = free(None, 4096, 0, 34, -1, 0)",
        "moved = libc.mremap(ctypes.c_void_p(where + 12 * 4096), 4096, 4096, 3, ctypes.c_void_p(moved))",
    )
    before = asked("maps(), stat_of(a)")
    seen = "read(where), read(where + 7 * 4096), read(moved), read(where + 15 * 4096)"
    assert asked(seen) == "(b'page0', b'page7', b'pagec', b'pagef')"
    for copy in copies(box, asked):
        assert copy("maps(), stat_of(a)") == before
        assert copy(seen) == "(b'page0', b'page7', b'pagec', b'pagef')"
        assert copy("write(moved, b'moved'), read((again := at(a)) + 12 * 4096), dt(again)") == "(None, b'moved', 0)"
        assert copy("dt(where), len(maps())") == "(0, 1)"
        assert copy("libc.munmap(ctypes.c_void_p(moved), 4096), stat_of(a)[-1]") == "(0, 0)"


def test_reset_restores_segments_and_removes_later_ones(box):
    asked = begin(box, "a = get(7, 4096); b = get(8, 4096); where = at(a)", "write(where, b'known')")
    before, base = asked("all_of_them()"), box.snapshot()
    copy = asked
    for _ in range(3):
        assert copy("write(where, b'later'), dt(where), rm(a), rm(b)") == "(None, 0, 0, 0)"
        assert copy("[isinstance(get(k, 8192), int) for k in (7, 9, 10)]") == "[True, True, True]"
        box.reset(base)
        copy = asked.of(box)
        assert copy("all_of_them()") == before
        assert copy("read(where), get(9, 8192, 0)") == "(b'known', 'ENOENT')"


def test_segments_that_appear_between_snapshots(box):
    """The first dumps have none, and later ones are made of what has changed since."""
    asked = begin(box, "kept, all_at = bytearray(b'x' * (4 << 20)), []")
    for i in range(4):
        with closing(box.fork(2)) as kids:
            for kid in kids:
                copy = asked.of(kid)
                answer = copy("all_of_them()")
                assert answer.count("(") == i, answer
                assert copy(f"[read(n) for n in all_at[:{i}]]") == str([b"seg-%d" % k for k in range(i)])
        asked(f"all_at.append(at(get({i + 1}, 4096)))")
        asked(f"write(all_at[-1], b'seg-{i}')")
    base = box.snapshot()
    asked("[rm(s[0]) for s in all_of_them()]")
    asked("[dt(n) for n in all_at]")
    with closing(box.fork(1)) as kids:
        assert asked.of(kids[0])("all_of_them(), maps()") == "([], [])"
    box.reset(base)
    assert asked.of(box)("[read(n) for n in all_at]") == str([b"seg-%d" % i for i in range(4)])


def test_as_many_segments_as_the_kernel_allows(box):
    asked = begin(
        box,
        "made = []",
        "exec('while isinstance(i := get(0, 1), int): made.append(i)')",
        "[rm(i) for i in made[::3]]",
    )
    n = int(asked("len(made)"))
    if n < 1000:
        pytest.skip("a few segments reach the bound where no memory cgroup counts them")
    assert asked("get(0, 1)").isdigit()
    before = asked("all_of_them()")
    with closing(box.fork(2)) as kids:
        for kid in kids:
            copy = asked.of(kid)
            assert copy("all_of_them()") == before
            copy("exec('more = 0\\nwhile isinstance(get(0, 1), int): more += 1')")
            assert int(copy("more")) == (n + 2) // 3 - 1
            assert copy("done(libc.shmget(0, 1, 0o1600))") == "'ENOSPC'"


def test_holes_of_large_segments_take_no_memory(box):
    """A guest may make one of 40 GiB in a sandbox of 512 MiB, as long as it has few pages."""
    asked = begin(box, "a = get(7, 40 << 30, 0o11600)")
    if not asked("a").isdigit():
        pytest.skip("segments are bounded where no memory cgroup counts them")
    asked("where = at(a)")
    asked("[write(where + i, b'there') for i in (0, 20 << 30, (40 << 30) - 4096)]")
    for copy in copies(box, asked):
        assert copy("[read(where + i) for i in (0, 20 << 30, (40 << 30) - 4096)]") == str([b"there"] * 3)
        assert copy("pages(), stat_of(a)[2] == 40 << 30") == "(3, True)"


def test_segments_beyond_the_limit_of_a_dump_are_refused(box):
    asked = begin(box, "a = get(7, 1 << 46, 0o11600); b = get(8, 4096); where = at(b)")
    if not asked("a").isdigit():
        pytest.skip("segments are bounded where no memory cgroup counts them")
    asked("write(where, b'there')")
    for call in (box.snapshot, box.fork, box.hibernate):
        with pytest.raises(FeatureMissing, match="System V shared memory has together more than 64 GiB"):
            call()
    assert asked("read(where), rm(a)") == "(b'there', 0)"
    with closing(box.fork(1)) as kids:
        assert asked.of(kids[0])("read(where)") == "b'there'"


def test_segments_of_a_copy_count_against_its_memory(users):
    """Its pages are the copy's, whether a process has attached them or not."""
    with Sandbox(Policy(max_memory="128M", users=users)) as box:
        asked = begin(box, "a = get(7, 80 << 20)")
        if not asked("a").isdigit():
            pytest.skip("segments are bounded where no memory cgroup counts them")
        asked("where = at(a)")
        asked("ctypes.memset(where, 7, 80 << 20)")
        asked("dt(where)")
        kid, = box.fork(1)
        with kid:
            assert asked.of(kid)("read((where := at(a)) + (40 << 20), 2), pages()") == r"(b'\x07\x07', 20480)"
            assert kid.exec(["python3", "-c", "bytearray(b'1' * (100 << 20))"]).outcome == Outcome.OUT_OF_MEMORY
        assert asked("read((where := at(a)) + (40 << 20), 2)") == r"b'\x07\x07'"


USERS = """
import os
os.setgroups([])
def as_user(uid, line):
    os.setresgid(-1, uid, -1); os.setresuid(-1, uid, -1)
    try: return eval(line, globals())
    finally: os.setresuid(-1, 0, -1); os.setresgid(-1, 0, -1)
"""


@pytest.mark.parametrize("users", ["many"], indirect=True)
def test_owners_creators_and_modes_of_many_users(box):
    """A process keeps a segment attached that it could not attach again."""
    asked = begin(
        box,
        f"exec({USERS!r}, globals())",
        "a = as_user(1001, 'get(7, 4096)'); b = as_user(1002, 'get(8, 4096, 0o1666)')",
        "b_at = at(b); write(b_at, b'given')",
        "perm = ctypes.create_string_buffer(112); libc.shmctl(b, STAT, perm)",
        "struct.pack_into('3I', perm, 4, 1003, 1004, 1002); struct.pack_into('I', perm, 20, 0)",
        "as_user(1002, 'libc.shmctl(b, SET, perm)')",
    )
    before = asked("all_of_them()")
    with closing(box.fork(1)) as kids:
        assert asked.of(kids[0])("as_user(1003, 'rm(b)'), as_user(1001, 'rm(a)')") == "(0, 0)"
    assert "1001, 1001, 1001, 1001, 0)" in before and "'0o0', 1003, 1004, 1002, 1002, 1)" in before, before
    for copy in copies(box, asked):
        assert copy("all_of_them()") == before
        assert copy("read(b_at)") == "b'given'"
        assert copy("as_user(1001, 'at(b)'), as_user(1003, 'at(a)')") == "('EACCES', 'EACCES')"
        assert copy("as_user(1001, 'rm(b)'), as_user(1003, 'rm(a)')") == "('EPERM', 'EPERM')"


def test_exported_processes_keep_their_segments(users, engine, other, tmp_path, store):  # noqa: F811
    """Another store on the same machine imports the file; the copy of a copy is a difference to it."""
    with Sandbox(Policy(max_memory="512M", users=users), engine=engine) as box:
        asked = begin(box, "a = get(7, 4096); where = at(a)", "write(where, b'known')")
        before = asked("all_of_them()")
        box.export(tmp_path / "box.live", processes="keep")
        assert asked("rm(a), dt(where)") == "(0, 0)"
    other.import_(tmp_path / "box.live", "copy", 0, (), "--trust")
    with other.engine() as there:
        copy = Sandbox.open("copy", engine=there)
        again = asked.of(copy)
        assert again("all_of_them(), read(where)") == f"({before}, b'known')"
        again("write(where, b'later')")
        copy.hibernate()
        assert asked.of(copy)("all_of_them(), read(where)") == f"({before}, b'later')"


HEADER_BYTES = 552
PART_OF_SEGMENTS = 20
SEGMENT = struct.Struct("<2IQ8I")  # struct image_segment
FORGERIES = {
    "an id above all ids": (0, 1 << 31),
    "no size": (2, 0),
    "a size below its pages": (2, 1),
    "a size above all addresses": (2, 1 << 62),
    "a mode with other bits": (3, 0o4777),
    "an owner outside": (5, 65536),
    "a group outside": (6, 65536),
    "a creator outside": (7, 2**32 - 1),
    "a creator's group outside": (8, 100000),
    "pages past the table": (9, 1 << 20),
    "more pages than the table": (10, 1 << 20),
}


@pytest.fixture(scope="module")
def live_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("forged") / "file"
    with Sandbox(Policy(max_memory="512M")) as box:
        asked = begin(box, "a = get(7, 9000); where = at(a)", "write(where + 8192, b'known')")
        box.export(path, processes="keep")
        assert asked("read(where + 8192)") == "b'known'"
    return path


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_segments_are_not_imported(live_file, other, tmp_path, name):  # noqa: F811
    case = record_fuzz.Case(record_fuzz.members_of(live_file))
    image = bytearray(case.files["image-0"])
    at, n = struct.unpack_from("<2Q", image, len(image) - HEADER_BYTES + 16 * PART_OF_SEGMENTS)
    fields = list(SEGMENT.unpack_from(image, at))
    assert n == 1 and fields[1:5] == [7, 9000, 0o600, 0] and fields[10] == 1, fields
    field, value = FORGERIES[name]
    fields[field] = value
    SEGMENT.pack_into(image, at, *fields)
    case.files["image-0"] = bytes(image)
    code, why = other.refuses(case.write(tmp_path / "forged"))
    assert code == "damaged" and "is not a process image" in why, (code, why)


def test_segments_under_a_clock_of_the_policy(users):
    """Init answers reads of the times of segments, but not before the processes have resumed."""
    with Sandbox(Policy(max_memory="512M", users=users, time_start="2030-01-01T00:00:00Z", random_seed=1)) as box:
        asked = begin(box, "a = get(7, 4096); where = at(a)", "write(where, b'known')")
        before = asked("all_of_them()")
        for kid in box.fork(2):
            with kid:
                assert asked.of(kid)("all_of_them(), read(where)") == f"({before}, b'known')"


# ---- PostgreSQL ----

INSTALLED = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
# Its programs refuse to run as root.
AS_NOBODY = "setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/tmp"
SERVER = f"""
export LC_ALL=C PATH={"".join(INSTALLED[-1:])}:$PATH; cd /tmp; mkdir /tmp/pg; as=
if [ $(id -u) = 0 ]; then chown 65534:65534 /tmp/pg; as="{AS_NOBODY}"; fi
$as initdb -D /tmp/pg/data -A trust -U me >/tmp/log 2>&1 || {{ cat /tmp/log; exit 1; }}
$as pg_ctl -D /tmp/pg/data -w -o "-k /tmp/pg -c listen_addresses=''" -l /tmp/pg/log start >/dev/null || {{
    cat /tmp/pg/log; exit 1; }}
"""


def sql(box, query):
    argv = ["psql", "-h", "/tmp/pg", "-U", "me", "-Atq", "-c", query, "postgres"]
    done = box.exec(argv, text=True)
    return done.stdout.strip() or done.stderr.strip()


@pytest.mark.skipif(not INSTALLED, reason="PostgreSQL is not installed")
def test_postgresql_forks_resets_and_hibernates(users):
    """Each copy of a server continues by itself, with its segment, its processes and its files."""
    with Sandbox(Policy(max_memory="1G", users=users)) as box:
        done = box.exec(["sh", "-c", SERVER], timeout=120, text=True)
        assert done.exit_code == 0, done
        assert sql(box, "create table t(n int, name text); insert into t values (1, 'origin')") == ""
        with closing(box.fork(10)) as kids:
            for i, kid in enumerate(kids):
                assert sql(kid, f"insert into t select {i}, 'kid' from generate_series(1, {i + 1})") == ""
            for i, kid in enumerate(kids):
                assert sql(kid, "select count(*), max(n) from t") == f"{i + 2}|{max(i, 1)}"
                assert sql(kid, "select pg_reload_conf(); vacuum t; checkpoint") == "t"
        base = box.snapshot()
        assert sql(box, "drop table t") == ""
        box.reset(base)
        assert sql(box, "select * from t") == "1|origin"
        box.hibernate()
        assert sql(box, "insert into t values (2, 'woken'); select count(*) from t") == "2"
        with closing(box.fork(1)) as kids:
            assert sql(kids[0], "select name from t where n = 2") == "woken"
            stop = f"PATH={INSTALLED[-1]}:$PATH; as=; [ $(id -u) = 0 ] && as='{AS_NOBODY}'; cd /tmp"
            stop += "; $as pg_ctl -D /tmp/pg/data -w stop >/dev/null && tail -n +2 /proc/sysvipc/shm"
            stopped = kids[0].exec(["sh", "-c", stop], text=True)
            assert (stopped.exit_code, stopped.stdout) == (0, ""), stopped
        assert sql(box, "select count(*) from t") == "2"
