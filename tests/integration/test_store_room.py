# SPDX-License-Identifier: Apache-2.0
"""Room in a store with many images that share layers: df by image, and gc by age and size."""

import fcntl
import os
import time

import pytest
from archives import entry, layer
from harness import caller, place  # noqa: F401
from image_stores import BASE, run, store, system  # noqa: F401

DAY = 86400


def image_with(store, name, size, days):
    """An image over BASE with a layer of its own, last used some days ago."""
    store.bring(name, BASE, layer(entry(f"own-{name}", os.urandom(size))))
    set_age(store, name, days)


def set_age(store, name, days):
    used = time.time() - days * DAY
    os.utime(store.path / "images" / f"{name}.json", (used, used))


def names(store):
    return sorted(row["name"] for row in store.json("image", "ls")["images"])


def test_df_shows_own_and_shared_bytes(store):
    store.bring("base", BASE)
    image_with(store, "a", 1000, 0)
    image_with(store, "b", 2000, 0)
    rows = {row["name"]: row for row in store.json("store", "df")["by_image"]}
    assert [rows[name]["own_bytes"] for name in ("base", "a", "b")] == [0, 1000, 2000]
    assert {row["shared_bytes"] for row in rows.values()} == {rows["base"]["bytes"]}
    text = store.call("store", "df").stdout.decode()
    assert "last used" in text and "base" in text


def test_gc_removes_old_images_and_what_only_they_have(store):
    image_with(store, "old", 1000, 40)
    image_with(store, "new", 1000, 20)
    done = store.json("store", "gc", "--older", "30d")
    assert done["removed_images"] == ["old"] and done["removed_layers"] == 1
    assert names(store) == ["new"]
    assert store.json("store", "gc", "--older", "470h")["removed_images"] == ["new"]
    store.clean()


def test_gc_keeps_so_many_bytes_of_what_was_used_last(store):
    for name, days in (("c", 3), ("a", 1), ("d", 4), ("b", 2)):
        image_with(store, name, 100000, days)
    assert store.json("store", "gc", "--keep", "10M")["removed_images"] == []
    done = store.json("store", "gc", "--keep", "210K")
    assert done["removed_images"] == ["d", "c"] and names(store) == ["a", "b"]
    assert store.json("store", "df")["bytes"] < 210 * 1024


def test_gc_leaves_images_in_use(store):
    """A lock on the topmost layer is what a sandbox has."""
    image_with(store, "used", 1000, 90)
    image_with(store, "unused", 1000, 90)
    top = store.layers("used")[-1]
    with (store.path / "layers" / top / "meta.json").open() as meta:
        fcntl.flock(meta, fcntl.LOCK_SH)
        done = store.json("store", "gc", "--older", "30d", "--keep", "1")
        assert done["removed_images"] == ["unused"] and names(store) == ["used"]
    assert store.json("store", "gc", "--keep", "1")["removed_images"] == ["used"]


def test_a_run_counts_as_use(store):
    store.bring("system", *system())
    set_age(store, "system", 90)
    assert run(store, "/bin/cat", "/data/new").stdout == "new"
    assert store.json("store", "gc", "--older", "30d")["removed_images"] == []


def test_gc_removes_downloads_after_a_day(store):
    store.bring("a", BASE)
    downloads = store.path / "downloads"
    downloads.mkdir(exist_ok=True)
    for name, days in (("0" * 64, 2), ("1" * 64, 0)):
        (downloads / name).write_bytes(b"x" * 100)
        os.utime(downloads / name, (time.time() - days * DAY,) * 2)
    store.caller.own(downloads, *downloads.iterdir())
    assert store.json("store", "gc")["freed_bytes"] == 100
    assert os.listdir(downloads) == ["1" * 64]


@pytest.mark.parametrize("words", [("--older", "x"), ("--older", "30x"), ("--older", "-1d"), ("--keep", "x")])
def test_refused_limits(store, words):
    store.bring("a", BASE)
    assert store.call("store", "gc", *words).returncode == 125
    assert names(store) == ["a"]
