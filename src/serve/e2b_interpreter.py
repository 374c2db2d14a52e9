# SPDX-License-Identifier: Apache-2.0
"""The code interpreter of a sandbox: it keeps its state from one piece of code to the next.

Built into rollbox-serve (e2b_code.c), which starts it as `python3 -c` with the language as its
argument. Each line of standard input is a JSON object with "code" and "env"; the answer is a
sequence of lines on standard output, as the clients of E2B's code interpreter read them, up to
"end_of_execution". With the language "jupyter", results keep their MIME types.

The program has no thread while it waits, so that it can be snapshotted and forked. `space` is the
namespace of `__main__`, which belongs to the code.
"""

import ast
import base64
import builtins
import codecs
import fcntl
import importlib.machinery
import importlib.util
import json
import linecache
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

space = globals()["space"]
LANGUAGE = sys.argv[1] if len(sys.argv) > 1 else "python"
CHUNK = 65536
NAMES = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
}
METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
    "application/pdf": "_repr_pdf_",
    "text/latex": "_repr_latex_",
    "application/json": "_repr_json_",
    "application/javascript": "_repr_javascript_",
}

requests = os.fdopen(
    fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 20), "r", encoding="utf-8", errors="surrogateescape"
)
answers = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 20)
nothing = os.open(os.devnull, os.O_RDWR)
lock = threading.Lock()
for number in (0, 1, 2):
    os.dup2(nothing, number)
os.close(nothing)


def plain(value):
    """What JSON lacks: numpy's numbers and arrays, times, and others by their text."""
    for name in ("tolist", "isoformat"):
        method = getattr(value, name, None)
        if callable(method) and not isinstance(value, type):
            try:
                return method()
            except Exception:
                break
    return repr(value)


def finite(value):
    """NaN and infinities, which JSON has not, are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def text_of_json(value):
    try:
        return json.dumps(value, default=plain, allow_nan=False)
    except ValueError:
        return json.dumps(finite(json.loads(json.dumps(value, default=plain))))


def emit(kind, **members):
    data = (text_of_json({"type": kind, **members}) + "\n").encode()
    with lock:
        while data:
            data = data[os.write(answers, data) :]


# ---- output ----


def high(descriptor):
    """The descriptor at a number that programs do not use."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 20)
    os.close(descriptor)
    return copy


class Output:
    """One output of the code: a pipe, and a thread that reads it while the code runs. What
    processes write afterwards comes with the next piece of code."""

    def __init__(self, kind, number):
        read, write = os.pipe()
        self.kind, self.read = kind, high(read)
        os.dup2(write, number)
        os.close(write)
        self.stop, self.stopper = map(high, os.pipe())
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.thread = None

    def begin(self):
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while True:
            ready, _, _ = select.select([self.read, self.stop], [], [])
            if self.read in ready:
                text = self.decoder.decode(os.read(self.read, CHUNK))
                if text:
                    emit(self.kind, text=text, timestamp=time.time_ns())
            elif self.stop in ready:
                os.read(self.stop, 1)
                break

    def end(self):
        """Returns when everything that was written has been passed on."""
        os.write(self.stopper, b"x")
        self.thread.join()


# ---- results ----


def text_of(data):
    return base64.b64encode(data).decode() if isinstance(data, bytes) else data


def bundle_of(value):
    """The MIME types of a value."""
    bundle = {"text/plain": repr(value)}
    method = getattr(type(value), "_repr_mimebundle_", None)
    try:
        if method:
            found = value._repr_mimebundle_()
            bundle.update(found[0] if isinstance(found, tuple) else found or {})
        for mime, name in METHODS.items():
            if mime not in bundle and callable(getattr(type(value), name, None)):
                data = getattr(value, name)()
                if data is not None:
                    bundle[mime] = data[0] if isinstance(data, tuple) else data
    except Exception:
        traceback.print_exc()
    if type(value).__module__.startswith("matplotlib.") and hasattr(value, "savefig"):
        bundle["image/png"] = png_of(value)
    return {mime: text_of(data) for mime, data in bundle.items()}


def png_of(figure):
    import io

    data = io.BytesIO()
    figure.savefig(data, format="png", bbox_inches="tight")
    return data.getvalue()


def chart_of(value):
    try:
        import e2b_charts

        chart = e2b_charts.chart_figure_to_dict(value)
        return chart if isinstance(chart, dict) else None
    except Exception:
        return None


def table_of(value):
    if type(value).__name__ != "DataFrame" or not type(value).__module__.startswith("pandas"):
        return None
    return value.to_dict(orient="list")


def members_of(bundle):
    """The members of a result that has these MIME types."""
    members = {NAMES[mime]: text_of(data) for mime, data in bundle.items() if mime in NAMES}
    extra = {mime: text_of(data) for mime, data in bundle.items() if mime not in NAMES}
    if extra:
        members["extra"] = extra
    return members


def show_bundle(bundle):
    if LANGUAGE == "jupyter":
        emit("display", data={mime: text_of(data) for mime, data in bundle.items()})
    else:
        emit("result", is_main_result=False, **members_of(bundle))


def show(value, is_main=False):
    bundle = bundle_of(value)
    if LANGUAGE == "jupyter":
        emit("display", data=bundle)
        return
    members = members_of(bundle)
    if isinstance(value, str):
        members["text"] = value
    if isinstance(value, dict) and "json" not in members:
        try:
            members["json"] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            pass
    table = table_of(value)
    if table is not None:
        members["data"] = table
    if hasattr(value, "savefig"):
        chart = chart_of(value)
        if chart:
            members["chart"] = chart
    emit("result", is_main_result=is_main, **members)


def display(*values, raw=False, **_):
    for value in values:
        flush()
        show_bundle(value) if raw and isinstance(value, dict) else show(value)


def publish_display_data(data, metadata=None, **_):
    flush()
    show_bundle(data)


def update_display(value, **_):
    display(value)


def clear_output(**_):
    """Clients of E2B keep what they have."""


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass


class DisplayFinder:
    """Gives IPython's display functions, which have no kernel here, this program's own."""

    NAME = "IPython.core.display_functions"

    def find_spec(self, name, path, target=None):
        if name != self.NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                for own in (display, publish_display_data, update_display, clear_output):
                    setattr(module, own.__name__, own)

            spec.loader.exec_module = exec_module
        return spec


class Plots:
    """Finds a backend of matplotlib, which is the one for images with a show() that gives the
    figures to the client."""

    NAME = "rollbox_plots"

    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == self.NAME else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        from matplotlib.backends import backend_agg

        for name, value in vars(backend_agg).items():
            if not name.startswith("__"):
                setattr(module, name, value)
        module.show = self.show

    @staticmethod
    def show(*_, **__):
        plots = sys.modules.get("matplotlib.pyplot")
        for number in plots.get_fignums() if plots else ():
            show(plots.figure(number))
        if plots:
            plots.close("all")


# ---- Python ----


def shell(command):
    return subprocess.call(["bash", "-c", command])


IGNORED = ("%matplotlib", "%config", "%load_ext", "%autoreload", "%reload_ext")
CELL_MIMES = {"%%html": "text/html", "%%markdown": "text/markdown", "%%latex": "text/latex",
              "%%svg": "image/svg+xml", "%%javascript": "application/javascript"}  # fmt: skip


def ipython():
    """IPython's shell, for its magics and without a history, which has a thread. None: the sandbox
    has none."""
    try:
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config
    except ImportError:
        return None
    if not InteractiveShell.initialized():
        config = Config()
        config.HistoryManager.enabled = False
        InteractiveShell.instance(config=config, user_ns=space)
    return InteractiveShell.instance()


def line_of(line):
    """A line of IPython's, as Python; None: only IPython can tell."""
    text = line.lstrip()
    indent, word = line[: len(line) - len(text)], text.split(" ", 1)[0]
    rest = text[len(word) :].strip()
    if text.startswith("!"):
        return f"{indent}__shell__({text[1:]!r})"
    if word == "%pip":
        return f"{indent}__shell__({'python3 -m ' + text[1:]!r})"
    if word == "%cd":
        return f"{indent}__import__('os').chdir({rest!r})"
    if word in ("%time", "%%time", "%%capture"):
        return indent + (rest if word == "%time" else "pass")
    if word in IGNORED:
        return indent + "pass"
    return None if text.startswith("%") or "= !" in text or "= %" in text else line


def cell_of(code):
    """A cell whose first line is a cell magic, as Python; None: it is none."""
    first, _, body = code.lstrip().partition("\n")
    word, _, rest = first.partition(" ")
    if word in ("%%bash", "%%sh", "%%shell", "%%script"):
        return f"__shell__({body!r})"
    if word in ("%%writefile", "%%file"):
        return f"with open({rest.strip()!r}, 'w') as __file: __file.write({body!r})"
    if word in CELL_MIMES:
        return f"__show__({{{CELL_MIMES[word]!r}: {body!r}}})"
    return None


def translated(code):
    whole = cell_of(code)
    lines = [whole] if whole is not None else list(map(line_of, code.splitlines()))
    if None in lines:
        shell_of_ipython = ipython()
        if shell_of_ipython:
            return shell_of_ipython.transform_cell(code)
    return "\n".join("pass" if line is None else line for line in lines)


def parse(code, name):
    try:
        return ast.parse(code, name)
    except SyntaxError:
        marks = ("!", "%")
        lines = [line.lstrip() for line in code.splitlines()]
        if not any(line.startswith(marks) or "= !" in line or "= %" in line for line in lines):
            raise
        return ast.parse(translated(code), name)


def run(part, mode, name):
    code = compile(part, name, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = eval(code, space)
    if code.co_flags & 128:  # CO_COROUTINE: it awaits at its top
        import asyncio

        loop = space.get("__loop__") or asyncio.new_event_loop()
        space["__loop__"] = loop
        value = loop.run_until_complete(value)
    return value


def python(code, count):
    """Runs code. The error as (name, value, traceback), or None."""
    name = f"<cell {count}>"
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    try:
        tree = parse(code, name)
        last = tree.body[-1] if tree.body else None
        is_value = isinstance(last, ast.Expr) and not code.rstrip().endswith(";")
        if is_value:
            tree.body.pop()
        run(tree, "exec", name)
        if is_value:
            value = run(ast.Expression(last.value), "eval", name)
            if value is not None:
                space["_"] = value
                flush()
                show(value, True)
    except SystemExit as end:
        if end.code:
            return "SystemExit", str(end.code), f"SystemExit: {end.code}"
    except BaseException as problem:
        return problem_of(problem, name)
    return None


def problem_of(problem, name):
    entry = problem.__traceback__
    while entry and entry.tb_frame.f_code.co_filename != name:
        entry = entry.tb_next
    lines = traceback.format_exception(type(problem), problem, entry)
    try:
        text = str(problem)
    except Exception:
        text = "<unprintable>"
    return type(problem).__name__, text, "".join(lines)


# ---- other languages: a process that keeps the state ----

BASH = """
while IFS= read -r -u 9 file; do
    source "$file" 9<&- 8>&-
    echo "{\\"status\\": $?}" >&8
done
"""

NODE = """
const fs = require('fs'), vm = require('vm'), util = require('util');
globalThis.require = require;
const lines = require('readline').createInterface({input: fs.createReadStream(null, {fd: 9})});
const tell = (value) => fs.writeSync(8, JSON.stringify(value) + '\\n');
const queue = [];
let busy = false;
async function next() {
    if (busy || !queue.length) return;
    busy = true;
    try {
        let code = fs.readFileSync(queue.shift(), 'utf8');
        if (/\\bawait\\b/.test(code)) {
            try { new vm.Script(code); } catch (e) { code = '(async () => {' + code + '\\n})()'; }
        }
        let value = vm.runInThisContext(code, {filename: 'cell'});
        if (value && typeof value.then === 'function') value = await value;
        tell({text: value === undefined ? null : util.inspect(value)});
    } catch (e) {
        const known = e instanceof Error || (e && e.stack);
        tell({name: known ? e.name : 'Error', value: known ? e.message : String(e),
            traceback: known ? e.stack : String(e)});
    }
    busy = false;
    next();
}
lines.on('line', (line) => { queue.push(line); next(); });
"""

PROGRAMS = {
    "bash": ["bash", "-c", BASH],
    "javascript": ["node", "-e", NODE],
}


class Other:
    """The process of another language."""

    def __init__(self):
        self.child = None

    def start(self):
        code_read, self.code = map(high, os.pipe())
        self.status, status_write = map(high, os.pipe())
        self.outputs = [tuple(map(high, os.pipe())) for _ in range(2)]

        def descriptors():
            os.dup2(code_read, 9)
            os.dup2(status_write, 8)

        self.child = subprocess.Popen(
            PROGRAMS[LANGUAGE],
            stdin=subprocess.DEVNULL,
            stdout=self.outputs[0][1],
            stderr=self.outputs[1][1],
            preexec_fn=descriptors,
            close_fds=False,
            start_new_session=True,
        )
        for descriptor in (code_read, status_write, self.outputs[0][1], self.outputs[1][1]):
            os.close(descriptor)
        self.decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in range(2)]

    def pass_output(self, timeout):
        """Tells what the process has written. Whether there was something."""
        reads = [pair[0] for pair in self.outputs]
        ready, _, _ = select.select([*reads, self.status], [], [], timeout)
        for i, descriptor in enumerate(reads):
            if descriptor in ready:
                text = self.decoders[i].decode(os.read(descriptor, CHUNK))
                if text:
                    emit(("stdout", "stderr")[i], text=text, timestamp=time.time_ns())
        return ready

    def run(self, code):
        if self.child is None or self.child.poll() is not None:
            self.start()
        with tempfile.NamedTemporaryFile("w", suffix=".cell", delete=False) as file:
            file.write(code)
        os.write(self.code, (file.name + "\n").encode())
        status = b""
        try:
            while not status.endswith(b"\n"):
                ready = self.pass_output(0.2)
                if self.status in ready:
                    more = os.read(self.status, CHUNK)
                    if not more:
                        break
                    status += more
            while any(pair[0] in self.pass_output(0.01) for pair in self.outputs):
                if self.child.poll() is not None:
                    break
        except KeyboardInterrupt:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
            self.child = None
            return "KeyboardInterrupt", "", "KeyboardInterrupt"
        finally:
            os.unlink(file.name)
        if not status:
            code = self.child.wait()
            self.child = None
            return ("ExitStatus", str(code), f"the process ended: {code}") if code else None
        return self.answer(json.loads(status))

    @staticmethod
    def answer(told):
        if "status" in told:
            number = told["status"]
            return ("ExitStatus", str(number), f"exit status {number}") if number else None
        if "name" in told:
            return told["name"], told["value"], told["traceback"]
        if told["text"] is not None:
            emit("result", is_main_result=True, text=told["text"])
        return None


# ---- the loop ----


def execute(code, variables, count, other, outputs):
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        if other:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return other.run(code)
        for output in outputs:
            output.begin()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        error = python(code, count)
        Plots.show()
        return error
    except KeyboardInterrupt:
        return "KeyboardInterrupt", "", "KeyboardInterrupt"
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        flush()
        for output in outputs:
            if output.thread:
                output.end()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = os.fdopen(
        2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )
    sys.stdout.reconfigure(line_buffering=True)
    sys.argv = [""]
    sys.path.insert(0, "")
    sys.meta_path.insert(0, Plots())
    os.environ.setdefault("MPLBACKEND", f"module://{Plots.NAME}")
    builtins.display = display
    sys.meta_path.insert(0, DisplayFinder())
    space["__shell__"], space["__show__"] = shell, show_bundle
    builtins.get_ipython = ipython
    other = Other() if LANGUAGE in PROGRAMS else None
    outputs = [] if other else [Output("stdout", 1), Output("stderr", 2)]
    count = 0
    for line in iter(requests.readline, ""):
        request = json.loads(line)
        count += 1
        emit("number_of_executions", execution_count=count)
        error = execute(request["code"], request.get("env") or {}, count, other, outputs)
        if error:
            name, value, text = error
            emit("error", name=name, value=value, traceback=text)
        emit("end_of_execution")


main()
