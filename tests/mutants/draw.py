"""Bugs that nobody chose (tests/mutants.sh --draw NUMBER SEED [PATTERN]): small changes of operators,
constants, returns and calls, drawn by a seed from the sources whose path PATTERN finds.

The same seed, pattern and sources give the same bugs. What a compiler or the log alone would notice is
left out: preprocessor lines, comments, texts, lines of the log, static assertions. Which tests are to
notice a bug is said by the table TESTS: stages of Meson's suites and names, run one after the other until
one fails.
"""

import hashlib
import pathlib
import re

SOURCES = ("config", "core", "shim")

# The first row whose pattern finds the source: what a change there may show in, the quickest first.
TESTS = (
    (r"^shim/command/", ("=manual pages", "@command", "@oom")),
    (r"^shim/agent/", ("@agent",)),
    (r"^shim/registration/callbacks", ("=callbacks", "=memory counts", "@rdma", "@stress")),
    (r"^shim/registration/|^core/regcache/", ("@rdma", "=core")),
    (r"^config/", ("=config", "=options are documented", "=options are documented anew", "@preload", "@command")),
    (r"^shim/", ("@preload", "@conformance", "@stress", "@rdma", "@oom", "@command")),
    (r"^core/base/", ("=core", "@preload", "@conformance", "@stress", "@unit", "@command")),
    (r"^core/share/", ("@unit", "@conformance", "@chaos", "@oom")),
    (r"^core/", ("=core", "=core leases", "=core sleep", "=core waits", "=core host memory", "@conformance",
                 "@stress", "@oom", "@rdma", "@asleep", "@unit", "@command")),
)

# What is found in a line of code, and what stands there instead.
OPERATORS = (
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "),
    (r" == ", " != "), (r" != ", " == "),
    (r" && ", " || "), (r" \|\| ", " && "),
    (r" \+ ", " - "), (r" - ", " + "), (r" \+= ", " -= "), (r" -= ", " += "),
    (r"\+\+", "--"), (r"--", "++"),
    (r"\btrue\b", "false"), (r"\bfalse\b", "true"),
    (r"(?<=[(& |])!(?=[\w(])", ""),
    (r" & (?!~)", " | "), (r" \| ", " & "), (r" << ", " >> "), (r" >> ", " << "),
    (r"\bGS_OK;", "GS_NO_MEMORY;"), (r"\breturn NULL;", "abort();"),
)
NUMBER = re.compile(r"(?<![\w.\"'])(\d+)(?![\w.\"'])")
CONDITION = re.compile(r"^(\s*(?:\} else )?if \()(.*)(\)(?: \{)?)$")
CALL = re.compile(r"^\s+(?:\w+(?:->|\.))*\w+\(.*\);$")
STORE = re.compile(r"^\s+(?:\w+(?:->|\.|\[\w+\]))+\w* [|&+-]?= [^=].*;$")
LEFT_OUT = re.compile(
    r"gs_log_line|gs_say|_Static_assert|assert|printf|__attribute__|^\s*(?:case|default|#)|^\s*\*|^\s*/[*/]")


def code_lines(text):
    """Offset and text of each line that is code: no comment, no macro that goes on."""
    offset, comment, macro = 0, False, False
    for line in text.split("\n"):
        bare = line.strip()
        skipped = comment or macro or bare.startswith(("/*", "#", "//"))
        if "/*" in line and "*/" not in line.split("/*")[-1]:
            comment = True
        elif "*/" in line:
            comment = False
        macro = (macro or bare.startswith("#")) and bare.endswith("\\")
        if not skipped and bare and not LEFT_OUT.search(line):
            yield offset, line
        offset += len(line) + 1


def in_text(line, at):
    """Inside a string, a character or a comment at the line's end."""
    before = line[:at]
    return before.count('"') % 2 == 1 or before.count("'") % 2 == 1 or "/*" in before


def changes(line):
    """Pairs of a place in the line and what the line becomes."""
    for pattern, instead in OPERATORS:
        for found in re.finditer(pattern, line):
            if not in_text(line, found.start()):
                yield line[:found.start()] + instead + line[found.end():]
    if not line.startswith((" ", "\t", "}")):
        return
    for found in NUMBER.finditer(line):
        if not in_text(line, found.start()):
            yield line[:found.start()] + str(int(found[1]) + 1) + line[found.end():]
    if condition := CONDITION.match(line):
        yield f"{condition[1]}!({condition[2]}){condition[3]}"
    if CALL.match(line) or STORE.match(line):
        yield line[:len(line) - len(line.lstrip())] + ";"


def sources(root, pattern):
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*.c")):
            name = str(path.relative_to(root))
            if re.search(pattern, name):
                yield name, path.read_text(encoding="utf-8")


def stages_of(file):
    return next(stages for where, stages in TESTS if re.search(where, file))


def draw(root, number, seed, pattern):
    """So many of (name, file, the text as it is, the text with the bug, what it is, stages of tests)."""
    root, found = pathlib.Path(root), []
    for file, text in sources(root, pattern):
        stages = stages_of(file)
        for offset, line in code_lines(text):
            for nth, changed in enumerate(changes(line)):
                key = hashlib.sha256(f"{seed} {file} {line} {nth} {text[:offset].count(line)}".encode()).hexdigest()
                found.append((key, file, offset, line, changed, stages))
    for key, file, offset, line, changed, stages in sorted(found)[:number]:
        text = (root / file).read_text(encoding="utf-8")
        row = text[:offset].count("\n") + 1
        yield (f"drawn/{key[:8]}", file, text, text[:offset] + changed + text[offset + len(line):],
               f"{file}:{row}: {line.strip()}  ->  {changed.strip()}", stages)
