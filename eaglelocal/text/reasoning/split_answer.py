"""The text of one answer, split into reasoning, text and tool calls.

Tokens go through the detokenizer and the stop strings as in any answer, then through the parsers of the family.
Templates are not used here: `Split` has the family's markers.
"""

from __future__ import annotations

from collections.abc import Sequence

from eaglelocal.core.request import Request
from eaglelocal.core.tools import Notation, Split
from eaglelocal.text.detokenizer import Detokenizer, Pieces
from eaglelocal.text.reasoning.harmony_parser import HarmonyKind, HarmonyParser
from eaglelocal.text.reasoning.markers import MarkerReader, make_control_char
from eaglelocal.text.reasoning.message_parser import MessageParser
from eaglelocal.text.reasoning.model_families import has_text_markers, is_harmony, list_markers
from eaglelocal.text.reasoning.reasoning_parser import ReasoningParser, ReasoningTail
from eaglelocal.text.stops.answer_text import AnswerPiece, AnswerText
from eaglelocal.text.stops.stop_strings import StopMatcher
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector, NewId, make_hex_id, make_short_id
from eaglelocal.text.tool_calls.block_calls import BlockCalls
from eaglelocal.text.tool_calls.call_forms import list_bare_openings
from eaglelocal.text.tool_calls.call_parser import BareCalls, CallParser, NoCalls


class SplitText:
    """A splitter of text into reasoning, text and calls."""

    def __init__(self, split: Split, new_id: NewId) -> None:
        self._collector = AnswerCollector(new_id, split.parallel)
        self._parser = _make_parser(split, self._collector)
        # tags of calls whose marker a model may leave out; they are always text
        openings = list_bare_openings(split.form, split.tools) if split.form else ()
        self._reader = MarkerReader([*list_markers(split), *openings], as_text=has_text_markers(split))

    def push(self, text: str) -> AnswerPiece:
        for item in self._reader.push(text):
            self._parser.push(item)
        return self._collector.take()

    def finish(self, text: str, *, is_cut: bool = False) -> AnswerPiece:
        """Return the rest; `text` is the last. In this piece text comes after the calls."""
        for item in [*self._reader.push(text), *self._reader.flush(is_cut=is_cut)]:
            self._parser.push(item)
        self._parser.finish(is_cut=is_cut)
        calls = self._collector.take_calls()
        self._collector.release()
        return self._collector.take()._replace(calls=calls, unread=tuple(self._collector.unread))


class SplitAnswerText:
    """The answer's text as stops.answer_text.AnswerText, split.

    Tokens pushed after a piece that is `stopped` add nothing. Stop strings are searched in the text only; reasoning
    and arguments may contain them.
    """

    __slots__ = ("_chars", "_detokenizer", "_has_stopped", "_split", "_stops")

    def __init__(self, pieces: Pieces, stops: Sequence[str], split: Split, *, new_id: NewId) -> None:
        markers = list_markers(split)
        self._chars = {token: make_control_char(markers.index(name)) for token, name in split.control_tokens}
        self._detokenizer, self._stops = Detokenizer(pieces), StopMatcher(stops)
        self._split = SplitText(split, new_id)
        self._has_stopped = False

    def push(self, token: int) -> AnswerPiece:
        if self._has_stopped:
            return AnswerPiece("")
        char = self._chars.get(token)
        text = self._detokenizer.push(token) if char is None else self._detokenizer.flush() + char
        piece = self._split.push(text)
        final, stop = self._stops.push(piece.text)
        if stop is not None:
            self._has_stopped = True
            return AnswerPiece(final, stop, piece.reasoning)
        if piece.calls:
            final += self._stops.flush()  # a stop string does not continue after a call
        return piece._replace(text=final)

    def finish(self, *, is_cut: bool = False) -> AnswerPiece:
        """Return the output still held back at the end of the answer; calls first, then text.

        The first bytes of a character that the answer was cut in are no text.
        """
        if self._has_stopped:
            return AnswerPiece("")
        piece = self._split.finish("", is_cut=is_cut)
        before = self._stops.flush() if piece.calls else ""
        final, stop = self._stops.push(piece.text)
        return piece._replace(text=before + final + self._stops.flush(), stop=stop)


def make_answer_text(pieces: Pieces, request: Request) -> AnswerText | SplitAnswerText:
    split, stops = request.split, request.params.stop
    if split is None:
        return AnswerText(pieces, stops)
    is_short = split.form is not None and split.form.has_short_ids
    return SplitAnswerText(pieces, stops, split, new_id=make_short_id if is_short else make_hex_id)


def _make_parser(split: Split, collector: AnswerCollector) -> CallParser:
    if is_harmony(split):
        first = HarmonyKind.REASONING if split.in_reasoning else HarmonyKind.TEXT if split.in_text else None
        return HarmonyParser(collector, split.tools, first_kind=first)
    answer = _make_call_parser(split, collector)
    if split.form is not None and split.form.headers is not None:
        return MessageParser(collector, answer, split.form.headers, split)
    if split.reasoning_markers is None:
        return answer
    openings = (split.form.begin, *list_bare_openings(split.form, split.tools)) if split.form and split.tools else ()
    tail = ReasoningTail(openings, lambda own: _make_call_parser(split, own))
    return ReasoningParser(collector, answer, split, tail=tail, openings=openings)


def _make_call_parser(split: Split, collector: AnswerCollector) -> CallParser:
    if not split.tools or split.form is None:
        return NoCalls(collector)
    if split.form.notation is Notation.BARE:
        return BareCalls(collector, split.form, split.tools)
    return BlockCalls(collector, split.form, split.tools)
