"""A matcher of stop strings in a stream of text, however it is cut into pieces.

It is an automaton over characters (Aho and Corasick, 1975): linear in the text, whatever the stop strings are. It holds
back only the longest end of the text that could begin a stop string. The stop string that ends first wins; if two end
together, the longer one.

    stops ("END",):  push("the E") -> "the "    push("N") -> ""    push("D.") -> "", hit "END"
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field

from eaglelocal.core.records import dataclass


@dataclass(slots=True, eq=False)
class _PrefixNode:
    """A prefix of some stop string."""

    depth: int
    children: dict[str, _PrefixNode] = field(default_factory=dict)
    fallback: _PrefixNode | None = None  # the longest proper suffix that is a prefix too; None at the root
    stop: str | None = None  # the longest stop string that ends here


class StopMatcher:
    """A matcher of one request's stop strings. After a hit it drops all further text."""

    __slots__ = ("_held", "_hit", "_node", "_root")

    def __init__(self, stops: Sequence[str]) -> None:
        self._root = self._node = _automaton(stops)
        self._held = ""
        self._hit: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Return (final text, the stop string that was hit or None)."""
        if self._hit is not None:
            return "", self._hit
        if not self._root.children:
            return text, None
        node = self._node
        for index, char in enumerate(text):
            node = _advance(node, char)
            if node.stop is not None:
                return self._stop(text[: index + 1], node.stop), node.stop
        return self._release(text, node), None

    def flush(self) -> str:
        """Return the text held back, which is not a stop string."""
        text, self._held, self._node = self._held, "", self._root
        return text

    def _stop(self, text: str, stop: str) -> str:
        final = (self._held + text)[: -len(stop)]
        self._held, self._hit = "", stop
        return final

    def _release(self, text: str, node: _PrefixNode) -> str:
        self._node = node
        if node.depth == 0 and not self._held:
            return text
        known = self._held + text
        cut = len(known) - node.depth
        self._held = known[cut:]
        return known[:cut]


def _advance(node: _PrefixNode, char: str) -> _PrefixNode:
    while (child := node.children.get(char)) is None:
        if node.fallback is None:
            return node
        node = node.fallback
    return child


def _automaton(stops: Sequence[str]) -> _PrefixNode:
    root = _PrefixNode(0)
    for stop in stops:
        _plant(root, stop)
    _link(root)
    return root


def _plant(root: _PrefixNode, stop: str) -> None:
    node = root
    for char in stop:
        node = node.children.setdefault(char, _PrefixNode(node.depth + 1))
    node.stop = stop or None  # an empty stop string never matches


def _link(root: _PrefixNode) -> None:
    """Set fallbacks breadth first: a node's fallback is shallower than itself, so it is already linked."""
    waiting = deque([root])
    while waiting:
        node = waiting.popleft()
        for char, child in node.children.items():
            child.fallback = root if node.fallback is None else _advance(node.fallback, char)
            child.stop = child.stop or child.fallback.stop
            waiting.append(child)
