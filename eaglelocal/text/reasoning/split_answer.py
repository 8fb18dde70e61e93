"""The text of one answer, split into reasoning, text and tool calls.

Tokens go through the detokenizer and the stop strings as in any answer, then through the parsers of the family.
Templates are not used here: `Split` has the family's markers.
"""

from __future__ import annotations

from collections.abc import Sequence

from eaglelocal.core.request import Request
from eaglelocal.core.tools import Notation, Split
from eaglelocal.text.detokenizer import Detokenizer, Pieces
from eaglelocal.text.reasoning.harmony import HarmonyKind, HarmonyParser
from eaglelocal.text.reasoning.markers import MarkReader, control_char
from eaglelocal.text.reasoning.model_families import is_harmony, is_spelled, list_markers
from eaglelocal.text.reasoning.think_parser import ThoughtParser, ThoughtTail
from eaglelocal.text.reasoning.turn_parser import TurnParser
from eaglelocal.text.stops.answer_text import AnswerPiece, AnswerText
from eaglelocal.text.stops.stop_strings import StopMatcher
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector, NewId, hex_id, short_id
from eaglelocal.text.tool_calls.block_calls import BlockCalls
from eaglelocal.text.tool_calls.call_forms import bare_openings
from eaglelocal.text.tool_calls.call_parser import BareCalls, CallParser, NoCalls


class SplitText:
    """A splitter of text into reasoning, text and calls."""

    def __init__(self, split: Split, new_id: NewId) -> None:
        self._found = AnswerCollector(new_id, split.parallel)
        self._parser = parser_of(split, self._found)
        self._reader = MarkReader([*list_markers(split), *openings_of(split)], spelled=is_spelled(split))

    def push(self, text: str) -> AnswerPiece:
        for item in self._reader.push(text):
            self._parser.push(item)
        found = self._found
        return AnswerPiece(found.text.take(), None, found.thought.take(), found.take_calls(), found.is_over)

    def finish(self, text: str, *, is_cut: bool = False) -> AnswerPiece:
        """Return the rest; `text` is the last. In this piece text comes after the calls."""
        for item in [*self._reader.push(text), *self._reader.flush(is_cut=is_cut)]:
            self._parser.push(item)
        self._parser.finish(is_cut=is_cut)
        found = self._found
        calls = found.take_calls()
        found.text.release()
        found.thought.release()
        return AnswerPiece(found.text.take(), None, found.thought.take(), calls, found.is_over)


class SplitAnswerText:
    """The answer's text as text.answer.AnswerText, split. After a piece that is `stopped`, further tokens add nothing.

    Stop strings are searched in the text only; reasoning and arguments may contain them.
    """

    __slots__ = ("_chars", "_detokenizer", "_has_stopped", "_split", "_stops")

    def __init__(self, pieces: Pieces, stops: Sequence[str], split: Split, *, new_id: NewId) -> None:
        markers = list_markers(split)
        self._chars = {token: control_char(markers.index(name)) for token, name in split.marks}
        self._detokenizer, self._stops = Detokenizer(pieces), StopMatcher(stops)
        self._split = SplitText(split, new_id)
        self._has_stopped = False

    def push(self, token: int) -> AnswerPiece:
        if self._has_stopped:
            return AnswerPiece("")
        char = self._chars.get(token)
        text = self._detokenizer.push(token) if char is None else self._detokenizer.flush() + char
        piece = self._split.push(text)
        said, stop = self._stops.push(piece.text)
        if stop is not None:
            self._has_stopped = True
            return AnswerPiece(said, stop, piece.reasoning)
        if piece.calls:
            said += self._stops.flush()  # a stop string does not continue after a call
        return piece._replace(text=said)

    def finish(self, *, is_cut: bool = False) -> AnswerPiece:
        """Return what was still held back at the end of the answer; calls first, then text."""
        if self._has_stopped:
            return AnswerPiece("")
        piece = self._split.finish(self._detokenizer.flush(), is_cut=is_cut)
        before = self._stops.flush() if piece.calls else ""
        said, stop = self._stops.push(piece.text)
        return piece._replace(text=before + said + self._stops.flush(), stop=stop)


def answer_text(pieces: Pieces, request: Request) -> AnswerText | SplitAnswerText:
    split, stops = request.split, request.params.stop
    if split is None:
        return AnswerText(pieces, stops)
    is_short = split.form is not None and split.form.has_short_ids
    return SplitAnswerText(pieces, stops, split, new_id=short_id if is_short else hex_id)


def parser_of(split: Split, found: AnswerCollector) -> CallParser:
    if is_harmony(split):
        begun = HarmonyKind.THOUGHT if split.in_thought else HarmonyKind.TEXT if split.in_said else None
        return HarmonyParser(found, split.tools, begun=begun)
    said = calls_parser(split, found)
    if split.form is not None and split.form.turns is not None:
        return TurnParser(found, said, split.form.turns, split)
    if split.thought is None:
        return said
    tail = ThoughtTail(split.form.begin if split.form else "", lambda aside: calls_parser(split, aside))
    return ThoughtParser(found, said, split, tail=tail)


def calls_parser(split: Split, found: AnswerCollector) -> CallParser:
    if not split.tools or split.form is None:
        return NoCalls(found)
    if split.form.notation is Notation.BARE:
        return BareCalls(found, split.form, split.tools)
    return BlockCalls(found, split.form, split.tools)


def openings_of(split: Split) -> tuple[str, ...]:
    """Return the tags of calls whose marker a model may leave out; they are always text."""
    return bare_openings(split.form, split.tools) if split.form else ()
