# SPDX-License-Identifier: Apache-2.0
"""librollbox through ctypes: finding it, its structures, its functions.

The library is loaded on first use, not at import, so that policies can be written and pickled where
it is missing. Every function has its argtypes and restype; calls release the GIL. Nothing here
keeps state but the loaded library itself.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from pathlib import Path
from typing import Any, Optional

from . import errors
from .errors import EngineStartFailed, ProtocolError, RollboxError


def _read_version() -> str:
    """The version that meson filled in at installation; in a checkout, meson.build's."""
    try:
        from .._version import VERSION as installed

        return str(installed)
    except ImportError:
        text = (Path(__file__).resolve().parents[3] / "meson.build").read_text()
        return text.split("version: '", 1)[1].split("'", 1)[0]


VERSION = _read_version()

OUTCOME_ERROR = 5
"""ROLLBOX_OUTCOME_ERROR, the outcome that a cancelled run is given."""


class Error(ctypes.Structure):
    """struct rollbox_error."""

    _fields_ = [
        ("code", ctypes.c_int),
        ("error_number", ctypes.c_int),
        ("stage", ctypes.c_char * 16),
        ("message", ctypes.c_char * 1000),
    ]


class EngineOptions(ctypes.Structure):
    """struct rollbox_engine_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("socket_path", ctypes.c_char_p),
        ("engine_path", ctypes.c_char_p),
    ]


class File(ctypes.Structure):
    """struct rollbox_file.

    `data` is a c_char_p so that it points into the bytes object given, without a copy.
    """

    _fields_ = [
        ("path", ctypes.c_char_p),
        ("data", ctypes.c_char_p),
        ("length", ctypes.c_size_t),
        ("mode", ctypes.c_uint),
    ]


CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
"""rollbox_callback: (run, userdata)."""


class RunOptions(ctypes.Structure):
    """struct rollbox_run_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("argv", ctypes.POINTER(ctypes.c_char_p)),
        ("env", ctypes.POINTER(ctypes.c_char_p)),
        ("cwd", ctypes.c_char_p),
        ("stdin_data", ctypes.c_char_p),
        ("stdin_length", ctypes.c_size_t),
        ("files", ctypes.POINTER(File)),
        ("n_files", ctypes.c_size_t),
        ("timeout_ms", ctypes.c_int64),
        ("output_limit", ctypes.c_int64),
        ("stdio_fds", ctypes.POINTER(ctypes.c_int)),
        ("operation_id", ctypes.c_char_p),
        ("callback", CALLBACK),
        ("userdata", ctypes.c_void_p),
        ("is_code", ctypes.c_bool),
        ("priority", ctypes.c_int),
    ]


class RawResult(ctypes.Structure):
    """struct rollbox_result."""

    _fields_ = [
        ("outcome", ctypes.c_int),
        ("exit_code", ctypes.c_int),
        ("signal", ctypes.c_int),
        ("stdout_data", ctypes.c_void_p),
        ("stdout_length", ctypes.c_size_t),
        ("stderr_data", ctypes.c_void_p),
        ("stderr_length", ctypes.c_size_t),
        ("stdout_truncated", ctypes.c_bool),
        ("stderr_truncated", ctypes.c_bool),
        ("wall_ms", ctypes.c_double),
        ("cpu_ms", ctypes.c_double),
        ("peak_memory_bytes", ctypes.c_uint64),
        ("processes_peak", ctypes.c_uint32),
        ("isolation", ctypes.c_char_p),
        ("error", Error),
        ("network", ctypes.c_char_p),
        ("queue_ms", ctypes.c_double),
        ("setup_ms", ctypes.c_double),
    ]


class SandboxOptions(ctypes.Structure):
    """struct rollbox_sandbox_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("detached", ctypes.c_bool),
        ("idle_ms", ctypes.c_int64),
        ("ttl_ms", ctypes.c_int64),
        ("lifetime_ms", ctypes.c_int64),
        ("operation_id", ctypes.c_char_p),
        ("hibernate_ms", ctypes.c_int64),
        ("auto_snapshots", ctypes.c_uint),
    ]


class RecordOptions(ctypes.Structure):
    """struct rollbox_record_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("fd", ctypes.c_int),
        ("stream_bytes", ctypes.c_uint64),
        ("file_bytes", ctypes.c_uint64),
        ("redact_names", ctypes.POINTER(ctypes.c_char_p)),
        ("redact_patterns", ctypes.POINTER(ctypes.c_char_p)),
        ("env_values", ctypes.c_bool),
        ("files", ctypes.c_bool),
        ("changes", ctypes.c_bool),
        ("as_parent", ctypes.c_bool),
    ]


class ShellNote(ctypes.Structure):
    """struct rollbox_shell_note."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("operation_id", ctypes.c_char_p),
        ("command", ctypes.c_char_p),
        ("command_length", ctypes.c_size_t),
        ("timeout_ms", ctypes.c_int64),
        ("output_limit", ctypes.c_uint64),
        ("outcome", ctypes.c_int),
        ("exit_code", ctypes.c_int),
        ("signal", ctypes.c_int),
        ("stdout_data", ctypes.c_char_p),
        ("stderr_data", ctypes.c_char_p),
        ("stdout_length", ctypes.c_size_t),
        ("stderr_length", ctypes.c_size_t),
        ("stdout_truncated", ctypes.c_bool),
        ("stderr_truncated", ctypes.c_bool),
        ("ended", ctypes.c_bool),
        ("wall_ms", ctypes.c_double),
    ]


class Terminal(ctypes.Structure):
    """struct rollbox_terminal."""

    _fields_ = [("rows", ctypes.c_ushort), ("columns", ctypes.c_ushort)]


class ExecOptions(ctypes.Structure):
    """struct rollbox_exec_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("argv", ctypes.POINTER(ctypes.c_char_p)),
        ("env", ctypes.POINTER(ctypes.c_char_p)),
        ("cwd", ctypes.c_char_p),
        ("user", ctypes.c_char_p),
        ("stdin_data", ctypes.c_char_p),
        ("stdin_length", ctypes.c_size_t),
        ("files", ctypes.POINTER(File)),
        ("n_files", ctypes.c_size_t),
        ("timeout_ms", ctypes.c_int64),
        ("output_limit", ctypes.c_int64),
        ("operation_id", ctypes.c_char_p),
        ("terminal", ctypes.POINTER(Terminal)),
        ("input_fd", ctypes.c_int),
        ("stream_fds", ctypes.c_int * 2),
        ("extra_fds", ctypes.POINTER(ctypes.c_int)),
        ("n_extra_fds", ctypes.c_size_t),
        ("detached", ctypes.c_bool),
        ("callback", CALLBACK),
        ("userdata", ctypes.c_void_p),
        ("no_trace", ctypes.c_bool),
    ]


PROCESSES = {"keep": 1, "drop": 2}
"""enum rollbox_processes by name."""

CLAIM_FDS = 11
"""ROLLBOX_CLAIM_FDS."""


class StateOptions(ctypes.Structure):
    """struct rollbox_state_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("processes", ctypes.c_int),
        ("same_seed", ctypes.c_bool),
        ("attached", ctypes.c_bool),
    ]


class AttachOptions(ctypes.Structure):
    """struct rollbox_attach_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("operation_id", ctypes.c_char_p),
        ("input_fd", ctypes.c_int),
        ("stream_fds", ctypes.c_int * 2),
        ("callback", CALLBACK),
        ("userdata", ctypes.c_void_p),
    ]


PROGRESS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)
"""rollbox_progress: (bytes, files, userdata)."""


class FileOptions(ctypes.Structure):
    """struct rollbox_file_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("user", ctypes.c_char_p),
        ("owner", ctypes.c_char_p),
        ("mode", ctypes.c_uint),
        ("progress", PROGRESS),
        ("userdata", ctypes.c_void_p),
    ]

    def __init__(self) -> None:
        super().__init__(size=ctypes.sizeof(type(self)))


QUERY_INSPECT, QUERY_PROCESSES, QUERY_TREE, QUERY_EXECS, QUERY_STATS = 1, 2, 3, 4, 5
QUERY_NET_LOG = 6
"""enum rollbox_query."""

SCOPES = {"main": 1, "tree": 2, "children": 3, "group": 4}
"""enum rollbox_scope by name."""

_P = ctypes.c_void_p
_ERROR = ctypes.POINTER(Error)
_TEXT = ctypes.POINTER(ctypes.c_void_p)  # char **; a c_char_p would lose the address to free

_SIGNATURES: dict[str, Any] = {
    "rollbox_version": (ctypes.c_char_p, []),
    "rollbox_engine_open": (
        ctypes.c_int,
        [ctypes.POINTER(EngineOptions), ctypes.POINTER(_P), _ERROR],
    ),
    "rollbox_engine_close": (_P, [_P]),
    "rollbox_engine_fd": (ctypes.c_int, [_P]),
    "rollbox_engine_pid": (ctypes.c_int, [_P]),
    "rollbox_dispatch": (ctypes.c_int, [_P]),
    "rollbox_queued": (None, [_P, _P]),
    "rollbox_next_ended": (_P, [_P]),
    "rollbox_told": (None, [_P, _P]),
    "rollbox_engine_status": (ctypes.c_int, [_P, _TEXT, _ERROR]),
    "rollbox_policy_check": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_size_t, _TEXT, _ERROR]),
    "rollbox_net_test": (
        ctypes.c_int,
        [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_char_p, _TEXT, _ERROR],
    ),
    "rollbox_prepare": (
        ctypes.c_int,
        [_P, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(_P), _ERROR],
    ),
    "rollbox_start": (
        ctypes.c_int,
        [_P, _P, ctypes.POINTER(RunOptions), ctypes.POINTER(_P), _ERROR],
    ),
    "rollbox_wait": (ctypes.c_int, [_P, ctypes.c_int64, ctypes.POINTER(ctypes.POINTER(RawResult))]),
    "rollbox_kill": (ctypes.c_int, [_P, ctypes.c_int]),
    "rollbox_run_free": (_P, [_P]),
    "rollbox_doctor": (ctypes.c_int, [_TEXT, _ERROR]),
    "rollbox_sandbox_create": (
        ctypes.c_int,
        [_P, _P, ctypes.POINTER(SandboxOptions), ctypes.POINTER(_P), _ERROR],
    ),
    "rollbox_sandbox_open": (ctypes.c_int, [_P, ctypes.c_char_p, ctypes.POINTER(_P), _ERROR]),
    "rollbox_sandbox_name": (ctypes.c_char_p, [_P]),
    "rollbox_sandbox_close": (ctypes.c_int, [_P, _ERROR]),
    "rollbox_sandbox_finish": (ctypes.c_int, [_P, _TEXT, _ERROR]),
    "rollbox_sandbox_free": (_P, [_P]),
    "rollbox_note": (ctypes.c_int, [_P, ctypes.c_char_p, _ERROR]),
    "rollbox_record": (ctypes.c_int, [_P, ctypes.POINTER(RecordOptions), _TEXT, _ERROR]),
    "rollbox_sandbox_list": (ctypes.c_int, [_P, _TEXT, _ERROR]),
    "rollbox_sandbox_stats": (ctypes.c_int, [_P, _TEXT, _ERROR]),
    "rollbox_engine_debug": (ctypes.c_int, [_P, _TEXT, _ERROR]),
    "rollbox_sandbox_query": (ctypes.c_int, [_P, ctypes.c_int, _TEXT, _ERROR]),
    "rollbox_net_set": (ctypes.c_int, [_P, ctypes.c_char_p, _ERROR]),
    "rollbox_net_tally": (ctypes.c_int, [_P, ctypes.c_char_p, _TEXT, _ERROR]),
    "rollbox_connect": (
        ctypes.c_int,
        [_P, ctypes.c_uint, ctypes.POINTER(ctypes.c_int), _ERROR],
    ),
    "rollbox_publish": (
        ctypes.c_int,
        [_P, ctypes.c_uint, ctypes.c_char_p, _TEXT, _ERROR],
    ),
    "rollbox_pause": (ctypes.c_int, [_P, _ERROR]),
    "rollbox_resume": (ctypes.c_int, [_P, _ERROR]),
    "rollbox_hibernate": (ctypes.c_int, [_P, ctypes.POINTER(StateOptions), _ERROR]),
    "rollbox_wake": (ctypes.c_int, [_P, ctypes.POINTER(StateOptions), _ERROR]),
    "rollbox_exec": (ctypes.c_int, [_P, ctypes.POINTER(ExecOptions), ctypes.POINTER(_P), _ERROR]),
    "rollbox_attach": (
        ctypes.c_int,
        [_P, ctypes.POINTER(AttachOptions), ctypes.POINTER(_P), _ERROR],
    ),
    "rollbox_signal": (ctypes.c_int, [_P, ctypes.c_char_p, ctypes.c_int, ctypes.c_int, _ERROR]),
    "rollbox_resize": (ctypes.c_int, [_P, ctypes.c_char_p, ctypes.POINTER(Terminal), _ERROR]),
    "rollbox_snapshot": (
        ctypes.c_int,
        [_P, ctypes.c_char_p, ctypes.POINTER(StateOptions), _TEXT, _ERROR],
    ),
    "rollbox_fork_group": (
        ctypes.c_int,
        [
            ctypes.POINTER(_P),
            ctypes.c_size_t,
            ctypes.c_size_t,
            ctypes.POINTER(StateOptions),
            ctypes.POINTER(_P),
            _ERROR,
        ],
    ),
    "rollbox_fork": (
        ctypes.c_int,
        [
            _P,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.POINTER(StateOptions),
            ctypes.POINTER(_P),
            _ERROR,
        ],
    ),
    "rollbox_reset": (ctypes.c_int, [_P, ctypes.c_char_p, ctypes.POINTER(StateOptions), _ERROR]),
    "rollbox_claim": (
        ctypes.c_int,
        [_P, ctypes.c_char_p, ctypes.c_uint, ctypes.POINTER(ctypes.c_int), _ERROR],
    ),
    "rollbox_snapshot_drop": (ctypes.c_int, [_P, ctypes.c_char_p, _ERROR]),
    "rollbox_note_shell": (ctypes.c_int, [_P, ctypes.POINTER(ShellNote), _ERROR]),
    "rollbox_snapshot_show": (ctypes.c_int, [_P, ctypes.c_char_p, _TEXT, _ERROR]),
    "rollbox_snapshot_verify": (ctypes.c_int, [_P, ctypes.c_char_p, _TEXT, _ERROR]),
    "rollbox_diff": (
        ctypes.c_int,
        [_P, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_bool, _TEXT, _ERROR],
    ),
    "rollbox_commit": (ctypes.c_int, [_P, ctypes.c_char_p, ctypes.c_bool, _TEXT, _ERROR]),
    "rollbox_export": (ctypes.c_int, [_P, ctypes.c_char_p, ctypes.c_char_p, _ERROR]),
    "rollbox_export_live": (ctypes.c_int, [_P, ctypes.c_char_p, ctypes.c_char_p, _ERROR]),
    "rollbox_file_read": (
        ctypes.c_int,
        [
            _P,
            ctypes.c_char_p,
            ctypes.c_uint64,
            ctypes.POINTER(_P),
            ctypes.POINTER(ctypes.c_size_t),
            _ERROR,
        ],
    ),
    "rollbox_file_write": (
        ctypes.c_int,
        [_P, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, _ERROR],
    ),
    "rollbox_file_list": (ctypes.c_int, [_P, ctypes.c_char_p, _TEXT, _ERROR]),
    "rollbox_file_stat": (ctypes.c_int, [_P, ctypes.c_char_p, ctypes.c_bool, _TEXT, _ERROR]),
    "rollbox_file_mkdir": (ctypes.c_int, [_P, ctypes.c_char_p, ctypes.c_uint, _ERROR]),
    "rollbox_file_remove": (ctypes.c_int, [_P, ctypes.c_char_p, ctypes.c_bool, _ERROR]),
    "rollbox_agent_upload": (
        ctypes.c_int,
        [ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, PROGRESS, _P, _ERROR],
    ),
    "rollbox_agent_download": (
        ctypes.c_int,
        [ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, PROGRESS, _P, _ERROR],
    ),
    "rollbox_upload": (ctypes.c_int, [_P, ctypes.c_char_p, ctypes.c_char_p, PROGRESS, _P, _ERROR]),
    "rollbox_file_write_as": (
        ctypes.c_int,
        [
            _P,
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.POINTER(FileOptions),
            _ERROR,
        ],
    ),
    "rollbox_upload_as": (
        ctypes.c_int,
        [_P, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(FileOptions), _ERROR],
    ),
    "rollbox_download": (
        ctypes.c_int,
        [_P, ctypes.c_char_p, ctypes.c_char_p, PROGRESS, _P, _ERROR],
    ),
}

_library: Optional[Any] = None
_lock = threading.Lock()


def package_directory() -> Path:
    """The directory of this package's files, where a wheel also has its library."""
    return Path(__file__).resolve().parent.parent


def find_binary(name: str) -> list[Path]:
    """The paths where `name` (librollbox.so, rollbox) may be.

    In the package, in the installation's bin, then in the build directory of a source checkout.
    """
    here = package_directory()
    places = [here / name]
    if name == "rollbox":
        # PREFIX/bin beside PREFIX/lib/pythonX.Y/site-packages/rollbox, or `pip install --target`.
        places += [up / "bin" / name for up in (here.parents[3], here.parent)]
    checkout = here.parent.parent
    if (checkout / "include" / "rollbox" / "rollbox.h").exists():
        places.append(checkout / "build" / name)
    return places


SYSTEM_LIBRARY = "librollbox.so.0"


def _load() -> Any:
    override = os.environ.get("ROLLBOX_LIBRARY")
    places = [Path(override)] if override else find_binary("librollbox.so")
    found = [str(place) for place in places if place.exists()]
    # Distributions have the library where the system's loader finds it.
    place = found[0] if found else SYSTEM_LIBRARY
    try:
        library = ctypes.CDLL(place)
        for name, (restype, argtypes) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype = restype
            function.argtypes = argtypes
    except (OSError, AttributeError) as problem:
        if not found:
            raise EngineStartFailed(
                "librollbox.so not found; looked for "
                + ", ".join(str(place) for place in places)
                + f" and the system's {SYSTEM_LIBRARY}"
                + ". Install the package (pip install .), run make, or set ROLLBOX_LIBRARY",
                stage="library",
            ) from problem
        raise EngineStartFailed(f"cannot load {place}: {problem}", stage="library") from problem
    version = library.rollbox_version().decode()
    if version != VERSION:
        raise ProtocolError(
            f"{place} is version {version}, this package is {VERSION}; install both from one build",
            stage="library",
        )
    return library


def lib() -> Any:
    """Returns the loaded library.

    Raises:
        EngineStartFailed: It cannot be found or loaded.
        ProtocolError: It is of another version.
    """
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                _library = _load()
    return _library


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it at the fork


os.register_at_fork(after_in_child=_after_fork)


_libc = ctypes.CDLL(None)
_libc.free.argtypes = [ctypes.c_void_p]
_libc.free.restype = None


def take_text(pointer: ctypes.c_void_p) -> str:
    """Copies a malloc'ed C string (an output `char **`) and frees it; "" for NULL."""
    if not pointer.value:
        return ""
    try:
        return ctypes.string_at(pointer.value).decode("utf-8", "replace")
    finally:
        _libc.free(pointer)


def take_bytes(pointer: ctypes.c_void_p, length: int) -> bytes:
    """Copies malloc'ed bytes and frees them; b"" for NULL."""
    if not pointer.value:
        return b""
    try:
        return ctypes.string_at(pointer.value, length)
    finally:
        _libc.free(pointer)


def take_json(pointer: ctypes.c_void_p) -> Any:
    """Copies, parses and frees a malloc'ed C string of JSON; None for NULL."""
    text = take_text(pointer)
    return json.loads(text) if text else None


_classes = [
    cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, RollboxError)
]
_by_number: dict[int, type[RollboxError]] = {cls.number: cls for cls in _classes if cls.number}
_by_code: dict[str, type[RollboxError]] = {cls.code: cls for cls in _classes}


def exception_class(code: str) -> Optional[type[RollboxError]]:
    """The Python exception of an error's code; None: there is none."""
    return _by_code.get(code)


def exception(error: Error) -> RollboxError:
    """The Python exception for a filled struct rollbox_error."""
    cls = _by_number.get(error.code, errors.InternalError)
    message = (
        error.message.decode("utf-8", "replace")
        or f"the library reported error {error.code} without a message"
    )
    if cls is errors.EngineLost and message.endswith("are gone"):
        message += (
            "; the next call starts another engine, or connects to the one that serves the socket "
            "by then, and a session has to be opened again"
        )
    return cls(
        message, stage=error.stage.decode("utf-8", "replace"), errno=error.error_number or None
    )
