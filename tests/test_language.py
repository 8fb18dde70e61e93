"""How this project names and writes, as far as a program can see it: python tests/test_language.py prints the counts.

Each rule gives the places that break it.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from doubles.sources import nodes_of

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "eaglelocal"
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_DOC_CHARS = 100
# Files of these rooms are told apart by their folder.
SUBJECT_FOLDERS = frozenset({"cli", "openai", "responses", "anthropic", "ollama", "llama_server", "rerank"})
# What a first sentence must not begin with: prepositions, relatives, question words, bare negations and comparisons.
NO_SUBJECT = frozenset(
    """
    about above after against all along also although among another any anything around as asked at because before
    behind below beside besides between beyond both but by down during each either else enough even ever except few
    for from here how if in inside instead into it its itself less like likewise many more most much neither never
    next no nobody none nor not nothing of off on once one ones only onto or other others otherwise out outside over
    perhaps said same several since so some somebody something such than that their then there therefore these they
    this those though through to together told too towards under unless until up upon what whatever when where
    whereas wherever whether which whichever while who whoever whom whose why with within without yet
    """.split()  # noqa: SIM905
)
BANNED = re.compile(
    r"\b(households?|garage|pupil|errands?|minds?|seats?|wish(es|ed)?|whole[_ ]windows|knows no|tells? apart"
    r"|tellers?|told|untold|desk|rig|voice|lessons?|schools?|heard|reckon(s|ed)?)\b",
    re.I,
)

Place = str
Rule = Callable[[], Iterator[Place]]


def where(file: Path, node: ast.AST | None = None) -> Place:
    return f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def class_names_used_twice() -> Iterator[Place]:
    places: dict[str, list[Place]] = defaultdict(list)
    for file in FILES:
        for node in nodes_of(file):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(where(file, node))
    yield from (f"{name}: {', '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1)


def basenames_used_twice() -> Iterator[Place]:
    places: dict[str, list[Place]] = defaultdict(list)
    for file in FILES:
        if file.name not in ("__init__.py", "__main__.py") and not SUBJECT_FOLDERS & set(file.parts):
            places[file.name].append(where(file))
    yield from (f"{name}: {', '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1)


def docstrings_without_subject() -> Iterator[Place]:
    """Of modules, and of public classes and functions."""
    for file in FILES:
        for node in nodes_of(file):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if getattr(node, "name", "").startswith("_"):
                continue
            first = (ast.get_docstring(node) or "").partition("\n")[0]
            word = re.match(r"[A-Za-z']+", first)
            if word and word.group().lower() in NO_SUBJECT:
                yield f"{where(file, node)}: {first}"


def long_lines_in_docs() -> Iterator[Place]:
    for file in sorted((ROOT / "docs").rglob("*.md")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if len(line) > MAX_DOC_CHARS and not line.startswith("|") and "](" not in line.split()[0]:
                yield f"{file.relative_to(ROOT)}:{number}"


def banned_words() -> Iterator[Place]:
    """In code and pages; the corpus of the embedded model is language of its own."""
    files = [
        *(file for file in FILES if "corpus" not in file.parts),
        *sorted((ROOT / "docs").rglob("*.md")),
        ROOT / "README.md",
        ROOT / "ARCHITECTURE.md",
    ]
    for file in files:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            yield from (f"{file.relative_to(ROOT)}:{number}: {found.group()}" for found in BANNED.finditer(line))


def files_that_do_not_exist() -> Iterator[Place]:
    """Files that pages name in backticks, by their path or by the end of it."""
    folders = (PACKAGE, ROOT / "tests")
    paths = [f"/{path.relative_to(ROOT)}" for folder in folders for path in folder.rglob("*.[pch]*")]
    paths.append("/hatch_build.py")
    for page in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "ARCHITECTURE.md"]:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for name in re.findall(r"`([\w./]+\.(?:py|c|h))`", line):
                if not any(path.endswith(f"/{name}") for path in paths):
                    yield f"{page.relative_to(ROOT)}:{number}: {name}"


def unknown_names_in_docstrings() -> Iterator[Place]:
    """Names that a docstring explains in a table, which are no parameter, field or attribute."""
    for file in FILES:
        for node in nodes_of(file):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                known = names_of(node)
                for line in (ast.get_docstring(node) or "").splitlines():
                    row = re.match(r"([a-z_]\w*(?:, [a-z_]\w*)*)  +\S", line)
                    for name in row[1].split(", ") if row else ():
                        if name not in known:
                            yield f"{where(file, node)}: {name}"


def ragged_tables_in_docstrings() -> Iterator[Place]:
    """Names and their explanations, which do not all begin in one column."""
    for file in FILES:
        for node in nodes_of(file):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            lines = (ast.get_docstring(node) or "").splitlines()
            rows = [re.match(r"[a-z_]\w*(?:, [a-z_]\w*)*  +(?=\S)", line) for line in lines]
            for number, (one, other) in enumerate(itertools.pairwise(rows)):
                if one and other and one.end() != other.end():
                    yield f"{where(file, node)}: {lines[number + 1]}"


def names_of(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Parameters of a function; of a class those of its methods, fields, properties and attributes of self."""
    names = set()
    for each in ast.walk(node):
        match each:
            case ast.arg(arg=name) | ast.AnnAssign(target=ast.Name(id=name)) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return names


RULES: tuple[Rule, ...] = (
    unknown_names_in_docstrings,
    ragged_tables_in_docstrings,
    files_that_do_not_exist,
    class_names_used_twice,
    basenames_used_twice,
    docstrings_without_subject,
    long_lines_in_docs,
    banned_words,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_rule_is_broken(rule: Rule) -> None:
    found = list(rule())
    assert not found, "\n".join(found)


if __name__ == "__main__":
    only = sys.argv[1:]
    for rule in RULES:
        found = [place for place in rule() if not only or any(place.startswith(each) for each in only)]
        print(f"{rule.__name__}: {len(found)}")
        if only:
            print("\n".join(found))
