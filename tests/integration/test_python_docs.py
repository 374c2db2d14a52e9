# SPDX-License-Identifier: Apache-2.0
"""The docstrings of the Python package: short summaries, every argument, examples that run."""

import doctest
import importlib
import inspect
import re

import pytest

import rollbox
from rollbox import AsyncClonePool, AsyncSandbox, ClonePool, Sandbox

MODULES = ["", "._batch", "._clones", "._core.policy", "._engine", "._files", "._sandbox", "._session", ".aio._sandbox"]
TWINS = [(Sandbox, AsyncSandbox), (ClonePool, AsyncClonePool)]


def public_names():
    """(name, object) of what users call: functions, classes and their methods."""
    for name in rollbox.__all__:
        thing = getattr(rollbox, name)
        if inspect.isfunction(thing) or inspect.isclass(thing):
            yield name, thing
        if inspect.isclass(thing) and not issubclass(thing, BaseException):
            for method, value in inspect.getmembers(thing):
                if (
                    not method.startswith("_")
                    and inspect.isroutine(value)
                    and (getattr(value, "__module__", None) or "").startswith("rollbox")
                ):
                    yield f"{name}.{method}", value


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_docstrings_run(module):
    if module in ("._clones", "._sandbox"):
        pytest.importorskip("cloudpickle", reason="needs cloudpickle: functions go to clones by it")
    failed, attempted = doctest.testmod(importlib.import_module("rollbox" + module))
    assert attempted and not failed


def test_summaries_of_docstrings_are_one_short_line():
    for name, thing in public_names():
        lines = inspect.getdoc(thing).splitlines()
        assert len(lines[0]) <= 80, name
        assert re.search(r"[.:?!)]$", lines[0]), name
        assert len(lines) == 1 or lines[1] == "", name


def test_docstrings_describe_each_argument():
    """For async counterparts and docstrings with "As ..." the docstring of the other one counts."""
    for name, thing in public_names():
        doc = inspect.getdoc(thing)
        if doc.startswith("As ") or "(For this package.)" in doc or inspect.isclass(thing):
            continue
        described = set(re.findall(r"^    (\w+): ", doc, re.MULTILINE))
        parameters = inspect.signature(thing).parameters.values()
        wanted = {one.name for one in parameters if one.name != "self"}
        assert not wanted or wanted <= described, (name, sorted(wanted - described))


@pytest.mark.parametrize("sync, other", TWINS)
def test_asyncio_methods_take_the_same_arguments(sync, other):
    names = {name for name in dir(sync) if not name.startswith("_") and callable(getattr(sync, name))}
    assert names <= set(dir(other))
    for name in names:
        wanted = dict(inspect.signature(getattr(sync, name)).parameters)
        wanted.pop("stream", None)      # of exec: AsyncSandbox.stream returns another type
        assert list(wanted) == list(inspect.signature(getattr(other, name)).parameters), name
