# SPDX-License-Identifier: Apache-2.0
"""The program of a warm interpreter: it waits for its code, and then behaves as if it had just been started with it.

Built into init (command.c). The engine (python_zygote.c) runs it as `python3 -c`, in a namespace of
its own with builtins of its own, so that no name that the program sets changes these functions.
`space` is the
namespace of `__main__`, which is the program's. The program finds there and in tracebacks the same
as without a warm interpreter; the frames below its own are the only traces. All objects that exist
before the program
comes are hidden from the garbage collector (gc.freeze), so that no collection touches, and so copies, all of them.

Descriptor 3 delivers the words of the command line after `python3`: `-c`, code, arguments; or a
file's name and arguments. With no words it is a trial: it waits again before its end, to be
inspected. A program that
cannot be compiled is left to an interpreter that is started from scratch, whose error texts are the
right ones. Where runs must repeat and no image exists yet, this program also serves cold starts,
with the words at
hand and no reader of its ready message (descriptor 4). So nothing here may depend on which of the
two it is, not even the order of allocations.

Modules of the standard library that many programs import first are imported before the wait and
moved from `sys.modules` to `preloaded`. A program that imports one gets that module and those that
it needs, in the order in which they would have been imported, if each equals what the import would
find and execute.
"""

import _warnings
import sys
from _io import BufferedReader, BytesIO, StringIO
from _weakref import CallableProxyType, ProxyType, ReferenceType
from posix import _exit, access, close, environ, execve, getcwd, open, pipe, read, stat, write

built_in = (
    sys.modules["_frozen_importlib"]._builtin_from_name
)  # an import that waits for nobody: import's locks look at the clock, and a virtual one would tell
atexit, gc = built_in("atexit"), built_in("gc")
space = globals()["space"]
modules, out, err = sys.modules, sys.stdout, sys.stderr
MOST_LISTED = 500  # names in a directory
MOST = 50000  # objects that are looked at: more take longer than the end does
TRIAL = "class A:\n    def f(self, x): return [x, {str(x): (x,)}]\ntry:\n    print(A().f(5), sum(range(99)), sorted('ba'), f'{0.5:.3}')\nexcept ValueError: pass\n"
BUILT_IN = frozenset(sys.builtin_module_names)
# Ways of a program to notice a warm interpreter: a program that names one of these gets an
# interpreter that is started from scratch.
WATCHERS = (
    "audit",
    "settrace",
    "setprofile",
    "monitoring",
    "tracemalloc",
    "faulthandler",
    "interpreters",
    "_ctypes",
    "ctypes",
    "pdb",
    "bdb",
    "breakpoint",
    "__subclasses__",
)
# Modules in C whose objects do nothing more at their end than their types say. Others do: a dbm is
# written when it is freed, a library has buffers of its own.
HARMLESS = frozenset(
    "_asyncio _bz2 _contextvars _crypt _decimal _hashlib _json _lzma _multiprocessing _opcode _posixshmem _queue _ssl _statistics _typing _uuid _zoneinfo array binascii cmath fcntl grp math mmap "
    "pyexpat resource select termios unicodedata zlib _abc _ast _codecs _collections _functools _imp _io _locale _operator _signal _sre _stat _string _symtable _thread _tokenize _warnings _weakref atexit errno itertools "
    "marshal posix pwd spwd sys time _bisect _blake2 _csv _datetime _elementtree _heapq _md5 _pickle _posixsubprocess _random _sha1 _sha2 _sha256 _sha3 _sha512 _socket _struct".split()
)
FINALIZER = "__del__"
bases_of, names_of, told_of = (
    type.__dict__["__mro__"].__get__,
    type.__dict__["__dict__"].__get__,
    ReferenceType.__dict__.get("__callback__"),
)
objects, callbacks, references = gc.get_objects, atexit._ncallbacks, sys.getrefcount
filters = list(_warnings.filters)
bootstrap, external = modules["_frozen_importlib"], modules["_frozen_importlib_external"]
PRELOADED = ("typing",)  # with what it needs: collections, contextlib, enum, functools, operator, re, types and more
preloaded, things, stamps, beside = (
    set(),
    {},
    {},
    {},
# names of the preloaded modules not imported yet; modules by name; their files; those that lie
# beside each other in the library
)
needs = {
    "": []
# by name, in this order: a file that is read, as (); what is imported as it is executed; (what is
# under way itself then); what it puts into sys.modules; None is what cannot be imported
}
taken, sure, in_place, filler = (
    set(),
    set(),
    [],
    [],
)  # to be executed, and have been; looked at already; what imports go by
quick = sys.argv[1:] == ["quick"]  # no clock of its own tells how often it was looked at
threads = modules["_thread"]._count
undoing = [
    (gc.unfreeze,),
    (preloaded.clear,),
    (things.clear,),
    (stamps.clear,),
    (taken.clear,),
]  # what is to be done before the end, if there is more to it than to be gone


# ---- preloaded modules


def is_file(thing, name):
    """Is it a module of a file, under its own name?"""
    spec = type(thing) is type(sys) and vars(thing).get("__spec__")
    return bool(spec) and spec.name == name and spec.has_location


def stamp(*files):
    """Of the source, and of what it was compiled to."""
    found = []
    for file in files:
        try:
            one = stat(file)
            found.append((one.st_mtime_ns, one.st_size, one.st_ino))
        except (OSError, TypeError):
            found.append(None)
    return found


def is_part(name, of, visited):
    visited.add(of)
    return any(need == name or need not in visited and is_part(name, need, visited) for need in needs.get(of, ()))


def shelve():
    """Imports them without locks (those of files included), which look at the clock; notes who
    needs whom; and takes all of it out of sight again."""
    builtins, cache, path = modules["builtins"], dict(sys.path_importer_cache), list(sys.path)
    original, before, seen, under_way = builtins.__import__, set(modules), set(modules), set()

    def note(importer):
        """What has come since without an import is put there by who is executed."""
        for name in [name for name in modules if name not in seen]:
            seen.add(name)
            needs[importer].append(name)

    def bring(name, importer):
        """True if there is such a module."""
        if name not in modules:
            parent, _, child = name.rpartition(".")
            where, spec = vars(modules[parent])["__path__"] if parent else None, None
            for finder in (bootstrap.BuiltinImporter, bootstrap.FrozenImporter, external.PathFinder):
                spec = spec or finder.find_spec(name, where)
            if spec is None:
                needs[importer].append(None)
                return False
            seen.add(name)
            under_way.add(name)
            needs[name] = []
            modules[name] = thing = bootstrap.module_from_spec(spec)
            if spec.has_location:
                spec.loader.get_data = lambda file: needs[name].append(()) or contents(file)
            spec.loader.exec_module(thing)
            spec._initializing = False  # as an import leaves it
            if spec.has_location:
                del spec.loader.get_data
            note(name)
            under_way.discard(name)
            modules[name] = modules.pop(name)
            if parent:
                setattr(modules[parent], child, modules[name])
        needs[importer].append(name)
        return True

    def importing(name, globals=None, locals=None, fromlist=(), level=0):
        importer = globals["__name__"]
        if importer not in under_way:
            return original(name, globals, locals, fromlist, level)  # of the import system itself
        note(importer)
        if level:
            base = globals["__package__"].rsplit(".", level - 1)[0]
            name = f"{base}.{name}" if name else base

        def wait_for(name):
            if name in under_way:
                needs[importer].append((name,))

        wait_for(name)
        parts = name.split(".")
        for i in range(len(parts)):
            if not bring(".".join(parts[: i + 1]), importer):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        thing = modules[name]
        if not fromlist and len(parts) > 1:
            wait_for(parts[0])
        for one in fromlist or ():
            if hasattr(thing, "__path__") and not hasattr(thing, one) and bring(f"{name}.{one}", importer):
                wait_for(parts[0])
        return thing if fromlist else modules[parts[0]]

    sys.path[:] = [entry for entry in path if entry]
    builtins.__import__ = importing
    try:
        for name in PRELOADED:
            bring(name, "")
    finally:
        builtins.__import__ = original
        sys.path[:] = path
    names = [name for name in modules if name not in before]
    library = modules[PRELOADED[0]].__spec__.origin.rpartition("/")[0]
    preloaded.update(names)
    things.update({name: modules[name] for name in preloaded.union(*needs.values()) if type(name) is str})
    for name in names:
        if is_file(things[name], name):
            spec = things[name].__spec__
            stamps[name] = spec, stamp(spec.origin, spec.cached)
            if spec.origin == f"{library}/{name}.py" and needs[name].count(()) < 2:
                beside[name] = spec.origin, spec.cached
        del modules[name]
        parent, _, child = name.rpartition(".")
        if parent and name in stamps and not is_part(name, parent, set()):
            delattr(things[parent], child)
    for name in sys.path_importer_cache.keys() - cache:
        del sys.path_importer_cache[name]
    in_place.extend((original, list(sys.meta_path), list(sys.path_hooks)))
    return library


def is_found(name, spec):
    """Would an import execute the very file that was, and leave nothing behind?"""
    mine, known = stamps[name]
    if (
        spec is None
        or type(spec.loader) is not type(mine.loader)
        or spec.origin != mine.origin
        or spec.cached != mine.cached
        or stamp(spec.origin, spec.cached) != known
    ):
        return False
    if needs[name].count(()) < 2 or sys.dont_write_bytecode:
        return True
    directory = spec.cached.rpartition("/")[0]
    return not access(directory, 2) and not access(
        directory.rpartition("/")[0], 2
    )  # it was compiled, and cannot be written down


def search():
    """What finds a file in the library, by which loaders, and what it is compiled to."""
    finder = sys.path_importer_cache.get(library)
    return (
        finder,
        getattr(finder, "_loaders", None),
        vars(external.FileFinder).get("find_spec"),
        vars(external.PathFinder).get("find_spec"),
        sys.pycache_prefix,
        sys.implementation.cache_tag,
    )


def is_as_listed():
    """Would what is beside each other in the library be found there? It is if nothing that is
    searched before has such a name, and the library has no others than it had."""
    try:
        if (
            type(sys.path) is not list
            or type(sys.path_importer_cache) is not dict
            or search() != searched
            or stamp(library) != listed
        ):
            return False
        for entry in sys.path:
            where = type(entry) is str and (entry or getcwd())
            if not where or where not in sys.path_importer_cache:
                return False
            finder = sys.path_importer_cache[where]
            if finder is searched[0]:
                return True
            if finder is None:
                continue
            if (
                type(finder) is not external.FileFinder
                or stat(finder.path).st_mtime != finder._path_mtime
                or len(finder._path_cache) > MOST_LISTED
            ):
                return False
            for name in finder._path_cache:
                if name.partition(".")[0] in beside:
                    return False
    except (AttributeError, OSError):
        pass
    return False


def is_complete(name, visited, as_listed):
    """Is what `name` needs there, or is it preloaded?"""
    for need in needs[name]:
        if type(need) is tuple or need in visited:
            continue
        visited.add(need)
        if need in modules:
            if modules[need] is not things[need]:
                return False
            continue
        if need not in preloaded:
            return False  # the program has taken it away
        if need in stamps and need not in sure:
            if as_listed and need in beside:
                found = stamp(*beside[need]) == stamps[need][1]
            else:
                parent = need.rpartition(".")[0]
                found = is_found(
                    need,
                    external.PathFinder.find_spec(
                        need, vars(things[parent])["__path__"] if parent else None
                    ),
                )
            if not found or not is_complete(need, visited, as_listed):
                return False
    return True


def take(spec):
    """Returns the preloaded module that equals the one that is about to be made, if there is one."""
    name, visited = spec.name, set()
    if (
        type(name) is not str
        or name not in preloaded
        or name in modules
        or [vars(modules["builtins"]).get("__import__"), sys.meta_path, sys.path_hooks] != in_place
    ):
        return None
    if name in stamps:
        if not (name in sure or is_found(name, spec)) or not is_complete(name, visited, quick and is_as_listed()):
            return None
        sure.update(visited)
        taken.add(name)
        spec.cached  # is reckoned when a module is made
    elif name not in BUILT_IN:
        return None
    preloaded.discard(name)
    return things[name]


def put(name):
    """Imports what was found already and waits for nobody, with what it needs: what is left of it
    is the same, and the order in sys.modules."""
    preloaded.discard(name)
    modules[name] = thing = things[name]
    if name in BUILT_IN:
        return
    bring_needs(name)
    modules[name] = modules.pop(name)
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(things[parent], child, thing)


def bring_needs(name):
    for need in needs[name]:
        if type(need) is tuple or need in modules:
            continue
        if need in preloaded and (
            need in BUILT_IN
            or need in stamps
            and need in sure
            and (not need.rpartition(".")[0] or need.rpartition(".")[0] in modules)
        ):
            put(need)
        elif need in stamps or need in BUILT_IN:
            bootstrap._gcd_import(need)
        elif need in preloaded:
            preloaded.discard(need)
            modules[need] = things[need]


def is_taken(module):
    """Is it to be executed, and has been? Then its imports are made, with the same reads of the
    clock where a program can notice them."""
    name = vars(module).get("__name__")
    if type(name) is not str or name not in taken or module is not things[name]:
        return False
    taken.discard(name)
    if quick and not threads():  # nobody else can be importing one of them
        bring_needs(name)
        return True
    for need in needs[name]:
        if need == ():
            with BufferedReader(BytesIO()) as file:
                file.read()
        elif type(need) is tuple:
            bootstrap._lock_unlock_module(need[0])
        elif need not in modules and (need in stamps or need in BUILT_IN):
            bootstrap._gcd_import(need)
        elif need in preloaded:
            preloaded.discard(need)
            modules[need] = things[need]
    return True


def give():
    """Makes loaders look among the preloaded modules first. The replaced methods keep their names
    and places, because frames show them."""
    for method, text in (
        (external._LoaderBasics.create_module, "return take(spec)"),
        (
            external._LoaderBasics.exec_module,
            "if take(module):\n  return\n code = self.get_code(module.__name__)\n if code is None:\n"
            "  raise ImportError('cannot load module {!r} when get_code() returns None'.format(module.__name__))\n _bootstrap._call_with_frames_removed(exec, code, module.__dict__)",
        ),
        (
            bootstrap.BuiltinImporter.create_module,
            "made = take(spec)\n if made is not None:\n  return made\n"
            " if spec.name not in sys.builtin_module_names:\n  raise ImportError('{!r} is not a built-in module'.format(spec.name), name=spec.name)\n return _call_with_frames_removed(_imp.create_builtin, spec)",
        ),
    ):
        method = getattr(method, "__func__", method)
        old, made = method.__code__, {}
        exec(
            compile(
                f"def {old.co_name}({', '.join(old.co_varnames[: old.co_argcount])}):\n take = 'take'\n {text}\n",
                old.co_filename,
                "exec",
                dont_inherit=True,
            ),
            made,
        )
        code = made[old.co_name].__code__
        undoing.append((type(method).__setattr__, method, "__code__", old))
        asked = is_taken if old.co_name == "exec_module" else take
        method.__code__ = code.replace(
            co_consts=tuple(asked if value == "take" else value for value in code.co_consts),
            co_firstlineno=old.co_firstlineno,
        )


def fill():
    """Takes what is free in pages that are in use. What the program makes then lies side by side in
    few pages, and not in what the imports have left free all over the memory: each page is copied
    when it is first written to."""
    pool = 1 << (14 if sys.version_info >= (3, 10) else 12)
    for size in range(16, 513, 16):
        for number in range(1 << 16):
            filler.append(object() if size == 16 else 1 << 59 | number if size == 32 else bytes(size - 33))
            if id(filler[-1]) & (pool - 1) == 48:
                break


# ---- the end


def has_finalizer(kind):
    for base in bases_of(kind):
        if FINALIZER in names_of(base):
            return True
    return False


def are_finalized():
    """Is one of the classes that were there given a finalizer? To look is to touch, and so to copy,
    the memory of each. But the dictionary of a class that is given one refers to that name from
    then on (the program's own texts and names do as well; then it is looked)."""
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
    """Python takes itself apart at its end, which takes longer than all that a short program does.
    It cannot be noticed if nothing is left that ends with an effect: nobody has asked to be called
    at the end, there are no
    threads, no buffers but those of the standard streams, and of all objects made since none has a
    finalizer or, as a weak reference, a callback. In doubt it takes itself apart. Nothing of the
    program's is called by looking."""
    if (
        "threading" in modules
        or "gc" in modules
        or "_thread" in modules
        and modules["_thread"]._count()
        or callbacks()
        or ("atexit" in modules and modules["atexit"]._ncallbacks())
    ):
        return False
    if (
        sys.stdout is not out
        or sys.stderr is not err
        or sys.__stdout__ is not out
        or sys.__stderr__ is not err
        or sys.flags.dev_mode
        or sys.warnoptions
        or _warnings.filters != filters
    ):
        return False
    for name in (
        modules.keys() - known
        if len(modules) != len(known) or next(reversed(modules)) is not last
        else ()
    ):  # what is new comes last; to look at all is to touch them
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
    """Ends at once, or returns, and what ends with an effect will be found: also in cycles with
    what was there before."""
    try:
        over = is_over()
    except BaseException:
        over = False
    if over and not words[0]:
        write(1, b"ready\n")
        read(pipe()[0], 1)
    if over:
        _exit(status)


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
        raise
    except BaseException as second:
        second.__traceback__ = second.__traceback__.tb_next
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(second), second, second.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, trace)


# ---- the start


def is_watching(text):
    for word in WATCHERS:
        if word in text:
            return True
    return False


def contents(name):
    file, parts = open(name, 0o2000000), []  # O_CLOEXEC
    part = read(file, 1 << 18)
    while part:
        parts.append(part)
        part = read(file, 1 << 18)
    close(file)
    return b"".join(parts)


def compiled():
    """The program, and the name that `__file__` is to have; None if it is not for us to say what is wrong with it."""
    try:
        if not words[0]:
            return compile(TRIAL, "<string>", "exec", dont_inherit=True), None
        if words[0] == "-c":
            return None if is_watching(words[1]) else (compile(words[1], "<string>", "exec", dont_inherit=True), None)
        name = words[0] if words[0].startswith("/") else f"{getcwd()}/{words[0]}"
        data = contents(name)
        text = data.decode("utf-8")
        if b"coding" in data[:512] or b"\0" in data or b"\r" in data or data.startswith(b"\xef") or is_watching(text):
            return None
        return compile(data, name, "exec", dont_inherit=True), name
    except BaseException:
        return None


def elsewhere():
    """The directory of the user's own packages, which was not there when `site` looked; or None."""
    site = modules.get("site")
    return site.USER_SITE if site and site.ENABLE_USER_SITE and site.USER_SITE not in sys.path else None


def receive():
    write(4, b"no: %s\n" % problem if problem else b"ready\n")
    close(4)
    data = part = read(3, 1 << 16)  # the image is of this moment
    while part:
        part = read(3, 1 << 16)
        data += part
    close(3)
    return data.decode(encoding, "surrogateescape").split("\0")


def begin():
    """The program, when all is as it would be found."""
    held = sys.stderr = StringIO()
    found = None if problem or not_there and access(not_there, 0) else compiled()
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
    for path in not_found:
        del sys.path_importer_cache[path]
    if file:
        sys.path[0] = file.rpartition("/")[0] or "/"
        space["__file__"], space["__cached__"] = file, None
        space["__loader__"] = modules["_frozen_importlib_external"].SourceFileLoader("__main__", file)
    return program


def run():
    failed, tracer, profiler = None, sys.gettrace, sys.getprofile
    try:
        try:
            exec(program, space)
        except SystemExit as end:
            if type(end) is SystemExit:
                code = end.code
                if (
                    not tracer()
                    and not profiler()
                    and (code is None or type(code) is int and -0x80000000 <= code < 0x80000000)
                ):
                    leave((code or 0) & 255)
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
            if not tracer() and not profiler():
                leave(0)
            return
        if isinstance(failed, KeyboardInterrupt):
            # The interpreter ends itself by the signal then; it has been told.
            sys.excepthook = lambda *_: None
            raise failed
        leave(1)
        raise SystemExit(1)
    finally:
        # Undo the preloading and the freezing. Not by a function of ours, which a tracer would see.
        for put_back, *what in undoing:
            put_back(*what)


problem = None
if not (3, 8) <= sys.version_info < (3, 13):
    problem = b"this version of Python is not known well enough: 3.8 to 3.12 are"
elif "random" in modules:
    problem = b"it has numbers drawn at its start already: `random` is imported"
function = type(run)
plain = frozenset(
    id(type(thing))
    for thing in (
        run,
        {},
        [],
        (),
        set(),
        frozenset(),
        len,
        [].append,
        run.__code__,
        property(),
        classmethod(len),
        staticmethod(len),
        type.mro,
        type.__dict__["__call__"],
        type.__dict__["__mro__"],
        type.__dict__["__doc__"],
        (lambda x: lambda: x)(1).__closure__[0],
    )
)
for name in modules.keys() - space.pop("before"):
    del modules[name]
known = frozenset(modules)
last = next(reversed(modules))
try:
    library = shelve()
    searched, listed = search(), stamp(library)
    searched = (*searched[:1], list(searched[1] or ()), *searched[2:])
    give()
except Exception:
    preloaded.clear()  # a library that is not as it usually is: it is imported when the program does
    for name in modules.keys() - known:
        del modules[name]
kinds, seen = [object], set()
for kind in kinds:  # and those below it
    for other in type.__subclasses__(kind):
        if id(other) not in seen:
            seen.add(id(other))
            kinds.append(other)
flags_of = type.__dict__["__flags__"].__get__
kinds = [
    kind for kind in kinds if flags_of(kind) & 1 << 9 and not has_finalizer(kind)
]  # Py_TPFLAGS_HEAPTYPE: the others cannot be given one
referred = references(FINALIZER)
held = {FINALIZER: None}
if references(FINALIZER) == referred:
    referred = None  # it is not counted who refers to it (immortal since 3.12): it is always looked
del held
encoding, not_there = sys.getfilesystemencoding(), elsewhere()
not_found = [path for path, finder in sys.path_importer_cache.items() if finder is None]
fill()
gc.freeze()
words = receive()
program = begin()
run()
