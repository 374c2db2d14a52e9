# SPDX-License-Identifier: Apache-2.0
"""From bench/results/*.json to docs/reference/benchmarks.md and to what is shown on the terminal.
`python3 bench/report.py` writes the page again without measuring."""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any, Dict, List, Optional

import chart
import determinism
import neighbours
import network
import serving
import sessions

TITLES = {
    "true": "`/bin/true`, one after the other",
    "python": "`python3 -c pass`, one after the other",
    "throughput": "two workers, create, run, destroy",
    "burst": "100 at once: time from the common start to each one's end",
    "humaneval": "the 164 canonical solutions of HumanEval, two at a time",
    "determinism": "determinism and recording, against the same without",
    "sessions": "long-lived sandboxes, and the same without them",
    "neighbours": "a sandbox that computes, beside another that storms with eight processes",
    "network": "network rules: fresh HTTPS connections and a body of 64 MiB from a server on this host; start; idle sandboxes",
    "serving": "the HTTP server, with 64 connections from this host; beside slow calls; its memory",
}

CONTESTANTS = {
    "bare": "the program with no sandbox: posix_spawn and waitpid",
    "rollbox": "librollbox, a private engine that is warm, the default policy; the streams collected",
    "rollbox Python": "`Sandbox().run`, otherwise the same; the default engine",
    "rollbox code": "the same as `rollbox`, as code: by an interpreter that is kept started (rollbox_start with is_code)",
    "rollbox CLI": "`rollbox run -- PROGRAM`: a process, an engine and a compiled policy for each run",
    "bwrap": "--unshare-all, its own session, ro-binds of the same host directories, --proc, --dev, a tmpfs on /tmp, an empty environment, no capabilities. It has no Landlock "
    "rules, no seccomp filter, no limits, no masks in /proc, and, run by root, its guest is the host's root with another name",
    "bwrap alike": "the same with the system-call filter of rollbox's default policy, and an empty file or directory over each path of /etc and /proc that rollbox covers. Still no Landlock rules and no limits",
    "crun": "an OCI bundle over the same directories, no capabilities, no_new_privs; its cgroup manager is off: no limits, no seccomp filter, no Landlock. By root with a range of ids of its own, else with one id. "
    "Where it refuses the host's mixture of cgroups v1 and v2, its processes live in a mount namespace without the v2 mount",
    "runc": "the same bundle; its cgroups cannot be switched off, so by root it makes one without limits",
    "sandlock": "its Python library, a Sandbox for each run: Landlock and seccomp, the same directories, 512 MiB, 64 processes, a clean environment. It has no namespaces: no /tmp, /proc or process ids of its own",
    "slirp4netns": "the distribution's: a tap device in user and network namespaces of the client's own, the host's loopback at an address of its network. It checks no names",
    "pasta": "the distribution's passt, the same way; where it fails the row says why",
    "criu": "the distribution's, by root: a process tree without any sandbox is dumped to files in /tmp, which ends it, and restored from them. Where a kernel is newer than it knows, it does not run, and says why",
}


def _row(results: Dict[str, Any], identity: str, test: str, name: str) -> Dict[str, Any]:
    row = results["identities"].get(identity, {}).get(test, {}).get(name, {})
    return {} if "failed" in row else row


def targets(results: Dict[str, Any]) -> List[Dict[str, Any]]:
    found: List[Dict[str, Any]] = []

    def add(identity: str, what: str, value: Optional[float], limit: float, at_most: bool = True) -> None:
        if value is not None:
            found.append(
                {
                    "identity": identity,
                    "what": what,
                    "value": value,
                    "limit": limit,
                    "at_most": at_most,
                    "reached": value <= limit if at_most else value >= limit,
                }
            )

    for identity in results["identities"]:
        warm, cli = _row(results, identity, "true", "rollbox"), _row(results, identity, "true", "rollbox CLI")
        rate, bwrap = _row(results, identity, "throughput", "rollbox"), _row(results, identity, "throughput", "bwrap")
        batch = results["identities"][identity].get("humaneval", {}).get("rollbox batch -j2", {})
        add(identity, "`/bin/true`, warm engine: p50 as a multiple of bare", warm.get("of_bare"), 2.5)
        add(identity, "`/bin/true`, warm engine: p50 as a part of bwrap's", warm.get("of_bwrap"), 1 / 3)
        add(
            identity,
            "`/bin/true`, warm engine: p99 as a multiple of its p50",
            warm["p99_us"] / warm["p50_us"] if warm else None,
            5,
        )
        add(identity, "`rollbox run -- /bin/true`, the whole command: p50 as a part of bwrap's", cli.get("of_bwrap"), 1)
        add(identity, "the same, as a part of bwrap's that filters and covers the same", cli.get("of_alike"), 1)
        add(
            identity,
            "two workers: sandboxes a second as a multiple of bwrap's",
            rate["per_second"] / bwrap["per_second"] if rate and bwrap else None,
            3,
            at_most=False,
        )
        add(
            identity,
            "the same, as a multiple of bwrap's that filters and covers the same",
            rate.get("of_alike"),
            3,
            at_most=False,
        )
        add(identity, "two workers: sandboxes a second", rate.get("per_second"), 1000, at_most=False)
        for key, limit, what, levels in determinism.TARGETS:
            for level in levels:
                add(identity, what.format(level), _row(results, identity, "determinism", level).get(key), limit)
        for key, limit, what in neighbours.TARGETS:
            for kind, row in results["identities"][identity].get("neighbours", {}).items():
                if kind != neighbours.SPIN:
                    add(identity, what.format(kind), row.get(key), limit)
        for table, name, key, bound, at_most, what in network.TARGETS:
            add(identity, what, _row(results, identity, "network", f"{table}: {name}").get(key), bound, at_most=at_most)
        for row, key, limit, at_most, what in serving.TARGETS:
            add(identity, what, _row(results, identity, "serving", row).get(key), limit, at_most=at_most)
        for row, key, limit, what in sessions.TARGETS:
            add(identity, what, _row(results, identity, "sessions", row).get(key), limit)
        add(
            identity,
            "`python3 -c pass` as code: p50 as a part of bare",
            _row(results, identity, "python", "rollbox code").get("of_bare"),
            1 / 4,
        )
        add(identity, "HumanEval, `rollbox batch -j 2`: time as a multiple of no sandbox", batch.get("of_bare"), 1 / 2)
    return found


def _table(head: List[str], rows: List[List[str]]) -> List[str]:
    return (
        ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        + ["| " + " | ".join(row) + " |" for row in rows]
        + [""]
    )


def _ms(us: float) -> str:
    return f"{us / 1000:.2f}" if us < 99500 else f"{us / 1000:.0f}"


def test_table(test: str, rows: Dict[str, Any]) -> List[str]:
    lines: List[List[str]] = []
    if test == "throughput":
        head = ["", "a second", "x bwrap"]
        for name, row in rows.items():
            lines.append(
                [name, "failed", ""]
                if "failed" in row
                else [
                    name,
                    f"{row['per_second']:.0f}",
                    f"{row['of_bwrap']:.1f}" if "of_bwrap" in row else "",
                ]
            )
    elif test == "humaneval":
        head = ["", "seconds", "x no sandbox", "failed"]
        for name, row in rows.items():
            lines.append([name, f"{row['seconds']:.2f}", f"{row['of_bare']:.2f}", str(row["failed_programs"])])
    elif test == "determinism":
        head = ["", "HumanEval -j 2, s", "x off", "exec of /bin/true, p50 us", "over off", "query of the clock, ns"]
        for name, row in rows.items():
            lines.append(
                [name, "failed", "", "", "", ""]
                if "failed" in row
                else [
                    name,
                    *(
                        form.format(row[key]) if key in row else ""
                        for key, form in (
                            ("batch_seconds", "{:.2f}"),
                            ("of_off", "{:.2f}"),
                            ("exec_us", "{:,.0f}"),
                            ("exec_added_us", "{:+,.0f}"),
                            ("query_ns", "{:.1f}"),
                        )
                    ),
                ]
            )
    elif test == "neighbours":
        head = ["beside", "p50 ms", "p99 ms", "p99 x spin", "runs"]
        for name, row in rows.items():
            lines.append(
                [name, "failed", "", "", ""]
                if "failed" in row
                else [
                    name,
                    _ms(row["p50_us"]),
                    _ms(row["p99_us"]),
                    f"{row['of_spin']:.2f}",
                    str(row["runs"]),
                ]
            )
    elif test == "network":
        head = [
            "",
            "p50 ms",
            "p99 ms",
            "x direct",
            "x loopback",
            "MiB/s",
            "x direct",
            "descriptors each",
            "KiB each",
            "runs",
        ]
        forms = (
            ("of_direct", "{:.2f}"),
            ("of_loopback", "{:.2f}"),
            ("bulk_mib_s", "{:,.0f}"),
            ("bulk_of_direct", "{:.2f}"),
            ("descriptors_each", "{:.1f}"),
            ("kib_each", "{:.1f}"),
        )
        for name, row in rows.items():
            lines.append(
                [name, "failed", *[""] * 8]
                if "failed" in row
                else [
                    name,
                    *(_ms(row[key]) if key in row else "" for key in ("p50_us", "p99_us")),
                    *(form.format(row[key]) if key in row else "" for key, form in forms),
                    str(row["runs"]),
                ]
            )
    elif test == "serving":
        head = ["", "a second", "x library", "CPU x engine", "x SandboxFusion", "p50 ms", "p99 ms"]
        head += ["added to p99, ms", "KiB each", "MiB", "runs"]
        forms = (
            ("per_second", "{:,.0f}"),
            ("of_direct", "{:.2f}"),
            ("cpu_of_engine", "{:.2f}"),
            ("of_fusion", "{:.1f}"),
            ("p50_us", ""),
            ("p99_us", ""),
            ("added_p99_ms", "{:.1f}"),
            ("kib_each", "{:.1f}"),
            ("grown_mib", "{:.1f}"),
        )
        for name, row in rows.items():
            cells = [
                "" if key not in row else form.format(row[key]) if form else _ms(row[key])
                for key, form in forms
            ]
            lines.append(
                [name, "failed", *[""] * 9] if "failed" in row else [name, *cells, str(row["runs"])]
            )
    elif test == "sessions":
        head = ["", "p50 us", "p99 us", "x bare", "runs"]
        for name, row in rows.items():
            if "failed" in row:
                lines.append([name, "failed", "", "", ""])
            elif "kib_each" in row:
                lines.append([name, f"{row['kib_each']:,.0f} KiB", "", "", str(row["runs"])])
            else:
                lines.append(
                    [
                        name,
                        f"{row['p50_us']:,.0f}" if row["p50_us"] >= 100 else f"{row['p50_us']:.1f}",
                        f"{row['p99_us']:,.0f}" if "p99_us" in row else "",
                        f"{row['of_bare']:.2f}" if "of_bare" in row else "",
                        str(row.get("runs", "")),
                    ]
                )
    else:
        head = ["", "p50 ms", "p99 ms", "x bare", "x bwrap", "runs"]
        for name, row in rows.items():
            if "failed" in row:
                lines.append([name, "failed", "", "", "", ""])
            else:
                lines.append(
                    [
                        name,
                        _ms(row["p50_us"]),
                        _ms(row["p99_us"]),
                        f"{row['of_bare']:.2f}" if "of_bare" in row else "",
                        f"{row['of_bwrap']:.2f}" if "of_bwrap" in row else "",
                        str(row["runs"]),
                    ]
                )
    return _table(head, lines)


def print_test(test: str, rows: Dict[str, Any]) -> None:
    print("\n".join(test_table(test, rows)), file=sys.stderr)


def print_targets(results: Dict[str, Any]) -> None:
    for target in results["targets"]:
        print(
            f"{'reached' if target['reached'] else 'MISSED ':8} {target['identity']:5} {target['what']}: {target['value']:.2f} "
            f"({'<=' if target['at_most'] else '>='} {target['limit']:.2f})",
            file=sys.stderr,
        )
    noise = results["others_busy"]
    if noise:
        print(
            f"others used {noise['median']:.0%} of the CPUs between the rounds (worst {noise['worst']:.0%})",
            file=sys.stderr,
        )


def soak_section(soak: Dict[str, Any]) -> List[str]:
    lines = ["## Soak", ""]
    lines += wrapped(
        f"{soak['runs']} sandboxes from {soak['clients']} clients of one shared engine, each with a connection of its own, in {soak['seconds']:.0f} s "
        f"({soak['runs'] / soak['seconds']:.0f} a second; p50 {soak['p50_ms']:.0f} ms, p99 {soak['p99_ms']:.0f} ms, {soak['failures']} failed). "
        f"Measured with nothing running, after {soak['warm_up']} sandboxes of warm-up and after all."
    )
    lines += [""]
    rows = [
        [
            name,
            str(entry["before"]),
            str(entry["after"]),
            str(entry["allowed"]),
            "no growth" if entry["ok"] else "**GROWS**",
        ]
        for name, entry in soak["measures"].items()
    ]
    return lines + _table(["what", "before", "after", "may grow by", ""], rows)


def wrapped(text: str, indent: str = "") -> List[str]:
    return textwrap.wrap(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def head(results: Dict[str, Any]) -> List[str]:
    """The machine and the method, for each of the pages."""
    machine, noise = results["machine"], results["others_busy"]
    lines = wrapped(
        f"Measured {results['when'][:16].replace('T', ' ')} on {machine['cpu']}, {machine['cpus']} CPUs{' (virtual)' if machine['hypervisor'] else ''}, {machine['memory_mib']} MiB, "
        f"Linux {machine['kernel']}, {machine['system']}. Load {results['load_before'][0]:.1f} before, {results['load_after'][0]:.1f} after"
        + (
            f"; others used {noise['median']:.0%} of the CPUs between the rounds (worst {noise['worst']:.0%})."
            if noise
            else "."
        )
    )
    lines += [""]
    if noise and noise["median"] > 0.1:
        lines += wrapped(
            "**The machine was not quiet during this run**: latencies and rates show its other load, too, and nothing reliable. Run `make bench` again when it is."
        ) + [""]
    return lines


def targets_page(results: Dict[str, Any], soak: Optional[Dict[str, Any]]) -> str:
    lines = ["<!-- Made by make bench (bench/report.py); do not edit. -->", "# Benchmarks", "",
             "| page | has |", "|---|---|",
             "| this page | targets, reached and missed; the soak; the contestants |",
             "| [benchmarks-root.md](benchmarks-root.md) | every measurement, run by root |",
             "| [benchmarks-user.md](benchmarks-user.md) | every measurement, run by an ordinary user |",
             "| [benchmarks-machines.md](benchmarks-machines.md) | sandboxes of many users, installs and builds |"]
    lines += ["| [benchmarks-frameworks.md](benchmarks-frameworks.md) | an adapter's step; a trial of Harbor |", ""]
    lines += head(results)
    lines += wrapped(
        "Versions: "
        + ", ".join(
            f"{name} {text.removeprefix(name).strip()}"
            for name, text in results["versions"].items()
            if text
        )
        + "."
    ) + [""]
    lines += ["Ratios hold for one run on one machine; times are that machine's. `make bench` measures again.", ""]
    rows = [
        [
            target["identity"],
            target["what"],
            f"{target['value']:.2f}",
            f"{'at most' if target['at_most'] else 'at least'} {target['limit']:.2f}",
            "reached" if target["reached"] else "**missed**",
        ]
        for target in results["targets"]
    ]
    lines += ["## Targets", ""] + _table(["by", "what", "measured", "target", ""], rows)
    if soak:
        lines += soak_section(soak)
    lines += ["## Contestants", ""]
    for name, text in CONTESTANTS.items():
        lines += wrapped(f"- **{name}**: {text}.", "  ")
    lines += [
        "",
        *wrapped(
            "A rate with two workers includes the removal of sandboxes: rollbox's clock stops when the engine has no sandbox left except its spares."
        ),
        "",
    ]
    return "\n".join(lines)


def identity_page(results: Dict[str, Any], identity: str) -> str:
    who = "root" if identity == "root" else "an ordinary user"
    lines = ["<!-- Made by make bench (bench/report.py); do not edit. -->", f"# Benchmarks, run by {who}", "",
             "[Benchmarks](benchmarks.md) describes the contestants and has the targets.", ""] + head(results)
    lines += ["| column | meaning |", "|---|---|",
              "| p50, p99 | over all runs; the contestants take turns in each round |",
              "| x bare, x bwrap | median over the rounds of the ratio of medians in a round |",
              "| no sandbox | the faster of subprocess and xargs in a round |", ""]
    for test, rows in results["identities"][identity].items():
        lines += [f"## {TITLES[test]}", ""] + test_table(test, rows)
        for name, row in rows.items():
            lines += wrapped(f"{name}: {row['failed']}") + [""] if "failed" in row else []
    return "\n".join(lines)


def write(project: Path) -> None:
    results_directory = project / "bench" / "results"
    soak = results_directory / "soak.json"
    results = json.loads((results_directory / "bench.json").read_text())
    pages = {"benchmarks": targets_page(results, json.loads(soak.read_text()) if soak.exists() else None)}
    for identity in results["identities"]:
        pages[f"benchmarks-{identity}"] = identity_page(results, identity)
    for name, text in pages.items():
        (project / "docs" / "reference" / f"{name}.md").write_text(text)
    chart.write()


if __name__ == "__main__":
    write(Path(__file__).resolve().parent.parent)
