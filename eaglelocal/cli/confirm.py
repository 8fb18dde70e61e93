"""Confirmation before an expensive or destructive action: a question on a terminal, --yes elsewhere."""

from __future__ import annotations

import sys

from eaglelocal.cli.output import Output
from eaglelocal.errors import Cancelled, UsageError

YES = frozenset({"y", "yes"})


def confirm(question: str, output: Output, *, yes: bool, default: bool) -> None:
    """Return if the answer is yes. Raises Cancelled on no, UsageError if stdin is no terminal.

    yes      do not ask (--yes)
    default  what an empty answer means
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("--yes is needed: there is no terminal to ask on", hint="--yes")
    output.ask(f"{question} [{'Y/n' if default else 'y/N'}] ")
    answer = sys.stdin.readline()
    if not answer:  # ctrl-d
        output.message()
    word = answer.strip().lower()
    if word in YES or (answer and not word and default):
        return
    raise Cancelled("the answer was no")
