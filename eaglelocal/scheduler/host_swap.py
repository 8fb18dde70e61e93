"""Keep evicted conversations in RAM, and choose the one to swap in for a prompt.

    slot 0   [a conversation, 6 000 tokens]    another prompt needs the slot: the conversation is swapped out
                                               (or was copied ahead, while no prompt waited)
    slot 0   [a title for it, 900 tokens]      the conversation goes on: it is swapped in, and not prefilled again

Pure bookkeeping: tokens and sizes, no cells. The least recently used are dropped when memory is full.
Where a cache cannot be cut, a conversation resumes at its end, or at a checkpoint that was saved with it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from eaglelocal.core.adapters import NO_ADAPTERS, AdapterMix
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import Request, common_prefix

MIN_SWAP_ROWS = 64  # fewer rows are prefilled again rather than swapped
MIN_SWAP_ROWS_WITH_STATES = 512  # recurrent states, checkpoints included, are as large as hundreds of rows of cells


@dataclass(slots=True)
class SwappedText:
    """A text that was in a slot's cache.

    is_seen     its drafters have seen exactly these rows
    places      positions at which it can resume, besides its end; None: all
    is_in_slot  its slot still holds it: it was copied ahead of its eviction
    is_private  it must not be written to disk
    owner       no other owner's prompt may reuse more than a shared beginning
    adapters    with which its cells were computed
    """

    tokens: list[int]
    is_seen: bool
    places: tuple[int, ...] | None = None
    num_bytes: int = 0
    is_in_slot: bool = False
    is_private: bool = False
    owner: str = ""
    adapters: AdapterMix = NO_ADAPTERS

    def continues(self, other: SwappedText) -> bool:
        """Return whether the text starts with the other text of the same owner, or equals it."""
        is_alike = (self.owner, self.adapters) == (other.owner, other.adapters)
        return is_alike and common_prefix(self.tokens, other.tokens) == len(other.tokens)

    def match(self, request: Request, margin: int) -> tuple[int, int]:
        """Return how many tokens a request reuses, and how many of them its drafters may rely on.

        The second number is `margin` larger, unless the prompt resumes at the end.
        """
        common = min(request.count_reusable(self.tokens, self.owner), len(request.prompt) - 1)
        if common == len(self.tokens) and self.is_seen:
            return common, common
        most = max(common - margin, 0)
        reused = most if self.places is None else max((place for place in self.places if place <= most), default=0)
        return reused, reused + min(margin, common)


@dataclass(frozen=True, slots=True)
class SwapMatch:
    """A conversation that shares its beginning with a prompt; SwappedText.match explains the numbers."""

    key: int
    num_reused: int
    num_unchanged: int


class HostSwap:
    """The conversations in RAM.

    max_bytes    of RAM; 0: nothing is swapped
    min_rows     of a conversation that is worth swapping
    has_windows  layers have sliding windows: only the newest window is copied, so no cut can go before it
    """

    def __init__(self, max_bytes: int = 0, *, min_rows: int = MIN_SWAP_ROWS, has_windows: bool = False) -> None:
        self.max_bytes, self.min_rows, self.has_windows = max_bytes, min_rows, has_windows
        self._texts: dict[int, SwappedText] = {}  # the most recently used last
        self._num_keys = 0

    def __contains__(self, key: int) -> bool:
        return key in self._texts

    def __getitem__(self, key: int) -> SwappedText:
        return self._texts[key]

    @property
    def num_bytes(self) -> int:
        return sum(one.num_bytes for one in self._texts.values())

    def has_room(self, num_bytes: int, *, evicts: bool = False) -> bool:
        """Return whether num_bytes fit.

        evicts  count the room of everything that may be evicted
        """
        return num_bytes + (0 if evicts else self.num_bytes) <= self.max_bytes

    def is_worth_keeping(self, text: SwappedText, num_common: int, *, is_other: bool) -> bool:
        """Return whether to copy a slot's old text: the slot leaves that conversation, and RAM has no copy of it."""
        is_left = self.is_left(text.tokens, num_common, is_other=is_other)
        return is_left and not any(one.continues(text) for one in self._texts.values())

    def is_left(self, tokens: Sequence[int], num_common: int, *, is_other: bool) -> bool:
        """Return whether a slot's next text is another conversation, and the old one is long enough to keep.

        A text with images is prefilled again instead: a copy of the cells lacks part of their positions.

        num_common  tokens with which both texts begin
        is_other    the next text is another owner's, or starts from a copy found elsewhere: it continues another
                    conversation, however much both have in common
        """
        is_other = is_other or 2 * num_common < len(tokens)
        is_worth_it = self.max_bytes > 0 and len(tokens) - num_common >= self.min_rows
        return is_worth_it and is_other and min(tokens) >= 0

    def put(self, conversation: SwappedText) -> int:
        """Keep a conversation that is being swapped out, and return its key. Drop the texts that it continues."""
        for key, one in list(self._texts.items()):
            if conversation.continues(one):
                del self._texts[key]
        self._num_keys += 1
        self._texts[self._num_keys] = conversation
        return self._num_keys

    def settle(self, key: int, *, is_left: bool) -> None:
        """Record that a copied conversation's slot was taken: keep the copy if the slot leaves the conversation."""
        conversation = self._texts.pop(key)
        if is_left:
            conversation.is_in_slot = False
            self._texts[key] = conversation

    def make_room(self, key: int, num_bytes: int) -> bool:
        """Evict other conversations until this one's cells fit. Return False, and forget it, if they are too large.

        Copies of conversations that are still in a slot are evicted first.
        """
        if num_bytes > self.max_bytes:
            self.forget(key)
            return False
        self._texts[key].num_bytes = num_bytes
        others = [other for other in self._texts if other != key]
        for other in sorted(others, key=lambda other: not self._texts[other].is_in_slot):
            if self.num_bytes <= self.max_bytes:
                break
            self.forget(other)
        return True

    def num_held(self, request: Request) -> int:
        """Return how many prompt tokens a conversation in RAM would save. May be called from any thread."""
        held = [one for one in list(self._texts.values()) if one.adapters == request.adapters]
        return max((one.match(request, 0)[0] for one in held), default=0)

    def best(self, request: Request, *, margin: int = 0) -> SwapMatch | None:
        """Return the conversation with the request's adapters that saves it most rows; None if there is none.

        margin  rows of a reused prefix that are decoded again
        """
        fitting = [(key, one) for key, one in self._texts.items() if one.adapters == request.adapters]
        matches = [SwapMatch(key, *one.match(request, margin)) for key, one in fitting]
        return max(matches, key=lambda each: each.num_reused, default=None)

    def take(self, match: SwapMatch, owner: str = "") -> SwappedText:
        """Return the conversation to swap in; RAM keeps it as well if another owner's, or mostly not reused."""
        conversation = self._texts.pop(match.key)
        if conversation.owner != owner or 2 * match.num_reused < len(conversation.tokens):
            self._texts[match.key] = conversation
        return conversation

    def forget(self, key: int) -> None:
        self._texts.pop(key, None)


# ---- stored texts: the texts whose cells are kept on disk (`--cache-disk`): which prompts they serve, and which
# texts are worth adding
#
# Pure bookkeeping: tokens and names of files, no bytes. Input threads read it while the engine's thread changes it, so
# methods replace the list instead of changing it in place.
MIN_STORED_ROWS = 512  # fewer tokens are prefilled in about the time that it takes to find, read and check a file
MAX_UNUSED = 8  # a file is read for at least this part of its text
GROWTH = 4  # a text is stored again when it has grown by a quarter: each of its tokens is then written a few times


@dataclass(frozen=True, slots=True)
class StoredText:
    """A text on disk. places: positions at which it can resume, besides its end; None: all.

    owner     names whose it is: prompts of others may reuse no more of it than a shared beginning
    adapters  names the files and scales of the LoRA adapters with which its cells were computed
    """

    name: str
    tokens: Sequence[int]
    places: tuple[int, ...] | None = None
    num_bytes: int = 0
    owner: str = ""
    adapters: str = ""

    def is_like(self, other: StoredText) -> bool:
        """Return whether the other text has the same owner and adapters."""
        return (self.owner, self.adapters) == (other.owner, other.adapters)

    def num_reused(self, request: Request) -> int:
        """Return how many prompt tokens it would save. The request's owner is named as in `owner`."""
        common = min(request.count_reusable(self.tokens, self.owner), len(request.prompt) - 1)
        if self.places is None or common == len(self.tokens):
            return common
        return max((place for place in self.places if place <= common), default=0)


class StoredTexts:
    """The index of the folder."""

    def __init__(self) -> None:
        self._texts: list[StoredText] = []
        self._lock = threading.Lock()  # input threads drop files that are gone, while the writer adds files

    def __len__(self) -> int:
        return len(self._texts)

    def wants(self, text: StoredText, being_written: Iterable[StoredText] = ()) -> bool:
        """Return whether a text is worth storing: it is long, has no image, and most of its end is not on disk yet."""
        tokens = text.tokens
        if len(tokens) < MIN_STORED_ROWS or min(tokens) < 0:
            return False
        known = [one.tokens for one in (*self._texts, *being_written) if one.is_like(text)]
        covered = max((common_prefix(one, tokens) for one in known), default=0)
        return len(tokens) - covered >= max(len(tokens) // GROWTH, MIN_STORED_ROWS // GROWTH)

    def best(self, request: Request, num_held: int, max_bytes: int, adapters: str = "") -> StoredText | None:
        """Return the stored text that saves a request most; None if reading it does not pay.

        Among equals the smallest is taken. Reading pays if it saves well more than memory does, and uses a fair part of
        the file.
        """
        fitting = [one for one in self._texts if one.num_bytes <= max_bytes and one.adapters == adapters]
        gains = [(one.num_reused(request), -one.num_bytes, one) for one in fitting]
        gain, _, found = max(gains, key=lambda each: each[:2], default=(0, 0, None))
        if found is None or gain - num_held < max(MIN_STORED_ROWS, len(found.tokens) // MAX_UNUSED):
            return None
        return found

    def add(self, text: StoredText) -> list[str]:
        """Add a text. Return the names of the texts that it continues, which are dropped."""
        with self._lock:
            continued = [
                one
                for one in self._texts
                if one.is_like(text) and common_prefix(one.tokens, text.tokens) == len(one.tokens)
            ]
            self._texts = [one for one in self._texts if one not in continued] + [text]
        return [one.name for one in continued if one.name != text.name]

    def drop(self, name: str) -> None:
        with self._lock:
            self._texts = [one for one in self._texts if one.name != name]
