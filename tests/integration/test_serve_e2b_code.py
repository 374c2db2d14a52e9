# SPDX-License-Identifier: Apache-2.0
"""The code interpreter of E2B's clients: what notebooks offer besides Python itself."""

import base64

from e2b_wire import CODE, Box
from harness import caller  # noqa: F401
from serving import server  # noqa: F401

# Packages of the names that the interpreter knows, without their weight.
FAKES = {
    "matplotlib/__init__.py": "",
    "matplotlib/backends/__init__.py": "",
    "matplotlib/backends/backend_agg.py": "class FigureCanvas: required = None\n",
    "matplotlib/figure.py": (
        "class Figure:\n    def savefig(self, to, **_): to.write(b'\\x89PNG')\n"
        "    def __repr__(self): return 'a figure'\n"
    ),
    "matplotlib/pyplot.py": (
        "import importlib, os\nfrom matplotlib.figure import Figure\n"
        "numbers = [1]\ndef get_fignums(): return numbers\n"
        "def figure(n): return Figure()\ndef close(what): numbers.clear()\n"
        "backend = vars(importlib.import_module(os.environ['MPLBACKEND'].split('//')[1]))\n"
        "show = backend['show']\n"
    ),
    "e2b_charts/__init__.py": (
        "def chart_figure_to_dict(figure): return {'type': 'line', 'elements': []}\n"
    ),
}


def with_fakes(server):  # noqa: F811
    box = Box(server)
    for name, text in FAKES.items():
        assert box.ask("POST", f"/files?path={name}", text, Content_Type="text/x")[0] == 200
    return box


def test_figures_are_images_with_charts(server):  # noqa: F811
    box = with_fakes(server)
    code = "import matplotlib.pyplot as plt\nassert 'FigureCanvas' in plt.backend\n"
    (row,) = box.execute(code + "plt.show()")
    assert base64.b64decode(row["png"]) == b"\x89PNG" and row["text"] == "a figure"
    assert row["chart"] == {"type": "line", "elements": []} and not row["is_main_result"]
    # A figure that the code leaves open is shown at its end.
    (row,) = box.execute("plt.numbers.append(1)")
    assert "png" in row and box.execute("1")[0]["text"] == "1"


def test_results_have_all_formats(server):  # noqa: F811
    box = Box(server)
    code = (
        "class Value:\n"
        "    def __repr__(self): return 'plain'\n"
        "    def _repr_html_(self): return '<b>x</b>'\n"
        "    def _repr_svg_(self): return '<svg/>'\n"
        "    def _repr_latex_(self): return '$x$'\n"
        "    def _repr_png_(self): return b'\\x89PNG'\n"
        "    def _repr_mimebundle_(self, **_): return {'application/x-own': {'a': 1}}\n"
        "Value()"
    )
    (row,) = box.execute(code)
    assert {key: row[key] for key in ("text", "html", "svg", "latex")} == {
        "text": "plain",
        "html": "<b>x</b>",
        "svg": "<svg/>",
        "latex": "$x$",
    }
    assert base64.b64decode(row["png"]) == b"\x89PNG"
    assert row["extra"] == {"application/x-own": {"a": 1}}
    (row,) = box.execute("display({'text/html': '<i>'}, raw=True)")
    assert row["html"] == "<i>" and not row["is_main_result"]


def test_values_that_json_lacks_are_plain(server):  # noqa: F811
    box = Box(server)
    code = (
        "import datetime\n"
        "class Number:\n    def tolist(self): return 7\n"
        "display({'application/json': {'n': Number(), 't': datetime.date(2025, 1, 2),\n"
        "    'nan': [float('nan'), 1.5]}}, raw=True)"
    )
    (row,) = box.execute(code)
    assert row["json"] == {"n": 7, "t": "2025-01-02", "nan": [None, 1.5]}


def test_magics_of_notebooks_work_without_ipython(server):  # noqa: F811
    box = Box(server)

    def output(code):
        rows = box.execute(code)
        assert not [row for row in rows if row["type"] == "error"], rows
        return "".join(row.get("text", "") for row in rows if row["type"] == "stdout")

    assert output("!echo shell; echo two") == "shell\ntwo\n"
    assert output("x = 1\n%matplotlib inline\nprint(x)") == "1\n"
    assert output("%%bash\nfor i in 1 2; do\n  echo $i\ndone") == "1\n2\n"
    assert output("%%time\ny = 5\nprint(y)") == "5\n"
    assert output("%time z = 6\nprint(z)") == "6\n"
    output("%%writefile /tmp/w.py\nprint('w')\n")
    assert output("%cd /tmp\n!cat w.py") == "print('w')\n"
    (row,) = box.execute("%%html\n<b>x</b>")
    assert row["html"] == "<b>x</b>"
    (row,) = box.execute("5 %% 2")
    assert (row["type"], row["name"]) == ("error", "SyntaxError")


def test_unknown_languages_and_contexts_are_refused(server):  # noqa: F811
    box = Box(server)
    for body in ({"code": "1", "language": "r"}, {"code": "1", "language": "cobol"}):
        assert box.ask("POST", "/execute", body, CODE)[0] == 400
    assert box.ask("POST", "/execute", {"code": "1", "context_id": "none"}, CODE)[0] == 404
    assert box.ask("DELETE", "/contexts/none", port=CODE)[0] == 404
    assert box.ask("POST", "/contexts/none/restart", port=CODE)[0] == 404
