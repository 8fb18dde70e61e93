"""The texts whose cells are kept on disk (`--cache-disk`): which prompts they serve, and which texts are worth adding.

Pure bookkeeping: tokens and names of files, no bytes. Lanes read it while the engine's thread changes it, so methods
replace the list instead of changing it in place.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from eaglelocal.core.common_prefix import common_prefix
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import Request

MIN_STORED_ROWS = 512  # fewer are read anew in about the time in which a file is found, read and checked
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
        """Return whether it has the other text's owner and adapters."""
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
        self._lock = threading.Lock()  # lanes drop what is gone, while the writer adds

    def __len__(self) -> int:
        return len(self._texts)

    def wants(self, text: StoredText, being_written: Iterable[StoredText] = ()) -> bool:
        """Return whether a text is worth storing: it is long, holds no image, and most of its end is not on disk."""
        tokens = text.tokens
        if len(tokens) < MIN_STORED_ROWS or min(tokens) < 0:
            return False
        known = [one.tokens for one in (*self._texts, *being_written) if one.is_like(text)]
        covered = max((common_prefix(one, tokens) for one in known), default=0)
        return len(tokens) - covered >= max(len(tokens) // GROWTH, MIN_STORED_ROWS // GROWTH)

    def best(self, request: Request, num_held: int, max_bytes: int, adapters: str = "") -> StoredText | None:
        """Return the text with these adapters of which a request reuses most; None if reading it does not pay.

        The smallest of several is taken. It pays if it saves well more than memory holds, and a fair part of the file.
        """
        fitting = [one for one in self._texts if one.num_bytes <= max_bytes and one.adapters == adapters]
        gains = [(one.num_reused(request), -one.num_bytes, one) for one in fitting]
        gain, _, found = max(gains, key=lambda each: each[:2], default=(0, 0, None))
        if found is None or gain - num_held < max(MIN_STORED_ROWS, len(found.tokens) // MAX_UNUSED):
            return None
        return found

    def add(self, text: StoredText) -> list[str]:
        """Add a text. Returns the names of those that it continues, which are dropped."""
        with self._lock:
            continued = [one for one in self._texts if one.is_like(text) and is_prefix(one.tokens, text.tokens)]
            self._texts = [one for one in self._texts if one not in continued] + [text]
        return [one.name for one in continued if one.name != text.name]

    def drop(self, name: str) -> None:
        with self._lock:
            self._texts = [one for one in self._texts if one.name != name]


def is_prefix(a: Sequence[int], b: Sequence[int]) -> bool:
    return common_prefix(a, b) == len(a)
