"""What a check found: how bad it is, in one sentence, and the command that mends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str  # a word for programs, such as compiler
    level: Level
    text: str
    command: str = ""  # to be pasted into a shell; empty: nothing to do, or nothing that a command could do


def ok(check: str, text: str) -> Finding:
    return Finding(check=check, level="ok", text=text)


def warning(check: str, text: str, command: str = "") -> Finding:
    return Finding(check=check, level="warning", text=text, command=command)


def problem(check: str, text: str, command: str = "") -> Finding:
    return Finding(check=check, level="problem", text=text, command=command)
