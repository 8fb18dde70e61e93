"""A parser of the reasoning before an answer, between <think> and </think> or a family's own markers.

Reasoning is at the beginning, or was begun by the prompt. Everything after it goes to the parser of calls, and a
marker there is text, except for a closing one right before a call. If the model ends inside its reasoning, calls at the
end of that count, though they stay reasoning too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from eaglelocal.core.tools import Split, join_calls
from eaglelocal.text.reasoning.markers import Item, Marker
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector
from eaglelocal.text.tool_calls.call_parser import CallParser


class ReasoningState(Enum):
    """The parser's position in the answer."""

    BEFORE = "before"  # only white space so far
    REASONING = "reasoning"
    BETWEEN = "between"  # after the reasoning, only white space
    AFTER = "after"


class ReasoningTail:
    """A reader of calls at the end of reasoning that is never closed.

    They are parsed separately, because only the end of the answer shows that they count.
    """

    def __init__(self, openings: Sequence[str], make_parser: Callable[[AnswerCollector], CallParser]) -> None:
        self._openings, self._make_parser = openings, make_parser
        self._reading: tuple[AnswerCollector, CallParser] | None = None  # from the marker or tag that begins a call

    def push(self, item: Item) -> None:
        if self._reading is None and isinstance(item, Marker) and item.name in self._openings:
            collector = AnswerCollector(str)
            self._reading = collector, self._make_parser(collector)
        if self._reading is None:
            return
        collector, parser = self._reading
        parser.push(item)
        if collector.has_text:  # it was no call, or not at the end
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
    """A parser of reasoning in front of one for text and calls. Implements call_parser.CallParser.

    `split` has the markers; `openings` are the marker and the tags that may begin a call.
    """

    def __init__(
        self,
        collector: AnswerCollector,
        answer: CallParser,
        split: Split,
        *,
        tail: ReasoningTail,
        openings: Sequence[str],
    ) -> None:
        assert split.reasoning_markers is not None
        self._collector, self._answer, self._tail = collector, answer, tail
        self._begin, self._end = split.reasoning_markers
        self._text_begin, self._text_end = split.text_markers
        # where a call ends the answer, it ends the reasoning as well
        self._call_begin = split.form.begin if split.form and split.form.ends_turn and split.tools else ""
        self._call_openings = (*openings, *split.form.section) if split.form else ()
        self._stray_end = ""  # a closing marker after text, and white space: dropped if a call follows
        self._is_begin_quoted = False  # the text has an opening marker, so the closing one belongs to it
        self._state = (
            ReasoningState.REASONING
            if split.in_reasoning
            else ReasoningState.AFTER
            if split.in_text
            else ReasoningState.BEFORE
        )
        self._label = "" if split.in_reasoning else split.reasoning_label  # still to come
        self._label_text = ""  # text that may be the label
        self._is_framed = split.in_text or not self._text_begin  # the text has a closing marker
        self._space = ""

    def push(self, item: Item) -> None:
        match self._state:
            case ReasoningState.REASONING:
                self._push_reasoning(item)
            case ReasoningState.AFTER:
                self._push_answer(item)
            case _:
                self._push_before(item)

    def finish(self, *, is_cut: bool) -> None:
        self._end_label()
        if self._state is ReasoningState.REASONING and not is_cut:
            self._tail.emit_calls(self._collector)
        self._release_stray_end(before=None)
        if self._state is not ReasoningState.AFTER and self._space:
            self._answer.push(self._space)
        self._answer.finish(is_cut=is_cut)

    def _push_before(self, item: Item) -> None:
        if isinstance(item, str) and not item.strip():
            self._space += item
        elif isinstance(item, Marker) and item.name == self._begin and self._state is ReasoningState.BEFORE:
            self._state, self._space = ReasoningState.REASONING, ""
        elif isinstance(item, Marker) and item.name == self._end and self._state is ReasoningState.BEFORE:
            self._collector.end_reasoning()  # empty reasoning without an opening marker
            self._state, self._space = ReasoningState.BETWEEN, ""
        else:
            self._state = ReasoningState.AFTER
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
            self._state = ReasoningState.AFTER
            self._answer.push(item)
        elif item.name == self._end:
            self._end_reasoning()
            self._state = ReasoningState.BETWEEN
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
