"""The text of one answer, split into reasoning, text and tool calls.

Tokens go through the detokenizer and the stop strings as in any answer, then through the parsers of the family.
Templates are not used here: `Split` has the family's markers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from eaglelocal.core.request import Request
from eaglelocal.core.tools import MessageHeaders, Notation, Split, join_calls
from eaglelocal.text.answer_text import AnswerPiece, AnswerText, Detokenizer, Pieces, StopMatcher
from eaglelocal.text.reasoning.harmony_parser import HarmonyParser
from eaglelocal.text.reasoning.markers import Item, Marker, MarkerReader, make_control_char
from eaglelocal.text.reasoning.model_families import is_harmony, list_header_markers, list_markers
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector, NewId, make_hex_id, make_short_id
from eaglelocal.text.tool_calls.block_calls import BlockCalls
from eaglelocal.text.tool_calls.call_forms import list_bare_openings
from eaglelocal.text.tool_calls.call_parser import BareCalls, CallParser, NoCalls


class SplitText:
    """A splitter of text into reasoning, text and calls."""

    def __init__(self, split: Split, new_id: NewId) -> None:
        self._collector = AnswerCollector(new_id, split.parallel)
        self._parser = _make_parser(split, self._collector)
        # tags of calls whose marker a model may leave out; the tags are always text
        openings = list_bare_openings(split.form, split.tools) if split.form else ()
        # harmony's markers are always control tokens
        self._reader = MarkerReader([*list_markers(split), *openings], as_text=not is_harmony(split))

    @property
    def in_reasoning(self) -> bool:
        parser = self._parser
        return isinstance(parser, HarmonyParser | MessageParser | ReasoningParser) and parser.in_reasoning

    @property
    def is_past_reasoning(self) -> bool:
        return isinstance(self._parser, ReasoningParser) and self._parser.is_past_reasoning

    @property
    def holds(self) -> bool:
        return self._reader.holds

    def push(self, text: str) -> AnswerPiece:
        for item in self._reader.push(text):
            self._parser.push(item)
        return self._collector.take()

    def finish(self, text: str, *, is_cut: bool = False) -> AnswerPiece:
        """Return the rest of the output; `text` is the last input. In this piece text comes after the calls."""
        for item in [*self._reader.push(text), *self._reader.flush(is_cut=is_cut)]:
            self._parser.push(item)
        self._parser.finish(is_cut=is_cut)
        calls = self._collector.take_calls()
        self._collector.release()
        return self._collector.take()._replace(calls=calls, unread=tuple(self._collector.unread))


class SplitAnswerText:
    """The answer's text as answer_text.AnswerText, split.

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

    @property
    def in_reasoning(self) -> bool:
        """True after a token within the reasoning."""
        return self._split.in_reasoning

    @property
    def is_past_reasoning(self) -> bool:
        """True if no reasoning can come any more."""
        return self._split.is_past_reasoning

    @property
    def is_at_rest(self) -> bool:
        """True unless the last token may have begun a character or a marker that the next one completes."""
        return not self._detokenizer.holds and not self._split.holds

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

        If the answer ends inside a character, its first bytes are dropped.
        """
        if self._has_stopped:
            return AnswerPiece("")
        piece = self._split.finish("", is_cut=is_cut)
        before = self._stops.flush() if piece.calls else ""
        final, stop = self._stops.push(piece.text)
        return piece._replace(text=before + final + self._stops.flush(), stop=stop)


def make_answer_text(pieces: Pieces, request: Request) -> AnswerText | SplitAnswerText:
    split, stops = request.split, request.params.stop
    return AnswerText(pieces, stops) if split is None else make_split_text(pieces, stops, split)


def make_split_text(pieces: Pieces, stops: Sequence[str], split: Split) -> SplitAnswerText:
    is_short = split.form is not None and split.form.has_short_ids
    return SplitAnswerText(pieces, stops, split, new_id=make_short_id if is_short else make_hex_id)


def _make_parser(split: Split, collector: AnswerCollector) -> CallParser:
    if is_harmony(split):
        return HarmonyParser(collector, split)
    answer = _make_call_parser(split, collector)
    if split.form is not None and split.form.headers is not None:
        return MessageParser(collector, answer, split.form.headers, split)
    if split.reasoning_markers is None:
        return answer
    return ReasoningParser(collector, answer, split)


def _make_call_parser(split: Split, collector: AnswerCollector) -> CallParser:
    if not split.tools or split.form is None:
        return NoCalls(collector)
    if split.form.notation is Notation.BARE:
        return BareCalls(collector, split.form, split.tools)
    return BlockCalls(collector, split.form, split.tools)


# ---- message parser: a parser of answers of several messages, each with a header that gives its kind: Muse, Solar
#
# to=self<|message|>..<|eom|><|start|>assistant to=user<|message|>.. <|think|>..<|end|><|begin|>assistant<|content|>..
#
# The prompt has the beginning of the first header. A message to the user is text; one to any other recipient may hold
# calls, which their own parser reads. OpenAI's harmony format has its own parser (harmony_parser.py).
MAX_HEADER_CHARS = 512
_RECIPIENT = re.compile(r"\s*+(t|to|to=\S*+)?\s*+")  # the part read so far


MessageState = Literal["header", "reasoning", "text", "calls"]  # in a header, or in a message of this kind


class MessageParser:
    """A parser of messages in front of one for calls. Implements call_parser.CallParser."""

    def __init__(self, collector: AnswerCollector, calls: CallParser, headers: MessageHeaders, split: Split) -> None:
        self._collector, self._calls = collector, calls
        self._reasoning, self._text = headers.reasoning.strip(), headers.text.strip()
        self._markers = frozenset(list_header_markers(headers))
        # the markers after which a message itself begins
        self._header_ends = frozenset(header[header.rindex("<|") :] for header in (headers.reasoning, headers.text))
        begun: MessageState = "text" if split.in_text else "header"
        self._state: MessageState = "reasoning" if split.in_reasoning else begun
        self._header = ""  # with its markers
        self._has_markers = split.in_reasoning or split.in_text
        # markers are control tokens, so one written as text is text
        self._has_tokens = any(name in self._markers for _, name in split.control_tokens)

    @property
    def in_reasoning(self) -> bool:
        return self._state == "reasoning"

    def push(self, item: Item) -> None:
        if isinstance(item, Marker) and item.name in self._markers and not (item.text and self._has_tokens):
            self._push_marker(item)
        elif self._state == "header" and isinstance(item, str):
            self._push_header(item)
        else:
            self._push_body(item)

    def finish(self, *, is_cut: bool) -> None:
        if self._state == "header" and not self._has_markers and not is_cut:
            self._collector.add_text(self._header)
        self._calls.finish(is_cut=is_cut)

    def _push_header(self, text: str) -> None:
        self._header += text
        is_too_long = len(self._header) > MAX_HEADER_CHARS
        if not self._has_markers and (
            is_too_long or not _RECIPIENT.fullmatch(self._header)
        ):  # the model writes no headers
            self._state = "text"
            self._collector.add_text(self._header)
            self._header = ""

    def _push_marker(self, marker: Marker) -> None:
        self._has_markers = True
        self._has_tokens = self._has_tokens or not marker.text
        if self._state == "reasoning":
            self._collector.end_reasoning()
        if marker.name in self._header_ends:
            self._header += marker.name
            self._state = self._classify(self._header)
        else:
            self._state, self._header = "header", ""

    def _classify(self, header: str) -> MessageState:
        if header.endswith(self._reasoning):
            return "reasoning"
        is_text = header.endswith(self._text) or " to=" not in f" {header}"
        return "text" if is_text else "calls"

    def _push_body(self, item: Item) -> None:
        text = item.text if isinstance(item, Marker) else item
        if self._state == "reasoning":
            self._collector.add_reasoning(text)
        elif self._state == "text":
            self._collector.add_text(text)
        else:
            self._state = "calls"  # a marker of calls, without a header
            self._calls.push(item)


# ---- reasoning parser: a parser of the reasoning before an answer, between <think> and </think> or a family's own
# markers
#
# Reasoning is at the beginning, or was begun by the prompt. Everything after it goes to the parser of calls, and a
# marker there is text, except for a closing one right before a call. If the model ends inside its reasoning, calls at
# the end of it count as calls, and stay in the reasoning too.
ReasoningState = Literal["before", "reasoning", "between", "after"]  # before, between: only white space so far


class ReasoningTail:
    """A reader of calls at the end of reasoning that is never closed.

    The calls are parsed separately, because only the end of the answer shows that they count.
    """

    def __init__(self, openings: Sequence[str], split: Split) -> None:
        self._openings, self._split = openings, split
        self._reading: tuple[AnswerCollector, CallParser] | None = None  # from the marker or tag that begins a call

    def push(self, item: Item) -> None:
        if self._reading is None and isinstance(item, Marker) and item.name in self._openings:
            collector = AnswerCollector(str)
            self._reading = collector, _make_call_parser(self._split, collector)
        if self._reading is None:
            return
        collector, parser = self._reading
        parser.push(item)
        if collector.has_text:  # it was not a call, or not at the end
            self._reading = None

    def emit_calls(self, collector: AnswerCollector) -> None:
        """Emit the calls: the answer has ended without being cut off."""
        if self._reading is None:
            return
        own, parser = self._reading
        parser.finish(is_cut=False)
        calls = join_calls(own.take_calls())
        if not own.has_text:
            collector.reasoning.trim()
            collector.add_calls(calls)


class ReasoningParser:
    """A parser of reasoning in front of one for text and calls. Implements call_parser.CallParser."""

    def __init__(self, collector: AnswerCollector, answer: CallParser, split: Split) -> None:
        assert split.reasoning_markers is not None
        form = split.form
        openings = (form.begin, *list_bare_openings(form, split.tools)) if form and split.tools else ()
        self._collector, self._answer, self._tail = collector, answer, ReasoningTail(openings, split)
        self._begin, self._end = split.reasoning_markers
        self._text_begin, self._text_end = split.text_markers
        # where a call ends the answer, it ends the reasoning as well
        self._call_begin = form.begin if form and form.ends_turn and split.tools else ""
        self._call_openings = (*openings, *form.section) if form else ()
        self._stray_end = ""  # a closing marker after text, and white space: dropped if a call follows
        self._is_begin_quoted = False  # the text has an opening marker, so the closing one belongs to it
        begun: ReasoningState = "after" if split.in_text else "before"
        self._state: ReasoningState = "reasoning" if split.in_reasoning else begun
        self._label = "" if split.in_reasoning else split.reasoning_label  # still to come
        self._label_text = ""  # text that may be the label
        self._is_framed = split.in_text or not self._text_begin  # the text has a closing marker
        self._space = ""

    @property
    def in_reasoning(self) -> bool:
        return self._state == "reasoning"

    @property
    def is_past_reasoning(self) -> bool:
        return self._state == "after"

    def push(self, item: Item) -> None:
        match self._state:
            case "reasoning":
                self._push_reasoning(item)
            case "after":
                self._push_answer(item)
            case _:
                self._push_before(item)

    def finish(self, *, is_cut: bool) -> None:
        self._end_label()
        if self._state == "reasoning" and not is_cut:
            self._tail.emit_calls(self._collector)
        self._release_stray_end(before=None)
        if self._state != "after" and self._space:
            self._answer.push(self._space)
        self._answer.finish(is_cut=is_cut)

    def _push_before(self, item: Item) -> None:
        if isinstance(item, str) and not item.strip():
            self._space += item
        elif isinstance(item, Marker) and item.name == self._begin and self._state == "before":
            self._state, self._space = "reasoning", ""
        elif isinstance(item, Marker) and item.name == self._end and self._state == "before":
            self._collector.end_reasoning()  # empty reasoning without an opening marker
            self._state, self._space = "between", ""
        else:
            self._state = "after"
            self._begin_answer(item)

    def _begin_answer(self, item: Item) -> None:
        if isinstance(item, Marker) and item.name == self._text_begin:
            self._is_framed = True
            return
        if self._space:
            self._answer.push(self._space)
        self._push_answer(item)

    def _push_reasoning(self, item: Item) -> None:
        self._tail.push(item)
        if isinstance(item, str):
            self._collector.add_reasoning(self._strip_label(item))
        elif item.name == self._call_begin:
            self._end_reasoning()
            self._state = "after"
            self._answer.push(item)
        elif item.name == self._end:
            self._end_reasoning()
            self._state = "between"
        elif item.name != self._begin or self._collector.reasoning.has_text:  # else a repeated opening marker
            self._collector.add_reasoning(item.text)

    def _strip_label(self, text: str) -> str:
        """Return the text without the word after the opening marker; empty while that may still come."""
        if not self._label:
            return text
        self._label_text += text
        if self._label.startswith(self._label_text):
            return ""
        label, self._label = self._label, ""
        rest = self._label_text.removeprefix(label)
        return rest if rest[:1].isspace() else self._label_text

    def _end_reasoning(self) -> None:
        self._end_label()
        self._collector.end_reasoning()

    def _end_label(self) -> None:
        """Add the text held back as a possible label: the reasoning ends here."""
        if self._label and self._label_text != self._label:
            self._collector.add_reasoning(self._label_text)
        self._label = ""

    def _push_answer(self, item: Item) -> None:
        """Pass an item on. A marker of reasoning is text here, except for a closing one right before a call."""
        if self._stray_end and isinstance(item, str) and not item.strip():
            self._stray_end += item
            return
        self._release_stray_end(before=item)
        match item:
            case Marker(name=self._end) if not self._is_begin_quoted:
                self._stray_end = item.text
            case Marker(name=self._begin | self._end):
                self._is_begin_quoted = item.name == self._begin
                self._answer.push(item.text)
            case Marker(name=self._text_end) if self._is_framed:
                pass
            case _:
                self._answer.push(item)

    def _release_stray_end(self, *, before: Item | None) -> None:
        held, self._stray_end = self._stray_end, ""
        is_before_call = isinstance(before, Marker) and before.name in self._call_openings
        if held and not is_before_call:
            self._answer.push(held)
