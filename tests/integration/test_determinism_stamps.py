# SPDX-License-Identifier: Apache-2.0
"""Time stamps of files under time_start: they are of the sandbox's clock, read back as they were
set, come in the order of what was done, and under virtual time repeat.

The model: a guest looks at what it has made in every way there is, and compares with its own clock;
the time of the machine is nowhere seen. What must repeat is run six times, four side by side.
"""

import contextlib
import json
import os
import shutil
import subprocess

import pytest
from corpus import LIMIT_S, PY, START, START_S, TIMES, VIRTUAL, guest_in_ways, run_corpus
from harness import binaries, caller, place  # noqa: F401

from rollbox import Policy, Sandbox

pytestmark = pytest.mark.timeout_s(2 * LIMIT_S)
MODES = {"offset": ("--time-start", START), "virtual": VIRTUAL, "serial": (*VIRTUAL, "--serial")}
FUTURE = {
    "offset": ("--time-start", "2040-01-01T00:00:00"),
    "virtual": ("--time-start", "2040-01-01T00:00:00", "--time-mode", "virtual"),
}

# Programs that print file times in many ways. Under virtual time their output repeats.
CORPUS = {
    "touch": [
        "bash",
        "-c",
        "cd /tmp; touch f; stat -c '%x %y %z %w' f; sleep 5; touch f; stat -c '%x %y %z %w' f; echo x >> f; sleep 7; stat -c '%y %z' f",
    ],
    "date-r": [
        "bash",
        "-c",
        "touch /tmp/x; date -r /tmp/x +%s.%N; sleep 3600; echo x > /tmp/x; date -r /tmp/x +%s.%N",
    ],
    "ls": [
        "bash",
        "-c",
        "cd /tmp; mkdir -p a/b; touch a/c; ln -s c a/l; ln a/c a/d; mkfifo a/f; ls -laR --full-time a; ls -la --full-time /tmp; ls -ltd --full-time /tmp /var/tmp /",
    ],
    "redirected": [
        "bash",
        "-c",
        "cd /tmp; seq 100 > a; sleep 10; seq 100 > b; sleep 10; seq 9 | sort > c; ls --full-time b c a; find . -newer a | sort",
    ],
    "background": [
        "bash",
        "-c",
        "cd /tmp; (for i in 1 2 3; do echo $i; sleep 100; done) > log; stat -c %y log; sleep 50; stat -c %y log",
    ],
    "tar": [
        "bash",
        "-c",
        "cd /tmp; mkdir d; echo 1 > d/a; sleep 2; echo 2 > d/b; tar cf t d; rm -r d; sleep 100; tar xf t; stat -c '%n %y' d/a d/b; tar tvf t --full-time; md5sum t",
    ],
    "cp": [
        "bash",
        "-c",
        "cd /tmp; echo 1 > a; sleep 3; cp -p a b; cp a c; stat -c '%n %y' a b c; mv b e; stat -c '%n %y %z' e",
    ],
    "gzip": [
        "bash",
        "-c",
        "cd /tmp; echo 1 > a; gzip a; md5sum a.gz; gunzip -N a.gz; stat -c %y a",
    ],
    "python": [
        *PY,
        "import os, time\nos.chdir('/tmp')\nfor n in range(5):\n    open(str(n), 'w').write('x')\n    time.sleep(n)\nprint([os.stat(str(n)).st_mtime_ns for n in range(5)], [os.stat(str(n)).st_ctime_ns for n in (3, 1)], time.time())",
    ],
    "python-order": [
        *PY,
        "import os\nos.chdir('/tmp')\nfor n in range(300): open(str(n), 'w').write('x')\ntimes = [os.stat(str(n)).st_mtime_ns for n in reversed(range(300))]\nprint(times[:5], sum(times), len(set(times)), times == sorted(times, reverse=True))",
    ],
    "python-scandir": [
        *PY,
        "import os, zipfile\nos.chdir('/tmp')\nopen('a', 'w').write('x')\nprint([(e.name, e.stat().st_mtime_ns) for e in os.scandir('.')])\nz = zipfile.ZipFile('z', 'w'); z.write('a'); z.close(); print(open('z', 'rb').read().hex(), zipfile.ZipFile('z').infolist())",
    ],
    "devices": [
        "bash",
        "-c",
        "cd /tmp; echo > a; touch -d 1999-01-01 a; stat -c '%d %n' / /dev /tmp /var/tmp /dev/shm /etc/passwd a; perl -e 'print join \" \", map { (stat $_)[0] } qw(/ /tmp a a a a)'",
    ],
    "perl": [
        "perl",
        "-e",
        "open F, '>/tmp/f'; print F 'x'; close F; sleep 20; print join ',', (stat '/tmp/f')[8..10]; printf ' %.9f', -M '/tmp/f'",
    ],
}
for kind in ("static", "dynamic", "musl"):
    CORPUS[f"c-{kind}"] = [kind, "/tmp", "written"]
if shutil.which("make"):
    CORPUS["make"] = [
        "bash",
        "-c",
        "cd /tmp; printf 'b: a\\n\\tcp a b\\nc: b\\n\\tcp b c\\n' > Makefile; echo > a; make c; make c; echo > a; make c; touch b; make c; sleep 9; make c; touch -d '1 hour' a; make c 2>&1; stat -c '%n %y' a b c",
    ]
if shutil.which("git"):
    CORPUS["git"] = [
        "bash",
        "-c",
        "cd /tmp; git init -q . 2>/dev/null; echo a > a; git add a; git -c user.name=a -c user.email=b commit -qm x; git log --format=%H%ct; echo b > a; git status -s; git ls-files --debug",
    ]
if shutil.which("node", path="/usr/bin"):
    CORPUS["node"] = [
        "node",
        "-e",
        "const fs = require('fs'); fs.writeFileSync('/tmp/a', 'x'); const s = fs.statSync('/tmp/a'); console.log(s.mtimeMs, s.birthtimeMs, s.mtimeMs < Date.now()); fs.utimesSync('/tmp/a', 1, 2.5); console.log(fs.statSync('/tmp/a').mtimeMs)",
    ]


@pytest.fixture(scope="module")
def programs():
    return guest_in_ways("stamps")


@pytest.fixture(scope="module", params=("virtual", "serial"))
def outputs(request, caller, programs):
    return run_corpus(caller, CORPUS, programs, TIMES, "-j", "4", "--seed", "7", *MODES[request.param])


@pytest.mark.parametrize("name", sorted(CORPUS))
def test_program_repeats(outputs, name):
    if name not in outputs:
        pytest.skip("this machine has no such program")
    for text in outputs[name]:
        assert text == outputs[name][0]


def bash(caller, mode, text, *flags):
    result = caller.run(*mode, *flags, "--", "bash", "-ec", "cd /tmp\n" + text)
    assert result.outcome == "exit" and result.exit_code == 0, result
    return result.stdout


def lines_of(caller, mode, text, *flags):
    return bash(caller, mode, text, *flags).splitlines()


# Whose time it is

@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ("static", "dynamic", "musl"))
def test_all_calls_that_read_and_set_file_times(caller, programs, kind, mode):
    """stamps.c compares with its own clock, and what it has set with what it reads."""
    if kind not in programs:
        pytest.skip("needs musl-gcc: it is not installed")
    for flags in (MODES[mode], FUTURE.get(mode, MODES[mode])):
        result = caller.run("--readable", place() / "guests", *flags, "--", programs[kind], "/tmp", "ways")
        assert result.exit_code == 0, result
        assert "not ok" not in result.stdout and result.stdout.count("ok") >= 30, result.stdout


@pytest.mark.parametrize("mode", ("offset", "virtual"))
@pytest.mark.parametrize("what", ("children", "signals"))
def test_stat_by_the_vdso(caller, programs, mode, what):
    """glibc's code is changed in a process that has it to itself alone, and so that a call that a
    signal breaks off is done all the same."""
    result = caller.run("--readable", place() / "guests", *MODES[mode], "--", programs["dynamic"], "/tmp", what)
    assert result.exit_code == 0 and "not ok" not in result.stdout, result


@pytest.mark.parametrize("mode", MODES)
def test_file_times_are_the_sandbox_clocks(caller, mode):
    before, *years, after = lines_of(
        caller,
        MODES[mode],
        "date +%s; touch a; echo > b; mkdir c; ln -s a d; mkfifo e; stat -c '%X %Y %Z %W' a b c d e . / /var/tmp /dev/shm | tr ' ' '\\n'; date +%s",
    )
    assert len(years) == 36
    for one in map(int, years):
        assert START_S - 10 <= one <= int(after) and one >= int(before) - 10


@pytest.mark.parametrize("mode", MODES)
def test_set_file_times_are_read_back(caller, mode):
    dates = [
        "1999-01-01 00:00:00.123456789",
        "2024-12-31 23:59:59.000000000",
        "2025-01-01 00:00:05.000000001",
        "2025-06-01 12:00:00.500000000",
        "2033-03-03 03:03:03.300000000",
        "2100-01-01 00:00:00.000000000",
    ]
    said = lines_of(
        caller,
        MODES[mode],
        "\n".join(
            f"touch -d '{date}' f; stat -c %y f; touch -a -d '2031-01-01 00:00:00' f; stat -c %y f; cp -p f g; stat -c %y g; tar cf t --format=posix f; rm f; tar xf t; stat -c %y f; touch -r f h; stat -c %y h"
            for date in dates
        ),
    )
    assert said == [f"{date} +0000" for date in dates for _ in range(5)]


@pytest.mark.parametrize("mode", FUTURE)
def test_file_times_with_a_start_in_the_future(caller, mode):
    said = lines_of(
        caller,
        FUTURE[mode],
        "touch -d '2039-12-31 23:00:00' f; stat -c %y f; touch g; date -r g +%Y; find . -newer f -type f; touch -d '2027-01-01 00:00:00' h; stat -c %y h; sleep 0.1; touch f; find . -newer g -type f",
    )
    assert said == ["2039-12-31 23:00:00.000000000 +0000", "2040", "./g", "2027-01-01 00:00:00.000000000 +0000", "./f"]


@pytest.mark.parametrize("mode", MODES)
def test_files_of_one_file_system_are_on_one_device(caller, mode):
    """By every call and at every age: glibc's call, which the vDSO makes from the third on, a descriptor, statx."""
    python = "for p in ['.', 'd', 'd/a', os.open('d/a', 0)] * 4: print(os.stat(p).st_dev)"
    *numbers, found, root = lines_of(
        caller,
        MODES[mode],
        f"mkdir d; echo x > d/a; touch -d 1999-01-01 d/a d; stat -c %d . d d/a /var/tmp /dev/shm; python3 -c 'import os\n'\"{python}\"; find . -xdev -name a; stat -c %d /",
    )
    assert len(numbers) == 21 and len(set(numbers)) == 1 and found == "./d/a" and root not in numbers


@pytest.mark.parametrize("mode", MODES)
def test_host_files_keep_their_times(caller, mode):
    directory = caller.directory(0o755)
    caller.write(directory / "old", "x")
    os.utime(directory / "old", ns=(1700000000123456789, 1700000001987654321))
    for way in ("--readable", "--writable", "--shared"):
        assert lines_of(
            caller, MODES[mode], f"stat -c %.9Y {directory}/old", way, str(directory)
        ) == ["1700000001.987654321"]
    first, second, date = lines_of(
        caller,
        MODES[mode],
        f"echo y >> {directory}/old; date +%s; stat -c %Y {directory}/old {directory}",
        "--writable",
        str(directory),
    )
    assert START_S <= int(second) < START_S + 60
    assert (directory / "old").stat().st_mtime_ns == 1700000001987654321


@pytest.mark.parametrize("mode", MODES)
def test_shared_files_keep_real_times(caller, mode):
    """Processes outside see the kernel's times; only times that a guest sets are as it set them."""
    directory = caller.directory(0o755)
    year = lines_of(
        caller,
        MODES[mode],
        f"echo > {directory}/a; touch {directory}/b; touch -d '2001-01-01 00:00:00' {directory}/c; stat -c %Y {directory}/c",
        "--shared",
        str(directory),
    )
    assert year == ["978307200"]
    assert (
        abs((directory / "a").stat().st_mtime - (directory / "b").stat().st_mtime) < 60
        and (directory / "a").stat().st_mtime > START_S + 86400 * 300
    )
    assert (directory / "c").stat().st_mtime == 978307200


@pytest.mark.parametrize("mode", MODES)
def test_files_of_the_sandbox_have_the_start_time(caller, mode):
    """The clock begins in the same tick of the kernel's as /dev/pts and /proc/uptime are made in, or in the next."""
    for _ in range(25):
        for line in lines_of(caller, MODES[mode], "stat -c '%X %Y %Z' /dev/pts /proc/uptime /proc /proc/filesystems"):
            assert all(START_S - 1 <= int(stamp) < START_S + 60 for stamp in line.split()), line


@pytest.mark.parametrize("mode", MODES)
def test_files_without_a_name(caller, mode):
    """Memory files, which the kernel stamps ahead of its coarse clock after a look at them; objects
    with one shared inode, with times of the machine's start; terminals, with whole seconds, up to
    one before the sandbox."""
    code = f"""
import ctypes, os
fds = [os.eventfd(0), ctypes.CDLL(None).timerfd_create(1, 0), *os.openpty()]
os.write(fds[-1], b"x")
for n in range(50):
    try:
        fds.append(os.memfd_create("f"))
    except OSError:     # there are none where memory is limited without a cgroup
        break
    os.write(fds[-1], b"x")
    os.fstat(fds[-1])
    os.write(fds[-1], b"x")
for fd in fds:
    for _ in range(3):
        s = os.fstat(fd)
        assert all({START_S - 1} <= at < {START_S + 60} for at in (s.st_atime, s.st_mtime, s.st_ctime)), (os.readlink(f"/proc/self/fd/{{fd}}"), s)
"""
    for _ in range(3):
        result = caller.run(*MODES[mode], "--", *PY, code)
        assert result.exit_code == 0, result


@pytest.mark.parametrize("mode", MODES)
def test_proc_times_are_the_sandbox_clocks(caller, mode):
    """Files of /proc that belong to no process, and processes other than init; also the number of
    links of /proc itself, which would show how many processes the machine has."""
    said = lines_of(
        caller,
        MODES[mode],
        "stat -c '%h %Y' /proc; ls -ld --time-style=+%s /proc | cut -d ' ' -f 2,6; sleep 5 & stat -c '1 %Z' /proc/filesystems /proc/$! /proc/$!/stat; exec < /proc/$!/status; stat -L -c '1 %Y' - ; kill $!",
    )
    assert len(said) == 6
    for line in said:
        links, at = map(int, line.split())
        assert links == 1 and START_S <= at < START_S + 60, said


# Order

@pytest.mark.parametrize("mode", MODES)
def test_make_rebuilds_only_outdated_files(caller, mode):
    if not shutil.which("make"):
        pytest.skip("needs make: it is not installed")
    said = bash(
        caller,
        MODES[mode],
        r"""
printf 'out: b.o c.o\n\tcat b.o c.o > out; echo linked\n%%.o: %%.c\n\tcp $< $@\n' > Makefile
echo b > b.c; echo c > c.c
step() { echo "== $1"; make -s; }
make -s; step again; sleep 0.02; echo bb > b.c; step b; step again; sleep 0.02; touch c.c; step c; touch -d '2001-01-01 00:00:00' c.c; step old; rm b.o; sleep 0.02; step gone; step again
""",
    )
    assert [part.count("linked") for part in said.split("==")] == [1, 0, 1, 0, 1, 0, 1, 0], said
    assert "skew" not in said


def test_virtual_make_needs_no_pause(caller):
    """Each file is newer than the one before, however quickly they come."""
    said = lines_of(
        caller,
        MODES["virtual"],
        "printf 'b: a\\n\\t@cp a b; echo made\\n' > Makefile; for i in 1 2 3 4 5; do echo $i > a; make b; done; make b",
        "--seed",
        "1",
    )
    assert said == ["made"] * 5 + ["make: 'b' is up to date."]


@pytest.mark.parametrize("mode", ("virtual", "serial"))
def test_changes_in_one_tick_of_the_kernel_s_clock(caller, mode):
    """A file that is changed again before the kernel's stamps move on is newer all the same, and so
    is its directory."""
    code = """
import os
os.chdir("/tmp")
times = []
for n in range(100):
    open("f", "a").write("x")
    times.append(os.stat("f").st_mtime_ns)
    open(str(n), "w")
    times.append(os.stat(".").st_mtime_ns)
print(times == sorted(set(times)), len(set(times)))
"""
    result = caller.run(*MODES[mode], "--", *PY, code)
    assert result.stdout == "True 200\n", result


AGAIN = """
import ctypes, os, random, struct, threading
libc = ctypes.CDLL(None, use_errno=True)
def asked(path):
    buffer = ctypes.create_string_buffer(144)
    assert libc.syscall(262, -100, os.fsencode(path), buffer, 0) == 0       # newfstatat, not by glibc's code
    a = struct.unpack_from("6q", buffer, 72)
    return a[0] * 10**9 + a[1], a[2] * 10**9 + a[3], a[4] * 10**9 + a[5]
def by_glibc(path):
    st = os.stat(path)
    return st.st_atime_ns, st.st_mtime_ns, st.st_ctime_ns
def switches():
    return next(int(line.split()[1]) for line in open("/proc/thread-self/status") if line.startswith("voluntary"))
os.chdir("/tmp")
for name in "f", "g", "h":
    open(name, "w").write("x")
os.mkdir("d")
"""


@pytest.mark.parametrize("mode", ("offset", "virtual"))
def test_repeated_stat_is_equal_until_a_change(caller, mode):
    """The vDSO answers without init; after any change to a file between two looks, it shows init's times."""
    code = (
        AGAIN
        + """
ways = [
    lambda f: open(f, "a").write("y") if f != "d" else open("d/1", "w"), lambda f: os.chmod(f, random.choice((0o700, 0o750))), lambda f: os.utime(f), lambda f: os.utime(f, (5, 7)), lambda f: os.utime(f, ns=(0, os.stat(f).st_mtime_ns)),
    lambda f: os.link(f, "l") or os.unlink("l") if f != "d" else os.mkdir("d/2") or os.rmdir("d/2"), lambda f: (os.rename(f, "r"), os.rename("r", f)), lambda f: open(f).read() if f != "d" else os.listdir("d"), lambda f: os.truncate(f, 1) if f != "d" else os.utime("d"),
    lambda f: (os.replace(f, "h"), open(f, "w").write("z")) if f in "fg" else None, lambda f: open("other", "w").write("z"),
]
random.seed(1)
for n in range(3000):
    name = random.choice("fgd")
    for look in range(random.randrange(4)):
        by_glibc(name)
    way = random.randrange(len(ways))
    before = by_glibc(name)
    ways[way](name)
    said, knows = by_glibc(name), asked(name)
    assert said == knows, (n, name, way, before, said, knows)
    if n % 100 == 0:
        child = os.fork()
        if not child:
            os.chmod(name, 0o711)
            os._exit(by_glibc(name) != asked(name))
        assert os.waitpid(child, 0)[1] == 0 and by_glibc(name) == asked(name)
print("alike")
"""
    )
    result = caller.run(*MODES[mode], "--", *PY, code)
    assert result.stdout == "alike\n", result


def test_repeated_stat_makes_no_request(caller):
    """Init is another process: each question would be a switch."""
    code = AGAIN + """
def added(look):
    before = switches()
    for n in range(1000):
        look(".")
    return switches() - before
added(by_glibc)
print(added(by_glibc) < 100, added(asked) >= 1000)
"""
    result = caller.run(*MODES["virtual"], "--", *PY, code)
    assert result.stdout == "True True\n", result


def test_threads_that_stat_during_a_request(caller):
    """The times that init stores beside the code are never half-written: each look shows a past
    state of the file, and never an earlier one than the look before."""
    code = (
        AGAIN
        + """
def look(seen):
    while not done:
        at, mt, ct = by_glibc("f")
        seen.append((mt, ct))
for n in range(9):
    by_glibc("f")
done, seens, states = False, [[] for _ in range(3)], set()
threads = [threading.Thread(target=look, args=(seen,)) for seen in seens]
for thread in threads:
    thread.start()
for n in range(300):
    os.utime("f", (n, n))
    states.add(asked("f")[1:])
done = True
for thread in threads:
    thread.join()
states = {mt for mt, ct in states} | {by_glibc("f")[1]}
print(all(len(seen) > 10 and {mt for mt, ct in seen[1:]} <= states | {seen[0][0]} and [ct for mt, ct in seen] == sorted(ct for mt, ct in seen) for seen in seens))
"""
    )
    result = caller.run(*MODES["virtual"], "--", *PY, code)
    assert result.stdout == "True\n", result


def test_clock_jump_orders_file_times(caller):
    """Within one tick of the kernel's clock, and with any order of looks."""
    said = lines_of(
        caller,
        MODES["virtual"],
        "for i in 1 2 3 4 5 6 7 8; do echo x > f$i; sleep 1000; done; for i in 8 2 5 1 7 3 6 4; do echo $(($(stat -c %Y f$i) - $(date -d 2025-01-01 +%s))) f$i; done",
    )
    assert said == [f"{(i - 1) * 1000} f{i}" for i in (8, 2, 5, 1, 7, 3, 6, 4)]


def test_file_times_of_concurrent_writers(caller):
    """Writes through a descriptor that was opened long before are noticed at the latest when the
    clock is about to jump."""
    said = lines_of(
        caller,
        MODES["virtual"],
        "(for i in 1 2 3 4; do echo $i; sleep 100; done) > log & sleep 250; s=$(stat -c %Y log); wait; e=$(stat -c %Y log); b=$(date -d 2025-01-01 +%s); echo $((s - b)) $((e - b))",
    )
    assert said == ["200 300"]


# What lives on

@contextlib.contextmanager
def box_of(**more):
    with Sandbox(Policy(time_start=START, random_seed=7, **more)) as box:
        yield box


def sh(box, text):
    result = box.exec(["bash", "-ec", "cd /tmp\n" + text], text=True)
    assert result.exit_code == 0, result
    return result.stdout


LOOK = "stat -c '%n %y' a b c d; find . -newer b -type f | sort"


@pytest.mark.parametrize("mode", ("offset", "virtual"))
@pytest.mark.parametrize("runs", (False, True), ids=("files", "live"))
def test_times_survive_a_fork(mode, runs):
    """To the digit where processes resume; else, as the clock is at its start again, in their order
    and not later than that."""
    with box_of(time_mode=mode) as box:
        sh(box, "echo > a; sleep 0.1; echo > b; sleep 0.1; echo > c; touch -d '2035-05-05 05:05:05.5' d")
        process = box.spawn(["cat"]) if runs else None
        before = sh(box, LOOK)
        assert before.endswith("./c\n./d\n") and "2035-05-05 05:05:05.5" in before
        kids = box.fork(2)
        try:
            for kid in kids:
                after = sh(kid, LOOK)
                if runs:
                    assert after == before
                else:
                    assert (
                        after.endswith("./c\n./d\n")
                        and after.count("2025-01-01 00:00:0") + after.count("2024-12-31") == 3
                        and "2035-05-05 05:05:05.5" in after
                    )
                assert sh(kid, "echo > e; find . -newer c -newer a -name e; rm e") == "./e\n"
            state = box.snapshot()
            sh(box, "rm a b c d")
            box.reset(state)
            again = sh(box, LOOK)
            assert again == before if runs else again.endswith("./c\n./d\n")
        finally:
            for kid in kids:
                kid.close()
            if process:
                process.kill()


@pytest.mark.parametrize("mode", ("offset", "virtual"))
def test_forks_of_a_prefork_have_its_file_times(mode):
    """After the first fork, the others may be preforks, with places of the same age. A fork that
    knew only the session's beginning took these places for older than all clocks."""
    looks = []
    for _ in range(4):
        with box_of(time_mode=mode) as box:
            sh(box, "stat -c %Y /tmp /var/tmp /dev/shm")
            (kid,) = box.fork(1)
            try:
                looks.append(sh(kid, "date +%Y-%m-%d; stat -c '%n %.9Y' /tmp /var/tmp /dev/shm").split())
            finally:
                kid.close()
    assert all(float(seconds) < START_S + 60 for look in looks for seconds in look[2::2]), looks
    assert mode == "offset" or all(look == looks[0] for look in looks), looks


@pytest.mark.parametrize("way", ("fork", "reset", "wake"))
def test_files_older_than_a_fork_stay_older(way, tmp_path, monkeypatch):
    """After many looks, and after any change but one of the content; also in the tick in which the
    fork's clock began, and beside a file of another layer with the same inode number."""
    from rollbox import Engine

    monkeypatch.setenv("ROLLBOX_STORE", str(tmp_path / "store"))
    with (
        Engine() as engine,
        Sandbox(Policy(random_seed=7, time_start=START, time_mode="virtual"), engine=engine) as box,
    ):
        sh(box, "for i in $(seq 20); do echo > a$i; done")
        state = box.snapshot()
        sh(box, "echo > b")
        if way == "fork":
            (box,) = box.fork(1)
        elif way == "reset":
            box.reset(state)
        else:
            box.hibernate()
            box.wake()
        first, *said = sh(
            box,
            "touch c; look() { stat -c '%n %y' a[1-4]; echo --; }; for i in $(seq 50); do look; done; chmod 600 a1; ln a2 d; mv a3 e; ln -s a4 f; chmod 600 a4; look; mv e a3; look; for i in 1 2; do stat -c %z c a*; done | sort | uniq -u",
        ).split("--\n")
        assert first.count(" 2024-12-3") == 4 and said[:49] == [first] * 49
        assert said[49].splitlines() == [
            line for line in first.splitlines() if line[:2] != "a3"
        ] and said[50:] == [first, ""]
        if way == "fork":
            box.close()


def test_make_in_forks_of_forks_rebuilds_outdated_files(tmp_path, monkeypatch):
    """Each has its clock at the start again: what was written early in a fork is newer than what
    was written late before it, also in that one's forks, however they are had."""
    from rollbox import Engine

    monkeypatch.setenv("ROLLBOX_STORE", str(tmp_path / "store"))
    with (
        Engine() as engine,
        Sandbox(Policy(random_seed=7, time_start=START, time_mode="virtual"), engine=engine) as box,
        contextlib.ExitStack() as stack,
    ):
        sh(
            box,
            "sleep 50; echo 1 > a; printf 'b: a\\n\\tcp a b\\n' > Makefile; sleep 50; make -s; ! find a -newer b | grep .",
        )
        late = stack.enter_context(contextlib.closing(box.fork(1)[0]))
        sh(late, "echo 2 > a")
        for _ in range(3):
            late = stack.enter_context(contextlib.closing(late.fork(1)[0]))
            assert sh(late, "find . -newer b -type f; make -s; cat b; make -q; echo 3 > a; echo 2 > a") == "./a\n2\n"
        sh(late, "make -s")
        late.hibernate()
        late.wake()
        assert sh(late, "make -q; find . -newer b -type f; echo 4 > a; make -s; cat b") == "4\n"
        state = late.snapshot()
        late.reset(state)
        assert sh(late, "make -q; find . -newer a -type f") == "./b\n"


@pytest.mark.parametrize("mode", ("offset", "virtual"))
@pytest.mark.parametrize("runs", (False, True), ids=("files", "live"))
def test_devices_are_the_same_in_every_fork(mode, runs):
    with box_of(time_mode=mode) as box, contextlib.ExitStack() as stack:
        sh(box, "echo > a; mkdir b; touch -d 1999-01-01 c")
        if runs:
            stack.callback(box.spawn(["cat"]).kill)
        said = [
            sh(
                stack.enter_context(contextlib.closing(kid)),
                "echo > d; stat -c '%n %d' . a b c d / /dev/shm",
            )
            for kid in box.fork(3)
        ]
        assert len(set(said)) == 1


def test_file_times_first_read_after_a_fork():
    with box_of(time_mode="virtual") as box:
        sh(box, "for i in $(seq 50); do echo > f$i; done")
        with contextlib.ExitStack() as stack:
            said = [
                sh(
                    stack.enter_context(contextlib.closing(kid)),
                    "stat -c '%n %y %z %w' f*; date +%s.%N",
                )
                for kid in box.fork(2, same_seed=True)
            ]
            assert (
                said[0] == said[1]
                and said[0].count("2025-01-01 00:00:00.") == 100
                and said[0].count(" 2024-12-31 00:00:00.") == 50
            )


def test_file_times_survive_hibernation(tmp_path, monkeypatch):
    from rollbox import Engine

    monkeypatch.setenv("ROLLBOX_STORE", str(tmp_path / "store"))
    with Engine() as engine, Sandbox(Policy(time_start=START, time_mode="virtual"), engine=engine) as box:
        sh(box, "echo > a; sleep 7; echo > b; sleep 7; echo > c; echo > d")
        process = box.spawn(["cat"])
        before = sh(box, LOOK)
        box.hibernate()
        box.wake()
        assert sh(box, LOOK) == before
        process = box.process(process.id)
        process.kill()


# Guests that would trick init

@pytest.mark.parametrize("mode", ("offset", "virtual"))
def test_links_of_proc_are_not_followed_for_init(caller, programs, mode):
    """/proc/self is the caller, also when init looks it up; and another process's descriptors are not shown."""
    result = caller.run("--readable", place() / "guests", *MODES[mode], "--", programs["static"], "/tmp", "links")
    assert result.exit_code == 0 and "not ok" not in result.stdout, result


@pytest.mark.parametrize("mode", ("offset", "virtual"))
@pytest.mark.parametrize("trick", ("bad", "storm", "deep"))
def test_init_serves_on(caller, programs, mode, trick):
    result = caller.run(
        "--readable",
        place() / "guests",
        *MODES[mode],
        "--",
        "bash",
        "-c",
        f"{programs['static']} /tmp {trick} && touch /tmp/x && date -r /tmp/x +%Y",
    )
    assert result.outcome == "exit" and result.exit_code == 0 and result.stdout.endswith("2025\n"), result


def test_others_files_are_not_stamped(caller):
    """Files that a guest may read and not write keep their times after any use inside."""
    directory = caller.directory(0o755)
    caller.write(directory / "f", "x")
    before = (directory / "f").stat()
    said = lines_of(
        caller,
        MODES["virtual"],
        f"touch {directory}/f 2>/dev/null || echo refused; touch -d 2001-01-01 {directory}/f 2>/dev/null || echo refused; stat {directory}/f > /dev/null; cat {directory}/f",
        "--readable",
        str(directory),
    )
    assert said == ["refused", "refused", "x"]
    assert (directory / "f").stat().st_mtime_ns == before.st_mtime_ns


# What else has stamps

SYSTEM_V = """
import ctypes, errno, struct, time
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    r = libc.syscall(number, *arguments)
    return r if r >= 0 else errno.errorcode[ctypes.get_errno()]
shm, msg, sem = call(29, 0, 4096, 0o1600), call(68, 0, 0o1600), call(64, 0, 1, 0o1600)
WAYS = {
    "shm": ((7, 8, 9), 14, (31, shm, 2), (31, 0, 13), (31, 0, 15)),
    "msg": ((6, 7, 8), 15, (71, msg, 2), (71, 0, 11), (71, 0, 13)),
    "sem": ((6, 8), 13, (66, sem, 0, 2), (66, 0, 0, 18), (66, 0, 0, 20)),
}
def look(name, times, length, *ways):
    for way in ways:
        words = (ctypes.c_long * 20)(*[-1] * 20)
        r = call(*way, words)
        shown = [words[i] for i in times]
        print(name, r, [t and (START <= t <= LAST or t) for t in shown], list(words).index(-1) == length)
def look_at_all():
    global LAST
    LAST = START if VIRTUAL else int(time.time())
    for name in WAYS:
        look(name, *WAYS[name])
if shm != "ENOSYS":
    look_at_all()
    libc.shmat.restype = ctypes.c_void_p
    libc.shmdt(ctypes.c_void_p(libc.shmat(shm, None, 0)))
    libc.msgsnd(msg, struct.pack("l8s", 1, b"x"), 8, 0)
    libc.msgrcv(msg, ctypes.create_string_buffer(16), 8, 0, 0)
    libc.semop(sem, struct.pack("HhH", 0, 1, 0), 1)
    look_at_all()
    print(call(31, shm, 2, 8), call(31, 99, 2, words := (ctypes.c_long * 20)()), call(66, sem, 0, 12), list(words)[:1])
"""


@pytest.mark.parametrize("mode", MODES)
def test_system_v_times_are_the_sandbox_clocks(caller, mode):
    """Never used stays never; all ways of looking, and no word written beyond what the kernel writes."""
    result = caller.python(f"START, VIRTUAL = {START_S}, {mode != 'offset'}\n{SYSTEM_V}", *MODES[mode])
    if not result.stdout:
        pytest.skip("there is no System V IPC where no memory cgroup counts it")
    made = ["shm 0 [0, 0, True] True"] * 3 + ["msg 0 [0, 0, True] True"] * 3 + ["sem 0 [0, True] True"] * 3
    used = (
        ["shm 0 [True, True, True] True"] * 3
        + ["msg 0 [True, True, True] True"] * 3
        + ["sem 0 [True, True] True"] * 3
    )
    lines = result.stdout.splitlines()
    if "msg ENOSYS" in result.stdout:       # segments alone, where no memory cgroup counts queues and semaphores
        assert [line for line in lines if line.startswith("shm")] == [*made[:3], *used[:3]], result.told
        return
    assert lines == [*made, *used, "EFAULT EINVAL 1 [0]"], result.told


PACKETS = """
import errno, fcntl, socket
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(("127.0.0.1", 0))
u.connect(u.getsockname())
def ask(socket, request):
    try:
        return fcntl.ioctl(socket, request, bytes(16))
    except OSError as e:
        return errno.errorcode[e.errno]
for sender, receiver in ((a, b), (u, u)):
    for option in (29, 35, 37, 63, 64, 65):         # SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING, as they were and are
        receiver.setsockopt(socket.SOL_SOCKET, option, 0x18)
        sender.send(b"x")
        print(receiver.recvmsg(10, 200)[:2], *{ask(receiver, request) for request in (0x8906, 0x8907, 0x80108906, 0x80108907)})
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 3)
    print(receiver.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY), ask(receiver, 0x541B)[:1])         # FIONREAD
"""


@pytest.mark.parametrize("mode", MODES)
def test_packets_have_no_stamps(caller, mode):
    """They would be the kernel's. A guest that asks for them gets none, as from a kernel without them."""
    result = caller.python(PACKETS, "--net", "loopback", *MODES[mode])
    assert result.stdout.splitlines() == (["(b'x', []) ENOENT"] * 6 + ["3 b'\\x00'"]) * 2, result.told


def test_policy_plan_shows_what_is_asked(caller):
    shown = subprocess.run(
        [binaries() / "rollbox", "policy", "plan", "--time-start", START],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for call in ("newfstatat", "statx", "utimensat"):
        assert call in shown
    result = json.loads(
        subprocess.run(
            [binaries() / "rollbox", "run", "--json", "--seed", "1", "--", "true"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    assert result["outcome"] == "exit"
