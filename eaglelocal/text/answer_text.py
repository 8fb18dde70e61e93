"""The text of one answer: tokens in, text out, ended by a stop string if the request has any.

A streaming detokenizer and a matcher of stop strings. Sampling, limits and end-of-generation tokens are handled
elsewhere.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from eaglelocal.core.records import dataclass
from eaglelocal.core.tools import CallPart

if TYPE_CHECKING:  # ports imports numpy, which the process that renders templates does without
    from eaglelocal.core.ports import Vocabulary


class AnswerPiece(NamedTuple):
    """The output that one token added: reasoning first, then text, then parts of calls.

    `text` is empty while bytes or a possible stop string are held back.
    """

    text: str
    stop: str | None = None  # the stop string that ended the answer
    reasoning: str = ""
    calls: tuple[CallPart, ...] = ()
    is_over: bool = False  # a call ended the answer
    unread: tuple[str, ...] = ()  # at the end: texts that only began like a call: form and reason

    @property
    def stopped(self) -> bool:
        return self.is_over or self.stop is not None


class AnswerText:
    """The text of one request's answer. After a piece that is `stopped`, further tokens add nothing."""

    __slots__ = ("_detokenizer", "_stops")

    def __init__(self, pieces: Pieces, stops: Sequence[str] = ()) -> None:
        self._detokenizer = Detokenizer(pieces)
        self._stops = StopMatcher(stops)

    def push(self, token: int) -> AnswerPiece:
        return AnswerPiece(*self._stops.push(self._detokenizer.push(token)))

    def finish(self, *, is_cut: bool = False) -> AnswerPiece:
        """Return the text still held back at the end of the answer, cut off or not; empty after a stop string.

        If the answer ends inside a character, its first bytes are dropped.
        """
        return AnswerPiece(self._stops.flush())


# ---- detokenizer: tokens to text, one token at a time, without splitting characters
#
# Bytes that may still become a character are held back. Bytes that cannot are replaced by U+FFFD, exactly as
# `bytes.decode(errors="replace")` would do for the whole answer. If the answer ends inside a character, its first bytes
# are dropped, as llama-server and vLLM do in streams.
class Pieces(dict[int, str | bytes]):
    """The text of each token in a vocabulary: whole characters as str, anything else as bytes.

    One per model, shared by its requests.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._vocabulary = vocabulary

    def __missing__(self, token: int) -> str | bytes:
        raw = self._vocabulary.piece(token)
        try:
            self[token] = raw.decode()
        except UnicodeDecodeError:
            self[token] = raw
        return self[token]


class Detokenizer:
    """The text of one answer. `push` returns final text, `flush` the bytes of a character that was never completed.

    At the end of an answer nothing is flushed, because its last character is incomplete.
    """

    __slots__ = ("_decoder", "_pieces", "holds")

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.holds = False  # the decoder has bytes of an unfinished character

    def push(self, token: int) -> str:
        piece = self._pieces[token]
        if not self.holds and isinstance(piece, str):
            return piece
        text = self._decoder.decode(piece.encode() if isinstance(piece, str) else piece)
        self.holds = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        self.holds = False
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


# ---- stop strings: a matcher of them in a stream of text, however it is cut into pieces
#
# It is an automaton over characters (Aho and Corasick, 1975): linear in the text, whatever the stop strings are. It
# holds back only the longest end of the text that could begin a stop string. The stop string that ends first wins; if
# two end together, the longer one.
#
# stops ("END",):  push("the E") -> "the "    push("N") -> ""    push("D.") -> "", hit "END"
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
                final = (self._held + text[: index + 1])[: -len(node.stop)]
                self._held, self._hit = "", node.stop
                return final, node.stop
        self._node = node
        if node.depth == 0 and not self._held:
            return text, None
        known = self._held + text
        cut = len(known) - node.depth
        self._held = known[cut:]
        return known[:cut], None

    def flush(self) -> str:
        """Return the text held back, which is not a stop string."""
        text, self._held, self._node = self._held, "", self._root
        return text


def _advance(node: _PrefixNode, char: str) -> _PrefixNode:
    while (child := node.children.get(char)) is None:
        if node.fallback is None:
            return node
        node = node.fallback
    return child


def _automaton(stops: Sequence[str]) -> _PrefixNode:
    root = _PrefixNode(0)
    for stop in stops:
        node = root
        for char in stop:
            node = node.children.setdefault(char, _PrefixNode(node.depth + 1))
        node.stop = stop or None  # an empty stop string never matches
    waiting = deque([root])
    while waiting:  # breadth first: a node's fallback is shallower than itself, so it is already linked
        node = waiting.popleft()
        for char, child in node.children.items():
            child.fallback = root if node.fallback is None else _advance(node.fallback, char)
            child.stop = child.stop or child.fallback.stop
            waiting.append(child)
    return root
