# SPDX-License-Identifier: Apache-2.0
"""rollbox.images: the images of the store.

    from rollbox import Policy, Sandbox, images

    images.pull("python:3.12-slim")
    Sandbox(Policy(image="python:3.12-slim")).run(["python3", "-V"])

Each function runs the command `rollbox image` or `rollbox store`. Those whose names end in _async
are for asyncio; a call that is cancelled ends its command.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Callable, Optional, Union

from ._core.program import program, run_program, run_program_async

Path = Union[str, "os.PathLike[str]"]
Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Image:
    """An image, or an imported snapshot.

    Attributes:
        name: Its name; Policy(image=name) uses it.
        layers: The number of its layers.
        bytes: The size of its files.
        kind: "image" or "snapshot".
        own_bytes: The size of layers that no other image or snapshot has.
        shared_bytes: The size of its other layers.
        used: The time of its last use, in seconds since 1970.
        in_use: A sandbox uses it.
    """

    name: str
    layers: int
    bytes: int
    kind: str
    own_bytes: int
    shared_bytes: int
    used: int
    in_use: bool


@dataclass(frozen=True)
class Pulled:
    """What a pull or an import has done.

    Attributes:
        name: The image's name in the store.
        pulled: False: the store had it, and `missing` was given.
        digest: The digest of its manifest; "" for an archive.
        layers: The number of its layers.
        new_layers: Layers that the store did not have.
        fetched_layers: Layers that came from the registry.
        fetched_bytes: Their size, as they were sent.
        notes: What was left out.
    """

    name: str
    pulled: bool = True
    digest: str = ""
    layers: int = 0
    new_layers: int = 0
    fetched_layers: int = 0
    fetched_bytes: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exported:
    """An image that was written or pushed.

    Attributes:
        name: Its name in the store.
        to: The file, the directory or the reference.
        digest: The digest of its manifest.
        layers: The number of its layers.
        bytes: Their size, as they were written.
    """

    name: str
    to: str
    digest: str
    layers: int
    bytes: int


# ---- the command ----


def _words(arguments: Sequence[Optional[str]]) -> list[str]:
    given = [word for word in arguments if word is not None]
    return [program(), *given[:2], "--json", *given[2:]]


def _option(name: str, value: Any) -> Optional[str]:
    return None if value is None else f"--{name}={value}"


def _flag(name: str, value: bool) -> Optional[str]:
    return f"--{name}" if value else None


class _Events:
    """Lines of the output; the last one is the answer."""

    def __init__(self, progress: Optional[Progress]) -> None:
        self._progress = progress
        self.answer: dict[str, Any] = {}

    def add(self, line: bytes) -> None:
        self.answer = json.loads(line)
        if self._progress is not None:
            self._progress(self.answer)


def _call(
    arguments: Sequence[Optional[str]],
    progress: Optional[Progress] = None,
    secret: Optional[str] = None,
) -> dict[str, Any]:
    events = _Events(progress)
    run_program(_words(arguments), events.add, data=None if secret is None else secret.encode())
    return events.answer


async def _call_async(
    arguments: Sequence[Optional[str]],
    progress: Optional[Progress] = None,
    secret: Optional[str] = None,
) -> dict[str, Any]:
    events = _Events(progress)
    await run_program_async(
        _words(arguments), events.add, data=None if secret is None else secret.encode()
    )
    return events.answer


def _made(kind: Any, found: dict[str, Any]) -> Any:
    known = {one.name for one in fields(kind)}
    values = {key: value for key, value in found.items() if key in known}
    if "notes" in values:
        values["notes"] = tuple(values["notes"])
    return kind(**values)


# ---- arguments ----


def _pull_words(
    reference: str,
    name: Optional[str],
    platform: Optional[str],
    insecure: bool,
    authfile: Optional[Path],
    creds: Optional[str],
    missing: bool,
) -> list[Optional[str]]:
    return [
        "image",
        "pull",
        _option("name", name),
        _option("platform", platform),
        _flag("insecure", insecure),
        _option("authfile", authfile and os.fspath(authfile)),
        _option("creds", creds and "-"),
        _flag("missing", missing),
        "--",
        reference,
    ]


def _export_words(
    verb: str,
    name: str,
    to: Optional[str],
    config_of: Optional[str],
    compression: str,
    more: Sequence[Optional[str]] = (),
) -> list[Optional[str]]:
    return [
        "image",
        verb,
        _option("config-of", config_of),
        _option("compression", compression),
        *more,
        "--",
        name,
        to,
    ]


def _push_words(
    insecure: bool, authfile: Optional[Path], creds: Optional[str]
) -> list[Optional[str]]:
    return [
        _flag("insecure", insecure),
        _option("authfile", authfile and os.fspath(authfile)),
        _option("creds", creds and "-"),
    ]


# ---- the functions ----


def pull(
    reference: str,
    *,
    name: Optional[str] = None,
    platform: Optional[str] = None,
    insecure: bool = False,
    authfile: Optional[Path] = None,
    creds: Optional[str] = None,
    missing: bool = False,
    progress: Optional[Progress] = None,
) -> Pulled:
    """Brings an image into the store: from a registry (by skopeo), a layout or an archive.

    Args:
        reference: "docker://HOST/NAME:TAG", "NAME:TAG", "NAME@sha256:DIGEST", "oci:DIRECTORY",
            "oci-archive:FILE" or "docker-archive:FILE".
        name: Its name in the store. Default: the reference without docker://.
        platform: For another machine than this one: "linux/arm64".
        insecure: A registry without TLS, or with an unknown certificate.
        authfile: A file of credentials, as `docker login` writes it.
        creds: "USER:PASSWORD". No process has it among its arguments.
        missing: Do nothing if the store has an image of this name.
        progress: Called with each event: {"event": "layer", "digest", "bytes", "state"},
            {"event": "progress", "bytes", "total"}, and {"event": "pulled", ...}.

    Raises:
        FeatureMissing: skopeo is not installed.
        NotFound: There is no such image, or none for the platform.
        PathDenied: The registry wants other credentials.
        Damaged: The registry sent data with a wrong digest.
        ResourceExhausted: The disk is full.
        IOFailed: The registry cannot be reached, or has ended the connection.
    """
    words = _pull_words(reference, name, platform, insecure, authfile, creds, missing)
    pulled: Pulled = _made(Pulled, _call(words, progress, creds))
    return pulled


async def pull_async(
    reference: str,
    *,
    name: Optional[str] = None,
    platform: Optional[str] = None,
    insecure: bool = False,
    authfile: Optional[Path] = None,
    creds: Optional[str] = None,
    missing: bool = False,
    progress: Optional[Progress] = None,
) -> Pulled:
    """The same as pull, for asyncio."""
    words = _pull_words(reference, name, platform, insecure, authfile, creds, missing)
    pulled: Pulled = _made(Pulled, await _call_async(words, progress, creds))
    return pulled


def push(
    name: str,
    reference: Optional[str] = None,
    *,
    config_of: Optional[str] = None,
    compression: str = "gzip",
    insecure: bool = False,
    authfile: Optional[Path] = None,
    creds: Optional[str] = None,
) -> Exported:
    """Sends an image, or "snapshot:NAME", to a registry.

    Args:
        name: The image's name in the store.
        reference: Its name in the registry. Default: as it is named in the store.
        config_of: An image whose configuration is used, for a snapshot.
        compression: "gzip", "zstd" or "none".
        insecure: As for pull.
        authfile: As for pull.
        creds: As for pull.

    Raises:
        NotFound: There is no such image.
        PathDenied: The registry wants other credentials.
        IOFailed: The registry cannot be reached.
    """
    words = _export_words(
        "push", name, reference, config_of, compression, _push_words(insecure, authfile, creds)
    )
    exported: Exported = _made(Exported, _call(words, None, creds))
    return exported


async def push_async(
    name: str,
    reference: Optional[str] = None,
    *,
    config_of: Optional[str] = None,
    compression: str = "gzip",
    insecure: bool = False,
    authfile: Optional[Path] = None,
    creds: Optional[str] = None,
) -> Exported:
    """The same as push, for asyncio."""
    words = _export_words(
        "push", name, reference, config_of, compression, _push_words(insecure, authfile, creds)
    )
    exported: Exported = _made(Exported, await _call_async(words, None, creds))
    return exported


def export(
    name: str, path: Path, *, config_of: Optional[str] = None, compression: str = "gzip"
) -> Exported:
    """Writes an image, or "snapshot:NAME", as an OCI image.

    Args:
        name: The image's name in the store.
        path: An archive; a directory in OCI layout if it ends in a slash or exists as one.
        config_of: An image whose configuration is used, for a snapshot.
        compression: "gzip", "zstd" or "none".

    Raises:
        NotFound: There is no such image, or no directory for the file.
        IOFailed: It cannot be written, or the directory is not empty.
    """
    words = _export_words("export", name, os.fspath(path), config_of, compression)
    exported: Exported = _made(Exported, _call(words))
    return exported


async def export_async(
    name: str, path: Path, *, config_of: Optional[str] = None, compression: str = "gzip"
) -> Exported:
    """The same as export, for asyncio."""
    words = _export_words("export", name, os.fspath(path), config_of, compression)
    exported: Exported = _made(Exported, await _call_async(words))
    return exported


def df() -> list[Image]:
    """The images and snapshots of the store; those with most bytes of their own come first."""
    return [_made(Image, row) for row in _call(["store", "df"])["by_image"]]


def inspect(name: str) -> dict[str, Any]:
    """All that the store knows of an image: "config", "oci", "layers", "source".

    Raises:
        NotFound: There is no such image.
    """
    return _call(["image", "inspect", "--", name])


def remove(name: str) -> None:
    """Removes an image, or "snapshot:NAME". gc then frees its layers.

    Raises:
        NotFound: There is no such image.
    """
    _call(["image", "rm", "--", name])


def gc(*, older: Optional[str] = None, keep: Optional[str] = None) -> dict[str, Any]:
    """Removes what no image, snapshot or sandbox needs.

    Args:
        older: Images, too, that nobody has used for so long: "30d", "12h".
        keep: The images, too, that were used least recently until the layers have at most so many
            bytes: "200G". Images that a sandbox uses stay.

    Returns:
        {"removed_images", "removed_layers", "freed_bytes", "in_use", ...}
    """
    return _call(["store", "gc", _option("older", older), _option("keep", keep)])


__all__ = [
    "Exported",
    "Image",
    "Pulled",
    "df",
    "export",
    "export_async",
    "gc",
    "inspect",
    "pull",
    "pull_async",
    "push",
    "push_async",
    "remove",
]
