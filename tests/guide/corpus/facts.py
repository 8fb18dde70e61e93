"""The facts that the embedded model is taught, read from `facts.toml`.

Knows the file's format, but not how facts are asked for (`guide`).
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path

from eaglelocal.core.records import dataclass
from eaglelocal.core.toml_text import read_toml
from eaglelocal.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class FollowUp:
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    topic: str
    questions: tuple[str, ...]
    held_out: tuple[str, ...]
    answer: str
    must: tuple[str, ...]
    follow_up: FollowUp | None


@cache
def built_in_facts() -> tuple[Fact, ...]:
    return _parse(files("guide").joinpath("facts.toml").read_text(encoding="utf-8"), "facts.toml")


def load_facts(path: Path) -> tuple[Fact, ...]:
    return _parse(path.read_text(encoding="utf-8"), str(path))


def _parse(text: str, source: str) -> tuple[Fact, ...]:
    try:
        return tuple(_fact(entry) for entry in read_toml(text)["fact"])
    except (KeyError, tomllib.TOMLDecodeError) as problem:
        raise ModelFileError(f"{source} holds no readable facts: {problem!r}") from problem


def _fact(entry: dict[str, object]) -> Fact:
    match entry:
        case {
            "id": str(name),
            "topic": str(topic),
            "questions": list(questions),
            "held_out": list(held_out),
            "answer": str(answer),
            "must": list(must),
        }:
            follow_up = _follow_up(entry.get("follow_up"))
            return Fact(name, topic, tuple(questions), tuple(held_out), answer, tuple(must), follow_up)
    raise KeyError(f"incomplete fact {entry.get('id')}")


def _follow_up(entry: object) -> FollowUp | None:
    match entry:
        case {"question": str(question), "answer": str(answer)}:
            return FollowUp(question, answer)
    return None
