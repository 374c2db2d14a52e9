# SPDX-License-Identifier: Apache-2.0
"""What an interpreter that is kept started does: it waits for its program, and then is as if it had just been started with that.

Built into init (command.c); the engine (interpreter.c) has it run as `python3 -c`, in a namespace of its own with builtins of its own: whatever names the program gives things, these functions mean what they say. `space` is the namespace of
`__main__`, the program's. What it finds there and in tracebacks is what it would find anyhow; the frames below its own are the only traces. What is there before the program comes is out of the garbage collector's sight
(gc.freeze), so that no collection touches, and so copies, all of it.

What comes on descriptor 3 are the words of the command line after `python3`: `-c`, code, arguments; or a file's name and arguments. None: then it is tried out, and waits again before its end, to be looked at. A program
that cannot be compiled is left to an interpreter that is started anew, whose words about it are the right ones. Where all is to repeat, what there is no captured one for yet is this program, too, started anew with the
words at hand and nobody to hear that it is ready (descriptor 4): so nothing here may depend on which of the two it is, not even what is allocated in which order.
"""

import _warnings
import sys
from _io import StringIO
from _weakref import CallableProxyType, ProxyType, ReferenceType
from posix import _exit, close, environ, execve, getcwd, open, pipe, read, stat, write

built_in = sys.modules["_frozen_importlib"]._builtin_from_name  # an import that waits for nobody: import's locks look at the clock, and a virtual one would tell
atexit, gc = built_in("atexit"), built_in("gc")
space = globals()["space"]
modules, out, err = sys.modules, sys.stdout, sys.stderr
MOST = 50000  # objects that are looked at: more take longer than the end does
TRIAL = "class A:\n    def f(self, x): return [x, {str(x): (x,)}]\ntry:\n    print(A().f(5), sum(range(99)), sorted('ba'), f'{0.5:.3}')\nexcept ValueError: pass\n"
BUILT_IN = frozenset(sys.builtin_module_names)
# What a program can do so that it is noticed when somebody looks, or that cannot be looked for: a program that names these is for an interpreter that is started anew.
WATCHERS = ("audit", "settrace", "setprofile", "monitoring", "tracemalloc", "faulthandler", "interpreters", "_ctypes", "ctypes", "pdb", "bdb", "breakpoint")
# Modules in C whose objects do nothing more at their end than their types say. Others do: a dbm is written when it is freed, a library has buffers of its own.
HARMLESS = frozenset("_asyncio _bz2 _contextvars _crypt _decimal _hashlib _json _lzma _multiprocessing _opcode _posixshmem _queue _ssl _statistics _typing _uuid _zoneinfo array binascii cmath fcntl grp math mmap "
                     "pyexpat resource select termios unicodedata zlib _abc _ast _codecs _collections _functools _imp _io _locale _operator _signal _sre _stat _string _symtable _thread _tokenize _warnings _weakref atexit errno itertools "
                     "marshal posix pwd spwd sys time _bisect _blake2 _csv _datetime _elementtree _heapq _md5 _pickle _posixsubprocess _random _sha1 _sha2 _sha256 _sha3 _sha512 _socket _struct".split())
FINALIZER = "__del__"
bases_of, names_of, told_of = type.__dict__["__mro__"].__get__, type.__dict__["__dict__"].__get__, ReferenceType.__dict__.get("__callback__")
objects, unfreeze, callbacks, references = gc.get_objects, gc.unfreeze, atexit._ncallbacks, sys.getrefcount
filters = list(_warnings.filters)


# ---- the end


def has_finalizer(kind):
    for base in bases_of(kind):
        if FINALIZER in names_of(base):
            return True
    return False


def are_finalized():
    """Is one of the classes that were there given a finalizer? To look is to touch, and so to copy, the memory of each. But the dictionary of a class that is given one refers to that name from then on (the program's own texts and names do as well; then it is looked)."""
    for kind in kinds:
        if FINALIZER in names_of(kind):
            return True
    return False


def is_kind(kind, of):
    for base in bases_of(kind):
        if base is of:
            return True
    return False


def is_over():
    """Python takes itself apart at its end, which takes longer than all that a short program does. It cannot be noticed if nothing is left that ends with an effect: nobody has asked to be called at the end, there are no
    threads, no buffers but those of the standard streams, and of all objects made since none has a finalizer or, as a weak reference, somebody to tell. In doubt it takes itself apart. Nothing of the program's is called by looking."""
    if "threading" in modules or "gc" in modules or "_thread" in modules and modules["_thread"]._count() or callbacks() or ("atexit" in modules and modules["atexit"]._ncallbacks()):
        return False
    if sys.stdout is not out or sys.stderr is not err or sys.__stdout__ is not out or sys.__stderr__ is not err or sys.flags.dev_mode or sys.warnoptions or _warnings.filters != filters:
        return False
    for name in modules.keys() - known:
        if type(name) is not str or name in WATCHERS:
            return False
        if type(modules[name]) is not type(sys):
            if is_kind(type(modules[name]), type):
                continue  # a class that stands for one (typing.re): it is looked at as an object
            return False
        file = vars(modules[name]).get("__file__")
        if (type(file) is str and file.endswith(".so") or name in BUILT_IN) and name not in HARMLESS:
            return False
    things = objects()
    if len(things) > MOST:
        return False
    seen = {}
    for thing in things:
        kind = type(thing)
        number = id(kind)
        if number in plain:
            continue
        finalizer = seen.get(number)
        if finalizer is None:
            finalizer = seen[number] = has_finalizer(kind)
        if finalizer:
            return False
        if is_kind(kind, type):
            if has_finalizer(thing):
                return False
        elif is_kind(kind, ReferenceType):
            told = told_of.__get__(thing) if told_of else thing.__callback__
            if told is not None and (type(told) is not function or told.__module__ not in ("weakref", "_weakrefset")):
                return False
        elif kind is ProxyType or kind is CallableProxyType:
            return False
    if references(FINALIZER) != referred and are_finalized():
        return False
    out.flush()
    err.flush()
    return True


def leave(status):
    """Ends at once, or returns, and what ends with an effect will be found: also in cycles with what was there before."""
    try:
        over = is_over()
    except BaseException:
        over = False
    if over and not words[0]:
        write(1, b"ready\n")
        read(pipe()[0], 1)
    if over:
        _exit(status)
    unfreeze()


def report(error, trace):
    """As the interpreter does with what nobody has caught, without the frames of ours."""
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        if "excepthook" in vars(sys):
            sys.excepthook(type(error), error, trace)
        else:
            sys.stderr.write("sys.excepthook is missing\n")
            sys.__excepthook__(type(error), error, trace)
    except SystemExit:
        unfreeze()
        raise
    except BaseException as second:
        second.__traceback__ = second.__traceback__.tb_next
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(second), second, second.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, trace)


# ---- the start


def is_watching(text):
    return any(word in text for word in WATCHERS)


def compiled():
    """The program, and the name that `__file__` is to have; None if it is not for us to say what is wrong with it."""
    try:
        if not words[0]:
            return compile(TRIAL, "<string>", "exec", dont_inherit=True), None
        if words[0] == "-c":
            return None if is_watching(words[1]) else (compile(words[1], "<string>", "exec", dont_inherit=True), None)
        name = words[0] if words[0].startswith("/") else f"{getcwd()}/{words[0]}"
        file, parts = open(name, 0o2000000), []  # O_CLOEXEC
        part = read(file, 1 << 20)
        while part:
            parts.append(part)
            part = read(file, 1 << 20)
        close(file)
        data = b"".join(parts)
        text = data.decode("utf-8")
        if b"coding" in data[:512] or b"\0" in data or b"\r" in data or data.startswith(b"\xef") or is_watching(text):
            return None
        return compile(data, name, "exec", dont_inherit=True), name
    except BaseException:
        return None


def is_elsewhere():
    """There is a directory of the user's own packages that was not there when `site` looked."""
    site = modules.get("site")
    try:
        return bool(site and site.ENABLE_USER_SITE and site.USER_SITE not in sys.path and stat(site.USER_SITE))
    except OSError:
        return False


def receive():
    write(4, b"no: %s\n" % problem if problem else b"ready\n")
    close(4)
    parts = []
    part = read(3, 1 << 20)  # the image is of this moment
    while part:
        parts.append(part)
        part = read(3, 1 << 20)
    close(3)
    return [word.decode(sys.getfilesystemencoding(), "surrogateescape") for word in b"".join(parts).split(b"\0")]


def begin():
    """The program, when all is as it would be found."""
    held = sys.stderr = StringIO()
    found = None if problem or is_elsewhere() else compiled()
    sys.stderr = err
    if found is None:
        execve(sys.executable, ["python3", *words], environ)
    if held.getvalue():
        err.write(held.getvalue())
        err.flush()
    program, file = found
    sys.argv[:] = words if file else ["-c", *words[2:]]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[1:] = words
    for path in [path for path, finder in sys.path_importer_cache.items() if finder is None]:
        del sys.path_importer_cache[path]
    if file:
        sys.path[0] = file.rpartition("/")[0] or "/"
        space["__file__"], space["__cached__"] = file, None
        space["__loader__"] = modules["_frozen_importlib_external"].SourceFileLoader("__main__", file)
    return program


def run():
    failed, tracer, profiler = None, sys.gettrace, sys.getprofile
    try:
        exec(program, space)
    except SystemExit as end:
        if type(end) is SystemExit:
            code = end.code
            if not tracer() and not profiler() and (code is None or type(code) is int and -0x80000000 <= code < 0x80000000):
                leave((code or 0) & 255)
                raise
        unfreeze()
        raise
    except BaseException as error:
        failed = error
    if failed is not None:
        trace = failed.__traceback__
        while trace and trace.tb_frame.f_code is not program:
            trace = trace.tb_next
        report(failed, trace)
    if words[0] and words[0] != "-c":
        space.pop("__file__", None)
        space.pop("__cached__", None)
    if failed is None:
        if tracer() or profiler():
            unfreeze()
        else:
            leave(0)
        return
    if isinstance(failed, KeyboardInterrupt):
        # The interpreter ends itself by the signal then; it has been told.
        unfreeze()
        sys.excepthook = lambda *_: None
        raise failed
    leave(1)
    raise SystemExit(1)


problem = None
if not (3, 8) <= sys.version_info < (3, 13):
    problem = b"this version of Python is not known well enough: 3.8 to 3.12 are"
elif "random" in modules:
    problem = b"it has numbers drawn at its start already: `random` is imported"
function = type(run)
plain = frozenset(id(type(thing)) for thing in (run, {}, [], (), set(), frozenset(), len, [].append, run.__code__, property(), classmethod(len), staticmethod(len), type.mro, type.__dict__["__call__"], type.__dict__["__mro__"],
                             type.__dict__["__doc__"], (lambda x: lambda: x)(1).__closure__[0]))
for name in modules.keys() - space.pop("before"):
    del modules[name]
known = frozenset(modules)
kinds, seen = [object], set()
for kind in kinds:  # and those below it
    for other in type.__subclasses__(kind):
        if id(other) not in seen:
            seen.add(id(other))
            kinds.append(other)
flags_of = type.__dict__["__flags__"].__get__
kinds = [kind for kind in kinds if flags_of(kind) & 1 << 9 and not has_finalizer(kind)]  # Py_TPFLAGS_HEAPTYPE: the others cannot be given one
referred = references(FINALIZER)
held = {FINALIZER: None}
if references(FINALIZER) == referred:
    referred = None  # it is not counted who refers to it (immortal since 3.12): it is always looked
del held
gc.freeze()
words = receive()
program = begin()
run()
