"""The records of slots: what a slot's cache holds, and where a request starts that gets the slot."""

from __future__ import annotations

from collections.abc import Iterable
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
    """A slot whose cache starts like another slot's prompt, or will do so once its own prompt is prefilled."""

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


# ---- checkpoints: track checkpoints: positions in prompts whose recurrent state was saved, so that a later prompt
# can resume there
#
# A conversation rarely goes on exactly after its last answer: reasoning is left out when history is rendered, the
# last question is edited, an answer is regenerated. KV cells can be cut wherever that begins. Of recurrent state
# there is only the newest, so without a saved one the whole conversation would be prefilled again each time.
#
# prompt 1 [system, question] saved shortly before its end, ahead of what a template puts there prompt 2 [system,
# question, answer without its reasoning, question] resumes there
#
# Pure bookkeeping: positions, no states. The least recently used is dropped when `max_states` are saved.
BEFORE_END = 8  # last tokens of a prompt that may differ next time, such as those that open an answer
MIN_GAIN_ROWS = 128  # fewer rows are prefilled again rather than saved


class Checkpoints:
    """The positions of saved states; `max_states` in all slots together."""

    def __init__(self, max_states: int, *, min_gain_rows: int = MIN_GAIN_ROWS, before_end: int = BEFORE_END) -> None:
        self._max_states, self._min_gain_rows, self._before_end = max_states, min_gain_rows, before_end
        self._places: list[tuple[int, int]] = []  # (slot, position), the most recently used last

    def __contains__(self, place: tuple[int, int]) -> bool:
        return place in self._places

    def position_to_save(self, sequence: Sequence) -> int | None:
        """Return the position of the prompt at which to save the state; None if that gains too little."""
        position = sequence.align_after_image(sequence.num_prompt - self._before_end)
        if not self._max_states:
            return None
        gain = sequence.rows_before(position) - sequence.rows_before(self.best(sequence.slot, position))
        return position if gain >= self._min_gain_rows else None

    def best(self, slot: int, limit: int) -> int:
        """Return the slot's last checkpoint at or before `limit`; 0 if there is none."""
        return max((position for position in self.positions(slot) if position <= limit), default=0)

    def positions(self, slot: int) -> tuple[int, ...]:
        """Return the slot's checkpoints."""
        return tuple(position for owner, position in self._places if owner == slot)

    def move_in(self, slot: int, positions: Iterable[int]) -> None:
        """Replace the slot's checkpoints by the checkpoints of the text that was swapped in."""
        self.cut(slot, 0)
        for position in sorted(positions):
            self.use(slot, position)

    def use(self, slot: int, position: int) -> None:
        """Record that the state at this position was saved or restored."""
        place = (slot, position)
        if place in self._places:
            self._places.remove(place)
        self._places.append(place)
        del self._places[: -self._max_states]

    def cut(self, slot: int, position: int) -> None:
        """Forget the slot's checkpoints after `position`, where the text changes."""
        self._places = [place for place in self._places if place[0] != slot or place[1] <= position]
