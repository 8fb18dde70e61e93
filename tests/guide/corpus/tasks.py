"""Tasks, and the checks that judge answers to them.

Knows messages, tasks, the two splits and the four kinds of check.
Does not know how any kind of task is made (the other files) nor how a conversation becomes text (`mixture.render`).
"""

from __future__ import annotations

import ast
import re
import zlib
from collections.abc import Callable
from random import Random
from typing import Literal

from eaglelocal.core.records import dataclass

Role = Literal["system", "user", "assistant"]
Split = Literal["train", "held_out"]
How = Literal["exact", "contains", "number", "python"]

HELD_OUT_ONE_IN = 20
_NUMBER = re.compile(r"-?\d+")
_FENCE = re.compile(r"```python\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CorpusMessage:
    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Check:
    """The rule to judge an answer: by its whole text, parts it must contain, its last number, or code that parses."""

    how: How
    expected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CorpusTask:
    """A conversation that ends with the user's turn, the expected answer, and the check for any answer."""

    kind: str
    messages: tuple[CorpusMessage, ...]
    answer: str
    check: Check


TaskMaker = Callable[[Random, Split], CorpusTask]


def ask(kind: str, question: str, answer: str, *, check: Check) -> CorpusTask:
    """Return a task of one turn."""
    return CorpusTask(kind, (CorpusMessage("user", question),), answer, check)


def split_of(key: str) -> Split:
    """Return the split of a key, the same in every run and on every machine."""
    return "held_out" if zlib.crc32(key.encode()) % HELD_OUT_ONE_IN == 0 else "train"


def is_right(task: CorpusTask, text: str) -> bool:
    match task.check.how:
        case "exact":
            return text.strip() == task.check.expected[0].strip()
        case "contains":
            return all(part.lower() in text.lower() for part in task.check.expected)
        case "number":
            numbers = _NUMBER.findall(text)
            return bool(numbers) and int(numbers[-1]) == int(task.check.expected[0])
        case "python":
            return _defines_a_function(text)


def _defines_a_function(text: str) -> bool:
    fenced = _FENCE.search(text)
    if fenced is None:
        return False
    try:
        tree = ast.parse(fenced.group(1))
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.FunctionDef) for node in ast.walk(tree))
