"""The thought before an answer, between <think> and </think> or what a family has instead.

A thought stands at the beginning, or was begun by the prompt. Behind it everything goes to the parser of calls;
a marker there is text. Does not know calls.
"""

from __future__ import annotations

from enum import Enum

from eaglelocal.core.tools import Split
from eaglelocal.text.gathering import Gathering
from eaglelocal.text.marks import Item, Mark
from eaglelocal.text.tool_calls import CallParser


class Place(Enum):
    BEFORE = "before"  # only white space so far
    THOUGHT = "thought"
    BETWEEN = "between"  # only white space behind it
    BEHIND = "behind"


class ThoughtParser:
    """Implements tool_calls.CallParser, before one that reads what is said. `split` has the markers of thoughts."""

    def __init__(self, found: Gathering, said: CallParser, split: Split) -> None:
        assert split.thought is not None
        self._found, self._said = found, said
        self._open, self._close = split.thought
        self._say, self._said_so = split.said
        self._place = Place.THOUGHT if split.in_thought else Place.BEHIND if split.in_said else Place.BEFORE
        self._label = "" if split.in_thought else split.thought_label  # still to come
        self._begun = ""  # what may be the label
        self._is_framed = split.in_said or not self._say  # what is said has a closing marker
        self._space = ""

    def push(self, item: Item) -> None:
        match self._place:
            case Place.THOUGHT:
                self._think(item)
            case Place.BEHIND:
                self._behind(item)
            case _:
                self._before(item)

    def finish(self) -> None:
        self._end_label()
        if self._place is not Place.BEHIND and self._space:
            self._said.push(self._space)
        self._said.finish()

    def _before(self, item: Item) -> None:
        if isinstance(item, str) and not item.strip():
            self._space += item
        elif isinstance(item, Mark) and item.name == self._open and self._place is Place.BEFORE:
            self._place, self._space = Place.THOUGHT, ""
        elif isinstance(item, Mark) and item.name == self._close and self._place is Place.BEFORE:
            self._found.end_thought()  # an empty one, begun by nobody
            self._place, self._space = Place.BETWEEN, ""
        else:
            self._place = Place.BEHIND
            self._begin_saying(item)

    def _begin_saying(self, item: Item) -> None:
        if isinstance(item, Mark) and item.name == self._say:
            self._is_framed = True
            return
        if self._space:
            self._said.push(self._space)
        self._behind(item)

    def _think(self, item: Item) -> None:
        if isinstance(item, str):
            self._found.think(self._unlabelled(item))
        elif item.name == self._close:
            self._end_label()
            self._found.end_thought()
            self._place = Place.BETWEEN
        elif item.name != self._open or self._found.thought.has_text:  # else begun once more
            self._found.think(item.shown)

    def _unlabelled(self, text: str) -> str:
        """Without the word behind the opening marker, and nothing while that may still come."""
        if not self._label:
            return text
        self._begun += text
        if self._label.startswith(self._begun):
            return ""
        label, self._label = self._label, ""
        rest = self._begun.removeprefix(label)
        return rest if rest[:1].isspace() else self._begun

    def _end_label(self) -> None:
        """The thought ends here."""
        if self._label and self._begun != self._label:
            self._found.think(self._begun)
        self._label = ""

    def _behind(self, item: Item) -> None:
        if isinstance(item, Mark) and item.name in (self._open, self._close):
            self._said.push(item.shown)
        elif not (isinstance(item, Mark) and self._is_framed and item.name == self._said_so):
            self._said.push(item)
