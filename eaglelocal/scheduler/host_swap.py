"""Keep conversations in main memory whose slot another request needed, and swap them in when they go on.

    slot 0   [a conversation, 6 000 tokens]    a request begins otherwise: it is swapped out, the slot is free
    slot 0   [a title for it, 900 tokens]      the conversation goes on: it is swapped in, and not read anew

Pure bookkeeping: tokens and sizes, no cells. The least recently used are dropped when memory is full.

Where a cache cannot be cut, a conversation goes on from its end, or from a place whose state was saved with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eaglelocal.scheduler.common_prefix import common_prefix

# Fewer rows are read again rather than swapped. On a CPU 64 rows are copied out and in for about 1 % of what reading
# them takes, and more rows for no more; a GPU, which reads so few at once, gains little, and loses as little.
MIN_SWAP_ROWS = 64
MIN_SWAP_ROWS_WITH_STATES = (
    512  # recurrent states are as large as some hundred rows of cells, and saved ones come along
)


@dataclass(slots=True)
class SwappedText:
    """The text that a slot held.

    is_seen  its drafters had seen exactly these rows
    places   positions from which it can go on, beside its end; None: all
    """

    tokens: list[int]
    is_seen: bool
    places: tuple[int, ...] | None = None
    num_bytes: int = 0

    def start(self, prompt: Sequence[int], margin: int) -> tuple[int, int]:
        """Return two numbers of tokens: those that a prompt reuses, and those that a drafter may rely on.

        The latter are `margin` more, unless the prompt goes on from the end.
        """
        common = min(common_prefix(self.tokens, prompt), len(prompt) - 1)
        if common == len(self.tokens) and self.is_seen:
            return common, common
        most = max(common - margin, 0)
        reused = most if self.places is None else max((place for place in self.places if place <= most), default=0)
        return reused, reused + min(margin, common)


@dataclass(frozen=True, slots=True)
class SwapMatch:
    """A conversation that begins as a prompt does. For the numbers see Conversation.start."""

    key: int
    num_reused: int
    num_unchanged: int


class HostSwap:
    """The conversations in main memory.

    most_bytes   of main memory; 0: nothing is swapped
    least_rows   of a conversation that is worth swapping
    of_windows   layers have sliding windows: only the newest window comes back, and no cut can go back before it
    """

    def __init__(self, most_bytes: int = 0, *, least_rows: int = MIN_SWAP_ROWS, of_windows: bool = False) -> None:
        self._most_bytes, self.least_rows, self.of_windows = most_bytes, least_rows, of_windows
        self._held: dict[int, SwappedText] = {}  # the most recently used last
        self._num_keys = 0

    def __contains__(self, key: int) -> bool:
        return key in self._held

    def __getitem__(self, key: int) -> SwappedText:
        return self._held[key]

    @property
    def num_bytes(self) -> int:
        return sum(one.num_bytes for one in self._held.values())

    def wants(self, tokens: Sequence[int], num_common: int, *, is_left: bool) -> bool:
        """Return whether to keep a slot's text: another conversation that may go on, and long enough.

        A text with images is read again instead: a copy of the cells lacks part of their positions.

        num_common  tokens of it with which the slot's next text begins
        is_left     that one goes on with what was found elsewhere, so both are alive, whatever they have in common
        """
        is_other = is_left or 2 * num_common < len(tokens)
        is_worth_it = self._most_bytes > 0 and len(tokens) - num_common >= self.least_rows
        return is_worth_it and is_other and min(tokens) >= 0 and not self._has(tokens)

    def _has(self, tokens: Sequence[int]) -> bool:
        """Return whether this text, or one that continues it, is kept."""
        return any(common_prefix(one.tokens, tokens) == len(tokens) for one in self._held.values())

    def put(self, conversation: SwappedText) -> int:
        """Keep a conversation that is being swapped out; return its key. Kept texts that it continues are dropped."""
        tokens = conversation.tokens
        for key, one in list(self._held.items()):
            if common_prefix(tokens, one.tokens) == len(one.tokens):
                del self._held[key]
        self._num_keys += 1
        self._held[self._num_keys] = conversation
        return self._num_keys

    def make_room(self, key: int, num_bytes: int) -> bool:
        """Make room for the conversation's cells. Return False, and forget it, if they are too large."""
        if num_bytes > self._most_bytes:
            self.forget(key)
            return False
        self._held[key].num_bytes = num_bytes
        for other in [other for other in self._held if other != key]:
            if self.num_bytes <= self._most_bytes:
                break
            self.forget(other)
        return True

    def best(self, prompt: Sequence[int], *, margin: int = 0) -> SwapMatch | None:
        """Return the conversation that saves most of a prompt, or None; a prompt's last token is decoded in any case.

        margin  rows of a reused prefix that are decoded again
        """
        found = [SwapMatch(key, *one.start(prompt, margin)) for key, one in self._held.items()]
        return max(found, key=lambda each: each.num_reused, default=None)

    def take(self, found: SwapMatch) -> SwappedText:
        """Return the conversation to swap in. It also stays kept if less than half of it is reused."""
        conversation = self._held.pop(found.key)
        if 2 * found.num_reused < len(conversation.tokens):
            self._held[found.key] = conversation
        return conversation

    def forget(self, key: int) -> None:
        self._held.pop(key, None)
