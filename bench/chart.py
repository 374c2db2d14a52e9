# SPDX-License-Identifier: Apache-2.0
"""Makes the table of README.md and docs/images/benchmark.svg from bench/results/bench.json.

    bench/chart.py             writes both
    bench/chart.py --check     writes nothing; exit status 1 if one of them is out of date

Standard library only. The numbers are those of the ordinary user; root's are in
docs/reference/benchmarks.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "docs/images/benchmark.svg"
README = ROOT / "README.md"
BEGIN, END = "<!-- benchmark begin: made by bench/chart.py -->", "<!-- benchmark end -->"

# Contestant in the results -> label of its bar.
BARS = {
    "bare": "no sandbox (posix_spawn)",
    "rollbox": "rollbox, C library",
    "rollbox Python": "rollbox, Python",
    "bwrap": "bubblewrap",
    "sandlock": "sandlock",
    "rollbox CLI": "rollbox run (cold start)",
    "crun": "crun",
    "runc": "runc",
}


def milliseconds(microseconds: float) -> str:
    value = microseconds / 1000
    return f"{value:.2f} ms" if value < 10 else f"{value:,.0f} ms"


def table(results: dict[str, Any]) -> str:
    tests = results["identities"]["user"]
    true, code, rate = tests["true"], tests["python"], tests["throughput"]
    humaneval, sessions = tests["humaneval"], tests["sessions"]
    unsandboxed = min(humaneval[name]["seconds"] for name in ("subprocess", "xargs -P2"))
    clones = "live: 1,000 clones of a warm python at once, to the last one at work"
    rows = [
        (
            "`/bin/true` in a new sandbox",
            milliseconds(true["rollbox"]["p50_us"]),
            f"bubblewrap {milliseconds(true['bwrap']['p50_us'])}, crun {milliseconds(true['crun']['p50_us'])}",
        ),
        (
            "the same by `rollbox run`, with an engine of its own",
            milliseconds(true["rollbox CLI"]["p50_us"]),
            f"bubblewrap {milliseconds(true['bwrap']['p50_us'])}",
        ),
        (
            "new sandboxes a second, two workers",
            f"{rate['rollbox']['per_second']:,.0f}",
            f"bubblewrap {rate['bwrap']['per_second']:,.0f}",
        ),
        (
            "Python's `pass` by `run_code`",
            milliseconds(code["rollbox code"]["p50_us"]),
            f"no sandbox {milliseconds(code['bare']['p50_us'])}",
        ),
        (
            "HumanEval, 164 programs, two at a time",
            f"{humaneval['rollbox batch -j2']['seconds']:.2f} s",
            f"no sandbox {unsandboxed:.2f} s",
        ),
    ]
    for row, label in (
        ("live: fork of a snapshot, to the copy's answer", "live fork of a 16 MB Python, to its first answer"),
        ("live: reset to a snapshot, with files", "live reset of the same, with its files"),
        (clones, "1,000 live clones of the same, to the last one at work"),
    ):
        rows.append((label, milliseconds(sessions[row]["p50_us"]), ""))
    lines = ["| median | rollbox | in comparison |", "|---|---:|---|"]
    return "\n".join(lines + [f"| {what} | {ours} | {theirs} |" for what, ours, theirs in rows])


def chart(results: dict[str, Any]) -> str:
    rows = results["identities"]["user"]["true"]
    bars = [(name, BARS[name], rows[name]["p50_us"]) for name in BARS if "p50_us" in rows.get(name, {})]
    bars.sort(key=lambda bar: bar[2])
    widest, left, room, top, step = max(bar[2] for bar in bars), 200, 440, 56, 30
    height = top + step * len(bars) + 14
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 740 {height}" role="img"',
        '     font-family="Helvetica, Arial, sans-serif" font-size="13">',
        "  <!-- Made by bench/chart.py; do not edit. -->",
        "  <title>Time of /bin/true in a new sandbox</title>",
        f'  <rect width="740" height="{height}" rx="8" fill="#ffffff"/>',
        '  <text x="16" y="26" font-size="15" font-weight="bold" fill="#1f2937">'
        "/bin/true in a new sandbox: median time, ordinary user</text>",
        f'  <text x="16" y="44" font-size="11" fill="#6b7280">{escape(machine(results))}; less is better</text>',
    ]
    for at, (name, label, value) in enumerate(bars):
        y, width = top + step * at, max(2, round(value / widest * room))
        color = "#0f766e" if name.startswith("rollbox") else "#cbd5e1"
        lines += [
            f'  <text x="{left - 10}" y="{y + 17}" text-anchor="end" fill="#1f2937">{escape(label)}</text>',
            f'  <rect x="{left}" y="{y + 3}" width="{width}" height="20" rx="3" fill="{color}"/>',
            f'  <text x="{left + width + 8}" y="{y + 17}" fill="#1f2937">{milliseconds(value)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def machine(results: dict[str, Any]) -> str:
    described = results["machine"]
    virtual = "virtual machine, " if described["hypervisor"] else ""
    kernel = described["kernel"].partition("-")[0]
    return f"{described['cpu']}, {virtual}{described['cpus']} CPUs, Linux {kernel}, {results['when'][:10]}"


def texts(root: Path = ROOT) -> dict[Path, str]:
    """What each file has to be."""
    results = json.loads((root / "bench/results/bench.json").read_text())
    before, _, rest = README.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    caption = f"Measured on {machine(results)}, by an ordinary user."
    readme = f"{before}{BEGIN}\n{table(results)}\n\n{caption}\n{END}{after}"
    return {CHART: chart(results), README: readme}


def write() -> None:
    for path, text in texts().items():
        path.write_text(text)


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        stale = [path for path, text in texts().items() if not path.exists() or path.read_text() != text]
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run bench/chart.py")
        sys.exit(1 if stale else 0)
    write()


if __name__ == "__main__":
    main()
