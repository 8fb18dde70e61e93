"""Every binding has a test: all keys of the screens, dialogs and widgets are pressed somewhere in these tests."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.dom import DOMNode

import eaglelocal.tui

OF_THE_MONITOR = ("Monitor", "RowsWidget", "QuestionDialog")
OF_THE_LIST = ("ServersMonitor", "ServerDetails")
SHARED = ("HelpScreen", "Palette")  # whose keys are pressed in tests of the chat


def with_bindings() -> Iterator[type[DOMNode]]:
    """Every class of ours that binds keys, wherever it stands."""
    for found in pkgutil.walk_packages(eaglelocal.tui.__path__, "eaglelocal.tui."):
        module = importlib.import_module(found.name)
        for each in vars(module).values():
            is_ours = isinstance(each, type) and each.__module__ == module.__name__
            if is_ours and issubclass(each, DOMNode) and "BINDINGS" in vars(each):
                yield each


def bound() -> list[tuple[str, str]]:
    """(place and action, key)."""
    return [
        (f"{place.__name__}.{binding.action}", key)
        for place in with_bindings()
        for binding in place.BINDINGS
        if isinstance(binding, Binding)
        for key in binding.key.split(",")
    ]


def texts(nodes: list[ast.expr]) -> set[str]:
    return {
        each.value
        for node in nodes
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


def pressed(source: str) -> set[str]:
    """The keys that tests press: said to `press` itself, walked through, or handed in by parameters."""
    found: set[str] = set()
    for test in (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)):
        calls = [node for node in ast.walk(test) if isinstance(node, ast.Call)]
        presses = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "press"]
        if presses:
            walked = [node.iter for node in ast.walk(test) if isinstance(node, ast.For)]
            found |= texts([each for call in presses for each in call.args] + walked + test.decorator_list)
    return found


def test_the_classes_are_found() -> None:
    names = {place.__name__ for place in with_bindings()}
    assert {"ChatApp", "PromptInput", "Dialog", "ConversationsDialog", "SettingsDialog", "ModelDialog"} <= names
    assert {"Monitor", "RowsWidget", "QuestionDialog", *SHARED} <= names


@pytest.mark.parametrize(("place", "key"), bound(), ids=lambda each: str(each))
def test_every_key_is_pressed_in_a_test(place: str, key: str) -> None:
    name = place.partition(".")[0]
    screen = "monitor" if name in OF_THE_MONITOR else "servers" if name in OF_THE_LIST else "chat"
    files = Path(__file__).parent.glob(f"test_{screen}*.py")
    assert key in set.union(*(pressed(file.read_text()) for file in files)), f"no test presses {key} for {place}"


def test_what_counts_as_pressed() -> None:
    source = """
@parametrize("key", ["f1", ("f2",)])
def test_a(key):
    for each in ("f3", "f4"):
        press(key)
        pilot.press(each, "f5", *"ab")
    text = "f6"
def test_b():
    sees("f7")
"""
    assert pressed(source) == {"key", "f1", "f2", "f3", "f4", "f5", "ab"}
