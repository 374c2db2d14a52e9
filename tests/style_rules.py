# SPDX-License-Identifier: Apache-2.0
"""The rules of check_style.py that count: today's tree breaks them, and the counts only shrink.

A rule gives each file (or struct) a count. tests/style_allowed.json has the counts of today. More
than that is a problem; less is not, and `check_style.py --update` writes the lower count down.
"""

import io
import json
import re
import tokenize

from structure import ROOT, name, sources

ALLOWED = ROOT / "tests/style_allowed.json"
GLOSSARY = ROOT / "docs/glossary.md"
MAX_COLUMNS = 100
MAX_PYTHON_COLUMNS = 120
MAX_TERNARIES = 1
MAX_CONDITIONS = 4
MAX_FIELDS = 25
MAX_BOOLEANS = 3

C_TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
TEST_NAME = re.compile(r"(?m)^(?:async )?def test_(\w+)|^TEST(?:_TIMEOUT)?\((\w+)")
# A name begins with its subject, which is a noun.
BAD_NAME = re.compile(
    r"(?:what|who|whoever|whatever|nor|of|it|they|these|where|nobody|neither)_"
    r"|(?:.*_)?(?:goes_on|go_on|that_lives?|stands?_still|is_told|are_told|anew|twins?|holders?)(?:_|$)"
)
STRUCT = re.compile(r"\bstruct\s+(\w+)\s*\{")
# Ends one piece of prose, so that no phrase reaches from it into the next.
GAP = "\n\0\n"
# Names that the formats and the API have for good: a field, a state or a directory is no prose.
QUOTED = re.compile(r'`[^`\n]*`|\\?"[\w.]+\\?"|\b[\w-]+/|(?m:^ *\w+:)')
FENCED = re.compile(r"(?ms)^```.*?^```")


def c_code(text):
    """The text with strings emptied and comments gone, line by line as before."""

    def blank(match):
        token = match.group()
        return token[0] * 2 if token[0] in "\"'" else "\n" * token.count("\n")

    return C_TOKEN.sub(blank, text)


def c_prose(text):
    """Comments and the strings that have a space; adjacent strings are one."""
    pieces, end = [], 0
    for match in C_TOKEN.finditer(text):
        token = match.group()
        if text[end : match.start()].strip():
            pieces.append(GAP)
        end = match.end()
        if token.startswith("/"):
            pieces.append(GAP + re.sub(r"(?m)^\s*\*(?!/) ?|^/[*/] ?|\*/$", "", token) + GAP)
        elif " " in token:
            pieces.append(token[1:-1])
    return "".join(pieces)


def python_prose(text):
    """Comments of adjacent lines as one, and the strings that have a space."""
    pieces, last = [], 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            pieces.append(("\n" if token.start[0] == last + 1 else GAP) + token.string.lstrip("# "))
            last = token.start[0]
        elif tokenize.tok_name[token.type] in ("STRING", "FSTRING_MIDDLE") and " " in token.string:
            pieces.append(GAP + token.string + GAP)
    return "".join(pieces)


def without_names(prose):
    """The prose without the names that are quoted in it."""
    return QUOTED.sub('""', prose)


def markdown_prose(text):
    """Of an example only its comments; commands and their output are no prose."""

    def comments(match):
        return "\n".join(line.partition("# ")[2] for line in match.group().splitlines())

    return FENCED.sub(comments, text)


def words():
    """Two patterns, of the words for prose and of those for code, from the glossary's last table."""
    table = GLOSSARY.read_text().split("## Words that are not used", 1)[1]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    patterns = {False: [], True: []}
    for phrase in re.findall(r"`([^`]+)`", " ".join(cells)):
        pattern = re.escape(phrase).replace(r"\*", r"\w*").replace(r"\ ", r"\s+")
        is_code = "_" in phrase
        if not is_code and phrase == phrase.lower():
            pattern = f"(?i:{pattern})"
        patterns[is_code].append(pattern)
    return [re.compile(r"(?<!\w)(?:" + "|".join(patterns[key]) + r")(?!\w)") for key in (False, True)]


def documents():
    yield from sorted(path for path in ROOT.glob("*.md"))
    yield from (path for path in sources(".md", ".scd", below=("docs", "man")) if path != GLOSSARY)


def find_words():
    """{file: [(line, phrase)]}"""
    in_prose, in_code = words()
    found = {}
    for path in [*sources(".c", ".h", ".py"), *documents()]:
        if path.name.startswith("check_style") or path.name.startswith("style_"):
            continue
        text = path.read_text()
        if path.suffix in (".c", ".h"):
            prose = c_prose(text)
        else:
            prose = python_prose(text) if path.suffix == ".py" else markdown_prose(text)
        hits = [match.group() for match in in_prose.finditer(without_names(prose))]
        if path.suffix in (".c", ".h", ".py"):
            hits += [match.group() for match in in_code.finditer(text) if match.group() != "most_common"]
        if hits:
            found[name(path)] = [" ".join(hit.split()) for hit in hits]
    return found


def find_lines():
    """Lines of C that are too long, and those with too many conditions: {file: [where]} each."""
    long, dense = {}, {}
    for path in sources(".c", ".h"):
        text = path.read_text()
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > MAX_COLUMNS:
                long.setdefault(name(path), []).append(f"line {number}")
        for number, line in enumerate(c_code(text).splitlines(), 1):
            conditions = line.count("&&") + line.count("||")
            if line.count("?") > MAX_TERNARIES or conditions > MAX_CONDITIONS:
                dense.setdefault(name(path), []).append(f"line {number}")
    return long, dense


def find_names():
    """Tests whose names do not say a subject and what is expected of it."""
    found = {}
    for path in sources(".c", ".py", below=("tests",)):
        names = ["".join(groups) for groups in TEST_NAME.findall(path.read_text())]
        bad = [test for test in names if BAD_NAME.match(test)]
        if bad:
            found[name(path)] = bad
    return found


def struct_body(code, start):
    depth = 1
    for index in range(start, len(code)):
        depth += {"{": 1, "}": -1}.get(code[index], 0)
        if depth == 0:
            return code[start:index]
    return code[start:]


def count_fields(body):
    """Fields and, of those, booleans; those of structs inside count as well."""
    fields = booleans = 0
    for part in re.split(r"[;{}]", body):
        part = re.sub(r"\([^()]*\)|\[[^\]]*\]", "", re.sub(r"\([^()]*\)", "", part)).strip()
        if not part or re.fullmatch(r"(const )?(struct|union|enum)(\s+\w+)?", part):
            continue
        declared = part.count(",") + 1
        fields += declared
        if re.match(r"(unsigned )?bool\b|_Bool\b", part):
            booleans += declared
    return fields, booleans


def find_structs():
    """{struct: count} of fields and of booleans, of the engine's structs that have too many."""
    large, flagged = {}, {}
    for path in sources(".c", ".h", below=("src/engine",)):
        code = c_code(path.read_text())
        for match in STRUCT.finditer(code):
            fields, booleans = count_fields(struct_body(code, match.end()))
            if fields > MAX_FIELDS:
                large[f"struct {match.group(1)}"] = fields
            if booleans > MAX_BOOLEANS:
                flagged[f"struct {match.group(1)}"] = booleans
    return large, flagged


def find_python_lines():
    """Lines of Python that are too long: {file: [where]}. Most are programs and texts of tests."""
    long = {}
    for path in sources(".py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if len(line) > MAX_PYTHON_COLUMNS:
                long.setdefault(name(path), []).append(f"line {number}")
    return long


RULES = {
    "columns": f"lines of more than {MAX_COLUMNS} columns (make format)",
    "python columns": f"lines of more than {MAX_PYTHON_COLUMNS} columns",
    "conditions": f"lines with more than {MAX_TERNARIES} ternary or {MAX_CONDITIONS} of && and ||",
    "words": "words that docs/glossary.md does not use",
    "names": "names of tests that say no subject and expectation (test_fork_keeps_open_pipes)",
    "fields": f"fields, more than the {MAX_FIELDS} of a struct",
    "booleans": f"booleans, more than the {MAX_BOOLEANS} of a struct: use an enum",
}


def measure():
    """({rule: {where: count}}, {rule: {where: what was found}})"""
    long, dense = find_lines()
    details = {
        "columns": long,
        "python columns": find_python_lines(),
        "conditions": dense,
        "words": find_words(),
        "names": find_names(),
    }
    counts = {rule: {key: len(hits) for key, hits in found.items()} for rule, found in details.items()}
    counts["fields"], counts["booleans"] = find_structs()
    return counts, details


def read_allowed():
    read = json.loads(ALLOWED.read_text()) if ALLOWED.exists() else {}
    return {rule: read.get(rule, {}) for rule in RULES}


def compare():
    """One problem a file that has more than it is allowed."""
    counts, details = measure()
    allowed = read_allowed()
    for rule, text in RULES.items():
        for key, count in sorted(counts[rule].items()):
            may = allowed[rule].get(key, 0)
            if count > may:
                found = ", ".join(sorted(set(details.get(rule, {}).get(key, []))))
                yield f"{key}: {count} {text}; {may} are allowed" + (f": {found}" if found else "")


def update():
    """Writes today's counts down; returns problems in place of doing so where one has risen.

    A new file may have what the others have lost: then something has moved.
    """
    counts, _ = measure()
    allowed = read_allowed()
    problems = []
    for rule, text in RULES.items():
        before, now = allowed[rule], counts[rule]
        risen = [key for key in now if key in before and now[key] > before[key]]
        problems += [f"{key}: {now[key]} {text}, before {before[key]}" for key in risen]
        if sum(now.values()) > sum(before.values()) and before:
            new = sorted(key for key in now if key not in before)
            problems.append(f"{', '.join(new) or 'the tree'}: more {text} than were removed elsewhere")
    if not problems:
        ALLOWED.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
    return problems
