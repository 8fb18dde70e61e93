"""The kind of hints: a flag in one has its value, so that it can be pasted, and a command in one is known."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from eaglelocal.cli.command_table import ALL, make_app

PACKAGE = Path(__file__).parents[2] / "eaglelocal"
FLAG = re.compile(r"(?:(?P<out>leave|no|without) )?(?P<flag>--[a-z][a-z-]+)(?P<rest>[= ][^\s,;`)]+)?")
VALUE = re.compile(
    r"[A-Z0-9'\"*~./{]|auto\b|none\b|on\b|off\b|cpu\b|ngram\b|layer\b|file\b|p-eagle\b|[a-z]+[-_/@:]?[a-z0-9]*[/0-9]"
)
OF_OTHERS = ("pip ", "hf ", "docker ", "find ", "python -m ", "mv ")  # programs whose flags are their own


@cache
def switches() -> frozenset[str]:
    """The flags that take no value."""
    commands: Any = get_command(make_app()).commands
    options = [option for command in commands.values() for option in command.params]
    own = {name for option in options if getattr(option, "is_flag", False) for name in option.opts}
    return frozenset({*own, "--help", "--force-reinstall"})  # the latter is pip's


def texts_of(node: ast.expr) -> Iterator[str]:
    """The texts that an expression may become; a value that is put in is {}."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for below in ast.iter_child_nodes(node):
            if isinstance(below, ast.expr):
                yield from texts_of(below)


def hints_of(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "hint":
            yield from texts_of(node.value)
        elif isinstance(node, ast.Assign):
            names = [target.id.lower() for target in node.targets if isinstance(target, ast.Name)]
            if any(name.endswith("hint") for name in names):
                yield from texts_of(node.value)


def flags_without_value(hint: str) -> list[str]:
    if hint.lstrip("`").startswith(OF_OTHERS):
        return []
    found = (match for match in FLAG.finditer(hint) if not match["out"] and match["flag"] not in switches())
    return [match["flag"] for match in found if not VALUE.match((match["rest"] or "")[1:])]


def test_flags_in_hints_have_their_values() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}: {hint}"
        for path in PACKAGE.rglob("*.py")
        for hint in hints_of(ast.parse(path.read_text(encoding="utf-8")))
        if flags_without_value(hint)
    }
    assert not found


def test_commands_in_hints_are_known() -> None:
    hints = {hint for path in PACKAGE.rglob("*.py") for hint in hints_of(ast.parse(path.read_text(encoding="utf-8")))}
    own = [text for hint in hints if (text := hint.strip("`")).startswith("eaglelocal ") and "`" not in text]
    assert len(own) > 10
    for hint in own:
        assert shlex.split(hint)[1] in (*ALL, "{}"), hint
        assert "(" not in hint and ";" not in hint, hint  # a shell would stop at it


@pytest.mark.parametrize(
    ("hint", "found"),
    [
        ("use a larger --ctx", ["--ctx"]),
        ("a smaller --ctx or --gpu-layers, or `--torch-device cpu`", ["--ctx", "--gpu-layers"]),
        ("another folder for --work", ["--work"]),
        ("--ctx {} or --parallel {}", []),
        ("leave --split out", []),
        ("--yes", []),
        ("`--draft none`", []),
        ("pip install --force-reinstall x", []),
    ],
)
def test_what_is_found(hint: str, found: list[str]) -> None:
    assert flags_without_value(hint) == found


COMMANDS = re.compile(r"`?(?:eaglelocal|ls|rm|mv|less|ollama) ")
NAMES = re.compile(r"path|folder|file|target|reference|log\b|head\b|existing|url", re.IGNORECASE)
QUOTED = re.compile(r"quote_(?:path|word)\(|shlex\.(?:quote|join)\(|getattr|\.port\b")
CHECKED = {"entry.targets[0]", "settings.target_key"}  # of the catalog


def unquoted_names(tree: ast.AST) -> Iterator[str]:
    """The names that commands in hints hold as they are; a blank or a line end in one makes another command of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "hint" and isinstance(node.value, ast.JoinedStr):
            before = ""
            for part in node.value.values:
                if isinstance(part, ast.Constant):
                    before += str(part.value)
                elif isinstance(part, ast.FormattedValue) and COMMANDS.match(before):
                    value = ast.unparse(part.value)
                    if NAMES.search(value) and not QUOTED.search(value) and value not in CHECKED:
                        yield value


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_names_in_commands_are_quoted(file: Path) -> None:
    assert list(unquoted_names(ast.parse(file.read_text()))) == []
