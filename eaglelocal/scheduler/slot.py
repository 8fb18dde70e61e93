"""The records of slots: what a slot's cache holds, and where a request starts that gets the slot."""

from __future__ import annotations

from dataclasses import field

from eaglelocal.core.adapters import NO_ADAPTERS, AdapterMix
from eaglelocal.core.records import dataclass
from eaglelocal.core.sequence import Sequence


@dataclass(slots=True)
class Slot:
    """A slot, and the text in its cache, which stays for reuse when its request is over."""

    index: int
    last_used: int  # number of the last admission to it
    tokens: list[int] = field(default_factory=list)
    owner: str = ""  # of its last request, and so of the text
    adapters: AdapterMix = NO_ADAPTERS  # with which the cells were computed
    is_seen: bool = True  # the drafters have seen exactly these rows
    has_images: bool = False  # in its last prompt
    is_private: bool = False  # its last request must leave nothing on disk
    prompt_end: int = 0  # position at which its next prompt may differ from the last one
    first_cut: int = 0  # position before which a window that was swapped in cannot be cut
    copy_key: int | None = None  # of the copy of its text in RAM that was made ahead of its eviction


@dataclass(frozen=True, slots=True)
class PrefixSource:
    """A slot whose cache begins as another slot's prompt does, or will once its own prompt is prefilled."""

    slot: int
    reader: Sequence | None  # the sequence that prefills it; None: the cells are there
    num_tokens: int

    @property
    def is_pending(self) -> bool:
        """Return whether the reader has not prefilled all of it yet."""
        return self.reader is not None and self.reader.num_cached < self.num_tokens


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """A slot for a request, and the cached prefix that it starts from.

    is_cut         cells of the slot from sequence.num_reused on are void
    num_unchanged  tokens of the slot that a drafter may rely on (num_reused and its margin)
    source         the slot from which to copy these cells; None: they are the slot's own
    is_waiting     the request gets no rows until `Scheduler.resume` returns what it starts from
    swapped_out    key under which to swap out the slot's old text, before all else; None: it is dropped
    swapped_in     key of the conversation to swap in; None: none
    """

    sequence: Sequence
    is_cut: bool
    num_unchanged: int
    source: int | None = None
    is_waiting: bool = False
    swapped_out: int | None = None
    swapped_in: int | None = None

    @property
    def swaps(self) -> bool:
        return self.swapped_out is not None or self.swapped_in is not None
