"""A parser of answers of several messages, each with a header that gives its kind (Muse, Solar; see also harmony.py).

     to=self<|message|>..<|eom|><|start|>assistant to=user<|message|>..
    <|think|>..<|end|><|begin|>assistant<|content|>..

The prompt has the beginning of the first header. A message to the user is text; one to any other recipient may hold
calls, which their own parser reads.
"""

from __future__ import annotations

import re
from enum import Enum

from eaglelocal.core.tools import Split, Turns
from eaglelocal.text.reasoning.markers import Item, Mark
from eaglelocal.text.reasoning.model_families import markers_of_turns
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector
from eaglelocal.text.tool_calls.call_parser import CallParser

MAX_HEADER_CHARS = 512
_RECIPIENT = re.compile(r"\s*+(t|to|to=\S*+)?\s*+")  # as far as it was read


class TurnState(Enum):
    """The parser's position in the answer: a header, or the kind of message."""

    HEADER = "header"
    THOUGHT = "thought"
    SAID = "said"
    CALLS = "calls"


class TurnParser:
    """A parser of messages in front of one for calls. Implements tool_calls.CallParser."""

    def __init__(self, found: AnswerCollector, calls: CallParser, turns: Turns, split: Split) -> None:
        self._found, self._calls = found, calls
        self._thought, self._said = turns.thought.strip(), turns.said.strip()
        self._own = frozenset(markers_of_turns(turns))
        self._begin = frozenset(opening_of(header) for header in (turns.thought, turns.said))
        self._place = TurnState.THOUGHT if split.in_thought else TurnState.SAID if split.in_said else TurnState.HEADER
        self._header = ""  # with its markers
        self._has_marks = split.in_thought or split.in_said
        # markers are control tokens, so one written as text is text
        self._has_tokens = any(name in self._own for _, name in split.marks)

    def push(self, item: Item) -> None:
        if isinstance(item, Mark) and self._is_own(item):
            self._mark(item)
        elif self._place is TurnState.HEADER and isinstance(item, str):
            self._head(item)
        else:
            self._body(item)

    def finish(self, *, is_cut: bool) -> None:
        if self._place is TurnState.HEADER and not self._has_marks and not is_cut:
            self._found.say(self._header)
        self._calls.finish(is_cut=is_cut)

    def _head(self, text: str) -> None:
        self._header += text
        is_too_long = len(self._header) > MAX_HEADER_CHARS
        if not self._has_marks and (
            is_too_long or not _RECIPIENT.fullmatch(self._header)
        ):  # a model that writes no headers after all
            self._place = TurnState.SAID
            self._found.say(self._header)
            self._header = ""

    def _is_own(self, mark: Mark) -> bool:
        return mark.name in self._own and not (mark.shown and self._has_tokens)

    def _mark(self, mark: Mark) -> None:
        self._has_marks = True
        self._has_tokens = self._has_tokens or not mark.shown
        if self._place is TurnState.THOUGHT:
            self._found.end_thought()
        if mark.name in self._begin:
            self._header += mark.name
            self._place = self._place_of(self._header)
        else:
            self._place, self._header = TurnState.HEADER, ""

    def _place_of(self, header: str) -> TurnState:
        if header.endswith(self._thought):
            return TurnState.THOUGHT
        return TurnState.SAID if header.endswith(self._said) or " to=" not in f" {header}" else TurnState.CALLS

    def _body(self, item: Item) -> None:
        text = item.shown if isinstance(item, Mark) else item
        if self._place is TurnState.THOUGHT:
            self._found.think(text)
        elif self._place is TurnState.SAID:
            self._found.say(text)
        else:
            self._place = TurnState.CALLS  # a marker of calls, without a header
            self._calls.push(item)


def opening_of(header: str) -> str:
    """Return the marker that ends a header, after which the message itself begins."""
    return header[header.rindex("<|") :]
