# SPDX-License-Identifier: Apache-2.0
"""A name in the store that is given to another image: sandboxes that start afterwards have that image,
also in an engine that has used the old one; those that run keep theirs."""

import json

import pytest
from archives import configuration, entry, layer
from harness import binaries
from image_stores import Store
from many_users import plain_callers, system_entries


@pytest.fixture(params=plain_callers(), ids=repr)
def store(request):
    made = Store(request.param)
    made.env = made.caller.environment(
        ROLLBOX_STORE=str(made.path), ROLLBOX_SOCKET=str(made.home / "socket")
    )
    bring(made, "1")
    rollbox(made, "engine", "start", "--background")
    yield made
    rollbox(made, "engine", "stop")


def bring(store, text):
    layers = [layer(*system_entries(), entry("v", text.encode()))]
    config = configuration(layers)
    config["config"].update(User="", WorkingDir="/", Entrypoint=[])
    store.bring("app", *layers, config=config)


def rollbox(store, *words, status=0):
    done = store.caller.call(binaries() / "rollbox", *words, env=store.env)
    assert done.returncode == status, done
    return (done.stdout or done.stderr if status else done.stdout).decode()


@pytest.mark.parametrize("users", ["one", "many"])
def test_new_sandboxes_have_the_image_that_replaced_another(store, users):
    def create(name, status=0):
        words = ["create", "--json", "--name", name, "--users", users, "--image", "app"]
        return rollbox(store, *words, status=status)

    def shown(name):
        return rollbox(store, "exec", name, "--", "/bin/cat", "/v")

    create("old")
    # Several times: a file system may give a new file the inode number of an old one.
    for text in ("2", "3", "4", "5"):
        bring(store, text)
        create(f"box{text}")
        assert (shown("old"), shown(f"box{text}")) == ("1", text)
    run = ["run", "--engine", store.env["ROLLBOX_SOCKET"], "--users", users, "--image", "app", "--", "/bin/cat", "/v"]
    assert rollbox(store, *run) == "5"
    bring(store, "6")
    assert rollbox(store, *run) == "6"
    kid = rollbox(store, "fork", "old").strip()
    assert shown(kid) == "1"
    rollbox(store, "image", "rm", "app")
    error = json.loads(create("none", status=125))["error"]
    assert error["code"] == "not_found" and "no image app" in error["message"]
    assert shown("old") == "1"
