"""The result of a check: how serious it is, one sentence, and the command that fixes it."""

from __future__ import annotations

from typing import Literal

from eaglelocal.core.records import dataclass

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check."""

    check: str  # the name that programs read, such as compiler
    level: Level
    text: str
    command: str = ""  # to paste into a shell; empty: nothing to do, or no command can do it


def ok(check: str, text: str) -> Finding:
    return Finding(check=check, level="ok", text=text)


def warning(check: str, text: str, command: str = "") -> Finding:
    return Finding(check=check, level="warning", text=text, command=command)


def problem(check: str, text: str, command: str = "") -> Finding:
    return Finding(check=check, level="problem", text=text, command=command)
