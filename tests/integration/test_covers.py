# SPDX-License-Identifier: Apache-2.0
"""Hidden or replaced files of a granted directory stay so when the host renames a file over it, as
editors and package managers do.

A mount over a file goes, in every namespace, when the file under it is renamed over or removed."""

import json
import os
import shutil

import pytest
from harness import caller, place, skip  # noqa: F401

START = "import sys\nsys.path.insert(0, %r)\nimport json, os\nfrom rollbox import Policy, Sandbox\n"

# By the host: new files in the place of those that are hidden. Told: everything that sandboxes saw, by name.
REPLACE = (
    START
    + """
kind, grant = %r, %r
def put(name, text):
    with open(grant + "/new", "w") as file: file.write(text)
    os.rename(grant + "/new", grant + "/" + name)
os.makedirs(grant + "/below"); os.makedirs(grant + "/secrets")
for name in ("key", "below/key", "secrets/key"): put(name, "SECRET before")
put("seen", "before")
readable = ["/usr", "/bin", "/lib", "/lib64", "/etc"]
policy = Policy(fs_denied=[grant + name for name in ("/key", "/below/key", "/secrets")], **{kind: [grant], **({"fs_readable": readable + [grant]} if kind == "fs_readable" else {})})
look = ["sh", "-c", "cd " + grant + "; cat key below/key secrets/key; stat -c %%s key below/key; cat seen"]
told = {}
def tell(name, box):
    result = box.exec(look) if hasattr(box, "exec") and name != "run" else box.run(look)
    told[name] = result.stdout.decode()
with Sandbox(policy) as box:
    tell("before", box)
    for name in ("key", "below/key"): put(name, "SECRET after")
    os.rename(grant + "/secrets", grant + "/elsewhere"); os.mkdir(grant + "/secrets"); put("secrets/key", "SECRET after")
    put("seen", "after")
    tell("living", box)
    with Sandbox(policy) as new: tell("new", new)
    tell("run", Sandbox(policy))
    tell("fork", box.fork(1)[0])
    os.unlink(grant + "/key")
    with Sandbox(policy) as new: told["removed"] = new.exec("cat " + grant + "/seen").stdout.decode()
print(json.dumps(told))
"""
)


@pytest.mark.parametrize("below", ["/tmp", "/var/lib"])
@pytest.mark.parametrize("kind", ["fs_readable", "fs_writable", "fs_shared"])
def test_denied_files_stay_hidden_when_the_host_replaces_them(caller, kind, below):
    if below == "/var/lib" and os.geteuid():
        skip("only root can make a directory there")
    grant = f"{below}/rollbox-covers-{os.getpid()}-{caller}-{kind}"
    os.mkdir(grant, 0o755)
    os.chown(grant, caller.uid, caller.uid)
    try:
        done = caller.script(REPLACE, kind, grant)
        assert done.returncode == 0, done.stderr.decode()
        told = json.loads(done.stdout)
    finally:
        shutil.rmtree(grant)
    if kind == "fs_shared":     # documented: a cover of a living sandbox goes there
        told.pop("living")
    assert not [name for name, text in told.items() if "SECRET" in text]
    assert all(text.startswith("0\n0\n") for name, text in told.items() if name != "removed")
    assert (
        told["before"].endswith("before")
        and told["new"].endswith("after")
        and told["run"].endswith("after")
        and told["removed"] == "after"
    )


# In a mount namespace with an /etc that the caller may change.
ETC = START + """
def replace(name):
    with open("/etc/new", "w") as file: file.write("host:x:1000:1000::/:/bin/sh\\n")
    os.rename("/etc/new", "/etc/" + name)
look = "whoami; cat /etc/hostname; stat -c %%s /etc/shadow; cat /etc/shadow 2>&1 | grep -c host; cat /etc/mark"
with open("/etc/mark", "w") as file: file.write("before")
with Sandbox() as box:
    told = [box.exec(look).stdout.decode()]
    for name in ("passwd", "group", "shadow", "gshadow", "hostname", "mark"): replace(name)
    told.append(box.exec(look).stdout.decode())
    with Sandbox() as new: told.append(new.exec(look).stdout.decode())
print(json.dumps(told))
"""


def test_identity_holds_when_the_host_changes_its_users(caller):
    """A package's installation adds a user: living sandboxes and new ones keep theirs, and no
    password file shows. New ones see the host's other files as they are now."""
    if os.geteuid():
        skip("only root can make an /etc to change")
    etc = caller.directory(0o755) / "etc"
    shutil.copytree("/etc", etc, symlinks=True)
    os.chown(etc, caller.uid, caller.uid)
    for name in ("shadow", "gshadow"):
        os.chmod(caller.write(etc / name, "host:secret\n"), 0o644)
    call = caller.call
    become = ["setpriv", f"--reuid={caller.uid}", f"--regid={caller.uid}", "--clear-groups"] if caller.uid else []
    inside = f'mount --bind {etc} /etc && exec "$@"'
    caller.call = lambda *argv, **options: type(caller)("root", 0).call(
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        inside,
        "sh",
        *become,
        *argv,
        **options,
    )
    try:
        done = caller.script(ETC)
    finally:
        caller.call = call
    assert done.returncode == 0, done.stderr.decode()
    before, living, new = json.loads(done.stdout)
    kept = "box\nrollbox\n0\n0\n"
    assert (before, living, new) == (kept + "before", living, kept + "host:x:1000:1000::/:/bin/sh\n")
    assert living.startswith(kept)
