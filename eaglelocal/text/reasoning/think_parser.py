"""A parser of the reasoning before an answer, between <think> and </think> or a family's own markers.

It is at the beginning, or was begun by the prompt. Everything after it goes to the parser of calls, and a marker there
is text. If the model ends inside its reasoning, calls at the end of that count, though they stay reasoning too.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from eaglelocal.core.tools import Split, join_calls
from eaglelocal.text.reasoning.markers import Item, Mark
from eaglelocal.text.tool_calls.answer_collector import AnswerCollector
from eaglelocal.text.tool_calls.call_parser import CallParser, tell_all


class ThinkState(Enum):
    """The parser's position in the answer."""

    BEFORE = "before"  # only white space so far
    THOUGHT = "thought"
    BETWEEN = "between"  # after the thought, only white space
    BEHIND = "behind"


class ThoughtTail:
    """A reader of calls at the end of a thought that is never closed.

    They are parsed separately, because only the end of the answer shows that they count.
    """

    def __init__(self, begin: str, parser: Callable[[AnswerCollector], CallParser]) -> None:
        self._begin, self._parser = begin, parser
        self._reading: tuple[AnswerCollector, CallParser] | None = None  # from the marker that begins a call

    def push(self, item: Item) -> None:
        if self._reading is None and isinstance(item, Mark) and item.name == self._begin:
            found = AnswerCollector(str)
            self._reading = found, self._parser(found)
        if self._reading is None:
            return
        found, parser = self._reading
        parser.push(item)
        if found.has_text:  # it was no call, or not at the end
            self._reading = None

    def tell_calls(self, found: AnswerCollector) -> None:
        """Emit the calls: the answer has ended without being cut off."""
        if self._reading is None:
            return
        aside, parser = self._reading
        parser.finish(is_cut=False)
        calls = join_calls(aside.take_calls())
        if not aside.has_text:
            found.thought.trim()
            tell_all(found, calls)


class ThoughtParser:
    """A parser of reasoning in front of one for text and calls. Implements tool_calls.CallParser.

    `split` has the markers.
    """

    def __init__(self, found: AnswerCollector, said: CallParser, split: Split, *, tail: ThoughtTail) -> None:
        assert split.thought is not None
        self._found, self._said, self._tail = found, said, tail
        self._open, self._close = split.thought
        self._say, self._said_so = split.said
        # where a call ends the answer, it ends the thought as well
        self._call = split.form.begin if split.form and split.form.ends_turn and split.tools else ""
        self._place = (
            ThinkState.THOUGHT if split.in_thought else ThinkState.BEHIND if split.in_said else ThinkState.BEFORE
        )
        self._label = "" if split.in_thought else split.thought_label  # still to come
        self._begun = ""  # text that may be the label
        self._is_framed = split.in_said or not self._say  # the text has a closing marker
        self._space = ""

    def push(self, item: Item) -> None:
        match self._place:
            case ThinkState.THOUGHT:
                self._think(item)
            case ThinkState.BEHIND:
                self._behind(item)
            case _:
                self._before(item)

    def finish(self, *, is_cut: bool) -> None:
        self._end_label()
        if self._place is ThinkState.THOUGHT and not is_cut:
            self._tail.tell_calls(self._found)
        if self._place is not ThinkState.BEHIND and self._space:
            self._said.push(self._space)
        self._said.finish(is_cut=is_cut)

    def _before(self, item: Item) -> None:
        if isinstance(item, str) and not item.strip():
            self._space += item
        elif isinstance(item, Mark) and item.name == self._open and self._place is ThinkState.BEFORE:
            self._place, self._space = ThinkState.THOUGHT, ""
        elif isinstance(item, Mark) and item.name == self._close and self._place is ThinkState.BEFORE:
            self._found.end_thought()  # an empty thought without an opening marker
            self._place, self._space = ThinkState.BETWEEN, ""
        else:
            self._place = ThinkState.BEHIND
            self._begin_saying(item)

    def _begin_saying(self, item: Item) -> None:
        if isinstance(item, Mark) and item.name == self._say:
            self._is_framed = True
            return
        if self._space:
            self._said.push(self._space)
        self._behind(item)

    def _think(self, item: Item) -> None:
        self._tail.push(item)
        if isinstance(item, str):
            self._found.think(self._unlabelled(item))
        elif item.name == self._call:
            self._end_thought()
            self._place = ThinkState.BEHIND
            self._said.push(item)
        elif item.name == self._close:
            self._end_thought()
            self._place = ThinkState.BETWEEN
        elif item.name != self._open or self._found.thought.has_text:  # else a repeated opening marker
            self._found.think(item.shown)

    def _unlabelled(self, text: str) -> str:
        """Return the text without the word after the opening marker; empty while that may still come."""
        if not self._label:
            return text
        self._begun += text
        if self._label.startswith(self._begun):
            return ""
        label, self._label = self._label, ""
        rest = self._begun.removeprefix(label)
        return rest if rest[:1].isspace() else self._begun

    def _end_thought(self) -> None:
        self._end_label()
        self._found.end_thought()

    def _end_label(self) -> None:
        """Add text that was held as a possible label: the thought ends here."""
        if self._label and self._begun != self._label:
            self._found.think(self._begun)
        self._label = ""

    def _behind(self, item: Item) -> None:
        if isinstance(item, Mark) and item.name in (self._open, self._close):
            self._said.push(item.shown)
        elif not (isinstance(item, Mark) and self._is_framed and item.name == self._said_so):
            self._said.push(item)
