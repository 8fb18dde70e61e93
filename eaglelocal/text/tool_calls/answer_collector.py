"""A collector of the output of an answer's parsers: text, reasoning, and calls with their ids.

White space between text and a call, or around reasoning, belongs to the markers: it is held back until the next part is
known. A call needs a name and an object of arguments; anything else is not a call. Parts of a call that were emitted
before its end are never withdrawn.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Iterable
from dataclasses import field

from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import join_surrogates
from eaglelocal.core.tools import CallPart, ToolCall
from eaglelocal.text.answer_text import AnswerPiece

NewId = Callable[[], str]


@dataclass(slots=True)
class TrimmedText:
    """A text without white space at its ends, as far as its ends are known."""

    pending: str = ""  # added since the last `take`
    held_space: list[str] = field(default_factory=list)
    keeps_space: bool = True  # white space at this point is part of the text
    has_text: bool = False

    def add(self, text: str) -> None:
        text = text if self.keeps_space else text.lstrip()
        body = text.rstrip()
        if body:
            self.pending += "".join(self.held_space) + body
            self.held_space = []
            self.keeps_space = self.has_text = True
        if len(text) > len(body):
            self.held_space.append(text[len(body) :])

    def trim(self) -> None:
        """Drop white space before and after this point."""
        self.held_space, self.keeps_space = [], False

    def release(self) -> None:
        """Add the white space held back: nothing follows, so it was part of the text."""
        self.pending, self.held_space = self.pending + "".join(self.held_space), []

    def take(self) -> str:
        pending, self.pending = self.pending, ""
        return pending


@dataclass(slots=True)
class AnswerCollector:
    """A collector of one answer's output. `new_id` makes the id of a call that has none."""

    new_id: NewId
    parallel: bool = True  # else everything after the first call is ignored
    is_over: bool = False  # everything that follows is ignored
    text: TrimmedText = field(default_factory=TrimmedText)
    reasoning: TrimmedText = field(default_factory=lambda: TrimmedText(keeps_space=False))
    calls: list[CallPart] = field(default_factory=list)  # since the last `take_calls`
    unread: list[str] = field(default_factory=list)  # texts that only begin like a call: form and reason
    _num_calls: int = 0
    _text_after_call: str = ""  # not taken yet: a piece has its text before its calls

    @property
    def has_text(self) -> bool:
        """True if any text but white space was added."""
        return self.text.has_text or bool(self._text_after_call.strip())

    def add_text(self, text: str) -> None:
        if self.is_over:
            return
        if self.calls:
            self._text_after_call += text
        else:
            self.text.add(text)

    def add_reasoning(self, text: str) -> None:
        if not self.is_over:
            self.reasoning.add(text)

    def end_reasoning(self) -> None:
        self.reasoning.trim()
        self._trim_text()

    def release(self) -> None:
        """Add the white space held back: nothing follows."""
        self.text.release()
        self.reasoning.release()

    def take(self) -> AnswerPiece:
        """Return the output that was not taken yet."""
        return AnswerPiece(self.text.take(), None, self.reasoning.take(), self.take_calls(), self.is_over)

    def take_calls(self) -> tuple[CallPart, ...]:
        """Return the parts of calls that were not taken yet. The text so far must have been taken."""
        calls, self.calls = tuple(self.calls), []
        self._flush_text_after_call()
        return calls

    # ---- calls
    def add_calls(self, calls: Iterable[ToolCall]) -> None:
        """Add complete calls."""
        for call in calls:
            self.begin_call(call.name, call.id)
            self.add_arguments(call.arguments)
            self.end_call()

    def begin_call(self, name: str, call_id: str = "") -> None:
        """Begin a call, which cannot be withdrawn."""
        if self.is_over:
            return
        self._trim_text()
        self.calls.append(
            CallPart(self._num_calls, "", join_surrogates(call_id) or self.new_id(), join_surrogates(name))
        )
        self._num_calls += 1

    def add_arguments(self, arguments: str) -> None:
        """Add text to the arguments of the newest call."""
        if arguments and not self.is_over:
            self.calls.append(CallPart(self._num_calls - 1, join_surrogates(arguments)))

    def note_unread(self, label: str, problem: str) -> None:
        """Record why a text that looks like a call of this form is not one. `problem` must not contain its content."""
        note = f"{label}: {problem}"
        if problem and note not in self.unread and not self.is_over:
            self.unread.append(note)

    def end_call(self) -> None:
        self.is_over = self.is_over or not self.parallel

    def _trim_text(self) -> None:
        """Trim all text, including what follows a call."""
        self._flush_text_after_call()
        self.text.trim()

    def _flush_text_after_call(self) -> None:
        rest, self._text_after_call = self._text_after_call, ""
        self.text.add(rest)


def make_hex_id() -> str:
    return "call_" + secrets.token_hex(12)


def make_short_id() -> str:
    """Return an id of nine letters and digits: Mistral's templates refuse any other length."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
