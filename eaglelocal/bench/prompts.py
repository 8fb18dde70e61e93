"""What is asked in a measurement: the corpus's held-out tasks by kind of work, or a file of the user's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from eaglelocal.core.request import Message
from eaglelocal.demo.corpus.mixture import KINDS, tasks_of
from eaglelocal.errors import UsageError

SEED = 11
Conversation = tuple[Message, ...]


def built_in(categories: Sequence[str], num_prompts: int) -> dict[str, list[Conversation]]:
    """So many held-out conversations of each category; all categories if none is named."""
    unknown = sorted(set(categories) - set(KINDS))
    if unknown:
        raise UsageError(f"there is no category {unknown[0]!r}", hint=f"one of: {', '.join(KINDS)}")
    return {
        kind: [
            tuple(Message(m.role, m.content) for m in task.messages)
            for task in islice(tasks_of(kind, SEED, "held_out"), num_prompts)
        ]
        for kind in (categories or tuple(KINDS))
    }


def from_file(path: Path) -> dict[str, list[Conversation]]:
    """One prompt a line: plain text, or JSON with "prompt" and, if wanted, "category"."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the prompts in {path}: {error}") from error
    prompts: dict[str, list[Conversation]] = {}
    for line in filter(None, map(str.strip, lines)):
        category, prompt = parse_line(line)
        prompts.setdefault(category, []).append((Message("user", prompt),))
    if not prompts:
        raise UsageError(f"there is no prompt in {path}")
    return prompts


def parse_line(line: str) -> tuple[str, str]:
    """A line of a prompts file -> (category, prompt)."""
    if not line.startswith("{"):
        return "prompts", line
    try:
        entry = json.loads(line)
        return str(entry.get("category", "prompts")), str(entry["prompt"])
    except (ValueError, KeyError) as error:
        raise UsageError(f"this line is no JSON with a prompt: {line[:60]}") from error
