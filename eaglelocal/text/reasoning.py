"""The thought before an answer, between <think> and </think> or what a family has instead.

A thought stands at the beginning, or was begun by the prompt. Behind it everything goes to the parser of calls;
a marker there is text. Does not know calls.
"""

from __future__ import annotations

from enum import Enum

from eaglelocal.text.gathering import Gathering
from eaglelocal.text.marks import Item, Mark
from eaglelocal.text.tool_calls import CallParser


class Place(Enum):
    BEFORE = "before"  # only white space so far
    THOUGHT = "thought"
    BEHIND = "behind"


class ThoughtParser:
    """Implements tool_calls.CallParser, before one that reads what is said."""

    def __init__(self, found: Gathering, said: CallParser, markers: tuple[str, str], *, in_thought: bool) -> None:
        self._found, self._said = found, said
        self._open, self._close = markers
        self._place = Place.THOUGHT if in_thought else Place.BEFORE
        self._space = ""

    def push(self, item: Item) -> None:
        match self._place:
            case Place.BEFORE:
                self._before(item)
            case Place.THOUGHT:
                self._think(item)
            case Place.BEHIND:
                self._said.push(self._plain(item))

    def finish(self) -> None:
        if self._place is Place.BEFORE and self._space:
            self._said.push(self._space)
        self._said.finish()

    def _before(self, item: Item) -> None:
        if isinstance(item, str) and not item.strip():
            self._space += item
        elif isinstance(item, Mark) and item.name == self._open:
            self._place = Place.THOUGHT
        else:
            self._place = Place.BEHIND
            if self._space:
                self._said.push(self._space)
            self._said.push(self._plain(item))

    def _think(self, item: Item) -> None:
        if isinstance(item, str):
            self._found.think(item)
        elif item.name == self._close:
            self._found.end_thought()
            self._place = Place.BEHIND
        elif item.name != self._open or self._found.thought.has_text:  # else begun once more
            self._found.think(item.shown)

    def _plain(self, item: Item) -> Item:
        return item.shown if isinstance(item, Mark) and item.name in (self._open, self._close) else item
