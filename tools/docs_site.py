# SPDX-License-Identifier: Apache-2.0
"""Hooks of mkdocs.yml: the pages that are made, and links that leave docs/.

`make docs` makes the site in build/site. README.md is its first page. The pages reference/c-api.md
and reference/python-api.md are made from rollbox.h and from docstrings. Comments of tests
(`<!-- before: ... -->`) are removed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "include/rollbox/rollbox.h"
SECTIONS = ("tutorials", "how-to", "reference", "explanation")
# Files outside of docs/ that are pages of the site.
ALSO = {
    "README.md": "index.md",
    "HACKING.md": "hacking.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "examples/README.md": "examples.md",
    "bench/README.md": "bench.md",
}


def plain(comment: str) -> str:
    """The text of a C comment, with identifiers set as code."""
    lines = comment.removeprefix("/*").removesuffix("*/").split("\n")
    text = "\n".join(re.sub(r"^\s*\*( |$)", "", line).strip() for line in lines).strip()
    parts = re.split(r"(`[^`]*`)", text)
    names = r"(?<!\w)(rollbox_\w+|ROLLBOX_\w+|ret_\w+\*?|-E[A-Z]+)(?!\w)"
    return "".join(part if part.startswith("`") else re.sub(names, r"`\1`", part) for part in parts)


def c_reference(header: str) -> str:
    """A page from the header: its opening comment, then each section's declarations with comments."""
    opening, _, rest = header.partition("#ifndef ROLLBOX_ROLLBOX_H")
    parts = re.split(r"/\* ---- (.*?) ---- \*/\n", rest)
    page = ["# C API", "", "Made from `include/rollbox/rollbox.h`. [The C library](c.md) is the overview.", ""]
    page += [plain(opening[opening.index("/*\n") :].strip()), ""]
    for title, body in zip(["errors", *parts[1::2]], parts[0::2]):
        page += [f"## {title.capitalize()}", ""]
        for comment, code in declarations(body):
            code = code.replace("ROLLBOX_PUBLIC ", "").strip()
            name = re.search(r"#define (\w+)|(rollbox_\w+)(?=\s*[({;]|\)\()", code)
            if name and (comment or not name[1]):
                page += [f"### {name[1] or name[2]}", "", "```c", code, "```", "", plain(comment), ""]
    return "\n".join(page)


def declarations(body: str) -> list[tuple[str, str]]:
    """(comment, code) of every declaration in a part of the header; the comment may be empty.

    A declaration right below another one, without a comment, shares that one's.
    """
    found: list[tuple[str, str]] = []
    lines = body.replace("/* clang-format off */\n", "").replace("/* clang-format on */\n", "").split("\n")
    comment, code, depth, at, ended_at = "", [], 0, 0, -2
    while at < len(lines):
        line = lines[at]
        if not code and line.startswith("/*"):
            end = next(number for number in range(at, len(lines)) if "*/" in lines[number])
            comment, at = "\n".join(lines[at : end + 1]), end + 1
            continue
        if code or re.match(r"(ROLLBOX_PUBLIC|struct|enum|typedef|#define)\b", line):
            begun = at if not code else begun
            code.append(line)
            depth += line.count("{") - line.count("}")
            if not line.endswith("\\") if code[0].startswith("#") else depth == 0 and line.rstrip().endswith(";"):
                if not comment and begun == ended_at + 1 and found:
                    found[-1] = (found[-1][0], found[-1][1] + "\n" + "\n".join(code))
                else:
                    found.append((comment, "\n".join(code)))
                comment, code, ended_at = "", [], at
        elif line.strip():
            comment = ""
        at += 1
    return found


def exported(path: str) -> list[str]:
    """The names in a module's __all__."""
    text = (ROOT / path).read_text().partition("\n__all__ = [")[2].partition("]")[0]
    return sorted(re.findall(r'"([A-Za-z]\w*)"', text), key=str.lower)


def python_reference() -> str:
    page = ["# Python API", "", "Made from docstrings. [The Python package](python.md) is the overview.", ""]
    errors = exported("python/rollbox/_core/errors.py")
    names = [name for name in exported("python/rollbox/__init__.py") if name not in errors]
    for name in [*names, *errors]:
        page += [f"## {name}", "", f"::: rollbox.{name}", ""]
    return "\n".join(page)


def on_config(config: Any) -> Any:
    """The navigation: the four kinds, then the rest."""
    docs = Path(config["docs_dir"])
    nav: list[Any] = [{"rollbox": "index.md"}]
    for section in SECTIONS:
        pages = sorted(str(path.relative_to(docs)) for path in (docs / section).glob("*.md"))
        if section == "reference":
            pages += ["reference/c-api.md", "reference/python-api.md"]
        nav.append({section.replace("how-to", "how-to guides").capitalize(): pages})
    top = sorted(path.name for path in docs.glob("*.md"))
    nav.append({"Project": [*top, *(ALSO[name] for name in ALSO if name != "README.md" and (ROOT / name).exists())]})
    config["nav"] = nav
    return config


def on_files(files: Files, config: Any) -> Files:
    made = {"reference/c-api.md": c_reference(HEADER.read_text()), "reference/python-api.md": python_reference()}
    for name, target in ALSO.items():
        if (ROOT / name).exists():
            made[target] = (ROOT / name).read_text()
    for target, text in made.items():
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    own = {target: name for name, target in ALSO.items()}
    source = own.get(page.file.src_uri, "docs/" + page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        path, _, fragment = target.partition("#")
        if not path or "://" in target or target.startswith("mailto:"):
            return found[0]
        absolute = os.path.normpath(os.path.join(os.path.dirname(source), path))
        if absolute in ALSO:
            inside = ALSO[absolute]
        elif absolute.startswith("docs/"):
            inside = absolute.removeprefix("docs/")
        else:
            return text if found[0].startswith("!") or text.startswith("`") else f"{text} (`{absolute}`)"
        relative = os.path.relpath(inside, os.path.dirname(page.file.src_uri) or ".")
        return found[0].replace(f"]({target})", f"]({relative}{'#' + fragment if fragment else ''})")

    kept = re.sub(r"<!--.*?-->\n?", "", markdown, flags=re.DOTALL)
    return re.sub(r"!?\[([^\]]*)\]\(([^)\s]+)\)", link, kept)

