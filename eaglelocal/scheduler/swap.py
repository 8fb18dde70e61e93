"""Conversations whose slot somebody else needed: swapped out to main memory, and in again when they go on.

    slot 0   [a conversation, 6 000 tokens]    a request begins otherwise: it is swapped out, the slot is free
    slot 0   [a title for it, 900 tokens]      the conversation goes on: it is swapped in, and not read anew

Pure bookkeeping: tokens and sizes, no cells. What was not used for longest goes when there is room for no more.

Where a cache cannot be cut anywhere, a conversation goes on from its end, or from a place whose state came along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eaglelocal.scheduler.prefixes import common_prefix

# To be read anew. On a processor 64 rows of 300 M, or of 1 B, are copied out and in for 1 % of what it takes to read
# them, and more rows for no more; a graphics card, which reads such a few at once, gains little, and loses as little.
LEAST_ROWS = 64
LEAST_ROWS_OF_STATES = 512  # recurrent states take as much as some hundred rows of cells, and more are saved with them


@dataclass(slots=True)
class Conversation:
    """What a slot held.

    is_seen  its drafters had seen just these rows
    places   positions from which it goes on, beside its end; None: all
    """

    tokens: list[int]
    is_seen: bool
    places: tuple[int, ...] | None = None
    num_bytes: int = 0

    def start(self, prompt: Sequence[int], margin: int) -> tuple[int, int]:
        """Tokens that a prompt reuses, and those that a drafter may rely on: `margin` more, unless it goes on."""
        common = min(common_prefix(self.tokens, prompt), len(prompt) - 1)
        if common == len(self.tokens) and self.is_seen:
            return common, common
        most = max(common - margin, 0)
        reused = most if self.places is None else max((place for place in self.places if place <= most), default=0)
        return reused, reused + min(margin, common)


@dataclass(frozen=True, slots=True)
class Found:
    """A conversation that begins as a prompt does. The numbers: see Conversation.start."""

    key: int
    num_reused: int
    num_unchanged: int


class Swap:
    """Conversations in main memory.

    most_bytes   of main memory; 0: nothing is swapped
    least_rows   of a conversation that is worth it
    of_windows   of layers with a window what comes back is the newest window: there is no going back behind it
    """

    def __init__(self, most_bytes: int = 0, *, least_rows: int = LEAST_ROWS, of_windows: bool = False) -> None:
        self._most_bytes, self.least_rows, self.of_windows = most_bytes, least_rows, of_windows
        self._held: dict[int, Conversation] = {}  # what was used last stands last
        self._num_keys = 0

    def __contains__(self, key: int) -> bool:
        return key in self._held

    def __getitem__(self, key: int) -> Conversation:
        return self._held[key]

    @property
    def num_bytes(self) -> int:
        return sum(one.num_bytes for one in self._held.values())

    def wants(self, tokens: Sequence[int], num_common: int, *, is_left: bool) -> bool:
        """Is a slot's text, as whose first tokens the slot's new one begins, another conversation that may go on?

        What has images is read anew: of their positions a copy of the cells knows too little.

        is_left  the new one goes on with what was found elsewhere, so that both are alive, whatever they have in common
        """
        is_other = is_left or 2 * num_common < len(tokens)
        is_worth_it = self._most_bytes > 0 and len(tokens) - num_common >= self.least_rows
        return is_worth_it and is_other and min(tokens) >= 0 and not self._has(tokens)

    def _has(self, tokens: Sequence[int]) -> bool:
        """It, or how it went on."""
        return any(common_prefix(one.tokens, tokens) == len(tokens) for one in self._held.values())

    def put(self, conversation: Conversation) -> int:
        """A key for what is being swapped out; what it goes on with is forgotten."""
        tokens = conversation.tokens
        for key, one in list(self._held.items()):
            if common_prefix(tokens, one.tokens) == len(one.tokens):
                del self._held[key]
        self._num_keys += 1
        self._held[self._num_keys] = conversation
        return self._num_keys

    def make_room(self, key: int, num_bytes: int) -> bool:
        """For its cells; False where there can be none, and it is forgotten."""
        if num_bytes > self._most_bytes:
            self.forget(key)
            return False
        self._held[key].num_bytes = num_bytes
        for other in [other for other in self._held if other != key]:
            if self.num_bytes <= self._most_bytes:
                break
            self.forget(other)
        return True

    def best(self, prompt: Sequence[int], *, margin: int = 0) -> Found | None:
        """The conversation that spares most of a prompt; its last token is decoded in any case.

        margin  rows of a reused prefix that are decoded again
        """
        found = [Found(key, *one.start(prompt, margin)) for key, one in self._held.items()]
        return max(found, key=lambda each: each.num_reused, default=None)

    def take(self, found: Found) -> Conversation:
        """It is swapped in. It stays here too where more of it is left behind than goes on."""
        conversation = self._held.pop(found.key)
        if 2 * found.num_reused < len(conversation.tokens):
            self._held[found.key] = conversation
        return conversation

    def forget(self, key: int) -> None:
        self._held.pop(key, None)
