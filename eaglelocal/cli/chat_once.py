"""The one-shot chat, `chat PROMPT`: one question, from PROMPT and stdin, and one answer.

It decides how stdin is joined to PROMPT and what is printed on stdout.
"""

from __future__ import annotations

import os
import select
from typing import TextIO

from eaglelocal.cli.answer_printer import Asker
from eaglelocal.cli.output import Output
from eaglelocal.conversation.answer_stats import answer_object
from eaglelocal.conversation.slash_commands import names_command
from eaglelocal.core.image_formats import media_type
from eaglelocal.errors import Cancelled, EngineError, UsageError

PATIENCE_S = 2.0
MAX_STDIN_BYTES = 8_000_000  # more than any context holds; endless input (`yes |`) must not fill the memory

RECODE = 'iconv -f WINDOWS-1252 -t UTF-8 FILE | eaglelocal chat "..."'
MAX_SCANNED_LINES, MAX_QUOTED_CHARS = 50, 40


def read_stdin(stdin: TextIO | None, output: Output) -> str:
    """Return all of stdin, or "" if it is a terminal. Raises UsageError if it is too long or not UTF-8.

    Shows a message if nothing arrives within PATIENCE_S, because an open pipe looks like a hang.
    """
    if stdin is None or stdin.isatty():
        return ""
    if not _is_ready(stdin):
        output.message("waiting for stdin to end (use </dev/null if it has nothing to read)")
    piped = stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if len(piped) > MAX_STDIN_BYTES:
        raise UsageError(
            f"stdin is longer than {MAX_STDIN_BYTES // 1_000_000} MB, more than a model can read",
            hint='head -c 50000 FILE | eaglelocal chat "..."',
        )
    try:
        return piped.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise UsageError(
            f"stdin is not UTF-8 text: byte {problem.start} is 0x{problem.object[problem.start]:02x}",
            hint="--image /dev/stdin" if media_type(piped) else RECODE,
        ) from None


def _is_ready(stdin: TextIO) -> bool:
    if os.name == "nt":  # there select takes only sockets
        return True
    return bool(select.select([stdin], [], [], PATIENCE_S)[0])


def join_question(prompt: str, piped: str) -> str:
    """Return PROMPT, an empty line, and the piped text. Raises UsageError if both are empty."""
    parts = [part.strip("\n") for part in (prompt, piped) if part.strip()]
    if not parts:
        raise UsageError("there is no question: PROMPT and stdin are empty", hint='eaglelocal chat "What can you do?"')
    return "\n\n".join(parts)


def mention_command(question: str, output: Output) -> None:
    """Say that a slash command in a question is not obeyed: a question may be any text, also a list of paths."""
    lines = question.splitlines()[:MAX_SCANNED_LINES]
    found = next((line.strip() for line in lines if names_command(line)), "")
    if found:
        shown = found if len(found) <= MAX_QUOTED_CHARS else f"{found[:MAX_QUOTED_CHARS]}..."
        rest = ", with the rest of the question" if len(question.split("\n", 1)) > 1 else ""
        output.note(f"{shown!r} is sent as text{rest}; commands work in a chat: eaglelocal chat")


def answer_once(asker: Asker, question: str) -> None:
    """Ask a question and show the answer; a quiet asker prints only the JSON object on stdout.

    Raises the error of the answer, or Cancelled if it was stopped.
    """
    outcome = asker.ask(question)
    if outcome.error is not None:
        raise outcome.error
    if outcome.finished is None:
        raise EngineError("the answer ended without a result")
    if asker.quiet:
        asker.output.object(
            answer_object(outcome.text, outcome.finished, asker.session.model.info, reasoning=outcome.reasoning)
        )
    if outcome.stopped:
        raise Cancelled("stopped")
