"""Every regular expression of the package takes time in proportion to its text, however the text is made.

They see what files, models and the network send. Each is run, in the ways that the package calls it, on texts made to
make it try again and again (doubles/attack_strings.py). Nothing is measured absolutely: the processor time for a text
is compared with that for one a fourth as long.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from doubles.attack_strings import attacks

from eaglelocal.core.tools import Notation, Tool
from eaglelocal.text.templates.literal_text import Spellings
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector
from eaglelocal.text.tool_calls.call_forms import FORMS
from eaglelocal.text.tool_calls.call_parser import BareCalls
from eaglelocal.text.tool_calls.tagged_text import TaggedText

pytestmark = pytest.mark.full

PACKAGE = Path(__file__).parent.parent / "eaglelocal"
FILES = sorted(PACKAGE.rglob("*.py"))
METHODS = ("match", "search", "fullmatch", "finditer", "findall", "sub", "split")
SIZES = (12, 24, 125, 500, 2000, 8000)
FLOOR_S = 0.0005  # less is noise
TOO_MUCH = 2.2  # times what a linear search would take

MADE_IN = {
    "core/tensor_overrides.py:check_pattern",  # the user's own, of --override-tensor, on names of tensors
    "text/templates/literal_text.py:__init__",
    "text/reasoning/markers.py:__init__",  # names of markers, and nothing repeated
    "text/tool_calls/tagged_text.py:__init__",
    "text/tool_calls/tagged_text.py:_compile_value_end",
    "text/tool_calls/tagged_text.py:_compile_tag",
    "text/tool_calls/call_parser.py:__init__",
    "text/tool_calls/tool_grammar.py:__init__",  # likewise
}

Run = Callable[[str], object]


def is_linear(run: Run, texts: list[str]) -> bool:
    """`texts` are one attack in growing sizes. Where it seems to be none, it has two more chances."""
    before_s = FLOOR_S
    for shorter, text in zip(["", *texts], texts, strict=False):
        took_s = cpu_s(run, text)
        if took_s > FLOOR_S:  # few do
            allowed = TOO_MUCH * max(len(text) / max(len(shorter), len(text) / 4), 2.0)
            took_s = min(took_s, *(cpu_s(run, text) for _ in range(2)))
            if took_s > allowed * before_s:
                return False
        before_s = max(FLOOR_S, took_s)
    return True


def cpu_s(run: Run, text: str) -> float:
    started_at = time.thread_time()
    run(text)
    return time.thread_time() - started_at


def attack_on(pattern: re.Pattern[str], method: str) -> str | None:
    """The shortest text of the first attack that succeeds."""
    if isinstance(pattern.pattern, bytes):  # each byte as the character of its number: the work is the same
        pattern = re.compile(pattern.pattern.decode("latin-1"), pattern.flags)
    run = runner(pattern, method)
    families = zip(*(attacks(pattern, size) for size in SIZES), strict=True)
    return next((texts[0] for texts in map(list, families) if not is_linear(run, texts)), None)


def runner(pattern: re.Pattern[str], method: str) -> Run:
    if method == "sub":
        return lambda text: pattern.sub("", text)
    if method == "finditer":
        return lambda text: sum(1 for _ in pattern.finditer(text))
    run: Run = getattr(pattern, method)
    return run


def named_patterns() -> Iterator[tuple[str, re.Pattern[str], str]]:
    """Where, what and by which method, of every pattern that a module has under a name, or writes where it is used."""
    trees = {file: ast.parse(file.read_text()) for file in FILES}
    uses = {file: uses_in(tree) for file, tree in trees.items()}
    everywhere: dict[str, set[str]] = defaultdict(set)
    for found in uses.values():
        for name, methods in found.items():
            everywhere[name] |= methods
    for file, tree in trees.items():
        for name, pattern in compiled_in(file, tree):
            used = uses[file] if name.startswith("_") else everywhere
            yield from (
                (f"{where(file)}:{name}", pattern, method) for method in sorted(used.get(name, ()) or METHODS[:3])
            )
        for line, pattern, method in written_in_calls(tree):
            yield f"{where(file)}:{line}", pattern, method


def where(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def uses_in(tree: ast.Module) -> dict[str, set[str]]:
    """By which methods a name is used: NAME.match(..), module.NAME.match(..)."""
    found: dict[str, set[str]] = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in METHODS:
            match node.value:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(value=ast.Name(id=name)):
                    found[name].add(node.attr)
    return found


def is_compile(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile"


def compiled_in(file: Path, tree: ast.Module) -> Iterator[tuple[str, re.Pattern[str]]]:
    """What the module's own statements compile, evaluated in the module."""
    named = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value]
    named = [node for node in named if any(map(is_compile, ast.walk(node.value)))]  # type: ignore[arg-type]
    if not named:
        return
    module = importlib.import_module(".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts))
    for node in named:
        name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        value = getattr(module, name)
        yield from ((name, each) for each in (value.values() if isinstance(value, dict) else [value]))


def written_in_calls(tree: ast.Module) -> Iterator[tuple[int, re.Pattern[str], str]]:
    """re.sub("..", ..) and the like, where the pattern is a constant."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr=method), args=[ast.Constant(value=str(text)), *_]
            ) if method in METHODS:
                yield node.lineno, re.compile(text), method


def made_patterns() -> Iterator[tuple[str, re.Pattern[str], str]]:
    """Those that are made of a form of calls, of names and of markers."""
    tools = {"look_up": Tool("look_up"), "write.file": Tool("write.file")}
    for number, form in enumerate(FORMS):
        if form.head:
            yield f"head of form {number}", re.compile(form.head), "fullmatch"
        if form.notation is Notation.TAGS:
            text = TaggedText(form, tools)
            for name, pattern in vars(text).items():
                if isinstance(pattern, re.Pattern):
                    method = "search" if name in ("_after", "_certain_value_end") else "match"
                    yield f"{name} of form {number}", pattern, method
    yield "begins_python", BareCalls(AnswerCollector(str), FORMS[0], tuple(tools.values()))._python_start, "match"
    yield "controls", Spellings(("<|im_end|>", "<|im_start|>", "[INST]")).pattern, "finditer"


def test_patterns_take_time_in_proportion_to_their_texts() -> None:
    every = [*named_patterns(), *made_patterns()]
    assert len(every) > 100
    found = {f"{where}-{method}": attack_on(pattern, method) for where, pattern, method in every}
    assert {where: attack for where, attack in found.items() if attack is not None} == {}


def test_all_patterns_are_looked_at() -> None:
    """As many as the sources compile; those inside functions are listed here and must be made by `made_patterns`."""
    inside = {
        f"{where(file)}:{function.name}"
        for file in FILES
        for function in ast.walk(ast.parse(file.read_text()))
        if isinstance(function, ast.FunctionDef) and any(map(is_compile, ast.walk(function)))
    }
    assert inside == MADE_IN


@pytest.mark.parametrize(
    ("text", "method"),
    [
        (r"(\S+)\s+(model|KV)", "search"),
        (r"\s*(to)?\s*", "fullmatch"),
        (r"(a+)+b", "match"),
        (r"[a-z]+\d", "search"),
        (r"device ([^,]+),", "search"),
        (r"\S.*?\s{2,}(?=\S)", "match"),
        (r"^(\w+\s?)*$", "match"),
        (r"( *\n *)", "split"),
    ],
)
def test_a_pattern_that_tries_again_and_again_is_found(text: str, method: str) -> None:
    assert attack_on(re.compile(text), method) is not None


@pytest.mark.parametrize(
    ("text", "method"), [(r"\w+: +(\S+) +model", "match"), (r"[a-z]+", "search"), (r'"(?:[^"\\]|\\.)*"', "match")]
)
def test_a_linear_pattern_is_not_reported(text: str, method: str) -> None:
    assert attack_on(re.compile(text), method) is None
