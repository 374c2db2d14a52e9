# SPDX-License-Identifier: Apache-2.0
"""Programs that look for a difference between a warm interpreter and a cold one, and helpers to
wait for a warm one and to compare."""
import re
import threading
from pathlib import Path

import pytest
from harness import skip

POLICY = {"max_memory": "256M", "max_processes": 40, "timeout": 60}


def count(engine, key="restored"):
    return engine.status()["interpreters"][key]


def wait_until_ready(engine, sandbox, n=1):
    """An interpreter is started with the second run; nothing tells when it is ready but the engine."""
    pause = threading.Event()
    for _ in range(2000):
        state = engine.status()["interpreters"]
        if state["ready"] >= n:
            return
        if state["problem"]:
            break
        sandbox.run_code("pass")
        pause.wait(0.01)
    if "Operation not supported" in state["problem"]:
        skip("musl: init is linked with glibc, which cannot hold an interpreter")
    pytest.fail(f"no interpreter: {state}")

# What a program can see of itself, and all the ways to end. Each is run both ways, and everything
# that comes of it compared.
PROGRAMS = {
    "nothing": "pass",
    "empty": "",
    "argv": "import sys; print(sys.argv, sys.orig_argv, sys.executable, sys.path, sys.flags)",
    "main": "print(sorted(globals()), __name__, __doc__, __package__, __loader__, __spec__, __builtins__, __annotations__)",
    "main_is_main": "import __main__, sys; x = 1; print(__main__.x, sys.modules['__main__'] is __main__, __main__.__dict__ is globals())",
    "modules": "import sys; print(sorted(sys.modules), sys.meta_path, sys.path_hooks)",
    "attributes": "import sys, os; print(sorted(vars(sys)), sorted(vars(os)), sys.stdin, sys.stdout, sys.stderr, sys.stdout.line_buffering, sys.stderr.line_buffering, sys.getrecursionlimit())",
    "environment": "import os; print(sorted(os.environ.items()), os.getcwd())",
    "process": "import os; print(os.getpid(), os.getppid(), os.getpgid(0), os.getsid(0), os.getuid(), os.getgroups(), os.getresuid(), os.umask(0), os.getpriority(os.PRIO_PROCESS, 0))",
    "descriptors": "import os; print(sorted(os.listdir('/proc/self/fd')), [os.fstat(i).st_mode for i in range(3)])",
    "signals": "import signal; print([(s, signal.getsignal(s)) for s in sorted(signal.valid_signals())], signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending(), signal.getitimer(0))",
    "status": "print([line for line in open('/proc/self/status') if line.split(':')[0] in ('Name', 'Umask', 'State', 'Pid', 'PPid', 'TracerPid', 'Uid', 'Gid', 'FDSize', 'Groups', 'NSpid', 'NSsid', "
    "'Threads', 'SigPnd', 'SigBlk', 'SigIgn', 'SigCgt', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp', 'Seccomp_filters', 'Cpus_allowed')])",
    "program": "import os; print(os.readlink('/proc/self/exe'), open('/proc/self/comm').read(), os.path.samefile('/proc/self/exe', '/usr/bin/python3'), os.readlink('/proc/self/root'), os.readlink('/proc/self/cwd'))",
    "maps": "import re; print(sorted({line.split()[-1] for line in open('/proc/self/maps') if line.split()[-1].startswith(('/', '[v', '[st', '[h')) and '/_typing.' not in line} - {'/usr/lib/locale/C.utf8/LC_CTYPE'}))",
    "limits": "import resource; print([resource.getrlimit(i) for i in range(resource.RLIM_NLIMITS if hasattr(resource, 'RLIM_NLIMITS') else 16)])",
    "not_dumpable": "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), ctypes.CDLL(None).prctl(2, ctypes.byref(ctypes.c_int()), 0, 0, 0))",
    "namespaces": "import os; print(sorted(os.listdir('/proc/self/ns')), [os.readlink('/proc/self/ns/' + n) == os.readlink('/proc/1/ns/' + n) if os.access('/proc/1/ns/' + n, os.R_OK) else None for n in ('pid', 'mnt')])",
    "clock": "import time; a = time.monotonic(), time.time(), time.perf_counter(); b = time.monotonic(), time.time(), time.perf_counter(); print(all(x <= y for x, y in zip(a, b)), b[0] < 600, abs(time.time() - __import__('os').stat('/proc/self').st_mtime) < 60)",
    "floats": "import math; print([math.sin(i) * 1e10 for i in range(20)], 0.1 + 0.2, float('nan'), 7 // 2, -7 % 3)",
    "heap": "x = [bytes(1000) for _ in range(20000)]; del x; y = bytearray(50 << 20); print(len(y), sum(y))",
    "deep": "def f(n): return n and 1 + f(n - 1)\nprint(f(900))",
    "too_deep": "def f(): f()\ntry:\n    f()\nexcept RecursionError as e:\n    print(e)",
    "stack": "import sys; sys.setrecursionlimit(50000)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(20000))",
    "stdin": "import sys; print(repr(sys.stdin.read()), repr(sys.stdin.readline()))",
    "input": "print(input('? '), input())",
    "binary": "import sys; sys.stdout.buffer.write(bytes(range(256))); sys.stderr.buffer.write(b'\\xff\\x00')",
    "unicode": "print('h\u00e9llo \u4e16\u754c \U0001f600'); print(ascii('\u00e9'))",
    "mixed": "import sys\nfor i in range(3):\n    print('out', i); print('err', i, file=sys.stderr)",
    "much": "print('x' * 300000)",
    "exit": "import sys; sys.exit(3)",
    "exit_none": "import sys; sys.exit()",
    "exit_text": "import sys; sys.exit('why')",
    "exit_large": "import sys; sys.exit(256 + 7)",
    "exit_huge": "import sys; sys.exit(1 << 40)",
    "exit_negative": "import sys; sys.exit(-1)",
    "exit_bool": "import sys; sys.exit(True)",
    "exit_object": "import sys; sys.exit([1, 2])",
    "exit_int": "class I(int):\n    pass\nraise SystemExit(I(5))",
    "os_exit": "import os; print('lost', end=''); os._exit(4)",
    "quit": "quit(2)",
    "error": "def f(x):\n    return 1 / x\n\nf(0)",
    "error_chain": "try:\n    {}['a']\nexcept KeyError:\n    raise ValueError('b')",
    "error_from": "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e",
    "error_group": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "error_note": "e = ValueError(1); e.add_note('noted'); raise e",
    "error_own": "class E(Exception):\n    def __str__(self): return 'mine'\nraise E",
    "error_text": "class E(Exception):\n    def __str__(self): raise KeyError\nraise E",
    "error_base": "raise BaseException('x')",
    "error_assert": "assert 1 == 2, 'no'",
    "error_output": "print('before'); raise OSError(2, 'x', 'y')",
    "error_suggestion": "import os\nos.getpidd()",
    "error_name": "prin(1)",
    "syntax": "x = (1,\ny = 2",
    "syntax_indent": "  x = 1",
    "syntax_return": "return 5",
    "syntax_tab": "if 1:\n\tx\n        y",
    "syntax_warning": "x = 1 is 1\nassert (1, 'x')\nprint('\\d')",
    "interrupt": "raise KeyboardInterrupt",
    "interrupt_signal": "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(60)",
    "terminate": "import os, signal; os.kill(os.getpid(), signal.SIGTERM); import time; time.sleep(60)",
    "abort": "import os; os.abort()",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "pipe_signal": "import os; r, w = os.pipe(); os.close(r)\ntry:\n    os.write(w, b'x')\nexcept BrokenPipeError as e:\n    print(e)",
    "handler": "import os, signal; signal.signal(signal.SIGUSR1, lambda *a: print('got', a[0])); os.kill(os.getpid(), signal.SIGUSR1)",
    "alarm": "import signal, time; signal.signal(signal.SIGALRM, lambda *a: print('rang')); signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()",
    "excepthook": "import sys; sys.excepthook = lambda *a: print('hook', a[0], a[1], a[2].tb_lineno); 1 / 0",
    "excepthook_fails": "import sys\ndef hook(*a):\n    raise ValueError('in hook')\nsys.excepthook = hook\n1 / 0",
    "excepthook_gone": "import sys; del sys.excepthook; 1 / 0",
    "last": "import sys, atexit\natexit.register(lambda: print(sys.last_type, sys.last_value, sys.last_traceback.tb_lineno))\n1 / 0",
    "atexit": "import atexit; atexit.register(print, 'one'); atexit.register(print, 'two'); print('zero')",
    "atexit_fails": "import atexit\n@atexit.register\ndef f():\n    1 / 0",
    "atexit_exits": "import atexit, sys; atexit.register(sys.exit, 5)",
    "atexit_after_error": "import atexit; atexit.register(print, 'last'); 1 / 0",
    "atexit_main": "import atexit; x = 5; atexit.register(lambda: print(x, '__file__' in globals()))",
    "delete": "class A:\n    def __del__(self): print('gone')\na = A()",
    "delete_slots": "class A:\n    __slots__ = ()\n    def __del__(self): print('gone')\na = A()\nb = [a]",
    "delete_cycle": "class A:\n    def __del__(self): print('gone', type(self).__name__)\na = A(); a.me = a; del a",
    "delete_inherited": "class A:\n    def __del__(self): print('gone', type(self).__name__)\nclass B(A): pass\nb = {1: [B()]}",
    "delete_late": "class A: pass\na = A()\nA.__del__ = lambda self: print('late')",
    "delete_meta": "class M(type):\n    def __del__(cls): print('class gone', cls.__name__)\nclass A(metaclass=M): pass",
    "delete_in_module": "import os\nclass A:\n    def __del__(self): print('gone')\nos.thing = A()",
    "delete_on_sys": "import sys\nclass A:\n    def __del__(self): print('gone')\nsys.thing = A()",
    "delete_fails": "class A:\n    def __del__(self): 1 / 0\na = A()",
    "weakref": "import weakref\nclass A: pass\na = A(); r = weakref.ref(a, lambda r: print('told'))",
    "weakref_finalize": "import weakref\nclass A: pass\na = A(); weakref.finalize(a, print, 'finalized')",
    "weak_dictionary": "import weakref\nclass A: pass\na = A(); d = weakref.WeakValueDictionary(x=a); print(len(d))",
    "generator": "def g():\n    try:\n        yield 1\n    finally:\n        print('closed')\nx = g(); next(x)",
    "coroutine": "async def f(): pass\nf()",
    "coroutine_kept": "async def f(): pass\nc = f()",
    "async_generator": "async def g():\n    try:\n        yield 1\n    finally:\n        print('never')\nx = g()",
    "unflushed_file": "f = open('/tmp/x', 'w'); f.write('kept'); import os\nif os.fork() == 0:\n    raise SystemExit\nos.wait(); print(os.path.getsize('/tmp/x'))",
    "file_flushed_at_end": "import os\npid = os.fork()\nif pid == 0:\n    f = open('/tmp/y', 'w'); f.write('kept')\nelse:\n    os.waitpid(pid, 0); print(open('/tmp/y').read())",
    "dbm_open": "import dbm.ndbm, os\npid = os.fork()\nif pid == 0:\n    d = dbm.ndbm.open('/tmp/db', 'c'); d['k'] = 'v'\nelse:\n    os.waitpid(pid, 0); print(dbm.ndbm.open('/tmp/db', 'r')['k'])",
    "sqlite_open": "import sqlite3, os\npid = os.fork()\nif pid == 0:\n    d = sqlite3.connect('/tmp/sq'); d.execute('pragma journal_mode=wal'); d.execute('create table t(x)'); d.commit()\nelse:\n    os.waitpid(pid, 0); print(sorted(os.listdir('/tmp')), sqlite3.connect('/tmp/sq').execute('select count(*) from t').fetchall())",
    "zip_open": "import zipfile, os\npid = os.fork()\nif pid == 0:\n    z = zipfile.ZipFile('/tmp/z.zip', 'w'); z.writestr('a', 'b')\nelse:\n    os.waitpid(pid, 0); print(zipfile.ZipFile('/tmp/z.zip').namelist())",
    "gzip_open": "import gzip, os\npid = os.fork()\nif pid == 0:\n    z = gzip.open('/tmp/z.gz', 'wb'); z.write(b'text')\nelse:\n    os.waitpid(pid, 0); print(gzip.open('/tmp/z.gz').read())",
    "task_pending": "import asyncio\nasync def f():\n    await asyncio.sleep(100)\nloop = asyncio.new_event_loop(); t = loop.create_task(f()); loop.run_until_complete(asyncio.sleep(0))",
    "log_buffered": "import logging.handlers\nh = logging.handlers.MemoryHandler(100, target=logging.StreamHandler()); logging.getLogger().addHandler(h); logging.warning('late')",
    "resource_warning": "import warnings; warnings.simplefilter('always'); f = open('/etc/passwd')",
    "stdout_replaced": "import sys, io\nclass T(io.StringIO):\n    def flush(self): sys.__stdout__.write('flushed\\n')\nsys.stdout = T(); print('x')",
    "stdout_closed": "import sys; print('x'); sys.stdout.close()",
    "stdout_fd_closed": "import os; print('x'); os.close(1)",
    "stdout_detached": "import sys; b = sys.stdout.detach(); b.write(b'raw\\n')",
    "stderr_closed": "import sys; sys.stderr.close(); sys.exit(3)",
    "stderr_fd_closed": "import os; os.close(2); 1 / 0",
    "excepthook_exits": "import sys; sys.excepthook = lambda *a: sys.exit(9); 1 / 0",
    "excepthook_generator": "import sys\ndef g():\n    try:\n        yield\n    finally:\n        print('closed')\nx = g(); next(x); 1 / 0",
    "thread": "import threading\ne = threading.Event()\ndef f():\n    e.wait(); print('thread')\nthreading.Thread(target=f).start(); print('main'); e.set()",
    "thread_daemon": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start(); print('main')",
    "thread_error": "import threading\nthreading.Thread(target=lambda: 1 / 0, name='T').start()",
    "thread_low": "import _thread, time\nl = _thread.allocate_lock(); l.acquire()\n_thread.start_new_thread(lambda: (print('low'), l.release()), ()); l.acquire()",
    "threads_many": "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(8) as p: print(list(p.map(lambda x: x * x, range(50))))",
    "asyncio": "import asyncio\nasync def f():\n    await asyncio.sleep(0.01); return 5\nprint(asyncio.run(f()))",
    "fork": "import os\npid = os.fork()\nif pid == 0:\n    print('child', flush=True); raise SystemExit(3)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), pid)",
    "fork_falls_through": "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint('parent' if pid else 'child')",
    "orphan": "import os, time\nif os.fork() == 0:\n    time.sleep(60)\nprint('done')",
    "subprocess": "import subprocess; print(subprocess.run(['sh', '-c', 'echo $$; exit 3'], capture_output=True))",
    "subprocess_python": "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'import sys; print(sys.argv, 5)', 'a'], capture_output=True))",
    "exec": "import os; print('lost'); os.execvp('echo', ['echo', 'other'])",
    "multiprocessing": "import multiprocessing as m\ndef f(x): return x * x\nwith m.Pool(3) as p: print(p.map(f, range(20)))",
    "multiprocessing_spawn": "import multiprocessing as m, os\nif __name__ == '__main__':\n    p = m.get_context('spawn').Process(target=os._exit, args=(7,)); p.start(); p.join(); print(p.exitcode)",
    "shared_memory": "import mmap, os\nm = mmap.mmap(-1, 4096)\nif os.fork() == 0:\n    m[0] = 7; os._exit(0)\nos.wait(); print(m[0])",
    "sockets": "import socket; a, b = socket.socketpair(); a.send(b'x'); print(b.recv(5))",
    "temporary": "import tempfile\nwith tempfile.NamedTemporaryFile('w+') as f: f.write('x'); f.seek(0); print(f.read())\nd = tempfile.TemporaryDirectory(); print('made')",
    "imports": "import json, re, typing, collections, dataclasses, decimal, datetime, random, hashlib, struct, array, zlib, sqlite3, ssl; print(json.dumps({'a': [1]}), re.sub('a', 'b', 'aa'), hashlib.sha256(b'x').hexdigest())",
    "import_own": "open('/tmp/own.py', 'w').write('print(__name__, __file__); x = 5')\nimport os; os.chdir('/tmp')\nimport own; print(own.x)",
    "import_missing": "import nothing_of_that_name",
    "collect": "import gc; print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.garbage, gc.callbacks)",
    "gc_finds": "import gc\nclass A: pass\na = A(); a.a = a; del a; print(gc.collect() > 0, [x for x in gc.get_objects() if isinstance(x, A)])",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int = 1\nprint(P(), P.__module__, P.__qualname__)",
    "pickle": "import pickle\nclass A: pass\nprint(pickle.loads(pickle.dumps(A)) is A)",
    "inspect": "import inspect\ndef f(): pass\nprint(inspect.signature(f), f.__module__, f.__code__.co_filename, f.__code__.co_firstlineno)",
    "traceback_module": "import traceback\ntry:\n    1 / 0\nexcept Exception:\n    traceback.print_exc()",
    "warn": "import warnings; warnings.warn('careful')",
    "log": "import logging; logging.warning('careful %d', 5)",
    "faults": "import faulthandler, sys; print(faulthandler.is_enabled(), sys.gettrace(), sys.getprofile())",
    "traced": "import sys\nsys.settrace(lambda *a: None)\nprint('x')",
    "locale": "import locale, sys; print(locale.getlocale(), sys.getfilesystemencoding(), sys.getdefaultencoding(), locale.getpreferredencoding())",
    "future": "from __future__ import annotations\ndef f(x: undefined_name): pass\nprint(f.__annotations__)",
    "annotations": "x: int = 5\nprint(__annotations__)",
    "builtins": "import builtins; builtins.mine = 5; print(mine)",
    "names": "f = 1; g = 2; wait = 3; run = 4; program = 5; print(f, g, wait, run, program, sorted(k for k in globals() if k[0] != '_'))",
    "walrus": "print([y := 1, y ** 2], {k: v for k, v in zip('ab', range(2))})",
    "shadow_type": "type = 'x'; import sys; sys.exit(3)",
    "shadow_type_error": "type = 'x'; 1 / 0",
    "shadow_many": "isinstance = hasattr = getattr = issubclass = len = print = frozenset = str = vars = any = 3; 1 / 0",
    "shadow_called": "p = print\ndef issubclass(*a): p('called', a)\nhasattr = getattr = isinstance = id = vars = issubclass\nclass A: pass\na = A()",
    "shadow_system_exit": "class SystemExit(Exception): pass\nraise SystemExit(3)",
    "shadow_base_exception": "BaseException = KeyboardInterrupt = 5\n1 / 0",
    "shadow_builtins": "import builtins, sys; builtins.SystemExit = ValueError; builtins.type = builtins.len = None; sys.exit(3)",
    "shadow_finalizer": "hasattr = lambda *a: False\nclass A:\n    def __del__(self): print('gone')\na = A()",
    "c_output": "import ctypes; ctypes.CDLL(None).puts(b'from C'); print('from Python')",
    "dbm_lost": "import dbm.ndbm, sys; d = dbm.ndbm.open('/tmp/db2', 'c'); d['k'] = 'v'; del sys.modules['dbm']",
    "subinterpreter": "import _xxsubinterpreters as s; i = s.create(); s.run_string(i, 'print(\"from sub\")')",
    "atexit_hidden": "import atexit, sys; atexit.register(print, 'kept'); del sys.modules['atexit']",
    "stdout_kept": "import sys, io; old = sys.stdout; print('kept'); sys.stdout = sys.__stdout__ = io.StringIO()",
    "delete_on_old_class": "import _sitebuiltins; _sitebuiltins.Quitter.__del__ = lambda self: print('gone')",
    "delete_on_old_class_unnamed": "import _sitebuiltins; setattr(_sitebuiltins.Quitter, '__' + 'del__', lambda self: print('gone'))",
    "delete_on_old_class_and_new": "import _sitebuiltins\nclass A:\n    def __del__(self): pass\ndel A\nsetattr(_sitebuiltins.Quitter, '__' + 'del__', lambda self: print('gone'))",
    "class_as_module": "import sys\nclass M(type):\n    def __del__(cls): print('class gone', cls.__name__)\nclass A(metaclass=M): pass\nsys.modules['a'] = A\ndel A, M",
    "class_as_module_plain": "import sys\nclass A:\n    class B:\n        def __del__(self): print('gone')\n    b = B()\nsys.modules['a'] = A\ndel A",
    "typing": "from typing import *; import sys; print(sorted(name for name in sys.modules if name.startswith('typing')), List[int], Optional[Tuple[str, ...]])",
    "scandir": "import os, warnings; warnings.simplefilter('always'); s = os.scandir('/'); next(s)",
    "meta_getattr": "class M(type):\n    def __getattr__(cls, name): print('asked', name); raise AttributeError\n    def __getattribute__(cls, name): print('asked', name); return type.__getattribute__(cls, name)\n    def __eq__(cls, other): print('compared'); return False\n    __hash__ = type.__hash__\nclass A(metaclass=M): pass\na = A()",
    "audited": "import sys; sys.addaudithook(lambda name, args: print(name) if name.startswith('gc') else None)",
    "debugged": "import pdb, sys, io\nd = pdb.Pdb(stdin=io.StringIO('n\\n' * 9), stdout=sys.stdout); d.set_trace(); print('x')\ny = 5",
    "debugged_to_the_end": "breakpoint()\nprint('x')",
    "traced_calls": "import sys\nsys.settrace(lambda f, e, a: print(e, f.f_code.co_name))\ndef f(): pass\nf()\nsys.settrace(None)",
    "profiled": "import sys\nsys.setprofile(lambda f, e, a: None)\nlen([])\nsys.setprofile(None)",
    "exit_property": "class E(SystemExit):\n    @property\n    def code(self): print('asked'); return 4\nraise E",
    "stdin_seek": "import sys; print(sys.stdin.seekable(), sys.stdin.tell(), sys.stdin.readline(), sys.stdin.seek(0), sys.stdin.read(), sys.stdin.buffer.raw.seekable())",
    "warning_then_error": "assert (1, 'x')\nreturn 5",
    "warning_escape": "x = '\\d'\nprint(x)",
    "excepthook_none": "import sys; sys.excepthook = None; 1 / 0",
    "last_exc": "import sys, atexit\natexit.register(lambda: print(getattr(sys, 'last_exc', None)))\n1 / 0",
    "random_new": "import random; random.seed(5); print(random.random())",
    "proxies": "import weakref\nclass A: pass\na = A(); p = weakref.proxy(a, lambda r: print('told'))",
    "frozen_by_program": "import gc, os; f = os.fdopen(os.dup(1), 'w'); f.write('hi'); gc.freeze()",
    "gc_callbacks": "import gc; gc.callbacks.append(lambda phase, info: print(phase))",
    "profiled_to_the_end": "import sys\nsys.setprofile(lambda f, e, a: print(e, f.f_code.co_name))\nlen([])",
    "traced_to_the_end": "import sys\ngetattr(sys, 'set' + 'trace')(lambda f, e, a: print(e, f.f_code.co_name))\ndef f(): pass\nf()",
    "lazy_module": "import sys, types\nm = types.ModuleType('lazy'); m.__getattr__ = lambda name: print('asked', name)\nsys.modules['lazy'] = m",
    "memory_error": "try:\n    x = bytearray(1 << 45)\nexcept MemoryError:\n    print('no')",
}

# Preloaded modules: each alone, all together, and with every change that a program can make to imports.
SHELVED = (
    "typing",
    "re",
    "collections",
    "functools",
    "enum",
    "types",
    "contextlib",
    "operator",
    "keyword",
    "reprlib",
    "copyreg",
    "re._parser",
    "re._compiler",
    "collections.abc",
    "warnings",
    "itertools",
    "_sre",
)

PROGRAMS.update(
    {
        f"shelf_{name}": f"import sys; before = set(sys.modules); import {name}; print([x for x in sys.modules if x not in before]); m = sys.modules['{name}']; print(list(vars(m)), m, m.__spec__, len(m.__doc__ or ''))"
        for name in SHELVED
    }
)

PROGRAMS.update(
    {
        "shelf_several": "import itertools, re, sys; from typing import List; import collections; print(list(sys.modules), itertools.chain is collections._chain, vars(sys.modules['typing'])['collections'] is collections, len(re._cache))",
        "shelf_users": "import copy, dataclasses, heapq, json, random, string, sys; print(list(sys.modules))",
        "shelf_specs": "import sys, typing, json\nfor name in sys.modules:\n    s = getattr(sys.modules[name], '__spec__', None)\n    if s:\n        loader = s.loader if isinstance(s.loader, type) else sorted(vars(s.loader).items())\n"
        "        print(name, sorted(item for item in vars(s).items() if item[0] != 'loader'), loader, list(vars(sys.modules[name]))[:9], sorted(sys.path_importer_cache))",
        "shelf_threads_of_parts": "import threading\nr = []\ndef f(name):\n    import sys\n    r.append(__import__(name) is sys.modules[name])\nt = [threading.Thread(target=f, args=(name,)) for name in ('typing', 'enum', 're', 'functools', 'contextlib') * 3]\n"
        "for x in t: x.start()\nfor x in t: x.join()\nimport typing, enum, re, sys\nprint(r, re.enum is enum is sys.modules['enum'], typing.re is not None)",
        "shelf_shadowed_in_path": "import os, sys; os.mkdir('/tmp/lib'); open('/tmp/lib/keyword.py', 'w').write('from operator import *; print(__file__); kwlist = []; iskeyword = print')\nsys.path.insert(0, '/tmp/lib')\nimport typing; print(typing.NamedTuple('A', [('b', int)]))",
        "shelf_shadowed_late": "import os, sys, operator, importlib.util; os.chdir('/tmp'); s = importlib.util.find_spec('typing'); open('/tmp/keyword.py', 'w').write('print(__file__); kwlist = []; iskeyword = print')\nm = importlib.util.module_from_spec(s); s.loader.exec_module(m); print(m.__name__)",
        "shelf_odd_path": "import sys; sys.path[:0] = [b'/tmp', None, [], '/nowhere', '/etc/passwd', '/usr/lib']; import typing; print(typing.List, sorted(sys.path_importer_cache))",
        "shelf_no_directory": "import os, sys; os.mkdir('/tmp/gone'); os.chdir('/tmp/gone'); os.rmdir('/tmp/gone'); import typing; print(typing.List, sorted(sys.path_importer_cache))",
        "shelf_elsewhere_compiled": "import sys; sys.pycache_prefix = '/tmp/cache'; import typing, enum; print(typing.__cached__, enum.__cached__, enum.__spec__.cached)",
        "shelf_twice": "import typing, sys; a = typing; del sys.modules['typing']; import typing; print(a is typing, a.List is typing.List); import re; b = re; del sys.modules['re']; import re; print(b is re)",
        "shelf_nested_gone": "import re, sys; del sys.modules['enum']; import typing; print(list(sys.modules)); import enum; print(re.RegexFlag.__mro__[1] is enum.IntFlag)",
        "shelf_shadowed": "import os; os.chdir('/tmp'); open('enum.py', 'w').write('print(__name__, __file__)\\nclass IntFlag: pass\\n')\nimport typing",
        "shelf_shadowed_first": "import os; os.chdir('/tmp'); open('typing.py', 'w').write('x=')\nimport typing",
        "shelf_shadowed_with_an_error": "import os; os.chdir('/tmp'); open('keyword.py', 'w').write('def f():\\n    1/0\\nf()')\nimport typing",
        "shelf_in_another": "import os; os.chdir('/tmp'); open('mine.py', 'w').write('import re\\n1/0')\nimport mine",
        "shelf_finder": "import sys\nclass F:\n    def find_spec(self, name, path, target=None): print(name, path)\nsys.meta_path.insert(0, F())\nimport typing",
        "shelf_import_hook": "import builtins\nold = builtins.__import__\ndef hook(name, *a, **k):\n    print(name, a[2:]); return old(name, *a, **k)\nbuiltins.__import__ = hook\nimport typing",
        "shelf_reload": "import importlib, re, typing; a = re.compile; importlib.reload(re); print(re.compile is a)",
        "shelf_recipe": "import importlib.util, sys; s = importlib.util.find_spec('typing'); m = importlib.util.module_from_spec(s); sys.modules['typing'] = m; s.loader.exec_module(m); print(m.List, len(vars(m))); import typing; print(typing is m)",
        "shelf_lazy": "import importlib.util, sys\ns = importlib.util.find_spec('typing'); l = importlib.util.LazyLoader(s.loader); s.loader = l; m = importlib.util.module_from_spec(s); sys.modules['typing'] = m; l.exec_module(m); print(type(m)); print(m.List)",
        "shelf_threads": "import threading\nr = []\ndef f(name): r.append(__import__(name))\nt = [threading.Thread(target=f, args=(name,)) for name in ('typing', 'collections', 're', 'enum', 'typing', 're')]\n"
        "[x.start() for x in t]; [x.join() for x in t]\nprint(sorted(m.__name__ for m in r), len({id(m) for m in r}), all(len(vars(m)) > 20 for m in r))",
        "shelf_subclasses": "print(len(object.__subclasses__()))",
        "shelf_values": "from collections import Counter, OrderedDict, deque, namedtuple; P = namedtuple('P', 'x y'); import pickle; print(P(1, 2), pickle.loads(pickle.dumps(Counter('aab'))), OrderedDict(a=1), deque([1]))",
        "shelf_generics": "from typing import *\nT = TypeVar('T')\nclass A(Generic[T]): pass\nprint(A[int], get_type_hints(A), NamedTuple('N', [('x', int)])(1))",
        "shelf_at_the_end": "import typing\ndef gone(self): print('gone')\nclass A(typing.Generic[typing.TypeVar('T')]): pass\na = A(); A.__del__ = gone",
        "shelf_at_the_end_of_a_class": "import typing, enum; setattr(enum.Enum, '__' + 'del__', lambda self: print('gone')); import re; print(re.I)",
        "shelf_at_the_end_of_a_module": "import typing\nclass A:\n    def __del__(self): print('gone')\ntyping.mine = A()",
    }
)

INPUT = "one\ntwo\nthree\n"

ADDRESS = re.compile(rb"0x[0-9a-f]{8,}")


def told(result):
    return {
        "outcome": str(result.outcome),
        "exit_code": result.exit_code,
        "signal": result.signal,
        "stdout": ADDRESS.sub(b"0x", result.stdout),
        "stderr": ADDRESS.sub(b"0x", result.stderr),
    }

FILES = {
    "nothing": "",
    "main": "print(sorted(globals()), __name__, __doc__, __file__, __cached__, type(__loader__), __loader__.name, __loader__.path, __spec__, __package__)",
    "argv": "import sys; print(sys.argv, sys.orig_argv, sys.path, sys.flags)",
    "source": "import inspect\ndef f(x):\n    return x\nprint(inspect.getsource(f), open(__file__).read()[:10])",
    "error": "def f(x):\n    return 1 / x\n\n\nf(0)",
    "syntax": "x = (1,\ny = 2",
    "latin": "# -*- coding: latin-1 -*-\nprint(ascii('\u00e9'))",
    "newlines": "x = 1\r\nprint(x)\r\n",
    "mark": "\ufeffprint('marked')",
    "nul": "print(1)\0",
    "document": '"""What it is."""\nprint(__doc__)',
    "atexit": "import atexit; atexit.register(lambda: print('__file__' in globals(), '__cached__' in globals()))",
    "import": "import other; print(other.x, other.__file__)",
    "multiprocessing": "import multiprocessing as m\n\ndef f(x):\n    return x * x\n\nif __name__ == '__main__':\n    with m.get_context('spawn').Pool(2) as p:\n        print(p.map(f, range(5)))",
    "exit": "raise SystemExit(3)",
    "unittest": "import unittest\n\nclass T(unittest.TestCase):\n    def test_x(self):\n        self.assertEqual(1, 2)\n\nunittest.main(argv=['x'])",
}


def by_name(engine, name):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text(errors="replace") if entry.name.isdigit() else ""
        except OSError:
            continue
        if stat and f"({name})" in stat and int(stat.rpartition(")")[2].split()[1]) == engine.pid:
            found.append(int(entry.name))
    return found
