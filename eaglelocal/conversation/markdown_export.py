"""Export of a conversation as a Markdown document. Pure except `export_markdown`, which writes it.

Answers stay as the model wrote them; questions become quotes, so that a heading in one does not break the outline.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TextIO

from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.core.surrogates import join_surrogates, make_printable
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import ResourceError, UsageError


def format_markdown(conversation: Conversation, *, target: str) -> str:
    """Return the document: title, system message, then question and answer of each turn, reasoning folded."""
    title = f"# {make_printable(conversation.name) or 'Conversation'}"
    parts = [title, f"*{make_printable(target)}*"]
    if conversation.system:
        parts += ["**System:**", _quote(conversation.system)]
    return "\n\n".join([*parts, *(part for turn in conversation.turns for part in _format_turn(turn))]) + "\n"


def export_markdown(conversation: Conversation, name: str, *, target: str) -> Path:
    """Write the document to a new file of that name and return its path; no file is overwritten.

    Raises UsageError, ResourceError; a partly written file is removed then.
    """
    if not conversation.turns:
        raise UsageError("there is nothing to export yet")
    path = expand_path(name)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # as private as the conversation itself
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            _write(file, path, join_surrogates(format_markdown(conversation, target=target)))
        return path.absolute()
    except FileExistsError:
        raise UsageError(f"{path} already exists", hint="/export ANOTHER.md") from None
    except OSError as problem:
        command = "mkdir -p" if isinstance(problem, FileNotFoundError) else "ls -ld"
        hint = f"{command} {shlex.quote(str(path.parent))}"
        raise ResourceError(f"cannot write {path}: {problem.strerror}", hint=hint) from problem


def _write(file: TextIO, path: Path, text: str) -> None:
    try:
        file.write(text)
        file.flush()
    except BaseException:
        path.unlink()
        raise


def _format_turn(turn: Turn) -> list[str]:
    reasoning = (
        f"<details><summary>Thoughts</summary>\n\n{turn.reasoning.strip()}\n\n</details>" if turn.reasoning else ""
    )
    stopped = "*(stopped here)*" if turn.stopped else ""
    return [part for part in ("---", _quote(turn.shown_question), reasoning, turn.answer.strip(), stopped) if part]


def _quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))
